//! Collectors, converters, nodes and administrators beside each other, in every order of their requests to the store.
//!
//! In each state: everything that a name reaches is there, and everything that a node or a converter relies on. At each end,
//! when leases have ended, all clocks are right again and a collector has run some times more: what nothing needs is gone.

mod actors;
mod explore;
mod world;

use super::sweep;
use crate::refs::{self, Name, Refs};
use actors::{
    By, GRACE, Image, NODE_TTL, collect_once, collects, converts, converts_until, key, removes, tags, untags, uses,
};
use explore::{Explored, Play, Scene, explore};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use world::{Hands, Setting, World};

/// The highest number of a layer here.
const LAYERS: u8 = 5;

fn a() -> Image {
    Image { name: "host.local/a:1", layers: vec![1, 2] }
}

/// Shares its lower layer with the other.
fn b() -> Image {
    Image { name: "host.local/b:1", layers: vec![1, 3] }
}

/// An image of one layer.
fn one(n: u8) -> Image {
    let name = if n == 1 { "host.local/one:1" } else { "host.local/two:1" };
    Image { name, layers: vec![n] }
}

/// Does something with nobody else about.
fn alone<T>(world: &World, work: impl Future<Output = T>) -> T {
    world.lock().free = true;
    let mut work = std::pin::pin!(work);
    let waker = std::task::Waker::noop();
    let mut polls = (0..1000).map(|_| work.as_mut().poll(&mut std::task::Context::from_waker(waker)));
    let done = polls.find_map(|poll| match poll {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    });
    world.lock().free = false;
    done.expect("it waits for something")
}

fn layers_there(world: &World) -> BTreeSet<u8> {
    let world = world.lock();
    (1..=LAYERS).filter(|n| world.objects.contains_key(&key(*n))).collect()
}

/// The layers that each name reaches.
fn named(world: &World) -> BTreeSet<u8> {
    let refs = Refs::new(Arc::new(world.hands(0)));
    let stacks = alone(world, async {
        let mut stacks = Vec::new();
        for image in refs.images().await.unwrap() {
            match refs.resolve(&Name::Image(image)).await {
                Ok(stack) => stacks.push(stack),
                Err(error) => panic!("a name leads nowhere: {error}"),
            }
        }
        for name in refs.tags().await.unwrap() {
            stacks.push(refs.tag(&name).await.unwrap().unwrap().stack);
        }
        stacks
    });
    let keys: BTreeSet<String> = stacks.iter().flatten().map(|entry| refs::layer_key(&entry.layer)).collect();
    (1..=LAYERS).filter(|n| keys.contains(&key(*n))).collect()
}

/// What must be so at any time. Looking at it leaves no trace.
fn nothing_needed_is_missing(world: &World) {
    let histories: Vec<_> = world.lock().actors.iter().map(|actor| actor.history.clone()).collect();
    let wishes: Vec<_> = world.lock().actors.iter().map(|actor| actor.wish.clone()).collect();
    let (there, named) = (layers_there(world), named(world));
    assert!(named.is_subset(&there), "a name reaches {named:?}, and there are {there:?}");
    let mut inner = world.lock();
    for (actor, (history, wish)) in histories.into_iter().zip(wishes).enumerate() {
        inner.actors[actor].history = history;
        inner.actors[actor].wish = wish;
        for key in &inner.actors[actor].relies_on {
            assert!(inner.objects.contains_key(key), "actor {actor} relies on {key}, which is gone");
        }
    }
}

/// In the end only what a name reaches is left, and all of it.
fn in_the_end_the_rest_goes(world: &World) {
    nothing_needed_is_missing(world);
    world.lock().skews = Default::default();
    // It doubts leases, believes that they have ended, marks what they held, and deletes that.
    for round in 0..4 {
        world.lock().clock += NODE_TTL + GRACE;
        alone(world, collect_once(&world.hands(0), &format!("last-{round}"))).unwrap();
    }
    assert_eq!(layers_there(world), named(world), "only what is named is left");
    let left: Vec<String> = world.lock().objects.keys().cloned().collect();
    let small = left.iter().filter(|key| key.starts_with("tombstones/") || key.starts_with("node/"));
    assert_eq!(small.count(), 0, "{left:?}");
}

/// A store to which images were converted, some of whose names were removed again; a collector has found what nothing needs
/// then, a whole grace ago.
fn after(images: &[Image], removed: &[Image]) -> Setting {
    after_collector_of(0, images, removed)
}

