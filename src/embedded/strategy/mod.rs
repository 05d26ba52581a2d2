//! Prepares objects of a kind before they are stored, and checks them.

pub(crate) mod allocated;
pub(crate) mod pods;
pub(crate) mod policy;
pub(crate) mod priority;
pub(crate) mod services;
pub(crate) mod validate;

use std::sync::LazyLock;

use operetta_kube_model::facts;
use operetta_kube_model::fields::FieldSet;
use serde_json::{Value, json};

use crate::model::{Failure, Kind, Outcome, meta};
use crate::{crd, decode};
use priority::system_classes;

/// The annotation of an account whose pods use only the Secrets that the account names.
pub(crate) const LIMITED: &str = "kubernetes.io/enforce-mountable-secrets";

/// The annotation that named the class of an Ingress before there was a field.
pub(crate) const INGRESS_CLASS: &str = "kubernetes.io/ingress.class";

/// Kinds whose objects have a generation from the beginning.
const GENERATION: [&str; 24] = [
    "customresourcedefinitions.apiextensions.k8s.io",
    "cronjobs.batch",
    "daemonsets.apps",
    "deployments.apps",
    "deviceclasses.resource.k8s.io",
    "endpointslices.discovery.k8s.io",
    "flowschemas.flowcontrol.apiserver.k8s.io",
    "ingresses.networking.k8s.io",
    "ingressclasses.networking.k8s.io",
    "jobs.batch",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "networkpolicies.networking.k8s.io",
    "poddisruptionbudgets.policy",
    "pods",
    "podtemplates",
    "priorityclasses.scheduling.k8s.io",
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
    "replicasets.apps",
    "replicationcontrollers",
    "resourceslices.resource.k8s.io",
    "statefulsets.apps",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
];

const CSI_DRIVERS: &str = "csidrivers.storage.k8s.io";

fn is(kind: &Kind, resources: &[&str]) -> bool {
    resources.contains(&kind.resource())
}

/// Whether a kind resets `status` of what is written to its objects.
fn has_status(kind: &Kind) -> bool {
    match kind.custom() {
        Some(custom) => custom.has_status,
        None => kind.has_subresource("status") && !is(kind, &["apiservices.apiregistration.k8s.io"]),
    }
}

/// The fields that writers of an object or of a subresource do not own.
pub(crate) fn reset_fields(kind: &Kind, subresource: &str) -> &'static FieldSet {
    macro_rules! set {
        ($($path:expr),*) => {{
            static SET: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of(&[$(&$path),*]));
            &SET
        }};
    }
    match (subresource, kind.custom().is_some()) {
        ("status", true) => set!(["metadata"], ["spec"]),
        ("status", false) => match kind.resource() {
            "deployments.apps" => set!(["spec"], ["metadata", "labels"]),
            "pods" => set!(["spec"], ["metadata", "deletionTimestamp"], ["metadata", "ownerReferences"]),
            "customresourcedefinitions.apiextensions.k8s.io"
            | "validatingadmissionpolicies.admissionregistration.k8s.io"
            | "resourceclaims.resource.k8s.io"
            | "servicecidrs.networking.k8s.io" => set!(["spec"], ["metadata"]),
            _ => set!(["spec"]),
        },
        _ if has_status(kind) => set!(["status"]),
        _ => set!(),
    }
}

pub(crate) fn creates_on_update(kind: &Kind) -> bool {
    kind.group == "rbac.authorization.k8s.io"
        || is(
            kind,
            &[
                "leases.coordination.k8s.io",
                "runtimeclasses.node.k8s.io",
                "limitranges",
                "events",
                "services",
                "endpoints",
            ],
        )
}

pub(crate) fn updates_unconditionally(kind: &Kind) -> bool {
    kind.custom().is_none()
        && kind.group != "admissionregistration.k8s.io"
        && !is(
            kind,
            &[
                "runtimeclasses.node.k8s.io",
                "poddisruptionbudgets.policy",
                CSI_DRIVERS,
                "csistoragecapacities.storage.k8s.io",
                "volumeattachments.storage.k8s.io",
                "csinodes.storage.k8s.io",
                "leases.coordination.k8s.io",
                "customresourcedefinitions.apiextensions.k8s.io",
                "apiservices.apiregistration.k8s.io",
            ],
        )
}

