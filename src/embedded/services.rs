//! Addresses and ports of Services.

use serde_json::{Value, json};

use crate::api::Api;

/// Gives a new Service its address and ports.
pub(crate) fn allocate(api: &mut Api, object: &mut Value) {
    let kind = object["spec"]["type"].as_str().unwrap_or_default().to_owned();
    if kind == "ExternalName" {
        return;
    }
    let spec = &mut object["spec"];
    if spec["clusterIP"].as_str().unwrap_or_default().is_empty() {
        let ip = free_address(api);
        spec["clusterIP"] = ip.clone().into();
        spec["clusterIPs"] = json!([ip]);
    }
    let ip = spec["clusterIP"].clone();
    if spec["clusterIPs"].is_null() {
        spec["clusterIPs"] = json!([ip]);
    }
    // Such a service may have addresses of both families.
    if ip == "None"
        && spec["selector"].is_null()
        && spec["ipFamilies"].is_null()
        && spec["ipFamilyPolicy"].is_null()
    {
        spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
        spec["ipFamilyPolicy"] = "RequireDualStack".into();
    }
    if spec["ipFamilies"].is_null() {
        spec["ipFamilies"] = json!(["IPv4"]);
    }
    if spec["ipFamilyPolicy"].is_null() {
        spec["ipFamilyPolicy"] = "SingleStack".into();
    }
    ports(api, spec);
}

/// Gives the ports of a Service numbers on the nodes.
fn ports(api: &Api, spec: &mut Value) {
    if spec["type"] == "NodePort" || spec["type"] == "LoadBalancer" {
        let mut next = 30_000;
        let used = used_ports(api);
        for port in spec["ports"].as_array_mut().into_iter().flatten() {
            if port["nodePort"].as_i64().unwrap_or(0) == 0 {
                while used.contains(&next) {
                    next += 1;
                }
                port["nodePort"] = next.into();
                next += 1;
            }
        }
    }
}

fn specs(api: &Api) -> impl Iterator<Item = Value> {
    api.store.range("services", "", None).map(|(_, object)| object.parsed().value["spec"].clone())
}

/// An address that no Service has. One that was given up is used again as late as possible.
fn free_address(api: &mut Api) -> String {
    loop {
        api.addresses = api.addresses % 65_000 + 1;
        let number = api.addresses + 1;
        let address = format!("10.96.{}.{}", (number >> 8) & 0xff, number & 0xff);
        let needle = format!("\"clusterIP\":\"{address}\"");
        if !api.store.range("services", "", None).any(|(_, object)| object.json.contains(&needle)) {
            return address;
        }
    }
}

fn used_ports(api: &Api) -> Vec<i64> {
    specs(api)
        .flat_map(|spec| spec["ports"].as_array().cloned().unwrap_or_default())
        .filter_map(|port| port["nodePort"].as_i64())
        .collect()
}

/// Keeps what was allocated if an update does not name it.
pub(crate) fn patch(api: &Api, live: &Value, object: &mut Value) {
    keep(live, object);
    let has_ports = |kind: &Value| kind == "NodePort" || kind == "LoadBalancer";
    let spec = &mut object["spec"];
    if has_ports(&spec["type"]) {
        ports(api, spec);
    } else if has_ports(&live["spec"]["type"]) {
        for port in spec["ports"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            port.remove("nodePort");
        }
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("externalTrafficPolicy");
            spec.remove("allocateLoadBalancerNodePorts");
        }
    }
}

fn keep(live: &Value, object: &mut Value) {
    let (old, new) = (&live["spec"], &mut object["spec"]);
    let keeps = |kind: &Value| kind != "ExternalName";
    if !keeps(&old["type"]) || !keeps(&new["type"]) {
        return;
    }
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let is_absent = new[field].is_null() || new[field] == "";
        if is_absent && !old[field].is_null() {
            new[field] = old[field].clone();
        } else if is_absent && let Some(map) = new.as_object_mut() {
            map.remove(field);
        }
    }
    let has_ports = |kind: &Value| kind == "NodePort" || kind == "LoadBalancer";
    if has_ports(&old["type"]) && has_ports(&new["type"]) {
        for port in new["ports"].as_array_mut().into_iter().flatten() {
            if port["nodePort"].as_i64().unwrap_or(0) == 0 {
                let same = old["ports"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .find(|known| known["port"] == port["port"] && known["protocol"] == port["protocol"]);
                if let Some(known) = same.filter(|known| known["nodePort"].is_number()) {
                    port["nodePort"] = known["nodePort"].clone();
                }
            }
        }
    }
}
