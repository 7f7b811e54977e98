//! The snapshotter with a laminad that knows some layers: chains without an unpack, composed stacks, outages; and plain snapshots,
//! also where it is killed. Run through gRPC, with real mounts; the laminad is a fake (`fake.rs`).

// Test code, which clippy does not see outside of #[test] functions.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod compose;
mod crash;
mod fake;
mod node;
mod outage;
mod plain;
mod remote;
