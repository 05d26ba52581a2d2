//! Whether the accounts of packages have the rights that the packages need, and the manager those to their instances, asked of the
//! API server before the first write of a package.
//!
//! The dry runs of writes show what may not be created or patched. That an object may not be deleted or read would show
//! later, with a change half made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::registry::Registered;
use super::store::Store;
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::children::{NamespaceScope, RIGHTS_MISSING};
use crate::clock::Instant;
use crate::cluster::{Clients, Cluster};
use crate::package::{self, Package};
use crate::rights::bindings::InUse;
use crate::rights::{self, Place, Right, Rights};

/// How long missing rights count as missing before they are asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// How many questions are asked at once.
const AT_ONCE: usize = 8;
/// How many rights a message names.
const MOST: usize = 12;
/// In how many of the namespaces that an `Operator` names its condition looks for missing rights. Instances find them in all.
const MOST_NAMESPACES: usize = 100;

/// The answers about each package, which instances of one namespace share.
#[derive(Default)]
pub(super) struct RightsReviews(Mutex<HashMap<Arc<str>, Arc<tokio::sync::Mutex<Review>>>>);

/// The input from which rights are derived.
#[derive(Default, PartialEq, Eq)]
struct Basis {
    /// The digests of the revisions that instances use.
    revisions: BTreeSet<String>,
    /// The kinds of children on record, also those that no revision has any more.
    kinds: BTreeSet<Gvk>,
}

/// The answers about one package.
#[derive(Default)]
struct Review {
    basis: Basis,
    /// The answer about rights that are granted in all namespaces.
    everywhere: Option<Answer>,
    /// The answers about rights that are granted in one namespace.
    by_namespace: HashMap<Box<str>, Answer>,
    /// The answer about the rights of the manager itself to the instances.
    of_manager: Option<Answer>,
}

/// The rights that are missing, and when the API server was asked.
struct Answer {
    missing: Rights,
    at: Instant,
}

impl Answer {
    /// Whether the answer still counts. `again`: an answer that nothing is missing expires as well.
    fn counts(&self, again: bool) -> bool {
        (self.missing.is_empty() && !again) || self.at.elapsed() < AGAIN
    }
}

impl RightsReviews {
    /// A refusal that names the rights that the account of a package lacks for an instance in that namespace. `again`: ask
    /// again for rights that were granted when they were asked for.
    ///
    /// # Errors
    /// The API server cannot be asked now.
    pub(super) async fn refusal(
        &self,
        clients: &Clients,
        store: &Store,
        registered: &Registered,
        at: At<'_>,
        again: bool,
    ) -> Result<Option<CallError>, CallError> {
        let package = &registered.package_name;
        let Some(user) = clients.user_of(package).filter(|_| registered.package.is_some()) else {
            return Ok(None);
        };
        let missing = self.missing(clients, store, package, at, again).await?;
        if missing.is_empty() {
            return Ok(None);
        }
        warn!(%package, %user, missing = %list(&missing), "the account lacks rights");
        Ok(Some(refusal(package, &user, &role(store, package, at.home), &missing)))
    }

    /// The rights that the account of a package lacks, in all namespaces that its `Operator` serves, and those that the manager
    /// itself lacks for its instances; each as text.
    ///
    /// # Errors
    /// The API server cannot be asked now.
    pub(super) async fn missing_of_package(
        &self,
        clients: &Clients,
        store: &Store,
        package: &Arc<str>,
        manager: &str,
        again: bool,
    ) -> Result<Option<Missing>, CallError> {
        let Some(user) = clients.user_of(package) else { return Ok(None) };
        let of_manager = self.missing_to_manager(clients, store, package, again).await?;
        let settings = store.settings.get(package);
        let names = settings.as_ref().and_then(|settings| settings.names());
        let homes: Vec<Option<&str>> = match names {
            Some(names) => names.iter().take(MOST_NAMESPACES).map(|name| Some(name.as_str())).collect(),
            None => vec![None],
        };
        let mut rights = BTreeSet::new();
        for home in homes {
            for right in self.missing(clients, store, package, At { manager, home }, again).await?.iter() {
                rights.insert(match home.filter(|_| right.place == Place::Home) {
                    Some(home) => format!("{right} in {home}"),
                    None => right.to_string(),
                });
            }
        }
        let of_manager = of_manager.iter().map(ToString::to_string).collect();
        Ok(Some(Missing { user, rights, of_manager }))
    }

