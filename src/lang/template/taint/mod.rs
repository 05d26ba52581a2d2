//! Which parts of a value may be secret, and why. [`dataflow`](super::dataflow) finds it without evaluating a template.
//! See `docs/design/0015-secret-data.md`.

pub(super) mod filters;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Lets;
use super::reads::{Reads, Segment};
use crate::diag::{Location, Source, Span};

/// The maximum depth of a tree. Below it, a taint applies to the whole value.
pub(super) const MAX_DEPTH: usize = 12;

/// The source that is named for a generated value.
pub(super) const GENERATED: &str = "a generated value";

/// How much of a secret a value reveals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// The value is secret; its existence and emptiness are not.
    Held,
    /// The value is computed from a secret; its existence may reveal something as well. A digest protects it.
    Derived,
    /// A few bits of a secret, such as a comparison or a length. A digest does not protect it.
    Bits,
}

/// Why a value is secret.
#[derive(Debug, Clone)]
pub struct Taint {
    pub(super) level: Level,
    /// The path that is read, as the author wrote it: `refs.tls.data`.
    pub source: Arc<str>,
}

impl Taint {
    /// The taint of data that is read as `source`.
    pub fn held(source: impl Into<Arc<str>>) -> Self {
        Self { level: Level::Held, source: source.into() }
    }

    /// Whether it is generated, as by `password`.
    pub fn is_generated(&self) -> bool {
        *self.source == *GENERATED
    }

    pub(super) fn at_least(&self, level: Level) -> Self {
        Self { level: self.level.max(level), source: Arc::clone(&self.source) }
    }

    pub(super) fn higher(left: Option<Self>, right: Option<Self>) -> Option<Self> {
        match (left, right) {
            (Some(left), Some(right)) => Some(if right.level > left.level { right } else { left }),
            (left, right) => left.or(right),
        }
    }
}

/// The known type of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Shape {
    #[default]
    Any,
    Map,
    List,
    /// The result of `namespace()`. Its fields may be set wherever it is visible.
    Namespace,
}

/// Which parts of a value may be secret.
#[derive(Debug, Clone, Default)]
pub struct TaintTree {
    /// The taint of the whole value, keys included.
    pub(super) own: Option<Taint>,
    pub(super) fields: BTreeMap<Arc<str>, TaintTree>,
    /// The taint of all fields or items that are not in `fields`.
    pub(super) rest: Option<Arc<TaintTree>>,
    pub(super) shape: Shape,
}

impl TaintTree {
    /// Creates the tree of a value that is secret as a whole.
    pub fn tainted(taint: Taint) -> Self {
        Self { own: Some(taint), ..Self::default() }
    }

    /// Creates the tree of a map with these fields; other fields are not secret.
    pub fn map(fields: impl IntoIterator<Item = (String, Self)>) -> Self {
        let fields = fields.into_iter().map(|(name, tree)| (name.into(), tree)).collect();
        Self { fields, shape: Shape::Map, ..Self::default() }
    }

    /// Creates the tree of a map whose values all have this taint. Its keys are not secret.
    pub fn map_of(each: Self) -> Self {
        Self { rest: Some(Arc::new(each)), shape: Shape::Map, ..Self::default() }
    }

    /// Creates the tree of a list whose items all have this taint.
    pub fn list_of(each: Self) -> Self {
        Self { rest: Some(Arc::new(each)), shape: Shape::List, ..Self::default() }
    }

    /// The tree of the same map, in which all other fields have this taint.
    #[must_use]
    pub fn others(self, each: Self) -> Self {
        Self { rest: Some(Arc::new(each)), ..self }
    }

    /// Creates a tree with `tree` below a path.
    pub fn below(path: &[&str], tree: Self) -> Self {
        path.iter().rev().fold(tree, |tree, name| Self::map([((*name).to_owned(), tree)]))
    }

    /// The taint of its keys and of the number of its items.
    pub fn structure(&self) -> Option<&Taint> {
        self.own.as_ref()
    }

    pub(super) fn of(taint: Option<Taint>) -> Self {
        Self { own: taint, ..Self::default() }
    }

    /// The strongest taint of all parts.
    pub fn any(&self) -> Option<Taint> {
        let parts = self.fields.values().chain(self.rest.as_deref());
        parts.fold(self.own.clone(), |found, part| Taint::higher(found, part.any()))
    }

    /// The tainted parts with their paths. A part that is tainted as a whole is not split further.
    pub fn parts(&self) -> Vec<(Vec<String>, Taint)> {
        let mut found = Vec::new();
        self.collect(&mut Vec::new(), &mut found);
        found
    }

