//! Fields that no update changes.

use std::collections::BTreeSet;

use operetta_kube_model::Fault;
use operetta_kube_model::facts::items;
use serde_json::Value;

use super::checks::{Faults, immutable, rest};
use crate::model::Kind;

static NULL: Value = Value::Null;

/// The fields of a kind that are immutable: pointers, and how messages name them.
fn fields(resource: &str) -> &'static [(&'static str, &'static str)] {
    match resource {
        "deployments.apps" | "replicasets.apps" | "daemonsets.apps" => &[("/spec/selector", "spec.selector")],
        "controllerrevisions.apps" => &[("/data", "data")],
        "secrets" => &[("/type", "type")],
        "persistentvolumes" => &[("/spec/volumeMode", "volumeMode")],
        "storageclasses.storage.k8s.io" => &[
            ("/parameters", "parameters"),
            ("/provisioner", "provisioner"),
            ("/reclaimPolicy", "reclaimPolicy"),
            ("/volumeBindingMode", "volumeBindingMode"),
        ],
        "csidrivers.storage.k8s.io" => &[
            ("/spec/attachRequired", "spec.attachedRequired"),
            ("/spec/volumeLifecycleModes", "spec.volumeLifecycleModes"),
        ],
        "csistoragecapacities.storage.k8s.io" => {
            &[("/nodeTopology", "nodeTopology"), ("/storageClassName", "storageClassName")]
        }
        "volumeattachments.storage.k8s.io"
        | "resourceclaims.resource.k8s.io"
        | "resourceclaimtemplates.resource.k8s.io" => &[("/spec", "spec")],
        "resourceslices.resource.k8s.io" => &[
            ("/spec/pool/name", "spec.pool.name"),
            ("/spec/driver", "spec.driver"),
            ("/spec/nodeName", "spec.nodeName"),
        ],
        "priorityclasses.scheduling.k8s.io" => &[("/preemptionPolicy", "preemptionPolicy")],
        "runtimeclasses.node.k8s.io" => &[("/handler", "handler")],
        "ingressclasses.networking.k8s.io" => &[("/spec/controller", "spec.controller")],
        "ipaddresses.networking.k8s.io" => &[("/spec/parentRef", "spec.parentRef")],
        "endpointslices.discovery.k8s.io" => &[("/addressType", "addressType")],
        _ => &[],
    }
}

/// The fields whose changes are refused with another message.
fn forbidden(resource: &str) -> &'static [(&'static str, &'static str)] {
    match resource {
        "priorityclasses.scheduling.k8s.io" => &[("value", "may not be changed in an update.")],
        "volumeattributesclasses.storage.k8s.io" => &[
            ("driverName", "updates to driverName are forbidden."),
            ("parameters", "updates to parameters are forbidden."),
        ],
        _ => &[],
    }
}

/// Adds what is wrong with a change of such fields.
pub(super) fn check(kind: &Kind, live: &Value, object: &Value, faults: &mut Faults) {
    let resource = kind.resource();
    for (pointer, path) in fields(resource) {
        let [old, new] = [live, object].map(|object| object.pointer(pointer).unwrap_or(&NULL));
        immutable(path, old, new, faults);
    }
    for (field, why) in forbidden(resource) {
        if live[field] != object[field] {
            faults.push(Fault::forbidden(*field, *why));
        }
    }
    let (old, new) = (&live["spec"], &object["spec"]);
    match resource {
        "persistentvolumes" => volume(old, new, faults),
        "servicecidrs.networking.k8s.io" => ranges(&old["cidrs"], &new["cidrs"], faults),
        "resourcequotas" => {
            let set = |spec: &Value| -> BTreeSet<String> {
                items(&spec["scopes"]).iter().map(ToString::to_string).collect()
            };
            if set(old) != set(new) {
                faults.push(Fault::invalid("spec.scopes", new["scopes"].clone(), "field is immutable"));
            }
        }
        _ => {}
    }
}

/// What a volume is made of never changes. Its node affinity can be set once.
fn volume(old: &Value, new: &Value, faults: &mut Faults) {
    const OTHERS: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let (before, mut after) = (rest(old, &OTHERS), rest(new, &OTHERS));
    // The secret for growing may be added.
    if old["csi"]["controllerExpandSecretRef"].is_null()
        && let Some(csi) = after.get_mut("csi").and_then(Value::as_object_mut)
    {
        csi.remove("controllerExpandSecretRef");
    }
    if before != after {
        let why = "spec.persistentvolumesource is immutable after creation";
        faults.push(Fault::forbidden("spec.persistentvolumesource", why));
    }
    let (before, after) = (&old["nodeAffinity"], &new["nodeAffinity"]);
    if !before.is_null() && before != after {
        let why = "field is immutable, except for updating from beta label to GA";
        faults.push(Fault::invalid("nodeAffinity", after.clone(), why));
    }
    let class = "volumeAttributesClassName";
    if !old[class].is_null() && new[class].is_null() {
        let why = "update from non-nil value to nil is forbidden";
        faults.push(Fault::forbidden(format!("spec.{class}"), why));
    }
}

/// Ranges of addresses stay; a second one may be added.
fn ranges(old: &Value, new: &Value, faults: &mut Faults) {
    let (before, after) = (items(old), items(new));
    let why = "field is immutable";
    if before.len() != after.len() && (before.len(), after.len()) != (1, 2) {
        faults.push(Fault::invalid("spec.cidrs", new.clone(), why));
        return;
    }
    for (at, (_, new)) in before.iter().zip(after).enumerate().filter(|(_, (old, new))| old != new) {
        faults.push(Fault::invalid(format!("spec.cidrs[{at}]"), new.clone(), why));
    }
}
