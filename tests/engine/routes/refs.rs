//! Ways to lose a child that depend on a ref or on the manager's rights.

use serde_json::{Value, json};

use crate::support::ext::{CONFIG_MAP, LONG, WAY, condition, fixture, make_account, uid_of};
use crate::support::rights::decides;
use crate::support::routes::{Fate, GADGETS, Place, UNWANTED, all, gadget_crd, variant};
use crate::support::{Operetta, eventually, own_plane_of_tests};

const USER: &str = "system:serviceaccount:kube-system:blinkered";

/// A kubectl output format that prints the recorded child kinds.
const RECORD: &str = r"jsonpath={.metadata.annotations.operetta\.dev/child-kinds}";

/// Rights for gadgets, whose kind belongs to no package.
const GADGET_RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: gadgets}
rules: [{apiGroups: [fixtures.example.com], resources: [gadgets], verbs: ['*']}]
";

/// A ref that decides about children is forbidden: the children are unknown, none is deleted, the others are
/// maintained, and the condition names the missing right. At the end a kind may not be listed: what it
/// depends on waits for it.
#[tokio::test]
async fn children_whose_ref_is_forbidden() {
    let plane = own_plane_of_tests().await;
    let place = Place::of(&plane);
    place.apply(GADGET_RIGHTS).await;
    let core = "configmaps, services, serviceaccounts, persistentvolumeclaims, events, namespaces";
    make_account(&plane, "blinkered", core).await;
    let allow = async || {
        let subject = "--serviceaccount=kube-system:blinkered";
        place.kubectl(&["create", "rolebinding", "secrets", "--clusterrole=secrets", subject]).await;
        decides(&plane, USER, "default", ("watch", "", "secrets"), true).await;
    };
    let forbid = async || {
        place.kubectl(&["delete", "rolebinding", "secrets"]).await;
        decides(&plane, USER, "default", ("watch", "", "secrets"), false).await;
    };
    let start = async |package: &str| {
        let args = ["run", package, &fixture("light")];
        Operetta::run_as_account(&plane, "kube-system", "blinkered", &args).await.watching(2).await
    };
    let reason_of = async |name: &str, reason: &str, words: &[&str]| {
        let is_said = |way: &Value| {
            let ready = condition(way, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            ready["reason"] == reason && words.iter().all(|word| message.contains(word))
        };
        place.until(reason, WAY, name, is_said).await;
    };
    let reason = async |reason: &str, words: &[&str]| reason_of("w", reason, words).await;
    let allow_gadgets = async || {
        let subject = "--serviceaccount=kube-system:blinkered";
        place.kubectl(&["create", "clusterrolebinding", "gadgets", "--clusterrole=gadgets", subject]).await;
        decides(&plane, USER, "", ("watch", GADGETS.group(), GADGETS.plural), true).await;
    };
    let forbid_gadgets = async || {
        place.kubectl(&["delete", "clusterrolebinding", "gadgets"]).await;
        decides(&plane, USER, "", ("watch", GADGETS.group(), GADGETS.plural), false).await;
    };
    place.apply(&gadget_crd(true)).await;
    place.kubectl(&["create", "secret", "generic", "gate", "--from-literal=open=yes"]).await;
    allow().await;
    allow_gadgets().await;
    let mut manager = start(&fixture("routes")).await;
    place.deploy("w", &json!({"gate": true, "gadget": true})).await;

    // The right is withdrawn, and the manager is restarted so that it remembers nothing.
    forbid().await;
    manager.end().await;
    let mut manager = start(&fixture("routes")).await;
    let words = ["refs.gate", "may not be read", "cannot watch resource \"secrets\""];
    reason("RefForbidden", &words).await;
    // Children that do not read the ref are maintained; children that do are not deleted, nor are children
    // that are no longer desired.
    place.respec("w", &json!({"keys": ["a", "c"]})).await;
    place.fate("w", "-c", &all(Fate::Wanted)).await;
    reason("RefForbidden", &words).await;
    for suffix in ["", "-a", "-b", "-c"] {
        place.fate("w", suffix, &all(Fate::Wanted)).await;
    }
    // A deleted child whose state is unknown is not recreated, and this does not affect other children.
    let before = uid_of(&place.find(CONFIG_MAP, "w-delete-a").await.unwrap()).to_owned();
    place.kubectl(&["delete", "configmap", "w-delete-a"]).await;
    place.until("made anew", CONFIG_MAP, "w-delete-a", |o| uid_of(o) != before).await;

    // The ref may be read again, and decides again: first that all children stay, then that they are deleted.
    allow().await;
    place.ready(WAY, "w").await;
    place.fate("w", "", &all(Fate::Wanted)).await;
    place.fate("w", "-b", &UNWANTED).await;
    let closed = json!({"stringData": {"closed": "yes"}}).to_string();
    place.kubectl(&["patch", "secret", "gate", "--type=merge", "-p", &closed]).await;
    place.fate("w", "", &UNWANTED).await;
    let open = json!({"data": {"closed": null}}).to_string();
    place.kubectl(&["patch", "secret", "gate", "--type=merge", "-p", &open]).await;
    place.fate("w", "", &all(Fate::Wanted)).await;
    place.ready(WAY, "w").await;

    // A forbidden ref does not block the deletion of the instance. But the gadget, which the manager cannot
    // list, depends on a ConfigMap.
    forbid().await;
    forbid_gadgets().await;
    manager.end().await;
    let mut manager = start(&fixture("routes")).await;
    place.kubectl(&["delete", "way", "w", "--wait=false"]).await;
    for fates in [[("retain", Fate::Retained)], [("ask", Fate::Asks)], [("data", Fate::Retained)]] {
        place.fate("w", "", &fates).await;
    }
    reason(
        "Deleting",
        &["ConfigMap default/w-delete stays", "each Gadget of fixtures.example.com/v1", "forbidden"],
    )
    .await;
    assert!(place.find(CONFIG_MAP, "w-delete").await.is_some(), "the lower order went first");
    allow_gadgets().await;
    for suffix in ["", "-a"] {
        place.fate("w", suffix, &[("retain", Fate::Retained), ("ask", Fate::Asks)]).await;
    }
    place.fate("w", "", &[("delete", Fate::Gone)]).await;
    assert!(place.find(GADGETS, "w").await.is_none(), "the gadget lives on without what it stands on");
    place.approve("w", &["", "-a", "-b", "-c"]).await;
    place.gone(WAY, "w").await;

    // A version of the package without gadgets, which the manager may not list: remaining gadgets are
    // awaited, and so is what they depend on.
    for name in ["x", "y"] {
        place.deploy(name, &json!({"gadget": true})).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let fewer = &variant(folder.path(), "fewer", |text| match text.split_once("        - id: gadget") {
        Some((above, _)) => above.to_owned(),
        None => text,
    });
    forbid_gadgets().await;
    manager.end().await;
    let mut manager = start(fewer).await;
    place.respec("y", &json!({"on": false})).await;
    let words = [
        "cannot list Gadget of fixtures.example.com/v1",
        "cannot watch resource",
        "operetta.dev/child-kinds",
    ];
    reason_of("x", "Pruning", &words).await;
    reason_of("y", "Pruning", &["-delete stays until", "each Gadget of fixtures.example.com/v1"]).await;
    place.fate("y", "", &[("delete", Fate::Wanted)]).await;
    allow_gadgets().await;
    for name in ["x", "y"] {
        place.ready(WAY, name).await;
        assert!(place.find(GADGETS, name).await.is_none(), "{name}: not pruned");
    }
    place.fate("y", "", &UNWANTED).await;
    // No gadget remains: the kind is removed from the record, and the right is not needed any more.
    let ways = "ways.fixtures.operetta.dev";
    let record = async || place.kubectl(&["get", "crd", ways, "-o", RECORD]).await;
    eventually("gadgets to go from the record", LONG, async || {
        let record = record().await;
        if record.contains("Gadget") { Err(record) } else { Ok(()) }
    })
    .await;
    manager.wait_for("no longer watched", LONG).await;
    forbid_gadgets().await;
    manager.end().await;
    let mut manager = start(fewer).await;
    place.respec("x", &json!({"keys": ["a", "d"]})).await;
    place.ready(WAY, "x").await;
    assert!(!manager.output().contains("kind=Gadget"), "{}", manager.output());
    // A person adds a kind to the record, and then removes it.
    let kinds = record().await;
    let write = async |kinds: &str| {
        let record = format!("operetta.dev/child-kinds={kinds}");
        place.kubectl(&["annotate", "crd", ways, "--overwrite", &record]).await;
    };
    write(&format!("fixtures.example.com/v1/Gadget,{kinds}")).await;
    reason_of("x", "Pruning", &words).await;
    write(&kinds).await;
    place.ready(WAY, "x").await;
    manager.end().await;
}
