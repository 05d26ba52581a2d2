//! Allocates the address of a Service and its ports on the nodes, before it is checked.

use std::collections::{BTreeMap, BTreeSet};

use operetta_kube_model::Fault;
use operetta_kube_model::facts::{items, number, text};
use serde_json::{Value, json};

use crate::model::{Failure, Outcome};
use crate::state::State;
use crate::state::addresses::{DRY, Ports, RANGE, free_address, is_in_range, is_taken};
use crate::strategy::allocated::{has_address, has_ports, keep, needs_check, node_ports};
use crate::strategy::services::families;

/// Gives a new Service its families, its address and its ports.
pub(crate) fn create(state: &mut State, service: &mut Value, is_dry: bool) -> Outcome<()> {
    let name = text(&service["metadata"]["name"]).to_owned();
    let spec = &mut service["spec"];
    if !text(&spec["clusterIP"]).is_empty() && items(&spec["clusterIPs"]).is_empty() {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    if has_address(spec) {
        valid(&name, &families(None, spec))?;
        give_address(state, &name, spec, is_dry)?;
    }
    if !has_ports(spec) {
        return Ok(());
    }
    let mut ports = Ports::of(&state.store, is_dry);
    new_ports(&name, spec, &mut ports)?;
    if needs_check(spec) { check_port(spec, &mut ports) } else { Ok(()) }
}

/// Gives the next state of a Service what was allocated for it, and allocates what it needs beyond that.
pub(crate) fn update(state: &mut State, live: &Value, service: &mut Value, is_dry: bool) -> Outcome<()> {
    let name = text(&live["metadata"]["name"]);
    let (old, spec) = (&live["spec"], &mut service["spec"]);
    keep(old, spec);
    if has_address(spec) {
        valid(name, &families(Some(old), spec))?;
        if !has_address(old) {
            give_address(state, name, spec, is_dry)?;
        }
    }
    if !has_ports(spec) {
        return Ok(());
    }
    let mut ports = Ports::of(&state.store, is_dry);
    next_ports(name, old, spec, &mut ports)?;
    if needs_check(spec) && !needs_check(old) { check_port(spec, &mut ports) } else { Ok(()) }
}

fn valid(name: &str, faults: &[Fault]) -> Outcome<()> {
    if faults.is_empty() { Ok(()) } else { Err(Failure::invalid("", "Service", name, faults)) }
}

/// Gives a Service the address that it names, or a free one.
fn give_address(state: &mut State, name: &str, spec: &mut Value, is_dry: bool) -> Outcome<()> {
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
        } else if !is_dry && is_taken(&state.store, &wanted) {
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
        free_address(&state.store, &mut state.addresses).ok_or_else(|| {
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
