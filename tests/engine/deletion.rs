//! Deletion of instances: all children are deleted in order, whatever has happened to the package; retained
//! children stay.

use std::path::Path;

use crate::support::{
    CHAIN, CONFIG_MAP, ControlPlane, ETCD, Kind, LIGHT, LONG, Operetta, POD, ROLE, SECRET, SERVICE,
    SERVICE_ACCOUNT, Scene, copy_folder, eventually, file, find_in, fixture, is_managers, is_ready,
    kubectl_of, own_plane_of_tests, plane_of_tests, run, uid_of,
};
use operetta::local::Mark;
use serde_json::{Value, json};

fn chain(name: &str, spec: &Value) -> String {
    json!({"apiVersion": CHAIN.api_version(), "kind": "Chain", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

/// Waits until all objects of these kinds are gone except `left`.
async fn only(scene: &Scene, kinds: &[Kind], left: &[&str]) {
    eventually("all children to be gone", LONG, async || {
        let mut names = Vec::new();
        for kind in kinds {
            names.extend(scene.names(*kind).await);
        }
        if names == left { Ok(()) } else { Err(names.join(" ")) }
    })
    .await;
}

#[tokio::test]
async fn deleting_an_instance_deletes_children_of_any_kind() {
    let scene = Scene::new().await;
    scene.apply(&file(&format!("{}/instances/light.yaml", fixture("light")))).await;
    scene.apply(&file("examples/etcd/example-etcd-cluster.yaml")).await;
    scene.ready(LIGHT, "light").await;
    scene.ready(ETCD, "example-etcd-cluster").await;
    scene.kubectl(&["delete", "lights.fixtures.operetta.dev", "light"]).await;
    scene.kubectl(&["delete", "etcdclusters.etcd.database.coreos.com", "example-etcd-cluster"]).await;
    only(&scene, &[CONFIG_MAP, SECRET, SERVICE, SERVICE_ACCOUNT, ROLE, POD], &[]).await;
}

#[tokio::test]
async fn children_are_deleted_in_reverse_and_finalizer_last() {
    for cascade in ["background", "foreground"] {
        in_reverse(cascade).await;
    }
}

/// The garbage collector knows no order; with `--cascade=foreground` it deletes what an instance owns before
/// the instance is gone.
async fn in_reverse(cascade: &str) {
    let scene = Scene::new().await;
    let audit = plane_of_tests().await.audit();
    let mark = audit.mark().unwrap();
    let instance = scene.apply_ready(CHAIN, "chain", &chain("chain", &json!({"size": 3}))).await;
    assert_eq!(instance["metadata"]["finalizers"], json!(["operetta.dev/cleanup"]));
    let kept = scene.get(CONFIG_MAP, "chain-kept").await;
    assert_eq!(kept["metadata"]["annotations"]["operetta.dev/retained"], "false");
    scene.kubectl(&["delete", "chain", "chain", &format!("--cascade={cascade}")]).await;
    scene.gone(CHAIN, "chain").await;
    only(&scene, &[CONFIG_MAP, POD], &["chain-kept"]).await;

    let steps = eventually("the whole story in the audit log", LONG, async || {
        let steps = story(&audit, mark, scene.namespace());
        let ended = steps.iter().filter(|s| *s == "release chain").count();
        if ended == 1 { Ok(steps) } else { Err(format!("{steps:?}")) }
    })
    .await;
    let at =
        |step: &str| steps.iter().position(|s| s == step).unwrap_or_else(|| panic!("{step} in {steps:?}"));
    for (first, then) in [
        ("create chain-a", "create chain-b"),
        ("create chain-b", "create chain-c"),
        ("create chain-0", "create chain-roster"),
        ("delete chain-c", "delete chain-b"),
        ("delete chain-b", "delete chain-a"),
        ("delete chain-roster", "delete chain-0"),
        ("delete chain-roster", "delete chain-1"),
        ("delete chain-roster", "delete chain-2"),
    ] {
        assert!(at(first) < at(then), "{first} before {then}: {steps:?}");
    }
    assert_eq!(at("release chain"), steps.len() - 1, "{steps:?}");
    assert!(!steps.contains(&"delete chain-kept".to_owned()), "{steps:?}");
}

/// What the manager did in a namespace: first creations, deletions, and the last write to an instance.
fn story(audit: &operetta::local::AuditLog, mark: Mark, namespace: &str) -> Vec<String> {
    let mut requests = audit.requests_since(mark).unwrap();
    requests.retain(|r| is_managers(r) && r.namespace == namespace && r.resource != "events" && r.code < 300);
    requests.retain(|r| !r.uri.contains("dryRun=All"));
    let last_write = requests.iter().rposition(|r| r.resource == "chains" && r.verb == "patch");
    let mut steps = Vec::new();
    for (i, r) in requests.iter().enumerate() {
        match (r.verb.as_str(), r.code) {
            ("patch", 201) => steps.push(format!("create {}", r.name)),
            ("delete", _) => steps.push(format!("delete {}", r.name)),
            ("patch", _) if Some(i) == last_write => steps.push(format!("release {}", r.name)),
            _ => {}
        }
    }
    steps
}

#[tokio::test]
async fn retained_child_is_adopted_again() {
    let scene = Scene::new().await;
    let first = scene.apply_ready(CHAIN, "again", &chain("again", &json!({"size": 0, "stage": "one"}))).await;
    let kept = scene.get(CONFIG_MAP, "again-kept").await;
    let retained =
        |text: &'static str| move |o: &Value| o["metadata"]["annotations"]["operetta.dev/retained"] == text;

    // It is retained because the spec no longer wants it.
    scene.patch(CHAIN, "again", "merge", &json!({"spec": {"keep": false}})).await;
    scene.until("kept", CONFIG_MAP, "again-kept", retained("true")).await;
    scene.ready(CHAIN, "again").await;
    scene.patch(CHAIN, "again", "merge", &json!({"spec": {"keep": true, "stage": "two"}})).await;
    let taken = |o: &Value| retained("false")(o) && o["data"]["stage"] == "two";
    scene.until("taken again", CONFIG_MAP, "again-kept", taken).await;

    // It is retained because the instance is deleted.
    scene.ready(CHAIN, "again").await;
    scene.kubectl(&["delete", "chain", "again"]).await;
    let left = scene.until("kept", CONFIG_MAP, "again-kept", retained("true")).await;
    assert_eq!(uid_of(&left), uid_of(&kept));
    only(&scene, &[CONFIG_MAP], &["again-kept"]).await;
    scene.apply(&chain("again", &json!({"size": 0, "stage": "three"}))).await;
    let second = scene.ready(CHAIN, "again").await;
    assert_ne!(uid_of(&first), uid_of(&second));
    let taken = |o: &Value| retained("false")(o) && o["data"]["stage"] == "three";
    let map = scene.until("taken again", CONFIG_MAP, "again-kept", taken).await;
    assert_eq!(uid_of(&map), uid_of(&kept));
    assert_eq!(map["metadata"]["labels"]["operetta.dev/instance-uid"], uid_of(&second));
}

#[tokio::test]
async fn stuck_child_blocks_only_its_own_instance() {
    let scene = Scene::new().await;
    for name in ["stuck", "free"] {
        scene.apply(&chain(name, &json!({"size": 1, "keep": false}))).await;
    }
    scene.ready(CHAIN, "stuck").await;
    scene.ready(CHAIN, "free").await;
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    scene.patch(CONFIG_MAP, "stuck-c", "merge", &hold).await;
    scene.kubectl(&["delete", "chain", "stuck", "--wait=false"]).await;
    let holds = |o: &Value| !o["metadata"]["deletionTimestamp"].is_null();
    scene.until("being deleted", CONFIG_MAP, "stuck-c", holds).await;
    scene.kubectl(&["delete", "chain", "free"]).await;
    scene.gone(CHAIN, "free").await;
    let named = |o: &Value| {
        let text = o["status"]["conditions"].to_string();
        text.contains("stuck-c") && text.contains("example.org/hold")
    };
    scene.until("to say what holds it", CHAIN, "stuck", named).await;
    let marker = chain("marker", &json!({"size": 1, "keep": false}));
    scene.handled(&scene.address(), &marker, CHAIN, &[CONFIG_MAP]).await;
    // The children that c depends on wait for its end, and so does the instance.
    for name in ["stuck-a", "stuck-b", "stuck-c"] {
        scene.get(CONFIG_MAP, name).await;
    }
    scene.patch(CONFIG_MAP, "stuck-c", "merge", &json!({"metadata": {"finalizers": null}})).await;
    scene.gone(CHAIN, "stuck").await;
    only(&scene, &[CONFIG_MAP, POD], &[]).await;
}

#[tokio::test]
async fn namespace_with_instances_is_deleted() {
    let scene = Scene::new().await;
    scene.apply(&chain("chain", &json!({"size": 2}))).await;
    scene.apply(&file("examples/etcd/example-etcd-cluster.yaml")).await;
    scene.ready(CHAIN, "chain").await;
    scene.ready(ETCD, "example-etcd-cluster").await;
    scene.kubectl(&["delete", "namespace", scene.namespace(), "--timeout=300s"]).await;
}

#[tokio::test]
async fn cascade_orphan_leaves_children() {
    let scene = Scene::new().await;
    scene.apply_ready(LIGHT, "light", &file(&format!("{}/instances/light.yaml", fixture("light")))).await;
    let before = scene.get(CONFIG_MAP, "light").await;
    scene.collector_knows(&[CONFIG_MAP]).await;
    scene.kubectl(&["delete", "lights.fixtures.operetta.dev", "light", "--cascade=orphan"]).await;
    scene.gone(LIGHT, "light").await;
    let marker = json!({"apiVersion": LIGHT.api_version(), "kind": "Light", "metadata": {"name": "marker"}, "spec": {}});
    scene.handled(&scene.address(), &marker.to_string(), LIGHT, &[CONFIG_MAP]).await;
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "light").await), uid_of(&before));
}

