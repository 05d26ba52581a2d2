//! The validation of built-in kinds that people meet.

pub(super) mod checks;
mod claims;
mod immutable;
mod jobs;
mod limits;
mod pods;
mod resize;

use operetta_kube_model::Fault;
use operetta_kube_model::facts::{items, text};
use operetta_kube_model::validation::config_key;
use serde_json::Value;

use super::priority::system_classes;
use super::{policy, services};
use crate::model::{Kind, meta};
use checks::{Faults, is_empty, not_negative, rest};
use claims::claim;
use jobs::{cron_job, cron_job_name, job, job_update};
use limits::{limit_range, quota, quota_status};
use pods::{pod_spec, pod_update, workload};

pub(crate) use limits::quota_warnings;
pub(crate) use resize::keep_resources;

/// Checks a new object.
pub(crate) fn create(kind: &Kind, object: &Value) -> Faults {
    let mut faults = Vec::new();
    if let Some(custom) = kind.custom() {
        return crate::crd::validate(custom, "", None, object, &mut Vec::new());
    }
    always(kind, object, &mut faults);
    if kind.resource() == "cronjobs.batch" {
        cron_job_name(meta::text(object, "name"), &mut faults);
    }
    if kind.resource() == "services" {
        services::check(None, &object["spec"], &mut faults);
    }
    faults
}

/// Checks the next state of an object.
pub(crate) fn update(
    kind: &Kind,
    subresource: &str,
    live: &Value,
    object: &Value,
    warnings: &mut Vec<String>,
) -> Faults {
    let mut faults = Vec::new();
    if let Some(custom) = kind.custom() {
        return crate::crd::validate(custom, subresource, Some(live), object, warnings);
    }
    if subresource == "status" {
        counts(kind, &object["status"], &mut faults);
        if kind.resource() == "resourcequotas" {
            quota_status(&object["status"], &mut faults);
        }
    }
    if subresource == "resize" {
        resize::resize(live, object, &mut faults);
    }
    if !subresource.is_empty() {
        return faults;
    }
    always(kind, object, &mut faults);
    immutable::check(kind, live, object, &mut faults);
    match kind.resource() {
        "configmaps" | "secrets" => immutable_data(live, object, &mut faults),
        "statefulsets.apps" => {
            const OPEN: [&str; 7] = [
                "replicas",
                "ordinals",
                "template",
                "updateStrategy",
                "revisionHistoryLimit",
                "persistentVolumeClaimRetentionPolicy",
                "minReadySeconds",
            ];
            if rest(&live["spec"], &OPEN) != rest(&object["spec"], &OPEN) {
                faults.push(Fault::forbidden("spec", "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"));
            }
        }
        "jobs.batch" => job_update(live, object, &mut faults),
        "persistentvolumeclaims" => claims::update(live, object, &mut faults),
        "pods" => pod_update(live, object, &mut faults),
        "rolebindings.rbac.authorization.k8s.io" | "clusterrolebindings.rbac.authorization.k8s.io" => {
            let (old, new) = (&live["roleRef"], &object["roleRef"]);
            if old != new {
                let shown = format!(
                    "{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}",
                    new["apiGroup"], new["kind"], new["name"]
                );
                faults.push(Fault::shown("roleRef", shown, "cannot change roleRef"));
            }
        }
        "services" => {
            let (old, new) = (&live["spec"], &object["spec"]);
            services::check_change(old, new, &mut faults);
            services::check(Some(old), new, &mut faults);
        }
        _ => {}
    }
    faults
}

