//! From one resource of `operator.yaml` to a [`Resource`]: expressions parsed, children in order.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::compile::Compiler;
use super::decode::At;
use super::manifest::{self, Expression, LetValue, StatusValue, TemplateText};
use super::outline::Namespaces;
use super::{
    Child, Condition, ConflictPolicy, DeletionPolicy, ForEach, MaxUnavailable, OnImmutableChange, Ref,
    Resource, StatusField, Yields, graph, lint,
};
use crate::crd;
use crate::diag::{Diagnostic, Location, did_you_mean};
use crate::template::{Engine, Expr, Lets, ReadPath, Reads, Search, Segment, Text};

/// Children of one resource: far more than a person writes, few enough for quadratic checks.
const MAX_CHILDREN: usize = 500;
/// Condition types of Operetta's own.
const OWN_CONDITIONS: [&str; 5] = ["Ready", "Reconciling", "Stalled", "DeletionPending", "StatusTruncated"];
/// Status fields of Operetta's own.
const OWN_STATUS: [&str; 5] = ["conditions", "observedGeneration", "revision", "plan", "history"];
/// The variable of a forEach without `as`.
const DEFAULT_ITEM: &str = "item";

impl Compiler<'_> {
    /// Compiles one resource, with the `let`s and defaults of the package.
    pub(super) fn resource(
        &mut self,
        manifest: At<manifest::Resource>,
        shared: &[(At<String>, LetValue)],
        defaults: &Map<String, Value>,
    ) -> Option<Resource> {
        let At { value: manifest, at: location, .. } = manifest;
        let crd = manifest.crd.0.and_then(|crd| self.crd(crd));
        let own = manifest.lets.map(|lets| lets.0).unwrap_or_default();
        let lets = Arc::new(self.lets(shared, &own));
        let paused = self.optional(manifest.paused.as_ref());
        let ready_when = self.optional(manifest.ready_when.as_ref());
        let schema = crd.as_ref().and_then(|(crd, kind, _)| crd::schema_of(crd, &kind.version));
        let status = self.status(manifest.status.map(|status| status.0).unwrap_or_default(), schema);
        let conditions = self.conditions(manifest.conditions.unwrap_or_default());
        let namespaced = crd.as_ref().is_none_or(|(_, kind, _)| kind.namespaced);
        let refs = self.refs(&manifest.refs.unwrap_or_default(), namespaced);
        let refs = self.ordered_refs(refs, &lets);
        let (mut manifests, groups) = self.flatten(manifest.children.unwrap_or_default());
        if let Some(first) = manifests.get(MAX_CHILDREN) {
            let message = format!("{} children are more than {MAX_CHILDREN}", manifests.len());
            self.diagnostics.push(first.child.id.error("package::budget", message));
            manifests.truncate(MAX_CHILDREN);
        }
        let children = manifests.iter().map(|child| self.child(child, &groups, namespaced)).collect();
        self.same_objects(&manifests);
        self.former_ids(&manifests);

        let (crd, kind, crd_location) = match crd {
            Some((crd, kind, location)) => (Some(crd), Some(kind), Some(location)),
            None => (None, None, None),
        };
        let parts = Parts { lets, paused, ready_when, refs, children, status, conditions };
        let schema =
            crd.as_ref().zip(kind.as_ref()).and_then(|(crd, kind)| crd::schema_of(crd, &kind.version));
        let known = lint::Known { schema, namespaced, defaults, complete: self.complete };
        let found = lint::resource(&self.engine, &parts, &known);
        self.diagnostics.extend(found);
        let engine = Arc::clone(&self.engine);
        let reads_cluster = parts
            .uses(&engine)
            .iter()
            .flat_map(|usage| graph::follow([usage.reads], &parts.lets))
            .any(|path| path.root == "cluster");
        let Parts { lets, paused, ready_when, refs, children, status, conditions } =
            self.ordered(parts, &manifests)?;
        Some(Resource {
            crd: crd?,
            crd_location: crd_location?,
            kind: kind?,
            adopt: manifest.adopt.unwrap_or_default(),
            lets,
            paused,
            ready_when,
            refs,
            children,
            reads_cluster,
            status,
            conditions,
            location,
        })
    }

    fn note<T>(&mut self, result: Result<T, Diagnostic>, path: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(mut error) => {
                error.path.get_or_insert_with(|| path.to_owned());
                self.diagnostics.push(error);
                self.complete = false;
                None
            }
        }
    }

    /// Children and groups as children alone.
    fn flatten(&mut self, entries: Vec<manifest::ChildEntry>) -> (Vec<Flat>, Vec<Group>) {
        let mut children = Vec::with_capacity(entries.len());
        let mut groups = Vec::new();
        for entry in entries {
            let group = match entry {
                manifest::ChildEntry::Child(child) => {
                    children.push(Flat { child: *child, group: None });
                    continue;
                }
                manifest::ChildEntry::Group(group) => *group,
            };
            let number = groups.len();
            groups.push(Group {
                for_each: group.for_each.as_ref().and_then(|for_each| self.for_each(for_each)),
                when: self.optional(group.when.as_ref()),
            });
            let members = group.children.0.unwrap_or_default();
            if let Some(first) = members.first()
                && group.for_each.is_none()
                && group.when.is_none()
            {
                let error = first.id.error("package::missing", "the group shares neither forEach nor `when`");
                self.diagnostics.push(error.help("give it one, or list its children outside of it"));
            }
            for child in members {
                if child.for_each.is_some() {
                    let message = format!("`{}` is in a group, whose forEach it shares", child.id.value.0);
                    let error = child.id.error("package::value", message);
                    self.diagnostics.push(error.help("remove its forEach, or list it outside of the group"));
                }
                children.push(Flat { child, group: Some(number) });
            }
        }
        (children, groups)
    }

    pub(super) fn expression(&mut self, source: &Expression) -> Option<Expr> {
        let result = self.engine.expression(&source.0.value, &source.0.at);
        let expr = self.note(result, &source.0.path)?;
        self.generates_nothing(&expr.reads().generates);
        Some(expr)
    }

    /// What is made once stands in templates of Secrets and nowhere else.
    fn generates_nothing(&mut self, places: &[Location]) {
        for place in places {
            let message = "a password or a certificate can only be made in the template of a Secret";
            let error = Diagnostic::error("package::password", message).located(place.clone());
            self.diagnostics
                .push(error.help("write it there, alone: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`"));
        }
    }

    pub(super) fn optional(&mut self, source: Option<&Expression>) -> Option<Expr> {
        source.and_then(|source| self.expression(source))
    }

    pub(super) fn text(&mut self, source: &At<String>) -> Option<Text> {
        let result = self.engine.text(&source.value, &source.at);
        let text = self.note(result, &source.path)?;
        self.generates_nothing(&text.reads().generates);
        Some(text)
    }

    /// Those of the resource go before those of the package.
    fn lets(&mut self, shared: &[(At<String>, LetValue)], own: &[(At<String>, LetValue)]) -> Lets {
        let mut texts = HashMap::new();
        let mut places = HashMap::new();
        for (name, value) in shared.iter().chain(own) {
            let text = match value {
                LetValue::Text(source) => self.text(source),
                LetValue::Constant(value) => Some(Text::literal(value.clone())),
            };
            texts.insert(name.value.clone(), text.unwrap_or_else(|| Text::literal(Value::Null)));
            places.insert(name.value.clone(), name);
        }
        let lets = Lets::new(texts);
        if let Some(cycle) = lets.cycle()
            && let Some(name) = cycle.first().and_then(|name| places.get(name))
        {
            let round: Vec<_> = cycle.iter().map(|name| format!("let.{name}")).collect();
            let message = format!("these values need each other: {}", round.join(" -> "));
            self.diagnostics.push(name.error("package::cycle", message));
        }
        lets
    }

    fn status(&mut self, fields: Vec<manifest::StatusField>, schema: Option<&Value>) -> Vec<StatusField> {
        let mut found = Vec::with_capacity(fields.len());
        for field in fields {
            let first = field.name.value.split('.').next().unwrap_or_default();
            if OWN_STATUS.contains(&first) {
                let error =
                    field.name.error("package::reserved", format!("status.{first} is Operetta's own"));
                self.diagnostics.push(error.help("choose another name"));
            }
            let shown = match &field.value {
                StatusValue::Expression(source) => self.expression(source).map(|expr| (expr, None)),
                StatusValue::JsonPath(source) => {
                    let result = self.engine.json_path(&source.value, &source.at);
                    self.note(result, &source.path)
                }
            };
            if let Some((expr, search)) = shown {
                let path: Vec<&str> = std::iter::once("status").chain(field.name.value.split('.')).collect();
                let scalar = matches!(
                    schema.map(|schema| crd::lookup(schema, &path)),
                    Some(crd::Lookup::Known(declared)) if declared.get("type").is_some_and(|kind| kind != "array")
                );
                let one = scalar || search.as_ref().is_some_and(Search::is_singular);
                found.push(StatusField {
                    name: field.name.value,
                    expr,
                    search,
                    one,
                    location: field.name.at,
                });
            }
        }
        found
    }

    fn conditions(&mut self, conditions: Vec<manifest::Condition>) -> Vec<Condition> {
        let mut found: Vec<Condition> = Vec::with_capacity(conditions.len());
        for condition in conditions {
            let name = &condition.condition_type;
            if OWN_CONDITIONS.contains(&name.value.0.as_str()) {
                let message = format!("the condition {} is Operetta's own", name.value.0);
                self.diagnostics.push(name.error("package::reserved", message).help("choose another type"));
            }
            if found.iter().any(|other| other.type_ == name.value.0) {
                let message = format!("the condition {} stands here twice", name.value.0);
                self.diagnostics.push(name.error("package::duplicate", message));
            }
            let when = self.expression(&condition.when);
            let message = match &condition.message {
                Some(TemplateText(source)) => self.text(source),
                None => Some(Text::literal(Value::String(String::new()))),
            };
            if let (Some(when), Some(message)) = (when, message) {
                let (type_, reason) = (condition.condition_type.value.0, condition.reason.value.0);
                found.push(Condition { type_, when, reason, message });
            }
        }
        found
    }

    fn child(&mut self, flat: &Flat, groups: &[Group], namespaced: bool) -> Child {
        let manifest = &flat.child;
        let group = flat.group.and_then(|group| groups.get(group));
        let own_loop = manifest.for_each.as_ref().filter(|_| group.is_none());
        let mut child = Child {
            id: manifest.id.value.0.clone(),
            template: String::new(),
            kinds: Vec::new(),
            when: self.optional(manifest.when.as_ref()),
            for_each: match group {
                Some(group) => group.for_each.clone(),
                None => own_loop.and_then(|for_each| self.for_each(for_each)),
            },
            group: flat.group,
            group_when: group.and_then(|group| group.when.clone()),
            feeds_back: false,
            max_unavailable: manifest.max_unavailable.as_ref().and_then(|max| self.max_unavailable(max)),
            depends_on: Vec::new(),
            depth: 0,
            ready_when: self.optional(manifest.ready_when.as_ref()),
            deletion_policy: DeletionPolicy::Delete,
            policy_chosen: manifest.deletion_policy.is_some(),
            renamed_from: manifest.renamed_from.iter().flatten().map(|id| id.value.clone()).collect(),
            adopt: manifest.adopt.unwrap_or_default(),
            conflict_policy: manifest.conflict_policy.unwrap_or(ConflictPolicy::Force),
            on_immutable_change: manifest
                .on_immutable_change
                .as_ref()
                .map_or_else(Default::default, |on| on.value),
            yields: manifest.yields.as_ref().and_then(|yields| self.yields(yields)),
            reads_live: Vec::new(),
            ordered: false,
            namespaces: if namespaced { Namespaces::default() } else { Namespaces::any() },
            location: manifest.id.at.clone(),
        };
        if manifest.max_unavailable.is_some() && manifest.for_each.is_none() && flat.group.is_none() {
            let error = manifest.id.error("package::value", "maxUnavailable is for children with forEach");
            self.diagnostics.push(error.help("remove it"));
        }
        if let Some(path) = &manifest.template.0 {
            self.template(&mut child, path, namespaced);
        }
        let holds_data = child.kinds.iter().any(|(api_version, kind)| holds_data(api_version, kind));
        child.deletion_policy = manifest.deletion_policy.unwrap_or_else(|| {
            if !holds_data {
                return DeletionPolicy::Delete;
            }
            self.diagnostics.push(no_choice(&child));
            DeletionPolicy::Retain
        });
        self.may_recreate(&child, manifest, holds_data);
        self.passwords(&child, manifest);
        child
    }

    /// Who generates something must say what its loss means, for nobody can render it again.
    fn passwords(&mut self, child: &Child, manifest: &manifest::Child) {
        let engine = Arc::clone(&self.engine);
        let Some(template) = engine.template(&child.template) else { return };
        let places = &template.reads().generates;
        if places.is_empty() {
            return;
        }
        if child
            .kinds
            .iter()
            .any(|(api_version, kind)| (api_version.as_str(), kind.as_str()) != ("v1", "Secret"))
        {
            return self.generates_nothing(places);
        }
        if manifest.on_loss.is_none() {
            let message = format!("`{}` holds what is generated: say what happens when it is lost", child.id);
            let error = Diagnostic::error("package::password", message).located(child.location.clone());
            self.diagnostics.push(error.help("add onLoss: Recreate, which makes a new one"));
        }
    }

    /// To make an object anew is to delete it: nothing for what holds data or is to stay.
    fn may_recreate(&mut self, child: &Child, manifest: &manifest::Child, holds_data: bool) {
        let Some(on) = manifest.on_immutable_change.as_ref() else { return };
        if on.value != OnImmutableChange::Recreate {
            return;
        }
        let kind = child.kinds.first().map_or("", |(_, kind)| kind.as_str());
        let message = if holds_data {
            format!("`{}` is a {kind} and holds data: it cannot be deleted to be made anew", child.id)
        } else if self.engine.template(&child.template).is_some_and(|t| !t.reads().generates.is_empty()) {
            format!("`{}` holds what is generated, which would be another one in the new object", child.id)
        } else if child.deletion_policy != DeletionPolicy::Delete {
            format!("`{}` is to stay: it cannot be deleted to be made anew", child.id)
        } else {
            return;
        };
        let error = on.error("package::recreate", message);
        self.diagnostics.push(error.help("take out onImmutableChange: Recreate"));
    }

    fn template(&mut self, child: &mut Child, path: &At<String>, namespaced: bool) {
        if self.file(path, "templates/").is_none() {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let Some(template) = engine.template(&path.value) else {
            self.complete = false; // it does not compile, which was said
            return;
        };
        child.template.clone_from(&path.value);
        if let Some(kinds) = self.note(template.kinds().map(<[_]>::to_vec), &path.path) {
            child.kinds = kinds;
        }
        if namespaced {
            let outline = self.outlines.get(&path.value);
            child.namespaces = Namespaces::of(template.source(), outline, &mut self.diagnostics);
        }
    }

    pub(super) fn for_each(&mut self, manifest: &manifest::ForEach) -> Option<ForEach> {
        let in_ = manifest.list.0.as_ref().and_then(|list| self.expression(list));
        let key = self.optional(manifest.key.as_ref());
        let as_ = manifest.name.as_ref().map_or(DEFAULT_ITEM, |name| name.value.0.as_str()).to_owned();
        if let Some(name) = &manifest.name
            && (lint::ROOTS.contains(&as_.as_str()) || lint::LATER.contains(&as_.as_str()))
        {
            let error = name.error("package::reserved", format!("`{as_}` is a variable of Operetta's own"));
            self.diagnostics.push(error.help("choose another name"));
        }
        Some(ForEach { in_: in_?, as_, key })
    }

    fn max_unavailable(&mut self, source: &At<manifest::MaxUnavailable>) -> Option<MaxUnavailable> {
        Some(match &source.value {
            manifest::MaxUnavailable::Number(number) => MaxUnavailable::Number(*number),
            manifest::MaxUnavailable::Percent(percent) => MaxUnavailable::Percent(*percent),
            manifest::MaxUnavailable::Text(text) => {
                let source = At { value: text.clone(), at: source.at.clone(), path: source.path.clone() };
                MaxUnavailable::Text(self.text(&source)?)
            }
        })
    }

    fn yields(&mut self, source: &manifest::Yields) -> Option<Yields> {
        Some(match source {
            manifest::Yields::One(source) => Yields::One(self.text(&source.0)?),
            manifest::Yields::List(sources) => {
                Yields::List(sources.iter().filter_map(|source| self.text(&source.0)).collect())
            }
        })
    }

    /// Two children that always exist must not be one object.
    fn same_objects(&mut self, manifests: &[Flat]) {
        let mut ids = HashSet::new();
        let mut objects = HashMap::new();
        for Flat { child: manifest, group } in manifests {
            let id = &manifest.id;
            if !ids.insert(id.value.0.as_str()) {
                let error =
                    id.error("package::duplicate", format!("two children have the id `{}`", id.value.0));
                self.diagnostics.push(error.help("rename one of them"));
                continue;
            }
            let Some(path) = manifest.template.0.as_ref().map(|path| path.value.as_str()) else { continue };
            if manifest.when.is_some() || manifest.for_each.is_some() || group.is_some() {
                continue;
            }
            let kind =
                self.engine.template(path).and_then(|template| template.kinds().ok()?.first().cloned());
            let name = self.outlines.get(path).and_then(super::outline::Outline::name);
            let (Some(kind), Some(name)) = (kind, name) else { continue };
            if let Some(other) = objects.insert((kind.clone(), name.to_owned()), &id.value.0) {
                let message =
                    format!("`{}` and `{other}` are one object: both are the {} {name}", id.value.0, kind.1);
                self.diagnostics
                    .push(id.error("package::same-object", message).help("give them different names"));
            }
        }
    }

    /// An id has one child, today and formerly: else nobody could tell whose the objects are.
    fn former_ids(&mut self, manifests: &[Flat]) {
        let ids: HashSet<&str> = manifests.iter().map(|flat| flat.child.id.value.0.as_str()).collect();
        let mut former = HashSet::new();
        for id in manifests.iter().flat_map(|flat| flat.child.renamed_from.iter().flatten()) {
            let message = if ids.contains(id.value.as_str()) {
                format!("`{}` is a child of this version: its objects are its own", id.value)
            } else if !former.insert(id.value.as_str()) {
                format!("two children were renamed from `{}`", id.value)
            } else {
                continue;
            };
            let error = id.error("package::renamed", message);
            self.diagnostics.push(error.help("renamedFrom lists ids that no child has any more, each once"));
        }
    }

    /// Finds the edges and puts dependencies first.
    fn ordered(&mut self, mut parts: Parts, manifests: &[Flat]) -> Option<Parts> {
        let mut index: HashMap<&str, usize> = HashMap::new();
        for (place, flat) in manifests.iter().enumerate() {
            index.entry(&flat.child.id.value.0).or_insert(place);
        }
        let mut edges = vec![BTreeSet::new(); manifests.len()];
        for (child, flat) in manifests.iter().enumerate() {
            for on in flat.child.depends_on.iter().flatten() {
                match index.get(on.value.as_str()) {
                    Some(&on_index) if on_index == child => {
                        self.diagnostics.push(on.error("package::cycle", "a child cannot depend on itself"));
                    }
                    Some(&on_index) => {
                        edges[child].insert(on_index);
                    }
                    None if self.complete => {
                        let error =
                            on.error("package::unknown-child", format!("there is no child `{}`", on.value));
                        let near = did_you_mean(&on.value, index.keys().copied());
                        self.diagnostics.push(match near {
                            Some(near) => error.help(format!("did you mean `{near}`?")),
                            None => error,
                        });
                    }
                    None => {}
                }
            }
        }
        let mut live = vec![Vec::new(); manifests.len()];
        let mut refs: Vec<RefReads> = parts.refs.iter().map(|_| RefReads::default()).collect();
        let mut feeds_back = vec![false; manifests.len()];
        let engine = Arc::clone(&self.engine);
        for usage in parts.uses(&engine) {
            for path in graph::follow([usage.reads], &parts.lets) {
                if let Some(child) = usage.child.filter(|_| reads_back(path)) {
                    feeds_back[child] = true;
                }
                if let ("refs", [Segment::Key(id), rest @ ..]) =
                    (path.root.as_str(), path.segments.as_slice())
                    && let Some(place) = parts.refs.iter().position(|reference| reference.id == *id)
                {
                    refs[place].add(path, rest, &parts.refs[place]);
                }
                let (on, mut rest) = match (path.root.as_str(), path.segments.as_slice()) {
                    ("children", [Segment::Key(id), rest @ ..]) => (index.get(id.as_str()).copied(), rest),
                    ("self", rest) if usage.sees_self() => (usage.child, rest),
                    _ => continue,
                };
                let Some(on) = on else { continue };
                if path.root == "children" && parts.children[on].for_each.is_some() {
                    rest = rest.get(1..).unwrap_or_default(); // without the member's key
                }
                // `is ready` and its like ask of the object itself what is kept anyway.
                if !path.flag || !rest.is_empty() {
                    live[on].push(rest.to_vec());
                }
                // Its own live object is what was there before: nothing to wait for.
                if let Some(child) = usage.child.filter(|&child| usage.orders() && child != on) {
                    edges[child].insert(on);
                }
            }
        }
        let order = match graph::order(&edges) {
            Ok(order) => order,
            Err(cycle) => {
                let ids: Vec<_> = cycle
                    .iter()
                    .chain(cycle.first())
                    .map(|&child| manifests[child].child.id.value.0.as_str())
                    .collect();
                let message = format!("these children wait for each other: {}", ids.join(" -> "));
                if let Some(&first) = cycle.first() {
                    let error = manifests[first].child.id.error("package::cycle", message);
                    self.diagnostics.push(error.help("each reads the next in its template, `when`, `forEach` or `dependsOn`; break the round"));
                }
                return None;
            }
        };
        for (reference, reads) in parts.refs.iter_mut().zip(refs) {
            reference.asks_state = reads.state;
            let plain = reads.paths.iter().map(|path| super::refs::plain_prefix(path));
            let plain = plain.map(|path| path.into_iter().map(Segment::Key).collect()).collect();
            reference.reads =
                graph::outermost(plain).iter().map(|path| super::refs::plain_prefix(path)).collect();
        }
        let mut position = vec![0; order.len()];
        for (place, &child) in order.iter().enumerate() {
            position[child] = place;
        }
        for (child, (edges, live)) in edges.iter().zip(live).enumerate() {
            parts.children[child].depends_on = edges.iter().map(|&on| position[on]).collect();
            parts.children[child].depends_on.sort_unstable();
            parts.children[child].reads_live = graph::outermost(live);
            parts.children[child].feeds_back = feeds_back[child];
            parts.children[child].ordered |= !edges.is_empty();
            for &on in edges {
                parts.children[on].ordered = true;
            }
        }
        let mut children: Vec<Option<Child>> = parts.children.into_iter().map(Some).collect();
        parts.children = order.iter().filter_map(|&child| children[child].take()).collect();
        for child in 0..parts.children.len() {
            let (before, from_here) = parts.children.split_at_mut(child);
            let deepest = from_here[0].depends_on.iter().map(|&on| before[on].depth + 1).max();
            from_here[0].depth = deepest.unwrap_or(0);
        }
        Some(parts)
    }
}