/// Whether the answer to a deletion is the object instead of a status.
pub(crate) fn returns_deleted(kind: &Kind) -> bool {
    kind.group == "resource.k8s.io"
        || kind.group == "storage.k8s.io" && kind.plural != "csistoragecapacities"
        || is(
            kind,
            &[
                "resourcequotas",
                "persistentvolumes",
                "serviceaccounts",
                "persistentvolumeclaims",
                "namespaces",
                "pods",
                "services",
                "podtemplates",
            ],
        )
}

/// Changes a new object before it is checked.
pub(crate) fn prepare_create(kind: &Kind, object: &mut Value, now: &str) {
    if let Some(custom) = kind.custom() {
        if custom.has_status
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
        object["metadata"]["generation"] = 1.into();
        return;
    }
    decode::forget_empty_lists(kind.typed(), object);
    if has_status(kind) {
        reset_status(kind, object, None);
    }
    if is(kind, &GENERATION) {
        object["metadata"]["generation"] = 1.into();
    }
    match kind.resource() {
        "namespaces" => {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"] = json!({"phase": "Active"});
        }
        "pods" => {
            object["status"] = json!({"phase": "Pending", "qosClass": pods::qos(object)});
            pods::prepare(object, now);
        }
        "persistentvolumeclaims" => {
            object["status"] = json!({"phase": "Pending"});
            pods::complete_sources(&mut object["spec"]);
        }
        "persistentvolumes" => {
            object["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": now});
        }
        "serviceaccounts" => pods::clean_secrets(object),
        "jobs.batch" => pods::label_job(object),
        "customresourcedefinitions.apiextensions.k8s.io" => crd::prepare(object),
        _ => {}
    }
}

/// Gives an object the status of `live`, or none.
fn reset_status(kind: &Kind, object: &mut Value, live: Option<&Value>) {
    let Some(map) = object.as_object_mut() else { return };
    if let Some(status) = live.and_then(|live| live.get("status")) {
        map.insert("status".to_owned(), status.clone());
    } else {
        map.remove("status");
        if kind.custom().is_none() {
            decode::complete(kind.typed(), map);
        }
    }
}

/// Changes the next state of an object before it is checked.
pub(crate) fn prepare_update(kind: &Kind, subresource: &str, live: &Value, object: &mut Value) {
    if kind.custom().is_none() {
        decode::forget_empty_lists(kind.typed(), object);
    }
    if subresource == "status" {
        status_update(kind, live, object);
    } else if subresource == "finalize" {
        object["status"] = live["status"].clone();
    } else {
        if has_status(kind) {
            reset_status(kind, object, Some(live));
            if live.get("status").is_none()
                && kind.custom().is_some()
                && let Some(map) = object.as_object_mut()
            {
                map.remove("status");
            }
        }
        match kind.resource() {
            "services" => allocated::forget(live, object),
            "serviceaccounts" => pods::clean_secrets(object),
            "namespaces" => object["spec"]["finalizers"] = live["spec"]["finalizers"].clone(),
            "customresourcedefinitions.apiextensions.k8s.io" => crd::prepare_update(object),
            _ => {}
        }
    }
    // CSIDrivers have no generation until they change.
    let first = is(kind, &[CSI_DRIVERS]).then_some(0);
    if bumps_generation(kind, subresource, live, object)
        && let Some(generation) = live["metadata"]["generation"].as_i64().or(first)
    {
        object["metadata"]["generation"] = (generation + 1).into();
    }
}

