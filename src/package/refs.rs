//! Refs: objects and observations that an instance reads and does not own.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;

use super::ForEach;
use super::compile::Compiler;
use super::decode::{At, Must};
use super::graph;
use super::manifest::{self, TemplateText};
use super::observation::{Call, Observation};
use super::plan::compile::Names;
use super::template_scan::lone_expression;
use crate::api::Gvk;
use crate::diag::Location;
use crate::template::{Engine, EvalError, Expr, Reads, Scope, Segment, Text};

/// A ref: one object, the objects that a selector matches, or an observation.
#[derive(Debug)]
pub struct Ref {
    /// The id, as in `refs.<id>`.
    pub id: String,
    /// The kind of the objects; `None` for an observation.
    pub gvk: Option<Gvk>,
    /// What the ref reads.
    pub target: Target,
    /// The loop, if the ref is a map by key.
    pub for_each: Option<ForEach>,
    /// A condition: the ref is read only while it is true.
    pub when: Option<Expr>,
    /// Whether the ref is undefined if the object does not exist. Otherwise it is unknown.
    pub optional: bool,
    /// Whether the instance is not Ready while the ref is unknown.
    pub affects_ready: bool,
    /// The paths of an object that expressions read: sorted, none within another, each ending before its
    /// first computed key. An empty path is the whole object.
    pub reads: Arc<[Vec<String>]>,
    /// Whether an expression tests its state, such as `is ready`.
    pub asks_state: bool,
    /// The location of its id in `operator.yaml`.
    pub location: Location,
}

/// What a ref reads.
#[derive(Debug)]
pub enum Target {
    /// The object with a name.
    Name(Text, NamespaceRef),
    /// All objects with matching labels.
    Select(Tree, NamespaceRefs),
    /// The answer to a request.
    Observe(Box<Observation>),
}

/// A namespace. The spec of a namespaced instance must not choose it. Otherwise a user who may create an
/// instance could read every namespace with the package's permissions.
#[derive(Debug)]
pub enum NamespaceRef {
    /// The instance's own namespace.
    Own,
    /// The manager's namespace.
    Operator,
    /// A literal name.
    Literal(String),
    /// A computed name, for cluster-scoped instances only.
    Computed(Text),
}

/// The namespaces of a selector.
#[derive(Debug)]
pub enum NamespaceRefs {
    /// All namespaces.
    All,
    /// These namespaces.
    List(Vec<NamespaceRef>),
}

/// A value whose strings are templates.
#[derive(Debug, Clone)]
pub enum Tree {
    /// A template, or a constant.
    Text(Text),
    /// A list.
    List(Vec<Tree>),
    /// A map.
    Map(Vec<(String, Tree)>),
}

impl Tree {
    /// The value, without omitted parts.
    ///
    /// # Errors
    /// One of the templates has no value.
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

    /// The templates at its leaves.
    pub fn texts<'a>(&'a self, out: &mut Vec<&'a Text>) {
        match self {
            Self::Text(text) => out.push(text),
            Self::List(items) => items.iter().for_each(|item| item.texts(out)),
            Self::Map(entries) => entries.iter().for_each(|(_, value)| value.texts(out)),
        }
    }
}

impl Ref {
    /// The reads of all its expressions, without following `let`s.
    pub(super) fn own_reads(&self) -> Vec<&Reads> {
        self.list_reads().into_iter().chain(self.item_reads()).collect()
    }

    /// The reads of the list of its forEach.
    pub(super) fn list_reads(&self) -> Option<&Reads> {
        self.for_each.as_ref().map(|for_each| for_each.in_.reads())
    }

    /// The reads that are repeated for each item, or made once without a list.
    pub(super) fn item_reads(&self) -> Vec<&Reads> {
        let key = self.for_each.as_ref().and_then(|for_each| for_each.key.as_ref());
        key.into_iter().chain(&self.when).map(Expr::reads).chain(self.target_reads()).collect()
    }

    /// The reads of the name, selector and namespaces, or of the request.
    pub(super) fn target_reads(&self) -> Vec<&Reads> {
        let mut texts = self.target_texts();
        if let Some(Call::Exec(exec)) = self.call() {
            texts.extend(&exec.stdin);
        }
        if let Some(Call::Http(http)) = self.call() {
            texts.extend(http.secret());
        }
        texts.into_iter().map(Text::reads).collect()
    }

