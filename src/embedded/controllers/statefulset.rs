//! StatefulSets: pods with a number each, created, updated and deleted in order.

use std::collections::BTreeSet;

use jiff::Timestamp;
use operetta_kube_model::facts::{is_deleting, is_ready, is_terminal, name, number, text};
use serde_json::{Value, json};

use super::client::{self, MANAGER, PODS, REVISIONS, STATEFUL_SETS, get};
use super::ownership::claim;
use super::parts::{self, is_available, next_available, without_zeros};
use super::revisions::{Revisions, template};
use super::set_claims;
use crate::api::Api;

const REVISION: &str = "controller-revision-hash";

/// The number of a pod of a StatefulSet.
fn ordinal(set: &Value, pod: &Value) -> Option<i64> {
    name(pod).strip_prefix(name(set))?.strip_prefix('-')?.parse().ok()
}

fn revision(pod: &Value) -> &str {
    text(&pod["metadata"]["labels"][REVISION])
}

/// A StatefulSet on its way.
struct Sync<'a> {
    set: &'a Value,
    current: Value,
    update: Value,
    is_parallel: bool,
    min_ready: i64,
    now: Timestamp,
}

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut set = get(api, &STATEFUL_SETS, key)?;
    let pods = claim(api, (&STATEFUL_SETS, &set), &PODS, now);
    let known = claim(api, (&STATEFUL_SETS, &set), &REVISIONS, now);
    let revisions = if is_deleting(&set) {
        let update = known.last().cloned()?;
        Revisions { update, collisions: number(&set["status"]["collisionCount"]), all: known }
    } else {
        Revisions::find(api, &STATEFUL_SETS, &set, known, now)?
    };
    let current = revisions.all.iter().find(|known| set["status"]["currentRevision"] == name(known));
    let current = current.unwrap_or(&revisions.update).clone();
    let sync = Sync {
        is_parallel: set["spec"]["podManagementPolicy"] == "Parallel",
        min_ready: number(&set["spec"]["minReadySeconds"]),
        update: revisions.update.clone(),
        current,
        set: &set,
        now,
    };
    let pods: Vec<Value> = pods.into_iter().filter(|pod| ordinal(&set, pod).is_some()).collect();
    let deleted = if is_deleting(&set) { 0 } else { sync.run(api, &pods).unwrap_or(0) };
    // The status is about the pods as they were before this step.
    let status = sync.status(&pods, revisions.collisions, deleted);
    let mut in_use: BTreeSet<&str> = pods.iter().map(revision).collect();
    in_use.extend([name(&sync.current), name(&sync.update)]);
    revisions.clean(api, &set, &in_use, now);
    let min_ready = sync.min_ready;
    client::set_status(api, MANAGER, &STATEFUL_SETS, &mut set, status, now);
    if min_ready > 0 { next_available(&pods, min_ready, now) } else { None }
}

