//! What files of cases name: other files and packages. Each is read once, and remembered, so that all that cases depend on can be
//! stored with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use operetta_embedded::World;

use crate::diag::{Diagnostic, Source};
use crate::package::Package;
use crate::package::decode::At;

/// The largest file that is read, in bytes.
const FILE: u64 = 8 << 20;

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The files, by absolute paths without `.` and `..`.
    pub files: BTreeMap<PathBuf, Arc<Source>>,
    /// The only folder of which files are read, if cases are from others. It is absolute.
    within: Option<PathBuf>,
    worlds: BTreeMap<PathBuf, World>,
    packages: BTreeMap<PathBuf, Arc<Package>>,
}

impl Sources {
    /// Reads no files outside of a folder. There must be no links in it.
    pub(crate) fn within(folder: &Path) -> Self {
        Self { within: plain(folder), ..Self::default() }
    }

    /// The path without `.` and `..`, if it may be read.
    fn place(&self, path: &Path) -> Result<PathBuf, String> {
        let place = plain(path).ok_or("it is no path of a file")?;
        match &self.within {
            Some(folder) if !place.starts_with(folder) => {
                Err("it is not among the files of the tests".to_owned())
            }
            _ => Ok(place),
        }
    }

    pub(super) fn read(&mut self, path: &Path) -> Result<Arc<Source>, Diagnostic> {
        let unreadable = |why: String| {
            Diagnostic::error("test::unreadable", format!("{} cannot be read: {why}", path.display()))
        };
        let place = self.place(path).map_err(unreadable)?;
        let metadata = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if metadata.len() > FILE {
            return Err(unreadable(format!("it has {} bytes; {FILE} are allowed", metadata.len())));
        }
        let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
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
    use super::*;

    #[test]
    fn files_outside_of_the_folder_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        for path in [folder.path().join("a.yaml"), inner.join("b.yaml")] {
            fs::write(path, "a: b\n").unwrap();
        }
        let mut sources = Sources::within(&inner);
        assert!(sources.read(&inner.join("x/../b.yaml")).is_err(), "there is no folder x");
        assert!(sources.read(&inner.join("./b.yaml")).is_ok());
        for path in [inner.join("../a.yaml"), "/etc/hostname".into(), "/dev/zero".into()] {
            let error = sources.read(&path).unwrap_err();
            assert!(error.message.contains("not among the files"), "{error}");
        }
        assert_eq!(sources.files.keys().collect::<Vec<_>>(), [&inner.join("b.yaml")]);
        assert!(Sources::default().read(&inner.join("../a.yaml")).is_ok());
    }
}
