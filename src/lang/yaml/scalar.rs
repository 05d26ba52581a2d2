//! Resolves scalars as go-yaml v2 does, the YAML library that kubectl uses.
//!
//! That is YAML 1.1 with the peculiarities of that library, which are kept on purpose: the same text must
//! give the same value as `kubectl apply`. `testdata/dialect.jsonl` contains its results.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Number;

/// A resolved scalar. Floats and integers are distinguished, because they differ as map keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Uint(u64),
    Float(f64),
    String(String),
}

/// The tags that have a meaning for scalars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Str,
    Int,
    Float,
    Bool,
    Null,
    Timestamp,
    Binary,
}

impl Tag {
    /// The tag of that name in the namespace `tag:yaml.org,2002:`.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "str" => Self::Str,
            "int" => Self::Int,
            "float" => Self::Float,
            "bool" => Self::Bool,
            "null" => Self::Null,
            "timestamp" => Self::Timestamp,
            "binary" => Self::Binary,
            _ => return None,
        })
    }
}

/// Resolves a plain scalar.
pub(super) fn resolve(text: &str) -> Scalar {
    number_or_word(text).unwrap_or_else(|| Scalar::String(text.to_owned()))
}

/// Resolves a plain scalar; `None` if it is a string.
pub(super) fn number_or_word(text: &str) -> Option<Scalar> {
    let Some(first) = text.bytes().next() else { return Some(Scalar::Null) };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => word(text),
        b'.' => word(text).or_else(|| float(text)),
        b'+' | b'-' | b'0'..=b'9' => word(text).or_else(|| number(text)),
        _ => None,
    }
}

/// Resolves a scalar with a tag, quoted or not. The error names the type that it is not.
pub(super) fn tagged(tag: Tag, text: &str) -> Result<Scalar, &'static str> {
    match (tag, resolve(text)) {
        (Tag::Str, _) => Ok(Scalar::String(text.to_owned())),
        (Tag::Binary, _) => binary(text),
        (Tag::Timestamp, _) if is_date(text) => Ok(Scalar::String(text.to_owned())),
        (Tag::Int, value @ (Scalar::Int(_) | Scalar::Uint(_)))
        | (Tag::Float, value @ Scalar::Float(_))
        | (Tag::Bool, value @ Scalar::Bool(_))
        | (Tag::Null, value @ Scalar::Null) => Ok(value),
        #[allow(clippy::cast_precision_loss)] // The Go library converts it in the same way.
        (Tag::Float, Scalar::Int(int)) => Ok(Scalar::Float(int as f64)),
        (Tag::Int, _) => Err("an integer of at most 64 bits"),
        (Tag::Float, _) => Err("a number"),
        (Tag::Bool, _) => Err("a boolean"),
        (Tag::Null, _) => Err("null"),
        (Tag::Timestamp, _) => Err("a date"),
    }
}

fn binary(text: &str) -> Result<Scalar, &'static str> {
    let text: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    let bytes = STANDARD.decode(text).map_err(|_| "valid base64")?;
    String::from_utf8(bytes).map(Scalar::String).map_err(|_| "base64 of a UTF-8 text")
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 8 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-'
}

fn word(text: &str) -> Option<Scalar> {
    Some(match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        "~" | "null" | "Null" | "NULL" => Scalar::Null,
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        _ => return None,
    })
}

fn number(text: &str) -> Option<Scalar> {
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    let (negative, unsigned) = match plain.as_bytes().first()? {
        b'-' => (true, &plain[1..]),
        b'+' => (false, &plain[1..]),
        _ => (false, plain.as_str()),
    };
    if let Some(magnitude) = magnitude(unsigned) {
        if let Some(int) = signed(negative, magnitude) {
            return Some(Scalar::Int(int));
        }
        // The library reads unsigned numbers only without a sign, so `+18446744073709551615` is a float.
        if unsigned.len() == plain.len() {
            return Some(Scalar::Uint(magnitude));
        }
    }
    float(&plain).or_else(|| {
        // `0b-101` is -5, because the library reads the text after `0b` as a signed number.
        let rest = plain.strip_prefix("0b")?;
        let (negative, digits) = match rest.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, rest.strip_prefix('+')?),
        };
        signed(negative, radix(digits, 2)?).map(Scalar::Int)
    })
}

