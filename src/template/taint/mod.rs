//! Which values of a template may come from a Secret, found without evaluating it.
//!
//! An abstract evaluation: each expression gives a [`TaintTree`] in place of a value. It follows `let`, `set`, loops,
//! macros, partials, filters, dict and list construction, and what a condition on secret data decides. Where it cannot
//! tell, it takes the value for tainted. See `docs/design/0015-secret-data.md`.

mod filters;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::code::{Stmt, Unit};
use super::reads::{Reads, Segment};
use super::text::TextUnit;
use super::value::Name;
use super::{Engine, Expr, Lets, Template, Text};
use crate::diag::{Location, Source, Span};

use walk::Walk;

/// Trees deeper than this are collapsed: what lies below counts as all of it.
const MAX_DEPTH: usize = 12;

/// How much of a secret a value may tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// The value is secret; whether it is there, and whether it is empty, is not.
    Held,
    /// It was computed from a secret; whether it is there may tell something as well. A digest hides it.
    Derived,
    /// A few bits of a secret, such as a comparison or a length. A digest would not hide it.
    Bits,
}

/// Why a value is secret.
#[derive(Debug, Clone)]
pub struct Taint {
    level: Level,
    /// What is read, as a person writes it: `refs.tls.data`.
    pub source: Arc<str>,
}

impl Taint {
    /// Data of what is read as `source`.
    pub fn held(source: impl Into<Arc<str>>) -> Self {
        Self { level: Level::Held, source: source.into() }
    }

    /// Whether it is made once, by `password` or `tls_self_signed`.
    pub fn is_generated(&self) -> bool {
        *self.source == *walk::GENERATED
    }

    fn at_least(&self, level: Level) -> Self {
        Self { level: self.level.max(level), source: Arc::clone(&self.source) }
    }

    fn higher(left: Option<Self>, right: Option<Self>) -> Option<Self> {
        match (left, right) {
            (Some(left), Some(right)) => Some(if right.level > left.level { right } else { left }),
            (left, right) => left.or(right),
        }
    }
}

/// What a value is known to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Shape {
    #[default]
    Any,
    Map,
    List,
    /// What `namespace()` gives: its fields may be set wherever it is known.
    Namespace,
}

/// Which parts of a value may be secret.
#[derive(Debug, Clone, Default)]
pub struct TaintTree {
    /// The whole of it, keys included.
    own: Option<Taint>,
    fields: BTreeMap<Arc<str>, TaintTree>,
    /// All fields or items that `fields` does not name.
    rest: Option<Arc<TaintTree>>,
    shape: Shape,
}

impl TaintTree {
    /// A value that is secret as a whole.
    pub fn tainted(taint: Taint) -> Self {
        Self { own: Some(taint), ..Self::default() }
    }

    /// A map with those fields, others being no secret.
    pub fn map(fields: impl IntoIterator<Item = (String, Self)>) -> Self {
        let fields = fields.into_iter().map(|(name, tree)| (name.into(), tree)).collect();
        Self { fields, shape: Shape::Map, ..Self::default() }
    }

    /// A map whose values are all like this. Its keys are no secret.
    pub fn map_of(each: Self) -> Self {
        Self { rest: Some(Arc::new(each)), shape: Shape::Map, ..Self::default() }
    }

    /// A list whose items are all like this.
    pub fn list_of(each: Self) -> Self {
        Self { rest: Some(Arc::new(each)), shape: Shape::List, ..Self::default() }
    }

    /// The same map, with all fields that it does not name like this.
    #[must_use]
    pub fn others(self, each: Self) -> Self {
        Self { rest: Some(Arc::new(each)), ..self }
    }

    /// Puts a tree below a path.
    pub fn below(path: &[&str], tree: Self) -> Self {
        path.iter().rev().fold(tree, |tree, name| Self::map([((*name).to_owned(), tree)]))
    }

    /// What the number of its items, or its keys, tell.
    pub fn structure(&self) -> Option<&Taint> {
        self.own.as_ref()
    }

    fn of(taint: Option<Taint>) -> Self {
        Self { own: taint, ..Self::default() }
    }

    /// The strongest taint of any part.
    pub fn any(&self) -> Option<Taint> {
        let parts = self.fields.values().chain(self.rest.as_deref());
        parts.fold(self.own.clone(), |found, part| Taint::higher(found, part.any()))
    }

    /// The tainted parts with their paths: of a part that is tainted as a whole no more than itself.
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

    /// What the truth of the value tells.
    pub fn truth(&self) -> Option<Taint> {
        self.own.as_ref().filter(|own| own.level > Level::Held).map(|own| own.at_least(Level::Bits))
    }

