//! Changes of a CRD that Kubernetes never allows, regardless of the existing objects.

use serde_json::Value;

/// A change that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incompatible {
    /// The path in the CRD.
    pub path: String,
    /// The reason.
    pub message: String,
    /// What to do.
    pub help: &'static str,
}

/// The changes from a live CRD to a new one that are not allowed: a change of the scope. (Removing a version
/// in which objects may be stored is allowed after these are migrated; see [`super::interim_spec`].)
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
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_scope_is_incompatible() {
        let crd = |scope: &str| json!({"spec": {"scope": scope}});
        let paths = |new: &str| {
            incompatible(&crd("Namespaced"), &crd(new)).into_iter().map(|i| i.path).collect::<Vec<_>>()
        };
        assert!(paths("Namespaced").is_empty());
        assert_eq!(paths("Cluster"), ["spec.scope"]);
    }
}