/// A child as it is written, and the group that it stands in.
struct Flat {
    child: manifest::Child,
    group: Option<usize>,
}

/// What the children of a group share.
struct Group {
    for_each: Option<ForEach>,
    when: Option<Expr>,
}

/// What is read of the objects of a ref.
#[derive(Default)]
struct RefReads {
    paths: Vec<Vec<Segment>>,
    state: bool,
}

impl RefReads {
    fn add(&mut self, path: &ReadPath, rest: &[Segment], reference: &Ref) {
        // Without the key, and of a list the place in it.
        let rest = rest.get(reference.steps()..).unwrap_or_default();
        if path.flag && rest.is_empty() {
            self.state = true;
        } else if rest != [Segment::Key("error".to_owned())] || reference.is_list() {
            self.paths.push(rest.to_vec());
        }
    }
}

/// Whether it reads what may follow from what the reader itself brings about.
fn reads_back(path: &ReadPath) -> bool {
    let key = |at: usize| match path.segments.get(at) {
        Some(Segment::Key(key)) => Some(key.as_str()),
        _ => None,
    };
    match path.root.as_str() {
        "refs" | "children" | "self" => true,
        "instance" => match key(0) {
            Some("metadata") => matches!(key(1), None | Some("resourceVersion" | "managedFields")),
            Some("status") | None => true,
            Some(_) => false,
        },
        _ => false,
    }
}

