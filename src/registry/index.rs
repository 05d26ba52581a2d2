//! An index of packages: one JSON document that is made of the tags and configs of registries, so that a search reads nothing else. It
//! is never the source of truth: an installation asks the registry.

use std::collections::BTreeMap;

use bytes::Bytes;
use memchr::memchr_iter;
use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};

use crate::artifact::Kind;
use crate::bundle;
use crate::digest::Digest;
use crate::document::Document;
use crate::error::Error;
use crate::keys::{PrivateKey, PublicKey};
use crate::manifest::{BLOB_BYTES, Descriptor, Stored, json};
use crate::signatures::attach_once;
use crate::store::{Place, Store};

/// The type of the artifact, and the media type of its layer.
pub const INDEX: &str = "application/vnd.operetta.index.v1+json";
/// The format that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// What precedes and follows the lines of the packages.
const HEAD: &str = "{\"format\":1,\"packages\":[\n";
const TAIL: &str = "\n]}\n";
/// How the line of a package begins, and what precedes its versions. Neither is in a text: there a quotation mark is escaped.
const NAME: &[u8] = b"{\"name\":";
const RELEASES: &[u8] = b",\"versions\":[{";

/// How much of a package is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// All of it.
    Whole,
    /// Not what follows the version that is meant without a tag: `versions` ends with that one, and `more` is not known. Most of an index
    /// is older versions.
    Newest,
}

/// An index of packages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PackageIndex {
    format: u32,
    /// The packages, sorted by name and repository.
    pub packages: Vec<Entry>,
}

/// A package: what its newest version says about it, and its versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its repository, `oci://HOST/PATH`.
    pub repository: String,
    /// The version of the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The first paragraph of its README.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readme: Option<String>,
    /// The kinds that it brings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<Kind>,
    /// Supported versions of Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<String>,
    /// Tags that are no versions, such as `stable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    /// The versions, the newest first.
    pub versions: Vec<Release>,
    /// How many older versions are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: usize,
}

/// A tag that is no version, and what it named when the index was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// The tag.
    pub tag: String,
    /// The version.
    pub version: String,
    /// The digest of the manifest.
    pub digest: Digest,
}

/// A version of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The version.
    pub version: String,
    /// The digest of the manifest.
    pub digest: Digest,
    /// The capability level, 1 to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// Who has signed it, as the signatures say: the fingerprints of keys (`sha256:...`), and identities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<String>,
    /// What is said against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<Deprecated>,
}

/// What the deprecation of a version says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deprecated {
    /// Why, and what to do.
    pub message: String,
    /// The repository or version to use instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// Who has signed it, as the signatures say: the fingerprints of keys (`sha256:...`), and identities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Entry {
    /// The version that is meant without a tag: the newest that is no pre-release, or the newest of all.
    pub fn newest(&self) -> Option<&Release> {
        self.versions.iter().find(|one| one.is_final()).or_else(|| self.versions.first())
    }

    /// The version that a tag names: a version or a channel.
    pub fn tagged(&self, tag: &str) -> Option<(&str, &Digest)> {
        let version = self.versions.iter().find(|one| one.version == tag);
        let channel = self.channels.iter().find(|channel| channel.tag == tag);
        version
            .map(|one| (&*one.version, &one.digest))
            .or_else(|| channel.map(|channel| (&*channel.version, &channel.digest)))
    }
}

impl Release {
    /// Whether it is no pre-release.
    fn is_final(&self) -> bool {
        semver::Version::parse(&self.version).is_ok_and(|version| version.pre.is_empty())
    }
}

/// The lines of the packages, as [`PackageIndex::bytes`] writes them; nothing of another document, and of another line.
fn lines(bytes: &[u8]) -> Option<impl Iterator<Item = Option<&[u8]>>> {
    let lines = bytes.strip_prefix(HEAD.as_bytes())?.strip_suffix(TAIL.as_bytes())?;
    let is_one = |line: &&[u8]| line.starts_with(b"{") && line.ends_with(b"}");
    let mut start = 0;
    let ends = memchr_iter(b'\n', lines).chain([lines.len()]);
    Some(ends.map(move |end| {
        let line = &lines[start..end];
        start = end + 1;
        Some(line.strip_suffix(b",").unwrap_or(line)).filter(is_one)
    }))
}

