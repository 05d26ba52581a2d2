//! Filters over lists and maps.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{Args, bind, dotted, filter_by_value, secrets, test_by_value};
use crate::template::errors::{Fault, Res};
use crate::template::limits::Run;
use crate::template::ops;
use crate::template::value::{Name, Val};

fn new_list(run: &Run<'_>, items: Vec<Val>) -> Res<Val> {
    run.items(items.len())?;
    Val::list(items)
}

fn pair(run: &Run<'_>, key: Val, value: Val) -> Res<Val> {
    new_list(run, vec![key, value])
}

pub(super) fn length(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    Ok(Val::usize(match &*input.resolved(run)? {
        Val::Str(text) => {
            run.fuel(text.len() / 64)?;
            text.chars().count()
        }
        Val::List(list) => list.items.len(),
        Val::Map(map) => map.entries.len(),
        Val::Keyed(keyed) => keyed.entries.len(),
        Val::Null => return Err(Fault::failed("null has no length").help("use `| default([])`")),
        other => return Err(Fault::failed(format!("{} has no length", other.kind()))),
    }))
}

pub(super) fn list(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    match &*input.resolved(run)? {
        Val::List(list) => Ok(Val::List(Arc::clone(list))),
        Val::Str(text) => {
            run.items(text.len())?;
            new_list(run, text.chars().map(|c| Val::str(c.to_string())).collect())
        }
        other => new_list(run, other.iterate(run)?),
    }
}

pub(super) fn keys(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    new_list(run, input.entries(run)?.into_iter().map(|(key, _)| key).collect())
}

pub(super) fn values(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    new_list(run, input.entries(run)?.into_iter().map(|(_, value)| value).collect())
}

pub(super) fn items(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let pairs = input.entries(run)?.into_iter().map(|(key, value)| pair(run, key, value));
    let pairs = pairs.collect::<Res<Vec<_>>>()?;
    new_list(run, pairs)
}

/// The items or entries whose value is known.
pub(super) fn known(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let is_known = |value: &Val| !matches!(value, Val::Unknown(_));
    match &*input.resolved(run)? {
        Val::List(list) => new_list(run, list.items.iter().filter(|item| is_known(item)).cloned().collect()),
        Val::Map(map) => {
            run.items(map.entries.len())?;
            Val::map(
                map.entries
                    .iter()
                    .filter(|(_, v)| is_known(v))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect(),
            )
        }
        Val::Keyed(keyed) => {
            run.items(keyed.entries.len())?;
            Val::keyed(keyed.entries.iter().filter(|(_, value)| is_known(value)).cloned().collect())
        }
        other => Err(Fault::failed(format!("{} is neither a list nor a map", other.kind()))),
    }
}

/// `default` when it is called by name (`map('default', 0)`); elsewhere it is part of the language.
pub(super) fn default(_: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let replace = match input {
        Val::Null => true,
        absent if absent.is_absent() => true,
        other => args.flag(1, false)? && !other.truthy()?,
    };
    Ok(if replace { args.get(0).cloned().unwrap_or_else(|| Val::str("")) } else { input.clone() })
}

pub(super) fn attr(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    ops::item(run, input, args.need(0)?)
}

pub(super) fn first(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    ends(run, input, false)
}

pub(super) fn last(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    ends(run, input, true)
}

fn ends(run: &Run<'_>, input: &Val, last: bool) -> Res<Val> {
    let found = match &*input.resolved(run)? {
        Val::Str(text) => {
            let c = if last { text.chars().next_back() } else { text.chars().next() };
            c.map(|c| Val::str(c.to_string()))
        }
        Val::List(list) => if last { list.items.last() } else { list.items.first() }.cloned(),
        other => {
            let items = other.iterate(run)?;
            if last { items.last().cloned() } else { items.first().cloned() }
        }
    };
    Ok(found.unwrap_or(Val::Undefined))
}

pub(super) fn reverse(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    if let Val::Str(text) = &*input.resolved(run)? {
        run.memory(text.len())?;
        return Ok(Val::str(text.chars().rev().collect::<String>()));
    }
    let mut items = input.iterate(run)?;
    items.reverse();
    new_list(run, items)
}

