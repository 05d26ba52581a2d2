//! The ReplicaSets of a Deployment: which one has its template, how they are annotated and scaled.

use jiff::Timestamp;
use operetta_kube_model::facts::{
    LAST_APPLIED, condition, controller_uid, is_deleting, key_of, name, number, text, time, uid,
};
use serde_json::{Value, json};

use super::client::{self, DEPLOYMENTS, MANAGER, REPLICA_SETS};
use super::parts::{self, put_all, put_condition, scaled};
use crate::api::Api;

const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";

/// Annotations of a Deployment that its ReplicaSets do not get.
const OWN: [&str; 6] = [REVISION, HISTORY, DESIRED, MAX, LAST_APPLIED, "deprecated.deployment.rollback.to"];

/// A Deployment with its ReplicaSets.
#[derive(Debug)]
pub(super) struct Rollout {
    pub(super) deployment: Value,
    /// The ReplicaSet with the template of the Deployment.
    pub(super) new: Option<Value>,
    /// The others, by age.
    pub(super) old: Vec<Value>,
    pub(super) now: Timestamp,
}

/// The number of replicas that an object asks for.
pub(super) fn replicas(object: &Value) -> i64 {
    number(&object["spec"]["replicas"])
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    text(&object["metadata"]["annotations"][key])
}

fn revision(set: &Value) -> i64 {
    annotation(set, REVISION).parse().unwrap_or(0)
}

fn template(set: &Value) -> Value {
    let mut template = set["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove(HASH);
    }
    template
}

impl Rollout {
    pub(super) fn new(deployment: Value, mut sets: Vec<Value>, now: Timestamp) -> Self {
        let age =
            |set: &Value| (text(&set["metadata"]["creationTimestamp"]).to_owned(), name(set).to_owned());
        sets.sort_by_key(age);
        let wanted = &deployment["spec"]["template"];
        let at = sets.iter().position(|set| template(set) == *wanted);
        let new = at.map(|at| sets.remove(at));
        Self { deployment, new, old: sets, now }
    }

    /// All ReplicaSets, the new one last.
    pub(super) fn all(&self) -> impl Iterator<Item = &Value> {
        self.old.iter().chain(&self.new)
    }

    /// The replicas that all ReplicaSets ask for.
    pub(super) fn total(&self) -> i64 {
        self.all().map(replicas).sum()
    }

    pub(super) fn is_rolling(&self) -> bool {
        self.deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    }

    /// How many pods there may be too many, and too few.
    fn fenceposts(&self) -> (i64, i64) {
        let strategy = &self.deployment["spec"]["strategy"]["rollingUpdate"];
        let wanted = replicas(&self.deployment);
        let surge = scaled(&strategy["maxSurge"], wanted, true);
        let unavailable = scaled(&strategy["maxUnavailable"], wanted, false);
        if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
    }

    pub(super) fn max_surge(&self) -> i64 {
        if self.is_rolling() { self.fenceposts().0 } else { 0 }
    }

    pub(super) fn max_unavailable(&self) -> i64 {
        let wanted = replicas(&self.deployment);
        if self.is_rolling() && wanted > 0 { self.fenceposts().1.min(wanted) } else { 0 }
    }

    pub(super) fn has_deadline(&self) -> bool {
        let seconds = &self.deployment["spec"]["progressDeadlineSeconds"];
        seconds.is_number() && *seconds != i32::MAX
    }

