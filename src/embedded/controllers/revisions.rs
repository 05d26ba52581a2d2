//! The ControllerRevisions of StatefulSets and DaemonSets: the templates that they had.

use std::collections::BTreeSet;

use jiff::Timestamp;
use operetta_kube_model::facts::{name, number};
use serde_json::{Value, json};

use super::client::{self, MANAGER, REVISIONS, Resource};
use super::parts::{hash, owner};
use crate::api::Api;

/// The revisions of a workload.
#[derive(Debug)]
pub(super) struct Revisions {
    /// By their numbers.
    pub(super) all: Vec<Value>,
    /// The revision with the template as it is now.
    pub(super) update: Value,
    pub(super) collisions: i64,
}

/// The part of an object that a revision stores.
fn data(workload: &Value) -> Value {
    let mut template = workload["spec"]["template"].clone();
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}})
}

/// The template of a revision.
pub(super) fn template(revision: &Value) -> Value {
    let mut template = revision["data"]["spec"]["template"].clone();
    if let Some(template) = template.as_object_mut() {
        template.remove("$patch");
    }
    template
}

impl Revisions {
    /// Finds the revision with the template as it is now among those that a workload owns; without one, it is created.
    pub(super) fn find(
        api: &mut Api,
        kind: &Resource,
        workload: &Value,
        mut all: Vec<Value>,
        now: Timestamp,
    ) -> Option<Self> {
        all.sort_by_key(|revision| (number(&revision["revision"]), name(revision).to_owned()));
        let collisions = number(&workload["status"]["collisionCount"]);
        let next = all.last().map_or(1, |last| number(&last["revision"]) + 1);
        let data = data(workload);
        let known = all.iter().rposition(|revision| revision["data"] == data);
        let update = match known {
            Some(at) if at + 1 == all.len() => all[at].clone(),
            Some(at) => {
                let mut revision = all.remove(at);
                revision["revision"] = next.into();
                client::update(api, MANAGER, &REVISIONS, "", &mut revision, now).ok()?;
                all.push(revision.clone());
                revision
            }
            None => {
                let suffix = hash(&data, collisions);
                let meta = &workload["metadata"];
                let mut labels = workload["spec"]["template"]["metadata"]["labels"].clone();
                labels["controller.kubernetes.io/hash"] = suffix.clone().into();
                let mut revision = json!({"metadata": {"name": format!("{}-{suffix}", name(workload)), "labels": labels,
                    "namespace": meta["namespace"], "ownerReferences": [owner(kind, workload)]},
                    "data": data, "revision": next});
                if meta["annotations"].is_object() {
                    revision["metadata"]["annotations"] = meta["annotations"].clone();
                }
                client::create(api, MANAGER, &REVISIONS, &mut revision, now).ok()?;
                all.push(revision.clone());
                revision
            }
        };
        Some(Self { all, update, collisions })
    }

    /// Deletes the oldest revisions that are not in use, beyond the limit.
    pub(super) fn clean(&self, api: &mut Api, workload: &Value, in_use: &BTreeSet<&str>, now: Timestamp) {
        let limit = usize::try_from(number(&workload["spec"]["revisionHistoryLimit"])).unwrap_or(usize::MAX);
        let idle: Vec<&Value> = self.all.iter().filter(|revision| !in_use.contains(name(revision))).collect();
        let excess = idle.len().saturating_sub(limit);
        for revision in idle.into_iter().take(excess) {
            let _ = client::delete(api, MANAGER, &REVISIONS, revision, None, now);
        }
    }
}
