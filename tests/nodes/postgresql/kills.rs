//! The manager is killed before and after the effects of every operation: no acknowledged row is lost, one instance is the
//! primary, and it was promoted as often as the runs say.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::operations::{
    change, create, hibernate, instances, lose, no_row_is_lost, number, only_primary, request, standby, whole,
};
use super::{BACKUP, CLUSTER, IMAGE, MAJOR, NEWER, insert_records, is_whole, replicated, rows, sql};
use crate::database::{CLIENT, Stage, is_restored};
use crate::mortals::{self, Left, System, left};
use crate::support::ext::{POD, Scene, VOLUME_CLAIM, condition};
use crate::support::plans::{steps, story_of};

const SYSTEM: System = System {
    folder: "operators/postgresql",
    group: "postgresql.cnpg.io",
    commands: &[
        "demote.sh",
        "leave.sh",
        "position.sh",
        "promote.sh",
        "reload.sh",
        "restart.sh",
        "backup.sh",
        "archived.sh",
    ],
};

/// The timeline of a primary: each promotion begins the next one.
async fn timeline(stage: &Stage, primary: &str) -> usize {
    let file = sql(&stage.scene, primary, "select pg_walfile_name(pg_current_wal_lsn())").await;
    usize::from_str_radix(&file[..8], 16).expect("a timeline")
}

/// Checks that the runs of the cluster have promoted as often as there were promotions since a timeline.
async fn promoted_once_each(stage: &Stage, since: usize) {
    let timeline = timeline(stage, &only_primary(stage).await).await;
    let runs = stage.scene.runs(stage.name).await;
    // The step of that name that runs a plan has no attempts.
    let promotes = |(path, step): &(String, Value)| {
        path.ends_with("/promote") && !step["attempt"].is_null() && step["phase"] == "Succeeded"
    };
    let promotions = runs.iter().flat_map(steps).filter(promotes).count();
    assert_eq!(timeline, since + promotions, "{}", runs.iter().map(story_of).collect::<String>());
}

