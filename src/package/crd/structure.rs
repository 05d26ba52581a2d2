//! Checks that a schema is structural, as the API server requires.

use operetta_kube_model::schema::{join, pattern_fault};
use serde_json::{Map, Value};

use super::validate;

/// A JSON path (dotted, `spec.versions[0].name`), the error, and the solution.
pub(super) type Finding = (String, String, Option<String>);

/// The errors that are found.
pub(super) struct Check {
    pub(super) found: Vec<Finding>,
}

/// The types of OpenAPI v3.
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Keywords of a schema.
const KEYWORDS: [&str; 37] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "description",
    "enum",
    "example",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "externalDocs",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "nullable",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
    "uniqueItems",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// Keywords of JSON Schema that a CRD may not use.
const FORBIDDEN: [&str; 7] =
    ["$ref", "$schema", "additionalItems", "definitions", "dependencies", "id", "patternProperties"];

/// Keywords that the server refuses at the root of a schema with a status subresource, which Operetta adds.
const NOT_AT_ROOT: [&str; 13] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "enum",
    "maxProperties",
    "minProperties",
    "not",
    "nullable",
    "oneOf",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-map-type",
];

/// Keywords that define the structure of a value; not allowed where a schema only restricts (allOf and similar).
const SHAPING: [&str; 11] = [
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
];

type Schema = Map<String, Value>;

/// Checks the schema of a whole object.
pub(super) fn check_root(check: &mut Check, schema: &Schema, path: &str) {
    if schema.get("type").is_some_and(|kind| kind != "object") {
        check.report(join(path, "type"), "must be object at the root", None);
    }
    for keyword in NOT_AT_ROOT {
        if schema.contains_key(keyword) {
            check.report(
                join(path, keyword),
                format!("`{keyword}` is not allowed at the root of a schema with a status subresource, which Operetta needs"),
                Some("put it under properties.spec"),
            );
        }
    }
    shape(check, schema, path, true);
    let Some(known) = schema.get("properties").and_then(Value::as_object) else { return };
    let path = join(path, "properties");
    if let Some(metadata) = known.get("metadata").and_then(Value::as_object) {
        let fields = metadata.get("properties").and_then(Value::as_object).into_iter().flatten();
        let restricts =
            fields.map(|(name, _)| name.as_str()).all(|name| matches!(name, "name" | "generateName"));
        let is_object = metadata.get("type").is_some_and(|kind| kind == "object");
        if !restricts
            || !is_object
            || !metadata.keys().all(|key| matches!(key.as_str(), "type" | "properties"))
        {
            let help = "keep only `type: object` and, if needed, the properties name and generateName";
            check.report(
                join(&path, "metadata"),
                "is the same for all kinds and cannot be described here",
                Some(help),
            );
        }
    }
    for name in ["apiVersion", "kind"] {
        let Some(field) = known.get(name) else { continue };
        if field["type"] != "string" || field.get("default").is_some() {
            check.report(join(&path, name), "must be of type string, without a default", None);
        }
    }
    status(check, known, &path);
}

/// Checks the schema of a value, which must not contain CEL rules, because only an API server evaluates them.
pub(super) fn check_value(check: &mut Check, schema: &Value) {
    sub(check, schema, "", |check, schema, path| shape(check, schema, path, false));
    if schema.to_string().contains("\"x-kubernetes-validations\"") {
        check.report("", "`x-kubernetes-validations` is not allowed: no API server evaluates it here", None);
    }
}

/// Checks that Operetta's status fields are compatible with the author's schema.
fn status(check: &mut Check, known: &Schema, path: &str) {
    let Some(status) = known.get("status").and_then(Value::as_object) else { return };
    let path = join(path, "status");
    let has_type = |schema: &Value, wanted: &str| schema.get("type").is_none_or(|kind| kind == wanted);
    if status.get("type").is_some_and(|kind| kind != "object") {
        check.report(join(&path, "type"), "must be object: Operetta writes conditions there", None);
        return;
    }
    if status.get("additionalProperties").is_some_and(Value::is_object) {
        let path = join(&path, "additionalProperties");
        check.report(
            path,
            "is not allowed for the status: Operetta writes fields of other types there",
            None,
        );
    }
    let fields = status.get("properties").and_then(Value::as_object);
    for (name, kind) in [("conditions", "array"), ("observedGeneration", "integer")] {
        if let Some(field) = fields.and_then(|fields| fields.get(name))
            && !has_type(field, kind)
        {
            let path = join(&join(&join(&path, "properties"), name), "type");
            check.report(path, format!("must be {kind}: Operetta writes `status.{name}`"), None);
        }
    }
}

