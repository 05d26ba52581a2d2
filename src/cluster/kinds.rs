//! Which kinds the server serves, and under which path.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{ApiCapabilities, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{CallError, Class, Cluster, Served};
use crate::crd;
use crate::diag::did_you_mean;

/// A kind as the server serves it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Kind, singular and in camel case.
    pub kind: String,
    /// Resource name in paths.
    pub plural: String,
    /// Whether its objects lie in namespaces.
    pub namespaced: bool,
}

impl ApiKind {
    /// The kind of CRDs.
    pub fn crd() -> Self {
        Self {
            group: "apiextensions.k8s.io".into(),
            version: "v1".into(),
            kind: "CustomResourceDefinition".into(),
            plural: "customresourcedefinitions".into(),
            namespaced: false,
        }
    }

    /// Whether it comes with Kubernetes itself: only a new release of the server changes its fields.
    pub fn is_built_in(&self) -> bool {
        // Groups of CRDs end in `k8s.io`, too, even `autoscaling.k8s.io`.
        matches!(
            &*self.group,
            "" | "apps"
                | "autoscaling"
                | "batch"
                | "coordination.k8s.io"
                | "discovery.k8s.io"
                | "networking.k8s.io"
                | "policy"
                | "rbac.authorization.k8s.io"
                | "scheduling.k8s.io"
                | "storage.k8s.io"
        )
    }

    /// `group/version`, or `version` in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// As the client library wants it.
    pub fn resource(&self) -> kube::core::ApiResource {
        let mut resource = kube::core::ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(&self.group, &self.version, &self.kind),
            &self.plural,
        );
        resource.api_version = self.api_version();
        resource
    }
}

impl From<&crd::Kind> for ApiKind {
    /// The kind that a CRD brings.
    fn from(kind: &crd::Kind) -> Self {
        Self {
            group: kind.group.clone(),
            version: kind.version.clone(),
            kind: kind.kind.clone(),
            plural: kind.plural.clone(),
            namespaced: kind.namespaced,
        }
    }
}

impl fmt::Display for ApiKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.api_version())
    }
}

/// Splits an `apiVersion` into group and version.
pub(super) fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// What discovery has said so far. Only found kinds are remembered: a missing one may come later.
#[derive(Default)]
pub struct Kinds {
    found: Mutex<HashMap<(String, String), Found>>,
    /// Of kinds that were not found: what may have been meant.
    hints: Mutex<HashMap<(String, String), String>>,
}

struct Found {
    kind: Arc<ApiKind>,
    /// Whether a controller says in the status how far it is.
    reports: bool,
}

/// What is read of a CRD, which may have a megabyte.
#[derive(Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionVersion {
    name: String,
    #[serde(default)]
    schema: DefinitionSchema,
}

#[derive(Deserialize, Default)]
struct DefinitionSchema {
    #[serde(default, rename = "openAPIV3Schema")]
    root: RootSchema,
}

#[derive(Deserialize, Default)]
struct RootSchema {
    #[serde(default)]
    properties: RootFields,
    #[serde(default, rename = "x-kubernetes-preserve-unknown-fields")]
    open: bool,
}

#[derive(Deserialize, Default)]
struct RootFields {
    status: Option<StatusSchema>,
}

#[derive(Deserialize)]
struct StatusSchema {
    properties: Option<StatusFields>,
    #[serde(default, rename = "x-kubernetes-preserve-unknown-fields")]
    open: bool,
}

#[derive(Deserialize)]
struct StatusFields {
    conditions: Option<IgnoredAny>,
    #[serde(rename = "observedGeneration")]
    observed_generation: Option<IgnoredAny>,
}

impl Definition {
    /// Whether a version's status has a place for what [`crate::readiness::of_custom`] waits for. (That of a
    /// `ServiceMonitor` or an `HTTPRoute` has none.)
    fn has_place(&self, version: &str) -> bool {
        let Some(version) = self.spec.versions.iter().find(|known| known.name == version) else {
            return true;
        };
        let root = &version.schema.root;
        match &root.properties.status {
            None => root.open,
            Some(StatusSchema { properties: None, open }) => *open,
            Some(StatusSchema { properties: Some(fields), open }) => {
                *open || fields.conditions.is_some() || fields.observed_generation.is_some()
            }
        }
    }
}

