//! The schemas of the built-in kinds in a compact form, in which those of an API server (`/openapi/v3`) can be compared with
//! ours: without descriptions, defaults and lists of objects, and with short references.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use operetta_kube_model::built_in;
use serde_json::{Map, Value, json};

/// What a server says in its documents of `/openapi/v3/api/v1` and `/openapi/v3/apis/GROUP/VERSION`.
pub(crate) fn served(documents: &[Value]) -> String {
    let mut definitions = BTreeMap::new();
    let mut kinds = BTreeSet::new();
    for document in documents {
        for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
            definitions.insert(short(name), schema.clone());
        }
        for (path, methods) in document["paths"].as_object().into_iter().flatten() {
            kinds.extend(kind(path, methods));
        }
    }
    compact(&definitions, &kinds)
}

/// What Operetta knows.
pub(crate) fn known() -> String {
    let text = built_in::definitions();
    let definitions: BTreeMap<String, Value> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, json)| (name.to_owned(), serde_json::from_str(json).unwrap()))
        .collect();
    let discovery = built_in::discovery();
    let kinds = built_in::resources(&discovery).filter_map(|(group, version, resource)| {
        resource["verbs"].as_array()?.iter().find(|verb| **verb == "patch")?;
        let api_version = built_in::api_version(group, version);
        let kind = resource["responseKind"]["kind"].as_str()?.to_owned();
        let scope = if resource["scope"] == "Namespaced" { "Namespaced" } else { "Cluster" };
        let named = format!("{api_version} {kind}");
        let (definition, _) = definitions.iter().find(|(_, schema)| schema["kind"] == *named)?;
        Some((api_version, kind, resource["resource"].as_str()?.to_owned(), scope, definition.clone()))
    });
    compact(&definitions, &kinds.collect())
}

fn compact(definitions: &BTreeMap<String, Value>, kinds: &BTreeSet<Kind>) -> String {
    let mut text = String::new();
    let mut open = Vec::new();
    for (api_version, kind, plural, scope, definition) in kinds {
        writeln!(text, "{api_version} {kind} {plural} {scope} {definition}").expect("a string takes all");
        open.push(definition.clone());
    }
    let mut done = BTreeMap::new();
    while let Some(name) = open.pop() {
        if let Entry::Vacant(entry) = done.entry(name) {
            let schema = schema(&definitions[entry.key()]);
            references(entry.insert(schema), &mut open);
        }
    }
    for (name, schema) in done {
        writeln!(text, "{name} {schema}").expect("a string takes all");
    }
    text
}

type Kind = (String, String, String, &'static str, String);

/// The kind whose objects can be patched at a path.
fn kind(path: &str, methods: &Value) -> Option<Kind> {
    let of = methods.get("patch")?.get("x-kubernetes-group-version-kind")?;
    let (before, last) = path.rsplit_once('/')?;
    if last != "{name}" {
        return None;
    }
    let (before, plural) = before.rsplit_once('/')?;
    let scope = if before.ends_with("/namespaces/{namespace}") { "Namespaced" } else { "Cluster" };
    let reference = &methods["patch"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
    let text = |key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let api_version = match text("group").as_str() {
        "" => text("version"),
        group => format!("{group}/{}", text("version")),
    };
    Some((api_version, text("kind"), plural.to_owned(), scope, short(reference.as_str()?)))
}

/// `apps.v1.Deployment` for `#/components/schemas/io.k8s.api.apps.v1.Deployment`.
fn short(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or_default();
    let name = name.strip_prefix("io.k8s.").unwrap_or(name);
    let name = name.strip_prefix("api.").unwrap_or(name);
    name.replace("apimachinery.pkg.apis.", "").replace("apiextensions-apiserver.pkg.apis.", "")
}

fn schema(full: &Value) -> Value {
    let mut out = Map::new();
    // A field with a default refers to its schema by an `allOf` with one entry.
    let reference = full.get("$ref").or_else(|| full["allOf"][0].get("$ref")).and_then(Value::as_str);
    match reference.map(short).as_deref() {
        Some("apimachinery.pkg.util.intstr.IntOrString") => {
            return json!({"x-kubernetes-int-or-string": true});
        }
        Some("apimachinery.pkg.api.resource.Quantity") => return json!({"format": "quantity"}),
        Some(name) => return json!({"$ref": name}),
        None => {}
    }
    let kept = ["type", "required", "enum", "x-kubernetes-list-map-keys"];
    for (key, value) in full.as_object().into_iter().flatten() {
        match key.as_str() {
            "properties" => {
                let fields = value.as_object().into_iter().flatten();
                let fields = fields.map(|(name, field)| (name.clone(), schema(field)));
                out.insert(key.clone(), Value::Object(fields.collect()));
            }
            "items" | "additionalProperties" => {
                out.insert(key.clone(), schema(value));
            }
            "format" if value != "int64" && value != "double" => {
                out.insert(key.clone(), value.clone());
            }
            _ if kept.contains(&key.as_str()) => {
                out.insert(key.clone(), value.clone());
            }
            _ => {}
        }
    }
    Value::Object(out)
}

fn references(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
