//! Operators. An operation without one clear result is an error.

use std::cmp::Ordering;
use std::sync::Arc;

use operetta_kube_model::quantity::Quantity;

use super::builtins::secrets::{is_generated, not_computable};
use super::code::{Binary, Comparison};
use super::errors::{Fault, Res};
use super::limits::Run;
use super::value::{Unknown, Val};

/// Evaluates `value.name`. A missing field is undefined, and so are the fields of an undefined value.
pub(super) fn attribute(run: &Run<'_>, value: &Val, name: &str) -> Res<Val> {
    Ok(match value {
        Val::Map(map) => match map.entries.get(name) {
            Some(found) => found.clone(),
            None if map.of_status => Val::absent(run, name),
            None => Val::Undefined,
        },
        Val::Live(live) => live.field(run, name)?,
        Val::Keyed(keyed) if keyed.entries.is_empty() => Val::Undefined,
        Val::Keyed(_) => return item(run, value, &Val::str(name)),
        Val::Unknown(unknown) if name == "error" && !unknown.absent => Val::str(unknown.reason.as_str()),
        Val::Unknown(unknown) => deeper(unknown, &format!(".{name}")),
        Val::Version(version) => match name {
            "major" => Val::Int(version.major.into()),
            "minor" => Val::Int(version.minor.into()),
            "patch" => Val::Int(version.patch.into()),
            "pre" => Val::str(version.pre.as_str()),
            "build" => Val::str(version.build.as_str()),
            _ => Val::Undefined,
        },
        Val::Loop(state) => match name {
            "index" => Val::usize(state.index0 + 1),
            "index0" => Val::usize(state.index0),
            "revindex" => Val::usize(state.length - state.index0),
            "revindex0" => Val::usize(state.length - state.index0 - 1),
            "first" => Val::Bool(state.index0 == 0),
            "last" => Val::Bool(state.index0 + 1 == state.length),
            "length" => Val::usize(state.length),
            "depth" => Val::usize(state.depth0 + 1),
            "depth0" => Val::usize(state.depth0),
            "previtem" => state.previous.clone(),
            "nextitem" => state.next.clone(),
            _ => return Err(Fault::failed(format!("`loop` has no field `{name}`"))),
        },
        Val::Namespace(namespace) => namespace
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .get(name)
            .cloned()
            .unwrap_or(Val::Undefined),
        Val::Lets(_) => return Err(Fault::failed("lets can only be read as `let.name`")),
        Val::Omit => return Err(Fault::failed("`omit` has no fields")),
        _ => Val::Undefined,
    })
}

fn deeper(unknown: &Unknown, step: &str) -> Val {
    let path =
        if unknown.path.len() > 200 { unknown.path.clone() } else { format!("{}{step}", unknown.path) };
    Val::Unknown(Arc::new(Unknown { path, reason: unknown.reason.clone(), absent: unknown.absent }))
}

/// Evaluates `value[key]`. A key of the wrong type is an error.
pub(super) fn item(run: &Run<'_>, value: &Val, key: &Val) -> Res<Val> {
    match value {
        Val::Undefined | Val::Null => return Ok(Val::Undefined),
        Val::Unknown(unknown) => return Ok(deeper(unknown, "[...]")),
        _ => {}
    }
    let key = key.defined()?.resolved(run)?;
    let value = value.resolved(run)?;
    let wrong = |what: &str, wanted: &str| {
        Err(Fault::failed(format!("{what} is looked up with {wanted}, not with {}", key.kind())))
    };
    match (&*value, &*key) {
        (Val::Map(_) | Val::Namespace(_) | Val::Version(_) | Val::Loop(_), Val::Str(name)) => {
            attribute(run, &value, name)
        }
        (Val::Map(_), _) => wrong("this map", "strings"),
        (Val::List(list), Val::Int(index)) => Ok(nth(list.items.len(), *index)
            .and_then(|index| list.items.get(index).cloned())
            .unwrap_or(Val::Undefined)
            .drawn_from(run, &value, &format!("[{index}]"))),
        (Val::List(_), _) => wrong("a list", "whole numbers"),
        (Val::Str(text), Val::Int(index)) => {
            run.fuel(text.len() / 16)?;
            let found = nth(text.chars().count(), *index).and_then(|index| text.chars().nth(index));
            Ok(found.map_or(Val::Undefined, |c| Val::str(c.to_string())))
        }
        (Val::Str(_), _) => wrong("a string", "whole numbers"),
        (Val::Keyed(keyed), _) => {
            run.fuel(keyed.entries.len())?;
            let mut other_type = None;
            for (candidate, found) in &keyed.entries {
                if candidate.kind() != key.kind() {
                    other_type = Some(candidate.kind());
                } else if equal(run, candidate, &key)? {
                    return Ok(found.clone());
                }
            }
            match other_type {
                Some(kind) => wrong("this map", &format!("keys that are each {kind}")),
                None => Ok(Val::Undefined),
            }
        }
        (other, _) => Err(Fault::failed(format!("{} has no items", other.kind()))),
    }
}

