//! Checks the reads of expressions and templates: fields of the CRD's schema, children, `let`s, defaults,
//! variables.

mod applied;
mod claims;
pub(super) mod columns;
mod conditional;
mod conditions;
mod containers;
pub(super) mod edges;
pub(super) mod fields;
pub(super) mod generated;
pub(super) mod grants;
mod hosts;
mod immutable;
mod known;
mod labels;
mod lengths;
mod names;
pub(super) mod objects;
mod references;
pub(super) mod relations;
pub(super) mod sketch;
pub(super) mod versions;
pub(super) mod words;
pub(super) mod workloads;

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;

use super::expression_sites::{ExpressionSite, Parts, Role};
use super::plan::sites::PlanScope;
use super::plan::{Action, Plan, RAN, RECORDED, calls};
use super::{Child, Ref, graph};
pub(super) use conditions::omitted_text;
pub(super) use known::{ROOTS, ResourceInfo};

use crate::crd::{self, Lookup};
use crate::diag::{Diagnostic, Location, did_you_mean};
use crate::template::foreign_syntax::of_variable;
use crate::template::{Engine, ReadPath, Segment, access};

/// The variables of a run.
const OF_RUN: [&str; 2] = ["run", "outputs"];
/// The fields of `run`.
const RUN: [&str; 10] =
    ["id", "name", "plan", "cause", "step", "attempt", "startedAt", "params", "lost", "failure"];
/// The fields of `cluster`.
const CLUSTER: [&str; 2] = ["version", "has"];
/// The fields of `operator`.
const OPERATOR: [&str; 5] = ["name", "version", "appVersion", "revision", "namespace"];

/// Reports all errors in the reads of a resource.
pub(super) fn resource(engine: &Arc<Engine>, parts: &Parts, known: &ResourceInfo) -> Vec<Diagnostic> {
    let mut linter = Linter { parts, known, seen: HashSet::new(), step: None, diagnostics: Vec::new() };
    let mut reached = BTreeSet::new();
    for usage in parts.expression_sites(engine) {
        linter.step = usage.plan.as_ref().map(|scope| scope.path.clone());
        for path in graph::expand_lets([usage.reads], &parts.lets) {
            if let ("let", Some(Segment::Key(name))) = (path.root.as_str(), path.segments.first()) {
                reached.insert(name.clone());
            }
            linter.path(path, &usage);
        }
        linter.members(&usage);
    }
    linter.step = None;
    linter.keyed_refs();
    linter.diagnostics.extend(conditional::unguarded(engine, parts));
    // A `let` that nothing reads may be meant for any position, so all variables are allowed in it.
    for (_, text) in parts.lets.iter().filter(|(name, _)| !reached.contains(*name)) {
        let anywhere = ExpressionSite {
            reads: text.reads(),
            child: None,
            reference: None,
            plan: None,
            role: Role::Anywhere,
        };
        for path in &text.reads().paths {
            if !items(parts).any(|item| item == path.root) {
                linter.path(path, &anywhere);
            }
        }
    }
    let mut diagnostics = linter.diagnostics;
    diagnostics.extend(conditions::conditions(engine, parts, known));
    diagnostics.extend(edges::self_reads(engine, parts));
    diagnostics.extend(edges::retained_reads(engine, parts));
    diagnostics
}

struct Linter<'a> {
    parts: &'a Parts,
    known: &'a ResourceInfo<'a>,
    /// Errors that are already reported. A `let` is visited from each of its readers.
    seen: HashSet<(String, usize, String)>,
    /// The path of the step that is checked.
    step: Option<String>,
    diagnostics: Vec<Diagnostic>,
}

