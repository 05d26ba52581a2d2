//! The bare client: creates instances, and applies what Operetta would apply for them. It renders everything
//! in advance and reads only the status of the answers, so it is as fast as a client with this library and
//! this server can be.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream};
use http::Request;
use http::header::CONTENT_TYPE;
use operetta::api::{ApiKind, Gvk};
use operetta::children::{ActivePackage, Context, Origins, Snapshot, names, target};
use operetta::cluster::{Cluster, Kinds, path};
use operetta::package::{Package, Resource};
use operetta::template::Budget;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Result;

/// The events of a watch, one a line.
type Lines = BoxStream<'static, std::io::Result<String>>;

/// A client with a limit on concurrent requests.
pub(crate) struct Bare {
    client: kube::Client,
    concurrency: usize,
}

/// A patch that only needs to be sent.
#[derive(Clone)]
struct Prepared {
    path: String,
    content: &'static str,
    body: Vec<u8>,
}

/// All patches, rendered and serialized.
pub(crate) struct Applies(Vec<Prepared>);

impl Applies {
    /// The number of objects.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Bare {
    /// A bare client on its own connection.
    pub(crate) fn new(client: kube::Client, concurrency: usize) -> Self {
        Self { client, concurrency }
    }

    /// Creates a namespace.
    pub(crate) async fn create_namespace(&self, name: &str) -> Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.post("/api/v1/namespaces", &body).await.map(drop)
    }

    /// Creates the instances `light-0`, `light-1`, ... Returns them as the server answers.
    pub(crate) async fn create_instances(
        &self,
        resource: &Resource,
        namespace: &str,
        count: usize,
    ) -> Result<Vec<Value>> {
        let kind = instance_kind(resource);
        let path = path(&kind, Some(namespace), None)?;
        let bodies = (0..count).map(|number| {
            json!({
                "apiVersion": kind.api_version(), "kind": kind.kind,
                "metadata": {"name": format!("light-{number}"), "namespace": namespace},
                "spec": {"greeting": format!("hello {number}")},
            })
        });
        let texts: Vec<String> = stream::iter(bodies)
            .map(|body| {
                let path = &path;
                async move { self.post(path, &body).await }
            })
            .buffer_unordered(self.concurrency)
            .try_collect()
            .await?;
        Ok(texts.iter().map(|text| serde_json::from_str(text)).collect::<std::result::Result<_, _>>()?)
    }

    /// Renders what Operetta applies for new instances, including labels, annotations, owners and the
    /// precondition.
    pub(crate) async fn render(&self, package: &Arc<Package>, instances: &[Value]) -> Result<Applies> {
        self.rendered(package, instances, true).await
    }

    /// Like [`render`](Self::render), without the precondition that the object does not exist.
    pub(crate) async fn render_again(&self, package: &Arc<Package>, instances: &[Value]) -> Result<Applies> {
        self.rendered(package, instances, false).await
    }

    async fn rendered(&self, package: &Arc<Package>, instances: &[Value], absent: bool) -> Result<Applies> {
        let resource = resource(package)?;
        let kinds = self.child_kinds(resource).await?;
        let manager = names::field_manager(&package.name).replace('/', "%2F");
        let namespaced = |gvk: &Gvk| kinds.get(gvk).is_none_or(|kind| kind.namespaced);
        let mut all = Vec::with_capacity(instances.len() * resource.children.len());
        for instance in instances {
            let active = ActivePackage::new(package, 0).ok_or("the package has no resource")?;
            let snapshot = Snapshot::new(active, instance.clone(), namespaced);
            let origins = Origins::one(snapshot.origin()?);
            for item in target(&Context::new(&snapshot, &origins, Budget::default())).items {
                let intent = item.desired.map_err(|error| format!("{}: {error}", item.name))?;
                let object = &intent.object;
                let key = object.gvk.clone();
                let kind = kinds.get(&key).ok_or_else(|| format!("{object}: its kind is not served"))?;
                let mut body = Arc::unwrap_or_clone(intent.body);
                if absent {
                    body["metadata"]["resourceVersion"] = "1".into();
                }
                let path = path(kind, object.namespace.as_deref(), Some(&object.name))?;
                all.push(Prepared {
                    path: format!("{path}?fieldManager={manager}&force=true&fieldValidation=Strict"),
                    content: "application/apply-patch+yaml",
                    body: body.to_string().into_bytes(),
                });
            }
        }
        Ok(Applies(all))
    }

    /// Adds one write of the status for each instance: what Operetta reports when all children are ready,
    /// with the same precondition.
    pub(crate) fn with_statuses(
        applies: Applies,
        resource: &Resource,
        instances: &[Value],
    ) -> Result<Applies> {
        let kind = instance_kind(resource);
        let each = applies.0.len() / instances.len().max(1);
        let mut applies = applies.0.into_iter();
        let mut all = Vec::new();
        for (number, instance) in instances.iter().enumerate() {
            all.extend(applies.by_ref().take(each));
            let meta = &instance["metadata"];
            let message = format!("all {each} children are applied and ready");
            let body = json!({
                "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
                "status": {
                    "observedGeneration": 1, "revision": "light-0123456789", "greeting": format!("hello {number}"),
                    "conditions": [{
                        "type": "Ready", "status": "True", "reason": "Ready", "message": message,
                        "lastTransitionTime": meta["creationTimestamp"], "observedGeneration": 1,
                    }],
                },
            });
            let path = path(&kind, meta["namespace"].as_str(), meta["name"].as_str())?;
            all.push(Prepared {
                path: format!("{path}/status?fieldManager=operetta"),
                content: "application/merge-patch+json",
                body: body.to_string().into_bytes(),
            });
        }
        Ok(Applies(all))
    }

    /// Sends everything, with the limit on concurrent requests.
    pub(crate) async fn apply(&self, applies: &Applies) -> Result<()> {
        stream::iter(&applies.0)
            .map(|prepared| async {
                let request = Request::patch(&prepared.path)
                    .header(CONTENT_TYPE, prepared.content)
                    .body(prepared.body.clone())?;
                self.client.request_text(request).await.map_err(|error| describe(&prepared.path, &error))?;
                Ok(())
            })
            .buffer_unordered(self.concurrency)
            .try_collect()
            .await
    }

    /// The objects of all child kinds in a namespace that have the uid of an instance in a label.
    pub(crate) async fn children(&self, package: &Package, namespace: &str) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for kind in self.child_kinds(resource(package)?).await?.into_values() {
            let path =
                format!("{}?labelSelector={}", path(&kind, Some(namespace), None)?, names::INSTANCE_UID);
            let mut list: Value = serde_json::from_str(&self.get(&path).await?)?;
            if let Value::Array(items) = list["items"].take() {
                all.extend(items.into_iter().map(|mut item| {
                    item["kind"] = kind.kind.as_str().into();
                    item
                }));
            }
        }
        Ok(all)
    }

    /// The instances of a namespace.
    pub(crate) async fn instances(&self, resource: &Resource, namespace: &str) -> Result<Vec<Value>> {
        let mut list: Value =
            serde_json::from_str(&self.get(&path(&instance_kind(resource), Some(namespace), None)?).await?)?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Err("the list of instances has no items".into()),
        }
    }

    /// Deletes a namespace.
    pub(crate) async fn delete_namespace(&self, name: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{name}");
        let request = Request::delete(&path).body(Vec::new())?;
        self.client.request_text(request).await.map_err(|error| describe(&path, &error))?;
        Ok(())
    }

    /// Whether a namespace exists, even if it is being deleted.
    pub(crate) async fn has_namespace(&self, name: &str) -> Result<bool> {
        let request = Request::get(format!("/api/v1/namespaces/{name}")).body(Vec::new())?;
        match self.client.request_text(request).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(describe(name, &error)),
        }
    }

    /// Lists everything that the manager watches.
    pub(crate) async fn list_all(&self, package: &Package) -> Result<()> {
        self.streams(package).await.map(drop)
    }

    /// Watches everything that the manager watches, reading only lines. The watches end when the result is
    /// dropped.
    pub(crate) async fn watch_all(&self, package: &Package) -> Result<JoinSet<()>> {
        let mut tasks = JoinSet::new();
        for mut lines in self.streams(package).await? {
            tasks.spawn(async move { while let Some(Ok(_)) = lines.next().await {} });
        }
        Ok(tasks)
    }

    /// Opens the same watches as the manager, as streams: of instances, and of children by their label.
    /// Returns when the initial lists are complete.
    async fn streams(&self, package: &Package) -> Result<Vec<Lines>> {
        let resource = resource(package)?;
        let kinds = self.child_kinds(resource).await?.into_values().map(|kind| (kind, true));
        let instances = std::iter::once((Arc::new(instance_kind(resource)), false));
        let lists = kinds.chain(instances).map(|(kind, children)| async move {
            let selector =
                if children { format!("&labelSelector={}", names::INSTANCE_UID) } else { String::new() };
            let path = format!(
                "{}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true{selector}",
                path(&kind, None, None)?
            );
            let stream = self.client.request_stream(Request::get(&path).body(Vec::new())?).await?;
            let mut lines: Lines = Box::pin(stream.lines());
            while let Some(line) = lines.try_next().await? {
                let event: Value = serde_json::from_str(&line)?;
                if event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true" {
                    return Ok(lines);
                }
            }
            Err(format!("{path} ended before all was told").into())
        });
        stream::iter(lists).buffer_unordered(self.concurrency).try_collect().await
    }

    /// Creates an object.
    pub(crate) async fn create(&self, kind: &ApiKind, body: &Value) -> Result<()> {
        self.post(&path(kind, body["metadata"]["namespace"].as_str(), None)?, body).await.map(drop)
    }

    /// Sends a merge patch. Returns the object.
    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.send_patch(path, "application/merge-patch+json", body).await
    }

    /// Sends a server-side apply of one object. Returns the object.
    pub(crate) async fn apply_one(&self, path: &str, body: &Value) -> Result<Value> {
        self.send_patch(path, "application/apply-patch+yaml", body).await
    }

    async fn send_patch(&self, path: &str, content: &str, body: &Value) -> Result<Value> {
        let request = Request::patch(format!("{path}?fieldManager=bare"))
            .header(CONTENT_TYPE, content)
            .body(body.to_string().into_bytes())?;
        let text = self.client.request_text(request).await.map_err(|error| describe(path, &error))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        let request = Request::delete(path).body(Vec::new())?;
        self.client.request_text(request).await.map_err(|error| describe(path, &error))?;
        Ok(())
    }

    async fn child_kinds(&self, resource: &Resource) -> Result<HashMap<Gvk, Arc<ApiKind>>> {
        let (kinds, cluster) = (Kinds::default(), Cluster::new(self.client.clone()));
        let mut found = HashMap::new();
        for gvk in resource.children.iter().flat_map(|child| &child.kinds) {
            let answer = kinds.find(&cluster, gvk).await?;
            let api_kind = answer.ok_or_else(|| format!("{gvk} is not served"))?;
            found.insert(gvk.clone(), api_kind);
        }
        Ok(found)
    }

    async fn get(&self, path: &str) -> Result<String> {
        let request = Request::get(path).body(Vec::new())?;
        self.client.request_text(request).await.map_err(|error| describe(path, &error))
    }

    async fn post(&self, path: &str, body: &Value) -> Result<String> {
        let request = Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())?;
        self.client.request_text(request).await.map_err(|error| describe(path, &error))
    }
}

/// The only resource of the package.
pub(crate) fn resource(package: &Package) -> Result<&Resource> {
    Ok(package.resources.first().ok_or("the package has no resource")?)
}

/// The kind of the instances, in the form that the client takes.
pub(crate) fn instance_kind(resource: &Resource) -> ApiKind {
    resource.kind.clone()
}

/// Describes an error in short form: the library shows the whole Debug form of a status.
fn describe(path: &str, error: &kube::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        kube::Error::Api(status) => format!("{path}: {} {}", status.code, status.message).into(),
        other => format!("{path}: {other}").into(),
    }
}
