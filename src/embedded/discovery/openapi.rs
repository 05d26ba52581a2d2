//! OpenAPI documents: what `kubectl explain` and validation of clients read.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use data_encoding::HEXUPPER;
use operetta_kube_model::built_in::unpack;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::openapi_v2::{self, Form};
use crate::model::{Kind, Kinds};
use crate::schema;
use crate::verbs::response::{Body, Response};

/// The descriptions of the built-in kinds and of their fields.
static WORDS: &[u8] = include_bytes!("../data/words.z");

/// Answers a request about schemas.
pub(crate) fn answer(kinds: &Kinds, accept: &str, parts: &[&str]) -> Response {
    let parts: Vec<&str> = parts.iter().map(|part| part.split('?').next().unwrap_or_default()).collect();
    let unknown = || Response::plain(404, "404 page not found\n");
    match &parts[..] {
        ["openapi", "v2"] => {
            let Some(form) = Form::of(accept) else { return Response::plain(406, "") };
            let (mut schemas, mut paths) = (Map::new(), Map::new());
            for (group, version) in versions(kinds) {
                collect(kinds, (&group, &version), &mut schemas, &mut paths);
            }
            let document = openapi_v2::document(&schemas, &paths);
            if form == Form::Json {
                return Response::json(200, &document);
            }
            let body = Body::Bytes(openapi_v2::protobuf(&document).into());
            Response { content_type: openapi_v2::MEDIA, body, ..Response::plain(200, "") }
        }
        ["openapi", "v3"] => {
            let mut paths = Map::new();
            for (group, version) in versions(kinds) {
                let path = if group.is_empty() {
                    format!("api/{version}")
                } else {
                    format!("apis/{group}/{version}")
                };
                let mut hash = Sha256::new();
                for kind in of_version(kinds, &group, &version) {
                    hash.update(&kind.plural);
                    hash.update(
                        kind.custom().map(|custom| custom.schema.json.to_string()).unwrap_or_default(),
                    );
                }
                let hash = HEXUPPER.encode(&hash.finalize()[..16]);
                paths.insert(
                    path.clone(),
                    json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}),
                );
            }
            Response::json(200, &json!({"paths": paths}))
        }
        ["openapi", "v3", "api", version] => document(kinds, "", version).unwrap_or_else(unknown),
        ["openapi", "v3", "apis", group, version] => document(kinds, group, version).unwrap_or_else(unknown),
        _ => unknown(),
    }
}

fn versions(kinds: &Kinds) -> BTreeSet<(String, String)> {
    kinds.iter().map(|kind| (kind.group.clone(), kind.version.clone())).collect()
}

fn of_version<'a>(kinds: &'a Kinds, group: &'a str, version: &'a str) -> impl Iterator<Item = &'a Kind> {
    kinds.iter().map(|kind| &**kind).filter(move |kind| kind.group == group && kind.version == version)
}

/// The path of the objects of a kind, with placeholders: `/apis/apps/v1/namespaces/{namespace}/deployments`.
fn path(kind: &Kind) -> String {
    let (group, version, plural) = (&kind.group, &kind.version, &kind.plural);
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let place = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    format!("{root}{place}/{plural}")
}

/// The name of a definition in a document: `io.k8s.api.apps.v1.Deployment`.
fn full(name: &str) -> String {
    let tail = name.strip_prefix("meta.").map(|rest| format!("apimachinery.pkg.apis.meta.{rest}"));
    let tail = tail.or_else(|| {
        name.strip_prefix("apiextensions.")
            .map(|rest| format!("apiextensions-apiserver.pkg.apis.apiextensions.{rest}"))
    });
    match tail {
        Some(tail) => format!("io.k8s.{tail}"),
        None if name.contains(".pkg.") => format!("io.k8s.{name}"),
        None => format!("io.k8s.api.{name}"),
    }
}

/// The name of the definition of a custom kind: `com.example.v1.Widget`.
fn custom_name(kind: &Kind) -> String {
    let reversed: Vec<&str> = kind.group.split('.').rev().collect();
    format!("{}.{}.{}", reversed.join("."), kind.version, kind.kind)
}