pub(super) fn join(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let separator = args.text(run, 0)?.unwrap_or_else(|| Arc::from(""));
    let attribute = args.text(run, 1)?;
    let mut texts = Vec::new();
    let mut length = 0_usize;
    for item in input.iterate(run)? {
        let item = match &attribute {
            Some(path) => dotted(run, &item, path)?,
            None => item,
        };
        let text = item.defined()?.text(run)?;
        length = length.saturating_add(text.len()).saturating_add(separator.len());
        texts.push(text);
    }
    run.memory(length)?;
    let mut out = String::with_capacity(length);
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        out.push_str(text);
    }
    Ok(Val::str(out))
}

/// `map('filter', ...)` or `map(attribute='a.b', default=...)`.
pub(super) fn map(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let items = input.iterate(run)?;
    let mut out = Vec::with_capacity(items.len());
    if let Some(path) = args.text(run, 0)? {
        if !args.rest().is_empty() {
            return Err(Fault::failed("`map` takes a filter or an attribute, not both"));
        }
        for item in items {
            let found = dotted(run, item.known()?, &path)?;
            out.push(match args.get(1) {
                Some(default) if found.is_absent() => default.clone(),
                _ => found,
            });
        }
    } else {
        let Some((Some(name), rest)) = args.rest().split_first() else {
            return Err(Fault::failed("`map` takes the name of a filter or `attribute=`"));
        };
        let filter = filter_by_value(run, name)?;
        let bound = bind(&filter.sig, filter.name, rest)?;
        for item in items {
            out.push(filter.call(run, &item, &bound)?);
        }
    }
    new_list(run, out)
}

pub(super) fn select(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    pick(run, input, None, args.rest(), true)
}

pub(super) fn reject(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    pick(run, input, None, args.rest(), false)
}

pub(super) fn selectattr(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    pick_by_attribute(run, input, args, true)
}

pub(super) fn rejectattr(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    pick_by_attribute(run, input, args, false)
}

fn pick_by_attribute(run: &Run<'_>, input: &Val, args: &Args<'_>, keep: bool) -> Res<Val> {
    let Some((Some(path), rest)) = args.rest().split_first() else {
        return Err(Fault::failed("the name of the attribute is missing"));
    };
    let path = path.defined()?.text(run)?;
    pick(run, input, Some(&path), rest, keep)
}

/// The items for which the test has the result `keep`; without a test, the truthiness of the item counts.
fn pick(run: &Run<'_>, input: &Val, path: Option<&str>, rest: &[Option<Val>], keep: bool) -> Res<Val> {
    let test = match rest.split_first() {
        Some((Some(name), rest)) => {
            let test = test_by_value(run, name)?;
            Some((test, bind(&test.sig, test.name, rest)?))
        }
        _ => None,
    };
    let mut out = Vec::new();
    for item in input.iterate(run)? {
        let subject = match path {
            Some(path) => dotted(run, item.known()?, path)?,
            None => item.clone(),
        };
        let found = match &test {
            Some((test, bound)) => test.call(run, &subject, bound)?,
            None => subject.truthy()?,
        };
        if found == keep {
            out.push(item);
        }
    }
    new_list(run, out)
}

