//! The images of a real node, built once from Debian packages and Go binaries, without Docker.
//!
//! A folder of the cache contains them. Its name is the hash of everything in this code that affects them:
//!
//! ```text
//! images/<hash>/images.json     names, each with the digest of its manifest
//! images/<hash>/blobs/<digest>  manifests, configurations and layers
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use data_encoding::HEXLOWER;
use ring::digest;
use serde_json::{Value, json};

use crate::binaries::Binaries;
use crate::build::lock;
use crate::error::Error;
use crate::tools::{Environment, OnProgress, Progress, Tool};

/// The script that builds the layers.
const LAYERS: &str = include_str!("images.sh");

/// The file with the names of the images.
pub(super) const NAMES: &str = "images.json";
/// The folder of all other files.
pub(super) const BLOBS: &str = "blobs";

/// The media types of manifests, configurations and layers.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image.
struct Image {
    repository: &'static str,
    tags: &'static [&'static str],
    layers: &'static [&'static str],
    entrypoint: &'static [&'static str],
    command: &'static [&'static str],
}

/// All images. Their tags are the versions of their content.
const IMAGES: [Image; 7] = [
    Image {
        repository: "registry.k8s.io/pause",
        tags: &["3.10"],
        layers: &["busybox"],
        entrypoint: &["/bin/sleep", "infinity"],
        command: &[],
    },
    Image {
        repository: "docker.io/library/busybox",
        tags: &["1.35.0", "1.35", "latest"],
        layers: &["busybox"],
        entrypoint: &[],
        command: &["sh"],
    },
    Image {
        repository: "quay.io/coreos/etcd",
        tags: &["v3.4.23"],
        layers: &["busybox", "libc", "etcd-3.4"],
        entrypoint: &[],
        command: &["/usr/local/bin/etcd"],
    },
    Image {
        repository: "quay.io/coreos/etcd",
        tags: &["v3.5.35"],
        layers: &["busybox", "etcd-3.5"],
        entrypoint: &[],
        command: &["/usr/local/bin/etcd"],
    },
    Image {
        repository: "quay.io/coreos/etcd",
        tags: &["v3.6.8"],
        layers: &["busybox", "etcd-3.6"],
        entrypoint: &[],
        command: &["/usr/local/bin/etcd"],
    },
    Image {
        repository: "docker.io/library/nginx",
        tags: &["1.22.1", "1.22", "latest"],
        layers: &["busybox", "libc", "nginx"],
        entrypoint: &[],
        command: &["nginx", "-g", "daemon off;"],
    },
    Image {
        repository: "docker.io/rclone/rclone",
        tags: &["1.73.5", "latest"],
        layers: &["busybox", "rclone"],
        entrypoint: &["rclone"],
        command: &[],
    },
];

impl Image {
    fn names(&self) -> impl Iterator<Item = String> {
        self.tags.iter().map(|tag| format!("{}:{tag}", self.repository))
    }

    /// The configuration. `digests` contains all layers.
    fn config(&self, digests: &BTreeMap<String, Blob>) -> Value {
        json!({
            "architecture": if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Entrypoint": self.entrypoint,
                "Cmd": self.command,
                "StopSignal": if self.repository.ends_with("nginx") { "SIGQUIT" } else { "SIGTERM" },
            },
            // The layers are not compressed, so these are the digests of their files.
            "rootfs": {"type": "layers", "diff_ids": self.layers.iter().map(|l| &digests[*l].digest).collect::<Vec<_>>()},
        })
    }

    /// The manifest.
    fn manifest(&self, config: &Blob, layers: &BTreeMap<String, Blob>) -> Value {
        let descriptor =
            |kind: &str, blob: &Blob| json!({"mediaType": kind, "digest": blob.digest, "size": blob.size});
        json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, config),
            "layers": self.layers.iter().map(|layer| descriptor(LAYER, &layers[*layer])).collect::<Vec<_>>(),
        })
    }
}

/// The digest and the size of a file.
struct Blob {
    digest: String,
    size: usize,
}

/// The names of all images.
pub fn names() -> impl Iterator<Item = String> {
    IMAGES.iter().flat_map(Image::names)
}

/// Returns the folder of the images in the cache; they are built if they are missing.
pub(crate) async fn ensure(
    binaries: &Binaries,
    environment: &Environment,
    progress: &OnProgress,
) -> Result<PathBuf, Error> {
    let images = environment.cache.as_ref().ok_or(Error::NoCacheFolder)?.join("images");
    let bin = |tool: Tool| binaries.path(tool).parent().unwrap_or(Path::new("/")).to_path_buf();
    let sources = [
        ("ETCD_3_5", bin(Tool::Etcd35)),
        ("ETCD_3_6", bin(Tool::Etcdutl)),
        ("RCLONE", binaries.path(Tool::Rclone).to_path_buf()),
    ];
    let set = images.join(set_name(&sources));
    if set.is_dir() {
        return Ok(set);
    }
    fs::create_dir_all(&images).map_err(Error::io("create", &images))?;
    let _lock = lock(&images.join("lock"), progress).await?;
    if set.is_dir() {
        return Ok(set);
    }
    progress(&Progress::Images);
    let work = images.join("work");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(Error::io("remove", &work))?;
    }
    let layers = work.join("layers");
    fs::create_dir_all(&layers).map_err(Error::io("create", &layers))?;
    let output = tokio::process::Command::new("sh")
        .args(["-c", LAYERS])
        .current_dir(&layers)
        .envs(sources)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(Error::io("run", Path::new("sh")))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Images { output: super::super::last_lines(&output) });
    }
    let finished = work.join("set");
    write(&layers, &finished)?;
    fs::rename(&finished, &set).map_err(Error::io("move into its place", &finished))?;
    let _ = fs::remove_dir_all(&work);
    Ok(set)
}

