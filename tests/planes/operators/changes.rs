//! What a package would change is shown instead of applying it, or before it is applied.

use serde_json::{Value, json};

use super::{Cluster, OPERATOR, Package, Part, REVISION, is_active, scene};
use crate::support::ext::CONFIG_MAP;

#[tokio::test]
async fn changes_are_shown_and_nothing_is_written_with_preview() {
    let cluster = Cluster::shared().await;
    let package = Package::new("shows", "0.1.0", "old {{ spec.size }}");
    let folder = package.folder();
    let crd = "shows.ops.example.org";

    // Before it is installed.
    let (code, told) = cluster.told(&["install", folder, "--preview"]).await;
    assert!(code == 0 && told.contains(&format!("CRD {crd}: created")), "{code} {told}");
    let (code, told) = cluster.told(&["upgrade", folder, "--preview"]).await;
    assert!(code == 1 && told.contains("`operetta install` installs a package"), "{code} {told}");
    assert!(cluster.find(OPERATOR, "shows").await.is_none());
    assert!(cluster.find(REVISION, &package.revision().await).await.is_none());
    assert!(cluster.crd(crd).await.is_none());

    // The first installation changes no instance, so there is nothing to say.
    let installed = cluster.operetta(&["install", folder]).await;
    assert!(!installed.stderr.contains("instances:"), "{}", installed.stderr);
    installed.ok();
    let scene = scene(cluster).await;
    for name in ["one", "two"] {
        scene.apply(&package.instance(name, &json!({"size": 3}))).await;
        scene.ready(package.kind(), name).await;
    }

    package.write("0.2.0", &[Part::new("shows", super::SIZE, "new {{ spec.size }}")]);
    let second = package.revision().await;
    let before = scene.get(CONFIG_MAP, "one").await;
    for command in ["install", "upgrade"] {
        let (code, told) = cluster.told(&[command, folder, "--preview"]).await;
        for words in ["2 instances: 0 unchanged", "updated   config", "data.value: \"old 3\" -> \"new 3\""] {
            assert!(code == 0 && told.contains(words), "{command}: {words}: {code} {told}");
        }
        let json = cluster.operetta(&[command, folder, "--preview", "-o", "json"]).await.ok();
        let report: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(report["kind"], "Preview");
        assert_eq!(report["instances"].as_array().unwrap().len(), 2, "{report:#}");
    }
    assert_eq!(scene.get(CONFIG_MAP, "one").await, before);
    assert!(cluster.find(REVISION, &second).await.is_none());
    assert_eq!(cluster.find(OPERATOR, "shows").await.unwrap()["metadata"]["generation"], 1);

    // An upgrade says it in a few lines first.
    let upgraded = cluster.operetta(&["upgrade", folder]).await;
    for words in
        ["2 instances: 0 unchanged, 0 with refusals, pods of 0 restart", "  updated 2 ConfigMap (config)"]
    {
        assert!(upgraded.stderr.contains(words), "{words}: {}", upgraded.stderr);
    }
    assert_eq!(upgraded.ok(), format!("{second} is active\n"));
    cluster.until("shows", "upgraded", is_active).await;
    scene.until("upgraded", CONFIG_MAP, "two", |o| o["data"]["value"] == "new 3").await;
    // Again: it is active, and there is nothing to say.
    let again = cluster.operetta(&["upgrade", folder]).await;
    assert!(!again.stderr.contains("instances:"), "{}", again.stderr);

    // A schema by which instances would be lost.
    package.write("0.3.0", &[Part::new("shows", "size: {type: string}", "newer")]);
    let (code, told) = cluster.told(&["upgrade", folder, "--preview"]).await;
    assert!(code == 3 && told.contains(&format!("CRD {crd}: refused")), "{code} {told}");
    let refused = cluster.operetta(&["upgrade", folder]).await;
    assert!(refused.stderr.contains(&format!("CRD {crd} refused: ")), "{}", refused.stderr);
    assert!(refused.fails().contains("stays active"));
    // Without a preview, when it costs too much.
    package.write("0.4.0", &[Part::new("shows", super::SIZE, "newest")]);
    let upgraded = cluster.operetta(&["upgrade", folder, "--no-preview"]).await;
    assert!(!upgraded.stderr.contains("instances:"), "{}", upgraded.stderr);
    upgraded.ok();
    scene.until("upgraded", CONFIG_MAP, "two", |o| o["data"]["value"] == "newest").await;

    for wrong in [&["--preview", "--dry-run"][..], &["--preview", "--no-preview"], &["-o", "json"]] {
        let args: Vec<&str> = ["upgrade", folder].iter().chain(wrong).copied().collect();
        assert_eq!(cluster.told(&args).await.0, 2, "{wrong:?}");
    }
}

#[tokio::test]
async fn a_forbidden_preview_does_not_prevent_an_upgrade() {
    let cluster = Cluster::shared().await;
    let package = Package::new("unseens", "0.1.0", "old");
    cluster.install(&package).await;
    let scene = scene(cluster).await;
    scene.apply(&package.instance("one", &json!({}))).await;
    scene.ready(package.kind(), "one").await;
    // Who may install packages need not see the instances.
    let account = crate::support::ext::account(&cluster.plane, "installer", "configmaps").await;
    package.write("0.2.0", &[Part::new("unseens", super::SIZE, "new")]);
    let args = ["upgrade", package.folder(), "--rights=false"];
    let upgraded = crate::support::operetta(&account, &args).await;
    assert!(upgraded.stderr.contains("warning: "), "{}", upgraded.stderr);
    upgraded.ok();
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
}