/// A stable sort by keys, all of which must be comparable. (The standard sort may panic if comparisons fail.)
fn sort_by_keys<T>(run: &Run<'_>, rows: Vec<(Val, T)>, reverse: bool) -> Res<Vec<(Val, T)>> {
    // A single key is compared with itself, so that `[none] | sort` is an error, too.
    if let [(only, _)] = rows.as_slice() {
        ops::order(run, only, only)?;
    }
    let mut from: Vec<usize> = (0..rows.len()).collect();
    let mut to = Vec::with_capacity(from.len());
    let mut width = 1;
    while width < from.len() {
        to.clear();
        for run_of_two in from.chunks(width * 2) {
            let (left, right) = run_of_two.split_at(width.min(run_of_two.len()));
            let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
            while let (Some(&&a), Some(&&b)) = (left.peek(), right.peek()) {
                let order = ops::order(run, &rows[a].0, &rows[b].0)?;
                let take_right = if reverse { order.is_lt() } else { order.is_gt() };
                to.extend(if take_right { right.next() } else { left.next() });
            }
            to.extend(left);
            to.extend(right);
        }
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    let mut rows: Vec<Option<(Val, T)>> = rows.into_iter().map(Some).collect();
    Ok(from.into_iter().filter_map(|index| rows[index].take()).collect())
}

/// The sort key of an item.
fn sort_key(run: &Run<'_>, item: &Val, path: Option<&str>, case_sensitive: bool) -> Res<Val> {
    let key = match path {
        Some(path) => dotted(run, item, path)?,
        None => item.clone(),
    };
    Ok(match &*key.known()?.resolved(run)? {
        Val::Str(text) if !case_sensitive => {
            run.memory(text.len())?;
            Val::str(text.to_lowercase())
        }
        other => other.clone(),
    })
}

pub(super) fn sort(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let (reverse, case_sensitive) = (args.flag(0, false)?, args.flag(1, false)?);
    let paths = args.text(run, 2)?;
    let mut rows = Vec::new();
    for item in input.iterate(run)? {
        let key = match &paths {
            // Several attributes, as in Jinja: `attribute='a,b'`.
            Some(paths) if paths.contains(',') => {
                let keys =
                    paths.split(',').map(|path| sort_key(run, &item, Some(path.trim()), case_sensitive));
                let keys = keys.collect::<Res<Vec<_>>>()?;
                new_list(run, keys)?
            }
            path => sort_key(run, &item, path.as_deref(), case_sensitive)?,
        };
        rows.push((key, item));
    }
    let rows = sort_by_keys(run, rows, reverse)?;
    new_list(run, rows.into_iter().map(|(_, item)| item).collect())
}

pub(super) fn dictsort(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let by_value = match args.text(run, 1)?.as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => return Err(Fault::failed("`by` is 'key' or 'value'")),
    };
    let mut rows = Vec::new();
    for (key, value) in input.entries(run)? {
        let by = sort_key(run, if by_value { &value } else { &key }, None, args.flag(0, false)?)?;
        rows.push((by, (key, value)));
    }
    let rows = sort_by_keys(run, rows, args.flag(2, false)?)?;
    let pairs = rows.into_iter().map(|(_, (key, value))| pair(run, key, value));
    let pairs = pairs.collect::<Res<Vec<_>>>()?;
    new_list(run, pairs)
}

pub(super) fn min(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    extreme(run, input, args, Ordering::Less)
}

pub(super) fn max(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    extreme(run, input, args, Ordering::Greater)
}

fn extreme(run: &Run<'_>, input: &Val, args: &Args<'_>, wanted: Ordering) -> Res<Val> {
    let path = args.text(run, 0)?;
    let case_sensitive = args.flag(1, false)?;
    let mut best: Option<(Val, Val)> = None;
    for item in input.iterate(run)? {
        let key = sort_key(run, &item, path.as_deref(), case_sensitive)?;
        // The first value is compared with itself, so that a value without an order is an error, too.
        let order = ops::order(run, &key, best.as_ref().map_or(&key, |(best, _)| best))?;
        let better = best.is_none() || order == wanted;
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Val::Undefined, |(_, item)| item))
}

/// Keeps each value once. Case-sensitive by default, because dropping `A` in favour of `a` would lose data.
pub(super) fn unique(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let case_sensitive = args.flag(0, true)?;
    let path = args.text(run, 1)?;
    let mut seen: Vec<Val> = Vec::new();
    let mut out = Vec::new();
    for item in input.iterate(run)? {
        let key = sort_key(run, &item, path.as_deref(), case_sensitive)?;
        let mut known = false;
        for other in &seen {
            if ops::equal(run, other, &key)? {
                known = true;
                break;
            }
        }
        if !known {
            seen.push(key);
            out.push(item);
        }
    }
    new_list(run, out)
}

