//! Converts an object between the hub and one other version.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use operetta_kube_model::schema::{self, Notation};
use serde_json::Value;

use super::kept::Kept;
use super::node::{self, Node};
use super::path::{Path, Place, PlaceSegment, Segment};
use super::places::{self, Finder, work};
use super::rules::{Field, Only};

/// The maximum size of the defaults that are added to an object. Otherwise a long list would multiply a
/// default.
const MAX_DEFAULTS: usize = 16 << 20;

/// A place with the text of its value; `None` means that the place had no value.
type Entry = (Place, Option<Rc<str>>);

/// Converts an object. Each version is given with the fields that only it has, and with its name.
pub(super) fn translate(
    object: &mut Node<'_>,
    kept: &mut Kept,
    from: (&Only, &str),
    to: (&Only, &str),
    moves: &[(Path, Path)],
) {
    object.open(from.0.paths().chain(to.0.paths()).chain(moves.iter().flat_map(|(a, b)| [a, b])));
    let (entries, unknown) = entries_of(kept.take(to.1), to.0, moves);
    // The entries to keep for the version that the object comes from. Existing entries of that version belong
    // to no field and stay.
    let mut saved: Vec<Entry> = Vec::new();

    // Objects that are empty before their fields are removed. They are kept, unlike those that become empty
    // by it.
    let mut bare: HashSet<Place> = HashSet::new();
    for path in &from.0.objects {
        let places = places::places(object, path).into_iter();
        bare.extend(places.filter(|place| places::get(object, place).is_some_and(Node::is_empty_object)));
    }
    let mut moved = Vec::new();
    for (source, target) in moves {
        for place in places::places(object, source) {
            let Some(value) = places::take(object, &place) else { continue };
            // Up to the last list, both paths are the same.
            let shared =
                source.iter().rposition(|s| matches!(s, Segment::Each { .. })).map_or(0, |last| last + 1);
            let new: Place = place[..shared].iter().cloned().chain(keys(&target[shared..])).collect();
            moved.push((source, place, new, value));
        }
    }
    for Field { path, default, .. } in &from.0.fields {
        let default = default.as_ref().map(Default::of);
        let places = match default {
            Some(_) => default_places(object, path, &from.0.objects),
            None => places::places(object, path),
        };
        for place in places {
            let identity = places::identified(object, path, &place);
            match (places::take(object, &place), &default) {
                (None, None) => {}
                (Some(value), Some(default)) if default.is(&value) => {}
                (value, _) => saved.push((identity, value.map(|value| value.to_text()))),
            }
        }
    }
    for path in &from.0.objects {
        for place in places::places(object, path) {
            let identity = places::identified(object, path, &place);
            match places::take(object, &place) {
                Some(value) if bare.contains(&place) || !value.is_empty_object() => {
                    saved.push((identity, Some(value.to_text())));
                }
                _ => {}
            }
        }
    }

    let mut finder = Finder::default();
    let of_path = |path: &Path| entries.get(&path[..]).map(Vec::as_slice).unwrap_or_default();
    // Objects are restored before their content, the highest first.
    for path in to.0.objects.iter().rev() {
        restore(object, &mut finder, path, of_path(path));
    }
    for (source, place, new, value) in moved {
        match places::put(object, &new, value) {
            Ok(Some(depth)) if !to.0.objects.iter().any(|path| places::is_of(path, &new[..depth])) => {
                // The entry marks an object that was created here, so that it is removed when the value moves
                // back.
                saved.push((new[..depth].to_vec(), None));
            }
            Ok(_) => {}
            Err(value) => saved.push((places::identified(object, source, &place), Some(value.to_text()))),
        }
    }
    let mut left = MAX_DEFAULTS;
    for Field { path, default, .. } in &to.0.fields {
        restore(object, &mut finder, path, of_path(path));
        let Some(default) = default.as_ref().map(Default::of) else { continue };
        let known: HashSet<&Place> = of_path(path).iter().map(|(place, _)| place).collect();
        for place in default_places(object, path, &to.0.objects) {
            let is_kept = known.contains(&places::identified(object, path, &place));
            if !is_kept && places::get(object, &place).is_none() && default.text.len() <= left {
                left -= default.text.len();
                let _ = places::put(object, &place, Node::Own(Rc::clone(&default.text)));
            }
        }
    }
    // Removes the objects that were created for values which have now moved back, the deepest first.
    let is_made = |path: &[Segment]| !to.0.paths().any(|known| known[..] == *path);
    let mut made: Vec<_> = entries
        .iter()
        .filter(|(path, _)| is_made(path))
        .flat_map(|(path, entries)| entries.iter().map(|(place, value)| (*path, place, value)))
        .filter(|(_, _, value)| value.is_none())
        .collect();
    made.sort_by_key(|(path, ..)| std::cmp::Reverse(path.len()));
    for (path, place, _) in made {
        if let Some(place) = finder.located(object, path, place)
            && places::get(object, &place).is_some_and(Node::is_empty_object)
        {
            places::take(object, &place);
        }
    }
    kept.add(to.1, unknown);
    kept.add(
        from.1,
        saved.into_iter().map(|(place, value)| {
            let place = serde_json::to_string(&place).unwrap_or_default();
            match value {
                Some(value) => format!("[{place},{value}]"),
                None => format!("[{place}]"),
            }
        }),
    );
}

