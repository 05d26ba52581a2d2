//! Reads a stored revision from the cluster.

use std::sync::Arc;

use operetta_registry::Provenance;
use serde_json::Value;

use super::super::deciders::beside;
use super::super::sources;
use super::known::Versions;
use crate::api::{ApiKind, CallError, Class};
use crate::cluster::Cluster;
use crate::package::Package;
use crate::package::store::{self, StoreError, StoredRevision, objects};

/// The reason of a revision that does not exist.
const MISSING: &str = "RevisionMissing";

/// Why a revision cannot be loaded now.
pub(in crate::manager) enum Failure {
    /// A request has failed.
    Call {
        message: String,
        /// Whether it may pass by itself.
        is_temporary: bool,
    },
    /// The revision is not stored, or differs from what was stored.
    Lost {
        /// The reason in one word.
        reason: &'static str,
        message: String,
    },
}

impl Failure {
    fn call(about: &str, error: &CallError) -> Self {
        let message = format!("{about} cannot be read: {error}");
        Self::Call { message, is_temporary: error.class == Class::Retry }
    }

    fn lost(reason: &'static str, message: String) -> Self {
        Self::Lost { reason, message }
    }

    fn store(about: &str, error: &StoreError) -> Self {
        let reason = match error {
            StoreError::Newer { .. } => "NewerOperetta",
            StoreError::PartAltered(_) | StoreError::Archive(_) | StoreError::OtherFiles => "RevisionAltered",
            StoreError::Invalid(_) | StoreError::TooLarge => "RevisionInvalid",
            StoreError::Refused(_) => "PackageRefused",
        };
        Self::lost(reason, format!("{about}: {error}"))
    }
}

/// A stored revision that this process cannot load. It is not read and compiled again while it is the same.
pub(in crate::manager) struct Unloadable {
    revision: StoredRevision,
    /// Why it cannot be loaded.
    error: StoreError,
    /// The part that was altered: its name, and the `resourceVersion` at which it was read.
    altered: Option<(String, String)>,
}

impl Unloadable {
    /// Records that a revision cannot be loaded. `parts`: the objects that were read.
    fn new(revision: StoredRevision, error: StoreError, parts: &[Value]) -> Self {
        let version = |name: &String| {
            let part = parts.iter().find(|part| part["metadata"]["name"] == name.as_str())?;
            Some((name.clone(), part["metadata"]["resourceVersion"].as_str()?.to_owned()))
        };
        let altered = match &error {
            StoreError::PartAltered(name) => version(name),
            _ => None,
        };
        Self { revision, error, altered }
    }
}

/// A revision that was read from the cluster.
pub(in crate::manager) struct Restored {
    pub(in crate::manager) package: Package,
    /// The uid of the `OperatorRevision`.
    pub(super) uid: String,
    pub(super) versions: Versions,
    /// Where the package is from, if it is from a registry or layout.
    pub(in crate::manager) provenance: Option<Provenance>,
    /// The parts that the garbage collector would not delete with it.
    pub(super) unowned: Vec<String>,
}

/// Where stored revisions are read.
pub(in crate::manager) struct Loader<'a> {
    pub(super) cluster: &'a Cluster,
    /// The manager's namespace.
    pub(super) namespace: &'a str,
}

/// Reads a revision from the cluster, that of the first of these packages which has it. `namespace`: that of the manager.
///
/// # Errors
/// Why it cannot be read or loaded, and whether it may be there nevertheless.
pub(crate) async fn load_revision(
    cluster: &Cluster,
    namespace: &str,
    packages: &[Arc<str>],
    revision: &str,
) -> Result<Package, (String, bool)> {
    let loaded = Loader { cluster, namespace }.load_once(packages, revision, &mut None).await;
    loaded.map_err(|failure| match failure {
        Failure::Call { message, .. } => (message, true),
        Failure::Lost { message, .. } => (message, false),
    })
}

