//! Stores the revision of an active package. Objects that exist and are right are left alone: then the cost
//! is a read of each object, once a process.

use std::sync::Arc;
use std::time::Duration;

use operetta_registry::Provenance;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::super::deciders::beside;
use super::load::{Restored, config_map, version_of};
use super::{Revisions, Versions};
use crate::api::{CallError, Class};
use crate::children::names::NOTES;
use crate::cluster::Cluster;
use crate::manager::{own_namespace, sources};
use crate::package::Package;
use crate::package::store::{self, StoredRevision, objects};

/// How often the creation of a revision is tried while its kind is not served yet, and how long between.
const ATTEMPTS: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(100);

impl Revisions {
    /// Notes that a revision of an `Operator` is stored, and lets the garbage collector delete its parts with it.
    pub(in crate::manager) async fn adopt(&self, restored: &Restored) -> Result<(), CallError> {
        let name = store::name(&restored.package.name, &restored.package.digest);
        let mut versions = restored.versions.clone();
        for part in &restored.unowned {
            let body = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": part, "namespace": self.namespace,
                    "ownerReferences": objects::owners(&name, &restored.uid),
                },
            });
            let applied = self.effects.clients.own().apply(&config_map(), &body, NOTES, false).await?;
            versions.extend([version_of(&applied)]);
        }
        self.stored().set(name, versions);
        Ok(())
    }

    /// Stores the revision of a package, once a process.
    ///
    /// # Errors
    /// A request fails, the files are too large, or another manager has stored the revision otherwise.
    pub(in crate::manager) async fn store(&self, package: &Arc<Package>) -> Result<(), CallError> {
        if self.stored().has(&store::name(&package.name, &package.digest)) {
            return Ok(());
        }
        self.write(package, None).await?;
        if let Err(error) = self.prune(package, &[]).await {
            warn!(package = %package.name, %error, "stored revisions that are not used cannot be pruned");
        }
        Ok(())
    }

    /// Stores the revision of a package that was fetched, and where it is from.
    ///
    /// # Errors
    /// As for [`Self::store`].
    pub(in crate::manager) async fn store_from(
        &self,
        package: &Arc<Package>,
        provenance: &Provenance,
    ) -> Result<(), CallError> {
        self.write(package, Some((provenance, true))).await.map(drop)
    }

    /// Whether an event has said that the revision of that name is not what was stored or read.
    pub(in crate::manager) fn has_changed(&self, revision: &str) -> bool {
        self.stored().has_changed(revision)
    }

    /// Stores the objects of a package's revision again that others have deleted or changed, and where it is from if nothing
    /// says so. Returns their names, and where it is from.
    ///
    /// # Errors
    /// As for [`Self::store`].
    pub(in crate::manager) async fn restore(
        &self,
        package: &Arc<Package>,
        provenance: Option<&Provenance>,
    ) -> Result<(Vec<String>, Option<Provenance>), CallError> {
        let name = store::name(&package.name, &package.digest);
        // The mark is removed first, so that events during the write count.
        self.stored().set_changed(&name, false);
        let mended = self.write(package, provenance.map(|provenance| (provenance, false))).await;
        if mended.is_err() {
            self.stored().set_changed(&name, true);
        }
        mended
    }

    /// Writes what is missing or different in the cluster. `provenance`: where the package is from, and whether that replaces
    /// what is stored. Returns the names of these objects, and where the package is from.
    async fn write(
        &self,
        package: &Arc<Package>,
        provenance: Option<(&Provenance, bool)>,
    ) -> Result<(Vec<String>, Option<Provenance>), CallError> {
        let name = store::name(&package.name, &package.digest);
        let too_large = |error: String| CallError::new(Class::Permanent, 0, "RevisionTooLarge", error);
        let to_pack = Arc::clone(package);
        let packed = beside(move || store::pack(&to_pack)).await;
        let packed =
            packed.map_err(|error| CallError::new(Class::Retry, 0, "NotPacked", error.to_string()))?;
        let (revision, parts) = packed.map_err(|error| too_large(error.to_string()))?;
        let mut written = Vec::new();
        let live = if let Some(live) = self.live_revision(&revision).await? {
            live
        } else {
            let created = self.create_revision(&objects::revision(&revision, &self.namespace)).await?;
            info!(package = %package.name, revision = %package.revision(), "the revision is stored as {name}");
            written.push(format!("OperatorRevision {name}"));
            created
        };
        let stored = sources::provenance_of(&live);
        let (live, stored) = match provenance {
            Some((new, replaces)) if stored.as_ref().is_none_or(|stored| replaces && stored != new) => {
                let mut patch = json!({});
                sources::annotate(&mut patch, new);
                let patched =
                    self.cluster().merge_patch(&objects::kind(), None, &name, None, &patch, NOTES).await?;
                (patched, Some(new.clone()))
            }
            _ => (live, stored),
        };
        let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
        let mut versions = Versions::from([version_of(&live)]);
        for (index, data) in parts.iter().enumerate() {
            let part = objects::part(&revision, index, data, &self.namespace, Some(uid));
            let (live, is_new) = self.store_part(&part).await?;
            versions.extend([version_of(&live)]);
            if is_new {
                written.push(format!("ConfigMap {}/{}", self.namespace, revision.parts[index].name));
            }
        }
        self.stored().set(name, versions);
        Ok((written, stored))
    }

    fn cluster(&self) -> &Cluster {
        self.effects.clients.own()
    }

    /// The `OperatorRevision`, if it is there. One of this manager with other parts is deleted: another version
    /// of Operetta compresses otherwise, or it has been altered.
    async fn live_revision(&self, revision: &StoredRevision) -> Result<Option<Value>, CallError> {
        let name = revision.name();
        let Some(live) = self.cluster().get(&objects::kind(), None, &name).await? else { return Ok(None) };
        match compare(&live, revision, &self.namespace) {
            Live::Same => Ok(Some(live)),
            Live::Altered => {
                warn!(
                    "OperatorRevision {name} is not what this version of Operetta stores; it is stored again"
                );
                self.cluster().delete_object(&objects::kind(), &live).await?;
                Ok(None)
            }
            Live::OfAnother(label) => {
                let message = format!(
                    "OperatorRevision {name} has other parts, and belongs to another manager: its label {} is {label}. \
                     Delete it if that manager is gone",
                    objects::PARTS_NAMESPACE
                );
                Err(CallError::new(Class::Permanent, 0, "OtherManager", message))
            }
        }
    }

    async fn create_revision(&self, body: &Value) -> Result<Value, CallError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.cluster().create(&objects::kind(), None, body, NOTES).await {
                Err(error) if error.class == Class::NotFound && attempt < ATTEMPTS => {
                    tokio::time::sleep(BETWEEN).await;
                }
                created => return created,
            }
        }
    }

    /// The part as it is stored, and whether it was written.
    async fn store_part(&self, body: &Value) -> Result<(Value, bool), CallError> {
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(live) = self.cluster().get(&config_map(), Some(&self.namespace), name).await? {
            let is_same = live["binaryData"] == body["binaryData"]
                && live["metadata"]["ownerReferences"][0]["uid"]
                    == body["metadata"]["ownerReferences"][0]["uid"]
                && live["metadata"]["deletionTimestamp"].is_null();
            if is_same {
                return Ok((live, false));
            }
            warn!("ConfigMap {}/{name} is not what was stored; it is stored again", self.namespace);
            self.cluster().delete_object(&config_map(), &live).await?;
        }
        let created = own_namespace::create(self.cluster(), &config_map(), &self.namespace, body).await?;
        Ok((created, true))
    }
}

