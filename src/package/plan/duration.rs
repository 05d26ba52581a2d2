//! Durations such as `10s` and `1h30m`.

use std::time::Duration;

/// The hint for an invalid duration.
pub(super) const HELP: &str = "write a number with a unit (ms, s, m, h, d), for example 10s or 1h30m";

/// The maximum duration of ten years. A longer one is probably a mistake.
const MOST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// The units, largest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses a duration: numbers with units, the largest unit first and each unit at most once.
///
/// # Errors
/// The text is not a valid duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("`{text}` is not a duration");
    let mut units = UNITS.iter();
    let mut rest = text;
    let mut millis: u64 = 0;
    while !rest.is_empty() || rest.len() == text.len() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, factor) = units.find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let number: u64 = number.parse().map_err(|_| bad())?;
        let part = number.checked_mul(*factor);
        millis = part.and_then(|part| millis.checked_add(part)).ok_or_else(bad)?;
        rest = after;
    }
    let found = Duration::from_millis(millis);
    if found > MOST { Err(format!("`{text}` is longer than ten years")) } else { Ok(found) }
}

/// Writes a duration in the form that [`parse_duration`] reads.
pub fn written_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let parts = UNITS.iter().map(|(unit, factor)| {
        let number = rest / factor;
        rest %= factor;
        if number == 0 { String::new() } else { format!("{number}{unit}") }
    });
    let text: String = parts.collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        let millis = |text: &str| parse_duration(text).ok().map(|found| found.as_millis());
        for (text, expected) in [
            ("0s", 0),
            ("10s", 10_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
            ("2d1h1m1s1ms", 176_461_001),
            ("250ms", 250),
            ("90m", 5_400_000),
        ] {
            assert_eq!(millis(text), Some(expected), "{text}");
        }
        for text in ["0s", "10s", "1h30m", "1d", "2d1h1m1s1ms", "250ms"] {
            assert_eq!(written_duration(parse_duration(text).unwrap()), text);
        }
        for text in [
            "",
            "s",
            "10",
            "10 s",
            "-1s",
            "1.5h",
            "1m1h",
            "1s1s",
            "1S",
            "1ms1s",
            "4000d",
            "99999999999999999999s",
            "1h ",
        ] {
            assert_eq!(millis(text), None, "{text}");
        }
    }
}
