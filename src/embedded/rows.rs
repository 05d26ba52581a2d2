//! The cells of tables for kinds that only people look at, and the words that cells consist of.

use jiff::Timestamp;
use serde_json::Value;

/// The time since, as kubectl prints it.
pub(crate) fn age(time: &Value, now: Timestamp) -> String {
    let Some(then) = time.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    let seconds = now.as_second() - then.as_second();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |a: i64, b: i64, units: (&str, &str)| {
        if b == 0 { format!("{a}{}", units.0) } else { format!("{a}{}{b}{}", units.0, units.1) }
    };
    if seconds < 0 {
        return if seconds < -1 { "<invalid>".to_owned() } else { "0s".to_owned() };
    }
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(minutes, seconds % 60, ("m", "s")),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, minutes % 60, ("h", "m")),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, hours % 24, ("d", "h")),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, days % 365, ("y", "d")),
        _ => format!("{}y", days / 365),
    }
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

pub(crate) fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

/// A selector of labels in one line.
pub(crate) fn selector(value: &Value) -> String {
    let labels = value.get("matchLabels").filter(|labels| labels.is_object()).unwrap_or(value);
    let pairs: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| value.is_string())
        .map(|(key, value)| format!("{key}={}", text(value)))
        .collect();
    let others = list(&value["matchExpressions"]).iter().map(|expression| {
        let values: Vec<String> = list(&expression["values"]).iter().map(text).collect();
        let (key, values) = (text(&expression["key"]), values.join(","));
        match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key,
            _ => format!("!{key}"),
        }
    });
    or_none(pairs.into_iter().chain(others).collect::<Vec<_>>().join(","))
}

/// The names and images of the containers of a pod.
pub(crate) fn containers(spec: &Value) -> [Value; 2] {
    ["name", "image"].map(|field| {
        let all: Vec<String> =
            list(&spec["containers"]).iter().map(|container| text(&container[field])).collect();
        all.join(",").into()
    })
}

/// The access modes of a volume.
pub(crate) fn modes(value: &Value) -> String {
    let modes = list(value).iter().map(|mode| match mode.as_str() {
        Some("ReadWriteOnce") => "RWO",
        Some("ReadOnlyMany") => "ROX",
        Some("ReadWriteMany") => "RWX",
        _ => "RWOP",
    });
    modes.collect::<Vec<_>>().join(",")
}

/// At most three texts, and how many more there are.
fn some(all: &[String], separator: &str) -> String {
    let shown = all.get(..3).unwrap_or(all).join(separator);
    if all.len() > 3 { format!("{shown} + {} more...", all.len() - 3) } else { shown }
}

fn or(value: &Value, other: &str) -> Value {
    if text(value).is_empty() { other.into() } else { value.clone() }
}

