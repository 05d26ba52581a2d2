//! Every route by which a child can be deleted, against every policy: what goes, what stays, what is said.
//! The table is `docs/guide/how-children-go.md`. Data never goes by accident.

mod support;

use std::path::Path;
use std::time::Duration;

use operetta::local::{ControlPlane, Options};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::ext::{
    CONFIG_MAP, Kind, LIGHT, LONG, SECRET, SERVICE, SERVICE_ACCOUNT, Scene, VOLUME_CLAIM, WAY, account,
    condition, copy_folder, file, find_in, fixture, is_ready, list, managers_requests, run, uid_of, watching,
};
use support::{OPERETTA, Operetta, eventually, kubectl_of, options, plane, signal};

const PACKAGES: [&str; 2] = ["routes", "light"];

/// What is to become of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// As it was, and wanted.
    Wanted,
    Gone,
    /// It stays, and says so.
    Retained,
    /// It stays until somebody approves, and both it and the instance say so.
    Asks,
    /// It stays, and nothing binds it any more.
    Free,
}

/// The four policies in the order of the fixture's children, and what becomes of each by most routes.
const UNWANTED: [(&str, Fate); 4] =
    [("delete", Fate::Gone), ("retain", Fate::Retained), ("ask", Fate::Asks), ("data", Fate::Retained)];

