//! The kinds that the server serves, with their paths.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::Cluster;
use super::error::call_error;
use super::path::path;
use crate::api::{ApiKind, Apis, BuiltIn, CallError, Class, Gvk, Served};

/// How old an answer of discovery may be if it contains the kind: many kinds are searched at once.
const RECENT: Duration = Duration::from_secs(2);

/// The answers of discovery. Only found kinds are remembered: a missing one may appear later.
#[derive(Default)]
pub struct Kinds {
    found: Mutex<HashMap<Gvk, Found>>,
    /// Suggestions for kinds that were not found.
    hints: Mutex<HashMap<Gvk, String>>,
    /// The latest answer. Locked during the request, because many callers need one answer.
    answer: tokio::sync::Mutex<Option<Answer>>,
}

/// An answer of discovery.
struct Answer {
    /// The time of the request.
    asked: Instant,
    apis: Result<Arc<Apis>, CallError>,
}

struct Found {
    kind: Arc<ApiKind>,
    /// Whether its controller reports progress in the status.
    reports: bool,
}

/// The fields that are read of a CRD, which may have a megabyte.
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
    /// Whether a version's status has a place for what [`crate::readiness::of_custom`] waits for. (The status
    /// of a `ServiceMonitor` or an `HTTPRoute` has none.)
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
    /// The kind as the server serves it; `None` if the server does not serve it.
    pub async fn find(&self, cluster: &Cluster, gvk: &Gvk) -> Result<Option<Arc<ApiKind>>, CallError> {
        if let Some(found) = self.known(gvk) {
            return Ok(Some(found));
        }
        let apis = self.apis(cluster, RECENT).await?;
        match apis.find(gvk) {
            Ok(Some(served)) => self.keep(cluster, served).await.map(Some),
            _ => self.ask(cluster, gvk).await,
        }
    }

    /// The kind as the server serves it, from a new answer of discovery. A found kind is remembered.
    pub async fn ask(&self, cluster: &Cluster, gvk: &Gvk) -> Result<Option<Arc<ApiKind>>, CallError> {
        let apis = self.apis(cluster, Duration::ZERO).await?;
        self.keep_if_any(cluster, apis.find(gvk)?).await
    }

    /// The kind in any version of its group, for a kind that was not found.
    pub async fn in_any_version(
        &self,
        cluster: &Cluster,
        gvk: &Gvk,
    ) -> Result<Option<Arc<ApiKind>>, CallError> {
        let apis = self.apis(cluster, RECENT).await?;
        self.keep_if_any(cluster, apis.find_in_any_version(gvk)?).await
    }

    /// An answer of discovery that is at most that old.
    async fn apis(&self, cluster: &Cluster, age: Duration) -> Result<Arc<Apis>, CallError> {
        let called = Instant::now();
        let mut answer = self.answer.lock().await;
        match &*answer {
            Some(Answer { asked, apis: Ok(apis) }) if *asked + age >= called => return Ok(Arc::clone(apis)),
            Some(Answer { asked, apis: Err(error) }) if *asked >= called => return Err(error.clone()),
            _ => {}
        }
        let asked = Instant::now();
        let apis = cluster.discover().await.map(Arc::new);
        *answer = Some(Answer { asked, apis: apis.clone() });
        apis
    }

    async fn keep_if_any(
        &self,
        cluster: &Cluster,
        served: Option<&Served>,
    ) -> Result<Option<Arc<ApiKind>>, CallError> {
        match served {
            Some(served) => self.keep(cluster, served).await.map(Some),
            None => Ok(None),
        }
    }

    /// Records an answer of discovery.
    async fn keep(&self, cluster: &Cluster, served: &Served) -> Result<Arc<ApiKind>, CallError> {
        let reports = served.has_status && reports(&cluster.client, &served.kind).await?;
        Ok(self.remember(Arc::clone(&served.kind), reports))
    }

    /// Searches, once, a suggestion for a kind that the server does not serve. It is for messages only, so a failure
    /// is ignored.
    pub async fn look_for_hint(&self, cluster: &Cluster, gvk: &Gvk) {
        if lock(&self.hints).contains_key(gvk) {
            return;
        }
        if let Ok(apis) = self.apis(cluster, RECENT).await {
            let hint = apis.hint(gvk);
            lock(&self.hints).insert(gvk.clone(), hint);
        }
    }

    /// What to do about a kind that the server does not serve.
    pub fn hint(&self, gvk: &Gvk) -> String {
        lock(&self.hints).get(gvk).cloned().unwrap_or_else(|| Apis::default().hint(gvk))
    }

    fn remember(&self, kind: Arc<ApiKind>, reports: bool) -> Arc<ApiKind> {
        let gvk = kind.gvk();
        lock(&self.hints).remove(&gvk);
        lock(&self.found).insert(gvk, Found { kind: Arc::clone(&kind), reports });
        kind
    }

    /// The kind if an earlier [`Self::find`] found it.
    pub fn known(&self, gvk: &Gvk) -> Option<Arc<ApiKind>> {
        lock(&self.found).get(gvk).map(|found| Arc::clone(&found.kind))
    }

    /// Whether the controller of a found kind reports progress in the status.
    pub fn reports_status(&self, gvk: &Gvk) -> bool {
        lock(&self.found).get(gvk).is_some_and(|found| found.reports)
    }

    /// Forgets a kind whose CRD has changed or is gone: the next [`Self::find`] asks again.
    pub fn forget(&self, gvk: &Gvk) {
        lock(&self.found).remove(gvk);
    }

    /// Records a kind that is known without discovery, such as one just registered.
    pub fn insert(&self, kind: ApiKind) -> Arc<ApiKind> {
        self.remember(Arc::new(kind), true)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Whether the controller of a kind reports progress in the status of its objects; `true` if that cannot be read
    /// now.
    pub async fn reports(&self, served: &Served) -> bool {
        served.has_status && reports(&self.client, &served.kind).await.unwrap_or(true)
    }
}

/// Whether the controller of a kind with a status subresource reports progress there. `true` for a kind without a CRD
/// or whose CRD cannot be read.
async fn reports(client: &kube::Client, kind: &ApiKind) -> Result<bool, CallError> {
    // Istio writes a status only if it is configured to.
    if kind.group.ends_with(".istio.io") {
        return Ok(false);
    }
    if BuiltIn::has_group(&kind.group) {
        return Ok(true);
    }
    let path = path(&ApiKind::crd(), None, Some(&format!("{}.{}", kind.plural, kind.group)))?;
    let Ok(request) = http::Request::get(path).body(Vec::new()) else { return Ok(true) };
    let deadline = super::DEADLINE;
    let answer = tokio::time::timeout(deadline, client.request::<Definition>(request)).await;
    match answer.map_err(|_| CallError::timeout(deadline))? {
        Ok(crd) => Ok(crd.has_place(&kind.version)),
        Err(kube::Error::SerdeError(_)) => Ok(true),
        Err(error) => match call_error(&error) {
            // This error is not a result, which would be remembered: the next request may succeed.
            error if error.class == Class::Retry => Err(error),
            _ => Ok(true),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_status_needs_conditions_or_observed_generation_to_show_readiness() {
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
}