/// The cells of an object. Kinds that are not known show when the object was created.
pub(crate) fn cells(resource: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    let (meta, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let name = meta["name"].clone();
    let old: Value = age(&meta["creationTimestamp"], now).into();
    match resource {
        "nodes" => node(object, name, old),
        "persistentvolumes" => {
            let claim = &spec["claimRef"];
            let claim = if claim.is_null() {
                String::new()
            } else {
                format!("{}/{}", text(&claim["namespace"]), text(&claim["name"]))
            };
            vec![
                name,
                text(&spec["capacity"]["storage"]).into(),
                modes(&spec["accessModes"]).into(),
                spec["persistentVolumeReclaimPolicy"].clone(),
                text(&status["phase"]).into(),
                claim.into(),
                text(&spec["storageClassName"]).into(),
                "<unset>".into(),
                text(&status["reason"]).into(),
                old,
                spec["volumeMode"].clone(),
            ]
        }
        "storageclasses.storage.k8s.io" => {
            let is_default = meta["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
            let name = if is_default { format!("{} (default)", text(&name)).into() } else { name };
            let grows = object["allowVolumeExpansion"] == true;
            let [provisioner, policy, binding] =
                ["provisioner", "reclaimPolicy", "volumeBindingMode"].map(|field| object[field].clone());
            vec![name, provisioner, policy, binding, grows.into(), old]
        }
        "resourcequotas" => {
            let used = |is_limit: bool| -> Value {
                let all = status["hard"].as_object().into_iter().flatten();
                let all = all.filter(|(key, _)| key.starts_with("limits") == is_limit);
                let all = all.map(|(key, hard)| {
                    let used = status["used"].get(key).map_or_else(|| "0".to_owned(), text);
                    format!("{key}: {used}/{}", text(hard))
                });
                all.collect::<Vec<_>>().join(", ").into()
            };
            vec![name, used(false), used(true), old]
        }
        "horizontalpodautoscalers.autoscaling" => {
            let target = &spec["scaleTargetRef"];
            let least =
                if spec["minReplicas"].is_null() { "<unset>".to_owned() } else { text(&spec["minReplicas"]) };
            vec![
                name,
                format!("{}/{}", text(&target["kind"]), text(&target["name"])).into(),
                metrics(object).into(),
                least.into(),
                spec["maxReplicas"].clone(),
                number(&status["currentReplicas"]).into(),
                old,
            ]
        }
        "priorityclasses.scheduling.k8s.io" => vec![
            name,
            object["value"].clone(),
            (object["globalDefault"] == true).into(),
            old,
            object["preemptionPolicy"].clone(),
        ],
        "ingressclasses.networking.k8s.io" => {
            let of = &spec["parameters"];
            let parameters = match (of.is_null(), of["apiGroup"].as_str()) {
                (true, _) => "<none>".to_owned(),
                (false, Some(group)) => format!("{}.{group}/{}", text(&of["kind"]), text(&of["name"])),
                (false, None) => format!("{}/{}", text(&of["kind"]), text(&of["name"])),
            };
            vec![name, spec["controller"].clone(), parameters.into(), old]
        }
        "endpointslices.discovery.k8s.io" => {
            let ports: Vec<String> = list(&object["ports"]).iter().map(|port| text(&port["port"])).collect();
            let addresses = list(&object["endpoints"]).iter().flat_map(|end| list(&end["addresses"]));
            let addresses: Vec<String> = addresses.map(text).collect();
            let shown = |all: &[String]| -> Value {
                if all.is_empty() { "<unset>".into() } else { some(all, ",").into() }
            };
            vec![name, object["addressType"].clone(), shown(&ports), shown(&addresses), old]
        }
        "endpoints" => {
            let mut all = Vec::new();
            for subset in list(&object["subsets"]) {
                for port in list(&subset["ports"]) {
                    let addresses = list(&subset["addresses"]).iter().map(|address| text(&address["ip"]));
                    all.extend(addresses.map(|address| format!("{address}:{}", port["port"])));
                }
            }
            vec![name, or_none(some(&all, ",")).into(), old]
        }
        "replicationcontrollers" => {
            let [names, images] = containers(&spec["template"]["spec"]);
            let (wanted, selected) = (number(&spec["replicas"]), selector(&spec["selector"]));
            let [current, ready] = ["replicas", "readyReplicas"].map(|field| number(&status[field]));
            vec![name, wanted.into(), current.into(), ready.into(), old, names, images, selected.into()]
        }
        "podtemplates" => {
            let [names, images] = containers(&object["template"]["spec"]);
            vec![name, names, images, selector(&object["template"]["metadata"]["labels"]).into()]
        }
        "controllerrevisions.apps" => {
            let owner = list(&meta["ownerReferences"]).iter().find(|owner| owner["controller"] == true);
            let owner = owner.map_or_else(
                || "<none>".to_owned(),
                |owner| {
                    let group =
                        text(&owner["apiVersion"]).split_once('/').map(|(group, _)| format!(".{group}"));
                    let kind = text(&owner["kind"]).to_lowercase();
                    format!("{kind}{}/{}", group.unwrap_or_default(), text(&owner["name"]))
                },
            );
            vec![name, owner.into(), object["revision"].clone(), old]
        }
        "validatingadmissionpolicies.admissionregistration.k8s.io" => {
            let of = &spec["paramKind"];
            let kind = if of.is_null() {
                "<unset>".to_owned()
            } else {
                format!("{}/{}", text(&of["apiVersion"]), text(&of["kind"]))
            };
            vec![name, list(&spec["validations"]).len().into(), kind.into(), old]
        }
        "validatingadmissionpolicybindings.admissionregistration.k8s.io" => {
            let of = &spec["paramRef"];
            let param = if of.is_null() {
                "<unset>".to_owned()
            } else if of["selector"].is_object() {
                selector(&of["selector"])
            } else {
                format!("{}/{}", text(&or(&of["namespace"], "*")), text(&of["name"]))
            };
            vec![name, spec["policyName"].clone(), param.into(), old]
        }
        "validatingwebhookconfigurations.admissionregistration.k8s.io"
        | "mutatingwebhookconfigurations.admissionregistration.k8s.io" => {
            vec![name, list(&object["webhooks"]).len().into(), old]
        }
        "runtimeclasses.node.k8s.io" => vec![name, object["handler"].clone(), old],
        "volumeattachments.storage.k8s.io" => vec![
            name,
            spec["attacher"].clone(),
            text(&spec["source"]["persistentVolumeName"]).into(),
            spec["nodeName"].clone(),
            (status["attached"] == true).into(),
            old,
        ],
        _ => vec![name, meta["creationTimestamp"].clone()],
    }
}

fn node(object: &Value, name: Value, old: Value) -> Vec<Value> {
    const ROLE: &str = "node-role.kubernetes.io/";
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = list(&status["conditions"]).iter().find(|condition| condition["type"] == "Ready");
    let mut state = match ready.map(|condition| condition["status"] == "True") {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if spec["unschedulable"] == true {
        state.push_str(",SchedulingDisabled");
    }
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let mut roles: Vec<String> = labels
        .filter_map(|(key, value)| match key.strip_prefix(ROLE) {
            Some(role) => Some(role.to_owned()),
            None => Some(text(value)).filter(|role| key == "kubernetes.io/role" && !role.is_empty()),
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    let address = |kind: &str| -> Value {
        let found = list(&status["addresses"]).iter().find(|address| address["type"] == kind);
        or(&found.map(|found| found["address"].clone()).unwrap_or_default(), "<none>")
    };
    let info = &status["nodeInfo"];
    let kernel = match (text(&info["kernelVersion"]), text(&info["architecture"])) {
        (kernel, _) if kernel.is_empty() => "<unknown>".to_owned(),
        (kernel, of) if of.is_empty() => kernel,
        (kernel, of) => format!("{kernel} ({of})"),
    };
    vec![
        name,
        state.into(),
        or_none(roles.join(",")).into(),
        old,
        text(&info["kubeletVersion"]).into(),
        address("InternalIP"),
        address("ExternalIP"),
        or(&info["osImage"], "<unknown>"),
        kernel.into(),
        or(&info["containerRuntimeVersion"], "<unknown>"),
    ]
}

/// The metrics of an autoscaler with their targets; the first two are shown.
fn metrics(object: &Value) -> String {
    let wanted = list(&object["spec"]["metrics"]);
    let shown = wanted.iter().take(2).enumerate().map(|(at, metric)| {
        let is_resource = metric["type"] == "Resource";
        let of = if is_resource { &metric["resource"] } else { &metric["pods"] };
        let now =
            &object["status"]["currentMetrics"][at][if is_resource { "resource" } else { "pods" }]["current"];
        let target = &of["target"];
        let of_now = |field: &str, unit: &str| {
            if now[field].is_null() { "<unknown>".to_owned() } else { format!("{}{unit}", text(&now[field])) }
        };
        let part = if target["averageValue"].is_null() {
            format!("{}/{}%", of_now("averageUtilization", "%"), text(&target["averageUtilization"]))
        } else {
            format!("{}/{}", of_now("averageValue", ""), text(&target["averageValue"]))
        };
        if is_resource { format!("{}: {part}", text(&of["name"])) } else { part }
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match wanted.len() {
        0 => "<none>".to_owned(),
        1 | 2 => shown,
        many => format!("{shown} + {} more...", many - 2),
    }
}
