//! A tar, over a small tree below, to a layer's tree, its data and its metadata, and back.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lamina_fuzz::convert_tar(&lamina_fuzz::repair_tar(data)));
