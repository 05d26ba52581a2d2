//! Reads a package from a registry or layout, and checks that it is what its manifest says.

use std::ops::Deref;
use std::path::Path;

use operetta_registry::{
    BLOB_BYTES, Error, Fetched, Layout, Options, Provenance, Reference, Signers, signatures,
};

use super::access::{Access, Trust};
use super::deprecated;
use crate::cli::command::Failure;
use crate::cli::out;
use crate::diag::Diagnostic;
use crate::manager::sources;
use crate::package::Package;

/// Whether a text names a package in a registry or layout, rather than a folder or an archive.
pub(in crate::cli) fn is_place(text: &Path) -> bool {
    let name = text.to_string_lossy();
    let folder = name.split(['@', ':']).next().unwrap_or_default();
    Reference::is_one(&name) || Layout::is_one(text) || Layout::is_one(Path::new(folder))
}

/// A package that was found.
pub(super) struct Found(pub(super) Fetched);

impl Deref for Found {
    type Target = Fetched;

    fn deref(&self) -> &Fetched {
        &self.0
    }
}

/// Finds a package, and reads config and files.
pub(super) async fn find(text: &str, options: &Options) -> Result<Found, Error> {
    operetta_registry::fetch(text, options, BLOB_BYTES).await.map(Found)
}

impl Found {
    /// Checks that one of the signers has signed it. Returns the signer, for people.
    pub(super) async fn check(&self, signers: &Signers) -> Result<String, Error> {
        let found = signatures::find(&self.place.store, &self.manifest).await?;
        let (signature, signer) = signatures::check(&self.name, &self.manifest, &found, signers)?;
        Ok(format!("{}, {signer}", signature.format()))
    }

    /// The package, and its warnings. What is wrong with it is printed.
    pub(super) fn package(&self) -> Result<(Package, Vec<Diagnostic>), Failure> {
        sources::compile(&self.0).map_err(|errors| {
            out::report(&errors);
            Failure::from(format!("{} is not a package that this Operetta can load", self.name))
        })
    }
}

/// A package that was fetched, with warnings and where it is from; or errors.
pub(in crate::cli) type Compiled = Result<(Package, Vec<Diagnostic>, Option<Provenance>), Vec<Diagnostic>>;

/// Fetches and compiles the package of a reference, for other commands.
pub(in crate::cli) async fn fetch(text: &Path, access: &Access, trust: &Trust) -> Result<Compiled, Failure> {
    let signers = trust.signers()?;
    let found = find(&text.to_string_lossy(), &access.options()?).await?;
    if trust.is_given() {
        out::note(format!("using {}, signed: {}", found.name, found.check(&signers).await?));
    } else {
        out::note(format!("using {}", found.name));
    }
    deprecated::warn(&found.name, &found.place.store, &found.manifest, &signers).await;
    let provenance = Provenance::collect(&found, &signers).await?;
    Ok(sources::compile(&found.0).map(|(package, warnings)| (package, warnings, Some(provenance))))
}
