//! One resource: the types of its expressions, and what its templates and its status give.

use serde_json::Value;

use super::super::{Child, MaxUnavailable, Package, Ref, RefTarget, Resource, Tree, Yields};
use super::catalog::{Catalog, Known};
use crate::crd::{self, Lookup};
use crate::diag::{Diagnostic, Location};
use crate::schema::{Basic, Conform, Field, Fields, Schema, Shape, Type};
use crate::template::{Expr, Infer};

/// All that the types say of one resource.
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
        found: Vec::new(),
    };
    check.variables();
    for reference in &resource.refs {
        check.reference(reference);
    }
    for child in &resource.children {
        check.child(child);
    }
    check.instance();
    let mut found = check.infer.take_found();
    found.extend(check.found);
    found
}

struct Check<'a> {
    package: &'a Package,
    resource: &'a Resource,
    catalog: &'a Catalog<'a>,
    infer: Infer<'a>,
    found: Vec<Diagnostic>,
}

fn map<'a>(entries: impl IntoIterator<Item = (String, Type<'a>)>, is_open: bool) -> Type<'a> {
    let entries = entries.into_iter().map(|(key, value)| Field { key, at: None, value }).collect();
    Type::map(Fields { entries, is_open })
}

impl<'a> Check<'a> {
    /// The variables that every expression sees.
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
        if let Known::Custom(schema) = self.catalog.find(&resource.kind.api_version(), &resource.kind.kind) {
            self.infer.set("instance", Type::of_schema(schema));
            if let crate::schema::Lookup::Known(spec) = schema.field("spec") {
                self.infer.set("spec", Type::of_schema(spec));
            }
        }
        let children = resource.children.iter().map(|child| {
            let object = self.object(child);
            (child.id.clone(), if child.for_each.is_some() { Type::each(Basic::MAP, object) } else { object })
        });
        let children = map(children.collect::<Vec<_>>(), true);
        self.infer.set("children", children);
        let refs: Vec<_> = resource.refs.iter().map(|r| (r.id.clone(), self.reference_type(r))).collect();
        self.infer.set("refs", map(refs, true));
    }

    /// A live object of a child.
    fn object(&self, child: &Child) -> Type<'a> {
        let types: Vec<_> = child.kinds.iter().map(|(version, kind)| self.live(version, kind)).collect();
        Type::one_of(types)
    }

    /// A live object of a kind.
    fn live(&self, api_version: &str, kind: &str) -> Type<'a> {
        match self.catalog.find(api_version, kind) {
            Known::BuiltIn(schema) | Known::Custom(schema) => Type::of_schema(schema),
            Known::Wrong(_) | Known::Foreign => Type::any(),
        }
    }

    fn reference_type(&self, reference: &Ref) -> Type<'a> {
        let object = self.live(&reference.api_version, &reference.kind);
        let one = match &reference.target {
            RefTarget::Name(..) => object,
            RefTarget::Select(..) => Type::each(Basic::LIST, object),
        };
        if reference.for_each.is_some() { Type::each(Basic::MAP, one) } else { one }
    }

    fn reference(&mut self, reference: &'a Ref) {
        self.infer.refuel();
        if let Known::Wrong(problem) = self.catalog.find(&reference.api_version, &reference.kind) {
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
            RefTarget::Name(name, _) => {
                self.infer.text(name);
            }
            RefTarget::Select(tree, _) => self.tree(tree),
        }
        self.infer.forget(mark);
        if let Some(for_each) = &reference.for_each {
            self.infer.unset(&for_each.as_);
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

    /// The list of a forEach, and the variable of its items.
    fn items(&mut self, list: &'a Expr, name: &str) {
        let ty = self.infer.needed(list);
        let ty = self.infer.looped(ty, list);
        self.infer.set(name, ty);
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
        if let Some(MaxUnavailable::Text(text)) = &child.max_unavailable {
            self.infer.text(text);
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
        self.template(child);
        self.infer.unset("self");
        self.infer.forget(mark);
        if let Some(for_each) = &child.for_each {
            self.infer.unset(&for_each.as_);
        }
    }

    /// What the template of a child gives, in each of its variants.
    fn template(&mut self, child: &'a Child) {
        let Some(template) = self.package.engine.template(&child.template) else { return };
        let documents = self.infer.template(template);
        let mut checks: Vec<(String, Conform<'a>)> = Vec::new();
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
            let (schema, built_in) = match self.catalog.find(&api_version, &kind) {
                Known::BuiltIn(schema) => {
                    self.namespace(fields, &api_version, &kind);
                    (schema, true)
                }
                Known::Custom(schema) => (schema, false),
                Known::Wrong(problem) => {
                    let at = if problem.is_version { version_at } else { kind_at };
                    self.found.push(problem.diagnostic().located(at));
                    continue;
                }
                Known::Foreign => continue,
            };
            let full = format!("{api_version} {kind}");
            let index = checks.iter().position(|(known, _)| *known == full).unwrap_or_else(|| {
                // `kinds` says the same name, and lives as long as the package.
                let name = child.kinds.iter().map(|(_, kind)| kind.as_str()).find(|known| *known == kind);
                let what = format!("{} {kind}", article(&kind));
                checks.push((full, Conform::new(what, name.filter(|_| built_in), Some(schema))));
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
            for (api_version, kind) in &child.kinds {
                if let Known::Wrong(problem) = self.catalog.find(api_version, kind) {
                    self.found.push(problem.diagnostic().located(child.location.clone()));
                }
            }
        }
    }

    /// A namespace of an object that lies in none.
    fn namespace(&mut self, fields: &Fields<'a>, api_version: &str, kind: &str) {
        let is_namespaced =
            self.catalog.kubernetes.find(api_version, kind).is_none_or(|known| known.is_namespaced);
        let metadata = fields.entries.iter().find(|field| field.key == "metadata");
        let Some(Shape::Map(metadata)) = metadata.map(|field| &field.value.shape) else { return };
        let Some(field) = metadata.entries.iter().find(|field| field.key == "namespace" && !is_namespaced)
        else {
            return;
        };
        let message = format!("{} {kind} is in no namespace", article(kind));
        let found = Diagnostic::warning("schema::namespace", message).path("metadata.namespace");
        let found = found.help("remove `namespace`: the kind is cluster-scoped");
        self.found.push(Diagnostic { location: field.at.clone(), ..found });
    }

    /// What is said of the instance: status, conditions, readiness. An absent value is absent there.
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

    /// The value of a status field against the schema that the CRD has of it.
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
