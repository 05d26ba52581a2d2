//! Who may run and approve plans: the API server decides, by the CRD of `PlanRun` and its admission policy.

use std::sync::Arc;

use crate::support::crd::open_crd;
use crate::support::ext::LONG;
use crate::support::{Output, eventually, kubectl_of, own_plane};
use operetta::local::ControlPlane;
use operetta::plan::crds;
use serde_json::{Value, json};

const MANAGER: &str = "system:serviceaccount:operetta:manager";
/// Of other packages.
const OTHER_MANAGER: &str = "the manager of \"others\"";
/// All users may edit PlanRuns; eve may also run plans of `main`, and ada approve steps of any.
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
        let objects = json!({
            "apiVersion": "v1",
            "kind": "List",
            "items": [crds::plan_run(), crds::policy()],
        });
        scene.admin(&["apply", "--server-side", "-f", "-"], &objects.to_string()).await.ok();
        for manager in [MANAGER, OTHER_MANAGER] {
            let owner = format!("--field-manager={}", crds::exemption_owner(manager));
            let exemption = crds::exemption(manager).to_string();
            scene.admin(&["apply", "--server-side", &owner, "-f", "-"], &exemption).await.ok();
        }
        let binding = crds::binding().to_string();
        scene.admin(&["apply", "--server-side", "-f", "-"], &binding).await.ok();
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
        // The policy is in force once it refuses somebody.
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

    /// Creates a run of the instance `main`, with more in its spec.
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
        let mut run = json!({
            "apiVersion": "operetta.dev/v1alpha1",
            "kind": "PlanRun",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {
                "of": {"apiVersion": "example.com/v1", "kind": "Db", "resource": "dbs", "name": of},
                "plan": "restore",
                "params": {"source": {"bucket": "a"}},
                "requestedBy": user,
            },
        });
        for (key, value) in more.as_object().unwrap() {
            run["spec"][key] = value.clone();
        }
        self.as_user(user, &["create", "-f", "-"], &run.to_string()).await
    }

    async fn patch(&self, user: &str, name: &str, patch: Value) -> Output {
        let patch = patch.to_string();
        self.as_user(user, &["patch", "planrun", name, "--type=merge", "-p", &patch], "").await
    }
}

fn approval(step: &str, verdict: &str, by: &str) -> Value {
    json!({"step": step, "verdict": verdict, "by": by})
}

#[tokio::test]
async fn only_users_with_the_verbs_run_and_approve_plans() {
    let scene = Scene::new().await;

    // run
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

    // What was asked for stays.
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

    // approve
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

    // cancel
    let refused = scene.patch("ada", "a", json!({"spec": {"cancel": true}})).await.fails();
    assert!(refused.contains("ada may not cancel runs of dbs/main"), "{refused}");
    scene.patch("eve", "a", json!({"spec": {"cancel": true}})).await.ok();
    let refused = scene.patch("eve", "a", json!({"spec": {"cancel": false}})).await.fails();
    assert!(refused.contains("cannot be taken back"), "{refused}");

    // Annotations of the manager; other changes by those who may edit.
    let taken = json!({"metadata": {"annotations": {"operetta.dev/taken": "uid"}}});
    let refused = scene.patch("eve", "c", taken.clone()).await.fails();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    scene.patch(MANAGER, "c", taken).await.ok();
    let refused = scene
        .patch("eve", "c", json!({"metadata": {"annotations": {"operetta.dev/taken": null}}}))
        .await
        .fails();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    scene
        .patch("bob", "c", json!({"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}}))
        .await
        .ok();
    let cause = json!({"operetta.dev/cause": "Cleanup"});
    let refused = scene.create_with("eve", "f", "main", &json!({}), &cause).await.fails();
    assert!(refused.contains("only the manager sets the annotations"), "{refused}");
    // A backup that is put back.
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
async fn kubectl_get_shows_runs() {
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
