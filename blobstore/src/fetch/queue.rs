//! What waits for its turn at the store: which comes next, and what goes with it in one request.
//!
//! A plain data structure: no threads, no time, no store. Two classes: what readers need, and what is fetched ahead of
//! them. Within a class layers take turns, so that one with a thousand misses does not keep another's one waiting; within a
//! layer the oldest comes first. What lies beside it in the layer's file and waits too goes along, up to so many bytes:
//! behind it anything, for it delays nobody (a chunk is given out when it has come, not when all have); before it only
//! what is of the same class. Every operation takes time logarithmic in what waits.

use crate::layer::LayerId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Bound, Range};

/// For whom something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// A reader waits for it.
    Need,
    /// Somebody may read it.
    Ahead,
}

/// A chunk of a layer; for things that are no chunk, a number that no chunk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) layer: LayerId,
    pub(super) chunk: u32,
}

/// Something that waits.
#[derive(Debug)]
pub(super) struct Want<T> {
    pub(super) place: Place,
    pub(super) class: Class,
    /// Where it lies in the layer's file.
    pub(super) bytes: Range<u64>,
    /// Memory that it takes from being asked for to being handed over.
    pub(super) memory: u64,
    pub(super) payload: T,
}

/// How far one request goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Bytes of the layer's file.
    pub(super) bytes: u64,
    /// Bytes between two chunks that nobody asked for, read and thrown away rather than asking twice.
    pub(super) gap: u64,
}

/// Memory that a request may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) bytes: u64,
    /// How much of it, at most, for what nobody waits for, alone or beside a need.
    pub(super) ahead: u64,
    /// Whether it may be more for a single thing: when nothing else is in use, as what needs more than there is would else
    /// wait for ever.
    pub(super) exceed: bool,
}

impl Room {
    fn fits<T>(self, want: &Want<T>) -> bool {
        let most = match want.class {
            Class::Need => self.bytes,
            Class::Ahead => self.bytes.min(self.ahead),
        };
        want.memory <= most
    }

