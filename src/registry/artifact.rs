//! A package as an OCI artifact: a manifest, a small config that tells what the package is, and one layer
//! with its files.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::archive::archive;
use crate::digest::Digest;
use crate::error::Error;
use crate::evidence::Evidence;
use crate::manifest::{Content, Descriptor, Manifest, Stored, json};

/// The type of the artifact.
pub const ARTIFACT_TYPE: &str = "application/vnd.operetta.package.v1";
/// The media type of the config.
pub const CONFIG: &str = "application/vnd.operetta.package.config.v1+json";
/// The media type of the layer: a gzipped tar archive.
pub const CONTENT: &str = "application/vnd.operetta.package.content.v1.tar+gzip";
/// The format of the config that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;
/// The maximum size of a config, in bytes.
const CONFIG_BYTES: u64 = 1 << 20;

/// What a package is, for searches and reviews that do not read its files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// The format of this config.
    pub format: u32,
    /// The name of the package.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The version of the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The kinds that it brings.
    pub kinds: Vec<Kind>,
    /// What it needs.
    #[serde(default)]
    pub requires: Requires,
    /// The RBAC rules of its account, derived from its templates.
    #[serde(default)]
    pub rights: Vec<Value>,
    /// Its level in the capability model, 1 to 5. Configs of earlier versions have none, nor have packages whose instances make
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// The images that its templates name, as far as they do not depend on values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// What was checked when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// The SHA-256 of its files in hex, as the revision in a cluster has it.
    pub revision: String,
    /// The digest of the layer before compression.
    pub tar: Digest,
    /// The first paragraph of its README.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readme: Option<String>,
    /// Its README, which is attached to the package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readme_file: Option<Descriptor>,
}

/// A kind of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The served versions.
    pub versions: Vec<String>,
}

/// What a package needs of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requires {
    /// Supported versions of Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<String>,
    /// Kinds of other packages and operators that it uses: `apiVersion/kind`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apis: Vec<String>,
    /// The kinds of `apis` that `requires.apis` of the package names, with the packages that bring them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
    /// The packages that were chosen for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locked: Vec<Locked>,
}

/// A kind that another package brings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    /// `apiVersion/kind`.
    pub api: String,
    /// The repository of a package that brings it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// The supported versions of that package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<String>,
    /// Whether the package does without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A package that was chosen for what another one requires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its repository.
    pub package: String,
    /// The digest of its manifest.
    pub digest: String,
}

impl Config {
    /// A config with what every package has.
    pub fn new(name: &str, version: &str, revision: &str) -> Self {
        Self {
            format: FORMAT,
            name: name.to_owned(),
            version: version.to_owned(),
            app_version: None,
            description: None,
            kinds: Vec::new(),
            requires: Requires::default(),
            rights: Vec::new(),
            level: None,
            images: Vec::new(),
            evidence: None,
            revision: revision.to_owned(),
            tar: Digest::of(b""),
            readme: None,
            readme_file: None,
        }
    }

    /// Reads the config of a package; `what` is its reference.
    ///
    /// # Errors
    /// It is of a newer format, or invalid.
    pub fn parse(what: &str, bytes: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let what = format!("the config of {what}");
        // The format is checked first, because a newer one may have other fields.
        let Format { format } = json(&what, bytes)?;
        if format > FORMAT {
            let reason =
                format!("its format is {format}, and this Operetta reads {FORMAT}: upgrade Operetta");
            return Err(Error::Invalid { what, reason });
        }
        json(&what, bytes)
    }
}

/// A package, ready to be written to a registry or layout.
#[derive(Debug, Clone)]
pub struct Artifact {
    /// The manifest.
    pub manifest: Stored,
    /// The config, as bytes.
    pub config: Bytes,
    /// The layer.
    pub layer: Bytes,
}

impl Artifact {
    /// Makes the artifact of files: their paths and contents.
    ///
    /// # Errors
    /// The files cannot be archived.
    pub fn new<'f>(
        mut config: Config,
        files: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Result<Self, Error> {
        let what = format!("the package {} {}", config.name, config.version);
        let invalid = |reason: String| Error::Invalid { what: what.clone(), reason };
        let layer = archive(files).map_err(|error| invalid(error.to_string()))?;
        config.tar = layer.tar;
        let encode = |value: serde_json::Result<Vec<u8>>| value.map_err(|error| invalid(error.to_string()));
        let bytes = encode(serde_json::to_vec(&config))?;
        let mut manifest = Manifest::new(
            ARTIFACT_TYPE,
            Descriptor::of(CONFIG, &bytes),
            vec![Descriptor::of(CONTENT, &layer.bytes)],
        );
        manifest.annotations = annotations(&config);
        let manifest = Bytes::from(encode(serde_json::to_vec(&manifest))?);
        Ok(Self {
            manifest: Stored::parse(&what, None, manifest)?,
            config: bytes.into(),
            layer: layer.bytes.into(),
        })
    }

    /// The blobs with their descriptors.
    pub fn blobs(&self) -> [(Descriptor, Bytes); 2] {
        [
            (Descriptor::of(CONFIG, &self.config), self.config.clone()),
            (Descriptor::of(CONTENT, &self.layer), self.layer.clone()),
        ]
    }
}

