//! Numbers in what is stored. They are bounded where they are written and where they are read, so that every reader of JSON has
//! them exactly, and they can be counted on from: the API server makes floats of integers of more than 63 bits.
#![allow(clippy::trivially_copy_pass_by_ref, clippy::ref_option)] // as serde calls them

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use serde_json::Value;

/// The highest number that is stored.
pub(super) const HIGHEST: u64 = 1_000_000_000_000_000;

pub(super) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64((*number).min(HIGHEST))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(from)?;
    if number > HIGHEST {
        return Err(D::Error::custom(format!("the number {number} is greater than {HIGHEST}")));
    }
    Ok(number)
}

/// A value as it is read back once the API server has stored it, which keeps whole numbers of 63 bits and floats.
///
/// # Errors
/// A whole number that would come back as another one.
pub(super) fn settled(value: Value) -> Result<Value, String> {
    /// Up to here each whole number is a float of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    Ok(match value {
        Value::Number(number) if number.is_u64() && !number.is_i64() => {
            return Err(format!("the number {number} cannot be stored exactly: make it a text"));
        }
        // 3.0 comes back as 3.
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= EXACT);
            let whole = whole.and_then(|float| format!("{float}").parse::<i64>().ok());
            whole.map_or(Value::Number(number), Value::from)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(settled).collect::<Result<_, _>>()?),
        Value::Object(map) => {
            let entries = map.into_iter().map(|(key, value)| Ok((key, settled(value)?)));
            Value::Object(entries.collect::<Result<_, String>>()?)
        }
        other => other,
    })
}

/// Whether a number is left out where it is stored.
pub(super) fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// The same for a field that may be absent.
pub(super) mod optional {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Stored(#[serde(with = "super")] u64);

    pub(in crate::plan) fn serialize<S: Serializer>(number: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        number.map(Stored).serialize(to)
    }

    pub(in crate::plan) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        Ok(Option::<Stored>::deserialize(from)?.map(|Stored(number)| number))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_as_they_are_read_back() {
        let stored = settled(json!({"a": [3.0, -0.0, 2.5, 1e300, i64::MAX], "b": "1"}));
        assert_eq!(stored, Ok(json!({"a": [3, 0, 2.5, 1e300, i64::MAX], "b": "1"})));
        let error = settled(json!({"a": [u64::MAX]})).unwrap_err();
        assert!(error.contains("18446744073709551615 cannot be stored exactly"), "{error}");
    }
}
