//! The subresource `scale`.

use serde_json::{Value, json};

use crate::api::{Api, Context};
use crate::fields::Set;
use crate::kinds::Kind;
use crate::request::Response;
use crate::status::{Failure, Fault, Outcome};
use crate::{patching, stored, write};

/// Where a kind has its replicas: of the spec, of the status, and the selector.
fn paths(kind: &Kind) -> (String, String, String) {
    match kind.custom() {
        None => (".spec.replicas".into(), ".status.replicas".into(), String::new()),
        Some(custom) => {
            let scale = &custom.version["subresources"]["scale"];
            let text = |field: &str| scale[field].as_str().unwrap_or_default().to_owned();
            (text("specReplicasPath"), text("statusReplicasPath"), text("labelSelectorPath"))
        }
    }
}

fn pointer(path: &str) -> String {
    path.replace('.', "/")
}

/// Reads or changes the number of replicas.
pub(crate) fn answer(api: &mut Api, context: &mut Context<'_>, verb: &str) -> Outcome<Response> {
    let kind = context.kind.clone();
    let before = stored::Live::of(api, context)?;
    let live = before.value();
    if verb == "get" {
        let (path, ..) = paths(&kind);
        if live.pointer(&pointer(&path)).is_none() {
            return Err(Failure::internal(format!("the spec replicas field {path:?} does not exist")));
        }
        return Ok(Response::json(200, &scale(&kind, &live)));
    }
    let mut wanted = scale(&kind, &live);
    match verb {
        "update" => {
            let body: Value = serde_json::from_slice(context.request.body).unwrap_or_default();
            wanted["spec"]["replicas"] = body["spec"]["replicas"].clone();
            for field in
                ["resourceVersion", "uid"].iter().filter(|field| !body["metadata"][**field].is_null())
            {
                wanted["metadata"][*field] = body["metadata"][*field].clone();
            }
        }
        "patch" => {
            let content_type = context.request.content_type.split(';').next().unwrap_or_default().trim();
            patching::Patch::parse(&kind, content_type, context.request.body)?.apply(&kind, &mut wanted)?;
        }
        _ => return Err(Failure::not_allowed(&kind, verb)),
    }
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        let fault = Fault::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(Failure::invalid("autoscaling", "Scale", context.name(), &[fault]));
    }
    let mut object = live.clone();
    set(&mut object, &paths(&kind).0, replicas);
    object["metadata"]["resourceVersion"] = wanted["metadata"]["resourceVersion"].clone();
    let path = paths(&kind).0;
    let steps: Vec<&str> = path.split('.').filter(|step| !step.is_empty()).collect();
    let stored = write::save_as(api, context, &before, &object, &Set::of(&[&steps]))?;
    Ok(Response::json(200, &scale(&kind, &stored)))
}

fn set(object: &mut Value, path: &str, value: i64) {
    let target = path.split('.').filter(|step| !step.is_empty()).fold(object, |at, step| &mut at[step]);
    *target = value.into();
}

/// An object as a `Scale`.
fn scale(kind: &Kind, object: &Value) -> Value {
    let (spec, status, selector) = paths(kind);
    let number = |path: &str| object.pointer(&pointer(path)).and_then(Value::as_i64).unwrap_or(0);
    let mut meta = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            meta[field] = value.clone();
        }
    }
    let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta,
        "spec": {}, "status": {"replicas": number(&status)}});
    if number(&spec) != 0 {
        scale["spec"]["replicas"] = number(&spec).into();
    }
    let selector = if kind.custom().is_some() {
        object.pointer(&pointer(&selector)).and_then(Value::as_str).unwrap_or_default().to_owned()
    } else {
        crate::rows::selector(&object["spec"]["selector"])
    };
    if !selector.is_empty() && selector != "<none>" {
        scale["status"]["selector"] = selector.into();
    }
    scale
}
