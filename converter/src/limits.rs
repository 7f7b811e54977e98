//! How much an input may ask for. What is past a bound was made to fill a disk or the memory, or is so far from any image
//! that something else is wrong; it is refused, with the entry's or the layer's name.
//!
//! A layer that is within all of them takes some gigabytes at worst, an ordinary one some 150 bytes an entry. The list for
//! people is in `docs/operations.md`. What a file system cannot hold (names, targets, attributes) is refused where it
//! is parsed: `tar/path.rs`, `tar/header.rs`, `erofs`.

use crate::error::{Error, Result};
use crate::tar::{Entry, Kind};
use erofs::Attributes;
use std::ops::Add;

/// Entries of a layer. Those of the same path count each: what they say is kept until the layer is read.
pub const ENTRIES: u64 = 8 << 20;

/// Paths of a layer, with the directories that its entries imply: a path of 4095 bytes implies two thousand, and so
/// does the target of a symbolic link with an entry below it.
pub const PATHS: usize = 4 << 20;

/// Bytes of the paths of the directories that a layer has anything in. Neither a conversion nor a comparison keeps whole
/// paths, but who lists a layer meets each of them, and one of 4095 bytes lies in two thousand.
pub const DIRECTORIES: u64 = 1 << 30;

/// What all layers of an image may hold together.
pub(crate) const IMAGE: Totals = Totals { names: 16 << 20, text: 1 << 30 };

/// Bytes of link targets and extended attributes in a layer: the largest images have some megabytes.
pub const TEXT: u64 = 512 << 20;

/// Names that are passed on the ways of entries and hard links through symlinks, in a layer: seconds of work.
pub const STEPS: u64 = 64 << 20;

/// Stored pieces of the sparse files of a layer.
pub const PIECES: u64 = 4 << 20;

/// Stored pieces of one sparse file: more than any file of a real tar has.
pub const FILE_PIECES: usize = 1 << 20;

/// Bytes of the extended headers of one entry together.
pub const EXTENDED: u64 = 8 << 20;

/// Bytes of holes that a layer has to store, since EROFS knows only holes of whole chunks, and of a bounded number of
/// them (see `erofs::Content::sparse`): a map that asks for more was made to be converted for ever. With [`PIECES`] it
/// bounds the chunk maps too, whose entries are no more than what is stored for them.
pub const ZEROS: u64 = 64 << 30;

/// Bytes that the list of a layer's assumptions may take in memory while it is made, about.
pub const ASSUMED: usize = 128 << 20;

/// Bytes of the lists of assumptions of an image's layers together, as they are written, and of all layers that a conversion
/// makes. They are part of the layers' heads, which are fetched whole, and stand in references again; a layer of a few
/// hundred bytes can bring a list of megabytes: each of a path's directories with the whole way to it. Half a million
/// implied directories or whiteouts that hide something; real images have some thousands.
pub const LISTED: usize = 64 << 20;

/// Bytes of a layer's tar whatever its blob's size, and [`TAR_RATIO`] for each byte of the blob. Layers of nothing but zeros
/// exist, and gzip makes a thousandth of them; a whole layer of more than 64 GiB whose blob is a hundredth of that
/// does not.
pub const TAR: u64 = 64 << 30;

/// See [`TAR`].
pub const TAR_RATIO: u64 = 100;

/// Bytes of one document of an image: what containerd reads.
pub const DOCUMENT: u64 = 8 << 20;

/// Bytes of all documents of an image.
pub const DOCUMENTS: u64 = 64 << 20;

/// How deep indexes may nest: see [`is_too_deep`].
const DEPTH: usize = 4;

/// Layers of an image: more than any image has, and than overlayfs stacks.
pub const LAYERS: usize = 512;

/// Files in an archive that holds an image.
pub const MEMBERS: usize = 1 << 17;

/// Warnings that are kept; further ones are only counted.
pub const WARNINGS: usize = 100;

/// What layers hold together: what is kept of all layers below the one that is converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Names: the root's, those that other layers hide, and each of a node that has several.
    pub names: usize,
    /// Bytes of targets of symbolic links and of extended attributes, those of each node.
    pub text: u64,
}

impl Totals {
    /// Counts a node's extended attributes.
    pub(crate) fn count_attributes(&mut self, attributes: &Attributes) {
        self.text += text(attributes);
    }

    /// Counts a symbolic link's target.
    pub(crate) fn count_target(&mut self, target: &[u8]) {
        self.text += target.len() as u64;
    }

    /// Refuses layers that hold more than that: [`IMAGE`], but in tests.
    pub(crate) fn check(&self, most: &Self) -> Result<()> {
        let past = |what: String| Err(Error::refused(format!("the image is too large: {what} in all its layers")));
        match () {
            () if self.names > most.names => past(format!("more than {} names", most.names)),
            () if self.text > most.text => {
                past(format!("more than {} bytes of link targets and attributes", most.text))
            }
            () => Ok(()),
        }
    }
}

impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { names: self.names + other.names, text: self.text + other.text }
    }
}

/// Bytes of extended attributes.
fn text(attributes: &Attributes) -> u64 {
    attributes.xattrs.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum()
}

/// What the entries of a layer have asked for so far.
#[derive(Debug, Default)]
pub struct Budget {
    entries: u64,
    text: u64,
    pieces: u64,
}