/// An `OperatorRevision` that is in the cluster, compared with what is to be stored.
#[derive(Debug, PartialEq, Eq)]
enum Live {
    Same,
    /// The object differs, and belongs to this manager.
    Altered,
    /// It differs, and its parts are not in the namespace of this manager. The value is the label that says
    /// where they are.
    OfAnother(Value),
}

fn compare(live: &Value, revision: &StoredRevision, namespace: &str) -> Live {
    let label = &live["metadata"]["labels"][objects::PARTS_NAMESPACE];
    let stored = StoredRevision::parse(&revision.name(), &live["spec"]);
    let has_same_parts =
        stored.is_ok_and(|stored| (&stored.digest, &stored.parts) == (&revision.digest, &revision.parts));
    if has_same_parts && live["metadata"]["deletionTimestamp"].is_null() {
        Live::Same
    } else if *label == namespace {
        Live::Altered
    } else {
        Live::OfAnother(label.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::store::Part;
    use serde_json::json;

    #[test]
    fn only_a_revision_of_this_manager_is_stored_again() {
        let digest = "a".repeat(64);
        let part = Part { name: format!("shop-{}-0", "a".repeat(10)), digest: digest.clone() };
        let revision = StoredRevision {
            package: "shop".into(),
            version: "1.0.0".into(),
            digest,
            format: 1,
            operetta: "0.1.0".into(),
            parts: vec![part],
        };
        let mut live = objects::revision(&revision, "ours");
        assert_eq!(compare(&live, &revision, "ours"), Live::Same);
        assert_eq!(compare(&live, &revision, "theirs"), Live::Same);
        live["spec"]["parts"][0]["digest"] = "b".repeat(64).into();
        assert_eq!(compare(&live, &revision, "ours"), Live::Altered);
        assert_eq!(compare(&live, &revision, "theirs"), Live::OfAnother(json!("ours")));
        live["metadata"]["labels"] = json!({});
        assert_eq!(compare(&live, &revision, "ours"), Live::OfAnother(Value::Null));
    }
}
