//! Packages that are installed in a cluster, and a manager that follows its Operators.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::apply::unserved;
use super::ext::{CONFIG_MAP, CRD, Kind, LONG, OPERATOR, Scene, condition, find_in, uid_of};
use super::{ControlPlane, Operetta, Output, eventually, kubectl_of};

/// The manager's namespace.
pub const MANAGERS: &str = "operetta-system";
/// The group of the kinds of these packages.
pub const GROUP: &str = "ops.example.org";

/// A control plane with a manager that loads its Operators.
pub struct Cluster {
    pub plane: Arc<ControlPlane>,
    pub manager: Mutex<Operetta>,
}

impl Cluster {
    /// Starts a manager on a control plane.
    pub async fn on(plane: Arc<ControlPlane>) -> Self {
        let manager = Mutex::new(Self::manager(&plane).await);
        Self { plane, manager }
    }

    /// Starts a manager that follows the Operators.
    pub async fn manager(plane: &ControlPlane) -> Operetta {
        let mut manager = Operetta::run(plane, &["run"]);
        manager.wait_for("following the Operators of the cluster", LONG).await;
        manager
    }

    /// Kills the manager, and starts another after `between`.
    pub async fn restart(&self, between: impl AsyncFnOnce()) {
        self.manager.lock().expect("it is free").kill9();
        between().await;
        let manager = Self::manager(&self.plane).await;
        *self.manager.lock().expect("it is free") = manager;
    }

    /// Runs kubectl as admin.
    pub async fn kubectl(&self, args: &[&str], input: &str) -> Output {
        kubectl_of(&self.plane, args, input).await
    }

    /// Reads a cluster-scoped object; `None` if it does not exist.
    pub async fn find(&self, kind: Kind, name: &str) -> Option<Value> {
        find_in(&self.plane, kind, None, name).await
    }

    /// Waits until an Operator exists and `holds` is true of it.
    pub async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("Operator {name}: {what}"), LONG, async || {
            match self.find(OPERATOR, name).await {
                Some(operator) if holds(&operator) => Ok(operator),
                other => Err(format!("{:#}", other.unwrap_or_default()["status"])),
            }
        })
        .await
    }

    /// Waits until the revision that an Operator names is not active for this reason. Returns the message.
    pub async fn until_refused(&self, name: &str, reason: &str) -> String {
        let holds = |operator: &Value| {
            let ready = condition(operator, "Ready");
            ready["reason"] == reason && ready["status"] == "False" && is_observed(operator)
        };
        let operator = self.until(name, reason, holds).await;
        condition(&operator, "Ready")["message"].as_str().expect("a message").to_owned()
    }

    /// The CRD with this name.
    pub async fn crd(&self, name: &str) -> Option<Value> {
        self.find(CRD, name).await
    }

    /// Merges a patch into an Operator.
    pub async fn patch(&self, name: &str, patch: &Value) {
        let args = ["patch", "operator", name, "--type=merge", "-p", &patch.to_string()];
        self.kubectl(&args, "").await.ok();
    }

    /// Applies objects as one does from Git.
    pub async fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        eventually("kubectl apply", LONG, async || unserved(self.kubectl(&args, &list).await.result())).await;
    }

    /// Installs a package, or changes its revision, as one does from Git. Returns the name of the revision.
    pub async fn put(&self, package: &Package) -> String {
        // It may exist.
        self.kubectl(&["create", "namespace", MANAGERS], "").await;
        let (revision, mut objects) = package.packed();
        objects.push(operator(&package.name, &revision));
        self.apply(&objects).await;
        revision
    }

    /// Does the same as [`Self::put`], and waits until the revision is active.
    pub async fn put_active(&self, package: &Package) -> String {
        self.put(package).await;
        self.is_named(package).await
    }

    /// Does the same as [`Self::put_active`]. Returns the package.
    pub async fn with(&self, package: Package) -> Package {
        self.put_active(&package).await;
        package
    }

    /// Waits until the revision of a package is active, and returns its name.
    pub async fn is_named(&self, package: &Package) -> String {
        let (revision, _) = package.packed();
        let holds = |o: &Value| is_active(o) && o["status"]["activeRevision"] == *revision;
        self.until(&package.name, "its revision is active", holds).await;
        revision
    }
}

/// An Operator that names a revision.
pub fn operator(name: &str, revision: &str) -> Value {
    json!({
        "apiVersion": OPERATOR.api_version(), "kind": "Operator", "metadata": {"name": name},
        "spec": {"revision": revision},
    })
}

/// Whether the status is of the newest generation.
pub fn is_observed(operator: &Value) -> bool {
    operator["status"]["observedGeneration"] == operator["metadata"]["generation"]
}

