//! Checks one resource: the types of its expressions, and the results of its templates and its status.

use std::collections::HashMap;

use serde_json::Value;

use super::super::plan::{Http, Step};
use super::super::{Call, Child, Package, Ref, RefSource, Resource, Tree, Yields};
use super::catalog::{Catalog, KindLookup};
use crate::api::{BuiltIn, Gvk};
use crate::crd::{self, Lookup};
use crate::diag::{Diagnostic, Location};
use crate::template::{Expr, Infer};
use operetta_lang::schema::{Basic, Conform, Field, Fields, Schema, Shape, Type};

/// Reports all type errors of one resource.
pub(super) fn check(
    package: &Package,
    resource: &Resource,
    catalog: &Catalog<'_>,
    rules: &str,
) -> Vec<Diagnostic> {
    let mut check = Check {
        package,
        resource,
        catalog,
        infer: Infer::new(&package.engine, &resource.lets, rules),
        outputs: HashMap::new(),
        found: Vec::new(),
    };
    check.variables();
    check.keys();
    for reference in &resource.refs {
        check.reference(reference);
    }
    for child in &resource.children {
        check.child(child);
    }
    check.instance();
    for plan in &resource.plans {
        check.plan(plan);
    }
    let mut found = check.infer.take_found();
    found.extend(check.found);
    found
}

pub(super) struct Check<'a> {
    pub(super) package: &'a Package,
    pub(super) resource: &'a Resource,
    pub(super) catalog: &'a Catalog<'a>,
    pub(super) infer: Infer<'a>,
    /// The types of the outputs of steps.
    pub(super) outputs: HashMap<*const Step, Vec<(String, Type<'a>)>>,
    pub(super) found: Vec<Diagnostic>,
}

/// The type of a variable that a step's answer sets.
pub(super) fn answer<'a>(name: &str) -> Type<'a> {
    match name {
        "stdout" | "stderr" => Type::string(),
        "exitCode" | "status" => Type::of(Basic::INT),
        _ => Type::any(),
    }
}

pub(super) fn map<'a>(entries: impl IntoIterator<Item = (String, Type<'a>)>, is_open: bool) -> Type<'a> {
    let entries = entries.into_iter().map(|(key, value)| Field { key, at: None, value }).collect();
    Type::map(Fields { entries, is_open })
}

impl<'a> Check<'a> {
    /// Binds the variables that every expression sees.
    fn variables(&mut self) {
        let resource = self.resource;
        for name in ["name", "namespace"] {
            let known = name == "name" || resource.kind.namespaced;
            self.infer.set(name, if known { Type::string() } else { Type::any() });
        }
        self.infer.set("labels", Type::each(Basic::MAP, Type::string()));
        let operator = ["name", "version", "appVersion", "revision", "namespace"];
        self.infer.set("operator", map(operator.map(|key| (key.to_owned(), Type::string())), true));
        self.infer.set("defaults", Type::literal(&self.package.defaults).widened());
        if let KindLookup::Custom(schema) = self.catalog.find(&resource.kind.gvk()) {
            self.infer.set("instance", Type::of_schema(schema));
            if let operetta_lang::schema::Lookup::Known(spec) = schema.field("spec") {
                self.infer.set("spec", Type::of_schema(spec));
            }
        }
        for root in ["children", "retained"] {
            let children = resource.children.iter().map(|child| {
                let object = self.object(child);
                let is_map = child.for_each.is_some();
                (child.id.clone(), if is_map { Type::each(Basic::MAP, object) } else { object })
            });
            let children = map(children.collect::<Vec<_>>(), true);
            self.infer.set(root, children);
        }
        let refs: Vec<_> = resource.refs.iter().map(|r| (r.id.clone(), self.reference_type(r))).collect();
        self.infer.set("refs", map(refs, true));
    }

