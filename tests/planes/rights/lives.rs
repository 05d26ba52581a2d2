//! Every derived right of each package is used, and no others are: instances of all shipped packages and all
//! examples run with only the derived rights, and the audit log shows what each account has done.
//!
//! `each.rs` tests the other half: without one of them nothing is written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{
    AUTOSCALER, CONFIG_MAP, ControlPlane, DEPLOYMENT, DISRUPTION_BUDGET, ETCD, GREETING, INGRESS, JOB, Kind,
    LONG, NETWORK_POLICY, POD, QUOTA, ROLE_BINDING, SECRET, SERVICE, SITE, Scene, VOLUME_CLAIM, WEB_APP,
    copy_folder, copy_package, eventually, file, is_ready, kind, list, name_of,
};
use operetta::local::{AuditEvent, Mark};
use operetta::rights::{self, Right, Rights};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{derived, strict_plane};
use crate::support::plans::PLAN_RUN;
use crate::support::rights::{grant, manager, run, user};

const TEAM: Kind = kind("examples.operetta.dev/v1", "teams");
const KEY_STORE: Kind = kind("examples.operetta.dev/v1", "keystores");
const TICKET: Kind = kind("tickets.example.com/v1", "flighttickets");
const FLIGHT: Kind = kind("flights.com/v1", "flighttickets");
const BACKUP: Kind = kind("etcd.database.coreos.com/v1beta2", "etcdbackups");

/// Derived rights that are not used here, by package, with the case that needs them.
const UNREACHED: [(&str, &str, &[&str]); 5] = [
    (
        "etcd",
        "a later version of the package without such a child deletes it; seen here of other packages",
        &["delete configmaps", "delete services", "delete poddisruptionbudgets.policy"],
    ),
    ("cookbook", "the same", &["delete configmaps", "delete services"]),
    (
        "cookbook",
        "an earlier version of the package that did not retain the volumes and the keys",
        &["delete persistentvolumeclaims", "delete secrets"],
    ),
    // The API server itself checks it: without it the bindings are refused (each.rs).
    ("team", "asked by the API server itself", &["bind clusterroles.rbac.authorization.k8s.io"]),
    (
        "etcd cookbook",
        "a request for a Job was sent before, and its reply was lost: a crash, see tests/planes/crash.rs",
        &["get jobs.batch"],
    ),
];

/// Copies of the packages, from which later versions are made.
struct Packages {
    folders: Vec<(PathBuf, &'static str)>,
    _kept: Vec<TempDir>,
}

impl Packages {
    fn new() -> Self {
        let copy = |folder: &str, change: &dyn Fn(String) -> String| {
            let to = tempfile::tempdir().unwrap();
            copy_folder(Path::new(folder), to.path(), &change);
            to
        };
        let same = |text: String| text;
        // The pods of Jobs end as their annotations say: see `support::plans`.
        let script = |name: &'static str, message: &'static str| {
            move |text: String| {
                let template = "\n  template:\n    spec:\n";
                let end = format!("{{{{ {name} }}}}");
                let annotations = format!(
                    "\n  template:\n    metadata: {{annotations: {{script.example.com/after: 0s, script.example.com/message: \
                     \"{{{{ {message} }}}}\", script.example.com/end: \"{end}\"}}}}\n    spec:\n"
                );
                text.replace("[keystore, ", "[\"true\", ").replace(template, &annotations)
            }
        };
        let by_name = "'fail' if name == 'failing' else 'never' if name == 'endless' else 'succeed'";
        let by_step = "'fail' if run.step == 'backup' else 'never' if run.step == 'verify' else 'succeed'";
        let tickets = "examples/packages/flight-ticket";
        let copies = vec![
            (copy("operators/webapp", &same), "webapp"),
            (
                copy(
                    crate::support::etcd::package(),
                    &script(by_name, "{'path': 'c/etcd.db'} | tojson if name == 'good' else ''"),
                ),
                "etcd",
            ),
            (copy("operators/flight-ticket", &same), "flight-ticket"),
            (copy_package(tickets, "flights.com", "tickets.example.com", same), "flight-ticket-tickets"),
            (copy("examples/packages/hello", &same), "hello"),
            (copy("examples/packages/site", &same), "site"),
            (copy("examples/packages/team", &same), "team"),
            (copy("examples/packages/cookbook", &script(by_step, "''")), "cookbook"),
        ];
        let folders = copies.iter().map(|(folder, name)| (folder.path().to_owned(), *name)).collect();
        Self { folders, _kept: copies.into_iter().map(|(folder, _)| folder).collect() }
    }

