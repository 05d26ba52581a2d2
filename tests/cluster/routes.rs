//! The way to lose a child of `tests/engine/routes` that needs a real API server: the embedded API does not do what it does with an
//! object of a version that is no longer served.

use std::sync::Arc;

use operetta::local::Options;
use serde_json::{Value, json};

use crate::support::ext::{CONFIG_MAP, WAY, condition, list, managers_requests, run, uid_of};
use crate::support::routes::{GADGETS, Place, UNWANTED, gadget_crd, restart, variant};
use crate::support::{ControlPlane, options};

/// The API version in which the manager last applied a gadget.
fn applied_in(gadget: &Value) -> Option<&str> {
    let entries = gadget["metadata"]["managedFields"].as_array()?;
    let ours = entries.iter().find(|e| e["operation"] == "Apply" && e["manager"] == "operetta/routes")?;
    ours["apiVersion"].as_str()
}

/// The kind of a child gets another version: the objects stay the same in whichever version they are read.
#[tokio::test]
async fn child_kind_changes_its_version() {
    let plane = Arc::new(ControlPlane::start(Options { nodes: 0, ..options() }).await.unwrap());
    let place = Place::of(&plane);
    let folder = tempfile::tempdir().unwrap();
    let newer = variant(folder.path(), "newer", |text| {
        text.replace("fixtures.example.com/v1", "fixtures.example.com/v2")
    });
    let says = async |name: &str, words: &[&str]| {
        let is_said = |way: &Value| {
            let message = condition(way, "Ready")["message"].to_string();
            words.iter().all(|word| message.contains(word))
        };
        place.until(&format!("{words:?}"), WAY, name, is_said).await;
    };
    let gadget = async |name: &str| place.find(GADGETS, name).await.unwrap_or_default();
    place.apply(&gadget_crd(true)).await;
    let mut manager = run(&plane, &["routes", "light"]).watching(2).await;
    for name in ["moved", "left", "unwanted"] {
        place.deploy(name, &json!({"gadget": true})).await;
    }
    let before = gadget("moved").await;
    assert_eq!(applied_in(&before), Some("fixtures.example.com/v1"));

    // The next package uses another version, and both are served: the object is applied in that version, not
    // recreated.
    let audit = plane.audit();
    let mark = audit.mark().unwrap();
    restart(&plane, &mut manager, &[&newer, "light"]).await;
    for name in ["moved", "left", "unwanted"] {
        // The instance is Ready at a later generation, so nothing waits to be pruned.
        place.respec(name, &json!({"keys": ["a", "b", "c"]})).await;
        place.ready(WAY, name).await;
        assert_eq!(applied_in(&gadget(name).await), Some("fixtures.example.com/v2"), "{name}");
    }
    assert_eq!(uid_of(&gadget("moved").await), uid_of(&before));
    // Both versions are recorded and served: each object is counted once.
    let told = place.operetta(&["get", "ways", "-o", "wide"]).await.ok();
    assert!(told.lines().any(|line| line.contains("moved") && line.contains("/17 ")), "{told}");
    let mut deleted = managers_requests(&audit, mark);
    deleted.retain(|r| r.verb == "delete");
    assert!(deleted.is_empty(), "{}", list(&deleted));

    // The other version is no longer served when the package goes back to the first.
    restart(&plane, &mut manager, &["routes", "light"]).await;
    for name in ["moved", "left", "unwanted"] {
        place.respec(name, &json!({"keys": ["a", "b", "c", "d"]})).await;
        place.ready(WAY, name).await;
    }
    place.apply(&gadget_crd(false)).await;
    let served = ["Gadget of fixtures.example.com/v1", "fixtures.example.com/v2"];
    for name in ["moved", "left", "unwanted"] {
        says(name, &served).await;
    }
    // Repeat it with a manager that has never seen the other version served.
    restart(&plane, &mut manager, &["routes", "light"]).await;
    // A child that is no longer desired is pruned: it is known in the other version.
    place.respec("unwanted", &json!({"gadget": false})).await;
    place.gone(GADGETS, "unwanted").await;
    place.ready(WAY, "unwanted").await;
    // When the instance is deleted, the gadget is deleted before what it depends on, although it is held.
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}}).to_string();
    place.kubectl(&["patch", "gadget", "left", "--type=merge", "-p", &hold]).await;
    place.kubectl(&["delete", "way", "left", "--wait=false"]).await;
    says("left", &["Gadget default/left", "example.org/hold"]).await;
    assert!(place.find(CONFIG_MAP, "left-delete").await.is_some(), "what it stands on went first");
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    place.kubectl(&["patch", "gadget", "left", "--type=merge", "-p", &free]).await;
    place.fate("left", "", &UNWANTED).await;
    place.approve("left", &["", "-a", "-b", "-c", "-d"]).await;
    place.gone(WAY, "left").await;

    // The version is served again, and everything is as before.
    place.apply(&gadget_crd(true)).await;
    place.respec("moved", &json!({"keys": ["a", "b", "c", "d", "e"]})).await;
    place.ready(WAY, "moved").await;
    assert_eq!(uid_of(&gadget("moved").await), uid_of(&before));
}
