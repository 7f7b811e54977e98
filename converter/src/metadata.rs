//! The metadata of a layer: written to a nameless file, checked, and read from there, so that it never has to be in memory
//! beside the tree that it is made of.

use crate::error::{Error, Result, unwritable};
use blobstore::layer::map_file;
use bytes::Bytes;
use erofs::{BLOCK, Expect, Layout, Tree};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most bytes that wait to be written.
const BUFFER: usize = 256 << 10;

/// Writes the metadata of a layer whose files lie in so many blocks of data; its UUID stands for it. The file goes to
/// `directory`.
pub(crate) fn write(tree: Tree, data_blocks: u64, directory: &Path) -> Result<Bytes> {
    let failed = |e| Error::failed("writing the metadata to a temporary file", e);
    let file = tempfile::tempfile_in(directory).map_err(failed)?;
    let layout = Layout::new(&tree, data_blocks).map_err(unwritable)?;
    let (first_data_block, length) = (layout.first_data_block(), layout.bytes());
    emit(&layout, &file).map_err(failed)?;
    drop(layout);
    // All of it is in the metadata by now, and the check needs memory too.
    drop(tree);
    set_uuid(&file).map_err(failed)?;
    let map = || map_file(&file, 0..length).map_err(|e| Error::failed("the metadata that was just written", e));
    let expect = Expect { image_blocks: first_data_block + data_blocks, first_data_block };
    let checked = erofs::check(&map()?, &expect).map(drop);
    checked.map_err(|e| Error::failed("the metadata that was just written", e))?;
    // Another map: none of it is resident.
    map()
}

fn emit(layout: &Layout<'_>, file: &File) -> io::Result<()> {
    file.set_len(layout.bytes())?;
    // What comes one behind the other goes to the file together.
    let (mut start, mut waiting) = (0, Vec::with_capacity(BUFFER));
    layout.emit(&mut |at, piece| {
        if at != start + waiting.len() as u64 || waiting.len() + piece.len() > BUFFER {
            file.write_all_at(&waiting, start)?;
            waiting.clear();
            start = at;
        }
        waiting.extend_from_slice(piece);
        Ok(())
    })?;
    file.write_all_at(&waiting, start)
}

fn set_uuid(file: &File) -> io::Result<()> {
    let (mut hasher, mut uuid, mut buffer) = (blake3::Hasher::new(), [0; 16], vec![0; BUFFER]);
    let mut at = 0;
    loop {
        let count = file.read_at(&mut buffer, at)?;
        hasher.update(&buffer[..count]);
        at += count as u64;
        if count == 0 {
            break;
        }
    }
    hasher.finalize_xof().fill(&mut uuid);
    let mut first = [0; BLOCK];
    file.read_exact_at(&mut first, 0)?;
    erofs::set_uuid(&mut first, uuid);
    file.write_all_at(&first, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use erofs::{Attributes, Content, Kind, Node};

    fn node(kind: Kind, xattrs: &[(&str, usize)]) -> Node {
        let xattrs = xattrs.iter().map(|(name, length)| (name.as_bytes().to_vec(), vec![b'x'; *length])).collect();
        Node { attributes: Attributes { mode: 0o755, xattrs, ..Attributes::default() }, kind }
    }

    /// Directories and links with blocks of their own before and behind others, pieces longer than the buffer among them.
    fn tree() -> Tree {
        let mut tree = Tree::new(Attributes::default());
        for (at, names) in [0, 1, 300, 2, 20_000, 150].into_iter().enumerate() {
            let directory = node(Kind::Directory, &[("user.all", 100), ("user.long", 3000 + at)]);
            let directory = tree.add(Tree::ROOT, format!("d{at}").as_bytes(), directory).unwrap();
            for name in 0..names {
                let kind = match name % 3 {
                    0 => Kind::Symlink(vec![b't'; 1 + name * 31 % 4094]),
                    1 => Kind::File(Content::Plain { size: 5000, start: name as u64 % 7 }),
                    _ => Kind::File(Content::Sparse { size: 9000, chunk_bits: 0, chunks: vec![None, Some(3), None] }),
                };
                let xattrs: &[(&str, usize)] = if name % 50 == 0 { &[("user.all", 100)] } else { &[] };
                tree.add(directory, format!("{:0200}", name).as_bytes(), node(kind, xattrs)).unwrap();
            }
        }
        tree.add(Tree::ROOT, b"x", node(Kind::Symlink(vec![b't'; 4090]), &[("user.x", 60_000)])).unwrap();
        tree
    }

    #[test]
    fn what_goes_through_a_file_is_what_is_written_to_memory() {
        let tree = tree();
        let mut want = erofs::write(&tree, 10).unwrap().into_bytes();
        let found = write(tree, 10, &std::env::temp_dir()).unwrap();
        assert_eq!(found.len(), want.len());
        assert!(want.len() > 20 * BUFFER, "{}", want.len());
        let mut uuid = [0; 16];
        blake3::Hasher::new().update(&want).finalize_xof().fill(&mut uuid);

        erofs::set_uuid(&mut want, uuid);
        let differs = found.iter().zip(&want).position(|(found, want)| found != want);
        assert_eq!(differs, None);
    }
}
