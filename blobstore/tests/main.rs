//! What the crate offers, as its users see it. One program: each further one would be compiled and linked with everything once more.

// Tests fail by panicking, and say what they skip.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

mod cache;
mod fetch;
mod fetch_ahead;
mod fetch_lists;
mod fetch_turns;
mod layer_golden;
mod layer_hostile;
mod layer_roundtrip;
mod refs_golden;
mod store_decorators;
mod store_file;
mod store_threefs;
mod store_usrbio;
mod support;
