//! Manifests and indexes of OCI images, as far as they are needed. Unknown fields are ignored; bytes that
//! were read are kept and never written anew, because digests are of bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::Error;

/// The media type of an image manifest.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of an index.
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The media types of Docker that mean the same.
const DOCKER: [&str; 2] = [
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
/// The media type of an empty config.
pub(crate) const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// The content of an empty config.
pub(crate) const EMPTY_CONTENT: &[u8] = b"{}";
/// The annotation of a descriptor in a layout that is its tag.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The maximum size of a manifest or index, in bytes.
pub(crate) const MANIFEST_BYTES: u64 = 4 << 20;
/// The maximum size of a blob, in bytes: as the loader reads of an archive.
pub const BLOB_BYTES: u64 = 64 << 20;
/// The maximum number of layers of a manifest, and of manifests of an index.
pub(crate) const ENTRIES: usize = 1_000;

/// The media types of manifests, for `Accept`.
pub(crate) fn accepted() -> String {
    [MANIFEST, INDEX, DOCKER[0], DOCKER[1]].join(", ")
}

/// What a blob or manifest is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The media type.
    pub media_type: String,
    /// The digest.
    pub digest: Digest,
    /// The size in bytes.
    pub size: u64,
    /// The type of the artifact, of a manifest in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// The descriptor of bytes.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            artifact_type: None,
            annotations: BTreeMap::new(),
        }
    }

    /// The tag, of a manifest in a layout.
    pub(crate) fn tag(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }
}

/// An image manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// Its own media type.
    #[serde(default = "manifest")]
    pub media_type: String,
    /// The type of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The config.
    pub config: Descriptor,
    /// The layers.
    pub layers: Vec<Descriptor>,
    /// The manifest to which this one refers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// An index of manifests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// Its own media type.
    #[serde(default = "index")]
    pub media_type: String,
    /// The manifests.
    pub manifests: Vec<Descriptor>,
}

fn manifest() -> String {
    MANIFEST.to_owned()
}

fn index() -> String {
    INDEX.to_owned()
}

/// A manifest or an index, with its bytes.
#[derive(Debug, Clone)]
pub struct Stored {
    /// What it is.
    pub descriptor: Descriptor,
    /// Its bytes.
    pub bytes: bytes::Bytes,
    /// Its content.
    pub content: Content,
}

/// The content of a manifest.
#[derive(Debug, Clone)]
pub enum Content {
    /// An image manifest.
    Manifest(Box<Manifest>),
    /// An index.
    Index(Index),
}

impl Manifest {
    /// A manifest of an artifact.
    pub(crate) fn new(artifact_type: &str, config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self {
            schema_version: 2,
            media_type: MANIFEST.to_owned(),
            artifact_type: Some(artifact_type.to_owned()),
            config,
            layers,
            subject: None,
            annotations: BTreeMap::new(),
        }
    }

    /// The type of the artifact: of manifests without the field, the media type of the config.
    pub fn kind(&self) -> &str {
        self.artifact_type.as_deref().unwrap_or(&self.config.media_type)
    }
}

impl Default for Index {
    fn default() -> Self {
        Self { schema_version: 2, media_type: index(), manifests: Vec::new() }
    }
}

impl Index {
    /// Reads an index.
    ///
    /// # Errors
    /// It is invalid, or has too many entries.
    pub(crate) fn parse(what: &str, bytes: &[u8]) -> Result<Self, Error> {
        let index: Self = json(what, bytes)?;
        few(what, index.manifests.len())?;
        Ok(index)
    }
}

impl Stored {
    /// Reads a manifest or index; `media_type` is what the registry calls it.
    ///
    /// # Errors
    /// It is neither, or has too many entries.
    pub(crate) fn parse(what: &str, media_type: Option<&str>, bytes: bytes::Bytes) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Kind {
            media_type: Option<String>,
            manifests: Option<serde::de::IgnoredAny>,
        }
        let kind: Kind = json(what, &bytes)?;
        // The bytes decide, because the header is not part of the digest.
        let is_index = kind.manifests.is_some();
        let default = if is_index { INDEX } else { MANIFEST };
        let media_type = kind.media_type.as_deref().or(media_type).unwrap_or(default);
        let ours = [default, DOCKER[usize::from(is_index)]];
        if !ours.contains(&media_type) {
            return Err(Error::invalid(what, format!("its media type is {:?}", Error::shown(media_type))));
        }
        let mut descriptor = Descriptor::of(media_type, &bytes);
        let content = if is_index {
            Content::Index(Index::parse(what, &bytes)?)
        } else {
            let manifest: Manifest = json(what, &bytes)?;
            few(what, manifest.layers.len())?;
            descriptor.artifact_type = Some(manifest.kind().to_owned());
            Content::Manifest(Box::new(manifest))
        };
        Ok(Self { descriptor, bytes, content })
    }

    /// Checks that it may get a tag, which has this digest.
    pub(crate) fn check_tag(&self, tag: &str, found: &Digest) -> Result<(), Error> {
        let pushed = &self.descriptor.digest;
        if found == pushed {
            return Ok(());
        }
        let what = format!("the tag {tag}");
        Err(Error::TagExists { what, found: found.clone(), pushed: pushed.clone() })
    }

    /// The image manifest.
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.content {
            Content::Manifest(manifest) => Some(manifest),
            Content::Index(_) => None,
        }
    }
}

impl Content {
    /// The blobs of a manifest: its config and its layers.
    pub(crate) fn blobs(&self) -> Vec<&Descriptor> {
        match self {
            Self::Manifest(manifest) => [&manifest.config].into_iter().chain(&manifest.layers).collect(),
            Self::Index(_) => Vec::new(),
        }
    }
}

/// Parses JSON of others. Messages contain no values.
pub(crate) fn json<T: serde::de::DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::invalid(what, Error::shown(&error.to_string())))
}

fn few(what: &str, entries: usize) -> Result<(), Error> {
    if entries > ENTRIES {
        return Err(Error::invalid(
            what,
            format!("it has {entries} entries, and at most {ENTRIES} are read"),
        ));
    }
    Ok(())
}
