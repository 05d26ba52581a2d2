//! What files of cases name: other files and packages. Each is read once, and remembered, so that all that cases depend on can be
//! stored with them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use operetta_embedded::World;

use crate::diag::{Diagnostic, Source};
use crate::package::decode::At;
use crate::package::{Package, Unread, check_within, read_within, repository_of};

/// The largest file that is read, in bytes.
const FILE: u64 = 8 << 20;

/// What to do about a file that may not be read.
const BESIDE: &str = "files beside a package are read if both are in one repository (a folder with .git)";

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The files, by absolute paths without `.` and `..`.
    pub files: BTreeMap<PathBuf, Arc<Source>>,
    /// The only folder of which files are read, unless the user has written the cases just now. It is absolute.
    within: Option<PathBuf>,
    worlds: BTreeMap<PathBuf, World>,
    packages: BTreeMap<PathBuf, Arc<Package>>,
}

impl Sources {
    /// Reads no files outside of a folder.
    pub(crate) fn within(folder: &Path) -> Self {
        Self { within: Some(plain(folder).unwrap_or_else(|| folder.to_owned())), ..Self::default() }
    }

    /// Reads no files outside of the repository that a package is in. Whoever tests a package may not have written it.
    pub(crate) fn of(package: &Path) -> Self {
        Self::within(&repository_of(package))
    }

    /// The folder of which files are read.
    fn root(&self) -> &Path {
        self.within.as_deref().unwrap_or(Path::new("/"))
    }

    /// The path without `.` and `..`, if it may be read.
    pub(super) fn place(&self, path: &Path) -> Result<PathBuf, Unread> {
        check_within(self.root(), path)?;
        plain(path).ok_or(Unread::Irregular)
    }

    pub(super) fn read(&mut self, path: &Path) -> Result<Arc<Source>, Diagnostic> {
        let unreadable = |why: Unread| {
            let message = format!("{} cannot be read: {why}", path.display());
            let error = Diagnostic::error("test::unreadable", message);
            if matches!(why, Unread::Outside(_)) { error.help(BESIDE) } else { error }
        };
        let place = self.place(path).map_err(unreadable)?;
        let text = read_within(self.root(), path, FILE).map_err(unreadable)?;
        let source = Source::new(path.display().to_string(), text);
        self.files.insert(place, Arc::clone(&source));
        Ok(source)
    }

    /// The package in a folder; `named`: where the folder is named.
    pub(super) fn package(
        &mut self,
        path: &Path,
        named: &At<String>,
    ) -> Result<Arc<Package>, Vec<Diagnostic>> {
        if let Some(package) = self.packages.get(path) {
            return Ok(Arc::clone(package));
        }
        let unusable = |why: &str| named.error("test::package", format!("the package {} {why}", named.value));
        let place = self.place(path).map_err(|why| vec![unusable(&format!("cannot be read: {why}"))])?;
        let (package, _) = crate::package::load(path)
            .map_err(|errors| [unusable("cannot be loaded")].into_iter().chain(errors).collect::<Vec<_>>())?;
        for (path, source) in package.files.iter() {
            self.files.insert(place.join(path), Arc::clone(source));
        }
        Ok(Arc::clone(self.packages.entry(path.to_owned()).or_insert(Arc::new(package))))
    }

    /// The world of a file.
    pub(super) fn world(&mut self, path: PathBuf) -> Result<World, Vec<Diagnostic>> {
        if let Some(world) = self.worlds.get(&path) {
            return Ok(world.clone());
        }
        let world = World::parse(&[self.read(&path).map_err(|error| vec![error])?])?;
        Ok(self.worlds.entry(path).or_insert(world).clone())
    }
}

/// The absolute path without `.` and `..`, which are resolved by name.
pub(crate) fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in std::path::absolute(path).ok()?.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain.file_name().is_some().then_some(plain)
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
        assert!(Sources::default().read(&inner.join("../a.yaml")).is_ok());
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
    fn the_repository_of_a_package_has_the_files_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let package = root.join("operators/etcd");
        fs::create_dir_all(&package).unwrap();
        assert_eq!(repository_of(&package), package);
        fs::create_dir(root.join(".git")).unwrap();
        assert_eq!(repository_of(&package), root);
    }
}
