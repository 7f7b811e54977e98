//! Which mirrors gave the bytes of a blob, and which are not asked for it any more.
//!
//! That a mirror's bytes are wrong is often known at the blob's end, when its reader has had most of it. The reader refuses
//! them then, and asks here whether a mirror is to blame: if one is, it is left out, and reading again is another's turn. Of
//! several that gave parts of it those are to blame that went wrong otherwise, else the first. Each time one mirror less is
//! left, and at last the registry itself gives what it has.

use blobstore::refs::Digest;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of all blobs. Mirrors go by their numbers.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<HashMap<Digest, Record>>);

#[derive(Debug, Default)]
struct Record {
    /// They gave bytes since reading began, and nobody has verified them.
    gave: BTreeSet<usize>,
    /// They are not asked.
    left_out: BTreeSet<usize>,
}

impl Ledger {
    /// The blob is read from its start.
    pub(super) fn begin(&self, blob: &Digest) {
        self.with(blob, |record| record.gave.clear());
    }

    /// A mirror gives bytes of it.
    pub(super) fn gives(&self, blob: &Digest, mirror: usize) {
        self.with(blob, |record| record.gave.insert(mirror));
    }

    /// All of it came, and is what it should be.
    pub(super) fn verified(&self, blob: &Digest) {
        self.with(blob, |record| record.gave.clear());
    }

    /// Who gave bytes that nobody has verified.
    pub(super) fn gave(&self, blob: &Digest) -> Vec<usize> {
        self.with(blob, |record| record.gave.iter().copied().collect())
    }

    /// What came is wrong: who is to blame, if any mirror is, and left out from now on.
    pub(super) fn blame(&self, blob: &Digest) -> Vec<usize> {
        self.with(blob, |record| {
            let gave = std::mem::take(&mut record.gave);
            let known: Vec<usize> = gave.intersection(&record.left_out).copied().collect();
            if !known.is_empty() {
                return known;
            }
            let first = gave.into_iter().next();
            record.left_out.extend(first);
            first.into_iter().collect()
        })
    }

    /// A mirror is left out from now on.
    pub(super) fn leave_out(&self, blob: &Digest, mirror: usize) {
        self.with(blob, |record| record.left_out.insert(mirror));
    }

    /// Whether a mirror is.
    pub(super) fn is_left_out(&self, blob: &Digest, mirror: usize) -> bool {
        self.lock().get(blob).is_some_and(|record| record.left_out.contains(&mirror))
    }

    fn with<T>(&self, blob: &Digest, work: impl FnOnce(&mut Record) -> T) -> T {
        work(self.lock().entry(*blob).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Record>> {
        // Each change is one of a single set.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gave_what_is_refused_is_left_out_and_who_gave_what_was_right_is_not() {
        let (ledger, one, two) = (Ledger::default(), Digest::of(b"1"), Digest::of(b"2"));
        ledger.begin(&one);
        ledger.gives(&one, 0);
        ledger.gives(&two, 0);
        ledger.verified(&two);
        assert_eq!((ledger.blame(&two), ledger.blame(&one)), (vec![], vec![0]));
        assert!(ledger.is_left_out(&one, 0) && !ledger.is_left_out(&two, 0));
        assert_eq!(ledger.blame(&one), Vec::<usize>::new(), "once");
        ledger.gives(&one, 1);
        ledger.begin(&one);
        assert_eq!(ledger.gave(&one), Vec::<usize>::new(), "what came before is read again");
    }

    #[test]
    fn of_several_who_gave_parts_one_is_to_blame() {
        let (ledger, blob) = (Ledger::default(), Digest::of(b"1"));
        let read = |mirrors: &[usize]| {
            ledger.begin(&blob);
            mirrors.iter().for_each(|&mirror| ledger.gives(&blob, mirror));
        };
        read(&[0, 1, 2]);
        ledger.leave_out(&blob, 1);
        assert_eq!(ledger.blame(&blob), [1], "it went wrong already");
        read(&[0, 2]);
        assert_eq!(ledger.blame(&blob), [0]);
        read(&[2]);
        assert_eq!(ledger.blame(&blob), [2]);
        assert!((0..3).all(|mirror| ledger.is_left_out(&blob, mirror)));
    }
}
