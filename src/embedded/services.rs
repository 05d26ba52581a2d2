//! Addresses and ports of Services: what kube-apiserver allocates before it checks a Service. The cluster has addresses of one
//! family, IPv4.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use jiff::Timestamp;
use operetta_kube_model::Fault;
use serde_json::{Map, Value, json};

use crate::allocation::{
    DRY, Ports, RANGE, free_address, has_address, has_ports, is_external, is_in_range, is_taken, keep,
    needs_check, node_ports,
};
use crate::api::Api;
use crate::facts::{items, number, text};
use crate::status::{Failure, Outcome};
use crate::validate::port;
use crate::validation;

/// Where the API server listens, for those who ask for the endpoints of its Service.
const SERVER: (&str, u16) = ("172.18.0.1", 6443);

/// Makes `default/kubernetes` and its endpoints, as kube-apiserver does.
pub(crate) fn seed(api: &mut Api, now: Timestamp) {
    let (address, port) = SERVER;
    let meta = |labels: Value| json!({"name": "kubernetes", "namespace": "default", "labels": labels});
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let service = json!({"metadata": meta(json!({"component": "apiserver", "provider": "kubernetes"})),
        "spec": {"clusterIP": "10.96.0.1", "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "type": "ClusterIP",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]}});
    let endpoints = json!({"metadata": meta(json!({"endpointslice.kubernetes.io/skip-mirror": "true"})),
        "subsets": [{"addresses": [{"ip": address}], "ports": ports}]});
    let slice = json!({"metadata": meta(json!({"kubernetes.io/service-name": "kubernetes"})), "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}], "ports": ports});
    for (uri, object) in [
        ("/api/v1/namespaces/default/services", service),
        ("/api/v1/namespaces/default/endpoints", endpoints),
        ("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice),
    ] {
        api.write_as("kube-apiserver", "POST", uri, object, now);
    }
}

/// Gives a new Service its families, its address and its ports.
pub(crate) fn create(api: &mut Api, service: &mut Value, is_dry: bool) -> Outcome<()> {
    let name = text(&service["metadata"]["name"]).to_owned();
    let spec = &mut service["spec"];
    if !text(&spec["clusterIP"]).is_empty() && items(&spec["clusterIPs"]).is_empty() {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    if has_address(spec) {
        valid(&name, &families(None, spec))?;
        give_address(api, &name, spec, is_dry)?;
    }
    if !has_ports(spec) {
        return Ok(());
    }
    let mut ports = Ports::of(&api.store, is_dry);
    new_ports(&name, spec, &mut ports)?;
    if needs_check(spec) { check_port(spec, &mut ports) } else { Ok(()) }
}

/// Gives the next state of a Service what was allocated for it, and allocates what it needs beyond that.
pub(crate) fn update(api: &mut Api, live: &Value, service: &mut Value, is_dry: bool) -> Outcome<()> {
    let name = text(&live["metadata"]["name"]);
    let (old, spec) = (&live["spec"], &mut service["spec"]);
    keep(old, spec);
    if has_address(spec) {
        valid(name, &families(Some(old), spec))?;
        if !has_address(old) {
            give_address(api, name, spec, is_dry)?;
        }
    }
    if !has_ports(spec) {
        return Ok(());
    }
    let mut ports = Ports::of(&api.store, is_dry);
    next_ports(name, old, spec, &mut ports)?;
    if needs_check(spec) && !needs_check(old) { check_port(spec, &mut ports) } else { Ok(()) }
}

fn valid(name: &str, faults: &[Fault]) -> Outcome<()> {
    if faults.is_empty() { Ok(()) } else { Err(Failure::invalid("", "Service", name, faults)) }
}

/// Gives a Service the families of its addresses.
fn families(old: Option<&Value>, spec: &mut Value) -> Vec<Fault> {
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

/// Gives a Service the address that it names, or a free one.
fn give_address(api: &mut Api, name: &str, spec: &mut Value, is_dry: bool) -> Outcome<()> {
    let wanted = text(&spec["clusterIPs"][0]).to_owned();
    if wanted == "None" {
        return Ok(());
    }
    let address = if !wanted.is_empty() {
        let refusal = if !is_in_range(&wanted) && is_dry {
            Some(format!(
                "the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {RANGE}"
            ))
        } else if !is_in_range(&wanted) {
            Some("the provided network does not match the current range".to_owned())
        } else if !is_dry && is_taken(&api.store, &wanted) {
            Some("provided IP is already allocated".to_owned())
        } else {
            None
        };
        if let Some(why) = refusal {
            let why = format!("failed to allocate IP {wanted}: {why}");
            return valid(name, &[Fault::invalid("spec.clusterIPs", spec["clusterIPs"].clone(), why)]);
        }
        wanted
    } else if is_dry {
        DRY.to_owned()
    } else {
        free_address(&api.store, &mut api.addresses).ok_or_else(|| {
            let why = format!("failed to allocate a serviceIP for Service {name:?}: range is full");
            Failure::internal(why)
        })?
    };
    spec["clusterIP"] = address.clone().into();
    spec["clusterIPs"] = json!([address]);
    Ok(())
}

/// Whether ports that name no port on the nodes get one.
fn chooses_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || spec["allocateLoadBalancerNodePorts"] != false
}

fn refused(name: &str, at: usize, port: i64, why: &str) -> Box<Failure> {
    let fault = Fault::invalid(format!("spec.ports[{at}].nodePort"), port, why);
    Failure::invalid("", "Service", name, &[fault])
}

fn full(why: &str) -> Box<Failure> {
    Failure::internal(format!("failed to allocate a nodePort: {why}"))
}

/// Gives the ports of a new Service ports on the nodes. Ports of the same number, of TCP and of UDP, get the same.
fn new_ports(name: &str, spec: &mut Value, ports: &mut Ports) -> Outcome<()> {
    let chooses = chooses_ports(spec);
    let all: Vec<(i64, i64)> =
        items(&spec["ports"]).iter().map(|port| (number(&port["port"]), number(&port["nodePort"]))).collect();
    let mut given: BTreeMap<i64, i64> = BTreeMap::new();
    let entries = spec["ports"].as_array_mut().into_iter().flatten();
    for (at, (entry, (number, own))) in entries.zip(all.iter().copied()).enumerate() {
        if own == 0 && !chooses {
            continue;
        }
        let known = given.get(&number).copied();
        let named = all.iter().find(|(of, node)| *of == number && *node != 0).map(|(_, node)| *node);
        let found = match (known, named) {
            (Some(known), _) if own == 0 || own == known => known,
            (Some(_), _) => {
                ports.reserve(own).map_err(|why| refused(name, at, own, &why))?;
                continue;
            }
            (None, Some(named)) => {
                ports.reserve(named).map_err(|why| refused(name, at, named, &why))?;
                named
            }
            (None, None) => ports.choose().map_err(|why| full(&why))?,
        };
        entry["nodePort"] = found.into();
        given.insert(number, found);
    }
    Ok(())
}

/// Gives the ports of a changed Service ports on the nodes.
fn next_ports(name: &str, old: &Value, spec: &mut Value, ports: &mut Ports) -> Outcome<()> {
    let chooses = chooses_ports(spec);
    let before = node_ports(old);
    let (mut reserved, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for (at, entry) in spec["ports"].as_array_mut().into_iter().flatten().enumerate() {
        let own = number(&entry["nodePort"]);
        if own == 0 && !chooses {
            continue;
        }
        let found = if own == 0 {
            ports.choose().map_err(|why| full(&why))?
        } else {
            if !before.contains(&own) && reserved.insert(own) {
                ports.reserve(own).map_err(|why| refused(name, at, own, &why))?;
            }
            own
        };
        entry["nodePort"] = found.into();
        let protocol = text(&entry["protocol"]).to_owned();
        if !seen.insert((protocol.clone(), found)) {
            return Err(Failure::plain(500, format!("duplicate nodePort: {{{protocol} {found}}}")));
        }
    }
    Ok(())
}

/// Gives a Service the port at which load balancers ask whether a node has endpoints.
fn check_port(spec: &mut Value, ports: &mut Ports) -> Outcome<()> {
    let own = number(&spec["healthCheckNodePort"]);
    if own == 0 {
        let port = ports.choose().map_err(|why| {
            Failure::internal(format!("failed to allocate a HealthCheck NodePort 0: {why}"))
        })?;
        spec["healthCheckNodePort"] = port.into();
        return Ok(());
    }
    ports.reserve(own).map_err(|why| {
        Failure::internal(format!("failed to allocate requested HealthCheck NodePort {own}: {why}"))
    })
}

/// What the server warns of.
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

/// What only load balancers have.
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

/// What is wrong with the addresses of a Service, their families and the policy for both.
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

/// What is wrong with the change of a Service.
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
