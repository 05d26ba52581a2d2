//! The images of a real node, built once from descriptions (`tests/images/*.yaml` of packages, and our own beside this file),
//! without Docker.
//!
//! Each has a folder in the cache, whose name is the hash of everything that affects it:
//!
//! ```text
//! images/<hash>/images.json     names, each with the digest of its manifest
//! images/<hash>/blobs/<digest>  the manifest, the configuration and the layer
//! ```

mod layer;
mod sources;
mod zip;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use operetta_lang::diag::Source;
use operetta_package::image::{Image, read_image};
use ring::digest;
use serde_json::{Value, json};

use crate::binaries::Binaries;
use crate::build::lock;
use crate::error::Error;
use crate::tools::{Environment, OnProgress, Progress};

/// The images that every node has.
const OWN: [(&str, &str); 7] = [
    ("busybox.yaml", include_str!("images/busybox.yaml")),
    ("etcd-3.4.yaml", include_str!("images/etcd-3.4.yaml")),
    ("etcd-3.5.yaml", include_str!("images/etcd-3.5.yaml")),
    ("etcd-3.6.yaml", include_str!("images/etcd-3.6.yaml")),
    ("nginx.yaml", include_str!("images/nginx.yaml")),
    ("pause.yaml", include_str!("images/pause.yaml")),
    ("rclone.yaml", include_str!("images/rclone.yaml")),
];
/// Changes when this code makes another image of the same description.
const VERSION: &str = "1";

/// The file with the names of the images.
pub(super) const NAMES: &str = "images.json";
/// The folder of all other files.
pub(super) const BLOBS: &str = "blobs";

/// The media types of manifests, configurations and layers.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The digest and the size of a file.
struct Blob {
    digest: String,
    size: u64,
}

/// The descriptions of the images that every node has.
fn own() -> impl Iterator<Item = Image> {
    OWN.iter().filter_map(|(name, text)| read_image(&Source::new(*name, *text)).ok())
}

/// Returns the folders in the cache of our images and of those that packages describe; what is missing is built.
pub(crate) async fn ensure(
    described: &[Image],
    binaries: &Binaries,
    environment: &Environment,
    progress: &OnProgress,
) -> Result<Vec<PathBuf>, Error> {
    let cache = environment.cache.as_ref().ok_or(Error::NoCacheFolder)?.join("images");
    fs::create_dir_all(&cache).map_err(Error::io("create", &cache))?;
    let mut sets = Vec::new();
    for image in own().chain(described.iter().cloned()) {
        let set = cache.join(set_name(&image, &sources::inputs(&image, binaries)?));
        if !set.is_dir() {
            let _lock = lock(&cache.join("lock"), progress).await?;
            if !set.is_dir() {
                progress(&Progress::Image(image.names().next().unwrap_or_default()));
                build(&image, binaries, &cache.join("work"), &set).await?;
            }
        }
        sets.push(set);
    }
    Ok(sets)
}

/// The name of the folder of an image. `inputs` is what affects it beside its description.
fn set_name(image: &Image, inputs: &[u8]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [VERSION.as_bytes(), architecture().as_bytes(), image.name.at.source.text.as_bytes(), inputs]
    {
        context.update(&part.len().to_le_bytes());
        context.update(part);
    }
    HEXLOWER.encode(&context.finish().as_ref()[..8])
}

/// Builds an image in the folder `work`, and moves it to its place once it is whole.
async fn build(image: &Image, binaries: &Binaries, work: &Path, set: &Path) -> Result<(), Error> {
    if work.exists() {
        fs::remove_dir_all(work).map_err(Error::io("remove", work))?;
    }
    let finished = work.join("set");
    let blobs = finished.join(BLOBS);
    fs::create_dir_all(&blobs).map_err(Error::io("create", &blobs))?;
    let path = work.join("layer.tar");
    let layer = sources::layer(image, binaries, work).await?;
    layer
        .write(&path)
        .map_err(|error| Error::Image { at: image.name.at.to_string(), reason: error.to_string() })?;
    let layer = hash(&path).map_err(Error::io("read", &path))?;
    fs::rename(&path, blobs.join(&layer.digest)).map_err(Error::io("move into its place", &path))?;
    write(image, &layer, &finished)?;
    fs::rename(&finished, set).map_err(Error::io("move into its place", &finished))?;
    let _ = fs::remove_dir_all(work);
    Ok(())
}