/// The parts of a resource that read something.
pub(super) struct Parts {
    pub(super) lets: Arc<Lets>,
    pub(super) paused: Option<Expr>,
    pub(super) ready_when: Option<Expr>,
    pub(super) refs: Vec<Ref>,
    pub(super) children: Vec<Child>,
    pub(super) status: Vec<StatusField>,
    pub(super) conditions: Vec<Condition>,
}

/// One expression or template.
pub(super) struct Use<'a> {
    /// What it reads, `let`s not followed.
    pub(super) reads: &'a Reads,
    /// The child that it belongs to.
    pub(super) child: Option<usize>,
    /// The ref for each of whose items it is asked.
    pub(super) reference: Option<usize>,
    /// What it is there.
    pub(super) role: Role,
}

/// What an expression is for: it decides what it may see and whether it orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Of the resource: status, conditions, `paused`, `readyWhen`, refs.
    Resource,
    /// A child's `forEach.in`.
    List,
    /// Of each member of a child: `forEach.key`, `when`.
    Member,
    /// A child's `maxUnavailable`.
    MaxUnavailable,
    /// A child's `yields`.
    Yields,
    /// A child's `readyWhen`.
    ReadyWhen,
    /// Of each item of a ref with forEach: key, `when`, name, selector.
    RefItem,
    /// A child's template.
    Template,
    /// A `let` that nothing reads: it may be meant for any place.
    Anywhere,
}