/// Checks that there are so many instances with their volumes, and otherwise what there was before.
async fn is_tidy(stage: &Stage, before: &Left, instances: usize) {
    let volumes: Vec<String> = (1..=instances).map(|i| format!("{}-{i}", stage.name)).collect();
    let mut pods = volumes.clone();
    pods.push(CLIENT.to_owned());
    mortals::is_tidy(&stage.scene, before, pods, volumes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creation_scaling_and_deletion_resume_after_kills() {
    let (stage, mut mortals, _end) = mortals::stage(&SYSTEM, CLUSTER, "db", is_whole).await;
    let first = mortals.during("create 2", create(&stage, replicated(2))).await;
    insert_records(&stage, &first).await;
    let created = left(&stage.scene).await;

    mortals.during("2 -> 3", change(&stage, json!({"instances": 3}))).await;
    stage.goes_on().await;
    is_tidy(&stage, &created, 3).await;
    mortals.during("switchover", request(&stage, "switchover", json!({"to": 3}))).await;
    stage.goes_on().await;
    promoted_once_each(&stage, 1).await;
    // The primary is among those that go.
    let last = mortals.during("3 -> 2", change(&stage, json!({"instances": 2}))).await;
    stage.goes_on().await;
    is_tidy(&stage, &created, 2).await;
    promoted_once_each(&stage, 1).await;

    let before = timeline(&stage, &last).await;
    mortals.during("delete", stage.remove()).await;
    let kept = left(&stage.scene).await;
    assert_eq!(kept[POD.plural], [CLIENT]);
    assert_eq!(kept[VOLUME_CLAIM.plural], ["db-1", "db-2"]);
    mortals.during("create from volumes", create(&stage, replicated(2))).await;
    stage.goes_on().await;
    is_tidy(&stage, &created, 2).await;
    promoted_once_each(&stage, before).await;
    let volumes = mortals.volumes();
    assert!(volumes.len() == 3 && volumes.values().all(|count| *count == 1), "{volumes:?}");
    no_row_is_lost(&stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losses_settings_and_upgrade_resume_after_kills() {
    let (stage, mut mortals, _end) = mortals::stage(&SYSTEM, CLUSTER, "db", is_whole).await;
    let first = mortals.during("create 3", create(&stage, replicated(3))).await;
    insert_records(&stage, &first).await;
    let created = left(&stage.scene).await;

    let standby = standby(&stage, &first).await;
    let first = mortals.during("a lost standby", lose(&stage, &standby)).await;
    stage.goes_on().await;
    promoted_once_each(&stage, 1).await;
    let second = mortals.during("failover", lose(&stage, &first)).await;
    assert_ne!(second, first);
    stage.goes_on().await;
    promoted_once_each(&stage, 1).await;
    let mut volumes: BTreeMap<String, usize> = (1..=3).map(|i| (format!("db-{i}"), 1)).collect();
    for lost in [standby, first] {
        *volumes.entry(lost).or_default() += 1;
    }
    assert_eq!(mortals.volumes(), volumes);

    let parameters = json!({"postgresql": {"parameters": {"max_connections": "120"}}});
    mortals.during("settings with a restart", change(&stage, parameters)).await;
    for pod in instances(&stage).await {
        assert_eq!(sql(&stage.scene, &pod, "show max_connections").await, "120", "{pod}");
    }
    stage.goes_on().await;
    promoted_once_each(&stage, 1).await;
    let image = json!({"imageName": NEWER, "primaryUpdateMethod": "switchover"});
    mortals.during("upgrade", change(&stage, image)).await;
    for pod in instances(&stage).await {
        assert_eq!(stage.scene.get(POD, &pod).await["spec"]["containers"][0]["image"], NEWER, "{pod}");
    }
    stage.goes_on().await;
    promoted_once_each(&stage, 1).await;
    is_tidy(&stage, &created, 3).await;
    assert_eq!(mortals.volumes(), volumes);
    no_row_is_lost(&stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_and_restore_resume_after_kills() {
    let (stage, mut mortals, _end) = mortals::stage(&SYSTEM, CLUSTER, "db", is_whole).await;
    let mut spec = replicated(2);
    spec["backup"] = json!({"volume": {"size": "1Gi"}});
    let first = mortals.during("create 2", create(&stage, spec)).await;
    insert_records(&stage, &first).await;
    let acknowledged = stage.acknowledged().await;

    let kind = mortals.kind(BACKUP);
    let backup = mortals.during("backup", stage.back_up(kind, "Backup", "first")).await;
    assert_eq!(stage.scene.runs("first").await.len(), 1);
    // A command that was repeated waits for the first one, and leaves one copy.
    let primary = only_primary(&stage).await;
    stage.has_only(&backup, &primary, &["-c", "postgres", "--", "ls", "-A", "/backup/base"]).await;
    stage.goes_on().await;
    promoted_once_each(&stage, 1).await;
    no_row_is_lost(&stage).await;

    let scene = Scene::existing(stage.scene.plane(), stage.scene.namespace());
    let copy = Stage::of(scene, stage.kind, "copy", is_whole);
    let spec = json!({
        "instances": 1, "imageName": IMAGE, "storage": {"size": "1Gi", "chown": true},
        "bootstrap": {"recovery": {"backup": {"name": "first"}}},
    });
    let restored = mortals.during("restore", create(&copy, spec)).await;
    assert_eq!(only_primary(&copy).await, restored);
    // The data are made by one Job.
    let jobs = mortals.jobs();
    assert!(jobs.len() == 1, "{jobs:?}");
    let (found, original) = (rows(&copy.scene, &restored).await, rows(&stage.scene, &primary).await);
    is_restored(&acknowledged, &found, &original);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: bash .ci/long node"]
async fn hibernation_requests_and_major_upgrade_resume_after_kills() {
    let (stage, mut mortals, _end) = mortals::stage(&SYSTEM, CLUSTER, "db", is_whole).await;
    let first = mortals.during("create 3", create(&stage, replicated(3))).await;
    insert_records(&stage, &first).await;

    let access = change(&stage, json!({"enableSuperuserAccess": true}));
    let first = mortals.during("the password of the superuser", access).await;
    let created = left(&stage.scene).await;
    let number = number(&standby(&stage, &first).await);
    for (what, plan) in [("restart", "restart"), ("another clone", "reclone")] {
        mortals.during(what, request(&stage, plan, json!({"instance": number}))).await;
        stage.goes_on().await;
    }
    let sleep = async {
        hibernate(&stage, "on").await;
        let is_asleep = |o: &Value| condition(o, "Hibernated")["status"] == "True";
        stage.until("asleep", stage.kind, stage.name, is_asleep).await;
    };
    mortals.during("hibernation", sleep).await;
    assert!(instances(&stage).await.is_empty());
    let wake = async {
        hibernate(&stage, "off").await;
        whole(&stage).await;
    };
    mortals.during("the end of the hibernation", wake).await;
    stage.goes_on().await;
    promoted_once_each(&stage, 1).await;
    is_tidy(&stage, &created, 3).await;

    mortals.during("major upgrade", change(&stage, json!({"imageName": MAJOR}))).await;
    let cluster = stage.scene.get(stage.kind, stage.name).await;
    assert_eq!(cluster["status"]["pgDataImageInfo"]["majorVersion"], 17);
    stage.goes_on().await;
    // The check, and the upgrade itself.
    let jobs = mortals.jobs();
    assert!(jobs.len() == 2, "{jobs:?}");
    mortals.during("discard", request(&stage, "discard", Value::Null)).await;
    no_row_is_lost(&stage).await;
}
