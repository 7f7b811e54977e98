//! Images that were written, asked and judged. One program: each further one would be linked with everything once more.

mod ask;
mod checker;
mod files;
mod judge;
mod kernel;
mod mutations;
mod properties;
mod sample;
mod tools;
