//! Who asks for what: the one place where a call gets its identity and its share.

use super::{Cluster, Shares};

/// The ways in which a manager speaks to the API server.
pub struct Clients {
    own: Cluster,
    shares: Shares,
}

impl Clients {
    /// All over one connection, with so many calls of one package at once.
    pub fn new(own: Cluster, calls: usize) -> Self {
        Self { own, shares: Shares::new(calls) }
    }

    /// The manager itself, for what is no package's: CRDs, Events, discovery, watches.
    pub fn own(&self) -> &Cluster {
        &self.own
    }

    /// For the instances of a package: the manager's identity, within the package's share.
    pub fn for_instances(&self, operator: &str) -> Cluster {
        self.own.within(self.shares.of(operator))
    }

    /// For the children of a package: the identity that writes them, within the package's share.
    ///
    /// That identity is the manager's own as long as packages have none; this is where they get one.
    pub fn for_operator(&self, operator: &str) -> Cluster {
        self.own.within(self.shares.of(operator))
    }
}