    /// The value of a field or item; `None`: of any of them.
    fn get(&self, key: Option<&str>) -> Self {
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
        // A character of a text, or an item of a list that came as text.
        let own = self.own.clone().map(|own| match key {
            Some(key) if key.parse::<i64>().is_err() => own,
            _ => own.at_least(Level::Derived),
        });
        found.with(own)
    }

    /// What a loop over it goes through: the keys of a map, the items of a list.
    pub fn elements(&self) -> Self {
        match self.shape {
            Shape::Map | Shape::Namespace => Self::of(self.own.clone()),
            Shape::Any | Shape::List => self.get(None),
        }
    }

    /// One of both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        let mut fields = BTreeMap::new();
        for name in self.fields.keys().chain(other.fields.keys()) {
            if !fields.contains_key(name) {
                let side = |tree: &Self| tree.fields.get(name).or(tree.rest.as_deref()).cloned();
                let field = match (side(&self), side(&other)) {
                    (Some(left), Some(right)) => left.join(right),
                    // Where the other has none, it is undefined.
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

    /// The same, the whole of it tainted as well.
    fn with(mut self, taint: Option<Taint>) -> Self {
        self.own = Taint::higher(self.own, taint);
        self
    }

    /// A new value that is computed from all of it.
    fn computed(&self, level: Level) -> Self {
        Self::of(self.any().map(|taint| taint.at_least(level)))
    }

    /// No deeper than that.
    fn limited(self, depth: usize) -> Self {
        if depth == 0 {
            return Self::of(self.any());
        }
        let fields = self.fields.into_iter().map(|(name, field)| (name, field.limited(depth - 1))).collect();
        let rest = self.rest.map(|rest| Arc::new(Arc::unwrap_or_clone(rest).limited(depth - 1)));
        Self { fields, rest, ..self }
    }

    /// Whether the other one says no more than this.
    fn covers(&self, other: &Self) -> bool {
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

/// Where in a document a template puts a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The keys from the root, its own where it is one; `*` for an item of a list, none that could not be told.
    pub path: Vec<String>,
    /// Whether it is, or may be, part of a key.
    pub key: bool,
}

/// A value that may be secret, in a document.
#[derive(Debug, Clone)]
pub struct Inserted {
    /// Its place in the document.
    pub path: Vec<String>,
    /// Whether it is, or may be, part of a key.
    pub key: bool,
    /// What it is.
    pub taint: Taint,
    /// The expression that inserts it, or the condition that decides what is written.
    pub location: Location,
}

/// Says where a range of a template's text stands in its document.
pub(super) type Positions<'a> = &'a dyn Fn(&Source, Span) -> Vec<Position>;

/// What is known of the variables that an expression sees.
pub struct TaintScope<'a> {
    /// Variables that hold secret data, in part at least. All others hold none.
    pub roots: BTreeMap<String, TaintTree>,
    /// `let.x`.
    pub lets: &'a Lets,
    /// Where templates put their values.
    pub positions: Positions<'a>,
}

impl TaintScope<'_> {
    /// The first secret that is read, `let`s followed. If there is none, nothing that reads so is tainted.
    fn reached(&self, reads: &Reads) -> Option<Taint> {
        let mut open = vec![reads];
        let mut seen = BTreeSet::new();
        while let Some(reads) = open.pop() {
            if !reads.generates.is_empty() {
                return Some(Taint::held(walk::GENERATED));
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

impl Engine {
    /// What the value of an expression may tell.
    pub fn taint_of(&self, expr: &Expr, scope: &TaintScope<'_>) -> TaintTree {
        let unit = &expr.0.unit;
        let Some(secret) = scope.reached(&unit.reads) else { return TaintTree::default() };
        let mut walk = Walk::new(self, scope, unit, secret);
        let tree = walk.eval(&expr.0.node);
        walk.finished(tree)
    }

    /// What the value of a string of `operator.yaml` may tell.
    pub fn taint_of_text(&self, text: &Text, scope: &TaintScope<'_>) -> TaintTree {
        let TextUnit::Template(unit) = &*text.0 else { return TaintTree::default() };
        let Some(secret) = scope.reached(&unit.reads) else { return TaintTree::default() };
        let mut walk = Walk::new(self, scope, unit, secret);
        let tree = walk.text(unit);
        walk.finished(tree)
    }

    /// What a template puts into its document that may be secret.
    pub fn taint_of_template(&self, template: &Template, scope: &TaintScope<'_>) -> Vec<Inserted> {
        let unit = &template.unit;
        let Some(secret) = scope.reached(&unit.reads) else { return Vec::new() };
        let mut walk = Walk::new(self, scope, unit, secret);
        walk.document(unit)
    }
}

/// The expression of a text that is one expression alone.
fn lone(unit: &Unit) -> Option<&super::code::Node> {
    match unit.body.as_slice() {
        [Stmt::Emit(node)] => Some(node),
        _ => None,
    }
}

type Locals = Vec<(Name, TaintTree)>;
