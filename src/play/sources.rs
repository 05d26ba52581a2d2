//! What files of cases name: other files and packages. All that cases depend on is remembered, so that it can be stored with them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use operetta_embedded::World;
use serde_json::Value;

use crate::diag::{Diagnostic, Location, Source};
use crate::package::decode::At;
use crate::package::{FileScope, Package, Unread, plain};
use crate::yaml;

/// The largest file that is read, in bytes.
const FILE: u64 = 8 << 20;
/// How many bytes of files are read for all cases of a command.
const TOTAL: u64 = 64 << 20;

/// What to do about a file that may not be read.
const BESIDE: &str = "files beside a package are read if both are in one repository (a folder with .git)";

/// The objects of a file, shared by all that apply it.
pub(super) type Objects = Vec<Arc<At<Value>>>;

/// What was read.
#[derive(Debug)]
pub(crate) struct Sources {
    /// The files, by absolute paths without `.` and `..`.
    pub files: BTreeMap<PathBuf, Arc<Source>>,
    /// How many bytes were read.
    pub bytes: u64,
    /// The only files that are read. Whoever tests a package may not have written it.
    scope: FileScope,
    // What was made of files and folders, by what their paths resolve to.
    worlds: BTreeMap<PathBuf, (Arc<Source>, World)>,
    objects: BTreeMap<PathBuf, (Arc<Source>, Objects)>,
    packages: BTreeMap<PathBuf, Arc<Package>>,
}

impl Sources {
    /// Reads no files outside of a folder.
    pub(crate) fn within(folder: &Path) -> Self {
        Self::new(FileScope::within(folder))
    }

    /// Reads no files outside of the repository that a package is in.
    pub(crate) fn of(package: &Path) -> Self {
        Self::new(FileScope::of(package))
    }

    fn new(scope: FileScope) -> Self {
        Self {
            files: BTreeMap::new(),
            bytes: 0,
            scope,
            worlds: BTreeMap::new(),
            objects: BTreeMap::new(),
            packages: BTreeMap::new(),
        }
    }

    /// The absolute path without `.` and `..`, and what it resolves to, if that may be read.
    fn place(&self, path: &Path) -> Result<(PathBuf, PathBuf), Unread> {
        let target = self.scope.resolve(path)?;
        Ok((plain(path).ok_or(Unread::Irregular)?, target))
    }

    /// Whether a path of a file or a folder may be read.
    pub(crate) fn may_read(&self, path: &Path) -> bool {
        self.place(path).is_ok()
    }

    /// The paths of the files of a folder that end in `.yaml`.
    pub(crate) fn yaml_files(&self, folder: &Path) -> Result<Vec<PathBuf>, Unread> {
        self.scope.yaml_files(folder)
    }

    /// The text of a file.
    pub(crate) fn read(&mut self, path: &Path) -> Result<Arc<Source>, Diagnostic> {
        let (name, _) = self.place(path).map_err(|why| unreadable(path, &why))?;
        let text = self.scope.text(path, FILE).map_err(|why| unreadable(path, &why))?;
        self.count(text.len() as u64)?;
        let source = Source::new(path.display().to_string(), text);
        self.files.insert(name, Arc::clone(&source));
        Ok(source)
    }

    /// Counts bytes that were read.
    fn count(&mut self, bytes: u64) -> Result<(), Diagnostic> {
        self.bytes += bytes;
        if !self.is_full() {
            return Ok(());
        }
        let message = format!("the files that cases read are larger than {} MiB together", TOTAL >> 20);
        let help = "shorten them, let cases apply the same file, or test fewer packages at once";
        Err(Diagnostic::error("test::bounds", message).help(help))
    }

    /// Whether so much was read that nothing more will be.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > TOTAL
    }

    /// The objects of a file.
    pub(super) fn objects(&mut self, path: &Path) -> Result<Objects, Diagnostic> {
        let (name, target) = self.place(path).map_err(|why| unreadable(path, &why))?;
        if let Some((source, objects)) = self.objects.get(&target) {
            self.files.insert(name, Arc::clone(source));
            return Ok(objects.clone());
        }
        let source = self.read(path)?;
        let documents = yaml::parse(&source, &yaml::Options::default())?;
        let documents = documents.iter().filter(|document| !document.is_null());
        let objects = documents.map(|document| {
            let at = Location { source: Arc::clone(&source), span: document.span };
            Arc::new(At { value: document.to_json(), at, path: String::new() })
        });
        let objects: Objects = objects.collect();
        self.objects.insert(target, (source, objects.clone()));
        Ok(objects)
    }

    /// The package in a folder; `named`: where the folder is named.
    pub(super) fn package(
        &mut self,
        path: &Path,
        named: &At<String>,
    ) -> Result<Arc<Package>, Vec<Diagnostic>> {
        let unusable = |why: &str| named.error("test::package", format!("the package {} {why}", named.value));
        let (name, target) =
            self.place(path).map_err(|why| vec![unusable(&format!("cannot be read: {why}"))])?;
        let known = self.packages.get(&target).cloned();
        let package = if let Some(package) = known {
            package
        } else {
            let (package, _) = crate::package::load(path).map_err(|errors| {
                [unusable("cannot be loaded")].into_iter().chain(errors).collect::<Vec<_>>()
            })?;
            let bytes: u64 = package.files.iter().map(|(_, source)| source.text.len() as u64).sum();
            self.count(bytes).map_err(|error| vec![error])?;
            let package = Arc::new(package);
            self.packages.insert(target, Arc::clone(&package));
            package
        };
        for (path, source) in package.files.iter() {
            self.files.insert(name.join(path), Arc::clone(source));
        }
        Ok(package)
    }

    /// The world of a file.
    pub(super) fn world(&mut self, path: &Path) -> Result<World, Vec<Diagnostic>> {
        let (name, target) = self.place(path).map_err(|why| vec![unreadable(path, &why)])?;
        if let Some((source, world)) = self.worlds.get(&target) {
            self.files.insert(name, Arc::clone(source));
            return Ok(world.clone());
        }
        let source = self.read(path).map_err(|error| vec![error])?;
        let world = World::parse(std::slice::from_ref(&source))?;
        self.worlds.insert(target, (source, world.clone()));
        Ok(world)
    }
}

