//! Writes as the plugins see them, and how they refuse them.

use serde_json::Value;

use crate::model::{Context, Failure, Parsed, meta};

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

/// Whether a write is about a pod as a whole.
pub(super) fn is_pod(context: &Context<'_>) -> bool {
    context.subresource().is_empty() && context.kind.resource() == "pods"
}

/// Whether a write creates a pod. `old` is null if the object is new.
pub(super) fn is_new_pod(context: &Context<'_>, old: &Value) -> bool {
    old.is_null() && is_pod(context)
}

/// A refusal. An object whose name is not yet generated is called by the beginning of its name.
pub(super) fn forbidden(context: &Context<'_>, object: &Value, why: &str) -> Box<Failure> {
    let names = [context.name(), meta::text(object, "name"), meta::text(object, "generateName"), "Unknown"];
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    Failure::forbidden(&context.kind, name, why)
}
