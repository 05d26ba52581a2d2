//! Filters over numbers, quantities and versions.

use std::sync::Arc;

use operetta_kube_model::quantity::Quantity;

use super::Args;
use crate::template::errors::{Fault, Res};
use crate::template::limits::Run;
use crate::template::value::Val;

#[allow(clippy::cast_precision_loss)]
pub(super) fn to_float(value: &Val) -> Option<f64> {
    match value {
        Val::Int(int) => Some(*int as f64),
        Val::Float(float) => Some(*float),
        Val::Quantity(quantity) => Some(quantity.to_float()),
        _ => None,
    }
}

/// A float without a fraction as an integer.
#[allow(clippy::cast_possible_truncation)]
fn whole(float: f64) -> Res<Val> {
    if float.abs() < 1.8e19 { Val::int(float as i128) } else { Val::float(float) }
}

pub(super) fn abs(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    match &*input.resolved(run)? {
        Val::Int(int) => Val::int(int.abs()),
        Val::Float(float) => Val::float(float.abs()),
        other => Err(Fault::failed(format!("`abs` takes a number, not {}", other.kind()))),
    }
}

/// The integer of a number, a text or a quantity. Text that is not a number is an error, unless there is a default.
pub(super) fn int(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    match &*input.resolved(run)? {
        Val::Int(int) => Ok(Val::Int(*int)),
        Val::Float(float) => whole(float.trunc()),
        Val::Bool(bool) => Ok(Val::Int((*bool).into())),
        Val::Quantity(quantity) => Val::int(quantity.to_int()),
        Val::Str(text) => {
            let base = match args.int(1)?.unwrap_or(10) {
                base @ 2..=36 => u32::try_from(base).unwrap_or(10),
                _ => return Err(Fault::failed("`base` is between 2 and 36")),
            };
            let digits = text.trim();
            let (negative, digits) = match digits.strip_prefix('-') {
                Some(rest) => (true, rest),
                None => (false, digits.strip_prefix('+').unwrap_or(digits)),
            };
            let digits = match base {
                16 => digits.trim_start_matches("0x"),
                8 => digits.trim_start_matches("0o"),
                2 => digits.trim_start_matches("0b"),
                _ => digits,
            };
            let parsed = if digits.starts_with(['-', '+']) {
                None
            } else {
                i128::from_str_radix(digits, base)
                    .ok()
                    .and_then(|int| Val::int(if negative { -int } else { int }).ok())
            };
            // `'3.7' | int` is 3, as in Jinja.
            let parsed = parsed.or_else(|| {
                let float =
                    text.trim().parse::<f64>().ok().filter(|float| base == 10 && float.is_finite())?;
                whole(float.trunc()).ok()
            });
            parsed.map_or_else(|| no_number(args, "a whole number"), Ok)
        }
        Val::Null => no_number(args, "a whole number"),
        other => Err(Fault::failed(format!("{} is not a number", other.kind()))),
    }
}

fn no_number(args: &Args<'_>, what: &str) -> Res<Val> {
    match args.get(0) {
        Some(default) => Ok(default.clone()),
        None => {
            Err(Fault::failed(format!("the value is not {what}")).help("add a default: `int(0)`, `float(0)`"))
        }
    }
}

pub(super) fn float(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    match &*input.resolved(run)? {
        Val::Str(text) => match text.trim().parse::<f64>() {
            Ok(float) if float.is_finite() => Val::float(float),
            _ => no_number(args, "a number"),
        },
        Val::Bool(bool) => Ok(Val::Float(f64::from(u8::from(*bool)))),
        Val::Null => no_number(args, "a number"),
        other => match to_float(other) {
            Some(float) => Val::float(float),
            None => Err(Fault::failed(format!("{} is not a number", other.kind()))),
        },
    }
}

