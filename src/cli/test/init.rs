//! `operetta test --init`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::cli::{instances, out};
use crate::package::Package;
use crate::play::{self, Instance, Sources};

/// Writes a first test file of a package. Returns whether that was possible.
pub(super) fn run(folder: &Path, package: &Arc<Package>, from: Option<&PathBuf>) -> bool {
    let fail = |why: String| {
        out::note(format!("error: {why}"));
        false
    };
    let mut sources = Sources::of(folder);
    let files = match from {
        Some(file) => vec![file.clone()],
        None => examples(folder, package, &sources),
    };
    let mut found = None;
    for file in &files {
        let manifests = match from {
            Some(_) => instances::read(&[folder], std::slice::from_ref(file)),
            None => {
                sources.read(file).map_err(|error| vec![error]).and_then(|source| instances::parse(&source))
            }
        };
        match manifests {
            Ok(manifests) => {
                let mut objects = manifests.into_iter().map(|one| one.object);
                found = objects
                    .find(|object| play::resource_of(package, object).is_some())
                    .map(|one| (file, one));
            }
            Err(errors) if from.is_some() => {
                out::report(&errors);
                return false;
            }
            // Other files lie beside examples.
            Err(_) => {}
        }
        if found.is_some() {
            break;
        }
    }
    let Some((file, object)) = found else {
        return fail(match from {
            Some(file) => format!("{} has no instance of a kind of {}", file.display(), package.name),
            None => format!("no example of {} was found: give an instance with --from FILE", package.name),
        });
    };
    let tests = folder.join("tests");
    if tests.is_symlink() {
        return fail(format!("{} is a link, and nothing is written through links", tests.display()));
    }
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let new = tests.join(format!("{kind}.yaml"));
    if new.symlink_metadata().is_ok() {
        return fail(format!("{} exists already, and is not overwritten", new.display()));
    }
    // What tests may not read stands in them.
    let relative = match sources.may_read(file).then(|| relative(folder, file)).transpose() {
        Ok(relative) => relative,
        Err(error) => return fail(format!("{} cannot be read: {error}", file.display())),
    };
    let instance = Instance { file: relative, object: &object };
    // Paths from the folder need it.
    let is_new = !tests.exists();
    if let Err(error) = fs::create_dir_all(&tests) {
        return fail(format!("{} cannot be created: {error}", tests.display()));
    }
    let (text, notes) = match play::init(&tests, package, &instance) {
        Ok(written) => written,
        Err(errors) => {
            out::report(&errors);
            if is_new {
                let _ = fs::remove_dir(&tests);
            }
            return fail(format!("nothing is written: {} cannot be played", file.display()));
        }
    };
    let write = || OpenOptions::new().write(true).create_new(true).open(&new)?.write_all(text.as_bytes());
    if let Err(error) = write() {
        return fail(format!("{} cannot be written: {error}", new.display()));
    }
    out::line(format!("{} is written, from {}; its cases pass", new.display(), file.display()));
    for note in notes {
        out::note(format!("note: {note}"));
    }
    true
}

/// Files that may have an instance, the shortest first: `examples` of the package, and `examples/NAME` beside folders of packages.
fn examples(folder: &Path, package: &Package, sources: &Sources) -> Vec<PathBuf> {
    let above = fs::canonicalize(folder).unwrap_or_default();
    let beside = above.ancestors().skip(1).take(3).map(|above| above.join("examples").join(&package.name));
    let mut files = Vec::new();
    for folder in std::iter::once(above.join("examples")).chain(beside) {
        let mut found: Vec<(u64, PathBuf)> = { sources.yaml_files(&folder).into_iter().flatten() }
            .filter_map(|path| Some((path.metadata().ok()?.len(), path)))
            .collect();
        found.sort();
        files.extend(found.into_iter().map(|(_, path)| path));
    }
    files
}

/// The path of a file from the folder `tests` of a package.
fn relative(folder: &Path, file: &Path) -> io::Result<String> {
    let (from, to) = (fs::canonicalize(folder)?.join("tests"), fs::canonicalize(file)?);
    let same = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(same).map(|_| Component::ParentDir);
    let path: PathBuf = up.chain(to.components().skip(same)).collect();
    Ok(path.display().to_string())
}
