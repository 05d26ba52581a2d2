//! Readiness of Deployment, `ReplicaSet`, `StatefulSet`, `DaemonSet` and Job.

use serde_json::Value;

use super::conditions::{Readiness, condition, number, presentable, text, unseen};

/// The value of `progressDeadlineSeconds` that means no deadline: the controller then never reports progress.
const NO_DEADLINE: i64 = i32::MAX as i64;

fn count(object: &Value, name: &str) -> i64 {
    number(object, &format!("/status/{name}")).unwrap_or(0)
}

fn wanted(object: &Value) -> i64 {
    number(object, "/spec/replicas").unwrap_or(1)
}

/// Returns not ready with `2 of 3 replicas ready`, if some are missing.
fn missing(reason: &str, have: i64, want: i64, what: &str) -> Option<Readiness> {
    let noun = if want == 1 { "replica" } else { "replicas" };
    (have < want).then(|| Readiness::not_ready(reason, format!("{have} of {want} {noun} {what}")))
}

fn too_many(have: i64, want: i64) -> Option<Readiness> {
    let extra = have - want;
    let noun = if extra == 1 { "replica" } else { "replicas" };
    (extra > 0).then(|| Readiness::not_ready("ExtraPods", format!("{extra} old {noun} not gone yet")))
}

/// Adds the reason why pods cannot be created (a quota, an admission webhook), if there is one.
fn with_cause(object: &Value, readiness: Readiness) -> Readiness {
    let failure = condition(object, "ReplicaFailure").filter(|failure| failure.status == "True");
    match (readiness, failure) {
        (Readiness::NotReady { message, .. }, Some(failure)) => Readiness::NotReady {
            reason: "ReplicaFailure".to_owned(),
            message: format!("{message}: {}", presentable(failure.message)),
        },
        (readiness, _) => readiness,
    }
}

pub(super) fn deployment(object: &Value) -> Readiness {
    let progress = condition(object, "Progressing");
    if progress.is_some_and(|progress| progress.reason == "ProgressDeadlineExceeded") {
        let ready = count(object, "readyReplicas");
        let message =
            format!("no progress within its deadline; {ready} of {} replicas ready", wanted(object));
        return with_cause(object, Readiness::failed("ProgressDeadlineExceeded", message));
    }
    let deadline = number(object, "/spec/progressDeadlineSeconds").unwrap_or(NO_DEADLINE);
    let rolled_out = deadline == NO_DEADLINE
        || progress
            .is_some_and(|progress| progress.status == "True" && progress.reason == "NewReplicaSetAvailable");
    let available = condition(object, "Available").is_some_and(|available| available.status == "True");
    let (want, have, updated) = (wanted(object), count(object, "replicas"), count(object, "updatedReplicas"));
    let found = unseen(object)
        .or_else(|| missing("LessReplicas", have, want, "created"))
        .or_else(|| missing("LessUpdated", updated, want, "updated"))
        .or_else(|| too_many(have, want))
        .or_else(|| missing("LessReady", count(object, "readyReplicas"), want, "ready"))
        .or_else(|| missing("LessAvailable", count(object, "availableReplicas"), updated, "available"))
        .or_else(|| (!rolled_out).then(|| Readiness::not_ready("Progressing", "its rollout is not complete")))
        .or_else(|| (!available).then(|| Readiness::not_ready("NotAvailable", "it is not available")));
    with_cause(object, found.unwrap_or(Readiness::Ready))
}

pub(super) fn replica_set(object: &Value) -> Readiness {
    let want = wanted(object);
    let found = unseen(object)
        .or_else(|| missing("LessReplicas", count(object, "fullyLabeledReplicas"), want, "created"))
        .or_else(|| missing("LessReady", count(object, "readyReplicas"), want, "ready"))
        .or_else(|| missing("LessAvailable", count(object, "availableReplicas"), want, "available"))
        .or_else(|| too_many(count(object, "replicas"), want));
    with_cause(object, found.unwrap_or(Readiness::Ready))
}

