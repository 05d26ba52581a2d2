//! Who may run and approve plans: the API server decides, by the CRD of `PlanRun` and its admission policy.

use std::sync::Arc;

use operetta::plan::crds;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::crd::open_crd;
use crate::support::ext::{Kind, LONG, Scene, kind, read};
use crate::support::plans::PLAN_RUN;
use crate::support::rights::{self, binding, permit, permit_edits_of_runs};
use crate::support::{Actor, ControlPlane, eventually, is_all_real, own_plane_of_tests};

const STATE: Kind = kind("operetta.dev/v1", "instancestates");

const MANAGER: &str = "system:serviceaccount:operetta:manager";
/// A manager of other packages.
const OTHER_MANAGER: &str = "the manager of \"others\"";

/// A control plane with the kinds and the policies of runs, and without a manager. These tests share a real one: each has its own
/// namespace.
async fn plane() -> Arc<ControlPlane> {
    static REAL: OnceCell<Arc<ControlPlane>> = OnceCell::const_new();
    if is_all_real() { Arc::clone(REAL.get_or_init(prepared).await) } else { prepared().await }
}

async fn prepared() -> Arc<ControlPlane> {
    let plane = own_plane_of_tests().await;
    let admin = Scene::existing(&plane, "default");
    let apply = async |more: &[&str], object: &Value| {
        let args = [&["apply", "--server-side", "-f", "-"], more].concat();
        admin.kubectl_input(&args, &object.to_string()).await.unwrap();
    };
    for object in [crds::plan_run()].into_iter().chain(crds::policies()) {
        apply(&[], &object).await;
    }
    for manager in [MANAGER, OTHER_MANAGER] {
        let owner = format!("--field-manager={}", crds::exemption_owner(manager));
        for policy in crds::POLICIES {
            apply(&[&owner], &crds::exemption(policy, manager)).await;
        }
    }
    for object in crds::bindings() {
        apply(&[], &object).await;
    }
    for (group, plural, kind) in
        [("example.com", "dbs", "Db"), ("operetta.dev", "instancestates", "InstanceState")]
    {
        admin.apply(&open_crd(group, plural, kind)).await;
    }
    let rule = json!({"apiGroups": ["operetta.dev"], "resources": ["instancestates"], "verbs": ["restore"]});
    let restorer = rights::role(None, "restorer", &json!([rule]));
    rights::apply(&plane, &[restorer, binding(None, ("ClusterRole", "restorer"), "ann")]).await;
    plane
}

/// A namespace in which all users may edit `PlanRun`s; eve and ann may also run plans of `main`, and ada may approve steps of
/// any instance.
struct Theatre(Scene);

impl Theatre {
    async fn new() -> Self {
        let theatre = Self(Scene::on(&plane().await).await);
        let (plane, here) = (theatre.0.plane(), theatre.0.namespace());
        permit_edits_of_runs(plane, here, &["eve", "ada", "bob", "ann", MANAGER, OTHER_MANAGER]).await;
        let mut rule = json!({"apiGroups": ["example.com"], "resources": ["dbs"], "verbs": ["approve"]});
        permit(plane, here, "approver", &rule, &["ada"]).await;
        rule["verbs"] = json!(["run"]);
        rule["resourceNames"] = json!(["main"]);
        permit(plane, here, "runner", &rule, &["eve", "ann"]).await;
        theatre
    }

    fn user<'a>(&self, user: &'a str) -> Actor<'a> {
        Actor::new(self.0.plane(), user)
    }

    /// Creates a run of the instance `main` with additions to its spec.
    async fn create(&self, user: &str, name: &str, more: &Value) -> Result<Value, String> {
        self.create_with(user, name, "main", more, &json!({})).await
    }

    async fn create_with(
        &self,
        user: &str,
        name: &str,
        of: &str,
        more: &Value,
        annotations: &Value,
    ) -> Result<Value, String> {
        let mut run = run_of(name, of, user);
        run["metadata"]["annotations"] = annotations.clone();
        for (key, value) in more.as_object().unwrap() {
            run["spec"][key] = value.clone();
        }
        self.user(user).create(PLAN_RUN, Some(self.0.namespace()), &run).await
    }

    /// Writes the status of a run, as the manager does.
    async fn set_status(&self, name: &str, status: &Value) {
        self.patch(MANAGER, &format!("{name}/status"), json!({"status": status})).await.unwrap();
    }

    /// Patches a run, or its subresource after a slash.
    async fn patch(&self, user: &str, name: &str, patch: Value) -> Result<Value, String> {
        self.user(user).patch(PLAN_RUN, Some(self.0.namespace()), name, &patch).await
    }

    async fn delete(&self, user: &str, name: &str) -> Result<Value, String> {
        self.user(user).delete(PLAN_RUN, Some(self.0.namespace()), name).await
    }
}

