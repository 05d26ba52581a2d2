//! What a failed call means: a class that decides what to do next, and words that are safe to show.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use kube::core::Status;
use serde_json::Value;

use super::refusal::Refusal;
use crate::children::names;
use crate::printable;

/// The most that an API server reads of a request.
pub const MAX_BODY: usize = 3 << 20;

/// What to do after a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The same call may succeed later: no answer, 401 (credentials are renewed), 429, 5xx.
    Retry,
    /// Somebody else was first: read again and decide anew.
    Conflict,
    /// The object, or its namespace or kind, does not exist.
    NotFound,
    /// The same call fails for ever: 400, 403, 413, 422 and the 500s that mean the same.
    Permanent,
}

/// A failed call. Its text holds no secret: the server's words are cut at `Invalid value:`, where it prints values, unless
/// they are about an object that is known to hold no secret data ([`CallError::about`]).
#[derive(Debug, Clone, thiserror::Error)]
pub struct CallError {
    /// What to do.
    pub class: Class,
    /// The HTTP status; 0 if there was no answer.
    pub code: u16,
    /// The server's machine-readable reason, for instance `Invalid`; `Timeout` or `Unreachable` of our own.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The fields at fault with the reason of each, from the server's `details.causes`.
    pub causes: Vec<Cause>,
    /// How long the server asked us to wait.
    pub retry_after: Option<Duration>,
    whole: Whole,
}

/// The server's words as they came. They may hold values, so nothing prints them by accident.
#[derive(Clone, Default)]
struct Whole {
    text: Option<Box<str>>,
    /// Those of each cause.
    causes: Vec<Box<str>>,
    /// Whether they are about an object with secret data: then its keys are not shown either.
    secret: bool,
    /// What they mean.
    refusal: Refusal,
}

impl fmt::Debug for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// One field at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Path of the field, as the server writes it; may be empty.
    pub field: String,
    /// For instance `FieldValueInvalid` or `FieldManagerConflict`.
    pub reason: String,
    /// The server's words, cut before any value. For a conflict: the other field manager.
    pub message: String,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.causes.is_empty() {
            // What is said of the size of an object holds no key.
            let of_size = ["too large", "ResourceExhausted"].iter().any(|words| self.message.contains(words));
            if self.whole.secret
                && self.whole.text.is_some()
                && matches!(self.code, 400 | 422 | 500)
                && !of_size
            {
                let reason = if self.reason.is_empty() { "Invalid" } else { &self.reason };
                return write!(
                    f,
                    "the API server refuses it ({reason}); its words are not shown, for the object holds secret data"
                );
            }
            return f.write_str(&self.message);
        }
        for (i, cause) in self.causes.iter().take(5).enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            let field =
                if self.whole.secret { outermost(&cause.field) } else { Cow::Borrowed(&*cause.field) };
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

/// A path of which nothing below the first field is shown: keys of a map may be secret. Metadata is not.
fn outermost(field: &str) -> Cow<'_, str> {
    let path = field.strip_prefix('.').unwrap_or(field);
    match path.find(['.', '[']) {
        Some(end) if !path.starts_with("metadata.") => Cow::Owned(format!("{}…", &path[..end])),
        _ => Cow::Borrowed(field),
    }
}

/// The server's words on one line, no longer than [`FULL`]: the first line, and of a diff what it adds and takes away.
fn full(text: &str) -> String {
    let mut lines = text.trim().lines();
    let first = lines.next().unwrap_or_default();
    let changes = lines.filter(|line| line.trim_start().starts_with(['+', '-']));
    let line =
        std::iter::once(first).chain(changes).flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    let line = printable::sentence(&line);
    if line.chars().count() > FULL {
        format!("{}…", line.chars().take(FULL).collect::<String>())
    } else {
        line.into_owned()
    }
}

/// The most characters of the server's words about one field.
const FULL: usize = 300;

/// Where the server begins to print values; the words themselves stay.
const VALUES_FOLLOW: [&str; 7] = [
    "Invalid value",
    "Unsupported value",
    "Duplicate value",
    "duplicate entries for key",
    ", got &",
    "parsing time",
    "parsing \"",
];

