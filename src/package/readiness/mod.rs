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

use crate::api::{BuiltIn, group_of};

pub mod containers;
mod kinds;
mod pods;
mod routes;
#[cfg(test)]
mod tests;
mod workloads;

use serde_json::Value;

/// The readiness of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It fulfils its purpose. A finished Pod or Job is ready, too.
    Ready,
    /// It is not ready yet.
    NotReady {
        /// One `CamelCase` word.
        reason: String,
        /// A sentence that says what is missing.
        message: String,
    },
    /// It will not become ready without a change.
    Failed {
        /// One `CamelCase` word.
        reason: String,
        /// A sentence that says what failed.
        message: String,
    },
    /// It has a deletionTimestamp, so it is neither ready nor gone.
    Terminating,
}

impl Readiness {
    fn not_ready(reason: &str, message: impl Into<String>) -> Self {
        Self::NotReady { reason: reason.to_owned(), message: message.into() }
    }

    fn failed(reason: &str, message: impl Into<String>) -> Self {
        Self::Failed { reason: reason.to_owned(), message: message.into() }
    }

    /// Whether it is [`Readiness::Ready`].
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}

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

/// Not ready because of a condition that covers only a part of readiness; for kinds without a condition
/// Ready.
fn unmet(object: &Value) -> Option<Readiness> {
    let parts = ["Accepted", "Programmed", "Available"];
    parts.into_iter().filter_map(|kind| condition(object, kind)).find_map(|condition| {
        condition
            .late(object)
            .or_else(|| (condition.status != "True").then(|| condition.not_ready("NotReady")))
    })
}

/// Not ready if the object's controller has not yet set `observedGeneration`. Only for kinds whose
/// controllers certainly set it.
fn unseen(object: &Value) -> Option<Readiness> {
    let waits = number(object, "/metadata/generation").is_some()
        && number(object, "/status/observedGeneration").is_none();
    waits.then(|| Readiness::not_ready("NotObserved", "its controller has not seen it yet"))
}

/// One entry of `status.conditions`.
#[derive(Clone, Copy)]
struct Condition<'a> {
    kind: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
    observed_generation: Option<i64>,
}

impl<'a> Condition<'a> {
    fn read(condition: &'a Value) -> Option<Self> {
        let text = |name: &str| condition.get(name).and_then(Value::as_str);
        Some(Self {
            kind: text("type")?,
            status: text("status")?,
            reason: text("reason").unwrap_or_default(),
            message: text("message").unwrap_or_default(),
            observed_generation: condition.get("observedGeneration").and_then(Value::as_i64),
        })
    }

    /// Not ready if the condition is about an older generation.
    fn late(self, object: &Value) -> Option<Readiness> {
        let generation = number(object, "/metadata/generation")?;
        let observed = self.observed_generation.filter(|observed| *observed < generation)?;
        Some(Readiness::not_ready(
            "LatestGenerationNotObserved",
            format!("its condition {} is of generation {observed}, the newest is {generation}", self.kind),
        ))
    }

    fn parts(self, else_reason: &str) -> (String, String) {
        let reason = if self.reason.is_empty() { else_reason } else { self.reason };
        let message = match self.message {
            "" => format!("condition {} is {}", self.kind, self.status),
            message => presentable(message),
        };
        (reason.to_owned(), message)
    }

    fn not_ready(self, else_reason: &str) -> Readiness {
        let (reason, message) = self.parts(else_reason);
        Readiness::NotReady { reason, message }
    }

    fn failed(self, else_reason: &str) -> Readiness {
        let (reason, message) = self.parts(else_reason);
        Readiness::Failed { reason, message }
    }
}

fn conditions(object: &Value) -> impl Iterator<Item = Condition<'_>> {
    let list = object.pointer("/status/conditions").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Condition::read)
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<Condition<'a>> {
    conditions(object).find(|condition| condition.kind == kind)
}

/// The message of another controller, shortened for a condition. It is cut at `Invalid value:`, because a
/// secret may follow.
fn presentable(message: &str) -> String {
    const LIMIT: usize = 1_000;
    let message =
        message.split("Invalid value:").next().unwrap_or_default().trim_end_matches([' ', ':', ',']);
    crate::printable::clip(message, LIMIT).into_owned()
}

fn group(object: &Value) -> &str {
    group_of(text(object, "/apiVersion").unwrap_or_default())
}

fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str()
}

fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer)?.as_i64()
}
