//! Every order in which actors can take their turns.
//!
//! Actors are futures and cannot be copied, so each order is played from the beginning. Where a state was seen before
//! (the objects, the clock, and for each actor all that it was ever answered), what follows was seen as well: it is not
//! played again, but counted.

use super::world::{Inner, Setting, Wish, World};
use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// More than any scene has.
const STATES_MAX: usize = 1_000_000;

pub(super) type Play = Pin<Box<dyn Future<Output = ()>>>;

/// What actors do in a world.
pub(super) type Parts = dyn Fn(&World) -> Vec<Play>;

/// What is played.
pub(super) struct Scene {
    /// What is in the store, and how late it is, when it begins.
    pub(super) setting: Setting,
    /// Gives the actors their parts.
    pub(super) parts: Box<Parts>,
    /// How far the clock may be put on, each at any moment, in this order.
    pub(super) jumps: Vec<Duration>,
    /// Actors of which one may be killed at any moment.
    pub(super) mortal: Vec<usize>,
    /// What must be so when nobody can do anything any more.
    pub(super) end: Box<dyn Fn(&World)>,
    /// Of a scene that has too many states: those of them that are looked at, deep ones first.
    pub(super) some: Option<usize>,
}

/// How much was seen.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) ends: usize,
    /// Orders of turns from the beginning to an end.
    pub(super) orders: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Turn(usize),
    /// The clock is put on to where somebody wakes.
    Wake,
    Jump,
    Kill(usize),
}

struct Played {
    world: World,
    actors: Vec<Option<Play>>,
    jumps: usize,
    killed: Option<usize>,
}

/// Tells what led to a state in which something is wrong.
impl Drop for Played {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let world = self.world.lock();
            println!("{}\nkilled: {:?}; jumps: {}", world.story.join("\n"), self.killed, self.jumps);
        }
    }
}

struct Silent;

impl Wake for Silent {
    fn wake(self: Arc<Self>) {}
}

impl Played {
    fn begin(scene: &Scene) -> Self {
        let world = World::begin(&scene.setting);
        let actors: Vec<_> = (scene.parts)(&world).into_iter().map(Some).collect();
        let mut played = Self { world, actors, jumps: 0, killed: None };
        (0..played.actors.len()).for_each(|actor| played.poll(actor));
        played
    }

    fn poll(&mut self, actor: usize) {
        let waker = Waker::from(Arc::new(Silent));
        let Some(play) = &mut self.actors[actor] else { return };
        // Some futures want to be asked again, before they say what they wait for.
        loop {
            if let Poll::Ready(()) = play.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.actors[actor] = None;
                return;
            }
            let world = self.world.lock();
            // And what is done beside another thing can take its turn only then.
            if world.actors[actor].wish.is_some() && !world.actors[actor].turn {
                return;
            }
        }
    }

    fn moves(&self, scene: &Scene) -> Vec<Move> {
        let world = self.world.lock();
        let lives = |actor: &usize| self.actors[*actor].is_some();
        let all = 0..self.actors.len();
        let mut moves: Vec<Move> =
            all.clone().filter(lives).filter(|actor| world.can(*actor)).map(Move::Turn).collect();
        let still = !all.clone().filter(lives).any(|actor| world.actors[actor].urgent || world.actors[actor].in_time);
        if still && wakes(&world, all.clone().filter(lives)).is_some() {
            moves.push(Move::Wake);
        }
        if still && self.jumps < scene.jumps.len() {
            moves.push(Move::Jump);
        }
        // Who watches another that is no more goes on when it has watched for long enough.
        if moves.is_empty() && still && watched(&world, all.clone().filter(lives)).is_some() {
            moves.push(Move::Wake);
        }
        if self.killed.is_none() {
            moves.extend(scene.mortal.iter().copied().filter(|actor| lives(actor)).map(Move::Kill));
        }
        moves
    }

    fn make(&mut self, scene: &Scene, made: Move) {
        match made {
            Move::Turn(actor) => {
                self.world.lock().actors[actor].turn = true;
                let waker = self.world.lock().actors[actor].waker.take();
                waker.iter().for_each(Waker::wake_by_ref);
                self.poll(actor);
            }
            Move::Wake => {
                let lives: Vec<usize> = (0..self.actors.len()).filter(|actor| self.actors[*actor].is_some()).collect();
                let mut world = self.world.lock();
                let at = wakes(&world, lives.iter().copied()).or_else(|| watched(&world, lives.iter().copied()));
                if let Some(at) = at {
                    world.clock = at;
                }
            }
            Move::Jump => {
                self.world.lock().clock += scene.jumps[self.jumps];
                self.jumps += 1;
            }
            Move::Kill(actor) => {
                self.actors[actor] = None;
                self.killed = Some(actor);
                let mut world = self.world.lock();
                world.actors[actor].wish = None;
                world.actors[actor].urgent = false;
                world.actors[actor].in_time = false;
                world.actors[actor].relies_on.clear();
            }
        }
    }

    fn state(&self) -> (u64, usize, Option<usize>) {
        (self.world.lock().state(), self.jumps, self.killed)
    }
}

