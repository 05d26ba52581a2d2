//! The body of a request as an object: read, pruned and defaulted.

pub(crate) mod patch;
pub(crate) mod protobuf;

use std::collections::HashSet;

use data_encoding::HEXLOWER;
use operetta_kube_model::Fault;
use operetta_lang::diag::Source;
use operetta_lang::yaml::{Duplicates, Node, Options};
use serde_json::{Map, Value, json};

use crate::model::{Context, Failure, Kind, Outcome, kinds};
use crate::{crd, decode, defaults};
use patch::Patch;

/// The most fields that strict reading names: that of Go's decoder.
const MOST_STRAYS: usize = 100;

/// How unknown and duplicate fields are treated.
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
            let fault = Fault::not_supported("fieldValidation", other, &["", "Ignore", "Strict", "Warn"]);
            let what = match context.request.method {
                "POST" => "CreateOptions",
                "PUT" => "UpdateOptions",
                _ => "PatchOptions",
            };
            return Err(Failure::invalid("meta.k8s.io", what, "", &[fault]));
        }
    })
}

/// The beginning of a body in messages.
fn summarized(body: &[u8]) -> String {
    const MOST: usize = 30;
    if body.is_empty() {
        return "<empty>".to_owned();
    }
    let head = &body[..body.len().min(MOST)];
    let head =
        if body[0] == b'{' { String::from_utf8_lossy(head).into_owned() } else { HEXLOWER.encode(head) };
    if body.len() > MOST { head + " ..." } else { head }
}

