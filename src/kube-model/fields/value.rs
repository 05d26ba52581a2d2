//! When structured-merge-diff takes two values for equal, and how it sorts them.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// The order of two values. Numbers are compared as such: 1 and 1.0 are equal.
pub fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (whole(a), whole(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => in_turn(a, b, compare),
        (Value::Object(a), Value::Object(b)) => in_turn(a, b, field),
        _ => rank(a).cmp(&rank(b)),
    }
}

/// The value of a number without a fraction. Others are so small or so large that floats compare them with these exactly.
#[allow(clippy::cast_possible_truncation)] // The range is checked just before.
fn whole(number: &Number) -> Option<i128> {
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let float = || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e38);
    integer.or_else(|| float().map(|float| float as i128))
}

/// Whether two values are equal; 80 and 80.0 are.
pub fn same(a: &Value, b: &Value) -> bool {
    compare(a, b).is_eq()
}

fn field((a, x): (&String, &Value), (b, y): (&String, &Value)) -> Ordering {
    a.cmp(b).then_with(|| compare(x, y))
}

/// The order of two sequences: that of the first items that differ. The shorter one is less.
pub(super) fn in_turn<T>(
    a: impl IntoIterator<Item = T>,
    b: impl IntoIterator<Item = T>,
    one: impl Fn(T, T) -> Ordering,
) -> Ordering {
    let (mut a, mut b) = (a.into_iter(), b.into_iter());
    loop {
        match (a.next(), b.next()) {
            (Some(a), Some(b)) => match one(a, b) {
                Ordering::Equal => {}
                unequal => return unequal,
            },
            (a, b) => return a.is_some().cmp(&b.is_some()),
        }
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}
