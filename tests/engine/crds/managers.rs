//! Several managers in one cluster, each with its own packages; and a manager that recovers from panics.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, Uri};
use kube::client::Body;
use operetta::cluster::Cluster;
use operetta::local::AuditEvent;
use operetta::manager::{Config, Manager};
use serde_json::json;

use crate::support::crds::{SIZE, config, crd, has_status, instance, live, package, schema, until_crd};
use crate::support::ext::{CONFIG_MAP, Kind, LONG, Scene, condition, file, kind, list, time_of};
use crate::support::rights::decides;
use crate::support::{ControlPlane, Operetta, eventually, kubectl, kubectl_of};

/// Lets an account of the namespace `kube-system` do everything.
async fn admin(plane: &ControlPlane, account: &str) {
    kubectl_of(plane, &["-n", "kube-system", "create", "serviceaccount", account], "").await.ok();
    let subject = format!("--serviceaccount=kube-system:{account}");
    let args = ["create", "clusterrolebinding", account, "--clusterrole=cluster-admin", &subject];
    kubectl_of(plane, &args, "").await.ok();
    let user = operetta::rights::user("kube-system", account);
    decides(plane, &user, "", ("create", "", "configmaps"), true).await;
}

/// Starts a manager with this Lease, as an account by which its requests are known.
async fn run_by(account: &str, plane: &ControlPlane, lease: &str, packages: &[&str]) -> Operetta {
    let lease = format!("--leader-elect-resource-name={lease}");
    let args = [&["run", "--leader-elect=false", &lease][..], packages].concat();
    Operetta::run_as_account(plane, "kube-system", account, &args).await
}

/// Whether a request is by this account.
fn is_by(account: &str) -> impl Fn(&AuditEvent) -> bool {
    let user = operetta::rights::user("kube-system", account);
    move |event| event.user == user
}

#[tokio::test]
async fn managers_of_different_packages_do_not_interfere() {
    const LEFT: Kind = kind("crds.example.org/v1", "lefts");
    const RIGHT: Kind = kind("crds.example.org/v1", "rights");
    let root = tempfile::tempdir().unwrap();
    let shown = config("spec.size");
    // A child with a dependency needs our finalizer to be deleted in order.
    let second = shown.replace("{{ name }}", "{{ name }}-second");
    let left = package(root.path(), "lefts", &crd("lefts", "Left", &schema(SIZE)), false, &[&shown, &second]);
    let right =
        package(root.path(), "rights", &crd("rights", "Right", &schema(SIZE)), false, &[&shown, &second]);
    let scene = Scene::unmanaged().await;
    let plane = scene.plane();
    admin(plane, "left").await;
    admin(plane, "right").await;
    let mut a = run_by("left", plane, "left", &[&left]).await.watching(1).await;
    let mark = plane.audit().mark().unwrap();
    let mut b = run_by("right", plane, "right", &[&right]).await.watching(1).await;
    a.wait_for("another manager reconciles the instances of this CRD crd=rights", LONG).await;
    b.wait_for("another manager reconciles the instances of this CRD crd=lefts", LONG).await;
    let lease = || async {
        let crd = live("rights").await.unwrap_or_default();
        crd["metadata"]["annotations"]["operetta.dev/manager"].as_str().map(str::to_owned)
    };
    assert_eq!(lease().await.as_deref(), Some("operetta-system/right"));

    for (kind, of, name) in [("Left", LEFT, "a"), ("Right", RIGHT, "b"), ("Right", RIGHT, "c")] {
        scene.apply_ready(of, name, &instance(kind, name, &json!({"size": 3}))).await;
    }
    // The responsible manager is stopped: no other manager completes the deletion.
    b.kill9();
    scene.kubectl(&["delete", "rights.crds.example.org", "b", "--wait=false"]).await;
    for name in ["d", "e"] {
        scene.apply_ready(LEFT, name, &instance("Left", name, &json!({}))).await;
        scene.kubectl(&["delete", "lefts.crds.example.org", name]).await;
        scene.gone(CONFIG_MAP, name).await;
    }
    for name in ["b", "b-second", "c", "c-second"] {
        let child = scene.get(CONFIG_MAP, name).await;
        assert!(child["metadata"]["deletionTimestamp"].is_null(), "{child:#}");
    }
    let going = scene.get(RIGHT, "b").await;
    assert_eq!(condition(&going, "Ready")["status"], "True", "nobody has said a word about it");
    let mut meddled = plane.audit().requests_since(mark).unwrap();
    let is_left = is_by("left");
    meddled.retain(|event| is_left(event) && event.resource == "rights");
    assert!(meddled.is_empty(), "it meddles:\n{}", list(&meddled));

    // A manager with the same Lease completes the deletion although it has lost the package.
    let third = package(root.path(), "thirds", &crd("thirds", "Third", &schema(SIZE)), false, &[&shown]);
    let mut b = run_by("right", plane, "right", &[&third]).await;
    b.wait_for("package not active: its instances are not reconciled", LONG).await;
    scene.gone(RIGHT, "b").await;
    scene.gone(CONFIG_MAP, "b").await;

    // A manager that starts with the package manages it from then on.
    a.end().await;
    let _a = run_by("left", plane, "left", &[&left, &right]).await.watching(2).await;
    b.wait_for("another manager reconciles the instances of this CRD crd=rights", LONG).await;
    assert_eq!(lease().await.as_deref(), Some("operetta-system/left"));
    scene.patch(RIGHT, "c", "merge", &json!({"spec": {"size": 4}})).await;
    scene.until("followed", CONFIG_MAP, "c", |o| o["data"]["value"] == "4").await;
    scene.ready(RIGHT, "c").await;
}

