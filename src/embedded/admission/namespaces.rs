//! `NamespaceLifecycle`: objects are created only in namespaces that exist and stay.

use operetta_kube_model::facts::key;
use serde_json::Value;

use super::write::forbidden;
use crate::model::{Context, Failure, Outcome};
use crate::state::State;

pub(super) fn admit(
    state: &mut State,
    context: &mut Context<'_>,
    object: &mut Value,
    old: &Value,
) -> Outcome<()> {
    if !context.kind.namespaced || !old.is_null() {
        return Ok(());
    }
    let namespace = context.namespace();
    let found = state.store.get("namespaces", &key("", namespace));
    let Some(found) = found else {
        let kind = state.kinds.find("", "v1", "namespaces").ok_or_else(Failure::no_path)?;
        return Err(Failure::not_found(kind, namespace));
    };
    if found.is_deleting {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = format!("namespace {namespace} is being terminated");
        return Err(forbidden(context, object, &why).caused(vec![(
            "NamespaceTerminating",
            cause,
            "metadata.namespace".to_owned(),
        )]));
    }
    Ok(())
}
