//! A CRD is handed over from one package to another: a package is renamed, split or merged, by command or
//! from Git in any order. Instances, children, pods and the states of runs stay, and nothing is rolled out
//! again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use super::stages::{dies_at, start};
use super::{
    Cluster, GROUP, MANAGERS, OPERATOR, Package, REVISION, SIZE, is_active, kind_named, kind_of, scene,
};
use crate::support::ext::{
    CONFIG_MAP, CRD, DEPLOYMENT, Kind, LONG, POD, Scene, condition, kind, name_of, uid_of,
};
use crate::support::faults::Wire;
use crate::support::plans::{INSTANCE_STATE, PLAN_RUN};
use crate::support::{self, eventually, own_embedded_plane};

const REPLICA_SET: Kind = kind("apps/v1", "replicasets");
const CONTROLLER_REVISION: Kind = kind("apps/v1", "controllerrevisions");
/// The kinds of all objects that belong to an instance.
const ALL: [Kind; 7] =
    [CONFIG_MAP, DEPLOYMENT, REPLICA_SET, POD, INSTANCE_STATE, PLAN_RUN, CONTROLLER_REVISION];

const DEPLOYMENT_TEMPLATE: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}"}
spec:
  replicas: {{ spec.size }}
  selector: {matchLabels: {app: "{{ name }}"}}
  template:
    metadata: {labels: {app: "{{ name }}"}}
    spec:
      containers:
        - name: c
          image: "registry.example.com/c:1"
          env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
"#;

/// A package whose kinds have plans, pods, and a child that the garbage collector does not delete.
fn package(name: &str, version: &str, plurals: &[&str]) -> Package {
    let package = Package { name: name.to_owned(), root: tempfile::tempdir().unwrap() };
    write(&package, version, plurals);
    package
}

fn write(package: &Package, version: &str, plurals: &[&str]) {
    let root = package.root.path();
    for folder in ["crds", "templates"] {
        let _ = std::fs::remove_dir_all(root.join(folder));
        std::fs::create_dir(root.join(folder)).unwrap();
    }
    let mut manifest = format!(
        "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: {}}}\nspec:\n  version: \
         {version}\n  resources:\n",
        package.name
    );
    for plural in plurals {
        let schema = format!(
            "schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {{type: object, properties: {{{SIZE}}}}}}}}}}}"
        );
        let crd = support::crd::crd(GROUP, plural, &kind_of(plural), &schema);
        std::fs::write(root.join(format!("crds/{plural}.yaml")), crd).unwrap();
        let _ = writeln!(
            manifest,
            "    - crd: crds/{plural}.yaml\n      children:\n        - {{id: kept, template: templates/kept.yaml, \
             deletionPolicy: Retain}}\n        - {{id: web, template: templates/web.yaml}}\n      status: {{pods: \
             children.web.status.readyReplicas | default(0)}}\n      plans:\n        deploy:\n          steps: [{{name: \
             all, apply: [kept, web]}}]\n"
        );
    }
    let kept = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {size: \"{{ spec.size }}\"}\n";
    std::fs::write(root.join("templates/kept.yaml"), kept).unwrap();
    std::fs::write(root.join("templates/web.yaml"), DEPLOYMENT_TEMPLATE).unwrap();
    std::fs::write(root.join("operator.yaml"), manifest).unwrap();
}

/// The instances of a test, one of each kind, with the kind's plural as their name.
struct Life<'a> {
    cluster: &'a Cluster,
    scene: Scene,
    plurals: Vec<String>,
    before: BTreeMap<String, String>,
}

impl<'a> Life<'a> {
    /// Creates instances of installed packages and waits until they are Ready.
    async fn begin(cluster: &'a Cluster, plurals: &[&str]) -> Self {
        let scene = scene(cluster).await;
        for plural in plurals {
            scene.apply(&super::instance(plural, plural, &json!({}))).await;
        }
        for plural in plurals {
            let is_up = |o: &Value| o["status"]["pods"] == 1 && condition(o, "Ready")["status"] == "True";
            scene.until("ready, with a pod", kind_named(plural), plural, is_up).await;
        }
        let plurals: Vec<String> = plurals.iter().map(|plural| (*plural).to_owned()).collect();
        let mut life = Self { cluster, scene, plurals, before: BTreeMap::new() };
        life.before = life.identities().await;
        assert_eq!(
            life.before.keys().filter(|name| name.starts_with("planruns")).count(),
            life.plurals.len()
        );
        life
    }