    /// The rights that the manager itself lacks for the instances of a package.
    async fn missing_to_manager(
        &self,
        clients: &Clients,
        store: &Store,
        package: &Arc<str>,
        again: bool,
    ) -> Result<Rights, CallError> {
        let registry = store.registry();
        let of_package: Vec<&Arc<Registered>> =
            registry.iter().filter(|known| known.package_name == *package).collect();
        let review = self.of(package);
        let mut review = review.lock().await;
        review.is_about(&of_package);
        if let Some(known) = review.of_manager.as_ref().filter(|known| known.counts(again)) {
            return Ok(known.missing.clone());
        }
        let all: Rights = of_package
            .iter()
            .flat_map(|known| rights::to_instances(&known.kind).iter().cloned().collect::<Vec<_>>())
            .collect();
        let missing = denied(clients.own(), &all, "", None).await?;
        review.of_manager = Some(Answer { missing: missing.clone(), at: Instant::now() });
        Ok(missing)
    }

    fn of(&self, package: &Arc<str>) -> Arc<tokio::sync::Mutex<Review>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(Arc::clone(package)).or_default())
    }

    /// Forgets the answers about a package whose rights were granted or taken back.
    pub(super) fn forget(&self, package: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(package);
    }

    async fn missing(
        &self,
        clients: &Clients,
        store: &Store,
        package: &Arc<str>,
        at: At<'_>,
        again: bool,
    ) -> Result<Rights, CallError> {
        let review = self.of(package);
        let registry = store.registry();
        let of_package: Vec<&Arc<Registered>> =
            registry.iter().filter(|known| known.package_name == *package).collect();
        let cluster = clients.for_operator(package);
        let served = |gvk: &Gvk| store.kinds.known(gvk).map(|kind| ApiKind::clone(&kind));
        let mut review = review.lock().await;
        review.is_about(&of_package);
        let needed = || needed(&of_package, &served);
        review.missing(&cluster, needed, at, is_limited(store, package), again).await
    }
}

/// The revisions of a package that are active or that instances use, and what earlier ones may have left: resources of children,
/// and kinds of instances of CRDs that the active revision does not have. Their CRDs are still there, so instances can be created
/// and have to be deletable.
pub(super) fn in_use(store: &Store, package: &str) -> InUse {
    let registry = store.registry();
    let of_package: Vec<&Arc<Registered>> =
        registry.iter().filter(|known| *known.package_name == *package).collect();
    let revisions = revisions(&of_package);
    let has = |gvk: &Gvk| revisions.values().any(|package| package.has_child_kind(gvk));
    let mut left = BTreeSet::new();
    for known in &of_package {
        let kinds = known.child_kinds.iter().filter(|gvk| !has(gvk)).filter_map(|gvk| store.kinds.known(gvk));
        left.extend(kinds.map(|kind| (kind.group.clone(), kind.plural.clone())));
        if known.package.is_none() {
            left.insert((known.kind.group.clone(), known.kind.plural.clone()));
        }
    }
    let names =
        revisions.values().map(|package| package::store::name(&package.name, &package.digest)).collect();
    let settings = store.settings.get(package);
    let namespaces = settings.as_ref().and_then(|settings| settings.names().cloned());
    InUse { revisions: names, left, namespaces, active: None }
}

