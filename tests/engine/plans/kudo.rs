//! The cases of KUDO's end-to-end and integration tests that apply to Operetta, each named after its origin.
//! docs/design/0022-tests-of-kudo.md lists those that do not apply, and why.

use std::path::Path;

use serde_json::{Value, json};

use super::own::{OPERATOR, Own, SERVER};
use crate::support::eventually;
use crate::support::ext::{
    CONFIG_MAP, CRD, DEPLOYMENT, JOB, Kind, LONG, POD, SERVICE, condition, is_ready, run_as, uid_of,
};
use crate::support::plans::{phase, story_of};

/// A plan that records that it ran.
fn traced(name: &str, trigger: &str) -> String {
    format!(
        "        {name}:\n{trigger}          steps:\n            - {{name: trace, record: {{trace: \"record.trace | default('') ~ '{name} '\"}}}}\n"
    )
}

const ALL: &str = "
        deploy:
          steps:
            - {name: config, apply: [config]}
            - {name: server, apply: [deployment, service]}
";

#[tokio::test]
async fn apply_delete_apply() {
    let plans = format!(
        "{ALL}        again:\n          steps:\n            - {{name: apply, apply: [config]}}\n            - {{name: delete, delete: [config]}}\n            - {{name: back, apply: [config]}}\n"
    );
    let own = Own::with_instance("apply-delete-apply", &plans).await;
    let uid = uid_of(&own.scene.get(CONFIG_MAP, "s-config").await).to_owned();
    own.run("again", Value::Null, "Succeeded").await;
    assert_ne!(uid_of(&own.scene.get(CONFIG_MAP, "s-config").await), uid);
    own.delete().await;
}

#[tokio::test]
async fn cli_install_uninstall() {
    let plans = format!("{ALL}{}", traced("cleanup", ""));
    let own = Own::with_instance("cli-install-uninstall", &plans).await;
    own.delete().await;
    eventually("an Event about the cleanup", LONG, async || {
        let events = own.scene.list(crate::support::ext::EVENT).await;
        let told = events.iter().any(|e| e.to_string().contains("cleanup"));
        if told { Ok(()) } else { Err("none") }
    })
    .await;
    for kind in [CONFIG_MAP, DEPLOYMENT, SERVICE] {
        eventually("nothing to be left", LONG, async || match own.scene.names(kind).await {
            names if names.is_empty() => Ok(()),
            names => Err(format!("{names:?}")),
        })
        .await;
    }
}

#[tokio::test]
async fn dependencies_hash() {
    let own = Own::with_instance("dependencies-hash", ALL).await;
    let hash = async || {
        own.scene.get(DEPLOYMENT, "s").await["spec"]["template"]["metadata"]["annotations"]["config-hash"]
            .clone()
    };
    let first = hash().await;
    own.edit(json!({"replicas": 2})).await;
    own.scene.until("two", DEPLOYMENT, "s", |o| o["spec"]["replicas"] == 2).await;
    own.ready().await;
    assert_eq!(hash().await, first);
    own.edit(json!({"param": "b"})).await;
    own.scene.until("b", CONFIG_MAP, "s-config", |o| o["data"]["param"] == "b").await;
    own.ready().await;
    assert_ne!(hash().await, first);
}

/// Also covers KUDO's `immutable-parameter-with-default`. The CRD has the rule.
#[tokio::test]
async fn immutable_parameter() {
    let own = Own::new("immutable-parameter", ALL).await;
    own.create(json!({})).await;
    assert_eq!(own.ready().await["spec"]["fixed"], "born");
    let told = own
        .scene
        .kubectl_input(
            &["patch", &own.kind.resource_name(), "s", "--type=merge", "-p", "{\"spec\":{\"fixed\":\"x\"}}"],
            "",
        )
        .await;
    assert!(told.is_err_and(|told| told.contains("fixed is immutable")));
    assert_eq!(own.ready().await["spec"]["fixed"], "born");
}

#[tokio::test]
async fn plan_trigger() {
    let own = Own::with_instance("plan-trigger", &format!("{ALL}{}", traced("other", ""))).await;
    own.run("other", Value::Null, "Succeeded").await;
    own.traced("other ").await;
    let runs = own.scene.runs("s").await;
    assert_eq!(runs.iter().map(phase).collect::<Vec<_>>(), ["Succeeded", "Succeeded"], "{runs:#?}");
}

