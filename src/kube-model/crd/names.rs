//! The names of CRDs.

use std::collections::BTreeSet;

use serde_json::Value;

/// Sets the names of `spec.names` that a CRD leaves to the API server.
pub fn default_names(names: &mut Value) {
    let kind = names.get("kind").and_then(Value::as_str).filter(|kind| !kind.is_empty());
    let Some(kind) = kind.map(str::to_owned) else { return };
    for (field, default) in [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))] {
        if names.get(field).and_then(Value::as_str).is_none_or(str::is_empty) {
            names[field] = default.into();
        }
    }
}

/// The names of the resource (plural, singular, short names) and those of the kind (kind, list kind) in `spec.names`: within a
/// group, CRDs share none of the ones, and none of the others.
pub fn unique_names(names: &Value) -> [BTreeSet<&str>; 2] {
    let of = |fields: [&'static str; 2]| fields.into_iter().filter_map(|field| names[field].as_str());
    let short = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let both = [of(["plural", "singular"]).chain(short).collect(), of(["kind", "listKind"]).collect()];
    both.map(|mut names: BTreeSet<&str>| {
        names.remove("");
        names
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_completed_and_told_apart() {
        let mut names = json!({"kind": "Web", "plural": "webs", "singular": "", "shortNames": ["w"]});
        default_names(&mut names);
        let [resources, kinds] = unique_names(&names);
        assert_eq!(resources, BTreeSet::from(["w", "web", "webs"]));
        assert_eq!(kinds, BTreeSet::from(["Web", "WebList"]));
    }
}
