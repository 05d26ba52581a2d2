//! Requests that delete objects.

use std::sync::Arc;

use operetta_kube_model::Fault;
use serde_json::{Value, json};

use super::read::{list_of, select};
use super::response::Response;
use crate::admission::{self, Write};
use crate::model::failure::details;
use crate::model::{Context, Failure, Kind, Object, Outcome, Parsed, Query, meta, versions};
use crate::state::stored::{remove, store};
use crate::state::{State, Stored};
use crate::strategy;

/// Deletes an object.
pub(crate) fn delete(state: &mut State, context: &mut Context<'_>) -> Outcome<Response> {
    let kind = context.kind.clone();
    let options = DeleteOptions::read(context)?;
    let key = context.key();
    let Some(object) = state.store.get(kind.storage(), &key).cloned() else {
        return Err(Failure::not_found(&kind, context.name()));
    };
    admit_delete(state, context, &object, options.is_dry)?;
    let (mut last, is_gone) = delete_one(state, &kind, &key, &object, &options, &context.now)?;
    if let Stored::Parsed(last) = &mut last
        && is_gone
        && !options.is_dry
    {
        last.value["metadata"]["resourceVersion"] = state.store.version().to_string().into();
    }
    if let Stored::Parsed(last) = &last
        && is_gone
        && !strategy::returns_deleted(&kind)
    {
        let meta = &last.value["metadata"];
        let text = |field: &str| meta[field].as_str().unwrap_or_default();
        let details = details(&[
            ("name", text("name")),
            ("group", &kind.group),
            ("kind", &kind.plural),
            ("uid", text("uid")),
        ]);
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        return Ok(Response::json(200, &status));
    }
    let accepted = !is_gone && options.orphans == Some(false);
    let mut response = Response::of(if accepted { 202 } else { 200 }, last);
    if kind.resource() == "jobs.batch" && options.propagation.is_none() && options.orphans.is_none() {
        response.warnings.push("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning".to_owned());
    }
    Ok(response)
}

/// Deletes the objects of a list.
pub(crate) fn delete_collection(state: &mut State, context: &mut Context<'_>) -> Outcome<Response> {
    let kind = context.kind.clone();
    let options = DeleteOptions::read(context)?;
    let (found, mut list) = select(state, context)?;
    let mut items = Vec::new();
    for (key, object) in found {
        admit_delete(state, context, &object, options.is_dry)?;
        let (last, _) = delete_one(state, &kind, &key, &object, &options, &context.now)?;
        items.push(last.value());
    }
    list["metadata"]["resourceVersion"] = state.store.version().to_string().into();
    list_of(context, items, list)
}

/// Refuses a deletion that admission denies. Only policies deny deletions, and without them the object is not parsed for them.
fn admit_delete(state: &mut State, context: &mut Context<'_>, object: &Object, is_dry: bool) -> Outcome<()> {
    if !admission::has_policies(state) {
        return Ok(());
    }
    let live = versions::parsed(&context.kind, object)?;
    let name = context.name().to_owned();
    let write = Write { operation: "DELETE", name: &name, new: None, live: Some(&live), is_dry };
    admission::validate(state, context, &write).map(drop)
}

/// The options of a deletion.
#[derive(Debug, Default)]
pub(crate) struct DeleteOptions {
    grace: Option<i64>,
    pub(crate) propagation: Option<String>,
    orphans: Option<bool>,
    uid: Option<String>,
    version: Option<String>,
    pub(crate) is_dry: bool,
}

impl DeleteOptions {
    fn read(context: &Context<'_>) -> Outcome<Self> {
        let body: Value = serde_json::from_slice(context.request.body).unwrap_or_default();
        Self::of(&context.query, &body)
    }