    /// All objects with the fields that show whether they are the same and unchanged.
    async fn identities(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for plural in &self.plurals {
            let crd = self.cluster.crd(&format!("{plural}.{GROUP}")).await.expect("the CRD");
            all.insert(
                format!("crd {plural}"),
                format!("{} {}", uid_of(&crd), crd["metadata"]["generation"]),
            );
            let instance = self.scene.get(kind_named(plural), plural).await;
            let meta = &instance["metadata"];
            all.insert(
                format!("instance {plural}"),
                format!("{} {} {}", uid_of(&instance), meta["generation"], meta["finalizers"]),
            );
        }
        for kind in ALL {
            for object in self.scene.list(kind).await {
                let meta = &object["metadata"];
                if name_of(&object) == "kube-root-ca.crt" {
                    continue;
                }
                // The generation of an InstanceState, a run or a pod changes with its status.
                let generation = [DEPLOYMENT, REPLICA_SET].iter().any(|one| one.plural == kind.plural);
                let generation = if generation { &meta["generation"] } else { &Value::Null };
                let hash = &meta["annotations"]["operetta.dev/applied-hash"];
                let key = format!("{} {}", kind.plural, name_of(&object));
                all.insert(key, format!("{} {generation} {hash}", uid_of(&object)));
            }
        }
        all
    }

    /// Waits until a package owns a kind with its instance and its children, and checks that nothing else has
    /// changed.
    async fn is_of(&self, plural: &str, package: &str) {
        let label = |object: &Value| object["metadata"]["labels"]["operetta.dev/operator"].clone();
        let crd = self.cluster.crd(&format!("{plural}.{GROUP}")).await.unwrap();
        assert_eq!(label(&crd), package, "{plural}");
        let operator =
            self.cluster.until(package, "active", |o| o["status"]["activeRevision"].is_string()).await;
        let active = operator["status"]["activeRevision"].as_str().unwrap().to_owned();
        let digest = active.rsplit('-').next().unwrap().to_owned();
        eventually(&format!("{plural} is of {package}"), LONG, async || {
            for kind in [CONFIG_MAP, DEPLOYMENT] {
                let child = self.scene.get(kind, plural).await;
                if label(&child) != package {
                    return Err(format!("{:#}", child["metadata"]["labels"]));
                }
                let managers: Vec<&str> = child["metadata"]["managedFields"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(|entry| entry["manager"].as_str())
                    .filter(|manager| manager.starts_with("operetta/"))
                    .collect();
                if managers != [format!("operetta/{package}")] {
                    return Err(format!("{managers:?}"));
                }
            }
            let instance = self.scene.get(kind_named(plural), plural).await;
            let status = &instance["status"];
            let is_moved = status["revision"].as_str().is_some_and(|revision| revision.ends_with(&digest));
            let is_changing = condition(&instance, "RevisionChanging")["status"] == "True";
            if is_moved && !is_changing && condition(&instance, "Ready")["status"] == "True" {
                return Ok(());
            }
            Err(format!("{status:#}"))
        })
        .await;
    }

    /// Checks that nothing was deleted, recreated or rolled out.
    async fn is_untouched(&self, what: &str) {
        assert_eq!(self.identities().await, self.before, "{what}");
    }

    /// Checks that the package repairs the children of a kind, and rolls out an edit.
    async fn is_managed(&self, plural: &str) {
        self.scene.kubectl(&["delete", "configmap", plural]).await;
        self.scene.until("repaired", CONFIG_MAP, plural, |o| o["data"]["size"] == "1").await;
        let runs = self.scene.runs(plural).await.len();
        self.scene.patch(kind_named(plural), plural, "merge", &json!({"spec": {"size": 2}})).await;
        self.scene.until("rolled out", DEPLOYMENT, plural, |o| o["spec"]["replicas"] == 2).await;
        let is_up = |o: &Value| o["status"]["pods"] == 2 && condition(o, "Ready")["status"] == "True";
        self.scene.until("ready", kind_named(plural), plural, is_up).await;
        assert_eq!(self.scene.runs(plural).await.len(), runs + 1);
        // Checks that deletion removes everything, including the child that the garbage collector does not
        // delete.
        self.scene.kubectl(&["delete", &format!("{plural}.{GROUP}"), plural]).await;
        self.scene.gone(kind_named(plural), plural).await;
        self.scene.gone(DEPLOYMENT, plural).await;
        self.scene.gone(INSTANCE_STATE, plural).await;
        self.scene.get(CONFIG_MAP, plural).await;
    }
}

impl Cluster {
    /// Applies what `install --dry-run` prints for a package.
    async fn apply_from_git(&self, package: &Package, take_over_from: &[&str]) {
        // Another test may have created it.
        self.kubectl(&["create", "namespace", MANAGERS], "").await;
        let mut args = vec!["install", package.folder(), "--dry-run", "-o", "json"];
        for from in take_over_from {
            args.extend(["--take-over-from", from]);
        }
        let text = self.operetta(&args).await.ok();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &text).await.ok();
    }