/// The package of a line, whose versions follow `head`, down to the version that is meant without a tag; none if the line has another
/// form.
fn newest(head: &[u8], line: &[u8]) -> Option<Entry> {
    let mut rest = line.get(head.len() + RELEASES.len() - 1..)?;
    let mut entry: Entry = serde_json::from_slice(&[head, b",\"versions\":[]}"].concat()).ok()?;
    loop {
        let mut releases = serde_json::Deserializer::from_slice(rest).into_iter();
        let release: Release = releases.next()?.ok()?;
        rest = &rest[releases.byte_offset()..];
        let is_last = release.is_final();
        entry.versions.push(release);
        match rest.split_first()? {
            (b',', others) if !is_last => rest = others,
            (b',' | b']', _) => return Some(entry),
            _ => return None,
        }
    }
}

impl PackageIndex {
    /// An index of these packages.
    pub fn new(mut packages: Vec<Entry>) -> Self {
        packages.sort_by(|a, b| (&a.name, &a.repository).cmp(&(&b.name, &b.repository)));
        packages.dedup_by(|a, b| a.repository == b.repository);
        Self { format: FORMAT, packages }
    }

    /// Reads an index; `what` names it in messages.
    ///
    /// # Errors
    /// It is of a newer format, or invalid.
    pub fn parse(what: &str, bytes: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let newer = |format: u32| {
            let reason =
                format!("its format is {format}, and this Operetta reads {FORMAT}: upgrade Operetta");
            Error::invalid(what, reason)
        };
        let read: Result<Self, Error> = json(what, bytes);
        match read {
            Ok(index) if index.format > FORMAT => Err(newer(index.format)),
            Ok(index) => Ok(index),
            // A newer format may have other fields.
            Err(error) => match serde_json::from_slice::<Format>(bytes) {
                Ok(Format { format }) if format > FORMAT => Err(newer(format)),
                _ => Err(error),
            },
        }
    }

    /// Reads those packages of an index whose lines have all of the words, in any case: of thousands of packages, most are not parsed.
    /// An index that was not written by [`Self::bytes`] is read as a whole.
    ///
    /// # Errors
    /// It is of a newer format, or invalid.
    pub fn parse_with(what: &str, bytes: &[u8], words: &[String], depth: Depth) -> Result<Self, Error> {
        // JSON escapes some characters, and the case of others depends on more than one byte.
        let is_plain = |word: &&String| {
            word.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
        };
        let words: Vec<String> =
            words.iter().filter(is_plain).map(|word| word.to_ascii_lowercase()).collect();
        let words: Vec<Finder<'_>> = words.iter().map(Finder::new).collect();
        let Some(lines) = lines(bytes) else { return Self::parse(what, bytes) };
        let releases = Finder::new(RELEASES);
        let mut packages = Vec::new();
        let mut lower = Vec::new();
        for line in lines {
            let Some(line) = line else { return Self::parse(what, bytes) };
            // No word is looked for in the versions, which are most of a line.
            let head = releases.find(line).map_or(line, |at| &line[..at]);
            lower.clear();
            lower.extend_from_slice(head);
            lower.make_ascii_lowercase();
            if words.iter().all(|word| word.find(&lower).is_some()) {
                let newest = if depth == Depth::Newest { newest(head, line) } else { None };
                packages.push(newest.map_or_else(|| json(what, line), Ok)?);
            }
        }
        Ok(Self { format: FORMAT, packages })
    }

    /// The names of all packages of an index.
    ///
    /// # Errors
    /// It is of a newer format, or invalid.
    pub fn names(what: &str, bytes: &[u8]) -> Result<Vec<String>, Error> {
        let name = |line: Option<&[u8]>| {
            let rest = line?.strip_prefix(NAME)?;
            serde_json::Deserializer::from_slice(rest).into_iter().next()?.ok()
        };
        match lines(bytes).and_then(|lines| lines.map(name).collect()) {
            Some(names) => Ok(names),
            None => Ok(Self::parse(what, bytes)?.packages.into_iter().map(|entry| entry.name).collect()),
        }
    }

    /// Its bytes: a line for each package, so that changes in Git are readable.
    ///
    /// # Errors
    /// It is larger than what is read.
    pub fn bytes(&self) -> Result<Bytes, Error> {
        let invalid = |error: serde_json::Error| Error::invalid("the index", error.to_string());
        let mut text = HEAD.as_bytes().to_vec();
        for (at, entry) in self.packages.iter().enumerate() {
            text.extend_from_slice(if at == 0 { b"" } else { b",\n" });
            serde_json::to_writer(&mut text, entry).map_err(invalid)?;
        }
        text.extend_from_slice(TAIL.as_bytes());
        if text.len() as u64 > BLOB_BYTES {
            return Err(Error::TooLarge { what: "the index".into(), limit: BLOB_BYTES });
        }
        Ok(text.into())
    }
}