    fn collect(&self, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, Taint)>) {
        if let Some(taint) = &self.own {
            found.push((path.clone(), taint.clone()));
            return;
        }
        let rest = self.rest.as_deref().map(|rest| ("*", rest));
        for (name, part) in self.fields.iter().map(|(name, part)| (&**name, part)).chain(rest) {
            path.push(name.to_owned());
            part.collect(path, found);
            path.pop();
        }
    }

    /// Whether it is a map whose keys are not secret.
    pub(super) fn is_open_map(&self) -> bool {
        self.shape == Shape::Map && self.own.is_none()
    }

    /// The taint of the truthiness of the value.
    pub fn truth(&self) -> Option<Taint> {
        self.own.as_ref().filter(|own| own.level > Level::Held).map(|own| own.at_least(Level::Bits))
    }

    /// The tree of a field or item. With `None`, of any field or item.
    pub(super) fn get(&self, key: Option<&str>) -> Self {
        let found = match key {
            Some(key) => self.fields.get(key).or(self.rest.as_deref()).cloned().unwrap_or_default(),
            None => self
                .fields
                .values()
                .chain(self.rest.as_deref())
                .cloned()
                .reduce(Self::join)
                .unwrap_or_default(),
        };
        // The result may be a character, if the value is a secret string.
        let own = self.own.clone().map(|own| match key {
            Some(key) if key.parse::<i64>().is_err() => own,
            _ => own.at_least(Level::Derived),
        });
        found.with(own)
    }

    /// The tree of the elements that a loop yields: the keys of a map, the items of a list.
    #[must_use]
    pub fn elements(&self) -> Self {
        match self.shape {
            Shape::Map | Shape::Namespace => Self::of(self.own.clone()),
            Shape::Any | Shape::List => self.get(None),
        }
    }

    /// The tree of a value that is one of the two.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        let mut fields = BTreeMap::new();
        for name in self.fields.keys().chain(other.fields.keys()) {
            if !fields.contains_key(name) {
                let side = |tree: &Self| tree.fields.get(name).or(tree.rest.as_deref()).cloned();
                let field = match (side(&self), side(&other)) {
                    (Some(left), Some(right)) => left.join(right),
                    // The side without such a field gives undefined, which reveals nothing.
                    (left, right) => left.or(right).unwrap_or_default(),
                };
                fields.insert(Arc::clone(name), field);
            }
        }
        let rest = match (self.rest, other.rest) {
            (Some(left), Some(right)) => {
                Some(Arc::new(Arc::unwrap_or_clone(left).join(Arc::unwrap_or_clone(right))))
            }
            (left, right) => left.or(right),
        };
        let shape = if self.shape == other.shape { self.shape } else { Shape::Any };
        Self { own: Taint::higher(self.own, other.own), fields, rest, shape }
    }

    /// The same tree with an additional taint of the whole value.
    pub(super) fn with(mut self, taint: Option<Taint>) -> Self {
        self.own = Taint::higher(self.own, taint);
        self
    }

    /// The tree of a new value that is computed from all parts of this one.
    pub(super) fn computed(&self, level: Level) -> Self {
        Self::of(self.any().map(|taint| taint.at_least(level)))
    }

    /// The same tree, collapsed below a depth.
    pub(super) fn limited(self, depth: usize) -> Self {
        if depth == 0 {
            return Self::of(self.any());
        }
        let fields = self.fields.into_iter().map(|(name, field)| (name, field.limited(depth - 1))).collect();
        let rest = self.rest.map(|rest| Arc::new(Arc::unwrap_or_clone(rest).limited(depth - 1)));
        Self { fields, rest, ..self }
    }

    /// Whether `other` taints nothing that this tree does not taint.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let level = |taint: &Option<Taint>| taint.as_ref().map(|taint| taint.level);
        level(&self.own) >= level(&other.own)
            && other.fields.iter().all(|(name, field)| {
                let known = self.fields.get(name).or(self.rest.as_deref());
                known.map_or_else(|| field.any().is_none(), |known| known.covers(field))
            })
            && other.rest.as_deref().is_none_or(|rest| {
                self.rest.as_deref().map_or_else(|| rest.any().is_none(), |known| known.covers(rest))
            })
    }
}

/// The position of a value in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The keys from the root, including its own if it is a key; `*` for an item of a list. Unknown keys are missing.
    pub path: Vec<String>,
    /// Whether it is, or may be, part of a key.
    pub key: bool,
}

/// A value in a document that may be secret.
#[derive(Debug, Clone)]
pub struct Inserted {
    /// Its position in the document.
    pub path: Vec<String>,
    /// Whether it is, or may be, part of a key.
    pub key: bool,
    /// Why it may be secret.
    pub taint: Taint,
    /// The expression that inserts it, or the condition that decides what is written.
    pub location: Location,
}

/// Finds the positions in the document to which a range of a template's text belongs.
pub(super) type Positions<'a> = &'a dyn Fn(&Source, Span) -> Vec<Position>;

/// The variables that an expression sees.
pub struct TaintScope<'a> {
    /// The variables that contain secret data, at least in part. All others contain none.
    pub roots: BTreeMap<String, TaintTree>,
    /// The `let`s.
    pub lets: &'a Lets,
    /// Finds the positions of values in documents.
    pub positions: Positions<'a>,
}

impl TaintScope<'_> {
    /// The first secret that is read, also through `let`s. Without one, nothing is tainted.
    pub(super) fn reached(&self, reads: &Reads) -> Option<Taint> {
        let mut open = vec![reads];
        let mut seen = BTreeSet::new();
        while let Some(reads) = open.pop() {
            if !reads.generates.is_empty() {
                return Some(Taint::held(GENERATED));
            }
            for path in &reads.paths {
                if path.root == "let" {
                    for (name, text) in self.lets.iter() {
                        let meant = match path.segments.first() {
                            Some(Segment::Key(key)) => key == name,
                            _ => true,
                        };
                        if meant && seen.insert(name.to_owned()) {
                            open.push(text.reads());
                        }
                    }
                } else if let Some(taint) = self.roots.get(&path.root).and_then(TaintTree::any) {
                    return Some(taint);
                }
            }
        }
        None
    }
}
