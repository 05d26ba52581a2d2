//! The cluster in which the cases of a file begin. As where packages are installed as `Operator`s, the manager has an account of
//! its own, and each package one with the rights that are derived from it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use operetta_embedded::{Api, Request, User};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::refused::Grant;
use crate::api::{ApiKind, Gvk};
use crate::apiserver::Server;
use crate::children::names::{MANAGER_NAMESPACE, NOTES};
use crate::cluster;
use crate::facts::text;
use crate::package::Package;
use crate::package::store::{self, objects::REVISION};
use crate::rights::bindings::{self, Found, InUse};
use crate::rights::{self, MANAGER, MANAGER_ROLE, Placement, TO_MANAGER};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// When each play begins: 2026-01-01.
const BEGINNING: i64 = 1_767_225_600;

/// The time at which each play begins.
pub(super) fn beginning() -> Timestamp {
    Timestamp::from_second(BEGINNING).unwrap_or_default()
}

/// The account of the manager.
pub(super) fn manager() -> User {
    User::account(MANAGER_NAMESPACE, MANAGER)
}

/// A cluster in which nothing was done but to grant rights. All cases of a file begin with a copy of it.
#[derive(Debug)]
pub(super) struct Installed {
    api: Mutex<Api>,
    /// The bindings in namespaces, which may come later, or go and come again.
    pub(super) bindings: Vec<Value>,
    /// The kinds of the CRDs that cases apply.
    pub(super) kinds: Vec<ApiKind>,
}

impl Installed {
    /// The cluster for these packages.
    pub(super) fn of(packages: &[Arc<Package>], kinds: Vec<ApiKind>) -> Self {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MANAGER_NAMESPACE}});
        let mut objects = vec![namespace];
        objects.extend(rights::manager::manager(MANAGER_NAMESPACE));
        objects.extend(packages.iter().flat_map(|package| granting(package, packages, &kinds)));
        let server = Server::new(beginning);
        server.with(|api, now| {
            apply(api, &objects, now);
            // Nothing runs in this cluster, so the controllers soon have nothing left to do.
            while api.tick(now) {}
        });
        let api = Mutex::new(server.read(|api| api.copy(|programs| programs)));
        Self { api, bindings: in_namespaces(&objects), kinds }
    }

    /// A copy of the cluster.
    pub(super) fn copy(&self) -> Api {
        self.api.lock().unwrap_or_else(PoisonError::into_inner).copy(|programs| programs)
    }
}

/// The objects by which a revision of a package has its rights: those that `operetta install` applies, and the bindings that the
/// manager makes of them while the revision is in use. `beside`: the packages whose kinds are known; `kinds`: others that are.
pub(super) fn granting(package: &Package, beside: &[Arc<Package>], kinds: &[ApiKind]) -> Vec<Value> {
    let known = || {
        let of_packages = beside.iter().flat_map(|package| &package.resources);
        of_packages.map(|resource| &resource.kind).chain(kinds)
    };
    let served = |gvk: &Gvk| rights::find_kind(known(), gvk).cloned();
    let needed = rights::derive(&[package], &served).rights;
    let at = Placement::everywhere(MANAGER_NAMESPACE);
    let mut objects = rights::objects_of_revision(package, &needed, &at);
    let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole").cloned().collect();
    let revisions = BTreeSet::from([store::name(&package.name, &package.digest)]);
    let found = Found { revisions: revisions.clone(), roles, ..Found::default() };
    let in_use = InUse { revisions, ..InUse::default() };
    let changes = bindings::changes(&package.name, MANAGER_NAMESPACE, &in_use, &found);
    objects.extend(changes.apply.into_iter().map(|(binding, _)| binding));
    objects
}

/// Applies objects that grant rights, and waits until the controllers have given the manager those that packages bring it. Returns
/// whether they have by that time.
pub(super) async fn grant(server: &Server, objects: &[Value], until: Instant) -> bool {
    server.with(|api, now| apply(api, objects, now));
    let mut changes = server.changes();
    while !server.read(|api| is_in_force(api, objects)) {
        tokio::select! {
            biased;
            () = sleep_until(until) => return false,
            // The server stays for as long as the case.
            _ = changes.changed() => {}
        }
    }
    true
}