fn status_update(kind: &Kind, live: &Value, object: &mut Value) {
    let (Some(map), Some(old)) = (object.as_object_mut(), live.as_object()) else { return };
    if kind.custom().is_some() {
        // Only the status and the managers change.
        let version = map["metadata"]["resourceVersion"].clone();
        map.retain(|name, _| name == "status");
        for (name, value) in old.iter().filter(|(name, _)| *name != "status") {
            map.insert(name.clone(), value.clone());
        }
        if let Some(meta) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
            meta.insert("resourceVersion".to_owned(), version);
        }
        return;
    }
    match old.get("spec") {
        Some(spec) => {
            map.insert("spec".to_owned(), spec.clone());
        }
        None => {
            map.remove("spec");
        }
    }
    let kept: &[&str] = match kind.resource() {
        "deployments.apps" => &["labels"],
        "pods" => &["deletionTimestamp", "ownerReferences"],
        "customresourcedefinitions.apiextensions.k8s.io" => {
            &["labels", "annotations", "finalizers", "ownerReferences"]
        }
        _ => &[],
    };
    for field in kept {
        match live["metadata"].get(field) {
            Some(value) => object["metadata"][field] = value.clone(),
            None => {
                if let Some(meta) = object["metadata"].as_object_mut() {
                    meta.remove(*field);
                }
            }
        }
    }
}

fn bumps_generation(kind: &Kind, subresource: &str, live: &Value, object: &Value) -> bool {
    // All but the metadata, and the status if it is written apart.
    let counts = |name: &str| match name {
        "apiVersion" | "kind" | "metadata" => false,
        "status" => kind.custom().is_some_and(|custom| !custom.has_status),
        _ => true,
    };
    let is_same = || {
        let [old, new] = [live, object]
            .map(|value| value.as_object().into_iter().flatten().filter(|(name, _)| counts(name)));
        old.eq(new)
    };
    if subresource == "status" {
        return false;
    }
    if kind.custom().is_some() || is(kind, &GENERATION) || is(kind, &[CSI_DRIVERS]) {
        let counted = match kind.resource() {
            "deployments.apps" => "annotations",
            "endpointslices.discovery.k8s.io" => "labels",
            "priorityclasses.scheduling.k8s.io" => return false,
            _ => return !is_same(),
        };
        return live["metadata"][counted] != object["metadata"][counted] || !is_same();
    }
    false
}

/// Whether a deletion is allowed.
pub(crate) fn admit_delete(kind: &Kind, object: &Value) -> Outcome<()> {
    let name = meta::text(object, "name");
    let immortal = ["default", "kube-system", "kube-public"];
    if is(kind, &["namespaces"]) && immortal.contains(&name) {
        return Err(Failure::forbidden(kind, name, "this namespace may not be deleted"));
    }
    let is_system = || system_classes().iter().any(|class| class["metadata"]["name"] == name);
    if is(kind, &["priorityclasses.scheduling.k8s.io"]) && is_system() {
        let why = "this is a system priority class and cannot be deleted";
        return Err(Failure::forbidden(kind, name, why));
    }
    Ok(())
}

/// Sets the finalizers that a propagation policy means.
pub(crate) fn garbage_finalizers(
    kind: &Kind,
    object: &mut Value,
    policy: Option<&str>,
    orphans: Option<bool>,
) {
    const OWN: [&str; 2] = ["orphan", "foregroundDeletion"];
    let list: Vec<String> = object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|finalizer| finalizer.as_str().map(str::to_owned))
        .collect();
    let has = |name: &str| list.iter().any(|known| known == name);
    let by_default = is(kind, &["jobs.batch", "replicationcontrollers"]);
    let wants_orphan = match (orphans, policy) {
        (Some(orphans), _) => orphans,
        (None, Some(policy)) => policy == "Orphan",
        (None, None) if OWN.iter().any(|own| has(own)) => has("orphan"),
        (None, None) => by_default,
    };
    let wants_foreground = match (orphans, policy) {
        (Some(_), _) => false,
        (None, Some(policy)) => policy == "Foreground",
        (None, None) => has("foregroundDeletion") && !has("orphan"),
    };
    let mut next: Vec<String> = list.iter().filter(|name| !OWN.contains(&name.as_str())).cloned().collect();
    if wants_orphan {
        next.push("orphan".to_owned());
    }
    if wants_foreground {
        next.push("foregroundDeletion".to_owned());
    }
    let mut sorted = (list.clone(), next.clone());
    sorted.0.sort();
    sorted.1.sort();
    if sorted.0 == sorted.1 {
        return;
    }
    if let Some(meta) = object["metadata"].as_object_mut() {
        if next.is_empty() {
            meta.remove("finalizers");
        } else {
            meta.insert("finalizers".to_owned(), next.into());
        }
    }
}