/// An index counted from the start. Negative indices count from the end.
fn nth(length: usize, index: i128) -> Option<usize> {
    let index = if index < 0 { index.checked_add(i128::try_from(length).ok()?)? } else { index };
    usize::try_from(index).ok().filter(|index| *index < length)
}

/// Evaluates `value[start:stop:step]`, as in Python.
pub(super) fn slice(run: &Run<'_>, value: &Val, bounds: [&Val; 3]) -> Res<Val> {
    let value = value.defined()?.resolved(run)?;
    let [start, stop, step] = bounds.map(|bound| match bound {
        Val::Null => Ok(None),
        Val::Int(int) => Ok(Some(*int)),
        other => {
            other.defined()?;
            Err(Fault::failed(format!("a slice takes whole numbers, not {}", other.kind())))
        }
    });
    let (start, stop, step) = (start?, stop?, step?.unwrap_or(1));
    if step == 0 {
        return Err(Fault::failed("the step of a slice cannot be 0"));
    }
    let chars: Vec<char>;
    let length = match &*value {
        Val::List(list) => {
            chars = Vec::new();
            list.items.len()
        }
        Val::Str(text) => {
            run.memory(text.len() * 4)?;
            chars = text.chars().collect();
            chars.len()
        }
        other => return Err(Fault::failed(format!("{} cannot be sliced", other.kind()))),
    };
    let length = length as i128;
    let clamp = |bound: Option<i128>, default: i128| {
        let Some(bound) = bound else { return default };
        let bound = if bound < 0 { bound + length } else { bound };
        if step > 0 { bound.clamp(0, length) } else { bound.clamp(-1, length - 1) }
    };
    let (first, end) = if step > 0 { (0, length) } else { (length - 1, -1) };
    let (mut at, end) = (clamp(start, first), clamp(stop, end));
    let mut picked = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        run.fuel(1)?;
        if let Ok(index) = usize::try_from(at) {
            picked.push(index);
        }
        at += step;
    }
    match &*value {
        Val::List(list) => {
            run.items(picked.len())?;
            Val::list(picked.iter().filter_map(|index| list.items.get(*index).cloned()).collect())
        }
        _ => Ok(Val::str(picked.iter().filter_map(|index| chars.get(*index)).collect::<String>())),
    }
}

#[allow(clippy::cast_precision_loss)]
fn as_float(int: i128) -> f64 {
    int as f64
}

fn compare_int_float(int: i128, float: f64) -> Option<Ordering> {
    match as_float(int).partial_cmp(&float)? {
        // If rounding hides the difference, they are compared as integers, which is exact because the float
        // has no fraction here.
        #[allow(clippy::cast_possible_truncation)]
        Ordering::Equal => Some(int.cmp(&(float as i128))),
        other => Some(other),
    }
}

