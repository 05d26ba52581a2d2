//! The managers of fields: what updates do to them.

use std::borrow::Cow;
use std::sync::Arc;

use operetta_kube_model::fields::Owner;
use serde_json::{Map, Value};

use crate::fields::{Managed, Rules};
use crate::model::request::manager;
use crate::model::{Context, Kind, Parsed, versions};
use crate::state::State;
use crate::state::stored::replace;
use crate::{body, strategy};

/// The schemas of the versions of a kind and what a subresource resets, for the sets of its managers.
pub(crate) fn rules(
    state: &State,
    kind: &Kind,
    (subresource, now): (&str, &str),
    run: impl FnOnce(&Rules<'_, '_>),
) {
    let other = |version: &str| {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        if group == kind.group { state.kinds.known(group, version, &kind.plural) } else { None }
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
        reset: strategy::reset_fields(kind, subresource),
        now,
        empty: &|| body::empty(kind),
    });
}

/// The managers after an update, and the object without its managedFields.
pub(crate) fn updated(
    state: &State,
    context: &Context<'_>,
    live: Option<&Parsed>,
    object: &mut Value,
) -> Managed {
    let given = Managed::remove(object);
    let is_reset = given
        .as_array()
        .is_some_and(|all| matches!(&all[..], [one] if one.as_object().is_some_and(Map::is_empty)));
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
    let about = (context.subresource(), &*context.now);
    rules(state, &context.kind, about, |rules| managed.update(&old, object, &owner, rules));
    managed
}

/// Replaces an object or its status on behalf of a controller of the control plane, as an update of its fields.
pub(crate) fn put_as_controller(
    state: &mut State,
    kind: &Arc<Kind>,
    key: &str,
    mut new: Value,
    subresource: &str,
    now: &str,
) {
    let old = state.store.get(kind.storage(), key).and_then(|object| versions::parsed(kind, object).ok());
    let Some(old) = old else { return };
    let mut managed = old.managed.clone();
    Managed::remove(&mut new);
    let owner = Owner {
        manager: "kube-controller-manager".to_owned(),
        is_apply: false,
        version: kind.api_version().to_owned(),
        subresource: subresource.to_owned(),
    };
    rules(state, kind, (subresource, now), |rules| managed.update(&old.value, &new, &owner, rules));
    managed.sort();
    replace(state, kind, key, Parsed { value: new, managed });
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
