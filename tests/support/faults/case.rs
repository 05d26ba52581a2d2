//! A case of the fault tests: a namespace, a package of its own, and managers in this process that start and
//! end.
//!
//! Each case has a copy of the package with another API group, so that the managers of cases that run at the
//! same time have nothing to do with each other's instances.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::support::ControlPlane;
use operetta::children::Decision;
use operetta::manager::{Config, InstanceKey, Manager, Monitor};
use operetta::package::Package;
use serde_json::{Value, json};
use tokio::time::Instant;

pub use super::subject::{FLEETS, PROCEDURES, Subject, WHOLE};
use super::{Fault, Life, Rule, Verb, WRITES, Wire, made_and_taken, story};
use crate::support::barrier::Rest;
use crate::support::ext::{EVENT, Kind, LONG, Scene, copy_package, is_ready, name_of, read};
use crate::support::oracles::{self, CANARY, Logs, Recorder, State, differences, state};
use crate::support::plans::{INSTANCE_STATE, PLAN_RUN};
use crate::support::{Actor, Lazy, etcd, eventually, plane_of_tests};

/// The deadline for calls unless a case has a shorter one: the manager's own.
const LONGEST: Duration = Duration::from_secs(30);

pub struct Case {
    pub scene: Scene,
    pub wire: Wire,
    /// The kind of the instances.
    pub kind: Kind,
    /// The kind of the instances, and [`Subject::inner`] if there is one.
    pub kinds: Vec<Kind>,
    pub package: Arc<Package>,
    pub subject: &'static Subject,
    group: String,
    recorder: Mutex<Option<Recorder>>,
    logs: Logs,
    /// For each instance, whether the last decision since the last start had nothing to do.
    decided: Arc<Mutex<BTreeMap<String, bool>>>,
    /// The monitor of the last manager.
    monitor: Mutex<Arc<Monitor>>,
    deadline: Duration,
}

/// A manager that runs in this process.
pub struct Process {
    manager: Option<Manager>,
    pub life: Life,
}

impl Process {
    /// Ends the manager at once, as SIGKILL does.
    pub fn kill(mut self) {
        self.life.end();
        drop(self.manager.take());
    }

    /// Ends the manager gracefully, as SIGTERM does.
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

    /// A case with that package, and a manager.
    pub async fn started() -> (Self, Process) {
        let case = Self::new().await;
        let process = case.start().await;
        (case, process)
    }

    /// A case whose random choices depend on this seed.
    pub async fn seeded(seed: u64) -> Self {
        Self::of(&WHOLE, seed).await
    }

    /// A case with another package, on the control plane of the tests.
    pub async fn of(subject: &'static Subject, seed: u64) -> Self {
        Self::on(&plane_of_tests().await, subject, seed).await
    }

