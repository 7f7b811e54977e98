//! Images that were written, asked and judged. One program: each further one would be linked with everything once more.

// Tests fail by panicking, and say what they skip.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

mod ask;
mod checker;
mod files;
mod judge;
mod kernel;
mod mutations;
mod properties;
mod sample;
mod tools;