/// The server's text up to where it begins to print values, at most 400 characters. After the first line it
/// prints a diff: of a pod with its env, where fields of it were changed that must not.
fn safe(text: &str) -> String {
    let text = text.trim_start().lines().next().unwrap_or_default();
    let cut = VALUES_FOLLOW
        .iter()
        .filter_map(|mark| text.find(mark).map(|at| at + if mark.ends_with('&') { 0 } else { mark.len() }))
        .min()
        .unwrap_or(text.len());
    let (before, after) = text.split_at(cut);
    let mut line = before.split_whitespace().collect::<Vec<_>>().join(" ");
    if !after.is_empty() {
        line.truncate(line.trim_end_matches('"').trim_end().len());
    }
    if let Some(rule) = after.strip_prefix(": ").filter(|_| before.ends_with("Invalid value")).and_then(rule)
    {
        line = format!("{line} ({rule})");
    }
    if line.chars().count() > 400 {
        format!("{}…", line.chars().take(400).collect::<String>())
    } else {
        line
    }
}

/// What the server says of the most common rules begins so; the rest is of our own words and of numbers, for
/// what stands there may hold values.
const RULES: [(&str, &str); 6] = [
    (
        "a lowercase RFC 1123 subdomain must",
        "lower case letters, digits, `-` and `.` only, no `-` or `.` at an end",
    ),
    ("a lowercase RFC 1123 label must", "lower case letters, digits and `-` only, no `-` at an end"),
    ("a DNS-1035 label must", "lower case letters, digits and `-` only, a letter first, no `-` at the end"),
    ("a valid label must", "letters, digits, `-`, `_` and `.` only, a letter or digit at both ends"),
    (
        "name part must consist",
        "a key: letters, digits, `-`, `_` and `.` only, a letter or digit at both ends",
    ),
    ("name part must be non-empty", "a key must not be empty"),
];

/// The rule that a value breaks, where it is one of those. `text` begins with the value.
fn rule(text: &str) -> Option<String> {
    let value = match text.strip_prefix('"') {
        Some(quoted) => {
            let mut escaped = false;
            let end = quoted.find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })?;
            end + 2
        }
        None => text.find(|c: char| !c.is_ascii_digit() && c != '-')?,
    };
    let rule = text.get(value..)?.strip_prefix(": ")?;
    if let Some((_, words)) = RULES.iter().find(|(begin, _)| rule.starts_with(begin)) {
        return Some((*words).to_owned());
    }
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty()).then_some(digits)
    };
    let behind = |mark| rule.strip_prefix(mark).and_then(number);
    if let Some(most) = behind("must be no more than ") {
        return Some(format!("at most {most} bytes"));
    }
    if let Some(least) = behind("must be greater than or equal to ") {
        return Some(format!("at least {least}"));
    }
    if let Some(most) = behind("must be less than or equal to ") {
        return Some(format!("at most {most}"));
    }
    let (low, high) = rule.strip_prefix("must be between ")?.split_once(" and ")?;
    Some(format!("from {} to {}", number(low)?, number(high)?))
}

/// A wait with some chance in it, a fifth more or less: keeps many from coming back together.
pub fn scattered(wait: Duration) -> Duration {
    wait.mul_f64(0.8 + 0.4 * fastrand::f64())
}

impl CallError {
    /// How long the server asks us to wait, with some chance on top: nobody comes before he was told to, and
    /// not all come at once.
    pub fn asked_to_wait(&self) -> Option<Duration> {
        self.retry_after.map(|wait| wait.mul_f64(1.0 + 0.2 * fastrand::f64()))
    }

