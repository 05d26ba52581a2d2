//! A test of faults: a namespace, a package of its own, and managers of it in this process that come and go.
//!
//! Each case has a copy of the package with another API group, so that the managers of cases that run at the
//! same time have nothing to do with each other's instances.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use operetta::children::Decision;
use operetta::manager::{Config, InstanceKey, Manager};
use operetta::package::Package;
use serde_json::{Value, json};

use super::{Fault, Life, Rule, Verb, WRITES, Wire, made_and_taken, story};
use crate::support::ext::{
    CONFIG_MAP, EVENT, JOB, Kind, LONG, SECRET, SERVICE, Scene, copy_folder, fixture, is_ready,
};
use crate::support::oracles::{Logs, Recorder, State, differences, state};
use crate::support::{eventually, plane};

/// The kinds of the children of the package `whole`.
pub const CHILDREN: [Kind; 4] = [CONFIG_MAP, SECRET, SERVICE, JOB];

/// How long nothing may be asked before all counts as settled.
const QUIET: Duration = Duration::from_millis(1_500);

/// What must never be shown: the token in each instance's spec.
const CANARY: &str = "canary-3f9c";

pub struct Case {
    pub scene: Scene,
    pub wire: Wire,
    /// The kind of the instances.
    pub kind: Kind,
    pub package: Arc<Package>,
    group: String,
    recorder: Mutex<Option<Recorder>>,
    logs: Logs,
    /// By instance, how often it was decided about, and whether there was nothing to do at last.
    decided: Arc<Mutex<BTreeMap<String, (usize, bool)>>>,
    deadline: Duration,
}

/// A manager.
pub struct Process {
    manager: Option<Manager>,
    pub life: Life,
}

impl Process {
    /// As with SIGKILL.
    pub fn kill(mut self) {
        self.life.end();
        drop(self.manager.take());
    }

    /// As with SIGTERM.
    pub async fn stop(mut self) {
        if let Some(manager) = self.manager.take() {
            manager.stop().await;
        }
    }
}

impl Case {
    /// A case with the package `whole`.
    pub async fn new() -> Self {
        Self::seeded(0).await
    }

    /// A case whose chances are told by that number.
    pub async fn seeded(seed: u64) -> Self {
        Self::with(seed, |text| text).await
    }

    /// A case whose package is changed.
    pub async fn with(seed: u64, change: impl Fn(String) -> String) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let logs = Logs::capture();
        let label = format!("c{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let group = format!("{label}.faults.operetta.dev");
        let package = package(&group, change);
        let scene = Scene::unmanaged().await;
        let aliases = [(scene.namespace(), "<namespace>"), (group.as_str(), "<group>")];
        Self {
            wire: Wire::new(seed, &group, &aliases),
            kind: Kind::of(format!("{group}/v1"), "wholes".to_owned()),
            scene,
            package,
            group,
            recorder: Mutex::default(),
            logs,
            decided: Arc::default(),
            deadline: Duration::from_secs(30),
        }
    }

    /// With this deadline for calls.
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Starts a manager.
    pub async fn start(&self) -> Process {
        self.start_with(Arc::clone(&self.package)).await
    }

    /// Starts a manager of a package.
    pub async fn start_with(&self, package: Arc<Package>) -> Process {
        self.try_start(package).await.unwrap_or_else(|error| panic!("{error}\n{}", self.tail()))
    }

