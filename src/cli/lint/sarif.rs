//! Findings as SARIF 2.1.0, the format that code scanning services read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::rules;
use crate::diag::{Diagnostic, Severity};

/// The schema of the format.
const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// One run with all findings; each kind of finding is a rule.
pub(super) fn log<'a>(findings: impl IntoIterator<Item = (&'a str, &'a Diagnostic)>) -> Value {
    let findings: Vec<_> = findings.into_iter().collect();
    let mut worst: BTreeMap<&str, Severity> = BTreeMap::new();
    for (_, diagnostic) in &findings {
        let severity = worst.entry(diagnostic.code).or_insert(diagnostic.severity);
        *severity = (*severity).max(diagnostic.severity);
    }
    let index: BTreeMap<&str, usize> = worst.keys().enumerate().map(|(index, code)| (*code, index)).collect();
    let results: Vec<Value> = findings
        .iter()
        .map(|(package, diagnostic)| result(package, diagnostic, index[diagnostic.code]))
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "operetta",
                "version": version,
                "semanticVersion": version,
                "rules": worst.iter().map(|(code, severity)| rule(code, *severity)).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn rule(code: &str, severity: Severity) -> Value {
    json!({
        "id": code,
        "shortDescription": {"text": rules::description(code)},
        "help": {"text": rules::HELP, "markdown": rules::HELP},
        "defaultConfiguration": {"level": level(severity)},
    })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

fn result(package: &str, diagnostic: &Diagnostic, rule: usize) -> Value {
    let mut message = diagnostic.message.clone();
    if let Some(path) = &diagnostic.path {
        message = format!("{message} ({path})");
    }
    if let Some(help) = &diagnostic.help {
        message = format!("{message}; {help}");
    }
    let mut place = json!({});
    let file = if let Some(location) = &diagnostic.location {
        let (start, end) = (location.span.start, location.span.end.max(location.span.start));
        let (line, column) = location.source.line_col(start);
        let (end_line, end_column) = location.source.line_col(end);
        place["region"] =
            json!({"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column});
        location.source.name.clone()
    } else {
        // Services show only findings with a file.
        format!("{}/{}", package.trim_end_matches('/'), crate::package::OPERATOR_YAML)
    };
    place["artifactLocation"] = json!({"uri": uri(&file)});
    json!({
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": level(diagnostic.severity),
        "message": {"text": message},
        "locations": [{"physicalLocation": place}],
    })
}

/// A path as a URI: relative to the working directory of the command, or absolute.
fn uri(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    if path.starts_with('/') {
        out.push_str("file://");
    }
    let path = path.strip_prefix("./").unwrap_or(path);
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::{Source, Span};

    #[test]
    fn findings_become_results_of_rules() {
        let source = Source::new("./a b/operator.yaml", "ä: b\nc: d\n");
        let found = [
            Diagnostic::error("package::unknown-key", "wrong")
                .at(&source, Span::new(4, 5))
                .path("a")
                .help("mend it"),
            Diagnostic::warning("package::unknown-key", "odd").at(&source, Span::new(6, 9)),
            Diagnostic::warning("package::unused-file", "nowhere"),
        ];
        let log = log(found.iter().map(|diagnostic| ("p", diagnostic)));
        assert_eq!(log["version"], "2.1.0");
        let run = &log["runs"][0];
        let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0]["defaultConfiguration"]["level"], "error");
        let results = run["results"].as_array().unwrap();
        for result in results {
            let rule = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
            assert_eq!(rules[rule]["id"], result["ruleId"]);
        }
        assert_eq!(
            results[0]["locations"][0]["physicalLocation"],
            json!({"artifactLocation": {"uri": "a%20b/operator.yaml"},
                "region": {"startLine": 1, "startColumn": 4, "endLine": 1, "endColumn": 5}})
        );
        assert_eq!(results[0]["message"]["text"], "wrong (a); mend it");
        assert_eq!(
            results[2]["locations"][0]["physicalLocation"],
            json!({"artifactLocation": {"uri": "p/operator.yaml"}})
        );
    }

    #[test]
    fn paths_become_uris() {
        for (path, wanted) in [
            ("a/b.yaml", "a/b.yaml"),
            ("./a/b.yaml", "a/b.yaml"),
            ("/a/b.yaml", "file:///a/b.yaml"),
            ("a%b#c?.yaml", "a%25b%23c%3F.yaml"),
            ("ä:\n", "%C3%A4%3A%0A"),
        ] {
            assert_eq!(uri(path), wanted);
        }
    }
}
