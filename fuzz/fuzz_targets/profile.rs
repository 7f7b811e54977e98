//! What starts read: a node's profile of a layer, and a list of paths for `convert --profile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| match data.split_first() {
    Some((b'l', list)) => lamina_fuzz::list(list),
    _ => lamina_fuzz::profile(data),
});
