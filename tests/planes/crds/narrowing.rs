//! A CRD that would lose values of its instances, and packages that are not active: nothing is lost, and the
//! instances, the probes and the log report it.

use std::process::Command;

use operetta::local::AuditEvent;
use serde_json::{Value, json};

use super::{config, crd, instance, live, operetta, package, schema};
use crate::leader::LEASE;
use crate::support::ext::{
    CONFIG_MAP, EVENT, Kind, LONG, Scene, condition, is_ready, kind, run_as, run_flags,
};
use crate::support::{OPERETTA, Operetta, eventually, kubectl, plane};

/// The answer of a manager's `/readyz`.
async fn readyz(manager: &mut Operetta) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    manager.wait_for("/debug/state address=", LONG).await;
    let output = manager.output();
    let (_, address) = output.split_once("/debug/state address=").unwrap();
    let address = address.split_whitespace().next().unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn until_readyz(manager: &mut Operetta, words: &[&str]) {
    eventually(&format!("/readyz to say {words:?}"), LONG, async || {
        let answer = readyz(manager).await;
        if words.iter().all(|word| answer.contains(word)) { Ok(()) } else { Err(answer) }
    })
    .await;
}

/// Waits until an instance reports that its package is not active. Returns the message.
async fn not_loaded(scene: &Scene, kind: Kind, name: &str, words: &[&str]) -> String {
    let object = scene
        .until("PackageNotLoaded", kind, name, |o| {
            let (ready, stalled) = (condition(o, "Ready"), condition(o, "Stalled"));
            let message = ready["message"].as_str().unwrap_or_default();
            ready["status"] == "Unknown"
                && ready["reason"] == "PackageNotLoaded"
                && stalled["status"] == "True"
                && words.iter().all(|word| message.contains(word))
        })
        .await;
    condition(&object, "Ready")["message"].as_str().unwrap().to_owned()
}

/// Runs `operetta lint --cluster`. Returns whether it finds nothing, and its output.
async fn lint(folder: &str) -> (bool, String) {
    let output = Command::new(OPERETTA)
        .args(["lint", "--cluster", "-o", "json", folder])
        .env("KUBECONFIG", plane().await.kubeconfig_path())
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test]
async fn a_schema_that_would_lose_values_waits_for_a_person() {
    const SHRINK: Kind = kind("crds.example.org/v1", "shrinks");
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::unmanaged().await;
    let wide = "size: {type: integer, default: 1}, colour: {type: string}";
    let shown = config("spec.size");
    let write = |fields: &str| {
        package(root.path(), "shrinks", &crd("shrinks", "Shrink", &schema(fields)), false, &[&shown])
    };
    let folder = write(wide);
    let mut manager = run_as("narrowing", plane().await, &[&folder]);
    manager.wait_for("watching instances", LONG).await;
    scene.apply(&instance("Shrink", "red", &json!({"size": 3, "colour": "red"}))).await;
    scene.apply(&instance("Shrink", "plain", &json!({"size": 9}))).await;
    for name in ["red", "plain"] {
        scene.ready(SHRINK, name).await;
    }
    until_readyz(&mut manager, &[" 200 "]).await;
    manager.kill9();

    // One instance loses a value, the other becomes invalid. A lint without `--cluster` does not read the
    // cluster.
    let narrow = "size: {type: integer, default: 1, maximum: 5}";
    let folder = write(narrow);
    operetta(&["lint", "--strict", &folder]);
    let (fine, told) = lint(&folder).await;
    let words = [
        "2 instances",
        "spec.colour is not in the schema",
        "spec.size must be at most 5",
        "kubectl annotate crd",
    ];
    assert!(!fine && words.iter().all(|word| told.contains(word)), "{told}");
    let mut manager = run_as("narrowing", plane().await, &[&folder]);
    manager.wait_for("stays as it is", LONG).await;
    let message = not_loaded(&scene, SHRINK, "red", &words).await;
    not_loaded(&scene, SHRINK, "plain", &words).await;
    until_readyz(&mut manager, &[" 503 ", "shrinks", "stays as it is"]).await;
    let fields = |crd: &Value| {
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].clone()
    };
    assert!(fields(&live("shrinks").await.unwrap())["colour"].is_object());
    assert_eq!(scene.get(SHRINK, "red").await["spec"]["colour"], "red");
    // Children stay and are not repaired; `get` reports the same as the condition.
    scene.get(CONFIG_MAP, "red").await;
    let table = operetta_in(&["get", "shrinks", "-n", scene.namespace()]).await;
    let line: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(line[1..5], ["red", "Unknown", "Stalled", "PackageNotLoaded"], "{table}");
    eventually("the Event", LONG, async || {
        let events = kubectl(&["get", "events", "-n", "default", "-o", "json"]).await.ok();
        let events: Value = serde_json::from_str(&events).unwrap();
        let about = |e: &Value| {
            e["reason"] == "SchemaRefused" && e["involvedObject"]["name"] == "shrinks.crds.example.org"
        };
        events["items"].as_array().unwrap().iter().any(about).then_some(()).ok_or("none")
    })
    .await;

    // The command in the message allows exactly this schema.
    let (_, command) = message.split_once("`kubectl ").unwrap();
    let command: Vec<&str> = command.split_once('`').unwrap().0.split(' ').collect();
    kubectl(&command).await.ok();
    for name in ["red", "plain"] {
        let object = scene.ready(SHRINK, name).await;
        assert!(condition(&object, "Stalled").is_null(), "{object:#}");
    }
    assert!(fields(&live("shrinks").await.unwrap())["colour"].is_null());
    until_readyz(&mut manager, &[" 200 "]).await;
    assert!(lint(&folder).await.0);
    manager.kill9();

    // The command does not allow another schema. A schema that only becomes wider is registered at once,
    // without reading instances.
    let folder = write("size: {type: integer, default: 1, maximum: 2}");
    assert!(!lint(&folder).await.0);
    let folder = write(&format!("{narrow}, colour: {{type: string}}, note: {{type: string}}"));
    let audit = plane().await.audit();
    let mark = audit.mark().unwrap();
    assert!(lint(&folder).await.0);
    let mut manager = run_as("narrowing", plane().await, &[&folder]);
    until_readyz(&mut manager, &[" 200 "]).await;
    assert!(fields(&live("shrinks").await.unwrap())["note"].is_object());
    let pages =
        |e: &AuditEvent| e.resource == "shrinks" && e.uri.contains("limit=50&") | e.uri.ends_with("limit=50");
    let pages: Vec<_> = audit.requests_since(mark).unwrap().into_iter().filter(pages).collect();
    assert!(pages.is_empty(), "{}", crate::support::ext::list(&pages));
    scene.ready(SHRINK, "red").await;
}

