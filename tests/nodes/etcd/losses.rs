//! Members that are lost with their volumes in the midst of an operation: at every step of each operation in
//! the long form, otherwise at one step of each. At the end the cluster is complete, no run is active, and no
//! acknowledged write is lost. Meanwhile all outputs report the same missing members.

use std::time::Instant;

use kube::api::{Api, DeleteParams, DynamicObject};
use serde_json::{Value, json};

use super::{Kind, PATIENCE, Stage, Writer, claim_spec, durable, is_long, names};
use crate::support::plans::{StepWatch, is_over, phase, plans_of, steps, story_of};
use crate::support::{POD, QUOTA, VOLUME_CLAIM, eventually, is_pod_ready, is_ready, name_of, seed, uid_of};

/// An operation on a cluster.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Resize(usize),
    /// Changes the version, which restarts containers.
    Version(&'static str),
    /// Changes the memory, in MiB, for which pods are recreated.
    Memory(usize),
    /// Loses another member.
    Lose(usize),
    /// Restores a backup by the restore with this number.
    Restore(usize),
}

impl Operation {
    fn plan(self) -> &'static str {
        match self {
            Self::Resize(_) => "resize",
            Self::Version(_) | Self::Memory(_) => "upgrade",
            Self::Lose(_) => "failover",
            Self::Restore(_) => "restore",
        }
    }
}

/// A step, with `*` for any key, and the member that is lost when a run reaches the step.
type Point = (&'static str, usize);

/// Steps of growing from three to five: the loss of an existing member, and of the joining one as soon as it
/// has a pod.
const GROW: &[Point] = &[
    ("grow[3]/clean", 0),
    ("grow[3]/add", 1),
    ("grow[3]/config", 2),
    ("grow[3]/start", 3),
    ("grow[3]/promote", 1), // while the one that joins is a learner, no other may be added
    ("grow[3]/promote", 3),
    ("grow[4]/clean", 3),
    ("grow[4]/add", 0),
    ("grow[4]/config", 1),
    ("grow[4]/start", 2),
    ("grow[4]/promote", 4),
    ("grow[4]/ready", 4),
];

/// Steps of shrinking from five to three: the loss of a remaining member, and of a leaving one.
const SHRINK: &[Point] =
    &[("shrink[0]/remove", 1), ("shrink[0]/drop", 3), ("shrink[1]/remove", 3), ("shrink[1]/drop", 0)];

/// Steps of an upgrade of three members.
const UPGRADE: &[Point] = &[
    ("members[0]/healthy", 0),
    ("members[0]/replace", 0),
    ("members[1]/healthy", 2),
    ("members[1]/replace", 0),
    ("members[2]/healthy", 1),
    ("members[2]/replace", 1),
    ("members[*]/handover", 2),
];

/// Steps of replacing member 1 of five: the loss of another member, or of the same again.
const FAILOVER: &[Point] = &[
    ("quorum", 0),
    ("clean[1]", 2),
    ("replace/forget[*]", 3),
    ("replace/grow[1]/clean", 4),
    ("replace/grow[1]/add", 0),
    ("replace/grow[1]/config", 2),
    ("replace/grow[1]/start", 1),
    ("replace/grow[1]/promote", 1),
    ("replace/grow[1]/ready", 4),
];

/// Steps of a restore. Until two members vote, the loss of the first with its volume would lose the data, so
/// the joining member is lost. While just two vote, the loss of either is the loss of the quorum: none is lost then.
const RESTORE: &[Point] = &[
    ("others/grow[1]/start", 1),
    ("others/grow[2]/clean", 2),
    ("others/grow[2]/start", 2),
    ("others/grow[2]/promote", 2),
    ("others/grow[2]/ready", 0),
    ("tidy[0]", 1),
    ("tidy[8]", 2),
];

/// All points in the long form, otherwise one of them.
fn chosen(points: &[Point]) -> Vec<Point> {
    if is_long() {
        points.to_vec()
    } else {
        vec![points[fastrand::Rng::with_seed(seed()).usize(..points.len())]]
    }
}

/// A lost member: its pod's name and uid.
type Lost = (String, String);

impl Stage {
    /// Deletes a member with its volume as soon as it has a pod.
    async fn lose(&self, member: usize) -> Lost {
        let name = format!("c-{member}");
        let pod = self.until("a pod", POD, &name, |pod| pod["metadata"]["deletionTimestamp"].is_null()).await;
        let claim =
            pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str().map(ToOwned::to_owned);
        self.remove(
            VOLUME_CLAIM,
            &claim.unwrap_or_else(|| panic!("{name} has no volume: {:#}", pod["spec"]["volumes"])),
        )
        .await;
        self.remove(POD, &name).await;
        (name, uid_of(&pod).to_owned())
    }

    /// Deletes an object without waiting for its end.
    async fn remove(&self, kind: Kind, name: &str) {
        let api = Api::<DynamicObject>::namespaced_with(
            self.scene.client(),
            self.scene.namespace(),
            &kind.resource(),
        );
        match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            // A step may delete the object as well.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{} {name}: {error}", kind.plural),
        }
    }

    /// Waits until a lost member is replaced, or is no longer desired.
    async fn replaced(&self, what: &str, (name, uid): &Lost, size: usize) {
        let is_wanted = names("c", size).contains(name);
        eventually(&format!("{what}: another pod {name}"), PATIENCE, async || {
            match self.scene.find(POD, name).await {
                Some(pod) if is_wanted && uid_of(&pod) != uid && is_pod_ready(&pod) => Ok(()),
                None if !is_wanted => Ok(()),
                _ => Err(self.story("c").await),
            }
        })
        .await;
    }
}