/// The same, with a collector whose clock is wrong by so many seconds.
fn after_collector_of(skew: i64, images: &[Image], removed: &[Image]) -> Setting {
    let world = World::empty();
    let hands = world.hands(0);
    for image in images {
        alone(&world, converts(hands.clone(), "setting", image.clone()));
    }
    for image in removed {
        alone(&world, removes(hands.clone(), image.clone()));
    }
    world.skew(0, skew);
    alone(&world, collect_once(&hands, "setting")).unwrap();
    world.lock().clock += GRACE;
    world.setting()
}

/// Plays a scene and says how much there was to see.
fn play(what: &str, setting: Setting, parts: impl Fn(&World) -> Vec<Play> + 'static) {
    play_with(what, setting, parts, &[], &[]);
}

/// The same of a scene with more states than there is time for: some of its orders.
fn play_some(what: &str, setting: Setting, parts: impl Fn(&World) -> Vec<Play> + 'static) {
    const SOME: usize = 60_000;
    let (parts, end) = (Box::new(parts), Box::new(in_the_end_the_rest_goes));
    play_scene(what, &Scene { setting, parts, jumps: Vec::new(), mortal: Vec::new(), end, some: Some(SOME) });
}

/// The same, with jumps of the clock at any moment, and actors of whom one may be killed.
fn play_with(
    what: &str,
    setting: Setting,
    parts: impl Fn(&World) -> Vec<Play> + 'static,
    jumps: &[Duration],
    mortal: &[usize],
) {
    let (parts, jumps, mortal) = (Box::new(parts), jumps.to_vec(), mortal.to_vec());
    let end = Box::new(in_the_end_the_rest_goes);
    play_scene(what, &Scene { setting, parts, jumps, mortal, end, some: None });
}

fn play_scene(what: &str, scene: &Scene) {
    let Explored { states, ends, orders } = explore(scene, nothing_needed_is_missing);
    println!("{what}: {states} states, {ends} ends, {orders:.1e} orders");
    assert!(states > 100 && ends > 0);
}

#[test]
fn a_converter_that_uses_a_layer_again_while_it_is_being_collected_gets_one_that_stays() {
    play_some("the same layer", after(&[a()], &[a()]), |world| {
        vec![Box::pin(collects(world.hands(0), "gc", 1)), Box::pin(converts(world.hands(1), "conv", b()))]
    });
}

#[test]
fn an_image_that_is_converted_again_while_it_is_being_collected_is_whole() {
    play("the same image", after(&[one(1)], &[one(1)]), |world| {
        vec![Box::pin(collects(world.hands(0), "gc", 1)), Box::pin(converts(world.hands(1), "conv", one(1)))]
    });
}

#[test]
fn a_node_that_looks_up_a_chain_that_is_being_collected_has_a_stack_that_stays_or_none() {
    play("a node by chain id", after(&[a()], &[a()]), |world| {
        vec![Box::pin(collects(world.hands(0), "gc", 1)), Box::pin(uses(world.hands(1), a(), By::Chain))]
    });
}

#[test]
fn a_node_keeps_what_it_looked_up_by_a_name_that_is_removed() {
    // The collector runs three times: it finds, waits for the grace, deletes.
    play("a node by name", after(&[a()], &[]), |world| {
        vec![
            Box::pin(collects(world.hands(0), "gc", 3)),
            Box::pin(removes(world.hands(1), a())),
            Box::pin(uses(world.hands(2), a(), By::Name)),
        ]
    });
}

#[test]
fn a_converter_a_collector_and_a_node_do_not_disturb_each_other() {
    play("a converter and a node", after(&[one(1)], &[one(1)]), |world| {
        vec![
            Box::pin(collects(world.hands(0), "gc", 1)),
            Box::pin(tags(world.hands(1), "conv", 1)),
            Box::pin(uses(world.hands(2), one(1), By::Chain)),
        ]
    });
}

#[test]
fn two_converters_of_one_layer_and_a_collector_leave_it_whole() {
    play_some("two converters", after(&[one(1)], &[one(1)]), |world| {
        vec![
            Box::pin(collects(world.hands(0), "gc", 1)),
            Box::pin(tags(world.hands(1), "one", 1)),
            Box::pin(tags(world.hands(2), "two", 1)),
        ]
    });
}

#[test]
fn what_is_named_again_used_and_removed_again_while_it_is_collected_stays_with_its_node() {
    play_some("named, used, removed", after(&[one(1)], &[one(1)]), |world| {
        vec![
            Box::pin(collects(world.hands(0), "gc", 1)),
            Box::pin(names_for_a_while(world.hands(1))),
            Box::pin(uses(world.hands(2), one(1), By::Tag)),
        ]
    });
}

