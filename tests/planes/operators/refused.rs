//! Revisions that cannot be loaded or are refused: the last good one stays active, and the Operator says why.

use serde_json::{Value, json};

use super::{Cluster, MANAGERS, OPERATOR, Package, Part, REVISION, SIZE, is_active, scene};
use crate::support::barrier::Address;
use crate::support::eventually;
use crate::support::ext::{CONFIG_MAP, LONG, Scene, condition, is_ready, uid_of};

/// Installs a package with an instance and stores another revision that is not active. Returns the names of
/// both.
async fn two_revisions(cluster: &Cluster, name: &str) -> (Package, Scene, String, String) {
    let package = Package::new(name, "0.1.0", "old");
    let first = package.revision().await;
    cluster.install(&package).await;
    let scene = scene(cluster).await;
    scene.apply(&package.instance("one", &json!({}))).await;
    scene.ready(package.kind(), "one").await;
    package.write("0.2.0", &[Part::new(name, SIZE, "new")]);
    let second = package.revision().await;
    (package, scene, first, second)
}

async fn name_revision(cluster: &Cluster, operator: &str, revision: &str) {
    let patch = json!({"spec": {"revision": revision}}).to_string();
    cluster.kubectl(&["patch", "operator", operator, "--type=merge", "-p", &patch], "").await.ok();
}

/// Checks that the active revision is in effect: a deleted child comes back with this value.
async fn works_with(scene: &Scene, value: &str) {
    let before = scene.get(CONFIG_MAP, "one").await;
    scene.kubectl(&["delete", "configmap", "one"]).await;
    let made = |o: &Value| o["data"]["value"] == value && uid_of(o) != uid_of(&before);
    scene.until("made anew", CONFIG_MAP, "one", made).await;
}

async fn apply(cluster: &Cluster, object: &Value) {
    cluster
        .kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &object.to_string())
        .await
        .ok();
}

#[tokio::test]
async fn missing_revision_or_part_keeps_the_last_good_one() {
    let cluster = Cluster::shared().await;
    let (package, scene, first, second) = two_revisions(cluster, "lacks").await;
    name_revision(cluster, "lacks", &second).await;
    let told = cluster.until_refused("lacks", "RevisionMissing").await;
    assert!(told.contains(&format!("OperatorRevision {second} does not exist")), "{told}");
    assert!(told.ends_with(&format!("{first} stays active")), "{told}");
    works_with(&scene, "old").await;
    let operator = cluster.find(OPERATOR, "lacks").await.unwrap();
    for (kind, status) in [("Active", "True"), ("Ready", "False"), ("Stalled", "True")] {
        assert_eq!(condition(&operator, kind)["status"], status, "{operator:#}");
    }
    assert_eq!(
        (&operator["status"]["activeRevision"], &operator["status"]["targetRevision"]),
        (&json!(first), &json!(second))
    );
    // The revision exists without its part, as after pruning too much.
    let printed = package.printed().await;
    let revision = printed.iter().find(|object| object["kind"] == "OperatorRevision").unwrap();
    apply(cluster, revision).await;
    let told = cluster.until_refused("lacks", "PartMissing").await;
    assert!(
        told.contains(&format!("ConfigMap {MANAGERS}/{second}-0, a part of OperatorRevision {second}")),
        "{told}"
    );
    // Another restart finds the same, and the last good revision.
    works_with(&scene, "old").await;
    // Once the missing objects are applied, the revision becomes active by itself.
    for object in &printed {
        apply(cluster, object).await;
    }
    cluster.until("lacks", "active by itself", is_active).await;
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
}

/// The API server refuses both and says what is wrong.
#[tokio::test]
async fn operators_without_revision_or_valid_namespace_are_refused() {
    let cluster = Cluster::shared().await;
    let package = Package::new("lones", "0.1.0", "old");
    for (spec, words) in [
        (json!({}), "set one of spec.revision"),
        (json!({"revision": ""}), "spec.revision"),
        (json!({"revision": "Not A Name"}), "spec.revision"),
    ] {
        let operator = json!({
            "apiVersion": "operetta.dev/v1alpha1", "kind": "Operator", "metadata": {"name": "lones"}, "spec": spec,
        });
        for flags in [&["apply", "-f", "-"][..], &["apply", "--server-side", "-f", "-"]] {
            let told = cluster.kubectl(flags, &operator.to_string()).await.fails();
            assert!(told.contains(words), "{told}");
        }
    }
    let (code, told) = cluster.told(&["install", package.folder(), "--namespace", "nowhere"]).await;
    assert!(code == 1 && told.contains("there is no namespace nowhere"), "{code} {told}");
    assert!(told.contains("operetta-system") && told.contains("kubectl create namespace nowhere"), "{told}");
    assert!(cluster.find(OPERATOR, "lones").await.is_none());
    assert!(cluster.find(REVISION, &package.revision().await).await.is_none());
    assert!(cluster.find(crate::support::ext::NAMESPACE, "nowhere").await.is_none());
    cluster.install(&package).await;
}

