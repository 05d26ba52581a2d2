//! Which plans a change selects, what happens to children during a run, failed runs, losses.

use serde_json::{Value, json};

use super::{FLEET, Stage};
use crate::support::ext::{CONFIG_MAP, POD, condition, is_pod_ready, is_ready, uid_of};
use crate::support::plans::{CRASHES, phase, story_of};

const KIND: (&str, crate::support::ext::Kind) = ("Fleet", FLEET);

const GOOD: &str = "registry.example.com/work:2";
/// An image whose pods do not start.
const BAD: &str = "registry.example.com/bad:1";

fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
}

fn trace(o: &Value) -> String {
    o["status"]["trace"].as_str().unwrap_or_default().trim().to_owned()
}

/// Waits until the fleet is Ready and has run exactly these plans.
async fn traced(stage: &Stage, wanted: &str) -> Value {
    stage.until(&format!("trace {wanted:?}"), FLEET, "f", |o| is_ready(o) && trace(o) == wanted).await
}

/// Each edit adds the expected plans to those that have run.
#[tokio::test]
async fn a_change_selects_the_plan_that_names_it_most_specifically() {
    let stage = Stage::new().await;
    stage.create(KIND, "f", json!({})).await;
    let mut so_far = "deploy".to_owned();
    traced(&stage, &so_far).await;
    let edits: [(&str, Value, &str); 9] = [
        ("a path of its own", json!({"size": 4}), "resize"),
        ("a path that no plan names", json!({"color": "blue"}), "update"),
        ("another", json!({"other": "x"}), "update"),
        ("below a path", json!({"pod": {"memory": "1Gi"}}), "pod"),
        ("the most specific path", json!({"pod": {"cpu": "1"}}), "cpu"),
        ("both, in declared order", json!({"pod": {"cpu": "2", "memory": "2Gi"}}), "pod cpu"),
        ("two fields with a plan each", json!({"size": 3, "image": GOOD}), "upgrade resize"),
        ("nothing", json!({"size": 3}), ""),
        ("back again", json!({"size": 4}), "resize"),
    ];
    for (what, edit, adds) in edits {
        let before = stage.runs("f").await.len();
        if adds.is_empty() {
            stage.kubectl(&["annotate", "fleets.fixtures.operetta.dev", "f", "a=b"]).await;
            stage.ready(FLEET, "f").await;
            assert_eq!(stage.runs("f").await.len(), before, "{what}");
            continue;
        }
        stage.edit(FLEET, "f", edit).await;
        so_far = format!("{so_far} {adds}");
        traced(&stage, &so_far).await;
        let runs = stage.runs("f").await;
        assert_eq!(runs.len(), before + 1, "{what}: one run for an edit: {runs:#?}");
        assert_eq!(phase(runs.last().unwrap()), "Succeeded", "{what}");
    }
    // After each rollout the children match the spec.
    assert_eq!(stage.get(CONFIG_MAP, "f-plain").await["data"]["other"], "x");
    assert_eq!(stage.get(CONFIG_MAP, "f-route").await["data"]["color"], "blue");
    assert_eq!(stage.names(POD).await.len(), 4);
    for i in 0..4 {
        let pod = stage.get(POD, &format!("f-{i}")).await;
        assert_eq!(image(&pod), GOOD);
        assert_eq!(pod["metadata"]["annotations"]["cpu"], "2");
    }
    // The status lists up to ten runs.
    let history = stage.get(FLEET, "f").await["status"]["history"].clone();
    assert_eq!(history.as_array().map(Vec::len), Some(9), "{history:#}");
}

/// The members change one at a time: each is ready before the next gets the new image.
#[tokio::test]
async fn members_change_one_at_a_time() {
    let stage = Stage::with(KIND, "f", json!({})).await;
    let before: Vec<Value> = stage.list(POD).await;
    stage.edit(FLEET, "f", json!({"image": GOOD})).await;
    let mut most = 0;
    crate::support::eventually("all members to have it", crate::support::ext::LONG, async || {
        let pods = stage.list(POD).await;
        let changing = pods.iter().filter(|pod| !is_pod_ready(pod)).count();
        most = most.max(changing);
        if changing == 0 && pods.iter().all(|pod| image(pod) == GOOD) { Ok(()) } else { Err("not yet") }
    })
    .await;
    traced(&stage, "deploy upgrade").await;
    assert!(most <= 1, "{most} members were not ready at once");
    let after: Vec<Value> = stage.list(POD).await;
    assert_eq!(before.iter().map(uid_of).collect::<Vec<_>>(), after.iter().map(uid_of).collect::<Vec<_>>());
}

