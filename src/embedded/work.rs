//! The memory of the controllers: keys to sync, times at which to sync again, and the pods that run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use operetta_kube_model::facts::{ROOT_CA, claims, is_terminal, volume_of};
use serde_json::{Map, Value};

use crate::crd::CRDS;
use crate::model::Object;
use crate::state::store::{Change, Event, Place};
use crate::state::{Active, State, Store};
use crate::world::programs::Course;

/// A controller: what looks after the objects of a resource, in the order in which they act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    Quotas,
    CronJobs,
    Jobs,
    ReplicaSets,
    Deployments,
    StatefulSets,
    DaemonSets,
    Claims,
    Volumes,
    Attributes,
    Pods,
    Endpoints,
    Budgets,
    Namespaces,
    /// Of all CRDs; it has work only if changes are known late.
    Crds,
}

impl Controller {
    pub(crate) fn of(resource: &str) -> Option<Self> {
        Some(match resource {
            "resourcequotas" => Self::Quotas,
            "cronjobs.batch" => Self::CronJobs,
            "jobs.batch" => Self::Jobs,
            "deployments.apps" => Self::Deployments,
            "replicasets.apps" => Self::ReplicaSets,
            "statefulsets.apps" => Self::StatefulSets,
            "daemonsets.apps" => Self::DaemonSets,
            "persistentvolumeclaims" => Self::Claims,
            "persistentvolumes" => Self::Volumes,
            "volumeattributesclasses.storage.k8s.io" => Self::Attributes,
            "pods" => Self::Pods,
            "services" => Self::Endpoints,
            "poddisruptionbudgets.policy" => Self::Budgets,
            "namespaces" => Self::Namespaces,
            _ => return None,
        })
    }
}

/// The memory of the controllers.
#[derive(Debug, Default, Clone)]
pub(crate) struct Controllers {
    pub(crate) is_set_up: bool,
    /// The version up to which events were looked at.
    seen: u64,
    pub(crate) work: BTreeSet<(Controller, Arc<str>)>,
    due: BTreeMap<(Controller, Arc<str>), Timestamp>,
    pub(crate) by_time: BTreeSet<(Timestamp, Controller, Arc<str>)>,
    pub(crate) garbage: BTreeSet<Place>,
    /// Garbage that is looked at later.
    pub(crate) later: BTreeSet<(Timestamp, Place)>,
    /// Services and budgets by the namespace and the first label that they select.
    selecting: BTreeMap<String, BTreeSet<(Controller, Arc<str>)>>,
    /// Pods by their namespace and each label.
    labelled: BTreeMap<String, BTreeSet<Arc<str>>>,
    /// Volumes that no claim has.
    pub(crate) free_volumes: BTreeSet<Arc<str>>,
    pub(crate) kubelet: Kubelet,
    pub(crate) job_failures: BTreeMap<Box<str>, Failures>,
    /// Whether the object that a controller has just created was refused.
    pub(crate) was_refused: bool,
    /// Work that waits until what was refused may be admitted.
    pub(crate) refused: BTreeSet<(Controller, Arc<str>)>,
    /// The newest change of a policy that was known.
    pub(crate) policies: u64,
}

/// The resources that decide whether objects are admitted, beside policies.
const ADMITTING: [&str; 6] = [
    "serviceaccounts",
    "namespaces",
    "limitranges",
    "resourcequotas",
    "priorityclasses.scheduling.k8s.io",
    "runtimeclasses.node.k8s.io",
];

/// A summary of the events since the last tick.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) any: bool,
    pub(crate) crds: bool,
    /// The namespaces that may lack their account or certificates.
    pub(crate) namespaces: BTreeSet<Box<str>>,
}

/// The end of the containers of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) started: Timestamp,
    pub(crate) finished: Timestamp,
    pub(crate) code: i32,
    pub(crate) message: String,
}

/// The failures since the last success.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Failures {
    pub(crate) count: u32,
    pub(crate) last: Option<Timestamp>,
}

/// The memory of the kubelet.
#[derive(Debug, Default, Clone)]
pub(crate) struct Kubelet {
    pub(crate) runs: BTreeMap<Arc<str>, Run>,
    /// Pods that wait for a node or an object.
    pub(crate) blocked: BTreeSet<Arc<str>>,
    pub(crate) addresses: u32,
    /// Whether programs were asked something that may have made other pods ready or not.
    pub(crate) is_stirred: bool,
}