#[tokio::test]
async fn readiness() {
    let own = Own::with_instance("readiness", ALL).await;
    own.edit(json!({"image": "registry.example.com/bad:1"})).await;
    let o = own.scene.until("not Ready", own.kind, "s", |o| condition(o, "Ready")["status"] == "False").await;
    assert!(condition(&o, "Ready")["message"].to_string().contains("deployment"), "{:#}", o["status"]);
}

#[tokio::test]
async fn terminal_failed_job() {
    let plans = format!(
        "{ALL}        work:\n          params: {{type: object, properties: {{end: {{type: string}}}}}}\n          steps: [{{name: work, job: {{template: templates/job.yaml}}, timeout: 1m}}]\n"
    );
    let own = Own::with_instance("terminal-failed-job", &plans).await;
    for (end, word) in [("fail", "BackoffLimitExceeded"), ("never", "DeadlineExceeded")] {
        let run = own.run("work", json!({"end": end}), "Failed").await;
        assert!(story_of(&run).contains(word), "{end}: {}", story_of(&run));
    }
    assert_eq!(own.scene.list(JOB).await.len(), 2);
}

#[tokio::test]
async fn toggle_task() {
    let own = Own::with_instance("toggle-task", ALL).await;
    own.scene.get(CONFIG_MAP, "s-toggled").await;
    own.edit(json!({"enabled": false})).await;
    own.scene.gone(CONFIG_MAP, "s-toggled").await;
    own.edit(json!({"enabled": true})).await;
    own.scene.until("back", CONFIG_MAP, "s-toggled", |_| true).await;
    own.ready().await;
}

/// A new version and a new value together run `upgrade`, not `update`.
#[tokio::test]
async fn update_with_upgrade() {
    let plans = format!("{ALL}{}{}", traced("update", ""), traced("upgrade", ""));
    let own = Own::with_instance("update-with-upgrade", &plans).await;
    let own = own.at("0.2.0", &plans).await;
    own.traced("upgrade ").await;
    own.edit(json!({"param": "b"})).await;
    own.traced("upgrade update ").await;
}

/// A new version changes a child and adds a step, and the run succeeds.
#[tokio::test]
async fn upgrade() {
    let own = Own::with_instance("upgrade", ALL).await;
    let more = format!("{ALL}            - {{name: more, record: {{note: \"'more'\"}}}}\n");
    let own = own.at("0.2.0", &more).await;
    own.scene.until("the new step", own.kind, "s", |o| is_ready(o) && o["status"]["note"] == "more").await;
}

/// Also covers KUDO's `cli-install`, `first-operator-test` and `operator-test`: replicas and labels follow
/// the spec.
#[tokio::test]
async fn operator_test() {
    let own = Own::with_instance("operator-test", ALL).await;
    own.edit(json!({"replicas": 3, "param": "blue"})).await;
    own.scene.until("three", DEPLOYMENT, "s", |o| o["status"]["readyReplicas"] == 3).await;
    own.scene.until("blue", SERVICE, "s", |o| o["metadata"]["labels"]["param"] == "blue").await;
    own.ready().await;
}

/// Also covers KUDO's `update-command` and `upgrade-command`.
#[tokio::test]
async fn update_parameters() {
    let plans = format!(
        "{}{}{}",
        traced("deploy", ""),
        traced("update", ""),
        traced("custom", "          trigger: {changed: [spec.custom]}\n")
    );
    let own = Own::new("update-parameters", &plans).await;
    own.create(json!({})).await;
    own.traced("deploy ").await;
    own.edit(json!({"param": "b"})).await;
    own.traced("deploy update ").await;
    own.edit(json!({"custom": "b"})).await;
    own.traced("deploy update custom ").await;
}

/// A field that the template does not set keeps the value that a client gives it.
#[tokio::test]
async fn immutable_client_ip() {
    let own = Own::with_instance("immutable-client-ip", ALL).await;
    let address = own.scene.get(SERVICE, "s").await["spec"]["clusterIP"].clone();
    own.edit(json!({"param": "b"})).await;
    let after = own.scene.until("b", SERVICE, "s", |o| o["metadata"]["labels"]["param"] == "b").await;
    assert_eq!(after["spec"]["clusterIP"], address);
}

