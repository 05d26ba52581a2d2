//! Formats of texts that the API server checks.

use std::net::Ipv6Addr;

/// Whether a text has a format. One that is not known here fits every text.
pub(super) fn fits(format: &str, text: &str) -> bool {
    match format {
        "date-time" => is_date_time(text),
        "date" => is_date(text),
        "ipv4" => text.contains('.') && is_ip(text),
        "ipv6" => text.contains(':') && is_ip(text),
        "byte" => is_base64(text),
        _ => true,
    }
}

fn are_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// An address of either kind, as the API server has always read it: decimal parts may begin with zeros.
fn is_ip(text: &str) -> bool {
    match text.rsplit_once(':') {
        None => is_dotted(text),
        Some((before, last)) if last.contains('.') => {
            is_dotted(last) && format!("{before}:0.0.0.0").parse::<Ipv6Addr>().is_ok()
        }
        Some(_) => text.parse::<Ipv6Addr>().is_ok(),
    }
}

/// Four numbers of a byte each.
fn is_dotted(text: &str) -> bool {
    let is_byte = |part: &str| {
        let number = part.trim_start_matches('0');
        are_digits(part) && (number.is_empty() || number.parse::<u8>().is_ok())
    };
    text.split('.').count() == 4 && text.split('.').all(is_byte)
}

/// A number of two digits that is not above `most`.
fn is_pair(text: &str, most: u8) -> bool {
    text.len() == 2 && are_digits(text) && text.parse().is_ok_and(|number: u8| number <= most)
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_plain = matches!(parts[..], [year, month, day] if year.len() == 4 && are_digits(year) && is_pair(month, 12) && is_pair(day, 31));
    is_plain && text.parse::<jiff::civil::Date>().is_ok()
}

/// A time of RFC 3339: a date, then a time with its zone.
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else { return false };
    let zone = time.find(['Z', 'z', '+', '-']);
    let Some((clock, zone)) = zone.map(|at| time.split_at(at)) else { return false };
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<&str> = seconds.split(':').collect();
    let clock_fits = matches!(parts[..], [hour, minute, second] if is_pair(hour, 23) && is_pair(minute, 59) && is_pair(second, 59));
    let offset = zone.strip_prefix(['+', '-']);
    let zone_fits = zone.eq_ignore_ascii_case("z")
        || matches!(offset.and_then(|offset| offset.split_once(':')), Some((hours, minutes)) if is_pair(hours, 99) && is_pair(minutes, 99));
    is_date(date) && clock_fits && are_digits(fraction) && zone_fits
}

/// One or more groups of four characters. The last one may end with one or two `=`.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised() {
        let cases: [(&str, &[&str], &[&str]); 6] = [
            (
                "date-time",
                &["2026-01-31T12:00:00Z", "2026-01-31t12:00:00.5+01:00"],
                &[
                    "2026-01-31T12:00:00Z01:00",
                    "yesterday",
                    "2026-01-31 12:00:00Z",
                    "2026-02-30T12:00:00Z",
                    "2026-01-31T24:00:00Z",
                ],
            ),
            ("date", &["2026-01-31", "2024-02-29"], &["2026-13-01", "2026-02-29", "20260131", "26-01-31"]),
            (
                "ipv4",
                &["10.0.0.1", "010.0.0.1", "::ffff:10.0.0.01"],
                &["1.2.3", "::1", "1.2.3.256", "1.2..3", "1:2.3.4.5"],
            ),
            ("ipv6", &["::1", "::ffff:10.0.0.1"], &["10.0.0.1", "1.2.3.4:5"]),
            ("byte", &["YQ==", "YWJj", "YR=="], &["", "YQ", "Y===", "a b=", "YQ==YQ=="]),
            ("unknown", &["x"], &[]),
        ];
        for (format, good, bad) in cases {
            assert_eq!(good.iter().find(|text| !fits(format, text)), None, "{format}");
            assert_eq!(bad.iter().find(|text| fits(format, text)), None, "{format}");
        }
    }
}
