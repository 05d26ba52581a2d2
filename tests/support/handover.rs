//! Instances whose CRD is handed over from one package to another, with all that shows whether something was rolled out again.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::operators::{Cluster, GROUP, Package, SIZE, instance, kind_named, kind_of, scene};
use super::plans::{INSTANCE_STATE, PLAN_RUN};
use super::{
    CONFIG_MAP, DEPLOYMENT, Kind, LONG, POD, REPLICA_SET, Scene, condition, eventually, kind, name_of, uid_of,
};

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
pub fn package(name: &str, version: &str, plurals: &[&str]) -> Package {
    let package = Package { name: name.to_owned(), root: tempfile::tempdir().expect("a folder") };
    write(&package, version, plurals);
    package
}

/// Writes the files of such a package for a version.
pub fn write(package: &Package, version: &str, plurals: &[&str]) {
    let root = package.root.path();
    for folder in ["crds", "templates"] {
        let _ = std::fs::remove_dir_all(root.join(folder));
        std::fs::create_dir(root.join(folder)).expect("a folder");
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
        let crd = super::crd::crd(GROUP, plural, &kind_of(plural), &schema);
        std::fs::write(root.join(format!("crds/{plural}.yaml")), crd).expect("a file");
        let _ = writeln!(
            manifest,
            "    - crd: crds/{plural}.yaml\n      children:\n        - {{id: kept, template: templates/kept.yaml, \
             deletionPolicy: Retain}}\n        - {{id: web, template: templates/web.yaml}}\n      status: {{pods: \
             children.web.status.readyReplicas | default(0)}}\n      plans:\n        deploy:\n          steps: [{{name: \
             all, apply: [kept, web]}}]\n"
        );
    }
    let kept = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {size: \"{{ spec.size }}\"}\n";
    std::fs::write(root.join("templates/kept.yaml"), kept).expect("a file");
    std::fs::write(root.join("templates/web.yaml"), DEPLOYMENT_TEMPLATE).expect("a file");
    std::fs::write(root.join("operator.yaml"), manifest).expect("a file");
}

/// The instances of a test, one of each kind, with the kind's plural as their name.
pub struct Life<'a> {
    pub cluster: &'a Cluster,
    pub scene: Scene,
    pub plurals: Vec<String>,
    pub before: BTreeMap<String, String>,
}

impl<'a> Life<'a> {
    /// Creates instances of installed packages and waits until they are Ready.
    pub async fn begin(cluster: &'a Cluster, plurals: &[&str]) -> Self {
        let scene = scene(cluster).await;
        for plural in plurals {
            scene.apply(&instance(plural, plural, &json!({}))).await;
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
    pub async fn identities(&self) -> BTreeMap<String, String> {
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
    pub async fn is_of(&self, plural: &str, package: &str) {
        let label = |object: &Value| object["metadata"]["labels"]["operetta.dev/operator"].clone();
        let crd = self.cluster.crd(&format!("{plural}.{GROUP}")).await.expect("it is there");
        assert_eq!(label(&crd), package, "{plural}");
        let operator =
            self.cluster.until(package, "active", |o| o["status"]["activeRevision"].is_string()).await;
        let active = operator["status"]["activeRevision"].as_str().expect("it is there").to_owned();
        let digest = active.rsplit('-').next().expect("it is there").to_owned();
        eventually(&format!("{plural} is of {package}"), LONG, async || {
            for kind in [CONFIG_MAP, DEPLOYMENT] {
                let child = self.scene.get(kind, plural).await;
                if label(&child) != package {
                    return Err(format!("{:#}", child["metadata"]["labels"]));
                }
                let managers: Vec<&str> = child["metadata"]["managedFields"]
                    .as_array()
                    .expect("it is there")
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
    pub async fn is_untouched(&self, what: &str) {
        assert_eq!(self.identities().await, self.before, "{what}");
    }

    /// Checks that the package repairs the children of a kind, and rolls out an edit.
    pub async fn is_managed(&self, plural: &str) {
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