#[tokio::test]
async fn an_altered_part_is_refused() {
    let cluster = Cluster::shared().await;
    let (package, scene, first, second) = two_revisions(cluster, "alters").await;
    let other = Package::new("alters", "0.2.0", "evil");
    let evil = other.printed().await;
    for mut object in package.printed().await {
        if object["kind"] == "ConfigMap" {
            object["binaryData"] = evil[0]["binaryData"].clone();
        }
        apply(cluster, &object).await;
    }
    let told = cluster.until_refused("alters", "RevisionAltered").await;
    assert!(told.contains(&format!("the data of the part {second}-0 is not what was stored")), "{told}");
    works_with(&scene, "old").await;
    // `upgrade` stores the part again.
    let operator = cluster.find(OPERATOR, "alters").await.unwrap();
    assert_eq!(operator["status"]["activeRevision"], first.as_str());
    let (code, told) = cluster.told(&["upgrade", package.folder(), "--force-conflicts"]).await;
    assert_eq!(code, 0, "{told}");
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
}

#[tokio::test]
async fn a_revision_of_a_newer_operetta_is_refused() {
    let cluster = Cluster::shared().await;
    let (package, scene, _, second) = two_revisions(cluster, "newers").await;
    for mut object in package.printed().await {
        if object["kind"] == "OperatorRevision" {
            object["spec"]["format"] = 2.into();
            object["spec"]["operetta"] = "7.0.0".into();
        }
        apply(cluster, &object).await;
    }
    let told = cluster.until_refused("newers", "NewerOperetta").await;
    assert!(
        told.contains("Operetta 7.0.0 has written it in format 2") && told.contains("upgrade Operetta"),
        "{told}"
    );
    works_with(&scene, "old").await;
    assert!(cluster.find(REVISION, &second).await.is_some());
}

#[tokio::test]
async fn refused_crd_keeps_the_last_good_revision() {
    let cluster = Cluster::real().await;
    let (package, scene, first, _) = two_revisions(cluster, "rules").await;
    let crd = cluster.crd("rules.ops.example.org").await.unwrap();
    // Only the API server knows that this rule costs too much.
    let costly = "items: {type: array, items: {type: array, items: {type: string}}, x-kubernetes-validations: \
        [{rule: \"self.all(a, a.all(b, self.all(c, c.all(d, b.contains(d)))))\"}]}";
    package.write("0.3.0", &[Part::new("rules", costly, "new"), Part::new("rulers", SIZE, "new")]);
    let (code, told) = cluster.told(&["upgrade", package.folder()]).await;
    assert!(
        code == 1 && told.contains("CRDRefused: ") && told.contains("the API server refuses the CRD rules"),
        "{code} {told}"
    );
    assert!(told.contains(&format!("{first} stays active")), "{told}");
    // Nothing is applied in part.
    assert_eq!(
        cluster.crd("rules.ops.example.org").await.unwrap()["metadata"]["generation"],
        crd["metadata"]["generation"]
    );
    assert!(cluster.crd("rulers.ops.example.org").await.is_none());
    works_with(&scene, "old").await;
    // The next revision corrects it.
    package.write("0.3.1", &[Part::new("rules", SIZE, "new"), Part::new("rulers", SIZE, "new")]);
    cluster.operetta(&["upgrade", package.folder()]).await.ok();
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
}

