//! Managers of a copy of a package that are killed while they carry out an operation, one after another.
//!
//! A manager in this process is killed after a few effects: it sends and receives nothing more, and the next one takes over.
//! Effects are counted, so a slow machine changes nothing. In the long form each manager is killed after one effect, so that an
//! operation is interrupted before and after every one of its effects; in the short form after a number of effects that depends
//! on `OPERETTA_TEST_SEED`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use operetta::manager::{Config, Manager};
use operetta::package::Package;
use serde_json::Value;
use tokio::sync::{SemaphorePermit, watch};
use tokio::task::JoinHandle;

use crate::database::{Stage, patience};
use crate::pods::{self, Pods};
use crate::support::ext::{
    CONFIG_MAP, JOB, Kind, POD, SECRET, SERVICE, Scene, VOLUME_CLAIM, copy_package, name_of,
};
use crate::support::faults::{Fault, Rule, Verb, WRITES, Wire, story};
use crate::support::plans::{PLAN_RUN, RunWatch, UidWatch, is_over, story_of};
use crate::support::{Lazy, eventually, is_long, seed};

/// A package whose managers are killed.
pub(crate) struct System {
    /// Its folder.
    pub(crate) folder: &'static str,
    /// Its API group.
    pub(crate) group: &'static str,
    /// Parts of request URIs with the commands that change the system.
    pub(crate) commands: &'static [&'static str],
}

/// The effect at which a manager ends.
struct End {
    after: usize,
    fault: Fault,
    /// The fault for the first command, if the manager may end at that as well.
    command: Option<Fault>,
}

/// Chooses the ends of managers one after another.
struct Ends {
    random: fastrand::Rng,
    lives: usize,
}

impl Ends {
    fn new() -> Self {
        Self { random: fastrand::Rng::with_seed(seed()), lives: 0 }
    }

    /// The end of the next manager. The first one of an operation ends early, so that every operation is interrupted.
    fn next(&mut self, is_first: bool) -> End {
        self.lives += 1;
        let random = &mut self.random;
        if !is_long() {
            let fault = if random.bool() { Fault::DieBefore } else { Fault::DieAfter };
            let command = if random.u8(..3) == 0 { Some(Fault::DieAfter) } else { None };
            let after = if is_first { random.usize(0..2) } else { random.usize(2..12) };
            return End { after, fault, command };
        }
        // Between two effects a manager ends with and without having seen the reply of the first. A manager
        // that ends at a command might repeat it for ever, so others come in between.
        match self.lives % 4 {
            0 => End { after: 1, fault: Fault::DieBefore, command: None },
            1 => End { after: 0, fault: Fault::DieAfter, command: None },
            2 => End { after: 2, fault: Fault::DieAfter, command: Some(Fault::DieAfter) },
            _ => End { after: 2, fault: Fault::DieBefore, command: Some(Fault::DieBefore) },
        }
    }
}

/// Managers of a copy of a package, one after another.
pub(crate) struct Mortals {
    scene: Scene,
    package: Arc<Package>,
    group: String,
    commands: &'static [&'static str],
    wire: Wire,
    ends: Option<Ends>,
    lives: Arc<AtomicUsize>,
    /// Watches of the namespace from the beginning.
    runs: RunWatch,
    jobs: UidWatch,
    volumes: UidWatch,
}