/// Rounds to a number of digits; without that argument the result is an integer.
pub(super) fn round(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let input = input.resolved(run)?;
    let method: fn(f64) -> f64 = match args.text(run, 1)?.as_deref() {
        None | Some("common") => f64::round,
        Some("ceil") => f64::ceil,
        Some("floor") => f64::floor,
        Some(_) => return Err(Fault::failed("`method` is 'common', 'ceil' or 'floor'")),
    };
    let precision = args.count(0, 0, 15)?;
    match &*input {
        Val::Int(int) => Ok(Val::Int(*int)),
        Val::Float(float) if precision == 0 => whole(method(*float)),
        Val::Float(float) => {
            let factor = 10_f64.powi(i32::try_from(precision).unwrap_or(0));
            Val::float(method(float * factor) / factor)
        }
        other => Err(Fault::failed(format!("`round` takes a number, not {}", other.kind()))),
    }
}

pub(super) fn quantity(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let wrong =
        |what: String| Err(Fault::failed(what).help("a quantity looks like 100m, 2, 512Mi, 1.5Gi, 1e3"));
    let quantity = match &*input.resolved(run)? {
        Val::Quantity(quantity) => Some(*quantity),
        Val::Int(int) => Quantity::from_int(*int),
        Val::Float(float) => Quantity::from_float(*float),
        Val::Str(text) => Quantity::parse(text.trim()),
        other => return wrong(format!("{} is not a quantity", other.kind())),
    };
    match quantity {
        Some(quantity) => Ok(Val::Quantity(quantity)),
        None => wrong("the value is not a quantity".into()),
    }
}

/// The quantity in that unit, rounded up: `'1500Mi' | quantity_in('Gi')` is `2Gi`.
pub(super) fn quantity_in(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let unit = args.need_text(run, 0)?;
    match quantity(run, input, args)? {
        Val::Quantity(quantity) => match quantity.in_unit(&unit) {
            Some(text) => Ok(Val::str(text)),
            None => Err(Fault::failed("the unit must be one of m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei")),
        },
        other => Ok(other),
    }
}

/// Parses a version: `1.2.3`, also `v1.2.3`, `1.2` and `1`.
pub(super) fn parse_version(text: &str) -> Option<semver::Version> {
    let text = text.trim();
    let text = text.strip_prefix(['v', 'V']).unwrap_or(text);
    if let Ok(version) = semver::Version::parse(text) {
        return Some(version);
    }
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (core, rest) = text.split_at(end);
    let missing = match core.matches('.').count() {
        0 => ".0.0",
        1 => ".0",
        _ => return None,
    };
    semver::Version::parse(&format!("{core}{missing}{rest}")).ok()
}

pub(super) fn version_of(run: &Run<'_>, input: &Val) -> Res<semver::Version> {
    match &*input.defined()?.resolved(run)? {
        Val::Version(version) => Ok((**version).clone()),
        Val::Null => Err(Fault::failed("null is not a version")),
        other => {
            let text = other.text(run)?;
            parse_version(&text).ok_or_else(|| {
                Fault::failed("the value is not a version").help("a version looks like 1.2.3, v1.2.3 or 1.2")
            })
        }
    }
}

pub(super) fn semver(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    Ok(Val::Version(Arc::new(version_of(run, input)?)))
}

pub(super) fn range(run: &Run<'_>, args: &Args<'_>, _: &[(crate::template::value::Name, Val)]) -> Res<Val> {
    args.need(0)?;
    let int = |index: usize| -> Res<Option<i128>> {
        match args.get(index) {
            Some(Val::Float(float)) if float.fract() == 0.0 => match whole(*float)? {
                Val::Int(int) => Ok(Some(int)),
                _ => Ok(None),
            },
            Some(Val::Null) if index == 0 => Err(Fault::not_yet("null is not a number")),
            _ => args.int(index),
        }
    };
    let (lower, upper) = match (int(0)?, int(1)?) {
        (Some(upper), None) => (0, upper),
        (Some(lower), Some(upper)) => (lower, upper),
        _ => return Err(Fault::failed("`range` takes whole numbers")),
    };
    let step = int(2)?.unwrap_or(1);
    if step == 0 {
        return Err(Fault::failed("the step of a range cannot be 0"));
    }
    let distance = if step > 0 { upper - lower } else { lower - upper };
    let count = if distance <= 0 { 0 } else { (distance - 1) / step.abs() + 1 };
    run.items(usize::try_from(count).unwrap_or(usize::MAX))?;
    Val::list((0..count).map(|index| Val::Int(lower + index * step)).collect())
}
