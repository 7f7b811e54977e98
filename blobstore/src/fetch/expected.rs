//! What starts are expected to read, in the order of when, whichever layer it is of; and what each start may fetch.
//!
//! Layers that are mounted for one start tell their chunks one after the other, as their profiles come. All have the start's
//! beginning, so that its chunks are in one order. All have its bytes: what is expected last goes when others want to be there before
//! it, unless it is fetched already. A start to which nobody has added anything for a while is forgotten.

use super::Layer;
use crate::layer::LayerId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A chunk, and when it is expected to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub(super) at: Instant,
    pub(super) layer: LayerId,
    pub(super) chunk: u32,
}

/// A chunk that is still to be fetched.
#[derive(Debug)]
struct Waiting {
    layer: Arc<Layer>,
    start: Arc<str>,
    /// What is to be fetched for it, as it is stored.
    bytes: u64,
}

#[derive(Debug)]
struct Start {
    begun: Instant,
    /// When something was added last.
    last: Instant,
    /// Bytes that wait or were taken to be fetched.
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Expected {
    fetch: BTreeMap<Due, Waiting>,
    decode: BTreeMap<Due, Arc<Layer>>,
    starts: HashMap<Arc<str>, Start>,
    /// The most that a start may fetch, bytes.
    most: u64,
    /// How long a start is remembered.
    patience: Duration,
}

impl Expected {
    pub(super) fn new(most: u64, patience: Duration) -> Self {
        Self { fetch: BTreeMap::new(), decode: BTreeMap::new(), starts: HashMap::new(), most, patience }
    }

    /// Adds chunks of a layer that was mounted then for a start: how long after the start's beginning each is expected, and how
    /// many bytes are to be fetched for it: none, where it is here. Gives those chunks of the layer that are expected in vain.
    pub(super) fn add(
        &mut self,
        start: &str,
        mounted: Instant,
        layer: &Arc<Layer>,
        chunks: impl Iterator<Item = (Duration, u32, u64)>,
    ) -> Vec<u32> {
        let now = Instant::now();
        self.starts.retain(|_, start| now.duration_since(start.last) < self.patience);
        let start: Arc<str> = start.into();
        let of = self.starts.entry(start.clone()).or_insert(Start { begun: mounted, last: now, bytes: 0 });
        of.last = now;
        for (after, chunk, bytes) in chunks {
            let Some(at) = of.begun.checked_add(after) else { continue };
            let waiting = Waiting { layer: layer.clone(), start: start.clone(), bytes };
            if self.fetch.insert(Due { at, layer: layer.id, chunk }, waiting).is_none() {
                of.bytes += bytes;
            }
        }
        let gone = self.trim(&start);
        gone.iter().filter(|due| due.layer == layer.id).map(|due| due.chunk).collect()
    }

    /// Lets go of what a start is expected to read last, until the rest is no more than it may fetch.
    fn trim(&mut self, start: &Arc<str>) -> Vec<Due> {
        let Some(of) = self.starts.get_mut(start) else { return Vec::new() };
        let mut over = of.bytes.saturating_sub(self.most);
        let mut last = Vec::new();
        for (due, waiting) in
            self.fetch.iter().rev().filter(|(_, waiting)| waiting.start == *start && waiting.bytes > 0)
        {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(waiting.bytes);
            of.bytes -= waiting.bytes;
            last.push(*due);
        }
        last.iter().for_each(|due| drop(self.fetch.remove(due)));
        last
    }

    /// The next ones to fetch; from now on they are to be decompressed.
    pub(super) fn take(&mut self, most: usize) -> Vec<(Arc<Layer>, u32)> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((due, waiting)) = self.fetch.pop_first()
        {
            self.decode.insert(due, waiting.layer.clone());
            taken.push((waiting.layer, due.chunk));
        }
        taken
    }

    /// What is to be decompressed next.
    pub(super) fn to_decode(&self) -> Option<(Due, Arc<Layer>)> {
        self.decode.first_key_value().map(|(due, layer)| (*due, layer.clone()))
    }

    /// It was, or need not be.
    pub(super) fn decoded(&mut self, due: &Due) {
        self.decode.remove(due);
    }

    /// Forgets a layer; gives the chunks of it that may be on their way.
    pub(super) fn remove(&mut self, layer: &LayerId) -> Vec<u32> {
        for (_, waiting) in self.fetch.extract_if(.., |due, _| due.layer == *layer) {
            if let Some(start) = self.starts.get_mut(&waiting.start) {
                start.bytes = start.bytes.saturating_sub(waiting.bytes);
            }
        }
        self.decode.extract_if(.., |due, _| due.layer == *layer).map(|(due, _)| due.chunk).collect()
    }

