//! `operetta plan` against an API server and a manager: its output, its exit codes, and its messages when it
//! is refused.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::ext::{ERRAND, LONG, Scene, run_as};
use crate::support::plans::{PLAN_RUN, phase, story_of};
use crate::support::{Operetta, Output, eventually, kubectl_of, operetta, plane, says};

static MANAGER: OnceCell<Operetta> = OnceCell::const_new();

/// A namespace with the Errand `e`, and a manager of its package.
async fn scene() -> Scene {
    let start = async || run_as("plan-commands", plane().await, &["plan-commands"]).watching(1).await;
    MANAGER.get_or_init(start).await;
    let scene = Scene::unmanaged().await;
    let errand =
        json!({"apiVersion": ERRAND.api_version(), "kind": "Errand", "metadata": {"name": "e"}, "spec": {}});
    scene.apply_ready(ERRAND, "e", &errand.to_string()).await;
    scene
}

/// Runs `operetta plan` in the namespace.
async fn plan(scene: &Scene, args: &[&str]) -> Output {
    plan_as(scene, scene.plane().kubeconfig_path(), args).await
}

async fn plan_as(scene: &Scene, kubeconfig: &Path, args: &[&str]) -> Output {
    operetta(kubeconfig, &[&["plan"], args, &["-n", scene.namespace()]].concat()).await
}

/// The exit code, and standard output followed by standard error.
async fn ends(scene: &Scene, args: &[&str]) -> (i32, String) {
    let output = plan(scene, args).await;
    (output.status.code().unwrap_or(-1), format!("{}{}", output.stdout, output.stderr))
}

/// Requests a run. Returns its name.
async fn request(scene: &Scene, plan_name: &str) -> String {
    let told = plan(scene, &["run", "errand/e", plan_name, "-o", "name"]).await.ok();
    told.trim().strip_prefix("planrun.operetta.dev/").expect("a name for kubectl").to_owned()
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn plans_are_listed_and_requested_with_their_types() {
    let scene = scene().await;
    let named = |list: &Value, name: &str| {
        let plans = list["plans"].as_array().unwrap();
        plans.iter().find(|plan| plan["name"] == name).cloned().unwrap_or_default()
    };
    let list = eventually("the rollout to be listed", LONG, async || {
        let list = json_of(&plan(&scene, &["list", "errand/e", "-o", "json"]).await.ok());
        let is_over = named(&list, "deploy")["lastRun"]["phase"] == "Succeeded";
        if is_over { Ok(list) } else { Err(format!("{list:#}")) }
    })
    .await;
    let of = |name: &str| named(&list, name);
    assert_eq!(of("deploy")["triggers"], json!(["created", "changed spec.size"]), "{list:#}");
    assert_eq!(of("greet")["params"]["required"], json!(["to"]), "{list:#}");
    assert_eq!(of("hold")["lastRun"], Value::Null);
    let table = plan(&scene, &["list"]).await.ok();
    assert!(table.lines().any(|line| line.starts_with("errand/e") && line.contains("greet")), "{table}");

    let run =
        plan(&scene, &["run", "errand/e", "greet", "-p", "to=2026", "-p", "count=2", "--wait", "-o", "json"]);
    let run = json_of(&run.await.ok());
    assert_eq!(run["status"]["phase"], "Succeeded");
    assert_eq!(run["spec"]["params"], json!({"to": "2026", "count": 2}));
    assert_eq!(run["spec"]["requestedBy"], "admin");
    assert_eq!(run["metadata"]["annotations"]["operetta.dev/prunable"], "true");
    for (args, told) in [
        (&["run", "errand/e", "greet"][..], "params.to"),
        (&["run", "errand/e", "greet", "-p", "to=a", "-p", "count=0"], "params.count"),
        (&["run", "errand/e", "hold", "-p", "a=b"], "takes no parameters"),
        (&["run", "errand/e", "gret"], "did you mean greet?"),
        (&["run", "errand/e", "cleanup"], "cannot be requested"),
        (&["run", "errand/x", "hold"], "there is no Errand x"),
        (&["status", "x"], "there is no run x"),
    ] {
        let (code, said) = ends(&scene, args).await;
        assert!(code == 1 && said.contains(told), "{args:?}: {code} {said}");
    }
    assert_eq!(ends(&scene, &["run", "e", "hold"]).await.0, 2);
}

#[tokio::test]
async fn exit_codes_distinguish_the_ends_of_a_run() {
    let scene = scene().await;
    let (code, told) = ends(&scene, &["run", "errand/e", "stop", "--wait"]).await;
    assert!(
        code == 1 && told.contains("step stop Failed") && told.contains("the gate is shut"),
        "{code} {told}"
    );
    let held = request(&scene, "hold").await;
    assert_eq!(ends(&scene, &["wait", &held, "--for", "Running", "-q"]).await, (0, String::new()));
    says(ends(&scene, &["wait", &held, "--timeout", "1s"]).await, 4, &["the gate of e is shut"]);
    let status = plan(&scene, &["status", "errand/e"]).await.ok();
    assert!(status.contains(&held) && status.contains("the gate of e is shut"), "{status}");
    // While the instance is paused no step starts, so `wait` does not wait without a message.
    let pause = |value: Value| json!({"metadata": {"annotations": {"operetta.dev/paused": value}}});
    scene.patch(ERRAND, "e", "merge", &pause("true".into())).await;
    says(ends(&scene, &["wait", &held, "--timeout", "5m"]).await, 5, &["Paused: ", "operetta plan wait"]);
    scene.patch(ERRAND, "e", "merge", &pause(Value::Null)).await;
    plan(&scene, &["cancel", "errand/e"]).await.ok();
    assert_eq!(ends(&scene, &["wait", &held, "-q"]).await.0, 3);
    says(ends(&scene, &["cancel", &held]).await, 1, &["it is Cancelled"]);

    let gate = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "e-gate"}});
    scene.apply(&gate.to_string()).await;
    says(ends(&scene, &["retry", "errand/e", "--wait"]).await, 0, &["step stop Skipped"]);
    let history = json_of(&plan(&scene, &["history", "errand/e", "-o", "json"]).await.ok());
    let phases: Vec<_> = history["items"].as_array().unwrap().iter().map(phase).collect();
    assert_eq!(phases, ["Succeeded", "Cancelled", "Failed", "Succeeded"], "{history:#}");
    assert!(history["items"][0]["spec"]["retryOf"].is_string());
    let all = plan(&scene, &["history", "-o", "wide"]).await.ok();
    assert!(
        all.lines().nth(1).is_some_and(|line| line.starts_with("errand/e") && line.contains("admin")),
        "{all}"
    );
}

