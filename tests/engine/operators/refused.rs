//! Revisions that cannot be loaded or are refused: the last good one stays active, and the Operator says why.

use serde_json::json;

use crate::support::barrier::Address;
use crate::support::operators::{
    Cluster, MANAGERS, Package, Part, SIZE, instance, is_active, kind_named, operator, repaired, scene,
};
use crate::support::{CONFIG_MAP, LONG, OPERATOR, REVISION, Scene, condition, eventually, is_ready};

/// Installs a package with an instance. Returns it with the files of another revision, the instance's namespace, and the name of the
/// active revision.
async fn two_revisions(cluster: &Cluster, name: &str) -> (Package, Scene, String) {
    let package = Package::new(name, "0.1.0", "old");
    let first = cluster.put_active(&package).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    package.write("0.2.0", &[Part::new(name, SIZE, "new")]);
    (package, scene, first)
}

#[tokio::test]
async fn missing_revision_or_part_keeps_the_last_good_one() {
    let cluster = &*Cluster::shared().await;
    let (package, scene, first) = two_revisions(cluster, "lacks").await;
    let (second, mut stored) = package.packed();
    cluster.apply(&[operator("lacks", &second)]).await;
    let told = cluster.until_refused("lacks", "RevisionMissing").await;
    assert!(told.contains(&format!("OperatorRevision {second} does not exist")), "{told}");
    assert!(told.ends_with(&format!("{first} stays active")), "{told}");
    repaired(&scene, "old").await;
    let operator = cluster.find(OPERATOR, "lacks").await.unwrap();
    for (kind, status) in [("Active", "True"), ("Ready", "False"), ("Stalled", "True")] {
        assert_eq!(condition(&operator, kind)["status"], status, "{operator:#}");
    }
    assert_eq!(
        (&operator["status"]["activeRevision"], &operator["status"]["targetRevision"]),
        (&json!(first), &json!(second))
    );
    // The revision exists without its part, as after pruning too much.
    let revision = stored.pop().unwrap();
    assert_eq!(revision["kind"], "OperatorRevision");
    cluster.apply(&[revision]).await;
    let told = cluster.until_refused("lacks", "PartMissing").await;
    assert!(
        told.contains(&format!("ConfigMap {MANAGERS}/{second}-0, a part of OperatorRevision {second}")),
        "{told}"
    );
    // Another restart finds the same, and the last good revision.
    repaired(&scene, "old").await;
    // Once the missing objects are applied, the revision becomes active by itself.
    cluster.put(&package).await;
    cluster.until("lacks", "active by itself", is_active).await;
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
}

#[tokio::test]
async fn an_altered_part_is_refused() {
    let cluster = &*Cluster::shared().await;
    let (package, scene, first) = two_revisions(cluster, "alters").await;
    let (_, evil) = Package::new("alters", "0.2.0", "evil").packed();
    let (second, mut stored) = package.packed();
    let part = stored.iter_mut().find(|object| object["kind"] == "ConfigMap").unwrap();
    part["binaryData"] = evil[0]["binaryData"].clone();
    stored.push(operator("alters", &second));
    cluster.apply(&stored).await;
    let told = cluster.until_refused("alters", "RevisionAltered").await;
    assert!(told.contains(&format!("the data of the part {second}-0 is not what was stored")), "{told}");
    repaired(&scene, "old").await;
    let operator = cluster.find(OPERATOR, "alters").await.unwrap();
    assert_eq!(operator["status"]["activeRevision"], first.as_str());
}

#[tokio::test]
async fn a_revision_of_a_newer_operetta_is_refused() {
    let cluster = &*Cluster::shared().await;
    let (package, scene, _) = two_revisions(cluster, "newers").await;
    let (second, mut stored) = package.packed();
    let revision = stored.last_mut().unwrap();
    revision["spec"]["format"] = 2.into();
    revision["spec"]["operetta"] = "7.0.0".into();
    stored.push(operator("newers", &second));
    cluster.apply(&stored).await;
    let told = cluster.until_refused("newers", "NewerOperetta").await;
    assert!(
        told.contains("Operetta 7.0.0 has written it in format 2") && told.contains("upgrade Operetta"),
        "{told}"
    );
    repaired(&scene, "old").await;
    assert!(cluster.find(REVISION, &second).await.is_some());
}

