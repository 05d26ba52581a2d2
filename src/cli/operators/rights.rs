//! The account of a package, and the roles of its revisions: `operetta install`, `upgrade` and `rollback` apply them, `uninstall`
//! deletes them. The manager binds the roles of the revisions that are in use.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::shared::{FIELD_MANAGER, refused};
use super::{Failure, apply, revisions};
use crate::api::{ApiKind, CallError};
use crate::children::names;
use crate::cli::model::name_of;
use crate::cli::rbac::{self, Live};
use crate::cli::{out, owned};
use crate::cluster::Cluster;
use crate::manager::load_revision;
use crate::operators::{self, OperatorSpec, Standing, standing};
use crate::package::store::StoredRevision;
use crate::package::store::objects::{self as stored, REVISION};
use crate::package::{Package, store};
use crate::rights::{self, Placement};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// How long the manager may take to bind roles in place of those under former names.
const BOUND: Duration = Duration::from_secs(20);

/// The account and the roles of a revision, computed without a cluster.
pub(super) fn objects(package: &Package, at: &Placement) -> Vec<Value> {
    rbac::objects_of_revision(package, &Live::default(), at, None)
}

/// Applies the account of a package and the roles of a revision, and those of earlier revisions that were stored without roles.
/// If the `Operator` names namespaces, the manager may bind them there alone. The manager grants none of them before it has
/// accepted the revision.
pub(super) async fn grant(cluster: &Cluster, package: &Package, at: &Placement) -> Result<(), Failure> {
    let namespace = at.manager_namespace.as_str();
    let live = Live::read(cluster).await.map_err(|error| not_applied("the rights", &error))?;
    let revision = store::name(&package.name, &package.digest);
    let mut target = None;
    for object in revisions::objects_of(cluster, &package.name).await? {
        let (name, uid) = (name_of(&object), object["metadata"]["uid"].as_str());
        if name == revision {
            target = uid.map(str::to_owned);
        } else if !has_roles(cluster, &package.name, name).await? {
            // A revision that cannot be loaded reconciles no instances, so it needs no roles.
            let Some(earlier) = load(cluster, namespace, &object).await else { continue };
            for object in rbac::objects_of_revision(&earlier, &live, at, uid) {
                apply_one(cluster, &object).await?;
            }
        }
    }
    for object in rbac::objects_of_revision(package, &live, at, target.as_deref()) {
        apply_one(cluster, &object).await?;
    }
    Ok(())
}

async fn apply_one(cluster: &Cluster, object: &Value) -> Result<(), Failure> {
    let what = || format!("{} {}", object["kind"].as_str().unwrap_or_default(), name_of(object));
    let applied = owned::apply(cluster, object, FIELD_MANAGER).await;
    applied.map_err(|refusal| refusal.failure(|error| not_applied(&what(), error)))?;
    Ok(())
}

async fn stored_revision(cluster: &Cluster, name: &str) -> Result<Option<Value>, Failure> {
    let live = cluster.get(&stored::kind(), None, name).await;
    live.map_err(|error| refused(&format!("OperatorRevision {name} cannot be read"), &error))
}

/// The package of an `OperatorRevision`, if it can be loaded.
async fn load(cluster: &Cluster, namespace: &str, object: &Value) -> Option<Package> {
    let stored = StoredRevision::parse(name_of(object), &object["spec"]).ok()?;
    load_revision(cluster, namespace, &[stored.package.as_str().into()], &stored.revision()).await.ok()
}

/// Whether a stored revision has roles of its own.
pub(super) async fn has_roles(cluster: &Cluster, package: &str, revision: &str) -> Result<bool, Failure> {
    let kind = ApiKind::built_in(RBAC, "ClusterRole");
    let name = format!("{}:bindings", rights::role_of_revision(package, revision));
    let live = cluster.get(&kind, None, &name).await;
    Ok(live.map_err(|error| refused(&format!("ClusterRole {name} cannot be read"), &error))?.is_some())
}

fn not_applied(what: &str, error: &CallError) -> Failure {
    let help = if error.code == 403 {
        "\n  help: only who has rights may grant them: let an administrator apply what `operetta rbac` prints, and give \
         --rights=false"
    } else {
        ""
    };
    format!("{what} cannot be applied: {error}{help}").into()
}

