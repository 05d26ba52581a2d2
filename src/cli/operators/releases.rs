//! Versions of packages in registries: `operetta versions`, `operetta outdated`, and the version that `upgrade --to` names.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt as _};
use operetta_registry::deprecation::Found as Deprecation;
use operetta_registry::signatures::Signature;
use operetta_registry::{Digest, Options, Place, Reference, Signers, signatures};
use semver::{Version, VersionReq};
use serde_json::{Value, json};

use super::Failure;
use super::shared::{End, all, connect, find, refused};
use crate::cli::command::Shown;
use crate::cli::connect::{ClusterOptions, Server};
use crate::cli::model::name_of;
use crate::cli::out;
use crate::cli::registry::{
    TimedAccess, deprecation_words, deprecations, deprecations_document, is_place, named_versions,
};
use crate::cli::show::{Cell, Severity, Table, plural};
use crate::manager::sources;
use crate::package::store::objects;

/// How many versions are shown without `--all`.
const SHOWN: usize = 20;
/// How many versions are read at once.
const AT_ONCE: usize = 8;
/// How many tags that are no versions are looked up.
const OTHER_TAGS: usize = 20;

/// List the versions of a package in a registry
///
/// The versions among the tags, the newest first, with their digests and the other tags that name the same package, such as stable.
/// What is said against a version is shown, too: see `operetta deprecate`.
/// For an installed package it says which version is active.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta versions oci://ghcr.io/acme/etcd
  operetta versions etcd                      # an installed package
  operetta versions oci://ghcr.io/acme/etcd --signers --all -o json

--signers asks for the signatures of each version. The names of keys are as the signatures state them: `operetta verify` checks \
one.

Exit codes: 0 success, 1 there is no such package, or it was installed from no registry, 2 wrong usage, 4 --timeout is over.")]
pub(in crate::cli) struct VersionsArgs {
    /// A repository, `oci://HOST/PATH`; an OCI layout; or the name of an installed package
    #[arg(value_name = "REF|NAME")]
    of: String,

    /// All versions instead of the newest 20
    #[arg(long)]
    all: bool,

    /// Show who has signed each version
    #[arg(long)]
    signers: bool,

    #[command(flatten)]
    shown: Shown,

    #[command(flatten)]
    access: TimedAccess,

    #[command(flatten)]
    place: ClusterOptions,
}

/// A version of a package.
struct Release {
    version: Version,
    digest: Digest,
    tags: Vec<String>,
    /// Formats and keys of its signatures, if they were asked for.
    signers: Option<Vec<String>>,
    /// What is said against it.
    deprecations: Vec<Deprecation>,
    is_active: bool,
}

/// Reads a version.
async fn read_release(place: &Place, version: &Version, signers: bool) -> Result<Release, Failure> {
    let manifest = place.store.manifest(&version.to_string()).await?;
    let signers = if signers {
        let found = signatures::find(&place.store, &manifest).await?;
        let claim = |one: &Signature| one.claim().unwrap_or_else(|| one.format().to_owned());
        Some(found.iter().map(claim).collect())
    } else {
        None
    };
    Ok(Release {
        version: version.clone(),
        deprecations: deprecations(&place.store, &manifest, &Signers::default()).await,
        digest: manifest.descriptor.digest,
        tags: Vec::new(),
        signers,
        is_active: false,
    })
}