/// The name of the folder. It changes with everything that affects an image, including the versions of
/// binaries.
fn set_name(sources: &[(&str, PathBuf); 3]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(LAYERS.as_bytes());
    let nothing = || Blob { digest: String::new(), size: 0 };
    for image in &IMAGES {
        let layers = image.layers.iter().map(|layer| ((*layer).to_owned(), nothing())).collect();
        context.update(format!("{:?} {:?} {}", image.tags, image.layers, image.config(&layers)).as_bytes());
    }
    for (name, path) in sources {
        context.update(format!("{name} {}", path.display()).as_bytes());
    }
    HEXLOWER.encode(&context.finish().as_ref()[..8])
}

/// Writes the images that consist of these layers.
fn write(layers: &Path, set: &Path) -> Result<(), Error> {
    let blobs = set.join(BLOBS);
    fs::create_dir_all(&blobs).map_err(Error::io("create", &blobs))?;
    let mut written = BTreeMap::new();
    for layer in IMAGES.iter().flat_map(|image| image.layers) {
        if !written.contains_key(*layer) {
            let path = layers.join(format!("{layer}.tar"));
            let blob = hash(&path).map_err(Error::io("read", &path))?;
            fs::rename(&path, blobs.join(&blob.digest)).map_err(Error::io("move into its place", &path))?;
            written.insert((*layer).to_owned(), blob);
        }
    }
    let mut names = BTreeMap::new();
    for image in &IMAGES {
        let config = store(&blobs, &image.config(&written))?;
        let manifest = store(&blobs, &image.manifest(&config, &written))?;
        names.extend(image.names().map(|name| (name, manifest.digest.clone())));
    }
    let path = set.join(NAMES);
    fs::write(&path, json!(names).to_string()).map_err(Error::io("write", &path))
}

/// Writes a JSON blob.
fn store(blobs: &Path, value: &Value) -> Result<Blob, Error> {
    let text = value.to_string();
    let digest =
        format!("sha256:{}", HEXLOWER.encode(digest::digest(&digest::SHA256, text.as_bytes()).as_ref()));
    let path = blobs.join(&digest);
    fs::write(&path, &text).map_err(Error::io("write", &path))?;
    Ok(Blob { digest, size: text.len() })
}

/// Computes the digest and the size of a file.
fn hash(path: &Path) -> std::io::Result<Blob> {
    let mut file = File::open(path)?;
    let mut context = digest::Context::new(&digest::SHA256);
    let mut piece = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok(Blob {
                digest: format!("sha256:{}", HEXLOWER.encode(context.finish().as_ref())),
                size,
            });
        }
        context.update(&piece[..read]);
        size += read;
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::PAUSE;
    use super::*;

    #[test]
    fn images_are_written_with_the_digests_of_their_blobs() {
        let (layers, sets) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for layer in IMAGES.iter().flat_map(|image| image.layers) {
            fs::write(layers.path().join(format!("{layer}.tar")), layer).unwrap();
        }
        let set = sets.path().join("set");
        write(layers.path(), &set).unwrap();
        let read = |path: PathBuf| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
        let names = read(set.join(NAMES));
        assert_eq!(names.as_object().unwrap().len(), super::names().count());
        for entry in fs::read_dir(set.join(BLOBS)).unwrap().flatten() {
            assert_eq!(hash(&entry.path()).unwrap().digest, entry.file_name().to_str().unwrap());
        }
        let blob = |digest: &Value| set.join(BLOBS).join(digest.as_str().unwrap());
        let manifest = read(blob(&names["quay.io/coreos/etcd:v3.4.23"]));
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 3);
        let config = read(blob(&manifest["config"]["digest"]));
        assert_eq!(config["rootfs"]["diff_ids"][2], manifest["layers"][2]["digest"]);
        let size = manifest["layers"][2]["size"].as_u64().unwrap();
        assert_eq!(size, fs::metadata(blob(&manifest["layers"][2]["digest"])).unwrap().len());
    }

    #[test]
    fn script_builds_every_layer_and_pause_image_exists() {
        for layer in IMAGES.iter().flat_map(|image| image.layers) {
            assert!(LAYERS.contains(&format!("\nlayer {layer}\n")), "{layer}");
        }
        assert!(names().any(|name| name == PAUSE));
    }

    #[test]
    fn other_binaries_change_the_name_of_the_set() {
        let sources = |rclone: &str| [("A", "/a".into()), ("B", "/b".into()), ("C", rclone.into())];
        assert_ne!(set_name(&sources("/c")), set_name(&sources("/d")));
    }
}