/// Two managers use the same Lease name without leader election and have different packages: the one without
/// the package waits longer and longer between writes.
#[tokio::test]
async fn a_manager_without_the_package_does_not_fight_over_statuses() {
    const FIGHT: Kind = kind("crds.example.org/v1", "fights");
    let root = tempfile::tempdir().unwrap();
    let shown = config("spec.size");
    let fights = package(root.path(), "fights", &crd("fights", "Fight", &schema(SIZE)), false, &[&shown]);
    let others = package(root.path(), "peaces", &crd("peaces", "Peace", &schema(SIZE)), false, &[&shown]);
    let scene = Scene::unmanaged().await;
    let plane = scene.plane();
    admin(plane, "with").await;
    admin(plane, "without").await;
    let _a = run_by("with", plane, "fights", &[&fights]).await.watching(1).await;
    scene.apply_ready(FIGHT, "one", &instance("Fight", "one", &json!({}))).await;
    let audit = plane.audit();
    let mark = audit.mark().unwrap();
    let mut b = run_by("without", plane, "fights", &[&others]).await;
    b.wait_for("package not active: its instances are not reconciled", LONG).await;
    // They write in turns, and the one without the package waits 1 s, then 2 s.
    let (times, all) = eventually("three writes of the one without", LONG, async || {
        let mut writes = audit.requests_since(mark).unwrap();
        writes
            .retain(|event| event.resource == "fights" && event.subresource == "status" && event.code == 200);
        let is_without = is_by("without");
        let times: Vec<_> = writes.iter().filter(|event| is_without(event)).map(time_of).collect();
        if times.len() < 3 { Err(list(&writes)) } else { Ok((times, list(&writes))) }
    })
    .await;
    for (pair, pause) in times.windows(2).zip([1, 2]) {
        assert!(pair[1].duration_since(pair[0]).as_secs() >= pause, "{all}");
    }
}

/// A package that has children of a kind that one of its refs also reads.
fn readers(root: &Path) -> String {
    let fields = "size: {type: integer, default: 1}, source: {type: string}";
    let shown = config("refs.source.data.value if spec.source is defined else spec.size");
    let folder = package(root, "readers", &crd("readers", "Reader", &schema(fields)), false, &[&shown]);
    let manifest = Path::new(&folder).join("operator.yaml");
    let source = "      refs:
        - {id: source, apiVersion: v1, kind: ConfigMap, name: '{{ spec.source }}', when: spec.source is defined}
";
    std::fs::write(&manifest, file(manifest.to_str().unwrap()) + source).unwrap();
    folder
}