    fn paths(&self) -> Vec<&str> {
        self.folders.iter().map(|(folder, _)| folder.to_str().unwrap()).collect()
    }

    /// Makes a later version of a package in which a child has another name.
    fn rename(&self, package: &str, template: &str, from: &str, to: &str) {
        let (folder, _) = self.folders.iter().find(|(_, name)| *name == package).unwrap();
        let path = folder.join("templates").join(template);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    }
}

/// The rights that requests have used, as `verb resource`.
fn used<'a>(requests: impl IntoIterator<Item = &'a AuditEvent>) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for request in requests.into_iter().filter(|request| !request.resource.is_empty()) {
        let mut add = |verb: &str| {
            let (group, resource) = (request.group.clone(), request.resource.clone());
            let resource = match request.subresource.as_str() {
                "" => resource,
                subresource => format!("{resource}/{subresource}"),
            };
            let right = Right { place: rights::Place::Home, group, resource, name: None, verb: verb.into() };
            used.insert(right.to_string());
        };
        add(&request.verb);
        // An apply that creates the object needs the rights `patch` and `create`.
        if request.verb == "patch" && request.code == 201 {
            add("create");
        }
        // A watch needs `list` as well, because servers may not stream lists.
        if request.verb == "watch" {
            add("list");
        }
        // A command over a WebSocket needs `create` as well.
        if request.subresource == "exec" {
            add("create");
        }
    }
    used.retain(|right| !is_of_everybody(right));
    used
}

/// Whether every user has the right.
fn is_of_everybody(right: &str) -> bool {
    right.starts_with("create selfsubject")
}

/// The rights as `verb resource`, wherever they are granted.
fn texts(rights: &Rights) -> BTreeSet<String> {
    let anywhere = |right: &Right| Right { place: rights::Place::Home, name: None, ..right.clone() };
    rights.iter().map(|right| anywhere(right).to_string()).collect()
}

#[tokio::test]
async fn all_packages_use_their_derived_rights_and_no_others() {
    let packages = Packages::new();
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    crate::support::etcd::watch(&plane);
    grant(&plane, &packages.paths(), |_| {}).await;
    let start = async || {
        // The package etcd has three kinds.
        run(&plane, &kubeconfig, &packages.paths()).watching(packages.folders.len() + 2).await
    };
    let operetta = start().await;
    let scene = Scene::on(&plane).await;
    webapp(&scene).await;
    small_examples(&scene).await;
    etcd(&scene).await;
    durable_etcd(&scene).await;
    backups(&scene).await;
    cookbook(&scene).await;
    drop(operetta);

    // The next versions have other names for some children, so that the former ones are deleted.
    packages.rename("webapp", "deployment.yaml", "{{ name }}", "{{ name }}-next");
    packages.rename("webapp", "service.yaml", "{{ name }}", "{{ name }}-next");
    packages.rename("hello", "card.yaml", "name: {{ name }}", "name: {{ name }}-next");
    packages.rename("team", "notice.yaml", "{{ name }}-team", "{{ name }}-next");
    packages.rename("flight-ticket-tickets", "itinerary.yaml", "name: {{ name }}", "name: {{ name }}-next");
    let operetta = start().await;
    for (kind, former, next) in [
        (DEPLOYMENT, "shop", "shop-next"),
        (SERVICE, "shop", "shop-next"),
        (CONFIG_MAP, "world", "world-next"),
        (CONFIG_MAP, "platform-team", "platform-next"),
        (CONFIG_MAP, "my-flight-ticket", "my-flight-ticket-next"),
    ] {
        scene.until("there", kind, next, |_| true).await;
        scene.gone(kind, former).await;
    }
    drop(operetta);
    compare(&plane, &packages);
}

