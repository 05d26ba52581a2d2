//! Quantities (`100m`, `5Gi`, `1e3`): exact, in the form in which the API server writes them, and without overflow for
//! hostile texts.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{AddAssign, Neg};

/// The decimal suffixes, by the power of ten.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// The binary suffixes, by the power of two.
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

const NANO: i128 = 1_000_000_000;
/// The largest magnitude, in billionths: sums of two cannot overflow.
const MAX: i128 = i128::MAX / 1_000;
/// The largest value of a text with a binary suffix, in billionths: Kubernetes limits it to an `i64`.
const MAX_BINARY: i128 = ((1_i128 << 63) - 1) * NANO;
/// The largest exponent that is read.
const EXPONENT: i32 = 1000;

/// How a quantity is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Notation {
    /// Powers of 1000: `m`, none, `k`, `M`, ...
    #[default]
    Decimal,
    /// Powers of 1024: `Ki`, `Mi`, ...
    Binary,
    /// An exponent: `e3`.
    Scientific,
}

/// A quantity. Two of the same value are equal, however they are written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    notation: Notation,
}

/// The form in which the API server writes a quantity, however large it is; `None` if the text is none.
pub fn canonical(text: &str) -> Option<String> {
    let number = Number::read(text)?;
    let is_scientific = number.notation == Notation::Scientific;
    let too_large = || decimal(number.is_negative, &number.digits, number.exponent, is_scientific);
    Some(number.quantity().map_or_else(too_large, |quantity| quantity.to_string()))
}

impl Quantity {
    /// Parses a quantity. Digits below a billionth are rounded up, as in Kubernetes. `None` if the text is none, or too large
    /// to compute with.
    pub fn parse(text: &str) -> Option<Self> {
        Number::read(text)?.quantity()
    }

    /// Parses a quantity that may be too large to compute with: then it is the largest one.
    pub fn saturating(text: &str) -> Option<Self> {
        let number = Number::read(text)?;
        let largest = Self { nanos: if number.is_negative { -MAX } else { MAX }, notation: number.notation };
        Some(number.quantity().unwrap_or(largest))
    }

    fn new(nanos: i128, notation: Notation) -> Option<Self> {
        (-MAX..=MAX).contains(&nanos).then_some(Self { nanos, notation })
    }

    /// A number of objects.
    pub fn count(number: usize) -> Self {
        i128::try_from(number).ok().and_then(Self::from_int).unwrap_or_default()
    }

    /// The quantity of an integer.
    pub fn from_int(int: i128) -> Option<Self> {
        Self::new(int.checked_mul(NANO)?, Notation::Decimal)
    }

    /// The quantity of a float, rounded to billionths.
    #[allow(clippy::cast_possible_truncation)] // The range is checked just before.
    pub fn from_float(float: f64) -> Option<Self> {
        let nanos = (float * 1e9).round();
        if nanos.abs() < 1e35 { Self::new(nanos as i128, Notation::Decimal) } else { None }
    }

    /// Whether it is 0.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// The value in billionths.
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// The notation of a sum: that of the first part that is not 0.
    fn notation_with(self, other: Self) -> Notation {
        if self.is_zero() { other.notation } else { self.notation }
    }

    /// The sum; `None` if it is too large.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Self::new(self.nanos + other.nanos, self.notation_with(other))
    }

    /// Multiplies by an integer; `None` if the result is too large.
    pub fn mul_int(self, by: i128) -> Option<Self> {
        Self::new(self.nanos.checked_mul(by)?, self.notation)
    }

    /// Multiplies by a float. The result is rounded to billionths; `None` if it is too large.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    pub fn mul_float(self, by: f64) -> Option<Self> {
        let nanos = (self.nanos as f64 * by).round();
        if nanos.abs() < 1e35 { Self::new(nanos as i128, self.notation) } else { None }
    }

    /// Divides by an integer. The result is rounded up to billionths; `None` for a division by 0.
    pub fn div_int(self, by: i128) -> Option<Self> {
        let quotient = self.nanos.checked_div(by)?;
        let up = i128::from(self.nanos % by != 0 && (self.nanos < 0) == (by < 0));
        Self::new(quotient + up, self.notation)
    }

    /// The quotient of two quantities; `None` for a division by 0.
    #[allow(clippy::cast_precision_loss)]
    pub fn ratio(self, other: Self) -> Option<f64> {
        (other.nanos != 0).then(|| self.nanos as f64 / other.nanos as f64)
    }

    /// The integer value, rounded up, as Kubernetes' `Value()` does.
    pub fn to_int(self) -> i128 {
        div_up(self.nanos, NANO)
    }

    /// The value as a float.
    #[allow(clippy::cast_precision_loss)]
    pub fn to_float(self) -> f64 {
        self.nanos as f64 / 1e9
    }

    /// The quantity, rounded up to an integer.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        Self { nanos: self.to_int() * NANO, ..self }
    }

    /// The value in a unit (`Mi`, `m`, `G`), rounded up, followed by the unit; `None` if there is no such unit.
    pub fn in_unit(self, unit: &str) -> Option<String> {
        let (_, exponent, shift) = scale(unit)?;
        let size = 10_i128.checked_pow(u32::try_from(exponent + 9).ok()?)?.checked_mul(1_i128 << shift)?;
        Some(format!("{}{unit}", div_up(self.nanos, size)))
    }
}

