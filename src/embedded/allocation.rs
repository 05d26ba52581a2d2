//! The addresses and ports that Services have, which ones are free, and what updates do to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::facts::{items, number, text};
use crate::store::Store;

/// The addresses of Services. The first and the last one of the range are not given out.
pub(crate) const RANGE: &str = "10.96.0.0/16";
/// The address that the server answers to a dry run.
pub(crate) const DRY: &str = "10.96.0.0";

/// The server chooses addresses from the 257th on: those before are for Services that name theirs.
const RESERVED_ADDRESSES: u32 = 256;
/// The number of addresses from which the server chooses.
const ADDRESSES: u32 = 65_278;

/// The ports on the nodes: the first one, the first one that the server chooses, and the last one.
const FIRST_PORT: i64 = 30_000;
const FIRST_CHOSEN: i64 = 30_086;
const LAST_PORT: i64 = 32_767;

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

/// Whether Services may have an address.
pub(crate) fn is_in_range(address: &str) -> bool {
    let Ok(address) = address.parse::<Ipv4Addr>() else { return false };
    let [a, b, c, d] = address.octets();
    (a, b) == (10, 96) && ![(0, 0), (255, 255)].contains(&(c, d))
}

/// Whether a Service has an address.
pub(crate) fn is_taken(store: &Store, address: &str) -> bool {
    let needle = format!("\"clusterIP\":\"{address}\"");
    store.range("services", "", None).any(|(_, object)| object.json.contains(&needle))
}

/// An address that no Service has. One that was given up is used again as late as possible: `last` counts those that were given
/// out.
pub(crate) fn free_address(store: &Store, last: &mut u32) -> Option<String> {
    (0..ADDRESSES).find_map(|_| {
        *last = *last % ADDRESSES + 1;
        let number = *last + RESERVED_ADDRESSES;
        let address = format!("10.96.{}.{}", (number >> 8) & 0xff, number & 0xff);
        (!is_taken(store, &address)).then_some(address)
    })
}

/// The ports on the nodes that a Service has.
pub(crate) fn node_ports(spec: &Value) -> BTreeSet<i64> {
    let numbers = items(&spec["ports"]).iter().map(|port| number(&port["nodePort"]));
    numbers.filter(|number| *number != 0).collect()
}

/// The ports on the nodes that are taken.
pub(crate) struct Ports {
    taken: BTreeSet<i64>,
    is_dry: bool,
}

impl Ports {
    /// Those of all Services. A dry run does not ask whether a port is one of the range.
    pub(crate) fn of(store: &Store, is_dry: bool) -> Self {
        let services = store.range("services", "", None);
        // `nodePort` or `healthCheckNodePort`.
        let having = services.filter(|(_, object)| object.json.contains("odePort\":"));
        let mut taken = BTreeSet::new();
        for (_, object) in having {
            let parsed = object.parsed();
            let spec = &parsed.value["spec"];
            taken.extend(node_ports(spec));
            taken.extend(spec["healthCheckNodePort"].as_i64());
        }
        Self { taken, is_dry }
    }

    /// Takes a port.
    pub(crate) fn reserve(&mut self, port: i64) -> Result<(), String> {
        if !self.is_dry && !(FIRST_PORT..=LAST_PORT).contains(&port) {
            let range = format!("{FIRST_PORT}-{LAST_PORT}");
            return Err(format!(
                "provided port is not in the valid range. The range of valid ports is {range}"
            ));
        }
        if self.taken.insert(port) { Ok(()) } else { Err("provided port is already allocated".to_owned()) }
    }

    /// Takes a free port.
    pub(crate) fn choose(&mut self) -> Result<i64, String> {
        let mut all = (FIRST_CHOSEN..=LAST_PORT).chain(FIRST_PORT..FIRST_CHOSEN);
        let free = all.find(|port| !self.taken.contains(port)).ok_or("range is full")?;
        self.taken.insert(free);
        Ok(free)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_ports_are_chosen_beyond_those_that_people_name() {
        let mut last = 0;
        assert_eq!(free_address(&Store::default(), &mut last).as_deref(), Some("10.96.1.1"));
        last = ADDRESSES - 1;
        assert_eq!(free_address(&Store::default(), &mut last).as_deref(), Some("10.96.255.254"));
        assert_eq!(free_address(&Store::default(), &mut last).as_deref(), Some("10.96.1.1"));
        assert!(is_in_range("10.96.0.1") && is_in_range("10.96.255.254"));
        assert!(["10.96.0.0", "10.96.255.255", "10.97.0.1", "x"].iter().all(|ip| !is_in_range(ip)));

        let mut ports = Ports::of(&Store::default(), false);
        assert_eq!(ports.choose(), Ok(FIRST_CHOSEN));
        assert_eq!(ports.reserve(FIRST_CHOSEN).unwrap_err(), "provided port is already allocated");
        assert!(ports.reserve(80).unwrap_err().ends_with("The range of valid ports is 30000-32767"));
        for _ in FIRST_CHOSEN..LAST_PORT {
            ports.choose().unwrap();
        }
        assert_eq!(ports.choose(), Ok(FIRST_PORT), "the others come last");
        for _ in FIRST_PORT + 1..FIRST_CHOSEN {
            ports.choose().unwrap();
        }
        assert_eq!(ports.choose().unwrap_err(), "range is full");
    }
}
