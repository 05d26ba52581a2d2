//! Numbers in what is stored. They are bounded where they are written and where they are read, so that every reader of JSON has
//! them exactly, and they can be counted on from: the API server makes floats of integers of more than 63 bits.
#![allow(clippy::trivially_copy_pass_by_ref, clippy::ref_option)] // as serde calls them

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

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
