//! What `lint --cluster` says of a CRD that would lose values of its instances, and packages that a manager cannot load, beside another
//! that leads: both need processes. What a manager does about such a CRD: `tests/engine/crds/narrowing.rs`.

use std::process::Command;

use operetta::local::AuditEvent;
use serde_json::{Value, json};

use crate::leader::LEASE;
use crate::support::barrier::Address;
use crate::support::crds::{config, crd, instance, not_loaded, package, schema};
use crate::support::ext::{CONFIG_MAP, EVENT, Kind, LONG, Scene, condition, is_ready, kind, run_flags};
use crate::support::{self, OPERETTA, Operetta, eventually, kubectl, kubectl_stdin, plane};

/// Waits until the answer of a manager's `/readyz` has these words.
async fn until_readyz(manager: &mut Operetta, words: &[&str]) {
    manager.wait_for("serving /metrics", LONG).await;
    let address = Address::of(manager);
    eventually(&format!("/readyz to say {words:?}"), LONG, async || {
        let (status, body) = address.get("/readyz").await;
        let answer = status + "\n" + &body;
        if words.iter().all(|word| answer.contains(word)) { Ok(()) } else { Err(answer) }
    })
    .await;
}

/// Runs `operetta lint --cluster`. Returns whether it finds nothing, and its output.
async fn lint(folder: &str) -> (bool, String) {
    let args = ["lint", "--cluster", "-o", "json", folder];
    let output = support::operetta(plane().await.kubeconfig_path(), &args).await;
    (output.status.success(), output.stdout)
}

#[tokio::test]
async fn lint_names_the_values_that_instances_would_lose() {
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::unmanaged().await;
    let shown = config("spec.size");
    let write = |fields: &str| {
        package(root.path(), "spills", &crd("spills", "Spill", &schema(fields)), false, &[&shown])
    };
    let apply = async |folder: &str| {
        // It warns of the field that no template reads.
        let printed = Command::new(OPERETTA).args(["crd", folder]).output().unwrap();
        let crd = String::from_utf8(printed.stdout).unwrap();
        kubectl_stdin(&["apply", "--server-side", "-f", "-"], &crd).await.ok();
    };
    apply(&write("size: {type: integer, default: 1}, colour: {type: string}")).await;
    scene.apply(&instance("Spill", "red", &json!({"size": 3, "colour": "red"}))).await;
    scene.apply(&instance("Spill", "plain", &json!({"size": 9}))).await;

    // One instance loses a value, the other becomes invalid.
    let narrow = "size: {type: integer, default: 1, maximum: 5}";
    let folder = write(narrow);
    let (fine, told) = lint(&folder).await;
    let words = ["2 instances", "spec.colour is not in the schema", "spec.size must be at most 5"];
    assert!(!fine && words.iter().all(|word| told.contains(word)), "{told}");
    // The command in the message allows exactly this schema.
    let (_, command) = told.split_once("`kubectl ").unwrap();
    let command: Vec<&str> = command.split_once('`').unwrap().0.split(' ').collect();
    kubectl(&command).await.ok();
    let (fine, told) = lint(&folder).await;
    assert!(fine, "{told}");
    apply(&folder).await;
    let (fine, told) = lint(&write("size: {type: integer, default: 1, maximum: 2}")).await;
    assert!(!fine, "{told}");
    // If a schema only becomes wider, no instance is read.
    let folder = write(&format!("{narrow}, colour: {{type: string}}, note: {{type: string}}"));
    let audit = plane().await.audit();
    let mark = audit.mark().unwrap();
    let (fine, told) = lint(&folder).await;
    assert!(fine, "{told}");
    let pages =
        |e: &AuditEvent| e.resource == "spills" && e.uri.contains("limit=50&") | e.uri.ends_with("limit=50");
    let pages: Vec<_> = audit.requests_since(mark).unwrap().into_iter().filter(pages).collect();
    assert!(pages.is_empty(), "{}", support::ext::list(&pages));
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
        scene.apply_ready(of, name, &instance(kind, name, &json!({"size": 3}))).await;
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
    let args = ["get", "sicks", "-n", scene.namespace()];
    let table = support::operetta(plane().await.kubeconfig_path(), &args).await.ok();
    let line: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[1..5], ["two", "Unknown", "Stalled", "PackageNotLoaded"], "{table}");
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