/// A manager that starts knows no instance at first.
#[tokio::test]
async fn kind_with_instances_is_kept_at_each_start() {
    let cluster = Cluster::start().await;
    let package = Package::of(
        "halves",
        "0.1.0",
        &[Part::new("halves", SIZE, "old"), Part::new("doubles", SIZE, "old")],
    );
    let first = cluster.put_active(&package).await;
    let scene = scene(&cluster).await;
    scene.apply_ready(kind_named("doubles"), "one", &instance("doubles", "one", &json!({}))).await;
    package.write("0.2.0", &[Part::new("halves", SIZE, "new")]);
    let words = "doubles.ops.example.org, of which there is 1 instance";
    cluster.put(&package).await;
    let told = cluster.until_refused("halves", "CRDRefused").await;
    assert!(told.contains(words), "{told}");
    for marker in ["afters", "laters"] {
        cluster.restart(async || {}).await;
        cluster.put_active(&Package::new(marker, "0.1.0", "x")).await;
        let operator = cluster.find(OPERATOR, "halves").await.unwrap();
        assert_eq!(operator["status"]["activeRevision"], first.as_str(), "{operator:#}");
        assert!(cluster.until_refused("halves", "CRDRefused").await.contains(words));
        repaired(&scene, "old").await;
    }
    scene.kubectl(&["delete", "doubles.ops.example.org", "one"]).await;
    cluster.until("halves", "active by itself", is_active).await;
}

/// Fault 22: the second of two Operators with one CRD is refused, and its message names the first.
#[tokio::test]
async fn second_operator_with_the_same_crd_is_refused() {
    let cluster = &*Cluster::shared().await;
    let first = Package::of("firsts", "0.1.0", &[Part::new("shared", SIZE, "first")]);
    let second = Package::of(
        "seconds",
        "0.1.0",
        &[Part::new("shared", SIZE, "second"), Part::new("owns", SIZE, "second")],
    );
    cluster.put_active(&first).await;
    let scene = scene(cluster).await;
    scene.apply(&instance("shared", "one", &json!({}))).await;
    let kind = kind_named("shared");
    scene.ready(kind, "one").await;
    cluster.put(&second).await;
    let told = cluster.until_refused("seconds", "CRDRefused").await;
    assert!(told.contains("shared.ops.example.org") && told.contains("firsts"), "{told}");
    let operator = cluster.find(OPERATOR, "seconds").await.unwrap();
    assert_eq!(condition(&operator, "Active")["status"], "False", "{operator:#}");
    assert!(cluster.crd("owns.ops.example.org").await.is_none(), "nothing is half-applied");
    assert!(is_ready(&scene.get(kind, "one").await));
    assert_eq!(scene.get(CONFIG_MAP, "one").await["data"]["value"], "first");
    // The first package is removed with its CRD: the second becomes active by itself.
    cluster.kubectl(&["delete", "operator", "firsts"], "").await.ok();
    scene.until("unmanaged", kind, "one", |o| !is_ready(o)).await;
    scene.kubectl(&["delete", "shared.ops.example.org", "one"]).await;
    cluster.kubectl(&["delete", "crd", "shared.ops.example.org"], "").await.ok();
    cluster.until("seconds", "active by itself", is_active).await;
    scene.apply(&instance("shared", "two", &json!({}))).await;
    scene.until("of the second", CONFIG_MAP, "two", |o| o["data"]["value"] == "second").await;
}

/// A failing Operator recovers without a restart of the manager, and does not stop others.
#[tokio::test]
async fn broken_operator_does_not_prevent_readiness() {
    let cluster = Cluster::start().await;
    cluster.apply(&[operator("broken", "broken-0123456789")]).await;
    let told = cluster.until_refused("broken", "RevisionMissing").await;
    assert!(told.contains("OperatorRevision broken-0123456789 does not exist"), "{told}");
    cluster.restart(async || {}).await;
    cluster.put_active(&Package::new("wholes", "0.1.0", "a")).await;
    let address = Address::of(&cluster.manager.lock().unwrap());
    eventually("the manager to be ready", LONG, async || {
        let told = address.ready().await;
        if told.contains("all watches are up") { Ok(()) } else { Err(told) }
    })
    .await;
}

#[tokio::test]
async fn package_for_another_operetta_keeps_the_last_revision() {
    let cluster = &*Cluster::shared().await;
    let (package, scene, first) = two_revisions(cluster, "futures").await;
    let (mut other, _) = operetta::package::load(package.folder().as_ref()).unwrap();
    let manifest = package.root.path().join("operator.yaml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replacen("spec:\n", "spec:\n  requires: {operetta: \">=99\"}\n", 1))
        .unwrap();
    // Store it from Git, as a supported version of Operetta would have done.
    other.files = operetta::package::Files::read(package.folder().as_ref()).unwrap();
    other.digest = other.files.digest();
    let packed = operetta::operators::pack(&other, MANAGERS).unwrap();
    let mut stored: Vec<_> = packed.objects.into_iter().map(|object| object.body).collect();
    stored.push(operator("futures", &packed.revision));
    cluster.apply(&stored).await;
    let told = cluster.until_refused("futures", "PackageRefused").await;
    assert!(told.contains("the package requires Operetta >=99"), "{told}");
    assert!(told.ends_with(&format!("{first} stays active")), "{told}");
    repaired(&scene, "old").await;
}
