//! Decides which parts of the API server's messages may be shown: they contain values of objects, which may
//! be secret.

use std::borrow::Cow;
use std::fmt;

use kube_core::Status;

use crate::printable;

/// The texts of a failed call as the API server sent them. They may contain values, so `Debug` does not print
/// them.
#[derive(Clone, Default)]
pub(super) struct Words {
    text: Option<Box<str>>,
    /// The text of each cause.
    causes: Vec<Box<str>>,
    /// Whether the object may contain secret data; then the keys of its fields are hidden, too.
    is_secret: bool,
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl Words {
    pub(super) fn of(status: &Status) -> Self {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        Self {
            text: Some(status.message.as_str().into()),
            causes: causes.map(|cause| cause.message.as_str().into()).collect(),
            is_secret: false,
        }
    }

    /// The text, values included.
    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// The message and the text of each cause, to be shown in full. The object must not contain secret data.
    pub(super) fn shown(&self) -> Option<(String, impl Iterator<Item = String>)> {
        Some((full(self.text.as_deref()?), self.causes.iter().map(|words| full(words))))
    }

    /// Marks the object as one that may contain secret data.
    pub(super) fn are_secret(&mut self) {
        self.is_secret = true;
    }

    /// The replacement of a message without causes; `None` if the message may be shown.
    pub(super) fn replacement(&self, code: u16, reason: &str, message: &str) -> Option<String> {
        // A message about the size of an object contains no keys.
        let is_about_size = ["too large", "ResourceExhausted"].iter().any(|words| message.contains(words));
        let is_hidden =
            self.is_secret && self.text.is_some() && matches!(code, 400 | 422 | 500) && !is_about_size;
        is_hidden.then(|| {
            let reason = if reason.is_empty() { "Invalid" } else { reason };
            format!("the API server refuses it ({reason}); its message is not shown because the object holds secret data")
        })
    }

    /// The path of a field as far as it may be shown.
    pub(super) fn field<'a>(&self, field: &'a str) -> Cow<'a, str> {
        if self.is_secret { outermost(field) } else { Cow::Borrowed(field) }
    }
}

/// Cuts a path after its first field, because the keys of a map may be secret. Paths in metadata stay whole.
fn outermost(field: &str) -> Cow<'_, str> {
    let path = field.strip_prefix('.').unwrap_or(field);
    match path.find(['.', '[']) {
        Some(end) if !path.starts_with("metadata.") => Cow::Owned(format!("{}…", &path[..end])),
        _ => Cow::Borrowed(field),
    }
}

/// The server's words on one line, at most [`FULL`] characters: the first line, and the added and removed lines of a diff.
fn full(text: &str) -> String {
    let mut lines = text.trim().lines();
    let first = lines.next().unwrap_or_default();
    let changes = lines.filter(|line| line.trim_start().starts_with(['+', '-']));
    let line =
        std::iter::once(first).chain(changes).flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    printable::clip(&printable::sentence(&line), FULL).into_owned()
}

/// The maximum number of characters shown of the server's text about one field.
const FULL: usize = 1_000;

/// The words after which the server prints values. The words themselves are shown.
const VALUES_FOLLOW: [&str; 7] = [
    "Invalid value",
    "Unsupported value",
    "Duplicate value",
    "duplicate entries for key",
    ", got &",
    "parsing time",
    "parsing \"",
];

/// The server's text up to where it begins to print values, at most 400 characters. Only the first line is
/// used: a diff may follow, which for a pod contains its environment.
pub(super) fn safe(text: &str) -> String {
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
    printable::clip(&line, 400).into_owned()
}

/// For the most common rules: how the server's words begin, and what is shown instead, because values may
/// follow.
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

/// The rule that a value violates, if it is one of the known rules. `text` begins with the value.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::CallError;

    fn status(value: serde_json::Value) -> CallError {
        CallError::from_status(&serde_json::from_value(value).unwrap())
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
    fn the_violated_rule_is_shown_without_the_value() {
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
    fn messages_about_objects_without_secret_data_are_shown_in_full() {
        let refused = |may_hold_secrets: bool| {
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
            .about(may_hold_secrets)
        };
        let plain = refused(false);
        for words in [
            "data[k-hunter2]: Invalid value: \"hunter2\": must be z",
            "supported values: \"ClusterIP\", \"NodePort\"",
        ] {
            assert!(plain.to_string().contains(words), "{plain}");
        }
        let cut = refused(true);
        assert_eq!(
            cut.to_string(),
            "data…: Invalid value; metadata.labels: Invalid value; spec…: Unsupported value"
        );
        assert!(!cut.message.contains("\"hunter2"), "{}", cut.message);
        // Decisions use the whole path, which is not shown.
        assert_eq!(cut.causes[0].field, "data[k-hunter2]");
    }

    #[test]
    fn messages_without_causes_hide_keys() {
        let text =
            "failed to create typed patch object (n/x; /v1, Kind=Secret): .data.hunter2: expected string";
        let of = |code: u16, may_hold_secrets: bool| {
            let error = status(json!({"code": code, "reason": "InternalError", "message": text}));
            error.about(may_hold_secrets).to_string()
        };
        assert_eq!(of(500, false), text);
        assert!(!of(500, true).contains("hunter2") && of(500, true).contains("InternalError"));
        assert_eq!(of(403, true), text);
        let diff = "spec: Forbidden: may not change\n  core.PodSpec{\n  \tNodeName: \"a\",\n- \tImage: \"b\",\n+ \tImage: \"c\",\n";
        assert_eq!(full(diff), "spec: Forbidden: may not change - Image: \"b\", + Image: \"c\",");
        assert_eq!(full("a \u{1b}[31m\u{202e}b"), "a \\u{1b}[31m\\u{202e}b");
        assert_eq!(full(&"é".repeat(2_000)).chars().count(), FULL + 1);
    }

    #[test]
    fn messages_without_values_are_unchanged() {
        let text = "pods is forbidden: User \"u\" cannot list resource \"pods\" in the namespace \"default\"";
        assert_eq!(status(json!({"code": 403, "message": text})).to_string(), text);
    }

    #[test]
    fn values_in_messages_are_cut() {
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
}
