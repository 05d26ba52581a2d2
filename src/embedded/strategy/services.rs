//! The rules for Services, their families and their warnings. The cluster has addresses of one family, IPv4.

use std::collections::HashSet;
use std::net::IpAddr;

use operetta_kube_model::Fault;
use operetta_kube_model::facts::{items, number, text};
use operetta_kube_model::validation;
use serde_json::{Map, Value, json};

use super::allocated::{has_address, has_ports, is_external, needs_check};
use super::validate::checks::port;

/// Gives a Service the families of its addresses.
pub(crate) fn families(old: Option<&Value>, spec: &mut Value) -> Vec<Fault> {
    if old.is_some_and(|old| prefers_dual_as_before(old, spec)) {
        return Vec::new();
    }
    let is_open = spec["clusterIP"] == "None" && spec["selector"].as_object().is_none_or(Map::is_empty);
    if spec["ipFamilyPolicy"].is_null() {
        let former = old.map(|old| old["ipFamilyPolicy"].clone()).filter(Value::is_string);
        let other = if is_open { "RequireDualStack" } else { "SingleStack" };
        spec["ipFamilyPolicy"] = former.unwrap_or_else(|| other.into());
    }
    let mut faults = related(old, spec);
    if !faults.is_empty() {
        return faults;
    }
    let policy = spec["ipFamilyPolicy"].clone();
    let is_single = policy == "SingleStack";
    let bad_policy = |why: String| Fault::invalid("spec.ipFamilyPolicy", policy.clone(), why);
    for (field, one, many) in
        [("clusterIPs", "cluster IP", "cluster IPs"), ("ipFamilies", "IP family", "IP families")]
    {
        let before = old.map(|old| items(&old[field])).unwrap_or_default();
        let after = items(&spec[field]);
        let is_shorter = !after.is_empty() && after.len() < before.len();
        if is_single && after == before && after.len() > 1 {
            let first = after[0].clone();
            spec[field] = json!([first]);
        } else if is_single && after.len() == 2 {
            let why =
                format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {many} are specified");
            faults.push(bad_policy(why));
        } else if !is_single && is_shorter {
            faults.push(bad_policy(format!("must be 'SingleStack' to release the secondary {one}")));
        }
    }
    let mut families = items(&spec["ipFamilies"]).to_vec();
    let addresses = items(&spec["clusterIPs"]).iter().enumerate().take_while(|(_, ip)| **ip != "None");
    for (at, ip) in addresses {
        if at < families.len() {
            continue;
        }
        if text(ip).parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()) {
            families.push("IPv4".into());
        } else {
            let why = "IPv6 is not configured on this cluster";
            faults.push(Fault::invalid(format!("spec.clusterIPs[{at}]"), spec["clusterIPs"].clone(), why));
        }
    }
    if !faults.is_empty() {
        return faults;
    }
    if families.is_empty() {
        families.push("IPv4".into());
    }
    if is_open {
        if families.len() < 2 && !is_single {
            families.push(if families[0] == "IPv4" { "IPv6".into() } else { "IPv4".into() });
        }
    } else {
        if policy == "RequireDualStack" {
            faults.push(bad_policy("this cluster is not configured for dual-stack services".to_owned()));
        }
        for (at, family) in families.iter().enumerate().filter(|(_, family)| **family != "IPv4") {
            let path = format!("spec.ipFamilies[{at}]");
            faults.push(Fault::invalid(path, family.clone(), "not configured on this cluster"));
        }
    }
    if faults.is_empty() {
        spec["ipFamilies"] = families.into();
    }
    faults
}

/// Whether a Service that prefers two families keeps all that is about them.
fn prefers_dual_as_before(old: &Value, spec: &Value) -> bool {
    let prefers = |spec: &Value| spec["ipFamilyPolicy"] == "PreferDualStack";
    let same = |field: &str| items(&old[field]) == items(&spec[field]);
    let is_same = old["type"] == spec["type"] && same("clusterIPs") && same("ipFamilies");
    is_same && has_address(spec) && prefers(old) && prefers(spec)
}