/// A cluster in a namespace of its own, managers of a copy of its package that are killed, and what ends with the test.
pub(crate) async fn stage(
    system: &System,
    cluster: Kind,
    name: &'static str,
    is_whole: fn(&Value) -> bool,
) -> (Stage, Mortals, (SemaphorePermit<'static>, Pods)) {
    let turn = pods::turn().await;
    let scene = Scene::on(&pods::node().await).await;
    let namespace = Pods::of(&scene);
    let mortals = Mortals::new(system, &scene).await;
    let stage = Stage::of(scene, mortals.kind(cluster), name, is_whole);
    (stage, mortals, (turn, namespace))
}

/// A task that runs managers one after another.
struct Turns {
    stop: watch::Sender<bool>,
    task: JoinHandle<Ends>,
}

impl Mortals {
    /// Copies the package, with an API group of its own, and registers its kinds. The managers are killed at writes to the
    /// namespace of the scene.
    pub(crate) async fn new(system: &System, scene: &Scene) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let name = system.folder.rsplit('/').next().unwrap_or_default();
        let group = format!("{name}{}.faults.operetta.dev", NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = copy_package(system.folder, system.group, &group, |text| text);
        let (package, _) =
            operetta::package::load(folder.path()).unwrap_or_else(|errors| panic!("{errors:?}"));
        let package = Arc::new(package);
        let wire = Wire::new(0, &group, &[]);
        // The first manager registers the kinds.
        let (cluster, _) = wire.connect(scene.plane()).await;
        let config = Config { lease: format!("tests/{group}"), ..Config::default() };
        let first = Manager::start(cluster, vec![Arc::clone(&package)], config).await;
        first.unwrap_or_else(|error| panic!("{error}")).stop().await;
        Self {
            package,
            group,
            commands: system.commands,
            wire,
            ends: Some(Ends::new()),
            lives: Arc::default(),
            runs: RunWatch::start(scene).await,
            jobs: scene.watch_uids(JOB).await,
            volumes: scene.watch_uids(VOLUME_CLAIM).await,
            scene: Scene::existing(scene.plane(), scene.namespace()),
        }
    }

    /// The kind of the copy.
    pub(crate) fn kind(&self, of: Kind) -> Kind {
        let version = of.api_version().rsplit('/').next().unwrap_or_default();
        Kind::of(format!("{}/{version}", self.group), of.plural.to_owned())
    }

    /// How many Jobs of each name there have been.
    pub(crate) fn jobs(&self) -> BTreeMap<String, usize> {
        self.jobs.counts()
    }

    /// How many volumes of each name there have been.
    pub(crate) fn volumes(&self) -> BTreeMap<String, usize> {
        self.volumes.counts()
    }

    /// Starts managers that are killed, one after another.
    fn start(&mut self) -> Turns {
        let (wire, package, lives) = (self.wire.clone(), Arc::clone(&self.package), Arc::clone(&self.lives));
        let (plane, namespace) = (Arc::clone(self.scene.plane()), self.scene.namespace().to_owned());
        let (lease, commands) = (format!("tests/{}", self.group), self.commands);
        let mut ends = self.ends.take().expect("the managers before are stopped");
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut is_first = true;
            while !*stopped.borrow() {
                let end = ends.next(is_first);
                is_first = false;
                if let Some(fault) = end.command {
                    wire.rule(
                        Rule::on(&[Verb::Get, Verb::Create], fault).namespace(&namespace).commands(commands),
                    );
                }
                wire.rule(Rule::on(WRITES, end.fault).namespace(&namespace).skip(end.after));
                let (cluster, life) = wire.connect(&plane).await;
                let config = Config { lease: lease.clone(), ..Config::default() };
                let manager = tokio::select! {
                    () = life.over() => None,
                    manager = Manager::start(cluster, vec![Arc::clone(&package)], config) => {
                        Some(manager.unwrap_or_else(|error| panic!("{error}")))
                    }
                };
                tokio::select! {
                    () = life.over() => {}
                    _ = stopped.wait_for(|stopped| *stopped) => life.end(),
                }
                drop(manager);
                wire.heal();
                lives.fetch_add(1, Ordering::Relaxed);
            }
            ends
        });
        Turns { stop, task }
    }

    /// Carries out an operation while managers are killed, until it is done and no run is under way. Checks that an ended step
    /// never ran again, and that no Job was created twice. No manager is left.
    pub(crate) fn during<T>(
        &mut self,
        what: &str,
        operation: impl Future<Output = T>,
    ) -> impl Future<Output = T> {
        // On the heap, for it is large.
        let operation = Box::pin(operation);
        async move {
            let (lives, mark) = (self.lives.load(Ordering::Relaxed), self.wire.mark());
            let begun = Instant::now();
            let turns = self.start();
            let result = operation.await;
            self.runs_end().await;
            turns.stop.send_replace(true);
            self.ends = Some(turns.task.await.unwrap_or_else(|error| panic!("{error}")));
            let ended = self.lives.load(Ordering::Relaxed) - lives;
            let (writes, took) = (self.wire.writes(mark).len(), begun.elapsed().as_secs_f64());
            eprintln!("{what}: {ended} managers, {writes} writes, {took:.1} s");
            // The last one has lived until the end.
            assert!(ended > 1, "{what}: no manager was killed:\n{}", story(&self.wire.since(mark)));
            self.runs.check();
            let jobs = self.jobs();
            assert!(jobs.values().all(|count| *count == 1), "{what}: {jobs:?}");
            result
        }
    }

    /// Waits until no run is under way.
    async fn runs_end(&self) {
        eventually("the end of all runs", patience(), async || {
            let mut runs = self.scene.list(PLAN_RUN).await;
            runs.retain(|run| !is_over(run));
            if runs.is_empty() {
                return Ok(());
            }
            Err(Lazy(move || runs.iter().map(story_of).collect::<String>()))
        })
        .await;
    }
}

/// The names of the objects of a namespace, by the plurals of their kinds.
pub(crate) type Left = BTreeMap<&'static str, Vec<String>>;

/// What there is in a namespace: an operation must not leave anything over.
pub(crate) async fn left(scene: &Scene) -> Left {
    let mut left = Left::new();
    for kind in [POD, VOLUME_CLAIM, JOB, SERVICE, SECRET, CONFIG_MAP] {
        let objects = scene.list(kind).await;
        let mut names: Vec<String> = objects.iter().map(|object| name_of(object).to_owned()).collect();
        names.sort();
        left.insert(kind.plural, names);
    }
    left
}

/// Checks that a namespace has these pods and volumes, and otherwise what it had before.
pub(crate) async fn is_tidy(scene: &Scene, before: &Left, mut pods: Vec<String>, mut volumes: Vec<String>) {
    pods.sort();
    volumes.sort();
    let mut expected = before.clone();
    expected.insert(POD.plural, pods);
    expected.insert(VOLUME_CLAIM.plural, volumes);
    assert_eq!(left(scene).await, expected);
}
