//! What a failed call means: a class that decides what to do next, with a message that is safe to show.

use std::fmt;
use std::time::Duration;

use kube_core::Status;

use super::refusal::{Admission, Refusal};
use super::words::{Words, safe};

/// The maximum size of a request that the API server reads.
pub const MAX_BODY: usize = 3 << 20;

/// What to do after a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The same call may succeed later: no answer, 401 (credentials are renewed), 429, 5xx.
    Retry,
    /// Another writer was first: read again and decide again.
    Conflict,
    /// The object, or its namespace or kind, does not exist.
    NotFound,
    /// The same call always fails: 400, 403, 413, 422 and the 500s that mean the same.
    Permanent,
}

/// A failed call. Its text contains no secret: the server's message is cut at `Invalid value:`, where values follow, unless
/// it is about an object that is known to contain no secret data ([`CallError::about`]).
#[derive(Debug, Clone, thiserror::Error)]
pub struct CallError {
    /// What to do next.
    pub class: Class,
    /// The HTTP status; 0 if there was no answer.
    pub code: u16,
    /// The server's machine-readable reason, for instance `Invalid`; `Timeout` or `Unreachable` if Operetta
    /// itself created the error.
    pub reason: String,
    /// The message, one sentence.
    pub message: String,
    /// The fields at fault with the reason of each, from the server's `details.causes`.
    pub causes: Vec<Cause>,
    /// How long the server asked us to wait.
    pub retry_after: Option<Duration>,
    words: Words,
    /// The meaning of the server's message.
    refusal: Refusal,
}

/// One field at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Path of the field, as the server writes it; may be empty.
    pub field: String,
    /// The machine-readable reason, for instance `FieldValueInvalid` or `FieldManagerConflict`.
    pub reason: String,
    /// The server's words, cut before any value. For a conflict: the other field manager.
    pub message: String,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.causes.is_empty() {
            let replacement = self.words.replacement(self.code, &self.reason, &self.message);
            return f.write_str(replacement.as_deref().unwrap_or(&self.message));
        }
        for (i, cause) in self.causes.iter().take(5).enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            let field = self.words.field(&cause.field);
            match (field.is_empty(), cause.message.is_empty()) {
                (true, _) if cause.reason.is_empty() => f.write_str(&cause.message)?,
                (true, _) => write!(f, "{}: {}", cause.reason, cause.message)?,
                (false, true) => write!(f, "{field}: {}", cause.reason)?,
                (false, false) => write!(f, "{field}: {}", cause.message)?,
            }
        }
        if self.causes.len() > 5 {
            write!(f, "; and {} more", self.causes.len() - 5)?;
        }
        Ok(())
    }
}

impl CallError {
    /// How long the server asks us to wait, plus up to a fifth at random: no call is retried earlier, and not all calls
    /// are retried at the same time.
    pub fn asked_to_wait(&self) -> Option<Duration> {
        self.retry_after.map(|wait| wait.mul_f64(1.0 + 0.2 * fastrand::f64()))
    }