/// A bad image stops the rollout at the first member; a lost member comes back as it was; the edit that
/// corrects the image is carried out.
#[tokio::test]
async fn failed_rollout_changes_no_further_child() {
    let stage = Stage::with(KIND, "f", json!({})).await;
    stage.edit(FLEET, "f", json!({"image": BAD})).await;
    let failed = stage.run_of("f", "upgrade", |run| phase(run) == "Failed").await;
    let told = stage.stalled(FLEET, "f").await;
    assert!(told.contains("upgrade") && told.contains("replace"), "{told}");
    assert!(story_of(&failed).contains("members[0]"), "{}", story_of(&failed));
    let images = async || -> Vec<String> {
        let mut images = Vec::new();
        for i in 0..3 {
            images.push(image(&stage.get(POD, &format!("f-{i}")).await).to_owned());
        }
        images
    };
    let old = "registry.example.com/work:1";
    assert_eq!(images().await, [BAD, old, old]);

    // A member that is lost now is recreated by its plan, with its own old image.
    let uid = uid_of(&stage.get(POD, "f-2").await).to_owned();
    stage.kubectl(&["delete", "pod", "f-2", "--wait=false"]).await;
    let back = stage.until("another pod", POD, "f-2", |pod| uid_of(pod) != uid && is_pod_ready(pod)).await;
    assert_eq!(image(&back), old);
    stage.run_of("f", "failover", |run| phase(run) == "Succeeded").await;
    assert_eq!(images().await, [BAD, old, old]);

    // A child that no step applies is repaired as before.
    stage.kubectl(&["delete", "configmap", "f-route"]).await;
    stage.until("back", CONFIG_MAP, "f-route", |_| true).await;

    stage.edit(FLEET, "f", json!({"image": GOOD})).await;
    stage.until("mended", FLEET, "f", |o| is_ready(o) && condition(o, "Stalled").is_null()).await;
    assert_eq!(images().await, [GOOD, GOOD, GOOD]);
}

/// A change that another supersedes half-way is still completed.
#[tokio::test]
async fn superseded_change_is_still_completed() {
    let stage = Stage::with(KIND, "f", json!({})).await;
    stage.edit(FLEET, "f", json!({"image": BAD})).await;
    stage.until("the first member has it", POD, "f-0", |pod| image(pod) == BAD).await;
    // Apart from the size the spec is again that of the last successful rollout, but not all members are.
    stage.edit(FLEET, "f", json!({"image": "registry.example.com/work:1", "size": 5})).await;
    let o = stage.until("done", FLEET, "f", |o| is_ready(o) && o["status"]["ready"] == 5).await;
    assert!(trace(&o).ends_with("upgrade resize"), "{}", trace(&o));
    for i in 0..5 {
        assert_eq!(image(&stage.get(POD, &format!("f-{i}")).await), "registry.example.com/work:1");
    }
    let superseded = stage.runs("f").await;
    assert!(superseded.iter().any(|run| phase(run) == "Superseded"), "{superseded:#?}");
}

/// A rotated ref restarts the members one by one, by the plan that names it.
#[tokio::test]
async fn a_changed_ref_rolls_members_one_by_one() {
    let stage = Stage::new().await;
    stage.flag("cert", json!({"serial": "1"})).await;
    stage.ready_with(KIND, "f", json!({"tls": "cert"})).await;
    stage.flag("cert", json!({"serial": "2"})).await;
    traced(&stage, "deploy upgrade").await;
    for i in 0..3 {
        assert_eq!(stage.get(POD, &format!("f-{i}")).await["metadata"]["annotations"]["tls"], "2");
    }
}

/// A record changes children at once and in place, even if its run fails afterwards.
#[tokio::test]
async fn record_changes_children_even_if_the_run_fails() {
    let stage = Stage::with(KIND, "f", json!({})).await;
    stage.requested(KIND, "f", "promote", &json!({"to": 9}), "Failed").await;
    stage.until("the new primary", CONFIG_MAP, "f-route", |o| o["data"]["primary"] == "9").await;
}

