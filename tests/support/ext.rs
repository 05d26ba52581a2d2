//! Helpers for tests of the manager: managers that tests share, a namespace with shortcuts for reading it, and
//! the audit log by client.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::support::ControlPlane;
use http::Request;
use k8s_openapi::jiff::Timestamp;
use operetta::local::{AuditEvent, AuditLog, Mark};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::barrier::Address;
use super::{
    Lazy, Namespace, Operetta, alive, eventually, is_all_real, kubectl_of, namespace_on, plane_of_tests,
};

/// A generous timeout for what mostly takes a second. No test depends on speed: the garbage collector, for
/// one, learns of a new kind within half a minute, and later on a busy machine.
pub const LONG: Duration = Duration::from_secs(300);

/// A kind, as URL paths name it.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    api: &'static str,
    /// The plural with the group, as kubectl expects it.
    pub plural: &'static str,
}

/// A kind by its `apiVersion` and plural.
pub const fn kind(api: &'static str, plural: &'static str) -> Kind {
    Kind { api, plural }
}

pub const POD: Kind = kind("v1", "pods");
pub const CONFIG_MAP: Kind = kind("v1", "configmaps");
pub const SECRET: Kind = kind("v1", "secrets");
pub const SERVICE: Kind = kind("v1", "services");
pub const SERVICE_ACCOUNT: Kind = kind("v1", "serviceaccounts");
pub const VOLUME_CLAIM: Kind = kind("v1", "persistentvolumeclaims");
pub const EVENT: Kind = kind("v1", "events");
pub const ROLE: Kind = kind("rbac.authorization.k8s.io/v1", "roles");
pub const JOB: Kind = kind("batch/v1", "jobs");
pub const DEPLOYMENT: Kind = kind("apps/v1", "deployments");
pub const INGRESS: Kind = kind("networking.k8s.io/v1", "ingresses");
pub const NETWORK_POLICY: Kind = kind("networking.k8s.io/v1", "networkpolicies");
pub const STATEFUL_SET: Kind = kind("apps/v1", "statefulsets");
pub const DAEMON_SET: Kind = kind("apps/v1", "daemonsets");
pub const CRON_JOB: Kind = kind("batch/v1", "cronjobs");
pub const ROLE_BINDING: Kind = kind("rbac.authorization.k8s.io/v1", "rolebindings");
pub const CLUSTER_ROLE: Kind = kind("rbac.authorization.k8s.io/v1", "clusterroles");
pub const QUOTA: Kind = kind("v1", "resourcequotas");
pub const AUTOSCALER: Kind = kind("autoscaling/v2", "horizontalpodautoscalers");
pub const DISRUPTION_BUDGET: Kind = kind("policy/v1", "poddisruptionbudgets");
pub const CRD: Kind = kind("apiextensions.k8s.io/v1", "customresourcedefinitions");
pub const OPERATOR: Kind = kind("operetta.dev/v1alpha1", "operators");
pub const REVISION: Kind = kind("operetta.dev/v1alpha1", "operatorrevisions");
pub const ETCD: Kind = kind("etcd.database.coreos.com/v1beta2", "etcdclusters");
pub const WEB_APP: Kind = kind("apps.operetta.dev/v1alpha1", "webapps");
pub const ECHO: Kind = kind("fixtures.operetta.dev/v1", "echoes");
pub const LIGHT: Kind = kind("fixtures.operetta.dev/v1", "lights");
pub const READER: Kind = kind("fixtures.operetta.dev/v1", "readers");
pub const LOOP: Kind = kind("fixtures.operetta.dev/v1", "loops");
pub const OUTER: Kind = kind("fixtures.operetta.dev/v1", "outers");
pub const LATECOMER: Kind = kind("fixtures.operetta.dev/v1", "latecomers");
pub const CHAIN: Kind = kind("fixtures.operetta.dev/v1", "chains");
pub const TRIAL: Kind = kind("fixtures.operetta.dev/v1", "trials");
pub const PLACE: Kind = kind("fixtures.operetta.dev/v1", "places");
pub const REALM: Kind = kind("fixtures.operetta.dev/v1", "realms");
pub const BROKEN_RENDER: Kind = kind("fixtures.operetta.dev/v1", "brokenrenders");
pub const WAY: Kind = kind("fixtures.operetta.dev/v1", "ways");
pub const CLAIM: Kind = kind("fixtures.operetta.dev/v1", "claims");
pub const NAMESPACE: Kind = kind("v1", "namespaces");
pub const MIX: Kind = kind("fixtures.operetta.dev/v1", "mixes");
pub const SHELF: Kind = kind("fixtures.operetta.dev/v1", "shelves");
pub const GAUGE: Kind = kind("fixtures.operetta.dev/v1", "gauges");
pub const SITE: Kind = kind("examples.operetta.dev/v1", "sites");
pub const STONE: Kind = kind("fixtures.operetta.dev/v1", "stones");
pub const NEIGHBOUR: Kind = kind("fixtures.operetta.dev/v1", "neighbours");
pub const TANK: Kind = kind("fixtures.operetta.dev/v1", "tanks");
pub const BLOCK: Kind = kind("fixtures.operetta.dev/v1", "blocks");
pub const ROCK: Kind = kind("fixtures.operetta.dev/v1", "rocks");
pub const GATE: Kind = kind("fixtures.operetta.dev/v1", "gates");
pub const FIGURE: Kind = kind("fixtures.operetta.dev/v1", "figures");
pub const FENCE: Kind = kind("fixtures.operetta.dev/v1", "fences");

