//! Admission: what the API server changes in a write before it is validated, and what it refuses because of other objects. The plugins are
//! those that are on by default.

// All plugins have one type, also those that refuse nothing.
#![allow(clippy::unnecessary_wraps)]

mod claims;
mod classes;
mod limits;
mod nodes;
mod pod_security;
mod priority;
mod quota;
mod resources;
mod runtime_class;
mod service_account;

use serde_json::Value;

use crate::api::{Api, Context};
use crate::meta;
use crate::policy;
use crate::status::{Failure, Outcome};
use crate::store::Parsed;

pub(crate) use classes::INGRESS_CLASS;
pub(crate) use nodes::put_topology;
pub(crate) use priority::system_classes;
pub(crate) use quota::recounted;
pub(crate) use service_account::LIMITED;

/// Changes an object before it is validated, or refuses it. `old` is null if the object is new.
type Mutate = fn(&mut Api, &mut Context<'_>, object: &mut Value, old: &Value) -> Outcome<()>;

/// Refuses a valid write. Nothing has been stored yet.
type Validate = fn(&mut Api, &mut Context<'_>, &Write<'_>) -> Outcome<()>;

/// The plugins in the order of kube-apiserver (`AllOrderedPlugins`).
const CHAIN: &[(Option<Mutate>, Option<Validate>)] = &[
    (Some(meta::admit_namespace), None),
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
    (None, Some(quota::validate)),
];

/// A write that is valid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'a> {
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub(crate) operation: &'static str,
    pub(crate) name: &'a str,
    /// The next state; none if the object is deleted.
    pub(crate) new: Option<&'a Parsed>,
    /// The live state; none if the object is new.
    pub(crate) live: Option<&'a Parsed>,
    pub(crate) is_dry: bool,
}

impl<'a> Write<'a> {
    /// The next state without `managedFields`, or null.
    pub(crate) fn object(&self) -> &'a Value {
        self.new.map_or(&Value::Null, |parsed| &parsed.value)
    }

    /// The live state without `managedFields`, or null.
    pub(crate) fn old(&self) -> &'a Value {
        self.live.map_or(&Value::Null, |parsed| &parsed.value)
    }
}

/// Lets the plugins change an object. `old` is null if the object is new.
pub(crate) fn mutate(
    api: &mut Api,
    context: &mut Context<'_>,
    object: &mut Value,
    old: &Value,
) -> Outcome<()> {
    for plugin in CHAIN.iter().filter_map(|(mutate, _)| *mutate) {
        plugin(api, context, object, old)?;
    }
    Ok(())
}

/// Refuses a write that one of the plugins does not admit.
pub(crate) fn validate(api: &mut Api, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    for plugin in CHAIN.iter().filter_map(|(_, validate)| *validate) {
        plugin(api, context, write)?;
    }
    Ok(())
}

/// Whether a write is about a pod as a whole.
fn is_pod(context: &Context<'_>) -> bool {
    context.subresource().is_empty() && context.kind.resource() == "pods"
}

/// A refusal. An object whose name is not yet generated is called by the beginning of its name.
pub(crate) fn forbidden(context: &Context<'_>, object: &Value, why: &str) -> Box<Failure> {
    let names = [context.name(), meta::text(object, "name"), meta::text(object, "generateName"), "Unknown"];
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    Failure::forbidden(&context.kind, name, why)
}
