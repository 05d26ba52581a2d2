//! Upgrades in stages by command. What needs no command is in `tests/engine/operators/stages.rs`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Cluster, OPERATOR, Package, Part, SIZE, is_active, scene};
use crate::support::eventually;
use crate::support::ext::{CONFIG_MAP, LONG, Scene, condition, is_ready, name_of};

/// The value of a child that the API server refuses for an instance of size 13.
pub(super) fn fails_for_13(value: &str) -> String {
    format!("{value}\", \"{{{{ 'not a key' if spec.size == 13 else 'key' }}}}\": \"x")
}

/// Installs a package and sets its upgrade settings. Returns it with a second revision, which fails for
/// instances of size 13.
async fn installed(cluster: &Cluster, name: &str, upgrade: &Value) -> Package {
    let package = Package::new(name, "0.1.0", "old");
    cluster.install(&package).await;
    set_upgrade(cluster, name, upgrade).await;
    package.write("0.2.0", &[Part::new(name, SIZE, &fails_for_13("new"))]);
    package
}

async fn set_upgrade(cluster: &Cluster, name: &str, upgrade: &Value) {
    let patch = json!({"spec": {"upgrade": upgrade}}).to_string();
    cluster.kubectl(&["patch", "operator", name, "--type=merge", "-p", &patch], "").await.ok();
}

/// Creates instances of these sizes, named `i-000` and so on, and waits until all are Ready.
async fn create(scene: &Scene, package: &Package, sizes: impl IntoIterator<Item = i64>) {
    let instance = |(index, size): (usize, i64)| {
        serde_json::from_str::<Value>(&package.instance(&format!("i-{index:03}"), &json!({"size": size})))
            .unwrap()
    };
    let items: Vec<Value> = sizes.into_iter().enumerate().map(instance).collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    all(scene, package, "Ready", is_ready).await;
}

async fn all(scene: &Scene, package: &Package, what: &str, holds: impl Fn(&Value) -> bool) {
    eventually(&format!("all to be {what}"), LONG, async || {
        let instances = scene.list(package.kind()).await;
        let not: Vec<_> = instances.iter().filter(|o| !holds(o)).map(|o| name_of(o).to_owned()).collect();
        if not.is_empty() { Ok(()) } else { Err(not.join(", ")) }
    })
    .await;
}

/// The children by name.
async fn children(scene: &Scene) -> BTreeMap<String, Value> {
    let children = scene.list(CONFIG_MAP).await.into_iter();
    let named = children.map(|child| (name_of(&child).to_owned(), child));
    named.filter(|(name, _)| name != "kube-root-ca.crt").collect()
}

fn value(child: &Value) -> &str {
    child["data"]["value"].as_str().unwrap_or_default()
}

pub(super) fn is_paused(operator: &Value) -> bool {
    condition(operator, "Ready")["reason"] == "UpgradePaused"
        && condition(operator, "Stalled")["status"] == "True"
}

/// An admission policy of the cluster refuses every write of one instance's status.
#[tokio::test]
async fn instance_that_cannot_be_upgraded_delays_no_other() {
    let cluster = Cluster::shared().await;
    let package = installed(cluster, "bars", &json!({"maxUnavailable": 1})).await;
    let scene = scene(cluster).await;
    create(&scene, &package, [1, 1, 1]).await;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "bars"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["ops.example.org"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["bars/status"],
            }]},
            "validations": [{"expression": "object.metadata.name != 'i-000'", "message": "nobody touches this one"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "bars"}, "spec": {"policyName": "bars", "validationActions": ["Deny"]},
    });
    let both = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}).to_string();
    cluster.kubectl(&["apply", "-f", "-"], &both).await.ok();
    eventually("the policy", LONG, async || {
        let patch = [
            "patch",
            "bars.ops.example.org",
            "i-000",
            "-n",
            scene.namespace(),
            "--subresource=status",
            "--type=merge",
            "--dry-run=server",
            "-p",
            r#"{"status":{"observedGeneration":1}}"#,
        ];
        let tried = cluster.kubectl(&patch, "").await;
        if tried.stderr.contains("nobody touches this one") { Ok(()) } else { Err(tried.stdout) }
    })
    .await;
    let (code, told) = cluster.told(&["upgrade", package.folder()]).await;
    assert!(code == 1 && told.contains("1 cannot be moved"), "{code} {told}");
    assert!(told.contains("i-000") && told.contains("nobody touches this one"), "{told}");
    let values = async || {
        let children = children(&scene).await;
        children.values().map(|child| value(child).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values().await, ["old", "new", "new"]);
    let operator = cluster.find(OPERATOR, "bars").await.unwrap();
    assert_eq!(condition(&operator, "Stalled")["reason"], "UpgradeFailed", "{operator:#}");
    assert_eq!(operator["status"]["upgrade"]["refused"].as_array().unwrap().len(), 1, "{operator:#}");
    // Without the policy the instance is upgraded by itself.
    cluster
        .kubectl(&["delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "bars"], "")
        .await
        .ok();
    cluster.until("bars", "upgraded", is_active).await;
    scene.until("moved", CONFIG_MAP, "i-000", |o| value(o) == "new").await;
}

#[tokio::test]
async fn a_paused_upgrade_is_shown_and_rolled_back() {
    let cluster = Cluster::shared().await;
    let package = installed(cluster, "stops", &json!({"maxUnavailable": 1})).await;
    let scene = scene(cluster).await;
    create(&scene, &package, [1, 13, 1]).await;
    let (code, told) = cluster.told(&["upgrade", package.folder()]).await;
    assert!(code == 1 && told.contains("i-001") && told.contains("operetta rollback"), "{code} {told}");
    cluster.until("stops", "paused", is_paused).await;
    let table = cluster.operetta(&["operators"]).await.ok();
    assert!(table.contains("UpgradePaused"), "{table}");
    cluster.operetta(&["rollback", "stops"]).await.ok();
    assert!(children(&scene).await.values().all(|child| value(child) == "old"));
}