    /// A case on another control plane.
    pub async fn on(plane: &Arc<ControlPlane>, subject: &'static Subject, seed: u64) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let logs = Logs::capture();
        if let Some((_, log)) = plane.thread() {
            log.judged_by(&logs);
        }
        let label = format!("c{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let group = format!("{label}.faults.operetta.dev");
        if subject.name == "etcd" {
            etcd::watch(plane);
        }
        let package = package(subject, &group, |text| text);
        let scene = Scene::on(plane).await;
        let kind = |plural: &str| Kind::of(format!("{group}/{}", subject.version), plural.to_owned());
        let aliases = [(scene.namespace(), "<namespace>"), (group.as_str(), "<group>")];
        Self {
            wire: Wire::new(seed, &group, &aliases),
            kind: kind(subject.plural),
            kinds: std::iter::once(subject.plural).chain(subject.inner).map(kind).collect(),
            scene,
            package,
            subject,
            group,
            recorder: Mutex::default(),
            logs,
            decided: Arc::default(),
            monitor: Mutex::default(),
            deadline: LONGEST,
        }
    }

    /// Changes the text of the package.
    pub fn with_change(self, change: impl Fn(String) -> String) -> Self {
        Self { package: self.changed(change), ..self }
    }

    /// Sets the deadline for calls.
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Waits until each of these rules has struck.
    pub async fn struck(&self, what: &str, rules: &[usize]) {
        eventually(what, LONG, async || {
            let holds = rules.iter().all(|rule| self.wire.struck(*rule) > 0);
            if holds { Ok(()) } else { Err("not asked for yet") }
        })
        .await;
    }

    /// Starts a manager.
    pub async fn start(&self) -> Process {
        self.start_with(Arc::clone(&self.package)).await
    }

    /// Starts a manager of a package.
    pub async fn start_with(&self, package: Arc<Package>) -> Process {
        let mut deadline = self.deadline;
        loop {
            match self.try_start_with(Arc::clone(&package), deadline).await {
                Ok(process) => return process,
                // A busy machine may need longer than a case with a short deadline gives.
                Err(error) if deadline < LONGEST => {
                    eprintln!("a manager whose calls have {deadline:?} does not start: {error}");
                    deadline = (deadline * 2).min(LONGEST);
                }
                Err(error) => panic!("{error}\n{}", self.tail()),
            }
        }
    }

    /// Starts a manager; an error if faults prevent its start.
    pub async fn try_start(&self, package: Arc<Package>) -> Result<Process, String> {
        self.try_start_with(package, self.deadline).await
    }

    async fn try_start_with(&self, package: Arc<Package>, deadline: Duration) -> Result<Process, String> {
        let (cluster, life) = self.wire.connect(self.scene.plane()).await;
        let decided = Arc::clone(&self.decided);
        decided.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let of = life.clone();
        let monitor = Arc::<Monitor>::default();
        *self.monitor() = Arc::clone(&monitor);
        let config = Config {
            monitor,
            observer: Some(Arc::new(move |key: &InstanceKey, decision: Option<&Decision>| {
                if of.is_over() {
                    return;
                }
                let mut decided = decided.lock().unwrap_or_else(PoisonError::into_inner);
                decided.insert(key.name.to_string(), decision.is_none_or(|d| d.actions.is_empty()));
            })),
            lease: format!("tests/{}", self.group),
            allow_calls: vec!["127.0.0.1".parse().expect("an address")],
            ..Config::default()
        };
        let manager = tokio::select! {
            () = life.over() => return Err("it has died".to_owned()),
            manager = Manager::start(cluster.with_deadline(deadline), vec![package], config) => {
                manager.map_err(|error| error.to_string())?
            }
        };
        if !manager.problems.is_empty() {
            let problems = manager.problems.iter().map(|problem| problem.message.as_str());
            return Err(problems.collect::<Vec<_>>().join("; "));
        }
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        if recorder.is_none() {
            recorder = Some(Recorder::start(&self.scene, self.kind).await);
        }
        *self.recorder.lock().unwrap_or_else(PoisonError::into_inner) = recorder;
        Ok(Process { manager: Some(manager), life })
    }

    /// Runs a manager that ends with its `k`th write, and waits until it has ended, or until `done`. Returns
    /// whether it has ended.
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

    /// Creates or changes an instance. Its token is the canary unless the spec sets another.
    pub async fn apply(&self, name: &str, spec: &Value) {
        let mut spec = spec.clone();
        if self.subject.name == WHOLE.name && spec.get("token").is_none() {
            spec["token"] = CANARY.into();
        }
        let (api_version, kind) = (self.kind.api_version(), self.subject.kind);
        let instance =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.scene.apply(&instance.to_string()).await;
    }

    /// Creates or changes an instance, and waits until it is Ready.
    pub async fn apply_ready(&self, name: &str, spec: &Value) -> Value {
        self.apply(name, spec).await;
        self.ready(name).await
    }

    /// Deletes an instance, and waits until it is gone.
    pub async fn remove(&self, name: &str) {
        self.delete(name).await;
        self.gone(name).await;
    }

    /// Requests the deletion of an instance without waiting for it.
    pub async fn delete(&self, name: &str) {
        self.scene.kubectl(&["delete", &self.resource(), name, "--wait=false"]).await;
    }

    /// The resource name for kubectl.
    pub fn resource(&self) -> String {
        format!("{}.{}", self.subject.plural, self.group)
    }

    /// Waits until an instance is Ready at its newest generation.
    pub async fn ready(&self, name: &str) -> Value {
        eventually(&format!("{name} to be Ready"), LONG, async || {
            match self.scene.find(self.kind, name).await {
                Some(object) if is_ready(&object) => Ok(object),
                found => Err(self.tells(found)),
            }
        })
        .await
    }

    /// Waits until the server refuses new runs of a plan of an instance because of a webhook or a quota: it learns of them a moment
    /// later.
    pub async fn refuses_runs(&self, name: &str, plan: &str, why: &str) {
        let of = json!({"apiVersion": self.kind.api_version(), "kind": self.subject.kind, "resource": self.kind.plural, "name": name});
        let run = json!({"apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun", "metadata": {"name": "probe"},
            "spec": {"of": of, "plan": plan}});
        let probe = Actor::admin(self.scene.plane()).in_dry_runs();
        eventually("a refusal", LONG, async || {
            match probe.create(PLAN_RUN, Some(self.scene.namespace()), &run).await {
                Err(error) if error.contains(why) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Waits until an instance is gone.
    pub async fn gone(&self, name: &str) {
        eventually(&format!("{name} to be gone"), LONG, async || {
            match self.scene.find(self.kind, name).await {
                None => Ok(()),
                found => Err(self.tells(found)),
            }
        })
        .await;
    }

    /// The status of an instance and the last requests, for messages.
    fn tells(&self, found: Option<Value>) -> impl Display + use<'_> {
        Lazy(move || match &found {
            Some(object) => format!("{:#}\n{}", object["status"], self.tail()),
            None => format!("it does not exist\n{}", self.tail()),
        })
    }

    fn tail(&self) -> String {
        story(&self.wire.since(self.wire.mark().saturating_sub(40)))
    }

    fn monitor(&self) -> MutexGuard<'_, Arc<Monitor>> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the manager is at rest: it has nothing to do, and has sent no request for a while.
    pub async fn quiet(&self) {
        self.quiet_but(&[]).await;
    }

    /// Like [`Self::quiet`], not counting requests with these verbs.
    pub async fn quiet_but(&self, verbs: &[Verb]) {
        let (started, mut mark, mut rest) = (Instant::now(), self.wire.mark(), Rest::default());
        loop {
            let state = self.monitor().state();
            let log = self.wire.since(mark);
            mark += log.len();
            let asks = log.iter().any(|e| e.is_asking() && !verbs.contains(&e.call.verb));
            // A manager that waits for an answer is not at rest.
            if rest.sees(&state, asks || self.wire.is_under_way()) {
                return;
            }
            assert!(
                started.elapsed() < LONG,
                "it does not come to rest: {}\n{}",
                state["queues"],
                self.tail()
            );
            tokio::time::sleep(Rest::PAUSE).await;
        }
    }

    /// Waits until the garbage collector has deleted all objects with an owner.
    pub async fn collected(&self) {
        for kind in self.kinds.iter().chain(self.subject.children) {
            eventually("the garbage collector", LONG, async || {
                let mut left = self.scene.list(*kind).await;
                left.retain(|object| object["metadata"]["ownerReferences"].is_array());
                let names: Vec<&str> = left.iter().map(name_of).collect();
                if names.is_empty() { Ok(()) } else { Err(format!("{}: {}", kind.plural, names.join(", "))) }
            })
            .await;
        }
    }

    /// The state of the instances and their children, with `<name>` in place of an instance's name.
    pub async fn state(&self, name: &str) -> State {
        let revision = self.package.revision();
        let renamed = [
            (name, "<name>"),
            (self.group.as_str(), "<group>"),
            (self.package.name.as_str(), "<package>"),
            (revision.as_str(), "<revision>"),
            (CANARY, "<token>"),
        ];
        let mut state = state(&self.scene, &self.kinds, self.subject.children, &renamed).await;
        for (kind, namespace) in self.subject.elsewhere {
            let selector = format!("operetta.dev/operator={}", self.package.name);
            state.extend(oracles::elsewhere(&self.scene, *kind, *namespace, &selector, &renamed).await);
        }
        state
    }

    /// Waits until the state equals that of another run.
    pub async fn same(&self, name: &str, expected: &State) {
        eventually("the state of an undisturbed run", LONG, async || {
            let found = self.state(name).await;
            let is_left = self.left_memory(name).await;
            if found == *expected && !is_left {
                Ok(())
            } else {
                let left =
                    if is_left { "the InstanceState of an instance that is gone is there\n" } else { "" };
                Err(Lazy(move || format!("{left}{}\n{}", differences(expected, &found), self.tail())))
            }
        })
        .await;
    }

    /// Whether the `InstanceState` of a deleted instance still exists: it is deleted last.
    async fn left_memory(&self, name: &str) -> bool {
        if self.package.resources.iter().all(|resource| resource.plans.is_empty()) {
            return false;
        }
        let states = self.scene.list(INSTANCE_STATE).await;
        states.iter().any(|state| state["spec"]["of"]["name"] == name)
            && self.scene.find(self.kind, name).await.is_none()
    }

    /// How often each child was created and deleted since a position in the log. In the keys, `<name>`
    /// replaces the instance's name.
    pub fn counts(&self, mark: usize, name: &str) -> BTreeMap<String, (usize, usize)> {
        let mut found: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (object, (made, taken)) in made_and_taken(&self.wire.since(mark), self.scene.namespace()) {
            let object = object.replace(name, "<name>").replace(self.scene.namespace(), "<namespace>");
            let mut object = oracles::without_hashes(&object);
            if object.starts_with("controllerrevisions ") {
                // Their names are hashes of the instance's uid, so they are counted together.
                "controllerrevisions <name>-<hash>".clone_into(&mut object);
            } else if object.starts_with("instancestates ") {
                // Their names have a hash of the kind, whose group differs from case to case.
                "instancestates <name>-<hash>".clone_into(&mut object);
            }
            let counts = found.entry(object).or_default();
            *counts = (counts.0 + made, counts.1 + taken);
        }
        found
    }

    /// Waits until the last decision about each of these instances has nothing to do.
    pub async fn decided(&self, names: &[&str]) {
        eventually("all to be decided about", LONG, async || {
            let decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let missing: Vec<_> =
                names.iter().filter(|name| !decided.get(**name).is_some_and(|idle| *idle)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}\n{}", self.tail())) }
        })
        .await;
    }

    /// Waits until the manager is at rest, restarts it, and checks that it writes nothing.
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

    /// Deletes all instances and checks that only retained children remain.
    async fn leaves_nothing(&self) {
        let names: Vec<String> =
            self.scene.list(self.kind).await.iter().map(|o| name_of(o).to_owned()).collect();
        for name in &names {
            self.delete(name).await;
        }
        for name in &names {
            self.gone(name).await;
        }
        let here = self.subject.children.iter().map(|kind| (*kind, Some(self.scene.namespace())));
        let places: Vec<_> = here.chain(self.subject.elsewhere.iter().copied()).collect();
        let selector = format!("operetta.dev/operator={}", self.package.name);
        // The garbage collector deletes some of it.
        eventually("nothing to be left", LONG, async || {
            let mut left = Vec::new();
            for (kind, namespace) in &places {
                let all = kind.path(*namespace, "");
                let path = format!("{}?labelSelector={selector}", all.trim_end_matches('/'));
                let list = read(&self.scene.client(), &path).await.expect("the kind is served");
                let objects = list["items"].as_array().cloned().unwrap_or_default();
                let stays = |o: &Value| o["metadata"]["annotations"]["operetta.dev/retained"].is_string();
                left.extend(
                    objects.iter().filter(|o| !stays(o)).map(|o| format!("{} {}", kind.plural, name_of(o))),
                );
            }
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", self.tail())) }
        })
        .await;
    }

    /// Checks what [`Self::stays`] checks, and then what [`Self::finish`] checks.
    pub async fn stays_and_finishes(self, process: Process, names: &[&str]) {
        let process = self.stays(process, names).await;
        self.finish(process).await;
    }

    /// Checks what must hold at the end of every case.
    pub async fn finish(self, process: Process) {
        self.wire.heal();
        self.leaves_nothing().await;
        process.stop().await;
        if let Some(recorder) = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take() {
            recorder.check();
            let shown = recorder.shows(CANARY);
            assert!(shown.is_none(), "a secret is in a status: {}", shown.unwrap_or_default());
        }
        for event in self.scene.list(EVENT).await {
            assert!(!event.to_string().contains(CANARY), "a secret is in an Event: {event:#}");
        }
        self.logs.check();
    }
}

/// Loads the package with another API group and with its text changed.
fn package(subject: &Subject, group: &str, change: impl Fn(String) -> String) -> Arc<Package> {
    let folder = copy_package(subject.folder, subject.group, group, |text| change(etcd::scripted(&text)));
    let (package, _) = operetta::package::load(folder.path()).unwrap_or_else(|errors| panic!("{errors:?}"));
    Arc::new(package)
}

impl Case {
    /// The package of this case with its text changed.
    pub fn changed(&self, change: impl Fn(String) -> String) -> Arc<Package> {
        package(self.subject, &self.group, change)
    }
}
