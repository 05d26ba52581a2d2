//! Who may run and approve plans: the API server decides, by the CRD of `PlanRun` and its admission policy.

use std::sync::Arc;

use crate::support::crd::open_crd;
use crate::support::ext::LONG;
use crate::support::{Output, eventually, kubectl_of, own_plane};
use operetta::local::ControlPlane;
use operetta::plan::crds;
use serde_json::{Value, json};

const MANAGER: &str = "system:serviceaccount:operetta:manager";
/// A manager of other packages.
const OTHER_MANAGER: &str = "the manager of \"others\"";
/// All users may edit PlanRuns; eve may also run plans of `main`, and ada may approve steps of any instance.
const RIGHTS: &str = "
apiVersion: v1
kind: List
items:
  - apiVersion: rbac.authorization.k8s.io/v1
    kind: Role
    metadata: {name: editor, namespace: default}
    rules: [{apiGroups: [operetta.dev], resources: [planruns, planruns/status], verbs: ['*']}]
  - apiVersion: rbac.authorization.k8s.io/v1
    kind: Role
    metadata: {name: runner, namespace: default}
    rules: [{apiGroups: [example.com], resources: [dbs], resourceNames: [main], verbs: [run]}]
  - apiVersion: rbac.authorization.k8s.io/v1
    kind: Role
    metadata: {name: approver, namespace: default}
    rules: [{apiGroups: [example.com], resources: [dbs], verbs: [approve]}]
";

struct Scene {
    plane: Arc<ControlPlane>,
}

impl Scene {
    async fn new() -> Self {
        let scene = Self { plane: own_plane().await };
        let mut items = vec![crds::plan_run()];
        items.extend(crds::policies());
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": items});
        scene.admin(&["apply", "--server-side", "-f", "-"], &objects.to_string()).await.ok();
        for manager in [MANAGER, OTHER_MANAGER] {
            let owner = format!("--field-manager={}", crds::exemption_owner(manager));
            for policy in crds::POLICIES {
                let exemption = crds::exemption(policy, manager).to_string();
                scene.admin(&["apply", "--server-side", &owner, "-f", "-"], &exemption).await.ok();
            }
        }
        for binding in crds::bindings() {
            scene.admin(&["apply", "--server-side", "-f", "-"], &binding.to_string()).await.ok();
        }
        scene.admin(&["apply", "-f", "-"], &open_crd("example.com", "dbs", "Db")).await.ok();
        scene.admin(&["apply", "-f", "-"], RIGHTS).await.ok();
        for (role, users) in [
            ("editor", vec!["eve", "ada", "bob", MANAGER, OTHER_MANAGER]),
            ("runner", vec!["eve"]),
            ("approver", vec!["ada"]),
        ] {
            let mut args = vec!["create", "rolebinding", role, "--role", role];
            for user in users {
                args.extend(["--user", user]);
            }
            scene.admin(&args, "").await.ok();
        }
        // The policy is in effect once it refuses a user.
        eventually("the policy to be in force", LONG, async || {
            let refused = scene.create("bob", "probe", &json!({})).await;
            if refused.status.success() {
                scene.admin(&["delete", "planrun", "probe"], "").await.ok();
                return Err("bob may run plans".to_owned());
            }
            if refused.stderr.contains("needs the verb") { Ok(()) } else { Err(refused.stderr) }
        })
        .await;
        scene
    }

    async fn admin(&self, args: &[&str], input: &str) -> Output {
        kubectl_of(&self.plane, args, input).await
    }

    async fn as_user(&self, user: &str, args: &[&str], input: &str) -> Output {
        let args: Vec<&str> = ["--as", user].into_iter().chain(args.iter().copied()).collect();
        kubectl_of(&self.plane, &args, input).await
    }

    /// Creates a run of the instance `main` with additions to its spec.
    async fn create(&self, user: &str, name: &str, more: &Value) -> Output {
        self.create_with(user, name, "main", more, &json!({})).await
    }

    async fn create_with(
        &self,
        user: &str,
        name: &str,
        of: &str,
        more: &Value,
        annotations: &Value,
    ) -> Output {
        let mut run = run_of(name, of, user);
        run["metadata"]["annotations"] = annotations.clone();
        for (key, value) in more.as_object().unwrap() {
            run["spec"][key] = value.clone();
        }
        self.as_user(user, &["create", "-f", "-"], &run.to_string()).await
    }

    /// Writes the status of a run, as the manager does.
    async fn set_status(&self, name: &str, status: &Value) {
        let patch = json!({"status": status}).to_string();
        let args = ["patch", "planrun", name, "--subresource=status", "--type=merge", "-p", &patch];
        self.as_user(MANAGER, &args, "").await.ok();
    }

