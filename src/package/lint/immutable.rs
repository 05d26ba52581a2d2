//! Reports immutable fields whose value comes from fields of the spec that may change.

use serde_json::Value;

use super::sketch::{At, Part, Text};
use crate::crd;
use crate::diag::{Diagnostic, Location, Source, Span};
use crate::template::{Engine, ReadPath, Segment};
use crate::template_scan::Outlines;
use crate::{ImmutableChange, OnImmutableChange, Resource, graph, holds_data};

/// The immutable fields, by kind.
const FIELDS: [(&str, &[&str]); 14] = [
    ("StatefulSet", &["spec", "serviceName"]),
    ("StatefulSet", &["spec", "podManagementPolicy"]),
    ("StatefulSet", &["spec", "selector"]),
    ("StatefulSet", &["spec", "volumeClaimTemplates"]),
    ("Deployment", &["spec", "selector"]),
    ("DaemonSet", &["spec", "selector"]),
    ("ReplicaSet", &["spec", "selector"]),
    ("PersistentVolumeClaim", &["spec", "storageClassName"]),
    ("PersistentVolumeClaim", &["spec", "accessModes"]),
    ("PersistentVolumeClaim", &["spec", "volumeMode"]),
    ("PersistentVolumeClaim", &["spec", "dataSource"]),
    ("Secret", &["type"]),
    ("RoleBinding", &["roleRef"]),
    ("ClusterRoleBinding", &["roleRef"]),
];

/// Variables that may keep the previous value of a field.
const STICKY: [&str; 7] = ["self", "record", "retained", "children", "refs", "previous", "run"];

/// Reports immutable fields that an edit of an instance would change.
pub(super) fn check(engine: &Engine, outlines: &Outlines, resource: &Resource, found: &mut Vec<Diagnostic>) {
    let Some(schema) = crd::schema_of(&resource.crd, &resource.kind.version) else { return };
    let here = Location::new(&Source::new("", ""), Span::new(0, 0));
    for child in &resource.children {
        if !matches!(child.on_immutable_change, OnImmutableChange::Word(ImmutableChange::Fail)) {
            continue;
        }
        let ([gvk], Some(root)) = (child.kinds.as_slice(), outlines.root(&child.template)) else { continue };
        for (kind, field) in FIELDS.iter().filter(|(kind, _)| *kind == &*gvk.kind) {
            let At::Part(value) = root.at(field) else { continue };
            for part in scalars(value) {
                let written = written(part);
                if !part.counts(written.iter().map(String::len).sum()) {
                    return;
                }
                let texts: Vec<_> = written.iter().filter_map(|text| engine.text(text, &here).ok()).collect();
                let reads =
                    graph::expand_lets(texts.iter().map(crate::template::Text::reads), &resource.lets);
                if reads.iter().any(|path| STICKY.contains(&path.root.as_str())) {
                    continue;
                }
                let Some(path) = reads.iter().find(|path| may_change(path, schema)) else { continue };
                let message = format!(
                    "{} of a {kind} cannot be changed, and `{path}` of an instance can",
                    field.join(".")
                );
                let warning = Diagnostic::warning("package::immutable", message).located(part.location());
                // An object that holds data must not be recreated.
                let other = if holds_data(gvk) {
                    format!("or keep the first value: {{{{ self.{} | default({path}) }}}}", field.join("."))
                } else {
                    format!("or set onImmutableChange: Recreate for `{}`", child.id)
                };
                found.push(warning.path(field.join(".")).help(format!(
                    "make the field immutable in the CRD: x-kubernetes-validations: [{{rule: self == oldSelf}}]; {other}"
                )));
                break;
            }
        }
    }
}

/// The scalars of a value.
fn scalars(value: Part<'_>) -> Vec<Part<'_>> {
    let mut found = vec![value];
    value.each_entry(&mut |_, part| found.push(part));
    found.retain(|part| part.is_scalar());
    found
}

/// The expressions that decide about a scalar: its own, and the lists of the loops around it.
fn written(part: Part<'_>) -> Vec<String> {
    let own = matches!(part.text(), Some(Text::Computed(_)))
        .then(|| part.written().trim_matches(['"', '\'']).to_owned());
    own.into_iter().chain(part.lists().into_iter().map(|list| format!("{{{{ {list} }}}}"))).collect()
}

/// Whether a path is a field of the spec that an edit may change.
fn may_change(path: &ReadPath, schema: &Value) -> bool {
    let steps = match (path.root.as_str(), path.segments.as_slice()) {
        ("spec", steps) => steps,
        ("instance", [Segment::Key(first), steps @ ..]) if first == "spec" => steps,
        _ => return false,
    };
    let keys: Vec<&str> = steps.iter().map_while(Segment::as_key).collect();
    let last = keys.last().copied().unwrap_or_default();
    let mut here = schema;
    for next in std::iter::once("spec").chain(keys).map(Some).chain([None]) {
        let rules = here.get("x-kubernetes-validations").and_then(Value::as_array);
        let texts = rules.into_iter().flatten().filter_map(|rule| rule["rule"].as_str());
        // A rule of a surrounding field counts if it mentions the field.
        let holds = |text: &str| {
            text.contains("oldSelf")
                && (next.is_none() || text.contains(last) || text.contains("self == oldSelf"))
        };
        if texts.into_iter().any(holds) {
            return false;
        }
        let Some(key) = next else { break };
        match here.get("properties").and_then(|fields| fields.get(key)) {
            Some(below) => here = below,
            None => return false, // the schema does not describe the field
        }
    }
    true
}