/// The next moment at which a sleeper wakes.
fn wakes(world: &Inner, actors: impl Iterator<Item = usize>) -> Option<Duration> {
    let times = actors.filter_map(|actor| match world.actors[actor].wish {
        Some(Wish::Time(at)) if at > world.clock => Some(at),
        _ => None,
    });
    times.min()
}

/// The next moment at which somebody has watched the collectors' words for long enough.
fn watched(world: &Inner, actors: impl Iterator<Item = usize>) -> Option<Duration> {
    let times = actors.filter_map(|actor| match world.actors[actor].wish {
        Some(Wish::Sweeps(_, at)) if at > world.clock => Some(at),
        _ => None,
    });
    times.min()
}

/// Plays every order, and has `check` look at each state that can be wrong.
pub(super) fn explore(scene: &Scene, check: impl Fn(&World)) -> Explored {
    let mut seen = HashMap::new();
    let mut next: Vec<Vec<usize>> = Vec::new();
    let mut ends = HashSet::new();
    // The moves of the order that is played, each with the state that it leads from, and what else could be done there.
    let mut order: Vec<(usize, Move, Vec<Move>)> = Vec::new();
    loop {
        let mut played = Played::begin(scene);
        for (_, made, _) in &order {
            played.make(scene, *made);
        }
        let mut from = order.last().map(|(state, ..)| *state);
        loop {
            if std::mem::take(&mut played.world.lock().suspicious) {
                check(&played.world);
            }
            let state = played.state();
            let known = seen.contains_key(&state);
            let number = seen.len();
            let number = *seen.entry(state).or_insert(number);
            if !known {
                if scene.some.is_some_and(|some| number >= some) {
                    return Explored { states: next.len(), ends: ends.len(), orders: orders(&next) };
                }
                assert!(
                    number < STATES_MAX,
                    "too many states: does something depend on more than the actors were told?"
                );
                next.push(Vec::new());
            }
            if let Some(from) = from {
                next[from].push(number);
            }
            if known {
                break;
            }
            let mut moves = played.moves(scene);
            let Some(made) = moves.pop() else {
                ends.insert(number);
                (scene.end)(&played.world);
                break;
            };
            played.make(scene, made);
            order.push((number, made, moves));
            from = Some(number);
        }
        // The last place at which something else could be done.
        loop {
            let Some((state, _, mut left)) = order.pop() else {
                return Explored { states: next.len(), ends: ends.len(), orders: orders(&next) };
            };
            if let Some(made) = left.pop() {
                order.push((state, made, left));
                break;
            }
        }
    }
}

/// How many ways lead from the first state to an end. No state leads back to itself: actors only learn more.
fn orders(next: &[Vec<usize>]) -> f64 {
    let mut ways: Vec<Option<f64>> = vec![None; next.len()];
    let mut open = vec![0];
    while let Some(&state) = open.last() {
        let unknown = next[state].iter().find(|to| ways[**to].is_none());
        match unknown {
            Some(to) => open.push(*to),
            None => {
                let sum: f64 = next[state].iter().filter_map(|to| ways[*to]).sum();
                ways[state] = Some(if next[state].is_empty() { 1.0 } else { sum });
                open.pop();
            }
        }
    }
    ways[0].unwrap_or_default()
}
