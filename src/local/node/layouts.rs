//! Images that the user provides as OCI layouts. The registry of the node serves them in addition to its own
//! images.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use operetta_package::image;
use serde_json::Value;

use super::images::{BLOBS, MANIFEST, NAMES};
use crate::error::Error;

/// The annotations with the name of an image. Docker and containerd write the whole name into the first
/// annotation, and only the tag into the second.
const NAMES_OF_IMAGE: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
/// The folder of the blobs of a layout.
const LAYOUT_BLOBS: &str = "blobs/sha256";

/// Creates a folder for the registry, with the images of the cache (`sets`) and those of the layouts; of two with one name
/// the later one counts.
pub(super) fn merge(sets: &[PathBuf], layouts: &[PathBuf], folder: &Path) -> Result<(), Error> {
    let blobs = folder.join(BLOBS);
    fs::create_dir_all(&blobs).map_err(Error::io("create", &blobs))?;
    let link = |from: &Path, digest: &str| {
        let to = blobs.join(digest);
        if to.is_symlink() { Ok(()) } else { symlink(from, &to).map_err(Error::io("create", &to)) }
    };
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for set in sets {
        let own = set.join(BLOBS);
        for entry in fs::read_dir(&own).map_err(Error::io("read", &own))?.flatten() {
            link(&entry.path(), &entry.file_name().to_string_lossy())?;
        }
        let path = set.join(NAMES);
        let text = fs::read(&path).map_err(Error::io("read", &path))?;
        names.extend(serde_json::from_slice::<BTreeMap<_, _>>(&text).unwrap_or_default());
    }
    for layout in layouts {
        let layout = fs::canonicalize(layout).map_err(Error::io("read", layout))?;
        let content = layout.join(LAYOUT_BLOBS);
        for entry in fs::read_dir(&content).map_err(Error::io("read", &content))?.flatten() {
            link(&entry.path(), &format!("sha256:{}", entry.file_name().to_string_lossy()))?;
        }
        names.extend(images(&layout)?);
    }
    let path = folder.join(NAMES);
    fs::write(&path, serde_json::json!(names).to_string()).map_err(Error::io("write", &path))
}

/// The named images of a layout, each with the digest of the manifest for this machine.
fn images(layout: &Path) -> Result<Vec<(String, String)>, Error> {
    let wrong = |reason: &str| Error::Layout { path: layout.to_owned(), reason: reason.to_owned() };
    let read = |path: &Path| -> Result<Value, Error> {
        let text = fs::read(path).map_err(Error::io("read", path))?;
        serde_json::from_slice(&text).map_err(|_| wrong("one of its files is not JSON"))
    };
    let index = read(&layout.join("index.json"))?;
    let mut found = Vec::new();
    for image in index["manifests"].as_array().into_iter().flatten() {
        let name = NAMES_OF_IMAGE.iter().find_map(|name| image["annotations"][*name].as_str());
        let Some(name) = name else { continue };
        let mut image = image.clone();
        if image["mediaType"] != MANIFEST {
            let digest = image["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
            let digest = digest.filter(|digest| digest.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let digest = digest.ok_or_else(|| wrong("an image has no digest"))?;
            let index = read(&layout.join(LAYOUT_BLOBS).join(digest))?;
            let own = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
            let mut manifests = index["manifests"].as_array().into_iter().flatten();
            let here = manifests.find(|one| one["platform"]["architecture"] == own);
            image = here.cloned().ok_or_else(|| wrong("an image is not for this processor"))?;
        }
        let digest = image["digest"].as_str().ok_or_else(|| wrong("an image has no digest"))?;
        found.push((full(name), digest.to_owned()));
    }
    if found.is_empty() {
        return Err(wrong("it has no image with a name"));
    }
    Ok(found)
}

/// Completes a name to the form that containerd requests: with a registry and a tag.
fn full(name: &str) -> String {
    let name = image::full(name);
    if name.rsplit('/').next().is_some_and(|end| end.contains(':')) { name } else { format!("{name}:latest") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn image_names_are_completed_as_containerd_does() {
        for (name, expected) in [
            ("operetta:0.1.0", "docker.io/library/operetta:0.1.0"),
            ("operetta", "docker.io/library/operetta:latest"),
            ("team/operetta:1", "docker.io/team/operetta:1"),
            ("ghcr.io/team/operetta:1", "ghcr.io/team/operetta:1"),
            ("localhost/operetta", "localhost/operetta:latest"),
        ] {
            assert_eq!(full(name), expected);
        }
    }

    #[test]
    fn images_of_a_layout_are_added_to_the_node() {
        let root = tempfile::tempdir().unwrap();
        let (set, layout, folder) =
            (root.path().join("set"), root.path().join("layout"), root.path().join("all"));
        fs::create_dir_all(set.join(BLOBS)).unwrap();
        fs::create_dir_all(layout.join(LAYOUT_BLOBS)).unwrap();
        fs::write(set.join(BLOBS).join("sha256:aa"), "own").unwrap();
        fs::write(set.join(NAMES), r#"{"quay.io/a:1":"sha256:aa"}"#).unwrap();
        fs::write(layout.join(LAYOUT_BLOBS).join("bb"), "theirs").unwrap();
        let index = |annotations: &[(&str, &str)]| {
            let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
            let image = json!({"mediaType": MANIFEST, "digest": "sha256:bb", "annotations": annotations});
            fs::write(layout.join("index.json"), json!({"manifests": [image]}).to_string()).unwrap();
        };
        let [whole, name] = NAMES_OF_IMAGE;
        // The annotations that Docker writes.
        index(&[(whole, "ghcr.io/team/o:1"), (name, "1")]);
        assert_eq!(images(&layout).unwrap(), [("ghcr.io/team/o:1".to_owned(), "sha256:bb".to_owned())]);
        index(&[(name, "o:1")]);
        merge(std::slice::from_ref(&set), std::slice::from_ref(&layout), &folder).unwrap();
        let names: Value = serde_json::from_slice(&fs::read(folder.join(NAMES)).unwrap()).unwrap();
        assert_eq!(names["docker.io/library/o:1"], "sha256:bb");
        assert_eq!(names["quay.io/a:1"], "sha256:aa");
        assert_eq!(fs::read_to_string(folder.join(BLOBS).join("sha256:bb")).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(folder.join(BLOBS).join("sha256:aa")).unwrap(), "own");
        fs::write(layout.join("index.json"), "{}").unwrap();
        assert!(matches!(merge(&[set], &[layout], &folder), Err(Error::Layout { .. })));
    }
}
