//! Claims are bound: to a volume that fits, or to one that is made for them. What was made goes with its claim.

use jiff::Timestamp;
use operetta_kube_model::facts::{
    self, is_deleting, is_terminal, items, key, name, namespace, text, time, uid, volume_of,
};
use operetta_kube_model::quantity::Quantity;
use operetta_kube_model::selector::labels_match;
use serde_json::{Value, json};

use super::client::{self, ATTRIBUTES, CLAIMS, CLASSES, MANAGER, PODS, VOLUMES, get};
use super::parts::without_zeros;
use crate::api::Api;

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

pub(super) fn sync_claim(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut claim = get(api, &CLAIMS, key)?;
    if is_deleting(&claim) {
        let is_used =
            api.state.store.range(PODS.name, &format!("{}/", namespace(&claim)), None).any(|(_, pod)| {
                let names_it = pod.json.contains(&format!("\"claimName\":\"{}\"", name(&claim)));
                // The kubelet starts no pod whose claim is being deleted.
                let uses_it = |pod: &Value| !is_terminal(pod) && pod["spec"]["nodeName"].is_string();
                names_it && uses_it(&pod.parsed().value)
            });
        if !is_used {
            release(api, &CLAIMS, &mut claim, "kubernetes.io/pvc-protection", now);
        }
        return None;
    }
    if claim["status"]["phase"] == "Bound" {
        return resize(api, claim, now);
    }
    let volume = match volume_of(&claim) {
        Some(volume) => get(api, &VOLUMES, &volume),
        None => fitting(api, &claim).or_else(|| provision(api, &mut claim, now)),
    };
    if let Some(volume) = volume {
        bind(api, claim, volume, now);
    }
    None
}

/// Removes a finalizer that protects an object in use.
fn release(api: &mut Api, resource: &client::Resource, object: &mut Value, finalizer: &str, now: Timestamp) {
    let finalizers = items(&object["metadata"]["finalizers"]);
    let rest: Vec<Value> = finalizers.iter().filter(|known| *known != finalizer).cloned().collect();
    if rest.len() < finalizers.len() {
        object["metadata"]["finalizers"] = rest.into();
        let _ = client::update(api, MANAGER, resource, "", object, now);
    }
}

fn size(value: &Value) -> Quantity {
    Quantity::saturating(text(value)).unwrap_or_default()
}

/// The smallest volume that nobody has and that a claim can have.
fn fitting(api: &Api, claim: &Value) -> Option<Value> {
    let spec = &claim["spec"];
    let fits = |volume: &Value| {
        let is_free = match &volume["spec"]["claimRef"] {
            Value::Null => true,
            claim_ref => {
                claim_ref["name"] == name(claim)
                    && claim_ref["namespace"] == namespace(claim)
                    && (claim_ref["uid"].is_null() || claim_ref["uid"] == uid(claim))
            }
        };
        let modes = items(&volume["spec"]["accessModes"]);
        is_free
            && !is_deleting(volume)
            && text(&volume["spec"]["storageClassName"]) == text(&spec["storageClassName"])
            && items(&spec["accessModes"]).iter().all(|mode| modes.contains(mode))
            && size(&volume["spec"]["capacity"]["storage"]) >= size(&spec["resources"]["requests"]["storage"])
            && (spec["selector"].is_null() || labels_match(&spec["selector"], &volume["metadata"]["labels"]))
    };
    let free = api.controllers.free_volumes.iter().filter_map(|key| get(api, &VOLUMES, key)).filter(fits);
    free.min_by_key(|volume| {
        (volume["spec"]["claimRef"].is_null(), size(&volume["spec"]["capacity"]["storage"]))
    })
}

/// Makes a volume for a claim, if its class does that now.
fn provision(api: &mut Api, claim: &mut Value, now: Timestamp) -> Option<Value> {
    let class = get(api, &CLASSES, &key("", text(&claim["spec"]["storageClassName"])))?;
    let waits = class["volumeBindingMode"] == "WaitForFirstConsumer";
    if waits && claim["metadata"]["annotations"][SELECTED_NODE].is_null()
        || !claim["spec"]["selector"].is_null()
    {
        return None;
    }
    let provisioner = text(&class["provisioner"]);
    if provisioner == "kubernetes.io/no-provisioner" {
        return None;
    }
    for annotation in
        ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"]
    {
        claim["metadata"]["annotations"][annotation] = provisioner.into();
    }
    let spec = &claim["spec"];
    let volume_name = format!("pvc-{}", uid(claim));
    let mut volume = json!({
        "metadata": {"name": volume_name, "annotations": {"pv.kubernetes.io/provisioned-by": provisioner}},
        "spec": {"capacity": {"storage": spec["resources"]["requests"]["storage"]}, "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": class["reclaimPolicy"], "storageClassName": name(&class),
            "volumeMode": spec["volumeMode"], "claimRef": reference(claim),
            "csi": {"driver": provisioner, "volumeHandle": volume_name}},
    });
    client::create(api, MANAGER, &VOLUMES, &mut volume, now).ok()?;
    Some(volume)
}