/// When the watch of a ref ends, children of the same kind are not taken for lost.
#[tokio::test]
async fn ended_watch_of_a_ref_loses_no_children() {
    const READER: Kind = kind("crds.example.org/v1", "readers");
    let scene = Scene::unmanaged().await;
    let root = tempfile::tempdir().unwrap();
    let (package, _) = operetta::package::load(readers(root.path()).as_ref()).unwrap();
    let upstream = scene.plane().managers_client().await;
    let refused = Arc::new(AtomicUsize::new(NOTHING));
    let next = Arc::clone(&refused);
    let namespace = format!("/namespaces/{}/configmaps?", scene.namespace());
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let uri = request.uri().to_string();
        let is_ref = uri.contains(&namespace) && uri.contains("fieldSelector=");
        let is_refused =
            is_ref && next.compare_exchange(WATCH, NOTHING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let upstream = upstream.clone();
        async move {
            if is_refused {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"});
                return Ok(Response::builder()
                    .status(404)
                    .body(Body::from(status.to_string().into_bytes()))?);
            }
            if is_ref {
                // Let the watch end soon.
                *request.uri_mut() = uri.replace("timeoutSeconds=290", "timeoutSeconds=1").parse::<Uri>()?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(upstream.send(request).await?)
        }
    });
    let cluster = Cluster::new(kube::Client::new(service, "default"));
    let config = Config { lease: "tests/readers".into(), ..Config::default() };
    let manager = Manager::start(cluster, vec![Arc::new(package)], config).await.unwrap();
    assert!(manager.problems.is_empty(), "{:?}", manager.problems);
    let source = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "source"}, "data": {"value": "7"}});
    scene.apply(&source.to_string()).await;
    for (name, spec) in [("reader", json!({"source": "source"})), ("other", json!({}))] {
        scene.apply_ready(READER, name, &instance("Reader", name, &spec)).await;
    }
    refused.store(WATCH, Ordering::SeqCst);
    eventually("the ref not to be found", LONG, async || match refused.load(Ordering::SeqCst) {
        NOTHING => Ok(()),
        _ => Err("not yet"),
    })
    .await;
    scene.patch(READER, "other", "merge", &json!({"spec": {"size": 3}})).await;
    scene.until("followed", CONFIG_MAP, "other", |o| o["data"]["value"] == "3").await;
    scene.ready(READER, "other").await;
    scene.ready(READER, "reader").await;
    manager.stop().await;
}

/// What panics next.
const NOTHING: usize = 0;
const WATCH: usize = 1;
const LOOK: usize = 2;

#[tokio::test]
async fn crds_are_reconciled_after_a_panic() {
    const PLURAL: &str = "breaks";
    const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const BREAK: Kind = kind("crds.example.org/v1", PLURAL);
    let scene = Scene::unmanaged().await;
    let root = tempfile::tempdir().unwrap();
    let folder =
        package(root.path(), PLURAL, &crd(PLURAL, "Break", &schema(SIZE)), false, &[&config("spec.size")]);
    let (package, _) = operetta::package::load(folder.as_ref()).unwrap();
    let upstream = scene.plane().managers_client().await;
    let next = Arc::new(AtomicUsize::new(NOTHING));
    let broken = Arc::clone(&next);
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (upstream, next) = (upstream.clone(), Arc::clone(&broken));
        async move {
            let uri = request.uri().to_string();
            let breaks = |what: usize| {
                next.compare_exchange(what, NOTHING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            };
            if uri.starts_with(CRDS) && uri.contains("watch=true") {
                assert!(!breaks(WATCH), "a watch that panics, made by a test");
                // Let the watch end soon.
                *request.uri_mut() = uri.replace("timeoutSeconds=290", "timeoutSeconds=1").parse::<Uri>()?;
            }
            if uri.starts_with(&format!("{CRDS}/{PLURAL}")) {
                assert!(!breaks(LOOK), "a look that panics, made by a test");
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(upstream.send(request).await?)
        }
    });
    let cluster = Cluster::new(kube::Client::new(service, "default"));
    let config = Config { lease: "tests/panics".into(), ..Config::default() };
    let manager = Manager::start(cluster, vec![Arc::new(package)], config).await.unwrap();
    assert!(manager.problems.is_empty(), "{:?}", manager.problems);
    scene.apply_ready(BREAK, "one", &instance("Break", "one", &json!({"size": 3}))).await;

    for (what, size) in [(LOOK, "4"), (WATCH, "5")] {
        next.store(what, Ordering::SeqCst);
        if what == WATCH {
            eventually("the panic", LONG, async || match next.load(Ordering::SeqCst) {
                NOTHING => Ok(()),
                _ => Err("not yet"),
            })
            .await;
        }
        let patch = r#"[{"op": "remove", "path": "/spec/versions/0/subresources"}]"#;
        kubectl(&["patch", "crd", "breaks.crds.example.org", "--type=json", "-p", patch]).await.ok();
        until_crd(PLURAL, "mended", has_status).await;
        assert_eq!(next.load(Ordering::SeqCst), NOTHING, "nothing has panicked");
        // Instances were reconciled all the time, and are written again.
        let number: u32 = size.parse().unwrap();
        scene.patch(BREAK, "one", "merge", &json!({"spec": {"size": number}})).await;
        scene.until("followed", CONFIG_MAP, "one", |o| o["data"]["value"] == size).await;
        scene.ready(BREAK, "one").await;
    }
    // A CRD that was deleted meanwhile is created again, and so can its instances be.
    kubectl(&["delete", "crd", "breaks.crds.example.org"]).await.ok();
    until_crd(PLURAL, "made anew", has_status).await;
    eventually("a new instance", LONG, async || {
        scene.kubectl_input(&["apply", "-f", "-"], &instance("Break", "two", &json!({}))).await
    })
    .await;
    scene.ready(BREAK, "two").await;
    manager.stop().await;
}
