//! Whether an object is ready, by the kstatus rules.
//!
//! The order is kstatus': deletion, observed generation, the conditions Reconciling and Stalled, the
//! kind's own rule, the condition Ready, else ready. Where kstatus would call something ready that a
//! dependant cannot use, the rules here are stricter:
//!
//! - A workload whose controller has not seen it yet (no `observedGeneration`) is not ready.
//! - A `ReplicationController` needs its replicas ready.
//! - A Pod is not ready while a container still runs whose image an apply has changed, see [`containers`].
//! - A Pod in phase Failed has failed (kstatus: current, for nothing more will happen).
//! - A `StatefulSet` with `OnDelete` needs its replicas ready, though not on the newest revision.
//! - A Service of type `LoadBalancer` needs an address, an `APIService` must be available.
//! - A condition that says itself that it is of an older generation is not taken for the newest.
//! - Without a condition Ready, the conditions Accepted, Programmed and Available must be True where
//!   they are there (a Gateway, a `Prometheus`), and so must those that a route's parents have set.
//!
//! An unschedulable Pod is merely not ready: kstatus fails it after 15 s, but time is not looked at
//! here, and a node may still come.

use crate::api::{BuiltIn, group_of};

pub mod containers;
mod kinds;
mod pods;
mod routes;
#[cfg(test)]
mod tests;
mod workloads;

use serde_json::Value;

/// How far an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It does what it is there for; a finished Pod or Job counts as well.
    Ready,
    /// Not yet.
    NotReady {
        /// One `CamelCase` word.
        reason: String,
        /// What is missing, for people.
        message: String,
    },
    /// It will not become ready without a change.
    Failed {
        /// One `CamelCase` word.
        reason: String,
        /// What failed, for people.
        message: String,
    },
    /// It has a deletionTimestamp: neither ready nor gone.
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

/// How far a live object is. For a custom resource without any status see [`of_custom`].
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

/// How far a live object of a custom kind is. A kind that reports (it has a status subresource with room
/// for them) has a controller, so an object without observed generation and conditions has merely not
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

/// How far a live object of any kind is; of a custom one as [`of_custom`] says.
pub fn of_kind(object: &Value, reports: bool) -> Readiness {
    of_custom(object, reports && !BuiltIn::has_group(group(object)))
}

/// Whether [`of`] looks at more than metadata for this kind. `false` for kinds that are ready as soon
/// as they exist, so that a metadata-only watch is enough.
pub fn needs_status(group: &str, kind: &str) -> bool {
    BuiltIn::find(group, kind).is_none_or(|known| known.needs_status)
}

/// What holds for every kind, before its own rule.
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

/// What the condition Ready says, if there is one.
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

/// What is missing of a kind that has no condition Ready, only ones that say parts of it.
fn unmet(object: &Value) -> Option<Readiness> {
    let parts = ["Accepted", "Programmed", "Available"];
    parts.into_iter().filter_map(|kind| condition(object, kind)).find_map(|condition| {
        condition
            .late(object)
            .or_else(|| (condition.status != "True").then(|| condition.not_ready("NotReady")))
    })
}

/// `None` if the object's controller has seen it, else that it has not. Only for kinds of which it is
/// certain that their controller sets `observedGeneration`.
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

    /// That it is of an older generation, if it says so.
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

/// A message of another controller, shortened for a condition: what follows `Invalid value:` may be a secret.
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
