//! What a collection found and did.

use std::time::SystemTime;

/// What happens to an object that nothing needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its grace begins now (a dry run: would begin).
    Marked,
    /// Its grace is not over, or what names it has to go first.
    Waiting,
    /// It was deleted (a dry run: would be).
    Deleted,
    /// It was about to be deleted, and somebody said that it is needed.
    Spared,
}

/// An object that nothing needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unneeded {
    /// Its key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Since when it is known that nothing needs it, by the store's clock.
    pub since: Option<SystemTime>,
    /// What happens to it.
    pub fate: Fate,
}

/// A number of objects and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a collection found and did, or would do.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Image names.
    pub images: usize,
    /// Tags.
    pub tags: usize,
    /// Leases that have not ended.
    pub leases: usize,
    /// Layers that are needed.
    pub needed: Sum,
    /// What is not, by key.
    pub unneeded: Vec<Unneeded>,
    /// Weak references that were removed, or lost what is deleted. A dry run does not look for them.
    pub references: usize,
    /// Older objects of names that have moved since, leases that have ended, and profiles of layers that are gone.
    pub leftovers: usize,
}

impl Report {
    /// How much of what is not needed has this fate.
    pub fn sum(&self, fate: Fate) -> Sum {
        let mut sum = Sum::default();
        for object in self.unneeded.iter().filter(|object| object.fate == fate) {
            sum.objects += 1;
            sum.bytes += object.size;
        }
        sum
    }
}

/// What a collection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reading leases and names, and what they reach.
    Reading,
    /// Writing and removing tombstones.
    Marking,
    /// Removing references to what is about to go.
    References,
    /// Giving nodes time to say what they have just begun to use.
    Waiting,
    /// Deleting: so many done of so many.
    Deleting(usize, usize),
}