    /// Chunks that are still to be fetched, and those that are to be decompressed.
    pub(super) fn left(&self) -> (usize, usize) {
        (self.fetch.len(), self.decode.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::{Flags, Front, Index, Options, Writer};

    const SECOND: Duration = Duration::from_secs(1);

    /// A layer of 8 chunks that are stored in equal lengths.
    fn layer(n: u8) -> Arc<Layer> {
        let file = tempfile::tempfile().unwrap();
        let front = Front { metadata: &[n; 4096], flags: Flags::empty(), sections: &[], chunks: 8 };
        let mut writer = Writer::new(&Options { level: 1, threads: 1 }, &front, file.try_clone().unwrap()).unwrap();
        (0..8).for_each(|chunk| writer.push(vec![n * 8 + chunk; 4096]).unwrap());
        writer.finish().unwrap();
        Arc::new(Layer::new(Arc::new(Index::of_file(&file).unwrap())))
    }

    /// Of starts that may fetch so many chunks.
    fn of(layer: &Layer, chunks: u64) -> Expected {
        Expected::new(chunks * u64::from(layer.index.chunk(0).unwrap().stored_len), 60 * SECOND)
    }

    fn taken(expected: &mut Expected, layers: &[&Arc<Layer>]) -> Vec<(usize, u32)> {
        let number = |layer: &Layer| layers.iter().position(|l| l.id == layer.id).unwrap();
        expected.take(64).into_iter().map(|(layer, chunk)| (number(&layer), chunk)).collect()
    }

    /// Chunks of a layer that are read one a second.
    fn steps(layer: &Layer, chunks: std::ops::Range<u32>) -> impl Iterator<Item = (Duration, u32, u64)> {
        let bytes = layer.index.chunk(0).unwrap().stored_len.into();
        chunks.map(move |chunk| (chunk * SECOND, chunk, bytes))
    }

    #[test]
    fn what_is_here_costs_a_start_nothing_and_what_it_may_not_fetch_is_told() {
        let (a, b) = (layer(0), layer(1));
        let (mut expected, now) = (of(&a, 4), Instant::now());
        let here = steps(&a, 0..8).map(|(after, chunk, _)| (after, chunk, 0));
        assert!(expected.add("start", now, &a, here).is_empty());
        let mut gone = expected.add("start", now, &b, steps(&b, 0..8));
        gone.sort_unstable();
        assert_eq!((gone, expected.left().0), (vec![4, 5, 6, 7], 12));
    }

    #[test]
    fn layers_of_one_start_have_one_beginning_and_one_number_of_bytes() {
        let (a, b) = (layer(0), layer(1));
        let (mut expected, now) = (of(&a, 8), Instant::now());
        expected.add("start", now, &a, steps(&a, 0..8));
        assert_eq!(expected.left(), (8, 0));
        // Mounted a little later, and of the same beginning.
        expected.add("start", now + SECOND / 2, &b, steps(&b, 0..8));
        let mut early = taken(&mut expected, &[&a, &b]);
        early.sort_by_key(|(layer, chunk)| (*chunk, *layer));
        assert_eq!(early, (0..4).flat_map(|chunk| [(0, chunk), (1, chunk)]).collect::<Vec<_>>());
        // It has had all of it.
        expected.add("start", now, &a, steps(&a, 4..8));
        assert_eq!(expected.left(), (0, 8));
        expected.add("another", now, &a, steps(&a, 4..8));
        assert_eq!(expected.left().0, 4);
    }

    #[test]
    fn what_is_given_up_before_it_is_fetched_leaves_its_bytes_to_others() {
        let (a, b) = (layer(0), layer(1));
        let (mut expected, now) = (of(&a, 8), Instant::now());
        expected.add("start", now, &a, steps(&a, 0..8));
        assert_eq!(taken(&mut expected, &[&a]).len(), 8);
        assert_eq!(expected.remove(&a.id).len(), 8, "they may be on their way");
        expected.add("start", now, &b, steps(&b, 0..8));
        assert_eq!(expected.left(), (0, 0));
        expected.add("second", now, &a, steps(&a, 0..8));
        assert!(expected.remove(&a.id).is_empty());
        expected.add("second", now, &b, steps(&b, 0..8));
        assert_eq!(expected.left(), (8, 0));
    }
}
