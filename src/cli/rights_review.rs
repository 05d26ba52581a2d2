//! What a revision of a package may do that the active one may not, as `preview`, `install` and `upgrade` show it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::out;
use crate::api::{ApiKind, Apis, Gvk};
use crate::cluster::Cluster;
use crate::manager::load_revision;
use crate::operators::OperatorSpec;
use crate::package::Package;
use crate::rights::{self, Demands, Placement, Review};

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

/// Compares a package with the revision that is active. `operator`: the live one. `at`: where the package gets its rights.
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
    let after = demands(package, at);
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
    rights::review(Some(&before), &after)
}
