//! Quantities in the form in which the API server writes them.

use std::fmt;
use std::ops::AddAssign;

/// The decimal suffixes, by the power of ten.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// The binary suffixes, by the power of two.
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// The largest quantity that can be compared and added, in billionths: that of an `i64`, as Kubernetes limits binary ones.
const MOST: i128 = ((1_i128 << 63) - 1) * 1_000_000_000;
/// The largest exponent that is read.
const EXPONENT: i32 = 1000;

/// The canonical form of a quantity; `None` if it is none.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { "-" } else { "" };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let places = i32::try_from(fraction.len()).ok()?;
    if let Some((_, power)) = BINARY.iter().find(|(known, _)| *known == suffix) {
        return binary(sign, digits, places, *power);
    }
    let (exponent, scientific) = match DECIMAL.iter().find(|(known, _)| *known == suffix) {
        Some((_, power)) => (*power, false),
        None => (suffix.strip_prefix(['e', 'E'])?.parse().ok()?, true),
    };
    if !(-EXPONENT..=EXPONENT).contains(&exponent) {
        return None;
    }
    Some(decimal(sign, digits, exponent - places, scientific))
}

/// `digits` times ten to the power of `exponent`.
fn decimal(sign: &str, digits: &str, exponent: i32, scientific: bool) -> String {
    let mut mantissa = digits.trim_end_matches('0').to_owned();
    if mantissa.is_empty() {
        return "0".to_owned();
    }
    let mut exponent = exponent + i32::try_from(digits.len() - mantissa.len()).unwrap_or(0);
    if exponent < -9 {
        // Nothing smaller than a billionth is kept; it is rounded up.
        let cut = usize::try_from(-9 - exponent).unwrap_or(usize::MAX);
        let kept = mantissa.len().saturating_sub(cut);
        let rounded = mantissa[..kept].parse::<u128>().unwrap_or(0).saturating_add(1);
        return decimal(sign, &rounded.to_string(), -9, scientific);
    }
    while exponent % 3 != 0 {
        mantissa.push('0');
        exponent -= 1;
    }
    let suffix = if scientific {
        if exponent == 0 { String::new() } else { format!("e{exponent}") }
    } else {
        match DECIMAL.iter().find(|(_, power)| *power == exponent) {
            Some((suffix, _)) => (*suffix).to_owned(),
            None => format!("e{exponent}"),
        }
    };
    format!("{sign}{mantissa}{suffix}")
}

fn binary(sign: &str, digits: &str, places: i32, power: u32) -> Option<String> {
    if digits.is_empty() {
        return Some("0".to_owned());
    }
    let mantissa: u128 = digits.parse().ok()?;
    let scaled = mantissa.checked_shl(power).filter(|value| value >> power == mantissa)?;
    let divisor = 10u128.checked_pow(u32::try_from(places).ok()?)?;
    if !scaled.is_multiple_of(divisor) || scaled / divisor < 1024 {
        return Some(decimal(sign, &scaled.to_string(), -places, false));
    }
    let (mut value, mut at) = (scaled / divisor, 0);
    while at < BINARY.len() && value.is_multiple_of(1024) {
        value /= 1024;
        at += 1;
    }
    let suffix = if at == 0 { "" } else { BINARY[at - 1].0 };
    Some(format!("{sign}{value}{suffix}"))
}

/// The value in billionths, to compare quantities.
pub(crate) fn nanos(text: &str) -> Option<i128> {
    let canonical = canonical(text)?;
    let end = canonical.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(canonical.len());
    let (number, suffix) = canonical.split_at(end);
    let most = if number.starts_with('-') { -MOST } else { MOST };
    // More digits than fit are more than the most.
    let number: i128 = number.parse().unwrap_or(most);
    let unit = if let Some((_, power)) = BINARY.iter().find(|(known, _)| *known == suffix) {
        (1_i128 << power) * 1_000_000_000
    } else {
        let exponent = match DECIMAL.iter().find(|(known, _)| *known == suffix) {
            Some((_, power)) => *power,
            None => suffix.strip_prefix('e')?.parse().ok()?,
        };
        10i128.saturating_pow(u32::try_from(exponent + 9).ok()?)
    };
    Some(number.saturating_mul(unit).clamp(-MOST, MOST))
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Notation {
    #[default]
    Decimal,
    Binary,
    Scientific,
}

/// A quantity for arithmetic. A sum has the notation of its first part that is not zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Quantity {
    /// The value in billionths.
    pub(crate) nanos: i128,
    notation: Notation,
}

