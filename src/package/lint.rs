//! What expressions and templates read, held against what there is: the CRD's schema, children,
//! `let`s, defaults, variables.

pub(super) mod columns;
mod conditional;
mod conditions;
pub(super) mod edges;
pub(super) mod generated;
pub(super) mod sketch;
pub(super) mod words;
pub(super) mod workloads;

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::uses::{Parts, Role, Use};
use super::{Child, Ref, graph};
pub(super) use conditions::omitted_text;

use crate::crd::{self, Lookup};
use crate::diag::{Diagnostic, Location, did_you_mean};
use crate::template::habits::of_variable;
use crate::template::{Engine, ReadPath, Segment};

/// The variables of every expression, those included that only some see.
pub(super) const ROOTS: [&str; 12] = [
    "instance",
    "spec",
    "name",
    "namespace",
    "labels",
    "operator",
    "defaults",
    "let",
    "children",
    "refs",
    "cluster",
    "self",
];
/// Variables of the whole format that this version does not do yet.
pub(super) const LATER: [&str; 4] = ["record", "previous", "run", "outputs"];
/// What `cluster` holds.
const CLUSTER: [&str; 2] = ["version", "has"];
/// What `operator` holds.
const OPERATOR: [&str; 5] = ["name", "version", "appVersion", "revision", "namespace"];

/// What is known about the resource.
pub(super) struct Known<'a> {
    /// The schema of the instances, if the CRD has one.
    pub(super) schema: Option<&'a Value>,
    /// Whether instances lie in namespaces.
    pub(super) namespaced: bool,
    /// The package's constants.
    pub(super) defaults: &'a Map<String, Value>,
    /// Whether every name of `operator.yaml` is known: else what seems to be missing may only be broken.
    pub(super) complete: bool,
}

/// All that is wrong with what the parts of a resource read.
pub(super) fn resource(engine: &Arc<Engine>, parts: &Parts, known: &Known) -> Vec<Diagnostic> {
    let mut linter = Linter { parts, known, seen: HashSet::new(), diagnostics: Vec::new() };
    let mut reached = BTreeSet::new();
    for usage in parts.uses(engine) {
        for path in graph::follow([usage.reads], &parts.lets) {
            if let ("let", Some(Segment::Key(name))) = (path.root.as_str(), path.segments.first()) {
                reached.insert(name.clone());
            }
            linter.path(path, &usage);
        }
        linter.members(&usage);
    }
    linter.keyed_refs();
    linter.diagnostics.extend(conditional::unguarded(engine, parts));
    // What nothing reads yet may be meant for any place: it sees all variables.
    for (_, text) in parts.lets.iter().filter(|(name, _)| !reached.contains(*name)) {
        let anywhere = Use { reads: text.reads(), child: None, reference: None, role: Role::Anywhere };
        for path in &text.reads().paths {
            if !items(parts).any(|item| item == path.root) {
                linter.path(path, &anywhere);
            }
        }
    }
    let mut diagnostics = linter.diagnostics;
    diagnostics.extend(conditions::conditions(engine, parts, known));
    diagnostics.extend(edges::self_reads(engine, parts));
    diagnostics
}

struct Linter<'a> {
    parts: &'a Parts,
    known: &'a Known<'a>,
    /// Places already complained about: a `let` is come by from everything that reads it.
    seen: HashSet<(String, usize, String)>,
    diagnostics: Vec<Diagnostic>,
}