/// A quotient, rounded up; `by` is positive.
fn div_up(nanos: i128, by: i128) -> i128 {
    nanos.div_euclid(by) + i128::from(nanos.rem_euclid(by) != 0)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Neg for Quantity {
    type Output = Self;

    fn neg(self) -> Self {
        Self { nanos: -self.nanos, ..self }
    }
}

/// A sum that would be too large is the largest quantity.
impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        self.notation = self.notation_with(other);
        self.nanos = (self.nanos + other.nanos).clamp(-MAX, MAX);
    }
}

/// Writes the canonical form of Kubernetes.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.nanos / NANO;
        if self.notation == Notation::Binary && self.nanos % NANO == 0 && whole.abs() >= 1024 {
            let (mut value, mut suffix) = (whole, "");
            let mut units = BINARY.iter();
            while value % 1024 == 0
                && let Some(&(next, _)) = units.next()
            {
                (value, suffix) = (value / 1024, next);
            }
            return write!(f, "{value}{suffix}");
        }
        let digits = self.nanos.unsigned_abs().to_string();
        f.write_str(&decimal(self.nanos < 0, &digits, -9, self.notation == Notation::Scientific))
    }
}

/// The canonical form of digits times ten to the power of `exponent`.
fn decimal(is_negative: bool, digits: &str, exponent: i32, is_scientific: bool) -> String {
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() {
        return "0".to_owned();
    }
    let exponent = exponent.saturating_add(i32::try_from(digits.len() - kept.len()).unwrap_or(i32::MAX));
    let zeros = exponent.rem_euclid(3);
    let exponent = exponent - zeros;
    let known = DECIMAL.iter().find(|(_, power)| *power == exponent && (!is_scientific || exponent == 0));
    let suffix = known.map_or_else(|| format!("e{exponent}"), |(suffix, _)| (*suffix).to_owned());
    let (sign, zeros) = (if is_negative { "-" } else { "" }, &"00"[..usize::try_from(zeros).unwrap_or(0)]);
    format!("{sign}{kept}{zeros}{suffix}")
}

/// Notation, power of ten and power of two of a suffix.
fn scale(suffix: &str) -> Option<(Notation, i32, u32)> {
    if let Some((_, power)) = BINARY.iter().find(|(known, _)| *known == suffix) {
        return Some((Notation::Binary, 0, *power));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Some((Notation::Decimal, *power, 0));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-EXPONENT..=EXPONENT).contains(&exponent).then_some((Notation::Scientific, exponent, 0))
}

/// The number of a text: its digits, times ten to the power of `exponent`.
struct Number {
    is_negative: bool,
    /// Without zeros at the start; empty for 0.
    digits: String,
    exponent: i32,
    notation: Notation,
}

impl Number {
    fn read(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let (notation, exponent, shift) = scale(suffix)?;
        Some(Self {
            is_negative: text.starts_with('-'),
            digits: times(&[whole, fraction].concat(), 1_u128 << shift),
            exponent: exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?,
            notation,
        })
    }

    /// The quantity; `None` if it is too large. Kubernetes takes the largest one for a binary one that is too large.
    fn quantity(&self) -> Option<Quantity> {
        let (mut nanos, mut notation) = (self.nanos(), self.notation);
        if notation == Notation::Binary {
            nanos = Some(nanos.map_or(MAX_BINARY, |nanos| nanos.min(MAX_BINARY)));
            if nanos.is_some_and(|nanos| nanos < NANO && nanos != 0) {
                notation = Notation::Decimal;
            }
        }
        Quantity::new(if self.is_negative { -nanos? } else { nanos? }, notation)
    }

    /// The magnitude in billionths, rounded up; `None` if no integer can hold it.
    fn nanos(&self) -> Option<i128> {
        if self.digits.is_empty() {
            return Some(0);
        }
        let power = self.exponent.saturating_add(9);
        if let Ok(power) = u32::try_from(power) {
            return self.digits.parse::<i128>().ok()?.checked_mul(10_i128.checked_pow(power)?);
        }
        let cut = usize::try_from(power.unsigned_abs()).ok()?;
        let (kept, rest) = self.digits.split_at(self.digits.len().saturating_sub(cut));
        let kept: i128 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
        kept.checked_add(i128::from(rest.bytes().any(|digit| digit != b'0')))
    }
}

/// The product of a number of any length in digits, without zeros at the start.
fn times(digits: &str, factor: u128) -> String {
    let digits = digits.trim_start_matches('0');
    if factor == 1 {
        return digits.to_owned();
    }
    let mut product: Vec<char> = Vec::new();
    let mut carry: u128 = 0;
    let mut rest = digits.bytes().rev();
    loop {
        carry += match rest.next() {
            Some(digit) => u128::from(digit - b'0') * factor,
            None if carry == 0 => break,
            None => 0,
        };
        product.extend(char::from_digit(u32::try_from(carry % 10).unwrap_or(0), 10));
        carry /= 10;
    }
    product.iter().rev().collect()
}

#[cfg(test)]
mod tests;
