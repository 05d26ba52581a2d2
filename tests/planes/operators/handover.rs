//! A CRD is handed over from one package to another by command. From Git, and with managers that are killed:
//! `tests/engine/operators/handover.rs`.

use serde_json::{Value, json};

use super::{Cluster, OPERATOR, Package, REVISION, is_active, kind_named};
use crate::support::ext::{DEPLOYMENT, name_of, uid_of};
use crate::support::handover::{Life, package, write};

#[tokio::test]
async fn renamed_package_takes_over_its_kind_by_command() {
    let cluster = Cluster::shared().await;
    let old = package("renamers", "0.1.0", &["renamers"]);
    cluster.install(&old).await;
    let life = Life::begin(cluster, &["renamers"]).await;
    let new = package("renamed", "0.1.0", &["renamers"]);

    // Without the flag the install is refused, and the message names it.
    let (code, told) = cluster.told(&["install", new.folder()]).await;
    for words in [
        "renamers.ops.example.org",
        "belongs to the package renamers",
        "--take-over-from renamers",
        "spec.takesOver",
    ] {
        assert!(code == 1 && told.contains(words), "{words}: {code} {told}");
    }
    let shown = cluster.operetta(&["operators", "renamed", "-o", "wide"]).await.ok();
    assert!(shown.contains("CRDRefused") && shown.contains("--take-over-from renamers"), "{shown}");
    // It cannot take the CRD over from a package that does not have it either.
    let (code, told) = cluster.told(&["install", new.folder(), "--take-over-from", "others"]).await;
    assert!(code == 1 && told.contains("the package others has no CRD of this package"), "{code} {told}");
    life.is_untouched("refused").await;

    let preview =
        cluster.operetta(&["preview", new.folder(), "--take-over-from", "renamers", "-o", "json"]).await.ok();
    let preview: Value = serde_json::from_str(&preview).unwrap();
    assert_eq!(preview["instances"][0]["plans"], Value::Null, "{preview:#}");
    assert_eq!(preview["instances"][0]["refused"], Value::Null, "{preview:#}");
    let changes = preview["instances"][0]["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{preview:#}");
    for change in changes {
        let label = json!({
            "path": "metadata.labels[operetta.dev/operator]", "before": "renamers", "after": "renamed",
        });
        assert_eq!(change["fields"], json!([label]), "{preview:#}");
    }
    let told = cluster.operetta(&["install", new.folder(), "--take-over-from", "renamers"]).await;
    assert!(
        told.stderr.contains("taking over the CRD renamers.ops.example.org from renamers"),
        "{}",
        told.stderr
    );
    told.ok();
    life.is_of("renamers", "renamed").await;
    life.is_untouched("taken over").await;
    let message = cluster.until_refused("renamers", "CRDHandedOver").await;
    assert!(message.contains("renamers.ops.example.org to renamed"), "{message}");

    cluster.operetta(&["uninstall", "renamers"]).await.ok();
    life.is_untouched("the former package is uninstalled").await;
    assert!(cluster.find(OPERATOR, "renamers").await.is_none());
    // The command can be repeated.
    cluster.operetta(&["install", new.folder(), "--take-over-from", "renamers"]).await.ok();
    cluster.until("renamed", "active", is_active).await;
    life.is_untouched("again").await;
    life.is_managed("renamers").await;
}

#[tokio::test]
async fn a_package_takes_over_the_kind_of_another() {
    let cluster = Cluster::shared().await;
    let (first, second) = (package("stays", "0.1.0", &["owns"]), package("goes", "0.1.0", &["takens"]));
    for package in [&first, &second] {
        cluster.install(package).await;
    }
    let life = Life::begin(cluster, &["takens"]).await;
    write(&first, "0.2.0", &["owns", "takens"]);
    let args = ["upgrade", first.folder(), "--take-over-from", "goes", "--accept-rights"];
    cluster.operetta(&args).await.ok();
    cluster.operetta(&["uninstall", "goes"]).await.ok();
    life.is_of("takens", "stays").await;
    life.is_untouched("by command").await;
    life.is_managed("takens").await;
}

/// A rollout of the former package continues with the revision that it began with, even if that package is
/// uninstalled.
#[tokio::test]
async fn active_rollout_continues_after_the_handover() {
    let cluster = Cluster::shared().await;
    let gate = |package: &Package| {
        let path = package.root.path().join("operator.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        let steps = "steps: [{name: ask, when: spec.size > 1, approve: {message: go on?}}, {name: all, apply: [kept, web]}]";
        std::fs::write(path, text.replace("steps: [{name: all, apply: [kept, web]}]", steps)).unwrap();
    };
    let (old, new) = (package("midway", "0.1.0", &["midways"]), package("onward", "0.1.0", &["midways"]));
    gate(&old);
    gate(&new);
    cluster.install(&old).await;
    let life = Life::begin(cluster, &["midways"]).await;
    life.scene.patch(kind_named("midways"), "midways", "merge", &json!({"spec": {"size": 2}})).await;
    let is_asking = |run: &Value| run["status"]["phase"] == "Running" && run.to_string().contains("go on?");
    let run = life.scene.run_of("midways", "deploy", is_asking).await;
    let before = life.identities().await;
    let revision = old.revision().await;
    cluster.operetta(&["install", new.folder(), "--take-over-from", "midway"]).await.ok();
    let told = cluster.operetta(&["uninstall", "midway"]).await.ok();
    assert!(told.contains(&format!("OperatorRevision {revision} stays")), "{told}");
    assert!(cluster.find(REVISION, &revision).await.is_some());
    assert_eq!(life.identities().await, before);
    life.scene.answer(name_of(&run), "ask", "Approve").await;
    let done = life.scene.run_is(name_of(&run), "Succeeded").await;
    assert_eq!(uid_of(&done), uid_of(&run));
    life.scene.until("rolled out", DEPLOYMENT, "midways", |o| o["spec"]["replicas"] == 2).await;
    life.is_of("midways", "onward").await;
}
