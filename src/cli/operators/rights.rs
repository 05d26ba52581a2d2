//! The account of a package, and the roles of its revisions: `operetta install`, `upgrade` and `rollback` apply them, `uninstall`
//! deletes them. The manager binds the roles of the revisions that are in use.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::shared::{FIELD_MANAGER, NOT_AGREED, refused};
use super::{Failure, apply};
use crate::api::{ApiKind, CallError};
use crate::children::names;
use crate::cli::command::{ask, is_yes};
use crate::cli::connect::Server;
use crate::cli::model::name_of;
use crate::cli::rbac::{self, Live};
use crate::cli::{out, owned, rights_review};
use crate::cluster::Cluster;
use crate::operators::{self, Standing, standing};
use crate::package::Package;
use crate::package::store::objects::{self as stored, REVISION};
use crate::rights::{self, Placement};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// How long the manager may take to bind roles in place of those under former names.
const BOUND: Duration = Duration::from_secs(20);

/// The account and the roles of a revision, computed without a cluster.
pub(super) fn objects(package: &Package, at: &Placement) -> Vec<Value> {
    rbac::objects_of_revision(package, &Live::default(), at)
}

/// Applies the account of a package and the roles of a revision, and those of earlier revisions that are in use and have none, or
/// changed ones (`operator`: the live one). If the `Operator` names namespaces, the manager may bind them there alone. The manager
/// grants none of them before it has accepted the revision.
pub(super) async fn grant(
    cluster: &Cluster,
    package: &Package,
    operator: Option<&Value>,
    at: &Placement,
) -> Result<(), Failure> {
    let live = Live::read(cluster).await.map_err(|error| not_applied("the rights", &error))?;
    let earlier = match operator {
        Some(operator) => {
            let earlier = rights_review::to_restore(cluster, operator, &at.manager_namespace, package).await;
            earlier.map_err(|error| refused("the roles of earlier revisions cannot be read", &error))?
        }
        None => Vec::new(),
    };
    for package in earlier.iter().chain([package]) {
        for object in rbac::objects_of_revision(package, &live, at) {
            apply_one(cluster, &object).await?;
        }
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

/// Whether a stored revision has roles of its own.
async fn has_roles(cluster: &Cluster, package: &str, revision: &str) -> Result<bool, Failure> {
    let has_roles = rights_review::has_roles(cluster, package, revision).await;
    has_roles.map_err(|error| refused(&format!("the roles of {revision} cannot be read"), &error))
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
    let Some(loaded) = rights_review::load(cluster, namespace, &stored).await else { return Ok(false) };
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
    let all = rbac::objects_of_revision(&loaded, &Live::default(), &Placement::everywhere(namespace));
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

/// Applies the rights of a stored revision to which an `Operator` is to return, if the active revision has roles of its own. A
/// person must agree, as to an upgrade, unless the revision has its roles still. A refusal is only a warning: the manager names the
/// rights that are missing.
pub(super) async fn restore(
    server: &Server,
    operator: &Value,
    revision: &str,
    is_accepted: bool,
) -> Result<(), Failure> {
    let (cluster, package) = (&server.cluster, name_of(operator));
    let active = operator["status"]["activeRevision"].as_str().unwrap_or_default();
    let has_roles = async |revision: &str| rights_review::has_roles(cluster, package, revision).await;
    let of_both = async || Ok::<_, CallError>((has_roles(active).await?, has_roles(revision).await?));
    let has_roles = match of_both().await {
        Ok((true, has_roles)) => has_roles,
        Ok((false, _)) => return Ok(()),
        Err(error) => {
            out::note(format!(
                "warning: whether {revision} has its roles cannot be read, so none are applied: {}\n  help: the manager binds the \
                 roles that the revision has; if some are missing, the Operator says RightsMissing",
                out::printable(&error.to_string())
            ));
            return Ok(());
        }
    };
    let Some(live) = stored_revision(cluster, revision).await? else { return Ok(()) };
    let namespace = live["metadata"]["labels"][stored::PARTS_NAMESPACE].as_str().unwrap_or_default();
    let Some(loaded) = rights_review::load(cluster, namespace, &live).await else { return Ok(()) };
    let at =
        Placement { namespaces: rights_review::namespaces_of(operator), ..Placement::everywhere(namespace) };
    if !has_roles {
        agree(server, &loaded, Some(operator), &at, is_accepted).await?;
    }
    if let Err(failure) = grant(cluster, &loaded, Some(operator), &at).await {
        out::note(format!("warning: {}", failure.message));
    }
    Ok(())
}

/// Shows the rights that a package would gain, and asks for agreement if that is needed.
pub(super) async fn agree(
    server: &Server,
    package: &Package,
    operator: Option<&Value>,
    at: &Placement,
    is_accepted: bool,
) -> Result<(), Failure> {
    let apis = server.cluster.discover().await.unwrap_or_default();
    let review = rights_review::read(&server.cluster, &apis, package, operator, at).await;
    for line in review.lines() {
        out::note(out::printable(&line));
    }
    if !review.needs_consent || is_accepted || confirmed()? {
        return Ok(());
    }
    Err(Failure::with_code(NOT_AGREED, "the rights are not accepted: nothing was written"))
}

/// Asks on the terminal.
pub(super) fn confirmed() -> Result<bool, Failure> {
    let answer = ask("Grant these rights? [y/N] ")?;
    answer.map(|answer| is_yes(&answer)).ok_or_else(|| {
        Failure::with_code(
            NOT_AGREED,
            "the package gets these rights only with --accept-rights: there is no terminal to ask on, and nothing was written",
        )
    })
}