pub(super) async fn versions(args: &VersionsArgs) -> End {
    let options = args.access.options()?;
    let (repository, active) = if is_place(args.of.as_ref()) {
        (args.of.clone(), None)
    } else {
        let server = connect(&args.place).await?;
        let operator = find(&server, &args.of).await?;
        let version = operator["status"]["version"].as_str().and_then(|text| Version::parse(text).ok());
        (required_repository(&server, &operator).await?, version)
    };
    let place = Place::open(&repository, &options)?;
    let (all, others) = place.versions().await?;
    let most = if args.all { all.len() } else { SHOWN };
    let read = all.iter().take(most).map(|version| read_release(&place, version, args.signers));
    let read: Vec<_> = stream::iter(read).buffered(AT_ONCE).collect().await;
    let mut releases = read.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut named: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
    for tag in others.iter().filter(|tag| !tag.starts_with("sha256-")).take(OTHER_TAGS) {
        let digest = place.store.manifest(tag).await?.descriptor.digest;
        named.entry(digest).or_default().push(tag.clone());
    }
    for release in &mut releases {
        release.tags = named.get(&release.digest).cloned().unwrap_or_default();
        release.is_active = active.as_ref() == Some(&release.version);
    }
    let value = || {
        let releases = releases.iter().map(|one| {
            let mut value =
                json!({"version": one.version.to_string(), "digest": one.digest, "tags": one.tags});
            if let Some(signers) = &one.signers {
                value["signers"] = json!(signers);
            }
            if !one.deprecations.is_empty() {
                value["deprecations"] = deprecations_document(&one.deprecations);
            }
            if active.is_some() {
                value["active"] = one.is_active.into();
            }
            value
        });
        json!({"repository": repository, "versions": releases.collect::<Vec<_>>()})
    };
    let name = |one: &Release| format!("{repository}:{}@{}", one.version, one.digest);
    let table = Table::new()
        .column("VERSION", |one: &Release| {
            Cell::new(one.version.to_string(), if one.is_active { Severity::Good } else { Severity::Plain })
        })
        .column("TAGS", |one| Cell::text(one.tags.join(",")))
        .column_if(active.is_some(), "ACTIVE", |one| Cell::plain(if one.is_active { "yes" } else { "" }))
        .column_if(args.signers, "SIGNERS", |one| {
            Cell::text(one.signers.clone().unwrap_or_default().join(", "))
        })
        .column("DIGEST", |one| Cell::plain(one.digest.to_string()))
        .column_if(releases.iter().any(|one| !one.deprecations.is_empty()), "DEPRECATED", |one| {
            let words = one.deprecations.first().map(|first| deprecation_words(first, false));
            Cell::new(words.unwrap_or_default(), Severity::Busy)
        });
    let nothing = format!("{repository} has no tags that are versions");
    let text = args.shown.text(&releases, &nothing, &table, name, value);
    if all.len() > releases.len() && args.shown.output.is_none() {
        out::note(format!("{} more: --all shows them", plural(all.len() - releases.len(), "version")));
    }
    Ok(out::all(&text, std::process::ExitCode::SUCCESS))
}

/// List installed packages of which a registry has a newer version
///
/// Compares the active version of each package with the tags of the repository that it was installed or fetched from. COMPATIBLE is the
/// newest version that a range such as ^1.2 of the active version permits, NEWEST the newest of all; pre-releases do not count. An active version that is deprecated is listed, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta outdated
  operetta outdated --all
  operetta outdated -o json | jq -r '.[] | select(.newest != .active) | .name'

Packages of folders, archives and OCI layouts have no registry, and are left out.

Exit codes: 0 success, also if there are newer versions; 1 refused, no API server, or a registry does not answer; 2 wrong usage.")]
pub(in crate::cli) struct OutdatedArgs {
    /// Packages without newer versions, too
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    shown: Shown,

    #[command(flatten)]
    access: TimedAccess,

    #[command(flatten)]
    place: ClusterOptions,
}

/// An installed package, and the versions of its repository.
struct Installed {
    name: String,
    active: Version,
    compatible: Version,
    newest: Version,
    repository: String,
    /// What is said against the active version.
    deprecations: Vec<Deprecation>,
}

pub(super) async fn outdated(args: &OutdatedArgs) -> End {
    let server = connect(&args.place).await?;
    let options = args.access.options()?;
    let (mut rows, mut failed) = (Vec::new(), false);
    let mut operators = all(&server).await?;
    operators.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    for operator in &operators {
        let version = operator["status"]["version"].as_str().and_then(|text| Version::parse(text).ok());
        let (Some(active), Some(repository)) = (version, repository(&server, operator).await?) else {
            continue;
        };
        match published(&repository, &active, &options).await {
            Ok((versions, deprecations)) => {
                let row = compare(name_of(operator), active, repository, &versions);
                let row = Installed { deprecations, ..row };
                let is_news = row.newest > row.active || !row.deprecations.is_empty();
                rows.extend(Some(row).filter(|_| args.all || is_news));
            }
            Err(failure) => {
                failed = true;
                out::note(format!("error: {}: {}", name_of(operator), failure.message));
            }
        }
    }
    let value = || {
        rows.iter()
            .map(|row| {
                json!({
                    "name": row.name, "active": row.active.to_string(), "compatible": row.compatible.to_string(),
                    "newest": row.newest.to_string(), "repository": row.repository,
                    "deprecations": deprecations_document(&row.deprecations),
                })
            })
            .collect()
    };
    let name = |row: &Installed| format!("operator.operetta.dev/{}", row.name);
    let newer = |version: &Version, row: &Installed| {
        Cell::new(version.to_string(), if *version > row.active { Severity::Busy } else { Severity::Plain })
    };
    let table = Table::new()
        .column("NAME", |row: &Installed| Cell::plain(row.name.clone()))
        .column("VERSION", |row| Cell::plain(row.active.to_string()))
        .column("COMPATIBLE", |row| newer(&row.compatible, row))
        .column("NEWEST", |row| newer(&row.newest, row))
        .column("REPOSITORY", |row| Cell::text(row.repository.clone()))
        .column_if(rows.iter().any(|row| !row.deprecations.is_empty()), "DEPRECATED", |row| {
            let words = row.deprecations.first().map(|first| deprecation_words(first, false));
            Cell::new(words.unwrap_or_default(), Severity::Busy)
        });
    let text = args.shown.text(&rows, "No registry has a newer version", &table, name, value);
    let code = if failed { std::process::ExitCode::FAILURE } else { std::process::ExitCode::SUCCESS };
    Ok(out::all(&text, code))
}