/// The warnings about a Service.
pub(crate) fn warnings(spec: &Value) -> Vec<String> {
    let is_headless = spec["type"] == "ClusterIP" && spec["clusterIP"] == "None";
    let has_external = !items(&spec["externalIPs"]).is_empty();
    let all = [
        (
            is_headless && !text(&spec["loadBalancerIP"]).is_empty(),
            "spec.loadBalancerIP is ignored for headless services",
        ),
        (is_headless && has_external, "spec.externalIPs is ignored for headless services"),
        (
            is_headless && spec["sessionAffinity"] != "None",
            "spec.SessionAffinity is ignored for headless services",
        ),
        (
            has_external && !is_headless && has_address(spec),
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
        (
            has_external && !has_address(spec),
            "spec.externalIPs is ignored when spec.type is \"ExternalName\"",
        ),
        (
            has_address(spec) && !text(&spec["externalName"]).is_empty(),
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
        (
            spec["trafficDistribution"] == "PreferClose",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ),
    ];
    all.into_iter().filter(|(holds, _)| *holds).map(|(_, why)| why.to_owned()).collect()
}

/// The rules for Services.
pub(crate) fn check(old: Option<&Value>, spec: &Value, faults: &mut Vec<Fault>) {
    let kind = text(&spec["type"]);
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if !kinds.contains(&kind) {
        faults.push(Fault::not_supported("spec.type", kind, &kinds));
    }
    let is_headless = matches!(items(&spec["clusterIPs"]), [one] if one == "None");
    if items(&spec["ports"]).is_empty() && has_address(spec) && !is_headless {
        faults.push(Fault::required("spec.ports", ""));
    }
    if is_headless && has_ports(spec) {
        let why = format!("may not be set to 'None' for {kind} services");
        faults.push(Fault::invalid("spec.clusterIPs[0]", "None", why));
    }
    if !has_address(spec) {
        let name = text(&spec["externalName"]).trim_end_matches('.');
        if name.is_empty() {
            faults.push(Fault::required("spec.externalName", ""));
        } else if let Some(why) = validation::dns_subdomain(name) {
            faults.push(Fault::invalid("spec.externalName", name, why));
        }
        let given = ["clusterIPs", "ipFamilies", "ipFamilyPolicy"].into_iter();
        for field in given.filter(|field| !spec[*field].is_null() && spec[*field] != json!([])) {
            let why = "may not be set for ExternalName services";
            faults.push(Fault::forbidden(format!("spec.{field}"), why));
        }
    }
    check_ports(spec, faults);
    let one_of = |field: &str, choices: &[&str]| {
        let value = text(&spec[field]);
        let is_wrong = !value.is_empty() && !choices.contains(&value);
        is_wrong.then(|| Fault::not_supported(format!("spec.{field}"), value, choices))
    };
    faults.extend(one_of("sessionAffinity", &["ClientIP", "None"]));
    faults.extend(one_of("internalTrafficPolicy", &["Cluster", "Local"]));
    faults.extend(one_of("trafficDistribution", &["PreferClose", "PreferSameZone", "PreferSameNode"]));
    if let Some(seconds) = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].as_i64()
        && !(1..=86_400).contains(&seconds)
    {
        let path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
        faults.push(Fault::invalid(path, seconds, "must be greater than 0 and less than 86400"));
    }
    faults.extend(related(old, spec));
    for (at, ip) in items(&spec["externalIPs"]).iter().enumerate() {
        faults.extend(bad_address(ip, format!("spec.externalIPs[{at}]")));
    }
    check_balancer(spec, faults);
    check_traffic(spec, faults);
}

fn check_ports(spec: &Value, faults: &mut Vec<Fault>) {
    let ports = items(&spec["ports"]);
    let (mut names, mut seen, mut on_nodes) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (at, entry) in ports.iter().enumerate() {
        let path = format!("spec.ports[{at}]");
        let (name, protocol) = (text(&entry["name"]), text(&entry["protocol"]));
        if name.is_empty() && ports.len() > 1 {
            faults.push(Fault::required(format!("{path}.name"), ""));
        } else if !name.is_empty() {
            if let Some(why) = validation::dns_label(name) {
                faults.push(Fault::invalid(format!("{path}.name"), name, why));
            } else if !names.insert(name) {
                faults.push(Fault::duplicate(format!("{path}.name"), name));
            }
        }
        port(&entry["port"], &format!("{path}.port"), faults);
        let protocols = ["SCTP", "TCP", "UDP"];
        if !protocols.contains(&protocol) {
            faults.push(Fault::not_supported(format!("{path}.protocol"), protocol, &protocols));
        }
        port(&entry["targetPort"], &format!("{path}.targetPort"), faults);
        let on_node = number(&entry["nodePort"]);
        if on_node != 0 && spec["type"] == "ClusterIP" {
            let why = "may not be used when `type` is 'ClusterIP'";
            faults.push(Fault::forbidden(format!("{path}.nodePort"), why));
        }
        if on_node != 0 && !on_nodes.insert((on_node, protocol)) {
            faults.push(Fault::duplicate(format!("{path}.nodePort"), on_node));
        }
        if !seen.insert((entry["port"].as_i64(), protocol)) {
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{},\"TargetPort\":0,\"NodePort\":0}}",
                entry["protocol"], entry["port"]
            );
            faults.push(Fault::shown_duplicate(path, shown));
        }
    }
}

