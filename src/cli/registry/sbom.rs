//! The SBOM of a package: itself, the packages that it requires, and the images that it uses.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use operetta_registry::{Config, Digest};
use serde_json::Value;

use crate::cli::spdx::{Component, document as document_of};

/// The document about the package with this config and manifest. It names no registry that the package is in: copies have the same.
pub(super) fn document(config: &Config, manifest: &Digest) -> Value {
    let root = Component {
        name: config.name.clone(),
        version: Some(config.version.clone()),
        purl: Some(format!("pkg:oci/{}@{}", config.name, escaped(&manifest.to_string()))),
        sha256: Some(manifest.hex().to_owned()),
        description: config.description.clone(),
        purpose: Some("APPLICATION"),
    };
    let locked = config.requires.locked.iter().map(|locked| Component {
        name: locked.name.clone(),
        version: Some(locked.version.clone()),
        purl: Some(purl(&format!("{}:{}@{}", trimmed(&locked.package), locked.version, locked.digest))),
        sha256: locked.digest.strip_prefix("sha256:").map(str::to_owned),
        description: None,
        purpose: Some("APPLICATION"),
    });
    let images = images(config).into_iter().map(|image| {
        let Image { name, tag, digest } = Image::parse(image);
        let words: Vec<&str> = [tag, digest].into_iter().flatten().collect();
        Component {
            name: name.to_owned(),
            version: (!words.is_empty()).then(|| words.join("@")),
            purl: Some(purl(image)),
            sha256: digest.and_then(|digest| digest.strip_prefix("sha256:")).map(str::to_owned),
            description: None,
            purpose: Some("CONTAINER"),
        }
    });
    let others: Vec<Component> = locked.chain(images).collect();
    document_of(&root, &others, &format!("-{}", manifest.hex()))
}

/// The images that a config names: of the templates, and of the cases that were played.
pub(super) fn images(config: &Config) -> BTreeSet<&str> {
    let tests = config.evidence.iter().filter_map(|evidence| evidence.tests.as_ref());
    config.images.iter().chain(tests.flat_map(|tests| &tests.images)).map(String::as_str).collect()
}

/// The parts of the name of an image.
struct Image<'i> {
    name: &'i str,
    tag: Option<&'i str>,
    digest: Option<&'i str>,
}

impl<'i> Image<'i> {
    fn parse(text: &'i str) -> Self {
        let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
        // A colon before the last slash is that of a port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        Self { name, tag, digest }
    }
}

/// The package URL of an image, by the type `oci`: the name is the last part of its path, in lower case.
fn purl(image: &str) -> String {
    let Image { name, tag, digest } = Image::parse(image);
    let last = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let version = digest.map(|digest| format!("@{}", escaped(digest))).unwrap_or_default();
    let tag = tag.map(|tag| format!("&tag={}", escaped(tag))).unwrap_or_default();
    format!("pkg:oci/{}{version}?repository_url={}{tag}", escaped(&last), escaped(name).replace("%2F", "/"))
}

/// A text in a package URL.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b".-_~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// A repository without its scheme.
fn trimmed(repository: &str) -> &str {
    repository.strip_prefix("oci://").unwrap_or(repository)
}

#[cfg(test)]
mod tests {
    use operetta_registry::artifact::Locked;

    use super::*;
    use crate::cli::spdx::tests::problems;

    #[test]
    fn an_sbom_lists_packages_and_images_and_is_deterministic() {
        let digest = Digest::of(b"manifest");
        let mut config = Config::new("shop", "1.0.0+build.5", &"0".repeat(64));
        config.images = ["a/b:1", "a-b:1", "localhost:5000/c", "d@sha256:00"].map(str::to_owned).into();
        config.requires.locked = vec![Locked {
            name: "cache".to_owned(),
            version: "1.2.0".to_owned(),
            package: "oci://ghcr.io/acme/cache".to_owned(),
            digest: Digest::of(b"cache").to_string(),
        }];
        let document = super::document(&config, &digest);
        config.images[3] = format!("d@{}", Digest::of(b"d"));
        assert!(problems(&document).iter().any(|problem| problem.contains("checksumValue")), "{document}");
        let document = super::document(&config, &digest);
        assert_eq!(problems(&document), Vec::<String>::new());
        assert_eq!(document, super::document(&config, &digest));
        let names: Vec<&str> = document["packages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["shop", "cache", "a-b", "a/b", "d", "localhost:5000/c"]);
        assert_eq!(document["relationships"].as_array().unwrap().len(), 6);
    }

    #[test]
    fn package_urls_follow_the_type_oci() {
        for (image, expected) in [
            ("quay.io/coreos/etcd:v3.6.0", "pkg:oci/etcd?repository_url=quay.io/coreos/etcd&tag=v3.6.0"),
            ("busybox", "pkg:oci/busybox?repository_url=busybox"),
            ("localhost:5000/a/B:1", "pkg:oci/b?repository_url=localhost%3A5000/a/B&tag=1"),
            ("a/b:1@sha256:0f", "pkg:oci/b@sha256%3A0f?repository_url=a/b&tag=1"),
        ] {
            assert_eq!(purl(image), expected);
        }
    }
}