    /// A finding of our own. The message must hold no values of objects.
    pub fn new(class: Class, code: u16, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class,
            code,
            reason: reason.into(),
            message: message.into(),
            causes: Vec::new(),
            retry_after: None,
            whole: Whole::default(),
        }
    }

    /// The same, not to be tried again before this time has passed.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// No answer within the deadline: whether the server did the work is unknown.
    pub fn timeout(deadline: Duration) -> Self {
        let message = format!("the API server did not answer within {} s", deadline.as_secs());
        Self::new(Class::Retry, 0, "Timeout", message)
    }

    /// A body that the server does not read to its end: it answers 413, or resets the connection.
    pub fn too_large(bytes: usize) -> Self {
        let message = format!(
            "it has {bytes} bytes as JSON, the API server takes {MAX_BODY} and its store 1.5 MiB; split it, or keep the data elsewhere"
        );
        Self::new(Class::Permanent, 413, "RequestEntityTooLarge", message)
    }

    /// Not sent: another process leads, or may.
    pub fn fenced() -> Self {
        Self::new(Class::Retry, 0, "NotLeader", "not written: this process is not the leader")
    }

    /// Whether it was not sent because this process does not lead.
    pub fn is_fenced(&self) -> bool {
        self.reason == "NotLeader"
    }

    /// From the `Status` object of an answer.
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
            whole: Whole {
                text: Some(status.message.as_str().into()),
                causes: details
                    .map(|d| d.causes.iter().map(|c| c.message.as_str().into()).collect())
                    .unwrap_or_default(),
                secret: false,
                refusal: Refusal::of(status),
            },
        }
    }

    /// The same of a request with that object as its body. If the object holds no secret data, the server's words are
    /// shown whole. If it does, they stay cut, and the keys of its fields are left out, too.
    #[must_use]
    pub fn about(mut self, body: &Value) -> Self {
        if names::may_hold_secrets(body) {
            self.whole.secret = true;
            return self;
        }
        if let Some(text) = &self.whole.text {
            self.message = full(text);
            for (cause, words) in self.causes.iter_mut().zip(&self.whole.causes) {
                cause.message = full(words);
            }
        }
        self
    }

    /// From an error of the client library.
    pub fn from_kube(error: &kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            return Self::from_status(status);
        }
        Self::unreachable(&chain(error))
    }

    /// No answer, and why.
    pub fn unreachable(why: &str) -> Self {
        let message = format!("no answer from the API server: {}", safe(why));
        Self::new(Class::Retry, 0, "Unreachable", message)
    }

    /// The server's words, values included. Only of objects that hold no secrets, such as a
    /// `CustomResourceDefinition`: there the value is what is wrong.
    pub fn whole(&self) -> &str {
        self.whole.text.as_deref().unwrap_or(&self.message)
    }

    /// The paths of the fields at fault: from the causes, or where there are none from the words of a refused apply.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let causes = self.causes.iter().map(|cause| cause.field.as_str()).filter(|field| !field.is_empty());
        // `failed to create typed patch object (x/y; apps/v1, Kind=Deployment): .spec.x: field not declared in schema`
        let typed = self.message.split_once("): .").filter(|_| self.causes.is_empty());
        let typed = typed.and_then(|(_, rest)| rest.split_once(": ")).map(|(field, _)| field);
        causes.chain(typed)
    }

    /// Whether the server refused an update because a field may not be changed any more.
    pub fn is_immutable_change(&self) -> bool {
        self.whole.refusal.immutable && self.class == Class::Permanent
    }

    /// The same error, known to be about a field that may not be changed any more.
    #[must_use]
    pub fn into_immutable_change(mut self) -> Self {
        self.whole.refusal.immutable = true;
        self
    }

    /// The paths at fault of a refusal which say that a field excludes another; see `Refusal::exclusive`.
    pub fn exclusive_fields(&self) -> Option<&[String]> {
        self.whole.refusal.exclusive.as_deref()
    }

    /// Whether another refusal names a field for the same reason, values included.
    pub fn shares_cause(&self, other: &Self) -> bool {
        self.whole.refusal.causes.iter().any(|cause| other.whole.refusal.causes.contains(cause))
    }

    /// Whether the authorizer refused it: a right is missing.
    pub fn is_unauthorized(&self) -> bool {
        self.whole.refusal.unauthorized
    }

    /// Whether a policy or a webhook of the cluster refused it.
    pub fn is_of_policy(&self) -> bool {
        self.whole.refusal.policy
    }

    /// Whether this is a server-side apply conflict with another field manager.
    pub fn is_apply_conflict(&self) -> bool {
        self.class == Class::Conflict && self.causes.iter().any(|c| c.reason == "FieldManagerConflict")
    }

    /// Whether this is an apply conflict with fields of that manager alone.
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

    /// Whether a namespace that is being deleted refused it.
    pub fn is_namespace_terminating(&self) -> bool {
        self.reason == "NamespaceTerminating"
    }
}