/// A cluster to which several things happen one after another.
struct Trials {
    stage: Stage,
    writer: Option<Writer>,
    size: usize,
    losses: usize,
}

impl Trials {
    async fn new(size: usize, version: &str) -> Self {
        let stage = Stage::with(durable(size, version)).await;
        let writer = Some(stage.writer("c").await);
        Self { stage, writer, size, losses: 0 }
    }

    /// Carries out an operation, and loses a member when a run reaches a step.
    async fn perform(&mut self, operation: Operation, lost: Option<Point>) {
        let begun = Instant::now();
        let stage = &self.stage;
        let before: Vec<String> =
            stage.scene.runs("c").await.iter().map(|run| name_of(run).to_owned()).collect();
        let is_new = |run: &&Value| !before.contains(&name_of(run).to_owned());
        let reached = StepWatch::start(&stage.scene).await;
        let mut gone = Vec::new();
        match operation {
            Operation::Resize(size) => {
                stage.change("c", &json!({"size": size})).await;
                self.size = size;
            }
            Operation::Version(version) => stage.change("c", &json!({"version": version})).await,
            Operation::Memory(memory) => {
                let resources = json!({"requests": {"memory": format!("{memory}Mi")}});
                stage.change("c", &json!({"pod": {"resources": resources}})).await;
            }
            Operation::Lose(member) => gone.push(stage.lose(member).await),
            Operation::Restore(number) => {
                let place = json!({"claimName": "backups", "path": "c/etcd.db"});
                let restore = json!({"etcdCluster": {"name": "c"}, "volume": place});
                stage.restore(&format!("r{number}"), &restore).await;
            }
        }
        let mut what = format!("{operation:?}");
        if let Some((step, member)) = lost {
            assert!(
                reached.has_reached(step, PATIENCE).await,
                "{what}: {step} is not reached\n{}",
                stage.story("c").await
            );
            gone.push(stage.lose(member).await);
            self.losses += 1;
            what = format!("{what}, c-{member} lost at {step}");
        }
        let plan = operation.plan();
        let run = eventually(&format!("{what}: its run to succeed"), PATIENCE, async || {
            let runs = stage.scene.runs("c").await;
            let mut of_plan = runs.iter().filter(is_new).filter(|run| plans_of(run).contains(&plan));
            match of_plan.find(|run| phase(run) == "Succeeded") {
                Some(run) => Ok(run.clone()),
                None => Err(stage.story("c").await),
            }
        })
        .await;
        for lost in &gone {
            stage.replaced(&what, lost, self.size).await;
        }
        let size = self.size;
        let is_whole =
            |o: &Value| is_ready(o) && o["spec"]["size"] == size && o["status"]["readyMembers"] == size;
        stage.until(&format!("{what}: Ready with all members"), stage.cluster, "c", is_whole).await;
        if let Operation::Restore(number) = operation {
            stage.succeeded(stage.restore, &format!("r{number}")).await;
        }
        let runs = stage.scene.runs("c").await;
        let wrong = runs.iter().filter(is_new).filter(|run| !is_over(run) || phase(run) == "Failed");
        let wrong: Vec<String> = wrong.map(story_of).collect();
        assert!(wrong.is_empty(), "{what}: {}", wrong.join("\n"));
        assert_eq!(stage.etcd_members("c-0").await, names("c", size), "{what}");
        assert_eq!(stage.members().await.into_keys().collect::<Vec<_>>(), names("c", size), "{what}");
        if let Some(writer) = &self.writer {
            writer.goes_on().await;
        }
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!("{what}: {seconds:.1} s, {} runs", runs.iter().filter(is_new).count());
        if lost.is_none() {
            let done = steps(&run).into_iter().filter(|(_, step)| step["phase"] == "Succeeded");
            eprintln!("its steps: {}", done.map(|(path, _)| path).collect::<Vec<_>>().join(" "));
        }
    }