impl Loader<'_> {
    /// Loads the revision of the first of these packages that has it. `unloadable`: what earlier attempts
    /// have found, and what this one finds.
    pub(super) async fn load_once(
        &self,
        packages: &[Arc<str>],
        revision: &str,
        unloadable: &mut Option<Unloadable>,
    ) -> Result<Package, Failure> {
        let mut names = packages.iter().map(|package| store::name_of(package, revision));
        let mut name = names.next().unwrap_or_default();
        let mut found = self.read(&name, unloadable).await;
        for other in names {
            if !matches!(found, Err(Failure::Lost { reason: MISSING, .. })) {
                break;
            }
            match self.read(&other, unloadable).await {
                Err(Failure::Lost { reason: MISSING, .. }) => {}
                other_found => (name, found) = (other, other_found),
            }
        }
        let restored = found?.package;
        if restored.revision() == *revision {
            return Ok(restored);
        }
        let message = format!("OperatorRevision {name} is of revision {}", restored.revision());
        Err(Failure::lost("RevisionInvalid", message))
    }

    /// Reads the revision of that name. `unloadable`: what earlier attempts have found, and what this one
    /// finds.
    pub(in crate::manager) async fn read(
        &self,
        name: &str,
        unloadable: &mut Option<Unloadable>,
    ) -> Result<Restored, Failure> {
        let about = format!("OperatorRevision {name}");
        let object = self.cluster.get(&objects::kind(), None, name).await;
        let object = object.map_err(|error| Failure::call(&about, &error))?;
        let missing = || Failure::lost(MISSING, format!("{about} does not exist"));
        let object = object.ok_or_else(missing)?;
        let refused = |error: &StoreError| Failure::store(&about, error);
        let stored = StoredRevision::parse(name, &object["spec"]).map_err(|error| refused(&error))?;
        if let Some(known) = unloadable
            && known.revision == stored
            && self.is_as_before(known).await?
        {
            return Err(refused(&known.error));
        }
        *unloadable = None;
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let (mut parts, mut unowned) = (Vec::with_capacity(stored.parts.len()), Vec::new());
        let mut versions = Versions::from([version_of(&object)]);
        for part in &stored.parts {
            let found = self.read_part(&part.name).await?.ok_or_else(|| {
                let (namespace, part) = (self.namespace, &part.name);
                let message = format!("ConfigMap {namespace}/{part}, a part of {about}, does not exist{}", {
                    let at = object["metadata"]["labels"][objects::PARTS_NAMESPACE].as_str();
                    at.filter(|at| *at != namespace)
                        .map(|at| format!("; the parts were applied to the namespace {at}"))
                        .unwrap_or_default()
                });
                Failure::lost("PartMissing", message)
            })?;
            let owners = found["metadata"]["ownerReferences"].as_array();
            if !owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid)) {
                unowned.push(part.name.clone());
            }
            versions.extend([version_of(&found)]);
            parts.push(found);
        }
        let data = parts.iter().map(objects::part_data).collect::<Result<Vec<_>, _>>();
        let restore = move || (data.and_then(|data| store::restore(&stored, &data)), stored);
        let restored = beside(restore).await;
        let internal =
            |error: tokio::task::JoinError| Failure::lost("InternalError", format!("{about}: {error}"));
        let (restored, stored) = restored.map_err(internal)?;
        let package = restored.map_err(|error| {
            let failure = refused(&error);
            *unloadable = Some(Unloadable::new(stored, error, &parts));
            failure
        })?;
        let provenance = sources::provenance_of(&object);
        Ok(Restored { package, uid: uid.to_owned(), versions, provenance, unowned })
    }

    /// Whether what could not be loaded is still what it was: only a part that was altered can change. Of that part the
    /// metadata is read.
    async fn is_as_before(&self, known: &Unloadable) -> Result<bool, Failure> {
        let Some((name, version)) = &known.altered else { return Ok(known.error.is_final()) };
        let found = self.cluster.get_metadata(&config_map(), Some(self.namespace), name).await;
        let found =
            found.map_err(|error| Failure::call(&format!("ConfigMap {}/{name}", self.namespace), &error))?;
        Ok(found.is_some_and(|part| part["metadata"]["resourceVersion"] == version.as_str()))
    }

    /// The `ConfigMap` of a part, if there is one.
    async fn read_part(&self, name: &str) -> Result<Option<Value>, Failure> {
        let found = self.cluster.get(&config_map(), Some(self.namespace), name).await;
        found.map_err(|error| Failure::call(&format!("ConfigMap {}/{name}", self.namespace), &error))
    }
}

/// The name and the `resourceVersion` of an object.
pub(super) fn version_of(object: &Value) -> (String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("name"), text("resourceVersion"))
}

