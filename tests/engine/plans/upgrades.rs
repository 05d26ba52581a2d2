//! Packages that change while their plans run, and plans that affect what their own conditions read.

use std::time::Duration;

use serde_json::{Value, json};

use super::own::Own;
use crate::support::plans::{PLAN_RUN, phase, steps, story_of};
use crate::support::{CONFIG_MAP, DEPLOYMENT, LONG, SERVICE, condition, eventually, is_ready};

/// A step that the run of the old version does not have.
const NEW_STEP: &str = "            - {name: more, fail: {message: \"this step is new\"}}\n";

/// A plan that waits for a `ConfigMap` and then records the package version to which it belongs.
fn waiting(version: &str, steps: &str) -> String {
    format!(
        "
        deploy:
          steps:
            - {{name: all, apply: [config, deployment, service]}}
        work:
          steps:
            - {{name: gate, wait: {{until: children.config.data.open == 'yes'}}, timeout: 10m}}
            - {{name: note, record: {{note: \"'{version}'\"}}}}
{steps}"
    )
}

/// An instance whose run of the plan `work` waits, with the name of the run and the revision that it began
/// with.
async fn at_the_gate(name: &'static str) -> (Own, String, Value) {
    at_the_gate_of(name, &waiting("old", "")).await
}

/// Like [`at_the_gate`], with other plans.
async fn at_the_gate_of(name: &'static str, plans: &str) -> (Own, String, Value) {
    let own = Own::with_instance(name, plans).await;
    let run = own.request("work").await;
    own.scene.until("waiting", PLAN_RUN, &run, |run| steps(run).contains_key("gate")).await;
    let revision = own.scene.get(PLAN_RUN, &run).await["status"]["revision"].clone();
    assert!(revision.is_string(), "{revision}");
    (own, run, revision)
}

/// The hash at the end of the name of an `OperatorRevision`.
fn digest_of(revision: &Value) -> &str {
    revision.as_str().unwrap().rsplit('-').next().unwrap()
}

/// Whether an instance is Ready with that version of its package.
fn is_at(version: &'static str) -> impl Fn(&Value) -> bool {
    move |o| {
        is_ready(o) && o["status"]["revision"].as_str().is_some_and(|revision| revision.starts_with(version))
    }
}

/// The message of the condition Reconciling.
fn condition_of(o: &Value) -> Option<&str> {
    condition(o, "Reconciling")["message"].as_str()
}

async fn open_gate(own: &Own) {
    // A field of another manager opens the gate, because a change of our field would be repaired at once.
    own.scene.patch(CONFIG_MAP, "s-config", "merge", &json!({"data": {"open": "yes"}})).await;
}

/// The `OperatorRevision` of a package's revision, and its parts, as kubectl shows them.
async fn stored(own: &Own, package: &str, revision: &Value) -> (Value, Vec<Value>) {
    let name = format!("{package}-{}", digest_of(revision));
    let get = async |args: &[&str]| -> Value {
        let all = [&["get", "-o", "json"], args].concat();
        serde_json::from_str(&own.scene.kubectl(&all).await).unwrap()
    };
    let object = get(&["operatorrevision", &name]).await;
    let mut parts = Vec::new();
    for part in object["spec"]["parts"].as_array().unwrap() {
        parts.push(get(&["-n", MANAGERS, "configmap", part["name"].as_str().unwrap()]).await);
    }
    (object, parts)
}

/// The manager's namespace.
const MANAGERS: &str = "operetta-system";

async fn delete_part(own: &Own, part: &Value) {
    let name = part["metadata"]["name"].as_str().unwrap();
    own.scene.kubectl(&["-n", MANAGERS, "delete", "configmap", name]).await;
}

async fn create_part(own: &Own, part: &Value) {
    let mut part = part.clone();
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        part["metadata"].as_object_mut().unwrap().remove(field);
    }
    own.scene.kubectl_input(&["-n", MANAGERS, "create", "-f", "-"], &part.to_string()).await.unwrap();
}

/// A run that is active when a new version of the package arrives ends with its old version; the upgrade
/// follows it.
#[tokio::test]
async fn a_run_finishes_with_its_own_revision() {
    let (own, run, revision) = at_the_gate("own-revision").await;
    let own = own.at("0.2.0", &waiting("new", NEW_STEP)).await;
    let waits = |o: &Value| o["status"]["observedGeneration"] == o["metadata"]["generation"] && !is_ready(o);
    own.scene.until("seen by the new manager", own.kind, "s", waits).await;
    // A second restart finds the revision again.
    let own = own.at("0.2.0", &waiting("new", NEW_STEP)).await;
    open_gate(&own).await;
    let done = own.scene.run_is(&run, "Succeeded").await;
    assert_eq!(done["status"]["revision"], revision, "{}", story_of(&done));
    own.scene.until("the old note", own.kind, "s", |o| is_ready(o) && o["status"]["note"] == "old").await;
    // The upgrade follows the run.
    let runs = own.scene.runs("s").await;
    let last = runs.last().unwrap();
    assert!(last["status"]["revision"] != revision && phase(last) == "Succeeded", "{}", story_of(last));
    assert_eq!(last["spec"]["plan"], "deploy");
}

/// The new revision has neither the plan nor any expression that reads what the plan waits for. The old
/// revision is read only once.
#[tokio::test]
async fn run_ends_if_new_revision_lacks_its_plan() {
    let condition = "children.service.spec.sessionAffinity == 'ClientIP'";
    let old = waiting("old", "").replace("children.config.data.open == 'yes'", condition);
    let (own, run, revision) = at_the_gate_of("removed-plan", &old).await;
    let audit = own.scene.plane().audit();
    let mark = audit.mark().unwrap();
    let deploy = "        deploy:\n          steps:\n            - {name: all, apply: [config, deployment, service]}\n";
    let own = own.at("0.2.0", deploy).await;
    let waits = |o: &Value| condition_of(o).is_some_and(|message| message.contains("gate"));
    own.scene.until("goes on waiting", own.kind, "s", waits).await;
    let name = format!("operatorrevisions/kudo-removed-plan-{}", digest_of(&revision));
    let reads = || {
        let requests = audit.requests_since(mark).unwrap();
        // The garbage collector also reads the revision, for its parts.
        let of_manager = requests.iter().filter(|request| request.user_agent.starts_with("operetta/"));
        of_manager.filter(|request| request.uri.contains(&name)).count()
    };
    eventually("the revision is read", LONG, async || if reads() > 0 { Ok(()) } else { Err("no read") })
        .await;
    own.scene.patch(SERVICE, "s", "merge", &json!({"spec": {"sessionAffinity": "ClientIP"}})).await;
    let done = own.scene.run_is(&run, "Succeeded").await;
    assert_eq!(reads(), 1);
    assert_eq!(done["status"]["revision"], revision, "{}", story_of(&done));
    own.scene.until("upgraded", own.kind, "s", is_at("0.2.0")).await;
    assert_eq!(own.scene.get(SERVICE, "s").await["spec"]["sessionAffinity"], "ClientIP");
    assert_eq!(reads(), 1);
}

/// The active revision, the newest five and those that a run uses are kept, with their parts and no others.
#[tokio::test]
async fn revisions_that_nothing_uses_are_pruned() {
    let (mut own, run, revision) = at_the_gate("pruned-revisions").await;
    for number in 2..10 {
        // They differ in the second of their creation.
        tokio::time::sleep(Duration::from_secs(1)).await;
        own = own.at(&format!("0.{number}.0"), &waiting("new", "")).await;
    }
    let label = "operetta.dev/package=kudo-pruned-revisions";
    let stored = async |args: &[&str]| {
        let all = [&["get"], args, &["-l", label, "-o", "jsonpath={.items[*].metadata.name}"]].concat();
        let listed = own.scene.kubectl(&all).await;
        listed.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let revisions = stored(&["operatorrevisions"]).await;
    assert_eq!(revisions.len(), 7, "{revisions:?}");
    assert!(revisions.iter().any(|name| name.ends_with(digest_of(&revision))), "{revisions:?}");
    eventually("the parts of the others to be gone", LONG, async || {
        let parts = stored(&["-n", MANAGERS, "configmaps"]).await;
        if parts.len() == 7 { Ok(()) } else { Err(format!("{parts:?}")) }
    })
    .await;
    open_gate(&own).await;
    own.scene.run_is(&run, "Succeeded").await;
    own.scene.until("upgraded", own.kind, "s", is_at("0.9.0")).await;
}

/// The stored revision is deleted, then altered: the instance stays as it is and reports it, until the
/// revision is restored.
#[tokio::test]
async fn a_run_whose_revision_is_missing_waits_for_it() {
    let (own, run, revision) = at_the_gate("missing-revision").await;
    let (object, parts) = stored(&own, "kudo-missing-revision", &revision).await;
    assert_eq!(object["spec"]["version"], "0.1.0");
    assert!(parts.iter().all(|part| part["immutable"] == true));
    let refused = own
        .scene
        .kubectl_input(
            &[
                "patch",
                "operatorrevision",
                object["metadata"]["name"].as_str().unwrap(),
                "--type=merge",
                "-p",
                "{\"spec\": {\"version\": \"9.9.9\"}}",
            ],
            "",
        )
        .await;
    assert!(refused.unwrap_err().contains("a revision is immutable"));
    delete_part(&own, &parts[0]).await;
    let own = own.at("0.2.0", &waiting("new", NEW_STEP)).await;
    let says = |text: &'static str| {
        move |o: &Value| {
            let stalled = condition(o, "Stalled");
            stalled["reason"] == "RevisionMissing"
                && stalled["message"].as_str().is_some_and(|m| m.contains(text))
        }
    };
    own.scene.until("missing", own.kind, "s", says("does not exist")).await;
    own.scene
        .patch(CONFIG_MAP, "s-config", "merge", &json!({"data": {"param": "changed", "open": "yes"}}))
        .await;
    let mut altered = parts[0].clone();
    altered["binaryData"]["part"] = "eJwDAAAAAAE=".into();
    create_part(&own, &altered).await;
    own.scene.until("altered", own.kind, "s", says("is not what was stored")).await;
    // The manager has reconciled since the change: it has neither repaired the child from another revision
    // nor upgraded it.
    assert_eq!(own.scene.get(CONFIG_MAP, "s-config").await["data"]["param"], "changed");
    assert_eq!(phase(&own.scene.get(PLAN_RUN, &run).await), "Running");
    delete_part(&own, &altered).await;
    create_part(&own, &parts[0]).await;
    let done = own.scene.run_is(&run, "Succeeded").await;
    assert_eq!(done["status"]["revision"], revision, "{}", story_of(&done));
    own.scene.until("the old note", own.kind, "s", |o| is_ready(o) && o["status"]["note"] == "old").await;
    assert_eq!(own.scene.get(CONFIG_MAP, "s-config").await["data"]["param"], "a");
}

/// Missing or altered parts of the revision of an active package are stored again when a manager starts with
/// the package.
#[tokio::test]
async fn a_manager_restores_its_own_revision() {
    let (mut own, _, revision) = at_the_gate("restored-revision").await;
    let (_, parts) = stored(&own, "kudo-restored-revision", &revision).await;
    let mut altered = parts[0].clone();
    altered["binaryData"]["part"] = "eJwDAAAAAAE=".into();
    for is_altered in [false, true] {
        delete_part(&own, &parts[0]).await;
        if is_altered {
            create_part(&own, &altered).await;
        }
        own = own.at("0.1.0", &waiting("old", "")).await;
        let (_, found) = stored(&own, "kudo-restored-revision", &revision).await;
        assert_eq!(found[0]["binaryData"], parts[0]["binaryData"]);
    }
}

/// A person cancels a run whose revision is lost.
#[tokio::test]
async fn a_run_whose_revision_is_lost_can_be_cancelled() {
    let (own, run, revision) = at_the_gate("lost-revision").await;
    let (object, _) = stored(&own, "kudo-lost-revision", &revision).await;
    own.scene.kubectl(&["delete", "operatorrevision", object["metadata"]["name"].as_str().unwrap()]).await;
    let own = own.at("0.2.0", &waiting("new", "")).await;
    let holds = |o: &Value| condition(o, "Stalled")["reason"] == "RevisionMissing";
    own.scene.until("missing", own.kind, "s", holds).await;
    own.scene.patch(PLAN_RUN, &run, "merge", &json!({"spec": {"cancel": true}})).await;
    own.scene.run_is(&run, "Cancelled").await;
    own.scene.until("upgraded", own.kind, "s", is_at("0.2.0")).await;
}

/// While a run awaits an object that it has changed, conditions that read the object do not count. The
/// condition here reads the image, which is wrong from the run's write until the next edit. The readiness of
/// simulated pods changes at random times; conditions that read it are in
/// `src/core/children/tests/plans/losses.rs`.
#[tokio::test]
async fn upgrade_does_not_cause_a_failover() {
    let plans = "
        deploy:
          trigger: [created, changed]
          steps:
            - {name: good, when: \"'bad' not in spec.image\", apply: [config, deployment, service]}
            - {name: bad, when: \"'bad' in spec.image\", apply: [config, deployment, service], timeout: 3s}
        failover:
          trigger: {condition: \"'bad' in children.deployment.spec.template.spec.containers[0].image\", for: 1s, cooldown: 1h}
          steps:
            - {name: note, record: {note: \"'failover'\"}}
";
    let own = Own::with_instance("own-upgrade", plans).await;
    own.edit(json!({"image": "registry.example.com/bad:1"})).await;
    own.scene.until("the bad image", DEPLOYMENT, "s", |o| o.to_string().contains("bad:1")).await;
    let failed = own.scene.run_of("s", "deploy", |run| phase(run) == "Failed").await;
    let failed = failed["status"]["finishedAt"].as_str().unwrap().to_owned();
    // After the run has ended, the condition counts.
    let failover = own.scene.run_of("s", "failover", |run| phase(run) == "Succeeded").await;
    assert!(failover["status"]["startedAt"].as_str().unwrap() >= failed.as_str(), "{}", story_of(&failover));
    own.edit(json!({"image": "registry.example.com/work:2"})).await;
    let o = own.ready().await;
    assert!(condition(&o, "Stalled").is_null(), "{:#}", o["status"]);
    let runs = own.scene.runs("s").await;
    assert_eq!(runs.iter().filter(|run| run["spec"]["plan"] == "failover").count(), 1, "{runs:#?}");
}

/// After an upgrade and its reversal, the children are as before.
#[tokio::test]
async fn reverted_package_restores_the_children() {
    let old = waiting("old", "");
    let own = Own::with_instance("goes-back", &old).await;
    let data = async |own: &Own| own.scene.get(CONFIG_MAP, "s-config").await["data"].clone();
    let before = data(&own).await;
    let own = own.at("0.2.0", &waiting("new", "")).await;
    let holds = |run: &Value| phase(run) == "Succeeded" && run["metadata"]["name"] != "s-1";
    own.scene.run_of("s", "deploy", holds).await;
    let own = own.at("0.1.0", &old).await;
    own.scene.until("back", own.kind, "s", is_at("0.1.0")).await;
    assert_eq!(data(&own).await, before);
    assert_eq!(own.scene.runs("s").await.iter().map(phase).filter(|phase| *phase != "Succeeded").count(), 0);
}
