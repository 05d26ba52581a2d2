//! Refs: objects that an instance reads and does not own.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;

use super::ForEach;
use super::compile::Compiler;
use super::decode::At;
use super::graph;
use super::manifest::{self, TemplateText};
use super::outline::lone_expression;
use crate::diag::Location;
use crate::template::{Engine, EvalError, Expr, Reads, Scope, Segment, Text};

/// An object, or several that a selector names.
#[derive(Debug)]
pub struct Ref {
    /// Its name: `refs.<id>`.
    pub id: String,
    /// The apiVersion of its objects.
    pub api_version: Arc<str>,
    /// The kind of its objects.
    pub kind: Arc<str>,
    /// Which objects.
    pub target: Target,
    /// One for each item of a list: it is a map by key.
    pub for_each: Option<ForEach>,
    /// It is read only while it holds.
    pub when: Option<Expr>,
    /// Whether what is absent is undefined; else it is unknown.
    pub optional: bool,
    /// What any expression reads of an object: sorted paths, none within another, cut where they are
    /// computed. No path at all: nothing; an empty path: all of it.
    pub reads: Arc<[Vec<String>]>,
    /// Whether an expression asks for its state, such as `is ready`.
    pub asks_state: bool,
    /// Where its id stands in `operator.yaml`.
    pub location: Location,
}

/// Which objects a ref is about.
#[derive(Debug)]
pub enum Target {
    /// The one of that name.
    Name(Text, Place),
    /// All whose labels fit.
    Select(Tree, Places),
}

/// A namespace. An instance's spec must not choose it, else whoever may create an instance reads
/// everywhere with the package's rights.
#[derive(Debug)]
pub enum Place {
    /// The instance's own.
    Own,
    /// The manager's.
    Operator,
    /// A literal.
    Literal(String),
    /// Computed, for cluster-scoped instances: they may choose.
    Computed(Text),
}

/// Some namespaces.
#[derive(Debug)]
pub enum Places {
    /// Every one.
    All,
    /// These.
    List(Vec<Place>),
}

/// A value whose strings are templates.
#[derive(Debug)]
pub enum Tree {
    /// A template, or a constant.
    Text(Text),
    /// A list.
    List(Vec<Tree>),
    /// A map.
    Map(Vec<(String, Tree)>),
}

impl Tree {
    /// Its value; what is omitted is left out.
    ///
    /// # Errors
    /// One of its templates has no value.
    pub fn eval(&self, engine: &Engine, scope: &Scope) -> Result<Option<Value>, EvalError> {
        Ok(Some(match self {
            Self::Text(text) => return engine.eval_text(text, scope),
            Self::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    list.extend(item.eval(engine, scope)?);
                }
                Value::Array(list)
            }
            Self::Map(entries) => {
                let mut map = serde_json::Map::new();
                for (key, value) in entries {
                    if let Some(value) = value.eval(engine, scope)? {
                        map.insert(key.clone(), value);
                    }
                }
                Value::Object(map)
            }
        }))
    }

    fn texts<'a>(&'a self, out: &mut Vec<&'a Text>) {
        match self {
            Self::Text(text) => out.push(text),
            Self::List(items) => items.iter().for_each(|item| item.texts(out)),
            Self::Map(entries) => entries.iter().for_each(|(_, value)| value.texts(out)),
        }
    }
}

impl Ref {
    /// All that it reads itself, `let`s not followed.
    pub(super) fn own_reads(&self) -> Vec<&Reads> {
        self.list_reads().into_iter().chain(self.item_reads()).collect()
    }

    /// What its list reads.
    pub(super) fn list_reads(&self) -> Option<&Reads> {
        self.for_each.as_ref().map(|for_each| for_each.in_.reads())
    }

    /// What is read for each item; without a list for the one object.
    pub(super) fn item_reads(&self) -> Vec<&Reads> {
        let key = self.for_each.as_ref().and_then(|for_each| for_each.key.as_ref());
        key.into_iter().chain(&self.when).map(Expr::reads).chain(self.target_reads()).collect()
    }

