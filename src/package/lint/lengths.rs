//! Reports names and labels that, by the limits of the CRD, can be longer than they may be.

use serde_json::Value;

use super::objects::{Names, Objects, pod_path};
use super::sketch::{At, Part};
use crate::crd::{self, Lookup};
use crate::diag::Diagnostic;
use crate::template::{Pattern, PatternPart, Segment};
use crate::{Child, Resource};

/// How long the name of an instance may be if its CRD has no limit.
const NAME: usize = 253;
/// How long the value of a label may be.
const LABEL: usize = 63;

/// The kinds that limit the length of a name: the maximum, and the reason.
const LIMITS: [(&str, usize, &str); 5] = [
    ("Service", 63, "it is a DNS label"),
    ("Namespace", 63, "it is a DNS label"),
    ("Job", 63, "it is a label of its pods"),
    ("CronJob", 52, "its Jobs have eleven characters more"),
    ("StatefulSet", 52, "a label of its pods has eleven characters more"),
];

/// Reports names and labels that can be too long.
pub(super) fn check(
    resource: &Resource,
    objects: &Objects<'_>,
    names: &Names<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let Some(schema) = crd::schema_of(&resource.crd, &resource.kind.version) else { return };
    for object in &objects.made {
        let (Some(child), Some(root)) = (resource.child(object.child), object.root) else { continue };
        labels(root, child, schema, names, found);
        let Some((kind, limit, why)) = LIMITS.iter().find(|(kind, ..)| *kind == object.kind) else {
            continue;
        };
        let length = longest(&object.name, schema, child);
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

/// Reports labels of an object and of its pods with the name of the instance that can be too long.
fn labels(root: Part<'_>, child: &Child, schema: &Value, names: &Names<'_>, found: &mut Vec<Diagnostic>) {
    let pod = child.kinds.first().and_then(pod_path).unwrap_or_default();
    for above in [&[][..], pod] {
        let path: Vec<&str> = above.iter().copied().chain(["metadata", "labels"]).collect();
        let At::Part(map) = root.at(&path) else { continue };
        map.each_entry(&mut |key, value| {
            let pattern = names.of_part(value);
            let length = longest(&pattern, schema, child);
            if length <= LABEL || !pattern.has_instance() || !value.is_scalar() {
                return;
            }
            let message = format!(
                "the value of the label `{key}` may have {length} characters, and {LABEL} are allowed"
            );
            let warning = Diagnostic::warning("package::name-length", message).located(value.location());
            found.push(warning.path("metadata.labels").help(
                "limit the name in the CRD (`maxLength` of metadata.name, or a rule self.metadata.name.size() <= 63), or use \
                 `| dns_label`, in the selector, too",
            ));
        });
    }
}

/// The maximum length that certainly occurs: parts without a known limit count as empty.
fn longest(pattern: &Pattern, schema: &Value, child: &Child) -> usize {
    pattern.0.iter().map(|part| longest_part(part, schema, child)).sum()
}

/// The maximum length of the name of an instance.
fn longest_name(schema: &Value) -> usize {
    if let Some(most) = schema.pointer("/properties/metadata/properties/name").and_then(most) {
        return most;
    }
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let texts: Vec<String> =
        rules.filter_map(|rule| Some(rule["rule"].as_str()?.split_whitespace().collect())).collect();
    let about_name = || texts.iter().filter(|text| text.contains("metadata.name"));
    // A regular expression with a count, such as `{1,30}`, may limit it, too.
    if about_name().any(|text| text.contains("matches(") && text.contains('{')) {
        return 1;
    }
    let limits = about_name().filter_map(|text| limit_of_rule(text));
    // A rule that is not understood may limit it, too.
    limits.min().unwrap_or(if about_name().next().is_some() { 1 } else { NAME })
}

/// The least limit that a CEL rule without spaces sets to the length of the name, such as `self.metadata.name.size()<=63`.
fn limit_of_rule(rule: &str) -> Option<usize> {
    let forms = ["self.metadata.name.size()<", "size(self.metadata.name)<"];
    forms.iter().flat_map(|form| rule.split(*form).skip(1)).filter_map(limit_of_comparison).min()
}

/// The limit by what follows `<`. `None` if it is computed.
fn limit_of_comparison(rest: &str) -> Option<usize> {
    let (number, is_below) = rest.strip_prefix('=').map_or((rest, true), |number| (number, false));
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    let (digits, after) = number.split_at(end);
    if after.starts_with(['+', '-', '*', '/', '%']) {
        return None;
    }
    let limit: usize = digits.parse().ok()?;
    Some(if is_below { limit.saturating_sub(1) } else { limit })
}

/// The maximum length of a part of a name that the CRD certainly allows.
fn longest_part(part: &PatternPart, schema: &Value, child: &Child) -> usize {
    match part {
        PatternPart::Text(text) => text.chars().count(),
        PatternPart::Instance => longest_name(schema),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn name_is_as_long_as_the_crd_allows() {
        let rules = |rule: &str| json!({"x-kubernetes-validations": [{"rule": rule}]});
        for (schema, wanted) in [
            (json!({}), NAME),
            (
                json!({"properties": {"metadata": {"properties": {"name": {"type": "string", "maxLength": 40}}}}}),
                40,
            ),
            (rules("self.metadata.name.matches('^[a-z]+$') && self.metadata.name.size() <= 52"), 52),
            (rules("size(self.metadata.name) < 31"), 30),
            (rules("self.metadata.name.size() <= 63 && self.metadata.name.size() <= 40"), 40),
            (rules("self.metadata.name.size() <= 63 - 20"), 1),
            (rules("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]{1,30}$')"), 1),
            (rules("self.metadata.name == 'main'"), 1),
            (rules("self.spec.size < 4"), NAME),
        ] {
            assert_eq!(longest_name(&schema), wanted, "{schema}");
        }
    }
}
