//! Admission: what the API server changes in a write before it is validated, and what it refuses because of other objects. The plugins are
//! those that are on by default.

// All plugins have one type, also those that refuse nothing.
#![allow(clippy::unnecessary_wraps)]

mod claims;
mod classes;
mod limits;
mod namespaces;
mod nodes;
mod pod_security;
mod policy;
mod priority;
mod quota;
mod resize;
mod resources;
mod runtime_class;
mod service_account;
mod write;

use serde_json::Value;

use crate::model::{Context, Outcome};
use crate::state::State;

pub(crate) use nodes::put_topology;
pub(crate) use policy::has_policies;
pub(crate) use quota::recounted;
pub(crate) use resize::admit_resize;
pub(crate) use service_account::awaits_account;
pub(crate) use write::Write;

/// Changes an object before it is validated, or refuses it. `old` is null if the object is new.
type Mutate = fn(&mut State, &mut Context<'_>, object: &mut Value, old: &Value) -> Outcome<()>;

/// Refuses a valid write. Nothing has been stored yet.
type Validate = fn(&mut State, &mut Context<'_>, &Write<'_>) -> Outcome<()>;

/// The plugins in the order of kube-apiserver (`AllOrderedPlugins`). `ResourceQuota` is the last one.
const CHAIN: &[(Option<Mutate>, Option<Validate>)] = &[
    (Some(namespaces::admit), None),
    (Some(limits::mutate), Some(limits::validate)),
    (Some(service_account::mutate), Some(service_account::validate)),
    (Some(nodes::taint), None),
    (None, Some(pod_security::validate)),
    (Some(priority::mutate), Some(priority::validate)),
    (Some(nodes::tolerate), None),
    (Some(classes::storage), None),
    (Some(claims::protect), None),
    (None, Some(claims::resize)),
    (Some(runtime_class::mutate), Some(runtime_class::validate)),
    (Some(classes::ingress), None),
    (Some(nodes::label), None),
    (None, Some(policy::admit)),
];

/// Lets the plugins change an object. `old` is null if the object is new.
pub(crate) fn mutate(
    state: &mut State,
    context: &mut Context<'_>,
    object: &mut Value,
    old: &Value,
) -> Outcome<()> {
    for plugin in CHAIN.iter().filter_map(|(mutate, _)| *mutate) {
        plugin(state, context, object, old)?;
    }
    Ok(())
}

/// Refuses a write that one of the plugins does not admit. Returns the quotas that it is charged to, as they are to be stored before it.
pub(crate) fn validate(
    state: &mut State,
    context: &mut Context<'_>,
    write: &Write<'_>,
) -> Outcome<Vec<Value>> {
    for plugin in CHAIN.iter().filter_map(|(_, validate)| *validate) {
        plugin(state, context, write)?;
    }
    quota::charge(state, context, write)
}
