//! Reads what an index has of a repository: tags, configs, signatures and deprecations, and no files. A registry is not trusted: what it
//! says is bounded, and words that a package cannot have are refused.

use futures::stream::{self, StreamExt as _};
use semver::Version;

use crate::artifact::{Config, Kind, parts};
use crate::deprecation;
use crate::error::Error;
use crate::index::{Channel, Deprecated, Entry, INDEX, Release};
use crate::manifest::Stored;
use crate::signatures;
use crate::signers::Signers;
use crate::store::{Store, split_tags};

/// How many versions of a repository are read at once.
const AT_ONCE: usize = 4;
/// How many tags that are no versions are read.
const CHANNELS: usize = 20;
/// The channels that are read first.
const USUAL: [&str; 2] = ["stable", "candidate"];
/// How many kinds, and keys of signatures, are listed.
const KINDS: usize = 200;
const SIGNERS: usize = 16;
/// The longest name and the longest text, in characters.
const NAME: usize = 253;
const TEXT: usize = 1_000;

/// What was found in a repository.
#[derive(Debug)]
pub enum Found {
    /// A package, and what is wrong with some of its versions.
    Package(Box<Entry>, Vec<Error>),
    /// An index of packages.
    Index,
}

/// Reads the package of a repository; `name` is its reference, and `most` the number of versions that are read, the newest.
///
/// # Errors
/// It cannot be read, or is no package.
pub async fn survey(store: &Store, name: &str, most: usize) -> Result<Found, Error> {
    let (versions, mut tags) = split_tags(store.tags().await?);
    tags.retain(|tag| !tag.starts_with("sha256-"));
    tags.sort_by_key(|tag| (!USUAL.contains(&&**tag), tag.clone()));
    tags.truncate(CHANNELS);
    if versions.is_empty() {
        return match tags.first() {
            Some(tag) if is_index(&store.manifest(tag).await?) => Ok(Found::Index),
            _ => {
                let reason = "it has no tags that are versions".to_owned();
                Err(Error::NotAPackage { what: name.to_owned(), reason })
            }
        };
    }
    let more = versions.len().saturating_sub(most);
    let listed: Vec<&Version> = versions.iter().take(most).collect();
    // If the newest one is no package, the others are not read either.
    let mut read = Vec::new();
    let (first, rest) = listed.split_at(listed.len().min(1));
    for version in first {
        read.push(release(store, name, version).await);
    }
    if let Some(Err(error)) = read.pop_if(|read| read.is_err()) {
        return Err(error);
    }
    let others = rest.iter().map(|version| release(store, name, version));
    let others: Vec<_> = stream::iter(others).buffered(AT_ONCE).collect().await;
    read.extend(others);

    let (mut warnings, mut found) = (Vec::new(), Vec::new());
    for one in read {
        match one {
            Ok(one) => found.push(one),
            Err(error) => warnings.push(error),
        }
    }
    let mut entry = entry(name, &found)?;
    entry.more = more;
    for (release, config) in found {
        if config.name == entry.name {
            entry.versions.push(release);
        } else {
            let reason = format!("its package is {}, not {}", config.name, entry.name);
            warnings.push(Error::invalid(format!("{name}:{}", release.version), reason));
        }
    }
    for tag in tags {
        match channel(store, name, &tag, &entry).await {
            Ok(channel) => entry.channels.extend(channel),
            Err(error) => warnings.push(error),
        }
    }
    Ok(Found::Package(Box::new(entry), warnings))
}

fn is_index(manifest: &Stored) -> bool {
    manifest.manifest().is_some_and(|manifest| manifest.kind() == INDEX)
}

