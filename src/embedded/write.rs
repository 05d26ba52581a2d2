//! Requests that change objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::{Api, Context, key};
use crate::fields::manager::{Rules, unchanged};
use crate::fields::{Conflicts, Managed, Owner, Set, check};
use crate::kinds::Kind;
use crate::meta;
use crate::policy::{self, Write};
use crate::request::{Query, Response, manager};
use crate::status::{Failure, Outcome, details};
use crate::store::Object;
use crate::{access, body, last_applied, patching, strategy, validate, versions};

/// Creates an object.
pub(crate) fn create(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let mut object = body::read(context, context.request.body)?;
    let managed = updated(api, context, None, &mut object);
    let stored = store_new(api, context, object, &managed, is_dry)?;
    Ok(Response::json(201, &stored))
}

/// Reads an object that is answered and not stored, with its managers.
pub(crate) fn read_new(api: &Api, context: &mut Context<'_>) -> Outcome<Value> {
    let mut object = body::read(context, context.request.body)?;
    let managed = updated(api, context, None, &mut object);
    put_managed(&mut object, &managed);
    Ok(object)
}

/// The schemas of the versions of a kind, for the sets of its managers.
fn rules(api: &Api, (kind, now): (&Kind, &str), reset: &Set, run: impl FnOnce(&Rules<'_, '_>)) {
    let schema = move |version: &str| {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        if group != kind.group {
            return None;
        }
        if version == kind.version {
            return Some(kind.typed());
        }
        api.kinds.find(group, version, &kind.plural).map(|kind| kind.typed())
    };
    run(&Rules { schema: &schema, reset, now, empty: &body::empty(kind) });
}

/// The managers after an update, and the object without its managedFields.
fn updated(api: &Api, context: &Context<'_>, live: Option<&Value>, object: &mut Value) -> Managed {
    let given = take_managed(object);
    let mut old = live.cloned().unwrap_or_else(|| body::empty(&context.kind));
    let live_managed = take_managed(&mut old);
    let is_reset = given.as_array().is_some_and(
        |all| matches!(&all[..], [one] if one.as_object().is_some_and(serde_json::Map::is_empty)),
    );
    let mut managed = match Managed::parse(&given) {
        _ if !context.subresource().is_empty() => Managed::parse(&live_managed).unwrap_or_default(),
        _ if is_reset => Managed::default(),
        Some(given) if !given.is_empty() => given,
        _ => Managed::parse(&live_managed).unwrap_or_default(),
    };
    if managed.is_empty() && live.is_some() {
        return managed;
    }
    let owner = owner(context);
    let reset = strategy::reset_fields(&context.kind, context.subresource());
    rules(api, (&context.kind, &context.now), &reset, |rules| managed.update(&old, object, &owner, rules));
    managed
}

fn take_managed(object: &mut Value) -> Value {
    let meta = object.get_mut("metadata").and_then(Value::as_object_mut);
    meta.and_then(|meta| meta.remove("managedFields")).unwrap_or_default()
}

fn put_managed(object: &mut Value, managed: &Managed) {
    if !managed.is_empty() {
        object["metadata"]["managedFields"] = managed.to_json();
    }
}