/// Checks a schema that defines the structure of a value.
fn shape(check: &mut Check, schema: &Schema, path: &str, is_root: bool) {
    keywords(check, schema, path);
    let is = |keyword: &str| schema.get(keyword) == Some(&Value::Bool(true));
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    let open = is("x-kubernetes-preserve-unknown-fields") || is("x-kubernetes-int-or-string");
    if kind.is_empty() && !open && !is_root {
        check.report(
            path,
            "`type` is missing",
            Some("or `x-kubernetes-preserve-unknown-fields: true`, or `x-kubernetes-int-or-string: true`"),
        );
    } else if !kind.is_empty() && !TYPES.contains(&kind) {
        check.report(join(path, "type"), format!("must be one of: {}", TYPES.join(", ")), None);
    }
    if is("x-kubernetes-embedded-resource") {
        let has_fields =
            schema.get("properties").and_then(Value::as_object).is_some_and(|known| !known.is_empty());
        if kind != "object" {
            check.report(path, "`x-kubernetes-embedded-resource` needs `type: object`", None);
        } else if !has_fields && !is("x-kubernetes-preserve-unknown-fields") {
            let help = "add `x-kubernetes-preserve-unknown-fields: true`";
            check.report(
                path,
                "an embedded resource needs `properties`, or to preserve unknown fields",
                Some(help),
            );
        }
    }
    if is("x-kubernetes-int-or-string") && is("x-kubernetes-preserve-unknown-fields") {
        check.report(path, "an int-or-string has no fields to preserve", None);
    }
    pattern(check, schema, path);
    map_type(check, schema, path, kind);
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let path = join(path, "x-kubernetes-preserve-unknown-fields");
        check.report(path, "must be true, or omitted", None);
    }
    if is("uniqueItems") {
        check.report(join(path, "uniqueItems"), "is not allowed", Some("use `x-kubernetes-list-type: set`"));
    }
    let known = schema.get("properties").and_then(Value::as_object);
    let additional = schema.get("additionalProperties");
    if known.is_some_and(|known| !known.is_empty())
        && additional.is_some_and(|rest| *rest != Value::Bool(true))
    {
        check.report(path, "`properties` and `additionalProperties` exclude each other", None);
    }
    list(check, schema, path, kind);
    default(check, schema, path);

    for (name, below) in known.into_iter().flatten() {
        let path = join(&join(path, "properties"), name);
        sub(check, below, &path, |check, below, path| match name.as_str() {
            "metadata" if is_root => {}
            // The type is added with Operetta's additions.
            "status" if is_root && !below.contains_key("type") => {
                let mut below = below.clone();
                below.insert("type".to_owned(), Value::from("object"));
                shape(check, &below, path, false);
            }
            _ => shape(check, below, path, false),
        });
    }
    if let Some(below @ Value::Object(_)) = additional {
        sub(check, below, &join(path, "additionalProperties"), |check, below, path| {
            shape(check, below, path, false);
        });
    }
    match schema.get("items") {
        Some(Value::Array(_)) => check.report(join(path, "items"), "must be one schema, not a list", None),
        Some(below) => {
            sub(check, below, &join(path, "items"), |check, below, path| shape(check, below, path, false));
        }
        None if kind == "array" => check.report(path, "`items` is missing", None),
        None => {}
    }
    let may_be_typed = is("x-kubernetes-int-or-string");
    junctors(check, schema, path, may_be_typed);
}

fn sub(check: &mut Check, below: &Value, path: &str, then: impl FnOnce(&mut Check, &Schema, &str)) {
    match below.as_object() {
        Some(below) => then(check, below, path),
        None => check.report(path, "a schema must be a mapping", None),
    }
}

fn keywords(check: &mut Check, schema: &Schema, path: &str) {
    for keyword in FORBIDDEN.into_iter().filter(|keyword| schema.contains_key(*keyword)) {
        let help = (keyword == "$ref").then_some("replace it by what it refers to");
        check.report(join(path, keyword), format!("`{keyword}` is not allowed in a CRD"), help);
    }
    let rest: Schema = schema
        .iter()
        .filter(|(key, _)| !FORBIDDEN.contains(&key.as_str()))
        .map(|(key, _)| (key.clone(), Value::Null))
        .collect();
    check.known(&rest, &KEYWORDS, path);
    for (key, value) in schema {
        let (fits, wanted) = match key.as_str() {
            "description" | "format" | "pattern" | "title" | "type" => (value.is_string(), "a string"),
            "maximum" | "minimum" | "multipleOf" => (value.is_number(), "a number"),
            "maxItems" | "maxLength" | "maxProperties" | "minItems" | "minLength" | "minProperties" => {
                (value.is_i64() || value.is_u64(), "a whole number")
            }
            "exclusiveMaximum" | "exclusiveMinimum" | "nullable" | "uniqueItems" => {
                (value.is_boolean(), "true or false")
            }
            "enum" | "required" | "x-kubernetes-list-map-keys" | "x-kubernetes-validations" => {
                (value.is_array(), "a list")
            }
            "properties" | "externalDocs" => (value.is_object(), "a mapping"),
            _ => continue,
        };
        if !fits && !value.is_null() {
            check.report(join(path, key), format!("must be {wanted}"), None);
        }
    }
}

