//! Reads what refs name. Of a fleet each kind is listed once; of one instance only what it reads.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use tokio::sync::Mutex;

use crate::api::{ApiKind, Apis, CallError, Gvk};
use crate::children::{LookupResult, ReadError, Referred, ResourceSelector, Select, kept};
use crate::cli::model::complete;
use crate::cluster::{Cluster, Query};
use crate::manager::raw::Raw;
use crate::readiness;

/// The objects of a kind, or why they cannot be listed.
type Listed = Arc<Result<Vec<Raw>, CallError>>;

/// What has been read for refs.
pub(super) struct Refs {
    /// Whether only one instance is previewed.
    is_single: bool,
    lists: Mutex<HashMap<Gvk, Listed>>,
    found: Mutex<HashMap<ResourceSelector, LookupResult>>,
}

impl Refs {
    pub(super) fn new(is_single: bool) -> Self {
        Self { is_single, lists: Mutex::default(), found: Mutex::default() }
    }

    /// What is known of the objects that a ref names.
    pub(super) async fn find(&self, cluster: &Cluster, apis: &Apis, want: &ResourceSelector) -> LookupResult {
        if let Some(found) = self.found.lock().await.get(want) {
            return found.clone();
        }
        let found = self.read(cluster, apis, want).await;
        self.found.lock().await.insert(want.clone(), found.clone());
        found
    }

    async fn read(&self, cluster: &Cluster, apis: &Apis, want: &ResourceSelector) -> LookupResult {
        let served = match apis.find(&want.gvk) {
            Ok(Some(served)) => served,
            Ok(None) => return LookupResult::Unknown(ReadError::KindMissing),
            Err(error) => return LookupResult::Unknown(ReadError::Failed(error.to_string())),
        };
        let kind = &*served.kind;
        if !self.is_single {
            let listed = self.list(cluster, kind, &want.gvk).await;
            match &*listed {
                Ok(objects) => {
                    let fits = |raw: &&Raw| {
                        let of = &raw.metadata;
                        want.fits(
                            of.namespace.as_deref(),
                            of.name.as_deref().unwrap_or_default(),
                            of.labels.as_ref(),
                        )
                    };
                    return known(want, objects.iter().filter(fits));
                }
                // A user who may not list all objects may be allowed to read the selected ones.
                Err(error) if error.code == 403 => {}
                Err(error) => return LookupResult::Unknown(ReadError::Failed(error.to_string())),
            }
        }
        match read_some(cluster, kind, want).await {
            Ok(objects) => known(want, objects.iter()),
            Err(error) if error.code == 403 => LookupResult::Unknown(ReadError::Forbidden(error.to_string())),
            Err(error) => LookupResult::Unknown(ReadError::Failed(error.to_string())),
        }
    }

    async fn list(&self, cluster: &Cluster, kind: &ApiKind, gvk: &Gvk) -> Listed {
        // The lock is held during the request, so that each kind is listed only once.
        let mut lists = self.lists.lock().await;
        if let Some(listed) = lists.get(gvk) {
            return Arc::clone(listed);
        }
        let listed = cluster.list_all(kind, &Query::default(), |raw: Raw| typed(raw, kind)).await;
        let listed = Arc::new(listed);
        lists.insert(gvk.clone(), Arc::clone(&listed));
        listed
    }
}

async fn read_some(
    cluster: &Cluster,
    kind: &ApiKind,
    want: &ResourceSelector,
) -> Result<Vec<Raw>, CallError> {
    let namespace = want.namespace.as_deref().filter(|_| kind.namespaced);
    match &want.select {
        Select::Name(name) => {
            let found = cluster.get(kind, namespace, name).await?;
            Ok(found.and_then(|object| Raw::from_value(object).ok()).into_iter().collect())
        }
        Select::Labels(selector) => {
            let labels = selector.to_string();
            let query = Query { namespace, labels: &labels, ..Query::default() };
            cluster.list_all(kind, &query, |raw: Raw| typed(raw, kind)).await
        }
    }
}

/// Items of lists carry neither apiVersion nor kind.
fn typed(mut raw: Raw, kind: &ApiKind) -> Raw {
    complete(kind, &mut raw.body);
    raw
}

fn known<'a>(want: &ResourceSelector, objects: impl Iterator<Item = &'a Raw>) -> LookupResult {
    let mut found: Vec<Arc<Referred>> = objects.map(|raw| Arc::new(referred(want, raw))).collect();
    found.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    LookupResult::Known(found)
}

/// What expressions read of an object, as the manager keeps it.
fn referred(want: &ResourceSelector, raw: &Raw) -> Referred {
    let metadata = &raw.metadata;
    let bare;
    let (body, ready) = if want.keep.content {
        (&raw.body, readiness::of_kind(&raw.body, true).is_ready())
    } else {
        bare = json!({"metadata": ObjectMeta { managed_fields: None, ..metadata.clone() }});
        (&bare, metadata.deletion_timestamp.is_none())
    };
    Referred {
        namespace: metadata.namespace.as_deref().map(Into::into),
        name: metadata.name.as_deref().unwrap_or_default().into(),
        value: Arc::new(kept(&want.gvk, metadata, Some(body), &want.keep.paths)),
        ready,
    }
}
