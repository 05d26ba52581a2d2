//! The format of `tests/images/*.yaml`: images that a real node of `operetta dev --node` builds for a package. Packages do not
//! contain them.
//!
//! Editors show the doc comments of fields as the documentation of a key.

// Editors show these comments unformatted, so backticks are only for text that an author types.
#![allow(clippy::doc_markdown)]

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::compile::one_document;
use super::decode::{At, Decode, Decoder, Must, Named, manifest};
use super::files::UNREADABLE;
use super::lint::words::keys;
use super::manifest::{ApiVersion, inline_schema, literal};
use super::scope::{FileScope, Unread};
use crate::diag::{Diagnostic, Source};
use crate::yaml::Node;

/// The kind of the file.
pub const IMAGE_KIND: &str = "Image";
/// The folder of the files in a package.
pub const FOLDER: &str = "tests/images";
/// The largest file that is read, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// How many files a package may have.
const FILES: usize = 100;

literal! {
    /// `Image`.
    ImageKind, IMAGE_KIND
}

manifest! {
    /// An image. It consists of busybox and what is named here; of two files with one path the one that is named later counts.
    pub struct Image {
        /// The version of this format.
        "apiVersion" api_version: Must<ApiVersion>,
        /// Always Image.
        "kind" kind: Must<ImageKind>,
        /// The name by which pods use the image, without its tag.
        "name" name: At<String>,
        /// The tags of the image.
        "tags" tags: Vec<At<String>>,
        /// Packages of Debian 12, by name or as name=version, in which a version may end in `*`. Packages that they depend on
        /// are not added.
        "debian" debian: Option<Vec<At<String>>>,
        /// Wheels of PyPI.
        "wheels" wheels: Option<Vec<At<Wheel>>>,
        /// Files of Maven Central.
        "maven" maven: Option<Vec<At<Maven>>>,
        /// Programs that Operetta builds with Go for a node, for example `etcd-3.5`: where each is put.
        "tools" tools: Option<Named<At<String>>>,
        /// Files and folders of the packages, wheels and archives that are left out.
        "without" without: Option<Vec<At<String>>>,
        /// Further files, folders and links.
        "files" files: Option<Vec<At<ImageFile>>>,
        /// The program that containers run, with its first arguments.
        "entrypoint" entrypoint: Option<Vec<String>>,
        /// The arguments of the program, or without entrypoint the program.
        "command" command: Option<Vec<String>>,
        /// Environment variables.
        "env" env: Option<Named<String>>,
        /// The user of the program, for example "26" or "26:26". Default: root.
        "user" user: Option<String>,
        /// The signal that stops the program. Default: SIGTERM.
        "stopSignal" stop_signal: Option<String>,
    }
}

manifest! {
    /// A wheel of PyPI.
    pub struct Wheel {
        /// The name of the project.
        "name" name: At<String>,
        /// The version.
        "version" version: At<String>,
        /// The SHA-256 of the wheel.
        "sha256" sha256: At<String>,
        /// The file or folder of the wheel whose content is taken. Default: all.
        "from" from: Option<At<String>>,
        /// The folder into which it is put.
        "to" to: At<String>,
    }
}

manifest! {
    /// A file of Maven Central.
    pub struct Maven {
        /// The file: group:artifact:version, optionally with :packaging and :classifier.
        "artifact" artifact: At<String>,
        /// The SHA-256 of the file.
        "sha256" sha256: At<String>,
        /// The file or folder of the archive whose content is taken; `.` is all. Default: the file is not unpacked.
        "from" from: Option<At<String>>,
        /// The folder into which it is put.
        "to" to: At<String>,
    }
}

manifest! {
    /// A file, a folder or a link.
    pub struct ImageFile {
        /// Where it is.
        "path" path: At<String>,
        /// The text of the file.
        "text" text: Option<String>,
        /// The file whose content it has, beside the description or below it.
        "from" from: Option<At<String>>,
        /// The target of the link.
        "link" link: Option<String>,
        /// The mode, for example "0755". Default: 0644; of a folder, which has neither text nor from nor link, 0755.
        "mode" mode: Option<At<String>>,
        /// The user and the group as numbers, for example "26:26". Default: 0:0.
        "owner" owner: Option<At<String>>,
    }
}

impl Image {
    /// The names of the image with its tags.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.tags.iter().map(|tag| format!("{}:{}", full(&self.name.value), tag.value))
    }
}