fn all(fate: Fate) -> [(&'static str, Fate); 4] {
    UNWANTED.map(|(policy, _)| (policy, fate))
}

fn kind_of(policy: &str) -> Kind {
    if policy == "data" { VOLUME_CLAIM } else { CONFIG_MAP }
}

fn way(name: &str, spec: &Value) -> String {
    json!({"apiVersion": WAY.api_version(), "kind": "Way", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn meets(fate: Fate, object: Option<&Value>) -> bool {
    let Some(object) = object else { return fate == Fate::Gone };
    let meta = &object["metadata"];
    let noted = |annotation: &str| meta["annotations"][annotation] == "true";
    if !meta["deletionTimestamp"].is_null() {
        return false;
    }
    let bound = meta["labels"]["operetta.dev/instance-uid"].is_string();
    match fate {
        Fate::Gone => false,
        Fate::Wanted => bound && !noted("operetta.dev/retained") && !noted("operetta.dev/deletion-pending"),
        Fate::Retained => bound && noted("operetta.dev/retained"),
        Fate::Asks => bound && noted("operetta.dev/deletion-pending"),
        Fate::Free => {
            !meta.to_string().contains("operetta.dev/")
                && meta["ownerReferences"].as_array().is_none_or(Vec::is_empty)
        }
    }
}

/// A control plane's namespace, whoever its manager is.
struct Place<'a> {
    plane: &'a ControlPlane,
    namespace: &'a str,
}

impl Place<'_> {
    async fn find(&self, kind: Kind, name: &str) -> Option<Value> {
        find_in(self.plane, kind, Some(self.namespace), name).await
    }

    async fn kubectl(&self, args: &[&str], input: &str) -> String {
        let mut all = vec!["-n", self.namespace];
        all.extend(args);
        kubectl_of(self.plane, &all, input).await.ok()
    }

    async fn patch(&self, name: &str, spec: &Value) {
        let patch = json!({"spec": spec}).to_string();
        self.kubectl(&["patch", "way", name, "--type=merge", "-p", &patch], "").await;
    }

    async fn deploy(&self, name: &str, spec: &Value) {
        self.kubectl(&["apply", "-f", "-"], &way(name, spec)).await;
        self.settled(name).await;
        for suffix in ["", "-a", "-b"] {
            self.fate(name, suffix, &all(Fate::Wanted)).await;
        }
    }

    async fn settled(&self, name: &str) {
        eventually(&format!("{name} to be Ready"), LONG, async || match self.find(WAY, name).await {
            Some(way) if is_ready(&way) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    /// Waits until of each policy the child with that suffix has met its fate.
    async fn fate(&self, name: &str, suffix: &str, fates: &[(&str, Fate)]) {
        for (policy, fate) in fates {
            let child = format!("{name}-{policy}{suffix}");
            eventually(&format!("{child} to be {fate:?}"), LONG, async || {
                let object = self.find(kind_of(policy), &child).await;
                if meets(*fate, object.as_ref()) {
                    return Ok(());
                }
                let way = self.find(WAY, name).await.unwrap_or_default();
                Err(format!("{object:?}\n{}\n{:#}", way["metadata"], way["status"]["conditions"]))
            })
            .await;
        }
    }

    /// The instance names what awaits approval, and `operetta approve` sets it free.
    async fn approve(&self, name: &str, suffixes: &[&str]) {
        let names = |way: &Value| {
            let pending = condition(way, "DeletionPending");
            let message = pending["message"].as_str().unwrap_or_default().to_owned();
            let all = suffixes.iter().all(|suffix| message.contains(&format!("{name}-ask{suffix} ")));
            if pending["status"] == "True" && all { Ok(()) } else { Err(format!("{:#}", way["status"])) }
        };
        eventually("DeletionPending to name it", LONG, async || {
            names(&self.find(WAY, name).await.unwrap_or_default())
        })
        .await;
        let listed = self.operetta(&["approve", "way", name]).await;
        for suffix in suffixes {
            assert!(listed.contains(&format!("{name}-ask{suffix} (")), "{listed}");
        }
        let told = self.operetta(&["approve", &format!("ways/{name}"), "--all", "--yes"]).await;
        assert_eq!(told.matches("approved: ConfigMap").count(), suffixes.len(), "{told}");
        for suffix in suffixes {
            self.fate(name, suffix, &[("ask", Fate::Gone)]).await;
        }
    }

    async fn operetta(&self, args: &[&str]) -> String {
        let output = tokio::process::Command::new(OPERETTA)
            .args(args)
            .args(["-n", self.namespace])
            .env("KUBECONFIG", self.plane.kubeconfig_path())
            .output()
            .await
            .expect("operetta runs");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{args:?}: {out}{err}");
        out.into_owned()
    }

    /// Nothing is said any more of what awaited approval, and the instance is as ready as before.
    async fn at_peace(&self, name: &str) {
        eventually("the condition to be gone", LONG, async || match self.find(WAY, name).await {
            Some(way) if is_ready(&way) && condition(&way, "DeletionPending").is_null() => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    async fn gone(&self, name: &str) {
        eventually(&format!("{name} to be gone"), LONG, async || match self.find(WAY, name).await {
            None => Ok(()),
            Some(way) => Err(format!("{:#} {:#}", way["metadata"], way["status"])),
        })
        .await;
    }
}

async fn place(scene: &Scene) -> Place<'_> {
    Place { plane: plane().await, namespace: scene.namespace() }
}

#[tokio::test]
async fn when_turns_false() {
    let scene = Scene::new(&PACKAGES).await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    place.patch("w", &json!({"on": false})).await;
    place.fate("w", "", &UNWANTED).await;
    // It is no reason not to be ready.
    place.settled("w").await;
    place.approve("w", &[""]).await;
    place.at_peace("w").await;
    place.fate("w", "-a", &all(Fate::Wanted)).await;
    // What stayed is taken again.
    place.patch("w", &json!({"on": true})).await;
    place.fate("w", "", &all(Fate::Wanted)).await;
}

#[tokio::test]
async fn what_asks_is_wanted_again_before_anybody_approved() {
    let scene = Scene::new(&PACKAGES).await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    let before = uid_of(&scene.get(CONFIG_MAP, "w-ask").await).to_owned();
    place.patch("w", &json!({"on": false})).await;
    place.fate("w", "", &UNWANTED).await;
    place.patch("w", &json!({"on": true})).await;
    place.fate("w", "", &all(Fate::Wanted)).await;
    place.at_peace("w").await;
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "w-ask").await), before);
}

#[tokio::test]
async fn a_key_leaves_and_then_all_of_them() {
    let scene = Scene::new(&PACKAGES).await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    place.patch("w", &json!({"keys": ["a"]})).await;
    place.fate("w", "-b", &UNWANTED).await;
    place.fate("w", "-a", &all(Fate::Wanted)).await;
    place.patch("w", &json!({"keys": []})).await;
    place.fate("w", "-a", &UNWANTED).await;
    place.fate("w", "", &all(Fate::Wanted)).await;
    place.approve("w", &["-a", "-b"]).await;
    place.at_peace("w").await;
}

#[tokio::test]
async fn a_template_gives_another_name() {
    let scene = Scene::new(&PACKAGES).await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    place.patch("w", &json!({"suffix": "-new"})).await;
    place.fate("w", "-new", &all(Fate::Wanted)).await;
    place.fate("w", "", &UNWANTED).await;
    place.approve("w", &[""]).await;
    place.at_peace("w").await;
}

#[tokio::test]
async fn the_instance_is_deleted() {
    let scene = Scene::new(&PACKAGES).await;
    let place = place(&scene).await;
    for how in ["background", "foreground"] {
        place.deploy(how, &json!({})).await;
        let cascade = format!("--cascade={how}");
        place.kubectl(&["delete", "way", how, &cascade, "--wait=false"], "").await;
        for suffix in ["", "-a", "-b"] {
            place.fate(how, suffix, &UNWANTED).await;
        }
        place.approve(how, &["", "-a", "-b"]).await;
        place.gone(how).await;
        for suffix in ["", "-a", "-b"] {
            place.fate(how, suffix, &[("retain", Fate::Retained), ("data", Fate::Retained)]).await;
        }
    }
}

#[tokio::test]
async fn a_hurried_person_lets_go() {
    let scene = Scene::new(&PACKAGES).await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    scene.patch(CONFIG_MAP, "w-delete-a", "merge", &hold).await;
    place.kubectl(&["delete", "way", "w", "--wait=false"], "").await;
    place.fate("w", "", &UNWANTED).await;
    assert!(place.find(WAY, "w").await.is_some());
    place.kubectl(&["annotate", "way", "w", "operetta.dev/skip-cleanup=true"], "").await;
    place.gone("w").await;
    place.fate("w", "", &UNWANTED).await;
    // What asked still does: an instance of that name finds it again.
    let listed = place.operetta(&["approve", "way/w"]).await;
    assert!(listed.contains("w-ask (ask)"), "{listed}");
    scene.patch(CONFIG_MAP, "w-delete-a", "merge", &json!({"metadata": {"finalizers": null}})).await;
    let before = uid_of(&scene.get(CONFIG_MAP, "w-ask").await).to_owned();
    place.deploy("w", &json!({})).await;
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "w-ask").await), before);
}

#[tokio::test]
async fn orphans_are_nobodys() {
    let scene = Scene::new(&PACKAGES).await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    scene.apply(&file(&format!("{}/instances/light.yaml", fixture("light")))).await;
    // This one has no finalizer: it is gone before anybody could look at its children.
    scene.ready(LIGHT, "light").await;
    let before = uid_of(&scene.get(VOLUME_CLAIM, "w-data").await).to_owned();
    place.kubectl(&["delete", "way", "w", "--cascade=orphan"], "").await;
    place.kubectl(&["delete", "light", "light", "--cascade=orphan"], "").await;
    place.gone("w").await;
    for suffix in ["", "-a", "-b"] {
        place.fate("w", suffix, &all(Fate::Free)).await;
    }
    assert_eq!(uid_of(&scene.get(VOLUME_CLAIM, "w-data").await), before);
    for kind in [CONFIG_MAP, SECRET, SERVICE, SERVICE_ACCOUNT] {
        scene.until("free", kind, "light", |o| meets(Fate::Free, Some(o))).await;
    }
    // A new instance of that name does not prune them, and does not take them either.
    place.kubectl(&["apply", "-f", "-"], &way("w", &json!({"keys": []}))).await;
    scene
        .until("to say whose it is not", WAY, "w", |o| {
            condition(o, "Stalled")["message"].as_str().is_some_and(|m| m.contains("does not belong"))
        })
        .await;
    place.fate("w", "-a", &all(Fate::Free)).await;
}

#[tokio::test]
async fn without_a_terminal_nobody_is_taken_to_have_approved() {
    let scene = Scene::new(&PACKAGES).await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    let approve = async |args: &[&str]| {
        let output = tokio::process::Command::new(OPERETTA)
            .arg("approve")
            .args(args)
            .args(["-n", scene.namespace()])
            .env("KUBECONFIG", plane().await.kubeconfig_path())
            .stdin(std::process::Stdio::null())
            .output()
            .await
            .expect("operetta runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // It is wanted.
    let (code, told) = approve(&["way/w", "--child", "ask", "--yes"]).await;
    assert!(code == Some(1) && told.contains("is wanted"), "{told}");
    place.patch("w", &json!({"on": false, "keys": []})).await;
    place.fate("w", "", &UNWANTED).await;
    place.fate("w", "-a", &UNWANTED).await;
    place.fate("w", "-b", &UNWANTED).await;
    let (code, told) = approve(&["way/w", "--all"]).await;
    assert!(code == Some(2) && told.contains("--yes"), "{told}");
    for (args, words) in [
        (["way/other", "--all"], "there is no ways other"),
        (["nonsense/w", "--all"], "there is no kind nonsense"),
        (["way/w", "--child=delete"], "is no child that asks"),
    ] {
        let (code, told) = approve(&args).await;
        assert!(code == Some(1) && told.contains(words), "{told}");
    }
    // One of them, and no other.
    let (code, told) = approve(&["way", "w", "--child", "ask-each[b]", "--yes"]).await;
    assert_eq!(code, Some(0), "{told}");
    place.fate("w", "-b", &[("ask", Fate::Gone)]).await;
    place.fate("w", "-a", &[("ask", Fate::Asks)]).await;
    place.fate("w", "", &[("ask", Fate::Asks)]).await;
}

/// The kind of gadgets is no package's.
const GADGET_RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: gadgets}
rules: [{apiGroups: [fixtures.example.com], resources: [gadgets], verbs: ['*']}]
";

/// What decides about children may not be read any more: they are unknown, none goes, the others go on, and the
/// condition says which right is missing. And at the end a kind may not be listed: what it stands on waits for it.
#[tokio::test]
async fn a_ref_is_forbidden() {
    let plane = ControlPlane::start(Options { nodes: 0, ..options() }).await.unwrap();
    let place = Place { plane: &plane, namespace: "default" };
    place.kubectl(&["apply", "-f", "-"], GADGET_RIGHTS).await;
    let core = "configmaps, services, serviceaccounts, persistentvolumeclaims, events, namespaces";
    let config = account(&plane, "blinkered", core).await;
    let allow = async || {
        let subject = "--serviceaccount=kube-system:blinkered";
        place.kubectl(&["create", "rolebinding", "secrets", "--clusterrole=secrets", subject], "").await;
    };
    let start = async |package: &str| {
        let args = ["run", "--leader-elect=false", package, &fixture("light")];
        let mut manager = Operetta::run_with(&args, &[("KUBECONFIG", &config)]);
        watching(&mut manager, 2).await;
        manager
    };
    let reason_of = async |name: &str, reason: &str, words: &[&str]| {
        eventually(reason, LONG, async || {
            let way = place.find(WAY, name).await.unwrap_or_default();
            let ready = condition(&way, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            let said = ready["reason"] == reason && words.iter().all(|word| message.contains(word));
            if said { Ok(()) } else { Err(format!("{ready:#}")) }
        })
        .await;
    };
    let reason = async |reason: &str, words: &[&str]| reason_of("w", reason, words).await;
    let allow_gadgets = async || {
        let subject = "--serviceaccount=kube-system:blinkered";
        place
            .kubectl(&["create", "clusterrolebinding", "gadgets", "--clusterrole=gadgets", subject], "")
            .await;
    };
    place.kubectl(&["apply", "-f", "-"], &gadget_crd(true)).await;
    place.kubectl(&["create", "secret", "generic", "gate", "--from-literal=open=yes"], "").await;
    allow().await;
    allow_gadgets().await;
    let mut manager = start(&fixture("routes")).await;
    place.deploy("w", &json!({"gate": true, "gadget": true})).await;

    // The right is taken away, and nothing is remembered.
    place.kubectl(&["delete", "rolebinding", "secrets"], "").await;
    signal(manager.pid(), Signal::TERM);
    manager.wait(LONG).await;
    let mut manager = start(&fixture("routes")).await;
    let words = ["refs.gate", "may not be read", "cannot watch resource \"secrets\""];
    reason("RefForbidden", &words).await;
    // What does not read it goes on; nothing of what does goes, nor does anything that is not wanted any more.
    place.patch("w", &json!({"keys": ["a", "c"]})).await;
    place.fate("w", "-c", &all(Fate::Wanted)).await;
    reason("RefForbidden", &words).await;
    for suffix in ["", "-a", "-b", "-c"] {
        place.fate("w", suffix, &all(Fate::Wanted)).await;
    }
    // An object of those that cannot be told is not made anew, and its loss is no other's.
    let before = uid_of(&place.find(CONFIG_MAP, "w-delete-a").await.unwrap()).to_owned();
    place.kubectl(&["delete", "configmap", "w-delete-a"], "").await;
    eventually("w-delete-a to be made anew", LONG, async || {
        match place.find(CONFIG_MAP, "w-delete-a").await {
            Some(object) if uid_of(&object) != before => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    // It may be read again, and decides again: first that all stays, then that it goes.
    allow().await;
    place.settled("w").await;
    place.fate("w", "", &all(Fate::Wanted)).await;
    place.fate("w", "-b", &UNWANTED).await;
    let closed = json!({"stringData": {"closed": "yes"}}).to_string();
    place.kubectl(&["patch", "secret", "gate", "--type=merge", "-p", &closed], "").await;
    place.fate("w", "", &UNWANTED).await;
    let open = json!({"data": {"closed": null}}).to_string();
    place.kubectl(&["patch", "secret", "gate", "--type=merge", "-p", &open], "").await;
    place.fate("w", "", &all(Fate::Wanted)).await;
    place.settled("w").await;

    // No ref holds up the end of an instance. But the gadget, which nobody can see, stands on a ConfigMap.
    place.kubectl(&["delete", "rolebinding", "secrets"], "").await;
    place.kubectl(&["delete", "clusterrolebinding", "gadgets"], "").await;
    signal(manager.pid(), Signal::TERM);
    manager.wait(LONG).await;
    let mut manager = start(&fixture("routes")).await;
    place.kubectl(&["delete", "way", "w", "--wait=false"], "").await;
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
    place.gone("w").await;

    // A version of the package without gadgets, which may not be listed any more: what is left of them is awaited,
    // and so is what they stood on.
    for name in ["x", "y"] {
        place.deploy(name, &json!({"gadget": true})).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let fewer = folder.path().join("fewer");
    copy_folder(
        Path::new(&fixture("routes")),
        &fewer,
        &|text| match text.split_once("        - id: gadget") {
            Some((above, _)) => above.to_owned(),
            None => text,
        },
    );
    let fewer = fewer.to_str().unwrap();
    place.kubectl(&["delete", "clusterrolebinding", "gadgets"], "").await;
    signal(manager.pid(), Signal::TERM);
    manager.wait(LONG).await;
    let mut manager = start(fewer).await;
    place.patch("y", &json!({"on": false})).await;
    let words = ["a Gadget of fixtures.example.com/v1", "cannot watch resource", "operetta.dev/child-kinds"];
    reason_of("x", "Pruning", &words).await;
    reason_of("y", "Pruning", &["-delete stays until", "each Gadget of fixtures.example.com/v1"]).await;
    place.fate("y", "", &[("delete", Fate::Wanted)]).await;
    allow_gadgets().await;
    for name in ["x", "y"] {
        place.settled(name).await;
        assert!(place.find(GADGETS, name).await.is_none(), "{name}: not pruned");
    }
    place.fate("y", "", &UNWANTED).await;
    // None is left: it is on record no more, and nobody needs the right any more.
    let ways = "ways.fixtures.operetta.dev";
    let record = async || place.kubectl(&["get", "crd", ways, "-o", RECORD], "").await;
    eventually("gadgets to go from the record", LONG, async || {
        let record = record().await;
        if record.contains("Gadget") { Err(record) } else { Ok(()) }
    })
    .await;
    manager.wait_for("watched no longer", LONG).await;
    place.kubectl(&["delete", "clusterrolebinding", "gadgets"], "").await;
    signal(manager.pid(), Signal::TERM);
    manager.wait(LONG).await;
    let mut manager = start(fewer).await;
    place.patch("x", &json!({"keys": ["a", "d"]})).await;
    place.settled("x").await;
    assert!(!manager.output().contains("kind=Gadget"), "{}", manager.output());
    // A person says that there may be some, and then that there are none.
    let kinds = record().await;
    let write = async |kinds: &str| {
        let record = format!("operetta.dev/child-kinds={kinds}");
        place.kubectl(&["annotate", "crd", ways, "--overwrite", &record], "").await;
    };
    write(&format!("fixtures.example.com/v1/Gadget,{kinds}")).await;
    reason_of("x", "Pruning", &words).await;
    write(&kinds).await;
    place.settled("x").await;
    signal(manager.pid(), Signal::TERM);
    manager.wait(LONG).await;
    plane.stop().await;
}

/// The kinds on record, as kubectl prints them.
const RECORD: &str = r"jsonpath={.metadata.annotations.operetta\.dev/child-kinds}";

const GADGETS: Kind = support::ext::kind("fixtures.example.com/v2", "gadgets");

/// The CRD of a kind that is no package's, with its versions and whether they are served.
fn gadget_crd(v1: bool) -> String {
    let version = |name: &str, served: bool, storage: bool| {
        json!({"name": name, "served": served, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.fixtures.example.com"},
        "spec": {"group": "fixtures.example.com", "scope": "Namespaced",
            "names": {"kind": "Gadget", "listKind": "GadgetList", "plural": "gadgets", "singular": "gadget"},
            "versions": [version("v1", v1, false), version("v2", true, true)]}})
    .to_string()
}

/// The version in which the manager last applied a gadget.
fn applied_in(gadget: &Value) -> Option<&str> {
    let entries = gadget["metadata"]["managedFields"].as_array()?;
    let ours = entries.iter().find(|e| e["operation"] == "Apply" && e["manager"] == "operetta/routes")?;
    ours["apiVersion"].as_str()
}

/// The package with a change, in a folder of that name.
fn variant(folder: &tempfile::TempDir, name: &str, change: impl Fn(String) -> String) -> String {
    let package = folder.path().join(name);
    copy_folder(Path::new(&fixture("routes")), &package, &change);
    package.to_str().unwrap().to_owned()
}

/// The kind of a child gets another version: the objects are the same, in whichever it is asked for.
#[tokio::test]
async fn a_childs_kind_changes_its_version() {
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

    // The next package asks for it in another version, and both are served: it is taken there, not made anew.
    let audit = plane.audit();
    let mark = audit.mark().unwrap();
    restart(&plane, &mut manager, &[&newer, "light"], 2).await;
    for name in ["moved", "left", "unwanted"] {
        // Ready at a later generation: nothing waits to be pruned.
        place.patch(name, &json!({"keys": ["a", "b", "c"]})).await;
        place.settled(name).await;
        assert_eq!(applied_in(&gadget(name).await), Some("fixtures.example.com/v2"), "{name}");
    }
    assert_eq!(uid_of(&gadget("moved").await), uid_of(&before));
    // Both versions are on record and served: each object is counted once.
    let told = place.operetta(&["get", "ways", "-o", "wide"]).await;
    assert!(told.lines().any(|line| line.contains("moved") && line.contains("/17 ")), "{told}");
    let mut deleted = managers_requests(&audit, mark);
    deleted.retain(|r| r.verb == "delete");
    assert!(deleted.is_empty(), "{}", list(&deleted));

    // And then the former version is not served any more, while the package has gone back to it.
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
    // Again by a manager that has never seen it served.
    restart(&plane, &mut manager, &["routes", "light"], 2).await;
    // What nothing wants goes: it is known, in the other version.
    place.patch("unwanted", &json!({"gadget": false})).await;
    eventually("the gadget to be pruned", LONG, async || match place.find(GADGETS, "unwanted").await {
        None => Ok(()),
        Some(gadget) => Err(format!("{gadget}")),
    })
    .await;
    place.settled("unwanted").await;
    // At the end of an instance it goes before what it stands on, though it is held.
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

    // It is served again, and all is as before.
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

/// What needs another manager, another package or no CRD, one after another in a cluster of its own.
#[tokio::test]
async fn the_package_the_manager_and_the_kinds_come_and_go() {
    let plane = ControlPlane::start(Options { nodes: 0, ..options() }).await.unwrap();
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

    // The ids are other ones in the next version: the objects are the same.
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

    // A version without the children.
    let fewer = variant(&folder, "fewer", |text| {
        text.replace("when: spec[\"on\"]", "when: name != 'renamed' and spec[\"on\"]")
    });
    restart(&plane, &mut manager, &[&fewer, "light"], 2).await;
    place.fate("renamed", "", &UNWANTED).await;
    place.approve("renamed", &[""]).await;

    // A finalizer is taken off by force while nobody looks: the next instance of that name inherits.
    signal(manager.pid(), Signal::TERM);
    manager.wait(LONG).await;
    place.kubectl(&["delete", "way", "forced", "--wait=false"], "").await;
    let free = r#"{"metadata":{"finalizers":null}}"#;
    place.kubectl(&["patch", "way", "forced", "--type=merge", "-p", free], "").await;
    place.gone("forced").await;
    place.kubectl(&["apply", "-f", "-"], &way("forced", &json!({"on": false}))).await;
    // Of two others somebody takes off what says that children are to stay: of one that alone, of the other all.
    for (name, annotations) in [
        ("stripped", &["operetta.dev/retained-", "operetta.dev/deletion-pending-"][..]),
        (
            "bare",
            &[
                "operetta.dev/retained-",
                "operetta.dev/deletion-pending-",
                "operetta.dev/intent-",
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
    // Of one child all marks are gone, and with them all that tells whose it is.
    let unmark = r#"[{"op":"remove","path":"/metadata/labels"},{"op":"remove","path":"/metadata/annotations"},
        {"op":"replace","path":"/metadata/managedFields","value":[{}]}]"#;
    place.kubectl(&["patch", "configmap", "crd-delete", "--type=json", "-p", unmark], "").await;
    let unmarked = uid("crd-delete").await;
    // And another is orphaned: its mark is gone when the manager comes.
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

    // Nobody takes what bears no trace of being ours. The condition says what a person can do, and that does it.
    let command = eventually("crd to say what to do", LONG, async || {
        let way = place.find(WAY, "crd").await.unwrap_or_default();
        let stalled = condition(&way, "Stalled");
        let message = stalled["message"].as_str().unwrap_or_default().to_owned();
        let command = message.split('`').find_map(|part| part.strip_prefix("kubectl ")).map(str::to_owned);
        command.filter(|_| stalled["reason"] == "NameTaken").ok_or(message)
    })
    .await;
    let command: Vec<&str> = command.split_whitespace().collect();
    place.fate("crd", "", &[("delete", Fate::Free)]).await;
    kubectl_of(&plane, &command, "").await.ok();
    place.settled("crd").await;
    place.fate("crd", "", &all(Fate::Wanted)).await;
    assert_eq!(uid("crd-delete").await, unmarked);

    // A version of a child's kind is not served any more: what is wanted of it is unknown, the others go on.
    place.kubectl(&["apply", "-f", "-"], &gadget_crd(false)).await;
    eventually("the manager to know", LONG, async || {
        let way = place.find(WAY, "unserved").await.unwrap();
        if is_ready(&way) { Err(format!("{:#}", way["status"])) } else { Ok(()) }
    })
    .await;
    place.patch("unserved", &json!({"gadget": false, "keys": ["a"]})).await;
    place.fate("unserved", "-b", &UNWANTED).await;
    // It is known in the other version, and what nothing wants goes.
    assert!(place.find(GADGETS, "unserved").await.is_none(), "what it stands on went first");
    place.approve("unserved", &["-b"]).await;
    place.kubectl(&["delete", "way", "unserved", "--wait=false"], "").await;
    for suffix in ["", "-a"] {
        place.fate("unserved", suffix, &UNWANTED).await;
    }
    place.approve("unserved", &["", "-a"]).await;
    place.gone("unserved").await;
    assert!(place.find(GADGETS, "unserved").await.is_none(), "forgotten");

    // Without the package nothing is done, and deletion goes as ever.
    restart(&plane, &mut manager, &["light"], 2).await;
    place.patch("removed", &json!({"on": false})).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    place.fate("removed", "", &all(Fate::Wanted)).await;
    place.kubectl(&["delete", "way", "removed", "--wait=false"], "").await;
    for suffix in ["", "-a", "-b"] {
        place.fate("removed", suffix, &UNWANTED).await;
    }
    place.approve("removed", &["", "-a", "-b"]).await;
    place.gone("removed").await;

    // The CRD goes, and all instances with it.
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
