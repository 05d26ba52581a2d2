//! Reads a stored revision from the cluster.

use super::{Name, Revisions};
use crate::api::{ApiKind, CallError, Class};
use crate::package::Package;
use crate::package::store::{self, StoreError, StoredRevision, objects};

/// Why a revision cannot be loaded now.
pub(super) enum Failure {
    /// A request has failed.
    Call {
        message: String,
        /// Whether it may pass by itself.
        is_temporary: bool,
    },
    /// It is not stored, or is not what was stored.
    Lost(String),
}

impl Failure {
    fn call(about: &str, error: &CallError) -> Self {
        let message = format!("{about} cannot be read: {error}");
        Self::Call { message, is_temporary: error.class == Class::Retry }
    }
}

/// A stored revision that this process cannot load, and why. It is not read and compiled again.
pub(super) type Unloadable = Option<(StoredRevision, StoreError)>;

impl Revisions {
    /// `unloadable`: from the attempts before, and for the next.
    pub(super) async fn load_once(
        &self,
        Name { package, revision }: &Name,
        unloadable: &mut Unloadable,
    ) -> Result<Package, Failure> {
        let name = store::name_of(package, revision);
        let about = format!("OperatorRevision {name}");
        let object = self.effects.clients.own().get(&objects::kind(), None, &name).await;
        let object = object.map_err(|error| Failure::call(&about, &error))?;
        let object = object.ok_or_else(|| Failure::Lost(format!("{about} does not exist")))?;
        let refused = |error: StoreError| Failure::Lost(format!("{about}: {error}"));
        let stored = StoredRevision::parse(&name, &object["spec"]).map_err(refused)?;
        if stored.revision() != **revision {
            return Err(Failure::Lost(format!("{about} is of revision {}", stored.revision())));
        }
        if let Some((known, error)) = unloadable
            && *known == stored
        {
            return Err(refused(error.clone()));
        }
        let mut parts = Vec::with_capacity(stored.parts.len());
        for part in &stored.parts {
            parts.push(self.read_part(&part.name).await?.ok_or_else(|| {
                let (namespace, part) = (&self.namespace, &part.name);
                Failure::Lost(format!("ConfigMap {namespace}/{part}, a part of {about}, does not exist"))
            })?);
        }
        let parts = parts.iter().map(objects::part_data).collect::<Result<Vec<_>, _>>().map_err(refused)?;
        let restore = move || (store::restore(&stored, &parts), stored);
        let restored = tokio::task::spawn_blocking(restore).await;
        let (restored, stored) = restored.map_err(|error| Failure::Lost(format!("{about}: {error}")))?;
        *unloadable =
            restored.as_ref().err().filter(|error| error.is_final()).map(|error| (stored, error.clone()));
        restored.map_err(refused)
    }

    /// The `ConfigMap` of a part, if there is one.
    async fn read_part(&self, name: &str) -> Result<Option<serde_json::Value>, Failure> {
        let found = self.effects.clients.own().get(&config_map(), Some(&self.namespace), name).await;
        found.map_err(|error| Failure::call(&format!("ConfigMap {}/{name}", self.namespace), &error))
    }
}

pub(super) fn config_map() -> ApiKind {
    ApiKind::built_in("v1", "ConfigMap")
}
