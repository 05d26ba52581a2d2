//! An image as an OCI layout, made without Docker. The same inputs give the same bytes: files have no times and no owners
//! of this machine, and their order is fixed.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use data_encoding::HEXLOWER;
use flate2::{Compression, GzBuilder};
use ring::digest;
use serde_json::{Value, json};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const SBOM: &str = "application/spdx+json";
/// The annotation with the name of an image in a layout.
pub(super) const NAME: &str = "org.opencontainers.image.ref.name";

/// The user as whom the container runs.
const USER: u32 = 65_532;

/// A file of an image.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Its path, without a leading slash.
    pub path: String,
    pub content: Vec<u8>,
    pub is_executable: bool,
}

/// An image for one architecture.
pub(super) struct Image<'a> {
    /// `amd64` or `arm64`.
    pub architecture: &'a str,
    pub files: Vec<Entry>,
    pub sbom: Vec<u8>,
}

/// A layout: its files by path.
pub(super) type Layout = BTreeMap<String, Vec<u8>>;

/// What is the same for all architectures.
pub(super) struct Settings<'a> {
    /// The name of the image, `operetta:0.1.0`.
    pub name: &'a str,
    pub version: &'a str,
    pub gzip: bool,
}

/// The layout of an image: with one architecture its manifest, with several an index of them. The SBOM of each is an artifact
/// that refers to its manifest.
///
/// # Errors
/// A path cannot be in a tar archive.
pub(super) fn layout(images: &[Image<'_>], settings: &Settings<'_>) -> io::Result<Layout> {
    let mut blobs = Blobs::default();
    let (mut manifests, mut artifacts) = (Vec::new(), Vec::new());
    for image in images {
        let mut manifest = manifest(image, settings, &mut blobs)?;
        let subject = manifest.clone();
        artifacts.push(artifact(&image.sbom, &subject, &mut blobs));
        manifest["platform"] = json!({"os": "linux", "architecture": image.architecture});
        manifests.push(manifest);
    }
    let mut named = match manifests.as_slice() {
        [one] => one.clone(),
        _ => blobs.json(INDEX, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})),
    };
    named["annotations"] = json!({NAME: settings.name});
    let all: Vec<Value> = [named].into_iter().chain(artifacts).collect();
    let mut layout = blobs.0;
    layout.insert("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": all});
    layout.insert("index.json".into(), index.to_string().into_bytes());
    Ok(layout)
}

#[derive(Default)]
struct Blobs(Layout);

impl Blobs {
    fn add(&mut self, kind: &str, content: Vec<u8>) -> Value {
        let (digest, size) = (sha256(&content), content.len());
        self.0.insert(format!("blobs/sha256/{digest}"), content);
        json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size})
    }

    fn json(&mut self, kind: &str, value: &Value) -> Value {
        self.add(kind, value.to_string().into_bytes())
    }
}

fn sha256(content: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, content).as_ref())
}

fn manifest(image: &Image<'_>, settings: &Settings<'_>, blobs: &mut Blobs) -> io::Result<Value> {
    let tar = archive(&image.files)?;
    let diff_id = format!("sha256:{}", sha256(&tar));
    let layer =
        if settings.gzip { blobs.add(&format!("{LAYER}+gzip"), gzip(&tar)?) } else { blobs.add(LAYER, tar) };
    let labels = json!({
        "org.opencontainers.image.title": "operetta",
        "org.opencontainers.image.version": settings.version,
    });
    let config = json!({
        "architecture": image.architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/operetta"],
            "WorkingDir": "/",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    });
    let config = blobs.json(CONFIG, &config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer], "annotations": labels,
    });
    Ok(blobs.json(MANIFEST, &manifest))
}

/// The SBOM of an image.
fn artifact(sbom: &[u8], subject: &Value, blobs: &mut Blobs) -> Value {
    let config = blobs.add(EMPTY, b"{}".to_vec());
    let layer = blobs.add(SBOM, sbom.to_vec());
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": SBOM, "config": config, "layers": [layer],
        "subject": subject,
    });
    let mut descriptor = blobs.json(MANIFEST, &manifest);
    descriptor["artifactType"] = SBOM.into();
    descriptor
}