impl Kind {
    /// A kind that a test creates at run time. Its strings are leaked; there are few.
    pub fn of(api: String, plural: String) -> Self {
        Self { api: api.leak(), plural: plural.leak() }
    }

    /// The path of an object; with an empty name the path of all objects of the kind, ending in a slash.
    pub fn path(self, namespace: Option<&str>, name: &str) -> String {
        let root = if self.api.contains('/') { "apis" } else { "api" };
        let place = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        format!("/{root}/{}/{place}{}/{name}", self.api, self.plural)
    }

    /// The kind in the form that kube's APIs take.
    pub fn resource(self) -> kube::api::ApiResource {
        let (group, version) = self.api.split_once('/').unwrap_or(("", self.api));
        kube::api::ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: self.api.into(),
            // kube uses it only to build paths.
            kind: self.plural.into(),
            plural: self.plural.into(),
        }
    }

    /// The plural with the group, as kubectl expects it.
    pub fn resource_name(self) -> String {
        if self.group().is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group())
        }
    }

    /// The API group; empty for the core group.
    pub fn group(self) -> &'static str {
        self.api.split_once('/').map_or("", |(group, _)| group)
    }

    /// `group/version`.
    pub fn api_version(self) -> &'static str {
        self.api
    }
}

/// The folder of a fixture package.
pub fn fixture(name: &str) -> String {
    format!("tests/fixtures/packages/{name}")
}

/// A manager that tests share. Each test in virtual time has one of its own.
#[derive(Debug)]
pub struct Shared {
    flags: &'static [&'static str],
    /// The folders of the packages: they must exist as long as the manager runs, which reads changed files again.
    packages: fn() -> Vec<String>,
    /// How many kinds the packages have.
    kinds: usize,
    /// The name of its account in `kube-system`, and what [`make_account`] allows it; without one it is the admin.
    account: Option<(&'static str, &'static str)>,
    running: OnceCell<Mutex<Operetta>>,
}

impl Shared {
    /// A manager of these packages, which have so many kinds.
    pub const fn new(flags: &'static [&'static str], packages: fn() -> Vec<String>, kinds: usize) -> Self {
        Self { flags, packages, kinds, account: None, running: OnceCell::const_new() }
    }

    /// Like [`Self::new`], with an account of this name with few rights: see [`make_account`].
    pub const fn of_account(
        account: (&'static str, &'static str),
        flags: &'static [&'static str],
        packages: fn() -> Vec<String>,
        kinds: usize,
    ) -> Self {
        Self { flags, packages, kinds, account: Some(account), running: OnceCell::const_new() }
    }

    async fn start(&self, plane: &Arc<ControlPlane>) -> Operetta {
        let packages = (self.packages)();
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        let mut manager = match self.account {
            None => run_shared(plane, self.flags, &packages).await,
            Some((name, core)) => {
                make_account(plane, name, core).await;
                let args = [&["run"][..], self.flags, &packages[..]].concat();
                Operetta::run_as_account(plane, "kube-system", name, &args).await
            }
        };
        watching(&mut manager, self.kinds).await;
        manager
    }

    /// The control plane of the test, with this manager.
    async fn plane(&'static self) -> Arc<ControlPlane> {
        let plane = plane_of_tests().await;
        if !plane.is_in_thread() {
            self.running.get_or_init(async || Mutex::new(self.start(&plane).await)).await;
        } else if plane.with_manager(Some(self), |_| ()).is_none() {
            plane.keep(self, self.start(&plane).await);
        }
        plane
    }
}

