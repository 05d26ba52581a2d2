//! `--take-over-from`: which CRDs a package takes over from which other ones.

use super::Failure;
use super::shared::refused;
use crate::api::ApiKind;
use crate::children::{former_packages, package_of_crd_value};
use crate::cli::out::{self, printable};
use crate::cluster::Cluster;
use crate::operators::TakeOver;
use crate::package::{Package, Resource};

/// The CRDs of a package that the packages `from` have.
///
/// # Errors
/// A CRD cannot be read, or one of these packages has none of them and had none before.
pub(super) async fn find(
    cluster: &Cluster,
    package: &Package,
    from: &[String],
) -> Result<Vec<TakeOver>, Failure> {
    let (mut found, mut known) = (Vec::new(), Vec::new());
    for crd in package.resources.iter().filter(|_| !from.is_empty()).map(Resource::crd_name) {
        let live = cluster.get(&ApiKind::crd(), None, crd).await;
        let live = live.map_err(|error| refused(&format!("the CRD {crd} cannot be read"), &error))?;
        let Some(live) = live else { continue };
        known.extend(former_packages(&live));
        let owner = package_of_crd_value(&live).filter(|owner| from.contains(owner));
        if let Some(from) = owner {
            out::note(format!(
                "taking over the CRD {crd} from {from}: its instances and their children stay"
            ));
            known.push(from.clone());
            found.push(TakeOver { crd: crd.to_owned(), from });
        }
    }
    match from.iter().find(|from| !known.contains(from)) {
        Some(from) => {
            let message = format!(
                "the package {} has no CRD of this package: `kubectl get crds -L operetta.dev/operator` shows whose each CRD is",
                printable(from)
            );
            Err(message.into())
        }
        None => Ok(found),
    }
}

/// All CRDs of the package, for use without a cluster. A CRD that the other package does not have is not
/// affected.
///
/// # Errors
/// There are several other packages.
pub(super) fn all(package: &Package, from: &[String]) -> Result<Vec<TakeOver>, String> {
    let from = match from {
        [] => return Ok(Vec::new()),
        [from] => from,
        _ => {
            return Err(
                "with --dry-run, --take-over-from is one package: edit spec.takesOver of the Operator".into(),
            );
        }
    };
    let crds = package.resources.iter().map(Resource::crd_name);
    Ok(crds.map(|crd| TakeOver { crd: crd.to_owned(), from: from.clone() }).collect())
}
