//! Packages in registries, for the manager and for commands: compiled, checked against the policy of the cluster, and stored
//! with what proves where they are from.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use operetta_registry::{Fetched, Identity, Policies, Policy, Provenance};
use serde_json::{Value, json};

use crate::api::{CallError, Class};
use crate::cluster::Cluster;
use crate::diag::Diagnostic;
use crate::operators::policy::{self, PolicySpec};
use crate::package::{self, Package};
use crate::printable;

/// Annotation of an `OperatorRevision`: where its package is from, and the signatures, in JSON.
const PROVENANCE: &str = "operetta.dev/provenance";
/// The longest value that is read.
const PROVENANCE_BYTES: usize = 256 << 10;

/// Where a stored revision is from. One that cannot be read counts as none: then it proves nothing.
pub(crate) fn provenance_of(revision: &Value) -> Option<Provenance> {
    let text = revision["metadata"]["annotations"][PROVENANCE].as_str()?;
    serde_json::from_str(text).ok().filter(|_| text.len() <= PROVENANCE_BYTES)
}

/// Records in an `OperatorRevision` where it is from.
pub(crate) fn annotate(revision: &mut Value, provenance: &Provenance) {
    revision["metadata"]["annotations"][PROVENANCE] = json!(provenance).to_string().into();
}

/// The patch that records the same, if it is not recorded.
pub(crate) fn annotation(live: &Value, wanted: &Value) -> Option<Value> {
    let wanted = &wanted["metadata"]["annotations"][PROVENANCE];
    let is_same = live["metadata"]["annotations"][PROVENANCE] == *wanted;
    (!wanted.is_null() && !is_same).then(|| json!({"metadata": {"annotations": {(PROVENANCE): wanted}}}))
}

/// The policy of the cluster.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn policies(cluster: &Cluster) -> Result<Policies, CallError> {
    match read(cluster).await {
        // The CRD of PackagePolicies is not installed.
        Err(error) if error.class == Class::NotFound => Ok(Policies::default()),
        read => read,
    }
}

async fn read(cluster: &Cluster) -> Result<Policies, CallError> {
    let all = cluster.list(&policy::kind(), None, "").await?;
    Ok(Policies::new(all.iter().map(entry).collect()))
}

/// The policy of the cluster, as it was read last.
#[derive(Default)]
pub(in crate::manager) struct KnownPolicies {
    known: Mutex<(u64, Option<Arc<Policies>>)>,
    /// Whether events say when they change. Otherwise they are read each time.
    is_watched: AtomicBool,
}

impl KnownPolicies {
    fn lock(&self) -> MutexGuard<'_, (u64, Option<Arc<Policies>>)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, events are taken in by [`Self::invalidate`].
    pub(in crate::manager) fn watched(&self) {
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::watched`] was called.
    pub(in crate::manager) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// How often it has changed.
    pub(in crate::manager) fn version(&self) -> u64 {
        self.lock().0
    }

    /// Has it read again.
    pub(in crate::manager) fn invalidate(&self) {
        let mut known = self.lock();
        *known = (known.0 + 1, None);
    }

    /// The policy, which is read if an event has made it unknown.
    ///
    /// # Errors
    /// It cannot be read.
    pub(in crate::manager) async fn get(&self, cluster: &Cluster) -> Result<Arc<Policies>, CallError> {
        let (version, known) = self.lock().clone();
        if let Some(known) = known {
            return Ok(known);
        }
        if !self.is_watched() {
            return policies(cluster).await.map(Arc::new);
        }
        // The kind is installed: if it is not served yet, nothing is known.
        let read = Arc::new(read(cluster).await?);
        let mut known = self.lock();
        // An event that came meanwhile may be newer than the list.
        if known.0 == version {
            known.1 = Some(Arc::clone(&read));
        }
        Ok(read)
    }
}

/// An entry of the policy. The CRD guarantees the types; without them, it permits nothing.
fn entry(object: &Value) -> Policy {
    let PolicySpec { prefix, keys, identities, trusted_root, unsigned } =
        serde_json::from_value(object["spec"].clone()).unwrap_or_default();
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let identities = identities.into_iter().map(|one| Identity { issuer: one.issuer, subject: one.subject });
    Policy { name, prefix, keys, identities: identities.collect(), trusted_root, unsigned }
}

/// Compiles the files of a package, and compares them with its config: searches and reviews rely on it.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn compile(fetched: &Fetched) -> Result<(Package, Vec<Diagnostic>), Vec<Diagnostic>> {
    let (package, warnings) = package::load_archive(Path::new(&fetched.name), &fetched.layer[..])?;
    let found = [&package.name, &package.version.to_string(), &package.digest];
    let stated = [&fetched.config.name, &fetched.config.version, &fetched.config.revision];
    if found == stated {
        return Ok((package, warnings));
    }
    let message = format!(
        "the config of {} is of the package {} {} (revision {}), and its files are {} {} ({})",
        fetched.name, stated[0], stated[1], stated[2], found[0], found[1], found[2]
    );
    let help = "push it again with `operetta push`, which computes the config";
    Err(vec![Diagnostic::error(package::UNREADABLE, printable::sentence(&message)).help(help)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_cannot_be_read_permits_nothing() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"prefix": 1, "unsigned": true}});
        let policies = Policies::new(vec![entry(&object)]);
        assert!(policies.check(None, "0").is_err());
        let object = json!({"metadata": {"name": "a"}, "spec": {"prefix": "", "unsigned": true}});
        assert!(Policies::new(vec![entry(&object)]).check(None, "0").is_ok());
    }
}
