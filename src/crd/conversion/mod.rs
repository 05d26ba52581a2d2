//! Converts objects between the versions of a CRD by declared rules.
//!
//! One version, the storage version, is the hub: the rules of each other version say how it differs from the hub. A field
//! that only one of two versions has is kept in an annotation while the object is in the other version. So a round trip
//! loses nothing; `compile` proves from the schemas that each field is either in both versions or in a rule.
//!
//! A conversion never fails because of what an object holds: one failing object would make the whole kind unreadable. A
//! value for which there is no room is kept in the annotation as well.

mod compile;
mod path;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use compile::{Problem, Rule, RuleKind, compile};
use path::{Path, Segment, Step};

/// The annotation with the fields that the version of an object does not have: by version, place and value.
const KEPT: &str = "operetta.dev/other-versions";

/// How the objects of one kind are converted. Also the text of the annotation of the CRD by which each replica knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conversion {
    group: String,
    kind: String,
    hub: String,
    /// The versions other than the hub.
    versions: BTreeMap<String, Rules>,
}

/// How one version differs from the hub.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Rules {
    /// From this version to the hub.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    moves: Vec<(Path, Path)>,
    /// Fields that only this version has.
    #[serde(default, skip_serializing_if = "Only::is_empty")]
    own: Only,
    /// Fields that only the hub has.
    #[serde(default, skip_serializing_if = "Only::is_empty")]
    hub: Only,
}

/// The fields that only one of two versions has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Only {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fields: Vec<Field>,
    /// Objects of which every field is in a rule, the deepest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    objects: Vec<Path>,
}

/// A field that only one of two versions has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Field {
    path: Path,
    /// Its value in an object that comes from the other version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<Value>,
    /// Users can edit the annotation, and the API server validates an object only in the version of the request.
    schema: Value,
}

impl Only {
    fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.objects.is_empty()
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.objects.iter().rev().chain(self.fields.iter().map(|field| &field.path))
    }
}

/// A place with its value; without a value nothing was there.
type Entry = (Vec<Step>, Option<Value>);
/// The content of the annotation [`KEPT`]. An entry is `[place, value]`, or `[place]`.
type Kept = BTreeMap<String, Vec<Value>>;

/// Why an object cannot be converted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConvertError {
    /// It is no object of the kind.
    #[error("{path}: must be {expected}")]
    Malformed {
        /// Where.
        path: &'static str,
        /// What it must be.
        expected: String,
    },
    /// There are no rules of that version.
    #[error("apiVersion: the version {0} is not known")]
    UnknownVersion(String),
}

impl Conversion {
    /// The storage version.
    pub fn hub(&self) -> &str {
        &self.hub
    }

    /// Whether it converts from and to that version.
    pub fn knows(&self, version: &str) -> bool {
        version == self.hub || self.versions.contains_key(version)
    }

    /// With the rules of the other one for these versions, if the hub is the same.
    #[must_use]
    pub fn with_versions_of(mut self, other: &Self, versions: &[&str]) -> Option<Self> {
        for version in versions {
            let rules = other.versions.get(*version).filter(|_| other.hub == self.hub)?;
            self.versions.insert((*version).to_owned(), rules.clone());
        }
        Some(self)
    }

    /// Converts an object to another version of its kind.
    ///
    /// # Errors
    /// It is no object of the kind, or a version is not known.
    pub fn convert(&self, mut object: Value, api_version: &str) -> Result<Value, ConvertError> {
        let from =
            self.version_of(object.get("apiVersion").and_then(Value::as_str).unwrap_or_default())?.to_owned();
        let to = self.version_of(api_version)?;
        let malformed =
            |path, expected: &str| ConvertError::Malformed { path, expected: expected.to_owned() };
        if object.get("kind").and_then(Value::as_str) != Some(&self.kind) {
            return Err(malformed("kind", &self.kind));
        }
        if !object.get("metadata").is_some_and(Value::is_object) {
            return Err(malformed("metadata", "an object"));
        }
        if from == to {
            return Ok(object);
        }
        if let Some(rules) = self.versions.get(&from) {
            translate(&mut object, (&rules.own, &from), (&rules.hub, &self.hub), &rules.moves);
        }
        if let Some(rules) = self.versions.get(to) {
            let moves: Vec<_> = rules.moves.iter().map(|(own, hub)| (hub.clone(), own.clone())).collect();
            translate(&mut object, (&rules.hub, &self.hub), (&rules.own, to), &moves);
        }
        object["apiVersion"] = api_version.into();
        Ok(object)
    }