pub(super) fn stateful_set(object: &Value) -> Readiness {
    if let Some(unseen) = unseen(object) {
        return unseen;
    }
    let (want, have, updated) = (wanted(object), count(object, "replicas"), count(object, "updatedReplicas"));
    let found = missing("LessReplicas", have, want, "created")
        .or_else(|| missing("LessReady", count(object, "readyReplicas"), want, "ready"))
        .or_else(|| too_many(have, want));
    if let Some(found) = found {
        return match (found, blocking_pod(object)) {
            (Readiness::NotReady { reason, message }, Some(pod)) => Readiness::NotReady {
                reason,
                message: format!(
                    "{message}: {pod} of an earlier revision is not ready, and no pod is replaced before it is; delete it \
                     if it cannot become ready"
                ),
            },
            (found, _) => found,
        };
    }
    // With OnDelete, a person or another controller decides when pods are replaced.
    if text(object, "/spec/updateStrategy/type") == Some("OnDelete") {
        return Readiness::Ready;
    }
    let revisions = [text(object, "/status/currentRevision"), text(object, "/status/updateRevision")];
    let found = match number(object, "/spec/updateStrategy/rollingUpdate/partition") {
        // The server sets 0 by default, which means no partition.
        Some(partition) if partition > 0 => missing("PartitionRollout", updated, want - partition, "updated"),
        _ if revisions[0] != revisions[1] => missing("LessUpdated", updated, want, "updated")
            .or_else(|| Some(Readiness::not_ready("RevisionMismatch", "its rollout is not complete"))),
        _ => missing("LessCurrent", count(object, "currentReplicas"), want, "on the current revision"),
    };
    found.unwrap_or(Readiness::Ready)
}

/// The pod that holds up the rollout of a `StatefulSet`, if one does. Unless its pods are managed in parallel, the controller waits for
/// each that is not ready, also if it is of an earlier revision that can never be ready, such as one with a wrong
/// image. Pods are replaced from the highest ordinal down, so the first one is of the earliest revision.
fn blocking_pod(object: &Value) -> Option<String> {
    let is_in_order = text(object, "/spec/podManagementPolicy") != Some("Parallel")
        && text(object, "/spec/updateStrategy/type") != Some("OnDelete")
        && number(object, "/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0) == 0;
    let is_rolling = text(object, "/status/currentRevision") != text(object, "/status/updateRevision");
    // Pods that are being deleted are not among those of the current revision.
    let (old, ready) = (count(object, "currentReplicas"), count(object, "readyReplicas"));
    if !is_in_order || !is_rolling || ready >= old {
        return None;
    }
    if ready > 0 {
        return Some("a pod".to_owned());
    }
    let first = number(object, "/spec/ordinals/start").unwrap_or(0);
    Some(format!("the pod {}-{first}", text(object, "/metadata/name").unwrap_or_default()))
}

pub(super) fn daemon_set(object: &Value) -> Readiness {
    let Some(want) = number(object, "/status/desiredNumberScheduled") else {
        return Readiness::not_ready("NotObserved", "its controller has not seen it yet");
    };
    let found = unseen(object)
        .or_else(|| missing("LessCurrent", count(object, "currentNumberScheduled"), want, "created"))
        .or_else(|| missing("LessUpdated", count(object, "updatedNumberScheduled"), want, "updated"))
        .or_else(|| missing("LessReady", count(object, "numberReady"), want, "ready"))
        .or_else(|| missing("LessAvailable", count(object, "numberAvailable"), want, "available"));
    // With OnDelete, the controller does not decide when pods are updated.
    match found {
        Some(Readiness::NotReady { reason, .. })
            if reason == "LessUpdated" && text(object, "/spec/updateStrategy/type") == Some("OnDelete") =>
        {
            missing("LessReady", count(object, "numberReady"), want, "ready").unwrap_or(Readiness::Ready)
        }
        found => found.unwrap_or(Readiness::Ready),
    }
}

pub(super) fn job(object: &Value) -> Readiness {
    let is_true = |kind: &str| condition(object, kind).filter(|condition| condition.status == "True");
    if is_true("Complete").is_some() {
        return Readiness::Ready;
    }
    if let Some(failed) = is_true("Failed") {
        return failed.failed("JobFailed");
    }
    let suspended = object.pointer("/spec/suspend").and_then(Value::as_bool).unwrap_or(false);
    if suspended && is_true("Suspended").is_some() {
        return Readiness::Ready;
    }
    match text(object, "/status/startTime") {
        None | Some("") => Readiness::not_ready("JobNotStarted", "it has not started yet"),
        // As in kstatus, a running Job fulfils its purpose.
        Some(_) => Readiness::Ready,
    }
}
