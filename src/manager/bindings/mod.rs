//! Binds the roles of the revisions in use to the accounts of packages, and no others. What is bound is decided by
//! [`crate::rights::bindings`] from what is there. A package whose revisions bring no roles has its rights from elsewhere
//! (`operetta rbac`), and nothing is done.

mod seen;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::raw::Raw;
use super::rights::{self, RightsReviews};
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::children::names;
use crate::clock::{Clock, Instant};
use crate::cluster::{Clients, Cluster};
use crate::package::store::objects;
use crate::package::{Package, store};
use crate::rights::bindings::{self, Found, InUse};
use crate::rights::role_of_bindings;
use seen::{Seen, Version, version};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// How long the API server may take to know a right that was granted, and how often it is asked.
const KNOWN: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_millis(50);
/// How long roles may be there before their revision is stored: tools that apply the files of a package may do it in any order.
const UNSTORED: SignedDuration = SignedDuration::from_mins(10);

/// What is bound, by package.
#[derive(Default)]
pub(super) struct Bindings {
    bound: Mutex<HashMap<Box<str>, Arc<tokio::sync::Mutex<Bound>>>>,
    seen: Seen,
}

#[derive(Default)]
struct Bound {
    /// Revisions that are about to be active.
    offered: BTreeSet<String>,
    /// The last input that was carried out completely.
    last: Option<(InUse, Vec<String>)>,
    /// When the API server is asked for the rights once more after a change by others, or after something was taken back: its authorizer
    /// learns of it a moment later.
    ask_again: Option<Instant>,
    granted: Granted,
}

/// What is granted to a package, and what is not as it should be.
#[derive(Debug, Clone, Default)]
pub(super) struct Granted {
    /// The revisions whose roles are bound.
    pub(super) revisions: BTreeSet<String>,
    /// What the API server does not let the manager bind or take back.
    pub(super) refused: Vec<String>,
    /// Roles that the active revision needs and that are gone.
    pub(super) gone: Vec<String>,
    /// Roles of revisions in use with other rules than those with which they were made.
    pub(super) changed: Vec<String>,
}

/// With what the manager grants rights.
#[derive(Clone, Copy)]
pub(super) struct Means<'a> {
    pub(super) clients: &'a Clients,
    pub(super) reviews: &'a RightsReviews,
    pub(super) clock: &'a Clock,
    /// The manager's namespace.
    pub(super) manager: &'a str,
}

/// How bindings are changed.
#[derive(Clone, Copy)]
struct How {
    /// Whether those that are not needed are deleted.
    deletes: bool,
    /// Whether a refusal is waited out.
    waits: bool,
}

/// What one look at the objects of a package has led to.
struct Round {
    granted: Granted,
    /// Whether something was taken back.
    has_taken_back: bool,
    /// Whether nothing is left to be tried again.
    is_done: bool,
}