    fn version_of<'a>(&self, api_version: &'a str) -> Result<&'a str, ConvertError> {
        let version = match api_version.split_once('/') {
            Some((group, version)) if group == self.group => version,
            _ => {
                let expected = format!("of the group {}", self.group);
                return Err(ConvertError::Malformed { path: "apiVersion", expected });
            }
        };
        if self.knows(version) { Ok(version) } else { Err(ConvertError::UnknownVersion(version.to_owned())) }
    }
}

/// Converts between two neighbours. Each is given with the fields that only it has, and its name.
fn translate(object: &mut Value, from: (&Only, &str), to: (&Only, &str), moves: &[(Path, Path)]) {
    let mut kept = read_kept(object);
    let (entries, unknown) = entries_of(kept.remove(to.1).unwrap_or_default(), to.0, moves);
    // What is left there of the version that the object is in belongs to no field any more.
    let mut saved: Vec<Entry> = Vec::new();

    // An object that goes with its fields, and that is empty now, is kept as such.
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    let mut bare: Vec<Vec<Step>> = Vec::new();
    for path in &from.0.objects {
        bare.extend(
            path::places(object, path).into_iter().filter(|p| path::get(object, p).is_some_and(is_empty)),
        );
    }
    let mut moved = Vec::new();
    for (source, target) in moves {
        for place in path::places(object, source) {
            let Some(value) = path::take(object, &place) else { continue };
            // The steps up to the last list are the same on both sides.
            let shared =
                source.iter().rposition(|s| matches!(s, Segment::Each { .. })).map_or(0, |last| last + 1);
            let tail = target[shared..].iter().filter_map(|segment| match segment {
                Segment::Key(key) => Some(Step::Key(key.clone())),
                Segment::Each { .. } => None,
            });
            let new: Vec<Step> = place[..shared].iter().cloned().chain(tail).collect();
            moved.push((source, place, new, value));
        }
    }
    for Field { path, default, .. } in &from.0.fields {
        let places = match default {
            Some(_) => default_places(object, path, &from.0.objects),
            None => path::places(object, path),
        };
        for place in places {
            let identity = path::identified(object, path, &place);
            match path::take(object, &place) {
                value if value == *default => {}
                value => saved.push((identity, value)),
            }
        }
    }
    for path in &from.0.objects {
        for place in path::places(object, path) {
            let identity = path::identified(object, path, &place);
            let is_bare = bare.contains(&place);
            match path::take(object, &place) {
                Some(value) if is_bare || !is_empty(&value) => saved.push((identity, Some(value))),
                _ => {}
            }
        }
    }

    // Objects first, the highest first, then what belongs in them.
    let restore = |object: &mut Value, entries: &[(&[Segment], Entry)], path: &[Segment]| {
        for (_, (place, value)) in entries.iter().filter(|(of, _)| *of == path) {
            if let (Some(place), Some(value)) = (path::located(object, path, place), value) {
                let _ = path::put(object, &place, value.clone());
            }
        }
    };
    for path in to.0.objects.iter().rev() {
        restore(object, &entries, path);
    }
    for (source, place, new, value) in moved {
        match path::put(object, &new, value) {
            Ok(Some(depth)) if !to.0.objects.iter().any(|path| path::is_of(path, &new[..depth])) => {
                // Without this the object would stay behind, empty, when the value goes back.
                saved.push((new[..depth].to_vec(), None));
            }
            Ok(_) => {}
            Err(value) => saved.push((path::identified(object, source, &place), Some(value))),
        }
    }
    for Field { path, default, .. } in &to.0.fields {
        restore(object, &entries, path);
        let Some(default) = default else { continue };
        for place in default_places(object, path, &to.0.objects) {
            let identity = path::identified(object, path, &place);
            let is_kept = entries.iter().any(|(of, (known, _))| *of == path && *known == identity);
            if !is_kept && path::get(object, &place).is_none() {
                let _ = path::put(object, &place, default.clone());
            }
        }
    }
    // Objects that were made for values which have moved back.
    for (path, (place, value)) in &entries {
        if value.is_some() || to.0.paths().any(|known| known == path) {
            continue;
        }
        if let Some(place) = path::located(object, path, place)
            && path::get(object, &place).is_some_and(is_empty)
        {
            path::take(object, &place);
        }
    }
    if !unknown.is_empty() {
        kept.insert(to.1.to_owned(), unknown);
    }
    if !saved.is_empty() {
        let text = saved.into_iter().map(|(place, value)| match value {
            Some(value) => serde_json::json!([place, value]),
            None => serde_json::json!([place]),
        });
        kept.entry(from.1.to_owned()).or_default().extend(text);
    }
    write_kept(object, &kept);
}