/// Fault 21: a schema that would make an instance invalid is refused, and the instance can be deleted.
#[tokio::test]
async fn schema_that_invalidates_instances_is_refused() {
    let cluster = Cluster::shared().await;
    let package =
        Package::of("narrows", "0.1.0", &[Part::new("narrows", "size: {type: integer}", "{{ spec.size }}")]);
    cluster.install(&package).await;
    let scene = scene(cluster).await;
    for (name, size) in [("one", 1), ("nine", 9)] {
        scene.apply(&package.instance(name, &json!({"size": size}))).await;
        scene.ready(package.kind(), name).await;
    }
    package
        .write("0.2.0", &[Part::new("narrows", "size: {type: integer, maximum: 5}", "new {{ spec.size }}")]);
    let (code, told) = cluster.told(&["upgrade", package.folder()]).await;
    let name = format!("{}/nine (spec.size", scene.namespace());
    assert!(code == 1 && told.contains(&name) && !told.contains("/one ("), "{code} {told}");
    assert_eq!(scene.get(CONFIG_MAP, "nine").await["data"]["value"], "9");
    scene.kubectl(&["delete", "narrows.ops.example.org", "nine"]).await;
    scene.gone(CONFIG_MAP, "nine").await;
    cluster.until("narrows", "active by itself", is_active).await;
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new 1").await;
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
    let first = package.revision().await;
    cluster.install(&package).await;
    let scene = scene(&cluster).await;
    scene.apply(&super::instance("doubles", "one", &json!({}))).await;
    scene.ready(super::kind_named("doubles"), "one").await;
    package.write("0.2.0", &[Part::new("halves", SIZE, "new")]);
    let words = "doubles.ops.example.org, of which there is 1 instance";
    let (code, told) = cluster.told(&["upgrade", package.folder()]).await;
    assert!(code == 1 && told.contains(words), "{code} {told}");
    for marker in ["afters", "laters"] {
        cluster.restart(async || {}).await;
        cluster.install(&Package::new(marker, "0.1.0", "x")).await;
        let operator = cluster.find(OPERATOR, "halves").await.unwrap();
        assert_eq!(operator["status"]["activeRevision"], first.as_str(), "{operator:#}");
        assert!(cluster.until_refused("halves", "CRDRefused").await.contains(words));
        works_with(&scene, "old").await;
    }
    scene.kubectl(&["delete", "doubles.ops.example.org", "one"]).await;
    cluster.until("halves", "active by itself", is_active).await;
}

/// Fault 22: the second of two Operators with one CRD is refused, and its message names the first.
#[tokio::test]
async fn second_operator_with_the_same_crd_is_refused() {
    let cluster = Cluster::shared().await;
    let first = Package::of("firsts", "0.1.0", &[Part::new("shared", SIZE, "first")]);
    let second = Package::of(
        "seconds",
        "0.1.0",
        &[Part::new("shared", SIZE, "second"), Part::new("owns", SIZE, "second")],
    );
    cluster.install(&first).await;
    let scene = scene(cluster).await;
    scene.apply(&super::instance("shared", "one", &json!({}))).await;
    let kind = super::kind_named("shared");
    scene.ready(kind, "one").await;
    let (code, told) = cluster.told(&["install", second.folder()]).await;
    assert!(code == 1 && told.contains("shared.ops.example.org") && told.contains("firsts"), "{code} {told}");
    let operator = cluster.find(OPERATOR, "seconds").await.unwrap();
    assert_eq!(condition(&operator, "Active")["status"], "False", "{operator:#}");
    assert!(cluster.crd("owns.ops.example.org").await.is_none(), "nothing is half-applied");
    assert!(is_ready(&scene.get(kind, "one").await));
    assert_eq!(scene.get(CONFIG_MAP, "one").await["data"]["value"], "first");
    // The first package is removed with its CRD: the second becomes active by itself.
    scene.kubectl(&["delete", "shared.ops.example.org", "one"]).await;
    cluster.operetta(&["uninstall", "firsts"]).await.ok();
    cluster.until("seconds", "active by itself", is_active).await;
    scene.apply(&super::instance("shared", "two", &json!({}))).await;
    scene.until("of the second", CONFIG_MAP, "two", |o| o["data"]["value"] == "second").await;
}

/// A failing Operator recovers without a restart of the manager, and does not stop others.
#[tokio::test]
async fn broken_operator_does_not_prevent_readiness() {
    let cluster = Cluster::start().await;
    let broken = json!({
        "apiVersion": "operetta.dev/v1alpha1", "kind": "Operator", "metadata": {"name": "broken"},
        "spec": {"revision": "broken-0123456789"},
    });
    cluster.kubectl(&["apply", "-f", "-"], &broken.to_string()).await.ok();
    cluster.until_refused("broken", "RevisionMissing").await;
    cluster.restart(async || {}).await;
    let package = Package::new("wholes", "0.1.0", "a");
    cluster.install(&package).await;
    let address = crate::support::barrier::Address::of(&cluster.manager.lock().unwrap());
    crate::support::eventually("the manager to be ready", LONG, async || {
        let (head, text) = address.get("/readyz").await;
        if head.contains(" 200 ") { Ok(()) } else { Err(text) }
    })
    .await;
    let table = cluster.operetta(&["operators", "-o", "wide"]).await.ok();
    let line = table.lines().find(|line| line.starts_with("broken")).unwrap();
    assert!(
        line.contains("RevisionMissing")
            && line.contains("OperatorRevision broken-0123456789 does not exist"),
        "{table}"
    );
}