impl Bindings {
    fn of(&self, package: &str) -> Arc<tokio::sync::Mutex<Bound>> {
        let mut all = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(package.into()).or_default())
    }

    /// The kinds to watch, each with whether only those in the manager's namespace matter.
    pub(super) fn watched() -> [(ApiKind, bool); 4] {
        seen::KINDS.map(|kind| (rbac(kind), kind == "Role"))
    }

    /// One of the watched kinds.
    pub(super) fn watched_kind(gvk: &Gvk) -> Option<&'static str> {
        seen::KINDS.into_iter().find(|kind| gvk.is(RBAC, kind))
    }

    /// Takes in an event of a watched kind. Returns the packages to look at again.
    pub(super) fn on_event(&self, kind: &'static str, event: Event<Raw>) -> Vec<Arc<str>> {
        self.seen.on_event(kind, event)
    }

    /// Grants the rights of a revision that was accepted and is about to be active, beside those that are in
    /// use. `namespaces`: those that the package serves, if they are named.
    pub(super) async fn offer(
        &self,
        means: Means<'_>,
        package: &Package,
        namespaces: Option<BTreeSet<String>>,
    ) {
        let clients = means.clients;
        if !clients.has_accounts() {
            return;
        }
        let name = store::name(&package.name, &package.digest);
        let bound = self.of(&package.name);
        let mut bound = bound.lock().await;
        bound.offered.insert(name.clone());
        if bound.granted.revisions.contains(&name) {
            return;
        }
        let in_use = InUse { revisions: BTreeSet::from([name]), namespaces, ..InUse::default() };
        bound.last = None;
        match self.carry_out(means, &package.name, &in_use, How { deletes: false, waits: true }).await {
            Ok(round) => {
                // A controller adds the rules of the new roles to the manager's own role, which takes a
                // moment.
                let is_granted = !round.granted.revisions.is_empty();
                for kind in package.resources.iter().map(|resource| &resource.kind).filter(|_| is_granted) {
                    let rule =
                        json!({"apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["list"]});
                    until_known(clients.own(), &rule, None).await;
                }
                bound.granted.revisions.extend(round.granted.revisions);
            }
            Err(error) => {
                warn!(package = %package.name, %error, "the rights of the revision cannot be granted");
            }
        }
    }

    /// Grants the rights of the revisions in use, and takes back all others. Sends no request while nothing
    /// has changed. `next`: the revisions that may become active. `reasons`: a change of these is a reason to
    /// check again. `again`: checks in any case.
    pub(super) async fn set(
        &self,
        means: Means<'_>,
        package: &str,
        mut in_use: InUse,
        (next, reasons, again): (&[Option<&str>], Vec<String>, bool),
    ) -> Granted {
        if !means.clients.has_accounts() {
            return Granted { revisions: in_use.revisions, ..Granted::default() };
        }
        let bound = self.of(package);
        let mut bound = bound.lock().await;
        bound.offered.retain(|name| next.contains(&Some(name.as_str())));
        in_use.revisions.extend(bound.offered.iter().cloned());
        let wanted = (in_use, reasons);
        let has_changed = self.seen.take(package);
        if has_changed {
            bound.ask_again = Some(Instant::now() + KNOWN);
        } else if bound.ask_again.is_some_and(|at| at <= Instant::now()) {
            bound.ask_again = None;
            means.reviews.forget(package);
        }
        if bound.last.as_ref() != Some(&wanted) || again || has_changed {
            bound.last = None;
            // What was refused before is not waited for.
            let how = How { deletes: true, waits: bound.granted.refused.is_empty() };
            match self.carry_out(means, package, &wanted.0, how).await {
                Ok(round) => {
                    if round.has_taken_back {
                        bound.ask_again = Some(Instant::now() + KNOWN);
                    }
                    bound.granted = round.granted;
                    bound.last = round.is_done.then_some(wanted);
                }
                Err(error) => {
                    warn!(%package, %error, "the rights of the revisions in use cannot be read");
                    if error.is_unauthorized() {
                        bound.granted.refused = vec![error.to_string()];
                    }
                }
            }
        }
        bound.granted.clone()
    }

    /// What is granted to a package, as it was seen last.
    pub(super) async fn granted(&self, package: &str) -> Granted {
        self.of(package).lock().await.granted.clone()
    }

    /// Takes back the rights of a package whose `Operator` is gone, but for those of revisions in `in_use`, and grants none. Sends no
    /// request while nothing has changed.
    ///
    /// # Errors
    /// A request fails.
    pub(super) async fn take_back(
        &self,
        means: Means<'_>,
        package: &str,
        in_use: InUse,
    ) -> Result<(), CallError> {
        let bound = self.of(package);
        let mut bound = bound.lock().await;
        let (has_changed, wanted) = (self.seen.take(package), (in_use, Vec::new()));
        if bound.last.as_ref() == Some(&wanted) && !has_changed {
            return Ok(());
        }
        *bound = Bound::default();
        let (found, versions) = find(means, package).await?;
        self.seen.read(package, versions);
        let changes = bindings::changes(package, means.manager, &wanted.0, &found);
        let is_bound = |binding: &&Value| {
            binding["metadata"]["labels"][objects::REVISION]
                .as_str()
                .is_some_and(|it| changes.bound.contains(it))
        };
        for binding in changes.delete.iter().filter(|binding| !is_bound(binding)) {
            means.clients.own().delete_object(&rbac(kind_of(binding)), binding).await?;
            info!(%package, "{} is deleted: the Operator is gone", described(binding));
            self.seen.deleted(&version(kind_of(binding), binding));
        }
        bound.last = Some(wanted);
        Ok(())
    }

    /// Applies and deletes bindings. One that is refused stops no other.
    async fn carry_out(
        &self,
        means: Means<'_>,
        package: &str,
        in_use: &InUse,
        how: How,
    ) -> Result<Round, CallError> {
        let Means { clients, reviews, manager, .. } = means;
        let (found, mut versions) = find(means, package).await?;
        let changes = bindings::changes(package, manager, in_use, &found);
        versions.retain(|(id, _)| !is_of_unbound(&id.name, &found, &changes.bound));
        // An offer is about one revision alone.
        let mut has_changed = how.deletes && self.seen.read(package, versions);
        let mut work =
            Work { seen: &self.seen, cluster: clients.own(), package, refused: Vec::new(), is_done: true };
        for binding in &changes.replace {
            has_changed |= work.delete(binding, "it binds another role").await;
        }
        let (mut granted, mut has_taken_back) = (Vec::new(), false);
        let until = Instant::now() + if how.waits { KNOWN } else { Duration::ZERO };
        let mut failed = BTreeSet::new();
        for (binding, role) in &changes.apply {
            if work.apply(binding, until).await {
                granted.push((role, binding["metadata"]["namespace"].as_str()));
            } else {
                failed.insert(text(binding, "name"));
            }
        }
        for (role, namespace) in &granted {
            let Some(rule) = role["rules"].get(0) else { continue };
            until_known(&clients.for_operator(package), rule, *namespace).await;
        }
        if how.deletes {
            // A binding elsewhere is kept until the one that takes its place is there.
            for binding in changes.delete.iter().filter(|binding| !failed.contains(text(binding, "name"))) {
                has_taken_back |= work.delete(binding, "nothing uses its revision").await;
            }
            delete_roles(work.cluster, package, &changes.orphaned).await.unwrap_or_else(|error| {
                warn!(%package, %error, "roles of revisions that are gone cannot be deleted");
            });
        }
        if has_changed || has_taken_back || !granted.is_empty() {
            reviews.forget(package);
        }
        let Work { refused, is_done, .. } = work;
        let named =
            |names: BTreeSet<String>| names.iter().map(|name| format!("ClusterRole {name}")).collect();
        let (gone, changed) = (named(changes.gone), named(changes.changed));
        Ok(Round {
            granted: Granted { revisions: changes.bound, refused, gone, changed },
            has_taken_back,
            is_done,
        })
    }
}

/// The writes of one round.
struct Work<'a> {
    seen: &'a Seen,
    cluster: &'a Cluster,
    package: &'a str,
    /// What was refused.
    refused: Vec<String>,
    /// Whether nothing is left to be tried again.
    is_done: bool,
}