/// Compares the requests of the accounts and of the manager with their rights.
fn compare(plane: &Arc<ControlPlane>, packages: &Packages) {
    let requests = plane.audit().requests_since(Mark::START).unwrap();
    let own = user(rights::MANAGER);
    let of_manager: Vec<&AuditEvent> = requests.iter().filter(|request| request.user == own).collect();
    let denied: Vec<AuditEvent> = of_manager.iter().filter(|r| r.code == 403).map(|r| (*r).clone()).collect();
    assert!(denied.is_empty(), "denied:\n{}", list(&denied));
    let mut wrong = Vec::new();
    for (folder, name) in &packages.folders {
        let account = user(&rights::account(name));
        let mut used = used(of_manager.iter().copied().filter(|request| request.acting_as == account));
        let derived = texts(&derived(folder.to_str().unwrap()));
        // The admission of ownerReferences checks these: without them all applies would be refused.
        used.extend(derived.iter().filter(|right| right.ends_with("/finalizers")).cloned());
        let of_package =
            UNREACHED.iter().filter(|(package, ..)| package.split(' ').any(|package| package == *name));
        let known: Vec<&str> = of_package.flat_map(|(_, _, rights)| rights.iter().copied()).collect();
        let more = used.difference(&derived);
        wrong.extend(more.map(|right| format!("{name}: {right} is used and not derived")));
        let left = derived.difference(&used).filter(|right| !known.contains(&right.as_str()));
        wrong.extend(left.map(|right| format!("{name}: {right} is derived and not used")));
        let gone = known.iter().filter(|right| !derived.contains(**right));
        wrong.extend(gone.map(|right| format!("{name}: {right} is not derived, take it off the list")));
    }
    // Requests of the manager in its own name concern no child and no ref.
    let itself = of_manager.iter().copied().filter(|request| request.acting_as.is_empty());
    let mut allowed = texts(&rights::manager::rights());
    for kind in [
        WEB_APP,
        ETCD,
        BACKUP,
        GREETING,
        SITE,
        TEAM,
        KEY_STORE,
        TICKET,
        FLIGHT,
        crate::support::ext::kind("etcd.database.coreos.com/v1beta2", "etcdrestores"),
    ] {
        let resource = kind.resource_name();
        allowed.extend(["get", "list", "watch", "patch"].map(|verb| format!("{verb} {resource}")));
        allowed.insert(format!("patch {resource}/status"));
    }
    wrong.extend(used(itself).difference(&allowed).map(|right| format!("the manager itself: {right}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Removes our label, so that the object must be read before it is applied.
async fn lose_label(scene: &Scene, kind: Kind, name: &str) {
    let labels = json!({"metadata": {"labels": {"operetta.dev/instance-uid": null}}});
    scene.patch(kind, name, "merge", &labels).await;
    let is_ours = |object: &Value| object["metadata"]["labels"]["operetta.dev/instance-uid"].is_string();
    scene.until("labelled again", kind, name, is_ours).await;
}

async fn webapp(scene: &Scene) {
    scene.apply_ready(WEB_APP, "shop", &file("examples/webapp/full.yaml")).await;
    for kind in [CONFIG_MAP, DEPLOYMENT, SERVICE, INGRESS, AUTOSCALER, DISRUPTION_BUDGET] {
        lose_label(scene, kind, "shop").await;
    }
    let less = json!({"spec": {
        "host": null, "tlsSecret": null, "ingressClassName": null, "config": null, "autoscaling": null, "minAvailable": null,
    }});
    scene.patch(WEB_APP, "shop", "merge", &less).await;
    for kind in [CONFIG_MAP, INGRESS, AUTOSCALER, DISRUPTION_BUDGET] {
        scene.gone(kind, "shop").await;
    }
}

/// Instances of the packages without pods.
async fn small_examples(scene: &Scene) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "docs-tls"}, "data": {"tls.crt": "YQ=="}});
    scene.apply(&secret.to_string()).await;
    scene.apply(&file("examples/packages/hello/instances/world.yaml")).await;
    scene.apply(&file("examples/packages/site/instances/docs.yaml")).await;
    scene.patch(SITE, "docs", "merge", &json!({"spec": {"tlsSecret": "docs-tls"}})).await;
    scene.apply(&file("examples/packages/team/instances/platform.yaml")).await;
    let ticket = |kind: Kind| {
        json!({"apiVersion": kind.api_version(), "kind": "FlightTicket", "metadata": {"name": "my-flight-ticket"},
            "spec": {"from": "Mumbai", "to": "London", "number": 2}})
        .to_string()
    };
    scene.apply(&ticket(TICKET)).await;
    // No API answers its requests, but it reads the token all the same.
    scene.apply(&ticket(FLIGHT)).await;
    for (kind, name) in
        [(GREETING, "world"), (SITE, "docs"), (TEAM, "platform"), (TICKET, "my-flight-ticket")]
    {
        scene.ready(kind, name).await;
    }
    for kind in [CONFIG_MAP, SERVICE, QUOTA, NETWORK_POLICY, ROLE_BINDING] {
        for object in scene.list(kind).await {
            if object["metadata"]["labels"]["operetta.dev/instance-uid"].is_string() {
                lose_label(scene, kind, name_of(&object)).await;
            }
        }
    }
    let less = json!({"spec": {"quota": null, "isolated": false, "members": [{"user": "ada@example.org"}]}});
    scene.patch(TEAM, "platform", "merge", &less).await;
    scene.patch(SITE, "docs", "merge", &json!({"spec": {"mirrors": ["east"]}})).await;
    // One Service of the site, and the one of the shop remain.
    for (kind, left) in [(QUOTA, 0), (NETWORK_POLICY, 0), (ROLE_BINDING, 1), (SERVICE, 2)] {
        eventually(&format!("{left} {kind:?}"), LONG, async || {
            let names = scene.names(kind).await;
            if names.len() == left { Ok(()) } else { Err(names.join(" ")) }
        })
        .await;
    }
}

