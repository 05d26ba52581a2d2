//! Quantities of Kubernetes (`100m`, `5Gi`, `1e3`), exact.

use std::cmp::Ordering;
use std::fmt;

const NANO: i128 = 1_000_000_000;

/// The suffix family of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// Powers of 1024: `Ki`, `Mi`, ...
    Binary,
    /// Powers of 1000: `m`, none, `k`, `M`, ...
    Decimal,
    /// An exponent: `e3`.
    Exponent,
}

/// A quantity in billionths, with its suffix family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantity {
    nanos: i128,
    family: Family,
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// The largest magnitude: a thousand times Kubernetes' maximum, so that sums cannot overflow.
const MAX: i128 = i128::MAX / 1_000;

impl Quantity {
    /// Parses a quantity. Digits below a billionth are rounded up, as in Kubernetes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || number.len() > 40 {
            return None;
        }
        let (family, factor, divisor) = scale(suffix)?;
        let mut digits: i128 = 0;
        let mut unit: i128 = 1;
        for digit in whole.bytes().chain(fraction.bytes()) {
            digits = digits.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
        }
        for _ in fraction.bytes() {
            unit = unit.checked_mul(10)?;
        }
        let scaled = digits.checked_mul(factor)?;
        let unit = unit.checked_mul(divisor)?;
        // The number in billionths, rounded away from zero.
        let whole = (scaled / unit).checked_mul(NANO)?;
        let rest = (scaled % unit).checked_mul(NANO)?;
        let nanos = whole.checked_add(rest / unit)?.checked_add(i128::from(rest % unit != 0))?;
        Self::new(if negative { -nanos } else { nanos }, family)
    }

    fn new(nanos: i128, family: Family) -> Option<Self> {
        (nanos.abs() <= MAX).then_some(Self { nanos, family })
    }

    pub(super) fn from_int(int: i128) -> Option<Self> {
        Self::new(int.checked_mul(NANO)?, Family::Decimal)
    }

    /// Converts a float, rounded to billionths.
    #[allow(clippy::cast_possible_truncation)] // The range is checked just before.
    pub(super) fn from_float(float: f64) -> Option<Self> {
        let nanos = (float * 1e9).round();
        if nanos.abs() < 1e35 { Self::new(nanos as i128, Family::Decimal) } else { None }
    }

    pub(super) fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }

    pub(super) fn add(self, other: Self) -> Option<Self> {
        Self::new(self.nanos.checked_add(other.nanos)?, self.family_with(other))
    }

    pub(super) fn sub(self, other: Self) -> Option<Self> {
        Self::new(self.nanos.checked_sub(other.nanos)?, self.family_with(other))
    }

    fn family_with(self, other: Self) -> Family {
        if self.is_zero() { other.family } else { self.family }
    }

    pub(super) fn neg(self) -> Self {
        Self { nanos: -self.nanos, ..self }
    }

    pub(super) fn mul_int(self, by: i128) -> Option<Self> {
        Self::new(self.nanos.checked_mul(by)?, self.family)
    }

    /// Multiplies by a float. The result is rounded to billionths.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    pub(super) fn mul_float(self, by: f64) -> Option<Self> {
        let nanos = (self.nanos as f64 * by).round();
        if nanos.abs() < 1e35 { Self::new(nanos as i128, self.family) } else { None }
    }

    /// Divides by an integer. The result is rounded up to billionths.
    pub(super) fn div_int(self, by: i128) -> Option<Self> {
        let quotient = self.nanos.checked_div(by)?;
        let up = i128::from(self.nanos % by != 0 && (self.nanos < 0) == (by < 0));
        Self::new(quotient + up, self.family)
    }

    /// The quotient of two quantities.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn ratio(self, other: Self) -> Option<f64> {
        (other.nanos != 0).then(|| self.nanos as f64 / other.nanos as f64)
    }

    /// The integer value, rounded up, as Kubernetes' `Value()` does.
    pub(super) fn to_int(self) -> i128 {
        self.nanos.div_euclid(NANO) + i128::from(self.nanos.rem_euclid(NANO) != 0)
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn to_float(self) -> f64 {
        self.nanos as f64 / 1e9
    }

    /// The value in a unit (`Mi`, `m`, `G`), rounded up, followed by the unit.
    pub(super) fn in_unit(self, unit: &str) -> Option<String> {
        let (_, factor, divisor) = scale(unit)?;
        let numerator = self.nanos.checked_mul(divisor)?;
        let unit_nanos = factor.checked_mul(NANO)?;
        let count = numerator.div_euclid(unit_nanos) + i128::from(numerator.rem_euclid(unit_nanos) != 0);
        Some(format!("{count}{unit}"))
    }
}