/// 500s that no retry mends; measured on 1.36. A value that no field of its kind can hold, such as a quantity `1Qi`, or a
/// time `soon`, is one. (A conversion webhook that does not answer fails to convert as well, in other words.)
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

/// An error and its sources, `a: b: c`.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let text = inner.to_string();
        if !out.contains(&text) {
            out.push_str(": ");
            out.push_str(&text);
        }
        source = inner.source();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(value: serde_json::Value) -> CallError {
        CallError::from_status(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn classes() {
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
    fn values_are_never_shown() {
        let error = status(json!({"code": 500, "message":
            "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .data.a: expected string, got &value.valueUnstructured{Value:42}"}));
        assert!(error.to_string().ends_with(".data.a: expected string"), "{error}");
        let error = status(json!({
            "code": 422, "reason": "Invalid",
            "message": "Pod \"x\" is invalid: spec.y: Invalid value: \"hunter2\": must be z",
            "details": {"causes": [{"field": "spec.y", "reason": "FieldValueInvalid", "message": "Invalid value: \"hunter2\": must be z"}]},
        }));
        assert_eq!(error.to_string(), "spec.y: Invalid value");
        assert!(!error.message.contains("hunter2"));
        let diff = "pod updates may not change fields other than `spec.containers[*].image`\n  core.PodSpec{\n- Value: \"hunter2\"";
        let error = status(json!({
            "code": 422, "reason": "Invalid", "message": format!("Pod \"x\" is invalid: spec: Forbidden: {diff}"),
            "details": {"causes": [{"field": "spec", "reason": "FieldValueForbidden", "message": format!("Forbidden: {diff}")}]},
        }));
        assert!(error.to_string().ends_with("`spec.containers[*].image`"), "{error}");
        assert!(!error.message.contains("hunter2"));
    }

    #[test]
    fn the_rule_that_a_value_breaks_is_told_and_the_value_is_not() {
        for (message, told) in [
            ("\"hunter2\": must be no more than 63 bytes", "x: Invalid value (at most 63 bytes)"),
            ("\"hun\\\\\\\": ter2\": must be no more than 63 bytes", "x: Invalid value (at most 63 bytes)"),
            ("\"hunter2\\\": must be no more than 63 bytes", "x: Invalid value"),
            ("\"a\": must be \"hunter2\"", "x: Invalid value"),
            ("70000: must be between 1 and 65535, inclusive", "x: Invalid value (from 1 to 65535)"),
            ("-1: must be greater than or equal to 0", "x: Invalid value (at least 0)"),
            ("70: must be greater than or equal to hunter2", "x: Invalid value"),
            ("{\"a\":\"hunter2\"}: must be no more than 63 bytes", "x: Invalid value"),
            ("\"hunter2", "x: Invalid value"),
        ] {
            let message = format!("Invalid value: {message}");
            let causes = json!([{"field": "x", "reason": "FieldValueInvalid", "message": message}]);
            let error = status(json!({"code": 422, "message": message, "details": {"causes": causes}}));
            assert_eq!(error.to_string(), told, "{message}");
            assert!(!error.message.contains("hunter2"), "{}", error.message);
        }
        let name =
            "\"UP\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters";
        assert!(rule(name).unwrap().starts_with("lower case letters"));
    }

    #[test]
    fn messages_about_objects_without_secret_data_are_whole() {
        let refused = |about: &serde_json::Value| {
            status(json!({
                "code": 422, "reason": "Invalid",
                "message": "X \"x\" is invalid: [data[k-hunter2]: Invalid value: \"hunter2\": must be z, ...]",
                "details": {"causes": [
                    {"field": "data[k-hunter2]", "reason": "FieldValueInvalid", "message": "Invalid value: \"hunter2\": must be z"},
                    {"field": "metadata.labels", "reason": "FieldValueInvalid", "message": "Invalid value: \"no\\u{1b}[1m\": no"},
                    {"field": "spec.type", "reason": "FieldValueNotSupported",
                        "message": "Unsupported value: \"Klaster\": supported values: \"ClusterIP\", \"NodePort\""},
                ]},
            }))
            .about(about)
        };
        let plain = refused(&json!({"apiVersion": "v1", "kind": "Service"}));
        for words in [
            "data[k-hunter2]: Invalid value: \"hunter2\": must be z",
            "supported values: \"ClusterIP\", \"NodePort\"",
        ] {
            assert!(plain.to_string().contains(words), "{plain}");
        }
        let exposing = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"annotations": {"operetta.dev/exposes-secret-data": "true"}}});
        for object in [&json!({"apiVersion": "v1", "kind": "Secret"}), &exposing] {
            let cut = refused(object);
            assert_eq!(
                cut.to_string(),
                "data…: Invalid value; metadata.labels: Invalid value; spec…: Unsupported value"
            );
            assert!(!cut.message.contains("\"hunter2"), "{}", cut.message);
        }
        // What decides goes by the whole path.
        assert_eq!(refused(&exposing).causes[0].field, "data[k-hunter2]");
    }

    #[test]
    fn words_without_causes_may_hold_keys() {
        let text =
            "failed to create typed patch object (n/x; /v1, Kind=Secret): .data.hunter2: expected string";
        let of = |code: u16, kind: &str| {
            let error = status(json!({"code": code, "reason": "InternalError", "message": text}));
            error.about(&json!({"apiVersion": "v1", "kind": kind})).to_string()
        };
        assert_eq!(of(500, "ConfigMap"), text);
        assert!(!of(500, "Secret").contains("hunter2") && of(500, "Secret").contains("InternalError"));
        assert_eq!(of(403, "Secret"), text);
        let diff = "spec: Forbidden: may not change\n  core.PodSpec{\n  \tNodeName: \"a\",\n- \tImage: \"b\",\n+ \tImage: \"c\",\n";
        assert_eq!(full(diff), "spec: Forbidden: may not change - Image: \"b\", + Image: \"c\",");
        assert_eq!(full("a \u{1b}[31m\u{202e}b"), "a \\u{1b}[31m\\u{202e}b");
        assert_eq!(full(&"é".repeat(2_000)).chars().count(), FULL + 1);
    }

    #[test]
    fn what_holds_no_value_stays_as_it_is() {
        let text = "pods is forbidden: User \"u\" cannot list resource \"pods\" in the namespace \"default\"";
        assert_eq!(status(json!({"code": 403, "message": text})).to_string(), text);
    }

    #[test]
    fn words_that_quote_values_are_cut_and_kept_whole_apart() {
        for text in [
            "parsing time \"hunter2\" as \"2006\": cannot parse",
            "strconv.ParseInt: parsing \"hunter2\": invalid syntax",
            ".spec.x: expected map, got &{hunter2}",
            ".spec.x: duplicate entries for key [name=\"hunter2\"]",
            "spec.x: Unsupported value: \"hunter2\": supported values: a",
        ] {
            let error = status(json!({"code": 422, "message": text}));
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            assert_eq!(error.whole(), text);
        }
    }

    #[test]
    fn immutable_fields_are_told_from_other_refusals() {
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
    fn missing_rights_are_told_from_refusals_of_admission() {
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
    fn a_value_that_its_field_cannot_hold_is_permanent() {
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
    fn a_terminating_namespace_is_known() {
        let error = status(
            json!({"code": 403, "reason": "Forbidden", "message": "x", "details": {"causes": [
            {"reason": "NamespaceTerminating", "message": "namespace x is being terminated", "field": "metadata.namespace"}]}}),
        );
        assert!(error.is_namespace_terminating());
    }
}
