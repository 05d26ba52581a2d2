//! Loads the package in a folder.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::Package;
use super::compile::inspect as inspect_files;
use super::files::{Files, OPERATOR_YAML};
use crate::diag::Diagnostic;

/// Reads and compiles the package in a folder. The result contains the warnings.
///
/// # Errors
/// All diagnostics, warnings included, if one of them is an error.
pub fn load(path: &Path) -> Result<(Package, Vec<Diagnostic>), Vec<Diagnostic>> {
    contained(path, || load_contained(path))
}

fn load_contained(path: &Path) -> Result<(Package, Vec<Diagnostic>), Vec<Diagnostic>> {
    match inspect_readable(path) {
        (Some(package), found) if !found.iter().any(Diagnostic::is_error) => Ok((package, found)),
        (_, found) => Err(found),
    }
}

/// Returns all diagnostics of a package. A file that cannot be read does not hide the errors in other files.
fn inspect_readable(path: &Path) -> (Option<Package>, Vec<Diagnostic>) {
    let (files, problems) = Files::read_readable(path);
    if problems.is_empty() {
        return inspect_files(&files);
    }
    if files.get(OPERATOR_YAML).is_none() {
        return (None, problems);
    }
    let (package, found) = inspect_files(&files);
    // A file that cannot be read is neither missing, nor are the files that it references unused.
    let follows =
        |code: &str| matches!(code, "package::missing-file" | "package::unused-file" | "template::partial");
    (package, problems.into_iter().chain(found.into_iter().filter(|found| !follows(found.code))).collect())
}

/// Reads a package as far as possible and returns all diagnostics. A package with errors can be checked
/// further, but not run.
pub fn inspect(path: &Path) -> (Option<Package>, Vec<Diagnostic>) {
    let found = contained(path, || Ok(inspect_readable(path)));
    found.unwrap_or_else(|diagnostics| (None, diagnostics))
}

/// Converts a panic while a package is loaded into an error of that package, so that the other packages load.
pub(super) fn contained<T>(
    path: &Path,
    load: impl FnOnce() -> Result<T, Vec<Diagnostic>>,
) -> Result<T, Vec<Diagnostic>> {
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let message = format!("loading {} failed with an internal error: {text}", path.display());
        let help = "this is a bug of Operetta: report it with the package";
        Err(vec![Diagnostic::error("package::internal-error", message).help(help)])
    })
}

/// A package of `operators/`.
#[cfg(test)]
pub(crate) fn operator(name: &str) -> Package {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../operators").join(name);
    load(&folder).unwrap_or_else(|errors| panic!("{errors:?}")).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_while_loading_is_an_error_of_the_package() {
        let errors = contained::<()>(Path::new("p"), || panic!("index {} is wrong", 7)).unwrap_err();
        let text = errors[0].to_string();
        assert!(text.starts_with("loading p failed with an internal error: index 7 is wrong; "), "{text}");
    }
}