/// The files as a tar archive, with their folders.
fn archive(files: &[Entry]) -> io::Result<Vec<u8>> {
    let mut all: BTreeMap<String, Option<&Entry>> = BTreeMap::new();
    for file in files {
        for (end, _) in file.path.match_indices('/') {
            all.insert(format!("{}/", &file.path[..end]), None);
        }
        all.insert(file.path.clone(), Some(file));
    }
    let mut archive = tar::Builder::new(Vec::new());
    for (path, file) in all {
        let mut header = tar::Header::new_gnu();
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        match file {
            None => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                header.set_size(0);
                archive.append_data(&mut header, &path, io::empty())?;
            }
            Some(file) => {
                header.set_mode(if file.is_executable { 0o755 } else { 0o644 });
                header.set_size(file.content.len() as u64);
                archive.append_data(&mut header, &path, file.content.as_slice())?;
            }
        }
    }
    archive.into_inner()
}

fn gzip(content: &[u8]) -> io::Result<Vec<u8>> {
    // The header has neither a name nor a time, so that the same files give the same bytes.
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    encoder.write_all(content)?;
    encoder.finish()
}

/// The accounts that programs look up.
pub(super) fn accounts() -> Vec<Entry> {
    let file = |path: &str, text: String| Entry {
        path: path.to_owned(),
        content: text.into_bytes(),
        is_executable: false,
    };
    vec![
        file("etc/passwd", format!("root:x:0:0:root:/:/\noperetta:x:{USER}:{USER}:operetta:/:/\n")),
        file("etc/group", format!("root:x:0:\noperetta:x:{USER}:\n")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(architecture: &str) -> Image<'_> {
        let binary = Entry { path: "operetta".into(), content: b"\x7fELF...".to_vec(), is_executable: true };
        let library = Entry { path: "lib/x/libc.so.6".into(), content: vec![1], is_executable: true };
        let files = [library, binary].into_iter().chain(accounts()).collect();
        Image { architecture, files, sbom: b"{\"a\":1}".to_vec() }
    }

    fn read(layout: &Layout, descriptor: &Value) -> Value {
        let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
        let content = &layout[&format!("blobs/{digest}")];
        assert_eq!(descriptor["size"], content.len());
        serde_json::from_slice(content).unwrap()
    }

    #[test]
    fn blobs_match_their_digests_and_references_resolve() {
        for gzip in [false, true] {
            let settings = Settings { name: "operetta:1", version: "1", gzip };
            let layout = layout(&[image("amd64"), image("arm64")], &settings).unwrap();
            for (path, content) in &layout {
                if let Some(digest) = path.strip_prefix("blobs/sha256/") {
                    assert_eq!(digest, sha256(content));
                }
            }
            let index: Value = serde_json::from_slice(&layout["index.json"]).unwrap();
            let [named, first, second] = index["manifests"].as_array().unwrap().as_slice() else {
                panic!("{index}")
            };
            assert_eq!(named["annotations"][NAME], "operetta:1");
            let images = read(&layout, named);
            let platforms: Vec<&Value> = images["manifests"]
                .as_array()
                .unwrap()
                .iter()
                .map(|m| &m["platform"]["architecture"])
                .collect();
            assert_eq!(platforms, ["amd64", "arm64"]);
            for (image, artifact) in images["manifests"].as_array().unwrap().iter().zip([first, second]) {
                let manifest = read(&layout, image);
                assert_eq!(read(&layout, &manifest["config"])["config"]["User"], "65532:65532");
                let artifact = read(&layout, artifact);
                assert_eq!(artifact["subject"]["digest"], image["digest"]);
                assert_eq!(read(&layout, &artifact["layers"][0]), json!({"a": 1}));
            }
        }
    }

    #[test]
    fn the_same_files_give_the_same_bytes_in_any_order() {
        let settings = Settings { name: "operetta:1", version: "1", gzip: true };
        let mut reversed = image("amd64");
        reversed.files.reverse();
        let one = layout(&[image("amd64")], &settings).unwrap();
        assert_eq!(one, layout(&[reversed], &settings).unwrap());
        let index: Value = serde_json::from_slice(&one["index.json"]).unwrap();
        let manifest = read(&one, &index["manifests"][0]);
        let layer =
            &one[&format!("blobs/{}", manifest["layers"][0]["digest"].as_str().unwrap().replace(':', "/"))];
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(layer.as_slice()));
        let entries: Vec<(String, u32, u64)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().display().to_string();
                (path, header.mode().unwrap(), header.mtime().unwrap())
            })
            .collect();
        let file = |path: &str, mode: u32| (path.to_owned(), mode, 0);
        assert_eq!(
            entries,
            [
                file("etc/", 0o755),
                file("etc/group", 0o644),
                file("etc/passwd", 0o644),
                file("lib/", 0o755),
                file("lib/x/", 0o755),
                file("lib/x/libc.so.6", 0o755),
                file("operetta", 0o755),
            ]
        );
    }
}
