//! Decides whether an object is ready, by the rules of kstatus.
//!
//! The order is that of kstatus: deletion, observed generation, the conditions Reconciling and Stalled, the
//! rule of the kind, the condition Ready; otherwise the object is ready. Where kstatus would call an object
//! ready that others cannot use yet, the rules here are stricter:
//!
//! - A workload whose controller has not seen it yet (no `observedGeneration`) is not ready.
//! - A `ReplicationController` needs its replicas ready.
//! - A Pod is not ready while a container still runs whose image an apply has changed, see [`containers`].
//! - A Pod in phase Failed has failed (for kstatus it is current, because nothing more will happen).
//! - A `StatefulSet` with `OnDelete` needs its replicas ready, though not on the newest revision.
//! - A Service of type `LoadBalancer` needs an address, an `APIService` must be available.
//! - A condition of an older generation, by its own `observedGeneration`, does not count as current.
//! - Without a condition Ready, the conditions Accepted, Programmed and Available must be True if they exist
//!   (a Gateway, a `Prometheus`), and so must those that a route's parents have set.
//!
//! An unschedulable Pod is only not ready. For kstatus it has failed after 15 s, but time does not count
//! here, and a node may still be added.

mod conditions;
pub mod containers;
mod kinds;
mod pods;
mod routes;
#[cfg(test)]
mod tests;
mod workloads;

use serde_json::Value;

use crate::api::BuiltIn;
pub use conditions::Readiness;
use conditions::{condition, conditions, group, number, text};

/// The readiness of a live object. For a custom resource without a status, see [`of_custom`].
pub fn of(object: &Value) -> Readiness {
    if let Some(known) = generic(object) {
        return known;
    }
    let by_kind = match (group(object), text(object, "/kind").unwrap_or_default()) {
        ("apps" | "extensions", "Deployment") => Some(workloads::deployment(object)),
        ("apps" | "extensions", "ReplicaSet") | ("", "ReplicationController") => {
            Some(workloads::replica_set(object))
        }
        ("apps" | "extensions", "DaemonSet") => Some(workloads::daemon_set(object)),
        ("apps", "StatefulSet") => Some(workloads::stateful_set(object)),
        ("batch", "Job") => Some(workloads::job(object)),
        ("", "Pod") => Some(pods::pod(object)),
        ("", "PersistentVolumeClaim") => Some(kinds::claim(object)),
        ("", "Service") => Some(kinds::service(object)),
        ("policy", "PodDisruptionBudget") => Some(kinds::disruption_budget(object)),
        ("autoscaling", "HorizontalPodAutoscaler") => Some(kinds::autoscaler(object)),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => Some(kinds::definition(object)),
        ("apiregistration.k8s.io", "APIService") => Some(kinds::api_service(object)),
        _ if routes::is_route(object) => Some(routes::route(object)),
        _ => None,
    };
    by_kind.or_else(|| ready_condition(object)).or_else(|| unmet(object)).unwrap_or(Readiness::Ready)
}

/// The readiness of a live custom resource. `reports`: the status subresource of its CRD has fields for
/// observed generation and conditions. Such a kind has a controller, so an object without both has not yet
/// been seen by it.
pub fn of_custom(object: &Value, reports: bool) -> Readiness {
    let silent =
        conditions(object).next().is_none() && number(object, "/status/observedGeneration").is_none();
    match of(object) {
        Readiness::Ready if reports && silent && !routes::is_route(object) => Readiness::not_ready(
            "NotObserved",
            "its status has neither observedGeneration nor conditions yet; a readyWhen can say what to look at",
        ),
        readiness => readiness,
    }
}

/// The readiness of a live object of any kind. For a custom resource, see [`of_custom`].
pub fn of_kind(object: &Value, reports: bool) -> Readiness {
    of_custom(object, reports && !BuiltIn::has_group(group(object)))
}

/// Whether [`of`] reads more than metadata of this kind. If not, its objects are ready as soon as they exist,
/// and a metadata-only watch is enough.
pub fn needs_status(group: &str, kind: &str) -> bool {
    BuiltIn::find(group, kind).is_none_or(|known| known.needs_status)
}

/// The rules that come before the rule of the kind.
fn generic(object: &Value) -> Option<Readiness> {
    if text(object, "/metadata/deletionTimestamp").is_some_and(|time| !time.is_empty()) {
        return Some(Readiness::Terminating);
    }
    let generation = number(object, "/metadata/generation");
    if let (Some(generation), Some(observed)) = (generation, number(object, "/status/observedGeneration"))
        && generation != observed
    {
        return Some(Readiness::not_ready(
            "LatestGenerationNotObserved",
            format!("its controller has seen generation {observed}, the newest is {generation}"),
        ));
    }
    conditions(object).find_map(|condition| match (condition.kind, condition.status) {
        ("Reconciling", "True") => Some(condition.not_ready("Reconciling")),
        ("Stalled", "True") => Some(condition.failed("Stalled")),
        _ => None,
    })
}

/// The readiness by the condition Ready, if there is one.
fn ready_condition(object: &Value) -> Option<Readiness> {
    let ready = condition(object, "Ready")?;
    if let Some(late) = ready.late(object) {
        return Some(late);
    }
    match ready.status {
        "True" => Some(Readiness::Ready),
        "False" | "Unknown" => Some(ready.not_ready("NotReady")),
        _ => None,
    }
}

/// Returns not ready because of a condition that covers only a part of readiness; for kinds without a condition
/// Ready.
fn unmet(object: &Value) -> Option<Readiness> {
    let parts = ["Accepted", "Programmed", "Available"];
    parts.into_iter().filter_map(|kind| condition(object, kind)).find_map(|condition| {
        condition
            .late(object)
            .or_else(|| (condition.status != "True").then(|| condition.not_ready("NotReady")))
    })
}
