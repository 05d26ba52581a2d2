//! The addresses and ports in the spec of a Service, and what updates do to them.

use std::collections::{BTreeMap, BTreeSet};

use operetta_kube_model::facts::{items, number, text};
use serde_json::{Value, json};

/// Whether a Service has an address, or is without one on purpose.
pub(crate) fn has_address(spec: &Value) -> bool {
    spec["type"] != "ExternalName"
}

/// Whether a Service has ports on the nodes.
pub(crate) fn has_ports(spec: &Value) -> bool {
    matches!(text(&spec["type"]), "NodePort" | "LoadBalancer")
}

/// Whether a Service can be reached from outside.
pub(crate) fn is_external(spec: &Value) -> bool {
    has_ports(spec) || spec["type"] == "ClusterIP" && !items(&spec["externalIPs"]).is_empty()
}

/// Whether load balancers ask the nodes of a Service for its endpoints.
pub(crate) fn needs_check(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

/// The ports on the nodes that a Service has.
pub(crate) fn node_ports(spec: &Value) -> BTreeSet<i64> {
    let numbers = items(&spec["ports"]).iter().map(|port| number(&port["nodePort"]));
    numbers.filter(|number| *number != 0).collect()
}

/// Keeps what was allocated if an update does not name it.
pub(crate) fn keep(old: &Value, spec: &mut Value) {
    if has_address(old) && has_address(spec) {
        for field in ["clusterIP", "clusterIPs"] {
            let is_absent = match &spec[field] {
                Value::Array(all) => all.is_empty(),
                value => text(value).is_empty(),
            };
            if is_absent && !old[field].is_null() {
                spec[field] = old[field].clone();
            }
        }
    }
    if has_ports(old) && has_ports(spec) {
        let both: BTreeSet<i64> = node_ports(old).intersection(&node_ports(spec)).copied().collect();
        // The last of several ports of the same name counts.
        let known: BTreeMap<&str, i64> = items(&old["ports"])
            .iter()
            .map(|port| (text(&port["name"]), number(&port["nodePort"])))
            .collect();
        for port in spec["ports"].as_array_mut().into_iter().flatten() {
            let known = known.get(text(&port["name"])).copied().unwrap_or(0);
            if number(&port["nodePort"]) == 0 && known != 0 && !both.contains(&known) {
                port["nodePort"] = known.into();
            }
        }
    }
    if needs_check(old) && needs_check(spec) && number(&spec["healthCheckNodePort"]) == 0 {
        spec["healthCheckNodePort"] = old["healthCheckNodePort"].clone();
    }
    normalize(old, spec);
}

/// Makes `clusterIPs` follow `clusterIP`, for clients that know only this field.
fn normalize(old: &Value, spec: &mut Value) {
    let (before, after) = (text(&old["clusterIP"]), text(&spec["clusterIP"]));
    if before == after || items(&old["clusterIPs"]) != items(&spec["clusterIPs"]) {
        return;
    }
    if after.is_empty() {
        remove(spec, &["clusterIPs"]);
    } else {
        spec["clusterIPs"] = json!([after]);
    }
}

fn remove(spec: &mut Value, fields: &[&str]) {
    if let Some(map) = spec.as_object_mut() {
        map.retain(|name, _| !fields.contains(&name.as_str()));
    }
}

/// Removes what the new type of a Service does not have, unless the update changes it.
pub(crate) fn forget(live: &Value, service: &mut Value) {
    let (old, new) = (&live["spec"], &service["spec"]);
    let same = |field: &&str| old[*field] == new[*field];
    let mut gone: Vec<&str> = Vec::new();
    if has_address(old) && !has_address(new) {
        if ["clusterIP", "clusterIPs"].iter().all(same) {
            gone.extend(["clusterIP", "clusterIPs"]);
        }
        gone.extend(["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"].into_iter().filter(same));
    }
    let balances = |spec: &Value| spec["type"] == "LoadBalancer";
    if balances(old) && !balances(new) {
        gone.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"].into_iter().filter(same));
    }
    if needs_check(old) && !needs_check(new) {
        gone.extend(["healthCheckNodePort"].into_iter().filter(same));
    }
    if is_external(old) && !is_external(new) {
        gone.extend(["externalTrafficPolicy"].into_iter().filter(same));
    }
    let loses_ports = has_ports(old) && !has_ports(new) && node_ports(new).is_subset(&node_ports(old));
    let keeps_status = balances(new);
    if loses_ports {
        for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
            remove(port, &["nodePort"]);
        }
    }
    remove(&mut service["spec"], &gone);
    if !keeps_status {
        service["status"]["loadBalancer"] = json!({});
    }
}
