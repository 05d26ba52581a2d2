//! Ways to lose a child in which kinds, packages and managers change, each in its own control plane.

use std::path::Path;

use crate::support::ControlPlane;
use operetta::local::Options;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Fate, GADGETS, Place, UNWANTED, all, gadget_crd, way};
use crate::support::ext::{
    CONFIG_MAP, LONG, WAY, condition, copy_folder, fixture, is_ready, list, managers_requests, run, uid_of,
    watching,
};
use crate::support::{Operetta, eventually, kubectl_of, options, signal};

/// The API version in which the manager last applied a gadget.
fn applied_in(gadget: &Value) -> Option<&str> {
    let entries = gadget["metadata"]["managedFields"].as_array()?;
    let ours = entries.iter().find(|e| e["operation"] == "Apply" && e["manager"] == "operetta/routes")?;
    ours["apiVersion"].as_str()
}

/// Writes a changed copy of the package into a folder with that name.
fn variant(folder: &tempfile::TempDir, name: &str, change: impl Fn(String) -> String) -> String {
    let package = folder.path().join(name);
    copy_folder(Path::new(&fixture("routes")), &package, &change);
    package.to_str().unwrap().to_owned()
}

/// The kind of a child gets another version: the objects stay the same in whichever version they are read.
#[tokio::test]
async fn child_kind_changes_its_version() {
    let plane = ControlPlane::start(Options { nodes: 0, ..options() }).await.unwrap();
    let place = Place { plane: &plane, namespace: "default" };
    let folder = tempfile::tempdir().unwrap();
    let newer =
        variant(&folder, "newer", |text| text.replace("fixtures.example.com/v1", "fixtures.example.com/v2"));
    let says = async |name: &str, words: &[&str]| {
        eventually(&format!("{name} to say {words:?}"), LONG, async || {
            let way = place.find(WAY, name).await.unwrap_or_default();
            let message = condition(&way, "Ready")["message"].to_string();
            if words.iter().all(|word| message.contains(word)) { Ok(()) } else { Err(message) }
        })
        .await;
    };
    let gadget = async |name: &str| place.find(GADGETS, name).await.unwrap_or_default();
    place.kubectl(&["apply", "-f", "-"], &gadget_crd(true)).await;
    let mut manager = run(&plane, &["routes", "light"]);
    watching(&mut manager, 2).await;
    for name in ["moved", "left", "unwanted"] {
        place.deploy(name, &json!({"gadget": true})).await;
    }
    let before = gadget("moved").await;
    assert_eq!(applied_in(&before), Some("fixtures.example.com/v1"));

    // The next package uses another version, and both are served: the object is applied in that version, not
    // recreated.
    let audit = plane.audit();
    let mark = audit.mark().unwrap();
    restart(&plane, &mut manager, &[&newer, "light"], 2).await;
    for name in ["moved", "left", "unwanted"] {
        // The instance is Ready at a later generation, so nothing waits to be pruned.
        place.patch(name, &json!({"keys": ["a", "b", "c"]})).await;
        place.settled(name).await;
        assert_eq!(applied_in(&gadget(name).await), Some("fixtures.example.com/v2"), "{name}");
    }
    assert_eq!(uid_of(&gadget("moved").await), uid_of(&before));
    // Both versions are recorded and served: each object is counted once.
    let told = place.operetta(&["get", "ways", "-o", "wide"]).await;
    assert!(told.lines().any(|line| line.contains("moved") && line.contains("/17 ")), "{told}");
    let mut deleted = managers_requests(&audit, mark);
    deleted.retain(|r| r.verb == "delete");
    assert!(deleted.is_empty(), "{}", list(&deleted));

    // The other version is no longer served when the package goes back to the first.
    restart(&plane, &mut manager, &["routes", "light"], 2).await;
    for name in ["moved", "left", "unwanted"] {
        place.patch(name, &json!({"keys": ["a", "b", "c", "d"]})).await;
        place.settled(name).await;
    }
    place.kubectl(&["apply", "-f", "-"], &gadget_crd(false)).await;
    let served = ["Gadget of fixtures.example.com/v1", "fixtures.example.com/v2"];
    for name in ["moved", "left", "unwanted"] {
        says(name, &served).await;
    }
    // Repeat it with a manager that has never seen the other version served.
    restart(&plane, &mut manager, &["routes", "light"], 2).await;
    // A child that is no longer desired is pruned: it is known in the other version.
    place.patch("unwanted", &json!({"gadget": false})).await;
    eventually("the gadget to be pruned", LONG, async || match place.find(GADGETS, "unwanted").await {
        None => Ok(()),
        Some(gadget) => Err(format!("{gadget}")),
    })
    .await;
    place.settled("unwanted").await;
    // When the instance is deleted, the gadget is deleted before what it depends on, although it is held.
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}}).to_string();
    place.kubectl(&["patch", "gadget", "left", "--type=merge", "-p", &hold], "").await;
    place.kubectl(&["delete", "way", "left", "--wait=false"], "").await;
    says("left", &["Gadget default/left", "example.org/hold"]).await;
    assert!(place.find(CONFIG_MAP, "left-delete").await.is_some(), "what it stands on went first");
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    place.kubectl(&["patch", "gadget", "left", "--type=merge", "-p", &free], "").await;
    place.fate("left", "", &UNWANTED).await;
    place.approve("left", &["", "-a", "-b", "-c", "-d"]).await;
    place.gone("left").await;

    // The version is served again, and everything is as before.
    place.kubectl(&["apply", "-f", "-"], &gadget_crd(true)).await;
    place.patch("moved", &json!({"keys": ["a", "b", "c", "d", "e"]})).await;
    place.settled("moved").await;
    assert_eq!(uid_of(&gadget("moved").await), uid_of(&before));
    plane.stop().await;
}

