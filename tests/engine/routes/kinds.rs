//! Ways to lose a child in which packages and managers change.

use serde_json::{Value, json};

use crate::support::ext::{CONFIG_MAP, LONG, WAY, condition, is_ready, run, uid_of};
use crate::support::routes::{Fate, GADGETS, Place, UNWANTED, all, gadget_crd, restart, variant, way};
use crate::support::{eventually, kubectl_of, own_plane_of_tests};

/// The cases that need another manager, another package or no CRD, one after another in one cluster.
#[tokio::test]
async fn packages_managers_and_kinds_change_without_losing_children() {
    let plane = own_plane_of_tests().await;
    let place = Place::of(&plane);
    let folder = tempfile::tempdir().unwrap();
    place.apply(&gadget_crd(true)).await;
    let mut manager = run(&plane, &["routes", "light"]).watching(2).await;
    for name in ["renamed", "removed", "crd", "forced", "stripped", "bare"] {
        place.deploy(name, &json!({})).await;
    }
    place.deploy("orphan", &json!({})).await;
    place.deploy("unserved", &json!({"gadget": true})).await;
    let uid = async |child: &str| uid_of(&place.find(CONFIG_MAP, child).await.unwrap()).to_owned();
    let before = uid("renamed-delete").await;

    // The next version has other ids for the same objects.
    let renamed = variant(folder.path(), "renamed", |text| {
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
    restart(&plane, &mut manager, &[&renamed, "light"]).await;
    let is_renamed = |o: &Value| o["metadata"]["labels"]["operetta.dev/child"] == "new-delete";
    place.until("the new id", CONFIG_MAP, "renamed-delete", is_renamed).await;
    place.ready(WAY, "renamed").await;
    place.fate("renamed", "", &all(Fate::Wanted)).await;
    assert_eq!(uid("renamed-delete").await, before);

    // The next version does not have the children.
    let fewer = variant(folder.path(), "fewer", |text| {
        text.replace("when: spec[\"on\"]", "when: name != 'renamed' and spec[\"on\"]")
    });
    restart(&plane, &mut manager, &[&fewer, "light"]).await;
    place.fate("renamed", "", &UNWANTED).await;
    place.approve("renamed", &[""]).await;

    // A finalizer is removed by force while no manager runs: the next instance of that name adopts the
    // children.
    manager.end().await;
    place.kubectl(&["delete", "way", "forced", "--wait=false"]).await;
    let free = r#"{"metadata":{"finalizers":null}}"#;
    place.kubectl(&["patch", "way", "forced", "--type=merge", "-p", free]).await;
    place.gone(WAY, "forced").await;
    place.apply(&way("forced", &json!({"on": false}))).await;
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
                place.kubectl(&args).await;
            }
        }
        place.kubectl(&["delete", "way", name, "--wait=false"]).await;
    }
    // One child has lost all metadata that shows whose it is.
    let unmark = r#"[{"op":"remove","path":"/metadata/labels"},{"op":"remove","path":"/metadata/annotations"},
        {"op":"replace","path":"/metadata/managedFields","value":[{}]}]"#;
    place.kubectl(&["patch", "configmap", "crd-delete", "--type=json", "-p", unmark]).await;
    let unmarked = uid("crd-delete").await;
    // Another instance is orphaned: its finalizer is gone when the manager starts.
    place.kubectl(&["delete", "way", "orphan", "--cascade=orphan", "--wait=false"]).await;
    let is_orphaned = |way: &Value| !way["metadata"]["finalizers"].to_string().contains("orphan");
    place.until("the garbage collector has been there", WAY, "orphan", is_orphaned).await;
    manager = run(&plane, &["routes", "light"]).watching(2).await;
    place.fate("forced", "", &UNWANTED).await;
    place.approve("forced", &[""]).await;
    place.fate("forced", "-a", &all(Fate::Wanted)).await;
    place.gone(WAY, "orphan").await;
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
    place.gone(WAY, "stripped").await;
    place.gone(WAY, "bare").await;

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
    place.ready(WAY, "crd").await;
    place.fate("crd", "", &all(Fate::Wanted)).await;
    assert_eq!(uid("crd-delete").await, unmarked);

    // A version of a child's kind is no longer served: desired objects of it are unknown, the other children
    // are maintained.
    place.apply(&gadget_crd(false)).await;
    place.until("not Ready", WAY, "unserved", |way| !is_ready(way)).await;
    place.respec("unserved", &json!({"gadget": false, "keys": ["a"]})).await;
    place.fate("unserved", "-b", &UNWANTED).await;
    // The object is known in the other version and is pruned when it is not desired.
    assert!(place.find(GADGETS, "unserved").await.is_none(), "what it stands on went first");
    place.approve("unserved", &["-b"]).await;
    place.kubectl(&["delete", "way", "unserved", "--wait=false"]).await;
    for suffix in ["", "-a"] {
        place.fate("unserved", suffix, &UNWANTED).await;
    }
    place.approve("unserved", &["", "-a"]).await;
    place.gone(WAY, "unserved").await;
    assert!(place.find(GADGETS, "unserved").await.is_none(), "forgotten");

    // Without the package nothing is reconciled, and deletion works as before.
    restart(&plane, &mut manager, &["light"]).await;
    place.respec("removed", &json!({"on": false})).await;
    let is_observed = |way: &Value| {
        let stalled = condition(way, "Stalled");
        stalled["reason"] == "PackageNotLoaded"
            && stalled["observedGeneration"] == way["metadata"]["generation"]
    };
    place.until("observed", WAY, "removed", is_observed).await;
    place.fate("removed", "", &all(Fate::Wanted)).await;
    place.kubectl(&["delete", "way", "removed", "--wait=false"]).await;
    for suffix in ["", "-a", "-b"] {
        place.fate("removed", suffix, &UNWANTED).await;
    }
    place.approve("removed", &["", "-a", "-b"]).await;
    place.gone(WAY, "removed").await;

    // The CRD is deleted, and all instances with it.
    restart(&plane, &mut manager, &["routes", "light"]).await;
    place.ready(WAY, "crd").await;
    kubectl_of(&plane, &["delete", "crd", "ways.fixtures.operetta.dev", "--wait=false"], "").await.ok();
    for suffix in ["", "-a", "-b"] {
        place.fate("crd", suffix, &UNWANTED).await;
    }
    place.approve("crd", &["", "-a", "-b"]).await;
    place.gone(WAY, "crd").await;
}
