//! Each derived right of each package is needed: without it nothing is written, and the manager names exactly
//! that right. The short form withholds every third right.
//!
//! The Operator of a package names one namespace for each right. In each the account has a Role with all
//! rights except that one. So each right is missing in one namespace, all at the same time, and one namespace
//! has them all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::support::{
    ControlPlane, ETCD, Kind, LONG, OPERATOR, SITE, Scene, WEB_APP, condition, copy_package, eventually,
    find_in, is_long, is_ready, kind, kubectl_of, list, operetta,
};
use operetta::local::Mark;
use operetta::package::{self, Package};
use operetta::rights::{self, Place, Placement, Right, Rights};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{derived, strict_plane};
use crate::support::rights::{SYSTEM, apply, manager, run_operators, user};

/// A package with the manifest of an instance.
struct Case {
    folder: String,
    kind: Kind,
    name: &'static str,
    manifest: &'static str,
    /// Whether the instance becomes Ready when no right is missing.
    is_complete: bool,
}

fn case(folder: &str, kind: Kind, name: &'static str, manifest: &'static str) -> Case {
    Case { folder: folder.to_owned(), kind, name, manifest, is_complete: true }
}

/// All packages that ship and all examples. The two flight ticket packages have one CRD, so one gets another
/// group.
fn cases() -> (Vec<Case>, TempDir) {
    let tickets =
        copy_package("examples/packages/flight-ticket", "flights.com", "tickets.example.com", |text| text);
    let ticket = "examples/packages/flight-ticket/instances/my-flight-ticket.yaml";
    let flights = kind("flights.com/v1", "flighttickets");
    let copied = tickets.path().to_str().unwrap().to_owned();
    let cases = vec![
        case("operators/webapp", WEB_APP, "shop", "examples/webapp/full.yaml"),
        case(
            crate::support::etcd::package(),
            ETCD,
            "example-etcd-cluster",
            "examples/etcd/example-etcd-cluster.yaml",
        ),
        // No API answers its requests.
        Case { is_complete: false, ..case("operators/flight-ticket", flights, "my-flight-ticket", ticket) },
        case(&copied, kind("tickets.example.com/v1", "flighttickets"), "my-flight-ticket", ticket),
        case(
            "examples/packages/hello",
            kind("examples.operetta.dev/v1", "greetings"),
            "world",
            "examples/packages/hello/instances/world.yaml",
        ),
        case("examples/packages/site", SITE, "docs", "examples/packages/site/instances/docs.yaml"),
        case(
            "examples/packages/team",
            kind("examples.operetta.dev/v1", "teams"),
            "platform",
            "examples/packages/team/instances/platform.yaml",
        ),
        case(
            "examples/packages/cookbook",
            kind("examples.operetta.dev/v1", "keystores"),
            "small",
            "examples/packages/cookbook/instances/small.yaml",
        ),
        case(
            "examples/packages/certificates",
            kind("examples.operetta.dev/v1", "tlsservers"),
            "shop",
            "examples/packages/certificates/instances/shop.yaml",
        ),
        case(
            "examples/packages/sql",
            kind("examples.operetta.dev/v1", "sqlservers"),
            "main",
            "examples/packages/sql/instances/main.yaml",
        ),
        // No server runs in its pods.
        Case {
            is_complete: false,
            ..case(
                "operators/postgresql",
                kind("postgresql.cnpg.io/v1", "clusters"),
                "orders",
                "examples/postgresql/minimal.yaml",
            )
        },
        Case {
            is_complete: false,
            ..case(
                "operators/valkey",
                kind("valkey.io/v1alpha1", "valkeyclusters"),
                "shop",
                "examples/valkey/minimal.yaml",
            )
        },
    ];
    (cases, tickets)
}

/// The folders of packages in the repository, all of which must have a case.
fn covered() -> BTreeSet<String> {
    let folders =
        ["operators", "examples/packages"].into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    folders.map(|entry| entry.unwrap().path().to_str().unwrap().to_owned()).collect()
}