fn list(check: &mut Check, schema: &Schema, path: &str, kind: &str) {
    let Some(list_type) = schema.get("x-kubernetes-list-type") else {
        if schema.contains_key("x-kubernetes-list-map-keys") {
            check.report(path, "`x-kubernetes-list-map-keys` needs `x-kubernetes-list-type: map`", None);
        }
        return;
    };
    let at = join(path, "x-kubernetes-list-type");
    if !matches!(list_type.as_str(), Some("atomic" | "set" | "map")) {
        check.report(at, "must be one of: atomic, set, map", None);
        return;
    }
    if kind != "array" {
        check.report(at, "needs `type: array`", None);
        return;
    }
    let items = schema.get("items");
    if list_type != "atomic" && items.is_some_and(|items| items["nullable"] == true) {
        check.report(join(path, "items"), "items of a set or map must not be nullable", None);
    }
    if list_type == "set" {
        let parts = items.and_then(|items| Some((items.get("type")?.as_str()?, items)));
        let atomic = match parts {
            Some(("object", items)) => {
                items.get("x-kubernetes-map-type").is_some_and(|kind| kind == "atomic")
            }
            Some(("array", items)) => items.get("x-kubernetes-list-type").is_none_or(|kind| kind == "atomic"),
            _ => true,
        };
        if !atomic {
            check.report(
                join(path, "items"),
                "items of a set must be scalars, or atomic",
                Some("set `x-kubernetes-map-type: atomic` on them"),
            );
        }
    }
    if list_type != "map" {
        return;
    }
    let keys =
        schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).filter(|keys| !keys.is_empty());
    let Some(keys) = keys else {
        check.report(path, "a list of type map needs `x-kubernetes-list-map-keys`", None);
        return;
    };
    let fields = items.and_then(|items| items.get("properties")?.as_object());
    let required = items.and_then(|items| items.get("required")?.as_array());
    for (index, key) in keys.iter().enumerate() {
        let at = format!("{}[{index}]", join(path, "x-kubernetes-list-map-keys"));
        let Some(field) = key.as_str().and_then(|key| fields?.get(key)) else {
            check.report(at, "must be the name of a property of the items", None);
            continue;
        };
        if field.get("default").is_none() && !required.is_some_and(|required| required.contains(key)) {
            check.report(at, "a key must be required in the items, or have a default", None);
        }
    }
}

fn map_type(check: &mut Check, schema: &Schema, path: &str, kind: &str) {
    let Some(map_type) = schema.get("x-kubernetes-map-type") else { return };
    let at = join(path, "x-kubernetes-map-type");
    if !matches!(map_type.as_str(), Some("atomic" | "granular")) {
        check.report(at, "must be one of: atomic, granular", None);
    } else if kind != "object" {
        check.report(at, "needs `type: object`", None);
    }
}

fn pattern(check: &mut Check, schema: &Schema, path: &str) {
    let Some(text) = schema.get("pattern").and_then(Value::as_str) else { return };
    if let Some(fault) = pattern_fault(text) {
        check.report(
            join(path, "pattern"),
            format!("is not a regular expression that the server accepts: {fault}"),
            None,
        );
    }
}

/// Checks that a default is valid under its own schema without nested defaults, as the server does.
fn default(check: &mut Check, schema: &Schema, path: &str) {
    let Some(default) = schema.get("default").filter(|default| !default.is_null()) else { return };
    let whole = Value::Object(schema.clone());
    for fault in validate::validate_part(&whole, default, "") {
        let at = if fault.path.is_empty() { String::new() } else { format!(" at {}", fault.path) };
        check.report(join(path, "default"), format!("does not fit its schema{at}: {}", fault.message), None);
    }
}

/// Checks allOf, anyOf and oneOf. They may restrict the structure that the surrounding schema defines, but
/// must not define structure.
fn junctors(check: &mut Check, schema: &Schema, path: &str, may_be_typed: bool) {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let Some(parts) = schema.get(keyword) else { continue };
        let Some(parts) = parts.as_array() else {
            check.report(join(path, keyword), "must be a list of schemas", None);
            continue;
        };
        for (index, part) in parts.iter().enumerate() {
            let path = format!("{}[{index}]", join(path, keyword));
            sub(check, part, &path, |check, part, path| restrict(check, part, path, may_be_typed));
        }
    }
    if let Some(not) = schema.get("not") {
        sub(check, not, &join(path, "not"), |check, not, path| restrict(check, not, path, false));
    }
}

fn restrict(check: &mut Check, schema: &Schema, path: &str, may_be_typed: bool) {
    keywords(check, schema, path);
    let shaping = SHAPING.into_iter().chain((!may_be_typed).then_some("type"));
    for keyword in shaping.filter(|keyword| schema.contains_key(*keyword)) {
        check.report(
            join(path, keyword),
            format!("`{keyword}` is not allowed below allOf, anyOf, oneOf and not"),
            Some("move it to the schema around them"),
        );
    }
    for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = join(&join(path, "properties"), name);
        sub(check, below, &path, |check, below, path| restrict(check, below, path, false));
    }
    if let Some(items) = schema.get("items") {
        sub(check, items, &join(path, "items"), |check, items, path| restrict(check, items, path, false));
    }
    junctors(check, schema, path, may_be_typed);
}
