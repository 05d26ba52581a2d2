//! Requests that change objects.

use std::borrow::Cow;
use std::sync::Arc;

use operetta_kube_model::Fault;
use operetta_kube_model::fields::{FieldSet, MANAGED, Owner};
use serde_json::Value;

use crate::admission::{self, Write};
use crate::api::{Api, Context, key};
use crate::fields::{Managed, Rules};
use crate::kinds::Kind;
use crate::request::{Response, manager};
use crate::status::{Failure, Outcome};
use crate::store::Parsed;
use crate::stored::{Live, Stored, replace, store};
use crate::{access, body, meta, patching, services, strategy, validate, versions};

/// Creates an object.
pub(crate) fn create(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let mut object = body::read(context, context.request.body)?;
    let managed = updated(api, context, None, &mut object);
    Ok(store_new(api, context, object, managed, is_dry)?.respond(201))
}

/// Reads an object that is answered and not stored, with its managers.
pub(crate) fn read_new(api: &Api, context: &mut Context<'_>) -> Outcome<Value> {
    let mut object = body::read(context, context.request.body)?;
    let managed = updated(api, context, None, &mut object);
    managed.put(&mut object);
    Ok(object)
}

/// The schemas of the versions of a kind, for the sets of its managers.
pub(crate) fn rules(
    api: &Api,
    (kind, now): (&Kind, &str),
    reset: &FieldSet,
    run: impl FnOnce(&Rules<'_, '_>),
) {
    let other = |version: &str| {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        if group == kind.group { api.kinds.known(group, version, &kind.plural) } else { None }
    };
    let schema = |version: &str| {
        if version == kind.api_version() {
            return Some(kind.typed());
        }
        other(version).map(|kind| kind.typed())
    };
    let convert = |version: &str, object: &Value| -> Result<Value, String> {
        let mut object = object.clone();
        if let Some(kind) = other(version) {
            versions::translate(kind, &mut object).map_err(|failure| failure.message().to_owned())?;
        }
        Ok(object)
    };
    run(&Rules {
        schema: &schema,
        convert: &convert,
        is_custom: kind.custom().is_some(),
        reset,
        now,
        empty: &|| body::empty(kind),
    });
}

/// The managers after an update, and the object without its managedFields.
pub(crate) fn updated(
    api: &Api,
    context: &Context<'_>,
    live: Option<&Parsed>,
    object: &mut Value,
) -> Managed {
    let given = Managed::remove(object);
    let is_reset = given.as_array().is_some_and(
        |all| matches!(&all[..], [one] if one.as_object().is_some_and(serde_json::Map::is_empty)),
    );
    let known = || live.map(|live| live.managed.clone()).unwrap_or_default();
    let mut managed = match Managed::parse(&given) {
        _ if !context.subresource().is_empty() => known(),
        _ if is_reset => Managed::default(),
        Some(given) if !given.is_empty() => given,
        _ => known(),
    };
    if managed.is_empty() && live.is_some() {
        return managed;
    }
    let owner = owner(context);
    let old = live.map_or_else(|| Cow::Owned(body::empty(&context.kind)), |live| Cow::Borrowed(&live.value));
    let reset = strategy::reset_fields(&context.kind, context.subresource());
    rules(api, (&context.kind, &context.now), reset, |rules| managed.update(&old, object, &owner, rules));
    managed
}