    /// Sets a condition of the status, which is not written yet.
    pub(super) fn put_condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let conditions = self.deployment["status"]["conditions"].as_array();
        let mut conditions = conditions.cloned().unwrap_or_default();
        let new = json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastUpdateTime": time(self.now)});
        put_condition(&mut conditions, new, self.now);
        self.deployment["status"]["conditions"] = conditions.into();
    }

    /// Writes the status as it is.
    pub(super) fn write(&mut self, api: &mut Api) {
        let _ = client::update(api, MANAGER, &DEPLOYMENTS, "status", &mut self.deployment, self.now);
    }

    /// The size that the new ReplicaSet may have now.
    pub(super) fn new_size(&self) -> i64 {
        let wanted = replicas(&self.deployment);
        let size = self.new.as_ref().map_or(0, replicas);
        if !self.is_rolling() {
            return wanted;
        }
        let most = wanted + self.max_surge();
        let total = self.total();
        if total >= most { size } else { size + (most - total).min(wanted - size) }
    }

    /// Annotates the new ReplicaSet, or creates it if that is asked for. Returns false if that ends this step: the server
    /// refused it, or the Deployment has changed and is looked at again.
    pub(super) fn ensure(&mut self, api: &mut Api, create: bool) -> bool {
        let next = 1 + self.old.iter().map(revision).max().unwrap_or(0);
        if let Some(mut set) = self.new.take() {
            let before = set.clone();
            self.annotate(&mut set, next);
            let seconds = number(&self.deployment["spec"]["minReadySeconds"]);
            if number(&set["spec"]["minReadySeconds"]) != seconds {
                set["spec"]["minReadySeconds"] = seconds.into();
            }
            if set != before {
                let written = client::update(api, MANAGER, &REPLICA_SETS, "", &mut set, self.now);
                self.new = Some(set);
                return written.is_ok();
            }
            let found = format!("Found new replica set {:?}", name(&set));
            let is_revised = self.put_revision(&set["metadata"]["annotations"][REVISION]);
            let is_known = !self.has_deadline() || condition(&self.deployment, "Progressing").is_some();
            if !is_known {
                self.put_condition("Progressing", "True", "FoundNewReplicaSet", &found);
            }
            self.new = Some(set);
            if is_revised || !is_known {
                self.write(api);
                return false;
            }
            return true;
        }
        !create || self.create(api, next)
    }

    fn create(&mut self, api: &mut Api, revision: i64) -> bool {
        let deployment = &self.deployment;
        let spec = &deployment["spec"];
        let hash = parts::hash(&spec["template"], number(&deployment["status"]["collisionCount"]));
        let (mut template, mut selector) = (spec["template"].clone(), spec["selector"].clone());
        template["metadata"]["labels"][HASH] = hash.clone().into();
        selector["matchLabels"][HASH] = hash.clone().into();
        let mut meta = json!({"name": format!("{}-{hash}", name(deployment)), "labels": template["metadata"]["labels"],
            "ownerReferences": [parts::owner(&DEPLOYMENTS, deployment)]});
        meta["namespace"] = deployment["metadata"]["namespace"].clone();
        let mut set = json!({"metadata": meta, "spec": {"replicas": self.new_size(), "selector": selector,
            "minReadySeconds": number(&spec["minReadySeconds"]), "template": template}});
        self.annotate(&mut set, revision);
        set["metadata"]["annotations"][DESIRED] = replicas(deployment).to_string().into();
        set["metadata"]["annotations"][MAX] = (replicas(deployment) + self.max_surge()).to_string().into();
        let set_name = name(&set).to_owned();
        let mut created = set.clone();
        if let Err(why) = client::create(api, MANAGER, &REPLICA_SETS, &mut created, self.now) {
            let known = client::get(api, &REPLICA_SETS, &key_of(&set));
            if known.is_some_and(|known| controller_uid(&known) != Some(uid(&self.deployment))) {
                let count = number(&self.deployment["status"]["collisionCount"]) + 1;
                self.deployment["status"]["collisionCount"] = count.into();
            } else if self.has_deadline() && !why.contains("because it is being terminated") {
                let why = format!("Failed to create new replica set {set_name:?}: {why}");
                self.put_condition("Progressing", "False", "ReplicaSetCreateError", &why);
            }
            self.write(api);
            return false;
        }
        self.new = Some(created);
        self.put_revision(&revision.to_string().into());
        if self.has_deadline() {
            let message = format!("Created new replica set {set_name:?}");
            self.put_condition("Progressing", "True", "NewReplicaSetCreated", &message);
        }
        self.write(api);
        false
    }

    /// Copies the annotations of the Deployment, and raises the revision.
    fn annotate(&self, set: &mut Value, next: i64) {
        let mut annotations = set["metadata"]["annotations"].clone();
        let mut own = self.deployment["metadata"]["annotations"].clone();
        if let Some(own) = own.as_object_mut() {
            own.retain(|key, _| !OWN.contains(&key.as_str()));
        }
        put_all(&mut annotations, &own);
        let old = revision(set);
        if next > old {
            if old > 0 {
                let history = text(&annotations[HISTORY]);
                let comma = if history.is_empty() { "" } else { "," };
                annotations[HISTORY] = format!("{history}{comma}{old}").into();
            }
            annotations[REVISION] = next.to_string().into();
        }
        if !annotations.is_null() {
            set["metadata"]["annotations"] = annotations;
        }
    }

    fn put_revision(&mut self, revision: &Value) -> bool {
        let annotations = &mut self.deployment["metadata"]["annotations"];
        let is_other = annotations[REVISION] != *revision;
        if is_other {
            annotations[REVISION] = revision.clone();
        }
        is_other
    }

    /// Whether the Deployment asks for another number of replicas than its ReplicaSets were sized for.
    pub(super) fn is_scaling(&self) -> bool {
        self.all()
            .filter(|set| replicas(set) > 0)
            .filter_map(|set| annotation(set, DESIRED).parse::<i64>().ok())
            .any(|desired| desired != replicas(&self.deployment))
    }

    /// Whether the new ReplicaSet has all replicas.
    pub(super) fn is_saturated(&self) -> bool {
        let wanted = replicas(&self.deployment);
        self.new.as_ref().is_some_and(|set| {
            replicas(set) == wanted
                && annotation(set, DESIRED).parse() == Ok(wanted)
                && number(&set["status"]["availableReplicas"]) == wanted
        })
    }

    /// The number of pods, with surge, for which the ReplicaSet was sized: its annotation, otherwise the replicas of the Deployment.
    pub(super) fn sized_for(&self, set: &Value) -> i64 {
        annotation(set, MAX).parse().unwrap_or_else(|_| number(&self.deployment["status"]["replicas"]))
    }

    /// Gives a ReplicaSet another size. Returns whether it had another one.
    pub(super) fn resize(&mut self, api: &mut Api, set_name: &str, size: i64) -> bool {
        let wanted = replicas(&self.deployment);
        let most = wanted + self.max_surge();
        let now = self.now;
        let Some(set) = self.old.iter_mut().chain(&mut self.new).find(|set| name(set) == set_name) else {
            return false;
        };
        let is_other = replicas(set) != size;
        let (desired, max) = (wanted.to_string(), most.to_string());
        if !is_other && annotation(set, DESIRED) == desired && annotation(set, MAX) == max {
            return false;
        }
        set["spec"]["replicas"] = size.into();
        set["metadata"]["annotations"][DESIRED] = desired.into();
        set["metadata"]["annotations"][MAX] = max.into();
        client::update(api, MANAGER, &REPLICA_SETS, "", set, now).is_ok() && is_other
    }

    /// Deletes the oldest ReplicaSets that have no pods, beyond the limit.
    pub(super) fn clean(&self, api: &mut Api) {
        let Some(limit) = self.deployment["spec"]["revisionHistoryLimit"].as_u64() else { return };
        let mut alive: Vec<&Value> = self.old.iter().filter(|set| !is_deleting(set)).collect();
        alive.sort_by_key(|set| revision(set));
        let excess = alive.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        for set in alive.into_iter().take(excess) {
            let is_observed =
                number(&set["metadata"]["generation"]) <= number(&set["status"]["observedGeneration"]);
            if number(&set["status"]["replicas"]) == 0 && replicas(set) == 0 && is_observed {
                let _ = client::delete(api, MANAGER, &REPLICA_SETS, set, None, self.now);
            }
        }
    }
}
