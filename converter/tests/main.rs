//! Whole conversions. One program: each further one would be compiled and linked with everything once more.

mod cases;
mod collapse;
mod convert;
mod dialects;
mod export;
mod mounted;
mod properties;
mod support;