/// Checks the fields that only load balancers have.
fn check_balancer(spec: &Value, faults: &mut Vec<Fault>) {
    let ranges = items(&spec["loadBalancerSourceRanges"]);
    let is_balancer = spec["type"] == "LoadBalancer";
    for (field, path, is_given) in [
        ("loadBalancerSourceRanges", "spec.LoadBalancerSourceRanges", !ranges.is_empty()),
        ("allocateLoadBalancerNodePorts", "spec.allocateLoadBalancerNodePorts", true),
        ("loadBalancerClass", "spec.loadBalancerClass", true),
    ] {
        if !is_balancer && is_given && !spec[field].is_null() {
            faults.push(Fault::forbidden(path, "may only be used when `type` is 'LoadBalancer'"));
        }
    }
    for (at, range) in ranges.iter().enumerate() {
        let parts = text(range).trim().split_once('/');
        let is_valid = parts.is_some_and(|(ip, bits)| {
            let most = ip.parse::<IpAddr>().map_or(0, |ip| if ip.is_ipv4() { 32 } else { 128 });
            most > 0 && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
        });
        if !is_valid {
            let path = format!("spec.LoadBalancerSourceRanges[{at}]");
            let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            faults.push(Fault::invalid(path, text(range).trim(), why));
        }
    }
}

/// The policy for traffic from outside, and the port at which load balancers ask.
fn check_traffic(spec: &Value, faults: &mut Vec<Fault>) {
    let policy = text(&spec["externalTrafficPolicy"]);
    let path = "spec.externalTrafficPolicy";
    let policies = ["Cluster", "Local"];
    if !is_external(spec) {
        if !policy.is_empty() {
            faults.push(Fault::invalid(path, policy, "may only be set for externally-accessible services"));
        }
    } else if policy.is_empty() {
        faults.push(Fault::required(path, ""));
    } else if !policies.contains(&policy) {
        faults.push(Fault::not_supported(path, policy, &policies));
    }
    let number = number(&spec["healthCheckNodePort"]);
    if number != 0 && !needs_check(spec) {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        faults.push(Fault::invalid("spec.healthCheckNodePort", number, why));
    }
}

fn bad_address(value: &Value, path: String) -> Option<Fault> {
    let is_valid = text(value).parse::<IpAddr>().is_ok();
    let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
    (!is_valid).then(|| Fault::invalid(path, value.clone(), why))
}