/// Writes the bytes of an index to a repository. It replaces the index that the tag has; another artifact is not replaced.
///
/// # Errors
/// It cannot be written, or the tag is of another artifact.
pub async fn push(
    bytes: &Bytes,
    to: &Store,
    tag: &str,
    key: Option<&PrivateKey>,
) -> Result<Descriptor, Error> {
    let document = Document { kind: INDEX, content: bytes.clone(), annotations: BTreeMap::new() };
    let manifest = document.manifest(None)?;
    if let Some(found) = to.find(tag).await?
        && found.manifest().is_none_or(|found| found.kind() != INDEX)
    {
        return Err(Error::TagExists {
            what: format!("the tag {tag}, which is no index,"),
            found: found.descriptor.digest,
            pushed: manifest.descriptor.digest,
        });
    }
    document.put_blobs(to).await?;
    if let Some(key) = key {
        // Signed before the tag names it: a reader that wants a signature never sees one without.
        to.put_manifest(&manifest, None).await?;
        attach_once(to, &manifest, key).await?;
    }
    to.put_manifest(&manifest, Some(tag)).await?;
    Ok(manifest.descriptor)
}

/// The manifest of the index that a place names, and the descriptor of its bytes. Without tag and digest, the tag is `latest`.
///
/// # Errors
/// There is none, or it is another artifact.
pub async fn resolve(place: &Place) -> Result<(Stored, Descriptor), Error> {
    let reference = match (&place.digest, &place.tag) {
        (Some(digest), _) => digest.to_string(),
        (None, tag) => tag.clone().unwrap_or_else(|| TAG.to_owned()),
    };
    let manifest = place.store.manifest(&reference).await?;
    let found = manifest.manifest().filter(|found| found.kind() == INDEX);
    let layer = found.and_then(|found| found.layers.first()).filter(|layer| layer.media_type == INDEX);
    let Some(layer) = layer.cloned() else {
        let what = format!("{}:{reference}", place.name());
        return Err(Error::invalid(
            what,
            "it is no index of packages\n  help: operetta catalog build --push",
        ));
    };
    if layer.size > BLOB_BYTES {
        return Err(Error::TooLarge { what: format!("the index {}", layer.digest), limit: BLOB_BYTES });
    }
    Ok((manifest, layer))
}

/// The tag of an index without one.
pub const TAG: &str = "latest";

/// The signature of an index in a file, to be stored beside it: a Sigstore bundle.
///
/// # Errors
/// The system has no random numbers.
pub fn sign(bytes: &[u8], key: &PrivateKey) -> Result<Vec<u8>, Error> {
    bundle::sign(&Digest::of(bytes), key)
}

