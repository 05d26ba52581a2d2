//! The addresses and ports that Services have, and which ones are free.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::store::Store;
use crate::strategy::allocated::node_ports;

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

/// The ports on the nodes that are taken.
pub(crate) struct Ports {
    taken: BTreeSet<i64>,
    is_dry: bool,
}

impl Ports {
    /// The ports of all Services. A dry run does not check that a port is in the range.
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