impl Linter<'_> {
    fn error(&mut self, code: &'static str, at: &Location, message: String, help: Option<String>) {
        if self.seen.insert((at.source.name.clone(), at.span.start, message.clone())) {
            let error = Diagnostic::error(code, message).located(at.clone());
            self.diagnostics.push(Diagnostic { help, path: self.step.clone(), ..error });
        }
    }

    /// A hint with the name in `parent` that is most similar. `parent` is empty for variables.
    fn near(wrong: &str, candidates: impl Iterator<Item = String>, parent: &str) -> Option<String> {
        let candidates: Vec<String> = candidates.collect();
        match did_you_mean(wrong, candidates.iter().map(String::as_str)) {
            Some(near) if parent.is_empty() => Some(format!("did you mean `{near}`?")),
            Some(near) => Some(format!("did you mean `{parent}{}`?", access(near))),
            None if candidates.is_empty() || candidates.len() > 20 => None,
            None => Some(format!("there is {}", candidates.join(", "))),
        }
    }

    /// Checks a path against the variables that are visible at its site.
    fn path(&mut self, path: &ReadPath, usage: &ExpressionSite) {
        let root = path.root.as_str();
        let item = usage.item(self.parts);
        let scope = usage.plan.as_deref();
        let in_run = scope.is_some_and(|scope| scope.in_run) || usage.role == Role::Anywhere;
        let has_plans = !self.parts.plans.is_empty();
        let seen = match root {
            "self" => usage.sees_self(),
            _ if usage.sees_item() && item == Some(root) => return,
            _ if scope.is_some_and(|scope| scope.items.contains(&root)) => return,
            _ if usage.answers(self.parts).contains(&root) => {
                return self.recorded(path, scope);
            }
            "run" | "outputs" => in_run,
            "record" | "previous" => has_plans,
            _ => ROOTS.contains(&root),
        };
        if seen {
            self.read(path);
            return self.in_plan(path, scope);
        }
        let all_items = || items(self.parts);
        let (message, help) = if root == "self" {
            let help = "use `children.<id>` to read a live object here";
            (
                "`self` is the live object of a child and exists only in its own template and readyWhen"
                    .to_owned(),
                Some(help.to_owned()),
            )
        } else if matches!(root, "record" | "previous") {
            (
                format!("`{root}` needs plans, and this kind has none"),
                Some("remove it, or add plans".to_owned()),
            )
        } else if OF_RUN.contains(&root) && !items(self.parts).any(|name| name == root) {
            let help = "use it only in the steps of a plan, and in the templates of their Jobs; `record` keeps facts beyond a run";
            (format!("`{root}` exists only in a run of a plan"), Some(help.to_owned()))
        } else if !self.known.complete {
            return;
        } else if all_items().any(|name| name == root) {
            let of_child = self.parts.children.iter().filter_map(Child::item).any(|name| name == root);
            let of_plan = plan_items(self.parts).any(|name| name == root);
            let of_repeat = of_plan && !each_items(self.parts).any(|name| name == root);
            let of = if of_repeat { "repeat" } else { "forEach" };
            let message = format!("`{root}` is the item of a {of} and does not exist here");
            let help = if of_repeat {
                "use it only in the steps of that phase"
            } else if of_plan {
                "use it only in the steps with that forEach, and in the steps of that phase"
            } else if of_child {
                "use it only in the template, when, key and readyWhen of that child"
            } else {
                "use it only in the name, selector, when and key of that ref"
            };
            (message, Some(help.to_owned()))
        } else {
            let names = ROOTS.iter().copied().filter(|name| match *name {
                "self" => usage.sees_self(),
                "run" | "outputs" => in_run,
                "record" | "previous" => has_plans,
                _ => true,
            });
            let names = names.chain(
                scope
                    .into_iter()
                    .flat_map(|scope| scope.items.iter())
                    .chain(usage.answers(self.parts))
                    .copied(),
            );
            let names = names.chain(item.filter(|_| usage.sees_item())).map(str::to_owned);
            let help = of_variable(root).map(str::to_owned).or_else(|| Self::near(root, names, ""));
            (format!("unknown variable `{root}`"), help)
        };
        self.error("package::unknown-variable", &path.location, message, help);
    }

    /// Checks a path whose variable exists.
    fn read(&mut self, path: &ReadPath) {
        let key = match path.segments.first() {
            Some(Segment::Key(key)) => Some(key.as_str()),
            _ => None,
        };
        match (path.root.as_str(), key) {
            ("spec" | "previous", _) => self.schema(path, &["spec"], &path.segments),
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
                let help = Self::near(key, OPERATOR.iter().map(|&name| name.to_owned()), "operator");
                let message = format!("`operator{}` does not exist", access(key));
                self.error("package::unknown-path", &path.location, message, help);
            }
            ("defaults", Some(key)) if self.known.complete && !self.known.defaults.contains_key(key) => {
                let help = Self::near(key, self.known.defaults.keys().cloned(), "defaults");
                let message =
                    format!("`defaults{}` does not exist: spec.defaults has no such key", access(key));
                self.error("package::unknown-path", &path.location, message, help);
            }
            ("let", Some(key)) if self.known.complete && self.parts.lets.get(key).is_none() => {
                let help = Self::near(key, self.parts.lets.iter().map(|(name, _)| name.to_owned()), "let");
                let message = format!("`let{}` does not exist", access(key));
                self.error("package::unknown-path", &path.location, message, help);
            }
            (root @ ("children" | "retained"), Some(id))
                if self.known.complete && !self.parts.children.iter().any(|child| child.id == id) =>
            {
                let ids = self.parts.children.iter().map(|child| child.id.clone());
                let help = Self::near(id, ids, root);
                let message = format!("`{root}{}` does not exist: there is no child of that id", access(id));
                self.error("package::unknown-child", &path.location, message, help);
            }
            ("refs", Some(id)) => self.reference(path, id),
            ("refs", None) => {
                let message = "the id of a ref must be a literal".to_owned();
                let help = "write refs.<id>".to_owned();
                self.error("package::unknown-ref", &path.location, message, Some(help));
            }
            ("cluster", Some(key)) if !CLUSTER.contains(&key) => {
                let help = Self::near(key, CLUSTER.iter().map(|&name| name.to_owned()), "cluster");
                let message = format!("`cluster{}` does not exist", access(key));
                self.error("package::unknown-path", &path.location, message, help);
            }
            (root @ ("children" | "retained"), None) => {
                let message =
                    "the id of a child must be a literal, because it determines the order".to_owned();
                let help = format!("write {root}.<id>");
                self.error("package::unknown-child", &path.location, message, Some(help));
            }
            _ => {}
        }
    }

    /// Checks a path into `recorded`, the facts that the plan of a plan step has recorded.
    fn recorded(&mut self, path: &ReadPath, scope: Option<&PlanScope<'_>>) {
        let (RECORDED, [Segment::Key(key), ..], Some(scope)) = (&*path.root, &*path.segments, scope) else {
            return;
        };
        let visit = scope.plan.visits().into_iter().find(|visit| visit.inside.path == scope.path);
        let Some(Action::Plan(call)) = visit.map(|visit| &visit.step.action) else { return };
        let facts = calls::facts_of(&self.parts.plans, &call.plan);
        if call.of.is_none() && self.known.complete && !facts.contains(key.as_str()) {
            let help = Self::near(key, facts.iter().map(|&name| name.to_owned()), RECORDED);
            let message = format!("the plan `{}` records no `{key}`", call.plan);
            self.error("package::unknown-path", &path.location, message, help);
        }
    }

    /// Checks a path into a run, the outputs of steps, or recorded facts.
    fn in_plan(&mut self, path: &ReadPath, scope: Option<&PlanScope<'_>>) {
        let [Segment::Key(key), rest @ ..] = path.segments.as_slice() else { return };
        match path.root.as_str() {
            "run" if !RUN.contains(&key.as_str()) => {
                let help = Self::near(key, RUN.iter().map(|&name| name.to_owned()), "run");
                self.error(
                    "package::unknown-path",
                    &path.location,
                    format!("`run{}` does not exist", access(key)),
                    help,
                );
            }
            "run" if key == "params" => {
                if let (Some(scope), [Segment::Key(name), ..]) = (scope, rest) {
                    self.param(path, scope, name);
                }
            }
            "outputs" => {
                if let Some(scope) = scope.filter(|_| self.known.complete) {
                    self.output(path, scope, key, rest);
                }
            }
            "record" if self.known.complete => {
                let recorded =
                    || self.parts.plans.iter().flat_map(Plan::visits).flat_map(|visit| &visit.step.record);
                if !recorded().any(|(name, _)| name == key) {
                    let help = Self::near(key, recorded().map(|(name, _)| name.clone()), "record");
                    let message = format!("no step records `{key}`");
                    let help = help.or_else(|| Some(format!("add record: {{{key}: ...}} to a step")));
                    self.error("package::unknown-path", &path.location, message, help);
                }
            }
            _ => {}
        }
    }

    /// Checks a parameter against the plan's schema, or, if it has none, against those of the plans that call
    /// it.
    fn param(&mut self, path: &ReadPath, scope: &PlanScope<'_>, name: &str) {
        let schemas = calls::params_of(&self.parts.plans, &scope.plan.name);
        let fits = |schema: &Value| !matches!(crd::lookup(schema, &[name]), Lookup::Unknown { .. });
        // A template may serve several plans, some of which have no parameters.
        let is_never_set = path.guarded && schemas.is_empty();
        if is_never_set || schemas.iter().any(|schema| fits(schema)) || !self.known.complete {
            return;
        }
        let plan = &scope.plan.name;
        let known = schemas
            .iter()
            .filter_map(|schema| schema["properties"].as_object())
            .flat_map(|known| known.keys());
        let help = Self::near(name, known.cloned(), "run.params");
        let help = help.unwrap_or_else(|| {
            format!("add it to the plan: params: {{type: object, properties: {{{name}: {{type: string}}}}}}")
        });
        let message = format!("the plan `{plan}` has no parameter `{name}`");
        self.error("package::unknown-path", &path.location, message, Some(help));
    }

    /// Checks `outputs.<step>.<name>`, and in a record also `outputs.<name>`.
    fn output(&mut self, path: &ReadPath, scope: &PlanScope<'_>, key: &str, rest: &[Segment]) {
        if scope.own.is_some_and(|step| step.outputs.iter().any(|output| output.name == key)) {
            return;
        }
        if let Some(step) = scope.before.iter().find(|step| step.name == key) {
            let [Segment::Key(name), ..] = rest else { return };
            let ran = matches!(step.action, Action::Plan(_)).then(|| RAN.to_owned());
            let shown = || step.outputs.iter().map(|output| output.name.clone()).chain(ran.clone());
            if step.is_loop() || shown().any(|known| known == *name) {
                return; // with forEach or repeat, `outputs.<step>` is a list, whose items have the outputs
            }
            let help = Self::near(name, shown(), &format!("outputs{}", access(key)));
            let help = help.unwrap_or_else(|| format!("add outputs: {{{name}: ...}} to the step `{key}`"));
            let message = format!("the step `{key}` has no output `{name}`");
            return self.error("package::unknown-step", &path.location, message, Some(help));
        }
        let steps = scope.plan.visits();
        let (message, help) = match steps.iter().find(|visit| visit.step.name == key) {
            Some(visit) if visit.inside.path.starts_with(&scope.path) && visit.inside.path != scope.path => (
                format!("the step `{key}` is a step of this phase"),
                "read it in a step of the phase".to_owned(),
            ),
            Some(visit) => {
                let message = format!(
                    "`outputs{}` does not exist here: {} is not an earlier step",
                    access(key),
                    visit.inside.path
                );
                let help = "outputs are visible to the later steps beside the step, and to the steps within those; side \
                            by side (strategy: parallel) none is earlier; use `record` for more";
                (message, help.to_owned())
            }
            None => {
                let names = scope.before.iter().map(|step| step.name.clone());
                let names = names
                    .chain(scope.own.iter().flat_map(|own| &own.outputs).map(|output| output.name.clone()));
                let help = Self::near(key, names, "outputs")
                    .unwrap_or_else(|| "write outputs.<step>.<name>".to_owned());
                (format!("there is no step `{key}` before this one"), help)
            }
        };
        self.error("package::unknown-step", &path.location, message, Some(help));
    }

    /// Checks a path into a ref.
    fn reference(&mut self, path: &ReadPath, id: &str) {
        let Some(reference) = self.parts.refs.iter().find(|reference| reference.id == id) else {
            if self.known.complete {
                let help = Self::near(id, self.parts.refs.iter().map(|other| other.id.clone()), "refs");
                let message = format!("`refs{}` does not exist: there is no ref of that id", access(id));
                self.error("package::unknown-ref", &path.location, message, help);
            }
            return;
        };
        let steps = 1 + usize::from(reference.for_each.is_some());
        match (reference.is_list(), path.segments.get(steps)) {
            (true, Some(Segment::Key(key))) if key != "error" => {
                let each = if reference.for_each.is_some() { "[key]" } else { "" };
                let list = format!("refs{}{each}", access(id));
                let message = format!("`{list}` is a list: it has a selector");
                let help = format!("write {list} | map(attribute='{key}'), or a loop");
                self.error("package::unknown-path", &path.location, message, Some(help));
            }
            (false, Some(Segment::Key(key))) => self.field(path, reference, key),
            _ => {}
        }
    }

    /// Checks the first field of an object of a built-in kind with few fields.
    fn field(&mut self, path: &ReadPath, reference: &Ref, key: &str) {
        if let Some(observation) = reference.observation() {
            let fields = observation.fields();
            if key != "error" && !fields.contains(&key) {
                let parent = format!("refs{}", access(&reference.id));
                let help = Self::near(key, fields.iter().map(|&name| name.to_owned()), &parent);
                let message = format!("an observation by {} has no field {key}", observation.verb());
                self.error("package::unknown-path", &path.location, message, help);
            }
            return;
        }
        let Some(gvk) = &reference.gvk else { return };
        let own: &[&str] = match gvk.parts() {
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
        let (id, kind) = (format!("{}{each}", access(&reference.id)), &gvk.kind);
        let help = if key == "stringData" {
            Some(format!("`stringData` is write-only; read refs{id}.data.<key> | b64decode"))
        } else {
            Self::near(key, known.iter().map(|&name| name.to_owned()), &format!("refs{id}"))
        };
        self.error("package::unknown-path", &path.location, format!("a {kind} has no field {key}"), help);
    }

    /// Checks a path into the instance, below `base`.
    fn schema(&mut self, path: &ReadPath, base: &[&str], segments: &[Segment]) {
        let Some(schema) = self.known.schema else { return };
        let mut keys: Vec<String> = base.iter().map(|&key| key.to_owned()).collect();
        keys.extend(segments.iter().map(|segment| match segment {
            Segment::Key(key) => key.clone(),
            Segment::Index(index) => index.to_string(),
            Segment::Any => "*".to_owned(),
        }));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        // Finds the first segment that does not exist.
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
        let help = Self::near(wrong, candidates.into_iter(), &parent);
        self.error("package::unknown-path", &path.location, message, help);
    }

    /// Reports refs with forEach that select the same object for each key.
    fn keyed_refs(&mut self) {
        for reference in &self.parts.refs {
            let Some(for_each) = &reference.for_each else { continue };
            let reads = graph::expand_lets(reference.target_reads(), &self.parts.lets);
            if !reads.iter().any(|path| path.root == for_each.as_) {
                let (id, item) = (&reference.id, &for_each.as_);
                let message =
                    format!("the ref `{id}` does not read `{item}`: every key would select the same objects");
                let help = format!("use it in the name or the selector: \"{{{{ {item} }}}}\"");
                self.error("package::same-object", &reference.location.clone(), message, Some(help));
            }
        }
    }

    /// Reports forEach children whose template does not read the item.
    fn members(&mut self, usage: &ExpressionSite) {
        let Some(child) =
            usage.child.filter(|_| usage.role == Role::Template).map(|child| &self.parts.children[child])
        else {
            return;
        };
        let Some(item) = child.item() else { return };
        let reads_item =
            graph::expand_lets([usage.reads], &self.parts.lets).iter().any(|path| path.root == item);
        if !reads_item {
            let message = format!(
                "the template of `{}` does not read `{item}`: all its members would be one object",
                child.id
            );
            let help = format!("use it in metadata.name: {{{{ name }}}}-{{{{ {item} }}}}");
            self.error("package::same-object", &child.location.clone(), message, Some(help));
        }
    }
}