/// A run that a user requests.
fn run_of(name: &str, of: &str, user: &str) -> Value {
    json!({
        "apiVersion": "operetta.dev/v1alpha1",
        "kind": "PlanRun",
        "metadata": {"name": name},
        "spec": {
            "of": {"apiVersion": "example.com/v1", "kind": "Db", "resource": "dbs", "name": of},
            "plan": "restore",
            "params": {"source": {"bucket": "a"}},
            "requestedBy": user,
        },
    })
}

fn approval(step: &str, verdict: &str, by: &str) -> Value {
    json!({"step": step, "verdict": verdict, "by": by})
}

#[tokio::test]
async fn only_users_with_the_verbs_run_and_approve_plans() {
    let scene = Theatre::new().await;

    // The verb `run` is needed to create a run.
    let refused = scene.create("bob", "a", &json!({})).await.unwrap_err();
    for words in ["user bob may not run plans of dbs/main", "it needs the verb `run` on dbs.example.com"] {
        assert!(refused.contains(words), "{refused}");
    }
    scene.create("eve", "a", &json!({})).await.unwrap();
    let refused = scene.create_with("eve", "b", "other", &json!({}), &json!({})).await.unwrap_err();
    assert!(refused.contains("may not run plans of dbs/other"), "{refused}");
    scene.create("eve", "c", &json!({})).await.unwrap();
    for requester in [json!("ada"), json!(null)] {
        let refused = scene.create("eve", "d", &json!({"requestedBy": requester})).await.unwrap_err();
        assert!(refused.contains("requestedBy must be the user"), "{refused}");
    }
    let refused = scene.create("eve", "d", &json!({"plan": "operetta.dev/delete-child"})).await.unwrap_err();
    assert!(refused.contains("only the manager creates runs of the plans operetta.dev/"), "{refused}");

    // The request is immutable.
    for (patch, words) in [
        (json!({"of": {"name": "other"}}), "of is immutable"),
        (json!({"plan": "backup"}), "plan is immutable"),
        (json!({"params": {"source": {"bucket": "b"}}}), "params is immutable"),
        (json!({"params": null}), "params is immutable"),
        (json!({"retryOf": "x"}), "retryOf is immutable"),
        (json!({"requestedBy": "ada"}), "requestedBy is immutable"),
    ] {
        let refused = scene.patch("eve", "a", json!({"spec": patch})).await.unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }

    // The verb `approve` is needed to answer a step.
    let sure = approval("sure", "Approve", "ada");
    let refused = scene
        .patch("bob", "a", json!({"spec": {"approvals": [approval("sure", "Approve", "bob")]}}))
        .await
        .unwrap_err();
    assert!(refused.contains("it needs the verb `approve`"), "{refused}");
    let refused = scene.patch("bob", "a", json!({"spec": {"approvals": [sure]}})).await.unwrap_err();
    assert!(refused.contains("by must be the user"), "{refused}");
    let refused = scene
        .patch("ada", "a", json!({"spec": {"approvals": [approval("sure", "Approve", "bob")]}}))
        .await
        .unwrap_err();
    assert!(refused.contains("by must be the user"), "{refused}");
    scene.patch("ada", "a", json!({"spec": {"approvals": [sure]}})).await.unwrap();
    for approvals in [
        json!([]),
        json!(null),
        json!([approval("sure", "Reject", "ada")]),
        json!([approval("again", "Approve", "ada"), sure]),
    ] {
        let refused = scene.patch("ada", "a", json!({"spec": {"approvals": approvals}})).await.unwrap_err();
        assert!(refused.contains("approvals are only appended"), "{refused}");
    }
    scene
        .patch("ada", "a", json!({"spec": {"approvals": [sure, approval("more", "Reject", "ada")]}}))
        .await
        .unwrap();
    let refused = scene
        .create("eve", "e", &json!({"approvals": [approval("sure", "Approve", "eve")]}))
        .await
        .unwrap_err();
    assert!(refused.contains("it needs the verb `approve`"), "{refused}");

    // The verb `run` is needed to cancel.
    let refused = scene.patch("ada", "a", json!({"spec": {"cancel": true}})).await.unwrap_err();
    assert!(refused.contains("ada may not cancel runs of dbs/main"), "{refused}");
    scene.patch("eve", "a", json!({"spec": {"cancel": true}})).await.unwrap();
    let refused = scene.patch("eve", "a", json!({"spec": {"cancel": false}})).await.unwrap_err();
    assert!(refused.contains("cannot be taken back"), "{refused}");

    // The manager's annotations are protected; other metadata may be changed by users who may edit.
    let taken = json!({"metadata": {"annotations": {"operetta.dev/taken": "uid"}}});
    let refused = scene.patch("eve", "c", taken.clone()).await.unwrap_err();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    scene.patch(MANAGER, "c", taken).await.unwrap();
    let refused = scene
        .patch("eve", "c", json!({"metadata": {"annotations": {"operetta.dev/taken": null}}}))
        .await
        .unwrap_err();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    // Users who may edit a run may label it before it is accepted.
    let mine = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}});
    let refused = scene.patch("bob", "c", mine.clone()).await.unwrap_err();
    assert!(refused.contains("of a PlanRun that has started cannot be changed"), "{refused}");
    scene.create("eve", "j", &json!({})).await.unwrap();
    scene.patch("bob", "j", mine).await.unwrap();
    let cause = json!({"operetta.dev/cause": "Cleanup"});
    let refused = scene.create_with("eve", "f", "main", &json!({}), &cause).await.unwrap_err();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    // Who restores a backup may set the manager's annotations, and nobody else.
    let backup =
        json!({"operetta.dev/cause": "Rollout", "operetta.dev/taken": "uid", "operetta.dev/record": "{}"});
    let refused = scene.create_with("eve", "f", "main", &json!({}), &backup).await.unwrap_err();
    assert!(refused.contains("eve may not restore PlanRuns that have started"), "{refused}");
    assert!(
        refused.contains("the verb `restore` on instancestates.operetta.dev in the whole cluster"),
        "{refused}"
    );
    scene.create_with("ann", "f", "main", &json!({}), &backup).await.unwrap();
    scene
        .create_with("eve", "g", "main", &json!({}), &json!({"operetta.dev/prunable": "true"}))
        .await
        .unwrap();
    // Managers need no verb.
    for (manager, name) in [(MANAGER, "h"), (OTHER_MANAGER, "i")] {
        let run = json!({"requestedBy": null, "plan": "operetta.dev/delete-child"});
        scene.create(manager, name, &run).await.unwrap();
    }
}