fn document(kinds: &Kinds, group: &str, version: &str) -> Option<Response> {
    let (mut schemas, mut paths) = (Map::new(), Map::new());
    collect(kinds, (group, version), &mut schemas, &mut paths);
    if paths.is_empty() {
        return None;
    }
    for schema in schemas.values_mut().filter_map(Value::as_object_mut) {
        if schema.remove(openapi_v2::OWN).is_some() {
            let number = if schema.contains_key("format") { "integer" } else { "number" };
            schema.insert("oneOf".to_owned(), json!([{"type": number}, {"type": "string"}]));
        }
    }
    let document = json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.3"}, "paths": paths, "components": {"schemas": schemas}});
    Some(Response::json(200, &document))
}

/// Adds the schemas and the paths of a version.
fn collect(
    kinds: &Kinds,
    (group, version): (&str, &str),
    schemas: &mut Map<String, Value>,
    paths: &mut Map<String, Value>,
) {
    let mut open: Vec<String> = vec![
        "meta.v1.ObjectMeta".to_owned(),
        "meta.v1.DeleteOptions".to_owned(),
        "meta.v1.Status".to_owned(),
    ];
    for kind in of_version(kinds, group, version) {
        let gvk = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        let name = match kind.custom() {
            None => {
                let name = kind.typed().node().name.to_string();
                open.push(name.clone());
                full(&name)
            }
            Some(custom) => {
                let name = custom_name(kind);
                let mut schema = custom.schema.json.clone();
                schema["x-kubernetes-group-version-kind"] = json!([gvk]);
                schema["properties"]["apiVersion"] = json!({"type": "string"});
                schema["properties"]["kind"] = json!({"type": "string"});
                schema["properties"]["metadata"] = reference("meta.v1.ObjectMeta");
                schemas.insert(name.clone(), schema);
                name
            }
        };
        let answer = json!({"200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}}}});
        let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation"]
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
            .into();
        let operation = |action: &str| json!({"x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk, "responses": answer, "parameters": parameters});
        let mut patch = operation("patch");
        let strategic = kind.custom().is_none().then_some("application/strategic-merge-patch+json");
        let patches =
            ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
        for media in patches.into_iter().chain(strategic) {
            patch["requestBody"]["content"][media] = json!({"schema": {"type": "object"}});
        }
        let path = path(kind);
        paths.insert(path.clone(), json!({"get": operation("list"), "post": operation("post")}));
        paths.insert(format!("{path}/{{name}}"), json!({"get": operation("get"), "put": operation("put"), "patch": patch, "delete": operation("delete")}));
    }
    while let Some(name) = open.pop() {
        if !schemas.contains_key(&full(&name))
            && let Some(schema) = definition(&name, &mut open)
        {
            schemas.insert(full(&name), schema);
        }
    }
}

fn reference(name: &str) -> Value {
    json!({"allOf": [{"$ref": format!("#/components/schemas/{}", full(name))}]})
}

/// A definition with its descriptions; the definitions that it refers to are added to `open`.
fn definition(name: &str, open: &mut Vec<String>) -> Option<Value> {
    static TEXT: OnceLock<String> = OnceLock::new();
    let words = TEXT.get_or_init(|| unpack(WORDS));
    let line = words.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let words: Value = line.and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let json = schema::definitions().find(|(known, _)| *known == name)?.1;
    let mut json: Value = serde_json::from_str(json).ok()?;
    if let Some(kind) = json["kind"].as_str() {
        let (version, kind) = kind.split_once(' ')?;
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        json["x-kubernetes-group-version-kind"] = json!([{"group": group, "version": version, "kind": kind}]);
    }
    json.as_object_mut()?.remove("kind");
    json["description"] = words[""].clone();
    for (field, schema) in json.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        schema["description"] = words[field.as_str()].clone();
        schema.as_object_mut()?.remove("go");
    }
    expand(&mut json, open);
    Some(json)
}

/// Writes the references of a schema in full.
fn expand(value: &mut Value, open: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            // A field may have this name, too.
            if let Some(Value::String(name)) = map.get("$ref") {
                let (name, Value::Object(whole)) = (name.clone(), reference(name)) else { return };
                map.remove("$ref");
                map.extend(whole);
                open.push(name);
                return;
            }
            map.values_mut().for_each(|value| expand(value, open));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| expand(item, open)),
        _ => {}
    }
}