/// The item variables of all forEach.
fn items(parts: &Parts) -> impl Iterator<Item = &str> {
    let of_refs = parts.refs.iter().filter_map(|reference| reference.for_each.as_ref());
    let of_refs = of_refs.map(|for_each| for_each.as_.as_str());
    parts.children.iter().filter_map(Child::item).chain(of_refs).chain(plan_items(parts))
}

/// The item variables of all steps with forEach.
fn each_items(parts: &Parts) -> impl Iterator<Item = &str> {
    let steps = parts.plans.iter().flat_map(Plan::visits);
    steps.filter_map(|visit| visit.step.for_each.as_ref()).map(|each| each.as_.as_str())
}

/// The item variables of all steps.
fn plan_items(parts: &Parts) -> impl Iterator<Item = &str> {
    let steps = parts.plans.iter().flat_map(Plan::visits);
    steps.filter_map(|visit| visit.step.item())
}

/// Writes a path in the usual notation.
fn shown(keys: &[&str]) -> String {
    let mut out = String::new();
    for key in keys {
        if *key == "*" || key.parse::<i64>().is_ok() {
            let _ = write!(out, "[{key}]");
        } else {
            out.push_str(&if out.is_empty() { (*key).to_owned() } else { access(key) });
        }
    }
    out
}
