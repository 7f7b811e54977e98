//! Sizes, times and percentages as people write them, in the configuration and on the command line.

use converter::ChunkSize;
use serde::{Deserialize, Deserializer};
use std::time::Duration;

const SIZES: [(&str, u64); 9] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// A number of bytes: `"20GiB"`, `"64 MB"`, `4096`.
pub(crate) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    quantity(deserializer, &SIZES, "a size such as \"20GiB\"")
}

/// The same on the command line.
pub(crate) fn size_of(text: &str) -> Result<u64, String> {
    number(text, &SIZES).ok_or_else(|| "a size such as 3GiB or 512KiB is needed".to_owned())
}

/// A chunk size on the command line.
pub(crate) fn chunk_size_of(text: &str) -> Result<ChunkSize, String> {
    let bytes = size_of(text)?;
    let bytes = u32::try_from(bytes).map_err(|_| format!("{} bytes at most", ChunkSize::MAX))?;
    ChunkSize::new(bytes).map_err(|e| e.to_string())
}

const TIMES: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A time on the command line.
pub(crate) fn time_of(text: &str) -> Result<Duration, String> {
    let millis = number(text, &TIMES).ok_or_else(|| "a time such as 24h, 7d or 30s is needed".to_owned())?;
    Ok(Duration::from_millis(millis))
}

/// A time: `"30s"`, `"5ms"`, `"1m"`. A number without a unit is refused: nobody could tell which was meant.
pub(crate) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    quantity(deserializer, &TIMES, "a time such as \"30s\" or \"5ms\"").map(Duration::from_millis)
}

pub(crate) fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let value = quantity(deserializer, &[("%", 1)], "a percentage such as \"5%\"")?;
    u8::try_from(value).ok().filter(|v| *v < 100).ok_or_else(|| serde::de::Error::custom("a percentage below 100"))
}

fn quantity<'de, D: Deserializer<'de>>(
    deserializer: D,
    units: &[(&str, u64)],
    expected: &str,
) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        Number(u64),
        Text(String),
        Other(toml::Value),
    }
    let text = match Raw::deserialize(deserializer)? {
        Raw::Number(n) => n.to_string(),
        Raw::Text(text) => text,
        Raw::Other(value) => value.to_string(),
    };
    let value = number(&text, units);
    value.ok_or_else(|| serde::de::Error::custom(format!("'{text}' is not {expected}")))
}

/// A whole number and a unit, in the unit that all others are multiples of.
fn number(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.trim().find(|c: char| !c.is_ascii_digit()).unwrap_or(text.trim().len());
    let (number, unit) = text.trim().split_at(digits);
    let factor = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim())).map(|(_, factor)| *factor);
    number.parse::<u64>().ok().zip(factor).and_then(|(n, f)| n.checked_mul(f))
}