/// Whether an account has the first right of a rule.
///
/// # Errors
/// The API server cannot be asked now.
pub(super) async fn is_allowed(
    cluster: &Cluster,
    rule: &Value,
    namespace: Option<&str>,
) -> Result<bool, CallError> {
    let first = |field: &str| rule[field].get(0).and_then(Value::as_str).map(str::to_owned);
    let right = Right {
        place: Place::Home,
        group: first("apiGroups").unwrap_or_default(),
        resource: first("resources").unwrap_or_default(),
        name: first("resourceNames"),
        verb: first("verbs").unwrap_or_default(),
    };
    let reply = cluster.review(&review_kind(), &question(&right, namespace)).await?;
    Ok(reply["status"]["allowed"] == true)
}

/// The rights that are missing for a package.
pub(super) struct Missing {
    /// The account.
    pub(super) user: String,
    /// Each as text, with its namespace if it is needed in that one.
    pub(super) rights: BTreeSet<String>,
    /// The rights that the manager itself lacks, each as text.
    pub(super) of_manager: Vec<String>,
}

/// Whether a package has its rights in the namespaces that its `Operator` names, and not in all.
fn is_limited(store: &Store, package: &str) -> bool {
    store.settings.get(package).is_some_and(|settings| settings.names().is_some())
}

/// The role that grants a package its rights in a place.
fn role(store: &Store, package: &str, place: Option<&str>) -> String {
    let role = rights::role(package);
    match place.filter(|_| is_limited(store, package)) {
        Some(place) => format!("Role {role} in {place}"),
        None => format!("ClusterRole {role}"),
    }
}

/// How many namespaces are asked about before another revision of a package takes over.
const NAMESPACES: usize = 20;

/// What the account of a package lacks for another revision of it in the namespaces of these instances; `None` if it lacks
/// nothing, or there are no instances. `left`: the kinds and namespaces of children that another package leaves to it.
///
/// # Errors
/// The API server cannot be asked now.
pub(super) async fn lacking(
    clients: &Clients,
    store: &Store,
    (package, left): (&Package, Option<(&BTreeSet<Gvk>, &NamespaceScope)>),
    homes: &BTreeSet<Option<Arc<str>>>,
    manager: &str,
) -> Result<Option<String>, CallError> {
    let Some(user) = clients.user_of(&package.name).filter(|_| !homes.is_empty()) else { return Ok(None) };
    let served = |gvk: &Gvk| store.kinds.known(gvk).map(|kind| ApiKind::clone(&kind));
    let cluster = clients.for_operator(&package.name);
    let mut needed = rights::derive(&[package], &served).rights;
    if let Some((kinds, namespaces)) = left {
        let left: BTreeSet<Gvk> =
            kinds.iter().filter(|kind| !package.has_child_kind(kind)).cloned().collect();
        needed.extend(rights::former(&left, namespaces, &served).iter().cloned());
    }
    let anywhere = denied(&cluster, &needed, manager, None).await?;
    let mut missing = Rights::default();
    if !anywhere.is_empty() {
        // A Role may grant what no ClusterRole does.
        for home in homes.iter().take(NAMESPACES) {
            let there = denied(&cluster, &anywhere, manager, home.as_deref()).await?;
            missing.extend(there.iter().cloned());
        }
    }
    if missing.is_empty() {
        return Ok(None);
    }
    let place = homes.iter().flatten().next();
    let place = place.map(|home| if homes.len() == 1 { home } else { "each of the namespaces" });
    let role = role(store, &package.name, place);
    Ok(Some(refusal(&package.name, &user, &role, &missing).to_string()))
}

/// The revisions of a package by their digests, over all of its kinds.
fn revisions<'a>(of_package: &[&'a Arc<Registered>]) -> BTreeMap<&'a str, &'a Package> {
    let in_use = of_package.iter().flat_map(|known| known.in_use());
    in_use.map(|(package, _)| (package.digest.as_str(), &**package)).collect()
}