/// The standard annotations. There is no time: equal packages have equal digests.
fn annotations(config: &Config) -> BTreeMap<String, String> {
    let given = [
        ("title", Some(&config.name)),
        ("version", Some(&config.version)),
        ("description", config.description.as_ref()),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
    given.map(|(name, value)| (format!("org.opencontainers.image.{name}"), value.clone())).collect()
}

/// The config and the layer of the manifest of a package.
///
/// # Errors
/// It is another artifact, or larger than a package.
pub fn parts<'m>(what: &str, manifest: &'m Stored) -> Result<(&'m Descriptor, &'m Descriptor), Error> {
    let other = |reason: String| Error::NotAPackage { what: what.to_owned(), reason };
    let Content::Manifest(manifest) = &manifest.content else {
        return Err(other("it is an index of several manifests".into()));
    };
    if manifest.kind() != ARTIFACT_TYPE && manifest.config.media_type != CONFIG {
        return Err(other(format!("its type is {:?}", Error::shown(manifest.kind()))));
    }
    let [layer] = &manifest.layers[..] else {
        return Err(other(format!("it has {} layers instead of one", manifest.layers.len())));
    };
    if layer.media_type != CONTENT {
        return Err(other(format!("its layer is {:?}", Error::shown(&layer.media_type))));
    }
    let limit = crate::manifest::BLOB_BYTES;
    for (blob, limit) in [(&manifest.config, CONFIG_BYTES), (layer, limit)] {
        if blob.size > limit {
            return Err(Error::TooLarge { what: format!("a blob of {what}"), limit });
        }
    }
    Ok((&manifest.config, layer))
}

/// The first paragraph of a README that is not a heading, a badge or a comment, in one line.
pub fn first_paragraph(readme: &str) -> Option<String> {
    let mut paragraph = String::new();
    for line in readme.lines().map(str::trim) {
        let is_text =
            !line.is_empty() && !line.starts_with(['#', '!', '<', '|', '`']) && !line.starts_with("[!");
        if is_text {
            paragraph.push_str(if paragraph.is_empty() { "" } else { " " });
            paragraph.push_str(line);
        } else if !paragraph.is_empty() {
            break;
        }
    }
    (!paragraph.is_empty()).then(|| paragraph.chars().take(1_000).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact() -> Artifact {
        let config = Config::new("etcd", "1.2.0", &"0".repeat(64));
        Artifact::new(config, [("operator.yaml", &b"a: b\n"[..])]).unwrap()
    }

    type Change<'a> = &'a dyn Fn(&mut Value);

    #[test]
    fn equal_packages_have_equal_digests() {
        let (first, second) = (artifact(), artifact());
        assert_eq!(first.manifest.bytes, second.manifest.bytes);
        let (config, layer) = parts("x", &first.manifest).unwrap();
        let blobs = first.blobs();
        assert_eq!([config, layer], [&blobs[0].0, &blobs[1].0]);
        let read = Config::parse("x", &first.config).unwrap();
        assert_eq!((read.name.as_str(), read.version.as_str()), ("etcd", "1.2.0"));
        assert_eq!(read.tar, archive([("operator.yaml", &b"a: b\n"[..])]).unwrap().tar);
        assert_eq!(first.manifest.descriptor.artifact_type.as_deref(), Some(ARTIFACT_TYPE));
    }

    #[test]
    fn other_artifacts_are_no_packages() {
        let good: Value = serde_json::from_slice(&artifact().manifest.bytes).unwrap();
        let check = |change: &dyn Fn(&mut Value)| {
            let mut manifest = good.clone();
            change(&mut manifest);
            let bytes = Bytes::from(manifest.to_string());
            let stored = Stored::parse("the manifest x", None, bytes);
            stored.and_then(|stored| parts("x", &stored).map(|_| ())).err().map(|error| error.to_string())
        };
        assert_eq!(check(&|_| ()), None);
        let layer = good["layers"][0].clone();
        let many = |count: usize| Value::from(vec![layer.clone(); count]);
        let cases: [(Change<'_>, &str); 7] = [
            (&|m| m["layers"] = many(2), "2 layers instead of one"),
            (&|m| m["layers"] = many(100_000), "100000 entries"),
            (&|m| m["layers"][0]["size"] = (1_u64 << 40).into(), "larger than"),
            (&|m| m["layers"][0]["mediaType"] = "x".into(), "its layer is"),
            (&|m| m["layers"][0]["digest"] = "sha256:../../etc/passwd".into(), "no digest"),
            (&|m| m["mediaType"] = "text/html".into(), "media type"),
            (
                &|m| {
                    m["artifactType"] = "application/x".into();
                    m["config"]["mediaType"] = "application/y".into();
                },
                "its type is",
            ),
        ];
        for (change, expected) in cases {
            let error = check(change).unwrap();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let index = Bytes::from_static(b"{\"schemaVersion\":2,\"manifests\":[]}");
        assert!(parts("x", &Stored::parse("x", None, index).unwrap()).is_err());
    }

    #[test]
    fn configs_of_newer_formats_are_refused() {
        let error = Config::parse("x", br#"{"format": 2}"#).unwrap_err().to_string();
        assert!(error.contains("upgrade Operetta"), "{error}");
        assert!(Config::parse("x", br#"{"format": 1}"#).is_err());
        assert!(Config::parse("x", b"[").is_err());
    }

    #[test]
    fn the_first_paragraph_is_text() {
        let readme = "# etcd\n\n![badge](x)\n\nRuns etcd\nclusters.\n\nMore.\n";
        assert_eq!(first_paragraph(readme).as_deref(), Some("Runs etcd clusters."));
        assert_eq!(first_paragraph("# only\n"), None);
    }
}