    /// The request of an observation.
    pub fn call(&self) -> Option<&Call> {
        self.observation().map(|observation| &observation.call)
    }

    /// The observation, if it is one.
    pub fn observation(&self) -> Option<&Observation> {
        match &self.target {
            Target::Observe(observation) => Some(observation),
            Target::Name(..) | Target::Select(..) => None,
        }
    }

    /// The texts of the name, selector and namespaces, or those texts of a request that users can see.
    pub(super) fn target_texts(&self) -> Vec<&Text> {
        let mut texts = Vec::new();
        match &self.target {
            Target::Name(name, namespace) => {
                texts.push(name);
                texts.extend(namespace.text());
            }
            Target::Select(selector, namespaces) => {
                selector.texts(&mut texts);
                if let NamespaceRefs::List(namespaces) = namespaces {
                    texts.extend(namespaces.iter().filter_map(NamespaceRef::text));
                }
            }
            Target::Observe(observation) => match &observation.call {
                Call::Exec(exec) => exec.public(&mut texts),
                Call::Http(http) => http.public(&mut texts),
            },
        }
        texts
    }

    /// The number of segments between the ref and one of its objects: the key of a forEach, the index of a
    /// list.
    pub(super) fn steps(&self) -> usize {
        usize::from(self.for_each.is_some()) + usize::from(self.is_list())
    }

    /// Whether its value is a list of objects.
    pub fn is_list(&self) -> bool {
        matches!(self.target, Target::Select(..))
    }
}

impl NamespaceRef {
    fn text(&self) -> Option<&Text> {
        match self {
            Self::Computed(text) => Some(text),
            Self::Own | Self::Operator | Self::Literal(_) => None,
        }
    }
}