/// A child that a failed run has deleted stays away, and a condition names it; a retry or another run brings
/// it back.
#[tokio::test]
async fn child_deleted_by_a_failed_run_stays_away() {
    let stage = Stage::with(KIND, "f", json!({})).await;
    stage.requested(KIND, "f", "drop", &Value::Null, "Failed").await;
    stage.gone(POD, "f-0").await;
    let named = |o: &Value| o["status"]["conditions"].to_string().contains("members[0]");
    stage.until("a condition that names it", FLEET, "f", named).await;
    // Other children are repaired; wait until that has happened.
    stage.kubectl(&["delete", "configmap", "f-plain"]).await;
    stage.until("back", CONFIG_MAP, "f-plain", |_| true).await;
    assert!(stage.find(POD, "f-0").await.is_none());
    assert!(
        stage.runs("f").await.iter().all(|run| run["spec"]["plan"] != "failover"),
        "our own deletion is no loss"
    );
    stage.requested(KIND, "f", "again", &Value::Null, "Succeeded").await;
    stage.until("back", POD, "f-0", is_pod_ready).await;
    stage.ready(FLEET, "f").await;
}

/// A member is lost if it is gone or its pod is Failed, not if its pod is only unready.
#[tokio::test]
async fn a_lost_member_is_replaced_by_its_plan() {
    let stage = Stage::with(KIND, "f", json!({})).await;
    for (what, member) in [("gone", "f-1"), ("failed", "f-2")] {
        let uid = uid_of(&stage.get(POD, member).await).to_owned();
        if what == "gone" {
            stage.kubectl(&["delete", "pod", member, "--wait=false"]).await;
        } else {
            stage
                .kubectl(&[
                    "patch",
                    "pod",
                    member,
                    "--subresource=status",
                    "-p",
                    "{\"status\":{\"phase\":\"Failed\"}}",
                ])
                .await;
        }
        stage.until("another pod", POD, member, |pod| uid_of(pod) != uid && is_pod_ready(pod)).await;
        let key = member.trim_start_matches("f-");
        stage.until("what was lost", FLEET, "f", |o| is_ready(o) && o["status"]["lost"] == key).await;
    }
    let failovers =
        async || stage.runs("f").await.iter().filter(|run| run["spec"]["plan"] == "failover").count();
    assert_eq!(failovers().await, 2);
    // An unready pod is not a lost one. All members become ready with this image, and crash later.
    stage.edit(FLEET, "f", json!({"image": CRASHES})).await;
    stage.run_of("f", "upgrade", |run| phase(run) == "Succeeded").await;
    if !stage.plane().is_in_thread() {
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "CrashLoopBackOff"}]}});
        stage.kubectl(&["patch", "pod", "f-0", "--subresource=status", "-p", &status.to_string()]).await;
    }
    let is_seen = |o: &Value| o["status"]["ready"].as_u64().is_some_and(|ready| ready < 3);
    stage.until("seen", FLEET, "f", is_seen).await;
    assert_eq!(failovers().await, 2);
}

/// A member is lost in the middle of an upgrade: its plan runs first, then the rest of the upgrade.
#[tokio::test]
async fn loss_interrupts_an_upgrade_which_then_continues() {
    let stage = Stage::with(KIND, "f", json!({})).await;
    stage.edit(FLEET, "f", json!({"image": BAD})).await;
    stage.until("the first member has it", POD, "f-0", |pod| image(pod) == BAD).await;
    let uid = uid_of(&stage.get(POD, "f-2").await).to_owned();
    stage.kubectl(&["delete", "pod", "f-2", "--wait=false"]).await;
    let back = stage.until("another pod", POD, "f-2", |pod| uid_of(pod) != uid && is_pod_ready(pod)).await;
    assert_eq!(image(&back), "registry.example.com/work:1", "the run had not come to it");
    stage.run_of("f", "failover", |run| phase(run) == "Succeeded").await;
    stage.edit(FLEET, "f", json!({"image": GOOD})).await;
    stage.until("done", FLEET, "f", |o| is_ready(o) && o["status"]["ready"] == 3).await;
    for i in 0..3 {
        assert_eq!(image(&stage.get(POD, &format!("f-{i}")).await), GOOD);
    }
}

/// After an upgrade or an edit and its reversal, the children are as before.
#[tokio::test]
async fn reverted_edit_restores_the_children() {
    let stage = Stage::with(KIND, "f", json!({})).await;
    let spec = async || -> Vec<Value> {
        stage.list(POD).await.iter().map(|pod| pod["spec"]["containers"].clone()).collect()
    };
    let before = spec().await;
    stage.edit(FLEET, "f", json!({"size": 5, "image": GOOD})).await;
    stage.until("larger", FLEET, "f", |o| is_ready(o) && o["status"]["ready"] == 5).await;
    stage.edit(FLEET, "f", json!({"size": 3, "image": "registry.example.com/work:1"})).await;
    stage.until("as before", FLEET, "f", |o| is_ready(o) && o["status"]["ready"] == 3).await;
    stage.gone(POD, "f-4").await;
    assert_eq!(spec().await, before);
}
