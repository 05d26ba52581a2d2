//! The subresource `scale`.

use std::sync::Arc;

use operetta_kube_model::Fault;
use operetta_kube_model::fields::FieldSet;
use serde_json::{Value, json};

use super::apply::{self, Config};
use super::managers::updated;
use super::response::Response;
use super::write::save;
use crate::body::patch::Patch;
use crate::fields::Managed;
use crate::forms::rows;
use crate::model::{Context, Failure, Kind, Names, Outcome, Parsed, Source, meta};
use crate::state::{Live, State};
use crate::{body, schema};

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

/// The kind `Scale`, for one of those that have it.
fn scale_kind(of: &Kind) -> Outcome<Arc<Kind>> {
    let typed = schema::definition("autoscaling.v1.Scale").ok_or_else(Failure::no_path)?;
    Ok(Arc::new(Kind {
        group: "autoscaling".to_owned(),
        version: "v1".to_owned(),
        plural: "scales".to_owned(),
        kind: "Scale".to_owned(),
        namespaced: of.namespaced,
        verbs: Vec::new(),
        subresources: Vec::new(),
        names: Names::of("autoscaling", "v1", "scales"),
        source: Source::BuiltIn(typed),
    }))
}

/// Where a version of a kind has its replicas: nowhere if the set is empty.
fn replicas(state: &State, kind: &Kind, version: &str) -> Option<FieldSet> {
    let (group, short) = version.split_once('/').unwrap_or(("", version));
    let of = state.kinds.known(group, short, &kind.plural).filter(|of| of.group == kind.group)?;
    let path = paths(of).0;
    let steps: Vec<&str> = path.split('.').filter(|step| !step.is_empty()).collect();
    Some(FieldSet::of(&[&steps]))
}

/// Reads or changes the number of replicas.
pub(crate) fn answer(state: &mut State, context: &mut Context<'_>, verb: &str) -> Outcome<Response> {
    let kind = context.kind.clone();
    let before = Live::of(state, context)?;
    let live = &before.parsed.value;
    let path = paths(&kind).0;
    if verb == "get" {
        if live.pointer(&pointer(&path)).is_none() {
            return Err(Failure::internal(format!("the spec replicas field {path:?} does not exist")));
        }
        return Ok(Response::json(200, &scale(&kind, live)));
    }
    let is_dry = context.query.is_dry_run()?;
    let (route, query) = (context.route.clone(), context.query.clone());
    let mut inner = Context::new(scale_kind(&kind)?, route, query, context.request, context.at);
    inner.given = context.given.take();
    let of_version = |version: &str| replicas(state, &kind, version);
    let old = Parsed { value: scale(&kind, live), managed: before.parsed.managed.to_scale(&of_version) };
    let (wanted, managed) = change(state, &mut inner, &old, verb)?;
    let managed = before.parsed.managed.with_scale(&managed, kind.api_version(), &of_version);
    if is_apply(context) {
        if wanted["spec"] == old.value["spec"] && managed.same_in_any_order(&before.parsed.managed) {
            return Ok(Response::json(200, &old.value));
        }
        if kind.custom().is_some() {
            // The real server converts the new `Scale` as if it were one of the custom resources.
            let (namespace, name) = (context.namespace(), context.name());
            let why = "request to convert CR to an invalid group/version: autoscaling/v1";
            let what = format!("({namespace}/{name}; autoscaling/v1, Kind=Scale)");
            let text = format!("failed to convert new object {what} to proper version: {why}");
            return Err(Failure::plain(500, text));
        }
    }
    context.warnings.append(&mut inner.warnings);
    let count = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
    if count < 0 {
        let fault = Fault::invalid("spec.replicas", count, "must be greater than or equal to 0");
        return Err(Failure::invalid("autoscaling", "Scale", context.name(), &[fault]));
    }
    let (uid, live_uid) = (meta::text(&wanted, "uid"), meta::text(live, "uid"));
    if uid != live_uid && verb == "patch" {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {live_uid}");
        return Err(Failure::conflict(&kind, context.name(), &why));
    }
    let mut object = live.clone();
    set(&mut object, &path, count)?;
    object["metadata"]["uid"] = uid.into();
    object["metadata"]["resourceVersion"] = wanted["metadata"]["resourceVersion"].clone();
    let object = body::settle(context, object.clone(), Some(&|| object.clone()))?;
    let stored = save(state, context, &before, object, Some(managed), is_dry)?;
    Ok(Response::json(200, &scale(&kind, &stored.value())))
}

fn is_apply(context: &Context<'_>) -> bool {
    context.request.content_type.starts_with("application/apply-patch")
}

/// The `Scale` that a request makes of the old one, and its managers.
fn change(state: &State, context: &mut Context<'_>, old: &Parsed, verb: &str) -> Outcome<(Value, Managed)> {
    let kind = context.kind.clone();
    let content_type = context.request.content_type.split(';').next().unwrap_or_default().trim();
    let mut wanted = match (verb, content_type) {
        ("update", _) => body::read(context, context.request.body)?,
        ("patch", "application/apply-patch+yaml") => {
            let config = Config::read(context)?;
            config.check(&kind)?;
            let mut managed = old.managed.clone();
            let now = context.now.clone();
            let merged =
                config.merge(state, (&kind, &now), &old.value, &mut managed).map_err(apply::failure)?;
            let mut wanted = body::settle(context, merged.clone(), Some(&|| merged.clone()))?;
            meta::check_path(context, &mut wanted)?;
            return Ok((wanted, managed));
        }
        ("patch", _) => {
            let patch = Patch::parse(&kind, content_type, context.request.body)?;
            let mut wanted = old.value.clone();
            patch.apply(&kind, &mut wanted)?;
            let strays = body::strays(&patch, context.request.body);
            body::settle_strictly(context, wanted.clone(), strays, Some(&|| wanted.clone()))?
        }
        _ => return Err(Failure::not_allowed()),
    };
    meta::check_path(context, &mut wanted)?;
    if meta::text(&wanted, "uid").is_empty() {
        wanted["metadata"]["uid"] = old.value["metadata"]["uid"].clone();
    }
    let managed = updated(state, context, Some(old), &mut wanted);
    Ok((wanted, managed))
}

fn set(object: &mut Value, path: &str, value: i64) -> Outcome<()> {
    let mut target = object;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        if !target.is_null() && !target.is_object() {
            let why = format!(
                "the spec replicas field {path:?} cannot be set: the parent of {step:?} is not an object"
            );
            return Err(Failure::internal(why));
        }
        target = &mut target[step];
    }
    *target = value.into();
    Ok(())
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
        rows::selector(&object["spec"]["selector"])
    };
    if !selector.is_empty() && selector != "<none>" {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_set_in_objects_only() {
        let wanted = json!({"spec": {"size": 2}});
        for mut object in [json!({}), json!({"spec": null}), json!({"spec": {"size": "x"}})] {
            set(&mut object, ".spec.size", 2).unwrap();
            assert_eq!(object, wanted);
        }
        for spec in [json!("x"), json!([]), json!(1)] {
            let failure = set(&mut json!({"spec": spec}), ".spec.size", 2).unwrap_err();
            assert_eq!(failure.code, 500, "{spec}");
        }
    }
}
