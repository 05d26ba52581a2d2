//! The versions in which objects of a kind are stored.
//!
//! The API server stores an object in the version that was the storage version when the object was last written, and
//! lists all such versions in `status.storedVersions`. A version can be removed only after all objects have been
//! written in another version.

use serde_json::{Value, json};

use super::versions;

/// The name of the version in which objects are stored when they are written.
pub fn storage_version(crd: &Value) -> Option<&str> {
    versions(crd).find(|version| version["storage"] == true)?["name"].as_str()
}

/// The versions, other than the storage version, in which objects may be stored.
pub fn outdated_versions(crd: &Value) -> Vec<&str> {
    let storage = storage_version(crd);
    let stored = crd["status"]["storedVersions"].as_array().into_iter().flatten();
    stored.filter_map(Value::as_str).filter(|version| Some(*version) != storage).collect()
}

/// The spec to write before `new`, if `new` removes versions in which objects may be stored. It is `new` with
/// these versions, so that the objects can be read and then written in the new storage version.
pub fn interim_spec(live: &Value, new: &Value) -> Option<Value> {
    let is_kept = |name: &str| versions(new).any(|version| version["name"] == name);
    let stored = live["status"]["storedVersions"].as_array().into_iter().flatten();
    let removed: Vec<Value> = stored
        .filter_map(Value::as_str)
        .filter(|name| !is_kept(name))
        .filter_map(|name| versions(live).find(|version| version["name"] == name))
        .map(|version| {
            let mut version = version.clone();
            version["storage"] = false.into();
            version
        })
        .collect();
    if removed.is_empty() {
        return None;
    }
    let mut spec = new["spec"].clone();
    spec["versions"].as_array_mut()?.extend(removed);
    // The present conversion of the removed versions is needed until they are removed.
    if spec["conversion"].is_null() && live["spec"]["conversion"]["strategy"] == "Webhook" {
        spec["conversion"] = live["spec"]["conversion"].clone();
    }
    Some(spec)
}

/// The CRD as if `version` were the storage version, to compare the two schemas.
pub fn stored_in(crd: &Value, version: &str) -> Value {
    let mut crd = json!({"spec": crd["spec"]});
    for known in crd["spec"]["versions"].as_array_mut().into_iter().flatten() {
        known["storage"] = (known["name"] == version).into();
    }
    crd
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(versions: &[(&str, bool)], stored: &[&str]) -> Value {
        let versions: Vec<Value> = versions
            .iter()
            .map(|(name, storage)| json!({"name": name, "storage": storage, "served": true}))
            .collect();
        json!({"spec": {"versions": versions}, "status": {"storedVersions": stored}})
    }

    #[test]
    fn a_stored_version_stays_in_the_interim_spec() {
        let live = crd(&[("v1alpha1", true)], &["v1alpha1"]);
        let new = crd(&[("v1", true)], &[]);
        let interim = interim_spec(&live, &new).unwrap();
        assert_eq!(
            interim["versions"],
            json!([
                {"name": "v1", "storage": true, "served": true},
                {"name": "v1alpha1", "storage": false, "served": true},
            ])
        );
        // After the objects are migrated, the version can be removed.
        assert_eq!(interim_spec(&crd(&[("v1", true), ("v1alpha1", false)], &["v1"]), &new), None);
        assert_eq!(interim_spec(&live, &crd(&[("v1", true), ("v1alpha1", false)], &[])), None);
    }

    #[test]
    fn stored_versions_except_the_storage_version_are_outdated() {
        let live = crd(&[("v1alpha1", false), ("v1", true)], &["v1alpha1", "v1"]);
        assert_eq!((storage_version(&live), outdated_versions(&live)), (Some("v1"), vec!["v1alpha1"]));
        assert_eq!(storage_version(&stored_in(&live, "v1alpha1")), Some("v1alpha1"));
    }
}
