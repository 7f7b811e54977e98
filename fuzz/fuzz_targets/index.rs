//! A layer file, and the same as a node's head file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lamina_fuzz::layer_file(data));