fn basis(of_package: &[&Arc<Registered>]) -> Basis {
    Basis {
        revisions: revisions(of_package).into_keys().map(str::to_owned).collect(),
        kinds: of_package.iter().flat_map(|known| &known.child_kinds).cloned().collect(),
    }
}

/// The rights that a package needs: for its revisions, and for children that earlier ones have left.
fn needed(of_package: &[&Arc<Registered>], served: &dyn Fn(&Gvk) -> Option<ApiKind>) -> Rights {
    let packages: Vec<&Package> = revisions(of_package).into_values().collect();
    let mut rights = rights::derive(&packages, served).rights;
    for known in of_package {
        let has = |gvk: &&Gvk| packages.iter().any(|package| package.has_child_kind(gvk));
        let left: BTreeSet<Gvk> = known.child_kinds.iter().filter(|gvk| !has(gvk)).cloned().collect();
        rights.extend(rights::former(&left, &known.namespace_scope, served).iter().cloned());
    }
    rights
}

/// Where rights are needed.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    /// The manager's namespace.
    pub(super) manager: &'a str,
    /// The namespace of the instance.
    pub(super) home: Option<&'a str>,
}

impl Review {
    /// Forgets the answers if they are about other revisions or kinds.
    fn is_about(&mut self, of_package: &[&Arc<Registered>]) {
        let basis = basis(of_package);
        if basis != self.basis {
            *self = Self { basis, ..Self::default() };
        }
    }

    /// The rights that are missing. All rights are asked for once for each basis, and missing ones again
    /// after a while. They are asked for in all namespaces first; for an account that `is_limited`, in the
    /// namespace of the instance alone.
    async fn missing(
        &mut self,
        cluster: &Cluster,
        needed: impl Fn() -> Rights,
        at: At<'_>,
        is_limited: bool,
        again: bool,
    ) -> Result<Rights, CallError> {
        if let Some(known) = at.home.and_then(|home| self.by_namespace.get(home))
            && known.counts(again)
        {
            return Ok(known.missing.clone());
        }
        let wanted = match at.home.filter(|_| is_limited) {
            Some(_) => needed(),
            None => self.everywhere(cluster, needed, at.manager, again).await?,
        };
        let Some(home) = at.home.filter(|_| !wanted.is_empty()) else { return Ok(wanted) };
        // A Role there may grant what no `ClusterRole` does.
        let missing = self.by_namespace.get(home).map(|known| &known.missing);
        let missing = denied_again(cluster, missing, &wanted, at.manager, Some(home)).await?;
        if is_limited && missing.is_empty() {
            info!(
                namespace = home,
                rights = wanted.iter().count(),
                "the account has the rights that it needs there"
            );
        }
        let answer = Answer { missing: missing.clone(), at: Instant::now() };
        self.by_namespace.insert(home.into(), answer);
        Ok(missing)
    }

    /// The rights that are not granted in all namespaces.
    async fn everywhere(
        &mut self,
        cluster: &Cluster,
        needed: impl Fn() -> Rights,
        manager: &str,
        again: bool,
    ) -> Result<Rights, CallError> {
        if let Some(known) = self.everywhere.as_ref().filter(|known| known.counts(again)) {
            return Ok(known.missing.clone());
        }
        let due = needed();
        let missing = self.everywhere.as_ref().map(|known| &known.missing);
        let missing = denied_again(cluster, missing, &due, manager, None).await?;
        if missing.is_empty() {
            info!(rights = due.iter().count(), "the account has the rights that the package needs");
        }
        let answer = Answer { missing: missing.clone(), at: Instant::now() };
        if self.everywhere.replace(answer).is_none_or(|before| before.missing != missing) {
            self.by_namespace.clear();
        }
        Ok(missing)
    }
}

