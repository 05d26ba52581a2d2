//! Whether the accounts of packages have the rights that the packages need, asked of the API server before the first write
//! of a package.
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
use crate::children::RIGHTS_MISSING;
use crate::clock::Instant;
use crate::cluster::{Clients, Cluster};
use crate::package::Package;
use crate::rights::{self, Place, Right, Rights};

/// How long missing rights count as missing before they are asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// How many questions are asked at once.
const AT_ONCE: usize = 8;
/// How many rights a message names.
const MOST: usize = 12;

/// The answers about each package.
#[derive(Default)]
pub(super) struct RightsReviews(Mutex<HashMap<Arc<str>, Arc<tokio::sync::Mutex<Review>>>>);

/// What rights are derived from.
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
    /// The rights that are not granted in all namespaces, and when that was asked.
    missing: Option<(Rights, Instant)>,
    /// Those of them that are not granted in a namespace either.
    by_namespace: HashMap<Box<str>, (Rights, Instant)>,
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
        let Some(user) = clients.user_of(&registered.package_name) else { return Ok(None) };
        if registered.package.is_none() {
            return Ok(None);
        }
        let review = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(Arc::clone(&registered.package_name)).or_default())
        };
        let registry = store.registry();
        let of_package: Vec<&Arc<Registered>> =
            registry.iter().filter(|known| known.package_name == registered.package_name).collect();
        let cluster = clients.for_operator(&registered.package_name);
        let served = |gvk: &Gvk| store.kinds.known(gvk).map(|kind| ApiKind::clone(&kind));
        let missing = {
            let mut review = review.lock().await;
            let needed = || needed(&of_package, &served);
            review.renew(&cluster, basis(&of_package), needed, at.manager, again).await?;
            review.missing_in(&cluster, at).await?
        };
        if missing.is_empty() {
            return Ok(None);
        }
        warn!(package = %registered.package_name, %user, missing = %list(&missing), "the account lacks rights");
        Ok(Some(refusal(&registered.package_name, &user, &missing)))
    }
}

/// The revisions of a package by their digests, over all of its kinds.
fn revisions<'a>(of_package: &[&'a Arc<Registered>]) -> BTreeMap<&'a str, &'a Package> {
    let current = of_package.iter().filter_map(|known| known.resource()).map(|(package, _)| &**package);
    let earlier = of_package.iter().flat_map(|known| known.earlier()).map(|(package, _)| &**package);
    current.chain(earlier).map(|package| (package.digest.as_str(), package)).collect()
}

fn basis(of_package: &[&Arc<Registered>]) -> Basis {
    Basis {
        revisions: revisions(of_package).into_keys().map(str::to_owned).collect(),
        kinds: of_package.iter().flat_map(|known| &known.child_kinds).cloned().collect(),
    }
}

/// What a package needs: for its revisions, and for children that earlier ones have left.
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
    /// Asks for all rights once for each basis, and for missing ones again after a while.
    async fn renew(
        &mut self,
        cluster: &Cluster,
        basis: Basis,
        needed: impl Fn() -> Rights,
        manager_namespace: &str,
        again: bool,
    ) -> Result<(), CallError> {
        if basis != self.basis {
            *self = Self { basis, ..Self::default() };
        }
        let due = match &self.missing {
            Some((_, at)) if at.elapsed() < AGAIN => return Ok(()),
            Some((missing, _)) if missing.is_empty() && !again => return Ok(()),
            // All of them: when somebody grants one, others may go.
            None | Some(_) => needed(),
        };
        let missing = denied(cluster, &due, manager_namespace, None).await?;
        if missing.is_empty() {
            info!(rights = due.iter().count(), "the account has the rights that the package needs");
        }
        self.missing = Some((missing, Instant::now()));
        self.by_namespace.clear();
        Ok(())
    }

    /// The rights that are missing for instances in a namespace: a Role there may grant what no `ClusterRole` does.
    async fn missing_in(&mut self, cluster: &Cluster, at: At<'_>) -> Result<Rights, CallError> {
        let Some((missing, _)) = &self.missing else { return Ok(Rights::default()) };
        let Some(namespace) = at.home.filter(|_| !missing.is_empty()) else { return Ok(missing.clone()) };
        if let Some((known, at)) = self.by_namespace.get(namespace)
            && (known.is_empty() || at.elapsed() < AGAIN)
        {
            return Ok(known.clone());
        }
        let missing = denied(cluster, missing, at.manager, Some(namespace)).await?;
        self.by_namespace.insert(namespace.into(), (missing.clone(), Instant::now()));
        Ok(missing)
    }
}

/// The rights that the API server denies. Those that are needed in the namespace of an instance are asked for in
/// `namespace`, without it in all.
async fn denied(
    cluster: &Cluster,
    rights: &Rights,
    manager_namespace: &str,
    namespace: Option<&str>,
) -> Result<Rights, CallError> {
    let kind = ApiKind {
        namespaced: false,
        plural: "selfsubjectaccessreviews".into(),
        ..ApiKind::built_in("authorization.k8s.io/v1", "SelfSubjectAccessReview")
    };
    let kind = &kind;
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

fn refusal(package: &str, user: &str, missing: &Rights) -> CallError {
    let rules: Vec<String> = missing.rules().iter().map(flow).collect();
    let message = format!(
        "{user} lacks rights that the package {package} needs: {}; apply what `operetta rbac` prints for the package, or add to `rules` of the ClusterRole {}: [{}]",
        list(missing),
        rights::account(package),
        rules.join(", "),
    );
    // No 403: it is not the object that is refused.
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

/// A rule as YAML on one line.
fn flow(rule: &Value) -> String {
    let fields = rule.as_object().into_iter().flatten().map(|(name, values)| {
        let values = values.as_array().into_iter().flatten().filter_map(Value::as_str);
        let values: Vec<&str> = values.map(|value| if value.is_empty() { "\"\"" } else { value }).collect();
        format!("{name}: [{}]", values.join(", "))
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_each_right_and_the_rules_that_grant_them() {
        let mut missing = Rights::default();
        missing.add(&Place::Home, "", "secrets", &["list", "watch"]);
        missing.add(&Place::Home, "apps", "deployments", &["delete"]);
        let text = refusal("web", "system:serviceaccount:o:operetta-web", &missing).to_string();
        for words in [
            "system:serviceaccount:o:operetta-web lacks rights that the package web needs: list secrets, watch secrets, \
             delete deployments.apps;",
            "of the ClusterRole operetta-web: [{apiGroups: [\"\"], resources: [secrets], verbs: [list, watch]}, \
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
    fn a_question_is_about_one_right_in_one_place() {
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
