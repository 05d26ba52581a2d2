//! Converts objects between the versions of a CRD by declared rules.
//!
//! One version, the storage version, is the hub: the rules of each other version describe how it differs from
//! the hub. A field that only one of two versions has is kept in an annotation while the object is in the
//! other version. So a round trip loses nothing; `compile` proves from the schemas that each field is either
//! in both versions or in a rule.
//!
//! The conversion of an object that an API server reads never fails because of the object's content: one
//! failing object would make the whole kind unreadable. A moved value that does not fit into the object is
//! kept in the annotation as well, and values that do not fit into the annotations are left out. Only a write
//! that would lose them is refused.

mod compile;
mod kept;
mod node;
mod path;
mod places;
mod rules;
#[cfg(test)]
mod tests;
mod translate;
mod unconverted;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use compile::{Problem, Rule, RuleKind, compile};
pub use kept::leaves_out;
use kept::{Kept, Room};
use node::Node;
pub use node::{entries as json_entries, items as json_items};
use path::Segment;
use rules::Rules;
pub use unconverted::{Unconverted, unconverted};

/// The maximum size of an object. An API server stores at most 1.5 MiB, unless etcd is configured otherwise.
const MAX_BYTES: usize = 8 << 20;

/// The conversion of the objects of one kind. It is also stored as an annotation of the CRD, from which each
/// replica reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversion {
    group: String,
    kind: String,
    hub: String,
    /// The versions other than the hub.
    versions: BTreeMap<String, Rules>,
}

/// The reason why an object cannot be converted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConvertError {
    /// The input is not an object of the kind.
    #[error("{path}: must be {expected}")]
    Malformed {
        /// The path of the malformed field.
        path: &'static str,
        /// The expected value.
        expected: String,
    },
    /// The conversion has no rules for that version.
    #[error("apiVersion: the version {0} is not known")]
    UnknownVersion(String),
    /// The object exceeds the maximum size.
    #[error("larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    /// Values that only the storage version has were left out, so the write would lose them.
    #[error(
        "written in {from}, which cannot hold all values that {hub} has: there is no room for them in the annotations, which \
         take 256 KiB at most. Write the object in {hub}, or make its other annotations smaller"
    )]
    LeftOut {
        /// The version of the object.
        from: String,
        /// The storage version.
        hub: String,
    },
    /// Values that only this version has do not fit into the annotations, so they cannot be stored.
    #[error(
        "the values that {from} has and {hub} has not do not fit in the annotations, which take 256 KiB at most: make them \
         smaller"
    )]
    NoRoom {
        /// The version of the object.
        from: String,
        /// The storage version.
        hub: String,
    },
}

impl Conversion {
    /// The storage version.
    pub fn hub(&self) -> &str {
        &self.hub
    }

    /// Whether it converts objects from and to that version.
    pub fn knows(&self, version: &str) -> bool {
        version == self.hub || self.versions.contains_key(version)
    }

    /// Takes over the rules of another conversion for some versions. `None` if the hubs differ, or if the other
    /// conversion lacks rules for one of the versions.
    #[must_use]
    pub fn with_versions_of(mut self, other: &Self, versions: &[&str]) -> Option<Self> {
        for version in versions {
            let rules = other.versions.get(*version).filter(|_| other.hub == self.hub)?;
            self.versions.insert((*version).to_owned(), rules.clone());
        }
        Some(self)
    }

    /// Converts an object (JSON text) to another version of its kind. `stored` lists the versions in which
    /// objects may be stored: the conversion of an object from one of them may be part of a read, which must
    /// succeed.
    ///
    /// # Errors
    /// It is not an object of the kind, a version is not known, or it is a write that would lose values.
    pub fn convert(
        &self,
        object: &str,
        api_version: &str,
        stored: &[String],
    ) -> Result<String, ConvertError> {
        let malformed =
            |path, expected: &str| ConvertError::Malformed { path, expected: expected.to_owned() };
        if object.len() > MAX_BYTES {
            return Err(ConvertError::TooLarge);
        }
        let mut node = Node::Part(object.trim_ascii());
        let key = |name: &str| Segment::Key(name.to_owned());
        node.open([&vec![key("metadata"), key("annotations"), Segment::Each { each: Vec::new() }]]);
        let of = node.get("apiVersion").and_then(Node::as_string).unwrap_or_default();
        let from = self.version_of(&of)?;
        let to = self.version_of(api_version)?;
        if node.get("kind").and_then(Node::as_string).as_ref() != Some(&self.kind) {
            return Err(malformed("kind", &self.kind));
        }
        if !node.get("metadata").is_some_and(Node::is_object) {
            return Err(malformed("metadata", "an object"));
        }
        if from == to {
            return Ok(object.to_owned());
        }
        if let Some(rules) = self.versions.get(from) {
            let is_write = !stored.iter().any(|version| version == from);
            self.to_hub(&mut node, from, rules, is_write)?;
        }
        if let Some(rules) = self.versions.get(to) {
            self.hub_to(&mut node, to, rules);
        }
        node.insert("apiVersion", Node::string(api_version));
        let mut text = String::new();
        node.write(&mut text);
        Ok(text)
    }

    fn to_hub(
        &self,
        object: &mut Node<'_>,
        from: &str,
        rules: &Rules,
        is_write: bool,
    ) -> Result<(), ConvertError> {
        let (from, hub) = (from.to_owned(), self.hub.clone());
        let mut kept = Kept::read(object);
        let room = Room::of(object);
        // If not even the replacement texts fit, it is unknown whether values were left out.
        let may_lack = kept.is_none() && !rules.hub.is_empty() && !room.fits(&self.all_left_out());
        let kept = kept.get_or_insert_default();
        if is_write && (may_lack || kept.leaves_out()) {
            return Err(ConvertError::LeftOut { from, hub });
        }
        kept.forget_left_out();
        translate::translate(object, kept, (&rules.own, &from), (&rules.hub, &hub), &rules.moves);
        if !room.fits(kept) {
            if is_write {
                return Err(ConvertError::NoRoom { from, hub });
            }
            room.leave_out(kept);
        }
        kept.write(object);
        Ok(())
    }

    fn hub_to(&self, object: &mut Node<'_>, to: &str, rules: &Rules) {
        let mut kept = Kept::read(object).unwrap_or_default();
        // An object in the hub lacks no values. If the annotation says so, a user has written it.
        kept.forget_left_out();
        let room = Room::of(object);
        let moves: Vec<_> = rules.moves.iter().map(|(own, hub)| (hub.clone(), own.clone())).collect();
        let sides = ((&rules.hub, self.hub.as_str()), (&rules.own, to));
        translate::translate(object, &mut kept, sides.0, sides.1, &moves);
        room.leave_out(&mut kept);
        kept.write(object);
    }

    /// The annotation in which the entries of all versions are left out.
    fn all_left_out(&self) -> Kept {
        Kept::all_left_out(self.versions.keys().chain([&self.hub]))
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
