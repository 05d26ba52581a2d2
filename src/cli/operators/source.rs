//! Where a package is read from: a folder, an archive, or standard input.

use std::fs::File;
use std::path::Path;

use super::Failure;
use crate::cli::out;
use crate::diag::Diagnostic;
use crate::package::{self, Package};

/// Loads the package, and prints what is wrong with it.
pub(super) fn load(path: &Path) -> Result<Package, Failure> {
    let found = read(path);
    let (package, diagnostics) = match found {
        Ok((package, warnings)) => {
            let schemas = package::check(&[&package]).into_iter().map(|(_, problem)| problem);
            let mut all = warnings;
            for problem in schemas {
                if package::is_news(&all, &problem) {
                    all.push(problem);
                }
            }
            (Some(package), all)
        }
        Err(errors) => (None, errors),
    };
    out::report(&diagnostics);
    let errors = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
    match package {
        Some(package) if errors == 0 => Ok(package),
        _ => {
            let is_unreadable = diagnostics.iter().any(|found| found.code == package::UNREADABLE);
            let message = format!("the package {} cannot be installed: it has errors", path.display());
            Err(Failure::with_code(if is_unreadable { out::UNUSABLE } else { 1 }, message))
        }
    }
}

fn read(path: &Path) -> Result<(Package, Vec<Diagnostic>), Vec<Diagnostic>> {
    if path.as_os_str() == "-" {
        return package::load_archive(Path::new("stdin"), std::io::stdin().lock());
    }
    if !path.is_file() || path.file_name().is_some_and(|name| name == package::OPERATOR_YAML) {
        return package::load(path);
    }
    match File::open(path) {
        Ok(file) => package::load_archive(path, file),
        Err(error) => {
            let message = format!("cannot read {}: {}", path.display(), out::reason(&error));
            Err(vec![Diagnostic::error(package::UNREADABLE, message)])
        }
    }
}