/// Stores a new object.
fn store_new(
    api: &mut Api,
    context: &mut Context<'_>,
    mut object: Value,
    managed: &Managed,
    is_dry: bool,
) -> Outcome<Value> {
    let kind = context.kind.clone();
    if context.request.method != "POST" {
        access::admit_create(api, context)?;
    }
    access::admit_rights(api, context, None, &object)?;
    let meta = &object["metadata"];
    if meta["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
        return Err(Failure::plain(500, "resourceVersion should not be set on objects to be created"));
    }
    if kind.namespaced {
        match meta["namespace"].as_str().unwrap_or_default() {
            "" => object["metadata"]["namespace"] = context.namespace().into(),
            given if given != context.namespace() => return Err(wrong_namespace()),
            _ => {}
        }
    }
    let meta = &object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default().to_owned();
    let generate = meta["generateName"].as_str().unwrap_or_default().to_owned();
    let name = if name.is_empty() && !generate.is_empty() {
        // A name has at most 63 characters, if it can be cut.
        let base: String = generate.chars().take(58).collect();
        format!("{base}{}", api.suffix())
    } else {
        name
    };
    if !name.is_empty() {
        object["metadata"]["name"] = name.clone().into();
    }
    let uid = api.uid();
    let meta = &mut object["metadata"];
    meta["uid"] = uid.into();
    meta["creationTimestamp"] = context.now.clone().into();
    if let Some(meta) = meta.as_object_mut() {
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
            meta.remove(field);
        }
    }
    meta::admit_namespace(api, context, &name)?;
    strategy::prepare_create(api, &kind, &mut object, &context.now);
    context.warnings.extend(strategy::warnings(&kind, &object));
    let mut faults = validate::create(&kind, &object);
    faults.extend(meta::check(&kind, &object));
    if !faults.is_empty() {
        return Err(Failure::invalid(&kind.group, &kind.kind, &name, &faults));
    }
    put_managed(&mut object, managed);
    let key = key(context.namespace(), &name);
    let write = Write { operation: "CREATE", name: &name, object: &object, old: &Value::Null, is_dry };
    policy::admit(api, context, write)?;
    if api.store.get(&kind.storage(), &key).is_some() {
        let is_deleting = !object_is_live(api, &kind, &key);
        return Err(Failure::already_exists(&kind, &name, is_deleting));
    }
    if is_dry {
        return Ok(object);
    }
    let object = store(api, &kind, &key, object)?;
    crate::crd::changed(api, &kind, Some(&object));
    Ok(object)
}

/// Stores an object. Returns it as it is answered: a webhook converts it to the version of storage and back.
fn store(api: &mut Api, kind: &Kind, key: &str, object: Value) -> Outcome<Value> {
    let mut object = versions::for_storage(kind, object)?;
    api.store.put(&kind.storage(), key, &mut object);
    versions::from_storage(kind, &mut object)?;
    Ok(object)
}

fn object_is_live(api: &Api, kind: &Kind, key: &str) -> bool {
    api.store.get(&kind.storage(), key).is_none_or(|object| !object.is_deleting)
}

fn wrong_namespace() -> Box<Failure> {
    Failure::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    )
}

/// Replaces an object.
pub(crate) fn update(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    let mut object = body::read(context, context.request.body)?;
    meta::check_path(context, &mut object)?;
    let live = match api.live(context) {
        Ok(live) => live,
        Err(_) if strategy::creates_on_update(&kind) && context.subresource().is_empty() => {
            if !meta::text(&object, "resourceVersion").is_empty() {
                return Err(Failure::not_found(&kind, context.name()));
            }
            let managed = updated(api, context, None, &mut object);
            let stored = store_new(api, context, object, &managed, is_dry)?;
            return Ok(Response::json(201, &stored));
        }
        Err(failure) => return Err(failure),
    };
    if meta::text(&object, "resourceVersion").is_empty() && !strategy::updates_unconditionally(&kind) {
        let why = "must be specified for an update";
        let fault = crate::status::Fault::invalid("metadata.resourceVersion", 0, why);
        return Err(Failure::invalid(&kind.group, &kind.plural, context.name(), &[fault]));
    }
    let (stored, _) = save(api, context, &live, object, None, is_dry)?;
    Ok(Response::json(200, &stored))
}