/// The packages of most tests: `places` has two kinds, `etcd` three.
static MANAGER: Shared = Shared::new(&[], packages, 16 + 3);

fn packages() -> Vec<String> {
    let fixtures = [
        "broken-render",
        "claims",
        "echo",
        "figures",
        "frozen",
        "gates",
        "light",
        "neighbours",
        "netpol",
        "ordered",
        "places",
        "routes",
        "stones",
        "trial",
    ];
    let mut folders = fixtures.map(fixture).to_vec();
    folders.extend([super::etcd::package().to_owned(), "operators/webapp".to_owned()]);
    folders
}

/// Whether shared managers and their packages have only the derived rights. A package can then neither bind a
/// role whose rights it lacks, nor try to bind a role that does not exist.
pub fn has_derived_rights() -> bool {
    std::env::var_os("OPERETTA_TEST_IMPERSONATE").is_some()
}

/// Starts a manager that tests share. See [`has_derived_rights`].
async fn run_shared(plane: &ControlPlane, flags: &[&str], packages: &[&str]) -> Operetta {
    if !has_derived_rights() {
        return run_flags(plane, flags, packages);
    }
    let folders = packages.iter().map(|p| if p.contains('/') { (*p).to_owned() } else { fixture(p) });
    let folders: Vec<String> = folders.collect();
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    let kubeconfig = super::rights::manager(plane).await;
    // A test creates this namespace itself; no Role can exist in it before.
    let is_possible = |object: &Value| object["metadata"]["namespace"] != "trial-elsewhere";
    super::rights::grant(plane, &folders, |objects| objects.retain(is_possible)).await;
    super::rights::run_flags(plane, &kubeconfig, flags, &folders)
}

/// Starts `operetta run` with these packages: folders, or names of fixtures.
pub fn run(plane: &ControlPlane, packages: &[&str]) -> Operetta {
    run_flags(plane, &[], packages)
}

/// Like [`run`], as a manager with this name. Managers of different packages on one control plane need
/// different names: each reports instances whose package was managed under its name before.
pub fn run_as(name: &str, plane: &ControlPlane, packages: &[&str]) -> Operetta {
    run_flags(plane, &["--leader-elect=false", &format!("--leader-elect-resource-name={name}")], packages)
}