async fn sized(scene: &Scene, name: &str, size: usize) {
    scene.patch(ETCD, name, "merge", &json!({"spec": {"size": size}})).await;
    let is_sized = |object: &Value| object["status"]["readyMembers"] == size && is_ready(object);
    scene.until("resized", ETCD, name, is_sized).await;
}

async fn etcd(scene: &Scene) {
    let name = "example-etcd-cluster";
    scene.apply_ready(ETCD, name, &file("examples/etcd/example-etcd-cluster.yaml")).await;
    let (bootstrap, member) = (format!("{name}-bootstrap"), format!("{name}-0"));
    for (kind, name) in [(SERVICE, name), (DISRUPTION_BUDGET, name), (CONFIG_MAP, &bootstrap), (POD, &member)]
    {
        lose_label(scene, kind, name).await;
    }
    for size in [5, 3] {
        sized(scene, name, size).await;
    }
}

/// A cluster with volumes and certificates.
async fn durable_etcd(scene: &Scene) {
    let files = |name: &str, prefix: &str| {
        let data: serde_json::Map<String, Value> =
            ["crt", "key"].iter().map(|end| (format!("{prefix}.{end}"), "YQ==".into())).collect();
        let mut secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data});
        secret["data"][format!("{prefix}-ca.crt")] = "YQ==".into();
        secret.to_string()
    };
    for (name, prefix) in [("peer-tls", "peer"), ("server-tls", "server"), ("client-tls", "etcd-client")] {
        scene.apply(&files(name, prefix)).await;
    }
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    let spec = json!({
        "size": 2, "version": "3.6.8", "pod": {"persistentVolumeClaimSpec": claim},
        "TLS": {"static": {"member": {"peerSecret": "peer-tls", "serverSecret": "server-tls"}, "operatorSecret": "client-tls"}},
    });
    let cluster = json!({"apiVersion": ETCD.api_version(), "kind": "EtcdCluster", "metadata": {"name": "durable"}, "spec": spec});
    scene.apply_ready(ETCD, "durable", &cluster.to_string()).await;
    sized(scene, "durable", 1).await;
    scene.gone(VOLUME_CLAIM, "durable-1").await;
    // Its volume is retained, and is read before another cluster of that name adopts it.
    scene.kubectl(&["delete", "etcdcluster", "durable"]).await;
    scene.gone(POD, "durable-0").await;
    let labels = json!({"metadata": {"labels": {"operetta.dev/instance-uid": null}}});
    scene.patch(VOLUME_CLAIM, "durable-0", "merge", &labels).await;
    let mut cluster = cluster;
    cluster["spec"]["size"] = 1.into();
    scene.apply_ready(ETCD, "durable", &cluster.to_string()).await;
}