    /// The type of a child's live object.
    fn object(&self, child: &Child) -> Type<'a> {
        let types: Vec<_> = child.kinds.iter().map(|gvk| self.live(gvk)).collect();
        Type::one_of(types)
    }

    /// The type of a live object of a kind.
    fn live(&self, gvk: &Gvk) -> Type<'a> {
        match self.catalog.find(gvk) {
            KindLookup::BuiltIn(schema) | KindLookup::Custom(schema) => Type::of_schema(schema),
            KindLookup::Wrong(_) | KindLookup::Foreign => Type::any(),
        }
    }

    fn reference_type(&self, reference: &Ref) -> Type<'a> {
        let object = reference.gvk.as_ref().map_or_else(Type::any, |gvk| self.live(gvk));
        let one = match &reference.target {
            RefSource::Name(..) => object,
            RefSource::Select(..) => Type::each(Basic::LIST, object),
            RefSource::Observe(observation) => {
                let fields = observation.fields().iter().map(|name| ((*name).to_owned(), answer(name)));
                map(fields.collect::<Vec<_>>(), true)
            }
        };
        if reference.for_each.is_some() { Type::each(Basic::MAP, one) } else { one }
    }

    fn reference(&mut self, reference: &'a Ref) {
        self.infer.refuel();
        if let Some(gvk) = &reference.gvk
            && let KindLookup::Wrong(problem) = self.catalog.find(gvk)
        {
            self.found.push(problem.diagnostic().located(reference.location.clone()));
        }
        let mark = self.infer.mark();
        if let Some(for_each) = &reference.for_each {
            self.items(&for_each.in_, &for_each.as_);
            if let Some(key) = &for_each.key {
                self.infer.needed(key);
            }
        }
        if let Some(when) = &reference.when {
            self.infer.expression(when);
            self.infer.assume(when);
        }
        match &reference.target {
            RefSource::Name(name, _) => {
                self.infer.text(name);
            }
            RefSource::Select(tree, _) => self.tree(tree),
            RefSource::Observe(observation) => {
                for text in reference.target_texts() {
                    self.infer.text(text);
                }
                if let Call::Http(http) = &observation.call {
                    self.port(http);
                }
            }
        }
        self.infer.forget(mark);
        if let Some(for_each) = &reference.for_each {
            self.infer.unset(&for_each.as_);
        }
    }

    /// Checks that the port of a pod is a number.
    pub(super) fn port(&mut self, http: &'a Http) {
        let Some(to) = &http.to else { return };
        let ty = self.infer.text(&to.port);
        if ty.basic.value().misses(Basic::INT) {
            let message = "the port of a pod must be an integer";
            let error = Diagnostic::error("package::type", message);
            let error = to.port.location().map_or(error.clone(), |at| error.located(at));
            self.found.push(error.help("write a number, or take it from a field of type integer"));
        }
    }

    fn tree(&mut self, tree: &'a Tree) {
        match tree {
            Tree::Text(text) => {
                self.infer.text(text);
            }
            Tree::List(items) => items.iter().for_each(|item| self.tree(item)),
            Tree::Map(entries) => entries.iter().for_each(|(_, value)| self.tree(value)),
        }
    }

    /// Checks the list of a forEach and binds the variable of its items.
    pub(super) fn items(&mut self, list: &'a Expr, name: &str) -> Type<'a> {
        let ty = self.infer.needed(list);
        let ty = self.infer.looped(ty, list);
        self.infer.set(name, ty.clone());
        ty
    }

    fn child(&mut self, child: &'a Child) {
        self.infer.refuel();
        let mark = self.infer.mark();
        if let Some(for_each) = &child.for_each {
            self.items(&for_each.in_, &for_each.as_);
        }
        for when in child.group_when.iter().chain(&child.when) {
            self.infer.expression(when);
            self.infer.assume(when);
        }
        if let Some(key) = child.for_each.as_ref().and_then(|for_each| for_each.key.as_ref()) {
            self.infer.needed(key);
        }
        for (key, text) in child.settings() {
            let ty = self.infer.text(text);
            let at = text.location().unwrap_or_else(|| child.location.clone());
            self.setting(child, key, &ty, &at);
        }
        match &child.yields {
            Some(Yields::One(text)) => {
                self.infer.text(text);
            }
            Some(Yields::List(texts)) => {
                for text in texts {
                    self.infer.text(text);
                }
            }
            None => {}
        }
        let object = self.object(child);
        self.infer.set("self", object);
        if let Some(ready_when) = &child.ready_when {
            self.infer.reports_absent = false;
            self.infer.expression(ready_when);
            self.infer.reports_absent = true;
        }
        self.template(&child.template, &child.kinds, &child.location);
        self.infer.unset("self");
        self.infer.forget(mark);
        if let Some(for_each) = &child.for_each {
            self.infer.unset(&for_each.as_);
        }
    }

    /// Checks that a setting of a child yields one of the allowed words.
    fn setting(&mut self, child: &Child, key: &str, ty: &Type<'a>, at: &Location) {
        let plans = self.resource.plans.iter().map(|plan| plan.name.as_str());
        let words: Vec<&str> = match key {
            "onImmutableChange" => vec!["Fail", "Recreate", "Orphan"],
            "onLoss" => std::iter::once("Recreate").chain(plans).collect(),
            _ => return,
        };
        if let Shape::OneOf(types) = &ty.shape {
            return types.iter().for_each(|ty| self.setting(child, key, ty, at));
        }
        let is_word = match &ty.shape {
            Shape::Literal(value) => value.as_str().is_some_and(|word| words.contains(&word)),
            _ => ty.basic.overlaps(Basic::STRING),
        };
        if !is_word {
            let message = format!("{key} of `{}` must be one of {}", child.id, words.join(", "));
            self.found.push(Diagnostic::error("package::choice", message).located(at.clone()));
        }
    }

    /// Checks each variant of a template.
    pub(super) fn template(&mut self, path: &str, kinds: &'a [Gvk], at: &Location) {
        let Some(template) = self.package.engine.template(path) else { return };
        let documents = self.infer.template(template);
        let mut checks: Vec<(Gvk, Conform<'a>)> = Vec::new();
        let mut seen = false;
        for document in &documents {
            let Shape::Map(fields) = &document.shape else { continue };
            let text = |key: &str| {
                let field = fields.entries.iter().find(|field| field.key == key)?;
                let at = field.value.at.clone().or_else(|| field.at.clone())?;
                Some((field.value.as_text()?.to_owned(), at))
            };
            let (Some((api_version, version_at)), Some((kind, kind_at))) = (text("apiVersion"), text("kind"))
            else {
                continue;
            };
            seen = true;
            let gvk = Gvk::new(api_version, kind);
            let (schema, built_in) = match self.catalog.find(&gvk) {
                KindLookup::BuiltIn(schema) => {
                    self.namespace(fields, &gvk);
                    (schema, true)
                }
                KindLookup::Custom(schema) => (schema, false),
                KindLookup::Wrong(problem) => {
                    let at = if problem.is_version { version_at } else { kind_at };
                    self.found.push(problem.diagnostic().located(at));
                    continue;
                }
                KindLookup::Foreign => continue,
            };
            let index = checks.iter().position(|(known, _)| *known == gvk).unwrap_or_else(|| {
                // The name is taken from `kinds`, which lives as long as the package.
                let name = kinds.iter().map(|known| &*known.kind).find(|known| **known == *gvk.kind);
                let what = format!("{} {}", article(&gvk.kind), gvk.kind);
                checks.push((gvk, Conform::new(what, name.filter(|_| built_in), Some(schema))));
                checks.len() - 1
            });
            if let Some((_, check)) = checks.get_mut(index) {
                let mut bare = document.clone();
                bare.at = None;
                check.check(&bare, schema, &kind_at);
            }
        }
        for (_, check) in checks {
            self.found.extend(check.finish());
        }
        if !seen {
            for gvk in kinds {
                if let KindLookup::Wrong(problem) = self.catalog.find(gvk) {
                    self.found.push(problem.diagnostic().located(at.clone()));
                }
            }
        }
    }

    /// Reports `metadata.namespace` in a cluster-scoped object.
    fn namespace(&mut self, fields: &Fields<'a>, gvk: &Gvk) {
        let kind = &gvk.kind;
        let is_namespaced = BuiltIn::find(gvk.group(), kind).is_none_or(|known| known.namespaced);
        let metadata = fields.entries.iter().find(|field| field.key == "metadata");
        let Some(Shape::Map(metadata)) = metadata.map(|field| &field.value.shape) else { return };
        let Some(field) = metadata.entries.iter().find(|field| field.key == "namespace" && !is_namespaced)
        else {
            return;
        };
        let message = format!("{} {kind} has no namespace", article(kind));
        let found = Diagnostic::warning("schema::namespace", message).path("metadata.namespace");
        let found = found.help("remove `namespace`: the kind is cluster-scoped");
        self.found.push(Diagnostic { location: field.at.clone(), ..found });
    }

    /// Checks status, conditions and `readyWhen`. Absent values are allowed there.
    fn instance(&mut self) {
        self.infer.reports_absent = false;
        let resource = self.resource;
        self.infer.refuel();
        for expr in resource.paused.iter().chain(&resource.ready_when) {
            self.infer.expression(expr);
        }
        for condition in &resource.conditions {
            self.infer.refuel();
            self.infer.expression(&condition.when);
            let mark = self.infer.mark();
            self.infer.assume(&condition.when);
            self.infer.text(&condition.message);
            self.infer.forget(mark);
        }
        let schema = crd::schema_of(&resource.crd, &resource.kind.version);
        for field in &resource.status {
            self.infer.refuel();
            let ty = self.infer.expression(&field.expr);
            if field.search.is_none()
                && let Some(schema) = schema
            {
                self.status(&field.name, &ty, schema, &Infer::place(&field.expr));
            }
        }
        for (_, text) in resource.lets.iter() {
            self.infer.refuel();
            self.infer.text(text);
        }
        self.infer.reports_absent = true;
    }

    /// Checks the value of a status field against the CRD's schema of that field.
    fn status(&mut self, name: &str, ty: &Type<'a>, schema: &'a Value, at: &Location) {
        let path: Vec<&str> = std::iter::once("status").chain(name.split('.')).collect();
        let Lookup::Known(declared) = crd::lookup(schema, &path) else { return };
        let kind = &self.resource.kind.kind;
        let check = Conform::new(format!("{} {kind}", article(kind)), None, None);
        let mut check = check.below(&format!("status.{name}"));
        let mut ty = ty.clone().without(Basic::ABSENT);
        ty.at = None;
        check.check(&ty, Schema::new(declared, self.catalog.kubernetes), at);
        self.found.extend(check.finish());
    }
}

fn article(noun: &str) -> &'static str {
    if noun.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" }
}
