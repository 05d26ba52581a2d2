//! Revisions that are refused: what the commands `install` and `upgrade` say. What the manager does: `tests/engine/operators/refused.rs`.

use serde_json::{Value, json};

use super::{Cluster, OPERATOR, Package, Part, REVISION, SIZE, is_active, says, scene};
use crate::support::barrier::Address;
use crate::support::operators::{operator, repaired};
use crate::support::{CONFIG_MAP, LONG, Scene, condition, eventually};

/// Installs a package with an instance and stores another revision that is not active. Returns the names of
/// both.
async fn two_revisions(cluster: &Cluster, name: &str) -> (Package, Scene, String, String) {
    let package = Package::new(name, "0.1.0", "old");
    let first = package.revision().await;
    cluster.install(&package).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    package.write("0.2.0", &[Part::new(name, SIZE, "new")]);
    let second = package.revision().await;
    (package, scene, first, second)
}

async fn apply(cluster: &Cluster, object: &Value) {
    cluster
        .kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &object.to_string())
        .await
        .ok();
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
async fn an_altered_part_is_stored_again() {
    let cluster = Cluster::shared().await;
    let (package, scene, first, second) = two_revisions(cluster, "alters").await;
    let evil = Package::new("alters", "0.2.0", "evil").printed().await;
    for mut object in package.printed().await {
        if object["kind"] == "ConfigMap" {
            object["binaryData"] = evil[0]["binaryData"].clone();
        }
        apply(cluster, &object).await;
    }
    let told = cluster.until_refused("alters", "RevisionAltered").await;
    assert!(told.contains(&second) && told.ends_with(&format!("{first} stays active")), "{told}");
    let (code, told) = cluster.told(&["upgrade", package.folder(), "--force-conflicts"]).await;
    assert_eq!(code, 0, "{told}");
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
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
    says(
        cluster.told(&["upgrade", package.folder()]).await,
        1,
        &["CRDRefused: ", "the API server refuses the CRD rules", &format!("{first} stays active")],
    );
    // Nothing is applied in part.
    assert_eq!(
        cluster.crd("rules.ops.example.org").await.unwrap()["metadata"]["generation"],
        crd["metadata"]["generation"]
    );
    assert!(cluster.crd("rulers.ops.example.org").await.is_none());
    repaired(&scene, "old").await;
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
        package.ready(&scene, name, &json!({"size": size})).await;
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
    repaired(&scene, "old").await;
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
    repaired(&scene, "old").await;
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
    repaired(&scene, "new").await;
}

/// An Operator whose revision does not exist is shown with the reason.
#[tokio::test]
async fn a_broken_operator_is_shown() {
    let cluster = Cluster::start().await;
    cluster.apply(&[operator("broken", "broken-0123456789")]).await;
    cluster.until_refused("broken", "RevisionMissing").await;
    let table = cluster.operetta(&["operators", "-o", "wide"]).await.ok();
    let line = table.lines().find(|line| line.starts_with("broken")).unwrap();
    assert!(
        line.contains("RevisionMissing")
            && line.contains("OperatorRevision broken-0123456789 does not exist"),
        "{table}"
    );
}

#[tokio::test]
async fn package_for_another_operetta_is_refused() {
    let cluster = Cluster::shared().await;
    let (package, ..) = two_revisions(cluster, "futures").await;
    require(&package, "operetta: \">=99\"");
    says(cluster.told(&["upgrade", package.folder()]).await, 1, &["the package requires Operetta >=99"]);
}