/// A template fails for this instance: the run fails and says where.
#[tokio::test]
async fn rendering_error_plan_failed() {
    let own = Own::new("rendering-error-plan-failed", ALL).await;
    own.create(json!({"broken": true})).await;
    let holds = |o: &Value| o["status"]["conditions"].to_string().contains("templates/config.yaml");
    let told = own.scene.until("what is wrong", own.kind, "s", holds).await;
    assert!(!is_ready(&told));
    assert!(own.scene.find(DEPLOYMENT, "s").await.is_none());
    own.edit(json!({"broken": false})).await;
    own.ready().await;
}

/// Checks which plan an edit, or without one a new version, selects. Each changes the child that `deploy`
/// applies: without `update` and `upgrade`, a change of no such child starts no run.
async fn selects(name: &'static str, plans: &[&str], edit: Option<Value>, trace: &str) {
    let text = |plan: &&str| match *plan {
        "custom" => traced(plan, "          trigger: {changed: [spec.custom]}\n"),
        "deploy" => traced(plan, "") + "            - {name: config, apply: [config]}\n",
        plan => traced(plan, ""),
    };
    let texts: String = plans.iter().map(text).collect();
    let own = Own::new(name, &texts).await;
    own.create(json!({})).await;
    own.traced("deploy ").await;
    let own = match edit {
        Some(edit) => {
            own.edit(edit).await;
            own
        }
        None => own.at("0.2.0", &texts).await,
    };
    own.traced(trace).await;
}

#[tokio::test]
async fn instance_controller_param_change_custom_trigger() {
    selects(
        "custom-trigger",
        &["deploy", "update", "custom"],
        Some(json!({"custom": "b"})),
        "deploy custom ",
    )
    .await;
}

#[tokio::test]
async fn instance_controller_param_change_no_trigger() {
    selects("no-trigger", &["deploy", "update", "custom"], Some(json!({"param": "b"})), "deploy update ")
        .await;
}

#[tokio::test]
async fn instance_controller_param_change_fallback_to_deploy() {
    selects("fallback-to-deploy", &["deploy"], Some(json!({"param": "b"})), "deploy deploy ").await;
}

#[tokio::test]
async fn instance_controller_upgrade() {
    selects("upgrade-plan", &["deploy", "update", "upgrade"], None, "deploy upgrade ").await;
}

#[tokio::test]
async fn instance_controller_upgrade_fallback_to_update() {
    selects("upgrade-to-update", &["deploy", "update"], None, "deploy update ").await;
}

#[tokio::test]
async fn instance_controller_upgrade_fallback_to_deploy() {
    selects("upgrade-to-deploy", &["deploy"], None, "deploy deploy ").await;
}

/// Also covers KUDO's `operator-with-subdirectory-resources`: lists, maps and booleans keep their type.
#[tokio::test]
async fn parameter_types() {
    let own = Own::new("parameter-types", ALL).await;
    own.create(json!({"list": ["x"], "map": {"k": 7}, "enabled": false})).await;
    own.ready().await;
    let data = own.scene.get(CONFIG_MAP, "s-config").await["data"].clone();
    assert_eq!(
        (&data["list"], &data["map"], &data["enabled"]),
        (&json!("x"), &json!("{\"k\":7}"), &json!("false"))
    );
    assert!(own.scene.find(CONFIG_MAP, "s-toggled").await.is_none());
}

#[tokio::test]
async fn remove_pod_container() {
    let own = Own::with_instance("remove-pod-container", ALL).await;
    own.edit(json!({"sidecar": false})).await;
    let holds = |o: &Value| o["spec"]["template"]["spec"]["containers"].as_array().map(Vec::len) == Some(1);
    own.scene.until("one container", DEPLOYMENT, "s", holds).await;
    own.ready().await;
    eventually("pods of one container", LONG, async || {
        let pods = own.scene.list(POD).await;
        let all = pods.iter().all(|pod| pod["spec"]["containers"].as_array().map(Vec::len) == Some(1));
        if all { Ok(()) } else { Err(pods.len()) }
    })
    .await;
}

