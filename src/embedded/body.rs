//! The body of a request as an object: read, pruned and defaulted.

use serde_json::{Map, Value, json};

use crate::api::Context;
use crate::kinds::Kind;
use crate::status::{Failure, Fault, Outcome};
use crate::{crd, decode, defaults};

/// What happens to fields that the schema does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Validation {
    Ignore,
    Warn,
    Strict,
}

fn validation(context: &Context<'_>) -> Outcome<Validation> {
    Ok(match context.query.get("fieldValidation") {
        None | Some("Warn") => Validation::Warn,
        Some("Strict") => Validation::Strict,
        Some("Ignore") => Validation::Ignore,
        Some(other) => {
            let fault = crate::status::Fault::not_supported(
                "fieldValidation",
                other,
                &["", "Ignore", "Strict", "Warn"],
            );
            let what = match context.request.method {
                "POST" => "CreateOptions",
                "PUT" => "UpdateOptions",
                _ => "PatchOptions",
            };
            return Err(Failure::invalid("meta.k8s.io", what, "", &[fault]));
        }
    })
}

/// Reads the body of a request that creates or replaces an object.
pub(crate) fn read(context: &mut Context<'_>, body: &[u8]) -> Outcome<Value> {
    let kind = context.kind.clone();
    let value: Value = parse(body)?;
    let text = |field: &str| value[field].as_str().unwrap_or_default();
    let (version, name) = (text("apiVersion"), text("kind"));
    if kind.custom().is_some() && name.is_empty() {
        let body = String::from_utf8_lossy(body);
        let head: String = body.chars().take(29).collect();
        return Err(Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{body}' ({head} ...)",
            kind.kind
        )));
    }
    let is_other = !version.is_empty() && version != kind.api_version();
    if kind.custom().is_none() && (is_other || !name.is_empty() && name != kind.kind) {
        let version = if version.is_empty() { kind.api_version() } else { version.to_owned() };
        let name = if name.is_empty() { &kind.kind } else { name };
        if !crate::kinds::is_known(&version, name) {
            let why = format!(
                "no kind {name:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
            );
            return Err(Failure::bad_request(cannot_be_handled(&kind, &why)));
        }
        if name != kind.kind {
            let package =
                if kind.group.is_empty() { "core" } else { kind.group.split('.').next().unwrap_or_default() };
            return Err(Failure::bad_request(format!(
                "{name} in version {:?} cannot be handled as a {}: converting ({}.{name}) to ({package}.{}): unknown conversion",
                kind.version, kind.kind, kind.version, kind.kind
            )));
        }
    }
    if is_other {
        return Err(Failure::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({})",
            kind.api_version()
        )));
    }
    if kind.custom().is_some() && name != kind.kind {
        let fault = Fault::invalid("kind", name, format!("must be {}", kind.kind));
        let object = value["metadata"]["name"].as_str().unwrap_or_default();
        return Err(Failure::invalid(&kind.group, name, object, &[fault]));
    }
    settle(context, value, None)
}

fn parse(body: &[u8]) -> Outcome<Value> {
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(error) => yaml(body).ok_or_else(|| {
            Failure::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
        })?,
    };
    Ok(value)
}

/// A body in YAML.
fn yaml(body: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(body).ok()?;
    crate::yaml(text)
}

/// Reads the configuration of an apply. Nothing is defaulted: only what is written is owned.
pub(crate) fn apply_config(context: &mut Context<'_>) -> Outcome<Value> {
    let kind = context.kind.clone();
    let mut value = parse(context.request.body)
        .map_err(|_| Failure::bad_request("error decoding YAML: the body is no object"))?;
    let text = |field: &str| value[field].as_str().unwrap_or_default();
    let (version, name) = (text("apiVersion"), text("kind"));
    if version != kind.api_version() || name != kind.kind {
        let slash = if version.contains('/') { "" } else { "/" };
        return Err(Failure::bad_request(format!("invalid object type: {slash}{version}, Kind={name}")));
    }
    if !value["metadata"]["managedFields"].is_null() {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    if value["metadata"].is_null() {
        value["metadata"] = json!({});
    }
    if value["metadata"]["name"].is_null() {
        value["metadata"]["name"] = context.name().into();
    }
    Ok(value)
}

/// Reads an object into its type and sets its defaults. `live` is the object that a patch was applied to.
pub(crate) fn settle(context: &mut Context<'_>, mut value: Value, live: Option<&Value>) -> Outcome<Value> {
    let kind = context.kind.clone();
    let validation = validation(context)?;
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.kind.clone().into();
    let patched = live.is_some() && kind.custom().is_none();
    let shown = if patched { value.to_string() } else { String::new() };
    let refused = |why: String| {
        if patched {
            let fault = Fault::invalid("patch", shown.clone(), why);
            return Failure::invalid("", "", "", &[fault]);
        }
        Failure::bad_request(cannot_be_handled(&kind, &why))
    };
    let mut unknown = read_into(&kind, &mut value).map_err(&refused)?;
    // In the order of the body.
    let text = String::from_utf8_lossy(context.request.body);
    unknown.sort_by_cached_key(|path| {
        let at = if kind.custom().is_some() { None } else { position(&text, path) };
        at.unwrap_or(usize::MAX)
    });
    if !unknown.is_empty() && validation != Validation::Ignore {
        if validation == Validation::Strict {
            return Err(refused(format!("strict decoding error: {}", decode::strict_error(&unknown))));
        }
        context.warnings.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    }
    Ok(value)
}

/// Where a body names a field.
fn position(text: &str, path: &str) -> Option<usize> {
    text.find(&format!("{:?}", path.rsplit('.').next().unwrap_or_default()))
}

fn cannot_be_handled(kind: &Kind, why: &str) -> String {
    format!("{0} in version {1:?} cannot be handled as a {0}: {why}", kind.kind, kind.version)
}

/// A new object of a kind, before anything is set.
pub(crate) fn empty(kind: &Kind) -> Value {
    let mut map = Map::new();
    if kind.custom().is_none() {
        decode::complete(kind.typed(), &mut map);
    }
    map.insert("apiVersion".to_owned(), kind.api_version().into());
    map.insert("kind".to_owned(), kind.kind.clone().into());
    map.insert("metadata".to_owned(), json!({}));
    map.into()
}

/// Reads an object into its type. Returns the fields that are unknown, and were removed.
pub(crate) fn read_into(kind: &Kind, value: &mut Value) -> Result<Vec<String>, String> {
    match kind.custom() {
        None => {
            let unknown = decode::decode(kind.typed(), value)?;
            defaults::fill(kind.typed(), value);
            Ok(unknown)
        }
        Some(custom) => crd::read_into(custom, value),
    }
}
