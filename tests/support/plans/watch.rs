//! Watches that record intermediate states, for what must never happen on the way to an end state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::Value;
use tokio::sync::watch::{Receiver, Sender};
use tokio::task::JoinHandle;

use super::super::ext::{Kind, Scene, name_of, uid_of};
use super::{INSTANCE_STATE, PLAN_RUN, is_over, phase, steps};

/// Records every uid that objects of a kind have had, by object name.
pub struct UidWatch {
    uids: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    watch: JoinHandle<()>,
}

impl Drop for UidWatch {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl UidWatch {
    /// How many different objects each name has had.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let uids = self.uids.lock().unwrap_or_else(PoisonError::into_inner);
        uids.iter().map(|(name, uids)| (name.clone(), uids.len())).collect()
    }
}

impl Scene {
    /// Watches all objects of a kind in the namespace from now on.
    pub async fn watch_uids(&self, kind: Kind) -> UidWatch {
        let uids = Arc::<Mutex<BTreeMap<String, BTreeSet<String>>>>::default();
        let seen = Arc::clone(&uids);
        let watch = watch(self, kind, move |object| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.entry(name_of(&object).to_owned()).or_default().insert(uid_of(&object).to_owned());
        });
        UidWatch { uids, watch: watch.await }
    }
}

/// Calls `see` with each version of each object of a kind in the namespace. Returns when all objects are listed.
async fn watch(scene: &Scene, kind: Kind, mut see: impl FnMut(Value) + Send + 'static) -> JoinHandle<()> {
    let (client, namespace) = (scene.client(), scene.namespace());
    let api = kube::Api::<kube::api::DynamicObject>::namespaced_with(client, namespace, &kind.resource());
    let (listed, wait) = tokio::sync::oneshot::channel();
    let mut listed = Some(listed);
    let watch = tokio::spawn(async move {
        let mut events = Box::pin(watcher(api, Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    see(serde_json::to_value(object).expect("JSON"));
                }
                Ok(Event::InitDone) => drop(listed.take().map(|listed| listed.send(()))),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Ok(Event::Init | Event::Delete(_)) => {}
            }
        }
    });
    wait.await.expect("a list");
    watch
}

/// Watches the runs of a namespace: steps never move back, ends never change, and the revision stays the
/// same.
pub struct RunWatch {
    wrong: Arc<Mutex<Vec<String>>>,
    watch: JoinHandle<()>,
}

impl Drop for RunWatch {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl RunWatch {
    pub async fn start(scene: &Scene) -> Self {
        let wrong = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&wrong);
        let mut last: BTreeMap<String, Value> = BTreeMap::new();
        let watch = watch(scene, PLAN_RUN, move |run| {
            let before = last.insert(uid_of(&run).to_owned(), run.clone());
            if let Some(error) = before.and_then(|before| went_back(&before, &run)) {
                told.lock().unwrap_or_else(PoisonError::into_inner).push(error);
            }
        });
        Self { wrong, watch: watch.await }
    }

    /// Panics and lists every change that a run must not make.
    pub fn check(&self) {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// Describes what has changed in a run although it must not; `None` if nothing has.
fn went_back(before: &Value, after: &Value) -> Option<String> {
    let name = name_of(after);
    if is_over(before) && phase(after) != phase(before) {
        return Some(format!("{name} was {} and is {}", phase(before), phase(after)));
    }
    let revision = &before["status"]["revision"];
    if !revision.is_null() && after["status"]["revision"] != *revision {
        return Some(format!("{name} had revision {revision} and has {}", after["status"]["revision"]));
    }
    let after = steps(after);
    steps(before).into_iter().find_map(|(path, step)| {
        let now = after.get(&path).map_or(&Value::Null, |step| &step["phase"]);
        let ended = ["Succeeded", "Skipped", "Failed"].contains(&step["phase"].as_str().unwrap_or_default());
        let lost = now.is_null() || ended && *now != step["phase"];
        lost.then(|| format!("{name}: step {path} was {} and is {now}", step["phase"]))
    })
}

/// Watches which steps the runs of a namespace reach: in their `PlanRun`, or in the `InstanceState`, which
/// has them first.
pub struct StepWatch {
    reached: Receiver<BTreeSet<String>>,
    watches: [JoinHandle<()>; 2],
}

impl Drop for StepWatch {
    fn drop(&mut self) {
        for watch in &self.watches {
            watch.abort();
        }
    }
}

impl StepWatch {
    pub async fn start(scene: &Scene) -> Self {
        let before: BTreeSet<String> =
            scene.list(PLAN_RUN).await.iter().map(|run| uid_of(run).to_owned()).collect();
        let (sender, reached) = tokio::sync::watch::channel(BTreeSet::new());
        let note = move |sender: &Sender<BTreeSet<String>>, uid: &str, status: &Value| {
            if before.contains(uid) {
                return;
            }
            let begun =
                |step: &&Value| !["Pending", "Skipped"].contains(&step["phase"].as_str().unwrap_or_default());
            let steps = status["steps"].as_array().into_iter().flatten().filter(begun);
            let paths: Vec<String> =
                steps.filter_map(|step| step["path"].as_str().map(ToOwned::to_owned)).collect();
            sender.send_if_modified(|all| {
                let known = all.len();
                all.extend(paths);
                all.len() > known
            });
        };
        let (of_run, of_memory) = (sender.clone(), sender);
        let note_of_run = note.clone();
        let runs = watch(scene, PLAN_RUN, move |run| note_of_run(&of_run, uid_of(&run), &run["status"]));
        let memories = watch(scene, INSTANCE_STATE, move |state| {
            for run in state["spec"]["runs"].as_array().into_iter().flatten() {
                note(&of_memory, run["uid"].as_str().unwrap_or_default(), &run["state"]);
            }
        });
        Self { reached, watches: [runs.await, memories.await] }
    }

    /// Waits until a step with this path has begun, where `*` stands for any key. Returns whether it did in
    /// time.
    pub async fn has_reached(&self, path: &str, timeout: Duration) -> bool {
        let (start, end) = path.split_once('*').unwrap_or((path, ""));
        let is_it = |one: &String| {
            if end.is_empty() { one == start } else { one.starts_with(start) && one.ends_with(end) }
        };
        let mut reached = self.reached.clone();
        let found = tokio::time::timeout(timeout, reached.wait_for(|all| all.iter().any(is_it))).await;
        found.is_ok_and(|found| found.is_ok())
    }
}
