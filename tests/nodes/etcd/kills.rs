//! The manager is killed before and after the effects of every operation: the result is the same, and no
//! acknowledged write is lost.
//!
//! A manager in this process is killed after a few effects, and the next one takes over. In the long form
//! each is killed after one effect, so that an operation is interrupted before and after every one of its
//! effects; in the short form after a number of effects that depends on `OPERETTA_TEST_SEED`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use operetta::manager::{Config, Manager};
use operetta::package::Package;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{BACKUP, CLUSTER, PATIENCE, RESTORE, Stage, claim_spec, durable, is_long, names};
use crate::support::ext::{JOB, Kind, POD, VOLUME_CLAIM, copy_package, uid_of};
use crate::support::faults::{Fault, Rule, Verb, WRITES, Wire, story};
use crate::support::{eventually, seed};

/// Parts of request URIs with the commands that change etcd.
const COMMANDS: &[&str] =
    &["command=add", "command=remove", "command=promote", "command=move-leader", "command=defrag"];

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

    fn next(&mut self) -> End {
        self.lives += 1;
        let random = &mut self.random;
        if !is_long() {
            let fault = if random.bool() { Fault::DieBefore } else { Fault::DieAfter };
            let command = if random.u8(..3) == 0 { Some(Fault::DieAfter) } else { None };
            return End { after: random.usize(2..12), fault, command };
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

/// Managers of a copy of the package, one after another.
struct Mortals {
    stage: Stage,
    package: Arc<Package>,
    group: String,
    wire: Wire,
    ends: Option<Ends>,
    lives: Arc<AtomicUsize>,
}

/// A task that runs managers one after another.
struct Turns {
    stop: watch::Sender<bool>,
    task: JoinHandle<Ends>,
}

impl Mortals {
    async fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let node = crate::pods::node().await;
        let group = format!("etcd{}.faults.operetta.dev", NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = copy_package("operators/etcd", "etcd.database.coreos.com", &group, |text| text);
        let (package, _) =
            operetta::package::load(folder.path()).unwrap_or_else(|errors| panic!("{errors:?}"));
        let kind = |of: Kind| Kind::of(format!("{group}/v1beta2"), of.plural.to_owned());
        let (cluster, backup, restore) = (kind(CLUSTER), kind(BACKUP), kind(RESTORE));
        let stage = Stage { cluster, backup, restore, ..Stage::on(&node).await };
        let wire = Wire::new(0, &group, &[]);
        // The first manager registers the kinds.
        let (cluster_client, _) = wire.connect(&node).await;
        let config = Config { lease: format!("tests/{group}"), ..Config::default() };
        let package = Arc::new(package);
        let first = Manager::start(cluster_client, vec![Arc::clone(&package)], config).await;
        first.unwrap_or_else(|error| panic!("{error}")).stop().await;
        Self { stage, package, group, wire, ends: Some(Ends::new()), lives: Arc::default() }
    }

    /// Starts managers that are killed, one after another.
    fn start(&mut self) -> Turns {
        let (wire, package, lives) = (self.wire.clone(), Arc::clone(&self.package), Arc::clone(&self.lives));
        let (plane, namespace) =
            (Arc::clone(self.stage.scene.plane()), self.stage.scene.namespace().to_owned());
        let lease = format!("tests/{}", self.group);
        let mut ends = self.ends.take().expect("the managers before are stopped");
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            while !*stopped.borrow() {
                let end = ends.next();
                if let Some(fault) = end.command {
                    wire.rule(
                        Rule::on(&[Verb::Get, Verb::Create], fault).namespace(&namespace).commands(COMMANDS),
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

    /// Carries out an operation while managers are killed, and then with one that lives until everything is
    /// settled.
    async fn during(&mut self, what: &str, operation: impl AsyncFnOnce(&Stage)) {
        let (lives, mark) = (self.lives.load(Ordering::Relaxed), self.wire.mark());
        let turns = self.start();
        operation(&self.stage).await;
        turns.stop.send_replace(true);
        self.ends = Some(turns.task.await.unwrap_or_else(|error| panic!("{error}")));
        let ended = self.lives.load(Ordering::Relaxed) - lives;
        let writes = self.wire.writes(mark).len();
        eprintln!("{what}: {ended} managers, {writes} writes");
        assert!(ended > 1, "no manager has ended:\n{}", story(&self.wire.since(mark)));
    }
}

/// What an operation has left: pods, volumes, and Jobs with how often each was created.
async fn left(stage: &Stage) -> BTreeMap<&'static str, Vec<String>> {
    let names = async |kind: Kind| {
        let mut names: Vec<String> =
            stage.scene.list(kind).await.iter().map(|o| super::name_of(o).to_owned()).collect();
        names.sort();
        names
    };
    BTreeMap::from([
        ("pods", names(POD).await),
        ("volumes", names(VOLUME_CLAIM).await),
        ("jobs", names(JOB).await),
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creation_resizing_and_deletion_resume_after_kills() {
    let mut mortals = Mortals::new().await;
    mortals.during("create 3", async |stage| stage.cluster("c", durable(3, "3.6.8")).await).await;
    let writer = mortals.stage.writer("c").await;
    let first = mortals.stage.members().await;
    mortals.during("3 -> 5", async |stage| stage.edit("c", json!({"size": 5})).await).await;
    assert_eq!(mortals.stage.etcd_members("c-4").await, names("c", 5));
    mortals.during("5 -> 3", async |stage| stage.edit("c", json!({"size": 3})).await).await;
    assert_eq!(mortals.stage.etcd_members("c-0").await, names("c", 3));
    assert_eq!(mortals.stage.members().await, first, "a member was replaced");
    let left = left(&mortals.stage).await;
    assert_eq!((&left["pods"], &left["volumes"]), (&names("c", 3), &names("c", 3)));
    writer.check("resize, managers killed").await;
    let delete = async |stage: &Stage| {
        let resource = stage.cluster.resource_name();
        stage.scene.kubectl(&["delete", &resource, "c", "--wait=false"]).await;
        eventually("the end", PATIENCE, async || {
            let gone =
                stage.scene.find(stage.cluster, "c").await.is_none() && stage.members().await.is_empty();
            if gone { Ok(()) } else { Err("it is there") }
        })
        .await;
    };
    mortals.during("delete", delete).await;
    assert_eq!(mortals.stage.volumes().await, names("c", 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_and_upgrade_resume_after_kills() {
    let mut mortals = Mortals::new().await;
    mortals.during("create 3", async |stage| stage.cluster("c", durable(3, "3.5.35")).await).await;
    let writer = mortals.stage.writer("c").await;
    let before = uid_of(&mortals.stage.scene.get(VOLUME_CLAIM, "c-2").await).to_owned();
    let lose = async |stage: &Stage| {
        stage.delete("pvc", &["c-2"]).await;
        stage.delete("pod", &["c-2"]).await;
        stage.until("another volume", VOLUME_CLAIM, "c-2", |claim| uid_of(claim) != before).await;
        stage.settled("c").await;
    };
    mortals.during("failover", lose).await;
    assert_eq!(mortals.stage.etcd_members("c-0").await, names("c", 3));
    let pods = mortals.stage.members().await;
    mortals.during("upgrade", async |stage| stage.edit("c", json!({"version": "3.6.8"})).await).await;
    assert_eq!(mortals.stage.members().await, pods, "the containers restart, the pods stay");
    for pod in mortals.stage.scene.list(POD).await {
        assert_eq!(pod["spec"]["containers"][0]["image"], "quay.io/coreos/etcd:v3.6.8");
    }
    let left = left(&mortals.stage).await;
    assert_eq!((&left["pods"], &left["volumes"]), (&names("c", 3), &names("c", 3)));
    writer.check("failover and upgrade, managers killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_and_restore_resume_after_kills() {
    let mut mortals = Mortals::new().await;
    mortals.during("create 3", async |stage| stage.cluster("c", durable(3, "3.6.8")).await).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"}, "spec": claim_spec()});
    mortals.stage.scene.apply(&claim.to_string()).await;
    let jobs = mortals.stage.scene.watch_uids(JOB).await;
    let writer = mortals.stage.writer("c").await;
    writer.goes_on().await;
    let acknowledged = writer.acknowledged();
    let place = json!({"claimName": "backups", "path": "c/etcd.db"});
    let back_up = async |stage: &Stage| {
        stage.back_up("b", &json!({"clusterName": "c", "volume": place})).await;
        stage.succeeded(stage.backup, "b").await;
    };
    mortals.during("backup", back_up).await;
    writer.check("backup, managers killed").await;
    let restore = async |stage: &Stage| {
        stage.restore("r", &json!({"etcdCluster": {"name": "c"}, "volume": place})).await;
        stage.succeeded(stage.restore, "r").await;
        stage.settled("c").await;
    };
    mortals.during("restore", restore).await;
    // The backup, its check, and the data: each Job once.
    let counts = jobs.counts();
    assert!(counts.len() == 3 && counts.values().all(|count| *count == 1), "{counts:?}");
    assert_eq!(mortals.stage.etcd_members("c-0").await, names("c", 3));
    assert_eq!(mortals.stage.volumes().await, ["backups", "c-0-g1", "c-1-g1", "c-2-g1"]);
    let writer = mortals.stage.writer("c").await;
    writer.stop();
    let stored: BTreeMap<u64, String> = writer.stored().await;
    let is_whole = (0..acknowledged as u64).all(|number| stored.get(&number) == Some(&format!("v{number}")));
    assert!(is_whole, "{} of {acknowledged}", stored.len());
}
