//! `DefaultStorageClass` and `DefaultIngressClass`: objects that name no class get the default one.

use operetta_kube_model::facts::text;
use serde_json::Value;

use crate::model::{Context, Outcome};
use crate::state::State;
use crate::strategy::INGRESS_CLASS;

pub(super) fn storage(
    state: &mut State,
    context: &mut Context<'_>,
    claim: &mut Value,
    old: &Value,
) -> Outcome<()> {
    const ANNOTATIONS: [&str; 2] =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    if context.kind.resource() == "persistentvolumeclaims"
        && old.is_null()
        && claim["spec"]["storageClassName"].is_null()
        && claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"].is_null()
        && let Some(name) = default_class(state, "storageclasses.storage.k8s.io", &ANNOTATIONS)
    {
        claim["spec"]["storageClassName"] = name.into();
    }
    Ok(())
}

pub(super) fn ingress(
    state: &mut State,
    context: &mut Context<'_>,
    ingress: &mut Value,
    old: &Value,
) -> Outcome<()> {
    if context.kind.resource() == "ingresses.networking.k8s.io"
        && old.is_null()
        && ingress["spec"]["ingressClassName"].is_null()
        && ingress["metadata"]["annotations"][INGRESS_CLASS].is_null()
        && let Some(name) = default_class(
            state,
            "ingressclasses.networking.k8s.io",
            &["ingressclass.kubernetes.io/is-default-class"],
        )
    {
        ingress["spec"]["ingressClassName"] = name.into();
    }
    Ok(())
}

/// The newest class that is marked as default; of two, the first by name.
fn default_class(state: &State, resource: &str, annotations: &[&str]) -> Option<String> {
    let marked =
        state.store.range(resource, "", None).filter(|(_, class)| class.json.contains("is-default-class"));
    let marked = marked.map(|(_, class)| class.parsed()).filter(|class| {
        annotations.iter().any(|annotation| class.value["metadata"]["annotations"][annotation] == "true")
    });
    let mut newest: Option<(String, String)> = None;
    for class in marked {
        let meta = &class.value["metadata"];
        let created = text(&meta["creationTimestamp"]);
        if newest.as_ref().is_none_or(|(known, _)| known.as_str() < created) {
            newest = Some((created.to_owned(), text(&meta["name"]).to_owned()));
        }
    }
    newest.map(|(_, name)| name)
}
