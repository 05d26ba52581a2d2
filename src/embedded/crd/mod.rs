//! CRDs and their kinds: schemas, validation, conversion webhooks, and CRDs as objects.

mod object;
mod webhook;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use operetta_kube_model::Fault;
use operetta_kube_model::crd::{At, Findings, Rules, compile_rules};
use operetta_kube_model::facts::{items, text};
use operetta_kube_model::schema::{self, Notation, Path};
use serde_json::Value;

use crate::decode;
use crate::schema::{Arena, Id, Typed, definition};

pub(crate) use object::{CLEANUP, begin_delete, check, prepare, prepare_update};
pub(crate) use webhook::Hook;
pub use webhook::{Converter, Webhook};

/// The resource of CRDs.
pub(crate) const CRDS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The number of schemas that stay compiled.
const SCHEMAS: usize = 64;

/// A schema with what is made of it. Versions of CRDs and APIs with equal schemas share it.
#[derive(Debug)]
pub(crate) struct Schema {
    /// The `openAPIV3Schema` of a version.
    pub(crate) json: Value,
    arena: Arena,
    id: Id,
    /// The rules of the schema, if it has any.
    rules: Option<Rules>,
    /// Whether all rules can be compiled.
    is_valid: bool,
}

impl Schema {
    /// Compiling takes longer than all else that is done with a CRD, so what was compiled last is kept.
    pub(crate) fn of(json: &Value) -> Arc<Self> {
        static KNOWN: Mutex<VecDeque<Arc<Schema>>> = Mutex::new(VecDeque::new());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(schema) = known().iter().find(|schema| schema.json == *json) {
            return schema.clone();
        }
        let (arena, id) = Arena::custom(json);
        let (rules, faults) = compile_rules(json, "", Notation::Keyed);
        let schema = Self { json: json.clone(), arena, id, rules, is_valid: faults.is_empty() };
        let schema = Arc::new(schema);
        let mut known = known();
        known.push_front(schema.clone());
        known.truncate(SCHEMAS);
        schema
    }
}

/// One version of a CRD.
#[derive(Debug)]
pub(crate) struct Custom {
    pub(crate) schema: Arc<Schema>,
    pub(crate) has_status: bool,
    /// The version as the CRD has it, with its subresources and columns, but without its schema.
    pub(crate) version: Value,
    pub(crate) names: Value,
    pub(crate) selectable: Vec<String>,
    /// The warning about the version, if it is deprecated.
    pub(crate) deprecation: Option<String>,
    /// What converts its objects, if it is a webhook.
    pub(crate) hook: Option<Hook>,
    /// Whether all objects were stored by this version and schema.
    pub(crate) is_first: bool,
}

impl Custom {
    pub(crate) fn new(
        crd: &Value,
        version: &Value,
        schema: Arc<Schema>,
        is_first: bool,
        hook: Option<Hook>,
    ) -> Self {
        let selectable = version["selectableFields"].as_array().into_iter().flatten();
        // Such a status is missing in the store until somebody writes it.
        let fills_status = !schema.json["properties"]["status"]["default"].is_null();
        let rest = version.as_object().into_iter().flatten().filter(|(name, _)| *name != "schema");
        Self {
            schema,
            hook,
            has_status: version["subresources"]["status"].is_object(),
            version: rest.map(|(name, value)| (name.clone(), value.clone())).collect(),
            names: crd["status"]["acceptedNames"].clone(),
            deprecation: deprecation(crd, version),
            selectable: selectable
                .filter_map(|field| field["jsonPath"].as_str())
                .map(|path| path.trim_start_matches('.').to_owned())
                .collect(),
            is_first: is_first && !fills_status,
        }
    }

    pub(crate) fn typed(&self) -> Typed<'_> {
        self.schema.arena.typed(self.schema.id)
    }

    /// Prunes and completes an object that was stored by another version or schema.
    pub(crate) fn settle(&self, value: &mut Value) {
        schema::prune(&self.schema.json, value, true, Notation::Dotted);
        schema::apply_defaults(&self.schema.json, value);
    }
}