    async fn patch(&self, user: &str, name: &str, patch: Value) -> Output {
        let patch = patch.to_string();
        self.as_user(user, &["patch", "planrun", name, "--type=merge", "-p", &patch], "").await
    }
}

/// A run that a user requests.
fn run_of(name: &str, of: &str, user: &str) -> Value {
    json!({
        "apiVersion": "operetta.dev/v1alpha1",
        "kind": "PlanRun",
        "metadata": {"name": name, "namespace": "default"},
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
    let scene = Scene::new().await;

    // The verb `run` is needed to create a run.
    let refused = scene.create("bob", "a", &json!({})).await.fails();
    for words in ["user bob may not run plans of dbs/main", "it needs the verb `run` on dbs.example.com"] {
        assert!(refused.contains(words), "{refused}");
    }
    scene.create("eve", "a", &json!({})).await.ok();
    let refused = scene.create_with("eve", "b", "other", &json!({}), &json!({})).await.fails();
    assert!(refused.contains("may not run plans of dbs/other"), "{refused}");
    scene.create("eve", "c", &json!({})).await.ok();
    for requester in [json!("ada"), json!(null)] {
        let refused = scene.create("eve", "d", &json!({"requestedBy": requester})).await.fails();
        assert!(refused.contains("requestedBy must be the user"), "{refused}");
    }
    let refused = scene.create("eve", "d", &json!({"plan": "operetta.dev/delete-child"})).await.fails();
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
        let refused = scene.patch("eve", "a", json!({"spec": patch})).await.fails();
        assert!(refused.contains(words), "{refused}");
    }

    // The verb `approve` is needed to answer a step.
    let sure = approval("sure", "Approve", "ada");
    let refused = scene
        .patch("bob", "a", json!({"spec": {"approvals": [approval("sure", "Approve", "bob")]}}))
        .await
        .fails();
    assert!(refused.contains("it needs the verb `approve`"), "{refused}");
    let refused = scene.patch("bob", "a", json!({"spec": {"approvals": [sure]}})).await.fails();
    assert!(refused.contains("by must be the user"), "{refused}");
    let refused = scene
        .patch("ada", "a", json!({"spec": {"approvals": [approval("sure", "Approve", "bob")]}}))
        .await
        .fails();
    assert!(refused.contains("by must be the user"), "{refused}");
    scene.patch("ada", "a", json!({"spec": {"approvals": [sure]}})).await.ok();
    for approvals in [
        json!([]),
        json!(null),
        json!([approval("sure", "Reject", "ada")]),
        json!([approval("again", "Approve", "ada"), sure]),
    ] {
        let refused = scene.patch("ada", "a", json!({"spec": {"approvals": approvals}})).await.fails();
        assert!(refused.contains("approvals are only appended"), "{refused}");
    }
    scene
        .patch("ada", "a", json!({"spec": {"approvals": [sure, approval("more", "Reject", "ada")]}}))
        .await
        .ok();
    let refused =
        scene.create("eve", "e", &json!({"approvals": [approval("sure", "Approve", "eve")]})).await.fails();
    assert!(refused.contains("it needs the verb `approve`"), "{refused}");

    // The verb `run` is needed to cancel.
    let refused = scene.patch("ada", "a", json!({"spec": {"cancel": true}})).await.fails();
    assert!(refused.contains("ada may not cancel runs of dbs/main"), "{refused}");
    scene.patch("eve", "a", json!({"spec": {"cancel": true}})).await.ok();
    let refused = scene.patch("eve", "a", json!({"spec": {"cancel": false}})).await.fails();
    assert!(refused.contains("cannot be taken back"), "{refused}");

    // The manager's annotations are protected; other metadata may be changed by users who may edit.
    let taken = json!({"metadata": {"annotations": {"operetta.dev/taken": "uid"}}});
    let refused = scene.patch("eve", "c", taken.clone()).await.fails();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    scene.patch(MANAGER, "c", taken).await.ok();
    let refused = scene
        .patch("eve", "c", json!({"metadata": {"annotations": {"operetta.dev/taken": null}}}))
        .await
        .fails();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    // Users who may edit a run may label it before it is accepted.
    let mine = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}});
    let refused = scene.patch("bob", "c", mine.clone()).await.fails();
    assert!(refused.contains("of a PlanRun that has started cannot be changed"), "{refused}");
    scene.create("eve", "j", &json!({})).await.ok();
    scene.patch("bob", "j", mine).await.ok();
    let cause = json!({"operetta.dev/cause": "Cleanup"});
    let refused = scene.create_with("eve", "f", "main", &json!({}), &cause).await.fails();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    // A backup may restore the manager's annotations.
    let backup =
        json!({"operetta.dev/cause": "Rollout", "operetta.dev/taken": "uid", "operetta.dev/record": "{}"});
    scene.create_with("eve", "f", "main", &json!({}), &backup).await.ok();
    scene.create_with("eve", "g", "main", &json!({}), &json!({"operetta.dev/prunable": "true"})).await.ok();
    // Managers need no verb.
    for (manager, name) in [(MANAGER, "h"), (OTHER_MANAGER, "i")] {
        let run = json!({"requestedBy": null, "plan": "operetta.dev/delete-child"});
        scene.create(manager, name, &run).await.ok();
    }
}