/// Like [`run`], with flags.
pub fn run_flags(plane: &ControlPlane, flags: &[&str], packages: &[&str]) -> Operetta {
    let mut args = vec!["run".to_owned()];
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    args.extend(packages.iter().map(|p| if p.contains('/') { (*p).to_owned() } else { fixture(p) }));
    Operetta::run(plane, &args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Waits until a manager watches the instances of this many kinds.
pub async fn watching(operetta: &mut Operetta, kinds: usize) {
    let started = Instant::now();
    while operetta.output().matches("watching instances").count() < kinds {
        assert!(
            started.elapsed() < LONG,
            "it does not watch {kinds} kinds; its output:\n{}",
            operetta.output()
        );
        // Panics if the manager has ended.
        operetta.wait_for("", LONG).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An account with rights to everything that the packages of tests need except Secrets: `NAME` is its name,
/// `CORE` the resources of the core group that it may write. A test binds the role `secrets` where the
/// account may read Secrets.
const RIGHTS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: NAME, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAME}
rules:
  - apiGroups: [fixtures.operetta.dev, operetta.dev, apiextensions.k8s.io, apiregistration.k8s.io, admissionregistration.k8s.io, coordination.k8s.io, events.k8s.io]
    resources: ['*']
    verbs: ['*']
  - {apiGroups: [''], resources: [CORE], verbs: ['*']}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: secrets}
rules: [{apiGroups: [''], resources: [secrets], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAME}
subjects: [{kind: ServiceAccount, name: NAME, namespace: kube-system}]
";

/// Creates an account with [`RIGHTS`] for a manager. Returns when they count.
pub async fn make_account(plane: &ControlPlane, name: &str, core: &str) {
    let rights = RIGHTS.replace("NAME", name).replace("CORE", core);
    kubectl_of(plane, &["apply", "-f", "-"], &rights).await.ok();
    let user = operetta::rights::user("kube-system", name);
    super::rights::decides(plane, &user, "", ("list", "operetta.dev", "planruns"), true).await;
}

/// Does the same as [`make_account`]. Returns the account's kubeconfig.
pub async fn account(plane: &ControlPlane, name: &str, core: &str) -> PathBuf {
    make_account(plane, name, core).await;
    super::rights::kubeconfig(plane, "kube-system", name).await
}

/// A namespace for one test, in a control plane. If the test fails, the manager's output about the namespace
/// is shown.
pub struct Scene {
    namespace: Namespace,
    client: kube::Client,
    plane: Arc<ControlPlane>,
    manager: Option<&'static Shared>,
}

impl Scene {
    /// A new namespace of the control plane of the tests, handled by their manager.
    pub async fn new() -> Self {
        Self::managed(&MANAGER).await
    }

    /// A new namespace of the control plane of the tests, handled by this manager.
    pub async fn managed(manager: &'static Shared) -> Self {
        let plane = manager.plane().await;
        super::etcd::watch(&plane);
        let mut scene = Self::on(&plane).await;
        scene.manager = Some(manager);
        scene
    }

    /// Like [`Self::new`], on a control plane that processes reach.
    pub async fn with_commands() -> Self {
        Self::served(&MANAGER).await
    }

    /// A new namespace handled by this manager, on a control plane that processes reach.
    pub async fn served(manager: &'static Shared) -> Self {
        if is_all_real() {
            return Self::managed(manager).await;
        }
        let plane = Arc::new(ControlPlane::embedded().await);
        plane.keep(manager, manager.start(&plane).await);
        Self::on(&plane).await
    }

    /// A new namespace of the control plane of the tests, without starting a manager.
    pub async fn unmanaged() -> Self {
        Self::on(&plane_of_tests().await).await
    }

    /// A new namespace of a control plane.
    pub async fn on(plane: &Arc<ControlPlane>) -> Self {
        Self::of(plane, namespace_on(plane).await)
    }

    /// A namespace that exists.
    pub fn existing(plane: &Arc<ControlPlane>, name: &str) -> Self {
        Self::of(plane, Namespace { name: name.to_owned() })
    }

    /// The scene of a namespace.
    pub fn of(plane: &Arc<ControlPlane>, namespace: Namespace) -> Self {
        Self { namespace, client: plane.client().expect("a client"), plane: Arc::clone(plane), manager: None }
    }

    /// Where the manager shows its state.
    pub fn address(&self) -> Address {
        self.with_manager(Address::of).expect("a managed scene")
    }

    /// The manager's log lines about the namespace, and its errors.
    pub fn log(&self) -> String {
        let output = self.with_manager(Operetta::output).unwrap_or_default();
        let about = format!("{}/", self.namespace);
        let says = |line: &&str| line.contains(&about) || line.contains("ERROR") || line.contains("panic");
        output.lines().filter(says).collect::<Vec<_>>().join("\n")
    }

    fn with_manager<T>(&self, read: impl Fn(&Operetta) -> T) -> Option<T> {
        let of_test = self.plane.with_manager(self.manager, &read);
        let shared =
            || self.manager?.running.get().map(|m| read(&m.lock().unwrap_or_else(PoisonError::into_inner)));
        of_test.or_else(shared)
    }

    /// The control plane.
    pub fn plane(&self) -> &Arc<ControlPlane> {
        &self.plane
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A client with the rights of an admin.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Reads an object; `None` if it does not exist.
    pub async fn find(&self, kind: Kind, name: &str) -> Option<Value> {
        read(&self.client, &kind.path(Some(&self.namespace), name)).await
    }

    /// Reads an object; panics if it does not exist.
    pub async fn get(&self, kind: Kind, name: &str) -> Value {
        self.find(kind, name).await.unwrap_or_else(|| panic!("there is no {} {name}", kind.plural))
    }

    /// All objects of a kind in the namespace.
    pub async fn list(&self, kind: Kind) -> Vec<Value> {
        let path = kind.path(Some(&self.namespace), "");
        let mut list = read(&self.client, path.trim_end_matches('/')).await.expect("the kind is served");
        let items: Vec<Value> = serde_json::from_value(list["items"].take()).expect("a list");
        items
    }

    /// The names of all objects of a kind that an instance has made.
    pub async fn names(&self, kind: Kind) -> Vec<String> {
        let mut names: Vec<String> = self
            .list(kind)
            .await
            .iter()
            .filter(|o| o["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "operetta")
            .map(|o| name_of(o).to_owned())
            .collect();
        names.sort();
        names
    }

    /// Runs kubectl in the namespace and returns its output.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_input(args, "").await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs kubectl in the namespace with an input; as a process only if the command is unknown in this one.
    pub async fn kubectl_input(&self, args: &[&str], input: &str) -> Result<String, String> {
        if let Some(result) = super::kubectl::run(&self.client, Some(self.namespace()), args, input).await {
            return result;
        }
        let mut all = vec!["-n", self.namespace()];
        all.extend(args);
        kubectl_of(&self.plane, &all, input).await.result()
    }

    /// Waits until an object exists and `holds` is true of it.
    pub async fn until(&self, what: &str, kind: Kind, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{} {name}: {what}", kind.plural), LONG, async || {
            match self.find(kind, name).await {
                Some(object) if holds(&object) => Ok(object),
                found => Err(Lazy(move || match found.clone() {
                    Some(mut object) => {
                        object["metadata"]["managedFields"].take();
                        format!("{object:#}")
                    }
                    None => "it does not exist".to_owned(),
                })),
            }
        })
        .await
    }

    /// Waits until an instance is Ready at its newest generation.
    pub async fn ready(&self, kind: Kind, name: &str) -> Value {
        self.until("Ready", kind, name, is_ready).await
    }

    /// Deletes objects that the manager creates again, and waits until the deleted ones are gone. `kubectl
    /// delete` would wait for the new ones if they exist when its watch begins, because it does not compare
    /// uids then.
    pub async fn delete_recreated(&self, kind: Kind, names: &[&str]) {
        let mut uids = Vec::new();
        for name in names {
            uids.push(uid_of(&self.get(kind, name).await).to_owned());
        }
        self.kubectl(&[&["delete", kind.plural, "--wait=false"], names].concat()).await;
        for (name, uid) in names.iter().zip(&uids) {
            eventually(&format!("the former {} {name} to be gone", kind.plural), LONG, async || {
                match self.find(kind, name).await {
                    Some(object) if uid_of(&object) == uid => Err(format!("{:#}", object["metadata"])),
                    _ => Ok(()),
                }
            })
            .await;
        }
    }

    /// Waits until an object is gone.
    pub async fn gone(&self, kind: Kind, name: &str) {
        eventually(&format!("{} {name} to be gone", kind.plural), LONG, async || {
            match self.find(kind, name).await {
                None => Ok(()),
                Some(object) => Err(format!("{:#} {:#}", object["metadata"]["finalizers"], object["status"])),
            }
        })
        .await;
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(40);
            eprintln!("the manager about {}:\n{}", self.namespace, lines[from..].join("\n"));
        }
    }
}

/// Reads a path; `None` if nothing is there.
pub async fn read(client: &kube::Client, path: &str) -> Option<Value> {
    let request = Request::get(path).body(Vec::new()).expect("a request");
    match client.request::<Value>(request).await {
        Ok(object) => Some(object),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("GET {path}: {error}"),
    }
}

/// Reads an object of any control plane.
pub async fn find_in(plane: &ControlPlane, kind: Kind, namespace: Option<&str>, name: &str) -> Option<Value> {
    read(&plane.client().expect("a client"), &kind.path(namespace, name)).await
}

/// The condition with this type; null if the object has none.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}

/// Whether an instance is Ready at its newest generation.
pub fn is_ready(object: &Value) -> bool {
    let seen = object["status"]["observedGeneration"] == object["metadata"]["generation"];
    seen && condition(object, "Ready")["status"] == "True"
}

/// Whether a pod is ready.
pub fn is_pod_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True" && pod["metadata"]["deletionTimestamp"].is_null()
}

/// `metadata.name`.
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// `metadata.uid`.
pub fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// The paths at which two values differ, for messages.
pub fn difference(expected: &Value, found: &Value, path: &str) -> String {
    if let (Value::Object(a), Value::Object(b)) = (expected, found) {
        let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let differ = keys.into_iter().filter(|key| a.get(*key) != b.get(*key)).map(|key| {
            let (a, b) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
            difference(a, b, &format!("{path}.{key}"))
        });
        return differ.collect::<Vec<_>>().join(", ");
    }
    format!("{path} is {found}, not {expected}")
}

/// The text of a file of the repository.
pub fn file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The folder of what lasts as long as a process that runs tests.
pub const LASTING: &str = env!("CARGO_TARGET_TMPDIR");

/// A folder for a static, which is not dropped: the folders of processes that have ended are removed here.
pub fn lasting_folder(name: &str) -> PathBuf {
    static OF_PROCESS: LazyLock<PathBuf> = LazyLock::new(|| {
        let own = std::process::id();
        for entry in std::fs::read_dir(LASTING).into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            if pid.is_some_and(|pid| pid == own || !alive(pid)) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        Path::new(LASTING).join(own.to_string())
    });
    let folder = OF_PROCESS.join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Copies a folder and changes the text of each file.
pub fn copy_folder(from: &Path, to: &Path, change: &impl Fn(String) -> String) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path: PathBuf = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_folder(&path, &target, change);
        } else {
            std::fs::write(target, change(std::fs::read_to_string(path).expect("text"))).expect("a file");
        }
    }
}