    /// An error of our own instead of one of the server. The message must not contain values of objects.
    pub fn new(class: Class, code: u16, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class,
            code,
            reason: reason.into(),
            message: message.into(),
            causes: Vec::new(),
            retry_after: None,
            words: Words::default(),
            refusal: Refusal::default(),
        }
    }

    /// The same error, not to be retried before this time has passed.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// The error if no answer came within the deadline: whether the server did the work is unknown.
    pub fn timeout(deadline: Duration) -> Self {
        let message = format!("the API server did not answer within {} s", deadline.as_secs());
        Self::new(Class::Retry, 0, "Timeout", message)
    }

    /// The error for a body so large that the server does not read it to its end: it answers 413 or resets
    /// the connection.
    pub fn too_large(bytes: usize) -> Self {
        let message = format!(
            "it has {bytes} bytes as JSON, the API server takes {MAX_BODY} and its store 1.5 MiB; split it, or keep the data elsewhere"
        );
        Self::new(Class::Permanent, 413, "RequestEntityTooLarge", message)
    }

    /// The error for a request that was not sent because another process is, or may be, the leader.
    pub fn fenced() -> Self {
        Self::new(Class::Retry, 0, "NotLeader", "not written: this process is not the leader")
    }

    /// Whether the request was not sent because this process is not the leader.
    pub fn is_fenced(&self) -> bool {
        self.reason == "NotLeader"
    }

    /// Creates the error from the `Status` object of an answer.
    pub fn from_status(status: &Status) -> Self {
        let details = status.details.as_ref();
        let namespace_gone =
            details.is_some_and(|d| d.causes.iter().any(|c| c.reason == "NamespaceTerminating"));
        // An apply with the uid of an object that is gone: 409 if there is none now, 422 if there is another.
        let other_uid = details.is_some_and(|d| d.causes.iter().any(|c| c.field == "metadata.uid"));
        let class = match status.code {
            422 if other_uid => Class::Conflict,
            404 | 410 => Class::NotFound,
            409 => Class::Conflict,
            500 if is_permanent_500(&status.message) => Class::Permanent,
            400 | 403 | 405 | 413 | 415 | 422 => Class::Permanent,
            _ => Class::Retry,
        };
        let causes = details
            .map(|d| {
                d.causes
                    .iter()
                    .map(|c| Cause {
                        field: c.field.clone(),
                        reason: c.reason.clone(),
                        message: safe(&c.message),
                    })
                    .collect()
            })
            .unwrap_or_default();
        let retry_after =
            details.map(|d| d.retry_after_seconds).filter(|s| *s > 0).map(|s| Duration::from_secs(s.into()));
        Self {
            class,
            code: status.code,
            reason: if namespace_gone { "NamespaceTerminating".into() } else { status.reason.clone() },
            message: safe(&status.message),
            causes,
            retry_after,
            words: Words::of(status),
            refusal: Refusal::of(status),
        }
    }

    /// The same error, about a request for an object. If the object contains no secret data, the server's message is shown in
    /// full. If it may contain such data, the message stays cut, and the keys of its fields are omitted as well.
    #[must_use]
    pub fn about(mut self, may_hold_secrets: bool) -> Self {
        if may_hold_secrets {
            self.words.are_secret();
        } else if let Some((message, causes)) = self.words.shown() {
            self.message = message;
            for (cause, words) in self.causes.iter_mut().zip(causes) {
                cause.message = words;
            }
        }
        self
    }

    /// The error if the server cannot be reached, with the reason.
    pub fn unreachable(why: &str) -> Self {
        let message = format!("no answer from the API server: {}", safe(why));
        Self::new(Class::Retry, 0, "Unreachable", message)
    }

    /// The server's message with values. To be used only for objects without secrets, such as a
    /// `CustomResourceDefinition`, where the value itself may be the mistake.
    pub fn whole(&self) -> &str {
        self.words.text().unwrap_or(&self.message)
    }

    /// The paths of the fields at fault: from the causes, or, if there are none, from the message of a
    /// refused apply.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let causes = self.causes.iter().map(|cause| cause.field.as_str()).filter(|field| !field.is_empty());
        // An example of the message: `failed to create typed patch object (x/y; apps/v1, Kind=Deployment):
        // .spec.x: field not declared in schema`.
        let typed = self.message.split_once("): .").filter(|_| self.causes.is_empty());
        let typed = typed.and_then(|(_, rest)| rest.split_once(": ")).map(|(field, _)| field);
        causes.chain(typed)
    }

    /// Whether the server refused an update because a field is immutable.
    pub fn is_immutable_change(&self) -> bool {
        self.refusal.immutable && self.class == Class::Permanent
    }

    /// The same error, known to be about an immutable field.
    #[must_use]
    pub fn into_immutable_change(mut self) -> Self {
        self.refusal.immutable = true;
        self
    }

    /// The paths of fields that exclude each other, if the server refused the request because of them; see
    /// `Refusal::exclusive`.
    pub fn exclusive_fields(&self) -> Option<&[String]> {
        self.refusal.exclusive.as_deref()
    }

    /// Whether another refusal has a cause in common: the same field, message and value.
    pub fn shares_cause(&self, other: &Self) -> bool {
        self.refusal.causes.iter().any(|cause| other.refusal.causes.contains(cause))
    }

    /// Whether the authorizer refused the request because the caller lacks a permission.
    pub fn is_unauthorized(&self) -> bool {
        self.refusal.unauthorized
    }

    /// Whether an admission policy or webhook of the cluster refused the request.
    pub fn is_of_policy(&self) -> bool {
        self.refusal.admission == Some(Admission::Refused)
    }

    /// Whether an admission webhook of the cluster could not be called. Admission comes before anything is stored, so the request
    /// has had no effect, and other requests may succeed.
    pub fn is_webhook_failure(&self) -> bool {
        self.refusal.admission == Some(Admission::Unanswered)
    }

    /// Whether this is a server-side apply conflict with another field manager.
    pub fn is_apply_conflict(&self) -> bool {
        self.class == Class::Conflict && self.causes.iter().any(|c| c.reason == "FieldManagerConflict")
    }

    /// Whether this is an apply conflict in which all fields belong to this manager.
    pub fn conflicts_only_with(&self, manager: &str) -> bool {
        let theirs = format!("conflict with {manager:?}");
        let is_theirs = |cause: &Cause| {
            cause.reason == "FieldManagerConflict"
                && cause
                    .message
                    .strip_prefix(&theirs)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        self.is_apply_conflict() && self.causes.iter().all(is_theirs)
    }

    /// Whether the request was refused because its namespace is being deleted.
    pub fn is_namespace_terminating(&self) -> bool {
        self.reason == "NamespaceTerminating"
    }
}