/// Completes the name of an image to the form that containerd requests: with its registry.
pub fn full(name: &str) -> String {
    match name.split_once('/') {
        None => format!("docker.io/library/{name}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
    }
}

/// Reads the descriptions of a package, in the order of their names. A package need not have any.
///
/// # Errors
/// All mistakes in the files.
pub fn read_images(package: &Path) -> Result<Vec<Image>, Vec<Diagnostic>> {
    let (folder, scope) = (package.join(FOLDER), FileScope::of(package));
    let unreadable = |path: &Path, why: &dyn std::fmt::Display| {
        vec![Diagnostic::error(UNREADABLE, format!("{} cannot be read: {why}", path.display()))]
    };
    let files = match scope.yaml_files(&folder) {
        Ok(files) if files.len() > FILES => {
            return Err(unreadable(&folder, &format!("it has more than {FILES} files")));
        }
        Ok(files) => files,
        // A package may be an archive.
        Err(Unread::System(error))
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        Err(why) => return Err(unreadable(&folder, &why)),
    };
    let (mut images, mut errors, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for file in files {
        match scope.text(&file, FILE_BYTES) {
            Ok(text) => match read_image(&Source::new(file.display().to_string(), text)) {
                Ok(image) => {
                    for tag in &image.tags {
                        if !names.insert((image.name.value.clone(), tag.value.clone())) {
                            let message =
                                format!("another file describes {}:{}", image.name.value, tag.value);
                            errors.push(tag.error("image::duplicate", message));
                        }
                    }
                    images.push(image);
                }
                Err(found) => errors.extend(found),
            },
            Err(why) => errors.extend(unreadable(&file, &why)),
        }
    }
    if errors.is_empty() { Ok(images) } else { Err(errors) }
}

/// Reads a description.
///
/// # Errors
/// All mistakes of the text.
pub fn read_image(source: &Arc<Source>) -> Result<Image, Vec<Diagnostic>> {
    let node = one_document(source).map_err(|error| vec![error])?;
    let mut decoder = Decoder::new(source);
    let image = Image::decode(&node, &mut decoder);
    let mut errors = decoder.finish();
    keys(source, &node, &mut errors);
    if let Some(image) = &image {
        errors.extend(check(image));
    }
    match image {
        Some(image) if errors.is_empty() => Ok(image),
        _ => Err(errors),
    }
}

/// The values that are no names, versions, paths or digests. They become arguments of programs and paths of archives.
fn check(image: &Image) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    let mut require = |value: &At<String>, is_valid: bool, wanted: &str| {
        if !is_valid {
            errors.push(value.error("image::value", format!("must be {wanted}, is {}", value.value)));
        }
    };
    let is_word = |text: &str, more: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = &image.name;
    let is_lower = !name.value.chars().any(char::is_uppercase);
    require(name, is_word(&name.value, "._-/:") && is_lower, "the name of an image without its tag");
    for tag in &image.tags {
        require(tag, is_word(&tag.value, "._-") && tag.value.len() <= 128, "a tag");
    }
    for package in image.debian.iter().flatten() {
        let (name, version) = package.value.split_once('=').unwrap_or((&package.value, "1"));
        let is_valid = is_word(name, "+.-") && is_word(version, "+.-~:*");
        require(package, is_valid, "a package of Debian, such as libpq5 or libpq5=15.18-*");
    }
    for wheel in image.wheels.iter().flatten().map(|wheel| &wheel.value) {
        require(&wheel.name, is_word(&wheel.name.value, "._-"), "the name of a project of PyPI");
        require(&wheel.version, is_word(&wheel.version.value, "._-+!"), "a version");
        require(&wheel.sha256, is_digest(&wheel.sha256.value), "a SHA-256 in hexadecimal digits");
        require(&wheel.to, is_path(&wheel.to.value), ABSOLUTE);
    }
    for file in image.maven.iter().flatten().map(|file| &file.value) {
        let parts = file.artifact.value.split(':').count();
        let is_valid = (3..=5).contains(&parts) && is_word(&file.artifact.value, "._-:");
        require(&file.artifact, is_valid, "group:artifact:version");
        require(&file.sha256, is_digest(&file.sha256.value), "a SHA-256 in hexadecimal digits");
        require(&file.to, is_path(&file.to.value), ABSOLUTE);
    }
    for (_, path) in image.tools.iter().flat_map(|tools| &tools.0) {
        require(path, is_path(&path.value), ABSOLUTE);
    }
    for path in image.without.iter().flatten() {
        require(path, is_path(&path.value), ABSOLUTE);
    }
    for file in image.files.iter().flatten().map(|file| &file.value) {
        require(&file.path, is_path(&file.path.value), ABSOLUTE);
        if let Some(from) = &file.from {
            let stays = is_path(&format!("/{}", from.value));
            require(from, stays, "a path below the folder of this file, without `..`");
        }
        if let Some(mode) = &file.mode {
            require(
                mode,
                u32::from_str_radix(&mode.value, 8).is_ok_and(|mode| mode <= 0o7777),
                "an octal mode",
            );
        }
        if let Some(owner) = &file.owner {
            require(owner, ids(&owner.value).is_some(), "two numbers, such as 26:26");
        }
        let contents = [file.text.is_some(), file.from.is_some(), file.link.is_some()];
        let is_clear = contents.iter().filter(|is_set| **is_set).count() <= 1;
        require(&file.path, is_clear, "described by one of text, from and link");
    }
    errors
}

const ABSOLUTE: &str = "an absolute path without `..`";

fn is_path(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        !rest.contains('\0') && rest.split('/').all(|part| !matches!(part, "" | "." | ".."))
    })
}