#[tokio::test]
async fn kubectl_get_shows_columns_of_runs() {
    let scene = Scene::new().await;
    scene.create("eve", "main-1", &json!({})).await.ok();
    let status = json!({"status": {
        "phase": "Running",
        "startedAt": "2026-01-01T00:00:00Z",
        "steps": [{"path": "one", "phase": "Succeeded"}, {"path": "two[0]/sure", "phase": "Running", "inFlight": true}],
        "usedMilliseconds": 3,
    }});
    let status = status.to_string();
    let args = ["patch", "planrun", "main-1", "--subresource=status", "--type=merge", "-p", &status];
    scene.as_user(MANAGER, &args, "").await.ok();
    let table = scene.admin(&["get", "operetta"], "").await.ok();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "OF", "PLAN", "PHASE", "STEP", "AGE"], "{table}");
    assert_eq!(lines[1][..5], ["main-1", "main", "restore", "Running", "two[0]/sure"], "{table}");
    let selected =
        ["get", "planruns", "--field-selector", "spec.of.name=main,status.phase=Running", "-o", "name"];
    assert_eq!(scene.admin(&selected, "").await.ok().trim(), "planrun.operetta.dev/main-1");
    let stored: Value =
        serde_json::from_str(&scene.admin(&["get", "planrun", "main-1", "-o", "json"], "").await.ok())
            .unwrap();
    assert_eq!(stored["status"]["usedMilliseconds"], 3);
    assert_eq!(stored["status"]["steps"][1]["inFlight"], true);
    assert_eq!(stored["spec"]["params"], json!({"source": {"bucket": "a"}}));
}

/// Fields that a user with the verb `run` and all rights to `PlanRun`s must not be able to set.
#[tokio::test]
async fn users_cannot_forge_protected_fields_of_a_run() {
    let scene = Scene::new().await;
    scene.create("eve", "new", &json!({})).await.ok();
    scene.create("eve", "taken", &json!({})).await.ok();
    let own = json!({"metadata": {
        "annotations": {"operetta.dev/taken": "uid"}, "labels": {"operetta.dev/run-of": "uid"},
        "finalizers": ["operetta.dev/run"],
    }});
    scene.patch(MANAGER, "taken", own).await.ok();

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
        let refused = scene.patch("eve", name, json!({"metadata": metadata})).await.fails();
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
        let refused = scene.as_user("eve", &["create", "-f", "-"], &run.to_string()).await.fails();
        assert!(refused.contains(words), "{metadata} {spec}: {refused}");
    }
    scene.create("eve", "retry", &json!({"plan": "cleanup", "retryOf": "failed"})).await.ok();

    // The status cannot be written by any subresource or verb.
    let status =
        json!({"status": {"phase": "Succeeded", "steps": [{"path": "sure", "groups": []}]}}).to_string();
    let patch = ["patch", "planrun", "new", "--subresource=status", "--type=merge", "-p", &status];
    for user in ["eve", "bob", "ada"] {
        let refused = scene.as_user(user, &patch, "").await.fails();
        assert!(refused.contains("only the manager writes the status"), "{user}: {refused}");
    }
    scene.as_user(MANAGER, &patch, "").await.ok();
}

/// Deleting a run that has not ended needs the verb `run`, because it cancels the run.
#[tokio::test]
async fn deleting_an_active_run_needs_the_verb_run() {
    let scene = Scene::new().await;
    for name in ["a", "b", "c", "d"] {
        scene.create("eve", name, &json!({})).await.ok();
    }
    let of_other = run_of("other", "other", "eve");
    scene.as_user(MANAGER, &["create", "-f", "-"], &of_other.to_string()).await.ok();
    for (user, name) in [("bob", "a"), ("ada", "a"), ("eve", "other")] {
        let refused = scene.as_user(user, &["delete", "planrun", name], "").await.fails();
        assert!(refused.contains("delete a run that has not ended"), "{user} {name}: {refused}");
        assert!(refused.contains("needs the verb `run`"), "{user} {name}: {refused}");
    }
    let refused = scene.as_user("bob", &["delete", "planruns", "--all"], "").await.fails();
    assert!(refused.contains("delete a run that has not ended"), "{refused}");
    scene.as_user("eve", &["delete", "planrun", "a"], "").await.ok();
    scene.set_status("b", &json!({"phase": "Failed"})).await;
    scene.as_user("bob", &["delete", "planrun", "b"], "").await.ok();
    // The garbage collector and the namespace controller need no verb.
    for (user, name) in [
        ("system:serviceaccount:kube-system:generic-garbage-collector", "c"),
        ("system:serviceaccount:kube-system:namespace-controller", "d"),
    ] {
        let binding = format!("gc-{name}");
        scene.admin(&["create", "rolebinding", &binding, "--role=editor", "--user", user], "").await.ok();
        eventually("the rights of a controller", LONG, async || {
            let deleted = scene.as_user(user, &["delete", "planrun", name], "").await;
            if deleted.status.success() { Ok(()) } else { Err(deleted.stderr) }
        })
        .await;
    }
}