pub(super) fn config_map() -> ApiKind {
    ApiKind::built_in("v1", "ConfigMap")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::package::{Files, compile};
    use crate::test_crd::crd_to_properties;

    const PACKAGE: &str = "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: p}
spec:
  version: 0.1.0
  resources:
    - {crd: crds/thing.yaml, children: []}
";

    /// An API server with these objects, by path, and what it was asked for.
    #[derive(Default)]
    struct Server {
        objects: Mutex<BTreeMap<String, Value>>,
        asked: Mutex<Vec<String>>,
    }

    impl Server {
        fn cluster(self: &Arc<Self>) -> Cluster {
            let server = Arc::clone(self);
            let answer = move |request: Request<Body>| {
                let path = request.uri().path().to_owned();
                let accept = request.headers()[http::header::ACCEPT].to_str().unwrap();
                let is_metadata = accept.contains("PartialObjectMetadata");
                let name = path.rsplit('/').next().unwrap();
                let what = if is_metadata { format!("metadata of {name}") } else { name.to_owned() };
                server.asked.lock().unwrap().push(what);
                let found = server.objects.lock().unwrap().get(&path).cloned();
                let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
                let (code, body) = found.map_or((404, missing), |object| (200, object));
                let response = Response::builder().status(code).header("content-type", "application/json");
                std::future::ready(Ok::<_, Infallible>(
                    response.body(Body::from(body.to_string().into_bytes())).unwrap(),
                ))
            };
            Cluster::new(kube::Client::new(tower::service_fn(answer), "default"))
        }

        fn put(&self, path: &str, object: Value) {
            self.objects.lock().unwrap().insert(path.to_owned(), object);
        }

        fn asked(&self) -> Vec<String> {
            std::mem::take(&mut *self.asked.lock().unwrap())
        }
    }

    #[tokio::test]
    async fn an_altered_part_is_downloaded_again_only_after_a_change() {
        let crd = crd_to_properties("example.org", "things", "Thing") + "            spec: {type: object}\n";
        let files =
            vec![("operator.yaml".to_owned(), PACKAGE.to_owned()), ("crds/thing.yaml".to_owned(), crd)];
        let (package, _) = compile(&Files::from_texts("p", files)).unwrap();
        let (revision, parts) = store::pack(&package).unwrap();
        let server = Arc::new(Server::default());
        let cluster = server.cluster();
        let loader = Loader { cluster: &cluster, namespace: "m" };
        let (names, wanted) = ([Arc::from("p")], package.revision());
        let (object, part) = (revision.name(), revision.parts[0].name.clone());
        let part_path = format!("/api/v1/namespaces/m/configmaps/{part}");
        let put_part = |data: &[u8], version: &str| {
            let mut body = objects::part(&revision, 0, data, "m", Some("uid"));
            body["metadata"]["resourceVersion"] = version.into();
            server.put(&part_path, body);
        };
        server.put(
            &format!("/apis/operetta.dev/v1alpha1/operatorrevisions/{object}"),
            objects::revision(&revision, "m"),
        );
        put_part(b"altered", "1");
        let mut unloadable = None;
        for expected in [
            vec![object.clone(), part.clone()],
            vec![object.clone(), format!("metadata of {part}")],
            vec![object.clone(), format!("metadata of {part}")],
        ] {
            let failure = loader.load_once(&names, &wanted, &mut unloadable).await.err().unwrap();
            assert!(
                matches!(failure, Failure::Lost { message, .. } if message.contains("is not what was stored"))
            );
            assert_eq!(server.asked(), expected);
        }
        put_part(&parts[0], "2");
        assert!(loader.load_once(&names, &wanted, &mut unloadable).await.is_ok());
        assert_eq!(server.asked(), [object.clone(), format!("metadata of {part}"), part.clone()]);
        // The kind was handed over: the package that has it now has no such revision.
        let names = [Arc::from("q"), Arc::from("o"), Arc::from("p")];
        assert!(loader.load_once(&names, &wanted, &mut None).await.is_ok());
        let other = |package: &str| object.replacen("p-", &format!("{package}-"), 1);
        assert_eq!(server.asked(), [other("q"), other("o"), object.clone(), part]);
        let failure = loader.load_once(&names[..2], &wanted, &mut None).await.err().unwrap();
        assert!(
            matches!(failure, Failure::Lost { reason: MISSING, message } if message.contains(&other("q")))
        );
    }
}
