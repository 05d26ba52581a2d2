//! Reports names that, by the limits of the CRD, can be longer than their kind allows.

use serde_json::Value;

use super::objects::Objects;
use super::sketch::At;
use crate::crd::{self, Lookup};
use crate::diag::Diagnostic;
use crate::template::{PatternPart, Segment};
use crate::{Child, Resource};

/// The kinds that limit the length of a name: the maximum, and the reason.
const LIMITS: [(&str, usize, &str); 5] = [
    ("Service", 63, "it is a DNS label"),
    ("Namespace", 63, "it is a DNS label"),
    ("Job", 63, "it is a label of its pods"),
    ("CronJob", 52, "its Jobs have eleven characters more"),
    ("StatefulSet", 52, "a label of its pods has eleven characters more"),
];

/// Reports names that can be too long.
pub(super) fn check(resource: &Resource, objects: &Objects<'_>, found: &mut Vec<Diagnostic>) {
    let Some(schema) = crd::schema_of(&resource.crd, &resource.kind.version) else { return };
    for object in &objects.made {
        let Some((kind, limit, why)) = LIMITS.iter().find(|(kind, ..)| *kind == object.kind) else {
            continue;
        };
        let (Some(child), Some(root)) = (resource.child(object.child), object.root) else { continue };
        let parts = object.name.0.iter().map(|part| longest(part, schema, child));
        // The length that certainly occurs: parts without a known limit count as empty.
        let length: usize = parts.sum();
        if length <= *limit {
            continue;
        }
        let At::Part(name) = root.at(&["metadata", "name"]) else { continue };
        let message =
            format!("the name of the {kind} may have {length} characters, and {limit} are allowed: {why}");
        let warning = Diagnostic::warning("package::name-length", message).located(name.location());
        found.push(warning.path("metadata.name").help(
            "lower the `maxLength` of the CRD's fields in it (of metadata.name, too), shorten it, or use `| dns_label`",
        ));
    }
}

/// The maximum length of a part of a name that the CRD certainly allows.
fn longest(part: &PatternPart, schema: &Value, child: &Child) -> usize {
    match part {
        PatternPart::Text(text) => text.chars().count(),
        PatternPart::Instance => {
            schema.pointer("/properties/metadata/properties/name").and_then(most).unwrap_or(1)
        }
        PatternPart::Path(root, steps) => {
            let item = || {
                let each = child.for_each.as_ref().filter(|each| each.as_ == *root)?;
                let list = each.in_.text()?.strip_prefix("spec.")?;
                list.split('.').all(is_name).then(|| list.split('.').chain(["*"]).collect::<Vec<_>>())
            };
            let Some(mut keys) = (if root == "spec" { Some(Vec::new()) } else { item() }) else { return 0 };
            keys.insert(0, "spec");
            for step in steps {
                let Segment::Key(key) = step else { return 0 };
                keys.push(key);
            }
            match crd::lookup(schema, &keys) {
                Lookup::Known(field) => most(field).unwrap_or(0),
                _ => 0,
            }
        }
        PatternPart::Unknown => 0,
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The maximum length of the values of a field.
fn most(field: &Value) -> Option<usize> {
    let limit = field.get("maxLength").and_then(Value::as_u64).and_then(|most| usize::try_from(most).ok());
    let values = field.get("enum").and_then(Value::as_array);
    let longest = values
        .and_then(|values| values.iter().filter_map(Value::as_str).map(|text| text.chars().count()).max());
    longest.or(limit)
}
