//! Upgrades in stages by command. What needs no command is in `tests/engine/operators/stages.rs`.

use serde_json::{Value, json};

use super::{Cluster, OPERATOR, Package, Part, SIZE, is_active, says, scene};
use crate::support::fleets::{children, create, fails_for_13, is_paused, set_upgrade, value};
use crate::support::{CONFIG_MAP, LONG, condition, eventually};

/// Installs a package and sets its upgrade settings. Returns it with a second revision, which fails for
/// instances of size 13.
async fn installed(cluster: &Cluster, name: &str, upgrade: &Value) -> Package {
    let package = cluster.installed(Package::new(name, "0.1.0", "old")).await;
    set_upgrade(cluster, name, upgrade).await;
    package.write("0.2.0", &[Part::new(name, SIZE, &fails_for_13("new"))]);
    package
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
    says(cluster.told(&["upgrade", package.folder()]).await, 1, &["i-001", "operetta rollback"]);
    cluster.until("stops", "paused", is_paused).await;
    let table = cluster.operetta(&["operators"]).await.ok();
    assert!(table.contains("UpgradePaused"), "{table}");
    cluster.operetta(&["rollback", "stops"]).await.ok();
    assert!(children(&scene).await.values().all(|child| value(child) == "old"));
}