/// Whether the manager's own role has the rules of the roles among these objects that packages bring it.
fn is_in_force(api: &Api, objects: &[Value]) -> bool {
    let own = cluster_role(api, &format!("{MANAGER_ROLE}:packages"));
    let rules = own["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_brought = |object: &&Value| {
        object["kind"] == "ClusterRole" && object["metadata"]["labels"][TO_MANAGER] == "true"
    };
    let mut names =
        objects.iter().filter(is_brought).filter_map(|object| object["metadata"]["name"].as_str());
    names.all(|name| {
        let brought = cluster_role(api, name);
        brought["rules"].as_array().into_iter().flatten().all(|rule| rules.contains(rule))
    })
}

fn cluster_role(api: &Api, name: &str) -> Value {
    api.objects().object(RBAC, "ClusterRole", "", name).unwrap_or_default()
}

/// The bindings among these objects that are gone with their namespaces, and that the manager applies again.
pub(super) fn in_namespaces(objects: &[Value]) -> Vec<Value> {
    let is_one = |object: &&Value| {
        object["kind"] == "RoleBinding" && object["metadata"]["labels"][REVISION].is_string()
    };
    objects.iter().filter(is_one).cloned().collect()
}

/// The bindings that do not exist.
pub(super) fn absent<'b>(api: &Api, bindings: &'b [Value]) -> Vec<&'b Value> {
    let is_absent = |binding: &&Value| {
        let text = |field: &str| binding["metadata"][field].as_str().unwrap_or_default();
        api.objects().version(RBAC, "RoleBinding", text("namespace"), text("name")).is_none()
    };
    bindings.iter().filter(is_absent).collect()
}

/// What bindings of [`in_namespaces`] give to the accounts of packages, or would give if they existed.
pub(super) fn grants<'b>(api: &Api, bindings: impl IntoIterator<Item = &'b Value>) -> Vec<Grant> {
    let grant = |binding: &Value| Grant::of(binding, &cluster_role(api, text(&binding["roleRef"]["name"])));
    bindings.into_iter().map(grant).collect()
}

/// Applies objects as an administrator does. Returns those that are not refused.
pub(super) fn apply<'o>(
    api: &mut Api,
    objects: impl IntoIterator<Item = &'o Value>,
    now: Timestamp,
) -> Vec<&'o Value> {
    objects.into_iter().filter(|object| is_applied(api, object, now)).collect()
}

fn is_applied(api: &mut Api, object: &Value, now: Timestamp) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = ApiKind::built_in(&text(&object["apiVersion"]), &text(&object["kind"]));
    let meta = &object["metadata"];
    let path = cluster::path(&kind, meta["namespace"].as_str(), meta["name"].as_str());
    let Ok(path) = path else { return false };
    let (uri, body) = (format!("{path}?fieldManager={NOTES}&force=true"), object.to_string());
    let request = Request {
        method: "PATCH",
        uri: &uri,
        content_type: "application/apply-patch+yaml",
        accept: "",
        user_agent: "",
        user: &User::default(),
        body: body.as_bytes(),
    };
    api.handle(&request, now).code < 300
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// The controllers act as always when rights are granted: what they write is observed, and there is an end to the wait.
    #[tokio::test(start_paused = true)]
    async fn rights_are_granted_in_the_sight_of_the_observer() {
        let server = Server::of(Installed::of(&[], Vec::new()).copy(), beginning);
        let objects = [json!({
            "apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": "a", "labels": {TO_MANAGER: "true"}},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        })];
        let soon = || Instant::now() + Duration::from_secs(1);
        assert!(!grant(&server, &objects, soon()).await, "no controller acts yet");
        let is_seen = Arc::new(AtomicBool::new(false));
        let (seen, brought) = (Arc::clone(&is_seen), objects.clone());
        server.observe(move |api| {
            seen.fetch_or(is_in_force(api, &brought), Ordering::Relaxed);
        });
        let controlled = server.clone();
        let controllers = tokio::spawn(async move { controlled.run().await });
        assert!(grant(&server, &objects, soon()).await);
        assert!(is_seen.load(Ordering::Relaxed));
        controllers.abort();
    }
}