/// Sets what the package requires.
fn require(package: &Package, what: &str) {
    let path = std::path::Path::new(package.folder()).join("operator.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("spec:\n", &format!("spec:\n  requires: {{{what}}}\n"), 1)).unwrap();
}

#[tokio::test]
async fn package_for_another_kubernetes_keeps_the_last_revision() {
    let cluster = Cluster::start().await;
    let (package, scene, first, _) = two_revisions(&cluster, "elders").await;
    require(&package, "kubernetes: \">=1.99\"");
    let second = package.revision().await;
    let folder = package.folder();
    for args in [
        &["upgrade", folder][..],
        &["upgrade", folder, "--preview"],
        &["preview", folder],
        &["lint", folder, "--cluster"],
    ] {
        let (code, told) = cluster.told(args).await;
        assert!(
            code == 1 && told.contains("requires Kubernetes >=1.99, and this cluster has 1."),
            "{args:?}: {told}"
        );
    }
    assert!(cluster.find(REVISION, &second).await.is_none());
    // Install it from Git.
    for object in package.printed().await {
        apply(&cluster, &object).await;
    }
    let told = cluster.until_refused("elders", "KubernetesUnsupported").await;
    assert!(told.contains("requires Kubernetes >=1.99, and this cluster has 1."), "{told}");
    assert!(told.ends_with(&format!("{first} stays active")), "{told}");
    assert_eq!(condition(&cluster.find(OPERATOR, "elders").await.unwrap(), "Stalled")["status"], "True");
    works_with(&scene, "old").await;
    let address = Address::of(&cluster.manager.lock().unwrap());
    eventually("the conditions in the metrics", LONG, async || {
        let metrics = address.metrics().await;
        let line = |kind: &str, holds: u8| {
            format!("operetta_operator_condition{{package=\"elders\",condition=\"{kind}\"}} {holds}")
        };
        let all = [line("Active", 1), line("Ready", 0), line("Stalled", 1)];
        if all.iter().all(|line| metrics.contains(line)) { Ok(()) } else { Err(metrics) }
    })
    .await;
    // After a restart the recorded revision is loaded.
    cluster.restart(async || {}).await;
    cluster.until_refused("elders", "KubernetesUnsupported").await;
    works_with(&scene, "old").await;
    // A revision that was active before the cluster was upgraded beyond it stays active.
    let status = json!({"status": {"activeRevision": second}}).to_string();
    cluster
        .restart(async || {
            let args = ["patch", "operator", "elders", "--subresource=status", "--type=merge", "-p", &status];
            cluster.kubectl(&args, "").await.ok();
        })
        .await;
    let told = |operator: &Value| condition(operator, "KubernetesUnsupported")["status"] == "True";
    let operator = cluster.until("elders", "active and told", |o| is_active(o) && told(o)).await;
    assert_eq!(operator["status"]["activeRevision"], second.as_str());
    works_with(&scene, "new").await;
}

#[tokio::test]
async fn package_for_another_operetta_keeps_the_last_revision() {
    let cluster = Cluster::shared().await;
    let (package, scene, first, _) = two_revisions(cluster, "futures").await;
    let (mut other, _) = operetta::package::load(package.folder().as_ref()).unwrap();
    require(&package, "operetta: \">=99\"");
    let (code, told) = cluster.told(&["upgrade", package.folder()]).await;
    assert!(code == 1 && told.contains("the package requires Operetta >=99"), "{told}");
    // Store it from Git, as a supported version of Operetta would have done.
    other.files = operetta::package::Files::read(package.folder().as_ref()).unwrap();
    other.digest = other.files.digest();
    let packed = operetta::operators::pack(&other, MANAGERS).unwrap();
    for object in &packed.objects {
        apply(cluster, &object.body).await;
    }
    name_revision(cluster, "futures", &packed.revision).await;
    let told = cluster.until_refused("futures", "PackageRefused").await;
    assert!(told.contains("the package requires Operetta >=99"), "{told}");
    assert!(told.ends_with(&format!("{first} stays active")), "{told}");
    works_with(&scene, "old").await;
}
