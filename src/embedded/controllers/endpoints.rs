//! EndpointSlices: the addresses of the pods that a Service selects. Each Service has one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use operetta_kube_model::facts::{
    is_deleting, is_ready, is_terminal, items, name, namespace, text, time, uid,
};
use serde_json::{Value, json};

use super::client::{self, MANAGER, SERVICES, SLICES, get};
use super::ownership::selected;
use super::parts::owner;
use crate::api::Api;

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let service = get(api, &SERVICES, key)?;
    let selector = &service["spec"]["selector"];
    let selects = selector.as_object().is_some_and(|selector| !selector.is_empty());
    if !selects || service["spec"]["type"] == "ExternalName" || is_deleting(&service) {
        return None;
    }
    let pods = selected(api, namespace(&service), &json!({"matchLabels": selector}));
    let pods = pods.iter().filter(|pod| !is_terminal(pod) && pod["status"]["podIP"].is_string());
    let endpoints: Vec<Value> = pods.clone().map(|pod| endpoint(&service, pod)).collect();
    let ports = ports(&service, pods);

    let known = client::below(api, &SLICES, uid(&service)).into_iter().next();
    let mut labels = service["metadata"]["labels"].clone();
    labels["kubernetes.io/service-name"] = name(&service).into();
    labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io".into();
    if service["spec"]["clusterIP"] == "None" {
        labels["service.kubernetes.io/headless"] = "".into();
    }
    let is_same = known.as_ref().is_some_and(|known| {
        items(&known["endpoints"]) == endpoints
            && items(&known["ports"]) == ports
            && known["metadata"]["labels"] == labels
    });
    if is_same {
        return None;
    }
    let mut slice = known.clone().unwrap_or_else(|| {
        json!({"metadata": {"generateName": format!("{}-", name(&service)), "namespace": namespace(&service),
            "ownerReferences": [owner(&SERVICES, &service)]}, "addressType": "IPv4"})
    });
    slice["metadata"]["labels"] = labels;
    slice["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"] = time(now).into();
    slice["endpoints"] = endpoints.into();
    slice["ports"] = ports.into();
    let _ = if known.is_some() {
        client::update(api, MANAGER, &SLICES, "", &mut slice, now)
    } else {
        client::create(api, MANAGER, &SLICES, &mut slice, now)
    };
    None
}

fn endpoint(service: &Value, pod: &Value) -> Value {
    let serves = is_ready(pod);
    let is_published = service["spec"]["publishNotReadyAddresses"] == true;
    let ready = is_published || serves && !is_deleting(pod);
    let mut endpoint = json!({
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready, "serving": serves, "terminating": is_deleting(pod)},
        "nodeName": pod["spec"]["nodeName"],
        "targetRef": {"kind": "Pod", "name": name(pod), "namespace": namespace(pod), "uid": uid(pod)},
    });
    let hostname = text(&pod["spec"]["hostname"]);
    if !hostname.is_empty() && pod["spec"]["subdomain"] == name(service) {
        endpoint["hostname"] = hostname.into();
    }
    endpoint
}

/// The ports of the endpoints; the number of a named one is that of the first pod that has it.
fn ports<'a>(service: &Value, pods: impl Iterator<Item = &'a Value>) -> Vec<Value> {
    let mut named: BTreeMap<&str, &Value> = BTreeMap::new();
    for pod in pods {
        for container in items(&pod["spec"]["containers"]) {
            for port in items(&container["ports"]) {
                named.entry(text(&port["name"])).or_insert(&port["containerPort"]);
            }
        }
    }
    let ports = items(&service["spec"]["ports"]).iter().filter_map(|port| {
        let target = match &port["targetPort"] {
            Value::String(target) => (*named.get(target.as_str())?).clone(),
            Value::Null => port["port"].clone(),
            number => number.clone(),
        };
        let mut found = json!({"name": text(&port["name"]), "port": target, "protocol": port["protocol"]});
        if port["appProtocol"].is_string() {
            found["appProtocol"] = port["appProtocol"].clone();
        }
        Some(found)
    });
    ports.collect()
}
