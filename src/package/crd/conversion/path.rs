//! Paths in schemas, and places in objects. A path has a place for every item of a list or every value of a
//! map.

use operetta_kube_model::schema::join;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One step of a path in a schema.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Segment {
    /// A field.
    Key(String),
    /// Every item of a list, or every value of a map. Items are identified by these keys, or by their index
    /// if there are none.
    Each {
        /// The keys of the list.
        each: Vec<String>,
    },
}

/// A path in a schema.
pub(super) type Path = Vec<Segment>;

/// One step of a path in an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum PlaceSegment {
    /// A field, or a key of a map.
    Key(String),
    /// The item of a list at an index.
    Index(usize),
    /// The item of a list whose keys have these values.
    Item(Vec<Value>),
}

/// Writes the path in the notation of `operator.yaml`.
pub(super) fn show(path: &[Segment]) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Key(key) => text = join(&text, key),
            Segment::Each { .. } => text.push_str("[*]"),
        }
    }
    text
}

/// A place in an object.
pub(super) type Place = Vec<PlaceSegment>;