/// Checks the addresses of a Service, their families and the policy for both.
fn related(old: Option<&Value>, spec: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !has_address(spec) {
        return faults;
    }
    let (first, all) = (text(&spec["clusterIP"]), items(&spec["clusterIPs"]));
    let bad = |why: &str| Fault::invalid("spec.clusterIPs", spec["clusterIPs"].clone(), why);
    match all.first() {
        None if !first.is_empty() => faults.push(Fault::required("spec.clusterIPs", "")),
        Some(_) if first.is_empty() => {
            faults.push(bad("must be empty when `clusterIP` is not specified"));
        }
        Some(one) if one != first => faults.push(bad("first value must match `clusterIP`")),
        _ => {}
    }
    let known = ["IPv4", "IPv6"];
    let families = items(&spec["ipFamilies"]);
    for (at, family) in families.iter().enumerate() {
        let path = format!("spec.ipFamilies[{at}]");
        if !known.contains(&text(family)) {
            faults.push(Fault::not_supported(path.clone(), family.clone(), &known));
        }
        if families[..at].contains(family) {
            faults.push(Fault::duplicate(path, family.clone()));
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    let policy = &spec["ipFamilyPolicy"];
    if !policy.is_null() && !policies.contains(&text(policy)) {
        faults.push(Fault::not_supported("spec.ipFamilyPolicy", policy.clone(), &policies));
    }
    let before = faults.len();
    for (at, ip) in all.iter().enumerate() {
        if at == 0 && ip == "None" {
            if all.len() > 1 {
                faults.push(bad("'None' must be the first and only value"));
            }
        } else if old.is_none_or(|old| !items(&old["clusterIPs"]).contains(ip)) {
            faults.extend(bad_address(ip, format!("spec.clusterIPs[{at}]")));
        }
    }
    let has_bad = faults.len() > before;
    if all.len() > 2 {
        faults.push(bad("may only hold up to 2 values"));
    }
    if has_bad || all.first().is_none_or(|first| first == "None") {
        return faults;
    }
    let is_v6 = |ip: &Value| text(ip).contains(':');
    if all.len() > 1 && all.iter().all(is_v6) == all.iter().any(is_v6) {
        faults.push(bad("may specify no more than one IP for each IP family"));
    }
    for (at, (ip, family)) in all.iter().zip(families).enumerate() {
        let expected = text(family);
        if (expected == "IPv4" && is_v6(ip)) || (expected == "IPv6" && !is_v6(ip)) {
            let why = format!("expected an {expected} value as indicated by `ipFamilies[{at}]`");
            faults.push(Fault::invalid(format!("spec.clusterIPs[{at}]"), ip.clone(), why));
        }
    }
    faults
}

/// Checks the change of a Service.
pub(crate) fn check_change(old: &Value, new: &Value, faults: &mut Vec<Fault>) {
    let headless = [old, new].map(|spec| matches!(items(&spec["clusterIPs"]), [one] if one == "None"));
    if has_address(old) && has_address(new) && headless != [true, true] {
        let (before, after) = (items(&old["clusterIPs"]), items(&new["clusterIPs"]));
        let bad = |at: usize, why: &str| {
            Fault::invalid(format!("spec.clusterIPs[{at}]"), new["clusterIPs"].clone(), why)
        };
        if after.is_empty() && !before.is_empty() {
            faults.push(bad(0, "primary clusterIP can not be unset"));
        }
        let compared = if before.len() == after.len() { before.len() } else { 1 };
        let changed = before.iter().zip(after).take(compared).enumerate().filter(|(_, (a, b))| a != b);
        faults.extend(changed.map(|(at, _)| bad(at, "may not change once set")));
        let (before, after) = (items(&old["ipFamilies"]), items(&new["ipFamilies"]));
        if headless == [false, false] && before.len() == after.len() && before != after {
            let why = "may not change once set";
            faults.push(Fault::invalid("spec.ipFamilies[0]", new["ipFamilies"].clone(), why));
        }
    }
    let balances = |spec: &Value| spec["type"] == "LoadBalancer";
    if balances(old) && balances(new) && old["loadBalancerClass"] != new["loadBalancerClass"] {
        let class = new["loadBalancerClass"].clone();
        faults.push(Fault::invalid("spec.loadBalancerClass", class, "may not change once set"));
    }
    if needs_check(old) && needs_check(new) && old["healthCheckNodePort"] != new["healthCheckNodePort"] {
        faults.push(Fault::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
}
