//! The queue against a list that is searched from the start each time.

use super::*;
use proptest::prelude::*;

const REACH: Reach = Reach { bytes: 1000, gap: 50 };

const PLENTY: Room = Room { bytes: u64::MAX, ahead: u64::MAX, exceed: false };

fn room(bytes: u64) -> Room {
    Room { bytes, ..PLENTY }
}

fn place(layer: u8, chunk: u32) -> Place {
    Place { layer: LayerId::from_bytes([layer; 32]), chunk }
}

/// A chunk of 100 to 300 bytes, every fifth behind a gap of 40, every eleventh behind one of 90.
fn want(layer: u8, chunk: u32, class: Class) -> Want<u64> {
    let start = u64::from(chunk) * 300 + 90 * u64::from(chunk / 11) + 40 * u64::from(chunk / 5);
    let length = if chunk.is_multiple_of(5) { 100 } else { 300 };
    Want { place: place(layer, chunk), class, bytes: start..start + length, memory: length * 3, payload: 0 }
}

fn chunks(taken: Option<Vec<Want<u64>>>) -> Vec<u32> {
    taken.into_iter().flatten().map(|w| w.place.chunk).collect()
}

#[test]
fn neighbours_go_in_one_request_up_to_its_reach() {
    let mut queue = Queue::new();
    for chunk in [3, 1, 2, 4, 7, 6] {
        queue.push(want(1, chunk, Class::Need));
    }
    // 1 and 2 would make it longer than 1000 bytes; 5 is missing and longer than a gap.
    assert_eq!(chunks(queue.take(Class::Need, REACH, PLENTY)), [2, 3, 4]);
    assert_eq!(chunks(queue.take(Class::Need, REACH, PLENTY)), [1]);
    assert_eq!(chunks(queue.take(Class::Need, REACH, PLENTY)), [6, 7]);
    assert!(queue.take(Class::Need, REACH, PLENTY).is_none());
}

#[test]
fn layers_take_turns() {
    let mut queue = Queue::new();
    for chunk in 0..50 {
        queue.push(want(1, chunk * 3, Class::Need));
    }
    queue.push(want(2, 0, Class::Need));
    queue.push(want(3, 0, Class::Need));
    let order: Vec<_> =
        (0..4).map(|_| queue.take(Class::Need, REACH, PLENTY).unwrap()[0].place.layer.to_string()).collect();
    assert_eq!(order.iter().map(|l| &l[..2]).collect::<Vec<_>>(), ["01", "02", "03", "01"]);
}

#[test]
fn what_is_read_ahead_follows_a_need_and_never_delays_it() {
    let mut queue = Queue::new();
    for chunk in [1, 3] {
        queue.push(want(1, chunk, Class::Ahead));
    }
    queue.push(want(1, 2, Class::Need));
    assert_eq!(chunks(queue.take(Class::Need, REACH, PLENTY)), [2, 3]);
    assert_eq!(chunks(queue.take(Class::Ahead, REACH, PLENTY)), [1]);
}

#[test]
fn what_does_not_fit_in_memory_is_not_overtaken() {
    let mut queue = Queue::new();
    queue.push(want(1, 1, Class::Need));
    queue.push(want(1, 5, Class::Need));
    assert!(queue.take(Class::Need, REACH, room(800)).is_none());
    assert_eq!(chunks(queue.take(Class::Need, REACH, room(900))), [1]);
    assert_eq!(chunks(queue.take(Class::Need, REACH, room(800))), [5]);
}

#[test]
fn what_nobody_waits_for_has_its_own_part_of_the_memory_also_beside_a_need() {
    let mut queue = Queue::new();
    queue.push(want(1, 1, Class::Need));
    queue.push(want(1, 2, Class::Ahead));
    queue.push(want(1, 3, Class::Ahead));
    queue.push(want(2, 1, Class::Ahead));
    let room = Room { ahead: 900, ..PLENTY };
    assert_eq!(chunks(queue.take(Class::Need, REACH, room)), [1, 2]);
    assert!(queue.take(Class::Ahead, REACH, Room { ahead: 800, ..PLENTY }).is_none());
    assert_eq!(queue.take(Class::Ahead, REACH, room).map(|taken| taken.len()), Some(1));
}

/// What a queue must do, as a list in order of arrival.
#[derive(Default)]
struct Model {
    wants: Vec<Want<u64>>,
    turns: [Vec<LayerId>; 2],
}

impl Model {
    fn arrive(&mut self, want: Want<u64>) {
        let turns = &mut self.turns[want.class as usize];
        if !turns.contains(&want.place.layer) {
            turns.push(want.place.layer);
        }
        self.wants.push(want);
    }

    fn remove(&mut self, place: Place) -> Option<Want<u64>> {
        let at = self.wants.iter().position(|w| w.place == place)?;
        Some(self.wants.remove(at))
    }

