//! What still uses the stored revisions of a package that has handed kinds over.

use std::collections::HashSet;

use serde_json::Value;

use super::Failure;
use super::shared::refused;
use crate::api::{ApiKind, Class};
use crate::children::{former_packages, names, package_of_crd_value};
use crate::cluster::{Cluster, Query};
use crate::crd;
use crate::package::store;
use crate::plan::plan_run_kind;

/// The names of the revisions of a package that instances, origins and runs still use, of kinds that the
/// package has handed over. The package that has the kinds now loads these revisions.
pub(super) async fn used_revisions(cluster: &Cluster, package: &str) -> Result<HashSet<String>, Failure> {
    let crds = cluster.list(&ApiKind::crd(), None, names::OPERATOR).await;
    let mut crds = crds.map_err(|error| refused("the CRDs cannot be listed", &error))?;
    crds.retain(|crd| {
        let is_former = former_packages(crd).iter().any(|former| former == package);
        is_former && package_of_crd_value(crd).is_some_and(|owner| owner != package)
    });
    let mut used = HashSet::new();
    if crds.is_empty() {
        return Ok(used);
    }
    let origins = (ApiKind::built_in("apps/v1", "ControllerRevision"), names::RUN_OF, "/data/revision");
    let runs = (plan_run_kind(), "", "/status/revision");
    let instances = crds.iter().filter_map(crd::kind).map(|kind| (kind, "", "/status/revision"));
    for (kind, labels, field) in [origins, runs].into_iter().chain(instances) {
        let query = Query { labels, ..Query::default() };
        let name = |object: Value| Some(store::name_of(package, object.pointer(field)?.as_str()?));
        match cluster.list_all(&kind, &query, name).await {
            Ok(names) => used.extend(names.into_iter().flatten()),
            // No package of this cluster has needed runs yet.
            Err(error) if error.class == Class::NotFound => {}
            Err(error) => {
                return Err(refused(&format!("{}s cannot be listed", kind.kind), &error));
            }
        }
    }
    Ok(used)
}
