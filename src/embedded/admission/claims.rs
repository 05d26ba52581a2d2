//! `StorageObjectInUseProtection` and `PersistentVolumeClaimResize`.

use operetta_kube_model::facts::{items, key, text};
use operetta_kube_model::quantity::Quantity;
use serde_json::Value;

use super::write::{Write, forbidden};
use crate::model::{Context, Outcome};
use crate::state::State;

/// New claims, volumes and classes of their attributes stay until nothing uses them.
pub(super) fn protect(
    _: &mut State,
    context: &mut Context<'_>,
    object: &mut Value,
    old: &Value,
) -> Outcome<()> {
    let finalizer = match context.kind.resource() {
        "persistentvolumeclaims" => "kubernetes.io/pvc-protection",
        "persistentvolumes" => "kubernetes.io/pv-protection",
        "volumeattributesclasses.storage.k8s.io" => "kubernetes.io/vac-protection",
        _ => return Ok(()),
    };
    let mut finalizers = items(&object["metadata"]["finalizers"]).to_vec();
    if old.is_null() && !finalizers.iter().any(|known| known == finalizer) {
        finalizers.push(finalizer.into());
        object["metadata"]["finalizers"] = finalizers.into();
    }
    Ok(())
}

/// A claim grows only if it is bound and its class allows that.
pub(super) fn resize(state: &mut State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    if context.kind.resource() != "persistentvolumeclaims"
        || !context.subresource().is_empty()
        || write.operation != "UPDATE"
    {
        return Ok(());
    }
    let (old, claim) = (write.old(), write.object());
    let size = |claim: &Value| {
        Quantity::saturating(text(&claim["spec"]["resources"]["requests"]["storage"])).unwrap_or_default()
    };
    if size(claim) <= size(old) {
        return Ok(());
    }
    if old["status"]["phase"] != "Bound" {
        return Err(forbidden(context, claim, "Only bound persistent volume claims can be expanded"));
    }
    let class = class(claim);
    let allows = state
        .store
        .get("storageclasses.storage.k8s.io", &key("", class))
        .is_some_and(|class| class.parsed().value["allowVolumeExpansion"] == true);
    if class.is_empty() || class != self::class(old) || !allows {
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        return Err(forbidden(context, claim, why));
    }
    Ok(())
}

/// The class of a claim.
pub(super) fn class(claim: &Value) -> &str {
    let annotation = claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"].as_str();
    annotation.unwrap_or_else(|| text(&claim["spec"]["storageClassName"]))
}