/// Uses a package of its own that can vanish, and three managers one after another.
#[tokio::test]
async fn missing_package_does_not_block_deletion() {
    let plane = own_plane_of_tests().await;
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("ordered");
    copy_folder(Path::new(&fixture("ordered")), &package, &|text| text);
    let path = package.to_str().unwrap().to_owned();
    let mut manager = run(&plane, &[&path, "light"]).watching(2).await;
    for name in ["first", "second", "third"] {
        apply_in(&plane, &chain(name, &json!({"size": 0}))).await;
        ready_in(&plane, name, &manager).await;
    }
    // The package vanishes while the manager runs.
    std::fs::remove_dir_all(&package).unwrap();
    delete_in(&plane, "first", &manager).await;
    // The next manager finds no package.
    manager.end().await;
    let mut manager = run(&plane, &[&path, "light"]).watching(2).await;
    delete_in(&plane, "second", &manager).await;
    // The third manager finds only a package that cannot be read.
    manager.end().await;
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("operator.yaml"), b"\xff\xfe: [").unwrap();
    let manager = run(&plane, &[&path]).watching(1).await;
    assert!(manager.output().contains("operator.yaml"), "{}", manager.output());
    delete_in(&plane, "third", &manager).await;
}

async fn apply_in(plane: &ControlPlane, manifest: &str) {
    kubectl_of(plane, &["apply", "-f", "-"], manifest).await.ok();
}

