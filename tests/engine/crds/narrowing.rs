//! A CRD that would lose values of its instances: nothing is lost, and the instances, readiness and the log report it. What `lint` and
//! `get` say of it: `tests/planes/crds/narrowing.rs`.

use operetta::local::AuditEvent;
use serde_json::{Value, json};

use crate::support::barrier::Address;
use crate::support::crds::{config, crd, instance, live, not_loaded, operetta, package, schema, until_event};
use crate::support::ext::{CONFIG_MAP, Kind, LONG, Scene, condition, kind, list, run_as};
use crate::support::{Operetta, eventually, kubectl};

/// Waits until a manager says these words about whether it is ready.
async fn until_told(manager: &Operetta, words: &[&str]) {
    let address = Address::of(manager);
    eventually(&format!("the manager to say {words:?}"), LONG, async || {
        let told = address.ready().await;
        if words.iter().all(|word| told.contains(word)) { Ok(()) } else { Err(told) }
    })
    .await;
}

/// What a manager says that is ready.
const READY: &str = "all watches are up";

#[tokio::test]
async fn a_schema_that_would_lose_values_waits_for_a_person() {
    const SHRINK: Kind = kind("crds.example.org/v1", "shrinks");
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::unmanaged().await;
    let shown = config("spec.size");
    let write = |fields: &str| {
        package(root.path(), "shrinks", &crd("shrinks", "Shrink", &schema(fields)), false, &[&shown])
    };
    let folder = write("size: {type: integer, default: 1}, colour: {type: string}");
    let mut manager = run_as("narrowing", scene.plane(), &[&folder]).watching(1).await;
    scene.apply(&instance("Shrink", "red", &json!({"size": 3, "colour": "red"}))).await;
    scene.apply(&instance("Shrink", "plain", &json!({"size": 9}))).await;
    for name in ["red", "plain"] {
        scene.ready(SHRINK, name).await;
    }
    until_told(&manager, &[READY]).await;
    manager.kill9();

    // One instance loses a value, the other becomes invalid. A lint without `--cluster` does not read the
    // cluster.
    let narrow = "size: {type: integer, default: 1, maximum: 5}";
    let folder = write(narrow);
    operetta(&["lint", "--strict", &folder]);
    let mut manager = run_as("narrowing", scene.plane(), &[&folder]);
    manager.wait_for("stays as it is", LONG).await;
    let words = [
        "2 instances",
        "spec.colour is not in the schema",
        "spec.size must be at most 5",
        "kubectl annotate crd",
    ];
    let message = not_loaded(&scene, SHRINK, "red", &words).await;
    not_loaded(&scene, SHRINK, "plain", &words).await;
    until_told(&manager, &["shrinks", "stays as it is"]).await;
    let fields = |crd: &Value| {
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].clone()
    };
    assert!(fields(&live("shrinks").await.unwrap())["colour"].is_object());
    assert_eq!(scene.get(SHRINK, "red").await["spec"]["colour"], "red");
    // Children stay and are not repaired.
    scene.get(CONFIG_MAP, "red").await;
    until_event("shrinks", "SchemaRefused").await;

    // The command in the message allows exactly this schema.
    let (_, command) = message.split_once("`kubectl ").unwrap();
    let command: Vec<&str> = command.split_once('`').unwrap().0.split(' ').collect();
    kubectl(&command).await.ok();
    for name in ["red", "plain"] {
        let object = scene.ready(SHRINK, name).await;
        assert!(condition(&object, "Stalled").is_null(), "{object:#}");
    }
    assert!(fields(&live("shrinks").await.unwrap())["colour"].is_null());
    until_told(&manager, &[READY]).await;
    manager.kill9();

    // A schema that only becomes wider is registered at once, without reading instances.
    let folder = write(&format!("{narrow}, colour: {{type: string}}, note: {{type: string}}"));
    let audit = scene.plane().audit();
    let mark = audit.mark().unwrap();
    let mut manager = run_as("narrowing", scene.plane(), &[&folder]).watching(1).await;
    until_told(&manager, &[READY]).await;
    assert!(fields(&live("shrinks").await.unwrap())["note"].is_object());
    let pages =
        |e: &AuditEvent| e.resource == "shrinks" && e.uri.contains("limit=50&") | e.uri.ends_with("limit=50");
    let pages: Vec<_> = audit.requests_since(mark).unwrap().into_iter().filter(pages).collect();
    assert!(pages.is_empty(), "{}", list(&pages));
    scene.ready(SHRINK, "red").await;
    manager.kill9();

    // The command does not allow another schema.
    let folder =
        write("size: {type: integer, default: 1, maximum: 2}, colour: {type: string}, note: {type: string}");
    let mut manager = run_as("narrowing", scene.plane(), &[&folder]);
    manager.wait_for("stays as it is", LONG).await;
    not_loaded(&scene, SHRINK, "red", &["spec.size must be at most 2"]).await;
}