    async fn delete_from_git(&self, package: &str) {
        self.kubectl(&["delete", "operator", package], "").await.ok();
    }

    async fn is_named(&self, package: &Package) {
        let revision = package.revision().await;
        let holds = |o: &Value| is_active(o) && o["status"]["activeRevision"] == revision.as_str();
        self.until(&package.name, "its new revision is active", holds).await;
    }
}

#[tokio::test]
async fn renamed_package_takes_over_its_kind_by_command() {
    let cluster = Cluster::shared().await;
    let old = package("renamers", "0.1.0", &["renamers"]);
    cluster.install(&old).await;
    let life = Life::begin(cluster, &["renamers"]).await;
    let new = package("renamed", "0.1.0", &["renamers"]);

    // Without the flag the install is refused, and the message names it.
    let (code, told) = cluster.told(&["install", new.folder()]).await;
    for words in [
        "renamers.ops.example.org",
        "belongs to the package renamers",
        "--take-over-from renamers",
        "spec.takesOver",
    ] {
        assert!(code == 1 && told.contains(words), "{words}: {code} {told}");
    }
    let shown = cluster.operetta(&["operators", "renamed", "-o", "wide"]).await.ok();
    assert!(shown.contains("CRDRefused") && shown.contains("--take-over-from renamers"), "{shown}");
    // It cannot take the CRD over from a package that does not have it either.
    let (code, told) = cluster.told(&["install", new.folder(), "--take-over-from", "others"]).await;
    assert!(code == 1 && told.contains("the package others has no CRD of this package"), "{code} {told}");
    life.is_untouched("refused").await;

    let preview =
        cluster.operetta(&["preview", new.folder(), "--take-over-from", "renamers", "-o", "json"]).await.ok();
    let preview: Value = serde_json::from_str(&preview).unwrap();
    assert_eq!(preview["instances"][0]["plans"], Value::Null, "{preview:#}");
    assert_eq!(preview["instances"][0]["refused"], Value::Null, "{preview:#}");
    let changes = preview["instances"][0]["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{preview:#}");
    for change in changes {
        let label = json!({
            "path": "metadata.labels[operetta.dev/operator]", "before": "renamers", "after": "renamed",
        });
        assert_eq!(change["fields"], json!([label]), "{preview:#}");
    }
    let told = cluster.operetta(&["install", new.folder(), "--take-over-from", "renamers"]).await;
    assert!(
        told.stderr.contains("taking over the CRD renamers.ops.example.org from renamers"),
        "{}",
        told.stderr
    );
    told.ok();
    life.is_of("renamers", "renamed").await;
    life.is_untouched("taken over").await;
    let message = cluster.until_refused("renamers", "CRDHandedOver").await;
    assert!(message.contains("renamers.ops.example.org to renamed"), "{message}");

    cluster.operetta(&["uninstall", "renamers"]).await.ok();
    life.is_untouched("the former package is uninstalled").await;
    assert!(cluster.find(OPERATOR, "renamers").await.is_none());
    // The command can be repeated.
    cluster.operetta(&["install", new.folder(), "--take-over-from", "renamers"]).await.ok();
    cluster.until("renamed", "active", is_active).await;
    life.is_untouched("again").await;
    life.is_managed("renamers").await;
}

#[tokio::test]
async fn a_package_is_renamed_in_git_in_any_order() {
    let cluster = Cluster::shared().await;
    for (index, is_deleted_first) in [true, false].into_iter().enumerate() {
        let (old, new, plural) = (format!("olds{index}"), format!("news{index}"), format!("things{index}"));
        let first = package(&old, "0.1.0", &[&plural]);
        cluster.apply_from_git(&first, &[]).await;
        cluster.is_named(&first).await;
        let life = Life::begin(cluster, &[&plural]).await;
        let second = package(&new, "0.1.0", &[&plural]);
        if is_deleted_first {
            cluster.delete_from_git(&old).await;
        }
        cluster.apply_from_git(&second, &[&old]).await;
        cluster.is_named(&second).await;
        if !is_deleted_first {
            cluster.delete_from_git(&old).await;
        }
        life.is_of(&plural, &new).await;
        life.is_untouched(&format!("deleted first: {is_deleted_first}")).await;
        life.is_managed(&plural).await;
    }
}

