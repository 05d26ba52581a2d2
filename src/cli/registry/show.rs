//! `operetta show`: what a package is for those who use it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use operetta_registry::attached::README_BYTES;
use operetta_registry::index::{Depth, Entry, Release};
use operetta_registry::survey::{self, survey};
use operetta_registry::{Error, Options, Place, Reference};

use super::access::{TimedAccess, Trust};
use super::fetch::{Found, find, is_place};
use super::indexes::Catalogs;
use super::made;
use super::page::Page;
use crate::cli::command::{Failure, Format};
use crate::cli::operators::load_local;
use crate::cli::out;
use crate::package::{OPERATOR_YAML, Package};

/// How many versions of a repository are listed.
const VERSIONS: usize = 10;

/// Show how a package is used: its README, kinds with their fields, plans, rights and versions
///
/// A NAME is looked up in an index and fetched by the digest that the index has. A REF, a folder or an archive needs no index.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta show etcd --catalog oci://ghcr.io/acme/index
  operetta show etcd:stable                            # a channel or a version; OPERETTA_CATALOG names the index
  operetta show oci://ghcr.io/acme/etcd:1.2.0
  operetta show operators/etcd --depth 9
  operetta show etcd -o json | jq -r '.kinds[].fields[].path'

A folder or an archive with the name comes before a package of an index. -o json and yaml have all fields.

Exit codes: 0 success, 1 there is no such package, or it is not what it should be, 2 wrong usage, 4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// A package of an index, `NAME[:TAG]`; `oci://HOST/PATH[:TAG][@sha256:...]`; an OCI layout; a folder, or a tar archive
    #[arg(value_name = "NAME|REF|FOLDER")]
    of: String,

    /// How deep fields are listed: 1 lists those of spec
    #[arg(long, value_name = "N", default_value_t = 1)]
    depth: usize,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,

    #[command(flatten)]
    trust: Trust,

    #[command(flatten)]
    catalogs: Catalogs,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let options = args.access.options()?;
    let page = if is_place(Path::new(&args.of)) {
        published(args, &args.of, None, &options).await?
    } else if is_file(Path::new(&args.of)) {
        local(args)?
    } else {
        let words = [name_and_tag(&args.of).0.to_owned()];
        let packages = args.catalogs.read(&words, Depth::Whole, &options).await?;
        let (entry, reference) = named(&args.of, &packages.all(), |name| packages.near(name))?;
        published(args, &reference, Some(entry.clone()), &options).await?
    };
    let text = match args.output {
        Some(format) => format.document(&page.document()),
        None => page.text(args.depth),
    };
    Ok(out::all(&text, ExitCode::SUCCESS))
}

/// Whether a text names a folder with a package, or a file.
fn is_file(path: &Path) -> bool {
    path.is_file() || path.join(OPERATOR_YAML).is_file() || path.components().count() > 1
}

fn local(args: &Args) -> Result<Page, Failure> {
    if args.trust.is_given() {
        let message =
            format!("{} has no signatures\n  help: --key is for registries and OCI layouts", args.of);
        return Err(Failure::usage(message));
    }
    let path = PathBuf::from(&args.of);
    let (package, _) = load_local(&path)?;
    let mut page = page(&package, args.of.clone());
    page.readme = made::readme(&path).as_deref().map(lossy);
    Ok(page)
}

fn page(package: &Package, reference: String) -> Page {
    Page {
        reference,
        config: made::config(package),
        readme: None,
        kinds: super::page::kinds(package),
        entry: None,
        release: None,
    }
}

/// The package of a reference. `entry`: what an index says about it.
async fn published(
    args: &Args,
    text: &str,
    entry: Option<Entry>,
    options: &Options,
) -> Result<Page, Failure> {
    let signers = args.trust.signers()?;
    let found = find(text, options).await?;
    if args.trust.is_given() {
        out::note(format!("signed: {}", found.check(&signers).await?));
    }
    let (package, _) = found.package()?;
    if let Some(entry) = entry.as_ref().filter(|entry| entry.name != package.name) {
        let message = format!("the index calls it {}, and it is the package {}", entry.name, package.name);
        return Err(format!("{}: {}", found.name, out::printable(&message)).into());
    }
    let entry = match entry {
        Some(entry) => Some(entry),
        None => releases(&found.place).await,
    };
    let digest = &found.manifest.descriptor.digest;
    let release: Option<Release> = entry.as_ref().and_then(|entry| {
        let mut releases = entry.versions.iter();
        releases.find(|one| one.digest == *digest).cloned()
    });
    let mut page = page(&package, found.name.clone());
    page.readme = readme(&found).await.or_else(|| found.config.readme.clone());
    page.entry = entry;
    page.release = release;
    Ok(page)
}

