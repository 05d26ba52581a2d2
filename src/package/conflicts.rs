//! Conflicts between packages that run in one cluster.

use operetta_kube_model::crd::{default_names, unique_names};

use super::{Package, Resource};
use crate::diag::Diagnostic;

/// The code for a CRD that another package has, too.
const CLAIMED: &str = "package::claimed";
/// The code for names that another package's CRD of the same group has.
const NAMES: &str = "package::names-taken";
/// The code for a package name that another package has.
const NAME: &str = "package::name-taken";

/// All conflicts between packages, each with the index of the later package.
pub fn conflicts(packages: &[&Package]) -> Vec<(usize, Diagnostic)> {
    let mut found = Vec::new();
    for (index, package) in packages.iter().enumerate() {
        for other in &packages[..index] {
            found.extend(between(package, other).into_iter().map(|problem| (index, problem)));
        }
    }
    found
}

fn between(package: &Package, other: &Package) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if package.name == other.name {
        let message =
            format!("the package {} has the same name: {}", other.files.root().display(), other.location);
        found.push(
            Diagnostic::error(NAME, message)
                .located(package.location.clone())
                .path("metadata.name")
                .help("labels of children contain the package name: rename one of the packages"),
        );
    }
    for resource in &package.resources {
        for theirs in &other.resources {
            found.extend(clash(resource, other, theirs));
        }
    }
    found
}

fn clash(resource: &Resource, other: &Package, theirs: &Resource) -> Option<Diagnostic> {
    let name = resource.crd_name();
    if name == theirs.crd_name() {
        let message = format!("the package {} has the same CRD {name}: {}", other.name, theirs.crd_location);
        return Some(Diagnostic::error(CLAIMED, message).located(resource.crd_location.clone()).help(
            "a kind belongs to one package: remove one of the packages, or change the group of this kind",
        ));
    }
    if resource.kind.group != theirs.kind.group {
        return None;
    }
    let both = [resource, theirs].map(|of| {
        let mut names = of.crd["spec"]["names"].clone();
        default_names(&mut names);
        names
    });
    let [[names, kinds], [their_names, their_kinds]] = both.each_ref().map(unique_names);
    let shared: Vec<&str> =
        names.intersection(&their_names).chain(kinds.intersection(&their_kinds)).copied().collect();
    if shared.is_empty() {
        return None;
    }
    let message = format!(
        "the CRD {} of the package {} has the same group and the same name {}: {}",
        theirs.crd_name(),
        other.name,
        shared.join(", "),
        theirs.crd_location
    );
    Some(Diagnostic::error(NAMES, message).located(resource.crd_location.clone()).path("spec.names").help(
        "within a group, kinds, plurals, singulars and short names are unique: rename one, or change a group",
    ))
}
