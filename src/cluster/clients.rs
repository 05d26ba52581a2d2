//! The only place where a call gets its identity and its concurrency limit.

use super::{Cluster, ConcurrencyLimits};

/// The clients of a manager.
pub struct Clients {
    own: Cluster,
    shares: ConcurrencyLimits,
}

impl Clients {
    /// All clients over one connection, with that many concurrent calls of a package.
    pub fn new(own: Cluster, calls: usize) -> Self {
        Self { own, shares: ConcurrencyLimits::new(calls) }
    }

    /// The manager's own client, for CRDs, Events, discovery and watches.
    pub fn own(&self) -> &Cluster {
        &self.own
    }

    /// For the instances of a package: the manager's identity, within the package's limit.
    pub fn for_instances(&self, operator: &str) -> Cluster {
        self.own.within(self.shares.of(operator))
    }

    /// For the children of a package: the identity that writes them, within the package's limit.
    ///
    /// Packages have no identity of their own yet; they will get it here.
    pub fn for_operator(&self, operator: &str) -> Cluster {
        self.own.within(self.shares.of(operator))
    }
}