async fn ready_in(plane: &ControlPlane, name: &str, manager: &Operetta) {
    eventually("a chain to be Ready", LONG, async || {
        match find_in(plane, CHAIN, Some("default"), name).await {
            Some(chain) if is_ready(&chain) => Ok(()),
            other => Err(format!("{other:?}\n{}", manager.output())),
        }
    })
    .await;
}

/// Deletes a chain, and waits until it and its children are gone except the retained one.
async fn delete_in(plane: &ControlPlane, name: &str, manager: &Operetta) {
    kubectl_of(plane, &["delete", "chain", name, "--wait=false"], "").await.ok();
    let left = async || {
        let mut left = Vec::new();
        if find_in(plane, CHAIN, Some("default"), name).await.is_some() {
            left.push(name.to_owned());
        }
        for child in ["a", "b", "c", "roster"] {
            let child = format!("{name}-{child}");
            if find_in(plane, CONFIG_MAP, Some("default"), &child).await.is_some() {
                left.push(child);
            }
        }
        left
    };
    eventually("a chain to be gone", LONG, async || {
        let left = left().await;
        let is_gone = left.is_empty();
        if is_gone { Ok(()) } else { Err(format!("{} is left\n{}", left.join(", "), manager.output())) }
    })
    .await;
    let kept =
        find_in(plane, CONFIG_MAP, Some("default"), &format!("{name}-kept")).await.expect("what is retained");
    assert_eq!(kept["metadata"]["annotations"]["operetta.dev/retained"], "true");
}