/// The warning about a deprecated version of a CRD.
fn deprecation(crd: &Value, version: &Value) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(own) = version["deprecationWarning"].as_str() {
        return Some(own.to_owned());
    }
    let (group, kind) = (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["kind"]));
    let name = text(&version["name"]);
    let better = items(&crd["spec"]["versions"])
        .iter()
        .filter(|other| other["served"] == true && other["deprecated"] != true)
        .map(|other| text(&other["name"]))
        .filter(|other| priority(other) > priority(name))
        .max_by_key(|other| priority(other));
    let advice = better.map(|better| format!("; use {group}/{better} {kind}")).unwrap_or_default();
    Some(format!("{group}/{name} {kind} is deprecated{advice}"))
}

/// The order of versions: stable ones first, then the highest.
pub(crate) fn priority(version: &str) -> (u8, u32, u32) {
    let rest = version.strip_prefix('v').unwrap_or_default();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major = rest[..end].parse().unwrap_or(0);
    let (level, minor) = match &rest[end..] {
        "" if major > 0 => (3, ""),
        rest => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
            (Some(minor), _) => (2, minor),
            (_, Some(minor)) => (1, minor),
            _ => (0, ""),
        },
    };
    (level, major, minor.parse().unwrap_or(0))
}

/// Reads an object: unknown fields are dropped and returned, defaults are set.
pub(crate) fn read_into(custom: &Custom, value: &mut Value) -> Result<Vec<String>, String> {
    let mut unknown = Vec::new();
    if let Some(typed) = definition("meta.v1.ObjectMeta")
        && let Some(meta) = value.get_mut("metadata")
    {
        unknown.extend(decode::decode(typed, meta)?.into_iter().map(|path| format!("metadata.{path}")));
    }
    let schema = &custom.schema.json;
    let dropped = schema::prune(schema, value, true, Notation::Dotted);
    unknown.extend(dropped.into_iter().map(|field| field.path));
    schema::apply_defaults(schema, value);
    Ok(unknown)
}

/// What is wrong with a custom resource by its schema. `live` is its state before.
fn structural(custom: &Custom, subresource: &str, live: Option<&Value>, object: &Value) -> Vec<Fault> {
    let mut part = (&custom.schema.json, Some(object), live, "");
    if subresource == "status" {
        let schema = &custom.schema.json["properties"]["status"];
        let status = object.get("status").filter(|_| schema.is_object());
        part = (schema, status, live.and_then(|live| live.get("status")), "status");
    }
    let (schema, Some(value), old, path) = part else { return Vec::new() };
    let broken = schema::validate(schema, value, old, Notation::Dotted);
    broken.iter().flat_map(|violation| violation.faults(path)).collect()
}

/// What is wrong with a custom resource. Rules that were broken before an update only make warnings.
pub(crate) fn validate(
    custom: &Custom,
    subresource: &str,
    live: Option<&Value>,
    object: &Value,
    warnings: &mut Vec<String>,
) -> Vec<Fault> {
    let mut faults = structural(custom, subresource, live, object);
    let Some(rules) = &custom.schema.rules else { return faults };
    if faults.iter().any(Fault::is_blocking) {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        faults.push(Fault::invalid("<nil>", Value::Null, why));
        return faults;
    }
    let mut found = Findings::default();
    let whole = At { schema: &custom.schema.json, value: object, old: live, is_root: true };
    rules.evaluate(whole, &Path::ROOT, &mut found);
    faults.extend(found.faults);
    warnings.extend(found.warnings.iter().map(Fault::message));
    faults
}

/// Where an apply has left nulls that the schema does not allow.
pub(crate) fn nulls(custom: &Custom, subresource: &str, object: &Value) -> Vec<Fault> {
    if !has_null(object) {
        return Vec::new();
    }
    let mut object = object.clone();
    schema::fill_defaults(&custom.schema.json, &mut object);
    let faults = structural(custom, subresource, None, &object);
    if faults.iter().any(Fault::is_about_null) { faults } else { Vec::new() }
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().any(has_null),
        Value::Array(items) => items.iter().any(has_null),
        other => other.is_null(),
    }
}