/// The rights that the API server denies: of those that were missing, or, if these are granted now, of all,
/// because others may have been taken back.
async fn denied_again(
    cluster: &Cluster,
    missing: Option<&Rights>,
    all: &Rights,
    manager_namespace: &str,
    namespace: Option<&str>,
) -> Result<Rights, CallError> {
    if let Some(missing) = missing {
        let still = denied(cluster, missing, manager_namespace, namespace).await?;
        if !still.is_empty() {
            return Ok(still);
        }
    }
    denied(cluster, all, manager_namespace, namespace).await
}

/// The rights that the API server denies. Those that are needed in the namespace of an instance are asked for in
/// `namespace`, without it in all.
async fn denied(
    cluster: &Cluster,
    rights: &Rights,
    manager_namespace: &str,
    namespace: Option<&str>,
) -> Result<Rights, CallError> {
    let kind = &review_kind();
    let ask = |right: Right| async move {
        let place = match &right.place {
            Place::Home => namespace,
            Place::Manager => Some(manager_namespace),
            Place::Namespace(named) => Some(named.as_str()),
            Place::Everywhere | Place::Cluster => None,
        };
        let reply = cluster.review(kind, &question(&right, place)).await?;
        Ok::<_, CallError>((reply["status"]["allowed"] != true).then_some(right))
    };
    let answers = futures::stream::iter(rights.iter().cloned()).map(ask).buffer_unordered(AT_ONCE);
    let denied: Vec<Option<Right>> = answers.try_collect().await?;
    Ok(denied.into_iter().flatten().collect())
}

fn review_kind() -> ApiKind {
    ApiKind {
        namespaced: false,
        plural: "selfsubjectaccessreviews".into(),
        ..ApiKind::built_in("authorization.k8s.io/v1", "SelfSubjectAccessReview")
    }
}

fn question(right: &Right, namespace: Option<&str>) -> Value {
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "group": right.group, "resource": resource, "subresource": subresource, "verb": right.verb,
            "name": right.name.as_deref().unwrap_or_default(), "namespace": namespace.unwrap_or_default(),
        }},
    })
}

fn refusal(package: &str, user: &str, role: &str, missing: &Rights) -> CallError {
    let rules: Vec<String> = missing.rules().iter().map(rights::flow).collect();
    let message = format!(
        "{user} lacks rights that the package {package} needs: {}; apply what `operetta rbac` prints for the package, or add to `rules` of the {role}: [{}]",
        list(missing),
        rules.join(", "),
    );
    // The code is not 403, because no single object is refused.
    CallError::new(Class::Permanent, 0, RIGHTS_MISSING, message).after(AGAIN * 2)
}

fn list(missing: &Rights) -> String {
    let mut names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    names.dedup();
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_each_right_and_the_rules_that_grant_them() {
        let mut missing = Rights::default();
        missing.add(&Place::Home, "", "secrets", &["list", "watch"]);
        missing.add(&Place::Home, "apps", "deployments", &["delete"]);
        let text =
            refusal("web", "system:serviceaccount:o:operetta-web", "ClusterRole operetta:web", &missing)
                .to_string();
        for words in [
            "system:serviceaccount:o:operetta-web lacks rights that the package web needs: list secrets, watch secrets, \
             delete deployments.apps;",
            "of the ClusterRole operetta:web: [{apiGroups: [\"\"], resources: [secrets], verbs: [list, watch]}, \
             {apiGroups: [apps], resources: [deployments], verbs: [delete]}]",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        for word in 0..30 {
            missing.add(&Place::Home, "x", &format!("r{word:02}"), &["get"]);
        }
        assert!(list(&missing).ends_with(" and 21 more"), "{}", list(&missing));
    }

    #[test]
    fn a_review_asks_for_one_right_in_one_namespace() {
        let right = Right {
            place: Place::Home,
            group: String::new(),
            resource: "pods/exec".into(),
            name: None,
            verb: "create".into(),
        };
        let asked = question(&right, Some("n"));
        assert_eq!(
            asked["spec"]["resourceAttributes"],
            json!({
                "group": "", "resource": "pods", "subresource": "exec", "verb": "create", "name": "", "namespace": "n",
            })
        );
    }
}