/// A pod whose containers were started.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) uid: Box<str>,
    pub(crate) pod: Arc<Object>,
    pub(crate) address: String,
    pub(crate) since: Timestamp,
    pub(crate) started: Timestamp,
    pub(crate) course: Course,
    pub(crate) restarts: i64,
    /// The number of restarts since the containers were healthy.
    pub(crate) failures: u32,
    pub(crate) last: Option<End>,
    /// The images of its containers.
    pub(crate) images: String,
    /// Until when the next start is put off, and for how many seconds in all.
    pub(crate) waits: Option<(Timestamp, i64)>,
}

impl Kubelet {
    /// Whether the containers of a pod run.
    pub(crate) fn is_running(&self, key: &str) -> bool {
        self.runs.get(key).is_some_and(|run| run.waits.is_none())
    }
}

impl Controllers {
    /// Collects the work that the events since the last time mean.
    pub(crate) fn observe(&mut self, state: &State, now: Timestamp) -> Seen {
        let State { store, active, .. } = state;
        let mut seen = Seen::default();
        if self.seen == store.version() {
            return seen;
        }
        let first = self.seen + 1;
        self.seen = store.version();
        if let Some(events) = store.since(first - 1) {
            for event in events {
                self.note(store, *active, event, &mut seen);
            }
            self.put_off(state, &seen, now);
            return seen;
        }
        // Too much happened: each object may be new.
        for (resource, key, object) in store.all() {
            let event = Event {
                version: object.version,
                resource: resource.clone(),
                key: key.clone(),
                change: Change::Added,
                object: object.clone(),
                old: None,
            };
            self.note(store, *active, &event, &mut seen);
        }
        self.work.extend(self.due.keys().cloned());
        self.work.extend(self.kubelet.runs.keys().map(|key| (Controller::Pods, key.clone())));
        self.put_off(state, &seen, now);
        seen
    }

    /// Lets the garbage collector and the controllers of namespaces and CRDs look later at what was noted, if they act late.
    fn put_off(&mut self, State { store, active, lateness, .. }: &State, seen: &Seen, now: Timestamp) {
        let Some(lateness) = lateness else { return };
        for place in std::mem::take(&mut self.garbage) {
            self.later.insert((lateness.of_controller(&place.0, &place.1, now), place));
        }
        self.work.retain(|(controller, _)| !matches!(controller, Controller::Namespaces | Controller::Crds));
        let ending = |resource| store.range(resource, "", None).filter(|(_, object)| object.is_deleting);
        let mut all = Vec::new();
        if *active != Active::Server {
            let due = |key: &str| lateness.of_controller("namespaces", key, now);
            all.extend(ending("namespaces").map(|(key, _)| (due(key), Controller::Namespaces, key.clone())));
        }
        if seen.crds || ending(CRDS).next().is_some() {
            all.push((lateness.of_watch(CRDS, now), Controller::Crds, Arc::from(CRDS)));
        }
        for (due, controller, key) in all {
            let known = self.due.get(&(controller, key.clone()));
            if known.is_none_or(|known| due < *known) {
                self.set_due(controller, &key, Some(due), now);
            }
        }
    }