    fn take(&mut self, class: Class, room: Room) -> Option<Vec<Want<u64>>> {
        let waits = |wants: &[Want<u64>], layer| wants.iter().any(|w| w.place.layer == layer && w.class == class);
        while !self.turns[class as usize].is_empty() {
            let layer = self.turns[class as usize].remove(0);
            if !waits(&self.wants, layer) {
                continue;
            }
            let oldest = self.wants.iter().find(|w| w.place.layer == layer && w.class == class).unwrap();
            let (place, mut range, mut memory) = (oldest.place, oldest.bytes.clone(), oldest.memory);
            let of = |w: &Want<u64>| if w.class == Class::Ahead { w.memory } else { 0 };
            let mut ahead = of(oldest);
            if (memory > room.bytes || ahead > room.ahead) && !room.exceed {
                self.turns[class as usize].insert(0, layer);
                return None;
            }
            self.turns[class as usize].push(layer);
            let mut taken = vec![place.chunk];
            for forward in [true, false] {
                let mut at = place.chunk;
                loop {
                    let mut others: Vec<_> = self.wants.iter().filter(|w| w.place.layer == layer).collect();
                    others.sort_by_key(|w| w.place.chunk);
                    let next = match forward {
                        true => others.into_iter().find(|w| w.place.chunk > at),
                        false => others.into_iter().rev().find(|w| w.place.chunk < at),
                    };
                    let Some(next) = next else { break };
                    let gap = if forward { next.bytes.start - range.end } else { range.start - next.bytes.end };
                    let whole = range.start.min(next.bytes.start)..range.end.max(next.bytes.end);
                    if gap > REACH.gap || whole.end - whole.start > REACH.bytes || memory + next.memory > room.bytes {
                        break;
                    }
                    if next.class == Class::Ahead && ahead + next.memory > room.ahead {
                        break;
                    }
                    if !forward && next.class != class {
                        break;
                    }
                    ahead += of(next);
                    (range, memory, at) = (whole, memory + next.memory, next.place.chunk);
                    taken.push(at);
                }
            }
            taken.sort_unstable();
            return Some(taken.into_iter().map(|chunk| self.remove(Place { layer, chunk }).unwrap()).collect());
        }
        None
    }
}

#[derive(Debug, Clone)]
enum Step {
    Push(u8, u32, bool),
    Raise(u8, u32),
    Remove(u8, u32),
    Take(bool, u64, u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4u8, 0..24u32, any::<bool>()).prop_map(|(l, c, n)| Step::Push(l, c, n)),
        1 => (0..4u8, 0..24u32).prop_map(|(l, c)| Step::Raise(l, c)),
        1 => (0..4u8, 0..24u32).prop_map(|(l, c)| Step::Remove(l, c)),
        2 => (any::<bool>(), 200..4000u64, 200..4000u64, any::<bool>()).prop_map(|(n, room, a, e)| Step::Take(n, room, a, e)),
    ]
}

fn class(need: bool) -> Class {
    if need { Class::Need } else { Class::Ahead }
}

proptest! {
    #[test]
    fn the_queue_does_what_the_model_does(steps in proptest::collection::vec(step(), 0..200)) {
        let (mut queue, mut model) = (Queue::new(), Model::default());
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(layer, chunk, need) => {
                    let new = || Want { payload: n as u64, ..want(layer, chunk, class(need)) };
                    let before = model.remove(place(layer, chunk)).map(|w| w.payload);
                    model.arrive(new());
                    prop_assert_eq!(queue.push(new()).map(|w| w.payload), before);
                }
                Step::Raise(layer, chunk) => {
                    queue.raise(place(layer, chunk));
                    let waits = model.wants.iter().any(|w| w.place == place(layer, chunk) && w.class == Class::Ahead);
                    if waits {
                        let raised = model.remove(place(layer, chunk)).unwrap();
                        model.arrive(Want { class: Class::Need, ..raised });
                    }
                }
                Step::Remove(layer, chunk) => {
                    let removed = queue.remove(place(layer, chunk), |_| true).map(|w| w.payload);
                    prop_assert_eq!(removed, model.remove(place(layer, chunk)).map(|w| w.payload));
                }
                Step::Take(need, bytes, ahead, exceed) => {
                    let room = Room { bytes, ahead, exceed };
                    let key = |t: Option<Vec<Want<u64>>>| t.map(|t| t.iter().map(|w| (w.place, w.payload)).collect::<Vec<_>>());
                    let taken = queue.take(class(need), REACH, room);
                    prop_assert_eq!(key(taken), key(model.take(class(need), room)));
                }
            }
        }
        // At the end everything comes out, and nothing is left behind.
        for class in [Class::Need, Class::Ahead] {
            while queue.take(class, REACH, PLENTY).is_some() {}
        }
        prop_assert!(queue.lanes.is_empty() && queue.turns.iter().all(VecDeque::is_empty));
    }
}