/// Family, factor and divisor of a suffix.
fn scale(suffix: &str) -> Option<(Family, i128, i128)> {
    if let Some(power) = BINARY.iter().skip(1).position(|s| *s == suffix) {
        return Some((Family::Binary, 1 << (10 * (power + 1)), 1));
    }
    if let Some(index) = DECIMAL.iter().position(|s| *s == suffix) {
        let power = u32::try_from(index).ok()?;
        return Some(if power < 3 {
            (Family::Decimal, 1, 1_000_i128.pow(3 - power))
        } else {
            (Family::Decimal, 1_000_i128.pow(power - 3), 1)
        });
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let exponent: i32 = exponent.parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (Family::Exponent, 1, power) } else { (Family::Exponent, power, 1) })
}

/// Writes the canonical form of Kubernetes.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.nanos / NANO;
        if self.family == Family::Binary && self.nanos % NANO == 0 && whole.abs() >= 1024 {
            let mut value = whole;
            let mut power = 0;
            while power + 1 < BINARY.len() && value % 1024 == 0 {
                value /= 1024;
                power += 1;
            }
            return write!(f, "{value}{}", BINARY[power]);
        }
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let mut value = self.nanos;
        let mut power = 0;
        while power + 1 < DECIMAL.len() && value % 1000 == 0 {
            value /= 1000;
            power += 1;
        }
        if self.family == Family::Exponent && power != 3 {
            let exponent = i32::try_from(power).map_or(0, |power| (power - 3) * 3);
            return write!(f, "{value}e{exponent}");
        }
        write!(f, "{value}{}", DECIMAL[power])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_behave_as_in_kubernetes() {
        for (text, canonical) in [
            ("5Gi", "5Gi"),
            ("5120Mi", "5Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5", "500m"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("1e3", "1e3"),
            ("1E", "1E"),
            ("1k", "1k"),
            ("1024", "1024"),
            ("512Ki", "512Ki"),
            ("0.1Ki", "102400m"),
            ("0", "0"),
            ("0Gi", "0"),
            ("-2Mi", "-2Mi"),
            ("+3", "3"),
            (".5", "500m"),
            ("1.", "1"),
            ("0.0000000001", "1n"),
            ("12E6", "12e6"),
        ] {
            let quantity = Quantity::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(quantity.to_string(), canonical, "{text}");
            assert_eq!(
                Quantity::parse(canonical).map(|q| q.compare(quantity)),
                Some(Ordering::Equal),
                "{text}"
            );
        }
        for text in [
            "",
            "Gi",
            "5gi",
            "5 Gi",
            "1e",
            "1ee3",
            "--1",
            "1.2.3",
            "0x10",
            "1e999999999",
            "9999999999999999999999999999999E",
        ] {
            assert!(Quantity::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn arithmetic_keeps_the_suffix_family() {
        let q = |text| Quantity::parse(text).unwrap();
        assert_eq!(q("1Gi").add(q("512Mi")).unwrap().to_string(), "1536Mi");
        assert_eq!(q("1").sub(q("250m")).unwrap().to_string(), "750m");
        assert_eq!(q("1Gi").div_int(4).unwrap().to_string(), "256Mi");
        assert_eq!(q("3Gi").mul_float(0.5).unwrap().to_string(), "1536Mi");
        assert_eq!(q("1500Mi").in_unit("Gi").unwrap(), "2Gi");
        assert_eq!(q("250m").in_unit("m").unwrap(), "250m");
        assert_eq!(q("1500m").to_int(), 2);
        assert_eq!(q("-1500m").to_int(), -1);
        assert!(q("1").div_int(0).is_none());
    }
}