    /// Starts a manager, which may fail where faults reach its start.
    pub async fn try_start(&self, package: Arc<Package>) -> Result<Process, String> {
        let (cluster, life) = self.wire.connect(plane().await).await;
        let decided = Arc::clone(&self.decided);
        decided.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let of = life.clone();
        let config = Config {
            observer: Some(Arc::new(move |key: &InstanceKey, decision: Option<&Decision>| {
                if of.is_over() {
                    return;
                }
                let mut decided = decided.lock().unwrap_or_else(PoisonError::into_inner);
                let entry = decided.entry(key.name.to_string()).or_default();
                *entry = (entry.0 + 1, decision.is_none_or(|d| d.actions.is_empty()));
            })),
            ..Config::default()
        };
        let manager = Manager::start(cluster.with_deadline(self.deadline), vec![package], config)
            .await
            .map_err(|error| error.to_string())?;
        if !manager.problems.is_empty() {
            return Err(format!("{:?}", manager.problems));
        }
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        if recorder.is_none() {
            recorder = Some(Recorder::start(&self.scene, self.kind).await);
        }
        *self.recorder.lock().unwrap_or_else(PoisonError::into_inner) = recorder;
        Ok(Process { manager: Some(manager), life })
    }

    /// Runs a manager that ends with its `k`th write, and waits until it has, or until `done`. Whether it has
    /// ended.
    pub async fn dies_at(&self, k: usize, fault: Fault, done: impl AsyncFnOnce()) -> bool {
        self.wire.rule(Rule::on(WRITES, fault).namespace(self.scene.namespace()).skip(k - 1).times(1));
        let process = self.start().await;
        let life = process.life.clone();
        let died = tokio::select! {
            () = life.over() => true,
            () = done() => false,
        };
        if died {
            process.kill();
        } else {
            process.stop().await;
        }
        self.wire.heal();
        died
    }

    /// Creates or changes an instance. Its token is one that nobody shall see, unless the spec has another.
    pub async fn apply(&self, name: &str, spec: &Value) {
        let mut spec = spec.clone();
        if spec.get("token").is_none() {
            spec["token"] = CANARY.into();
        }
        let api_version = self.kind.api_version();
        let instance =
            json!({"apiVersion": api_version, "kind": "Whole", "metadata": {"name": name}, "spec": spec});
        self.scene.apply(&instance.to_string()).await;
    }

    /// Asks for the deletion of an instance.
    pub async fn delete(&self, name: &str) {
        self.scene.kubectl(&["delete", &self.resource(), name, "--wait=false"]).await;
    }

    /// As kubectl takes it.
    pub fn resource(&self) -> String {
        format!("wholes.{}", self.group)
    }

    /// Waits until an instance is Ready at its newest generation.
    pub async fn ready(&self, name: &str) -> Value {
        eventually(&format!("{name} to be Ready"), LONG, async || {
            match self.scene.find(self.kind, name).await {
                Some(object) if is_ready(&object) => Ok(object),
                Some(object) => Err(format!("{:#}\n{}", object["status"], self.tail())),
                None => Err("it does not exist".to_owned()),
            }
        })
        .await
    }

    /// Waits until an instance is gone.
    pub async fn gone(&self, name: &str) {
        eventually(&format!("{name} to be gone"), LONG, async || {
            match self.scene.find(self.kind, name).await {
                None => Ok(()),
                Some(object) => Err(format!("{:#}\n{}", object["status"], self.tail())),
            }
        })
        .await;
    }

    fn tail(&self) -> String {
        let log = self.wire.since(0);
        story(&log[log.len().saturating_sub(40)..])
    }

    /// Waits until nothing has been asked for a while.
    pub async fn quiet(&self) {
        self.quiet_but(&[]).await;
    }

    /// Waits until nothing has been asked for a while but with these verbs.
    pub async fn quiet_but(&self, verbs: &[Verb]) {
        let (started, mut mark, mut since) = (Instant::now(), self.wire.mark(), Instant::now());
        while since.elapsed() < QUIET {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if self.wire.since(mark).iter().any(|e| e.is_asking() && !verbs.contains(&e.call.verb)) {
                (mark, since) = (self.wire.mark(), Instant::now());
            }
            assert!(started.elapsed() < LONG, "it does not come to rest:\n{}", self.tail());
        }
    }

