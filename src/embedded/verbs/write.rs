//! Requests that store an object, and writes of the control plane itself.

use jiff::Timestamp;
use operetta_kube_model::Fault;
use operetta_kube_model::facts::{key, text};
use serde_json::Value;

use super::managers::updated;
use super::response::Response;
use super::services;
use crate::admission::{self, Write};
use crate::fields::Managed;
use crate::model::request::{segments, versioned};
use crate::model::{Context, Failure, Outcome, Parsed, Query, Request, Route, User, meta};
use crate::state::stored::{remove, store};
use crate::state::{Live, State, Stored};
use crate::strategy::{self, validate};
use crate::{access, body};

/// Reads a new object, and its managers.
pub(crate) fn read_new(state: &State, context: &mut Context<'_>) -> Outcome<Parsed> {
    let mut value = body::read(context, context.request.body)?;
    let managed = updated(state, context, None, &mut value);
    Ok(Parsed { value, managed })
}

/// A name that no object has yet.
fn generated_name(state: &State, resource: &str, namespace: &str, generate: &str, is_dry: bool) -> String {
    // A name has at most 63 characters, if it can be cut.
    let base: String = generate.chars().take(58).collect();
    let place = key(namespace, generate);
    let mut what = "name".to_owned();
    loop {
        let name = format!("{base}{}", state.suffix(&what, resource, &place, is_dry));
        if state.store.get(resource, &key(namespace, &name)).is_none() {
            return name;
        }
        what.push_str(" again");
    }
}

/// Stores a new object.
pub(crate) fn store_new(
    state: &mut State,
    context: &mut Context<'_>,
    new: Parsed,
    is_dry: bool,
) -> Outcome<Stored> {
    let Parsed { value: mut object, mut managed } = new;
    let kind = context.kind.clone();
    admission::mutate(state, context, &mut object, &Value::Null)?;
    access::admit_rights(state, context, None, &object)?;
    let meta = &object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default().to_owned();
    let generate = meta["generateName"].as_str().unwrap_or_default().to_owned();
    let is_generated = name.is_empty() && !generate.is_empty();
    let name = if is_generated {
        generated_name(state, kind.storage(), context.namespace(), &generate, is_dry)
    } else {
        name
    };
    if is_generated && !is_dry {
        // Also if the object is refused: the next attempt has another name.
        state.note_creation(kind.storage(), &key(context.namespace(), &generate));
    }
    if !name.is_empty() {
        object["metadata"]["name"] = name.clone().into();
    }
    let place = key(context.namespace(), &name);
    let uid = state.uid(kind.storage(), &place, is_dry);
    let meta = &mut object["metadata"];
    meta["uid"] = uid.into();
    meta["creationTimestamp"] = context.now.clone().into();
    if let Some(meta) = meta.as_object_mut() {
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
            meta.remove(field);
        }
    }
    if kind.resource() == "services" {
        services::create(state, &mut object, is_dry)?;
    }
    strategy::prepare_create(&kind, &mut object, &context.now);
    let mut faults = validate::create(&kind, &object);
    faults.extend(meta::check(&kind, &object));
    if !faults.is_empty() {
        return Err(Failure::invalid(&kind.group, &kind.kind, &name, &faults));
    }
    context.warnings.extend(strategy::warnings(&kind, &object));
    managed.sort();
    let parsed = Parsed { value: object, managed };
    let write = Write { operation: "CREATE", name: &name, new: Some(&parsed), live: None, is_dry };
    admit(state, context, &write)?;
    // The storage refuses it, and a dry run does not get there.
    if !is_dry && meta::version(&parsed.value).is_ok_and(|version| version != 0) {
        return Err(Failure::plain(500, "resourceVersion should not be set on objects to be created"));
    }
    if let Some(known) = state.store.get(kind.storage(), &place) {
        return Err(Failure::already_exists(&kind, &name, known.is_deleting));
    }
    if is_dry {
        state.note_dry_run();
        return Ok(Stored::Parsed(parsed));
    }
    let stored = store(state, &kind, &place, parsed)?;
    state.note_creation(kind.storage(), &place);
    Ok(stored)
}