/// Of how many rights of a package one is withheld: all are with `OPERETTA_SWEEP`.
fn stride() -> usize {
    if is_long() { 1 } else { 3 }
}

#[tokio::test]
async fn each_missing_right_of_each_package_is_named() {
    let (cases, _tickets) = cases();
    assert_eq!(cases.len(), covered().len(), "{:?}: each has a case", covered());
    let plane = strict_plane().await;
    crate::support::etcd::watch(&plane);
    let kubeconfig = manager(&plane).await;
    let operetta = run_operators(&plane, &kubeconfig).await;
    // Two packages have the same name, and so the same Operator.
    let mut by_name = BTreeMap::<String, Vec<&Case>>::new();
    for case in &cases {
        let (package, _) = package::load(Path::new(&case.folder)).unwrap();
        by_name.entry(package.name.clone()).or_default().push(case);
    }
    let one_after_another = async |cases: &Vec<&Case>| {
        for case in cases {
            case.run(&plane).await;
        }
    };
    futures::future::join_all(by_name.values().map(one_after_another)).await;
    drop(operetta);
}

impl Case {
    async fn run(&self, plane: &Arc<ControlPlane>) {
        let mark = plane.audit().mark().unwrap();
        let (package, _) = package::load(Path::new(&self.folder)).unwrap();
        let all = derived(&self.folder);
        let (home, elsewhere) =
            (all.of(|place| *place == Place::Home), all.of(|place| *place != Place::Home));
        let whole = Scene::on(plane).await;
        if home.is_empty() {
            return self.elsewhere(plane, &package, &all, &whole).await;
        }
        assert!(
            elsewhere.is_empty(),
            "{elsewhere:?}: to be taken away one after another, with the others granted"
        );
        let mut lacking = Vec::new();
        for right in home.iter().step_by(stride()) {
            lacking.push((Scene::on(plane).await, right.clone()));
        }
        let scenes = lacking.iter().map(|(scene, _)| scene).chain([&whole]);
        let namespaces: BTreeSet<String> = scenes.map(|scene| scene.namespace().to_owned()).collect();
        let placement = Placement { namespaces: Some(namespaces.clone()), ..Placement::everywhere(SYSTEM) };
        let mut objects = rights::objects(&package, &all, &placement);
        for (scene, right) in &lacking {
            let rest: Rights = home.iter().filter(|known| *known != right).cloned().collect();
            for object in &mut objects {
                if object["kind"] == "Role" && object["metadata"]["namespace"] == scene.namespace() {
                    object["rules"] = rest.rules().into();
                }
            }
        }
        apply(plane, &objects).await;
        install(plane, &self.folder, &namespaces).await;
        let manifest =
            kubectl_of(plane, &["create", "--dry-run=client", "-o", "json", "-f", self.manifest], "").await;
        let mut manifest: Value = serde_json::from_str(&manifest.ok()).unwrap();
        manifest["apiVersion"] = self.kind.api_version().into();
        manifest["metadata"].as_object_mut().unwrap().remove("namespace");
        let manifest = manifest.to_string();
        for scene in lacking.iter().map(|(scene, _)| scene).chain([&whole]) {
            scene.apply(&manifest).await;
        }
        if self.is_complete {
            whole.ready(self.kind, self.name).await;
        }
        // Exactly these rights are missing.
        let expected: BTreeSet<String> =
            lacking.iter().map(|(scene, right)| format!("{right} in {}", scene.namespace())).collect();
        until_missing(plane, &package.name, &expected).await;
        for (scene, right) in &lacking {
            // The instance has a condition Ready that is not true.
            let is_reported = |object: &Value| !condition(object, "Ready").is_null();
            let object = scene.until(&right.to_string(), self.kind, self.name, is_reported).await;
            assert!(!is_ready(&object), "{right}: {object:#}");
        }
        self.nothing_is_written(plane, mark, &package, &lacking);
        // Its watches would continue.
        kubectl_of(plane, &["delete", "operator", &package.name], "").await.ok();
    }

