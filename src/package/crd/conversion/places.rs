//! The places of paths in an object.

use std::collections::HashMap;

use serde_json::Value;

use super::node::Node;
use super::path::{Place, PlaceSegment, Segment};

/// The places of a path in an object where the parent exists. Items of lists are given by their index.
pub(super) fn places(object: &Node<'_>, path: &[Segment]) -> Vec<Place> {
    let mut found = Vec::new();
    expand(Some(object), path, &mut Vec::new(), &mut found);
    found
}

fn expand(here: Option<&Node<'_>>, path: &[Segment], above: &mut Place, found: &mut Vec<Place>) {
    let Some((first, rest)) = path.split_first() else {
        found.push(above.clone());
        return;
    };
    let mut below = |step: PlaceSegment, value: Option<&Node<'_>>| {
        above.push(step);
        expand(value, rest, above, found);
        above.pop();
    };
    match (first, here) {
        (Segment::Key(key), Some(map @ Node::Object(_))) => match map.get(key) {
            Some(value) => below(PlaceSegment::Key(key.clone()), Some(value)),
            None if rest.is_empty() => below(PlaceSegment::Key(key.clone()), None),
            None => {}
        },
        (Segment::Each { .. }, Some(Node::Array(items))) => {
            for (index, item) in items.iter().enumerate() {
                below(PlaceSegment::Index(index), Some(item));
            }
        }
        (Segment::Each { .. }, Some(Node::Object(map))) => {
            for (key, value) in map {
                below(PlaceSegment::Key(key.clone()), Some(value));
            }
        }
        _ => {}
    }
}

/// The value at a place.
pub(super) fn get<'n, 'a>(object: &'n Node<'a>, place: &[PlaceSegment]) -> Option<&'n Node<'a>> {
    place.iter().try_fold(object, |here, step| match (step, here) {
        (PlaceSegment::Key(key), _) => here.get(key),
        (PlaceSegment::Index(index), Node::Array(items)) => items.get(*index),
        _ => None,
    })
}

fn get_mut<'n, 'a>(object: &'n mut Node<'a>, place: &[PlaceSegment]) -> Option<&'n mut Node<'a>> {
    place.iter().try_fold(object, |here, step| match (step, here) {
        (PlaceSegment::Key(key), here) => here.get_mut(key),
        (PlaceSegment::Index(index), Node::Array(items)) => items.get_mut(*index),
        _ => None,
    })
}

/// Removes and returns the value at a place.
pub(super) fn take<'a>(object: &mut Node<'a>, place: &[PlaceSegment]) -> Option<Node<'a>> {
    let (last, above) = place.split_last()?;
    match last {
        PlaceSegment::Key(key) => get_mut(object, above)?.remove(key),
        _ => None,
    }
}

/// Puts a value at a place, and creates the objects above it. Returns the number of steps to the highest
/// object that was created, or the value if it cannot be put there.
pub(super) fn put<'a>(
    object: &mut Node<'a>,
    place: &[PlaceSegment],
    value: Node<'a>,
) -> Result<Option<usize>, Node<'a>> {
    let mut here = object;
    let mut created = None;
    for (depth, step) in place.iter().enumerate() {
        let is_last = depth + 1 == place.len();
        here = match (here, step) {
            (here @ Node::Object(_), PlaceSegment::Key(key)) if is_last => {
                here.insert(key, value);
                return Ok(created);
            }
            (Node::Object(map), PlaceSegment::Key(key)) => {
                let (at, is_new) = Node::entry(map, key);
                if is_new {
                    created.get_or_insert(depth + 1);
                }
                &mut map[at].1
            }
            (Node::Array(items), PlaceSegment::Index(index)) if *index < items.len() => &mut items[*index],
            _ => return Err(value),
        };
    }
    Err(value)
}

/// The values of an item's keys.
fn key_values(item: &Node<'_>, keys: &[String]) -> Option<Vec<Value>> {
    work();
    keys.iter().map(|key| item.get(key)?.as_scalar()).collect()
}

/// Replaces the indices of list items in a place by the values of their keys, where the path names keys.
pub(super) fn identified(object: &Node<'_>, path: &[Segment], place: &[PlaceSegment]) -> Place {
    let identity = |depth: usize, segment: &Segment, step: &PlaceSegment| -> Option<PlaceSegment> {
        let Segment::Each { each } = segment else { return None };
        let (PlaceSegment::Index(_), false) = (step, each.is_empty()) else { return None };
        Some(PlaceSegment::Item(key_values(get(object, &place[..=depth])?, each)?))
    };
    path.iter()
        .zip(place)
        .enumerate()
        .map(|(depth, (segment, step))| identity(depth, segment, step).unwrap_or_else(|| step.clone()))
        .collect()
}

/// Finds items of lists by the values of their keys, which no rule changes.
#[derive(Default)]
pub(super) struct Finder {
    /// The positions of the items, by the place of the list.
    lists: HashMap<Place, HashMap<Vec<Value>, usize>>,
}

impl Finder {
    /// Replaces the keys of list items in a place by their indices; `None` if an item does not exist any
    /// more.
    pub(super) fn located(
        &mut self,
        object: &Node<'_>,
        path: &[Segment],
        place: &[PlaceSegment],
    ) -> Option<Place> {
        let mut found = Place::new();
        for (segment, step) in path.iter().zip(place) {
            let step = match (segment, step) {
                (Segment::Each { each }, PlaceSegment::Item(values)) => {
                    if !self.lists.contains_key(&found) {
                        let Node::Array(items) = get(object, &found)? else { return None };
                        let mut positions = HashMap::new();
                        for (position, item) in items.iter().enumerate() {
                            if let Some(values) = key_values(item, each) {
                                positions.entry(values).or_insert(position);
                            }
                        }
                        self.lists.insert(found.clone(), positions);
                    }
                    PlaceSegment::Index(*self.lists.get(&found)?.get(values)?)
                }
                (_, step) => step.clone(),
            };
            found.push(step);
        }
        Some(found)
    }
}

/// Whether a place belongs to a path.
pub(super) fn is_of(path: &[Segment], place: &[PlaceSegment]) -> bool {
    path.len() == place.len()
        && path.iter().zip(place).all(|(segment, step)| match (segment, step) {
            (Segment::Key(key), PlaceSegment::Key(own)) => key == own,
            (Segment::Each { each }, PlaceSegment::Item(values)) => each.len() == values.len(),
            (Segment::Each { .. }, PlaceSegment::Key(_) | PlaceSegment::Index(_)) => true,
            (Segment::Key(_), _) => false,
        })
}

/// Counts repeated steps, so that a test can bound the work.
pub(super) fn work() {
    #[cfg(test)]
    super::tests::WORK.with(|count| count.set(count.get() + 1));
}
