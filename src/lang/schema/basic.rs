//! Sets of basic types of a value.

use std::ops::{BitAnd, BitOr};

use serde_json::Value;

/// A set of basic types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Basic(u16);

impl Basic {
    /// No type.
    pub const NONE: Self = Self(0);
    /// Null.
    pub const NULL: Self = Self(1);
    /// A boolean.
    pub const BOOL: Self = Self(1 << 1);
    /// A whole number.
    pub const INT: Self = Self(1 << 2);
    /// A number that is not whole.
    pub const FLOAT: Self = Self(1 << 3);
    /// A string.
    pub const STRING: Self = Self(1 << 4);
    /// A list.
    pub const LIST: Self = Self(1 << 5);
    /// A map.
    pub const MAP: Self = Self(1 << 6);
    /// A quantity, such as `500m`.
    pub const QUANTITY: Self = Self(1 << 7);
    /// A version, such as `1.2.3`.
    pub const VERSION: Self = Self(1 << 8);
    /// Loops, functions and the like.
    pub(crate) const OTHER: Self = Self(1 << 9);
    /// The value omits its key.
    pub(crate) const OMIT: Self = Self(1 << 10);
    /// An optional field of an instance that may be absent.
    pub const ABSENT: Self = Self(1 << 11);

    /// Any number.
    pub const NUMBER: Self = Self(Self::INT.0 | Self::FLOAT.0);
    /// Everything that is a value.
    pub const VALUE: Self = Self((1 << 10) - 2);
    /// Any type.
    pub const ANY: Self = Self((1 << 11) - 1);

    /// The union of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets have a type in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all types of `other` are in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The types of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The types of the value, if it has one.
    #[must_use]
    pub fn value(self) -> Self {
        self & Self::VALUE
    }

    /// Whether a value may have any type.
    pub fn is_any(self) -> bool {
        self.contains(Self::VALUE)
    }

    /// Whether the set is empty.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether no possible type of the value is in `accepted`. Nothing is said about a set without values.
    pub fn misses(self, accepted: Self) -> bool {
        !self.value().is_none() && !self.value().overlaps(accepted)
    }

    /// For messages: `a string`, `a whole number or a string`.
    pub fn shown(self) -> String {
        let mut names = Vec::new();
        let table = [
            (Self::BOOL, "a boolean"),
            (Self::INT, "a whole number"),
            (Self::FLOAT, "a number"),
            (Self::STRING, "a string"),
            (Self::LIST, "a list"),
            (Self::MAP, "a map"),
            (Self::QUANTITY, "a quantity"),
            (Self::VERSION, "a version"),
        ];
        for (basic, name) in table {
            let is_number = basic == Self::INT && self.contains(Self::FLOAT);
            if self.contains(basic) && !is_number {
                names.push(name);
            }
        }
        match names.as_slice() {
            [] if self.contains(Self::NULL) => "null".to_owned(),
            [] => "no value".to_owned(),
            names => names.join(" or "),
        }
    }
}

impl BitOr for Basic {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Basic {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The basic type of a JSON value.
pub(crate) fn literal_basic(value: &Value) -> Basic {
    match value {
        Value::Null => Basic::NULL,
        Value::Bool(_) => Basic::BOOL,
        Value::Number(number) if number.is_f64() => Basic::FLOAT,
        Value::Number(_) => Basic::INT,
        Value::String(_) => Basic::STRING,
        Value::Array(_) => Basic::LIST,
        Value::Object(_) => Basic::MAP,
    }
}
