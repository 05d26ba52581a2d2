//! Paths of fields, with places for every item of a list or every value of a map.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One step of a path in a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Segment {
    /// A field.
    Key(String),
    /// Every item of a list, identified by these keys (none: by its position), or every value of a map.
    Each {
        /// The keys of the list.
        each: Vec<String>,
    },
}

/// A path in a schema.
pub(super) type Path = Vec<Segment>;

/// One step of a path in an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Step {
    /// A field, or a key of a map.
    Key(String),
    /// The item of a list at a position.
    Index(usize),
    /// The item of a list with these values of its keys.
    Item(Vec<Value>),
}

/// How it is written in `operator.yaml`.
pub(super) fn show(path: &[Segment]) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Key(key) => text = super::super::join(&text, key),
            Segment::Each { .. } => text.push_str("[*]"),
        }
    }
    text
}

/// The places of a path in an object whose parent exists; with positions in lists.
pub(super) fn places(object: &Value, path: &[Segment]) -> Vec<Vec<Step>> {
    let mut found = Vec::new();
    expand(object, path, &mut Vec::new(), &mut found);
    found
}

fn expand(here: &Value, path: &[Segment], above: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
    let Some((first, rest)) = path.split_first() else {
        found.push(above.clone());
        return;
    };
    let mut below = |step: Step, value: &Value| {
        above.push(step);
        expand(value, rest, above, found);
        above.pop();
    };
    match (first, here) {
        (Segment::Key(key), Value::Object(map)) => match map.get(key) {
            Some(value) => below(Step::Key(key.clone()), value),
            None if rest.is_empty() => below(Step::Key(key.clone()), &Value::Null),
            None => {}
        },
        (Segment::Each { .. }, Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                below(Step::Index(index), item);
            }
        }
        (Segment::Each { .. }, Value::Object(map)) => {
            for (key, value) in map {
                below(Step::Key(key.clone()), value);
            }
        }
        _ => {}
    }
}

/// The value at a place.
pub(super) fn get<'a>(object: &'a Value, place: &[Step]) -> Option<&'a Value> {
    place.iter().try_fold(object, |here, step| match step {
        Step::Key(key) => here.as_object()?.get(key),
        Step::Index(index) => here.as_array()?.get(*index),
        Step::Item(_) => None,
    })
}

fn get_mut<'a>(object: &'a mut Value, place: &[Step]) -> Option<&'a mut Value> {
    place.iter().try_fold(object, |here, step| match step {
        Step::Key(key) => here.as_object_mut()?.get_mut(key),
        Step::Index(index) => here.as_array_mut()?.get_mut(*index),
        Step::Item(_) => None,
    })
}

/// Takes the value at a place out of the object.
pub(super) fn take(object: &mut Value, place: &[Step]) -> Option<Value> {
    let (last, above) = place.split_last()?;
    match (get_mut(object, above)?, last) {
        (Value::Object(map), Step::Key(key)) => map.remove(key),
        _ => None,
    }
}

/// Puts a value at a place, and creates the objects above it. Returns how many steps lead to the highest object that was
/// created, or the value if there is no room for it.
pub(super) fn put(object: &mut Value, place: &[Step], value: Value) -> Result<Option<usize>, Value> {
    let mut here = object;
    let mut created = None;
    for (depth, step) in place.iter().enumerate() {
        let is_last = depth + 1 == place.len();
        here = match (here, step) {
            (Value::Object(map), Step::Key(key)) if is_last => {
                map.insert(key.clone(), value);
                return Ok(created);
            }
            (Value::Object(map), Step::Key(key)) => map.entry(key.clone()).or_insert_with(|| {
                created.get_or_insert(depth + 1);
                Value::Object(Map::new())
            }),
            (Value::Array(items), Step::Index(index)) if *index < items.len() => &mut items[*index],
            _ => return Err(value),
        };
    }
    Err(value)
}

/// The place with items of lists identified by the values of their keys, where the path names keys.
pub(super) fn identified(object: &Value, path: &[Segment], place: &[Step]) -> Vec<Step> {
    let identity = |depth: usize, segment: &Segment, step: &Step| -> Option<Step> {
        let Segment::Each { each } = segment else { return None };
        let (Step::Index(_), false) = (step, each.is_empty()) else { return None };
        let item = get(object, &place[..=depth])?;
        let values = each.iter().map(|key| item.get(key).filter(|value| !value.is_object()).cloned());
        Some(Step::Item(values.collect::<Option<_>>()?))
    };
    path.iter()
        .zip(place)
        .enumerate()
        .map(|(depth, (segment, step))| identity(depth, segment, step).unwrap_or_else(|| step.clone()))
        .collect()
}

/// The place with positions of items instead of their keys; `None` if an item is gone.
pub(super) fn located(object: &Value, path: &[Segment], place: &[Step]) -> Option<Vec<Step>> {
    let mut found: Vec<Step> = Vec::new();
    for (segment, step) in path.iter().zip(place) {
        found.push(match (segment, step) {
            (Segment::Each { each }, Step::Item(values)) => {
                let items = get(object, &found)?.as_array()?;
                let is_it =
                    |item: &Value| each.iter().zip(values).all(|(key, value)| item.get(key) == Some(value));
                Step::Index(items.iter().position(is_it)?)
            }
            (_, step) => step.clone(),
        });
    }
    Some(found)
}

/// Whether a place is one of a path.
pub(super) fn is_of(path: &[Segment], place: &[Step]) -> bool {
    path.len() == place.len()
        && path.iter().zip(place).all(|(segment, step)| match (segment, step) {
            (Segment::Key(key), Step::Key(own)) => key == own,
            (Segment::Each { each }, Step::Item(values)) => each.len() == values.len(),
            (Segment::Each { .. }, Step::Key(_) | Step::Index(_)) => true,
            (Segment::Key(_), _) => false,
        })
}