/// The user and the group of `26:26`.
pub fn ids(owner: &str) -> Option<(u64, u64)> {
    let (user, group) = owner.split_once(':')?;
    Some((user.parse::<u32>().ok()?.into(), group.parse::<u32>().ok()?.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn read(text: &str) -> Result<Image, Vec<String>> {
        let text = format!("apiVersion: operetta.dev/v1alpha1\nkind: Image\n{text}");
        read_image(&Source::new("image.yaml", text)).map_err(|errors| {
            errors.iter().map(|error| format!("{} {}", error.code, error.message)).collect()
        })
    }

    #[test]
    fn descriptions_are_regular_files_of_the_package() {
        let package = tempfile::tempdir().unwrap();
        let folder = package.path().join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        let text = "apiVersion: operetta.dev/v1alpha1\nkind: Image\nname: a\ntags: [a]\n";
        fs::write(folder.join("a.yaml"), text).unwrap();
        assert_eq!(read_images(package.path()).unwrap().len(), 1);
        for target in ["/etc/passwd", "/proc/self/environ", "/dev/zero"] {
            symlink(target, folder.join("b.yaml")).unwrap();
            let errors = read_images(package.path()).unwrap_err();
            assert!(errors.len() == 1 && errors[0].message.contains("it is outside of"), "{errors:?}");
            fs::remove_file(folder.join("b.yaml")).unwrap();
        }
        let made = std::process::Command::new("mkfifo").arg(folder.join("b.yaml")).status();
        if made.is_ok_and(|status| status.success()) {
            let errors = read_images(package.path()).unwrap_err();
            assert!(errors[0].message.contains("it is no regular file"), "{errors:?}");
            fs::remove_file(folder.join("b.yaml")).unwrap();
        }
        fs::File::create(folder.join("b.yaml")).unwrap().set_len(FILE_BYTES + 1).unwrap();
        let errors = read_images(package.path()).unwrap_err();
        assert!(errors[0].message.contains("it is larger than 1 MiB"), "{errors:?}");
        for number in 0..FILES {
            symlink("a.yaml", folder.join(format!("c{number}.yaml"))).unwrap();
        }
        let errors = read_images(package.path()).unwrap_err();
        assert!(errors.len() == 1 && errors[0].message.contains("it has more than 100 files"), "{errors:?}");
        // The folder itself.
        fs::remove_dir_all(&folder).unwrap();
        symlink("/etc", &folder).unwrap();
        let errors = read_images(package.path()).unwrap_err();
        assert!(errors[0].message.contains("it is outside of"), "{errors:?}");
    }

    #[test]
    fn names_are_completed_as_containerd_does() {
        for (name, expected) in [
            ("operetta", "docker.io/library/operetta"),
            ("team/operetta", "docker.io/team/operetta"),
            ("ghcr.io/team/operetta", "ghcr.io/team/operetta"),
            ("localhost/operetta", "localhost/operetta"),
        ] {
            assert_eq!(full(name), expected);
        }
        let image = read("name: rclone/rclone\ntags: [a, b]").unwrap();
        assert_eq!(
            image.names().collect::<Vec<_>>(),
            ["docker.io/rclone/rclone:a", "docker.io/rclone/rclone:b"]
        );
    }

    #[test]
    fn options_in_place_of_names_and_paths_outside_of_the_image_are_refused() {
        for (text, expected) in [
            ("name: a\ntags: [a]\ndebian: [--foo]", "is --foo"),
            ("name: a\ntags: [a]\ndebian: [libpq5=-o]", "is libpq5=-o"),
            ("name: A\ntags: [a]", "is A"),
            ("name: a\ntags: [-a]", "is -a"),
            ("name: a\ntags: [a]\nfiles: [{path: /a/../b}]", "is /a/../b"),
            ("name: a\ntags: [a]\nfiles: [{path: etc}]", "is etc"),
            ("name: a\ntags: [a]\nfiles: [{path: /etc, from: ../x}]", "is ../x"),
            ("name: a\ntags: [a]\nfiles: [{path: /etc/x, text: a, link: b}]", "one of text, from and link"),
            ("name: a\ntags: [a]\nfiles: [{path: /etc/x, mode: \"9\"}]", "octal"),
            ("name: a\ntags: [a]\nwheels: [{name: -e, version: \"1\", sha256: x, to: /}]", "is -e"),
            ("name: a\ntags: [a]\nmaven: [{artifact: a, sha256: x, to: /x}]", "group:artifact:version"),
            ("name: a\ntags: [a]\ndebain: []", "unknown key `debain`"),
        ] {
            let errors = read(text).unwrap_err();
            assert!(errors.iter().any(|error| error.contains(expected)), "{text}: {errors:?}");
        }
    }
}