/// The versions of a repository, and what is said against one of them. One that is gone has nothing said against it.
async fn published(
    repository: &str,
    active: &Version,
    options: &Options,
) -> Result<(Vec<Version>, Vec<Deprecation>), Failure> {
    let place = Place::open(repository, options)?;
    let (versions, _) = place.versions().await?;
    if !versions.contains(active) {
        return Ok((versions, Vec::new()));
    }
    let manifest = place.store.manifest(&active.to_string()).await?;
    Ok((versions, deprecations(&place.store, &manifest, &Signers::default()).await))
}

async fn releases_of(repository: &str, options: &Options) -> Result<Vec<Version>, Failure> {
    Ok(Place::open(repository, options)?.versions().await?.0)
}

/// `versions`: the newest first.
fn compare(name: &str, active: Version, repository: String, versions: &[Version]) -> Installed {
    let newest = |fits: &dyn Fn(&Version) -> bool| {
        let newer =
            versions.iter().find(|version| version.pre.is_empty() && **version > active && fits(version));
        newer.unwrap_or(&active).clone()
    };
    let range = VersionReq::parse(&format!("^{active}"));
    let compatible = newest(&|version| range.as_ref().is_ok_and(|range| range.matches(version)));
    let (name, newest) = (name.to_owned(), newest(&|_| true));
    Installed { name, compatible, newest, active, repository, deprecations: Vec::new() }
}

/// The reference of the newest version in a range. `of`: a repository, an OCI layout, or the name of an installed package.
pub(super) async fn newest(
    of: &str,
    range: &VersionReq,
    options: &Options,
    place: &ClusterOptions,
) -> Result<String, Failure> {
    let repository = if is_place(of.as_ref()) {
        of.to_owned()
    } else {
        let server = connect(place).await?;
        let operator = find(&server, of).await?;
        required_repository(&server, &operator).await?
    };
    if Reference::is_one(&repository) {
        let reference: Reference = repository.parse()?;
        if reference.tag.is_some() || reference.digest.is_some() {
            return Err(Failure::usage(
                "--to chooses the version: name the repository without tag and digest",
            ));
        }
    }
    let versions = releases_of(&repository, options).await?;
    let Some(version) = versions.iter().find(|version| range.matches(version)) else {
        let there = named_versions(&versions);
        return Err(format!("{repository} has no version in {range}; there is {there}").into());
    };
    Ok(format!("{repository}:{version}"))
}

/// The repository that a package is from; the message says if there is none.
async fn required_repository(server: &Server, operator: &Value) -> Result<String, Failure> {
    let found = repository(server, operator).await?;
    found.ok_or_else(|| {
        let name = name_of(operator);
        format!(
            "the package {name} was installed from no registry\n  help: name a repository, `oci://HOST/PATH`"
        )
        .into()
    })
}

/// The repository that a package is from: the one of its source, or that of its stored revision.
async fn repository(server: &Server, operator: &Value) -> Result<Option<String>, Failure> {
    let named = operator["spec"]["source"]["package"].as_str().map(str::to_owned);
    let reference = match (named, operator["status"]["activeRevision"].as_str()) {
        (Some(named), _) => Some(named),
        (None, Some(revision)) => {
            let live = server.cluster.get(&objects::kind(), None, revision).await;
            let live = live
                .map_err(|error| refused(&format!("OperatorRevision {revision} cannot be read"), &error))?;
            live.as_ref().and_then(sources::provenance_of).map(|from| from.reference)
        }
        (None, None) => None,
    };
    let reference = reference.and_then(|text| text.parse::<Reference>().ok());
    Ok(reference.map(|reference| Reference { tag: None, digest: None, ..reference }.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatible_versions_have_the_same_major_version() {
        let version = |text: &str| Version::parse(text).unwrap();
        let all: Vec<Version> = ["3.0.0-rc.1", "2.1.0", "1.4.0", "1.2.0", "0.9.0"].map(version).into();
        for (active, compatible, newest) in [
            ("1.2.0", "1.4.0", "2.1.0"),
            ("1.4.0", "1.4.0", "2.1.0"),
            ("2.1.0", "2.1.0", "2.1.0"),
            ("3.0.0", "3.0.0", "3.0.0"),
            ("1.4.1-rc.1", "1.4.1-rc.1", "2.1.0"),
        ] {
            let found = compare("a", version(active), String::new(), &all);
            assert_eq!((found.compatible, found.newest), (version(compatible), version(newest)), "{active}");
        }
    }
}