fn reference(claim: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace(claim), "name": name(claim),
        "uid": uid(claim), "resourceVersion": claim["metadata"]["resourceVersion"]})
}

fn bind(api: &mut Api, mut claim: Value, mut volume: Value, now: Timestamp) {
    let claim_ref = &volume["spec"]["claimRef"];
    if claim_ref["uid"].is_string() && claim_ref["uid"] != uid(&claim) {
        return;
    }
    if claim_ref["uid"].is_null() {
        volume["spec"]["claimRef"] = reference(&claim);
        volume["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] = "yes".into();
        if client::update(api, MANAGER, &VOLUMES, "", &mut volume, now).is_err() {
            return;
        }
    }
    let annotations = &mut claim["metadata"]["annotations"];
    annotations["pv.kubernetes.io/bind-completed"] = "yes".into();
    if claim["spec"]["volumeName"].is_null() {
        claim["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] = "yes".into();
        claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
    }
    if client::update(api, MANAGER, &CLAIMS, "", &mut claim, now).is_ok() {
        let status = json!({"phase": "Bound", "accessModes": volume["spec"]["accessModes"],
            "capacity": volume["spec"]["capacity"]});
        client::set_status(api, MANAGER, &CLAIMS, &mut claim, status, now);
    }
}

/// Gives a claim that asks for more what it asks for. A claim whose volume is gone is lost.
fn resize(api: &mut Api, mut claim: Value, now: Timestamp) -> Option<Timestamp> {
    let Some(mut volume) = get(api, &VOLUMES, &volume_of(&claim)?) else {
        client::set_status(api, MANAGER, &CLAIMS, &mut claim, json!({"phase": "Lost"}), now);
        return None;
    };
    let wanted = &claim["spec"]["resources"]["requests"]["storage"];
    if size(wanted) > size(&claim["status"]["capacity"]["storage"]) {
        let mut status = claim["status"].clone();
        volume["spec"]["capacity"]["storage"] = wanted.clone();
        status["capacity"]["storage"] = wanted.clone();
        let _ = client::update(api, MANAGER, &VOLUMES, "", &mut volume, now);
        client::set_status(api, MANAGER, &CLAIMS, &mut claim, status, now);
    }
    None
}

pub(super) fn sync_volume(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut volume = get(api, &VOLUMES, key)?;
    let claim_ref = volume["spec"]["claimRef"].clone();
    let claim_key = facts::key(text(&claim_ref["namespace"]), text(&claim_ref["name"]));
    let claim = get(api, &CLAIMS, &claim_key);
    let has_claim = claim.is_some_and(|claim| claim_ref["uid"] == uid(&claim));
    if is_deleting(&volume) {
        if !has_claim {
            release(api, &VOLUMES, &mut volume, "kubernetes.io/pv-protection", now);
        }
        return None;
    }
    let phase = match (&claim_ref["uid"], has_claim) {
        (Value::Null, _) => "Available",
        (_, true) => "Bound",
        (_, false) => "Released",
    };
    if volume["status"]["phase"] != phase {
        let status = without_zeros(json!({"phase": phase, "lastPhaseTransitionTime": time(now)}), &[]);
        client::set_status(api, MANAGER, &VOLUMES, &mut volume, status, now);
    }
    if phase == "Released" && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
        let _ = client::delete(api, MANAGER, &VOLUMES, &volume, None, now);
    }
    None
}

/// Lets a class of attributes go when no claim and no volume names it.
pub(super) fn sync_attributes(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut class = get(api, &ATTRIBUTES, key)?;
    let is_used = || {
        let names_it = format!("AttributesClassName\":\"{}\"", name(&class));
        [&CLAIMS, &VOLUMES].into_iter().any(|resource| {
            api.state.store.range(resource.name, "", None).any(|(_, object)| {
                object.json.contains(&names_it) && has_attributes(&object.parsed().value, name(&class))
            })
        })
    };
    if is_deleting(&class) && !is_used() {
        release(api, &ATTRIBUTES, &mut class, "kubernetes.io/vac-protection", now);
    }
    None
}

/// Whether a claim or a volume names a class of attributes: it wants it, or has it, or is getting it.
fn has_attributes(object: &Value, class: &str) -> bool {
    let (spec, status) = (&object["spec"], &object["status"]);
    [
        &spec["volumeAttributesClassName"],
        &status["currentVolumeAttributesClassName"],
        &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ]
    .into_iter()
    .any(|named| named == class)
}
