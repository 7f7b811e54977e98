//! Every question that can be put to an image, for metadata that is anything at all. The fuzz target asks the same.

use erofs::{Image, dump, read_tree};

/// Asks an image everything that can be asked; all that matters is that it ends.
pub(crate) fn ask_everything(image: &Image<'_>) {
    let _ = read_tree(image);
    let _ = dump(image, &mut String::new());
    for nid in 0..(image.bytes().len() as u64 / 32) {
        let Ok(inode) = image.inode(nid) else { continue };
        let _ = image.kind(&inode);
        let _ = image.xattr(&inode, b"user.a");
        let _ = image.lookup(&inode, b"a");
        for offset in [0, 5000, inode.size.wrapping_sub(1), u64::MAX] {
            let _ = image.extent(&inode, offset);
        }
    }
}
