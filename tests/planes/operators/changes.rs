//! A preview shows what a package would change, instead of applying it or before it is applied.

use serde_json::{Value, json};

use super::{Cluster, OPERATOR, Package, Part, REVISION, is_active, says, scene};
use crate::support::ext::CONFIG_MAP;

#[tokio::test]
async fn preview_shows_changes_and_writes_nothing() {
    let cluster = Cluster::shared().await;
    let package = Package::new("shows", "0.1.0", "old {{ spec.size }}");
    let folder = package.folder();
    let crd = "shows.ops.example.org";

    // Preview the package before it is installed.
    says(cluster.told(&["install", folder, "--preview"]).await, 0, &[&format!("CRD {crd}: created")]);
    let (code, told) = cluster.told(&["upgrade", folder, "--preview"]).await;
    assert!(code == 1 && told.contains("`operetta install` installs a package"), "{code} {told}");
    assert!(cluster.find(OPERATOR, "shows").await.is_none());
    assert!(cluster.find(REVISION, &package.revision().await).await.is_none());
    assert!(cluster.crd(crd).await.is_none());

    // The first installation changes no instance, so nothing is shown.
    let installed = cluster.operetta(&["install", folder]).await;
    assert!(!installed.stderr.contains("instances:"), "{}", installed.stderr);
    installed.ok();
    let scene = scene(cluster).await;
    for name in ["one", "two"] {
        package.ready(&scene, name, &json!({"size": 3})).await;
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

    // An upgrade shows a short preview first.
    let upgraded = cluster.operetta(&["upgrade", folder]).await;
    for words in
        ["2 instances: 0 unchanged, 0 with refusals, pods of 0 restart", "  updated 2 ConfigMap (config)"]
    {
        assert!(upgraded.stderr.contains(words), "{words}: {}", upgraded.stderr);
    }
    assert_eq!(upgraded.ok(), format!("{second} is active\n"));
    cluster.until("shows", "upgraded", is_active).await;
    scene.until("upgraded", CONFIG_MAP, "two", |o| o["data"]["value"] == "new 3").await;
    // The package is active, so nothing is shown.
    let again = cluster.operetta(&["upgrade", folder]).await;
    assert!(!again.stderr.contains("instances:"), "{}", again.stderr);

    // A schema that would make instances invalid is refused.
    package.write("0.3.0", &[Part::new("shows", "size: {type: string}", "newer")]);
    let (code, told) = cluster.told(&["upgrade", folder, "--preview"]).await;
    assert!(code == 3 && told.contains(&format!("CRD {crd}: refused")), "{code} {told}");
    let refused = cluster.operetta(&["upgrade", folder]).await;
    assert!(refused.stderr.contains(&format!("CRD {crd} refused: ")), "{}", refused.stderr);
    assert!(refused.fails().contains("stays active"));
    // `--no-preview` upgrades without one.
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
    let package = cluster.installed(Package::new("unseens", "0.1.0", "old")).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    // Users who may install packages need not have rights to instances.
    let account = crate::support::ext::account(&cluster.plane, "installer", "configmaps").await;
    package.write("0.2.0", &[Part::new("unseens", super::SIZE, "new")]);
    let args = ["upgrade", package.folder(), "--rights=false"];
    let upgraded = crate::support::operetta(&account, &args).await;
    assert!(upgraded.stderr.contains("warning: "), "{}", upgraded.stderr);
    upgraded.ok();
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
}

/// Adds settings to the only child of the first resource.
fn set_child(package: &Package, settings: &str) {
    let path = std::path::Path::new(package.folder()).join("operator.yaml");
    let manifest = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, manifest.replacen(".yaml}]", &format!(".yaml, {settings}}}]"), 1)).unwrap();
}