    fn note(&mut self, store: &Store, active: Active, event: &Event, seen: &mut Seen) {
        seen.any = true;
        seen.crds |= &*event.resource == CRDS;
        if ["namespaces", "serviceaccounts"].contains(&&*event.resource) || event.key.ends_with(ROOT_CA) {
            let name = event.key.split('/').find(|part| !part.is_empty());
            seen.namespaces.insert(name.unwrap_or_default().into());
        }
        self.note_garbage(store, event);
        if active != Active::All {
            return;
        }
        if ADMITTING.contains(&&*event.resource) {
            self.work.append(&mut self.refused);
        }
        if let Some(controller) = Controller::of(&event.resource) {
            self.work.insert((controller, event.key.clone()));
        }
        let old = event.old.as_deref();
        for object in old.into_iter().chain([&*event.object]) {
            self.note_owners(store, object);
        }
        let namespace = event.key.split('/').next().unwrap_or_default();
        let has_new_labels =
            old.is_none_or(|old| old.labels != event.object.labels || old.owners != event.object.owners);
        if event.object.owners.is_empty() && has_new_labels && event.change != Change::Deleted {
            let adopters: &[&str] = match &*event.resource {
                "pods" => &["replicasets.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch"],
                "replicasets.apps" => &["deployments.apps"],
                "controllerrevisions.apps" => &["statefulsets.apps", "daemonsets.apps"],
                _ => &[],
            };
            for resource in adopters {
                self.note_all(store, resource, namespace);
            }
        }
        let owners = &event.object.owners;
        if matches!(&*event.resource, "pods" | "controllerrevisions.apps")
            && event.change == Change::Deleted
            && !owners.is_empty()
            && owners.iter().all(|owner| store.place(owner).is_none())
        {
            // One that was created again waits for the names that the former one has left.
            self.note_all(store, "statefulsets.apps", namespace);
            self.note_all(store, "daemonsets.apps", namespace);
        }
        // Quotas count the objects of their namespace.
        let is_measured = matches!(&*event.resource, "pods" | "services" | "persistentvolumeclaims");
        if !namespace.is_empty() && (is_measured || event.change != Change::Modified) {
            self.note_all(store, "resourcequotas", namespace);
        }
        match &*event.resource {
            "pods" => self.note_pod(namespace, event),
            "services" => self.note_selector(Controller::Endpoints, &["spec", "selector"], event),
            "poddisruptionbudgets.policy" => {
                self.note_selector(Controller::Budgets, &["spec", "selector", "matchLabels"], event);
            }
            "configmaps" | "secrets" | "persistentvolumeclaims" => self.retry_pods(&format!("{namespace}/")),
            "nodes" => {
                self.retry_pods("");
                self.work.extend(self.kubelet.runs.keys().map(|key| (Controller::Pods, key.clone())));
                self.note_all(store, "daemonsets.apps", "");
            }
            "persistentvolumes" => {
                let is_taken = event.object.parsed().value["spec"]["claimRef"]["uid"].is_string();
                if is_taken || event.change == Change::Deleted {
                    self.free_volumes.remove(&event.key);
                } else {
                    self.free_volumes.insert(event.key.clone());
                    self.note_unbound(store);
                }
            }
            "storageclasses.storage.k8s.io" => self.note_unbound(store),
            _ => {}
        }
        if matches!(&*event.resource, "persistentvolumeclaims" | "persistentvolumes")
            && old.into_iter().chain([&*event.object]).any(|it| it.json.contains("AttributesClassName\""))
        {
            self.note_all(store, "volumeattributesclasses.storage.k8s.io", "");
        }
        if &*event.resource == "jobs.batch" && event.change == Change::Deleted {
            // Its pods have to be released.
            let pods = store.below(&event.object.uid).filter(|(resource, _)| &**resource == "pods");
            self.work.extend(pods.map(|(_, key)| (Controller::Pods, key.clone())));
        }
        if &*event.resource == "persistentvolumeclaims" && event.change == Change::Deleted {
            let volume = volume_of(&event.object.parsed().value);
            self.work.extend(volume.map(|key| (Controller::Volumes, key.as_str().into())));
        }
    }

    fn note_garbage(&mut self, store: &Store, event: &Event) {
        let object = &event.object;
        let place = (event.resource.clone(), event.key.clone());
        let old: &[Box<str>] = event.old.as_ref().map(|old| &*old.owners).unwrap_or_default();
        if event.change == Change::Deleted || object.is_deleting || *old != *object.owners {
            let owners = old.iter().chain(&*object.owners).filter_map(|owner| store.place(owner));
            self.garbage.extend(owners.cloned());
            if event.change == Change::Deleted || object.is_deleting {
                self.garbage.extend(store.below(&object.uid).cloned());
            }
            self.garbage.insert(place);
        }
    }

    /// Owners look at what happened to what they own.
    fn note_owners(&mut self, store: &Store, object: &Object) {
        for owner in &object.owners {
            if let Some((resource, key)) = store.place(owner)
                && let Some(controller) = Controller::of(resource)
            {
                self.work.insert((controller, key.clone()));
            }
        }
    }

    fn note_all(&mut self, store: &Store, resource: &str, namespace: &str) {
        let Some(controller) = Controller::of(resource) else { return };
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        self.work.extend(store.range(resource, &prefix, None).map(|(key, _)| (controller, key.clone())));
    }

