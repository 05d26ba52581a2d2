//! What several commands share: output formats, durations, and failures with exit codes.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::out;
use crate::package::plan::parse_duration;
use crate::yaml;

/// The exit code when `--timeout` is over.
pub(super) const TIMED_OUT: u8 = 4;
/// The exit code if nothing goes on until a person acts.
pub(super) const BLOCKED: u8 = 5;

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    /// More columns
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// Names, for kubectl
    Name,
}

impl Output {
    /// The value as a document, for JSON and YAML.
    pub(super) fn document(output: Option<Self>, value: &Value) -> Option<String> {
        match output? {
            Self::Json => Some(out::json(value)),
            Self::Yaml => Some(yaml::to_string(value)),
            Self::Wide | Self::Name => None,
        }
    }
}

/// Output format of objects that kubectl can apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Manifests {
    /// One document per object
    Yaml,
    /// A List
    Json,
}

impl Manifests {
    pub(super) fn text<'o>(self, objects: impl IntoIterator<Item = &'o Value>) -> String {
        match self {
            Self::Yaml => documents(objects),
            Self::Json => out::json(&list(objects)),
        }
    }
}

/// YAML, one document per object.
pub(super) fn documents<'o>(objects: impl IntoIterator<Item = &'o Value>) -> String {
    objects.into_iter().fold(String::new(), |mut text, object| {
        let _ = write!(text, "---\n{}", yaml::to_string(object));
        text
    })
}

/// A List of objects.
pub(super) fn list<'o>(objects: impl IntoIterator<Item = &'o Value>) -> Value {
    let items: Vec<&Value> = objects.into_iter().collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Parses the value of a flag such as `--timeout`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| format!("{error}; for example 90s or 10m"))
}

/// Why a command failed, and its exit code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) code: u8,
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { message, code: 1 }
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl Failure {
    pub(super) fn with_code(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), code }
    }
}

/// Prints the error of a failed command, and returns the exit code.
pub(super) fn end(end: Result<ExitCode, Failure>) -> ExitCode {
    end.unwrap_or_else(|Failure { message, code }| {
        out::note(format!("error: {message}"));
        ExitCode::from(code)
    })
}