    /// Withholds rights that are not granted in the instances' namespaces, one after another.
    async fn elsewhere(&self, plane: &ControlPlane, package: &Package, all: &Rights, scene: &Scene) {
        let namespaces = BTreeSet::from([scene.namespace().to_owned()]);
        let placement = Placement { namespaces: Some(namespaces.clone()), ..Placement::everywhere(SYSTEM) };
        for (number, right) in all.iter().step_by(stride()).enumerate() {
            let rest: Rights = all.iter().filter(|known| *known != right).cloned().collect();
            apply(plane, &rights::objects(package, &rest, &placement)).await;
            if number == 0 {
                install(plane, &self.folder, &namespaces).await;
            }
            until_missing(plane, &package.name, &BTreeSet::from([right.to_string()])).await;
        }
        apply(plane, &rights::objects(package, all, &placement)).await;
        until_missing(plane, &package.name, &BTreeSet::new()).await;
        kubectl_of(plane, &["delete", "operator", &package.name], "").await.ok();
    }

    /// Checks that no child is written in a namespace where a right is missing.
    fn nothing_is_written(
        &self,
        plane: &ControlPlane,
        mark: Mark,
        package: &Package,
        lacking: &[(Scene, Right)],
    ) {
        let account = user(&rights::account(&package.name));
        let mut written = plane.audit().requests_since(mark).unwrap();
        written.retain(|request| {
            request.acting_as == account
                && request.code < 300
                && !matches!(request.verb.as_str(), "get" | "list" | "watch")
                && !request.uri.contains("dryRun=All")
                && lacking.iter().any(|(scene, _)| scene.namespace() == request.namespace)
        });
        assert!(written.is_empty(), "{}: written without all rights:\n{}", self.folder, list(&written));
    }
}

/// Installs a package that serves these namespaces, without its rights, and waits until it is active.
pub(super) async fn install(plane: &ControlPlane, folder: &str, namespaces: &BTreeSet<String>) {
    store(plane, folder, namespaces).await;
    let name = package::load(Path::new(folder)).unwrap().0.name;
    until(plane, &name, "active", |operator| condition(operator, "Active")["status"] == "True").await;
}

/// Like [`install`], without waiting.
pub(super) async fn store(plane: &ControlPlane, folder: &str, namespaces: &BTreeSet<String>) {
    let args = ["install", folder, "--rights=false", "--dry-run", "-o", "json"];
    let mut list: Value = serde_json::from_str(&operetta(Path::new("/nowhere"), &args).await.ok()).unwrap();
    for object in list["items"].as_array_mut().unwrap() {
        if object["kind"] == "Operator" {
            object["spec"]["namespaces"] = json!({"names": namespaces});
        }
    }
    let objects: Vec<Value> = serde_json::from_value(list["items"].take()).unwrap();
    apply(plane, &objects).await;
}

/// Waits until an Operator exists and `holds` is true of it.
pub(super) async fn until(
    plane: &ControlPlane,
    name: &str,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    eventually(&format!("Operator {name}: {what}"), LONG, async || {
        match find_in(plane, OPERATOR, None, name).await {
            Some(operator) if holds(&operator) => Ok(operator),
            other => Err(format!("{:#}", other.unwrap_or_default()["status"])),
        }
    })
    .await
}

/// Waits until an Operator reports that exactly these rights are missing.
pub(super) async fn until_missing(plane: &ControlPlane, name: &str, expected: &BTreeSet<String>) {
    let named = |operator: &Value| -> BTreeSet<String> {
        let rights = operator["status"]["missingRights"].as_array().into_iter().flatten();
        rights.map(|right| right.as_str().unwrap().to_owned()).collect()
    };
    let holds = |operator: &Value| {
        let is_told = condition(operator, "RightsMissing")["status"] == "True";
        named(operator) == *expected && is_told != expected.is_empty()
    };
    until(plane, name, &format!("missing {expected:?}"), holds).await;
}