#[tokio::test]
async fn kubectl_get_shows_columns_of_runs() {
    let scene = Theatre::new().await;
    scene.create("eve", "main-1", &json!({})).await.unwrap();
    let status = json!({"status": {
        "phase": "Running",
        "startedAt": "2026-01-01T00:00:00Z",
        "steps": [{"path": "one", "phase": "Succeeded"}, {"path": "two[0]/sure", "phase": "Running", "inFlight": true}],
        "usedMilliseconds": 3,
    }});
    scene.patch(MANAGER, "main-1/status", status).await.unwrap();
    // `kubectl get operetta` shows all kinds of this category.
    eventually("the category of runs", LONG, async || {
        let found = read(&scene.0.client(), "/apis/operetta.dev/v1alpha1").await.unwrap_or_default();
        let mut resources = found["resources"].as_array().into_iter().flatten();
        let runs = resources.find(|resource| resource["name"] == "planruns");
        let is_in = runs.is_some_and(|runs| runs["categories"] == json!(["operetta"]));
        if is_in { Ok(()) } else { Err(found) }
    })
    .await;
    let table = scene.0.kubectl(&["get", "planruns"]).await;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "OF", "PLAN", "PHASE", "STEP", "AGE"], "{table}");
    assert_eq!(lines[1][..5], ["main-1", "main", "restore", "Running", "two[0]/sure"], "{table}");
    let selected =
        ["get", "planruns", "--field-selector", "spec.of.name=main,status.phase=Running", "-o", "name"];
    assert_eq!(scene.0.kubectl(&selected).await.trim(), "planrun.operetta.dev/main-1");
    let stored = scene.0.get(PLAN_RUN, "main-1").await;
    assert_eq!(stored["status"]["usedMilliseconds"], 3);
    assert_eq!(stored["status"]["steps"][1]["inFlight"], true);
    assert_eq!(stored["spec"]["params"], json!({"source": {"bucket": "a"}}));
}