/// The README of a package, by the digest that its config has: whoever may push to the repository can attach other texts.
async fn readme(found: &Found) -> Option<String> {
    let file = found.config.readme_file.as_ref()?;
    let read = if file.size > README_BYTES {
        Err(Error::TooLarge { what: format!("the README {}", file.digest), limit: README_BYTES })
    } else {
        found.place.store.blob(file).await
    };
    match read {
        Ok(text) => Some(lossy(&text)),
        Err(error) => {
            out::note(format!("only the first paragraph of the README is shown: {error}"));
            None
        }
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// The versions of the repository or layout. Without them the rest is shown.
async fn releases(place: &Place) -> Option<Entry> {
    match survey(&place.store, place.name(), VERSIONS).await {
        Ok(survey::Found::Package(entry, _)) => Some(*entry),
        Ok(survey::Found::Index) => None,
        // A layout has no tags, if it has one package.
        Err(_) if !Reference::is_one(place.name()) => None,
        Err(error) => {
            out::note(format!("the other versions are not listed: {error}"));
            None
        }
    }
}

fn name_and_tag(text: &str) -> (&str, Option<&str>) {
    text.split_once(':').map_or((text, None), |(name, tag)| (name, Some(tag)))
}

/// The package of a name, with or without tag, and its reference. `near`: which name may be meant by another one.
fn named<'e>(
    text: &str,
    all: &[&'e Entry],
    near: impl FnOnce(&str) -> Option<String>,
) -> Result<(&'e Entry, String), Failure> {
    let (name, tag) = name_and_tag(text);
    let found: Vec<&Entry> = all.iter().filter(|entry| entry.name == name).copied().collect();
    let shown = out::printable(name);
    let [entry] = found[..] else {
        if found.is_empty() {
            let near = near(name).map(|near| format!("; did you mean {near}?"));
            let help = "\n  help: `operetta search` lists the packages; a folder is written ./NAME";
            return Err(format!("no index has a package {shown}{}{help}", near.unwrap_or_default()).into());
        }
        let places: Vec<String> = found.iter().map(|entry| out::printable(&entry.repository)).collect();
        let message = format!("several packages have the name {shown}: name one of {}", places.join(", "));
        return Err(message.into());
    };
    let version = match tag {
        Some(tag) => entry.tagged(tag),
        None => entry.newest().map(|newest| (&*newest.version, &newest.digest)),
    };
    let Some((version, digest)) = version else {
        let versions: Vec<&str> = entry.versions.iter().map(|one| &*one.version).collect();
        let there = out::printable(&crate::cli::show::named(&versions, 10));
        let tag = out::printable(tag.unwrap_or("without a version"));
        return Err(format!("the index has no {shown} {tag}; there is {there}").into());
    };
    Ok((entry, format!("{}:{version}@{digest}", entry.repository)))
}

#[cfg(test)]
mod tests {
    use operetta_registry::Digest;

    use super::*;

    fn entry(name: &str, repository: &str, versions: &[&str]) -> Entry {
        let versions: Vec<_> = versions
            .iter()
            .map(|version| serde_json::json!({"version": version, "digest": Digest::of(version.as_bytes())}))
            .collect();
        let value = serde_json::json!({"name": name, "repository": repository, "versions": versions,
            "channels": [{"tag": "stable", "version": "1.0.0", "digest": Digest::of(b"1.0.0")}]});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn names_are_found_with_tags_and_channels() {
        let all = [
            entry("etcd", "oci://r/etcd", &["2.0.0-rc.1", "1.1.0", "1.0.0"]),
            entry("web", "oci://r/web", &["1.0.0"]),
            entry("web", "oci://s/web", &["1.0.0"]),
        ];
        let all: Vec<&Entry> = all.iter().collect();
        let reference =
            |text: &str| named(text, &all, |_| Some("etcd".into())).map(|(_, reference)| reference);
        for (text, version) in
            [("etcd", "1.1.0"), ("etcd:stable", "1.0.0"), ("etcd:2.0.0-rc.1", "2.0.0-rc.1")]
        {
            let digest = Digest::of(version.as_bytes());
            assert_eq!(reference(text).unwrap(), format!("oci://r/etcd:{version}@{digest}"));
        }
        for (text, expected) in [
            ("etdc", "did you mean etcd?"),
            ("etcd:9.9.9", "no etcd 9.9.9; there is 2.0.0-rc.1, 1.1.0, 1.0.0"),
            ("web", "oci://r/web, oci://s/web"),
        ] {
            let message = reference(text).unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        }
    }
}
