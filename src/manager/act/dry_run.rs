//! Dry runs before the first write of each shape.
//!
//! They find missing rights, refusals of policies and immutable fields before anything is changed. See `docs/design/0004-dry-runs-before-writes.md`.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use tracing::warn;

use super::super::dry_runs::Begin;
use super::super::index::InstanceKey;
use super::super::registry::Registered;
use super::reclaim::FieldOwnership;
use super::{Executor, immutable, service_addresses};
use crate::api::{ApiKind, CallError};
use crate::children::{ActionOutcome, Check, DryRun, DryRuns, Expect, GENERATED_REFUSED, names};
use crate::cluster::{Cluster, Trial};
use crate::package::ConflictPolicy;

/// Queues the instances that wait for a dry run when it ends, also if it is cancelled.
struct InFlight<'a> {
    executor: &'a Executor,
    shape: u64,
    passed: Option<bool>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        for key in self.executor.effects.dry_runs.complete(self.shape, self.passed) {
            self.executor.queue.add(key);
        }
    }
}

impl Executor {
    /// Runs the dry runs that no other instance has run or is running.
    ///
    /// # Errors
    /// The server is not available now, which says nothing about any child.
    pub(super) async fn dry_run(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        checks: &[Check],
        outcomes: &mut Vec<ActionOutcome>,
    ) -> Result<DryRuns, CallError> {
        let (mut runs, mut mine, mut failed) = (DryRuns::default(), Vec::new(), None);
        for check in checks {
            match self.effects.dry_runs.begin(check.shape, key) {
                Begin::Run => mine.push(check),
                Begin::Wait => runs.wait(),
                Begin::Passed => {}
            }
        }
        let mut running: FuturesUnordered<_> = mine
            .into_iter()
            .map(|check| async move {
                let mut flight = InFlight { executor: self, shape: check.shape, passed: None };
                let result = self.dry_run_of(key, check, registered).await;
                flight.passed = result.as_ref().ok().and_then(|result| result.passes(check));
                (check, result)
            })
            .collect();
        while let Some((check, result)) = running.next().await {
            match result {
                Ok(result) => outcomes.extend(runs.add(check, result).inspect(|outcome| {
                    if let ActionOutcome::DryRunRefused(check, error) = outcome {
                        warn!(object = %check.desired.object, child = %check.item, %error, "a dry run was refused");
                    }
                })),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if runs.is_pending() {
            outcomes.push(ActionOutcome::DryRunPending);
        }
        Ok(runs)
    }

    async fn dry_run_of(
        &self,
        key: &InstanceKey,
        check: &Check,
        registered: &Registered,
    ) -> Result<DryRun, CallError> {
        let object = &check.desired.object;
        if let Some(refusal) = self.missing_rights(key, registered, false).await? {
            return Ok(DryRun::Refused(refusal));
        }
        let Some(kind) = self.store.kinds.known(&object.gvk) else {
            return Ok(DryRun::Unknown);
        };
        // The apply takes over the fields that the package before has applied.
        let former = self.former_package(object, registered);
        let manager = names::field_manager(former.as_deref().unwrap_or(registered.operator()));
        let mut body = check.expect.body(&check.desired);
        let cluster = self.effects.for_children(registered);
        match self.complete(&cluster, &kind, (&check.desired, &check.expect), &mut body).await {
            Ok(()) => {}
            // The error is about this object and not about the shape. The apply reports it.
            Err(error) if GENERATED_REFUSED.contains(&error.reason.as_str()) => {
                return Ok(DryRun::Unknown);
            }
            Err(error) => return DryRun::of_failure(error),
        }
        send(&cluster, &kind, check, &body, &manager).await
    }
}

/// Sends the dry run of a change. `body`: the whole body of the apply, generated values included.
///
/// # Errors
/// The server is not available now, which says nothing about the child.
pub(crate) async fn send(
    cluster: &Cluster,
    kind: &ApiKind,
    check: &Check,
    body: &Value,
    manager: &str,
) -> Result<DryRun, CallError> {
    let is_forced = check.policy.conflicts == ConflictPolicy::Force;
    let reply = cluster.apply_as(kind, body, manager, is_forced, Trial::This).await;
    let Err(error) = reply else { return Ok(DryRun::Passed) };
    if service_addresses::is_undecided(cluster, body, &error).await {
        return Ok(DryRun::Unknown);
    }
    if check.expect == Expect::Absent {
        return DryRun::of_failure(error);
    }
    // Fields that others or earlier defaults have left in place of ours, which the apply removes.
    let fields = FieldOwnership { cluster, kind, desired: &check.desired, manager };
    if fields.is_resolvable(&error, check.policy.conflicts).await? {
        return Ok(DryRun::Unknown);
    }
    let error = immutable::classify(cluster, kind, &check.desired, manager, error).await;
    if check.policy.recreates() && error.is_immutable_change() {
        return match immutable::try_creation(cluster, kind, &check.desired.body, manager).await {
            Ok(()) => Ok(DryRun::Recreate(error)),
            Err(error) => DryRun::of_failure(error),
        };
    }
    DryRun::of_failure(error)
}
