//! The only place where a call gets its identity and its concurrency limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Cluster, ConcurrencyLimits};

/// The name of the user as whom the children and refs of a package are read and written.
pub type Accounts = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// The clients of a manager.
pub struct Clients {
    own: Cluster,
    shares: ConcurrencyLimits,
    accounts: Option<Accounts>,
    /// The client of each account, by package.
    acting: Mutex<HashMap<Box<str>, Cluster>>,
}

impl Clients {
    /// All clients over one connection, with that many concurrent calls of a package. `accounts`: the users as whom packages
    /// act; without it all act as the manager.
    pub fn new(own: Cluster, calls: usize, accounts: Option<Accounts>) -> Self {
        Self { own, shares: ConcurrencyLimits::new(calls), accounts, acting: Mutex::default() }
    }

    /// The manager's own client, for CRDs, Events, discovery, and watches of instances and runs.
    pub fn own(&self) -> &Cluster {
        &self.own
    }

    /// Whether packages act as users of their own.
    pub fn has_accounts(&self) -> bool {
        self.accounts.is_some()
    }

    /// The user as whom a package acts; `None` if it acts as the manager.
    pub fn user_of(&self, package: &str) -> Option<String> {
        self.accounts.as_ref().map(|accounts| accounts(package))
    }

    /// For the instances of a package: the manager's identity, within the package's limit.
    pub fn for_instances(&self, package: &str) -> Cluster {
        self.own.within(self.shares.of(package))
    }

    /// For the children of a package: the identity that writes them, within the package's limit.
    pub fn for_operator(&self, package: &str) -> Cluster {
        self.watching_for(package).within(self.shares.of(package))
    }

    /// For the watches of children and refs of a package: the identity that reads them, without a limit.
    pub fn watching_for(&self, package: &str) -> Cluster {
        let Some(user) = self.user_of(package) else { return self.own.clone() };
        let mut acting = self.acting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = acting.get(package) {
            return known.clone();
        }
        match self.own.acting_as(&user) {
            Ok(cluster) => acting.entry(package.into()).or_insert(cluster).clone(),
            // The names of packages are DNS labels.
            Err(error) => unreachable!("{user}: {error}"),
        }
    }
}