/// Checks such a signature. Returns the key.
///
/// # Errors
/// It is of none of the keys.
pub fn verify(what: &str, bytes: &[u8], signature: &[u8], keys: &[PublicKey]) -> Result<PublicKey, Error> {
    let digest = Digest::of(bytes);
    let mut reason = "no key was given";
    for key in keys {
        match bundle::verify(signature, &digest, key) {
            Ok(()) => return Ok(key.clone()),
            Err(why) => reason = why,
        }
    }
    Err(Error::NotSigned { what: what.to_owned(), reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_with_all_words_are_parsed() {
        let entry = |name: &str, description: &str| -> Entry {
            let value = serde_json::json!({"name": name, "repository": name, "description": description,
                "versions": []});
            serde_json::from_value(value).unwrap()
        };
        let all = vec![entry("a", "One,\nTWO \u{e9}"), entry("b", "two \"three\""), entry("c", "[{}],")];
        let index = PackageIndex::new(all);
        let bytes = index.bytes().unwrap();
        assert!(bytes.starts_with(format!("{{\"format\":{FORMAT},").as_bytes()));
        let names = |bytes: &[u8], words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let found = PackageIndex::parse_with("x", bytes, &words, Depth::Whole).unwrap().packages;
            found.iter().map(|entry| &*entry.name).collect::<String>()
        };
        for (words, expected) in [
            (&["two"][..], "ab"),
            (&["Two", "one"], "a"),
            (&["absent"], ""),
            (&[], "abc"),
            // What JSON writes in another way is not looked for in the text.
            (&["\u{e9}"], "abc"),
            (&["\"three\""], "abc"),
        ] {
            assert_eq!(names(&bytes, words), expected, "{words:?}");
        }
        let pretty = serde_json::to_vec_pretty(&serde_json::from_slice::<serde_json::Value>(&bytes).unwrap());
        assert_eq!(names(&pretty.unwrap(), &["two"]), "abc");
        assert_eq!(names(&PackageIndex::new(Vec::new()).bytes().unwrap(), &["two"]), "");
        let broken = [HEAD, "{\"name\":\"two\"}", TAIL].concat();
        for depth in [Depth::Whole, Depth::Newest] {
            let read = PackageIndex::parse_with("x", broken.as_bytes(), &["two".into()], depth);
            assert!(read.is_err(), "{depth:?}");
        }
    }

    #[test]
    fn versions_are_read_down_to_the_newest_final_one() {
        let kind = serde_json::json!({"group": "x.io", "kind": "Kind", "versions": ["v1", "v2"]});
        // A text with what precedes versions, and one with a whole package.
        let text = ",\"versions\":[{ {\"name\":\"x\",\"versions\":[{}]}\n";
        let entry = |name: &str, versions: &[&str]| -> Entry {
            let release = |version: &&str| serde_json::json!({"version": version, "digest": Digest::of(version.as_bytes())});
            let versions: Vec<_> = versions.iter().map(release).collect();
            let value = serde_json::json!({"name": name, "repository": name, "description": text, "kinds": [kind],
                "versions": versions, "more": 7});
            serde_json::from_value(value).unwrap()
        };
        let index = PackageIndex::new(vec![
            entry("a", &["3.0.0", "2.0.0", "1.0.0"]),
            entry("b", &["3.0.0-rc.1", "3.0.0-beta", "2.0.0", "1.0.0"]),
            entry("c", &["2.0.0-rc.1", "1.0.0-rc.1"]),
            entry("d", &["1.0.0"]),
            entry("e\"\\", &[]),
        ]);
        let bytes = index.bytes().unwrap();
        let read = |depth| PackageIndex::parse_with("x", &bytes, &["name".into()], depth).unwrap().packages;
        assert_eq!(read(Depth::Whole), index.packages);
        let newest = read(Depth::Newest);
        for (whole, part) in index.packages.iter().zip(&newest) {
            assert_eq!(part.newest(), whole.newest());
            let count = part.versions.len();
            assert_eq!(part.versions, whole.versions[..count]);
            assert!(count == whole.versions.len() || part.versions.last() == whole.newest());
            let like = Entry { versions: whole.versions.clone(), more: whole.more, ..part.clone() };
            assert_eq!(like, *whole);
        }
        let counts: Vec<usize> = newest.iter().map(|entry| entry.versions.len()).collect();
        assert_eq!(counts, [1, 3, 2, 1, 0]);
        let names: Vec<&str> = index.packages.iter().map(|entry| &*entry.name).collect();
        let pretty = serde_json::to_vec_pretty(&serde_json::from_slice::<serde_json::Value>(&bytes).unwrap());
        for bytes in [&bytes[..], &pretty.unwrap()] {
            assert_eq!(PackageIndex::names("x", bytes).unwrap(), names);
        }
    }

    #[test]
    fn lines_of_others_are_read_as_wholes() {
        let release = format!("{{\"version\":\"1.0.0\",\"digest\":\"{}\"}}", Digest::of(b""));
        let line = |rest: &str| format!("{HEAD}{{\"name\":\"a\",\"repository\":\"r\"{rest}}}{TAIL}");
        let read = |text: &str| PackageIndex::parse_with("x", text.as_bytes(), &[], Depth::Newest);
        let later = format!(",\"later\":{{\"of\":1,\"versions\":[{{}}]}},\"versions\":[{release}]");
        let nested = read(&line(&later)).unwrap();
        assert_eq!(nested.packages[0].versions.len(), 1);
        let spaced = read(&line(",\"versions\":[{} ]")).unwrap_err().to_string();
        assert!(spaced.contains("missing field"), "{spaced}");
        let twice = format!(",\"versions\":[],\"versions\":[{release}]");
        for wrong in [&*twice, &format!(",\"versions\":[{release}"), &format!(",\"versions\":[{release};]")] {
            assert!(read(&line(wrong)).is_err(), "{wrong}");
        }
        let names = |text: &str| PackageIndex::names("x", text.as_bytes());
        assert_eq!(names(&line(",\"versions\":[]")).unwrap(), ["a"]);
        assert!(names(&format!("{HEAD}{{\"name\":1}}{TAIL}")).is_err());
    }
}
