//! What admission does to pods, claims and Jobs.

use serde_json::{Value, json};

use crate::api::{Api, key};
use crate::facts::{items, name, text};
use crate::kinds::Kind;
use crate::quantity;
use crate::status::{Failure, Outcome};

/// The class of service of a pod.
pub(crate) fn qos(pod: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
    let (mut any, mut all) = (false, true);
    for container in containers {
        let of = |kind: &str, name: &str| {
            let value = container["resources"][kind][name].as_str()?;
            quantity::nanos(value).filter(|nanos| *nanos != 0)
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

/// The account, tolerations and priority of a new pod.
pub(crate) fn admit(api: &mut Api, pod: &mut Value) {
    let suffix = api.suffix();
    let spec = &mut pod["spec"];
    if spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        spec["serviceAccountName"] = "default".into();
        spec["serviceAccount"] = "default".into();
    }
    if spec["automountServiceAccountToken"] != false {
        mount_token(spec, &suffix);
    }
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let is_covered = |t: &Value| {
            (t["key"] == *key || t["key"].is_null() && t["operator"] == "Exists")
                && (t["effect"].is_null() || t["effect"] == "NoExecute")
        };
        if !tolerations.iter().any(is_covered) {
            tolerations.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
    spec["tolerations"] = tolerations.into();
    if spec["priority"].is_null() {
        spec["priority"] = 0.into();
    }
    if spec["preemptionPolicy"].is_null() {
        spec["preemptionPolicy"] = "PreemptLowerPriority".into();
    }
}

fn mount_token(spec: &mut Value, suffix: &str) {
    const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let name = format!("kube-api-access-{suffix}");
    let mut used = false;
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
            if mounts.iter().any(|mount| mount["mountPath"] == PATH) {
                continue;
            }
            let mount = json!({"name": name, "readOnly": true, "mountPath": PATH});
            container["volumeMounts"] = mounts.into_iter().chain([mount]).collect::<Vec<_>>().into();
            used = true;
        }
        if spec[list].is_null()
            && let Some(map) = spec.as_object_mut()
        {
            map.remove(list);
        }
    }
    if !used {
        return;
    }
    let volume = json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}});
    let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
    spec["volumes"] = volumes.into_iter().chain([volume]).collect::<Vec<_>>().into();
}

/// A pod on a node cannot ask for more than the node has.
pub(crate) fn admit_resize(api: &Api, kind: &Kind, live: &Value, pod: &Value) -> Outcome<()> {
    let node_name = text(&pod["spec"]["nodeName"]);
    if node_name.is_empty() || live["spec"] == pod["spec"] {
        return Ok(());
    }
    let Some(node) = api.store.get("nodes", &key("", node_name)).map(|node| node.bare()) else {
        return Err(Failure::forbidden(kind, name(pod), &format!("node {node_name:?} not found")));
    };
    let mut missing = Vec::new();
    for (resource, unit) in [("cpu", 1_000_000), ("memory", 1_000_000_000)] {
        let in_units = |value: &Value| (quantity::nanos(text(value)).unwrap_or(0) + unit - 1) / unit;
        let of = |container: &Value| in_units(&container["resources"]["requests"][resource]);
        let sum: i128 = items(&pod["spec"]["containers"]).iter().map(of).sum();
        let first = items(&pod["spec"]["initContainers"]).iter().map(of).max().unwrap_or(0);
        let (wanted, has) = (sum.max(first), in_units(&node["status"]["allocatable"][resource]));
        if wanted > has {
            missing.push(format!("{resource}, requested: {wanted}, allocatable: {has}"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let why = format!("node didn't have enough allocatable resources: {}", missing.join("; "));
    let failure = Failure::forbidden(kind, name(pod), &why);
    Err(failure.caused(vec![("NodeCapacity", String::new(), String::new())]))
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

/// The default class of a claim.
pub(crate) fn admit_claim(api: &Api, claim: &mut Value) {
    if !claim["spec"]["storageClassName"].is_null() {
        return;
    }
    let is_default = |value: &Value| {
        value["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true"
    };
    let class = api
        .store
        .range("storageclasses.storage.k8s.io", "", None)
        .map(|(_, object)| object.bare())
        .find(is_default);
    if let Some(class) = class {
        claim["spec"]["storageClassName"] = class["metadata"]["name"].clone();
    }
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
