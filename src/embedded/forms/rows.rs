//! The cells of tables for kinds that only people look at, and the words that cells consist of.

pub(crate) mod pod;

use std::collections::BTreeSet;

use jiff::Timestamp;
use operetta_kube_model::age::duration;
use operetta_kube_model::facts::{condition, controller, items, number};
use operetta_kube_model::selector::Selector;
use serde_json::Value;

/// The time since, as kubectl prints it.
pub(crate) fn age(time: &Value, now: Timestamp) -> String {
    operetta_kube_model::age::age(now, time.as_str())
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

pub(crate) fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

/// A selector of labels in one line.
pub(crate) fn selector(value: &Value) -> String {
    or_none(Selector::parse(value).map(|selector| selector.to_string()).unwrap_or_default())
}

/// The names and images of the containers of a pod.
pub(crate) fn containers(spec: &Value) -> [Value; 2] {
    ["name", "image"].map(|field| {
        let all: Vec<String> =
            items(&spec["containers"]).iter().map(|container| text(&container[field])).collect();
        all.join(",").into()
    })
}

/// The access modes of a volume.
pub(crate) fn modes(value: &Value) -> String {
    let modes = items(value).iter().map(|mode| match mode.as_str() {
        Some("ReadWriteOnce") => "RWO",
        Some("ReadOnlyMany") => "ROX",
        Some("ReadWriteMany") => "RWX",
        _ => "RWOP",
    });
    modes.collect::<Vec<_>>().join(",")
}

/// The addresses that a load balancer has given.
pub(crate) fn balanced(status: &Value) -> Vec<String> {
    let given = items(&status["loadBalancer"]["ingress"]).iter();
    let addresses = given.map(|entry| match text(&entry["ip"]) {
        ip if ip.is_empty() => text(&entry["hostname"]),
        ip => ip,
    });
    addresses.filter(|address| !address.is_empty()).collect::<BTreeSet<String>>().into_iter().collect()
}

/// The phase of a volume or claim.
pub(crate) fn phase(object: &Value) -> Value {
    if object["metadata"]["deletionTimestamp"].is_null() {
        text(&object["status"]["phase"]).into()
    } else {
        "Terminating".into()
    }
}

/// At most three texts, and how many more there are.
fn some(all: &[String], separator: &str) -> String {
    let shown = all.get(..3).unwrap_or(all).join(separator);
    if all.len() > 3 { format!("{shown} + {} more...", all.len() - 3) } else { shown }
}

pub(crate) fn or(value: &Value, other: &str) -> Value {
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
                phase(object),
                claim.into(),
                text(&spec["storageClassName"]).into(),
                or(&spec["volumeAttributesClassName"], "<unset>"),
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
                let all = all.filter(|(key, _)| key.starts_with("limits.") == is_limit);
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
            let is_default = meta["annotations"]["ingressclass.kubernetes.io/is-default-class"] == "true";
            let name = if is_default { format!("{} (default)", text(&name)).into() } else { name };
            let of = &spec["parameters"];
            let parameters = match (of.is_null(), of["apiGroup"].as_str()) {
                (true, _) => "<none>".to_owned(),
                (false, Some(group)) => format!("{}.{group}/{}", text(&of["kind"]), text(&of["name"])),
                (false, None) => format!("{}/{}", text(&of["kind"]), text(&of["name"])),
            };
            vec![name, spec["controller"].clone(), parameters.into(), old]
        }
        "endpointslices.discovery.k8s.io" => {
            let port = |port: &Value| match &port["port"] {
                Value::Null => text(&or(&port["name"], "*")),
                number => text(number),
            };
            let ports: Vec<String> = items(&object["ports"]).iter().map(port).collect();
            let addresses = items(&object["endpoints"]).iter().flat_map(|end| items(&end["addresses"]));
            let addresses: Vec<String> = addresses.map(text).collect();
            let shown = |all: &[String]| -> Value {
                if all.is_empty() { "<unset>".into() } else { some(all, ",").into() }
            };
            vec![name, object["addressType"].clone(), shown(&ports), shown(&addresses), old]
        }
        "endpoints" => {
            let mut all = Vec::new();
            for subset in items(&object["subsets"]) {
                let addresses = || items(&subset["addresses"]).iter().map(|address| text(&address["ip"]));
                let ports = items(&subset["ports"]);
                if ports.is_empty() {
                    all.extend(addresses());
                }
                for port in ports {
                    all.extend(addresses().map(|address| format!("{address}:{}", port["port"])));
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
            let owner = controller(object);
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
        "validatingadmissionpolicies.admissionregistration.k8s.io"
        | "mutatingadmissionpolicies.admissionregistration.k8s.io" => {
            let of = &spec["paramKind"];
            let kind = if of.is_null() {
                "<unset>".to_owned()
            } else {
                format!("{}/{}", text(&of["apiVersion"]), text(&of["kind"]))
            };
            let rules = items(&spec["validations"]).len() + items(&spec["mutations"]).len();
            vec![name, rules.into(), kind.into(), old]
        }
        "validatingadmissionpolicybindings.admissionregistration.k8s.io"
        | "mutatingadmissionpolicybindings.admissionregistration.k8s.io" => {
            let of = &spec["paramRef"];
            let param = if !text(&of["name"]).is_empty() {
                format!("{}/{}", text(&or(&of["namespace"], "*")), text(&of["name"]))
            } else if of["selector"].is_object() {
                selector(&of["selector"])
            } else {
                "<unset>".to_owned()
            };
            vec![name, spec["policyName"].clone(), param.into(), old]
        }
        "validatingwebhookconfigurations.admissionregistration.k8s.io"
        | "mutatingwebhookconfigurations.admissionregistration.k8s.io" => {
            vec![name, items(&object["webhooks"]).len().into(), old]
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
        _ => rare(resource, object, name, old),
    }
}

/// Kinds that few packages have.
fn rare(resource: &str, object: &Value, name: Value, old: Value) -> Vec<Value> {
    let (meta, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let joined = |value: &Value| items(value).iter().map(text).collect::<Vec<_>>().join(",");
    match resource {
        "certificatesigningrequests.certificates.k8s.io" => {
            let duration = spec["expirationSeconds"].as_i64().map_or_else(|| "<none>".to_owned(), duration);
            let signer = or(&spec["signerName"], "<none>");
            vec![name, old, signer, text(&spec["username"]).into(), duration.into(), request(status).into()]
        }
        "csidrivers.storage.k8s.io" => {
            let flag = |field: &str| -> Value { (spec[field] == true).into() };
            let audiences = items(&spec["tokenRequests"]).iter().map(|token| text(&token["audience"]));
            let tokens = match &spec["tokenRequests"] {
                Value::Null => "<unset>".to_owned(),
                _ => audiences.collect::<Vec<_>>().join(","),
            };
            vec![
                name,
                (spec["attachRequired"] != false).into(),
                flag("podInfoOnMount"),
                flag("storageCapacity"),
                tokens.into(),
                flag("requiresRepublish"),
                or_none(joined(&spec["volumeLifecycleModes"])).into(),
                old,
            ]
        }
        "csinodes.storage.k8s.io" => vec![name, items(&spec["drivers"]).len().into(), old],
        "volumeattributesclasses.storage.k8s.io" => vec![name, object["driverName"].clone(), old],
        "servicecidrs.networking.k8s.io" => vec![name, joined(&spec["cidrs"]).into(), old],
        // This kind has a cell more than columns.
        "ipaddresses.networking.k8s.io" => {
            let of = &spec["parentRef"];
            let group = Some(text(&of["group"])).filter(|group| !group.is_empty());
            let resource = [text(&of["resource"])].into_iter().chain(group).collect::<Vec<_>>().join(".");
            let namespace = Some(text(&of["namespace"])).filter(|namespace| !namespace.is_empty());
            let parts = [resource.to_lowercase()].into_iter().chain(namespace).chain([text(&of["name"])]);
            let parent = parts.collect::<Vec<_>>().join("/");
            vec![name, if of.is_null() { "<none>".into() } else { parent.into() }, old]
        }
        "deviceclasses.resource.k8s.io" | "resourceclaimtemplates.resource.k8s.io" => vec![name, old],
        "resourceclaims.resource.k8s.io" => {
            let is_deleted = !meta["deletionTimestamp"].is_null();
            let is_allocated = !status["allocation"].is_null();
            let states = [
                (is_deleted, "deleted"),
                (!is_deleted && !is_allocated, "pending"),
                (is_allocated, "allocated"),
                (is_allocated && !items(&status["reservedFor"]).is_empty(), "reserved"),
            ];
            let states = states.into_iter().filter(|(holds, _)| *holds).map(|(_, state)| state);
            vec![name, states.collect::<Vec<_>>().join(",").into(), old]
        }
        "resourceslices.resource.k8s.io" => vec![
            name,
            text(&spec["nodeName"]).into(),
            spec["driver"].clone(),
            spec["pool"]["name"].clone(),
            old,
        ],
        "flowschemas.flowcontrol.apiserver.k8s.io" => {
            let dangles = condition(object, "Dangling");
            vec![
                name,
                spec["priorityLevelConfiguration"]["name"].clone(),
                spec["matchingPrecedence"].clone(),
                or(&spec["distinguisherMethod"]["type"], "<none>"),
                old,
                dangles.map_or_else(|| "?".into(), |condition| condition["status"].clone()),
            ]
        }
        "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io" => {
            let limited = &spec["limited"];
            let queuing = &limited["limitResponse"]["queuing"];
            let cell = |value: &Value| or(value, "<none>");
            vec![
                name,
                spec["type"].clone(),
                cell(&limited["nominalConcurrencyShares"]),
                cell(&queuing["queues"]),
                cell(&queuing["handSize"]),
                cell(&queuing["queueLengthLimit"]),
                old,
            ]
        }
        "componentstatuses" => {
            let healthy =
                items(&object["conditions"]).iter().find(|condition| condition["type"] == "Healthy");
            let state = healthy.map_or("Unknown", |condition| {
                if condition["status"] == "True" { "Healthy" } else { "Unhealthy" }
            });
            let of = |field: &str| healthy.map(|condition| text(&condition[field])).unwrap_or_default();
            vec![name, state.into(), of("message").into(), of("error").into()]
        }
        _ => vec![name, meta["creationTimestamp"].clone()],
    }
}

/// The state of a request for a certificate.
fn request(status: &Value) -> String {
    let has = |kind: &str| items(&status["conditions"]).iter().any(|condition| condition["type"] == kind);
    let mut state = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !text(&status["certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    state
}

fn node(object: &Value, name: Value, old: Value) -> Vec<Value> {
    const ROLE: &str = "node-role.kubernetes.io/";
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = condition(object, "Ready");
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
        let found = items(&status["addresses"]).iter().find(|address| address["type"] == kind);
        or(&found.map(|found| found["address"].clone()).unwrap_or_default(), "<none>")
    };
    let info = &status["nodeInfo"];
    let kernel = text(&or(&info["kernelVersion"], "<unknown>"));
    let kernel = match text(&info["architecture"]) {
        of if of.is_empty() => kernel,
        of => format!("{kernel} ({of})"),
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
    let wanted = items(&object["spec"]["metrics"]);
    let now = &object["status"]["currentMetrics"];
    let shown = wanted.iter().take(2).enumerate().map(|(at, wanted)| metric(wanted, &now[at]));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match wanted.len() {
        0 => "<none>".to_owned(),
        1 | 2 => shown,
        many => format!("{shown} + {} more...", many - 2),
    }
}

/// A metric with its target.
fn metric(wanted: &Value, now: &Value) -> String {
    let kind = text(&wanted["type"]);
    let field = match &*kind {
        "ContainerResource" => "containerResource".to_owned(),
        kind => kind.to_lowercase(),
    };
    let (of, now) = (&wanted[&field], &now[&field]["current"]);
    let target = &of["target"];
    let current = |value: &Value, unit: &str| {
        if value.is_null() { "<unknown>".to_owned() } else { format!("{}{unit}", text(value)) }
    };
    let average = format!("{}/{}", current(&now["averageValue"], ""), text(&target["averageValue"]));
    match &*kind {
        "Pods" => average,
        "Resource" | "ContainerResource" => {
            let part = match (&target["averageValue"], &target["averageUtilization"]) {
                (Value::Null, Value::Null) => {
                    format!("{}/<auto>", current(&now["averageUtilization"], "%"))
                }
                (Value::Null, wanted) => {
                    format!("{}/{}%", current(&now["averageUtilization"], "%"), text(wanted))
                }
                _ => average,
            };
            format!("{}: {part}", text(&of["name"]))
        }
        "Object" | "External" if target["averageValue"].is_null() => {
            format!("{}/{}", current(&now["value"], ""), text(&target["value"]))
        }
        "Object" | "External" => format!("{average} (avg)"),
        _ => "<unknown type>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The cells between name and age.
    fn shown(resource: &str, object: &Value) -> Value {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let cells = cells(resource, object, now).into_iter().filter(|cell| *cell != "n" && *cell != "60m");
        cells.collect()
    }

    #[test]
    fn kinds_that_others_write_have_rows() {
        let meta = json!({"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"});
        let request = json!({"metadata": meta, "spec": {"signerName": "a.b/c", "username": "jane", "expirationSeconds": 7200},
            "status": {"conditions": [{"type": "Approved"}, {"type": "Failed"}], "certificate": "x"}});
        let resource = "certificatesigningrequests.certificates.k8s.io";
        assert_eq!(shown(resource, &request), json!(["a.b/c", "jane", "120m", "Approved,Failed,Issued"]));
        let schema = json!({"metadata": meta, "spec": {"priorityLevelConfiguration": {"name": "p"}, "matchingPrecedence": 500}});
        let resource = "flowschemas.flowcontrol.apiserver.k8s.io";
        assert_eq!(shown(resource, &schema), json!(["p", 500, "<none>", "?"]));
        let exempt = json!({"metadata": meta, "spec": {"type": "Exempt"}});
        let resource = "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io";
        assert_eq!(shown(resource, &exempt), json!(["Exempt", "<none>", "<none>", "<none>", "<none>"]));
        let range = json!({"metadata": meta, "spec": {"cidrs": ["10.0.0.0/8", "fd00::/64"]}});
        assert_eq!(shown("servicecidrs.networking.k8s.io", &range), json!(["10.0.0.0/8,fd00::/64"]));
        let policy = json!({"metadata": meta, "spec": {"mutations": [{}, {}]}});
        let resource = "mutatingadmissionpolicies.admissionregistration.k8s.io";
        assert_eq!(shown(resource, &policy), json!([2, "<unset>"]));
        let claim = json!({"metadata": meta, "status": {"allocation": {}, "reservedFor": [{}]}});
        assert_eq!(shown("resourceclaims.resource.k8s.io", &claim), json!(["allocated,reserved"]));
        let sick = json!({"metadata": meta, "conditions": [{"type": "Healthy", "status": "False", "message": "m", "error": "e"}]});
        assert_eq!(shown("componentstatuses", &sick), json!(["Unhealthy", "m", "e"]));
    }
}