/// The places where a field gets its default: those whose parent exists, or is an object of this version alone below one
/// that exists.
fn default_places(object: &Value, path: &Path, objects: &[Path]) -> Vec<Vec<Step>> {
    let mut length = path.len();
    while length > 1 && objects.iter().any(|own| own[..] == path[..length - 1]) {
        length -= 1;
    }
    let tail = path[length..].iter().filter_map(|segment| match segment {
        Segment::Key(key) => Some(Step::Key(key.clone())),
        Segment::Each { .. } => None,
    });
    let tail: Vec<Step> = tail.collect();
    path::places(object, &path[..length])
        .into_iter()
        .map(|mut place| {
            place.extend(tail.iter().cloned());
            place
        })
        .collect()
}

/// The entries by the path that they belong to, and those that belong to none.
fn entries_of<'a>(
    texts: Vec<Value>,
    only: &'a Only,
    moves: &'a [(Path, Path)],
) -> (Vec<(&'a [Segment], Entry)>, Vec<Value>) {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    // Where an object was created for a value that moves back now.
    let created = || moves.iter().flat_map(|(source, _)| (1..source.len()).map(|length| &source[..length]));
    for text in texts {
        let parts = text.as_array().map(Vec::as_slice).unwrap_or_default();
        let place: Option<Vec<Step>> =
            parts.first().and_then(|place| serde_json::from_value(place.clone()).ok());
        let known = place.as_ref().and_then(|place| {
            let is_it = |path: &&[Segment]| path::is_of(path, place);
            match parts.get(1) {
                // A moved value that had no room stays in the annotation: its schema is not known here.
                Some(value) => {
                    let is_empty = value.as_object().is_some_and(Map::is_empty);
                    let objects = only.objects.iter().filter(|_| is_empty);
                    let fields = only.fields.iter().filter(|field| is_valid(&field.schema, value));
                    objects.chain(fields.map(|field| &field.path)).map(Vec::as_slice).find(is_it)
                }
                None => only.paths().map(Vec::as_slice).chain(created()).find(is_it),
            }
        });
        match (place, known) {
            (Some(place), Some(path)) if parts.len() < 3 => {
                found.push((path, (place, parts.get(1).cloned())));
            }
            _ => unknown.push(text),
        }
    }
    (found, unknown)
}

fn is_valid(schema: &Value, value: &Value) -> bool {
    super::validate_part(schema, value, "").is_empty()
}

fn read_kept(object: &Value) -> Kept {
    let text = object["metadata"]["annotations"][KEPT].as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_default()
}

fn write_kept(object: &mut Value, kept: &Kept) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if kept.is_empty() {
        let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
        let is_empty = annotations
            .is_some_and(|annotations| annotations.remove(KEPT).is_some() && annotations.is_empty());
        if is_empty {
            metadata.remove("annotations");
        }
        return;
    }
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if !annotations.is_object() {
        *annotations = Value::Object(Map::new());
    }
    annotations[KEPT] = serde_json::to_string(kept).unwrap_or_default().into();
}
