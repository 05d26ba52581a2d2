//! Prepares new pods, claims, accounts and Jobs.

use operetta_kube_model::facts::{items, text};
use operetta_kube_model::quantity::Quantity;
use serde_json::{Value, json};

/// The class of service of a pod.
pub(crate) fn qos(pod: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
    let (mut any, mut all) = (false, true);
    for container in containers {
        let of = |kind: &str, name: &str| {
            let value = container["resources"][kind][name].as_str()?;
            Quantity::saturating(value).filter(|amount| !amount.is_zero())
        };
        for name in ["cpu", "memory"] {
            let (request, limit) = (of("requests", name), of("limits", name));
            any |= request.is_some() || limit.is_some();
            all &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Completes a new pod: the condition of one that waits for its gates, and selectors of pods that name the labels of this one.
pub(crate) fn prepare(pod: &mut Value, now: &str) {
    if !items(&pod["spec"]["schedulingGates"]).is_empty() {
        pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates", "lastProbeTime": null, "lastTransitionTime": now}]);
    }
    if pod["spec"]["topologySpreadConstraints"].is_null() && pod["spec"]["affinity"].is_null() {
        return;
    }
    let labels = pod["metadata"]["labels"].clone();
    let spec = &mut pod["spec"];
    for (list, term) in [
        ("/topologySpreadConstraints", ""),
        ("/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution", ""),
        ("/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution", "/podAffinityTerm"),
        ("/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution", ""),
        ("/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution", "/podAffinityTerm"),
    ] {
        let terms = spec.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for term in terms.filter_map(|item| item.pointer_mut(term)) {
            select_labels(term, &labels);
        }
    }
}

/// Adds the labels that a term names by their keys to its selector.
fn select_labels(term: &mut Value, labels: &Value) {
    if !term["labelSelector"].is_object() {
        return;
    }
    let mut expressions = items(&term["labelSelector"]["matchExpressions"]).to_vec();
    let given = expressions.len();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in items(&term[field]) {
            if let Some(value) = labels.get(text(key)) {
                expressions.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    if expressions.len() > given {
        term["labelSelector"]["matchExpressions"] = expressions.into();
    }
}

/// Sets both fields for the data source of a new claim. A source of another kind counts only as `dataSourceRef`.
pub(crate) fn complete_sources(spec: &mut Value) {
    let [old, mut new] = ["dataSource", "dataSourceRef"].map(|field| spec[field].clone());
    if new.is_null() && !old.is_null() {
        let is_known = match text(&old["kind"]) {
            "PersistentVolumeClaim" => text(&old["apiGroup"]).is_empty(),
            "VolumeSnapshot" => old["apiGroup"] == "snapshot.storage.k8s.io",
            _ => false,
        };
        if is_known {
            spec["dataSourceRef"] = old;
        } else if let Some(spec) = spec.as_object_mut() {
            spec.remove("dataSource");
        }
    } else if old.is_null() && !new.is_null() && text(&new["namespace"]).is_empty() {
        if let Some(new) = new.as_object_mut() {
            new.remove("namespace");
        }
        spec["dataSource"] = new;
    }
}

/// Removes all fields but the name from the Secrets of an account.
pub(crate) fn clean_secrets(account: &mut Value) {
    for secret in account.get_mut("secrets").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(fields) = secret.as_object_mut() {
            fields.retain(|name, _| name == "name");
        }
    }
}

/// Ports that several containers of a pod declare.
pub(crate) fn duplicate_ports(path: &str, spec: &Value) -> Vec<String> {
    let mut known: Vec<((i64, String), String)> = Vec::new();
    let mut found = Vec::new();
    for (at, container) in spec["containers"].as_array().into_iter().flatten().enumerate() {
        for (index, port) in container["ports"].as_array().into_iter().flatten().enumerate() {
            let number = port["containerPort"].as_i64().unwrap_or(0);
            let place = format!("{path}.containers[{at}].ports[{index}]");
            let key = (number, port["protocol"].as_str().unwrap_or_default().to_owned());
            match known.iter().find(|(known, _)| *known == key) {
                Some((_, first)) => found.push(format!("{place}: duplicate port definition with {first}")),
                None => known.push((key, place)),
            }
        }
    }
    found
}

/// The selector of a Job, and the labels of its pods.
pub(crate) fn label_job(job: &mut Value) {
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let (name, uid) = (job["metadata"]["name"].clone(), job["metadata"]["uid"].clone());
    let labels = &mut job["spec"]["template"]["metadata"]["labels"];
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ] {
        if labels[key].is_null() {
            labels[key] = value.clone();
        }
    }
    if job["spec"]["selector"].is_null() {
        job["spec"]["selector"] = json!({"matchLabels": {}});
    }
    job["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"] = uid;
    if job["metadata"]["labels"].is_null() {
        job["metadata"]["labels"] = job["spec"]["template"]["metadata"]["labels"].clone();
    }
}