#[tokio::test]
async fn a_package_is_split_in_any_order() {
    let cluster = Cluster::shared().await;
    for (index, new_version_first) in [true, false].into_iter().enumerate() {
        let (whole, part) = (format!("wholes{index}"), format!("parts{index}"));
        let (kept, given) = (format!("keeps{index}"), format!("gives{index}"));
        let first = package(&whole, "0.1.0", &[&kept, &given]);
        cluster.apply_from_git(&first, &[]).await;
        cluster.is_named(&first).await;
        let life = Life::begin(cluster, &[&kept, &given]).await;
        let second = package(&part, "1.0.0", &[&given]);
        write(&first, "0.2.0", &[&kept]);
        if new_version_first {
            cluster.apply_from_git(&first, &[]).await;
            let message = cluster.until_refused(&whole, "CRDRefused").await;
            assert!(message.contains("--take-over-from"), "{message}");
            life.is_untouched("the new version is refused").await;
        }
        cluster.apply_from_git(&second, &[&whole]).await;
        cluster.is_named(&second).await;
        if !new_version_first {
            let message = cluster.until_refused(&whole, "CRDHandedOver").await;
            assert!(message.contains(&format!("{given}.{GROUP} to {part}")), "{message}");
            cluster.operetta(&["upgrade", first.folder(), "--force-conflicts"]).await.ok();
        }
        cluster.is_named(&first).await;
        life.is_of(&given, &part).await;
        life.is_of(&kept, &whole).await;
        let mut expected = life.before.clone();
        // The other package was upgraded, which is a rollout of its own kind alone.
        let mut found = life.identities().await;
        let is_of_upgrade = |name: &String| {
            name.starts_with(&format!("planruns {kept}-"))
                || name.starts_with(&format!("controllerrevisions {kept}-"))
        };
        expected.retain(|name, _| !is_of_upgrade(name));
        found.retain(|name, _| !is_of_upgrade(name));
        assert_eq!(found, expected, "the new version first: {new_version_first}");
        life.is_managed(&given).await;
        life.is_managed(&kept).await;
    }
}

#[tokio::test]
async fn two_packages_are_merged_in_any_order() {
    let cluster = Cluster::shared().await;
    for (index, how) in
        ["the Operator goes first", "the Operator goes last", "by command"].into_iter().enumerate()
    {
        let (stays, goes) = (format!("stays{index}"), format!("goes{index}"));
        let (own, taken) = (format!("owns{index}"), format!("takens{index}"));
        let (first, second) = (package(&stays, "0.1.0", &[&own]), package(&goes, "0.1.0", &[&taken]));
        for package in [&first, &second] {
            cluster.apply_from_git(package, &[]).await;
            cluster.is_named(package).await;
        }
        let life = Life::begin(cluster, &[&taken]).await;
        write(&first, "0.2.0", &[&own, &taken]);
        match how {
            "the Operator goes first" => {
                cluster.delete_from_git(&goes).await;
                cluster.apply_from_git(&first, &[&goes]).await;
            }
            "the Operator goes last" => {
                cluster.apply_from_git(&first, &[&goes]).await;
                cluster.is_named(&first).await;
                cluster.delete_from_git(&goes).await;
            }
            _ => {
                let args = [
                    "upgrade",
                    first.folder(),
                    "--take-over-from",
                    &goes,
                    "--accept-rights",
                    "--force-conflicts",
                ];
                cluster.operetta(&args).await.ok();
                cluster.operetta(&["uninstall", &goes]).await.ok();
            }
        }
        cluster.is_named(&first).await;
        life.is_of(&taken, &stays).await;
        life.is_untouched(how).await;
        life.is_managed(&taken).await;
    }
}

/// A kind is handed over and back while the other package stays installed. Two Operators that take the same
/// CRD from each other are refused.
#[tokio::test]
async fn kind_can_be_handed_over_and_back() {
    let cluster = Cluster::shared().await;
    let (here, there) = (package("heres", "0.1.0", &["wanders"]), package("theres", "0.1.0", &["wanders"]));
    cluster.install(&here).await;
    let life = Life::begin(cluster, &["wanders"]).await;
    cluster.operetta(&["install", there.folder(), "--take-over-from", "heres"]).await.ok();
    life.is_of("wanders", "theres").await;
    cluster.until_refused("heres", "CRDHandedOver").await;
    // Both Operators name the CRD: it stays where it is.
    let (code, told) = cluster.told(&["install", here.folder(), "--take-over-from", "theres"]).await;
    assert!(code == 1 && told.contains("spec.takesOver of both Operators names it"), "{code} {told}");
    life.is_of("wanders", "theres").await;
    let patch = json!({"spec": {"takesOver": null}}).to_string();
    cluster.kubectl(&["patch", "operator", "theres", "--type=merge", "-p", &patch], "").await.ok();
    cluster.until("heres", "active", is_active).await;
    life.is_of("wanders", "heres").await;
    cluster.until_refused("theres", "CRDHandedOver").await;
    life.is_untouched("there and back").await;
    cluster.operetta(&["uninstall", "theres"]).await.ok();
    life.is_untouched("the other is uninstalled").await;
    life.is_managed("wanders").await;
}