/// Whether an Operator is Ready.
pub fn is_active(operator: &Value) -> bool {
    is_observed(operator) && condition(operator, "Ready")["status"] == "True"
}

/// A kind of a package.
#[derive(Clone)]
pub struct Part {
    pub plural: String,
    /// The schema of `spec.properties`.
    pub fields: String,
    /// The value that its child shows.
    pub value: String,
    pub plans: String,
}

/// A package in a folder, whose files a test changes.
pub struct Package {
    pub name: String,
    pub root: tempfile::TempDir,
}

/// The field of most kinds.
pub const SIZE: &str = "size: {type: integer, default: 1}";

impl Package {
    /// A package with one kind, whose plural is the package's name.
    pub fn new(name: &str, version: &str, value: &str) -> Self {
        Self::of(name, version, &[Part::new(name, SIZE, value)])
    }

    /// A package with these kinds.
    pub fn of(name: &str, version: &str, parts: &[Part]) -> Self {
        let package = Self { name: name.to_owned(), root: tempfile::tempdir().expect("a folder") };
        package.write(version, parts);
        package
    }

    /// Its folder.
    pub fn folder(&self) -> &str {
        self.root.path().to_str().expect("text")
    }

    /// Writes the package's files for a version.
    pub fn write(&self, version: &str, parts: &[Part]) {
        let write = |path: &str, text: &str| {
            let path = self.root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        for folder in ["crds", "templates"] {
            let _ = std::fs::remove_dir_all(self.root.path().join(folder));
        }
        let mut manifest = format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: {}}}\nspec:\n  version: \
             {version}\n  resources:\n",
            self.name
        );
        for Part { plural, fields, value, plans } in parts {
            let schema = format!(
                "schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {{type: object, properties: {{{fields}}}}}}}}}}}"
            );
            let crd = super::crd::crd(GROUP, plural, &kind_of(plural), &schema);
            write(&format!("crds/{plural}.yaml"), &crd);
            write(
                &format!("templates/{plural}.yaml"),
                &format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{{{{ name }}}}\"}}\ndata: {{value: \"{value}\"}}\n"
                ),
            );
            let _ = writeln!(
                manifest,
                "    - crd: crds/{plural}.yaml\n      children: [{{id: config, template: templates/{plural}.yaml}}]\n{plans}"
            );
        }
        write("operator.yaml", &manifest);
    }

    /// The name of its revision, and the objects that store it.
    pub fn packed(&self) -> (String, Vec<Value>) {
        let (package, _) = operetta::package::load(self.root.path()).expect("a valid package");
        let packed = operetta::operators::pack(&package, MANAGERS).expect("it fits");
        (packed.revision, packed.objects.into_iter().map(|object| object.body).collect())
    }

    /// The kind whose plural is its name.
    pub fn kind(&self) -> Kind {
        kind_named(&self.name)
    }

    /// An instance of that kind.
    pub fn instance(&self, name: &str, spec: &Value) -> String {
        instance(&self.name, name, spec)
    }

    /// Creates an instance of that kind in a namespace, and waits until it is Ready.
    pub async fn ready(&self, scene: &Scene, name: &str, spec: &Value) -> Value {
        scene.apply_ready(self.kind(), name, &self.instance(name, spec)).await
    }
}

impl Part {
    /// A kind without plans.
    pub fn new(plural: &str, fields: &str, value: &str) -> Self {
        let plans = String::new();
        Self { plural: plural.to_owned(), fields: fields.to_owned(), value: value.to_owned(), plans }
    }
}

/// The kind with that plural.
pub fn kind_of(plural: &str) -> String {
    let mut kind = plural.trim_end_matches('s').to_owned();
    kind[..1].make_ascii_uppercase();
    kind
}

/// The kind with that plural, for requests.
pub fn kind_named(plural: &str) -> Kind {
    Kind::of(format!("{GROUP}/v1"), plural.to_owned())
}

/// An instance of the kind with that plural.
pub fn instance(plural: &str, name: &str, spec: &Value) -> String {
    let version = format!("{GROUP}/v1");
    json!({"apiVersion": version, "kind": kind_of(plural), "metadata": {"name": name}, "spec": spec})
        .to_string()
}

/// A namespace of the cluster.
pub async fn scene(cluster: &Cluster) -> Scene {
    Scene::on(&cluster.plane).await
}

/// Checks that a deleted child comes back with this value, so that it results from a new decision.
pub async fn repaired(scene: &Scene, value: &str) {
    let before = scene.get(CONFIG_MAP, "one").await;
    scene.kubectl(&["delete", "configmap", "one"]).await;
    let made = |o: &Value| o["data"]["value"] == value && uid_of(o) != uid_of(&before);
    scene.until("made anew", CONFIG_MAP, "one", made).await;
}