    /// Looks again at pods that wait for an object.
    fn retry_pods(&mut self, prefix: &str) {
        let waiting = self.kubelet.blocked.iter().filter(|key| key.starts_with(prefix));
        self.work.extend(waiting.map(|key| (Controller::Pods, key.clone())));
    }

    /// Claims that have no volume look for one.
    fn note_unbound(&mut self, store: &Store) {
        let waiting = store.range("persistentvolumeclaims", "", None);
        let waiting = waiting.filter(|(_, claim)| !claim.json.contains("\"volumeName\""));
        self.work.extend(waiting.map(|(key, _)| (Controller::Claims, key.clone())));
    }

    fn note_pod(&mut self, namespace: &str, event: &Event) {
        let old = event.old.iter().map(|old| (old, false));
        for (object, is_new) in old.chain([(&event.object, event.change != Change::Deleted)]) {
            let labels = object.labels.iter().map(|(key, value)| format!("{namespace}/{key}={value}"));
            for label in labels {
                if let Some(all) = self.selecting.get(&label) {
                    self.work.extend(all.iter().cloned());
                }
                if is_new {
                    self.labelled.entry(label).or_default().insert(event.key.clone());
                } else if let Some(all) = self.labelled.get_mut(&label) {
                    all.remove(&event.key);
                    if all.is_empty() {
                        self.labelled.remove(&label);
                    }
                }
            }
            if let Some(all) = self.selecting.get(&format!("{namespace}/")) {
                self.work.extend(all.iter().cloned());
            }
        }
        if event.object.json.contains("\"persistentVolumeClaim\"") {
            let ends = event.change == Change::Deleted || is_terminal(&event.object.parsed().value);
            let claims = if ends { claims(&event.object.parsed().value) } else { Vec::new() };
            self.work.extend(
                claims.into_iter().map(|name| (Controller::Claims, format!("{namespace}/{name}").into())),
            );
        }
    }

    /// Notes which pods an object selects: by their first label, or all of the namespace.
    fn note_selector(&mut self, controller: Controller, path: &[&str], event: &Event) {
        let namespace = event.key.split('/').next().unwrap_or_default();
        let old = event.old.iter().map(|old| (old, false));
        for (object, is_new) in old.chain([(&event.object, event.change != Change::Deleted)]) {
            let parsed = object.parsed();
            let labels = path.iter().fold(&parsed.value, |at, step| &at[step]).as_object();
            let first = labels.and_then(|labels| labels.iter().next());
            let label = first.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
            let all = self.selecting.entry(format!("{namespace}/{}", label.unwrap_or_default())).or_default();
            if is_new {
                all.insert((controller, event.key.clone()));
            } else {
                all.remove(&(controller, event.key.clone()));
            }
        }
    }

    /// The pods of a namespace that may have all of these labels: those that have one of them. `None` if all may.
    pub(crate) fn labelled(
        &self,
        namespace: &str,
        labels: Option<&Map<String, Value>>,
    ) -> Option<BTreeSet<Arc<str>>> {
        let labels = labels.into_iter().flatten();
        let sets = labels.map(|(key, value)| {
            self.labelled.get(&format!("{namespace}/{key}={}", value.as_str().unwrap_or_default()))
        });
        sets.min_by_key(|set| set.map_or(0, BTreeSet::len)).map(|set| set.cloned().unwrap_or_default())
    }

    /// Adds the work whose time has come.
    pub(crate) fn wake(&mut self, now: Timestamp) {
        while self.later.first().is_some_and(|(time, _)| *time <= now) {
            self.garbage.extend(self.later.pop_first().map(|(_, place)| place));
        }
        while let Some((time, controller, key)) = self.by_time.first().cloned() {
            if time > now {
                return;
            }
            self.set_due(controller, &key, None, now);
            self.work.insert((controller, key));
        }
    }

    pub(crate) fn set_due(
        &mut self,
        controller: Controller,
        key: &Arc<str>,
        due: Option<Timestamp>,
        now: Timestamp,
    ) {
        let place = (controller, key.clone());
        if let Some(old) = self.due.remove(&place) {
            self.by_time.remove(&(old, controller, key.clone()));
        }
        if let Some(due) = due {
            // Time has to go on, whatever a controller asks for.
            let due =
                if due > now { due } else { now.checked_add(SignedDuration::from_secs(1)).unwrap_or(now) };
            self.due.insert(place, due);
            self.by_time.insert((due, controller, key.clone()));
        }
    }
}
