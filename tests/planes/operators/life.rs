//! Installing, upgrading and rolling back by commands.

use serde_json::{Value, json};

use super::{Cluster, MANAGERS, OPERATOR, Package, Part, REVISION, SIZE, is_active, says, scene};
use crate::support::{CONFIG_MAP, ETCD, LONG, etcd, eventually, file, is_ready, own_plane, uid_of};

const SEED: &str = "examples/etcd/example-etcd-cluster.yaml";

#[tokio::test]
async fn etcd_is_installed_from_nothing_by_command() {
    let cluster = Cluster::start().await;
    etcd::watch(&cluster.plane);
    let told = cluster.operetta(&["install", etcd::package(), "--accept-rights"]).await.ok();
    assert!(told.contains(" is active"), "{told}");
    let scene = scene(&cluster).await;
    scene.apply_ready(ETCD, "example-etcd-cluster", &file(SEED)).await;
    let table = cluster.operetta(&["operators"]).await.ok();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "VERSION", "READY", "REASON", "INSTANCES", "AGE", "MESSAGE"]);
    assert_eq!((lines[1][0], lines[1][2], lines[1][3]), ("etcd", "True", "Active"), "{table}");
    cluster.until("etcd", "counts", |operator| operator["status"]["instances"] == 1).await;
    // Repeating the command changes nothing.
    cluster.operetta(&["install", etcd::package(), "--accept-rights"]).await.ok();
    assert_eq!(cluster.find(OPERATOR, "etcd").await.unwrap()["metadata"]["generation"], 1);
}