/// Copies a package with another API group and another name, so that its manager does not touch the instances
/// of other tests. The first label of the new group is appended to the name.
pub fn copy_package(
    folder: &str,
    group: &str,
    new_group: &str,
    change: impl Fn(String) -> String,
) -> TempDir {
    let label = new_group.split('.').next().unwrap_or_default();
    let name = folder.rsplit('/').next().unwrap_or_default();
    let copy = tempfile::tempdir().expect("a folder");
    copy_folder(Path::new(folder), copy.path(), &|text| {
        let text = text.replace(group, new_group);
        let text = text.replace(
            &format!("metadata: {{name: {name}}}\n"),
            &format!("metadata: {{name: {name}-{label}}}\n"),
        );
        change(text.replace(&format!("\n  name: {name}\n"), &format!("\n  name: {name}-{label}\n")))
    });
    copy
}

/// Whether a request is the manager's: the components have their own users, and requests by tests have the
/// user agent of kubectl or of the control plane.
pub fn is_managers(event: &AuditEvent) -> bool {
    (event.user == "admin" || event.user == super::rights::user(operetta::rights::MANAGER))
        && !event.user_agent.starts_with("kubectl")
        && !event.user_agent.starts_with("operetta-local/")
}

/// Whether a request is about the Lease for leader election, which is not reconciliation.
pub fn is_lease(event: &AuditEvent) -> bool {
    event.resource == "leases"
}

/// The manager's requests since a mark in the audit log.
pub fn managers_requests(audit: &AuditLog, mark: Mark) -> Vec<AuditEvent> {
    let mut requests = audit.requests_since(mark).expect("the audit log");
    requests.retain(is_managers);
    requests
}

/// When the API server answered a request.
pub fn time_of(event: &AuditEvent) -> Timestamp {
    event.time.parse().expect("RFC 3339")
}

/// Requests, one a line, for messages.
pub fn list(requests: &[AuditEvent]) -> String {
    requests.iter().fold(String::new(), |mut text, r| {
        let _ = writeln!(text, "{} {} {} {} ({})", r.time, r.verb, r.uri, r.code, r.user_agent);
        text
    })
}