/// Stores a new object.
pub(crate) fn store_new(
    api: &mut Api,
    context: &mut Context<'_>,
    mut object: Value,
    mut managed: Managed,
    is_dry: bool,
) -> Outcome<Stored> {
    let kind = context.kind.clone();
    if context.request.method != "POST" {
        access::admit_create(api, context)?;
    }
    meta::settle_namespace(context, &mut object)?;
    admission::mutate(api, context, &mut object, &Value::Null)?;
    access::admit_rights(api, context, None, &object)?;
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
    if kind.resource() == "services" {
        services::create(api, &mut object, is_dry)?;
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
    let key = key(context.namespace(), &name);
    let write = Write { operation: "CREATE", name: &name, new: Some(&parsed), live: None, is_dry };
    admission::validate(api, context, &write)?;
    // The storage refuses it, and a dry run does not get there.
    if !is_dry && meta::version(&parsed.value).is_ok_and(|version| version != 0) {
        return Err(Failure::plain(500, "resourceVersion should not be set on objects to be created"));
    }
    if api.store.get(kind.storage(), &key).is_some() {
        let is_deleting = !object_is_live(api, &kind, &key);
        return Err(Failure::already_exists(&kind, &name, is_deleting));
    }
    if is_dry { Ok(Stored::Parsed(parsed)) } else { store(api, &kind, &key, parsed) }
}

fn object_is_live(api: &Api, kind: &Kind, key: &str) -> bool {
    api.store.get(kind.storage(), key).is_none_or(|object| !object.is_deleting)
}

/// Replaces an object.
pub(crate) fn update(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    let mut object = body::read(context, context.request.body)?;
    meta::check_path(context, &mut object)?;
    let live = match Live::of(api, context) {
        Ok(live) => live,
        Err(_) if strategy::creates_on_update(&kind) && context.subresource().is_empty() => {
            if meta::version(&object)? != 0 {
                return Err(Failure::not_found(&kind, context.name()));
            }
            let managed = updated(api, context, None, &mut object);
            return Ok(store_new(api, context, object, managed, is_dry)?.respond(201));
        }
        Err(failure) => return Err(failure),
    };
    if meta::version(&object)? == 0 && !strategy::updates_unconditionally(&kind) {
        let why = "must be specified for an update";
        let fault = Fault::invalid("metadata.resourceVersion", 0, why);
        return Err(Failure::invalid(&kind.group, &kind.plural, context.name(), &[fault]));
    }
    Ok(save(api, context, &live, object, None, is_dry)?.respond(200))
}

/// Stores the next state of an object, unless it equals the live one. Without `managed`, the write is an update of the
/// sender's fields.
pub(crate) fn save(
    api: &mut Api,
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
        None => updated(api, context, Some(&before.parsed), &mut object),
    };
    admission::mutate(api, context, &mut object, live)?;
    if context.subresource() == "resize" {
        validate::keep_resources(live, &mut object);
    }
    meta::carry_over(live, &mut object);
    access::admit_rights(api, context, Some(live), &object)?;
    if kind.resource() == "services" && context.subresource().is_empty() {
        services::update(api, live, &mut object, is_dry)?;
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
        crate::pods::admit_resize(api, &kind, live, &object)?;
    }
    managed.sort();
    object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    let parsed = Parsed { value: object, managed };
    let write =
        Write { operation: "UPDATE", name: &name, new: Some(&parsed), live: Some(&before.parsed), is_dry };
    admission::validate(api, context, &write)?;
    let has_new_generation = parsed.value["metadata"]["generation"] != live["metadata"]["generation"];
    if has_new_generation || kind.custom().is_some() || kind.resource() == "services" && sub.is_empty() {
        context.warnings.extend(strategy::warnings(&kind, &parsed.value));
    }
    if parsed.value == *live && parsed.managed.same_but_times(&before.parsed.managed) {
        return Ok(before.answer(&kind));
    }
    let is_gone = meta::is_released(&kind, &parsed.value);
    if is_dry {
        return Ok(Stored::Parsed(parsed));
    }
    let key = key(context.namespace(), &name);
    if !is_gone {
        return store(api, &kind, &key, parsed);
    }
    api.store.remove(kind.storage(), &key);
    crate::crd::changed(api, &kind, None);
    Ok(Stored::Parsed(parsed))
}

/// The sender of an update as a manager.
fn owner(context: &Context<'_>) -> Owner {
    Owner {
        manager: manager(&context.query, context.request.user_agent),
        is_apply: false,
        version: context.kind.api_version().to_owned(),
        subresource: context.subresource().to_owned(),
    }
}

/// Changes an object by a patch.
pub(crate) fn patch(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let content_type = context.request.content_type.split(';').next().unwrap_or_default().trim();
    if matches!(content_type, "application/apply-patch+yaml" | "application/apply-patch+cbor") {
        return crate::apply::apply(api, context);
    }
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    let patch = patching::Patch::parse(&kind, content_type, context.request.body)?;
    if context.query.has("force") {
        let fault = Fault::forbidden("force", "may not be specified for non-apply patch");
        return Err(Failure::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
    }
    let live = Live::of(api, context)?;
    // Only what a patch names can change the managers.
    let names_managers = has_word(context.request.body, MANAGED);
    let is_whole = names_managers || matches!(patch, patching::Patch::Json(_));
    let mut object = if is_whole { live.parsed.whole() } else { live.parsed.value.clone() };
    patch.apply(&kind, &mut object)?;
    let again = || {
        let mut object = live.parsed.whole();
        let _ = patch.apply(&kind, &mut object);
        object
    };
    let strays = body::strays(&patch, context.request.body);
    let mut object = body::settle_strictly(context, object, strays, Some(&again))?;
    meta::check_path(context, &mut object)?;
    Ok(save(api, context, &live, object, None, is_dry)?.respond(200))
}

/// Replaces an object or its status on behalf of a controller of the control plane, as an update of its fields.
pub(crate) fn put_as_controller(
    api: &mut Api,
    kind: &Arc<Kind>,
    key: &str,
    mut new: Value,
    subresource: &str,
    now: &str,
) {
    let old = api.store.get(kind.storage(), key).and_then(|object| versions::parsed(kind, object).ok());
    let Some(old) = old else { return };
    let mut managed = old.managed.clone();
    Managed::remove(&mut new);
    let owner = Owner {
        manager: "kube-controller-manager".to_owned(),
        is_apply: false,
        version: kind.api_version().to_owned(),
        subresource: subresource.to_owned(),
    };
    let reset = strategy::reset_fields(kind, subresource);
    rules(api, (kind, now), reset, |rules| managed.update(&old.value, &new, &owner, rules));
    managed.sort();
    replace(api, kind, key, Parsed { value: new, managed });
}

/// Whether a body has a word.
fn has_word(body: &[u8], word: &str) -> bool {
    body.windows(word.len()).any(|part| part == word.as_bytes())
}
