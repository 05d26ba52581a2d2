//! Loads the packages that a command is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::out;
use crate::package::Package;

/// Loads packages; prints the errors of invalid ones and the warnings of the others. Returns the valid packages, and
/// the folders of the invalid ones.
pub(super) fn load_all(paths: &[PathBuf]) -> (Vec<Arc<Package>>, Vec<String>) {
    let mut packages: Vec<(Arc<Package>, &Path)> = Vec::new();
    let mut broken = Vec::new();
    for path in paths {
        match crate::package::load(path) {
            Ok((package, warnings)) => {
                out::report(&warnings);
                match packages.iter().find(|(other, _)| other.name == package.name) {
                    Some((_, first)) => {
                        out::note(format!(
                            "error: {} and {} are both named {}; the second is ignored\n  help: give each \
                             package once, or change metadata.name in one of them",
                            out::path(first),
                            out::path(path),
                            package.name,
                        ));
                        broken.push(path.display().to_string());
                    }
                    None => packages.push((Arc::new(package), path)),
                }
            }
            Err(errors) => {
                out::report(&errors);
                out::note(format!("error: the package {} cannot be loaded", out::path(path)));
                broken.push(path.display().to_string());
            }
        }
    }
    (packages.into_iter().map(|(package, _)| package).collect(), broken)
}

/// Like [`load_all`]; nothing if a package is invalid.
pub(super) fn load(paths: &[PathBuf]) -> Option<Vec<Arc<Package>>> {
    let (packages, broken) = load_all(paths);
    broken.is_empty().then_some(packages)
}