    fn take<T>(&mut self, want: &Want<T>) {
        self.bytes = self.bytes.saturating_sub(want.memory);
        if want.class == Class::Ahead {
            self.ahead = self.ahead.saturating_sub(want.memory);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue<T> {
    lanes: HashMap<LayerId, Lane<T>>,
    /// Whose turn it is, of each class. A layer stands in it once at most.
    turns: [VecDeque<LayerId>; 2],
    tickets: u64,
}

#[derive(Debug)]
struct Lane<T> {
    wants: BTreeMap<u32, (u64, Want<T>)>,
    /// In order of arrival, by class: ticket and chunk. An entry whose ticket its want no longer has is passed over.
    arrivals: [VecDeque<(u64, u32)>; 2],
    /// Whether the layer stands among the turns of the class.
    listed: [bool; 2],
}

impl<T> Lane<T> {
    fn new() -> Self {
        Self { wants: BTreeMap::new(), arrivals: Default::default(), listed: [false; 2] }
    }

    /// The chunk of this class that has waited longest.
    fn oldest(&mut self, class: Class) -> Option<u32> {
        let arrivals = &mut self.arrivals[class as usize];
        while let Some((ticket, chunk)) = arrivals.front().copied() {
            if self.wants.get(&chunk).is_some_and(|(held, _)| *held == ticket) {
                return Some(chunk);
            }
            arrivals.pop_front();
        }
        None
    }

    /// Numbers of the chunks that go with `chunk`, it among them, ascending; within `room`.
    fn companions(&self, chunk: u32, reach: Reach, room: Room) -> Vec<u32> {
        let Some((_, first)) = self.wants.get(&chunk) else { return Vec::new() };
        let (mut range, mut left) = (first.bytes.clone(), room);
        left.take(first);
        let mut found = VecDeque::from([chunk]);
        let mut fits = |range: &Range<u64>, want: &Want<T>| {
            let near = want.bytes.start.saturating_sub(range.end) <= reach.gap
                && range.start.saturating_sub(want.bytes.end) <= reach.gap;
            let whole = range.start.min(want.bytes.start)..range.end.max(want.bytes.end);
            let fits = near && whole.end - whole.start <= reach.bytes && left.fits(want);
            fits.then(|| {
                left.take(want);
                whole
            })
        };
        for (next, (_, want)) in self.wants.range((Bound::Excluded(chunk), Bound::Unbounded)) {
            let Some(wider) = fits(&range, want) else { break };
            range = wider;
            found.push_back(*next);
        }
        for (before, (_, want)) in self.wants.range(..chunk).rev() {
            let Some(wider) = fits(&range, want).filter(|_| want.class == first.class) else { break };
            range = wider;
            found.push_front(*before);
        }
        found.into()
    }
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { lanes: HashMap::new(), turns: Default::default(), tickets: 0 }
    }

    /// Adds a want. One that waits at the same place is replaced and given back.
    pub(super) fn push(&mut self, want: Want<T>) -> Option<Want<T>> {
        let (place, class) = (want.place, want.class);
        let ticket = self.arrive(place, class);
        let lane = self.lanes.entry(place.layer).or_insert_with(Lane::new);
        lane.wants.insert(place.chunk, (ticket, want)).map(|(_, before)| before)
    }

    /// Makes a need of what waits at `place`, if anything does: it stands at the end of its layer's needs then.
    pub(super) fn raise(&mut self, place: Place) {
        let waits = self.lanes.get(&place.layer).and_then(|lane| lane.wants.get(&place.chunk));
        if waits.is_none_or(|(_, want)| want.class == Class::Need) {
            return;
        }
        let ticket = self.arrive(place, Class::Need);
        let held = self.lanes.get_mut(&place.layer).and_then(|lane| lane.wants.get_mut(&place.chunk));
        if let Some((held, want)) = held {
            (*held, want.class) = (ticket, Class::Need);
        }
    }

    /// Takes out what waits at `place`, where `really` says so.
    pub(super) fn remove(&mut self, place: Place, really: impl FnOnce(&Want<T>) -> bool) -> Option<Want<T>> {
        let lane = self.lanes.get_mut(&place.layer)?;
        lane.wants.get(&place.chunk).filter(|(_, want)| really(want))?;
        lane.wants.remove(&place.chunk).map(|(_, want)| want)
    }

    /// The next request of this class: neighbours in the order in which they lie. Nothing where nothing waits, or where
    /// what comes next takes more memory than `room`: it is not passed over for something smaller.
    pub(super) fn take(&mut self, class: Class, reach: Reach, room: Room) -> Option<Vec<Want<T>>> {
        while let Some(layer) = self.turns[class as usize].front().copied() {
            let oldest = self.lanes.get_mut(&layer).and_then(|lane| lane.oldest(class));
            let (Some(lane), Some(chunk)) = (self.lanes.get_mut(&layer), oldest) else {
                self.unlist(layer, class);
                continue;
            };
            if lane.wants.get(&chunk).is_none_or(|(_, want)| !room.exceed && !room.fits(want)) {
                return None;
            }
            let chunks = lane.companions(chunk, reach, room);
            let taken = chunks.iter().filter_map(|c| lane.wants.remove(c)).map(|(_, want)| want).collect();
            self.turns[class as usize].rotate_left(1);
            return Some(taken);
        }
        None
    }

    /// Whether anything of this class waits, as far as the last [`Queue::take`] of it has seen.
    pub(super) fn is_waiting(&self, class: Class) -> bool {
        !self.turns[class as usize].is_empty()
    }

    /// A ticket for something that begins to wait; its layer gets its turn.
    fn arrive(&mut self, place: Place, class: Class) -> u64 {
        self.tickets += 1;
        let lane = self.lanes.entry(place.layer).or_insert_with(Lane::new);
        lane.arrivals[class as usize].push_back((self.tickets, place.chunk));
        if !std::mem::replace(&mut lane.listed[class as usize], true) {
            self.turns[class as usize].push_back(place.layer);
        }
        self.tickets
    }

    /// Takes a layer that has nothing of this class out of the turns, and forgets it when it has nothing at all.
    fn unlist(&mut self, layer: LayerId, class: Class) {
        self.turns[class as usize].pop_front();
        if let Some(lane) = self.lanes.get_mut(&layer) {
            lane.listed[class as usize] = false;
            if lane.listed == [false; 2] {
                self.lanes.remove(&layer);
            }
        }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