impl Use<'_> {
    /// Whether it sees the child's live object.
    pub(super) fn sees_self(&self) -> bool {
        matches!(self.role, Role::ReadyWhen | Role::Template | Role::Anywhere)
    }

    /// Whether it sees the item of the forEach.
    pub(super) fn sees_item(&self) -> bool {
        matches!(self.role, Role::Member | Role::Yields | Role::ReadyWhen | Role::Template | Role::RefItem)
    }

    /// The name of that item.
    pub(super) fn item<'p>(&self, parts: &'p Parts) -> Option<&'p str> {
        let of_child = || parts.children.get(self.child?)?.for_each.as_ref();
        let of_ref = || parts.refs.get(self.reference?)?.for_each.as_ref();
        of_ref().or_else(of_child).map(|for_each| for_each.as_.as_str())
    }

    /// Whether the child waits for the children that it reads.
    pub(super) fn orders(&self) -> bool {
        matches!(self.role, Role::List | Role::Member | Role::Template)
    }
}

impl Parts {
    /// All expressions and templates of the resource, but for `let`s.
    pub(super) fn uses<'a>(&'a self, engine: &'a Engine) -> Vec<Use<'a>> {
        let mut uses = Vec::new();
        for (index, reference) in self.refs.iter().enumerate() {
            let role = if reference.for_each.is_some() { Role::RefItem } else { Role::Resource };
            let of = |role| move |reads| Use { reads, child: None, reference: Some(index), role };
            uses.extend(reference.list_reads().map(of(Role::Resource)));
            uses.extend(reference.item_reads().into_iter().map(of(role)));
        }
        let mut add = |child, role, reads| uses.push(Use { reads, child, reference: None, role });
        for expr in self.paused.iter().chain(&self.ready_when) {
            add(None, Role::Resource, expr.reads());
        }
        for field in &self.status {
            add(None, Role::Resource, field.expr.reads());
        }
        for condition in &self.conditions {
            add(None, Role::Resource, condition.when.reads());
            add(None, Role::Resource, condition.message.reads());
        }
        for (index, child) in self.children.iter().enumerate() {
            let index = Some(index);
            if let Some(for_each) = &child.for_each {
                add(index, Role::List, for_each.in_.reads());
            }
            let key = child.for_each.as_ref().and_then(|for_each| for_each.key.as_ref());
            for expr in key.into_iter().chain(&child.when).chain(&child.group_when) {
                add(index, Role::Member, expr.reads());
            }
            if let Some(expr) = &child.ready_when {
                add(index, Role::ReadyWhen, expr.reads());
            }
            if let Some(MaxUnavailable::Text(text)) = &child.max_unavailable {
                add(index, Role::MaxUnavailable, text.reads());
            }
            let yields = match &child.yields {
                Some(Yields::One(text)) => std::slice::from_ref(text),
                Some(Yields::List(texts)) => texts.as_slice(),
                None => &[],
            };
            for text in yields {
                add(index, Role::Yields, text.reads());
            }
            if let Some(template) = engine.template(&child.template) {
                add(index, Role::Template, template.reads());
            }
        }
        uses
    }
}

/// What is said of a child that holds data and whose author did not say what becomes of it.
pub(super) fn no_choice(child: &Child) -> Diagnostic {
    let message = format!("`{}` holds data: say what happens to it when it is no longer wanted", child.id);
    Diagnostic::warning("package::deletion-policy", message)
        .located(child.location.clone())
        .help("add deletionPolicy: Retain (as it is without), Ask or Delete")
}

/// Kinds whose deletion loses what nobody can render again.
fn holds_data(api_version: &str, kind: &str) -> bool {
    match kind {
        "PersistentVolumeClaim" | "PersistentVolume" | "Namespace" => api_version == "v1",
        "CustomResourceDefinition" => api_version.starts_with("apiextensions.k8s.io/"),
        _ => false,
    }
}