impl Kinds {
    /// The kind of an `apiVersion` and `kind`; `None` if the server does not serve it.
    pub async fn find(
        &self,
        client: &kube::Client,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<Arc<ApiKind>>, CallError> {
        match self.known(api_version, kind) {
            Some(found) => Ok(Some(found)),
            None => self.ask(client, api_version, kind).await,
        }
    }

    /// The same, but discovery is asked whatever was found before; what it says is remembered if it has the kind.
    pub async fn ask(
        &self,
        client: &kube::Client,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<Arc<ApiKind>>, CallError> {
        let (group, version) = split_api_version(api_version);
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let deadline = super::DEADLINE;
        let answer = tokio::time::timeout(deadline, kube::discovery::pinned_kind(client, &gvk))
            .await
            .map_err(|_| CallError::timeout(deadline))?;
        match answer {
            Ok((resource, capabilities)) => self.keep(client, resource, &capabilities).await.map(Some),
            Err(kube::Error::Discovery(_)) => Ok(None),
            Err(e) => match CallError::from_kube(&e) {
                e if e.class == Class::NotFound => Ok(None),
                e => Err(e),
            },
        }
    }

    /// The kind in whatever version of its group the server has it now, for one that is not served any more.
    pub async fn in_any_version(
        &self,
        client: &kube::Client,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<Arc<ApiKind>>, CallError> {
        let (group, _) = split_api_version(api_version);
        if group.is_empty() {
            return Ok(None);
        }
        let deadline = super::DEADLINE;
        let answer = tokio::time::timeout(deadline, kube::discovery::group(client, group))
            .await
            .map_err(|_| CallError::timeout(deadline))?;
        let served = match answer {
            Ok(served) => served,
            Err(kube::Error::Discovery(_)) => return Ok(None),
            // Also 404: the group is there, and one of its versions is not any more, which says nothing of the others.
            Err(e) => return Err(CallError::from_kube(&e)),
        };
        let found = served
            .versions()
            .flat_map(|version| served.versioned_resources(version))
            .find(|(resource, _)| resource.kind == kind);
        match found {
            Some((resource, capabilities)) => self.keep(client, resource, &capabilities).await.map(Some),
            None => Ok(None),
        }
    }

    /// Records what discovery has said.
    async fn keep(
        &self,
        client: &kube::Client,
        resource: ApiResource,
        capabilities: &ApiCapabilities,
    ) -> Result<Arc<ApiKind>, CallError> {
        let kind = ApiKind {
            group: resource.group,
            version: resource.version,
            kind: resource.kind,
            plural: resource.plural,
            namespaced: capabilities.scope == Scope::Namespaced,
        };
        let has_status = capabilities.subresources.iter().any(|(sub, _)| sub.plural == "status");
        let reports = has_status && reports(client, &kind).await?;
        Ok(self.remember(kind, reports))
    }

    /// Asks, once, what may have been meant by a kind that the server does not serve. It is only for messages, so
    /// that it could not be asked is no matter.
    pub async fn look_for_hint(&self, cluster: &Cluster, api_version: &str, kind: &str) {
        let name = (api_version.to_owned(), kind.to_owned());
        if lock(&self.hints).contains_key(&name) {
            return;
        }
        if let Ok(served) = cluster.served().await {
            let hint = hint(&served, api_version, kind);
            lock(&self.hints).insert(name, hint);
        }
    }

    /// What to do about a kind that the server does not serve.
    pub fn hint(&self, api_version: &str, kind: &str) -> String {
        let hint = lock(&self.hints).get(&(api_version.to_owned(), kind.to_owned())).cloned();
        hint.unwrap_or_else(|| INSTALLED.to_owned())
    }

    fn remember(&self, kind: ApiKind, reports: bool) -> Arc<ApiKind> {
        let kind = Arc::new(kind);
        lock(&self.hints).remove(&(kind.api_version(), kind.kind.clone()));
        let found = Found { kind: Arc::clone(&kind), reports };
        self.lock().insert((kind.api_version(), kind.kind.clone()), found);
        kind
    }

    /// The kind if an earlier [`Self::find`] found it.
    pub fn known(&self, api_version: &str, kind: &str) -> Option<Arc<ApiKind>> {
        self.lock().get(&(api_version.to_owned(), kind.to_owned())).map(|found| Arc::clone(&found.kind))
    }

    /// Whether of a kind that was found a controller says in the status how far it is.
    pub fn reports_status(&self, api_version: &str, kind: &str) -> bool {
        self.lock().get(&(api_version.to_owned(), kind.to_owned())).is_some_and(|found| found.reports)
    }

    /// Forgets a kind whose CRD has changed or is gone: the next [`Self::find`] asks again.
    pub fn forget(&self, api_version: &str, kind: &str) {
        self.lock().remove(&(api_version.to_owned(), kind.to_owned()));
    }

    /// Records a kind that is known without discovery, such as one just registered.
    pub fn insert(&self, kind: ApiKind) -> Arc<ApiKind> {
        self.remember(kind, true)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Found>> {
        lock(&self.found)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is said of a kind that is like no other.
const INSTALLED: &str = "is its CRD installed?";

/// What may have been meant by a kind that is not served: the same of another version or group, or one whose name is
/// near, of the same group before those of others.
fn hint(served: &[Served], api_version: &str, kind: &str) -> String {
    let (group, _) = split_api_version(api_version);
    let versions = |is_meant: &dyn Fn(&ApiKind) -> bool| {
        let mut all: Vec<String> =
            served.iter().filter(|s| is_meant(&s.kind)).map(|s| s.kind.api_version()).collect();
        all.sort();
        all.dedup();
        all
    };
    let same = versions(&|other| other.kind == kind && other.group == group);
    let elsewhere = versions(&|other| other.kind == kind);
    match (same.as_slice(), elsewhere.as_slice()) {
        ([], []) => {}
        ([], [one]) => return format!("did you mean {kind} of {one}?"),
        ([], many) => return format!("did you mean {kind} of one of {}?", many.join(", ")),
        ([one], _) => return format!("did you mean {one}?"),
        (many, _) => return format!("it serves these versions: {}", many.join(", ")),
    }
    let near = |is_meant: &dyn Fn(&ApiKind) -> bool| {
        let names = served.iter().filter(|s| is_meant(&s.kind)).map(|s| s.kind.kind.as_str());
        let name = did_you_mean(kind, names)?;
        let of = versions(&|other| other.kind == name && is_meant(other));
        Some(format!("did you mean {name} of {}? If not, install its CRD", of.join(" or ")))
    };
    near(&|other| other.group == group).or_else(|| near(&|_| true)).unwrap_or_else(|| INSTALLED.to_owned())
}

/// Whether the controller of a kind that has a status subresource says there how far it is. One without a CRD, or whose
/// CRD may not be read, is taken to.
pub(super) async fn reports(client: &kube::Client, kind: &ApiKind) -> Result<bool, CallError> {
    // Istio writes a status if it is told to.
    if kind.group.ends_with(".istio.io") {
        return Ok(false);
    }
    if crate::readiness::is_built_in(&kind.group) {
        return Ok(true);
    }
    let path = ApiKind::crd().path(None, Some(&format!("{}.{}", kind.plural, kind.group)))?;
    let Ok(request) = http::Request::get(path).body(Vec::new()) else { return Ok(true) };
    let deadline = super::DEADLINE;
    let answer = tokio::time::timeout(deadline, client.request::<Definition>(request)).await;
    match answer.map_err(|_| CallError::timeout(deadline))? {
        Ok(crd) => Ok(crd.has_place(&kind.version)),
        Err(kube::Error::SerdeError(_)) => Ok(true),
        Err(error) => match CallError::from_kube(&error) {
            // It may be answered the next time; what is found out now is remembered.
            error if error.class == Class::Retry => Err(error),
            _ => Ok(true),
        },
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_kind_that_is_not_served_is_told_what_may_have_been_meant() {
        let kind = |group: &str, version: &str, kind: &str| Served {
            kind: Arc::new(ApiKind {
                group: group.into(),
                version: version.into(),
                kind: kind.into(),
                plural: String::new(),
                namespaced: true,
            }),
            singular: String::new(),
            short_names: Vec::new(),
            has_status: false,
        };
        let served = [
            kind("", "v1", "Service"),
            kind("apps", "v1", "Deployment"),
            kind("networking.k8s.io", "v1", "Ingress"),
            kind("serving.example.org", "v1", "Service"),
            kind("example.org", "v1", "Gadget"),
            kind("example.org", "v2", "Gadget"),
        ];
        for (api_version, name, expected) in [
            ("apps/v1", "Deploymnet", "did you mean Deployment of apps/v1? If not, install its CRD"),
            ("v1", "Deployment", "did you mean Deployment of apps/v1?"),
            ("extensions/v1beta1", "Ingress", "did you mean Ingress of networking.k8s.io/v1?"),
            ("v2", "Service", "did you mean v1?"),
            ("other.org/v1", "Service", "did you mean Service of one of serving.example.org/v1, v1?"),
            ("example.org/v1beta1", "Gadget", "it serves these versions: example.org/v1, example.org/v2"),
            (
                "example.org/v1",
                "Gaget",
                "did you mean Gadget of example.org/v1 or example.org/v2? If not, install its CRD",
            ),
            ("monitoring.coreos.com/v1", "ServiceMonitor", INSTALLED),
        ] {
            assert_eq!(hint(&served, api_version, name), expected, "{api_version} {name}");
        }
    }

    /// A server that lists the group `example.org` with these versions, of which it serves those that have a list.
    fn client(versions: &'static [(&'static str, bool)]) -> kube::Client {
        let answer = move |path: &str| -> Option<Value> {
            let name =
                |version: &str| json!({"groupVersion": format!("example.org/{version}"), "version": version});
            if path == "/apis" {
                let group = |all: Vec<Value>| json!({"name": "example.org", "versions": all});
                let groups: Vec<Value> = if versions.is_empty() {
                    Vec::new()
                } else {
                    vec![group(versions.iter().map(|(version, _)| name(version)).collect())]
                };
                return Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}));
            }
            let (version, _) =
                versions.iter().find(|(version, served)| *served && path.ends_with(version))?;
            let gadget = json!({"name": "gadgets", "singularName": "gadget", "namespaced": true, "kind": "Gadget",
                "verbs": ["get", "list", "watch"]});
            let mut list = json!({"kind": "APIResourceList", "apiVersion": "v1", "resources": [gadget]});
            list["groupVersion"] = name(version)["groupVersion"].take();
            Some(list)
        };
        let service = tower::service_fn(move |request: Request<Body>| {
            let (code, body) = match answer(request.uri().path()) {
                Some(body) => (200, body),
                None => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "no"})),
            };
            let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            async move { response.map_err(tower::BoxError::from) }
        });
        kube::Client::new(service, "default")
    }

    #[test]
    fn some_statuses_have_no_place_for_what_is_waited_for() {
        let of = |schema: Value| {
            let version = json!({"name": "v1", "served": true, "schema": {"openAPIV3Schema": schema}});
            let crd: Definition =
                serde_json::from_value(json!({"kind": "x", "spec": {"group": "g", "versions": [version]}}))
                    .unwrap();
            assert!(crd.has_place("v2"), "unknown");
            crd.has_place("v1")
        };
        let open = "x-kubernetes-preserve-unknown-fields";
        let status = |status: Value| json!({"type": "object", "properties": {"spec": {}, "status": status}});
        for (schema, wanted) in [
            (json!({"type": "object"}), false),
            (json!({"type": "object", open: true}), true),
            (status(json!({"type": "object"})), false),
            (status(json!({"type": "object", open: true})), true),
            (status(json!({"properties": {"bindings": {"type": "array"}}})), false),
            (status(json!({"properties": {"phase": {"type": "string"}}, open: true})), true),
            (status(json!({"properties": {"conditions": {"type": "array"}}})), true),
            (status(json!({"properties": {"observedGeneration": {"type": "integer"}, "x": {}}})), true),
        ] {
            assert_eq!(of(schema.clone()), wanted, "{schema}");
        }
    }

    #[tokio::test]
    async fn a_version_that_goes_says_nothing_of_the_others() {
        let kinds = Kinds::default();
        let of = async |versions, kind| kinds.in_any_version(&client(versions), "example.org/v1", kind).await;
        let found = of(&[("v1", true), ("v2", true)], "Gadget").await.unwrap().unwrap();
        assert_eq!(found.group, "example.org");
        assert_eq!(of(&[("v2", true)], "Gadget").await.unwrap().unwrap().version, "v2");
        assert!(of(&[("v2", true)], "Widget").await.unwrap().is_none());
        assert!(of(&[], "Gadget").await.unwrap().is_none());
        // Discovery still lists a version that is gone.
        assert!(of(&[("v1", false), ("v2", true)], "Gadget").await.is_err());
    }
}
