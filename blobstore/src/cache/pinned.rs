//! Which chunks are pinned, by which pins, and how much they take. In memory; setting a pin takes time by what that pin has
//! and had, however many others there are.

use super::pins::Lengths;
use super::segment::{HEADER, Hash};
use std::collections::{BTreeMap, HashMap};

/// Chunks that are pinned together.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Pin {
    /// What was acknowledged: the disk has it too.
    pub(super) durable: Option<Lengths>,
    /// What is held besides until it is.
    pub(super) held: Lengths,
}

impl Pin {
    /// All its chunks.
    pub(super) fn all(&self) -> Lengths {
        self.durable.iter().flatten().chain(&self.held).map(|(name, length)| (*name, *length)).collect()
    }
}

/// All pins.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    pins: BTreeMap<Hash, Pin>,
    chunks: HashMap<Hash, Count>,
    bytes: u64,
}

/// How many pins want a chunk.
#[derive(Debug)]
struct Count {
    length: u32,
    pins: u32,
    durable: u32,
}

impl Pinned {
    /// The pin of this name.
    pub(super) fn get(&self, name: &Hash) -> Option<&Pin> {
        self.pins.get(name)
    }

    /// The names of all chunks that are pinned.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &Hash> {
        self.chunks.keys()
    }

    /// Whether a chunk is in any pin.
    pub(super) fn has(&self, chunk: &Hash) -> bool {
        self.chunks.contains_key(chunk)
    }

    /// Whether a chunk is in a pin that was acknowledged with it.
    pub(super) fn durably(&self, chunk: &Hash) -> bool {
        self.chunks.get(chunk).is_some_and(|count| count.durable != 0)
    }

    /// Bytes that all pinned chunks take, or will take when all are here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that these would take besides.
    pub(super) fn more(&self, chunks: &Lengths) -> u64 {
        chunks.iter().filter(|(name, _)| !self.has(name)).map(|(_, length)| HEADER + u64::from(*length)).sum()
    }

    /// Sets a pin, or takes it away. Gives the chunks that were not pinned and are, or no longer are.
    pub(super) fn set(&mut self, name: &Hash, pin: Option<Pin>) -> Vec<Hash> {
        let mut changed = Vec::new();
        // The new ones first: what both have stays.
        for (durable, chunk, length) in pin.iter().flat_map(each) {
            let count = self.chunks.entry(*chunk).or_insert(Count { length: *length, pins: 0, durable: 0 });
            if count.pins == 0 {
                self.bytes += HEADER + u64::from(*length);
                changed.push(*chunk);
            }
            (count.pins, count.durable) = (count.pins + 1, count.durable + u32::from(durable));
        }
        let before = match pin {
            Some(pin) => self.pins.insert(*name, pin),
            None => self.pins.remove(name),
        };
        for (durable, chunk, _) in before.iter().flat_map(each) {
            let Some(count) = self.chunks.get_mut(chunk) else { continue };
            (count.pins, count.durable) = (count.pins - 1, count.durable - u32::from(durable));
            if count.pins == 0 {
                self.bytes -= HEADER + u64::from(count.length);
                self.chunks.remove(chunk);
                changed.push(*chunk);
            }
        }
        changed
    }
}

/// The chunks of a pin, each with whether it is in what was acknowledged.
fn each(pin: &Pin) -> impl Iterator<Item = (bool, &Hash, &u32)> {
    let durable = pin.durable.iter().flatten().map(|(name, length)| (true, name, length));
    durable.chain(pin.held.iter().map(|(name, length)| (false, name, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(n: u8) -> Hash {
        [n; 32]
    }

    fn pin() -> impl Strategy<Value = Option<Pin>> {
        let chunks = || proptest::collection::vec(0..12u8, 0..8);
        let chunks = || chunks().prop_map(|all| all.into_iter().map(|n| (name(n), u32::from(n) * 7)).collect());
        let durable = proptest::option::of(chunks());
        proptest::option::of((durable, chunks()).prop_map(|(durable, held)| Pin { durable, held }))
    }

    proptest! {
        #[test]
        fn counting_what_changes_gives_what_counting_everything_gives(steps in proptest::collection::vec((0..4u8, pin()), 0..40)) {
            let (mut pinned, mut pins) = (Pinned::default(), BTreeMap::new());
            for (n, pin) in steps {
                let before: Vec<_> = (0..12).filter(|n| pinned.has(&name(*n))).collect();
                let changed = pinned.set(&name(n), pin.clone());
                drop(match pin {
                    Some(pin) => pins.insert(n, pin),
                    None => pins.remove(&n),
                });
                let all: Lengths = pins.values().flat_map(Pin::all).collect();
                let durable: Lengths = pins.values().filter_map(|pin| pin.durable.clone()).flatten().collect();
                for n in 0..12 {
                    prop_assert_eq!(pinned.has(&name(n)), all.contains_key(&name(n)));
                    prop_assert_eq!(pinned.durably(&name(n)), durable.contains_key(&name(n)));
                    prop_assert_eq!(changed.contains(&name(n)), pinned.has(&name(n)) != before.contains(&n));
                }
                prop_assert_eq!(pinned.bytes(), Pinned::default().more(&all));
                prop_assert_eq!(pinned.more(&all), 0);
            }
        }
    }
}
