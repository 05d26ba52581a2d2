//! Changes of a CRD that Kubernetes does not allow, whatever the objects of the kind hold.

use serde_json::Value;

/// A change that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incompatible {
    /// Its path in the CRD.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
    /// What to do.
    pub help: &'static str,
}

/// The changes from a live CRD to a new one that are not allowed: another scope, and versions that are gone
/// although objects may be stored in them.
pub fn incompatible(live: &Value, new: &Value) -> Vec<Incompatible> {
    let mut found = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (before, after) = (text(&live["spec"]["scope"]), text(&new["spec"]["scope"]));
    if before != after && !before.is_empty() {
        found.push(Incompatible {
            path: "spec.scope".to_owned(),
            message: format!("changes from {before} to {after}, and the scope of a kind cannot change"),
            help: "keep the scope, or give the new kind another plural or group",
        });
    }
    let names: Vec<&str> = new["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|version| version["name"].as_str())
        .collect();
    let stored = live["status"]["storedVersions"].as_array().into_iter().flatten();
    for version in stored.filter_map(Value::as_str).filter(|version| !names.contains(version)) {
        found.push(Incompatible {
            path: format!("spec.versions[name={version}]"),
            message: "is removed, and objects may be stored in it (status.storedVersions)".to_owned(),
            help: "keep the version, with `served: false` if nobody is to use it. To remove it, write each instance once \
                   while another version has `storage: true`, then remove it from status.storedVersions of the CRD",
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scope_and_stored_versions_must_stay() {
        let live = json!({"spec": {"scope": "Namespaced", "versions": [{"name": "v1"}, {"name": "v2"}]},
            "status": {"storedVersions": ["v1", "v2"]}});
        let new = |scope: &str, versions: &[&str]| {
            let versions: Vec<Value> = versions.iter().map(|name| json!({"name": name})).collect();
            json!({"spec": {"scope": scope, "versions": versions}})
        };
        let paths = |new: &Value| incompatible(&live, new).into_iter().map(|i| i.path).collect::<Vec<_>>();
        assert!(paths(&new("Namespaced", &["v1", "v2", "v3"])).is_empty());
        assert_eq!(paths(&new("Cluster", &["v2", "v3"])), ["spec.scope", "spec.versions[name=v1]"]);
    }
}
