//! The number fields of tar headers.
//!
//! POSIX: octal digits, perhaps with leading spaces, ended by a space or a NUL (or by the field's end). GNU: when the
//! first byte's top bit is set, the rest is a big-endian two's complement number.

/// The value of a number field; an empty one is 0, `None` is no number or one past `i64`.
pub(super) fn parse(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => base256(field),
        _ => octal(field),
    }
}

fn octal(field: &[u8]) -> Option<i64> {
    let text = field.split(|&b| b == 0).next().unwrap_or_default().trim_ascii();
    if text.is_empty() {
        return Some(0);
    }
    text.iter().try_fold(0i64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

fn base256(field: &[u8]) -> Option<i64> {
    let negative = field[0] & 0x40 != 0;
    let first = if negative { i64::from(field[0]) - 0x100 } else { i64::from(field[0] & 0x7f) };
    field[1..].iter().try_fold(first, |value, &byte| value.checked_mul(256)?.checked_add(i64::from(byte)))
}

/// A PAX time: decimal seconds with an optional fraction, perhaps negative. Digits past the nanosecond are cut off.
pub(super) fn parse_time(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |&b| b == b'.');
    let seconds = decimal(parts.next()?)?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nanos = (0..9).fold(0u32, |n, i| n * 10 + u32::from(fraction.get(i).map_or(0, |d| d - b'0')));
    match (negative, nanos) {
        (false, _) => Some((seconds.try_into().ok()?, nanos)),
        (true, 0) => Some((0i64.checked_sub_unsigned(seconds)?, 0)),
        (true, _) => Some(((-1i64).checked_sub_unsigned(seconds)?, 1_000_000_000 - nanos)),
    }
}

/// A decimal number without sign.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_fields_may_be_padded_and_empty() {
        assert_eq!(parse(b"0000644\0"), Some(0o644));
        assert_eq!(parse(b"   644 \0"), Some(0o644));
        assert_eq!(parse(b"77777777"), Some(0o77777777));
        assert_eq!(parse(b"\0\0\0\0"), Some(0));
        assert_eq!(parse(b"12x4\0"), None);
    }

    #[test]
    fn base256_fields_hold_large_and_negative_numbers() {
        assert_eq!(parse(b"\x80\0\0\0\0\0\0\x05"), Some(5));
        assert_eq!(parse(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), Some(-2));
        assert_eq!(parse(b"\x80\0\0\0\xff\xff\xff\xfe"), Some(4294967294));
        assert_eq!(parse(b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
        assert_eq!(parse(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), Some(-1));
    }

    #[test]
    fn times_before_the_epoch_round_down() {
        assert_eq!(parse_time(b"1.5"), Some((1, 500_000_000)));
        assert_eq!(parse_time(b"-1.5"), Some((-2, 500_000_000)));
        assert_eq!(parse_time(b"-0.000000001"), Some((-1, 999_999_999)));
        assert_eq!(parse_time(b"-7"), Some((-7, 0)));
        assert_eq!(parse_time(b"3.1234567899"), Some((3, 123_456_789)));
        assert_eq!(parse_time(b"x"), None);
        assert_eq!(parse_time(b"1.-5"), None);
    }
}