/// A rollout of the former package continues with the revision that it began with, even if that package is
/// uninstalled.
#[tokio::test]
async fn active_rollout_continues_after_the_handover() {
    let cluster = Cluster::shared().await;
    let gate = |package: &Package| {
        let path = package.root.path().join("operator.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        let steps = "steps: [{name: ask, when: spec.size > 1, approve: {message: go on?}}, {name: all, apply: [kept, web]}]";
        std::fs::write(path, text.replace("steps: [{name: all, apply: [kept, web]}]", steps)).unwrap();
    };
    let (old, new) = (package("midway", "0.1.0", &["midways"]), package("onward", "0.1.0", &["midways"]));
    gate(&old);
    gate(&new);
    cluster.install(&old).await;
    let life = Life::begin(cluster, &["midways"]).await;
    life.scene.patch(kind_named("midways"), "midways", "merge", &json!({"spec": {"size": 2}})).await;
    let is_asking = |run: &Value| run["status"]["phase"] == "Running" && run.to_string().contains("go on?");
    let run = life.scene.run_of("midways", "deploy", is_asking).await;
    let before = life.identities().await;
    let revision = old.revision().await;
    cluster.operetta(&["install", new.folder(), "--take-over-from", "midway"]).await.ok();
    let told = cluster.operetta(&["uninstall", "midway"]).await.ok();
    assert!(told.contains(&format!("OperatorRevision {revision} stays")), "{told}");
    assert!(cluster.find(REVISION, &revision).await.is_some());
    assert_eq!(life.identities().await, before);
    life.scene.answer(name_of(&run), "ask", "Approve").await;
    let done = life.scene.run_is(name_of(&run), "Succeeded").await;
    assert_eq!(uid_of(&done), uid_of(&run));
    life.scene.until("rolled out", DEPLOYMENT, "midways", |o| o["spec"]["replicas"] == 2).await;
    life.is_of("midways", "onward").await;
}

/// Hands over and back, with a manager that ends at its kth write, until a manager makes fewer than k writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handover_is_resumed_after_a_kill_at_any_write() {
    let plane = own_embedded_plane().await;
    let cluster =
        Cluster { plane: Arc::clone(&plane), manager: std::sync::Mutex::new(Cluster::manager(&plane).await) };
    let (odd, even) = (package("odds", "0.1.0", &["dies"]), package("evens", "0.1.0", &["dies"]));
    cluster.install(&odd).await;
    let life = Life::begin(&cluster, &["dies"]).await;
    cluster.operetta(&["install", even.folder(), "--no-wait"]).await.ok();
    cluster.until_refused("evens", "CRDRefused").await;
    cluster.manager.lock().unwrap().kill9();

    let wire = Wire::new(1, GROUP, &[]);
    let takes = async |package: &str, from: Value| {
        let patch = json!({"spec": {"takesOver": from}}).to_string();
        cluster.kubectl(&["patch", "operator", package, "--type=merge", "-p", &patch], "").await.ok();
    };
    let mut most = 0;
    for k in 1.. {
        let mut died = false;
        for (to, from) in [("evens", "odds"), ("odds", "evens")] {
            takes(from, Value::Null).await;
            takes(to, json!([{"crd": format!("dies.{GROUP}"), "from": from}])).await;
            let done = async || {
                cluster.until(to, "done", is_active).await;
                eventually("the CRD", LONG, async || {
                    let crd = cluster.find(CRD, &format!("dies.{GROUP}")).await.unwrap();
                    let label = &crd["metadata"]["labels"]["operetta.dev/operator"];
                    if *label == to { Ok(()) } else { Err(format!("{label}")) }
                })
                .await;
                life.is_of("dies", to).await;
            };
            died |= dies_at(k, &wire, &plane, &done).await;
            let process = start(&wire, &plane).await.expect("it lives");
            done().await;
            life.is_untouched(&format!("to {to}, k = {k}")).await;
            process.manager.stop().await;
        }
        if !died {
            most = k;
            break;
        }
    }
    assert!(most > 5, "there are more than {most} writes");
}