#[tokio::test]
async fn etcd_is_installed_from_nothing_by_yaml_and_kubectl() {
    let cluster = Cluster::on(own_plane().await).await;
    etcd::watch(&cluster.plane);
    let yaml = cluster.operetta(&["install", etcd::package(), "--dry-run", "-o", "yaml"]).await.ok();
    cluster.kubectl(&["create", "namespace", MANAGERS], "").await;
    cluster.kubectl(&["apply", "--server-side", "-f", "-"], &yaml).await.ok();
    cluster.kubectl(&["wait", "--for=condition=Ready", "operator/etcd", "--timeout=180s"], "").await.ok();
    let scene = scene(&cluster).await;
    scene.apply_ready(ETCD, "example-etcd-cluster", &file(SEED)).await;
    // A second apply changes nothing, although the manager owns the parts now.
    let again = cluster.kubectl(&["apply", "--server-side", "-f", "-"], &yaml).await.ok();
    assert!(again.contains("operator.operetta.dev/etcd serverside-applied"), "{again}");
    assert!(is_active(&cluster.find(OPERATOR, "etcd").await.unwrap()));
    let revision = cluster.kubectl(&["get", "operatorrevisions", "-o", "name"], "").await.ok();
    let name = revision.trim().rsplit('/').next().unwrap();
    let uid = uid_of(&cluster.find(REVISION, name).await.unwrap()).to_owned();
    let parts = cluster.kubectl(&["-n", MANAGERS, "get", "configmaps", "-o", "json"], "").await.ok();
    let parts: Value = serde_json::from_str(&parts).unwrap();
    let of_revision = |part: &&Value| part["metadata"]["labels"]["operetta.dev/revision"] == name;
    let parts: Vec<&Value> = parts["items"].as_array().unwrap().iter().filter(of_revision).collect();
    assert!(!parts.is_empty());
    assert!(parts.iter().all(|part| part["metadata"]["ownerReferences"][0]["uid"] == *uid), "{parts:#?}");
    // Fields that kubectl owns stay kubectl's.
    cluster
        .kubectl(&["patch", "operator", "etcd", "--type=merge", "-p", r#"{"spec":{"paused":false}}"#], "")
        .await
        .ok();
    let package = Package::new("etcd", "9.9.9", "x");
    says(cluster.told(&["upgrade", package.folder()]).await, 1, &["conflict", "--force-conflicts"]);
}

#[tokio::test]
async fn an_archive_installs_the_revision_of_its_folder() {
    let cluster = Cluster::shared().await;
    let package = Package::new("tarred", "0.1.0", "a");
    let archive = tempfile::NamedTempFile::new().unwrap();
    let path = archive.path().to_str().unwrap();
    let tar = std::process::Command::new("tar").args(["-czf", path, "-C", package.folder(), "."]).status();
    assert!(tar.unwrap().success());
    cluster.operetta(&["install", path]).await.ok();
    let operator = cluster.until("tarred", "active", is_active).await;
    assert_eq!(operator["status"]["activeRevision"], package.revision().await.as_str());
    cluster.install(&package).await;
}

#[tokio::test]
async fn an_upgrade_reaches_instances_and_a_rollback_undoes_it() {
    let cluster = Cluster::shared().await;
    let package = Package::new("ups", "0.1.0", "old {{ spec.size }}");
    let first = package.revision().await;
    cluster.install(&package).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({"size": 3})).await;
    let before = scene.get(CONFIG_MAP, "one").await;
    assert_eq!(before["data"]["value"], "old 3");

    // The new revision has another kind, another field, and reads a field of a child.
    let parts = [
        Part::new(
            "ups",
            "size: {type: integer, default: 1}, more: {type: string, default: more}",
            "new {{ spec.more }}",
        ),
        Part::new("upsides", SIZE, "{{ spec.size }}"),
    ];
    package.write("0.2.0", &parts);
    let second = package.revision().await;
    let (code, told) = cluster.told(&["install", package.folder()]).await;
    assert!(
        code == 1 && told.contains(&format!("installed as {first}")) && told.contains("operetta upgrade"),
        "{told}"
    );
    cluster.operetta(&["upgrade", package.folder()]).await.ok();
    scene.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new more").await;
    let upgraded =
        |o: &Value| is_ready(o) && o["status"]["revision"].as_str().is_some_and(|r| r.starts_with("0.2.0"));
    scene.until("upgraded", package.kind(), "one", upgraded).await;
    scene.apply(&super::instance("upsides", "two", &json!({}))).await;
    scene.until("the new kind", CONFIG_MAP, "two", |o| o["data"]["value"] == "1").await;
    let operator = cluster.until("ups", "upgraded", is_active).await;
    assert_eq!(operator["status"]["activeRevision"], second.as_str());
    assert_eq!(operator["status"]["previousRevision"], first.as_str());
    let history = cluster.operetta(&["operators", "ups", "--history"]).await.ok();
    let lines: Vec<&str> = history.lines().collect();
    assert!(lines[1].contains(&second) && lines[1].contains("Completed"), "{history}");
    assert!(lines[2].contains(&first) && lines[2].contains(" (operetta-install)"), "{history}");
    assert_eq!(lines.len(), 3, "{history}");
    let events = async || {
        cluster.kubectl(&["get", "events", "--field-selector=involvedObject.name=ups"], "").await.ok()
    };
    eventually("an Event of the upgrade", LONG, async || {
        let told = events().await;
        let words = format!("{second} is active");
        if told.contains(&words) { Ok(()) } else { Err(told) }
    })
    .await;
    assert_eq!(operator["status"]["version"], "0.2.0");

    // The earlier revision lacks the new kind: the error says that its instances would be unmanaged.
    let (code, told) = cluster.told(&["rollback", "ups"]).await;
    assert!(
        code == 1 && told.contains("upsides.ops.example.org, of which there is 1 instance"),
        "{code} {told}"
    );
    let operator = cluster.until("ups", "as before", |o| !is_active(o)).await;
    assert_eq!(operator["status"]["activeRevision"], second.as_str());
    scene.kubectl(&["delete", "upsides.ops.example.org", "two"]).await;
    // The field is removed from the schema, and no value of it is stored.
    cluster.operetta(&["rollback", "ups", "--to", "0.1.0"]).await.ok();
    scene.until("rolled back", CONFIG_MAP, "one", |o| o["data"]["value"] == "old 3").await;
    scene.ready(package.kind(), "one").await;
    let after = scene.get(CONFIG_MAP, "one").await;
    assert_eq!((uid_of(&after), &after["data"]), (uid_of(&before), &before["data"]));
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    let operator = cluster.until("ups", "rolled back", is_active).await;
    assert_eq!(operator["status"]["previousRevision"], second.as_str());
    // Roll forward and back again.
    cluster.operetta(&["rollback", "ups"]).await.ok();
    scene.until("upgraded again", CONFIG_MAP, "one", |o| o["data"]["value"] == "new more").await;
    let (code, told) = cluster.told(&["rollback", "ups", "--to", "7.0.0"]).await;
    assert!(code == 1 && told.contains("no stored revision 7.0.0; there are ups-"), "{told}");
}

#[tokio::test]
async fn a_paused_operator_keeps_its_revision() {
    let cluster = Cluster::shared().await;
    let package = cluster.installed(Package::new("pauses", "0.1.0", "old")).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    let paused = |paused: bool| json!({"spec": {"paused": paused}}).to_string();
    cluster.kubectl(&["patch", "operator", "pauses", "--type=merge", "-p", &paused(true)], "").await.ok();
    package.write("0.2.0", &[Part::new("pauses", SIZE, "new")]);
    says(cluster.told(&["upgrade", package.folder()]).await, 3, &["not paused any more"]);
    // Instances are still reconciled.
    scene.kubectl(&["delete", "configmap", "one"]).await;
    scene.until("the old one", CONFIG_MAP, "one", |o| o["data"]["value"] == "old").await;
    cluster.kubectl(&["patch", "operator", "pauses", "--type=merge", "-p", &paused(false)], "").await.ok();
    scene.until("the new one", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
}

#[tokio::test]
async fn an_operator_has_the_name_of_its_package() {
    let cluster = Cluster::shared().await;
    let operator = json!({
        "apiVersion": "operetta.dev/v1alpha1", "kind": "Operator", "metadata": {"name": "one"},
        "spec": {"revision": "other-0123456789"},
    });
    let told = cluster.kubectl(&["apply", "-f", "-"], &operator.to_string()).await.fails();
    assert!(told.contains("spec.revision must name an OperatorRevision of the package one"), "{told}");
    let none = json!({
        "apiVersion": "operetta.dev/v1alpha1", "kind": "Operator", "metadata": {"name": "one"}, "spec": {},
    });
    let told = cluster.kubectl(&["apply", "-f", "-"], &none.to_string()).await.fails();
    assert!(told.contains("set one of spec.revision"), "{told}");
    let all = cluster.kubectl(&["get", "operetta"], "").await;
    assert!(all.status.success(), "{}", all.stderr);
}