/// A backup that succeeds, one that fails, and one that is cancelled.
async fn backups(scene: &Scene) {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    scene.apply(&claim.to_string()).await;
    for name in ["good", "failing", "endless"] {
        let spec = json!({"clusterName": "durable", "volume": {"claimName": "backups", "path": "c/etcd.db"}});
        let backup = json!({"apiVersion": BACKUP.api_version(), "kind": "EtcdBackup", "metadata": {"name": name}, "spec": spec});
        scene.apply(&backup.to_string()).await;
    }
    scene.ready(BACKUP, "good").await;
    expiring(scene, "good").await;
    failed(scene, "etcd", "failing").await;
    cancelled(scene, "endless").await;
}

async fn cookbook(scene: &Scene) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "users"}, "data": {"users": "YQ=="}});
    scene.apply(&secret.to_string()).await;
    let spec = json!({"size": 2, "credentials": "users", "backup": {"schedule": "0 3 1 1 *"}});
    let store = json!({"apiVersion": KEY_STORE.api_version(), "kind": "KeyStore", "metadata": {"name": "orders"}, "spec": spec});
    scene.apply_ready(KEY_STORE, "orders", &store.to_string()).await;
    expiring(scene, "orders").await;
    for (kind, name) in [
        (CONFIG_MAP, "orders"),
        (SECRET, "orders-keys"),
        (SERVICE, "orders"),
        (VOLUME_CLAIM, "orders-0"),
        (POD, "orders-1"),
    ] {
        lose_label(scene, kind, name).await;
    }
    scene.patch(KEY_STORE, "orders", "merge", &json!({"spec": {"size": 1}})).await;
    scene.gone(POD, "orders-1").await;
    scene.ready(KEY_STORE, "orders").await;
    scene.request(("KeyStore", KEY_STORE), "orders", "backup", &Value::Null).await;
    failed(scene, "cookbook", "orders").await;
    scene.request(("KeyStore", KEY_STORE), "orders", "restore", &json!({"backup": "b"})).await;
    cancelled(scene, "orders").await;
}

/// The Jobs of an instance's runs.
async fn jobs_of(scene: &Scene, instance: &str) -> Vec<Value> {
    let mut jobs = scene.list(JOB).await;
    jobs.retain(|job| job["metadata"]["labels"]["operetta.dev/instance"] == instance);
    jobs
}

/// Waits until an instance has a Job for which `is_such` is true. Returns its name.
async fn a_job(scene: &Scene, instance: &str, what: &str, is_such: impl Fn(&Value) -> bool) -> String {
    eventually(&format!("a Job of {instance}: {what}"), LONG, async || {
        let jobs = jobs_of(scene, instance).await;
        jobs.iter().find(|job| is_such(job)).map(|job| name_of(job).to_owned()).ok_or(format!("{jobs:#?}"))
    })
    .await
}

/// Waits until a Job has a TTL, which it gets when its result is stored.
async fn expiring(scene: &Scene, instance: &str) {
    a_job(scene, instance, "a TTL", |job| job["spec"]["ttlSecondsAfterFinished"].is_u64()).await;
}

/// Waits until a Job has failed and its log is read.
async fn failed(scene: &Scene, package: &str, instance: &str) {
    a_job(scene, instance, "failed", |job| job["status"]["failed"].as_u64().is_some_and(|failed| failed > 0))
        .await;
    let account = user(&rights::account(package));
    eventually("its log to be read", LONG, async || {
        let requests = scene.plane().audit().requests_since(Mark::START).unwrap();
        let is_it = |r: &AuditEvent| r.subresource == "log" && r.acting_as == account;
        if requests.iter().any(is_it) { Ok(()) } else { Err("no request for a log") }
    })
    .await;
}

/// Cancels a run whose Job does not end, and waits until the Job is deleted.
async fn cancelled(scene: &Scene, instance: &str) {
    let active = |job: &Value| job["status"]["active"].as_u64().is_some_and(|active| active > 0);
    let job = a_job(scene, instance, "running", active).await;
    for run in scene.list(PLAN_RUN).await {
        if run["spec"]["of"]["name"] == instance && run["status"]["phase"] == "Running" {
            scene.cancel(name_of(&run)).await;
        }
    }
    scene.gone(JOB, &job).await;
}