#[tokio::test]
async fn step_with_groups_accepts_answers_of_members_only() {
    let scene = Scene::new().await;
    scene.create("eve", "a", &json!({})).await.ok();
    let steps = json!([
        {"path": "open", "phase": "Running", "asked": 0},
        {"path": "sure", "phase": "Running", "asked": 0, "groups": ["dba", "leads"]},
    ]);
    scene.set_status("a", &json!({"phase": "Running", "steps": steps})).await;
    let answer = async |groups: &[&str], approvals: Value| {
        let patch = json!({"spec": {"approvals": approvals}}).to_string();
        let groups: Vec<String> = groups.iter().map(|group| format!("--as-group={group}")).collect();
        let mut args: Vec<&str> = groups.iter().map(String::as_str).collect();
        args.extend(["patch", "planrun", "a", "--type=merge", "-p", &patch]);
        scene.as_user("ada", &args, "").await
    };
    for (groups, verdict) in
        [(&[][..], "Approve"), (&["system:authenticated", "devs"], "Approve"), (&["devs"], "Reject")]
    {
        let refused = answer(groups, json!([approval("sure", verdict, "ada")])).await.fails();
        let words = "user ada may not answer step sure: only members of these groups may: dba, leads";
        assert!(refused.contains(words), "{groups:?}: {refused}");
    }
    // The answer cannot be hidden among other answers.
    let both = json!([approval("open", "Approve", "ada"), approval("sure", "Approve", "ada")]);
    let refused = answer(&["devs"], both.clone()).await.fails();
    assert!(refused.contains("may not answer step sure"), "{refused}");
    answer(&["devs"], json!([approval("open", "Approve", "ada")])).await.ok();
    answer(&["devs", "leads"], both).await.ok();
}

#[tokio::test]
async fn only_managers_write_instance_states() {
    let scene = Scene::new().await;
    scene
        .admin(&["apply", "-f", "-"], &open_crd("operetta.dev", "instancestates", "InstanceState"))
        .await
        .ok();
    // A Role of a namespace may grant any verb.
    let wildcard = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "all", "namespace": "default"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    scene.admin(&["apply", "-f", "-"], &wildcard.to_string()).await.ok();
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let mut args = vec!["create", "rolebinding", "all", "--role=all"];
    for user in ["eve", MANAGER, collector] {
        args.extend(["--user", user]);
    }
    scene.admin(&args, "").await.ok();
    let state = |name: &str| {
        json!({"apiVersion": "operetta.dev/v1", "kind": "InstanceState", "metadata": {"name": name, "namespace": "default"},
            "spec": {"record": {}}})
        .to_string()
    };
    eventually("the manager's rights", LONG, async || {
        let created = scene.as_user(MANAGER, &["create", "-f", "-"], &state("a")).await;
        if created.status.success() { Ok(()) } else { Err(created.stderr) }
    })
    .await;
    let forged = json!({"spec": {"record": {"primary": 1}}}).to_string();
    let patch = ["patch", "instancestate", "a", "--type=merge", "-p", &forged];
    for (args, input) in [
        (&["create", "-f", "-"][..], state("b")),
        (&patch, String::new()),
        (&["delete", "instancestate", "a"], String::new()),
        (&["delete", "instancestates", "--all"], String::new()),
    ] {
        let refused = scene.as_user("eve", args, &input).await.fails();
        assert!(refused.contains("user eve may not write InstanceStates"), "{args:?}: {refused}");
    }
    let refused = scene.as_user(collector, &["create", "-f", "-"], &state("b")).await.fails();
    assert!(refused.contains("may not write InstanceStates"), "{refused}");
    scene.as_user(MANAGER, &patch, "").await.ok();
    scene.as_user(collector, &["delete", "instancestate", "a"], "").await.ok();
    // A user who restores a backup needs the verb `restore` in the whole cluster.
    scene.admin(&["create", "-f", "-"], &state("c")).await.ok();
}
