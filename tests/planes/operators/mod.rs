//! Packages that are installed in the cluster: they are installed, upgraded, refused, rolled back and removed
//! while a manager runs that has no packages on its command line.

mod changes;
mod dependencies;
mod grants;
mod handover;
mod kills;
mod life;
mod migration;
mod refused;
mod registries;
mod releases;
mod removal;
mod review;
mod rightless;
mod runs;
mod settings;
mod sources;
mod stages;
mod stored;
mod tenants;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::support::ControlPlane;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::ext::{CRD, Kind, LONG, OPERATOR, REVISION, Scene, condition, find_in};
use crate::support::{self, Operetta, Output, eventually, kubectl_of, own_embedded_plane, own_plane, rights};

/// The manager's namespace.
const MANAGERS: &str = "operetta-system";
const GROUP: &str = "ops.example.org";

/// A control plane with a manager that loads its Operators.
struct Cluster {
    plane: Arc<ControlPlane>,
    manager: Mutex<Operetta>,
}

/// A [`Cluster`] with the kubeconfig of its manager's account.
struct OfAccount {
    cluster: Cluster,
    kubeconfig: PathBuf,
}

impl Cluster {
    async fn start() -> Self {
        Self::on(own_embedded_plane().await).await
    }

    async fn on(plane: Arc<ControlPlane>) -> Self {
        let manager = Mutex::new(Self::manager(&plane).await);
        Self { plane, manager }
    }

    /// The cluster that tests share. Each test has packages of its own.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    /// The cluster with a real control plane that tests share.
    async fn real() -> &'static Self {
        static REAL: OnceCell<Cluster> = OnceCell::const_new();
        REAL.get_or_init(async || Self::on(own_plane().await).await).await
    }

    /// The cluster with a real control plane that tests share whose manager has no rights but those of its account.
    async fn of_account() -> &'static OfAccount {
        static OF_ACCOUNT: OnceCell<OfAccount> = OnceCell::const_new();
        let start = async || {
            let plane = own_plane().await;
            let kubeconfig = rights::manager(&plane).await;
            let manager = Mutex::new(rights::run_operators(&plane, &kubeconfig).await);
            OfAccount { cluster: Self { plane, manager }, kubeconfig }
        };
        OF_ACCOUNT.get_or_init(start).await
    }

    async fn manager(plane: &ControlPlane) -> Operetta {
        let mut manager = Operetta::run(plane, &["run"]);
        manager.wait_for("following the Operators of the cluster", LONG).await;
        manager
    }

    /// Kills the manager, and starts another after `between`.
    async fn restart(&self, between: impl AsyncFnOnce()) {
        self.manager.lock().unwrap().kill9();
        between().await;
        let manager = Self::manager(&self.plane).await;
        *self.manager.lock().unwrap() = manager;
    }

    /// Runs `operetta`.
    async fn operetta(&self, args: &[&str]) -> Output {
        support::operetta(self.plane.kubeconfig_path(), args).await
    }

    async fn kubectl(&self, args: &[&str], input: &str) -> Output {
        kubectl_of(&self.plane, args, input).await
    }

    /// Reads a cluster-scoped object; `None` if it does not exist.
    async fn find(&self, kind: Kind, name: &str) -> Option<Value> {
        find_in(&self.plane, kind, None, name).await
    }

    /// Waits until an Operator exists and `holds` is true of it.
    async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("Operator {name}: {what}"), LONG, async || {
            match self.find(OPERATOR, name).await {
                Some(operator) if holds(&operator) => Ok(operator),
                other => Err(format!("{:#}", other.unwrap_or_default()["status"])),
            }
        })
        .await
    }

    /// Waits until the revision that an Operator names is not active for this reason. Returns the message.
    async fn until_refused(&self, name: &str, reason: &str) -> String {
        let holds = |operator: &Value| {
            let ready = condition(operator, "Ready");
            ready["reason"] == reason && ready["status"] == "False" && is_observed(operator)
        };
        let operator = self.until(name, reason, holds).await;
        condition(&operator, "Ready")["message"].as_str().unwrap().to_owned()
    }

    /// The exit code and all output of a command.
    async fn told(&self, args: &[&str]) -> (i32, String) {
        let output = self.operetta(args).await;
        (output.status.code().unwrap(), format!("{}{}", output.stdout, output.stderr))
    }

    async fn install(&self, package: &Package) {
        self.operetta(&["install", package.folder()]).await.ok();
    }

    async fn crd(&self, name: &str) -> Option<Value> {
        self.find(CRD, name).await
    }
}

fn is_observed(operator: &Value) -> bool {
    operator["status"]["observedGeneration"] == operator["metadata"]["generation"]
}

fn is_active(operator: &Value) -> bool {
    is_observed(operator) && condition(operator, "Ready")["status"] == "True"
}

/// A kind of a package.
#[derive(Clone)]
struct Part {
    plural: String,
    /// The schema of `spec.properties`.
    fields: String,
    /// The value that its child shows.
    value: String,
    plans: String,
}

/// A package in a folder, whose files a test changes.
struct Package {
    name: String,
    root: tempfile::TempDir,
}

const SIZE: &str = "size: {type: integer, default: 1}";

impl Package {
    /// A package with one kind, whose plural is the package's name.
    fn new(name: &str, version: &str, value: &str) -> Self {
        Self::of(name, version, &[Part::new(name, SIZE, value)])
    }

    fn of(name: &str, version: &str, parts: &[Part]) -> Self {
        let package = Self { name: name.to_owned(), root: tempfile::tempdir().unwrap() };
        package.write(version, parts);
        package
    }

    fn folder(&self) -> &str {
        self.root.path().to_str().unwrap()
    }

    /// Writes the package's files for a version.
    fn write(&self, version: &str, parts: &[Part]) {
        let write = |path: &str, text: &str| {
            let path = self.root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
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
            let crd = support::crd::crd(GROUP, plural, &kind_of(plural), &schema);
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

    /// The name of its revision, from the output of `install --dry-run`.
    async fn revision(&self) -> String {
        let objects = self.printed().await;
        let operator = objects.iter().find(|object| object["kind"] == "Operator").unwrap();
        operator["spec"]["revision"].as_str().unwrap().to_owned()
    }

    /// The objects that `install --dry-run` prints for kubectl.
    async fn printed(&self) -> Vec<Value> {
        let args = ["install", self.folder(), "--dry-run", "-o", "json"];
        let text = support::operetta(Path::new("/nowhere"), &args).await.ok();
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    fn kind(&self) -> Kind {
        kind_named(&self.name)
    }

    fn instance(&self, name: &str, spec: &Value) -> String {
        instance(&self.name, name, spec)
    }
}

impl Part {
    fn new(plural: &str, fields: &str, value: &str) -> Self {
        let plans = String::new();
        Self { plural: plural.to_owned(), fields: fields.to_owned(), value: value.to_owned(), plans }
    }
}

/// The kind with that plural.
pub(super) fn kind_of(plural: &str) -> String {
    let mut kind = plural.trim_end_matches('s').to_owned();
    kind[..1].make_ascii_uppercase();
    kind
}

fn kind_named(plural: &str) -> Kind {
    Kind::of(format!("{GROUP}/v1"), plural.to_owned())
}

fn instance(plural: &str, name: &str, spec: &Value) -> String {
    let version = format!("{GROUP}/v1");
    json!({"apiVersion": version, "kind": kind_of(plural), "metadata": {"name": name}, "spec": spec})
        .to_string()
}

async fn scene(cluster: &Cluster) -> Scene {
    Scene::on(&cluster.plane).await
}