impl Work<'_> {
    /// Applies a binding. Returns whether it is there. The right to do so may have been applied just now, and reaches the
    /// manager's own role by a controller.
    async fn apply(&mut self, binding: &Value, until: Instant) -> bool {
        let package = self.package;
        let (kind, namespace) = (kind_of(binding), binding["metadata"]["namespace"].as_str());
        let applied = loop {
            match self.cluster.apply(&rbac(kind), binding, names::NOTES, true).await {
                Err(error) if error.code == 403 && Instant::now() < until => {
                    tokio::time::sleep(PERIOD * 4).await;
                }
                result => break result,
            }
        };
        match applied {
            Ok(live) => {
                info!(%package, "{} is applied", described(binding));
                self.seen.wrote(package, version(kind, &live));
                true
            }
            // The namespace does not exist yet: the Operator says so.
            Err(error) if error.class == Class::NotFound && namespace.is_some() => false,
            Err(error) => {
                self.failed(&format!("{} cannot be applied: {error}", described(binding)), &error);
                false
            }
        }
    }

    /// Deletes a binding. Returns whether it is gone.
    async fn delete(&mut self, binding: &Value, why: &str) -> bool {
        let (package, kind) = (self.package, kind_of(binding));
        match self.cluster.delete_object(&rbac(kind), binding).await {
            Ok(()) => {
                info!(%package, "{} is deleted: {why}", described(binding));
                self.seen.deleted(&version(kind, binding));
                true
            }
            Err(error) => {
                let text = format!("{} cannot be deleted, though {why}: {error}", described(binding));
                self.failed(&text, &error);
                false
            }
        }
    }

    fn failed(&mut self, text: &str, error: &CallError) {
        let package = self.package;
        warn!(%package, "{text}");
        self.is_done = false;
        // What passes by itself is no deviation.
        if error.class == Class::Permanent {
            self.refused.push(text.to_owned());
        }
    }
}

