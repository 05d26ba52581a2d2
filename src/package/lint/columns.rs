//! Printer columns and scale subresource paths whose field is never set.

use std::sync::Arc;

use serde_json::Value;

use crate::StatusField;
use crate::crd::{self, Lookup};
use crate::diag::{Diagnostic, Source, did_you_mean};
use crate::locate::place;
use crate::yaml::Node;

/// The status fields that Operetta sets.
const OURS: [&str; 5] = ["conditions", "observedGeneration", "revision", "plan", "history"];

/// A CRD with its location.
pub(crate) struct Written<'a> {
    pub(crate) crd: &'a Value,
    pub(crate) node: &'a Node,
    pub(crate) source: &'a Arc<Source>,
}

/// Reports the columns and scale paths of a CRD that are always empty, or missing.
pub(crate) fn columns(written: &Written<'_>, status: &[StatusField], adopted: bool) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let versions = written.crd.pointer("/spec/versions").and_then(Value::as_array);
    for (index, version) in versions.into_iter().flatten().enumerate() {
        let schema = version.pointer("/schema/openAPIV3Schema");
        let base = format!("spec.versions[{index}]");
        let columns = version["additionalPrinterColumns"].as_array();
        let mut names: Vec<&str> = Vec::new();
        for (column, value) in columns.into_iter().flatten().enumerate() {
            let at = format!("{base}.additionalPrinterColumns[{column}]");
            let name = value["name"].as_str().unwrap_or_default();
            if names.contains(&name) {
                let message = format!("two columns have the name {name}");
                found.push(diagnostic(
                    written,
                    &format!("{at}.name"),
                    message,
                    "rename one of them, or remove it",
                ));
            }
            names.push(name);
            let Some(path) = value["jsonPath"].as_str() else { continue };
            if let Some((problem, help)) = problem(path, schema, status, adopted) {
                let message = format!("the column {name} stays empty: {problem}");
                found.push(diagnostic(written, &format!("{at}.jsonPath"), message, &help));
            }
        }
        let scale = version["subresources"].get("scale").filter(|_| !adopted);
        if scale.is_some_and(|scale| scale.get("labelSelectorPath").is_none()) {
            let message = "`scale` has no labelSelectorPath: an autoscaler cannot find the pods".to_owned();
            let help = "add labelSelectorPath: .status.selector, and to `status` of the resource: selector: \"'app=' ~ name\"";
            let at = format!("{base}.subresources.scale");
            found.push(Diagnostic { code: "package::scale", ..diagnostic(written, &at, message, help) });
        }
        for key in ["statusReplicasPath", "labelSelectorPath"] {
            let Some(path) = version["subresources"]["scale"][key].as_str() else { continue };
            if let Some((problem, help)) = problem(path, schema, status, adopted) {
                let message = format!("{key} has no value: {problem}");
                found.push(diagnostic(written, &format!("{base}.subresources.scale.{key}"), message, &help));
            }
        }
    }
    found
}

fn diagnostic(written: &Written<'_>, path: &str, message: String, help: &str) -> Diagnostic {
    Diagnostic::warning("package::printer-column", message)
        .at(written.source, place(written.node, path))
        .path(path)
        .help(help)
}

/// The reason why a path never has a value, and how to fix it.
fn problem(
    path: &str,
    schema: Option<&Value>,
    status: &[StatusField],
    adopted: bool,
) -> Option<(String, String)> {
    let plain = path.trim().trim_start_matches('{').trim_end_matches('}').strip_prefix('.')?;
    let plain = plain.split(['[', '@', '?', '*']).next().unwrap_or_default().trim_end_matches('.');
    let keys: Vec<&str> = plain.split('.').collect();
    match keys.as_slice() {
        ["status", rest @ ..] if !adopted => {
            let first = rest.first()?;
            if OURS.contains(first) {
                return None;
            }
            let fits = |field: &StatusField| field.name.split('.').zip(rest).all(|(name, key)| name == *key);
            if status.iter().any(fits) {
                return None;
            }
            let names = status.iter().map(|field| field.name.as_str());
            let help = match did_you_mean(&rest.join("."), names) {
                Some(near) => format!("did you mean .status.{near}?"),
                None => format!("add it: status: {{{}: ...}} of the resource", rest.join(".")),
            };
            Some((format!("nothing sets status.{}", rest.join(".")), help))
        }
        ["spec", ..] => match crd::lookup(schema?, &keys) {
            Lookup::Unknown { candidates, .. } => {
                let last = keys.last().copied().unwrap_or_default();
                let help = match did_you_mean(last, candidates.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "name a field of the schema".to_owned(),
                };
                Some((format!("the schema has no {plain}"), help))
            }
            _ => None,
        },
        _ => None,
    }
}
