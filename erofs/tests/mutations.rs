//! Random damage to good metadata, its checksum made right again. What the checker then accepts must be what the kernel
//! shows: a name, an attribute or a byte that the two read differently is a way round the checker.
//!
//! `EROFS_MUTATIONS` sets how many are tried (default 3,000), `EROFS_MOUNTS` how many of the accepted are mounted (20).
use crate::judge::{self, Files, Mount, compare};
use crate::sample::{Sample, attributes, with_xattrs};
use erofs::format::SUPERBLOCK_OFFSET;
use erofs::{Image, Kind, Tree, check, dump, read_tree};

/// A generator that gives the same numbers on every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % sides
    }
}

/// Small, and yet with every layout: directories in blocks and inline, symlinks of both kinds, holes, xattrs shared and not.
fn sample() -> Sample {
    let mut sample = Sample::new();
    let root = Tree::ROOT;
    let wide = sample.directory(root, "wide");
    for at in 0..30 {
        sample.file(wide, &format!("{at:0>200}"), attributes(0o644), b"x");
    }
    let block = sample.directory(root, "block");
    for at in 0..15 {
        sample.file(block, &format!("{at:0>255}"), attributes(0o644), b"");
    }
    sample.file(block, "the last name", attributes(0o644), b"");
    let set: [(&str, &[u8]); 3] = [("user.shared", b"a value"), ("user.x", b"1"), ("trusted.y", &[0; 40])];
    let deep = sample.directory(wide, "deep");
    let file = sample.file(deep, "file", with_xattrs(0o644, &set), &[1; 5000]);
    sample.tree.link(root, b"link", file).unwrap();
    sample.file(deep, "other", with_xattrs(0o644, &set[..1]), b"other");
    sample.sparse(deep, "sparse", 100_000, &[(50_000, vec![1; 9000])]);
    sample.add(deep, "symlink", attributes(0o777), Kind::Symlink(b"file".to_vec()));
    sample.add(deep, "long symlink", attributes(0o777), Kind::Symlink(vec![b'l'; 4090]));
    sample.add(deep, "null", attributes(0o666), Kind::Char(1, 3));
    sample.add(deep, "opaque", with_xattrs(0o755, &[("trusted.overlay.opaque", b"y")]), Kind::Directory);
    sample
}

/// Changes a few bytes, mostly where something stands.
fn mutate(bytes: &mut [u8], dice: &mut Dice) {
    let place = |bytes: &[u8], dice: &mut Dice| {
        let mut at = dice.roll(bytes.len());
        for _ in 0..40 {
            if bytes[at..].iter().take(8).any(|byte| *byte != 0) {
                break;
            }
            at = dice.roll(bytes.len());
        }
        at
    };
    for _ in 0..=dice.roll(3) {
        let at = place(bytes, dice);
        match dice.roll(6) {
            0 => bytes[at] ^= 1 << dice.roll(8),
            1 => bytes[at] = dice.roll(256) as u8,
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'/', b'.'][dice.roll(7)],
            3 => {
                let (from, to) = (at & !3, place(bytes, dice) & !3);
                bytes.copy_within(from..(from + 4).min(bytes.len()), to);
            }
            4 => {
                let (a, b) = (at & !31, place(bytes, dice) & !31);
                let len = 32.min(bytes.len() - a.max(b));
                bytes.copy_within(a..a + len, b);
            }
            _ => {
                let at = (at & !3).min(bytes.len() - 4);
                let word = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                let word = word.wrapping_add([1, u32::MAX, 32, 4096, 1 << 31][dice.roll(5)]);
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn what_the_checker_accepts_the_kernel_shows_as_we_read_it() {
    let original = sample();
    let metadata = original.write();
    let expect = original.expect(&metadata);
    let (mut dice, mut accepted) = (Dice(number("EROFS_SEED", 0x1a_314a) as u64 | 1), Vec::new());
    let tried = number("EROFS_MUTATIONS", 3000);
    for _ in 0..tried {
        let mut bytes = metadata.bytes().to_vec();
        mutate(&mut bytes, &mut dice);
        let checksum = erofs::checksum(&bytes).to_le_bytes();
        bytes[SUPERBLOCK_OFFSET + 4..][..4].copy_from_slice(&checksum);
        if let Ok(image) = Image::new(&bytes) {
            // On anything at all the reader ends, and does not panic.
            let _ = dump(&image, &mut String::new()).unwrap();
            let _ = read_tree(&image);
        }
        if check(&bytes, &expect).is_ok() && bytes != metadata.bytes() {
            accepted.push(bytes);
        }
    }
    println!("{} of {tried} accepted", accepted.len());
    if !judge::root() {
        return;
    }
    for bytes in accepted.iter().take(number("EROFS_MOUNTS", 20)) {
        let sample = Sample { tree: read_tree(&Image::new(bytes).unwrap()).unwrap(), data: original.data.clone() };
        let mut attached = bytes.clone();
        erofs::attach_device(&mut attached).unwrap();
        let files = Files::new();
        let (metadata, data) = (files.put("metadata", &[&attached]), files.put("data", &[&sample.data]));
        match Mount::by_file(&metadata, &format!("device={}", data.display())) {
            Ok(mount) => compare(&sample, mount.path()),
            Err(error) => return eprintln!("SKIPPED: needs file-backed mounts of EROFS (Linux 6.12): {error}"),
        }
    }
}