/// Writes the configuration, the manifest and the names of an image.
fn write(image: &Image, layer: &Blob, set: &Path) -> Result<(), Error> {
    let blobs = set.join(BLOBS);
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    let variables =
        image.env.iter().flat_map(|env| &env.0).map(|(name, value)| format!("{}={value}", name.value));
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": std::iter::once(path).chain(variables).collect::<Vec<_>>(),
            "Entrypoint": image.entrypoint,
            "Cmd": image.command,
            "User": image.user.as_deref().unwrap_or_default(),
            "StopSignal": image.stop_signal.as_deref().unwrap_or("SIGTERM"),
        },
        // The layer is not compressed, so this is the digest of its file.
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    });
    let descriptor =
        |kind: &str, blob: &Blob| json!({"mediaType": kind, "digest": blob.digest, "size": blob.size});
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, &store(&blobs, &config)?),
        "layers": [descriptor(LAYER, layer)],
    });
    let manifest = store(&blobs, &manifest)?;
    let names: BTreeMap<_, _> = image.names().map(|name| (name, manifest.digest.clone())).collect();
    let path = set.join(NAMES);
    fs::write(&path, json!(names).to_string()).map_err(Error::io("write", &path))
}

fn architecture() -> &'static str {
    if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" }
}

/// Writes a JSON blob.
fn store(blobs: &Path, value: &Value) -> Result<Blob, Error> {
    let text = value.to_string();
    let digest =
        format!("sha256:{}", HEXLOWER.encode(digest::digest(&digest::SHA256, text.as_bytes()).as_ref()));
    let path = blobs.join(&digest);
    fs::write(&path, &text).map_err(Error::io("write", &path))?;
    Ok(Blob { digest, size: text.len() as u64 })
}

/// Computes the digest and the size of a file.
fn hash(path: &Path) -> std::io::Result<Blob> {
    struct Hash(digest::Context);
    impl std::io::Write for Hash {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut hash = Hash(digest::Context::new(&digest::SHA256));
    let size = std::io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(Blob { digest: format!("sha256:{}", HEXLOWER.encode(hash.0.finish().as_ref())), size })
}

#[cfg(test)]
mod tests {
    use super::super::config::PAUSE;
    use super::*;

    #[test]
    fn own_descriptions_are_valid() {
        for (name, text) in OWN {
            assert!(read_image(&Source::new(name, text)).is_ok(), "{name}");
        }
        assert!(own().any(|image| image.names().any(|name| name == PAUSE)));
    }

    #[test]
    fn images_are_written_with_the_digests_of_their_blobs() {
        let set = tempfile::tempdir().unwrap();
        let blobs = set.path().join(BLOBS);
        fs::create_dir(&blobs).unwrap();
        let nginx = own().find(|image| image.name.value == "nginx").unwrap();
        write(&nginx, &Blob { digest: "sha256:aa".to_owned(), size: 7 }, set.path()).unwrap();
        let read = |path: PathBuf| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
        for entry in fs::read_dir(&blobs).unwrap().flatten() {
            assert_eq!(hash(&entry.path()).unwrap().digest, entry.file_name().to_str().unwrap());
        }
        let blob = |digest: &Value| blobs.join(digest.as_str().unwrap());
        let manifest = read(blob(&read(set.path().join(NAMES))["docker.io/library/nginx:latest"]));
        assert_eq!(manifest["layers"], json!([{"mediaType": LAYER, "digest": "sha256:aa", "size": 7}]));
        let config = read(blob(&manifest["config"]["digest"]));
        assert_eq!(config["config"]["StopSignal"], "SIGQUIT");
        assert_eq!(config["rootfs"]["diff_ids"], json!(["sha256:aa"]));
    }

    #[test]
    fn other_descriptions_and_inputs_change_the_name_of_the_folder() {
        let mut names: Vec<_> = own().map(|image| set_name(&image, b"")).collect();
        names.extend(own().map(|image| set_name(&image, b"other")));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), OWN.len() * 2);
    }
}