/// Evaluates `==`, which is defined for all known values. Values of different types are never equal, except 3
/// and 3.0.
pub(super) fn equal(run: &Run<'_>, left: &Val, right: &Val) -> Res<bool> {
    run.fuel(1)?;
    let (left, right) = (left.known()?.resolved(run)?, right.known()?.resolved(run)?);
    Ok(match (&*left, &*right) {
        (Val::Undefined, Val::Undefined) | (Val::Null, Val::Null) => true,
        (Val::Bool(a), Val::Bool(b)) => a == b,
        (Val::Str(a), Val::Str(b)) => {
            run.fuel(a.len().min(b.len()) / 64)?;
            a == b
        }
        (Val::List(a), Val::List(b)) => {
            if Arc::ptr_eq(a, b) {
                return Ok(true);
            }
            if a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(run, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Val::Map(a), Val::Map(b)) => {
            if Arc::ptr_eq(a, b) {
                return Ok(true);
            }
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for ((key_a, a), (key_b, b)) in a.entries.iter().zip(&b.entries) {
                if key_a != key_b || !equal(run, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Val::Keyed(a), Val::Keyed(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for ((key_a, a), (key_b, b)) in a.entries.iter().zip(&b.entries) {
                if !equal(run, key_a, key_b)? || !equal(run, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Val::Version(a), Val::Version(b)) => a == b,
        (a, b) => number_order(a, b) == Some(Ordering::Equal),
    })
}

/// The order of numbers and quantities.
fn number_order(left: &Val, right: &Val) -> Option<Ordering> {
    match (left, right) {
        (Val::Int(a), Val::Int(b)) => Some(a.cmp(b)),
        (Val::Float(a), Val::Float(b)) => a.partial_cmp(b),
        (Val::Int(a), Val::Float(b)) => compare_int_float(*a, *b),
        (Val::Float(a), Val::Int(b)) => compare_int_float(*b, *a).map(Ordering::reverse),
        (Val::Quantity(a), Val::Quantity(b)) => Some(a.cmp(b)),
        (Val::Quantity(a), Val::Int(b)) => Quantity::from_int(*b).map(|b| a.cmp(&b)),
        (Val::Quantity(a), Val::Float(b)) => Quantity::from_float(*b).map(|b| a.cmp(&b)),
        (Val::Int(_) | Val::Float(_), Val::Quantity(_)) => number_order(right, left).map(Ordering::reverse),
        _ => None,
    }
}

/// Evaluates `<` and similar operators, which are defined only within one type that has an order.
pub(super) fn order(run: &Run<'_>, left: &Val, right: &Val) -> Res<Ordering> {
    run.fuel(1)?;
    let (left, right) = (left.known()?.resolved(run)?, right.known()?.resolved(run)?);
    match (&*left, &*right) {
        (Val::Str(a), Val::Str(b)) => {
            run.fuel(a.len().min(b.len()) / 64)?;
            Ok(a.cmp(b))
        }
        (Val::Bool(a), Val::Bool(b)) => Ok(a.cmp(b)),
        (Val::Version(a), Val::Version(b)) => Ok(a.cmp_precedence(b)),
        (Val::List(a), Val::List(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                match order(run, a, b)? {
                    Ordering::Equal => {}
                    other => return Ok(other),
                }
            }
            Ok(a.items.len().cmp(&b.items.len()))
        }
        (a, b) => number_order(a, b).ok_or_else(|| unordered(a, b)),
    }
}

fn unordered(left: &Val, right: &Val) -> Fault {
    let (a, b) = (left.kind(), right.kind());
    match (left, right) {
        (Val::Undefined, _) | (_, Val::Undefined) => {
            Fault::not_yet("an undefined value has no order").help("add a default: `| default(0)`")
        }
        (Val::Null, _) | (_, Val::Null) => {
            Fault::not_yet("null has no order").help("add a default: `| default(0)`")
        }
        (Val::Version(_), Val::Str(_)) | (Val::Str(_), Val::Version(_)) => {
            Fault::mixed("a version and a string have no order").help("use `| semver` on both sides")
        }
        (Val::Quantity(_), Val::Str(_)) | (Val::Str(_), Val::Quantity(_)) => {
            Fault::mixed("a quantity and a string have no order").help("use `| quantity` on both sides")
        }
        (Val::Str(_), Val::Int(_) | Val::Float(_)) | (Val::Int(_) | Val::Float(_), Val::Str(_)) => {
            Fault::mixed("a string and a number have no order").help("use `| int` on the string")
        }
        _ if a == b => Fault::mixed(format!("{a} has no order")),
        _ => Fault::mixed(format!("{a} and {b} have no order")),
    }
}

/// Evaluates `needle in hay`.
pub(super) fn contains(run: &Run<'_>, needle: &Val, hay: &Val) -> Res<bool> {
    let hay = hay.defined()?.resolved(run)?;
    let needle = needle.known()?.resolved(run)?;
    match &*hay {
        Val::List(list) => {
            for item in &list.items {
                if equal(run, item, &needle)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Val::Map(map) => match &*needle {
            Val::Str(key) => Ok(map.entries.contains_key(key)),
            other => {
                other.defined()?;
                Err(Fault::failed(format!("the keys of this map are strings, not {}", other.kind())))
            }
        },
        Val::Keyed(_) => Ok(!matches!(item(run, &hay, &needle)?, Val::Undefined)),
        Val::Str(text) => match &*needle {
            Val::Str(part) => {
                run.fuel(text.len() / 16)?;
                Ok(text.contains(&**part))
            }
            other => {
                other.defined()?;
                Err(Fault::failed(format!("a string contains strings, not {}", other.kind())))
            }
        },
        other => Err(Fault::failed(format!("`in` does not accept {}", other.kind()))),
    }
}

pub(super) fn compare(run: &Run<'_>, op: Comparison, left: &Val, right: &Val) -> Res<bool> {
    if is_generated(left) || is_generated(right) {
        return Err(not_computable());
    }
    Ok(match op {
        Comparison::Eq => equal(run, left, right)?,
        Comparison::Ne => !equal(run, left, right)?,
        Comparison::Lt => order(run, left, right)?.is_lt(),
        Comparison::Le => order(run, left, right)?.is_le(),
        Comparison::Gt => order(run, left, right)?.is_gt(),
        Comparison::Ge => order(run, left, right)?.is_ge(),
        Comparison::In => contains(run, left, right)?,
        Comparison::NotIn => !contains(run, left, right)?,
    })
}

pub(super) fn negate(run: &Run<'_>, value: &Val) -> Res<Val> {
    match &*value.defined()?.resolved(run)? {
        Val::Int(int) => Val::int(-int),
        Val::Float(float) => Val::float(-float),
        Val::Quantity(quantity) => Ok(Val::Quantity(-*quantity)),
        Val::Null => Err(Fault::not_yet("null cannot be negated")),
        other => Err(Fault::failed(format!("{} cannot be negated", other.kind()))),
    }
}

pub(super) fn concat(run: &Run<'_>, left: &Val, right: &Val) -> Res<Val> {
    let (left, right) = (left.text(run)?, right.text(run)?);
    run.memory(left.len() + right.len())?;
    let mut text = String::with_capacity(left.len() + right.len());
    text.push_str(&left);
    text.push_str(&right);
    Ok(Val::str(text))
}

pub(super) fn binary(run: &Run<'_>, op: Binary, left: &Val, right: &Val) -> Res<Val> {
    if op == Binary::Concat {
        return concat(run, left, right);
    }
    let (left, right) = (left.defined()?.resolved(run)?, right.defined()?.resolved(run)?);
    let found = match (&*left, &*right) {
        (Val::Int(a), Val::Int(b)) => integers(op, *a, *b)?,
        (Val::Int(a), Val::Float(b)) => Some(floats(op, as_float(*a), *b)?),
        (Val::Float(a), Val::Int(b)) => Some(floats(op, *a, as_float(*b))?),
        (Val::Float(a), Val::Float(b)) => Some(floats(op, *a, *b)?),
        (Val::Str(_), Val::Str(_)) if op == Binary::Add => Some(concat(run, &left, &right)?),
        (Val::List(a), Val::List(b)) if op == Binary::Add => {
            run.items(a.items.len() + b.items.len())?;
            Some(Val::list(a.items.iter().chain(&b.items).cloned().collect())?)
        }
        (Val::Str(text), Val::Int(count)) | (Val::Int(count), Val::Str(text)) if op == Binary::Mul => {
            let count = usize::try_from((*count).max(0)).unwrap_or(usize::MAX);
            run.memory(text.len().saturating_mul(count))?;
            Some(Val::str(if text.is_empty() { String::new() } else { text.repeat(count) }))
        }
        (Val::List(list), Val::Int(count)) | (Val::Int(count), Val::List(list)) if op == Binary::Mul => {
            let count = usize::try_from((*count).max(0)).unwrap_or(usize::MAX);
            let length = list.items.len();
            run.items(length.saturating_mul(count))?;
            Some(Val::list(list.items.iter().cycle().take(length.saturating_mul(count)).cloned().collect())?)
        }
        (Val::Quantity(_), _) | (_, Val::Quantity(_)) => quantities(op, &left, &right)?,
        _ => None,
    };
    found.ok_or_else(|| {
        let message = format!("`{}` does not take {} and {}", op.symbol(), left.kind(), right.kind());
        if matches!(*left, Val::Null) || matches!(*right, Val::Null) {
            Fault::not_yet(message).help("add a default for null: `| default(0)`")
        } else {
            Fault::failed(message)
        }
    })
}

fn by_zero() -> Fault {
    Fault::failed("division by zero")
}

fn overflow() -> Fault {
    Fault::failed("the result does not fit 64 bits")
}

fn integers(op: Binary, a: i128, b: i128) -> Res<Option<Val>> {
    let int = match op {
        Binary::Add => a.checked_add(b),
        Binary::Sub => a.checked_sub(b),
        Binary::Mul => a.checked_mul(b),
        Binary::Div | Binary::FloorDiv | Binary::Rem if b == 0 => return Err(by_zero()),
        // An integral result stays an integer: `replicas: {{ 4 / 2 }}` must not become 2.0.
        Binary::Div if a % b == 0 => a.checked_div(b),
        Binary::Div => return Val::float(as_float(a) / as_float(b)).map(Some),
        Binary::FloorDiv => a.checked_div_euclid(b),
        Binary::Rem => a.checked_rem_euclid(b),
        Binary::Pow if b < 0 => return floats(op, as_float(a), as_float(b)).map(Some),
        Binary::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        Binary::Concat => return Ok(None),
    };
    Val::int(int.ok_or_else(overflow)?).map(Some)
}

fn floats(op: Binary, a: f64, b: f64) -> Res<Val> {
    Val::float(match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div | Binary::FloorDiv | Binary::Rem if b == 0.0 => return Err(by_zero()),
        Binary::Div => a / b,
        Binary::FloorDiv => a.div_euclid(b),
        Binary::Rem => a.rem_euclid(b),
        Binary::Pow => a.powf(b),
        Binary::Concat => return Err(Fault::failed("`~` joins texts")),
    })
}

fn quantities(op: Binary, left: &Val, right: &Val) -> Res<Option<Val>> {
    let as_quantity = |value: &Val| match value {
        Val::Quantity(quantity) => Some(*quantity),
        Val::Int(int) => Quantity::from_int(*int),
        Val::Float(float) => Quantity::from_float(*float),
        _ => None,
    };
    let too_large = || Fault::failed("the quantity is too large");
    let (Some(a), Some(b)) = (as_quantity(left), as_quantity(right)) else { return Ok(None) };
    let result = match (op, left, right) {
        (Binary::Add, _, _) => a.checked_add(b),
        (Binary::Sub, _, _) => a.checked_add(-b),
        (Binary::Mul, Val::Quantity(q), Val::Int(n)) | (Binary::Mul, Val::Int(n), Val::Quantity(q)) => {
            q.mul_int(*n)
        }
        (Binary::Mul, Val::Quantity(q), Val::Float(n)) | (Binary::Mul, Val::Float(n), Val::Quantity(q)) => {
            q.mul_float(*n)
        }
        (Binary::Div, _, _) if b.is_zero() => return Err(by_zero()),
        (Binary::Div, Val::Quantity(q), Val::Int(n)) => q.div_int(*n),
        (Binary::Div, Val::Quantity(q), Val::Float(n)) => q.mul_float(1.0 / n),
        (Binary::Div, Val::Quantity(a), Val::Quantity(b)) => {
            return a.ratio(*b).map(Val::float).transpose();
        }
        _ => return Ok(None),
    };
    Ok(Some(Val::Quantity(result.ok_or_else(too_large)?)))
}