/// Stores the next state of an object, unless it equals the live one. Without `managed`, the write is an update of the
/// sender's fields.
fn save(
    api: &mut Api,
    context: &mut Context<'_>,
    live: &Value,
    mut object: Value,
    managed: Option<Managed>,
    is_dry: bool,
) -> Outcome<(Value, bool)> {
    let kind = context.kind.clone();
    let name = context.name().to_owned();
    let given_uid = meta::text(&object, "uid").to_owned();
    let live_uid = meta::text(live, "uid");
    if !given_uid.is_empty() && given_uid != live_uid && context.request.method == "PUT" {
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {given_uid}, UID in object meta: {live_uid}",
            kind.registry(),
            context.key().trim_start_matches('/')
        );
        return Err(Failure::conflict(&kind, &name, &why));
    }
    let given = meta::text(&object, "resourceVersion").to_owned();
    if !given.is_empty() && given != meta::text(live, "resourceVersion") {
        return Err(Failure::modified(&kind, &name));
    }
    let managed = match managed {
        Some(managed) => {
            take_managed(&mut object);
            managed
        }
        None => updated(api, context, Some(live), &mut object),
    };
    meta::carry_over(live, &mut object);
    access::admit_rights(api, context, Some(live), &object)?;
    strategy::prepare_update(api, &kind, context.subresource(), live, &mut object);
    let mut faults = meta::check(&kind, &object);
    let sub = context.subresource().to_owned();
    let of_meta = meta::check_update(live, &object);
    // The rules of built-in kinds check the metadata once more.
    if kind.custom().is_none() {
        faults.extend(of_meta.clone());
    }
    faults.extend(of_meta);
    faults.extend(validate::update(&kind, &sub, live, &object, &mut context.warnings));
    if !faults.is_empty() {
        return Err(Failure::invalid(&kind.group, &kind.kind, &name, &faults));
    }
    policy::admit(
        api,
        context,
        Write { operation: "UPDATE", name: &name, object: &object, old: live, is_dry },
    )?;
    if object["metadata"]["generation"] != live["metadata"]["generation"] || kind.custom().is_some() {
        context.warnings.extend(strategy::warnings(&kind, &object));
    }
    let mut old = live.clone();
    let old_managed = Managed::parse(&take_managed(&mut old)).unwrap_or_default();
    object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    if object == old && managed.same_but_times(&old_managed) {
        return Ok((live.clone(), false));
    }
    put_managed(&mut object, &managed);
    let is_gone = meta::is_released(&kind, &object);
    if is_dry {
        return Ok((object, is_gone));
    }
    let key = key(context.namespace(), &name);
    if is_gone {
        api.store.remove(&kind.storage(), &key);
        crate::crd::changed(api, &kind, None);
    } else {
        object = store(api, &kind, &key, object)?;
        crate::crd::changed(api, &kind, Some(&object));
    }
    Ok((object, is_gone))
}

/// Stores an object that a subresource changed.
pub(crate) fn save_as(
    api: &mut Api,
    context: &mut Context<'_>,
    live: &Value,
    object: Value,
    owned: &Set,
) -> Outcome<Value> {
    let is_dry = context.query.is_dry_run()?;
    let mut object = body::settle(context, object, Some(live))?;
    let mut old = live.clone();
    let mut managed = Managed::parse(&take_managed(&mut old)).unwrap_or_default();
    // Without an owner of the field, nobody becomes one.
    if managed.has_owner_of(owned) {
        take_managed(&mut object);
        let owner = owner(context);
        rules(api, (&context.kind, &context.now), &Set::default(), |rules| {
            managed.update(&old, &object, &owner, rules);
        });
        managed.forget_time(&owner);
    }
    save(api, context, live, object, Some(managed), is_dry).map(|(stored, _)| stored)
}

/// The sender of an update as a manager.
fn owner(context: &Context<'_>) -> Owner {
    Owner {
        manager: manager(&context.query, context.request.user_agent),
        is_apply: false,
        version: context.kind.api_version(),
        subresource: context.subresource().to_owned(),
    }
}