async fn restart(plane: &ControlPlane, manager: &mut Operetta, packages: &[&str], kinds: usize) {
    signal(manager.pid(), Signal::TERM);
    manager.wait(LONG).await;
    *manager = run(plane, packages);
    watching(manager, kinds).await;
}

/// The cases that need another manager, another package or no CRD, one after another in one cluster.
#[tokio::test]
async fn packages_managers_and_kinds_change_without_losing_children() {
    let plane = ControlPlane::embedded().await;
    let place = Place { plane: &plane, namespace: "default" };
    let folder = tempfile::tempdir().unwrap();
    place.kubectl(&["apply", "-f", "-"], &gadget_crd(true)).await;
    let mut manager = run(&plane, &["routes", "light"]);
    watching(&mut manager, 2).await;
    for name in ["renamed", "removed", "crd", "forced", "stripped", "bare"] {
        place.deploy(name, &json!({})).await;
    }
    place.deploy("orphan", &json!({})).await;
    place.deploy("unserved", &json!({"gadget": true})).await;
    let uid = async |child: &str| uid_of(&place.find(CONFIG_MAP, child).await.unwrap()).to_owned();
    let before = uid("renamed-delete").await;

    // The next version has other ids for the same objects.
    let renamed = variant(&folder, "renamed", |text| {
        ["delete", "retain", "ask", "data"]
            .iter()
            .fold(text, |text, id| {
                text.replace(
                    &format!("- id: {id}\n"),
                    &format!("- id: new-{id}\n          renamedFrom: [{id}]\n"),
                )
            })
            .replace("dependsOn: [delete]", "dependsOn: [new-delete]")
    });
    restart(&plane, &mut manager, &[&renamed, "light"], 2).await;
    eventually("the objects to bear the new id", LONG, async || {
        let object = place.find(CONFIG_MAP, "renamed-delete").await.unwrap();
        let label = object["metadata"]["labels"]["operetta.dev/child"].to_string();
        if label.contains("new-delete") { Ok(()) } else { Err(label) }
    })
    .await;
    place.settled("renamed").await;
    place.fate("renamed", "", &all(Fate::Wanted)).await;
    assert_eq!(uid("renamed-delete").await, before);

    // The next version does not have the children.
    let fewer = variant(&folder, "fewer", |text| {
        text.replace("when: spec[\"on\"]", "when: name != 'renamed' and spec[\"on\"]")
    });
    restart(&plane, &mut manager, &[&fewer, "light"], 2).await;
    place.fate("renamed", "", &UNWANTED).await;
    place.approve("renamed", &[""]).await;

    // A finalizer is removed by force while no manager runs: the next instance of that name adopts the
    // children.
    signal(manager.pid(), Signal::TERM);
    manager.wait(LONG).await;
    place.kubectl(&["delete", "way", "forced", "--wait=false"], "").await;
    let free = r#"{"metadata":{"finalizers":null}}"#;
    place.kubectl(&["patch", "way", "forced", "--type=merge", "-p", free], "").await;
    place.gone("forced").await;
    place.kubectl(&["apply", "-f", "-"], &way("forced", &json!({"on": false}))).await;
    // Somebody removes annotations that keep children: from one instance's children only those, from the
    // other's all.
    for (name, annotations) in [
        ("stripped", &["operetta.dev/retained-", "operetta.dev/deletion-pending-"][..]),
        (
            "bare",
            &[
                "operetta.dev/retained-",
                "operetta.dev/deletion-pending-",
                "operetta.dev/applied-hash-",
                "operetta.dev/order-",
            ],
        ),
    ] {
        for policy in ["retain", "ask", "data"] {
            for suffix in ["", "-a", "-b"] {
                let kind = if policy == "data" { "persistentvolumeclaim" } else { "configmap" };
                let object = format!("{name}-{policy}{suffix}");
                let mut args = vec!["annotate", kind, &object];
                args.extend(annotations);
                place.kubectl(&args, "").await;
            }
        }
        place.kubectl(&["delete", "way", name, "--wait=false"], "").await;
    }
    // One child has lost all metadata that shows whose it is.
    let unmark = r#"[{"op":"remove","path":"/metadata/labels"},{"op":"remove","path":"/metadata/annotations"},
        {"op":"replace","path":"/metadata/managedFields","value":[{}]}]"#;
    place.kubectl(&["patch", "configmap", "crd-delete", "--type=json", "-p", unmark], "").await;
    let unmarked = uid("crd-delete").await;
    // Another instance is orphaned: its finalizer is gone when the manager starts.
    place.kubectl(&["delete", "way", "orphan", "--cascade=orphan", "--wait=false"], "").await;
    eventually("the garbage collector to take its mark away", LONG, async || {
        let way = place.find(WAY, "orphan").await.expect("our finalizer holds it");
        let finalizers = way["metadata"]["finalizers"].to_string();
        if finalizers.contains("orphan") { Err(finalizers) } else { Ok(()) }
    })
    .await;
    manager = run(&plane, &["routes", "light"]);
    watching(&mut manager, 2).await;
    place.fate("forced", "", &UNWANTED).await;
    place.approve("forced", &[""]).await;
    place.fate("forced", "-a", &all(Fate::Wanted)).await;
    place.gone("orphan").await;
    for suffix in ["", "-a", "-b"] {
        place.fate("orphan", suffix, &all(Fate::Free)).await;
    }

    for suffix in ["", "-a", "-b"] {
        place.fate("stripped", suffix, &UNWANTED).await;
        let kept = [
            ("delete", Fate::Gone),
            ("retain", Fate::Retained),
            ("ask", Fate::Retained),
            ("data", Fate::Retained),
        ];
        place.fate("bare", suffix, &kept).await;
    }
    place.approve("stripped", &["", "-a", "-b"]).await;
    place.gone("stripped").await;
    place.gone("bare").await;

    // An object without any trace of ownership is not adopted. The condition names the command that does it,
    // and the command works.
    let command = eventually("crd to say what to do", LONG, async || {
        let way = place.find(WAY, "crd").await.unwrap_or_default();
        let stalled = condition(&way, "Stalled");
        let message = stalled["message"].as_str().unwrap_or_default().to_owned();
        let command = message.split('`').find_map(|part| part.strip_prefix("kubectl ")).map(str::to_owned);
        command.filter(|_| stalled["reason"] == "AlreadyExists").ok_or(message)
    })
    .await;
    let command: Vec<&str> = command.split_whitespace().collect();
    place.fate("crd", "", &[("delete", Fate::Free)]).await;
    kubectl_of(&plane, &command, "").await.ok();
    place.settled("crd").await;
    place.fate("crd", "", &all(Fate::Wanted)).await;
    assert_eq!(uid("crd-delete").await, unmarked);

    // A version of a child's kind is no longer served: desired objects of it are unknown, the other children
    // are maintained.
    place.kubectl(&["apply", "-f", "-"], &gadget_crd(false)).await;
    eventually("the manager to know", LONG, async || {
        let way = place.find(WAY, "unserved").await.unwrap();
        if is_ready(&way) { Err(format!("{:#}", way["status"])) } else { Ok(()) }
    })
    .await;
    place.patch("unserved", &json!({"gadget": false, "keys": ["a"]})).await;
    place.fate("unserved", "-b", &UNWANTED).await;
    // The object is known in the other version and is pruned when it is not desired.
    assert!(place.find(GADGETS, "unserved").await.is_none(), "what it stands on went first");
    place.approve("unserved", &["-b"]).await;
    place.kubectl(&["delete", "way", "unserved", "--wait=false"], "").await;
    for suffix in ["", "-a"] {
        place.fate("unserved", suffix, &UNWANTED).await;
    }
    place.approve("unserved", &["", "-a"]).await;
    place.gone("unserved").await;
    assert!(place.find(GADGETS, "unserved").await.is_none(), "forgotten");

    // Without the package nothing is reconciled, and deletion works as before.
    restart(&plane, &mut manager, &["light"], 2).await;
    place.patch("removed", &json!({"on": false})).await;
    eventually("the manager to observe the change", LONG, async || {
        let way = place.find(WAY, "removed").await.unwrap();
        let stalled = condition(&way, "Stalled");
        let is_observed = stalled["observedGeneration"] == way["metadata"]["generation"];
        if is_observed && stalled["reason"] == "PackageNotLoaded" {
            Ok(())
        } else {
            Err(format!("{:#}", way["status"]))
        }
    })
    .await;
    place.fate("removed", "", &all(Fate::Wanted)).await;
    place.kubectl(&["delete", "way", "removed", "--wait=false"], "").await;
    for suffix in ["", "-a", "-b"] {
        place.fate("removed", suffix, &UNWANTED).await;
    }
    place.approve("removed", &["", "-a", "-b"]).await;
    place.gone("removed").await;

    // The CRD is deleted, and all instances with it.
    restart(&plane, &mut manager, &["routes", "light"], 2).await;
    place.settled("crd").await;
    kubectl_of(&plane, &["delete", "crd", "ways.fixtures.operetta.dev", "--wait=false"], "").await.ok();
    for suffix in ["", "-a", "-b"] {
        place.fate("crd", suffix, &UNWANTED).await;
    }
    place.approve("crd", &["", "-a", "-b"]).await;
    place.gone("crd").await;
    plane.stop().await;
}
