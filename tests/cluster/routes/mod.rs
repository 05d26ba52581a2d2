//! Every way in which a child can be deleted, against every deletion policy: what is deleted, what stays,
//! what is reported. The table is `docs/guide/deleting-children.md`. Data is never deleted by accident.

mod kinds;
mod refs;

use std::collections::BTreeMap;

use crate::support::ControlPlane;
use serde_json::{Value, json};

use crate::support::ext::{
    CONFIG_MAP, Kind, LIGHT, LONG, SECRET, SERVICE, SERVICE_ACCOUNT, Scene, VOLUME_CLAIM, WAY, condition,
    file, find_in, fixture, is_ready, uid_of,
};
use crate::support::rights::{binding, role};
use crate::support::{OPERETTA, eventually, kubectl_of, plane};

/// The expected state of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The child is unchanged and desired.
    Wanted,
    Gone,
    /// It stays, with the annotation for retained children.
    Retained,
    /// It stays until a person approves the deletion; it and the instance say so.
    Asks,
    /// It stays, and no longer belongs to the instance.
    Free,
}

/// The four policies in the order of the fixture's children, each with the usual fate of a child that is not
/// desired.
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

/// A namespace of a control plane, whatever manager it has.
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

    /// Waits until the child of each policy with that suffix has the expected fate.
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

    /// Checks that the instance names what awaits approval and the run to approve, and approves it with
    /// `operetta plan approve`.
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
        let runs = self.waiting(name).await;
        for suffix in suffixes {
            assert!(
                runs.keys().any(|question| question.contains(&format!("/{name}-ask{suffix} ("))),
                "{runs:?}"
            );
        }
        let told = if let [(_, run)] = &runs.iter().collect::<Vec<_>>()[..] {
            let way = self.find(WAY, name).await.unwrap_or_default();
            let command = format!("operetta plan approve {run} -n {}", self.namespace);
            let pending = condition(&way, "DeletionPending");
            assert!(pending["message"].as_str().is_some_and(|m| m.contains(&command)), "{pending}");
            self.operetta(&["plan", "approve", run]).await
        } else {
            self.operetta(&["plan", "approve", &format!("ways/{name}"), "--all", "--yes"]).await
        };
        assert_eq!(told.matches("step approve: Delete ConfigMap").count(), suffixes.len(), "{told}");
        for suffix in suffixes {
            self.fate(name, suffix, &[("ask", Fate::Gone)]).await;
        }
    }

    /// The runs of an instance that wait for approval, by their question.
    async fn waiting(&self, name: &str) -> BTreeMap<String, String> {
        let list = self.kubectl(&["get", "planruns", "-o", "json"], "").await;
        let list: Value = serde_json::from_str(&list).expect("JSON");
        let runs = list["items"].as_array().cloned().unwrap_or_default();
        let waits = |run: &&Value| {
            run["spec"]["of"]["name"] == name
                && run["spec"]["plan"] == "operetta.dev/delete-child"
                && run["status"]["phase"] == "Running"
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        runs.iter()
            .filter(waits)
            .map(|run| (text(&run["status"]["steps"][0]["message"]), text(&run["metadata"]["name"])))
            .collect()
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

    /// Waits until the condition `DeletionPending` is gone and the instance is Ready.
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
async fn children_whose_when_becomes_false() {
    let scene = Scene::new().await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    place.patch("w", &json!({"on": false})).await;
    place.fate("w", "", &UNWANTED).await;
    // A child that awaits approval does not make the instance unready.
    place.settled("w").await;
    place.approve("w", &[""]).await;
    place.at_peace("w").await;
    place.fate("w", "-a", &all(Fate::Wanted)).await;
    // The children that stayed are adopted again.
    place.patch("w", &json!({"on": true})).await;
    place.fate("w", "", &all(Fate::Wanted)).await;
}

#[tokio::test]
async fn a_child_pending_approval_is_kept_when_desired_again() {
    let scene = Scene::new().await;
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
async fn children_whose_for_each_keys_are_removed() {
    let scene = Scene::new().await;
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
async fn children_whose_template_gives_another_name() {
    let scene = Scene::new().await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    place.patch("w", &json!({"suffix": "-new"})).await;
    place.fate("w", "-new", &all(Fate::Wanted)).await;
    place.fate("w", "", &UNWANTED).await;
    place.approve("w", &[""]).await;
    place.at_peace("w").await;
}

#[tokio::test]
async fn children_of_a_deleted_instance() {
    let scene = Scene::new().await;
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
async fn skip_cleanup_keeps_ask_children() {
    let scene = Scene::new().await;
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
    // The run still asks for approval, and a new instance with that name finds it.
    let asked = place.waiting("w").await;
    assert!(asked.keys().any(|question| question.contains("/w-ask (ask)")), "{asked:?}");
    scene.patch(CONFIG_MAP, "w-delete-a", "merge", &json!({"metadata": {"finalizers": null}})).await;
    let before = uid_of(&scene.get(CONFIG_MAP, "w-ask").await).to_owned();
    place.deploy("w", &json!({})).await;
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "w-ask").await), before);
}

#[tokio::test]
async fn orphans_are_neither_pruned_nor_adopted() {
    let scene = Scene::new().await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    scene.apply(&file(&format!("{}/instances/light.yaml", fixture("light")))).await;
    // This instance has no finalizer: it is gone before the manager can look at its children.
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
    // A new instance with that name neither prunes nor adopts them.
    place.kubectl(&["apply", "-f", "-"], &way("w", &json!({"keys": []}))).await;
    scene
        .until("to say whose it is not", WAY, "w", |o| {
            condition(o, "Stalled")["message"].as_str().is_some_and(|m| m.contains("does not belong"))
        })
        .await;
    place.fate("w", "-a", &all(Fate::Free)).await;
}

#[tokio::test]
async fn without_a_terminal_approval_must_be_explicit() {
    let scene = Scene::new().await;
    let place = place(&scene).await;
    place.deploy("w", &json!({})).await;
    let approve = async |args: &[&str]| {
        let output = tokio::process::Command::new(OPERETTA)
            .args(["plan", "approve"])
            .args(args)
            .args(["-n", scene.namespace()])
            .env("KUBECONFIG", plane().await.kubeconfig_path())
            .stdin(std::process::Stdio::null())
            .output()
            .await
            .expect("operetta runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // The child is still desired, so no run asks for its deletion.
    let (code, told) = approve(&["way/w", "--all", "--yes"]).await;
    assert!(code == Some(1) && told.contains("no run of way/w asks"), "{told}");
    place.patch("w", &json!({"on": false, "keys": []})).await;
    place.fate("w", "", &UNWANTED).await;
    place.fate("w", "-a", &UNWANTED).await;
    place.fate("w", "-b", &UNWANTED).await;
    let (code, told) = approve(&["way/w", "--all"]).await;
    assert!(code == Some(2) && told.contains("--yes"), "{told}");
    // If several runs ask, one must be named.
    let (code, told) = approve(&["way/w"]).await;
    assert!(code == Some(1) && told.contains("/w-ask-b (ask-each[b])?"), "{told}");
    for (args, words) in [
        (&["way/other", "--all"][..], "there is no Way other"),
        (&["nonsense/w", "--all"], "there is no kind nonsense"),
        (&["w-delete-0123456789"], "there is no run w-delete-0123456789"),
    ] {
        let (code, told) = approve(args).await;
        assert!(code == Some(1) && told.contains(words), "{told}");
    }
    // Approve one of them and no other.
    let asked = place.waiting("w").await;
    let (_, run) = asked.iter().find(|(question, _)| question.contains("ask-each[b]")).expect("it asks");
    let (code, told) = approve(&[run]).await;
    assert_eq!(code, Some(0), "{told}");
    place.fate("w", "-b", &[("ask", Fate::Gone)]).await;
    place.fate("w", "-a", &[("ask", Fate::Asks)]).await;
    place.fate("w", "", &[("ask", Fate::Asks)]).await;
}

/// The right to edit a child or `PlanRun`s is not enough to delete the child: the API server requires the
/// verb `approve` on the instance.
#[tokio::test]
async fn approving_a_deletion_requires_the_verb_approve() {
    let scene = Scene::new().await;
    let place = place(&scene).await;
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let mut items = Vec::new();
    for (user, rules) in [
        (
            "editor",
            vec![
                rule("", "configmaps", &["*"]),
                rule(WAY.group(), "ways", &["get", "patch", "update", "run"]),
            ],
        ),
        (
            "planner",
            vec![rule("operetta.dev", "planruns", &["*"]), rule(WAY.group(), "ways", &["get", "run"])],
        ),
        (
            "approver",
            vec![
                rule("operetta.dev", "planruns", &["get", "list", "patch"]),
                rule(WAY.group(), "ways", &["approve"]),
            ],
        ),
    ] {
        let here = Some(scene.namespace());
        items.push(role(here, user, &json!(rules)));
        items.push(binding(here, ("Role", user), user));
    }
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    let as_user = async |user: &str, args: &[&str]| {
        let who = format!("--as={user}");
        let mut all = vec!["-n", scene.namespace(), &who];
        all.extend(args);
        kubectl_of(plane().await, &all, "").await.result()
    };
    place.deploy("w", &json!({})).await;
    place.patch("w", &json!({"on": false})).await;
    place.fate("w", "", &UNWANTED).await;
    let asked = place.waiting("w").await;
    let run = asked.values().next().expect("a run").clone();
    let uid = uid_of(&scene.get(CONFIG_MAP, "w-ask").await).to_owned();
    // Neither the annotation of earlier versions nor a change of the present ones deletes the child.
    for annotation in [
        format!("operetta.dev/delete={uid}"),
        "operetta.dev/deletion-pending=false".to_owned(),
        "operetta.dev/deletion-pending-".to_owned(),
    ] {
        let args = ["annotate", "configmap", "w-ask", "--overwrite", &annotation];
        eventually("the right to edit", LONG, async || as_user("editor", &args).await).await;
        place.settled("w").await;
    }
    let answer = |by: &str| {
        json!({"spec": {"approvals": [{"step": "approve", "verdict": "Approve", "by": by}]}}).to_string()
    };
    let patch = |by: &str| {
        ["patch".to_owned(), "planrun".into(), run.clone(), "--type=merge".into(), "-p".into(), answer(by)]
    };
    for (user, by, words) in [
        ("editor", "editor", "cannot get resource \"planruns\""),
        ("planner", "planner", "it needs the verb `approve` on ways."),
        ("planner", "approver", "by must be the user who adds the approval"),
    ] {
        let args = patch(by);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let told = eventually("the right to edit", LONG, async || {
            let told = as_user(user, &args).await.expect_err("it is refused");
            if user == "planner" && told.contains("resource \"planruns\"") { Err(told) } else { Ok(told) }
        })
        .await;
        assert!(told.contains(words), "{user}: {told}");
    }
    // A forged run does not delete it either.
    let forged = as_user("planner", &["get", "planrun", &run, "-o", "json"]).await.expect("it may read");
    let mut forged: Value = serde_json::from_str(&forged).expect("JSON");
    forged["metadata"] = json!({"name": "mine"});
    forged["spec"]["requestedBy"] = "planner".into();
    let who = ["-n", scene.namespace(), "--as=planner", "create", "-f", "-"];
    let told =
        kubectl_of(plane().await, &who, &forged.to_string()).await.result().expect_err("it is refused");
    assert!(told.contains("only the manager creates runs of the plans operetta.dev/"), "{told}");
    place.fate("w", "", &[("ask", Fate::Asks)]).await;
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "w-ask").await), uid);

    let args = patch("approver");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    eventually("the right to approve", LONG, async || as_user("approver", &args).await).await;
    place.fate("w", "", &[("ask", Fate::Gone)]).await;
    place.at_peace("w").await;
    let done = place.kubectl(&["get", "planrun", &run, "-o", "jsonpath={.status.phase}"], "").await;
    assert_eq!(done, "Succeeded");
}

/// A kubectl output format that prints the recorded child kinds.
const RECORD: &str = r"jsonpath={.metadata.annotations.operetta\.dev/child-kinds}";

const GADGETS: Kind = crate::support::ext::kind("fixtures.example.com/v2", "gadgets");

/// The CRD of a kind that belongs to no package, with two versions; `v1` says whether the first is served.
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
