//! Failures, with the texts of the API server.

use operetta_kube_model::Fault;
use serde_json::{Map, Value, json};

use super::Kind;

/// A request that was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub(crate) code: u16,
    reason: &'static str,
    message: String,
    details: Option<Value>,
}

pub(crate) type Outcome<T> = Result<T, Box<Failure>>;

impl Failure {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { code, reason, message: message.into(), details: None })
    }

    /// A condition of a deletion or update that does not hold.
    pub(crate) fn precondition(kind: &Kind, name: &str, why: &str) -> Box<Self> {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.kind);
        let mut failure = Self::new(409, "Conflict", message);
        failure.details = Some(details(&[("name", name), ("group", &kind.group), ("kind", &kind.kind)]));
        failure
    }

    fn about(mut self: Box<Self>, kind: &Kind, name: &str) -> Box<Self> {
        self.details = Some(details(&[("name", name), ("group", &kind.group), ("kind", &kind.plural)]));
        self
    }

    /// With causes: reason, message and field of each.
    pub(crate) fn caused(mut self: Box<Self>, causes: Vec<(&str, String, String)>) -> Box<Self> {
        let causes: Vec<Value> = causes
            .into_iter()
            .map(|(reason, message, field)| {
                details(&[("reason", reason), ("message", &message), ("field", &field)])
            })
            .collect();
        let details = self.details.get_or_insert_with(|| json!({}));
        if !causes.is_empty() {
            details["causes"] = causes.into();
        }
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Box<Self> {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Box<Self> {
        Self::new(404, "NotFound", format!("{} {name:?} not found", kind.resource())).about(kind, name)
    }

    /// A path that is not served.
    pub(crate) fn no_path() -> Box<Self> {
        let mut failure = Self::new(404, "NotFound", "the server could not find the requested resource");
        failure.details = Some(json!({}));
        failure
    }

    pub(crate) fn not_allowed() -> Box<Self> {
        let mut failure = Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        failure.details = Some(json!({}));
        failure
    }

    pub(crate) fn already_exists(kind: &Kind, name: &str, is_deleting: bool) -> Box<Self> {
        let when = if is_deleting { "object is being deleted: " } else { "" };
        let message = format!("{when}{} {name:?} already exists", kind.resource());
        Self::new(409, "AlreadyExists", message).about(kind, name)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Box<Self> {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.resource());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    pub(crate) fn modified(kind: &Kind, name: &str) -> Box<Self> {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn forbidden(kind: &Kind, name: &str, why: &str) -> Box<Self> {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", kind.resource())
        } else {
            format!("{} {name:?} is forbidden: {why}", kind.resource())
        };
        Self::new(403, "Forbidden", message).about(kind, name)
    }

    /// A write that a policy denies.
    pub(crate) fn refused(
        kind: &Kind,
        name: &str,
        why: &str,
        (code, reason): (u16, &'static str),
    ) -> Box<Self> {
        let mut failure = Self::forbidden(kind, name, why);
        (failure.code, failure.reason) = (code, reason);
        if let Some(details) = &mut failure.details {
            details["causes"] = json!([{"message": why}]);
        }
        failure
    }

    /// A request that its user may not send.
    pub(crate) fn denied(group: &str, resource: &str, name: &str, why: &str) -> Box<Self> {
        let full = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let what = if name.is_empty() { full } else { format!("{full} {name:?}") };
        let mut failure = Self::new(403, "Forbidden", format!("{what} is forbidden: {why}"));
        failure.details = Some(details(&[("name", name), ("group", group), ("kind", resource)]));
        failure
    }

    /// An error that has no class.
    pub(crate) fn plain(code: u16, message: impl Into<String>) -> Box<Self> {
        Self::new(code, "", message)
    }

    pub(crate) fn set_details(&mut self, details: Value) {
        self.details = Some(details);
    }

    pub(crate) fn expired(message: impl Into<String>) -> Box<Self> {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn media_type(message: impl Into<String>) -> Box<Self> {
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Box<Self> {
        let message = message.into();
        let mut failure = Self::new(500, "InternalError", format!("Internal error occurred: {message}"));
        failure.details = Some(json!({"causes": [{"message": message}]}));
        failure
    }

    /// An object that breaks rules.
    pub(crate) fn invalid(group: &str, kind: &str, name: &str, faults: &[Fault]) -> Box<Self> {
        let mut messages: Vec<String> = Vec::new();
        for fault in faults {
            let message = fault.message();
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
        let all = if let [one] = &messages[..] { one.clone() } else { format!("[{}]", messages.join(", ")) };
        let what = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let mut failure = Self::new(422, "Invalid", format!("{what} {name:?} is invalid: {all}"));
        failure.details = Some(details(&[("name", name), ("group", group), ("kind", kind)]));
        failure
            .caused(faults.iter().map(|fault| (fault.reason(), fault.body(), fault.path.clone())).collect())
    }

    /// The status code.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The answer of the server: a `Status`.
    pub fn to_json(&self) -> Value {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code});
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}

/// A map of the texts that are not empty.
pub(crate) fn details(entries: &[(&str, &str)]) -> Value {
    let entries = entries.iter().filter(|(_, value)| !value.is_empty());
    Value::Object(entries.map(|(key, value)| ((*key).to_owned(), (*value).into())).collect::<Map<_, _>>())
}