/// A plan that only deletes succeeds, and succeeds again after an edit.
#[tokio::test]
async fn step_delete() {
    let plans = format!(
        "{ALL}        drop:\n          trigger: {{changed: [spec.custom]}}\n          steps: [{{name: gone, delete: [config]}}]\n"
    );
    let own = Own::with_instance("step-delete", &plans).await;
    for value in ["b", "c"] {
        let uid = uid_of(&own.scene.get(CONFIG_MAP, "s-config").await).to_owned();
        own.edit(json!({"custom": value})).await;
        // A child that a successful run has deleted is still desired, and is created again when the run has
        // ended.
        own.scene.until("another", CONFIG_MAP, "s-config", |o| uid_of(o) != uid).await;
        own.ready().await;
    }
}

/// Also covers KUDO's `install-existing-crds-in-operator`: a CRD, and in the next step an object of its kind.
#[tokio::test]
async fn operator_with_custom_crd() {
    let crd = SERVER
        .replace("servers", "gadgets")
        .replace("Server", "Gadget")
        .replace("singular: server", "singular: gadget");
    let crd = crd.replace("NAME.kudo", "made.custom-crd");
    let plans = "        deploy:\n          steps:\n            - {name: crd, apply: [crd], timeout: 1m}\n            - {name: gadget, apply: [gadget], timeout: 1m}\n";
    let own = Own::new("custom-crd", ALL).await;
    let put = |path: &str, text: &str| std::fs::write(own.folder.path().join(path), text).unwrap();
    put("templates/crd.yaml", &crd);
    put(
        "templates/gadget.yaml",
        "apiVersion: made.custom-crd.example.com/v1\nkind: Gadget\nmetadata: {name: \"{{ name }}\"}\nspec: {}\n",
    );
    let operator = OPERATOR.replace("NAME", own.name).replace("VERSION", "0.2.0").replace("PLANS", plans).replace(
        "        - {id: toggled",
        "        - {id: crd, template: templates/crd.yaml, deletionPolicy: Delete}\n        - {id: gadget, template: templates/gadget.yaml}\n        - {id: toggled",
    );
    put("operator.yaml", &operator);
    let mut own = own;
    drop(own.manager.take());
    let folder = own.folder.path().to_str().unwrap();
    own.manager = Some(run_as("kudo-custom-crd", own.scene.plane(), &[folder]).watching(1).await);
    own.create(json!({})).await;
    own.ready().await;
    own.scene.get(Kind::of("made.custom-crd.example.com/v1".into(), "gadgets".into()), "s").await;
    own.delete().await;
    let name = "gadgets.made.custom-crd.example.com";
    eventually("the CRD to be gone", LONG, async || {
        let left = crate::support::ext::find_in(own.scene.plane(), CRD, None, name).await;
        if left.is_none() { Ok(()) } else { Err("it is there") }
    })
    .await;
    assert!(Path::new(own.folder.path()).exists());
}

/// A step applies a kind that is not served: the run waits, reports it, and fails at its timeout.
#[tokio::test]
async fn invalid_crd_install() {
    let plans =
        "        deploy:\n          steps:\n            - {name: stranger, apply: [stranger], timeout: 3s}\n";
    let own = Own::new("invalid-crd", ALL).await;
    let put = |path: &str, text: &str| std::fs::write(own.folder.path().join(path), text).unwrap();
    put(
        "templates/stranger.yaml",
        "apiVersion: nobody.example.com/v1\nkind: Stranger\nmetadata: {name: \"{{ name }}\"}\n",
    );
    let operator = OPERATOR.replace("NAME", own.name).replace("VERSION", "0.2.0").replace("PLANS", plans).replace(
        "        - {id: toggled",
        "        - {id: stranger, template: templates/stranger.yaml, deletionPolicy: Delete}\n        - {id: toggled",
    );
    put("operator.yaml", &operator);
    let mut own = own;
    drop(own.manager.take());
    let folder = own.folder.path().to_str().unwrap();
    own.manager = Some(run_as("kudo-invalid-crd", own.scene.plane(), &[folder]).watching(1).await);
    own.create(json!({})).await;
    let told = own.scene.stalled(own.kind, "s").await;
    assert!(told.contains("deploy") && told.contains("stranger"), "{told}");
}