impl Compiler<'_> {
    /// Compiles the refs of a resource.
    pub(super) fn refs(&mut self, manifests: &[manifest::Ref], names: &Names<'_>) -> Vec<Ref> {
        let mut found: Vec<Ref> = Vec::with_capacity(manifests.len());
        for manifest in manifests {
            let id = &manifest.id;
            if found.iter().any(|other| other.id == id.value.0) {
                let error = id.error("package::duplicate", format!("two refs have the id `{}`", id.value.0));
                self.diagnostics.push(error.help("rename one of them"));
            }
            if let Some(reference) = self.reference(manifest, names) {
                found.push(reference);
            } else {
                // The ref has errors, so its readers must not be reported as reading an unknown ref.
                self.complete = false;
                self.readable = false;
            }
        }
        found
    }

    fn reference(&mut self, manifest: &manifest::Ref, names: &Names<'_>) -> Option<Ref> {
        let (id, namespaced) = (&manifest.id, names.namespaced);
        let when = self.optional(manifest.when.as_ref());
        let for_each = match &manifest.for_each {
            Some(for_each) => Some(self.for_each(for_each)?),
            None => None,
        };
        if manifest.exec.is_some() || manifest.http.is_some() {
            let observation = self.observation(manifest, names)?;
            return Some(Ref {
                id: id.value.0.clone(),
                gvk: None,
                target: Target::Observe(Box::new(observation)),
                for_each,
                when,
                optional: false,
                affects_ready: true,
                reads: Arc::from([]),
                asks_state: false,
                location: id.at.clone(),
            });
        }
        self.of_objects(manifest);
        let (Some(Must(api_version)), Some(Must(kind))) = (&manifest.api_version, &manifest.kind) else {
            let message = format!("the ref `{}` needs apiVersion and kind", id.value.0);
            let error = id.error("package::missing", message);
            self.diagnostics.push(error.help("add both; an observation has `exec` or `http` instead"));
            return None;
        };
        let (api_version, kind) = (api_version.as_ref()?, kind.as_ref()?);
        let target = match (&manifest.name, &manifest.selector) {
            (Some(name), None) => {
                if let Some(namespaces) = &manifest.namespaces {
                    let error = namespaces.error("package::value", "`namespaces` requires a selector");
                    self.diagnostics.push(error.help("write namespace: x"));
                    return None;
                }
                let namespace = match &manifest.namespace {
                    Some(namespace) => self.namespace(namespace, namespaced)?,
                    None => NamespaceRef::Own,
                };
                Target::Name(self.text(&name.0)?, namespace)
            }
            (None, Some(selector)) => {
                let namespaces = self.namespaces(manifest, namespaced)?;
                Target::Select(self.tree(selector)?, namespaces)
            }
            (Some(name), Some(_)) => {
                let error = name.0.error("package::value", "a ref has a name or a selector, not both");
                self.diagnostics.push(error.help("remove one of them"));
                return None;
            }
            (None, None) => {
                let message = format!("the ref `{}` has neither `name` nor `selector`", id.value.0);
                let error = id.error("package::missing", message);
                self.diagnostics.push(error.help("add the name of the object: name: \"{{ spec.x }}\""));
                return None;
            }
        };
        if manifest.optional.is_some() && matches!(target, Target::Select(..)) {
            let error = id.error("package::value", "`optional` requires a ref by name");
            self.diagnostics.push(error.help("remove it: a selector without matches yields an empty list"));
        }
        Some(Ref {
            id: id.value.0.clone(),
            gvk: Some(Gvk::new(api_version.value.0.as_str(), kind.value.0.as_str())),
            target,
            for_each,
            when,
            optional: manifest.optional.unwrap_or_default(),
            affects_ready: true,
            reads: Arc::from([]),
            asks_state: false,
            location: id.at.clone(),
        })
    }

    fn namespaces(&mut self, manifest: &manifest::Ref, namespaced: bool) -> Option<NamespaceRefs> {
        match (&manifest.namespace, manifest.namespaces.as_ref()) {
            (Some(namespace), Some(_)) => {
                let error =
                    namespace.0.error("package::value", "the ref has both `namespace` and `namespaces`");
                self.diagnostics.push(error.help("remove one of them"));
                None
            }
            (Some(namespace), None) => {
                Some(NamespaceRefs::List(vec![self.namespace(namespace, namespaced)?]))
            }
            (None, Some(At { value: manifest::Namespaces::All, .. })) => Some(NamespaceRefs::All),
            (None, Some(At { value: manifest::Namespaces::List(list), .. })) => {
                let namespaces = list.iter().map(|namespace| self.namespace(namespace, namespaced));
                namespaces.collect::<Option<Vec<_>>>().map(NamespaceRefs::List)
            }
            (None, None) => Some(NamespaceRefs::List(vec![NamespaceRef::Own])),
        }
    }

    /// Compiles a namespace. For namespaced instances, it must be a literal or `operator.namespace`.
    pub(super) fn namespace(
        &mut self,
        TemplateText(source): &TemplateText,
        namespaced: bool,
    ) -> Option<NamespaceRef> {
        if !source.value.contains("{{") && !source.value.contains("{%") {
            return Some(NamespaceRef::Literal(source.value.clone()));
        }
        match lone_expression(&source.value) {
            Some("operator.namespace") => return Some(NamespaceRef::Operator),
            Some("namespace" | "instance.metadata.namespace") if namespaced => {
                return Some(NamespaceRef::Own);
            }
            _ => {}
        }
        if namespaced {
            let error = source.error("package::namespace", "a ref's namespace must not be computed");
            self.diagnostics.push(error.help(
                "remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: \
                 otherwise users who can create an instance could read in any namespace",
            ));
            return None;
        }
        self.text(source).map(NamespaceRef::Computed)
    }

    pub(super) fn tree(&mut self, tree: &manifest::Tree) -> Option<Tree> {
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

    /// Orders refs so that each comes after the refs that it reads. Refs create no edges between children,
    /// but a ref must not depend on itself.
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

/// The path up to its first computed key. Everything below is kept.
pub(super) fn plain_prefix(path: &[Segment]) -> Vec<String> {
    path.iter()
        .map_while(|segment| match segment {
            Segment::Key(key) => Some(key.clone()),
            Segment::Index(_) | Segment::Any => None,
        })
        .collect()
}
