//! Texts: the documents of an image, references in their envelopes, names.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| match data.split_first() {
    Some((0 | b'l', rest)) => lamina_fuzz::documents(rest, false),
    Some((1 | b'd', rest)) => lamina_fuzz::documents(rest, true),
    Some((2 | b'e', rest)) => lamina_fuzz::envelope(rest),
    Some((_, rest)) => lamina_fuzz::names(rest),
    None => {}
});
