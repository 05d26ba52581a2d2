//! Compiles one child, or a group of children, to a [`Child`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::compiler::{Compiler, Flat};
use super::decode::At;
use super::manifest;
use super::plan::OnLoss;
use super::template_scan::Namespaces;
use super::{
    Child, ConflictPolicy, DeletionPolicy, ForEach, ImmutableChange, MaxUnavailable, OnImmutableChange,
    Yields, holds_data, is_secret, lint,
};
use crate::diag::Diagnostic;
use crate::template::Expr;

/// The item variable of a forEach without `as`.
const DEFAULT_ITEM: &str = "item";

/// The settings that the children of a group share.
pub(super) struct Group {
    for_each: Option<ForEach>,
    when: Option<Expr>,
}

impl Compiler<'_> {
    /// Flattens children and groups to a list of children.
    pub(super) fn flatten(&mut self, entries: Vec<manifest::ChildEntry>) -> (Vec<Flat>, Vec<Group>) {
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
                let error = first.id.error("package::missing", "the group has neither forEach nor `when`");
                self.diagnostics.push(error.help("add one, or move its children out of the group"));
            }
            for child in members {
                if child.for_each.is_some() {
                    let message =
                        format!("`{}` has a forEach, but its group already has one", child.id.value.0);
                    let error = child.id.error("package::value", message);
                    self.diagnostics.push(error.help("remove its forEach, or move it out of the group"));
                }
                children.push(Flat { child, group: Some(number) });
            }
        }
        (children, groups)
    }

    pub(super) fn child(&mut self, flat: &Flat, groups: &[Group], namespaced: bool) -> Child {
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
            reads_own_output: false,
            reads_refs: Vec::new(),
            max_unavailable: manifest.max_unavailable.as_ref().and_then(|max| self.max_unavailable(max)),
            depends_on: Vec::new(),
            depth: 0,
            ready_when: self.optional(manifest.ready_when.as_ref()),
            on_loss: OnLoss::Recreate,
            lost_when: self.optional(manifest.lost_when.as_ref()),
            deletion_policy: DeletionPolicy::Delete,
            explicit_policy: manifest.deletion_policy.is_some(),
            renamed_from: manifest.renamed_from.iter().flatten().map(|id| id.value.clone()).collect(),
            adopt: manifest.adopt.unwrap_or_default(),
            conflict_policy: manifest.conflict_policy.unwrap_or(ConflictPolicy::Force),
            on_immutable_change: self.on_immutable_change(manifest.on_immutable_change.as_ref()),
            yields: manifest.yields.as_ref().and_then(|yields| self.yields(yields)),
            exposes_secret_data: manifest.exposes_secret_data.unwrap_or_default(),
            reads_live: Vec::new(),
            ordered: false,
            namespaces: if namespaced { Namespaces::default() } else { Namespaces::any() },
            location: manifest.id.at.clone(),
        };
        if manifest.max_unavailable.is_some() && manifest.for_each.is_none() && flat.group.is_none() {
            let error = manifest.id.error("package::value", "maxUnavailable requires forEach");
            self.diagnostics.push(error.help("remove it"));
        }
        if let Some(path) = &manifest.template.0 {
            self.template(&mut child, path, namespaced);
        }
        let holds_data = child.kinds.iter().any(holds_data);
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

    /// A child with generated values must set `onLoss`, because its values cannot be rendered again.
    fn passwords(&mut self, child: &Child, manifest: &manifest::Child) {
        let engine = Arc::clone(&self.engine);
        let Some(template) = engine.template(&child.template) else { return };
        let places = &template.reads().generates;
        if places.is_empty() {
            return;
        }
        if !child.kinds.iter().all(is_secret) {
            return self.generates_nothing(places);
        }
        self.diagnostics.extend(lint::generated::mistakes(template));
        if manifest.on_loss.is_none() {
            let message = format!("`{}` contains generated values and does not set onLoss", child.id);
            let error = Diagnostic::error("package::password", message).located(child.location.clone());
            self.diagnostics
                .push(error.help("add onLoss: Recreate, which generates new values when the object is lost"));
        }
    }

    /// Refuses `Recreate`, which deletes the object, for children that hold data or must stay.
    fn may_recreate(&mut self, child: &Child, manifest: &manifest::Child, holds_data: bool) {
        let Some(on) = manifest.on_immutable_change.as_ref() else { return };
        if matches!(on.value, manifest::OnImmutableChange::Word(ImmutableChange::Fail)) {
            return;
        }
        let kind = child.kinds.first().map_or("", |gvk| &gvk.kind);
        let message = if holds_data {
            format!("`{}` is a {kind} and holds data, so it cannot be recreated", child.id)
        } else if self.engine.template(&child.template).is_some_and(|t| !t.reads().generates.is_empty()) {
            format!(
                "`{}` contains generated values, which would change if the object were recreated",
                child.id
            )
        } else if child.deletion_policy != DeletionPolicy::Delete {
            format!("the deletionPolicy of `{}` does not allow recreating it", child.id)
        } else {
            return;
        };
        let error = on.error("package::recreate", message);
        self.diagnostics.push(error.help("remove onImmutableChange"));
    }

    fn template(&mut self, child: &mut Child, path: &At<String>, namespaced: bool) {
        if self.file(path, "templates/").is_none() {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let Some(template) = engine.template(&path.value) else {
            self.readable = false; // it does not compile, which is already reported
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
        self.complete &= in_.is_some(); // otherwise the name of the item is not known
        let key = self.optional(manifest.key.as_ref());
        let as_ = manifest.name.as_ref().map_or(DEFAULT_ITEM, |name| name.value.0.as_str()).to_owned();
        if let Some(name) = &manifest.name
            && lint::ROOTS.contains(&as_.as_str())
        {
            let error = name.error("package::reserved", format!("`{as_}` is a reserved variable"));
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

    fn on_immutable_change(&mut self, source: Option<&At<manifest::OnImmutableChange>>) -> OnImmutableChange {
        let fail = OnImmutableChange::Word(ImmutableChange::Fail);
        let Some(source) = source else { return fail };
        match &source.value {
            manifest::OnImmutableChange::Word(word) => OnImmutableChange::Word(*word),
            manifest::OnImmutableChange::Text(text) => {
                let source = At { value: text.clone(), at: source.at.clone(), path: source.path.clone() };
                self.text(&source).map_or(fail, OnImmutableChange::Computed)
            }
        }
    }

    fn yields(&mut self, source: &manifest::Yields) -> Option<Yields> {
        Some(match source {
            manifest::Yields::One(source) => Yields::One(self.text(&source.0)?),
            manifest::Yields::List(sources) => {
                Yields::List(sources.iter().filter_map(|source| self.text(&source.0)).collect())
            }
        })
    }

    /// Reports two children that always exist and are the same object.
    pub(super) fn same_objects(&mut self, manifests: &[Flat]) {
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
            let gvk = self.engine.template(path).and_then(|template| template.kinds().ok()?.first().cloned());
            let name = self.outlines.get(path).and_then(super::template_scan::Outline::name);
            let (Some(gvk), Some(name)) = (gvk, name) else { continue };
            if let Some(other) = objects.insert((gvk.clone(), name.to_owned()), &id.value.0) {
                let message = format!(
                    "`{}` and `{other}` are one object: both are the {} {name}",
                    id.value.0, gvk.kind
                );
                self.diagnostics
                    .push(id.error("package::same-object", message).help("give them different names"));
            }
        }
    }

    /// Reports ids that several children have or had, because their objects could not be assigned to one child.
    pub(super) fn former_ids(&mut self, manifests: &[Flat]) {
        let ids: HashSet<&str> = manifests.iter().map(|flat| flat.child.id.value.0.as_str()).collect();
        let mut former = HashSet::new();
        for id in manifests.iter().flat_map(|flat| flat.child.renamed_from.iter().flatten()) {
            let message = if ids.contains(id.value.as_str()) {
                format!("`{}` is the id of a child of this version", id.value)
            } else if !former.insert(id.value.as_str()) {
                format!("two children were renamed from `{}`", id.value)
            } else {
                continue;
            };
            let error = id.error("package::renamed", message);
            self.diagnostics.push(error.help("list only ids that no child has now, each id once"));
        }
    }
}

/// The warning about a child that holds data and has no explicit deletion policy.
pub(super) fn no_choice(child: &Child) -> Diagnostic {
    let message = format!("`{}` holds data and has no deletionPolicy", child.id);
    Diagnostic::warning("package::deletion-policy", message)
        .located(child.location.clone())
        .help("add deletionPolicy: Retain (the default for this kind), Ask or Delete")
}
