//! Conversion between the versions of a CRD, by the webhook of a manager that an API server calls, which only a process serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::crds::{config, live, package, until_versions, versions};
use crate::support::ext::{CONFIG_MAP, Kind, LONG, SECRET, Scene, find_in, kind, name_of, run_as, run_flags};
use crate::support::{eventually, plane};

const RULES: &str = "      conversion:
        versions:
          v1alpha1:
            - {move: spec.replicas, to: spec.size}
            - {default: spec.mode, value: fast}
            - {keep: spec.note}
";

/// Writes a package with or without conversion rules. Returns its folder.
fn write(
    root: &std::path::Path,
    plural: &str,
    kind: &str,
    list: &[(&str, bool, Value)],
    rules: &str,
) -> String {
    let value = if list.iter().any(|(name, ..)| *name == "v1") { "spec.size" } else { "spec.replicas" };
    let folder = package(root, plural, &versions(plural, kind, list), false, &[&config(value)]);
    let file = format!("{folder}/operator.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("      adopt: false\n", rules)).unwrap();
    folder
}

fn old() -> Value {
    json!({"replicas": {"type": "integer"}, "note": {"type": "string"}})
}

fn new() -> Value {
    json!({"size": {"type": "integer"}, "mode": {"type": "string", "enum": ["fast", "safe"]}})
}

/// Starts a manager with a webhook on this machine.
async fn run_webhook(name: &str, folder: &str) -> crate::support::Operetta {
    let lease = format!("--leader-elect-resource-name={name}");
    let flags = ["--leader-elect=false", lease.as_str(), "--webhook-listen=127.0.0.1:0"];
    run_flags(plane().await, &flags, &[folder])
}

fn instance(version: &str, kind: &str, name: &str, spec: &Value) -> String {
    json!({"apiVersion": format!("crds.example.org/{version}"), "kind": kind, "metadata": {"name": name}, "spec": spec})
        .to_string()
}

#[tokio::test]
async fn objects_convert_between_versions_without_loss() {
    const OLD: Kind = kind("crds.example.org/v1alpha1", "sizes");
    const NEW: Kind = kind("crds.example.org/v1", "sizes");
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::unmanaged().await;
    let folder = write(root.path(), "sizes", "Size", &[("v1alpha1", true, old())], "");
    let mut manager = run_as("sizes", plane().await, &[&folder]);
    manager.wait_for("watching instances", LONG).await;
    for number in 0..20 {
        let spec = json!({"replicas": number, "note": format!("n{number}")});
        scene.apply(&instance("v1alpha1", "Size", &format!("i{number}"), &spec)).await;
    }
    scene.ready(OLD, "i19").await;
    manager.kill9();

    // Without a webhook the CRD stays unchanged, and the manager says what is missing.
    let both = [("v1alpha1", false, old()), ("v1", true, new())];
    let folder = write(root.path(), "sizes", "Size", &both, RULES);
    let mut manager = run_as("sizes", plane().await, &[&folder]);
    manager.wait_for("serves no conversion webhook", LONG).await;
    manager.kill9();
    assert_eq!(live("sizes").await.unwrap()["spec"]["versions"].as_array().unwrap().len(), 1);

    // A preview shows what a manager with a webhook does: no value is lost.
    let preview = async |args: &[&str]| {
        let args: Vec<&str> = ["preview", &folder].into_iter().chain(args.iter().copied()).collect();
        let output = crate::support::operetta(plane().await.kubeconfig_path(), &args).await;
        (output.status.code(), output.stdout.clone(), output.stderr)
    };
    let (code, told, errors) = preview(&["-o", "json"]).await;
    let report: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}{errors}"));
    let crd = &report["crds"][0];
    assert!(code == Some(0) && crd["write"] == "Updated" && crd["rejected"].is_null(), "{report:#}");
    assert_eq!(report["summary"]["refused"], 0, "{report:#}");
    assert!(!told.contains("clientConfig"), "{crd:#}");
    let changes =
        report["instances"].as_array().unwrap().iter().flat_map(|i| i["changes"].as_array().unwrap());
    let values: Vec<&Value> = changes
        .flat_map(|change| change["fields"].as_array().unwrap())
        .filter(|field| field["path"].as_str().is_some_and(|path| path.starts_with("data")))
        .collect();
    assert_eq!(values, [&json!(null); 0], "the children have the converted values");

    // With a webhook the objects are converted and stored in the new version.
    let mut manager = run_webhook("sizes", &folder).await;
    until_versions("sizes", &["v1alpha1", "v1"], &["v1"]).await;
    for number in [0, 7, 19] {
        let name = format!("i{number}");
        assert_eq!(scene.get(NEW, &name).await["spec"], json!({"size": number, "mode": "fast"}));
        let spec = &scene.get(OLD, &name).await["spec"];
        assert_eq!(*spec, json!({"replicas": number, "note": format!("n{number}")}));
        scene.ready(NEW, &name).await;
        assert_eq!(scene.get(CONFIG_MAP, &name).await["data"]["value"], number.to_string());
    }

    // kubectl applies an object in one version, and it is read and changed in the other: client-side and
    // server-side.
    for (name, flags) in [("client", &["apply"][..]), ("server", &["apply", "--server-side"])] {
        let apply = async |version: &str, spec: Value| {
            let args: Vec<&str> = flags.iter().copied().chain(["-f", "-"]).collect();
            let text = instance(version, "Size", name, &spec);
            scene.kubectl_input(&args, &text).await.unwrap();
        };
        apply("v1alpha1", json!({"replicas": 3, "note": "kept"})).await;
        assert_eq!(scene.get(NEW, name).await["spec"], json!({"size": 3, "mode": "fast"}), "{name}");
        let patch = r#"{"spec": {"mode": "safe"}}"#;
        scene.kubectl(&["patch", "sizes.v1.crds.example.org", name, "--type=merge", "-p", patch]).await;
        assert_eq!(scene.get(OLD, name).await["spec"], json!({"replicas": 3, "note": "kept"}), "{name}");
        apply("v1alpha1", json!({"replicas": 4, "note": "kept"})).await;
        assert_eq!(scene.get(NEW, name).await["spec"], json!({"size": 4, "mode": "safe"}), "{name}");
        assert_eq!(scene.get(OLD, name).await["spec"], json!({"replicas": 4, "note": "kept"}), "{name}");
        scene.until("the child", CONFIG_MAP, name, |child| child["data"]["value"] == "4").await;
    }
    let lists = (scene.list(OLD).await, scene.list(NEW).await);
    assert_eq!((lists.0.len(), lists.1.len()), (22, 22));
    assert!(
        lists.0.iter().all(|object| object["spec"]["size"].is_null()),
        "{:#?}",
        lists.0.first().map(name_of)
    );

    // The annotation cannot bring in a value that the schema of the other version refuses.
    let evil = json!({"apiVersion": "crds.example.org/v1alpha1", "kind": "Size", "metadata": {"name": "evil",
        "annotations": {"operetta.dev/other-versions": r#"{"v1":[[["spec","mode"],"evil"]]}"#}}, "spec": {"replicas": 1}});
    scene.apply(&evil.to_string()).await;
    assert_eq!(scene.get(NEW, "evil").await["spec"], json!({"size": 1, "mode": "fast"}));

    // An object whose kept value does not fit into its annotations stays readable. Only writes in the version
    // that lacks the value are refused.
    let filler = "x".repeat((256 << 10) - 60);
    let full = json!({"apiVersion": "crds.example.org/v1", "kind": "Size",
        "metadata": {"name": "full", "annotations": {"a": filler}}, "spec": {"size": 1, "mode": "safe"}});
    scene.kubectl_input(&["create", "-f", "-"], &full.to_string()).await.unwrap();
    assert_eq!(scene.list(OLD).await.len(), scene.list(NEW).await.len());
    assert_eq!(scene.get(OLD, "full").await["spec"], json!({"replicas": 1}));
    let patch = |resource: &'static str, patch: &'static str| {
        ["patch", resource, "full", "--type=merge", "-p", patch]
    };
    // The manager reads the stored versions again after 30 s.
    eventually("a refused write", LONG, async || {
        let args = patch("sizes.v1alpha1.crds.example.org", r#"{"metadata": {"labels": {"a": "b"}}}"#);
        match scene.kubectl_input(&args, "").await {
            Err(error) if error.contains("no room for them in the annotations") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let args = patch("sizes.v1.crds.example.org", r#"{"spec": {"size": 2, "mode": "safe"}}"#);
    scene.kubectl_input(&args, "").await.unwrap();
    assert_eq!(scene.get(NEW, "full").await["spec"], json!({"size": 2, "mode": "safe"}));
    manager.kill9();

    // Nothing is stored in the former version any more: it is removed, and the webhook with it.
    let folder = write(root.path(), "sizes", "Size", &[("v1", true, new())], "");
    let mut manager = run_as("sizes", plane().await, &[&folder]);
    until_versions("sizes", &["v1"], &["v1"]).await;
    eventually("no conversion", LONG, async || {
        let crd = live("sizes").await.ok_or("no CRD")?;
        let strategy = crd["spec"]["conversion"]["strategy"].clone();
        if strategy == "None" { Ok(()) } else { Err(strategy.to_string()) }
    })
    .await;
    assert_eq!(scene.get(NEW, "client").await["spec"], json!({"size": 4, "mode": "safe"}));
    manager.kill9();
}

#[tokio::test]
async fn requests_succeed_while_the_certificate_is_replaced() {
    const OLD: Kind = kind("crds.example.org/v1alpha1", "turns");
    const SECRET_NAME: &str = "turns-webhook";
    const SYSTEM: Option<&str> = Some("operetta-system");
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::unmanaged().await;
    let both = [("v1alpha1", false, old()), ("v1", true, new())];
    let folder = write(root.path(), "turns", "Turn", &both, RULES);
    let mut manager = run_webhook("turns", &folder).await;
    manager.wait_for("watching instances", LONG).await;
    scene.apply(&instance("v1", "Turn", "one", &json!({"size": 2, "mode": "safe"}))).await;
    eventually("the first conversion", LONG, async || {
        let client = scene.client();
        let path = OLD.path(Some(scene.namespace()), "one");
        crate::support::ext::read(&client, &path).await.map(|_| ()).ok_or("not readable")
    })
    .await;

    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (client, path) = (scene.client(), OLD.path(Some(scene.namespace()), "one"));
    let reader = tokio::spawn({
        let (stop, reads) = (Arc::clone(&stop), Arc::clone(&reads));
        async move {
            while !stop.load(Ordering::Relaxed) {
                let request = http::Request::get(&path).body(Vec::new()).unwrap();
                let object: Value = client.request(request).await.unwrap_or_else(|error| panic!("{error:?}"));
                assert_eq!(object["spec"], json!({"replicas": 2}));
                reads.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let secret = async || find_in(plane().await, SECRET, SYSTEM, SECRET_NAME).await;
    let first = secret().await.unwrap();
    let patch = r#"[{"op": "remove", "path": "/data/tls.crt"}, {"op": "remove", "path": "/data/tls.key"}]"#;
    let args = ["patch", "secret", SECRET_NAME, "-n", "operetta-system", "--type=json", "-p", patch];
    crate::support::kubectl(&args).await.ok();
    let second = eventually("another certificate", LONG, async || {
        secret().await.filter(|s| s["data"]["tls.crt"].is_string()).ok_or("none")
    })
    .await;
    assert_ne!(first["data"]["tls.crt"], second["data"]["tls.crt"]);
    assert_eq!(first["data"]["ca.crt"], second["data"]["ca.crt"]);
    // API servers keep connections open: new connections must get the new certificate as well.
    crate::support::kubectl(&["delete", "secret", SECRET_NAME, "-n", "operetta-system"]).await.ok();
    let third = eventually("the Secret", LONG, async || secret().await.ok_or("none")).await;
    assert_eq!(third["data"], second["data"]);
    let before = reads.load(Ordering::Relaxed);
    eventually("more reads", LONG, async || {
        if reads.load(Ordering::Relaxed) > before + 20 || reader.is_finished() { Ok(()) } else { Err("few") }
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    reader.await.unwrap();
    let bundle = &live("turns").await.unwrap()["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"];
    assert_eq!(*bundle, third["data"]["ca.crt"]);
    manager.kill9();

    // Another process has another address. Objects are converted by it as soon as the CRD names it.
    let mut manager = run_webhook("turns", &folder).await;
    eventually("the object", LONG, async || {
        let args = ["get", "turns.v1alpha1.crds.example.org", "one", "-o", "jsonpath={.spec}"];
        let spec = scene.kubectl_input(&args, "").await?;
        if spec == r#"{"replicas":2}"# { Ok(()) } else { Err(spec) }
    })
    .await;
    manager.kill9();
}
