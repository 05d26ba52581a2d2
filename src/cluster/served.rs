//! Everything that the server serves, by the names that people give it: two requests, however many kinds.

use std::sync::Arc;

use kube::core::discovery::v2::{APIGroupDiscovery, APIResourceDiscovery};

use super::{ApiKind, CallError, Cluster};

/// A resource of one version of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Its kind.
    pub kind: Arc<ApiKind>,
    /// The name for one of them.
    pub singular: String,
    /// Short names, such as `po`.
    pub short_names: Vec<String>,
    /// Whether it has a status subresource.
    pub has_status: bool,
}

impl Cluster {
    /// All resources that can be listed, the preferred version of each group first. Needs Kubernetes 1.30.
    ///
    /// # Errors
    /// If one of the two requests fails. Groups of an aggregated API server that does not answer are missing.
    pub async fn served(&self) -> Result<Vec<Served>, CallError> {
        Ok(self.groups().await?.into_iter().flat_map(resources).collect())
    }
}

fn resources(group: APIGroupDiscovery) -> Vec<Served> {
    let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
    let mut found = Vec::new();
    for version in group.versions {
        let number = version.version.unwrap_or_default();
        found.extend(version.resources.into_iter().filter_map(|resource| of(&name, &number, resource)));
    }
    found
}

fn of(group: &str, version: &str, resource: APIResourceDiscovery) -> Option<Served> {
    if !resource.verbs.iter().any(|verb| verb == "list") {
        return None;
    }
    // Some are served as a kind of another group, such as Scale.
    let kind = resource.response_kind?;
    let or = |own: Option<String>, other: &str| own.filter(|text| !text.is_empty()).unwrap_or(other.into());
    Some(Served {
        kind: Arc::new(ApiKind {
            group: or(kind.group, group),
            version: or(kind.version, version),
            kind: kind.kind?,
            plural: resource.resource?,
            namespaced: resource.scope.as_deref() == Some("Namespaced"),
        }),
        singular: resource.singular_resource.unwrap_or_default(),
        short_names: resource.short_names,
        has_status: resource.subresources.iter().any(|sub| sub.subresource.as_deref() == Some("status")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_group_gives_what_can_be_listed_in_every_version() {
        let resource = |name: &str, kind: &str, verbs: &[&str]| {
            json!({"resource": name, "responseKind": {"group": "", "version": "", "kind": kind},
                "scope": "Namespaced", "singularResource": "", "verbs": verbs, "shortNames": ["d"],
                "subresources": [{"subresource": "status", "verbs": ["get"]}]})
        };
        let group = serde_json::from_value(json!({
            "metadata": {"name": "apps"},
            "versions": [
                {"version": "v1", "resources": [resource("deployments", "Deployment", &["list"])]},
                {"version": "v1beta1", "resources": [
                    resource("deployments", "Deployment", &["list"]), resource("reviews", "Review", &["create"]),
                ]},
            ],
        }));
        let found = resources(group.unwrap());
        let paths: Vec<String> = found.iter().map(|served| served.kind.path(None, None).unwrap()).collect();
        assert_eq!(paths, ["/apis/apps/v1/deployments", "/apis/apps/v1beta1/deployments"]);
        assert!(found[0].has_status && found[0].kind.namespaced && found[0].short_names == ["d"]);
    }
}