/// Groups items into maps of `grouper` and `list`, sorted by `grouper`.
pub(super) fn groupby(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let path = args.need_text(run, 0)?;
    let mut rows = Vec::new();
    for item in input.iterate(run)? {
        let key = match dotted(run, item.known()?, &path)? {
            absent if absent.is_absent() => args.get(1).cloned().unwrap_or(absent),
            key => key,
        };
        rows.push((key, item));
    }
    let mut groups: Vec<(Val, Vec<Val>)> = Vec::new();
    for (key, item) in sort_by_keys(run, rows, false)? {
        match groups.last_mut() {
            Some((last, items)) if ops::equal(run, last, &key)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut out = Vec::new();
    for (key, items) in groups {
        run.items(items.len() + 2)?;
        let entries = [("grouper".into(), key), ("list".into(), Val::list(items)?)];
        out.push(Val::map(BTreeMap::from(entries))?);
    }
    new_list(run, out)
}

pub(super) fn batch(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let size = args.count(0, 1, 1_000_000)?;
    if size == 0 {
        return Err(Fault::failed("a batch holds at least one item"));
    }
    let mut batches = Vec::new();
    for chunk in input.iterate(run)?.chunks(size) {
        let mut chunk = chunk.to_vec();
        if let Some(fill) = args.get(1) {
            run.items(size)?;
            chunk.resize(size, fill.clone());
        }
        batches.push(new_list(run, chunk)?);
    }
    new_list(run, batches)
}

pub(super) fn slice(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let count = args.count(0, 1, 100_000)?;
    if count == 0 {
        return Err(Fault::failed("there is at least one slice"));
    }
    run.items(count)?;
    let items = input.iterate(run)?;
    let (each, more) = (items.len() / count, items.len() % count);
    let mut start = 0;
    let mut slices = Vec::new();
    for index in 0..count {
        let end = start + each + usize::from(index < more);
        let mut part = items.get(start..end).unwrap_or_default().to_vec();
        if let Some(fill) = args.get(1)
            && index >= more
            && more > 0
        {
            part.push(fill.clone());
        }
        slices.push(new_list(run, part)?);
        start = end;
    }
    new_list(run, slices)
}

pub(super) fn chain(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let mut out = input.iterate(run)?;
    for more in args.rest().iter().flatten() {
        out.extend(more.iterate(run)?);
    }
    new_list(run, out)
}

pub(super) fn zip(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let mut columns = vec![input.iterate(run)?];
    for more in args.rest().iter().flatten() {
        columns.push(more.iterate(run)?);
    }
    let length = columns.iter().map(Vec::len).min().unwrap_or(0);
    let mut out = Vec::new();
    for index in 0..length {
        out.push(new_list(run, columns.iter().filter_map(|column| column.get(index).cloned()).collect())?);
    }
    new_list(run, out)
}

pub(super) fn sum(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let path = args.text(run, 0)?;
    let mut total = args.get(1).cloned().unwrap_or(Val::Int(0));
    for item in input.iterate(run)? {
        let item = match &path {
            Some(path) => dotted(run, &item, path)?,
            None => item,
        };
        total = ops::binary(run, crate::template::code::Binary::Add, &total, &item)?;
    }
    Ok(total)
}

/// Merges two maps; the other map takes precedence.
pub(super) fn combine(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let mut entries = BTreeMap::new();
    for map in [input, args.need(0)?] {
        for (key, value) in map.entries(run)? {
            entries.insert(key.text(run)?, value);
        }
    }
    Val::map(entries)
}

/// Merges two maps at any depth, as a JSON merge patch does: what is a map in both is merged, null removes a key, and
/// anything else replaces.
pub(super) fn merge(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    patched(run, input, args.need(0)?)
}

fn patched(run: &Run<'_>, base: &Val, patch: &Val) -> Res<Val> {
    let mut entries = BTreeMap::new();
    for (key, value) in base.entries(run)? {
        entries.insert(key.text(run)?, value);
    }
    for (key, value) in patch.entries(run)? {
        let key = key.text(run)?;
        if matches!(&*value.known()?.resolved(run)?, Val::Null) {
            entries.remove(&key);
        } else if is_merged(run, &value)? {
            let before = match entries.remove(&key) {
                Some(before) if is_merged(run, &before)? => before,
                _ => Val::map(BTreeMap::new())?,
            };
            entries.insert(key, patched(run, &before, &value)?);
        } else {
            entries.insert(key, value);
        }
    }
    run.map(entries.len())?;
    Val::map(entries)
}

/// Whether a value is a map; the marker of a generated value is none.
fn is_merged(run: &Run<'_>, value: &Val) -> Res<bool> {
    let is_map = matches!(&*value.known()?.resolved(run)?, Val::Map(_) | Val::Keyed(_));
    Ok(is_map && !secrets::is_generated(value))
}

pub(super) fn dict(run: &Run<'_>, args: &Args<'_>, keywords: &[(Name, Val)]) -> Res<Val> {
    let mut entries = BTreeMap::new();
    if let Some(base) = args.get(0) {
        for (key, value) in base.entries(run)? {
            entries.insert(key.text(run)?, value);
        }
    }
    run.items(keywords.len())?;
    entries.extend(keywords.iter().cloned());
    Val::map(entries)
}

pub(super) fn namespace(run: &Run<'_>, _: &Args<'_>, keywords: &[(Name, Val)]) -> Res<Val> {
    run.items(keywords.len() + 1)?;
    // Built as a map first, because a map refuses a namespace as a value.
    let entries: BTreeMap<_, _> = keywords.iter().cloned().collect();
    Val::map(entries.clone())?;
    Ok(Val::Namespace(Arc::new(Mutex::new(entries))))
}