impl Budget {
    /// Counts an entry of a layer that has so many paths before it.
    pub fn charge(&mut self, entry: &Entry, paths: usize) -> Result<()> {
        let (target, pieces) = match &entry.kind {
            Kind::Symlink(target) => (target.len(), 0),
            Kind::HardLink(target) => (target.to_bytes().len(), 0),
            Kind::File(shape) => (0, shape.map.as_ref().map_or(0, Vec::len)),
            _ => (0, 0),
        };
        self.entries += 1;
        self.text += target as u64 + text(&entry.attributes);
        self.pieces += pieces as u64;
        check_paths(paths, PATHS)?;
        let past = |what: String| Err(Error::refused(format!("the layer is too large: {what}")));
        match () {
            () if self.entries > ENTRIES => past(format!("more than {ENTRIES} entries")),
            () if self.text > TEXT => past(format!("more than {TEXT} bytes of link targets and attributes")),
            () if self.pieces > PIECES => past(format!("more than {PIECES} pieces of sparse files")),
            () => Ok(()),
        }
    }

    /// How many entries there were.
    pub fn entries(&self) -> u64 {
        self.entries
    }
}

/// Refuses a layer of too many paths: [`PATHS`], but in tests. Asked whenever some were made: by entries, or since what
/// stands below a link belongs where that leads.
pub(crate) fn check_paths(paths: usize, most: usize) -> Result<()> {
    match paths > most {
        false => Ok(()),
        true => Err(Error::refused(format!(
            "the layer is too large: more than {most} paths, with the directories that entries imply"
        ))),
    }
}

/// Refuses a layer whose directories have too long paths, together.
pub(crate) fn check_directories(bytes: u64) -> Result<()> {
    match bytes > DIRECTORIES {
        false => Ok(()),
        true => Err(Error::refused(format!(
            "the layer is too large: the paths of its directories take more than {DIRECTORIES} bytes"
        ))),
    }
}

/// Refuses a layer by whose list the assumptions of an image's layers, or of all that were made, become too many: more than
/// [`LISTED`], but in tests.
pub(crate) fn check_listed(bytes: usize, most: usize) -> Result<()> {
    match bytes > most {
        false => Ok(()),
        true => Err(Error::refused(format!(
            "the layers up to this one take too much from the trees below them: the lists of it have more than {most} bytes"
        ))),
    }
}

/// Whether an index with so many indexes above it is one too many.
pub(crate) fn is_too_deep(above: usize) -> bool {
    above >= DEPTH
}

/// Refuses a tar that is too large for its blob.
pub(crate) fn check_ratio(tar: u64, blob: u64) -> Result<()> {
    match tar > blob.saturating_mul(TAR_RATIO).saturating_add(TAR) {
        false => Ok(()),
        true => Err(Error::refused(format!(
            "{blob} bytes decompress to more than {tar}: layers past {TAR} bytes and {TAR_RATIO} times their blob are refused"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar::{Extent, Shape, TreePath};

    fn entry(kind: Kind) -> Entry {
        Entry { path: TreePath::default(), kind, attributes: Attributes::default() }
    }

    fn refusal(budget: &mut Budget, entry: &Entry) -> String {
        (0..).find_map(|_| budget.charge(entry, 0).err()).unwrap().to_string()
    }

    #[test]
    fn targets_attributes_and_pieces_are_summed_over_the_layer() {
        let mut attributes = entry(Kind::Fifo);
        attributes.attributes.xattrs = (0..200).map(|n| (vec![n], vec![0; 65_000])).collect();
        let target = entry(Kind::Symlink(vec![b'x'; 4095]));
        let sparse = entry(Kind::File(Shape { size: 0, map: Some(vec![Extent { offset: 0, length: 0 }; 1 << 20]) }));
        let plain = entry(Kind::Fifo);
        let link = entry(Kind::HardLink(TreePath::clean(&b"d/".repeat(2000)).unwrap()));
        for (entry, says) in
            [(attributes, "attributes"), (target, "targets"), (link, "targets"), (sparse, "sparse"), (plain, "entries")]
        {
            assert!(refusal(&mut Budget::default(), &entry).contains(says), "{says}");
        }
        assert!(Budget::default().charge(&entry(Kind::Fifo), PATHS + 1).unwrap_err().to_string().contains("paths"));
    }

    #[test]
    fn names_and_texts_of_an_image_are_bounded() {
        let with = |names, text| Totals { names, text };
        assert!(IMAGE.check(&IMAGE).is_ok());
        for (more, says) in [(with(1, 0), "names"), (with(0, 1), "attributes")] {
            let error = (IMAGE + more).check(&IMAGE).unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn the_paths_of_directories_are_bounded_by_their_bytes() {
        assert!(check_directories(DIRECTORIES).is_ok());
        assert!(check_directories(DIRECTORIES + 1).unwrap_err().is_refusal());
    }

    #[test]
    fn the_lists_of_an_images_layers_are_bounded_together() {
        assert!(check_listed(0, 0).is_ok() && check_listed(LISTED, LISTED).is_ok());
        let error = check_listed(101, 100).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("more than 100 bytes"), "{error}");
    }

    #[test]
    fn a_tar_is_judged_by_its_blob() {
        assert!(check_ratio(64 << 30, 1).is_ok());
        assert!(check_ratio(100 << 30, 1 << 30).is_ok());
        assert!(check_ratio(65 << 30, 1 << 20).unwrap_err().is_refusal());
        assert!(check_ratio(u64::MAX, u64::MAX).is_ok());
    }
}
