//! EROFS metadata: the checker, and every reader on what it accepts and on what it does not.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lamina_fuzz::metadata(data));
