//! The migration of stored objects to the storage version of their CRD: each object is written once without a change,
//! by which the API server stores it in that version, then `status.storedVersions` is reduced. A migration that is cut
//! off at any point is done again as a whole; a write of an object that is stored in the right version changes nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::TryStreamExt as _;
use serde_json::{Value, json};
use tracing::info;

use super::{CRD, SPREAD, effects};
use crate::api::{ApiKind, CallError, Class};
use crate::children::crds::MANAGER;
use crate::cluster::{Cluster, Query};
use crate::crd;
use crate::manager::raw::Raw;

/// How many objects are written at once.
const WRITES: usize = 8;
/// How often a write that may succeed later is tried.
const ATTEMPTS: u32 = 5;
/// After how many objects the progress is logged.
const STEP: usize = 1_000;

/// Why a migration has not been completed.
#[derive(Debug, thiserror::Error)]
pub(super) enum MigrationError {
    /// The CRD was changed meanwhile.
    #[error("the CRD {0} was changed during the migration")]
    Changed(String),
    /// A request failed.
    #[error("{0}: {1}")]
    Call(String, CallError),
    /// Objects would lose values.
    #[error("instances hold values that the schema of the storage version does not have: {0}")]
    Lossy(String),
    /// Objects have lost values in the conversion.
    #[error(
        "the values of {0} that the storage version does not have do not fit in the annotations: write the object in the \
         version that has them, with smaller values"
    )]
    LeftOut(String),
}

impl MigrationError {
    /// Whether it may pass by itself.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Changed(_) => true,
            Self::Call(_, error) => error.class != Class::Permanent,
            Self::Lossy(_) | Self::LeftOut(_) => false,
        }
    }
}

/// An object to write.
struct Stored {
    namespace: Option<String>,
    name: String,
    uid: String,
    resource_version: String,
    /// The conversion to the storage version left values out.
    is_cut: bool,
}

impl Stored {
    fn shown(&self) -> String {
        self.namespace.iter().chain([&self.name]).map(String::as_str).collect::<Vec<_>>().join("/")
    }
}

/// Migrates all objects of a CRD and returns how many there are. Does nothing if no version but the storage version is
/// stored.
pub(super) async fn migrate(cluster: &Cluster, seen: &Value) -> Result<usize, MigrationError> {
    let name = super::name_of(seen);
    if crd::outdated_versions(seen).is_empty() {
        return Ok(0);
    }
    // An API server that has not seen the CRD as it is now would store objects in the former version.
    tokio::time::sleep(SPREAD).await;
    let live = read(cluster, &name, seen).await?;
    let (from, to) = (crd::outdated_versions(&live), crd::storage_version(&live).unwrap_or_default());
    let Some(kind) = crd::kind(&live) else { return Err(MigrationError::Changed(name)) };
    refuse_losses(cluster, &live, &from).await?;
    let query = Query { metadata_only: true, ..Query::default() };
    let keep = |raw: Raw| Stored {
        is_cut: crd::leaves_out(raw.metadata.annotations.as_ref()),
        namespace: raw.metadata.namespace,
        name: raw.metadata.name.unwrap_or_default(),
        uid: raw.metadata.uid.unwrap_or_default(),
        resource_version: raw.metadata.resource_version.unwrap_or_default(),
    };
    let failed = |error| MigrationError::Call("the objects cannot be listed".to_owned(), error);
    let objects = cluster.list_all(&kind, &query, keep).await.map_err(failed)?;
    if let Some(first) = objects.iter().find(|object| object.is_cut) {
        return Err(MigrationError::LeftOut(first.shown()));
    }
    let count = objects.len();
    info!(crd = %name, from = from.join(","), to, objects = count, "migrating stored objects");
    let done = AtomicUsize::new(0);
    futures::stream::iter(objects.into_iter().map(Ok))
        .try_for_each_concurrent(WRITES, |object| {
            let (kind, done, name) = (&kind, &done, &name);
            async move {
                rewrite(cluster, kind, &object).await?;
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if done.is_multiple_of(STEP) && done < count {
                    info!(crd = %name, done, of = count, "migrating stored objects");
                }
                Ok(())
            }
        })
        .await?;
    reduce(cluster, &name, live).await?;
    info!(crd = %name, objects = count, "all objects are stored in the storage version");
    Ok(count)
}

/// The CRD as it is now, if its spec is still the same.
async fn read(cluster: &Cluster, name: &str, seen: &Value) -> Result<Value, MigrationError> {
    let failed = |error| MigrationError::Call(format!("the CRD {name} cannot be read"), error);
    let live = cluster.get(&CRD, None, name).await.map_err(failed)?;
    let is_same = |live: &Value| {
        ["uid", "generation"].iter().all(|field| live["metadata"][field] == seen["metadata"][field])
            && live["metadata"]["deletionTimestamp"].is_null()
    };
    live.filter(is_same).ok_or_else(|| MigrationError::Changed(name.to_owned()))
}

/// Without conversion, the write of an object drops values that only the schema of its stored version has.
async fn refuse_losses(cluster: &Cluster, live: &Value, from: &[&str]) -> Result<(), MigrationError> {
    if live["spec"]["conversion"]["strategy"] == "Webhook" {
        return Ok(());
    }
    for version in from {
        let former = crd::stored_in(live, version);
        let narrowed = crd::narrowed(&former, live);
        if narrowed.is_empty() {
            continue;
        }
        let failed = |error| MigrationError::Call("the objects cannot be listed".to_owned(), error);
        let lossy = effects::lossy(cluster, Some(live), narrowed).await.map_err(failed)?;
        if let Some(first) = lossy.first() {
            let more = match lossy.len() - 1 {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            return Err(MigrationError::Lossy(format!("{}{more}", first.text())));
        }
    }
    Ok(())
}

/// Writes an object without a change. If another client has written it meanwhile, that write has stored it.
async fn rewrite(cluster: &Cluster, kind: &ApiKind, object: &Stored) -> Result<(), MigrationError> {
    let patch = json!({"metadata": {"uid": object.uid, "resourceVersion": object.resource_version}});
    let mut wait = Duration::from_millis(250);
    let mut attempts = ATTEMPTS;
    loop {
        let namespace = object.namespace.as_deref();
        let written = cluster.merge_patch_unread(kind, namespace, &object.name, None, &patch, MANAGER).await;
        match written {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => return Ok(()),
            Err(error) if error.class == Class::Retry && attempts > 1 => {
                attempts -= 1;
                tokio::time::sleep(error.retry_after.unwrap_or(wait)).await;
                wait *= 2;
            }
            Err(error) => {
                return Err(MigrationError::Call(object.shown(), error));
            }
        }
    }
}

/// Says in the status of the CRD that only the storage version is stored.
async fn reduce(cluster: &Cluster, name: &str, mut live: Value) -> Result<(), MigrationError> {
    for _ in 0..ATTEMPTS {
        let patch = json!({
            "metadata": {
                "uid": live["metadata"]["uid"], "resourceVersion": live["metadata"]["resourceVersion"],
            },
            "status": {"storedVersions": [crd::storage_version(&live)]},
        });
        match cluster.merge_patch(&CRD, None, name, Some("status"), &patch, MANAGER).await {
            Ok(_) => return Ok(()),
            // The precondition is that the spec is the same. Annotations and conditions may have changed.
            Err(error) if error.class == Class::Conflict => live = read(cluster, name, &live).await?,
            Err(error) => {
                return Err(MigrationError::Call(format!("the status of the CRD {name}"), error));
            }
        }
    }
    Err(MigrationError::Changed(name.to_owned()))
}
