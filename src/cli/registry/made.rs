//! The artifact of a package: its config is computed from the compiled package, so it states nothing that the files do not.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use operetta_registry::artifact::{Dependency, Kind, Locked, Requires, first_paragraph};
use operetta_registry::attached::{README, SBOM, TESTS};
use operetta_registry::{Artifact, Config, Descriptor, Error, Store, push};
use serde_json::Value;

use super::access::{progress, read};
use super::evidence::{self, Wanted};
use super::sbom;
use crate::api::{BuiltIn, Gvk};
use crate::cli::command::Failure;
use crate::cli::out;
use crate::diag::Diagnostic;
use crate::package::capability::{self, Level};
use crate::package::{self, Package, Resource};
use crate::rights;

/// The artifact of a package, and what is written beside it.
pub(super) struct Made {
    pub artifact: Artifact,
    /// The SBOM.
    pub sbom: Value,
    /// The archive of the files that its cases read, if they were played.
    tests: Option<Bytes>,
    readme: Option<Bytes>,
}

/// Makes the artifact of a package that was read from this folder or archive with these warnings.
pub(super) fn make(
    (package, warnings): (Package, Vec<Diagnostic>),
    path: &Path,
    wanted: &Wanted,
) -> Result<Made, Failure> {
    let package = Arc::new(package);
    let proof = evidence::prove(path, &package, &warnings, wanted)?;
    let readme = readme(path);
    let config = Config {
        readme: readme.as_deref().and_then(|text| first_paragraph(&String::from_utf8_lossy(text))),
        readme_file: readme.as_ref().map(|text| Descriptor::of(README, text)),
        evidence: Some(proof.evidence),
        ..config(&package)
    };
    let files = package.files.iter().map(|(path, source)| (path, source.text.as_bytes()));
    let artifact = Artifact::new(config.clone(), files)?;
    let sbom = sbom::document(&config, &artifact.manifest.descriptor.digest);
    Ok(Made { artifact, sbom, tests: proof.tests.map(Bytes::from), readme })
}

impl Made {
    /// Writes it, with its README and its tests, and with its SBOM if that is wanted. The tags come last: what they name is complete.
    pub(super) async fn push(
        self,
        to: &Store,
        tags: &[&str],
        force: bool,
        with_sbom: bool,
    ) -> Result<(), Error> {
        let sbom = with_sbom.then(|| (SBOM, out::json(&self.sbom).into()));
        let readme = self.readme.map(|text| (README, text));
        let tests = self.tests.map(|tests| (TESTS, tests));
        let attached: Vec<(&str, Bytes)> = [readme, tests, sbom].into_iter().flatten().collect();
        push(&self.artifact, &attached, to, tags, force, &progress).await
    }
}

/// What a config says about a package, apart from its README.
pub(super) fn config(package: &Package) -> Config {
    let mut config = Config::new(&package.name, &package.version.to_string(), &package.digest);
    config.app_version.clone_from(&package.app_version);
    config.description.clone_from(&package.description);
    let kinds = package.resources.iter().map(|resource| Kind {
        group: resource.kind.group.clone(),
        kind: resource.kind.kind.clone(),
        versions: resource.served_versions().map(str::to_owned).collect(),
    });
    config.kinds = kinds.collect();
    let dependencies = package.required.iter().map(|api| Dependency {
        api: name(&api.gvk),
        package: api.package.clone(),
        versions: api.range.as_ref().map(ToString::to_string),
        optional: api.optional,
    });
    let locked = package.locked.iter().map(|locked| Locked {
        name: locked.name.clone(),
        version: locked.version.to_string(),
        package: locked.package.clone(),
        digest: locked.digest.clone(),
    });
    config.requires = Requires {
        kubernetes: package.kubernetes.as_ref().map(ToString::to_string),
        apis: foreign(package),
        dependencies: dependencies.collect(),
        locked: locked.collect(),
    };
    config.level = capability::capability(package).level.map(Level::number);
    config.images = package::images(package).into_iter().collect();
    config.rights = rights::derive(&[package], &|_| None).rights.rules();
    config
}

/// Kinds that the package uses, and neither brings itself nor finds in every cluster.
fn foreign(package: &Package) -> Vec<String> {
    let kinds = package.resources.iter().flat_map(Resource::kinds);
    let foreign = kinds.filter(|gvk| {
        let group = gvk.api_version.split_once('/').map_or("", |(group, _)| group);
        let is_own = |kind: &crate::api::ApiKind| kind.group == group && *kind.kind == *gvk.kind;
        !BuiltIn::has_group(group) && !package.resources.iter().any(|resource| is_own(&resource.kind))
    });
    let mut names: Vec<String> =
        foreign.chain(package.required.iter().map(|api| &api.gvk)).map(name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn name(gvk: &Gvk) -> String {
    format!("{}/{}", gvk.api_version, gvk.kind)
}

/// The README in the folder.
pub(super) fn readme(path: &Path) -> Option<Bytes> {
    read(&path.join("README.md")).ok().map(Bytes::from)
}