/// Changes an object by a patch.
pub(crate) fn patch(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let content_type = context.request.content_type.split(';').next().unwrap_or_default().trim();
    if matches!(content_type, "application/apply-patch+yaml" | "application/apply-patch+cbor") {
        return apply(api, context);
    }
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    let patch = patching::Patch::parse(&kind, content_type, context.request.body)?;
    if context.query.has("force") {
        let fault = crate::status::Fault::forbidden("force", "may not be specified for non-apply patch");
        return Err(Failure::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
    }
    let live = api.live(context)?;
    let mut object = live.clone();
    patch.apply(&kind, &mut object)?;
    let mut object = body::settle(context, object, Some(&live))?;
    meta::check_path(context, &mut object)?;
    let (stored, _) = save(api, context, &live, object, None, is_dry)?;
    Ok(Response::json(200, &stored))
}

/// Server-side apply.
fn apply(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    if context.query.get("fieldManager").is_none() {
        let fault = crate::status::Fault::required("fieldManager", "is required for apply patch");
        return Err(Failure::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
    }
    let config = body::apply_config(context)?;
    let live = match api.live(context) {
        Ok(live) => Some(live),
        Err(failure) if !context.subresource().is_empty() => return Err(failure),
        Err(_) => None,
    };
    if live.is_none() && !meta::text(&config, "uid").is_empty() {
        let why = format!(
            "uid mismatch: the provided object specified uid {}, and no existing object was found",
            meta::text(&config, "uid")
        );
        return Err(Failure::conflict(&kind, context.name(), &why));
    }
    let faults = check(kind.typed(), &config, false);
    if !faults.is_empty() {
        let place = format!("{}/{}", meta::text(&config, "namespace"), meta::text(&config, "name"));
        let faults =
            if let [one] = &faults[..] { one.clone() } else { format!("errors:\n  {}", faults.join("\n  ")) };
        let message = format!(
            "failed to create typed patch object ({place}; {}/{}, Kind={}): {faults}",
            kind.group, kind.version, kind.kind
        );
        return Err(Failure::plain(500, message));
    }
    let mut old = live.clone().unwrap_or_else(|| body::empty(&kind));
    let mut managed = Managed::parse(&take_managed(&mut old)).unwrap_or_default();
    let before = managed.clone();
    let owner = Owner {
        manager: manager(&context.query, context.request.user_agent),
        is_apply: true,
        version: kind.api_version(),
        subresource: context.subresource().to_owned(),
    };
    let force = context.query.flag("force");
    let reset = strategy::reset_fields(&kind, context.subresource());
    let mut result = Ok(Value::Null);
    rules(api, (&context.kind, &context.now), &reset, |rules| {
        result = managed.apply(&old, &config, &owner, force, rules);
        // What kubectl applied from the client is its own.
        if let Err(conflicts) = &result
            && owner.manager == "kubectl"
            && last_applied::allows(kind.typed(), &old, conflicts)
        {
            result = managed.apply(&old, &config, &owner, true, rules);
        }
    });
    let mut merged = result.map_err(|conflicts| conflict_failure(&conflicts))?;
    if owner.manager == "kubectl" {
        last_applied::record(&mut merged, &config);
    }
    let is_same = unchanged(&old, &merged) && managed.same_but_times(&before);
    if let Some(live) = live.as_ref().filter(|_| is_same) {
        let given = meta::text(&config, "resourceVersion");
        if !given.is_empty() && given != meta::text(live, "resourceVersion") {
            return Err(Failure::modified(&kind, context.name()));
        }
        return Ok(Response::json(200, live));
    }
    if !unchanged(&old, &merged) {
        managed.touch(&owner, &context.now);
    }
    if let Some(custom) = kind.custom() {
        let faults = crate::crd::nulls(custom, context.subresource(), &merged);
        if !faults.is_empty() {
            return Err(Failure::invalid(&kind.group, &kind.kind, context.name(), &faults));
        }
    }
    let mut object = body::settle(context, merged, live.as_ref())?;
    meta::check_path(context, &mut object)?;
    if let Some(live) = live {
        let (stored, _) = save(api, context, &live, object, Some(managed), is_dry)?;
        Ok(Response::json(200, &stored))
    } else {
        take_managed(&mut object);
        // An apply may name the version that the object would have: it is refused only if there is one.
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
        }
        let stored = store_new(api, context, object, &managed, is_dry)?;
        Ok(Response::json(201, &stored))
    }
}

fn conflict_failure(conflicts: &Conflicts) -> Box<Failure> {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    let mut sorted: Vec<&(String, Vec<String>)> = conflicts.0.iter().collect();
    sorted.sort();
    for (manager, paths) in sorted {
        lines.push(format!("conflicts with {manager}:"));
        for path in paths {
            causes.push(("FieldManagerConflict", format!("conflict with {manager}"), path.clone()));
            lines.push(format!("- {path}"));
        }
    }
    let message = match &causes[..] {
        [(_, message, path)] => format!("Apply failed with 1 conflict: {message}: {path}"),
        all => format!("Apply failed with {} conflicts: {}", all.len(), lines.join("\n")),
    };
    Failure::new(409, "Conflict", message).caused(causes)
}

/// Deletes an object.
pub(crate) fn delete(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let kind = context.kind.clone();
    let options = DeleteOptions::read(context)?;
    let key = context.key();
    let Some(object) = api.store.get(&kind.storage(), &key).cloned() else {
        return Err(Failure::not_found(&kind, context.name()));
    };
    admit_delete(api, context, &object, options.is_dry)?;
    let (mut last, is_gone) = delete_one(api, &kind, &key, &object, &options, &context.now)?;
    if is_gone && !options.is_dry {
        last["metadata"]["resourceVersion"] = api.store.version().to_string().into();
    }
    if is_gone && !strategy::returns_deleted(&kind) {
        let meta = &last["metadata"];
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
    let mut response = Response::json(if accepted { 202 } else { 200 }, &last);
    if kind.resource() == "jobs.batch" && options.propagation.is_none() && options.orphans.is_none() {
        response.warnings.push("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning".to_owned());
    }
    Ok(response)
}

/// Deletes the objects of a list.
pub(crate) fn delete_collection(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let kind = context.kind.clone();
    let options = DeleteOptions::read(context)?;
    let (found, mut list) = crate::read::select(api, context)?;
    let mut items = Vec::new();
    for (key, object) in found {
        admit_delete(api, context, &object, options.is_dry)?;
        let (last, _) = delete_one(api, &kind, &key, &object, &options, &context.now)?;
        items.push(crate::read::item(&kind, last));
    }
    list["items"] = items.into();
    list["metadata"]["resourceVersion"] = api.store.version().to_string().into();
    Ok(Response::json(200, &list))
}

/// Refuses a deletion that a policy denies.
fn admit_delete(api: &mut Api, context: &mut Context<'_>, object: &Object, is_dry: bool) -> Outcome<()> {
    let old = versions::read(&context.kind, object)?;
    let name = context.name().to_owned();
    policy::admit(
        api,
        context,
        Write { operation: "DELETE", name: &name, object: &Value::Null, old: &old, is_dry },
    )
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
            let fault = crate::status::Fault::not_supported(
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
    api: &mut Api,
    kind: &Arc<Kind>,
    key: &str,
    object: &Arc<Object>,
    options: &DeleteOptions,
    now: &str,
) -> Outcome<(Value, bool)> {
    let mut value = versions::read(kind, object)?;
    options.check(kind, &value)?;
    strategy::admit_delete(kind, &value)?;

    let before = value.clone();
    strategy::garbage_finalizers(kind, &mut value, options.propagation.as_deref(), options.orphans);
    let grace = strategy::grace(kind, &value, options.grace);
    let is_deleting = !value["metadata"]["deletionTimestamp"].is_null();
    if !is_deleting || grace < value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) {
        strategy::begin_delete(kind, &mut value, grace, now, is_deleting);
    }
    let is_gone = meta::is_released(kind, &value);
    if options.is_dry {
        return Ok((if is_gone { before } else { value }, is_gone));
    }
    if is_gone {
        api.store.remove(&kind.storage(), key);
        crate::crd::changed(api, kind, None);
        return Ok((if strategy::is_graceful(kind) { value } else { before }, true));
    }
    if value != before {
        value = store(api, kind, key, value)?;
        crate::crd::changed(api, kind, Some(&value));
    }
    Ok((value, false))
}

/// Replaces an object on behalf of the garbage collector, as an update of its fields.
pub(crate) fn put_as_collector(api: &mut Api, kind: &Arc<Kind>, key: &str, mut new: Value, now: &str) {
    let Some(Ok(mut old)) = api.store.get(&kind.storage(), key).map(|object| versions::read(kind, object))
    else {
        return;
    };
    let mut managed = Managed::parse(&take_managed(&mut old)).unwrap_or_default();
    take_managed(&mut new);
    let owner = Owner {
        manager: "kube-controller-manager".to_owned(),
        is_apply: false,
        version: kind.api_version(),
        subresource: String::new(),
    };
    let reset = strategy::reset_fields(kind, "");
    rules(api, (kind, now), &reset, |rules| managed.update(&old, &new, &owner, rules));
    put_managed(&mut new, &managed);
    put(api, kind, key, new);
}

/// Replaces an object on behalf of a controller, without its managers.
pub(crate) fn put(api: &mut Api, kind: &Arc<Kind>, key: &str, value: Value) {
    if meta::is_released(kind, &value) {
        api.store.remove(&kind.storage(), key);
        crate::crd::changed(api, kind, None);
        return;
    }
    // What a webhook does not convert stays as it was: a controller has nobody to tell.
    if let Ok(value) = store(api, kind, key, value) {
        crate::crd::changed(api, kind, Some(&value));
    }
}
