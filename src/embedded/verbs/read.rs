//! Requests that read objects and lists.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use operetta_kube_model::Fault;
use operetta_kube_model::facts::key;
use serde_json::{Value, json};

use super::response::{Body, Response};
use super::watch::Watch;
use crate::forms::{Form, check_table, formed, table};
use crate::model::{Context, Failure, Kind, Object, Outcome, meta, printed, versions};
use crate::selection::Selection;
use crate::state::State;

/// Reads an object.
pub(crate) fn get(state: &State, context: &Context<'_>) -> Outcome<Response> {
    let kind = context.kind.clone();
    let object = state.store.get(kind.storage(), &context.key());
    let object = object.ok_or_else(|| Failure::not_found(&kind, context.name()))?;
    too_new(state, context)?;
    if Form::of(context.request.accept) == Form::Whole && versions::is_current(&kind, object) {
        return Ok(Response::text(200, object.json.clone()));
    }
    Ok(Response::json(200, &formed(context, versions::read(&kind, object)?)?))
}

/// A version that is not there yet is refused.
fn too_new(state: &State, context: &Context<'_>) -> Outcome<u64> {
    let Some(text) = context.query.get("resourceVersion") else { return Ok(0) };
    let version: u64 = text.parse().map_err(|_| {
        Failure::bad_request(format!(
            "Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })?;
    if version > state.store.version() {
        let mut failure = Failure::new(
            504,
            "Timeout",
            format!("Too large resource version: {version}, current: {}", state.store.version()),
        );
        failure.set_details(json!({"retryAfterSeconds": 1, "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}));
        return Err(failure);
    }
    Ok(version)
}

type Found = (Vec<(Arc<str>, Arc<Object>)>, Value);

/// Selects the objects of a list request: its page, and the list without its items.
pub(crate) fn select(state: &State, context: &Context<'_>) -> Outcome<Found> {
    let kind = &context.kind;
    let query = &context.query;
    let selection = Selection::parse(
        kind,
        query.get("labelSelector").unwrap_or_default(),
        query.get("fieldSelector").unwrap_or_default(),
    )?;
    check_match(context)?;
    too_new(state, context)?;
    let prefix = match context.route.namespace.as_deref() {
        Some(namespace) => key(namespace, ""),
        None => String::new(),
    };
    let limit: usize = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(0);
    let from = query.get("continue").map(|token| read_token(state, token)).transpose()?;
    let start = from.as_ref().map(|(_, start)| format!("{prefix}{start}"));
    let version = from.as_ref().map_or(state.store.version(), |(version, _)| *version);
    let storage = kind.storage();
    let mut found = Vec::new();
    let mut more = None;
    let mut rest = 0;
    for (key, object) in state.store.range(storage, &prefix, start.as_deref()) {
        if limit > 0 && found.len() == limit {
            if more.is_none() {
                more = found.last().map(|(key, _): &(Arc<str>, Arc<Object>)| key.clone());
            }
            rest += 1;
            continue;
        }
        if selection.matches(key, object) {
            found.push((key.clone(), object.clone()));
        }
    }
    let mut list_meta = json!({"resourceVersion": version.to_string()});
    if let Some(last) = more {
        let start = format!("{}\u{0}", last.strip_prefix(&*prefix).unwrap_or_default());
        let token = json!({"v": "meta.k8s.io/v1", "rv": version, "start": start}).to_string();
        list_meta["continue"] = STANDARD_NO_PAD.encode(token).replace('+', "-").replace('/', "_").into();
        if selection.is_empty() {
            list_meta["remainingItemCount"] = rest.into();
        }
    }
    if kind.custom().is_some()
        && Form::of(context.request.accept) == Form::Whole
        && list_meta.get("continue").is_none()
    {
        list_meta["continue"] = "".into();
    }
    let list = json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "metadata": list_meta});
    Ok((found, list))
}

fn check_match(context: &Context<'_>) -> Outcome<()> {
    let query = &context.query;
    let Some(rule) = query.get("resourceVersionMatch") else { return Ok(()) };
    let fault = if query.get("resourceVersion").is_none() {
        Some(Fault::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ))
    } else if rule != "Exact" && rule != "NotOlderThan" {
        Some(Fault::not_supported("resourceVersionMatch", rule, &["Exact", "NotOlderThan", ""]))
    } else if rule == "Exact" && query.get("resourceVersion") == Some("0") {
        Some(Fault::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        ))
    } else {
        None
    };
    match fault.filter(|_| !query.flag("sendInitialEvents")) {
        Some(fault) => Err(Failure::invalid("meta.k8s.io", "ListOptions", "", &[fault])),
        None => Ok(()),
    }
}

/// The version and the key after which a page begins.
fn read_token(state: &State, token: &str) -> Outcome<(u64, String)> {
    let bad = || {
        Failure::bad_request(
            "invalid continue token: continue key is not valid: encoded version must not be empty",
        )
    };
    let text = token.replace('-', "+").replace('_', "/");
    let bytes = STANDARD_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| bad())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    let version = value["rv"].as_u64().ok_or_else(bad)?;
    if state.store.since(version).is_none() {
        return Err(Failure::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
        ));
    }
    let start = value["start"].as_str().ok_or_else(bad)?;
    Ok((version, start.trim_end_matches('\u{0}').to_owned()))
}

/// An item of a list: those of built-in kinds do not repeat their kind.
fn item(kind: &Kind, mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut().filter(|_| kind.custom().is_none()) {
        map.remove("kind");
        map.remove("apiVersion");
    }
    value
}

/// An item of a list as JSON.
fn item_text(kind: &Kind, object: &Object) -> Outcome<String> {
    if versions::is_current(kind, object) {
        if kind.custom().is_some() {
            return Ok(object.json.to_string());
        }
        if let Some(fields) = object.fields() {
            let fields = fields.into_iter().filter(|(name, _)| !["apiVersion", "kind"].contains(name));
            let fields: Vec<String> = fields.map(|(name, value)| format!("\"{name}\":{value}")).collect();
            return Ok(format!("{{{}}}", fields.join(",")));
        }
    }
    Ok(printed(&item(kind, versions::read(kind, object)?)))
}

/// The metadata of an item of a list as JSON.
fn partial_text(kind: &Kind, object: &Object) -> Outcome<String> {
    if let Some(text) =
        Some(object).filter(|object| versions::is_current(kind, object)).and_then(meta::partial_text)
    {
        return Ok(text);
    }
    Ok(printed(&meta::partial(&versions::read(kind, object)?)))
}

/// Reads a list.
pub(crate) fn list(state: &State, context: &Context<'_>) -> Outcome<Response> {
    let kind = context.kind.clone();
    let (found, mut list) = select(state, context)?;
    let form = Form::of(context.request.accept);
    if matches!(form, Form::Table | Form::Metadata) {
        let values: Outcome<Vec<Value>> =
            found.iter().map(|(_, object)| versions::read(&kind, object)).collect();
        return list_of(context, values?, list);
    }
    let text = if form == Form::Whole { item_text } else { partial_text };
    if form == Form::MetadataList {
        name_metadata_list(&mut list);
    }
    let items: Outcome<Vec<String>> = found.iter().map(|(_, object)| text(&kind, object)).collect();
    // A server does not begin such a list before it has an item.
    let is_null = form == Form::MetadataList && found.is_empty();
    let items = if is_null { "null".to_owned() } else { format!("[{}]", items?.join(",")) };
    let text = format!(
        "{{\"apiVersion\":{},\"items\":{},\"kind\":{},\"metadata\":{}}}",
        list["apiVersion"], items, list["kind"], list["metadata"]
    );
    Ok(Response::text(200, text.into()))
}

fn name_metadata_list(list: &mut Value) {
    list["kind"] = "PartialObjectMetadataList".into();
    list["apiVersion"] = "meta.k8s.io/v1".into();
}

/// Objects as a list in the form that is asked for.
pub(crate) fn list_of(context: &Context<'_>, values: Vec<Value>, mut list: Value) -> Outcome<Response> {
    let kind = &context.kind;
    match Form::of(context.request.accept) {
        Form::Whole => {
            list["items"] = values.into_iter().map(|value| item(kind, value)).collect::<Vec<_>>().into();
        }
        Form::MetadataList => {
            name_metadata_list(&mut list);
            let items: Vec<Value> = values.iter().map(meta::partial).collect();
            list["items"] = if items.is_empty() { Value::Null } else { items.into() };
        }
        Form::Metadata => {
            let why = format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({}List)",
                kind.go_type()
            );
            return Err(Failure::new(406, "NotAcceptable", why));
        }
        Form::Table => {
            check_table(context)?;
            let meta = list["metadata"].take();
            list = table::table(kind, &values, &context.query, &context.now, true);
            list["metadata"] = meta;
        }
    }
    Ok(Response::json(200, &list))
}

/// Gives the answer with one object the form that is asked for. A status keeps its own.
pub(crate) fn transform(context: &Context<'_>, response: &mut Response) -> Outcome<()> {
    if response.code >= 300 || Form::of(context.request.accept) == Form::Whole {
        return Ok(());
    }
    if let Body::Text(text) = &response.body
        && let Ok(value) = serde_json::from_str::<Value>(text)
        && (value["kind"] == *context.kind.kind || value["kind"] == "Scale")
    {
        let value = formed(context, value)?;
        response.body = Body::Text(printed(&value).into());
    }
    Ok(())
}

/// Opens a watch.
pub(crate) fn watch(state: &State, context: &Context<'_>) -> Outcome<Response> {
    let watch = Watch::open(&state.store, context)?;
    let mut response = Response::json(200, &Value::Null);
    response.body = Body::Watch(Box::new(watch));
    Ok(response)
}