    /// Checks that no acknowledged write is lost.
    async fn end(mut self, what: &str) {
        if let Some(writer) = self.writer.take() {
            writer.check(&format!("{what}, {} members lost", self.losses)).await;
        }
    }
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn cluster_survives_a_loss_while_growing_and_shrinking() {
    let mut trials = Trials::new(3, "3.6.8").await;
    let (grow, shrink) = (chosen(GROW), chosen(SHRINK));
    for (number, point) in grow.into_iter().enumerate() {
        trials.perform(Operation::Resize(5), Some(point)).await;
        trials.perform(Operation::Resize(3), shrink.get(number).copied()).await;
    }
    trials.end("3 -> 5 -> 3").await;
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn cluster_survives_a_loss_during_an_upgrade() {
    let mut trials = Trials::new(3, "3.5.35").await;
    trials.perform(Operation::Version("3.6.8"), Some(("members[1]/replace", 0))).await;
    if is_long() {
        for (number, point) in UPGRADE.iter().enumerate() {
            trials.perform(Operation::Memory(20 + number), Some(*point)).await;
        }
    }
    trials.end("upgrade").await;
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn cluster_survives_a_second_loss_during_a_replacement() {
    let mut trials = Trials::new(5, "3.6.8").await;
    for point in chosen(FAILOVER) {
        trials.perform(Operation::Lose(1), Some(point)).await;
    }
    trials.end("failover").await;
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn cluster_survives_a_loss_during_a_restore() {
    let mut trials = Trials::new(3, "3.6.8").await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"}, "spec": claim_spec()});
    trials.stage.scene.apply(&claim.to_string()).await;
    // Writes after the backup are not restored.
    let writer = trials.writer.take().unwrap();
    writer.goes_on().await;
    writer.stop();
    let stored = writer.stored().await;
    let place = json!({"claimName": "backups", "path": "c/etcd.db"});
    trials.stage.back_up("b", &json!({"clusterName": "c", "volume": place})).await;
    trials.stage.succeeded(trials.stage.backup, "b").await;
    for (number, point) in chosen(RESTORE).into_iter().enumerate() {
        trials.perform(Operation::Restore(number), Some(point)).await;
        assert_eq!(writer.stored().await, stored, "{point:?}");
    }
    eprintln!("restore, {} members lost, {} writes, 0 lost", trials.losses, stored.len());
}

/// A quota prevents the replacement of a lost member during a resize, until it is lifted.
#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn blocked_replacement_is_reported_everywhere() {
    let stage = Stage::with(durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    let reached = StepWatch::start(&stage.scene).await;
    stage.change("c", &json!({"size": 5})).await;
    assert!(reached.has_reached("grow[3]/promote", PATIENCE).await);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "held"}, "spec": {"hard": {"pods": "0"}}});
    stage.scene.apply(&quota.to_string()).await;
    stage.until("counted", QUOTA, "held", |quota| !quota["status"]["used"].is_null()).await;
    let lost = stage.lose(1).await;
    let run = stage.scene.run_of("c", "failover", |run| phase(run) == "Running").await;
    stage.scene.said_alike(stage.cluster, "c", name_of(&run), &["members[1]", "exceeded quota: held"]).await;
    // The interrupted rollout waits, and its status names the run that it waits for.
    let waits = |run: &Value| ["Interrupted", "Pending"].contains(&phase(run));
    let rollout = stage.scene.run_of("c", "resize", waits).await;
    let status = stage.scene.operetta(&["plan", "status", name_of(&rollout)]).await.ok();
    assert!(status.contains(&format!("run {} goes first", name_of(&run))), "{status}");
    stage.remove(QUOTA, "held").await;
    stage.replaced("the quota is lifted", &lost, 5).await;
    let is_whole = |o: &Value| is_ready(o) && o["status"]["readyMembers"] == 5;
    stage.until("Ready with all members", stage.cluster, "c", is_whole).await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 5));
    writer.check("a loss is held back").await;
}