/// A tag is there for a moment.
async fn names_for_a_while(hands: Hands) {
    tags(hands.clone(), "conv", 1).await;
    untags(hands, 1).await;
}

#[test]
fn of_two_collectors_one_deletes() {
    play("two collectors", after(&[one(1)], &[one(1)]), |world| {
        vec![Box::pin(collects(world.hands(0), "gc", 1)), Box::pin(collects(world.hands(1), "other", 1))]
    });
}

/// A collector and a converter that names again what is being collected.
fn both(world: &World) -> Vec<Play> {
    vec![Box::pin(collects(world.hands(0), "gc", 1)), Box::pin(tags(world.hands(1), "conv", 1))]
}

#[test]
fn two_collectors_and_a_converter_leave_what_it_uses_whole() {
    play_some("two collectors and a converter", after(&[one(1)], &[one(1)]), |world| {
        vec![
            Box::pin(collects(world.hands(0), "gc", 1)),
            Box::pin(collects(world.hands(1), "other", 1)),
            Box::pin(tags(world.hands(2), "conv", 1)),
        ]
    });
}

#[test]
fn a_collector_that_is_killed_holds_nobody_up_for_ever_and_is_made_up_for() {
    play_with("a killed collector", after(&[one(1)], &[one(1)]), both, &[sweep::DEAD], &[0]);
}

#[test]
fn what_a_killed_converter_left_goes_and_what_it_used_again_is_whole() {
    let parts = |world: &World| -> Vec<Play> {
        vec![Box::pin(collects(world.hands(0), "gc", 1)), Box::pin(converts(world.hands(1), "conv", one(1)))]
    };
    play_with("a killed converter", after(&[one(1)], &[one(1)]), parts, &[], &[1]);
}

#[test]
fn a_converter_that_is_told_to_end_at_any_moment_holds_nothing_any_more_and_what_is_named_is_whole() {
    // More than it makes: the last ends as ever.
    const REQUESTS: u32 = 40;
    for requests in 0..=REQUESTS {
        let parts = move |world: &World| -> Vec<Play> {
            let converter = converts_until(world.hands(1), "conv", one(1), requests);
            vec![Box::pin(collects(world.hands(0), "gc", 1)), Box::pin(converter)]
        };
        let end = |world: &World| {
            assert!(!world.lock().objects.keys().any(|key| key.starts_with("node/leases/")), "something is still held");
            in_the_end_the_rest_goes(world);
        };
        let (parts, end, setting) = (Box::new(parts), Box::new(end), after(&[one(1)], &[one(1)]));
        let scene = Scene { setting, parts, jumps: Vec::new(), mortal: Vec::new(), end, some: Some(1000) };
        let Explored { states, ends, .. } = explore(&scene, nothing_needed_is_missing);
        assert!(states > requests as usize && ends > 0, "{requests}: {states} states, {ends} ends");
    }
}

#[test]
fn a_collector_and_a_converter_that_were_stopped_for_long_do_no_harm() {
    let jumps = [sweep::DEAD, super::WRITER_TTL + GRACE];
    play_with("stopped for long", after(&[one(1)], &[one(1)]), both, &jumps, &[]);
}

const HOUR: i64 = 3600;
/// More than any lease here lasts.
const LONG: i64 = 30 * 24 * HOUR;

#[test]
fn a_collector_whose_clock_is_wrong_deletes_nothing_that_is_used_and_leaves_nothing() {
    for skew in [-HOUR, LONG] {
        let setting = after_collector_of(skew, &[one(1)], &[one(1)]);
        play(&format!("a collector's clock, {skew} s"), setting, move |world| {
            world.skew(0, skew);
            both(world)
        });
    }
}

#[test]
fn a_killed_collector_whose_clock_was_wrong_holds_nobody_up_for_ever() {
    let parts = |world: &World| {
        world.skew(0, LONG);
        both(world)
    };
    play_with("a killed collector's clock", after_collector_of(LONG, &[one(1)], &[one(1)]), parts, &[], &[0]);
}

#[test]
fn what_a_node_with_a_wrong_clock_uses_stays() {
    for skew in [-LONG, LONG] {
        play(&format!("a node's clock, {skew} s"), after(&[one(1)], &[one(1)]), move |world| {
            world.skew(1, skew);
            vec![Box::pin(collects(world.hands(0), "gc", 2)), Box::pin(uses(world.hands(1), one(1), By::Chain))]
        });
    }
}

#[test]
fn a_converter_with_a_wrong_clock_gets_a_layer_that_stays() {
    play("a converter's clock", after(&[one(1)], &[one(1)]), |world| {
        world.skew(1, -LONG);
        both(world)
    });
}