impl Sync<'_> {
    fn start(&self) -> i64 {
        number(&self.set["spec"]["ordinals"]["start"])
    }

    fn replicas(&self) -> i64 {
        number(&self.set["spec"]["replicas"])
    }

    fn runs(pod: &Value) -> bool {
        pod["status"]["phase"] == "Running" && is_ready(pod)
    }

    fn is_available(&self, pod: &Value) -> bool {
        is_available(pod, self.min_ready, self.now)
    }

    fn pod_name(&self, ordinal: i64) -> String {
        format!("{}-{ordinal}", name(self.set))
    }

    /// One step: creates, replaces or deletes pods. Unless the policy is `Parallel`, the first pod that is not ready stops it.
    /// Returns the number of pods that were deleted to be updated.
    fn run(&self, api: &mut Api, pods: &[Value]) -> Option<i64> {
        let wanted = self.start()..self.start() + self.replicas();
        let find = |number: i64| pods.iter().find(|pod| ordinal(self.set, pod) == Some(number));
        for number in wanted.clone() {
            let stops = self.replica(api, number, find(number));
            if stops && !self.is_parallel {
                return None;
            }
        }
        let mut condemned: Vec<(i64, &Value)> =
            pods.iter().filter_map(|pod| Some((ordinal(self.set, pod)?, pod))).collect();
        condemned.retain(|(number, _)| !wanted.contains(number));
        condemned.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        for (_, pod) in &condemned {
            set_claims::retain(api, self.set, name(pod), true, self.now);
        }
        let is_bad = |pod: &&Value| !self.is_available(pod) || is_deleting(pod);
        let in_order = wanted.clone().filter_map(find).chain(condemned.iter().rev().map(|(_, pod)| *pod));
        let first_bad = { in_order }.find(is_bad).map(name);
        for (_, pod) in condemned {
            if is_deleting(pod) {
                if self.is_parallel {
                    continue;
                }
                return None;
            }
            if !self.is_parallel && !self.is_available(pod) && first_bad != Some(name(pod)) {
                return None;
            }
            let _ = client::delete(api, MANAGER, &PODS, pod, None, self.now);
            if !self.is_parallel {
                return None;
            }
        }
        let strategy = &self.set["spec"]["updateStrategy"];
        if strategy["type"] == "OnDelete" {
            return None;
        }
        let partition = number(&strategy["rollingUpdate"]["partition"]);
        let least = self.start() + partition;
        for number in wanted.rev().take_while(|number| *number >= least) {
            let pod = find(number)?;
            if revision(pod) != name(&self.update) && !is_deleting(pod) {
                let _ = client::delete(api, MANAGER, &PODS, pod, None, self.now);
                return Some(1);
            }
            if is_bad(&pod) {
                return None;
            }
        }
        None
    }

    /// Looks after one replica. Returns whether those after it have to wait.
    fn replica(&self, api: &mut Api, at: i64, pod: Option<&Value>) -> bool {
        let Some(pod) = pod else {
            if set_claims::ensure(api, self.set, &self.pod_name(at), self.now) {
                let mut pod = self.new_pod(at);
                let _ = client::create(api, MANAGER, &PODS, &mut pod, self.now);
                set_claims::retain(api, self.set, name(&pod), false, self.now);
            }
            return true;
        };
        if is_terminal(pod) {
            if !is_deleting(pod) {
                let _ = client::delete(api, MANAGER, &PODS, pod, None, self.now);
            }
            return true;
        }
        if pod["status"]["phase"] == "Pending" {
            set_claims::ensure(api, self.set, name(pod), self.now);
        }
        set_claims::retain(api, self.set, name(pod), false, self.now);
        is_deleting(pod) || !Self::runs(pod) || !self.is_available(pod)
    }

    fn new_pod(&self, at: i64) -> Value {
        let strategy = &self.set["spec"]["updateStrategy"];
        let partition = strategy["rollingUpdate"]["partition"].as_i64();
        let is_current = strategy["type"] == "RollingUpdate"
            && at - self.start() < partition.unwrap_or(number(&self.set["status"]["currentReplicas"]));
        let revision = if is_current { &self.current } else { &self.update };
        let pod_name = self.pod_name(at);
        let mut pod = parts::pod(&STATEFUL_SETS, self.set, &template(revision));
        pod["metadata"]["name"] = pod_name.clone().into();
        for (label, value) in [
            ("statefulset.kubernetes.io/pod-name", pod_name.clone()),
            ("apps.kubernetes.io/pod-index", at.to_string()),
            (REVISION, name(revision).to_owned()),
        ] {
            pod["metadata"]["labels"][label] = value.into();
        }
        pod["spec"]["hostname"] = pod_name.clone().into();
        pod["spec"]["subdomain"] = self.set["spec"]["serviceName"].clone();
        set_claims::mount(self.set, &pod_name, &mut pod["spec"]);
        pod
    }

    fn status(&self, pods: &[Value], collisions: i64, deleted: i64) -> Value {
        let count = |test: &dyn Fn(&Value) -> bool| {
            i64::try_from(pods.iter().filter(|pod| test(pod)).count()).unwrap_or(0)
        };
        let (replicas, ready) = (count(&|_| true), count(&Self::runs));
        let current = count(&|pod| !is_deleting(pod) && revision(pod) == name(&self.current));
        let updated = count(&|pod| !is_deleting(pod) && revision(pod) == name(&self.update));
        let wanted = self.replicas();
        let is_complete = self.set["spec"]["updateStrategy"]["type"] == "RollingUpdate"
            && [replicas, ready, updated].iter().all(|count| *count == wanted);
        let status = json!({
            "observedGeneration": self.set["metadata"]["generation"],
            "replicas": replicas,
            "readyReplicas": ready,
            "availableReplicas": count(&|pod| self.is_available(pod)),
            "currentReplicas": if is_complete { updated } else { current - deleted },
            "updatedReplicas": updated,
            "currentRevision": name(if is_complete { &self.update } else { &self.current }),
            "updateRevision": name(&self.update),
            "collisionCount": collisions,
        });
        without_zeros(status, &["readyReplicas", "currentReplicas", "updatedReplicas"])
    }
}
