//! The readiness of an object, and what its status says of it.

use serde_json::Value;

use crate::api::group_of;

/// The readiness of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The object fulfils its purpose. A finished Pod or Job is ready, too.
    Ready,
    /// The object is not ready yet.
    NotReady {
        /// One `CamelCase` word.
        reason: String,
        /// A sentence that says what is missing.
        message: String,
    },
    /// The object will not become ready without a change.
    Failed {
        /// One `CamelCase` word.
        reason: String,
        /// A sentence that says what failed.
        message: String,
    },
    /// The object has a deletionTimestamp, so it is neither ready nor gone.
    Terminating,
}

impl Readiness {
    pub(super) fn not_ready(reason: &str, message: impl Into<String>) -> Self {
        Self::NotReady { reason: reason.to_owned(), message: message.into() }
    }

    pub(super) fn failed(reason: &str, message: impl Into<String>) -> Self {
        Self::Failed { reason: reason.to_owned(), message: message.into() }
    }

    /// Whether it is [`Readiness::Ready`].
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}

/// Returns not ready if the object's controller has not yet set `observedGeneration`. Only for kinds whose
/// controllers certainly set it.
pub(super) fn unseen(object: &Value) -> Option<Readiness> {
    let waits = number(object, "/metadata/generation").is_some()
        && number(object, "/status/observedGeneration").is_none();
    waits.then(|| Readiness::not_ready("NotObserved", "its controller has not seen it yet"))
}

/// One entry of `status.conditions`.
#[derive(Clone, Copy)]
pub(super) struct Condition<'a> {
    pub(super) kind: &'a str,
    pub(super) status: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
    pub(super) observed_generation: Option<i64>,
}

impl<'a> Condition<'a> {
    pub(super) fn read(condition: &'a Value) -> Option<Self> {
        let text = |name: &str| condition.get(name).and_then(Value::as_str);
        Some(Self {
            kind: text("type")?,
            status: text("status")?,
            reason: text("reason").unwrap_or_default(),
            message: text("message").unwrap_or_default(),
            observed_generation: condition.get("observedGeneration").and_then(Value::as_i64),
        })
    }

    /// Returns not ready if the condition is about an older generation.
    pub(super) fn late(self, object: &Value) -> Option<Readiness> {
        let generation = number(object, "/metadata/generation")?;
        let observed = self.observed_generation.filter(|observed| *observed < generation)?;
        Some(Readiness::not_ready(
            "LatestGenerationNotObserved",
            format!("its condition {} is of generation {observed}, the newest is {generation}", self.kind),
        ))
    }

    pub(super) fn parts(self, else_reason: &str) -> (String, String) {
        let reason = if self.reason.is_empty() { else_reason } else { self.reason };
        let message = match self.message {
            "" => format!("condition {} is {}", self.kind, self.status),
            message => presentable(message),
        };
        (reason.to_owned(), message)
    }

    pub(super) fn not_ready(self, else_reason: &str) -> Readiness {
        let (reason, message) = self.parts(else_reason);
        Readiness::NotReady { reason, message }
    }

    pub(super) fn failed(self, else_reason: &str) -> Readiness {
        let (reason, message) = self.parts(else_reason);
        Readiness::Failed { reason, message }
    }
}

pub(super) fn conditions(object: &Value) -> impl Iterator<Item = Condition<'_>> {
    let list = object.pointer("/status/conditions").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Condition::read)
}

pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<Condition<'a>> {
    conditions(object).find(|condition| condition.kind == kind)
}

/// The message of another controller, shortened for a condition. It is cut at `Invalid value:`, because a
/// secret may follow.
pub(super) fn presentable(message: &str) -> String {
    const LIMIT: usize = 1_000;
    let message =
        message.split("Invalid value:").next().unwrap_or_default().trim_end_matches([' ', ':', ',']);
    crate::printable::clip(message, LIMIT).into_owned()
}

pub(super) fn group(object: &Value) -> &str {
    group_of(text(object, "/apiVersion").unwrap_or_default())
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str()
}

pub(super) fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer)?.as_i64()
}