#[tokio::test]
async fn one_of_several_questions_is_answered_by_name() {
    let scene = scene().await;
    let run = request(&scene, "ask").await;
    let holds = |run: &Value| {
        let steps = run["status"]["steps"].as_array().cloned().unwrap_or_default();
        steps.iter().filter(|step| step["asked"].is_number()).count() == 2
    };
    scene.until("both questions", PLAN_RUN, &run, holds).await;
    says(ends(&scene, &["approve", "errand/e"]).await, 1, &["both/one: One?", "both/two: Two?"]);
    assert!(plan(&scene, &["approve", "errand/e", "one"]).await.ok().contains("approved"));
    let status = plan(&scene, &["status", &run]).await.ok();
    assert!(status.contains("Asking"), "{status}");
    assert!(plan(&scene, &["approve", &run, "both/two", "--reject"]).await.ok().contains("rejected"));
    assert_eq!(ends(&scene, &["wait", &run, "-q"]).await.0, 1);
    let run = scene.get(PLAN_RUN, &run).await;
    let verdicts = json!([
        {"step": "both/one", "verdict": "Approve", "by": "admin"}, {"step": "both/two", "verdict": "Reject", "by": "admin"},
    ]);
    assert_eq!(run["spec"]["approvals"], verdicts, "{}", story_of(&run));
    says(ends(&scene, &["approve", "errand/e"]).await, 1, &["asks for approval"]);
}

#[tokio::test]
async fn logs_name_the_pods_of_a_step() {
    let scene = scene().await;
    plan(&scene, &["run", "errand/e", "work", "--wait"]).await.ok();
    // The nodes of these tests have no logs; the API server's error names the right pod.
    says(ends(&scene, &["logs", "errand/e", "work"]).await, 1, &["step phase/work, attempt 1: ", "/e-work-"]);
    let (_, told) = ends(&scene, &["logs", "errand/e", "none"]).await;
    assert!(told.contains("these have: phase/work"), "{told}");
}

/// A kubeconfig of a user who may do anything to `PlanRun`s of the namespace, and has only these verbs on
/// errands.
async fn user(scene: &Scene, name: &str, verbs: &[&str]) -> PathBuf {
    let namespace = scene.namespace();
    let reader = format!("plan-reader-{namespace}");
    let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
    let role =
        |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let items = json!([
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": reader},
            "rules": [{"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["list"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": reader},
            "roleRef": role("ClusterRole", &reader), "subjects": subjects},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": [
            {"apiGroups": ["operetta.dev"], "resources": ["planruns"], "verbs": ["get", "list", "create", "patch"]},
            {"apiGroups": ["fixtures.operetta.dev"], "resources": ["errands"], "verbs": verbs},
        ]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
            "roleRef": role("Role", name), "subjects": subjects},
    ]);
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    let token = kubectl_of(scene.plane(), &["-n", namespace, "create", "token", name], "").await.ok();
    let admin = std::fs::read_to_string(scene.plane().kubeconfig_path()).expect("a kubeconfig");
    let lines = admin.lines().map(|line| match line.split_once("token:") {
        Some((indent, _)) => format!("{indent}token: {}\n", token.trim()),
        None => format!("{line}\n"),
    });
    let path = scene.plane().folder().join(format!("{namespace}-{name}.kubeconfig"));
    std::fs::write(&path, lines.collect::<String>()).expect("a kubeconfig");
    path
}

#[tokio::test]
async fn a_refusal_names_the_missing_verb() {
    let scene = scene().await;
    let bob = user(&scene, "bob", &["get"]).await;
    let refused = async |args: &[&str], told: &str| {
        eventually("the refusal", LONG, async || {
            let output = plan_as(&scene, &bob, args).await;
            let code = output.status.code();
            if code == Some(1) && output.stderr.contains(told) { Ok(()) } else { Err(format!("{output:#?}")) }
        })
        .await;
    };
    let rule = |verb: &str| {
        format!(
            "help: a Role with the rule {{apiGroups: [fixtures.operetta.dev], resources: [errands], verbs: [{verb}]}}"
        )
    };
    refused(&["run", "errand/e", "hold"], &rule("run")).await;
    let run = request(&scene, "ask").await;
    refused(&["cancel", &run], &rule("run")).await;
    scene.until("the questions", PLAN_RUN, &run, |run| story_of(run).contains("Two?")).await;
    refused(&["approve", &run, "one"], &rule("approve")).await;
}