    /// What there is, with `name` standing for an instance's name.
    pub async fn state(&self, name: &str) -> State {
        let revision = self.package.revision();
        let renamed = [
            (name, "<name>"),
            (self.group.as_str(), "<group>"),
            (self.package.name.as_str(), "<package>"),
            (revision.as_str(), "<revision>"),
            (CANARY, "<token>"),
        ];
        state(&self.scene, &[self.kind], &CHILDREN, &renamed).await
    }

    /// Waits until there is the same as in another run.
    pub async fn same(&self, name: &str, expected: &State) {
        eventually("the state of an undisturbed run", LONG, async || {
            let found = self.state(name).await;
            if found == *expected {
                Ok(())
            } else {
                Err(format!("{}\n{}", differences(expected, &found), self.tail()))
            }
        })
        .await;
    }

    /// How often each child was created and deleted since a place in the log, by names in which `name` stands
    /// for the instance's.
    pub fn counts(&self, mark: usize, name: &str) -> BTreeMap<String, (usize, usize)> {
        made_and_taken(&self.wire.since(mark), self.scene.namespace())
            .into_iter()
            .map(|(object, counts)| (object.replace(name, "<name>"), counts))
            .collect()
    }

    /// Waits until all instances have been decided about, with nothing left to do.
    pub async fn decided(&self, names: &[&str]) {
        eventually("all to be decided about", LONG, async || {
            let decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let missing: Vec<_> =
                names.iter().filter(|n| !decided.get(**n).is_some_and(|(_, idle)| *idle)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}\n{}", self.tail())) }
        })
        .await;
    }

    /// How often an instance was decided about since the last start.
    pub fn decisions(&self, name: &str) -> usize {
        let decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        decided.get(name).map_or(0, |(count, _)| *count)
    }

    /// Comes to rest, is started anew and writes nothing.
    pub async fn stays(&self, process: Process, names: &[&str]) -> Process {
        self.wire.heal();
        for name in names {
            self.ready(name).await;
        }
        self.quiet().await;
        process.stop().await;
        let mark = self.wire.mark();
        let process = self.start().await;
        self.decided(names).await;
        self.quiet().await;
        let writes = self.wire.writes(mark);
        assert!(writes.is_empty(), "all was right, and yet it wrote:\n{}", story(&writes));
        process
    }

    /// What must hold at the end of every case.
    pub async fn finish(self, process: Process) {
        process.stop().await;
        if let Some(recorder) = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take() {
            recorder.check();
            let shown = recorder.shows(CANARY);
            assert!(shown.is_none(), "a secret is in a status: {}", shown.unwrap_or_default());
        }
        for event in self.scene.list(EVENT).await {
            assert!(!event.to_string().contains(CANARY), "a secret is in an Event: {event:#}");
        }
        let said = self.logs.lines_with(CANARY);
        assert!(said.is_empty(), "a secret is in the log:\n{}", said.join("\n"));
        self.logs.check();
    }

    /// What the managers said about this case.
    pub fn said(&self, text: &str) -> Vec<String> {
        let mut lines = self.logs.lines_with(text);
        lines.retain(|line| line.contains(self.scene.namespace()) || line.contains(&self.group));
        lines
    }
}

/// The package `whole` with another API group, changed.
fn package(group: &str, change: impl Fn(String) -> String) -> Arc<Package> {
    let label = group.split('.').next().unwrap_or_default().to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    copy_folder(Path::new(&fixture("whole")), folder.path(), &|text| {
        let text = text.replace("fixtures.operetta.dev", group);
        change(text.replace("name: whole\n", &format!("name: whole-{label}\n")))
    });
    let (package, _) = operetta::package::load(folder.path()).unwrap_or_else(|errors| panic!("{errors:?}"));
    Arc::new(package)
}

impl Case {
    /// The package of this case, changed.
    pub fn changed(&self, change: impl Fn(String) -> String) -> Arc<Package> {
        package(&self.group, change)
    }
}