#[tokio::test]
async fn preview_shows_dropped_crds_and_unrendered_children() {
    // Start another cluster: a CRD without a package remains, which the users in tests of the shared one may
    // not list.
    let cluster = &Cluster::start().await;
    let parts = |value: &str| [Part::new("hats", super::SIZE, value), Part::new("caps", super::SIZE, value)];
    let package = Package::of("hats", "0.1.0", &parts("old"));
    let folder = package.folder();
    cluster.install(&package).await;
    let operator = cluster.until("hats", "installed", is_active).await;
    let revision = operator["status"]["activeRevision"].as_str().unwrap();
    let digest = revision.rsplit_once('-').unwrap().1;
    // The revision is active although no instance reports it.
    says(cluster.told(&["preview", folder]).await, 0, &[&format!("(active: 0.1.0-{digest} in 0)")]);

    let scene = scene(cluster).await;
    for plural in ["hats", "caps"] {
        let name = format!("my-{plural}");
        scene.apply(&super::instance(plural, &name, &json!({"size": 3}))).await;
        scene.ready(super::kind_named(plural), &name).await;
    }
    // Removing a CRD that has instances is refused, by the preview as by the manager.
    package.write("0.2.0", &parts("old")[..1]);
    set_child(&package, "when: spec.size > 9, deletionPolicy: Retain");
    let (code, told) = cluster.told(&["preview", folder]).await;
    for words in ["CRD caps.ops.example.org: refused", "of which there is 1 instance"] {
        assert!(code == 3 && told.contains(words), "{words}: {code} {told}");
    }
    scene.kubectl(&["delete", "caps.ops.example.org", "my-caps"]).await;
    let (code, told) = cluster.told(&["preview", folder, "--fail-on", "recreated,pruned,rights"]).await;
    for words in [
        "CRD caps.ops.example.org: dropped",
        "the CRD stays, and it has no instances",
        "retained   config   ConfigMap",
        "was last applied with another deletionPolicy than Retain",
    ] {
        assert!(code == 0 && told.contains(words), "{words}: {code} {told}");
    }
    // After the preview, for the manager accepts a refused revision as soon as the instance is gone.
    scene.apply(&super::instance("caps", "my-caps", &json!({"size": 3}))).await;
    let refused = cluster.operetta(&["upgrade", folder]).await;
    assert!(refused.stderr.contains("CRD caps.ops.example.org refused"), "{}", refused.stderr);
    assert!(refused.fails().contains("of which there is 1 instance"));
    scene.kubectl(&["delete", "caps.ops.example.org", "my-caps"]).await;
    // The new policy counts although the object was never applied with it.
    cluster.operetta(&["upgrade", folder]).await.ok();
    let is_retained = |object: &Value| object["metadata"]["annotations"]["operetta.dev/retained"] == "true";
    scene.until("retained", CONFIG_MAP, "my-hats", is_retained).await;

    package.write("0.3.0", &parts("old")[..1]);
    cluster.operetta(&["upgrade", folder]).await.ok();
    scene.until("adopted again", CONFIG_MAP, "my-hats", |object| !is_retained(object)).await;
    package.write("0.4.0", &parts("old")[..1]);
    set_child(&package, "when: spec.size > 9");
    for (what, expected) in [("rights,recreated,refused", 0), ("pruned", 6)] {
        for command in [&["preview", folder][..], &["upgrade", folder, "--preview"]] {
            let args: Vec<&str> = command.iter().copied().chain(["--fail-on", what]).collect();
            let (code, told) = cluster.told(&args).await;
            assert_eq!(code, expected, "{args:?}: {told}");
            assert_eq!(told.contains("--fail-on: 1 object would be pruned"), code == 6, "{told}");
        }
    }
    for wrong in [&["upgrade", folder, "--fail-on", "pruned"][..], &["preview", folder, "--fail-on", "all"]] {
        assert_eq!(cluster.told(wrong).await.0, 2, "{wrong:?}");
    }
}

#[tokio::test]
async fn changed_policy_resolves_an_earlier_refusal() {
    let cluster = Cluster::shared().await;
    let package = Package::new("stamps", "0.1.0", "old");
    let folder = package.folder();
    let write = |version: &str, value: &str, settings: &str| {
        package.write(version, &[Part::new("stamps", super::SIZE, value)]);
        let path = std::path::Path::new(folder).join("templates/stamps.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}immutable: true\n")).unwrap();
        set_child(&package, settings);
    };
    write("0.1.0", "old", "deletionPolicy: Delete");
    cluster.install(&package).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    write("0.2.0", "new", "deletionPolicy: Delete");
    let refused = cluster.operetta(&["upgrade", folder]).await.fails();
    assert!(refused.contains("immutable"), "{refused}");
    // The desired object is the same. Only the policy for changing it differs.
    write("0.3.0", "new", "deletionPolicy: Delete, onImmutableChange: Recreate");
    cluster.operetta(&["upgrade", folder]).await.ok();
    scene.until("recreated", CONFIG_MAP, "one", |object| object["data"]["value"] == "new").await;
}