/// Whether a 500 is permanent; measured on Kubernetes 1.36. One example is a value that does not fit its
/// field, such as a quantity `1Qi` or a time `soon`. The 500 for a conversion webhook that does not answer
/// has other words.
fn is_permanent_500(message: &str) -> bool {
    [
        "unable to convert unstructured object to",
        "failed to create typed patch object",
        "field not declared in schema",
        "request is too large",
        "ResourceExhausted",
    ]
    .iter()
    .any(|mark| message.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(value: serde_json::Value) -> CallError {
        CallError::from_status(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn errors_are_classified_by_code_and_message() {
        for (code, message, class) in [
            (404, "", Class::NotFound),
            (409, "", Class::Conflict),
            (422, "", Class::Permanent),
            (403, "", Class::Permanent),
            (413, "", Class::Permanent),
            (401, "", Class::Retry),
            (400, "", Class::Permanent),
            (500, "etcdserver: request is too large", Class::Permanent),
            (
                500,
                "rpc error: code = ResourceExhausted desc = trying to send message larger than max",
                Class::Permanent,
            ),
            (504, "", Class::Retry),
            (410, "", Class::NotFound),
            (429, "", Class::Retry),
            (500, "etcdserver: request timed out", Class::Retry),
            (
                500,
                "failed to create typed patch object (x): .spec.y: field not declared in schema",
                Class::Permanent,
            ),
            (503, "", Class::Retry),
        ] {
            assert_eq!(status(json!({"code": code, "message": message})).class, class, "{code} {message}");
        }
    }

    #[test]
    fn immutable_fields_are_distinguished_from_other_refusals() {
        let refused = |field: &str, message: &str| {
            status(
                json!({"code": 422, "reason": "Invalid", "message": format!("X \"x\" is invalid: {field}: {message}"),
                "details": {"causes": [{"field": field, "reason": "FieldValueInvalid", "message": message}]}}),
            )
        };
        for (field, message) in [
            ("spec.selector", "Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: field is immutable"),
            ("spec", "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden"),
            ("spec.clusterIPs[0]", "Invalid value: [\"10.0.0.3\"]: may not change once set"),
            ("roleRef", "Invalid value: {}: cannot change roleRef"),
            ("data", "Forbidden: field is immutable when `immutable` is set"),
            ("parameters", "Forbidden: updates to parameters are forbidden."),
        ] {
            assert!(refused(field, message).is_immutable_change(), "{field}: {message}");
        }
        assert!(
            !refused("spec.replicas", "Invalid value: -1: must be greater than or equal to 0")
                .is_immutable_change()
        );
        assert_eq!(
            refused("metadata.uid", "Invalid value: \"x\": field is immutable").class,
            Class::Conflict
        );
    }

    #[test]
    fn missing_rights_are_distinguished_from_refusals_by_admission() {
        for (message, is_right) in [
            (
                r#"persistentvolumeclaims "r" is forbidden: User "bob" cannot patch resource "persistentvolumeclaims" in API group "" in the namespace "default""#,
                true,
            ),
            (
                r#"roles.rbac.authorization.k8s.io "r" is forbidden: user "bob" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:"#,
                true,
            ),
            (
                r#"configmaps "x" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"#,
                true,
            ),
            (
                r#"persistentvolumeclaims "r" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"#,
                false,
            ),
            (r#"pods "z" is forbidden: no PriorityClass with name nope was found"#, false),
            (
                r#"pods "z" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"#,
                false,
            ),
            (r#"admission webhook "x.y" denied the request: User "bob" cannot do so"#, false),
        ] {
            let error = status(json!({"code": 403, "reason": "Forbidden", "message": message}));
            assert_eq!(error.is_unauthorized(), is_right, "{message}");
            assert_eq!(error.class, Class::Permanent);
        }
    }

    #[test]
    fn webhooks_that_do_not_answer_are_known() {
        for (code, message, is_webhook) in [
            (
                500,
                "Internal error occurred: failed calling webhook \"a.example.com\": failed to call webhook: Post \"https://127.0.0.1:1/?timeout=10s\": dial tcp 127.0.0.1:1: connect: connection refused",
                true,
            ),
            (403, "admission webhook \"a.example.com\" denied the request: no", false),
            (500, "etcdserver: request timed out", false),
        ] {
            let error = status(json!({"code": code, "reason": "InternalError", "message": message}));
            assert_eq!(error.is_webhook_failure(), is_webhook, "{message}");
        }
    }

    #[test]
    fn value_that_does_not_fit_its_field_is_permanent() {
        for (message, class) in [
            (
                "failed to convert new object (/d; apps/v1, Kind=Deployment) to proper version: unable to convert unstructured object to apps/v1, Kind=Deployment: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                Class::Permanent,
            ),
            (
                "failed to convert new object (/p; /v1, Kind=Secret) to proper version: unable to convert unstructured object to /v1, Kind=Secret: error decoding from json: illegal base64 data at input byte 0",
                Class::Permanent,
            ),
            (
                "failed to convert new object (n/x; g/v1, Kind=X) to proper version: conversion webhook for g/v1, Kind=X failed: Post \"https://x\": connection refused",
                Class::Retry,
            ),
        ] {
            assert_eq!(status(json!({"code": 500, "message": message})).class, class, "{message}");
        }
    }

    #[test]
    fn a_terminating_namespace_is_recognised() {
        let error = status(
            json!({"code": 403, "reason": "Forbidden", "message": "x", "details": {"causes": [
            {"reason": "NamespaceTerminating", "message": "namespace x is being terminated", "field": "metadata.namespace"}]}}),
        );
        assert!(error.is_namespace_terminating());
    }
}