/// Deletes the roles of a revision that is about to be deleted. They would give nothing to the package, but the manager could bind
/// them.
///
/// # Errors
/// A request fails. The roles that are left still allow the manager to delete them.
pub(super) async fn delete_roles_of(
    cluster: &Cluster,
    package: &str,
    revision: &str,
) -> Result<(), CallError> {
    let selector = format!("{}={package},{}={revision}", names::OPERATOR, objects::REVISION);
    let mut roles = cluster.list(&rbac("ClusterRole"), None, &selector).await?;
    roles.retain(|role| crate::rights::is_of_package(role, package));
    delete_roles(cluster, package, &roles).await
}

/// Deletes roles. Those that allow that come last.
async fn delete_roles(cluster: &Cluster, package: &str, roles: &[Value]) -> Result<(), CallError> {
    let allows_it = |role: &&Value| {
        let revision = role["metadata"]["labels"][objects::REVISION].as_str().unwrap_or_default();
        text(role, "name") == role_of_bindings(package, revision)
    };
    let (last, first): (Vec<_>, Vec<_>) = roles.iter().partition(allows_it);
    for role in first.into_iter().chain(last) {
        cluster.delete_object(&rbac("ClusterRole"), role).await?;
        info!(%package, "ClusterRole {} is deleted with its revision", text(role, "name"));
    }
    Ok(())
}

/// Reads the revisions of a package, its roles, and what is bound; and the versions of all that a change of matters.
async fn find(means: Means<'_>, package: &str) -> Result<(Found, Vec<Version>), CallError> {
    let cluster = means.clients.own();
    let selector = format!("{}={package}", objects::PACKAGE);
    let revisions = cluster.list(&objects::kind(), None, &selector).await?;
    let old = means.clock.now() - UNSTORED;
    let revisions = revisions.iter().map(|revision| text(revision, "name").to_owned()).collect();
    let mut found = Found { revisions, old: old.to_string(), ..Found::default() };
    let selector = crate::rights::selector(package);
    let mut versions = Vec::new();
    for kind in seen::KINDS {
        let namespace = (kind == "Role").then_some(means.manager);
        let mut listed = match cluster.list(&rbac(kind), namespace, &selector).await {
            // The account of a manager that was installed before may not list Roles. Nothing is bound by them.
            Err(error) if kind == "Role" && error.is_unauthorized() => Vec::new(),
            listed => listed?,
        };
        versions.extend(listed.iter().map(|object| version(kind, object)));
        if kind == "ClusterRole" {
            found.roles = listed;
        } else if kind != "Role" {
            for binding in &mut listed {
                binding["kind"] = kind.into();
            }
            found.bindings.extend(listed);
        }
    }
    Ok((found, versions))
}

/// Whether an object is a role of a revision that is not bound: nothing follows from a change of it.
fn is_of_unbound(name: &str, found: &Found, bound: &BTreeSet<String>) -> bool {
    let role = found.roles.iter().find(|role| text(role, "name") == name);
    let revision = role.and_then(|role| role["metadata"]["labels"][objects::REVISION].as_str());
    revision.is_some_and(|revision| !bound.contains(revision))
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

fn rbac(kind: &str) -> ApiKind {
    ApiKind::built_in(RBAC, kind)
}

fn kind_of(binding: &Value) -> &'static str {
    let kind = binding["kind"].as_str().unwrap_or_default();
    seen::KINDS.into_iter().find(|known| *known == kind).unwrap_or_default()
}

/// `RoleBinding NAME in NAMESPACE`.
fn described(binding: &Value) -> String {
    let place = binding["metadata"]["namespace"].as_str().map(|place| format!(" in {place}"));
    format!("{} {}{}", kind_of(binding), text(binding, "name"), place.unwrap_or_default())
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}