pub(super) fn unreadable(path: &Path, why: &Unread) -> Diagnostic {
    let message = format!("{} cannot be read: {why}", path.display());
    let error = Diagnostic::error("test::unreadable", message);
    if matches!(why, Unread::Outside(_)) { error.help(BESIDE) } else { error }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_outside_of_the_folder_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        for path in [folder.path().join("a.yaml"), inner.join("b.yaml")] {
            fs::write(path, "a: b\n").unwrap();
        }
        symlink("b.yaml", inner.join("near.yaml")).unwrap();
        symlink("../a.yaml", inner.join("far.yaml")).unwrap();
        symlink(folder.path(), inner.join("up")).unwrap();
        let mut sources = Sources::within(&inner);
        assert!(sources.read(&inner.join("x/../b.yaml")).is_err(), "there is no folder x");
        assert!(sources.read(&inner.join("./b.yaml")).is_ok());
        assert!(sources.read(&inner.join("near.yaml")).is_ok());
        for path in [
            inner.join("../a.yaml"),
            inner.join("far.yaml"),
            inner.join("up/a.yaml"),
            "/etc/hostname".into(),
            "/proc/self/environ".into(),
            "/dev/zero".into(),
        ] {
            let error = sources.read(&path).unwrap_err();
            assert!(error.message.contains("it is outside of"), "{error}");
        }
        let read: Vec<&PathBuf> = sources.files.keys().collect();
        assert_eq!(read, [&inner.join("b.yaml"), &inner.join("near.yaml")]);
        assert!(Sources::within(folder.path()).read(&inner.join("../a.yaml")).is_ok());
    }

    #[test]
    fn only_regular_files_of_some_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // A pipe is no other: who opens it waits for the other end.
        let _socket = std::os::unix::net::UnixListener::bind(path("socket.yaml")).unwrap();
        fs::create_dir(path("folder.yaml")).unwrap();
        let large = fs::File::create(path("large.yaml")).unwrap();
        large.set_len(FILE + 1).unwrap();
        fs::write(path("binary.yaml"), [0xff, 0xfe]).unwrap();
        let mut sources = Sources::within(folder.path());
        for (name, why) in [
            ("socket.yaml", "no regular file"),
            ("folder.yaml", "no regular file"),
            ("large.yaml", "larger than 8 MiB"),
            ("binary.yaml", "not UTF-8"),
            ("none.yaml", "there is no such file"),
        ] {
            let error = sources.read(&path(name)).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
    }

    #[test]
    fn all_files_together_are_bounded_and_what_is_applied_twice_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::File::create(path("large.yaml")).unwrap().set_len(FILE).unwrap();
        fs::write(path("small.yaml"), "a: b\n---\nc: d\n").unwrap();
        symlink("small.yaml", path("link.yaml")).unwrap();
        let mut sources = Sources::within(folder.path());
        let first = sources.objects(&path("small.yaml")).unwrap();
        let again = sources.objects(&path("link.yaml")).unwrap();
        assert!(first.len() == 2 && Arc::ptr_eq(&first[1], &again[1]));
        assert_eq!((sources.bytes, sources.files.len()), (14, 2));
        for number in 0..8 {
            symlink("large.yaml", path(&format!("l{number}.yaml"))).unwrap();
            let read = sources.read(&path(&format!("l{number}.yaml")));
            // Eight are exactly as much as is read, and there is another file.
            assert_eq!(read.is_ok(), number < 7, "{number}");
        }
        let error = sources.read(&path("small.yaml")).unwrap_err();
        assert!(error.message.contains("larger than 64 MiB together"), "{error}");
        assert!(sources.objects(&path("link.yaml")).is_ok(), "it is known");
    }
}
