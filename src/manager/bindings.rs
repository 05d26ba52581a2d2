//! Binds the roles of the revisions in use to the accounts of packages, and no others. What is bound is decided by
//! [`crate::rights::bindings`]. A package whose revisions bring no roles has its rights from elsewhere (`operetta rbac`), and nothing
//! is done.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tracing::{info, warn};

use super::rights::{self, RightsReviews};
use crate::api::{ApiKind, CallError, Class};
use crate::children::names;
use crate::clock::Instant;
use crate::cluster::{Clients, Cluster, Propagation};
use crate::package::store::objects;
use crate::package::{Package, store};
use crate::rights::bindings::{self, Found, InUse};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// How long the API server may take to know a right that was granted, and how often it is asked.
const KNOWN: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_millis(50);

/// What is bound, by package.
#[derive(Default)]
pub(super) struct Bindings(Mutex<HashMap<Box<str>, Arc<tokio::sync::Mutex<Bound>>>>);

#[derive(Default)]
struct Bound {
    /// The revisions whose roles are bound.
    revisions: BTreeSet<String>,
    /// Revisions that are about to be active.
    offered: BTreeSet<String>,
    /// The last input that was carried out completely.
    last: Option<(InUse, Vec<String>)>,
}

impl Bindings {
    fn of(&self, package: &str) -> Arc<tokio::sync::Mutex<Bound>> {
        Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(package.into()).or_default())
    }

    /// Grants the rights of a revision that was accepted and is about to be active, beside those that are in
    /// use. `manager`: the manager's namespace. `namespaces`: those that the package serves, if they are
    /// named.
    pub(super) async fn offer(
        &self,
        (clients, reviews): (&Clients, &RightsReviews),
        package: &Package,
        manager: &str,
        namespaces: Option<BTreeSet<String>>,
    ) {
        if !clients.has_accounts() {
            return;
        }
        let name = store::name(&package.name, &package.digest);
        let bound = self.of(&package.name);
        let mut bound = bound.lock().await;
        bound.offered.insert(name.clone());
        if bound.revisions.contains(&name) {
            return;
        }
        let in_use = InUse { revisions: BTreeSet::from([name]), namespaces, ..InUse::default() };
        match carry_out((clients, reviews), &package.name, manager, &in_use, false).await {
            Ok(revisions) => {
                // A controller adds the rules of the new roles to the manager's own role, which takes a
                // moment.
                for kind in
                    package.resources.iter().map(|resource| &resource.kind).filter(|_| !revisions.is_empty())
                {
                    let rule =
                        json!({"apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["list"]});
                    until_known(clients.own(), &rule, None).await;
                }
                bound.revisions.extend(revisions);
            }
            Err(error) => {
                warn!(package = %package.name, %error, "the rights of the revision cannot be granted");
            }
        }
    }

    /// Grants the rights of the revisions in use, and takes back all others. Sends no request while nothing
    /// has changed. `next`: the revisions that may become active. `reasons`: a change of these is a reason to
    /// check again. `again`: checks in any case. Returns the revisions whose rights are granted.
    pub(super) async fn set(
        &self,
        (clients, reviews): (&Clients, &RightsReviews),
        package: &str,
        manager: &str,
        mut in_use: InUse,
        (next, reasons, again): (&[Option<&str>], Vec<String>, bool),
    ) -> BTreeSet<String> {
        if !clients.has_accounts() {
            return in_use.revisions;
        }
        let bound = self.of(package);
        let mut bound = bound.lock().await;
        bound.offered.retain(|name| next.contains(&Some(name.as_str())));
        in_use.revisions.extend(bound.offered.iter().cloned());
        let wanted = (in_use, reasons);
        if bound.last.as_ref() != Some(&wanted) || again {
            bound.last = None;
            match carry_out((clients, reviews), package, manager, &wanted.0, true).await {
                Ok(revisions) => {
                    bound.revisions = revisions;
                    bound.last = Some(wanted);
                }
                Err(error) => warn!(%package, %error, "the rights of the revisions in use cannot be granted"),
            }
        }
        bound.revisions.clone()
    }
}

/// Applies and deletes bindings. Returns the revisions whose roles are bound afterwards.
async fn carry_out(
    (clients, reviews): (&Clients, &RightsReviews),
    package: &str,
    manager: &str,
    in_use: &InUse,
    deletes: bool,
) -> Result<BTreeSet<String>, CallError> {
    let cluster = clients.own();
    let found = find(cluster, package).await?;
    let changes = bindings::changes(package, manager, in_use, &found);
    let mut granted = Vec::new();
    for (binding, role) in &changes.apply {
        let kind = kind_of(binding);
        let (name, namespace) = (text(binding, "name"), binding["metadata"]["namespace"].as_str());
        match apply(cluster, &kind, binding).await {
            Ok(()) => {
                info!(%package, namespace, "{} {name} is applied", kind.kind);
                granted.push((role, namespace));
            }
            // The namespace does not exist yet: the Operator says so.
            Err(error) if error.class == Class::NotFound && namespace.is_some() => {}
            Err(error) => return Err(error),
        }
    }
    for (role, namespace) in &granted {
        let Some(rule) = role["rules"].get(0) else { continue };
        until_known(&clients.for_operator(package), rule, *namespace).await;
    }
    for (role, owners) in &changes.adopt {
        let meta = &role["metadata"];
        let patch = json!({"metadata": {
            "uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "ownerReferences": owners,
        }});
        let (kind, name) = (ApiKind::built_in(RBAC, "ClusterRole"), text(role, "name"));
        // Without an owner the rights are the same, but the role stays when its revision is deleted.
        if let Err(error) = cluster.merge_patch(&kind, None, name, None, &patch, names::NOTES).await {
            warn!(%package, %error, "ClusterRole {name} cannot be given its owner");
        }
    }
    let delete: &[Value] = if deletes { &changes.delete } else { &[] };
    for binding in delete {
        let (kind, name) = (kind_of(binding), text(binding, "name"));
        let namespace = binding["metadata"]["namespace"].as_str();
        let precondition = (text(binding, "uid"), text(binding, "resourceVersion"));
        match cluster.delete(&kind, namespace, name, precondition, Propagation::Background).await {
            Ok(_) => info!(%package, namespace, "{} {name} is deleted: nothing uses its revision", kind.kind),
            Err(error) if error.class == Class::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if !granted.is_empty() || !delete.is_empty() {
        reviews.forget(package);
    }
    Ok(changes.bound)
}

/// Applies a binding. The right to do so may have been applied just now, and reaches the manager's own role by a controller.
async fn apply(cluster: &Cluster, kind: &ApiKind, binding: &Value) -> Result<(), CallError> {
    let until = Instant::now() + KNOWN;
    loop {
        match cluster.apply(kind, binding, names::NOTES, true).await {
            Err(error) if error.code == 403 && Instant::now() < until => {
                tokio::time::sleep(PERIOD * 4).await;
            }
            result => return result.map(|_| ()),
        }
    }
}

/// Reads the revisions of a package, their roles, and what is bound.
async fn find(cluster: &Cluster, package: &str) -> Result<Found, CallError> {
    let selector = format!("{}={package}", objects::PACKAGE);
    let revisions = cluster.list(&objects::kind(), None, &selector).await?;
    let revisions = revisions
        .iter()
        .map(|revision| (text(revision, "name").to_owned(), text(revision, "uid").to_owned()));
    let revisions: BTreeMap<String, String> = revisions.collect();
    let selector = format!("{}={package},{}", names::OPERATOR, objects::REVISION);
    let roles = cluster.list(&ApiKind::built_in(RBAC, "ClusterRole"), None, &selector).await?;
    let mut bindings = Vec::new();
    for name in ["ClusterRoleBinding", "RoleBinding"] {
        let mut listed = cluster.list(&ApiKind::built_in(RBAC, name), None, &selector).await?;
        for binding in &mut listed {
            binding["kind"] = name.into();
        }
        bindings.extend(listed);
    }
    Ok(Found { revisions, roles, bindings })
}

/// Waits until the API server knows that a rule was granted: its authorizer learns that by a watch. What is refused before would be
/// tried again only much later.
async fn until_known(cluster: &Cluster, rule: &Value, namespace: Option<&str>) {
    let until = Instant::now() + KNOWN;
    while Instant::now() < until {
        match rights::is_allowed(cluster, rule, namespace).await {
            Ok(false) => tokio::time::sleep(PERIOD).await,
            // If the API server cannot be asked, the review of the rights shows what is missing.
            Ok(true) | Err(_) => return,
        }
    }
}

fn kind_of(object: &Value) -> ApiKind {
    ApiKind::built_in(RBAC, object["kind"].as_str().unwrap_or_default())
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}
