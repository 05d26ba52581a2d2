//! The policies and bindings of the store, with their expressions compiled.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::store::Store;
use crate::model::meta;
use crate::strategy::policy::Policy;

/// The resources of policies and bindings.
pub(super) const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
pub(super) const BINDINGS: &str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";

/// All policies, compiled, with their bindings.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    pub(crate) all: BTreeMap<String, Arc<Policy>>,
    pub(crate) bindings: Vec<Value>,
    /// The newest change of a policy or binding.
    version: u64,
}

impl Policies {
    /// The version of the newest change of a policy or binding.
    pub(crate) fn latest(store: &Store) -> u64 {
        store.latest(POLICIES).max(store.latest(BINDINGS))
    }

    /// The policies of a store. What has not changed is not compiled again.
    pub(crate) fn refreshed(self: Arc<Self>, store: &Store) -> Arc<Self> {
        let version = Self::latest(store);
        if self.version == version {
            return self;
        }
        let values = |resource| store.range(resource, "", None).map(|(_, object)| object.value());
        let all = values(POLICIES).map(|policy| {
            let name = meta::text(&policy, "name").to_owned();
            let known = self.all.get(&name).filter(|known| known.spec == policy["spec"]);
            let policy = known.cloned().unwrap_or_else(|| Arc::new(Policy::compile(&name, &policy["spec"])));
            (name, policy)
        });
        Arc::new(Self { all: all.collect(), bindings: values(BINDINGS).collect(), version })
    }
}
