//! The claims of the pods of a StatefulSet, and what becomes of them when it shrinks or is deleted.

use jiff::Timestamp;
use operetta_kube_model::facts::{is_deleting, items, key, key_of, name, namespace, put_claims, text, uid};
use serde_json::{Value, json};

use super::client::{self, CLAIMS, MANAGER, PODS, STATEFUL_SETS, get};
use super::parts::{owner, put_all};
use crate::api::Api;

/// The claims of a pod: the name of the volume, and the claim.
pub(super) fn claims(set: &Value, pod_name: &str) -> Vec<(String, Value)> {
    let ordinal = pod_name.rsplit('-').next().unwrap_or_default();
    let templates = items(&set["spec"]["volumeClaimTemplates"]).iter();
    let claims = templates.map(|template| {
        let volume = name(template).to_owned();
        let mut meta =
            json!({"name": format!("{volume}-{}-{ordinal}", name(set)), "namespace": namespace(set)});
        for field in ["labels", "annotations"] {
            if template["metadata"][field].is_object() {
                meta[field] = template["metadata"][field].clone();
            }
        }
        put_all(&mut meta["labels"], &set["spec"]["selector"]["matchLabels"]);
        (volume, json!({"metadata": meta, "spec": template["spec"]}))
    });
    claims.collect()
}

/// Gives a new pod the volumes of its claims.
pub(super) fn mount(set: &Value, pod_name: &str, spec: &mut Value) {
    let claims = claims(set, pod_name);
    let volumes: Vec<_> = claims.iter().map(|(volume, claim)| (volume.as_str(), name(claim))).collect();
    put_claims(spec, &volumes);
}

/// Creates the claims of a pod that do not exist. Returns false if one of them is being deleted or was refused.
pub(super) fn ensure(api: &mut Api, set: &Value, pod_name: &str, now: Timestamp) -> bool {
    claims(set, pod_name).into_iter().all(|(_, mut claim)| match get(api, &CLAIMS, &key_of(&claim)) {
        Some(known) => !is_deleting(&known),
        None => client::create(api, MANAGER, &CLAIMS, &mut claim, now).is_ok(),
    })
}

/// Sets the owners of a pod's claims as the retention policy asks: a claim goes with its owner.
pub(super) fn retain(api: &mut Api, set: &Value, pod_name: &str, is_condemned: bool, now: Timestamp) {
    let policy = &set["spec"]["persistentVolumeClaimRetentionPolicy"];
    let (scaled, deleted) = (policy["whenScaled"] == "Delete", policy["whenDeleted"] == "Delete");
    for (_, claim) in claims(set, pod_name) {
        let Some(mut claim) = get(api, &CLAIMS, &key_of(&claim)) else { continue };
        let pod = get(api, &PODS, &key(namespace(set), pod_name));
        let owners = items(&claim["metadata"]["ownerReferences"]);
        let is_own = |known: &Value| {
            known["kind"] == "StatefulSet" && known["name"] == name(set)
                || known["kind"] == "Pod" && known["name"] == pod_name
        };
        // Another controller, or an earlier object of the name, has the claim.
        if owners.iter().any(|known| {
            let is_current =
                known["uid"] == uid(set) || pod.as_ref().is_some_and(|pod| known["uid"] == uid(pod));
            is_own(known) && !is_current
                || !is_own(known) && known["controller"] == true && (scaled || deleted)
        }) {
            continue;
        }
        let mut next: Vec<Value> = owners.iter().filter(|known| !is_own(known)).cloned().collect();
        if deleted && !(scaled && is_condemned) {
            next.push(owner(&STATEFUL_SETS, set));
        }
        if scaled && is_condemned {
            next.extend(pod.as_ref().map(|pod| owner(&PODS, pod)));
        }
        for known in &mut next {
            if text(&known["kind"]) == "Pod" || text(&known["kind"]) == "StatefulSet" {
                known["blockOwnerDeletion"] = true.into();
            }
        }
        if next != owners {
            claim["metadata"]["ownerReferences"] = next.into();
            let _ = client::update(api, MANAGER, &CLAIMS, "", &mut claim, now);
        }
    }
}