/// The value of digits in the base of their prefix: `0b`, `0o` or `0`, `0x`, in lower or upper case.
fn magnitude(digits: &str) -> Option<u64> {
    let bytes = digits.as_bytes();
    if bytes.first() != Some(&b'0') {
        return radix(digits, 10);
    }
    match bytes.get(1) {
        None => Some(0),
        Some(b'b' | b'B') => radix(&digits[2..], 2),
        Some(b'o' | b'O') => radix(&digits[2..], 8),
        Some(b'x' | b'X') => radix(&digits[2..], 16),
        Some(_) => radix(&digits[1..], 8),
    }
}

fn radix(digits: &str, base: u32) -> Option<u64> {
    // `from_str_radix` would accept a sign.
    if digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        u64::from_str_radix(digits, base).ok()
    } else {
        None
    }
}

fn signed(negative: bool, magnitude: u64) -> Option<i64> {
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// The value of a decimal number, unless it is too large for a float.
fn float(text: &str) -> Option<Scalar> {
    if !is_decimal(text) {
        return None;
    }
    text.parse().ok().filter(|float: &f64| float.is_finite()).map(Scalar::Float)
}

/// Whether a text matches `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`.
fn is_decimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_is_fine = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()) && exponent_is_fine
}

/// Whether some YAML reader (1.1 or 1.2) does not read this plain scalar as a string. Beside what kubectl
/// does not, these are base 60 numbers, dates, numbers too large for a float, `=` and `<<`.
pub(super) fn is_ambiguous(text: &str) -> bool {
    if number_or_word(text).is_some() || is_date(text) || matches!(text, "=" | "<<") {
        return true;
    }
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    let unsigned = plain.strip_prefix(['-', '+']).unwrap_or(&plain);
    let based = matches!(unsigned.as_bytes(), [b'0', b'x' | b'X' | b'o' | b'O' | b'b' | b'B', rest @ ..]
        if rest.iter().all(u8::is_ascii_hexdigit));
    let base_60 = unsigned.contains(':') && unsigned.bytes().all(|b| matches!(b, b'0'..=b'9' | b':' | b'.'));
    based || base_60 || is_decimal(&plain)
}

impl Scalar {
    /// The number that a JSON reader finds in the text that kubectl sends: an integer if the shortest text of
    /// the float is one (`1.0` is sent as `1`). `None` for infinities and NaN.
    pub(super) fn float_number(float: f64) -> Option<Number> {
        // From 10^21 on, the text of Go has an exponent, but such a number exceeds 64-bit integers anyway.
        let text = format!("{float}");
        match text.parse::<i64>() {
            // An integer cannot be -0.
            Ok(int) if text != "-0" => return Some(int.into()),
            _ => {}
        }
        if let Ok(int) = text.parse::<u64>() {
            return Some(int.into());
        }
        Number::from_f64(float)
    }

    /// The text of the scalar as a map key. The error says what cannot be a key.
    pub(super) fn key(&self) -> Result<String, &'static str> {
        Ok(match self {
            Self::Null => return Err("null cannot be a map key"),
            Self::Uint(_) => return Err("an integer above 9223372036854775807 cannot be a map key"),
            Self::Bool(bool) => bool.to_string(),
            Self::Int(int) => int.to_string(),
            Self::Float(float) => float_key(*float),
            Self::String(string) => string.clone(),
        })
    }
}

/// A float as a map key, as kubectl writes it: Go's `strconv.FormatFloat(float, 'g', -1, 32)`.
fn float_key(float: f64) -> String {
    #[allow(clippy::cast_possible_truncation)] // So does the library: `1e300` becomes an infinity.
    let float = float as f32;
    if float.is_nan() {
        return ".nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
