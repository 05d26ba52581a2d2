//! The account of a package with its rights: `operetta install` and `upgrade` apply them, `uninstall` deletes them.

use serde_json::Value;

use super::{FIELD_MANAGER, Failure, apply, name_of, refused};
use crate::api::{ApiKind, CallError, Gvk};
use crate::children::names;
use crate::cli::rbac::{self, Live};
use crate::cluster::Cluster;
use crate::manager::load_revision;
use crate::operators::OperatorSpec;
use crate::package::Package;
use crate::rights::{self, Placement};

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// The objects, without a cluster.
pub(super) fn objects(package: &Package, namespace: &str) -> Vec<Value> {
    rbac::objects(package, &[], &Live::default(), &Placement::everywhere(namespace))
}

/// Applies the objects. The account keeps what the revision that is active until then needs, and what the manager needs to
/// delete children of kinds that the package has no more. If the live `Operator` names namespaces, the account gets Roles there,
/// and what it had in others is deleted.
pub(super) async fn grant(
    cluster: &Cluster,
    package: &Package,
    operator: Option<&Value>,
    active: Option<&str>,
    namespace: &str,
) -> Result<(), Failure> {
    let spec = operator.and_then(|operator| OperatorSpec::parse(operator).ok());
    let names = spec.and_then(|spec| spec.namespaces?.names);
    let at = Placement { namespaces: names, ..Placement::everywhere(namespace) };
    let live = Live::read(cluster).await.map_err(|error| not_applied("the rights", &error))?;
    let mut earlier = Vec::new();
    if let Some(active) = active {
        // One that cannot be loaded has no runs that go on.
        if let Ok(found) = load_revision(cluster, namespace, &package.name, active).await {
            earlier.push(found);
        }
    }
    let earlier: Vec<&Package> = earlier.iter().collect();
    let objects = rbac::objects(package, &earlier, &live, &at);
    for object in &objects {
        let Some(gvk) = Gvk::of(object) else { continue };
        let kind = ApiKind::built_in(&gvk.api_version, &gvk.kind);
        if let Err(error) = cluster.apply(&kind, object, FIELD_MANAGER, true).await {
            return Err(not_applied(&format!("{} {}", gvk.kind, name_of(object)), &error));
        }
    }
    if at.namespaces.is_some() { delete_all_but(cluster, &package.name, &objects).await } else { Ok(()) }
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

/// Deletes the objects of a package that is gone, in whatever namespaces they are.
pub(super) async fn revoke(cluster: &Cluster, package: &str) -> Result<(), Failure> {
    delete_all_but(cluster, package, &[]).await
}

async fn delete_all_but(cluster: &Cluster, package: &str, kept: &[Value]) -> Result<(), Failure> {
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
        let is_same = |one: &Value, other: &Value| {
            one["metadata"]["name"] == other["metadata"]["name"]
                && one["metadata"]["namespace"] == other["metadata"]["namespace"]
        };
        let is_kept = |object: &Value| kept.iter().any(|kept| kept["kind"] == name && is_same(kept, object));
        for object in listed.iter().filter(|o| rights::is_of_package(o, package) && !is_kept(o)) {
            apply::delete(cluster, &kind, object).await?;
        }
    }
    Ok(())
}