/// Runs `operetta` with the kubeconfig of the control plane. Returns its output.
async fn operetta_in(args: &[&str]) -> String {
    let output = Command::new(OPERETTA)
        .args(args)
        .env("KUBECONFIG", plane().await.kubeconfig_path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn broken_package_is_reported_by_status_and_readiness_probe() {
    const WELL: Kind = kind("crds.example.org/v1", "wells");
    const SICK: Kind = kind("crds.example.org/v1", "sicks");
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::unmanaged().await;
    let shown = config("spec.size");
    let fields = "size: {type: integer, default: 1}";
    let write = |plural: &str, kind: &str, child: &str| {
        package(root.path(), plural, &crd(plural, kind, &schema(fields)), false, &[child])
    };
    let (well, sick) = (write("wells", "Well", &shown), write("sicks", "Sick", &shown));
    let start = async |identity: &str| {
        let identity = format!("--leader-elect-identity={identity}");
        let flags = [&["--leader-elect-resource-name=broken", &identity][..], &LEASE].concat();
        run_flags(plane().await, &flags, &[&well, &sick])
    };
    let mut first = start("first").await;
    until_readyz(&mut first, &[" 200 "]).await;
    for (of, kind, name) in [(WELL, "Well", "one"), (SICK, "Sick", "two")] {
        scene.apply(&instance(kind, name, &json!({"size": 3}))).await;
        scene.ready(of, name).await;
    }
    // The next manager has a broken package: it is not ready, not even as a standby.
    write("sicks", "Sick", &shown.replace("spec.size", "spec.sise"));
    let mut second = start("second").await;
    until_readyz(&mut second, &[" 503 ", "cannot load", "sicks"]).await;
    second.wait_for("starting", LONG).await;
    let is_untouched = is_ready(&scene.get(SICK, "two").await);
    assert!(is_untouched, "whoever stands by writes nothing");
    // As leader it reconciles the package that works, and reports the other.
    first.kill9();
    not_loaded(&scene, SICK, "two", &["package sicks", "could not load", "sicks"]).await;
    scene.patch(WELL, "one", "merge", &json!({"spec": {"size": 4}})).await;
    scene.until("followed", CONFIG_MAP, "one", |o| o["data"]["value"] == "4").await;
    scene.ready(WELL, "one").await;
    until_readyz(&mut second, &[" 503 ", "cannot load"]).await;
    // Instances that are created or edited meanwhile report it as well.
    scene.apply(&instance("Sick", "three", &json!({"size": 3}))).await;
    not_loaded(&scene, SICK, "three", &["package sicks"]).await;
    let warned = |e: &Value| e["reason"] == "PackageNotLoaded" && e["type"] == "Warning";
    eventually("an Event", LONG, async || {
        scene.list(EVENT).await.iter().any(warned).then_some(()).ok_or("none")
    })
    .await;
    second.kill9();

    write("sicks", "Sick", &shown);
    let mut third = start("third").await;
    for name in ["two", "three"] {
        let object = scene.ready(SICK, name).await;
        assert!(condition(&object, "Stalled").is_null(), "{object:#}");
    }
    until_readyz(&mut third, &[" 200 "]).await;
}