/// Deletes roles and bindings of a package that belong to no revision, once the manager has bound those of the active revision in
/// their place: what an earlier version of Operetta has made, or `operetta rbac`.
pub(super) async fn replace_former(cluster: &Cluster, package: &str, namespace: &str) -> Result<(), Failure> {
    let kind = operators::kind();
    let operator = cluster.get(&kind, None, package).await;
    let operator =
        operator.map_err(|error| refused(&format!("Operator {package} cannot be read"), &error))?;
    let Some(operator) = operator.filter(|live| matches!(standing(live).standing, Standing::Active(_)))
    else {
        return Ok(());
    };
    let revision = operators::named(&operator);
    if !has_roles(cluster, package, revision).await? {
        return Ok(());
    }
    let kept = ["impersonate", "view", "edit", "admin"].map(|of| format!("{}:{of}", rights::role(package)));
    let account = rights::account(package);
    let mut former = of_package(cluster, package).await?;
    former.retain(|(kind, object)| {
        let name = name_of(object);
        let is_account = kind.kind == "ServiceAccount" && name == account;
        object["metadata"]["labels"][REVISION].is_null()
            && !is_account
            && !kept.iter().any(|kept| kept == name)
    });
    if former.is_empty() {
        return Ok(());
    }
    let patch = json!({"metadata": {"annotations": {rights::bindings::ROLES_APPLIED: revision}}});
    let patched = cluster.merge_patch(&kind, None, package, None, &patch, FIELD_MANAGER).await;
    patched.map_err(|error| refused(&format!("Operator {package} cannot be changed"), &error))?;
    let until = Instant::now() + BOUND;
    while !is_bound(cluster, package, revision, namespace).await? {
        if Instant::now() > until {
            let names: Vec<&str> = former.iter().map(|(_, object)| name_of(object)).collect();
            out::note(format!(
                "warning: the manager has not bound the roles of {revision}, so those of former names stay: {}\n  help: \
                 `operetta manager install` upgrades the manager; then give the command again",
                names.join(", ")
            ));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for (kind, object) in &former {
        apply::delete(cluster, kind, object).await?;
    }
    Ok(())
}

/// Whether the roles of a revision are bound, or it has none.
async fn is_bound(
    cluster: &Cluster,
    package: &str,
    revision: &str,
    namespace: &str,
) -> Result<bool, Failure> {
    let stored = stored_revision(cluster, revision).await?;
    let Some(stored) = stored else { return Ok(false) };
    let Some(loaded) = load(cluster, namespace, &stored).await else { return Ok(false) };
    let bound = of_package(cluster, package).await?;
    let names: Vec<&str> = bound
        .iter()
        .filter(|(kind, object)| {
            kind.kind.ends_with("Binding") && object["metadata"]["labels"][REVISION] == revision
        })
        .map(|(_, object)| name_of(object))
        .collect();
    let role = rights::role_of_revision(package, revision);
    let is_account = |name: &&str| rights::Part::of(&role, name).is_some();
    let all = rbac::objects_of_revision(&loaded, &Live::default(), &Placement::everywhere(namespace), None);
    let mut needed = all.iter().map(name_of).filter(is_account);
    Ok(needed.all(|name| names.contains(&name)))
}

/// Deletes the objects of a package that is gone, in whatever namespaces they are.
pub(super) async fn revoke(cluster: &Cluster, package: &str) -> Result<(), Failure> {
    for (kind, object) in of_package(cluster, package).await? {
        apply::delete(cluster, &kind, &object).await?;
    }
    Ok(())
}

/// The roles, the bindings and the account of a package, in an order in which they can be deleted.
async fn of_package(cluster: &Cluster, package: &str) -> Result<Vec<(ApiKind, Value)>, Failure> {
    let mut all = Vec::new();
    for (api_version, name) in [
        (RBAC, "ClusterRoleBinding"),
        (RBAC, "ClusterRole"),
        (RBAC, "RoleBinding"),
        (RBAC, "Role"),
        ("v1", "ServiceAccount"),
    ] {
        let kind = ApiKind::built_in(api_version, name);
        let listed = cluster.list(&kind, None, &format!("{}={package}", names::OPERATOR)).await;
        let listed = listed.map_err(|error| refused(&format!("{name}s cannot be listed"), &error))?;
        let of_package = listed.into_iter().filter(|object| rights::is_of_package(object, package));
        all.extend(of_package.map(|object| (kind.clone(), object)));
    }
    Ok(all)
}

/// Applies the rights of a stored revision to which an `Operator` is to return, if the active revision has
/// roles of its own. A refusal is only a warning: the manager names the rights that are missing.
pub(super) async fn restore(cluster: &Cluster, operator: &Value, revision: &str) -> Result<(), Failure> {
    let package = name_of(operator);
    let active = operator["status"]["activeRevision"].as_str().unwrap_or_default();
    if !has_roles(cluster, package, active).await? {
        return Ok(());
    }
    let Some(live) = stored_revision(cluster, revision).await? else { return Ok(()) };
    let namespace = live["metadata"]["labels"][stored::PARTS_NAMESPACE].as_str().unwrap_or_default();
    let Some(loaded) = load(cluster, namespace, &live).await else { return Ok(()) };
    let names = OperatorSpec::parse(operator).ok().and_then(|spec| spec.namespaces?.names);
    let at = Placement { namespaces: names, ..Placement::everywhere(namespace) };
    if let Err(failure) = grant(cluster, &loaded, &at).await {
        out::note(format!("warning: {}", failure.message));
    }
    Ok(())
}