/// Reads the body of a request that creates or replaces an object.
pub(crate) fn read(context: &mut Context<'_>, body: &[u8]) -> Outcome<Value> {
    let kind = context.kind.clone();
    let parsed = match context.given.take() {
        Some(value) => Parsed { value, duplicates: Vec::new() },
        None => parse(body, context.request.content_type).map_err(|why| unreadable(&kind, &why))?,
    };
    let value = parsed.value;
    let text = |field: &str| value[field].as_str().unwrap_or_default();
    let (version, name) = (text("apiVersion"), text("kind"));
    if kind.custom().is_some() && name.is_empty() {
        return Err(Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{}' ({})",
            kind.kind,
            String::from_utf8_lossy(body),
            summarized(body)
        )));
    }
    let is_other = !version.is_empty() && version != kind.api_version();
    if kind.custom().is_none() && (is_other || !name.is_empty() && name != kind.kind) {
        let version = if version.is_empty() { kind.api_version() } else { version };
        let name = if name.is_empty() { &kind.kind } else { name };
        if !crate::model::kinds::is_known(version, name) {
            let why = format!(
                "no kind {name:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
            );
            return Err(Failure::bad_request(cannot_be_handled(&kind, &why)));
        }
        if name != kind.kind {
            return Err(Failure::bad_request(format!(
                "{name} in version {:?} cannot be handled as a {}: converting ({}.{name}) to ({}.{}): unknown conversion",
                kind.version,
                kind.kind,
                kind.version,
                kind.go_package(),
                kind.kind
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
    settle_strictly(context, value, parsed.duplicates, None)
}

/// A body as a value, and the fields that it has twice.
struct Parsed {
    value: Value,
    duplicates: Vec<Stray>,
}

/// A field that strict reading refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stray {
    path: String,
    kind: StrayKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum StrayKind {
    Unknown,
    Duplicate,
    /// A key that YAML has twice, with its message.
    Key(String),
    /// What is wrong with a field of a JSON patch.
    Patch(&'static str),
}

impl Stray {
    fn unknown(path: String) -> Self {
        Self { path, kind: StrayKind::Unknown }
    }

    fn message(&self) -> String {
        match &self.kind {
            StrayKind::Unknown => format!("unknown field {:?}", self.path),
            StrayKind::Duplicate => format!("duplicate field {:?}", self.path),
            StrayKind::Key(message) => message.clone(),
            StrayKind::Patch(what) => format!("json patch {what} field {:?}", self.path),
        }
    }

    /// Where a body names the field.
    fn position(&self, body: &str) -> usize {
        let name = format!("{:?}", self.path.rsplit('.').next().unwrap_or_default());
        let mut found = body.match_indices(&name);
        let nth = usize::from(self.kind == StrayKind::Duplicate);
        found.nth(nth).map_or(usize::MAX, |(at, _)| at)
    }

    /// Whether the field is another one, or in it.
    fn is_in(&self, other: &Self) -> bool {
        let rest = self.path.strip_prefix(&*other.path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

/// Why a body cannot be read.
enum Unreadable {
    Json(String),
    Yaml(String),
}

fn unreadable(kind: &Kind, why: &Unreadable) -> Box<Failure> {
    Failure::bad_request(match why {
        Unreadable::Json(error) => format!("couldn't get version/kind; json parse error: {error}"),
        Unreadable::Yaml(error) => {
            format!("the object provided is unrecognized (must be of type {}): yaml: {error}", kind.kind)
        }
    })
}

/// Why strict reading refuses a body: YAML names all keys that are there twice in one error.
fn refusal(strays: &[Stray]) -> String {
    let (keys, fields): (Vec<&Stray>, Vec<&Stray>) =
        strays.iter().partition(|stray| matches!(stray.kind, StrayKind::Key(_)));
    let text = |strays: &[&Stray], between: &str| {
        strays.iter().map(|stray| stray.message()).collect::<Vec<_>>().join(between)
    };
    let mut parts = Vec::new();
    if !keys.is_empty() {
        parts.push(format!("yaml: unmarshal errors:\n  {}", text(&keys, "\n  ")));
    }
    if !fields.is_empty() {
        parts.push(text(&fields, ", "));
    }
    parts.join(", ")
}

/// The fields of a patch that strict reading refuses before it is applied.
pub(crate) fn strays(patch: &Patch, body: &[u8]) -> Vec<Stray> {
    let operations = match patch {
        Patch::Merge(value) | Patch::Strategic(value) if keys(value) == colons(body) => return Vec::new(),
        Patch::Merge(_) | Patch::Strategic(_) => return duplicate_fields(body),
        Patch::Json(_) => serde_json::from_slice::<Value>(body).unwrap_or_default(),
    };
    let mut found = if keys(&operations) == colons(body) { Vec::new() } else { duplicate_fields(body) };
    for stray in &mut found {
        stray.kind = StrayKind::Patch("duplicate");
    }
    for (at, operation) in operations.as_array().into_iter().flatten().enumerate() {
        let known = ["op", "path", "from", "value"];
        let fields = operation.as_object().into_iter().flatten();
        for (name, _) in fields.filter(|(name, _)| !known.contains(&name.as_str())) {
            found.push(Stray { path: format!("[{at}].{name}"), kind: StrayKind::Patch("unknown") });
        }
    }
    found
}

fn parse(body: &[u8], content_type: &str) -> Result<Parsed, Unreadable> {
    match serde_json::from_slice(body) {
        Ok(value) if keys(&value) == colons(body) => Ok(Parsed { value, duplicates: Vec::new() }),
        Ok(value) => Ok(Parsed { duplicates: duplicate_fields(body), value }),
        Err(_) if content_type.contains("yaml") => yaml(body).map_err(Unreadable::Yaml),
        Err(error) => Err(Unreadable::Json(error.to_string())),
    }
}

/// The number of keys of a value.
fn keys(value: &Value) -> usize {
    match value {
        Value::Object(map) => map.len() + map.values().map(keys).sum::<usize>(),
        Value::Array(items) => items.iter().map(keys).sum(),
        _ => 0,
    }
}

/// The number of colons outside of texts, which is the number of keys that JSON has written out.
fn colons(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_text = !in_text,
            b':' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

/// The fields that a body in JSON has twice. Its text is read as YAML, which keeps both.
fn duplicate_fields(body: &[u8]) -> Vec<Stray> {
    let source = Source::new("body", String::from_utf8_lossy(body));
    let options = Options { duplicate_keys: Duplicates::Keep, ..Options::default() };
    let documents = operetta_lang::yaml::parse(&source, &options).unwrap_or_default();
    let mut found = Vec::new();
    if let Some(document) = documents.first() {
        twice(document, "", &mut |_, path| {
            let stray = Stray { path: path.to_owned(), kind: StrayKind::Duplicate };
            if found.len() < MOST_STRAYS && !found.contains(&stray) {
                found.push(stray);
            }
        });
    }
    found
}

fn yaml(body: &[u8]) -> Result<Parsed, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let source = Source::new("body", text);
    let options = Options { duplicate_keys: Duplicates::Keep, ..Options::default() };
    let documents = operetta_lang::yaml::parse(&source, &options).map_err(|error| {
        let line = error.location.as_ref().map_or(1, |at| at.source.line_col(at.span.start).0);
        format!("line {line}: {}", error.message)
    })?;
    let mut parsed = Parsed { value: Value::Null, duplicates: Vec::new() };
    if let Some(document) = documents.first() {
        parsed.value = document.to_json();
        twice(document, "", &mut |key, path| {
            if parsed.duplicates.len() >= MOST_STRAYS {
                return;
            }
            let (line, _) = source.line_col(key.span.start);
            let name = key.as_str().unwrap_or_default();
            let message = format!("line {line}: key {name:?} already set in map");
            parsed.duplicates.push(Stray { path: path.to_owned(), kind: StrayKind::Key(message) });
        });
    }
    Ok(parsed)
}

/// Finds the keys that a map has more than once, with their paths.
fn twice(node: &Node, path: &str, found: &mut dyn FnMut(&Node, &str)) {
    let mut seen = HashSet::new();
    for (key, value) in node.as_map().unwrap_or_default() {
        let name = key.as_str().unwrap_or_default();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        if !seen.insert(name) {
            found(key, &path);
        }
        twice(value, &path, found);
    }
    for (at, item) in node.as_seq().unwrap_or_default().iter().enumerate() {
        twice(item, &format!("{path}[{at}]"), found);
    }
}

/// Reads the configuration of an apply. Nothing is defaulted: only what is written is owned.
pub(crate) fn apply_config(context: &mut Context<'_>) -> Outcome<Value> {
    let kind = context.kind.clone();
    let parsed = parse(context.request.body, context.request.content_type).map_err(|why| {
        let (Unreadable::Json(why) | Unreadable::Yaml(why)) = why;
        Failure::bad_request(format!("error decoding YAML: error converting YAML to JSON: yaml: {why}"))
    })?;
    let mut duplicates = parsed.duplicates;
    if !duplicates.is_empty()
        && let Ok(parsed) = yaml(context.request.body)
    {
        // An apply is always read as YAML.
        duplicates = parsed.duplicates;
    }
    match validation(context)? {
        Validation::Warn => context.warnings.extend(duplicates.iter().map(Stray::message)),
        Validation::Strict if !duplicates.is_empty() => {
            return Err(Failure::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: {}",
                refusal(&duplicates)
            )));
        }
        _ => {}
    }
    let mut value = parsed.value;
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

/// Reads an object into its type and sets its defaults. `patched` makes the object that a patch has changed once more.
pub(crate) fn settle(
    context: &mut Context<'_>,
    value: Value,
    patched: Option<&dyn Fn() -> Value>,
) -> Outcome<Value> {
    settle_strictly(context, value, Vec::new(), patched)
}

/// Reads an object of which some fields are refused already.
pub(crate) fn settle_strictly(
    context: &mut Context<'_>,
    mut value: Value,
    mut strays: Vec<Stray>,
    patched: Option<&dyn Fn() -> Value>,
) -> Outcome<Value> {
    let kind = context.kind.clone();
    let validation = validation(context)?;
    let name_kind = |value: &mut Value| {
        value["apiVersion"] = kind.api_version().into();
        value["kind"] = kind.kind.clone().into();
    };
    name_kind(&mut value);
    let refused =
        |why: String, is_strict: bool| match patched.filter(|_| is_strict || kind.custom().is_none()) {
            Some(patched) => {
                let mut shown = patched();
                name_kind(&mut shown);
                Failure::invalid("", "", "", &[Fault::invalid("patch", shown.to_string(), why)])
            }
            None => Failure::bad_request(cannot_be_handled(&kind, &why)),
        };
    let unknown = read_into(&kind, &mut value).map_err(|why| refused(why, false))?;
    let mut unknown: Vec<Stray> = unknown.into_iter().map(Stray::unknown).collect();
    if validation == Validation::Ignore || strays.is_empty() && unknown.is_empty() {
        return Ok(value);
    }
    if kind.custom().is_none() {
        // Duplicates inside an unknown field are not reported.
        strays.retain(|stray| {
            stray.kind != StrayKind::Duplicate || !unknown.iter().any(|unknown| stray.is_in(unknown))
        });
        unknown.truncate(MOST_STRAYS);
        let text = String::from_utf8_lossy(context.request.body);
        unknown.sort_by_cached_key(|stray| stray.position(&text));
        strays.append(&mut unknown);
        // In the order of the body, if one reading finds all.
        if patched.is_none() && !strays.iter().any(|stray| matches!(stray.kind, StrayKind::Key(_))) {
            strays.sort_by_cached_key(|stray| stray.position(&text));
            strays.truncate(MOST_STRAYS);
        }
    } else {
        strays.append(&mut unknown);
    }
    if validation == Validation::Strict {
        return Err(refused(format!("strict decoding error: {}", refusal(&strays)), true));
    }
    context.warnings.extend(strays.iter().map(Stray::message));
    Ok(value)
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

/// An object of a built-in kind as kube-apiserver stores it: with its defaults, and quantities in their canonical form.
/// `None` of other kinds, and of objects with fields that it does not know.
pub fn stored(object: &Value) -> Option<Value> {
    let typed = kinds::typed(object["apiVersion"].as_str()?, object["kind"].as_str()?)?;
    let mut stored = object.clone();
    let unknown = decode::decode(typed, &mut stored).ok()?;
    defaults::fill(typed, &mut stored);
    unknown.is_empty().then_some(stored)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{Api, Body, Request, User};

    #[test]
    fn stored_object_has_defaults_and_canonical_quantities() {
        let env = json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
        let pod = json!({"containers": [{"name": "a", "image": "a:1", "env": env}]});
        let claim = json!({"metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}});
        let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {"serviceName": "s",
            "selector": {}, "template": {"metadata": {}, "spec": pod}, "volumeClaimTemplates": [claim]}});
        let made = stored(&set).unwrap();
        let claim = &made["spec"]["volumeClaimTemplates"][0];
        assert_eq!(
            (&claim["kind"], &claim["spec"]["volumeMode"]),
            (&json!("PersistentVolumeClaim"), &json!("Filesystem"))
        );
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
        let env = &made["spec"]["template"]["spec"]["containers"][0]["env"][0];
        assert_eq!(env["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(stored(&made), Some(made.clone()), "what is stored stays as it is");
        let unknown =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "future": 1});
        assert_eq!(stored(&unknown), None);
        assert_eq!(stored(&json!({"apiVersion": "example.org/v1", "kind": "Way"})), None);
    }

    #[test]
    fn strict_reading_names_a_hundred_fields() {
        let fields = |of: &dyn Fn(usize) -> String| (0..150).map(of).collect::<Vec<_>>().join(",");
        let unknown = fields(&|at| format!("\"f{at}\":1"));
        let doubled = fields(&|at| format!("\"k{at}\":\"\",\"k{at}\":\"\""));
        for (body, what) in [
            (format!("{{\"metadata\":{{\"name\":\"a\"}},{unknown}}}"), "unknown field"),
            (format!("{{\"metadata\":{{\"name\":\"a\"}},\"data\":{{{doubled}}}}}"), "duplicate field"),
        ] {
            let request = Request {
                method: "POST",
                uri: "/api/v1/namespaces/default/configmaps?fieldValidation=Strict",
                content_type: "application/json",
                accept: "",
                user_agent: "tester",
                user: &User::default(),
                body: body.as_bytes(),
            };
            let response = Api::new(Timestamp::UNIX_EPOCH).handle(&request, Timestamp::UNIX_EPOCH);
            let Body::Text(answer) = response.body else { panic!("a watch") };
            assert_eq!((response.code, answer.matches(what).count()), (400, MOST_STRAYS), "{answer}");
        }
    }
}