/// The warning that every request about a deprecated version of a kind gets.
pub(crate) fn deprecation(kind: &Kind) -> Option<String> {
    let message = match (kind.custom(), kind.resource()) {
        (Some(custom), _) => return custom.deprecation.clone(),
        (None, "endpoints") => "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
        (None, "componentstatuses") => "v1 ComponentStatus is deprecated in v1.19+",
        _ => return None,
    };
    Some(message.to_owned())
}

/// The warnings about a new object.
pub(crate) fn warnings(kind: &Kind, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let template = match kind.resource() {
        "pods" => Some(("spec", &object["spec"])),
        "cronjobs.batch" => Some((
            "spec.jobTemplate.spec.template.spec",
            &object["spec"]["jobTemplate"]["spec"]["template"]["spec"],
        )),
        _ => Some(("spec.template.spec", &object["spec"]["template"]["spec"]))
            .filter(|(_, spec)| spec.is_object()),
    };
    if let Some((path, spec)) = template.filter(|_| kind.custom().is_none()) {
        found.extend(pods::duplicate_ports(path, spec));
    }
    if kind.resource() == "services" {
        found.extend(services::warnings(&object["spec"]));
    }
    if kind.resource() == "resourcequotas" {
        found.extend(validate::quota_warnings(&object["spec"]["hard"]));
    }
    let annotations = &object["metadata"]["annotations"];
    if is(kind, &["serviceaccounts"]) && !annotations[LIMITED].is_null() {
        found.push(format!("metadata.annotations[{LIMITED}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"));
    }
    if is(kind, &["ingresses.networking.k8s.io"])
        && !annotations[INGRESS_CLASS].is_null()
        && object["spec"]["ingressClassName"].is_null()
    {
        found.push(format!(
            "annotation {INGRESS_CLASS:?} is deprecated, please use 'spec.ingressClassName' instead"
        ));
    }
    for finalizer in object["metadata"]["finalizers"].as_array().into_iter().flatten() {
        if kind.custom().is_some() && !finalizer.as_str().unwrap_or_default().contains('/') {
            found.push(format!("metadata.finalizers: {finalizer}: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"));
        }
    }
    found
}

/// Whether objects of a kind get time to end.
pub(crate) fn is_graceful(kind: &Kind) -> bool {
    is(kind, &["pods"])
}

/// The seconds that an object has to end.
pub(crate) fn grace(kind: &Kind, object: &Value, asked: Option<i64>) -> i64 {
    if !is(kind, &["pods"]) {
        return 0;
    }
    let phase = object["status"]["phase"].as_str().unwrap_or_default();
    if object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty()
        || ["Failed", "Succeeded"].contains(&phase)
    {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    asked.unwrap_or(own).max(0)
}

/// Marks an object as being deleted.
pub(crate) fn begin_delete(kind: &Kind, object: &mut Value, grace: i64, now: &str, again: bool) {
    if is(kind, &[crd::CRDS]) {
        if !again {
            crd::begin_delete(object, now);
        }
        return;
    }
    let meta = &mut object["metadata"];
    let deadline = now.parse::<jiff::Timestamp>().ok();
    let deadline = deadline.and_then(|now| now.checked_add(jiff::SignedDuration::from_secs(grace)).ok());
    meta["deletionTimestamp"] = deadline.map_or_else(|| now.to_owned(), facts::time).into();
    if !is(kind, &["namespaces"]) {
        meta["deletionGracePeriodSeconds"] = grace.into();
    }
    if !again && let Some(generation) = meta["generation"].as_i64().filter(|generation| *generation > 0) {
        meta["generation"] = (generation + 1).into();
    }
    if is(kind, &["namespaces"]) {
        object["status"]["phase"] = "Terminating".into();
    }
}
