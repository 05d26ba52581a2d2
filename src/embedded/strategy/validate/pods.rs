//! The rules for pods, and for the workloads and Jobs that have pods.

use std::borrow::Cow;
use std::collections::HashSet;

use operetta_kube_model::Fault;
use operetta_kube_model::facts::{items, put_claims, text};
use operetta_kube_model::quantity::Quantity;
use operetta_kube_model::selector::labels_match;
use operetta_kube_model::validation;
use serde_json::Value;

use super::checks::{Faults, is_empty, not_negative, port, rest};
use super::claims::claim;

pub(super) fn workload(spec: &Value, what: &str, faults: &mut Faults) {
    not_negative(spec, "replicas", "spec", faults);
    let selector = &spec["selector"];
    let is_selective = !is_empty(&selector["matchLabels"]) || !is_empty(&selector["matchExpressions"]);
    if selector.is_null() {
        faults.push(Fault::required("spec.selector", ""));
    } else if !is_selective {
        faults.push(Fault::invalid(
            "spec.selector",
            selector.clone(),
            format!("empty selector is invalid for {what}"),
        ));
    }
    let template = &spec["template"];
    let labels = &template["metadata"]["labels"];
    if (is_selective || selector.is_null()) && (selector.is_null() || !labels_match(selector, labels)) {
        faults.push(Fault::invalid(
            "spec.template.metadata.labels",
            labels.clone(),
            "`selector` does not match template `labels`",
        ));
    }
    pod_spec(&with_claims(spec), "spec.template.spec", faults);
    let policy = text(&template["spec"]["restartPolicy"]);
    if ["Never", "OnFailure"].contains(&policy) {
        faults.push(Fault::not_supported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    if what == "deployment"
        && spec["strategy"]["type"] == "Recreate"
        && !spec["strategy"]["rollingUpdate"].is_null()
    {
        let why = "may not be specified when strategy `type` is 'Recreate'";
        faults.push(Fault::forbidden("spec.strategy.rollingUpdate", why));
    }
    let update = &spec["updateStrategy"];
    if what == "statefulset" && update["type"] == "OnDelete" && !update["rollingUpdate"].is_null() {
        let rolling = &update["rollingUpdate"];
        // As the server prints its internal type.
        let shown = format!(
            "{{\"Partition\":{},\"MaxUnavailable\":{}}}",
            rolling["partition"].as_i64().unwrap_or_default(),
            rolling["maxUnavailable"]
        );
        let why = "only allowed for updateStrategy 'RollingUpdate'";
        faults.push(Fault::shown("spec.updateStrategy.rollingUpdate", shown, why));
    }
    not_negative(spec, "minReadySeconds", "spec", faults);
    not_negative(spec, "revisionHistoryLimit", "spec", faults);
    if what == "statefulset" {
        for (at, template) in items(&spec["volumeClaimTemplates"]).iter().enumerate() {
            claim(&template["spec"], &format!("spec.volumeClaimTemplates[{at}].spec"), faults);
        }
    }
}

/// The spec of a workload's pods as it is validated: with the volumes that a StatefulSet adds for its claims.
fn with_claims(spec: &Value) -> Cow<'_, Value> {
    let pods = &spec["template"]["spec"];
    let names = items(&spec["volumeClaimTemplates"]).iter().map(|claim| text(&claim["metadata"]["name"]));
    let claims: Vec<_> = names.map(|name| (name, name)).collect();
    if claims.is_empty() {
        return Cow::Borrowed(pods);
    }
    let mut pods = pods.clone();
    put_claims(&mut pods, &claims);
    Cow::Owned(pods)
}

/// The rules for the spec of a pod.
pub(super) fn pod_spec(spec: &Value, path: &str, faults: &mut Faults) {
    // In the order in which they are checked.
    const VOLUMES: [&str; 7] =
        ["emptyDir", "hostPath", "secret", "nfs", "persistentVolumeClaim", "downwardAPI", "configMap"];
    let place = path;
    let volumes: HashSet<&str> = items(&spec["volumes"]).iter().map(|volume| text(&volume["name"])).collect();
    let mut seen = HashSet::new();
    for (at, volume) in items(&spec["volumes"]).iter().enumerate() {
        let path = format!("{path}.volumes[{at}].name");
        let name = text(&volume["name"]);
        if name.is_empty() {
            faults.push(Fault::required(path, ""));
        } else if let Some(why) = validation::dns_label(name) {
            faults.push(Fault::invalid(path, name, why));
        } else if !seen.insert(name) {
            faults.push(Fault::duplicate(path, name));
        }
        let kinds =
            volume.as_object().into_iter().flatten().map(|(kind, _)| kind).filter(|kind| *kind != "name");
        let mut kinds: Vec<&String> = kinds.collect();
        kinds.sort_by_key(|kind| VOLUMES.iter().position(|known| known == kind));
        for kind in kinds.iter().skip(1) {
            faults.push(Fault::forbidden(
                format!("{place}.volumes[{at}].{kind}"),
                "may not specify more than 1 volume type",
            ));
        }
    }
    if is_empty(&spec["containers"]) {
        faults.push(Fault::required(format!("{path}.containers"), ""));
    }
    let mut names = HashSet::new();
    for field in ["containers", "initContainers"] {
        for (at, one) in items(&spec[field]).iter().enumerate() {
            container(one, &format!("{path}.{field}[{at}]"), &volumes, &mut names, faults);
        }
    }
    let policies = ["Always", "OnFailure", "Never"];
    let policy = text(&spec["restartPolicy"]);
    if !policies.contains(&policy) && !policy.is_empty() {
        faults.push(Fault::not_supported(format!("{path}.restartPolicy"), policy, &policies));
    }
}

fn container<'a>(
    one: &'a Value,
    path: &str,
    volumes: &HashSet<&str>,
    names: &mut HashSet<&'a str>,
    faults: &mut Faults,
) {
    let name = text(&one["name"]);
    if name.is_empty() {
        faults.push(Fault::required(format!("{path}.name"), ""));
    } else if let Some(why) = validation::dns_label(name) {
        faults.push(Fault::invalid(format!("{path}.name"), name, why));
    } else if !names.insert(name) {
        faults.push(Fault::duplicate(format!("{path}.name"), name));
    }
    if text(&one["image"]).is_empty() {
        faults.push(Fault::required(format!("{path}.image"), ""));
    }
    let policies = ["Always", "IfNotPresent", "Never"];
    let policy = text(&one["imagePullPolicy"]);
    if !policies.contains(&policy) && !policy.is_empty() {
        faults.push(Fault::not_supported(format!("{path}.imagePullPolicy"), policy, &policies));
    }
    let mut port_names = HashSet::new();
    for (at, entry) in items(&one["ports"]).iter().enumerate() {
        let path = format!("{path}.ports[{at}]");
        let name = text(&entry["name"]);
        if !name.is_empty() && !port_names.insert(name) {
            faults.push(Fault::duplicate(format!("{path}.name"), name));
        }
        match entry["containerPort"].as_i64().unwrap_or(0) {
            0 => faults.push(Fault::required(format!("{path}.containerPort"), "")),
            _ => port(&entry["containerPort"], &format!("{path}.containerPort"), faults),
        }
    }
    for (at, variable) in items(&one["env"]).iter().enumerate() {
        if text(&variable["name"]).is_empty() {
            faults.push(Fault::required(format!("{path}.env[{at}].name"), ""));
        }
        if !is_empty(&variable["value"]) && !is_empty(&variable["valueFrom"]) {
            faults.push(Fault::invalid(
                format!("{path}.env[{at}].valueFrom"),
                "",
                "may not be specified when `value` is not empty",
            ));
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        handlers(&one[probe], &format!("{path}.{probe}"), faults);
    }
    let mut paths = HashSet::new();
    for (at, mount) in items(&one["volumeMounts"]).iter().enumerate() {
        let path = format!("{path}.volumeMounts[{at}]");
        let name = text(&mount["name"]);
        if name.is_empty() {
            faults.push(Fault::required(format!("{path}.name"), ""));
        }
        if !volumes.contains(name) {
            faults.push(Fault::not_found(format!("{path}.name"), name));
        }
        let target = text(&mount["mountPath"]);
        if target.is_empty() {
            faults.push(Fault::required(format!("{path}.mountPath"), ""));
        } else if !paths.insert(target) {
            faults.push(Fault::invalid(format!("{path}.mountPath"), target, "must be unique"));
        }
    }
    for (name, request) in one["resources"]["requests"].as_object().into_iter().flatten() {
        let amount = |value: &Value| Quantity::saturating(text(value));
        if let (Some(limit), Some(wanted)) = (amount(&one["resources"]["limits"][name]), amount(request))
            && wanted > limit
        {
            let why = format!(
                "must be less than or equal to {name} limit of {}",
                text(&one["resources"]["limits"][name])
            );
            faults.push(Fault::invalid(format!("{path}.resources.requests"), request.clone(), why));
        }
    }
}

/// A probe asks in one way.
fn handlers(probe: &Value, path: &str, faults: &mut Faults) {
    if probe.is_null() {
        return;
    }
    let given = ["exec", "httpGet", "tcpSocket", "grpc"].into_iter().filter(|kind| !probe[kind].is_null());
    let given: Vec<&str> = given.collect();
    if given.is_empty() {
        faults.push(Fault::required(path, "must specify a handler type"));
    }
    for kind in given.iter().skip(1) {
        faults.push(Fault::forbidden(format!("{path}.{kind}"), "may not specify more than 1 handler type"));
    }
    for kind in ["httpGet", "tcpSocket"] {
        port(&probe[kind]["port"], &format!("{path}.{kind}.port"), faults);
    }
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        not_negative(probe, field, path, faults);
    }
}

pub(super) fn pod_update(live: &Value, object: &Value, faults: &mut Faults) {
    let normal = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                container["image"] = Value::Null;
            }
        }
        let free = [
            "activeDeadlineSeconds",
            "tolerations",
            "terminationGracePeriodSeconds",
            "schedulingGates",
            "ephemeralContainers",
            "nodeSelector",
            "affinity",
        ];
        // Where a pod runs may change until its gates are open.
        let is_gated = !items(&live["spec"]["schedulingGates"]).is_empty();
        rest(&spec, if is_gated { &free } else { &free[..5] })
    };
    if normal(live) != normal(object) {
        faults.push(Fault::forbidden("spec", "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"));
    }
}
