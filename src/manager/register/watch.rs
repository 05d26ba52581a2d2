//! The watch on CRDs, one for the process: by metadata, for a CRD may be a megabyte. Who needs more reads the
//! one that has changed.

use std::collections::{HashMap, HashSet};

use futures::StreamExt;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use tracing::warn;

use super::CRD;
use crate::children::{names, package_of_crd};
use crate::cluster::Cluster;
use crate::manager::hub::explain;
use crate::manager::lasting;
use crate::manager::raw::Raw;

/// Something has happened to a CRD.
#[derive(Debug)]
pub(super) enum CrdEvent {
    /// It is there, perhaps changed; or it was there when the watch began.
    Seen(String, Meta, bool),
    /// All that there are have been told.
    Listed,
    /// The CRD of that uid is gone.
    Gone(String, String),
}

/// What is known of each CRD in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meta {
    pub uid: String,
    pub generation: i64,
    pub resource_version: String,
    /// Whether it is the CRD of a package.
    pub is_labelled: bool,
    /// Which manager it says cares for it.
    pub lease: Option<String>,
}

/// Tells of all changes until nobody listens.
pub(super) async fn watch(cluster: Cluster, sender: mpsc::Sender<CrdEvent>) {
    let api = Api::<PartialObjectMeta<Raw>>::all_with(cluster.client(), &CRD.resource());
    let mut stream = std::pin::pin!(lasting::watch(&cluster, api, watcher::Config::default()));
    // By name, so that a list that comes after a gap shows what has gone meanwhile.
    let mut known: HashMap<String, String> = HashMap::new();
    let mut listed: HashSet<String> = HashSet::new();
    let mut is_first = true;
    while let Some(event) = stream.next().await {
        let told = match event {
            Ok(Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(Event::InitApply(crd) | Event::Apply(crd)) => {
                let (name, meta) = meta_of(&crd);
                listed.insert(name.clone());
                known.insert(name.clone(), meta.uid.clone());
                vec![CrdEvent::Seen(name, meta, is_first)]
            }
            Ok(Event::Delete(crd)) => {
                let (name, meta) = meta_of(&crd);
                known.remove(&name);
                vec![CrdEvent::Gone(name, meta.uid)]
            }
            Ok(Event::InitDone) => {
                is_first = false;
                let gone: Vec<String> =
                    known.keys().filter(|name| !listed.contains(*name)).cloned().collect();
                gone.into_iter()
                    .filter_map(|name| known.remove(&name).map(|uid| CrdEvent::Gone(name, uid)))
                    .chain([CrdEvent::Listed])
                    .collect()
            }
            Err(error) => {
                warn!(error = %explain(&error), "the watch of CRDs failed; trying again");
                continue;
            }
        };
        for event in told {
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }
}

fn meta_of(crd: &PartialObjectMeta<Raw>) -> (String, Meta) {
    let meta = &crd.metadata;
    let told = Meta {
        uid: meta.uid.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        is_labelled: package_of_crd(meta).is_some(),
        lease: meta.annotations.as_ref().and_then(|annotations| annotations.get(names::MANAGER)).cloned(),
    };
    (meta.name.clone().unwrap_or_default(), told)
}