impl Quantity {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let canonical = canonical(text)?;
        let notation = if canonical.ends_with('i') {
            Notation::Binary
        } else if canonical.contains('e') {
            Notation::Scientific
        } else {
            Notation::Decimal
        };
        Some(Self { nanos: nanos(&canonical)?, notation })
    }

    /// A number of objects.
    pub(crate) fn count(number: usize) -> Self {
        let nanos = i128::try_from(number).unwrap_or(0).saturating_mul(1_000_000_000);
        Self { nanos, notation: Notation::Decimal }
    }

    pub(crate) fn is_zero(self) -> bool {
        self.nanos == 0
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        if self.is_zero() {
            self.notation = other.notation;
        }
        self.nanos = self.nanos.saturating_add(other.nanos).clamp(-MOST, MOST);
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nanos < 0 { "-" } else { "" };
        let digits = self.nanos.unsigned_abs().to_string();
        let in_tens = |scientific| decimal(sign, &digits, -9, scientific);
        f.write_str(&match self.notation {
            Notation::Binary => binary(sign, &digits, 9, 0).unwrap_or_else(|| in_tens(false)),
            Notation::Decimal => in_tens(false),
            Notation::Scientific => in_tens(true),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a real server writes them.
    #[test]
    fn quantities_are_canonical() {
        for (text, wanted) in [
            ("0.5", "500m"),
            ("1000m", "1"),
            ("0.5Gi", "512Mi"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1e3", "1e3"),
            ("1E", "1E"),
            ("100000", "100k"),
            ("1500m", "1500m"),
            ("0", "0"),
            ("0.1Gi", "107374182400m"),
            (".5", "500m"),
            ("12345678901234567890", "12345678901234567890"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(wanted), "{text}");
        }
        for text in ["", "x", "1x", "1.2.3", "1KiB"] {
            assert_eq!(canonical(text), None, "{text}");
        }
        assert!(nanos("1Ki") > nanos("1k") && nanos("500m") == nanos("0.5"));
    }

    #[test]
    fn quantities_have_bounds() {
        for text in ["10e2147483647", "1e-2147483648", "0.1e-2147483648", "1e1001"] {
            assert_eq!((canonical(text), nanos(text)), (None, None), "{text}");
        }
        let digits = "9".repeat(60);
        for text in ["1e1000", "1e30", "10E", "8Ei", &digits, &format!("{digits}n")] {
            assert_eq!(nanos(text), Some(MOST), "{text}");
            assert_eq!(nanos(&format!("-{text}")), Some(-MOST), "-{text}");
        }
        assert_eq!((nanos("1e-1000"), nanos("-1e-1000")), (Some(1), Some(-1)));
        assert!(canonical("3402823669209384634633746074317682114551e-10").is_some());
        let part = Quantity::parse("-1e21").unwrap();
        let mut sum = part;
        sum += part;
        assert_eq!(sum.nanos, -MOST);
    }

    #[test]
    fn sums_keep_the_notation_of_their_first_part() {
        let cases: [(&[&str], &str); 8] = [
            (&["512Mi", "512Mi"], "1Gi"),
            (&["1Gi", "1M"], "1074741824"),
            (&["500", "1Ki"], "1524"),
            (&["0", "1Ki", "1Ki"], "2Ki"),
            (&["250m", "0.75"], "1"),
            (&["1e3", "1e3"], "2e3"),
            (&["100m", "0"], "100m"),
            (&["0"], "0"),
        ];
        for (parts, wanted) in cases {
            let mut sum = Quantity::default();
            for part in parts {
                sum += Quantity::parse(part).unwrap();
            }
            assert_eq!(sum.to_string(), wanted, "{parts:?}");
        }
        assert_eq!(Quantity::count(3).to_string(), "3");
    }
}
