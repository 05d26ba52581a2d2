//! What several commands share: output formats, durations, and failures with exit codes.

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::out;
use super::show::Table;
use crate::package::plan::parse_duration;
use crate::yaml;

/// The exit code when `--timeout` is over.
pub(super) const TIMED_OUT: u8 = 4;
/// The exit code if nothing goes on until a person acts.
pub(super) const BLOCKED: u8 = 5;

/// Output format of a table.
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
        Some(Format::of(output?)?.document(value))
    }
}

/// How a command lists things.
#[derive(Debug, clap::Args)]
pub(super) struct Shown {
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Output>,

    /// Omit the header
    #[arg(long)]
    pub no_headers: bool,
}

impl Shown {
    pub(super) fn is_wide(&self) -> bool {
        self.output == Some(Output::Wide)
    }

    /// Whether it is for programs, with all that is known.
    pub(super) fn is_document(&self) -> bool {
        matches!(self.output, Some(Output::Json | Output::Yaml))
    }

    /// The text of a list. `nothing` says that it is empty, `name` is for kubectl, and `value` for programs.
    pub(super) fn text<R>(
        &self,
        rows: &[R],
        nothing: &str,
        table: &Table<'_, R>,
        name: impl Fn(&R) -> String,
        value: impl Fn() -> Value,
    ) -> String {
        if let Some(format) = self.output.and_then(Format::of) {
            return format.document(&value());
        }
        if self.output == Some(Output::Name) {
            return rows.iter().map(|row| name(row) + "\n").collect();
        }
        if rows.is_empty() {
            out::note(nothing);
            return String::new();
        }
        table.text(rows, !self.no_headers)
    }
}

/// Output format of values and objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// YAML; one document per object
    Yaml,
    /// JSON; of several objects a List
    Json,
}

impl Format {
    pub(super) fn of(output: Output) -> Option<Self> {
        match output {
            Output::Json => Some(Self::Json),
            Output::Yaml => Some(Self::Yaml),
            Output::Wide | Output::Name => None,
        }
    }

    /// A single value.
    pub(super) fn document(self, value: &Value) -> String {
        match self {
            Self::Json => out::json(value),
            Self::Yaml => yaml::to_string(value),
        }
    }

    /// Objects that kubectl can apply.
    pub(super) fn objects<'o>(self, objects: impl IntoIterator<Item = &'o Value>) -> String {
        match self {
            Self::Yaml => documents(objects),
            Self::Json => out::json(&list(objects)),
        }
    }
}

/// YAML, one document per object.
pub(super) fn documents<'o>(objects: impl IntoIterator<Item = &'o Value>) -> String {
    objects.into_iter().fold(String::new(), |text, object| text + "---\n" + &yaml::to_string(object))
}

/// A List of objects, as kubectl prints it.
pub(super) fn list<'o>(objects: impl IntoIterator<Item = &'o Value>) -> Value {
    let items: Vec<&Value> = objects.into_iter().collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}})
}

/// Asks on the terminal. Returns the answer; `None` if there is no terminal.
pub(super) fn ask(question: &str) -> Result<Option<String>, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Ok(None);
    }
    out::message(question);
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(|error| out::reason(&error))?;
    Ok(Some(answer.trim().to_lowercase()))
}

/// Whether an answer is yes.
pub(super) fn is_yes(answer: &str) -> bool {
    matches!(answer, "y" | "yes")
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
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::with_code(2, message)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_printed_as_kubectl_does() {
        let objects =
            [json!({"kind": "Web", "apiVersion": "a/v1"}), json!({"list": [], "text": "two\nlines"})];
        let item = "    {\n      \"apiVersion\": \"a/v1\",\n      \"kind\": \"Web\"\n    }";
        let list = |items: &str| {
            format!(
                "{{\n  \"apiVersion\": \"v1\",\n  \"items\": [{items}],\n  \"kind\": \"List\",\n  \"metadata\": {{\n    \
                 \"resourceVersion\": \"\"\n  }}\n}}\n"
            )
        };
        assert_eq!(Format::Json.objects(&objects[..1]), list(&format!("\n{item}\n  ")));
        assert_eq!(Format::Json.objects(&[]), list(""));
        let text = "---\napiVersion: a/v1\nkind: Web\n---\nlist: []\ntext: |-\n  two\n  lines\n";
        assert_eq!(Format::Yaml.objects(&objects), text);
    }
}
