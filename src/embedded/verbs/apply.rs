//! Server-side apply.

use std::borrow::Cow;

use operetta_kube_model::Fault;
use operetta_kube_model::fields::Owner;
use serde_json::Value;

use super::managers::rules;
use super::response::Response;
use super::write::{save, store_new};
use super::{accounts, last_applied};
use crate::fields::manager::unchanged;
use crate::fields::{Conflicts, Managed, Refused, check, joined};
use crate::model::request::manager;
use crate::model::{Context, Failure, Kind, Outcome, Parsed, meta};
use crate::state::{Live, State};
use crate::{access, body, crd};

/// Fields that a manager applies.
pub(crate) struct Config {
    value: Value,
    pub(crate) owner: Owner,
    force: bool,
}

impl Config {
    /// Reads the body of a request.
    pub(crate) fn read(context: &mut Context<'_>) -> Outcome<Self> {
        if context.query.get("fieldManager").is_none() {
            let fault = Fault::required("fieldManager", "is required for apply patch");
            return Err(Failure::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
        }
        let value = body::apply_config(context)?;
        let owner = Owner {
            manager: manager(&context.query, context.request.user_agent),
            is_apply: true,
            version: context.kind.api_version().to_owned(),
            subresource: context.subresource().to_owned(),
        };
        Ok(Self { value, owner, force: context.query.flag("force") })
    }

    /// The fields must be those of the kind.
    pub(crate) fn check(&self, kind: &Kind) -> Outcome<()> {
        let faults = check(kind.typed(), &self.value, false);
        if faults.is_empty() {
            return Ok(());
        }
        let place = format!("{}/{}", meta::text(&self.value, "namespace"), meta::text(&self.value, "name"));
        let message = format!(
            "failed to create typed patch object ({place}; {}/{}, Kind={}): {}",
            kind.group,
            kind.version,
            kind.kind,
            joined(&faults)
        );
        Err(Failure::plain(500, message))
    }

    /// Merges the fields into the live object. Both have no managers.
    pub(crate) fn merge(
        &self,
        state: &State,
        (kind, now): (&Kind, &str),
        old: &Value,
        managed: &mut Managed,
    ) -> Result<Value, Refused> {
        let mut result = Ok(Value::Null);
        rules(state, kind, (&*self.owner.subresource, now), |rules| {
            result = managed.apply(old, &self.value, &self.owner, self.force, rules);
            // Fields of kubectl's client-side apply belong to kubectl: there is no conflict.
            if let Err(Refused::Conflicts(conflicts)) = &result
                && self.owner.manager == "kubectl"
                && last_applied::allows(kind.typed(), old, conflicts)
            {
                result = managed.apply(old, &self.value, &self.owner, true, rules);
            }
        });
        let mut merged = result?;
        if self.owner.manager == "kubectl" {
            last_applied::record(&mut merged, &self.value);
        }
        Ok(merged)
    }
}

/// Server-side apply.
pub(crate) fn apply(state: &mut State, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    if context.subresource() == "resize" {
        let why = "server-side apply of pods/resize is not implemented here: send another kind of patch";
        return Err(Failure::new(501, "NotImplemented", why));
    }
    let config = Config::read(context)?;
    let live = match Live::of(state, context) {
        Ok(live) => Some(live),
        Err(failure) if !context.subresource().is_empty() => return Err(failure),
        Err(_) => None,
    };
    if live.is_none() && !meta::text(&config.value, "uid").is_empty() {
        let why = format!(
            "uid mismatch: the provided object specified uid {}, and no existing object was found",
            meta::text(&config.value, "uid")
        );
        return Err(Failure::conflict(&kind, context.name(), &why));
    }
    config.check(&kind)?;
    let old = live
        .as_ref()
        .map_or_else(|| Cow::Owned(body::empty(&kind)), |live| Cow::Borrowed(&live.parsed.value));
    let before = live.as_ref().map(|live| live.parsed.managed.clone()).unwrap_or_default();
    let now = context.now.clone();
    let merge = |managed: &mut Managed| config.merge(state, (&kind, &now), &old, managed);
    let mut managed = before.clone();
    let merged = merge(&mut managed).map_err(failure)?;
    managed.sort();
    let is_unchanged = unchanged(&old, &merged);
    let is_same = is_unchanged && managed.same_but_times(&before);
    if let Some(live) = live.as_ref().filter(|_| is_same) {
        let given = meta::text(&config.value, "resourceVersion");
        if !given.is_empty() && given != meta::text(&live.parsed.value, "resourceVersion") {
            return Err(Failure::modified(&kind, context.name()));
        }
        return Ok(Response::of(200, live.unchanged(&kind)));
    }
    if !is_unchanged {
        managed.touch(&config.owner, &now);
    }
    if let Some(custom) = kind.custom() {
        let faults = crd::nulls(custom, context.subresource(), &merged);
        if !faults.is_empty() {
            return Err(Failure::invalid(&kind.group, &kind.kind, context.name(), &faults));
        }
    }
    let again = || merge(&mut before.clone()).unwrap_or_default();
    let again: &dyn Fn() -> Value = &again;
    let mut object = body::settle(context, merged, live.as_ref().map(|_| again))?;
    meta::check_path(context, &mut object)?;
    if let Some(live) = &live {
        Ok(Response::of(200, save(state, context, live, object, Some(managed), is_dry)?))
    } else {
        Managed::remove(&mut object);
        // An apply may name the version that the object would have: it is refused only if there is one.
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
        }
        access::admit_create(state, context)?;
        accounts::wait(state, context, &object);
        let new = Parsed { value: object, managed };
        Ok(Response::of(201, store_new(state, context, new, is_dry)?))
    }
}

/// Why fields are not applied, as the API server says it.
pub(crate) fn failure(refused: Refused) -> Box<Failure> {
    match refused {
        Refused::Conflicts(conflicts) => conflict_failure(&conflicts),
        Refused::Unreadable(why) => Failure::plain(500, why),
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
