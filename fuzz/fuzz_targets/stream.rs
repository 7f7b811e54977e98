//! A layer's blob: plain, gzip of several members, zstd of several frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lamina_fuzz::stream(data));