    /// The options of a query and a body.
    pub(crate) fn of(query: &Query, body: &Value) -> Outcome<Self> {
        let mut options = Self {
            grace: query.get("gracePeriodSeconds").and_then(|text| text.parse().ok()),
            propagation: query.get("propagationPolicy").map(str::to_owned),
            orphans: query.get("orphanDependents").map(|text| text != "false" && text != "0"),
            is_dry: query.is_dry_run()?,
            ..Self::default()
        };
        if let Some(body) = body.as_object() {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let preconditions = body.get("preconditions").cloned().unwrap_or_default();
            options.grace = body.get("gracePeriodSeconds").and_then(Value::as_i64).or(options.grace);
            options.propagation = body.get("propagationPolicy").and_then(text).or(options.propagation);
            options.orphans = body.get("orphanDependents").and_then(Value::as_bool).or(options.orphans);
            options.uid = text(&preconditions["uid"]);
            options.version = text(&preconditions["resourceVersion"]);
            options.is_dry |= body.get("dryRun").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        }
        let known = ["Foreground", "Background", "Orphan"];
        if let Some(policy) = options.propagation.as_deref().filter(|policy| !known.contains(policy)) {
            let fault = Fault::not_supported(
                "propagationPolicy",
                policy,
                &["Foreground", "Background", "Orphan", "nil"],
            );
            return Err(Failure::invalid("meta.k8s.io", "DeleteOptions", "", &[fault]));
        }
        Ok(options)
    }

    /// Checks that an object is the one that is to be deleted.
    pub(crate) fn check(&self, kind: &Kind, value: &Value) -> Outcome<()> {
        for (wanted, what, field, then) in [
            (&self.uid, "UID", "uid", "deleted and then recreated"),
            (&self.version, "ResourceVersion", "resourceVersion", "modified"),
        ] {
            let live = meta::text(value, field);
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != live) {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({live}). The object might have been {then}"
                );
                return Err(Failure::precondition(kind, meta::text(value, "name"), &why));
            }
        }
        Ok(())
    }

    /// The same options for an object that the deletion itself has changed.
    pub(crate) fn without_version(self) -> Self {
        Self { version: None, ..self }
    }

    /// The options of a controller.
    pub(crate) fn background(uid: &str) -> Self {
        Self { propagation: Some("Background".to_owned()), uid: Some(uid.to_owned()), ..Self::default() }
    }

    pub(crate) fn with_propagation(uid: &str, propagation: &str) -> Self {
        Self { propagation: Some(propagation.to_owned()), ..Self::background(uid) }
    }
}

/// Deletes an object or begins to. Returns its last state, and whether it is gone.
pub(crate) fn delete_one(
    state: &mut State,
    kind: &Arc<Kind>,
    key: &str,
    object: &Arc<Object>,
    options: &DeleteOptions,
    now: &str,
) -> Outcome<(Stored, bool)> {
    let before = versions::parsed(kind, object)?;
    options.check(kind, &before.value)?;
    strategy::admit_delete(kind, &before.value)?;

    let mut value = before.value.clone();
    strategy::garbage_finalizers(kind, &mut value, options.propagation.as_deref(), options.orphans);
    let grace = strategy::grace(kind, &value, options.grace);
    let is_deleting = !value["metadata"]["deletionTimestamp"].is_null();
    if !is_deleting || grace < value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) {
        strategy::begin_delete(kind, &mut value, grace, now, is_deleting);
    }
    let is_gone = meta::is_released(kind, &value);
    let is_changed = value != before.value;
    let after = Parsed { value, managed: before.managed.clone() };
    let same = || Stored::Parsed(Parsed::clone(&before));
    if is_gone && !options.is_dry {
        remove(state, kind, key);
        return Ok((if strategy::is_graceful(kind) { Stored::Parsed(after) } else { same() }, true));
    }
    if options.is_dry {
        return Ok((if is_gone { same() } else { Stored::Parsed(after) }, is_gone));
    }
    let stored = if is_changed { store(state, kind, key, after)? } else { same() };
    Ok((stored, false))
}