fn restore(object: &mut Node<'_>, finder: &mut Finder, path: &[Segment], entries: &[Entry]) {
    for (place, value) in entries {
        if let (Some(place), Some(value)) = (finder.located(object, path, place), value) {
            let value =
                if node::is_empty_object(value) { Node::empty_object() } else { Node::Own(Rc::clone(value)) };
            let _ = places::put(object, &place, value);
        }
    }
}

/// The default of a field in an object that comes from the other version.
struct Default<'a> {
    value: &'a Value,
    text: Rc<str>,
}

impl<'a> Default<'a> {
    fn of(value: &'a Value) -> Self {
        Self { value, text: value.to_string().into() }
    }

    /// Whether a value is the default. If that is uncertain, it is not, and the value is kept.
    fn is(&self, value: &Node<'_>) -> bool {
        let text = value.to_text();
        // Go writes a character in at most six bytes. A number with a fraction may differ in its last digit.
        let may_be = || text.len() <= 6 * self.text.len() && !has_fraction(self.value);
        text == self.text || (may_be() && node::value_of(&text) == *self.value)
    }
}

fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(has_fraction),
        Value::Object(map) => map.values().any(has_fraction),
        _ => false,
    }
}

/// The fields of a path; list steps are skipped.
fn keys(path: &[Segment]) -> impl Iterator<Item = PlaceSegment> {
    path.iter().filter_map(|segment| match segment {
        Segment::Key(key) => Some(PlaceSegment::Key(key.clone())),
        Segment::Each { .. } => None,
    })
}

/// The places where a field gets its default: those whose parent exists, or would be created because it is an
/// object that only this version has.
fn default_places(object: &Node<'_>, path: &Path, objects: &[Path]) -> Vec<Place> {
    let mut length = path.len();
    while length > 1 && objects.iter().any(|own| own[..] == path[..length - 1]) {
        length -= 1;
    }
    let mut places = places::places(object, &path[..length]);
    for place in &mut places {
        place.extend(keys(&path[length..]));
    }
    places
}

/// Groups the entries by the path to which they belong. The second part are entries that belong to no path.
fn entries_of<'a>(
    texts: Vec<String>,
    only: &'a Only,
    moves: &'a [(Path, Path)],
) -> (HashMap<&'a [Segment], Vec<Entry>>, Vec<String>) {
    let (mut found, mut unknown) = (HashMap::<_, Vec<Entry>>::new(), Vec::new());
    // The paths of objects that were created for a value which moves back now.
    let created = || moves.iter().flat_map(|(source, _)| (1..source.len()).map(|length| &source[..length]));
    for text in texts {
        let known = match node::items(&text).unwrap_or_default()[..] {
            [place] => place_of(place).and_then(|place| {
                let path =
                    only.paths().map(Vec::as_slice).chain(created()).find(|p| places::is_of(p, &place))?;
                Some((path, (place, None)))
            }),
            // A moved value that did not fit into the object stays in the annotation, because its schema is
            // not known here.
            [place, value] => place_of(place).and_then(|place| {
                let objects = only.objects.iter().filter(|_| node::is_empty_object(value));
                // The place is compared first, because that is cheaper than a validation.
                let fields = only.fields.iter().filter(|field| places::is_of(&field.path, &place));
                let fields = fields.filter(|field| is_valid(&field.schema, value));
                let objects = objects.filter(|path| places::is_of(path, &place));
                let path = objects.chain(fields.map(|field| &field.path)).next()?;
                Some((path.as_slice(), (place, Some(value.into()))))
            }),
            _ => None,
        };
        match known {
            Some((path, entry)) => found.entry(path).or_default().push(entry),
            None => unknown.push(text),
        }
    }
    (found, unknown)
}

fn place_of(text: &str) -> Option<Place> {
    serde_json::from_str(text).ok()
}

fn is_valid(schema: &Value, value: &str) -> bool {
    work();
    let mut value = node::value_of(value);
    // Neither finds anything if nothing is wrong: the server keeps the whole value.
    let is_valid = schema::validate(schema, &value, None, Notation::Quoted).is_empty();
    is_valid && schema::prune(schema, &mut value, false, Notation::Quoted).is_empty()
}
