//! A resource that the server serves, with all its names.

use std::sync::Arc;

use kube_core::discovery::v2::APIResourceDiscovery;

use super::ApiKind;

/// A resource of one version of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Served {
    /// Its kind.
    pub kind: Arc<ApiKind>,
    /// The singular name.
    pub singular: String,
    /// Short names, such as `po`.
    pub short_names: Vec<String>,
    /// The categories of the resource, such as `all`.
    pub categories: Vec<String>,
    /// Whether it has a status subresource.
    pub has_status: bool,
    /// Whether its objects can be listed.
    pub is_listable: bool,
}

impl Served {
    /// Creates it from a resource of a group's version in aggregated discovery.
    pub(super) fn of(group: &str, version: &str, resource: APIResourceDiscovery) -> Option<Self> {
        // The kind of some resources is in another group, such as Scale.
        let kind = resource.response_kind?;
        let or =
            |own: Option<String>, other: &str| own.filter(|text| !text.is_empty()).unwrap_or(other.into());
        Some(Self {
            kind: Arc::new(ApiKind {
                group: or(kind.group, group),
                version: or(kind.version, version),
                kind: kind.kind?,
                plural: resource.resource?,
                namespaced: resource.scope.as_deref() == Some("Namespaced"),
            }),
            singular: resource.singular_resource.unwrap_or_default(),
            short_names: resource.short_names,
            categories: resource.categories,
            has_status: resource.subresources.iter().any(|sub| sub.subresource.as_deref() == Some("status")),
            is_listable: resource.verbs.iter().any(|verb| verb == "list"),
        })
    }
}

#[cfg(test)]
mod tests {
    use kube_core::discovery::v2::APIGroupDiscovery;
    use serde_json::json;

    use crate::api::{Apis, Served};

    #[test]
    fn listable_resources_of_every_version_are_found() {
        let resource = |name: &str, kind: &str, verbs: &[&str]| {
            json!({"resource": name, "responseKind": {"group": "", "version": "", "kind": kind},
                "scope": "Namespaced", "singularResource": "", "verbs": verbs, "shortNames": ["d"],
                "subresources": [{"subresource": "status", "verbs": ["get"]}]})
        };
        let group: APIGroupDiscovery = serde_json::from_value(json!({
            "metadata": {"name": "apps"},
            "versions": [
                {"version": "v1", "resources": [resource("deployments", "Deployment", &["list"])]},
                {"version": "v1beta1", "resources": [
                    resource("deployments", "Deployment", &["list"]), resource("reviews", "Review", &["create"]),
                ]},
            ],
        }))
        .unwrap();
        let apis = Apis::new([group]);
        assert_eq!(apis.has("apps/v1beta1/Review"), Ok(Some(true)));
        let found: Vec<&Served> = apis.listable().collect();
        let names: Vec<String> = found.iter().map(|served| served.kind.to_string()).collect();
        assert_eq!(names, ["Deployment.apps/v1", "Deployment.apps/v1beta1"]);
        assert!(found[0].has_status && found[0].kind.namespaced && found[0].short_names == ["d"]);
    }
}
