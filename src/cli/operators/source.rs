//! Where a package is read from: a folder, an archive, standard input, a registry or an OCI layout.

use std::fs::File;
use std::path::Path;

use operetta_registry::Provenance;

use super::Failure;
use crate::cli::out;
use crate::cli::registry::{self, Access, Compiled, Trust};
use crate::diag::Diagnostic;
use crate::package::{self, Package};

/// Loads the package of a folder, an archive, standard input, a registry or an OCI layout, and prints what is wrong with it. The
/// result contains where it is from, if it is from a registry or layout.
pub(super) async fn load(
    path: &Path,
    access: &Access,
    trust: &Trust,
) -> Result<(Package, Option<Provenance>), Failure> {
    let without = |(package, _, provenance): Loaded| (package, provenance);
    if registry::is_place(path) {
        return finish(path, registry::fetch(path, access, trust).await?).map(without);
    }
    if trust.is_given() {
        let message =
            format!("{} has no signatures\n  help: --key is for registries and OCI layouts", path.display());
        return Err(Failure::usage(message));
    }
    finish(path, read(path)).map(without)
}

/// Loads the package of a folder, an archive, or standard input, and prints what is wrong with it. Returns its warnings, too.
pub(in crate::cli) fn load_local(path: &Path) -> Result<(Package, Vec<Diagnostic>), Failure> {
    finish(path, read(path)).map(|(package, warnings, _)| (package, warnings))
}

/// What is wrong with a package, as `operetta lint` finds it: what compiling has found, and what the schemas say.
pub(in crate::cli) fn lint(package: &Package, compiled: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut all = compiled;
    for (_, problem) in package::check(&[package]) {
        if package::is_news(&all, &problem) {
            all.push(problem);
        }
    }
    all
}

/// A package with its warnings and where it is from.
type Loaded = (Package, Vec<Diagnostic>, Option<Provenance>);

/// Checks a package that was read, and prints what is wrong with it.
fn finish(path: &Path, found: Compiled) -> Result<Loaded, Failure> {
    let (package, diagnostics) = match found {
        Ok((package, warnings, provenance)) => {
            let all = lint(&package, warnings);
            (Some((package, provenance)), all)
        }
        Err(errors) => (None, errors),
    };
    out::report(&diagnostics);
    let errors = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
    match package {
        Some((package, provenance)) if errors == 0 => Ok((package, diagnostics, provenance)),
        _ => {
            let is_unreadable = diagnostics.iter().any(|found| found.code == package::UNREADABLE);
            let message = format!("the package {} cannot be used: it has errors", path.display());
            Err(Failure::with_code(if is_unreadable { out::UNUSABLE } else { 1 }, message))
        }
    }
}

fn read(path: &Path) -> Compiled {
    read_local(path).map(|(package, warnings)| (package, warnings, None))
}

fn read_local(path: &Path) -> Result<(Package, Vec<Diagnostic>), Vec<Diagnostic>> {
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
