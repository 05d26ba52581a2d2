//! The addresses of a real node, and the commands that connect it to this machine.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// The network and the cgroup that a node uses on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The network, which determines the addresses.
    pub(crate) network: Network,
    /// The name of the cgroup of its pods, in the root of each hierarchy.
    pub(crate) cgroup: String,
}

/// The network of a node on this machine. Nodes are numbered from 1.
///
/// ```text
/// this machine                          the node's network namespace
///   operetta1 10.245.1.1/30  ---------  eth0 10.245.1.2/30: kube-apiserver, kubelet, DNS
///   routes to pods and services         10.244.1.0/24: pods, 10.96.1.0/24: services
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Network(u8);

impl Network {
    /// All networks that are possible on one machine.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (1..=250).map(Self)
    }

    /// The name of the interface on this machine. It is unique, so creating the interface reserves the
    /// number.
    pub(super) fn interface(self) -> String {
        format!("operetta{}", self.0)
    }

    /// The address of this machine in the network of the node.
    const fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 245, self.0, 1)
    }

    /// The address of the node, which is also that of its API server and of its DNS.
    pub(crate) const fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 245, self.0, 2)
    }

    /// The address range of pods.
    pub(crate) fn pods(self) -> String {
        format!("10.244.{}.0/24", self.0)
    }

    /// The address range of Services.
    pub(crate) fn services(self) -> String {
        format!("10.96.{}.0/24", self.0)
    }

    /// The input for `ip -batch` on this machine.
    pub(super) fn host_commands(self) -> String {
        let (host, node, interface) = (self.host(), self.node(), self.interface());
        format!(
            "addr add {host}/30 dev {interface}\nlink set {interface} up\n\
             route add {} via {node}\nroute add {} via {node}\n",
            self.pods(),
            self.services()
        )
    }

    /// The input for `ip -batch` in the network namespace of the node.
    pub(super) fn node_commands(self) -> String {
        let (host, node) = (self.host(), self.node());
        format!(
            "link set lo up\naddr add {node}/30 dev eth0\nlink set eth0 up\nroute add default via {host}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_differ_and_interface_names_are_short() {
        let all: Vec<_> = Network::all().collect();
        assert!(all.iter().all(|network| network.interface().len() <= 15));
        let (first, last) = (all[0], all[all.len() - 1]);
        assert_eq!(first.pods(), "10.244.1.0/24");
        assert_ne!(first.services(), last.services());
        assert_ne!(first.node(), last.node());
    }

    #[test]
    fn both_ends_of_the_network_are_configured() {
        let network = Network(3);
        assert_eq!(
            network.host_commands(),
            "addr add 10.245.3.1/30 dev operetta3\nlink set operetta3 up\n\
             route add 10.244.3.0/24 via 10.245.3.2\nroute add 10.96.3.0/24 via 10.245.3.2\n"
        );
        assert_eq!(
            network.node_commands(),
            "link set lo up\naddr add 10.245.3.2/30 dev eth0\nlink set eth0 up\n\
             route add default via 10.245.3.1\n"
        );
    }
}
