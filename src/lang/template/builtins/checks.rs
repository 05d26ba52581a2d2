//! Tests: `value is ...`.

// All have the same signature, even if they cannot fail.
#![allow(clippy::unnecessary_wraps)]

use super::{Args, numbers};
use crate::template::code::Comparison;
use crate::template::errors::{Fault, Res};
use crate::template::limits::Run;
use crate::template::ops;
use crate::template::value::{Flags, Val};

pub(super) fn defined(_: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(!input.is_absent())
}

pub(super) fn undefined(_: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(input.is_absent())
}

pub(super) fn known(_: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(!matches!(input, Val::Unknown(_)))
}

/// Whether a live object has a flag. For a map or list of objects: whether all objects have it, not counting
/// those that are only kept.
fn flag(input: &Val, name: &str, pick: fn(Flags) -> bool) -> Res<bool> {
    let is_kept =
        |value: &Val| matches!(value, Val::Live(live) if live.flags.is_some_and(|flags| flags.kept));
    // All objects are tested, because one unknown object makes the result unknown, wherever it is in the
    // list.
    let all = |values: &mut dyn Iterator<Item = &Val>| {
        let mut all = true;
        for value in values {
            all &= is_kept(value) || flag(value, name, pick)?;
        }
        Ok(all)
    };
    match input.known()? {
        Val::Undefined => Ok(false),
        Val::Live(live) if live.flags.is_some() => Ok(live.flags.is_some_and(pick)),
        Val::Keyed(keyed) => all(&mut keyed.entries.iter().map(|(_, value)| value)),
        Val::List(list) => all(&mut list.items.iter()),
        other => Err(Fault::failed(format!("`is {name}` takes a child or a ref, not {}", other.kind()))
            .help("use it on `self`, `children.<id>` or `children.<id>.values()`, not of a field or a key")),
    }
}

pub(super) fn ready(_: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    flag(input, "ready", |flags| flags.ready)
}

pub(super) fn current(_: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    flag(input, "current", |flags| flags.current)
}

/// Whether the converted value has a certain type.
fn is(run: &Run<'_>, input: &Val, kind: fn(&Val) -> bool) -> Res<bool> {
    Ok(kind(&*input.known()?.resolved(run)?))
}

pub(super) fn none(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Null))
}

pub(super) fn boolean(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Bool(_)))
}

pub(super) fn is_true(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Bool(true)))
}

pub(super) fn is_false(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Bool(false)))
}

pub(super) fn number(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Int(_) | Val::Float(_)))
}

pub(super) fn integer(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Int(_)))
}

pub(super) fn float(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Float(_)))
}

pub(super) fn string(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Str(_)))
}

pub(super) fn sequence(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::List(_)))
}

pub(super) fn mapping(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Map(_) | Val::Keyed(_)))
}

pub(super) fn iterable(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    is(run, input, |value| matches!(value, Val::Map(_) | Val::Keyed(_) | Val::List(_)))
}

pub(super) fn empty(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    match &*input.defined()?.resolved(run)? {
        Val::Str(text) => Ok(text.is_empty()),
        Val::List(list) => Ok(list.items.is_empty()),
        Val::Map(map) => Ok(map.entries.is_empty()),
        Val::Keyed(keyed) => Ok(keyed.entries.is_empty()),
        other => Err(Fault::failed(format!("`is empty` does not accept {}", other.kind()))),
    }
}

fn whole(run: &Run<'_>, input: &Val) -> Res<i128> {
    match &*input.defined()?.resolved(run)? {
        Val::Int(int) => Ok(*int),
        other => Err(Fault::failed(format!("a whole number is needed, not {}", other.kind()))),
    }
}

pub(super) fn odd(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(whole(run, input)? % 2 != 0)
}

pub(super) fn even(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(whole(run, input)? % 2 == 0)
}

pub(super) fn divisibleby(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    match whole(run, args.need(0)?)? {
        0 => Err(Fault::failed("division by zero")),
        by => Ok(whole(run, input)? % by == 0),
    }
}

pub(super) fn startingwith(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    Ok(input.defined()?.text(run)?.starts_with(&*args.need_text(run, 0)?))
}

pub(super) fn endingwith(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    Ok(input.defined()?.text(run)?.ends_with(&*args.need_text(run, 0)?))
}

pub(super) fn lower(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(!input.defined()?.text(run)?.chars().any(char::is_uppercase))
}

pub(super) fn upper(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(!input.defined()?.text(run)?.chars().any(char::is_lowercase))
}

/// Compares with the argument. Operands may be undefined: the operators handle that.
fn compare(run: &Run<'_>, op: Comparison, input: &Val, args: &Args<'_>) -> Res<bool> {
    ops::compare(run, op, input, args.get(0).unwrap_or(&Val::Undefined))
}

pub(super) fn eq(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    compare(run, Comparison::Eq, input, args)
}

pub(super) fn ne(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    compare(run, Comparison::Ne, input, args)
}

pub(super) fn lt(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    compare(run, Comparison::Lt, input, args)
}

pub(super) fn le(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    compare(run, Comparison::Le, input, args)
}

pub(super) fn gt(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    compare(run, Comparison::Gt, input, args)
}

pub(super) fn ge(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    compare(run, Comparison::Ge, input, args)
}

pub(super) fn is_in(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    compare(run, Comparison::In, input, args)
}

pub(super) fn is_filter(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(super::filter(&input.defined()?.text(run)?).is_some())
}

pub(super) fn is_test(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(super::test(&input.defined()?.text(run)?).is_some())
}

/// Without an argument: whether the text is a version. With one: whether the version meets the requirement.
pub(super) fn semver(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    let Some(requirement) = args.text(run, 0)? else {
        return Ok(match &*input.resolved(run)? {
            Val::Version(_) => true,
            Val::Str(text) => numbers::parse_version(text).is_some(),
            _ => false,
        });
    };
    let requirement = semver::VersionReq::parse(&requirement).map_err(|_| {
        Fault::failed("the requirement is not a SemVer range").help("it looks like '>=3.4.0' or '>=1.2, <2'")
    })?;
    Ok(requirement.matches(&numbers::version_of(run, input)?))
}
