//! `DefaultStorageClass` and `DefaultIngressClass`: objects that name no class get the default one.

use serde_json::Value;

use crate::api::{Api, Context};
use crate::facts::text;
use crate::status::Outcome;

/// The annotation that named the class of an Ingress before there was a field.
pub(crate) const INGRESS_CLASS: &str = "kubernetes.io/ingress.class";

pub(super) fn storage(
    api: &mut Api,
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
        && let Some(name) = default_class(api, "storageclasses.storage.k8s.io", &ANNOTATIONS)
    {
        claim["spec"]["storageClassName"] = name.into();
    }
    Ok(())
}

pub(super) fn ingress(
    api: &mut Api,
    context: &mut Context<'_>,
    ingress: &mut Value,
    old: &Value,
) -> Outcome<()> {
    if context.kind.resource() == "ingresses.networking.k8s.io"
        && old.is_null()
        && ingress["spec"]["ingressClassName"].is_null()
        && ingress["metadata"]["annotations"][INGRESS_CLASS].is_null()
        && let Some(name) = default_class(
            api,
            "ingressclasses.networking.k8s.io",
            &["ingressclass.kubernetes.io/is-default-class"],
        )
    {
        ingress["spec"]["ingressClassName"] = name.into();
    }
    Ok(())
}

/// The newest class that is marked as default; of two, the first by name.
fn default_class(api: &Api, resource: &str, annotations: &[&str]) -> Option<String> {
    let marked =
        api.store.range(resource, "", None).filter(|(_, class)| class.json.contains("is-default-class"));
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
