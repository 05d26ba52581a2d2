//! Server-side apply.

use std::borrow::Cow;

use serde_json::Value;

use crate::api::{Api, Context};
use crate::fields::manager::unchanged;
use crate::fields::{Conflicts, Managed, Owner, check};
use crate::request::{Response, manager};
use crate::status::{Failure, Outcome};
use crate::stored::Live;
use crate::write::{rules, save, store_new};
use crate::{body, last_applied, meta, strategy};

/// Server-side apply.
pub(crate) fn apply(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    if context.query.get("fieldManager").is_none() {
        let fault = crate::status::Fault::required("fieldManager", "is required for apply patch");
        return Err(Failure::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
    }
    if context.subresource() == "resize" {
        let why = "server-side apply of pods/resize is not implemented here: send another kind of patch";
        return Err(Failure::new(501, "NotImplemented", why));
    }
    let config = body::apply_config(context)?;
    let live = match Live::of(api, context) {
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
    let old = live
        .as_ref()
        .map_or_else(|| Cow::Owned(body::empty(&kind)), |live| Cow::Borrowed(&live.parsed.value));
    let before = live.as_ref().map(|live| live.parsed.managed.clone()).unwrap_or_default();
    let owner = Owner {
        manager: manager(&context.query, context.request.user_agent),
        is_apply: true,
        version: kind.api_version().to_owned(),
        subresource: context.subresource().to_owned(),
    };
    let force = context.query.flag("force");
    let (now, reset) = (context.now.clone(), strategy::reset_fields(&kind, context.subresource()));
    let merge = |managed: &mut Managed| -> Result<Value, Conflicts> {
        let mut result = Ok(Value::Null);
        rules(api, (&kind, &now), reset, |rules| {
            result = managed.apply(&old, &config, &owner, force, rules);
            // What kubectl applied from the client is its own.
            if let Err(conflicts) = &result
                && owner.manager == "kubectl"
                && last_applied::allows(kind.typed(), &old, conflicts)
            {
                result = managed.apply(&old, &config, &owner, true, rules);
            }
        });
        let mut merged = result?;
        if owner.manager == "kubectl" {
            last_applied::record(&mut merged, &config);
        }
        Ok(merged)
    };
    let mut managed = before.clone();
    let merged = merge(&mut managed).map_err(|conflicts| conflict_failure(&conflicts))?;
    managed.sort();
    let is_unchanged = unchanged(&old, &merged);
    let is_same = is_unchanged && managed.same_but_times(&before);
    if let Some(live) = live.as_ref().filter(|_| is_same) {
        let given = meta::text(&config, "resourceVersion");
        if !given.is_empty() && given != meta::text(&live.parsed.value, "resourceVersion") {
            return Err(Failure::modified(&kind, context.name()));
        }
        return Ok(live.answer(&kind).respond(200));
    }
    if !is_unchanged {
        managed.touch(&owner, &now);
    }
    if let Some(custom) = kind.custom() {
        let faults = crate::crd::nulls(custom, context.subresource(), &merged);
        if !faults.is_empty() {
            return Err(Failure::invalid(&kind.group, &kind.kind, context.name(), &faults));
        }
    }
    let again = || merge(&mut before.clone()).unwrap_or_default();
    let again: &dyn Fn() -> Value = &again;
    let mut object = body::settle(context, merged, live.as_ref().map(|_| again))?;
    meta::check_path(context, &mut object)?;
    if let Some(live) = &live {
        Ok(save(api, context, live, object, Some(managed), is_dry)?.respond(200))
    } else {
        Managed::remove(&mut object);
        // An apply may name the version that the object would have: it is refused only if there is one.
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
        }
        Ok(store_new(api, context, object, managed, is_dry)?.respond(201))
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