/// What the newest version that is no pre-release says.
fn entry(name: &str, found: &[(Release, Config)]) -> Result<Entry, Error> {
    let is_release = |(release, _): &&(Release, Config)| !release.version.contains('-');
    let newest = found.iter().find(is_release).or_else(|| found.first());
    let Some((_, config)) = newest else {
        return Err(Error::NotAPackage {
            what: name.to_owned(),
            reason: "none of its versions is one".into(),
        });
    };
    Ok(Entry {
        name: config.name.clone(),
        repository: name.to_owned(),
        app_version: config.app_version.as_deref().and_then(text),
        description: config.description.as_deref().and_then(text),
        readme: config.readme.as_deref().and_then(text),
        kinds: config.kinds.clone(),
        kubernetes: config.requires.kubernetes.as_deref().and_then(text),
        channels: Vec::new(),
        versions: Vec::new(),
        more: 0,
    })
}

/// A version, and what its config says.
async fn release(store: &Store, name: &str, version: &Version) -> Result<(Release, Config), Error> {
    let tag = version.to_string();
    let what = format!("{name}:{tag}");
    let manifest = store.manifest(&tag).await?;
    let config = config(store, &what, &manifest).await?;
    if config.version != tag {
        let reason = format!("its package has the version {}", Error::shown(&config.version));
        return Err(Error::invalid(what, reason));
    }
    let signers = few(signatures::claims(&signatures::find(store, &manifest).await?));
    let deprecated = deprecation::find(store, &manifest, &Signers::default()).await?.into_iter().next();
    let deprecated = deprecated.map(|one| Deprecated {
        message: one.deprecation.message,
        replaced_by: one.deprecation.replaced_by,
        signers: few(one.signers),
    });
    let digest = manifest.descriptor.digest;
    Ok((Release { version: tag, digest, level: config.level, signers, deprecated }, config))
}

/// The config of a package, with names and a level that a package can have.
async fn config(store: &Store, what: &str, manifest: &Stored) -> Result<Config, Error> {
    let bytes = store.blob(parts(what, manifest)?.0).await?;
    let mut config = Config::parse(what, &bytes)?;
    let invalid = |reason: &str| Error::invalid(format!("the config of {what}"), reason);
    let is_kind = |kind: &Kind| {
        is_word(&kind.group) && is_word(&kind.kind) && kind.versions.iter().all(|version| is_word(version))
    };
    if !is_word(&config.name) || config.name.contains(char::is_uppercase) {
        return Err(invalid("its name is not that of a package"));
    }
    if !config.kinds.iter().all(is_kind) {
        return Err(invalid("it names a kind that no cluster can have"));
    }
    config.kinds.truncate(KINDS);
    config.kinds.iter_mut().for_each(|kind| kind.versions.truncate(KINDS));
    config.level = config.level.filter(|level| (1..=5).contains(level));
    Ok(config)
}

/// The version that a tag names; none if it is an index.
async fn channel(store: &Store, name: &str, tag: &str, entry: &Entry) -> Result<Option<Channel>, Error> {
    let manifest = store.manifest(tag).await?;
    let digest = manifest.descriptor.digest.clone();
    let known = entry.versions.iter().find(|one| one.digest == digest);
    let version = match known {
        Some(release) => release.version.clone(),
        None if is_index(&manifest) => return Ok(None),
        None => {
            let what = format!("{name}:{tag}");
            let config = config(store, &what, &manifest).await?;
            let version = Version::parse(&config.version).ok().filter(|_| config.name == entry.name);
            let Some(version) = version else {
                let reason = format!("it is no version of the package {}", entry.name);
                return Err(Error::invalid(what, reason));
            };
            version.to_string()
        }
    };
    Ok(Some(Channel { tag: tag.to_owned(), version, digest }))
}

/// Fingerprints as other commands show them.
fn few(mut claims: Vec<String>) -> Vec<String> {
    claims.truncate(SIGNERS);
    claims
}

fn is_word(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric();
    text.len() <= NAME
        && text.starts_with(is_letter)
        && text.chars().all(|c| is_letter(c) || matches!(c, '.' | '-' | '_'))
}

/// A text in one line of bounded length; none if it is empty.
fn text(text: &str) -> Option<String> {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT).collect();
    let clean = clean.trim();
    (!clean.is_empty()).then(|| clean.to_owned())
}