    /// What says which objects they are.
    pub(super) fn target_reads(&self) -> Vec<&Reads> {
        self.target_texts().into_iter().map(Text::reads).collect()
    }

    /// The texts that say which objects they are.
    pub(super) fn target_texts(&self) -> Vec<&Text> {
        let mut texts = Vec::new();
        match &self.target {
            Target::Name(name, place) => {
                texts.push(name);
                texts.extend(place.text());
            }
            Target::Select(selector, places) => {
                selector.texts(&mut texts);
                if let Places::List(places) = places {
                    texts.extend(places.iter().filter_map(Place::text));
                }
            }
        }
        texts
    }

    /// The steps of a path that lead to one of its objects: a key, a place in a list.
    pub(super) fn steps(&self) -> usize {
        usize::from(self.for_each.is_some()) + usize::from(self.is_list())
    }

    /// Whether it is a list.
    pub fn is_list(&self) -> bool {
        matches!(self.target, Target::Select(..))
    }
}

impl Place {
    fn text(&self) -> Option<&Text> {
        match self {
            Self::Computed(text) => Some(text),
            Self::Own | Self::Operator | Self::Literal(_) => None,
        }
    }
}

impl Compiler<'_> {
    /// Compiles the refs of a resource.
    pub(super) fn refs(&mut self, manifests: &[manifest::Ref], namespaced: bool) -> Vec<Ref> {
        let mut found: Vec<Ref> = Vec::with_capacity(manifests.len());
        for manifest in manifests {
            let id = &manifest.id;
            if found.iter().any(|other| other.id == id.value.0) {
                let error = id.error("package::duplicate", format!("two refs have the id `{}`", id.value.0));
                self.diagnostics.push(error.help("rename one of them"));
            }
            if let Some(reference) = self.reference(manifest, namespaced) {
                found.push(reference);
            } else {
                // What reads it must not be told that there is none.
                self.complete = false;
                self.readable = false;
            }
        }
        found
    }

    fn reference(&mut self, manifest: &manifest::Ref, namespaced: bool) -> Option<Ref> {
        let id = &manifest.id;
        let when = self.optional(manifest.when.as_ref());
        let for_each = match &manifest.for_each {
            Some(for_each) => Some(self.for_each(for_each)?),
            None => None,
        };
        let target = match (&manifest.name, &manifest.selector) {
            (Some(name), None) => {
                if let Some(places) = &manifest.namespaces {
                    let error = places.error("package::value", "`namespaces` is for a selector");
                    self.diagnostics.push(error.help("write namespace: x"));
                    return None;
                }
                let place = match &manifest.namespace {
                    Some(namespace) => self.place(namespace, namespaced)?,
                    None => Place::Own,
                };
                Target::Name(self.text(&name.0)?, place)
            }
            (None, Some(selector)) => {
                let places = self.places(manifest, namespaced)?;
                Target::Select(self.tree(selector)?, places)
            }
            (Some(name), Some(_)) => {
                let error = name.0.error("package::value", "a ref has a name or a selector, not both");
                self.diagnostics.push(error.help("remove one of them"));
                return None;
            }
            (None, None) => {
                let message = format!("the ref `{}` says neither `name` nor `selector`", id.value.0);
                let error = id.error("package::missing", message);
                self.diagnostics.push(error.help("say which object: name: \"{{ spec.x }}\""));
                return None;
            }
        };
        if manifest.optional.is_some() && matches!(target, Target::Select(..)) {
            let error = id.error("package::value", "`optional` is for a ref by name");
            self.diagnostics.push(error.help("remove it: a selector that nothing fits is an empty list"));
        }
        Some(Ref {
            id: id.value.0.clone(),
            api_version: manifest.api_version.value.0.as_str().into(),
            kind: manifest.kind.value.0.as_str().into(),
            target,
            for_each,
            when,
            optional: manifest.optional.unwrap_or_default(),
            reads: Arc::from([]),
            asks_state: false,
            location: id.at.clone(),
        })
    }

    fn places(&mut self, manifest: &manifest::Ref, namespaced: bool) -> Option<Places> {
        match (&manifest.namespace, manifest.namespaces.as_ref()) {
            (Some(namespace), Some(_)) => {
                let error =
                    namespace.0.error("package::value", "`namespace` and `namespaces` stand here both");
                self.diagnostics.push(error.help("remove one of them"));
                None
            }
            (Some(namespace), None) => Some(Places::List(vec![self.place(namespace, namespaced)?])),
            (None, Some(At { value: manifest::Namespaces::All, .. })) => Some(Places::All),
            (None, Some(At { value: manifest::Namespaces::List(list), .. })) => {
                let places = list.iter().map(|namespace| self.place(namespace, namespaced));
                places.collect::<Option<Vec<_>>>().map(Places::List)
            }
            (None, None) => Some(Places::List(vec![Place::Own])),
        }
    }

    /// A namespace: of namespaced instances a literal or `operator.namespace` alone.
    fn place(&mut self, TemplateText(source): &TemplateText, namespaced: bool) -> Option<Place> {
        if !source.value.contains("{{") && !source.value.contains("{%") {
            return Some(Place::Literal(source.value.clone()));
        }
        match lone_expression(&source.value) {
            Some("operator.namespace") => return Some(Place::Operator),
            Some("namespace" | "instance.metadata.namespace") if namespaced => return Some(Place::Own),
            _ => {}
        }
        if namespaced {
            let error = source.error("package::namespace", "a ref's namespace must not be computed");
            self.diagnostics.push(error.help(
                "leave it out (the instance's own), or write a literal or {{ operator.namespace }}: \
                 else whoever may create an instance could read in any namespace",
            ));
            return None;
        }
        self.text(source).map(Place::Computed)
    }

    fn tree(&mut self, tree: &manifest::Tree) -> Option<Tree> {
        Some(match tree {
            manifest::Tree::Text(source) => Tree::Text(self.text(source)?),
            manifest::Tree::List(items) => {
                Tree::List(items.iter().map(|item| self.tree(item)).collect::<Option<_>>()?)
            }
            manifest::Tree::Map(entries) => {
                let mut found = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    found.push((key.clone(), self.tree(value)?));
                }
                Tree::Map(found)
            }
            manifest::Tree::Constant(value) => Tree::Text(Text::literal(value.clone())),
        })
    }

    /// Puts refs that others read first. Refs make no edges between children, but one cannot be found
    /// by way of itself.
    pub(super) fn ordered_refs(&mut self, refs: Vec<Ref>, lets: &crate::template::Lets) -> Vec<Ref> {
        let index: HashMap<&str, usize> =
            refs.iter().enumerate().map(|(place, reference)| (reference.id.as_str(), place)).collect();
        let edges: Vec<BTreeSet<usize>> = refs
            .iter()
            .map(|reference| {
                graph::follow(reference.own_reads(), lets)
                    .into_iter()
                    .filter(|path| path.root == "refs")
                    .filter_map(|path| match path.segments.first() {
                        Some(Segment::Key(id)) => index.get(id.as_str()).copied(),
                        _ => None,
                    })
                    .collect()
            })
            .collect();
        match graph::order(&edges) {
            Ok(order) => {
                let mut refs: Vec<Option<Ref>> = refs.into_iter().map(Some).collect();
                order.iter().filter_map(|&place| refs[place].take()).collect()
            }
            Err(cycle) => {
                let ids: Vec<_> =
                    cycle.iter().chain(cycle.first()).map(|&at| format!("refs.{}", refs[at].id)).collect();
                if let Some(&first) = cycle.first() {
                    let message = format!("these refs need each other: {}", ids.join(" -> "));
                    let error = crate::diag::Diagnostic::error("package::cycle", message);
                    self.diagnostics.push(error.located(refs[first].location.clone()));
                }
                refs
            }
        }
    }
}

/// The path up to where it is computed: all below is kept.
pub(super) fn plain_prefix(path: &[Segment]) -> Vec<String> {
    path.iter()
        .map_while(|segment| match segment {
            Segment::Key(key) => Some(key.clone()),
            Segment::Index(_) | Segment::Any => None,
        })
        .collect()
}
