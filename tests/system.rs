//! One program of all of them: each further one would be compiled and linked with everything once more, and would wait for
//! the last test of the one before.

// Tests fail by panicking, and say what they skip.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod attack;
mod cache;
mod collapse;
mod collect;
mod commands;
mod compose;
mod container;
mod convert;
mod damage;
mod eager;
mod export;
mod faults;
mod fsck;
mod guest;
mod hostile;
mod interrupted;
mod lifecycle;
mod mirrors;
mod mishaps;
mod outage;
mod profiles;
mod pull;
mod push;
mod registry;
mod remote;
mod s3;
mod s3_credentials;
mod store;
mod takeover;
mod trace;
mod trust;
mod web;