/// Fields that a user with the verb `run` and all rights to `PlanRun`s must not be able to set.
#[tokio::test]
async fn users_cannot_forge_protected_fields_of_a_run() {
    let scene = Theatre::new().await;
    scene.create("eve", "new", &json!({})).await.unwrap();
    scene.create("eve", "taken", &json!({})).await.unwrap();
    let own = json!({"metadata": {
        "annotations": {"operetta.dev/taken": "uid"}, "labels": {"operetta.dev/run-of": "uid"},
        "finalizers": ["operetta.dev/run"],
    }});
    scene.patch(MANAGER, "taken", own).await.unwrap();

    // No metadata of an accepted run may be changed, and Operetta's own metadata of no run.
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]);
    for (name, metadata, words) in [
        ("new", json!({"labels": {"operetta.dev/run-of": "x"}}), "sets the labels"),
        ("new", json!({"annotations": {"operetta.dev/record": "{}"}}), "sets the annotations"),
        ("new", json!({"annotations": {"operetta.dev/cause": "Loss"}}), "sets the annotations"),
        ("new", json!({"finalizers": ["operetta.dev/run"]}), "sets the finalizers"),
        ("new", json!({"ownerReferences": owner}), "sets the owners"),
        ("taken", json!({"labels": {"operetta.dev/run-of": null}}), "sets the labels"),
        ("taken", json!({"annotations": {"operetta.dev/taken": "other"}}), "sets the annotations"),
        ("taken", json!({"annotations": {"operetta.dev/taken": null}}), "sets the annotations"),
        ("taken", json!({"finalizers": []}), "sets the finalizers"),
        ("taken", json!({"finalizers": null}), "sets the finalizers"),
        ("taken", json!({"finalizers": ["operetta.dev/run", "example.com/a"]}), "cannot be changed"),
        ("taken", json!({"ownerReferences": owner}), "sets the owners"),
        ("taken", json!({"labels": {"a": "b"}}), "cannot be changed"),
        ("taken", json!({"annotations": {"a": "b"}}), "cannot be changed"),
    ] {
        let refused = scene.patch("eve", name, json!({"metadata": metadata})).await.unwrap_err();
        assert!(refused.contains(words), "{name} {metadata}: {refused}");
    }

    // The fields are protected when a run is created as well, and in runs of the plan of deletions.
    for (metadata, spec, words) in [
        (json!({"labels": {"operetta.dev/run-of": "x"}}), json!({}), "sets the labels"),
        (json!({"annotations": {"operetta.dev/record": "{}"}}), json!({}), "sets the annotations"),
        (json!({"finalizers": ["operetta.dev/run"]}), json!({}), "sets the finalizers"),
        (json!({"ownerReferences": owner}), json!({}), "sets the owners"),
        (json!({}), json!({"plan": "cleanup"}), "the plan `cleanup` cannot be requested"),
        (json!({}), json!({"requestedBy": "ada"}), "requestedBy must be the user"),
    ] {
        let mut run = run_of("forged", "main", "eve");
        run["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        run["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        let refused = scene.user("eve").create(PLAN_RUN, Some(scene.0.namespace()), &run).await.unwrap_err();
        assert!(refused.contains(words), "{metadata} {spec}: {refused}");
    }
    scene.create("eve", "retry", &json!({"plan": "cleanup", "retryOf": "failed"})).await.unwrap();

    // The status cannot be written by any subresource or verb.
    let status = json!({"status": {"phase": "Succeeded", "steps": [{"path": "sure", "groups": []}]}});
    for user in ["eve", "bob", "ada"] {
        let refused = scene.patch(user, "new/status", status.clone()).await.unwrap_err();
        assert!(refused.contains("only the manager writes the status"), "{user}: {refused}");
    }
    scene.patch(MANAGER, "new/status", status).await.unwrap();
}

