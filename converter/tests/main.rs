//! Whole conversions. One program: each further one would be compiled and linked with everything once more.

// Tests fail by panicking, and say what they skip.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

mod cases;
mod collapse;
mod convert;
mod dialects;
mod export;
mod mounted;
mod properties;
mod support;
