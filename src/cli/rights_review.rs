//! What a revision of a package may do that is not granted to the package, as `preview`, `install` and `upgrade` show it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::model::name_of;
use super::out;
use crate::api::{ApiKind, Apis, CallError, Gvk};
use crate::cluster::Cluster;
use crate::manager::load_revision;
use crate::operators::OperatorSpec;
use crate::package::store::{StoredRevision, objects};
use crate::package::{Package, store};
use crate::rights::{self, Demands, Placement, Review, Rights};

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// The namespaces that a live `Operator` names.
pub(super) fn namespaces_of(operator: &Value) -> Option<BTreeSet<String>> {
    OperatorSpec::parse(operator).ok()?.namespaces?.names
}

/// The active revision of an `Operator` as instances name it, `0.1.0-3f1c22ab90`.
pub(super) fn active_revision(operator: &Value) -> Option<String> {
    let status = &operator["status"];
    let (_, digest) = status["activeRevision"].as_str()?.rsplit_once('-')?;
    Some(format!("{}-{digest}", status["version"].as_str()?))
}

/// Compares a package with what is granted to the revision that is active. `operator`: the live one. `at`: where the package gets
/// its rights.
pub(super) async fn read(
    cluster: &Cluster,
    apis: &Apis,
    package: &Package,
    operator: Option<&Value>,
    at: &Placement,
) -> Review {
    let served = |gvk: &Gvk| {
        let found = apis.find_in_any_version(gvk).ok().flatten();
        found.map(|served| ApiKind::clone(&served.kind))
    };
    let demands = |package: &Package, at: &Placement| {
        Demands::of(package, &rights::derive(&[package], &served).rights, at)
    };
    let mut after = demands(package, at);
    let Some((operator, active)) = operator.and_then(|live| Some((live, active_revision(live)?))) else {
        return rights::review(None, &after);
    };
    let then = Placement { namespaces: namespaces_of(operator), ..at.clone() };
    let before = if active == package.revision() {
        demands(package, &then)
    } else {
        match load_revision(cluster, &at.manager_namespace, &[package.name.as_str().into()], &active).await {
            Ok(before) => demands(&before, &then),
            Err((why, _)) => {
                out::note(format!(
                    "note: the rights of the active revision {active} are not known, so all rights are shown as new: {}",
                    out::printable(&why)
                ));
                Demands::default()
            }
        }
    };
    let name = operator["status"]["activeRevision"].as_str().unwrap_or_default();
    let before = match granted(cluster, &package.name, name, &then).await {
        Ok(granted) => before.granted_by(&granted),
        Err(error) => {
            out::note(format!(
                "note: what is granted to the package cannot be read, so its rights are compared with those that the active \
                 revision needs: {}",
                out::printable(&error.to_string())
            ));
            before
        }
    };
    if let Ok(earlier) = to_restore(cluster, operator, &at.manager_namespace, package).await {
        after = earlier.iter().map(|earlier| demands(earlier, at)).fold(after, Demands::with);
    }
    rights::review(Some(&before), &after)
}

/// What is granted to a package whose active revision has that name.
async fn granted(
    cluster: &Cluster,
    package: &str,
    revision: &str,
    at: &Placement,
) -> Result<Rights, CallError> {
    let selector = rights::selector(package);
    let list = async |kind: &str| -> Result<Vec<Value>, CallError> {
        let mut all = cluster.list(&ApiKind::built_in(RBAC, kind), None, &selector).await?;
        for object in &mut all {
            object["kind"] = kind.into();
        }
        Ok(all)
    };
    let mut live =
        rights::Live { roles: list("ClusterRole").await?, bindings: list("ClusterRoleBinding").await? };
    live.roles.extend(list("Role").await?);
    live.bindings.extend(list("RoleBinding").await?);
    Ok(live.granted(package, revision, at))
}

/// Earlier revisions of a package that are in use, and whose roles are to be applied with those of the next one. They have none if
/// they were stored with `--rights=false`, and rights from elsewhere are replaced by then; or somebody has changed the rules of a role.
/// `next`: the package of the next one.
///
/// # Errors
/// The roles cannot be read.
pub(super) async fn to_restore(
    cluster: &Cluster,
    operator: &Value,
    namespace: &str,
    next: &Package,
) -> Result<Vec<Package>, CallError> {
    let counted = operator["status"]["revisions"].as_array().into_iter().flatten();
    let used = counted.filter(|revision| revision["instances"].as_u64() != Some(0));
    let used: BTreeSet<&str> = used.filter_map(|revision| revision["name"].as_str()).collect();
    let mut found = Vec::new();
    for name in used.into_iter().filter(|name| *name != store::name(&next.name, &next.digest)) {
        let selector = format!("{},{}={name}", rights::selector(&next.name), objects::REVISION);
        let roles = cluster.list(&ApiKind::built_in(RBAC, "ClusterRole"), None, &selector).await?;
        let bindings = rights::role_of_bindings(&next.name, name);
        if roles.iter().any(|role| name_of(role) == bindings) && !roles.iter().any(rights::is_changed) {
            continue;
        }
        let Some(stored) = cluster.get(&objects::kind(), None, name).await? else { continue };
        // A revision that cannot be loaded reconciles no instances, so it needs no roles.
        found.extend(load(cluster, namespace, &stored).await);
    }
    Ok(found)
}

/// Whether a stored revision has roles of its own.
pub(super) async fn has_roles(cluster: &Cluster, package: &str, revision: &str) -> Result<bool, CallError> {
    let name = rights::role_of_bindings(package, revision);
    Ok(cluster.get(&ApiKind::built_in(RBAC, "ClusterRole"), None, &name).await?.is_some())
}

/// The package of an `OperatorRevision`, if it can be loaded.
pub(super) async fn load(cluster: &Cluster, namespace: &str, object: &Value) -> Option<Package> {
    let stored = StoredRevision::parse(name_of(object), &object["spec"]).ok()?;
    load_revision(cluster, namespace, &[stored.package.as_str().into()], &stored.revision()).await.ok()
}