/// Deleting a run that has not ended needs the verb `run`, because it cancels the run.
#[tokio::test]
async fn deleting_an_active_run_needs_the_verb_run() {
    let scene = Theatre::new().await;
    for name in ["a", "b", "c", "d"] {
        scene.create("eve", name, &json!({})).await.unwrap();
    }
    let of_other = run_of("other", "other", "eve");
    scene.user(MANAGER).create(PLAN_RUN, Some(scene.0.namespace()), &of_other).await.unwrap();
    for (user, name) in [("bob", "a"), ("ada", "a"), ("eve", "other")] {
        let refused = scene.delete(user, name).await.unwrap_err();
        assert!(refused.contains("delete a run that has not ended"), "{user} {name}: {refused}");
        assert!(refused.contains("needs the verb `run`"), "{user} {name}: {refused}");
    }
    let refused = scene.delete("bob", "").await.unwrap_err();
    assert!(refused.contains("delete a run that has not ended"), "{refused}");
    scene.delete("eve", "a").await.unwrap();
    scene.set_status("b", &json!({"phase": "Failed"})).await;
    scene.delete("bob", "b").await.unwrap();
    // The garbage collector and the namespace controller need no verb.
    for (user, name) in [
        ("system:serviceaccount:kube-system:generic-garbage-collector", "c"),
        ("system:serviceaccount:kube-system:namespace-controller", "d"),
    ] {
        let rights = binding(Some(scene.0.namespace()), ("Role", "editor"), user);
        rights::apply(scene.0.plane(), &[rights]).await;
        scene.delete(user, name).await.unwrap();
    }
}

#[tokio::test]
async fn step_with_groups_accepts_answers_of_members_only() {
    let scene = Theatre::new().await;
    scene.create("eve", "a", &json!({})).await.unwrap();
    let steps = json!([
        {"path": "open", "phase": "Running", "asked": 0},
        {"path": "sure", "phase": "Running", "asked": 0, "groups": ["dba", "leads"]},
    ]);
    scene.set_status("a", &json!({"phase": "Running", "steps": steps})).await;
    let answer = async |groups: &[&str], approvals: Value| {
        let patch = json!({"spec": {"approvals": approvals}});
        scene.user("ada").in_groups(groups).patch(PLAN_RUN, Some(scene.0.namespace()), "a", &patch).await
    };
    for (groups, verdict) in
        [(&[][..], "Approve"), (&["system:authenticated", "devs"], "Approve"), (&["devs"], "Reject")]
    {
        let refused = answer(groups, json!([approval("sure", verdict, "ada")])).await.unwrap_err();
        let words = "user ada may not answer step sure: only members of these groups may: dba, leads";
        assert!(refused.contains(words), "{groups:?}: {refused}");
    }
    // The answer cannot be hidden among other answers.
    let both = json!([approval("open", "Approve", "ada"), approval("sure", "Approve", "ada")]);
    let refused = answer(&["devs"], both.clone()).await.unwrap_err();
    assert!(refused.contains("may not answer step sure"), "{refused}");
    answer(&["devs"], json!([approval("open", "Approve", "ada")])).await.unwrap();
    answer(&["devs", "leads"], both).await.unwrap();
}

#[tokio::test]
async fn only_managers_write_instance_states() {
    let scene = Theatre::new().await;
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    // A Role of a namespace may grant any verb.
    let wildcard = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    permit(scene.0.plane(), scene.0.namespace(), "all", &wildcard, &["eve", MANAGER, collector]).await;
    let state = |name: &str| json!({"apiVersion": "operetta.dev/v1", "kind": "InstanceState", "metadata": {"name": name}, "spec": {"record": {}}});
    let namespace = Some(scene.0.namespace());
    eventually("the kind to be served", LONG, async || {
        scene.user(MANAGER).create(STATE, namespace, &state("a")).await
    })
    .await;
    let forged = json!({"spec": {"record": {"primary": 1}}});
    let eve = scene.user("eve");
    for refused in [
        eve.create(STATE, namespace, &state("b")).await,
        eve.patch(STATE, namespace, "a", &forged).await,
        eve.delete(STATE, namespace, "a").await,
        eve.delete(STATE, namespace, "").await,
    ] {
        let refused = refused.unwrap_err();
        assert!(refused.contains("user eve may not write InstanceStates"), "{refused}");
    }
    let collector = scene.user(collector);
    let refused = collector.create(STATE, namespace, &state("b")).await.unwrap_err();
    assert!(refused.contains("may not write InstanceStates"), "{refused}");
    scene.user(MANAGER).patch(STATE, namespace, "a", &forged).await.unwrap();
    collector.delete(STATE, namespace, "a").await.unwrap();
    // A user who restores a backup needs the verb `restore` in the whole cluster.
    Actor::admin(scene.0.plane()).create(STATE, namespace, &state("c")).await.unwrap();
}