/// Replaces an object.
pub(crate) fn update(state: &mut State, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    let mut object = body::read(context, context.request.body)?;
    meta::check_path(context, &mut object)?;
    let live = match Live::of(state, context) {
        Ok(live) => live,
        Err(_) if strategy::creates_on_update(&kind) && context.subresource().is_empty() => {
            if meta::version(&object)? != 0 {
                return Err(Failure::not_found(&kind, context.name()));
            }
            let managed = updated(state, context, None, &mut object);
            access::admit_create(state, context)?;
            let new = Parsed { value: object, managed };
            return Ok(Response::of(201, store_new(state, context, new, is_dry)?));
        }
        Err(failure) => return Err(failure),
    };
    if meta::version(&object)? == 0 && !strategy::updates_unconditionally(&kind) {
        let why = "must be specified for an update";
        let fault = Fault::invalid("metadata.resourceVersion", 0, why);
        return Err(Failure::invalid(&kind.group, &kind.plural, context.name(), &[fault]));
    }
    Ok(Response::of(200, save(state, context, &live, object, None, is_dry)?))
}

/// Stores the next state of an object, unless it equals the live one. Without `managed`, the write is an update of the
/// sender's fields.
pub(crate) fn save(
    state: &mut State,
    context: &mut Context<'_>,
    before: &Live,
    mut object: Value,
    managed: Option<Managed>,
    is_dry: bool,
) -> Outcome<Stored> {
    let live = &before.parsed.value;
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
    let given = meta::version(&object)?;
    if given != 0 && given != meta::version(live)? {
        return Err(Failure::modified(&kind, &name));
    }
    let mut managed = match managed {
        Some(managed) => {
            Managed::remove(&mut object);
            managed
        }
        None => updated(state, context, Some(&before.parsed), &mut object),
    };
    admission::mutate(state, context, &mut object, live)?;
    if context.subresource() == "resize" {
        validate::keep_resources(live, &mut object);
    }
    meta::carry_over(live, &mut object);
    access::admit_rights(state, context, Some(live), &object)?;
    if kind.resource() == "services" && context.subresource().is_empty() {
        services::update(state, live, &mut object, is_dry)?;
    }
    strategy::prepare_update(&kind, context.subresource(), live, &mut object);
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
    if sub == "resize" {
        admission::admit_resize(state, &kind, live, &object)?;
    }
    managed.sort();
    object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    let parsed = Parsed { value: object, managed };
    let write =
        Write { operation: "UPDATE", name: &name, new: Some(&parsed), live: Some(&before.parsed), is_dry };
    admit(state, context, &write)?;
    let has_new_generation = parsed.value["metadata"]["generation"] != live["metadata"]["generation"];
    if has_new_generation || kind.custom().is_some() || kind.resource() == "services" && sub.is_empty() {
        context.warnings.extend(strategy::warnings(&kind, &parsed.value));
    }
    if parsed.value == *live && parsed.managed.same_but_times(&before.parsed.managed) {
        return Ok(before.unchanged(&kind));
    }
    let is_gone = meta::is_released(&kind, &parsed.value);
    if is_dry {
        return Ok(Stored::Parsed(parsed));
    }
    let key = key(context.namespace(), &name);
    if !is_gone {
        return store(state, &kind, &key, parsed);
    }
    remove(state, &kind, &key);
    Ok(Stored::Parsed(parsed))
}

/// Lets admission refuse a write, and charges it to the quotas that count it.
fn admit(state: &mut State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    for quota in admission::validate(state, context, write)? {
        let user = User {
            name: "system:apiserver".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..User::default()
        };
        let name = text(&quota["metadata"]["name"]);
        let path = format!("/api/v1/namespaces/{}/resourcequotas/{name}/status", context.namespace());
        write_as(state, ("kube-apiserver", &user), &path, quota, context.at)?;
    }
    Ok(())
}

/// Creates an object on behalf of a part of the control plane, or replaces the one that the path names.
pub(crate) fn write_as(
    state: &mut State,
    (agent, user): (&str, &User),
    path: &str,
    object: Value,
    at: Timestamp,
) -> Outcome<()> {
    let parts = segments(path);
    let (group, version, rest) = versioned(&parts).ok_or_else(Failure::no_path)?;
    let route = Route::parse(group, version, rest).ok_or_else(Failure::no_path)?;
    let kind = state.kinds.find(group, version, &route.plural).cloned().ok_or_else(Failure::no_path)?;
    let is_new = route.name.is_none();
    let request = Request {
        method: if is_new { "POST" } else { "PUT" },
        uri: path,
        content_type: "application/json",
        accept: "",
        user_agent: agent,
        user,
        body: b"",
    };
    let mut context = Context::new(kind, route, Query::default(), &request, at);
    context.given = Some(object);
    if is_new {
        let mut new = read_new(state, &mut context)?;
        meta::settle_namespace(&context, &mut new.value)?;
        store_new(state, &mut context, new, false)?;
    } else {
        update(state, &mut context)?;
    }
    Ok(())
}