impl Linter<'_> {
    fn error(&mut self, code: &'static str, at: &Location, message: String, help: Option<String>) {
        if self.seen.insert((at.source.name.clone(), at.span.start, message.clone())) {
            let error = Diagnostic::error(code, message).located(at.clone());
            self.diagnostics.push(Diagnostic { help, ..error });
        }
    }

    fn near(wrong: &str, candidates: impl Iterator<Item = String>, prefix: &str) -> Option<String> {
        let candidates: Vec<String> = candidates.collect();
        match did_you_mean(wrong, candidates.iter().map(String::as_str)) {
            Some(near) => Some(format!("did you mean `{prefix}{near}`?")),
            None if candidates.is_empty() || candidates.len() > 20 => None,
            None => Some(format!("there is {}", candidates.join(", "))),
        }
    }

    /// A path that is read where the variables of `usage` are seen.
    fn path(&mut self, path: &ReadPath, usage: &Use) {
        let root = path.root.as_str();
        let item = usage.item(self.parts);
        let seen = match root {
            "self" => usage.sees_self(),
            _ if usage.sees_item() && item == Some(root) => return,
            _ => ROOTS.contains(&root),
        };
        if seen {
            return self.read(path);
        }
        let all_items = || items(self.parts);
        let (message, help) = if root == "self" {
            let help = "elsewhere live objects are read as `children.<id>`";
            (
                "`self` is the live object of a child: only its own template and readyWhen see it".to_owned(),
                Some(help.to_owned()),
            )
        } else if LATER.contains(&root) && !all_items().any(|name| name == root) {
            return self.error(
                "package::not-yet",
                &path.location,
                format!("this version of Operetta does not do `{root}` yet"),
                None,
            );
        } else if !self.known.complete {
            return;
        } else if all_items().any(|name| name == root) {
            let message = format!("`{root}` is the item of a forEach, which is not known here");
            let of_child = self.parts.children.iter().filter_map(item_of).any(|name| name == root);
            let help = if of_child {
                "only that child's own template, when, key and readyWhen see it"
            } else {
                "only that ref's own name, selector, when and key see it"
            };
            (message, Some(help.to_owned()))
        } else {
            let names = ROOTS.iter().copied().filter(|name| *name != "self" || usage.sees_self());
            let names = names.chain(item.filter(|_| usage.sees_item())).map(str::to_owned);
            let help = of_variable(root).map(str::to_owned).or_else(|| Self::near(root, names, ""));
            (format!("unknown variable `{root}`"), help)
        };
        self.error("package::unknown-variable", &path.location, message, help);
    }

    /// A path whose variable is known.
    fn read(&mut self, path: &ReadPath) {
        let key = match path.segments.first() {
            Some(Segment::Key(key)) => Some(key.as_str()),
            _ => None,
        };
        match (path.root.as_str(), key) {
            ("spec", _) => self.schema(path, &["spec"], &path.segments),
            ("namespace", _) if !self.known.namespaced && !path.guarded => {
                let message = "`namespace` is undefined: the instances are cluster-scoped".to_owned();
                let help = "write a literal, or {{ operator.namespace }}".to_owned();
                self.error("package::unknown-variable", &path.location, message, Some(help));
            }
            ("instance", Some("spec")) => self.schema(path, &["spec"], &path.segments[1..]),
            ("instance", Some(key)) if !["apiVersion", "kind", "metadata", "status"].contains(&key) => {
                self.schema(path, &[], &path.segments);
            }
            ("operator", Some(key)) if !OPERATOR.contains(&key) => {
                let help = Self::near(key, OPERATOR.iter().map(|&name| name.to_owned()), "operator.");
                let message = format!("`operator.{key}` does not exist");
                self.error("package::unknown-path", &path.location, message, help);
            }
            ("defaults", Some(key)) if self.known.complete && !self.known.defaults.contains_key(key) => {
                let help = Self::near(key, self.known.defaults.keys().cloned(), "defaults.");
                let message = format!("`defaults.{key}` does not exist: spec.defaults has no such key");
                self.error("package::unknown-path", &path.location, message, help);
            }
            ("let", Some(key)) if self.known.complete && self.parts.lets.get(key).is_none() => {
                let help = Self::near(key, self.parts.lets.iter().map(|(name, _)| name.to_owned()), "let.");
                let message = format!("`let.{key}` does not exist");
                self.error("package::unknown-path", &path.location, message, help);
            }
            ("children", Some(id))
                if self.known.complete && !self.parts.children.iter().any(|child| child.id == id) =>
            {
                let help =
                    Self::near(id, self.parts.children.iter().map(|child| child.id.clone()), "children.");
                let message = format!("`children.{id}` does not exist: there is no child of that id");
                self.error("package::unknown-child", &path.location, message, help);
            }
            ("refs", Some(id)) => self.reference(path, id),
            ("refs", None) => {
                let message = "refs are read by id: which ones, must be known".to_owned();
                let help = "write refs.<id>".to_owned();
                self.error("package::unknown-ref", &path.location, message, Some(help));
            }
            ("cluster", Some(key)) if !CLUSTER.contains(&key) => {
                let help = Self::near(key, CLUSTER.iter().map(|&name| name.to_owned()), "cluster.");
                let message = format!("`cluster.{key}` does not exist");
                self.error("package::unknown-path", &path.location, message, help);
            }
            ("children", None) => {
                let message =
                    "children are read by id: which ones, and so the order, must be known".to_owned();
                let help = "write children.<id>".to_owned();
                self.error("package::unknown-child", &path.location, message, Some(help));
            }
            _ => {}
        }
    }

    /// A path into what a ref gives.
    fn reference(&mut self, path: &ReadPath, id: &str) {
        let Some(reference) = self.parts.refs.iter().find(|reference| reference.id == id) else {
            if self.known.complete {
                let help = Self::near(id, self.parts.refs.iter().map(|other| other.id.clone()), "refs.");
                let message = format!("`refs.{id}` does not exist: there is no ref of that id");
                self.error("package::unknown-ref", &path.location, message, help);
            }
            return;
        };
        let steps = 1 + usize::from(reference.for_each.is_some());
        match (reference.is_list(), path.segments.get(steps)) {
            (true, Some(Segment::Key(key))) if key != "error" => {
                let each = if reference.for_each.is_some() { "[key]" } else { "" };
                let message = format!("`refs.{id}{each}` is a list: it has a selector");
                let help = format!("write refs.{id}{each} | map(attribute='{key}'), or a loop");
                self.error("package::unknown-path", &path.location, message, Some(help));
            }
            (false, Some(Segment::Key(key))) => self.field(path, reference, key),
            _ => {}
        }
    }

    /// The first step into an object of a built-in kind that has few fields.
    fn field(&mut self, path: &ReadPath, reference: &Ref, key: &str) {
        let own: &[&str] = match (&*reference.api_version, &*reference.kind) {
            ("v1", "Secret") => &["data", "type", "immutable"],
            ("v1", "ConfigMap") => &["data", "binaryData", "immutable"],
            ("v1", "ServiceAccount") => &["secrets", "imagePullSecrets", "automountServiceAccountToken"],
            _ => return,
        };
        let known: Vec<&str> =
            ["apiVersion", "kind", "metadata", "error"].iter().chain(own).copied().collect();
        if known.contains(&key) {
            return;
        }
        let each = if reference.for_each.is_some() { "[key]" } else { "" };
        let (id, kind) = (format!("{}{each}", reference.id), &reference.kind);
        let help = if key == "stringData" {
            Some(format!("it can only be written; read refs.{id}.data.<key> | b64decode"))
        } else {
            Self::near(key, known.iter().map(|&name| name.to_owned()), &format!("refs.{id}."))
        };
        self.error("package::unknown-path", &path.location, format!("a {kind} has no field {key}"), help);
    }

    /// A path into the instance, below `base`.
    fn schema(&mut self, path: &ReadPath, base: &[&str], segments: &[Segment]) {
        let Some(schema) = self.known.schema else { return };
        let mut keys: Vec<String> = base.iter().map(|&key| key.to_owned()).collect();
        keys.extend(segments.iter().map(|segment| match segment {
            Segment::Key(key) => key.clone(),
            Segment::Index(index) => index.to_string(),
            Segment::Any => "*".to_owned(),
        }));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        // The first step that leads nowhere.
        let Some((depth, candidates)) =
            (1..=keys.len()).find_map(|depth| match crd::lookup(schema, &keys[..depth]) {
                Lookup::Unknown { candidates, .. } => Some((depth, candidates)),
                _ => None,
            })
        else {
            return;
        };
        let (wrong, parent) = (keys[depth - 1], shown(&keys[..depth - 1]));
        let message = format!("the CRD's schema has no {}", shown(&keys[..depth]));
        let prefix = if parent.is_empty() { parent } else { format!("{parent}.") };
        let help = Self::near(wrong, candidates.into_iter(), &prefix);
        self.error("package::unknown-path", &path.location, message, help);
    }

    /// Refs with forEach that name the same object for each key.
    fn keyed_refs(&mut self) {
        for reference in &self.parts.refs {
            let Some(for_each) = &reference.for_each else { continue };
            let reads = graph::follow(reference.target_reads(), &self.parts.lets);
            if !reads.iter().any(|path| path.root == for_each.as_) {
                let (id, item) = (&reference.id, &for_each.as_);
                let message =
                    format!("the ref `{id}` does not read `{item}`: all its keys would be the same objects");
                let help = format!("put it into the name or the selector: \"{{{{ {item} }}}}\"");
                self.error("package::same-object", &reference.location.clone(), message, Some(help));
            }
        }
    }

    /// Members of a forEach child whose template does not know which of them it renders.
    fn members(&mut self, usage: &Use) {
        let Some(child) =
            usage.child.filter(|_| usage.role == Role::Template).map(|child| &self.parts.children[child])
        else {
            return;
        };
        let Some(item) = item_of(child) else { return };
        let reads_item = graph::follow([usage.reads], &self.parts.lets).iter().any(|path| path.root == item);
        if !reads_item {
            let message = format!(
                "the template of `{}` does not read `{item}`: all its members would be one object",
                child.id
            );
            let help = format!("put it into metadata.name: {{{{ name }}}}-{{{{ {item} }}}}");
            self.error("package::same-object", &child.location.clone(), message, Some(help));
        }
    }
}

/// The names of all items.
fn items(parts: &Parts) -> impl Iterator<Item = &str> {
    let of_refs = parts.refs.iter().filter_map(|reference| reference.for_each.as_ref());
    parts.children.iter().filter_map(item_of).chain(of_refs.map(|for_each| for_each.as_.as_str()))
}

/// The name of a forEach child's item.
fn item_of(child: &Child) -> Option<&str> {
    child.for_each.as_ref().map(|for_each| for_each.as_.as_str())
}

/// A path as people write it.
fn shown(keys: &[&str]) -> String {
    let mut out = String::new();
    for key in keys {
        if *key == "*" || key.parse::<i64>().is_ok() {
            let _ = write!(out, "[{key}]");
        } else {
            out.push_str(if out.is_empty() { "" } else { "." });
            out.push_str(key);
        }
    }
    out
}