/// The numbers of replicas in a status.
fn counts(kind: &Kind, status: &Value, faults: &mut Faults) {
    let (all, fields): (&str, &[&str]) = match kind.resource() {
        "deployments.apps" => ("replicas", &["updatedReplicas", "readyReplicas", "availableReplicas"]),
        "replicasets.apps" => ("replicas", &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"]),
        "statefulsets.apps" => {
            ("replicas", &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"])
        }
        _ => return,
    };
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    for field in [&[all], fields].concat() {
        not_negative(status, field, "status", faults);
    }
    for field in fields.iter().filter(|field| number(field) > number(all)) {
        let why = format!("cannot be greater than status.{all}");
        faults.push(Fault::invalid(format!("status.{field}"), number(field), why));
    }
    if number("availableReplicas") > number("readyReplicas") {
        let why = "cannot be greater than readyReplicas";
        faults.push(Fault::invalid("status.availableReplicas", number("availableReplicas"), why));
    }
}

fn immutable_data(live: &Value, object: &Value, faults: &mut Faults) {
    if live["immutable"] == true {
        const WHY: &str = "field is immutable when `immutable` is set";
        if object["immutable"] != true {
            faults.push(Fault::forbidden("immutable", WHY));
        }
        for field in ["data", "binaryData"] {
            if live[field] != object[field] {
                faults.push(Fault::forbidden(field, WHY));
            }
        }
    }
}

/// Rules for new and for changed objects.
fn always(kind: &Kind, object: &Value, faults: &mut Faults) {
    let spec = &object["spec"];
    match kind.resource() {
        "configmaps" => config_map(object, faults),
        "secrets" => secret(object, faults),
        "pods" => pod_spec(spec, "spec", faults),
        "deployments.apps" => workload(spec, "deployment", faults),
        "replicasets.apps" => workload(spec, "replica set", faults),
        "daemonsets.apps" => workload(spec, "daemonset", faults),
        "statefulsets.apps" => workload(spec, "statefulset", faults),
        "jobs.batch" => job(spec, "spec", faults),
        "cronjobs.batch" => cron_job(spec, faults),
        "persistentvolumeclaims" => claim(spec, "spec", faults),
        "limitranges" => limit_range(spec, faults),
        "resourcequotas" => quota(spec, faults),
        "priorityclasses.scheduling.k8s.io" => priority_class(object, faults),
        "horizontalpodautoscalers.autoscaling" => autoscaler(spec, faults),
        "poddisruptionbudgets.policy"
            if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() =>
        {
            let null = "null".to_owned();
            let shown = format!(
                "{{\"MinAvailable\":{},\"Selector\":{},\"MaxUnavailable\":{},\"UnhealthyPodEvictionPolicy\":{}}}",
                spec["minAvailable"],
                spec["selector"],
                spec["maxUnavailable"],
                spec.get("unhealthyPodEvictionPolicy").map_or(null, Value::to_string)
            );
            faults.push(Fault::shown("spec", shown, "minAvailable and maxUnavailable cannot be both set"));
        }
        "ingresses.networking.k8s.io" => ingress(spec, faults),
        "roles.rbac.authorization.k8s.io" | "clusterroles.rbac.authorization.k8s.io" => {
            rules(object, kind.namespaced, faults);
        }
        "rolebindings.rbac.authorization.k8s.io" | "clusterrolebindings.rbac.authorization.k8s.io" => {
            bindings(object, kind.namespaced, faults);
        }
        "validatingadmissionpolicies.admissionregistration.k8s.io" => {
            faults.extend(policy::faults(&object["spec"]));
        }
        "customresourcedefinitions.apiextensions.k8s.io" => faults.extend(crate::crd::check(object)),
        _ => {}
    }
}

fn config_map(object: &Value, faults: &mut Faults) {
    for (field, other) in [("data", Some("binaryData")), ("binaryData", None)] {
        for key in object[field].as_object().into_iter().flatten().map(|(key, _)| key) {
            let path = format!("{field}[{key}]");
            if let Some(why) = config_key(key) {
                faults.push(Fault::invalid(&*path, key.as_str(), why));
            }
            if other.is_some_and(|other| object[other].get(key).is_some()) {
                faults.push(Fault::invalid(path, key.as_str(), "duplicate of key present in binaryData"));
            }
        }
    }
}

fn secret(object: &Value, faults: &mut Faults) {
    for key in object["data"].as_object().into_iter().flatten().map(|(key, _)| key) {
        if let Some(why) = config_key(key) {
            faults.push(Fault::invalid(format!("data[{key}]"), key.as_str(), why));
        }
    }
    let needed: &[&str] = match text(&object["type"]) {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        _ => &[],
    };
    for key in needed.iter().filter(|key| object["data"].get(**key).is_none()) {
        faults.push(Fault::required(format!("data[{key}]"), ""));
    }
}

fn priority_class(class: &Value, faults: &mut Faults) {
    const MOST: i64 = 1_000_000_000;
    let name = meta::text(class, "name");
    if !name.starts_with("system-") {
        if class["value"].as_i64().is_some_and(|value| value > MOST) {
            let why = format!("maximum allowed value of a user defined priority is {MOST}");
            faults.push(Fault::forbidden("value", why));
        }
        return;
    }
    let known = system_classes().into_iter().find(|known| known["metadata"]["name"] == name);
    let why = match known {
        None => format!("{name} is not a known system priority class"),
        Some(known) if known["value"] != class["value"] => {
            format!("value of {name} PriorityClass must be {}", known["value"])
        }
        Some(_) if class["globalDefault"] == true => {
            format!("globalDefault of {name} PriorityClass must be false")
        }
        Some(_) => return,
    };
    let why =
        format!("priority class names with 'system-' prefix are reserved for system use only. error: {why}");
    faults.push(Fault::forbidden("metadata.name", why));
}

fn autoscaler(spec: &Value, faults: &mut Faults) {
    let (least, most) =
        (spec["minReplicas"].as_i64().unwrap_or(1), spec["maxReplicas"].as_i64().unwrap_or(0));
    if least < 1 {
        faults.push(Fault::invalid("spec.minReplicas", least, "must be greater than or equal to 1"));
    }
    if most < 1 {
        faults.push(Fault::required("spec.maxReplicas", "must be set and greater than 0"));
    }
    if most < least {
        faults.push(Fault::invalid(
            "spec.maxReplicas",
            most,
            "must be greater than or equal to `minReplicas`",
        ));
    }
    let target = &spec["scaleTargetRef"];
    for field in ["kind", "name"].into_iter().filter(|field| text(&target[field]).is_empty()) {
        faults.push(Fault::required(format!("spec.scaleTargetRef.{field}"), ""));
    }
    if !text(&target["apiVersion"]).contains('/') && text(&target["kind"]) != "ReplicationController" {
        faults.push(Fault::invalid(
            "spec.scaleTargetRef.apiVersion",
            text(&target["apiVersion"]),
            "apiVersion must specify API group",
        ));
    }
}

fn ingress(spec: &Value, faults: &mut Faults) {
    if is_empty(&spec["rules"]) && is_empty(&spec["defaultBackend"]) {
        faults.push(Fault::invalid("spec", "", "either `defaultBackend` or `rules` must be specified"));
    }
    for (at, rule) in items(&spec["rules"]).iter().enumerate() {
        for (index, one) in items(&rule["http"]["paths"]).iter().enumerate() {
            let path = format!("spec.rules[{at}].http.paths[{index}]");
            let kinds = ["Exact", "ImplementationSpecific", "Prefix"];
            match text(&one["pathType"]) {
                "" => {
                    faults.push(Fault::required(format!("{path}.pathType"), "pathType must be specified"));
                }
                kind if !kinds.contains(&kind) => {
                    faults.push(Fault::not_supported(format!("{path}.pathType"), kind, &kinds));
                }
                kind => {
                    if kind != "ImplementationSpecific" && !text(&one["path"]).starts_with('/') {
                        faults.push(Fault::invalid(
                            format!("{path}.path"),
                            text(&one["path"]),
                            "must be an absolute path",
                        ));
                    }
                }
            }
        }
    }
}

fn rules(object: &Value, namespaced: bool, faults: &mut Faults) {
    for (at, rule) in items(&object["rules"]).iter().enumerate() {
        let path = format!("rules[{at}]");
        if is_empty(&rule["verbs"]) {
            faults.push(Fault::required(format!("{path}.verbs"), "verbs must contain at least one value"));
        }
        if !is_empty(&rule["nonResourceURLs"]) {
            if namespaced {
                faults.push(Fault::invalid(
                    format!("{path}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "namespaced rules cannot apply to non-resource URLs",
                ));
            }
            if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !is_empty(&rule[*field])) {
                faults.push(Fault::invalid(
                    format!("{path}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "rules cannot apply to both regular resources and non-resource URLs",
                ));
            }
            continue;
        }
        if is_empty(&rule["apiGroups"]) {
            faults.push(Fault::required(
                format!("{path}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if is_empty(&rule["resources"]) {
            faults.push(Fault::required(
                format!("{path}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
}

fn bindings(object: &Value, namespaced: bool, faults: &mut Faults) {
    let role = &object["roleRef"];
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&text(&role["kind"])) {
        faults.push(Fault::not_supported("roleRef.kind", role["kind"].clone(), kinds));
    }
    if text(&role["name"]).is_empty() {
        faults.push(Fault::required("roleRef.name", ""));
    }
    for (at, subject) in items(&object["subjects"]).iter().enumerate() {
        let path = format!("subjects[{at}]");
        if text(&subject["name"]).is_empty() {
            faults.push(Fault::required(format!("{path}.name"), ""));
        }
        if !["ServiceAccount", "User", "Group"].contains(&text(&subject["kind"])) {
            let kinds = ["ServiceAccount", "User", "Group"];
            faults.push(Fault::not_supported(format!("{path}.kind"), subject["kind"].clone(), &kinds));
        }
        if subject["kind"] == "ServiceAccount" && !namespaced && text(&subject["namespace"]).is_empty() {
            faults.push(Fault::required(format!("{path}.namespace"), ""));
        }
    }
}
