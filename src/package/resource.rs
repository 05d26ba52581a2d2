//! Compiles one resource of `operator.yaml` to a [`Resource`]: parses expressions and orders children.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::compiler::Flat;
use super::compiler::{Compiler, Names};
use super::decode::At;
use super::expression_sites::Parts;
use super::manifest::{self, Expression, LetValue, StatusValue, TemplateText};
use super::{Child, Condition, Resource, StatusField, graph, lint, plan, secrecy, status_types};
use crate::crd;
use crate::diag::{Diagnostic, Location};
use crate::template::{Expr, Lets, Search, Text};

/// The maximum number of children, and of refs, of a resource: more than a person writes, few enough for quadratic checks.
const MAX_ENTRIES: usize = 500;
/// Condition types that are reserved for Operetta.
const OWN_CONDITIONS: [&str; 10] = [
    "Ready",
    "Reconciling",
    "Stalled",
    "DeletionPending",
    "RunFailed",
    "Repeating",
    "RefUnknown",
    "StatusFailed",
    "StatusTruncated",
    "RevisionChanging",
];
/// Status fields that are reserved for Operetta.
const OWN_STATUS: [&str; 5] = ["conditions", "observedGeneration", "revision", "plan", "history"];
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
        let schema = crd.as_ref().and_then(|crd| crd::schema_of(&crd.value, &crd.kind.version));
        let mut status = self.status(manifest.status.map(|status| status.0).unwrap_or_default(), schema);
        if let Some(crd) = &crd
            && !manifest.adopt.unwrap_or_default()
        {
            let schemas = status_types::schemas(&crd.value, &crd.kind.version, &status);
            for (field, schema) in status.iter_mut().zip(schemas) {
                field.schema = schema;
            }
        }
        self.diagnostics.extend(status_types::check(&self.engine, &lets, &status, schema));
        let conditions = self.conditions(manifest.conditions.unwrap_or_default());
        let namespaced = crd.as_ref().is_none_or(|crd| crd.kind.namespaced);
        let (mut manifests, groups) = self.flatten(manifest.children.unwrap_or_default());
        if let Some(first) = manifests.get(MAX_ENTRIES) {
            let message = format!("{} children are more than {MAX_ENTRIES}", manifests.len());
            self.diagnostics.push(first.child.id.error("package::budget", message));
            manifests.truncate(MAX_ENTRIES);
        }
        let mut children: Vec<Child> =
            manifests.iter().map(|child| self.child(child, &groups, namespaced)).collect();
        let plans = manifest.plans.map(|plans| plans.0).unwrap_or_default();
        let mut ref_manifests = manifest.refs.unwrap_or_default();
        if let Some(first) = ref_manifests.get(MAX_ENTRIES) {
            let message = format!("{} refs are more than {MAX_ENTRIES}", ref_manifests.len());
            self.diagnostics.push(first.id.error("package::budget", message));
            ref_manifests.truncate(MAX_ENTRIES);
        }
        let names = Names {
            children: manifests
                .iter()
                .zip(&children)
                .map(|(flat, child)| (flat.child.id.value.0.as_str(), child.for_each.is_some()))
                .collect(),
            refs: ref_manifests.iter().map(|reference| reference.id.value.0.as_str()).collect(),
            plans: plans.iter().map(|(name, _)| name.value.clone()).collect(),
            schema,
            namespaced,
        };
        let refs = self.refs(&ref_manifests, &names);
        let refs = self.ordered_refs(refs, &lets);
        let on_loss: Vec<_> =
            manifests.iter().map(|flat| self.on_loss(flat.child.on_loss.as_ref(), &names)).collect();
        let plans = self.plans(plans, &names);
        let sources = manifests.iter().map(|flat| flat.child.on_loss.as_ref());
        self.losses_need_rollouts(sources.zip(&on_loss), &plans);
        for (child, on_loss) in children.iter_mut().zip(on_loss) {
            child.on_loss = on_loss;
        }
        self.same_objects(&manifests);
        self.former_ids(&manifests);

        self.child_templates.extend(children.iter().map(|child| child.template.clone()));
        let mut parts = Parts { lets, paused, ready_when, refs, children, status, conditions, plans };
        self.refs_affect_ready(&mut parts, &ref_manifests);
        let known = lint::ResourceInfo { schema, namespaced, defaults, complete: self.complete };
        let found = lint::resource(&self.engine, &parts, &known);
        self.diagnostics.extend(found);
        let engine = Arc::clone(&self.engine);
        let found = secrecy::resource(&engine, &parts, &self.outlines);
        self.diagnostics.extend(found);
        self.diagnostics.extend(plan::lint::plans(&engine, &parts, &self.outlines));
        lint::edges::members(&engine, &parts, &self.outlines, &manifests, &mut self.diagnostics);
        if let Some(crd) = &crd {
            let adopted = manifest.adopt.unwrap_or_default();
            let written = lint::columns::Written { crd: &crd.value, node: &crd.node, source: &crd.source };
            self.diagnostics.extend(lint::columns::columns(&written, &parts.status, adopted));
            // The tool that applies an adopted CRD is responsible for its versions.
            if !adopted && manifest.conversion.is_none() {
                self.diagnostics.extend(lint::versions::versions(&written));
            }
            if !adopted {
                self.spec_reads.add(&engine, &parts, &crd.kind, &written);
            }
        }
        if self.readable {
            self.unread(&parts, &own, &manifests);
        }
        let reads_cluster = parts
            .expression_sites(&engine)
            .iter()
            .flat_map(|usage| graph::expand_lets([usage.reads], &parts.lets))
            .any(|path| path.root == "cluster");
        let Parts { lets, paused, ready_when, refs, children, status, conditions, plans } =
            self.ordered(parts, &manifests)?;
        let crd = crd?;
        let additions = crd::Additions {
            status: status.iter().map(|field| field.name.clone()).collect(),
            has_plans: !plans.is_empty(),
        };
        let adopt = manifest.adopt.unwrap_or_default();
        let conversion = manifest.conversion.as_ref();
        let conversion = conversion
            .and_then(|declared| self.conversion(declared, &crd::augment(&crd.value, &additions), adopt));
        Some(Resource {
            crd: crd.value,
            crd_location: crd.location,
            kind: crd.kind,
            adopt,
            conversion,
            lets,
            paused,
            ready_when,
            refs,
            children,
            reads_cluster,
            is_reached: false,
            status,
            conditions,
            plans,
            location,
        })
    }

    /// Reports parts that nothing reads, and dependencies without effect.
    fn unread(&mut self, parts: &Parts, own: &[(At<String>, LetValue)], manifests: &[Flat]) {
        let engine = Arc::clone(&self.engine);
        self.diagnostics.extend(lint::edges::unused_refs(&engine, parts));
        self.diagnostics.extend(lint::edges::depends_on(&engine, parts, manifests));
        let Some(read) = lint::edges::read_lets(&engine, parts) else {
            self.read_lets = None;
            return;
        };
        for (name, _) in own.iter().filter(|(name, _)| !read.contains(&name.value)) {
            self.diagnostics.push(lint::edges::unused_let(&name.value, &name.at));
        }
        if let Some(all) = &mut self.read_lets {
            all.extend(read);
        }
    }

    /// Returns the value, or adds the error with its path to the diagnostics.
    pub(super) fn note<T>(&mut self, result: Result<T, Diagnostic>, path: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(mut error) => {
                error.path.get_or_insert_with(|| path.to_owned());
                self.diagnostics.push(error);
                self.readable = false;
                None
            }
        }
    }

    pub(super) fn expression(&mut self, source: &Expression) -> Option<Expr> {
        let result = self.engine.expression(&source.0.value, &source.0.at);
        let expr = self.note(result, &source.0.path)?;
        self.generates_nothing(&expr.reads().generates);
        Some(expr)
    }

    /// Reports generated values, which are allowed only in templates of Secrets.
    pub(super) fn generates_nothing(&mut self, places: &[Location]) {
        for place in places {
            let message = "a password or a certificate can only be generated in the template of a Secret";
            let error = Diagnostic::error("package::password", message).located(place.clone());
            self.diagnostics
                .push(error.help("use it there as the whole value: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`"));
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

    /// Compiles `let`s. Those of the resource take precedence over those of the package.
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
                    field.name.error("package::reserved", format!("status.{first} is reserved for Operetta"));
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
                    schema: None,
                    exposes_secret_data: field.exposes_secret_data,
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
                let message = format!("the condition {} is reserved for Operetta", name.value.0);
                self.diagnostics.push(name.error("package::reserved", message).help("choose another type"));
            }
            if found.iter().any(|other| other.type_ == name.value.0) {
                let message = format!("the condition {} is defined twice", name.value.0);
                self.diagnostics.push(name.error("package::duplicate", message));
            }
            let when = self.expression(&condition.when);
            let message = match &condition.message {
                Some(TemplateText(source)) => self.text(source),
                None => Some(Text::literal(Value::String(String::new()))),
            };
            if let (Some(when), Some(message)) = (when, message) {
                let At { value: type_, at: location, .. } = condition.condition_type;
                let (type_, reason) = (type_.0, condition.reason.value.0);
                let exposes_secret_data = condition.exposes_secret_data.unwrap_or_default();
                found.push(Condition { type_, when, reason, message, exposes_secret_data, location });
            }
        }
        found
    }
}
