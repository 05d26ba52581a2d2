//! What becomes of the children of the fixture `routes`, which has one of each deletion policy.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::ext::{
    CONFIG_MAP, Kind, LONG, Scene, VOLUME_CLAIM, WAY, condition, copy_folder, fixture, is_ready, kind, run,
};
use super::plans::PLAN_RUN;
use super::{ControlPlane, Operetta, eventually};

/// The expected state of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
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
pub const UNWANTED: [(&str, Fate); 4] =
    [("delete", Fate::Gone), ("retain", Fate::Retained), ("ask", Fate::Asks), ("data", Fate::Retained)];

pub fn all(fate: Fate) -> [(&'static str, Fate); 4] {
    UNWANTED.map(|(policy, _)| (policy, fate))
}

fn kind_of(policy: &str) -> Kind {
    if policy == "data" { VOLUME_CLAIM } else { CONFIG_MAP }
}

pub fn way(name: &str, spec: &Value) -> String {
    json!({"apiVersion": WAY.api_version(), "kind": "Way", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

pub fn meets(fate: Fate, object: Option<&Value>) -> bool {
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

/// A namespace with instances of the fixture.
pub struct Place(Scene);

impl Deref for Place {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.0
    }
}

impl Place {
    /// A new namespace of the control plane of the tests, handled by their manager.
    pub async fn new() -> Self {
        Self(Scene::new().await)
    }

    /// Like [`Self::new`], on a control plane that processes reach.
    pub async fn with_commands() -> Self {
        Self(Scene::with_commands().await)
    }

    /// The namespace `default` of a control plane, whatever manager it has.
    pub fn of(plane: &Arc<ControlPlane>) -> Self {
        Self(Scene::existing(plane, "default"))
    }

    pub async fn respec(&self, name: &str, spec: &Value) {
        self.patch(WAY, name, "merge", &json!({"spec": spec})).await;
    }

    pub async fn deploy(&self, name: &str, spec: &Value) {
        self.apply(&way(name, spec)).await;
        self.ready(WAY, name).await;
        for suffix in ["", "-a", "-b"] {
            self.fate(name, suffix, &all(Fate::Wanted)).await;
        }
    }

    /// Waits until the child of each policy with that suffix has the expected fate.
    pub async fn fate(&self, name: &str, suffix: &str, fates: &[(&str, Fate)]) {
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

    /// Checks that the instance names what awaits approval, and the run to approve if it is only one, and approves all.
    pub async fn approve(&self, name: &str, suffixes: &[&str]) {
        let pending = |way: &Value| condition(way, "DeletionPending").clone();
        let names_all = |way: &Value| {
            let message = pending(way)["message"].to_string();
            let mut children = suffixes.iter().map(|suffix| format!("{name}-ask{suffix} "));
            pending(way)["status"] == "True" && children.all(|child| message.contains(&child))
        };
        self.until("DeletionPending to name it", WAY, name, names_all).await;
        let runs = self.waiting(name, suffixes).await;
        assert_eq!(runs.len(), suffixes.len(), "{runs:?}");
        if let [run] = runs.values().collect::<Vec<_>>()[..] {
            let command = format!("operetta plan approve {run} -n {}", self.namespace());
            let says = |way: &Value| pending(way)["message"].to_string().contains(&command);
            self.until("DeletionPending to name the run", WAY, name, says).await;
        }
        for run in runs.values() {
            self.answer(run, "approve", "Approve").await;
        }
        for suffix in suffixes {
            self.fate(name, suffix, &[("ask", Fate::Gone)]).await;
        }
    }

    /// The runs of an instance that wait for approval, by their question, once the children `ask` with these suffixes
    /// have one.
    pub async fn waiting(&self, name: &str, suffixes: &[&str]) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        eventually("the questions", LONG, async || {
            let mut runs = self.list(PLAN_RUN).await;
            runs.retain(|run| {
                run["spec"]["of"]["name"] == name
                    && run["spec"]["plan"] == "operetta.dev/delete-child"
                    && run["status"]["phase"] == "Running"
            });
            let named =
                |run: &Value| (text(&run["status"]["steps"][0]["message"]), text(&run["metadata"]["name"]));
            let asked: BTreeMap<_, _> = runs.iter().map(named).collect();
            let is_asked = |suffix: &&str| {
                let child = format!("/{name}-ask{suffix} (");
                asked.keys().any(|question| question.contains(&child))
            };
            if suffixes.iter().all(is_asked) { Ok(asked) } else { Err(format!("{asked:?}")) }
        })
        .await
    }

    /// Waits until the condition `DeletionPending` is gone and the instance is Ready.
    pub async fn at_peace(&self, name: &str) {
        let is_at_peace = |way: &Value| is_ready(way) && condition(way, "DeletionPending").is_null();
        self.until("the condition to be gone", WAY, name, is_at_peace).await;
    }
}

pub const GADGETS: Kind = kind("fixtures.example.com/v2", "gadgets");

/// The CRD of a kind that belongs to no package, with two versions; `v1` says whether the first is served.
pub fn gadget_crd(v1: bool) -> String {
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

/// Writes a changed copy of the package into a folder with that name.
pub fn variant(folder: &Path, name: &str, change: impl Fn(String) -> String) -> String {
    let package = folder.join(name);
    copy_folder(Path::new(&fixture("routes")), &package, &change);
    package.to_str().expect("a path").to_owned()
}

/// Restarts a manager with other packages. It watches the instances of two kinds, also those of a kind whose package is gone.
pub async fn restart(plane: &ControlPlane, manager: &mut Operetta, packages: &[&str]) {
    manager.end().await;
    *manager = run(plane, packages).watching(2).await;
}
