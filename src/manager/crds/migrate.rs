//! The migration of stored objects to the storage version of their CRD: each object is written once without a change,
//! by which the API server stores it in that version, then `status.storedVersions` is reduced. A write of an object that is
//! stored in the right version changes nothing.
//!
//! It is done in turns, between which the other work of the package comes. After each turn the CRD says how far it is, so
//! that the next manager goes on from there.

use std::time::Duration;

use futures::TryStreamExt as _;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::effects;
use super::migrations::{Entry, Migration, Stage, Stored, Turn};
use super::state::{CRD, CrdReconciler, SPREAD, name_of};
use crate::api::{ApiKind, CallError, Class};
use crate::children::crds::MANAGER;
use crate::children::names;
use crate::cluster::{Cluster, Query};
use crate::crd;
use crate::manager::raw::Raw;

/// How many objects are written in a turn.
const TURN: usize = 100;
/// How many objects are written at once.
const WRITES: usize = 8;
/// How often a write that may succeed later is tried.
const ATTEMPTS: u32 = 5;

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

impl CrdReconciler {
    /// Forgets a migration that is complete, or that the package no longer needs.
    pub(super) fn forget_migration(&self, crd: &str) {
        if self.migrations.lock().remove(crd).is_some() {
            self.effects.health.metrics.migration_ended(crd);
        }
    }

    /// A turn of the migration of a CRD. `seen`: the CRD as it was just read.
    pub(super) async fn migrate(&self, seen: &Value) -> Result<Turn, MigrationError> {
        let name = name_of(seen);
        let metrics = &self.effects.health.metrics;
        if crd::outdated_versions(seen).is_empty() {
            self.forget_migration(&name);
            return Ok(Turn::Done(0));
        }
        let known = self.migrations.lock().get_mut(&name).and_then(|entry| entry.idle.take());
        let now = self.scheduler.clock.elapsed();
        let mut migration =
            known.filter(|known| known.is_of(seen)).unwrap_or_else(|| Migration::of(seen, now + SPREAD));
        let turn = self.take_turn(&name, &mut migration, seen, now).await;
        if let Ok(Turn::Done(_)) = &turn {
            self.forget_migration(&name);
            return turn;
        }
        if let Stage::Writing { left, .. } = &migration.stage {
            metrics.migration_left(&name, left.len());
        }
        migration.problem = turn.as_ref().err().map(ToString::to_string);
        let progress = migration.progress(&name);
        self.migrations.lock().insert(name, Entry { idle: Some(migration), progress });
        turn
    }

    async fn take_turn(
        &self,
        name: &str,
        migration: &mut Migration,
        seen: &Value,
        now: Duration,
    ) -> Result<Turn, MigrationError> {
        let cluster = self.effects.clients.own();
        if let Stage::Spreading { until } = migration.stage {
            let rest = until.saturating_sub(now);
            if !rest.is_zero() {
                return Ok(Turn::Later(rest));
            }
            migration.stage = begin(cluster, name, migration, seen).await?;
            // If there are many, their number is reported before the first turn.
            if matches!(&migration.stage, Stage::Writing { left, .. } if left.len() > TURN) {
                return Ok(Turn::Later(Duration::ZERO));
            }
        }
        let Stage::Writing { left, total } = &mut migration.stage else {
            return Err(MigrationError::Changed(name.to_owned()));
        };
        let (total, count) = (*total, left.len().min(TURN));
        let Some(kind) = crd::kind(seen) else { return Err(MigrationError::Changed(name.to_owned())) };
        futures::stream::iter(left.iter().take(count).map(Ok))
            .try_for_each_concurrent(WRITES, |object| rewrite(cluster, &kind, object))
            .await?;
        let last = left.drain(..count).next_back().map(|object| object.full_name());
        self.effects.health.metrics.migrated(name, count);
        if !left.is_empty() {
            info!(crd = %name, done = total - left.len(), of = total, "migrating stored objects");
            let record = migration.record(&last.unwrap_or_default());
            if let Err(error) = note(cluster, name, &migration.uid, Some(&record)).await {
                warn!(crd = %name, %error, "how far the migration is cannot be recorded");
            }
            return Ok(Turn::Later(Duration::ZERO));
        }
        let noted = seen["metadata"]["annotations"][names::MIGRATED].is_string();
        if noted && let Err(error) = note(cluster, name, &migration.uid, None).await {
            warn!(crd = %name, %error, "the record of the migration cannot be removed");
        }
        reduce(cluster, name, read(cluster, name, seen).await?).await?;
        info!(crd = %name, objects = total, "all objects are stored in the storage version");
        Ok(Turn::Done(total))
    }
}

/// Lists the objects to write.
async fn begin(
    cluster: &Cluster,
    name: &str,
    migration: &Migration,
    seen: &Value,
) -> Result<Stage, MigrationError> {
    let live = read(cluster, name, seen).await?;
    let (from, to) = (crd::outdated_versions(&live), &migration.to);
    let Some(kind) = crd::kind(&live) else { return Err(MigrationError::Changed(name.to_owned())) };
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
    let mut objects = cluster.list_all(&kind, &query, keep).await.map_err(failed)?;
    if let Some(first) = objects.iter().find(|object| object.is_cut) {
        return Err(MigrationError::LeftOut(first.full_name()));
    }
    let total = objects.len();
    objects.sort_by_cached_key(Stored::full_name);
    // Objects that were created since are stored in the storage version already.
    if let Some(last) = migration.resumes_after(&live) {
        objects.retain(|object| object.full_name().as_str() > last);
    }
    let done = total - objects.len();
    info!(crd = %name, from = from.join(","), to, done, of = total, "migrating stored objects");
    Ok(Stage::Writing { left: objects.into(), total })
}

/// Records on the CRD how far its migration is.
async fn note(cluster: &Cluster, name: &str, uid: &str, record: Option<&str>) -> Result<(), CallError> {
    let patch = json!({"metadata": {"uid": uid, "annotations": {names::MIGRATED: record}}});
    cluster.merge_patch_unread(&CRD, None, name, None, &patch, MANAGER).await
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

/// Refuses a migration that would lose values: without conversion, the write of an object drops values that
/// only the schema of its stored version has.
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
            Err(error) => return Err(MigrationError::Call(object.full_name(), error)),
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
