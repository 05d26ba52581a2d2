//! Which files are read for a package, whose author may be a stranger.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// It, or a link in its path, leads out of the folder.
    #[error("it is outside of {}", .0.display())]
    Outside(PathBuf),
    /// It is hidden, or in a hidden folder of this name.
    #[error("{} is hidden, and hidden files and folders are not read", .0.display())]
    Hidden(PathBuf),
    /// It is a folder, a device, a pipe or a socket.
    #[error("it is no regular file")]
    Irregular,
    /// It has more bytes than are read.
    #[error("it is larger than {} MiB", .0 >> 20)]
    TooLarge(u64),
    /// It is not UTF-8.
    #[error("it is not UTF-8 text")]
    NotText,
    /// The system does not give it.
    #[error("{}", reason(.0))]
    System(#[from] io::Error),
}

/// Which files may be read for a package: those of one folder, links in it included, except hidden ones, such as the credentials
/// in `.git`. Whoever reads a package may not have written it.
#[derive(Debug, Clone)]
pub struct FileScope {
    root: PathBuf,
    /// A path without links in the folder. Its own parts may be hidden.
    from: PathBuf,
}

impl FileScope {
    /// The files of a folder.
    pub fn within(folder: &Path) -> Self {
        let from = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        Self { root: folder.to_owned(), from }
    }

    /// The files of the repository that a package is in, else those of the package.
    pub fn of(package: &Path) -> Self {
        Self { root: repository_of(package), ..Self::within(package) }
    }

    /// The scope of a file in the repository of a package, `None` for another file. That the user has named the file, hidden or not, does
    /// not say where it leads, if it is a link.
    fn of_file(package: &Path, file: &Path) -> Option<Self> {
        let root = repository_of(package);
        let named = plain(file)?;
        let from = named.parent()?.canonicalize().ok()?.join(named.file_name()?);
        (from.starts_with(&root) || named.starts_with(&root)).then_some(Self { root, from })
    }

    /// What the path of a file or a folder resolves to.
    ///
    /// # Errors
    /// It leads out, or to something hidden, by links or otherwise, or does not exist.
    pub fn resolve(&self, path: &Path) -> Result<PathBuf, Unread> {
        let target = path.canonicalize()?;
        if !target.starts_with(self.root.canonicalize()?) {
            return Err(Unread::Outside(self.root.clone()));
        }
        let mut from = self.from.components();
        let mut rest = target.components().skip_while(|part| from.next() == Some(*part));
        let hidden = rest.find(|part| is_hidden(part.as_os_str()));
        let hidden = hidden.map(|part| PathBuf::from(part.as_os_str()));
        hidden.map_or(Ok(target), |name| Err(Unread::Hidden(name)))
    }

    /// The content of a regular file: not of a device or a pipe, which might have no end, and at most as many bytes.
    ///
    /// # Errors
    /// Says why it is not read.
    pub fn bytes(&self, path: &Path, most: u64) -> Result<Vec<u8>, Unread> {
        let target = self.resolve(path)?;
        if !fs::metadata(&target)?.is_file() {
            return Err(Unread::Irregular);
        }
        no_more(fs::File::open(target)?, most)
    }

    /// The same of a text file.
    ///
    /// # Errors
    /// Says why it is not read.
    pub fn text(&self, path: &Path, most: u64) -> Result<String, Unread> {
        decoded(self.bytes(path, most)?)
    }

    /// The paths of the files of a folder that end in `.yaml`, sorted, without hidden ones.
    ///
    /// # Errors
    /// Says why the folder is not read.
    pub fn yaml_files(&self, folder: &Path) -> Result<Vec<PathBuf>, Unread> {
        self.resolve(folder)?;
        let entries = fs::read_dir(folder)?;
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|file| {
            file.extension().is_some_and(|end| end == "yaml") && !file.file_name().is_some_and(is_hidden)
        });
        files.sort();
        Ok(files)
    }
}

/// Reads a text file that the user has named, at most as many bytes. In the repository of one of these packages the author of the
/// package may have made it a link or a pipe, so it must be in the [`FileScope`] of the package. Any other file is the user's own.
///
/// # Errors
/// Says why it is not read.
pub fn read_named(packages: &[impl AsRef<Path>], file: &Path, most: u64) -> Result<String, Unread> {
    match packages.iter().find_map(|package| FileScope::of_file(package.as_ref(), file)) {
        Some(scope) => scope.text(file, most),
        None if file.is_dir() => Err(Unread::Irregular),
        None => text(fs::File::open(file)?, most),
    }
}

/// The absolute path without `.` and `..`, which are resolved by name.
pub fn plain(path: &Path) -> Option<PathBuf> {
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

/// Whether a file or a folder is hidden. Volumes of Kubernetes have their files in a folder whose name begins with `..`, with links to
/// them.
fn is_hidden(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && !name.starts_with(b"..")
}

/// The folder of which the files beside a package may be read: the repository that the package is in, else the package
/// itself. A repository in the root or the home folder would be everything that the user has.
fn repository_of(package: &Path) -> PathBuf {
    let Ok(package) = package.canonicalize() else { return package.to_owned() };
    let home = std::env::var_os("HOME").and_then(|home| Path::new(&home).canonicalize().ok());
    let is_narrow = |folder: &&Path| folder.parent().is_some() && home.as_deref() != Some(folder);
    let mut above = package.ancestors().take_while(is_narrow);
    let found = above.find(|folder| folder.join(".git").exists()).map(Path::to_owned);
    found.unwrap_or(package)
}

/// The text of a file that is open, or of standard input, of at most as many bytes.
///
/// # Errors
/// Says why it is not read.
pub fn text(file: impl Read, most: u64) -> Result<String, Unread> {
    decoded(no_more(file, most)?)
}

/// The content of a file that has at most as many bytes.
pub(super) fn no_more(file: impl Read, most: u64) -> Result<Vec<u8>, Unread> {
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most { Err(Unread::TooLarge(most)) } else { Ok(content) }
}

fn decoded(content: Vec<u8>) -> Result<String, Unread> {
    String::from_utf8(content).map_err(|_| Unread::NotText)
}

/// The reason of an error, without the operating system's error number.
pub(super) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates a folder with these files; `->` creates a link.
    pub(in super::super) fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match std::str::from_utf8(content).ok().and_then(|text| text.strip_prefix("-> ")) {
                Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                None => fs::write(path, content).unwrap(),
            }
        }
        folder
    }

    #[test]
    fn the_files_beside_a_package_are_those_of_its_repository() {
        let folder = folder(&[("operators/etcd/a.yaml", b"a"), ("b.yaml", b"b")]);
        let root = folder.path().canonicalize().unwrap();
        let package = root.join("operators/etcd");
        let read = |path: &str| FileScope::of(&package).text(&package.join(path), 1);
        assert_eq!(read("a.yaml").unwrap(), "a");
        assert!(matches!(read("../../b.yaml"), Err(Unread::Outside(_))));
        fs::create_dir(root.join(".git")).unwrap();
        assert_eq!(read("../../b.yaml").unwrap(), "b");
        assert!(matches!(read("../.."), Err(Unread::Irregular)));
    }

    #[test]
    fn hidden_files_are_read_only_above_the_package() {
        let folder = folder(&[
            (".git/config", b"c"),
            (".own/a/operator.yaml", b"o"),
            (".own/a/.env", b"e"),
            (".own/a/link.yaml", b"-> ../../.git/config"),
            (".own/b.yaml", b"b"),
        ]);
        let package = folder.path().join(".own/a");
        let scope = FileScope::of(&package);
        for (path, hidden) in [("../../.git/config", ".git"), (".env", ".env"), ("link.yaml", ".git")] {
            match scope.text(&package.join(path), 1) {
                Err(Unread::Hidden(part)) => assert_eq!(part, Path::new(hidden)),
                other => panic!("{path}: {other:?}"),
            }
        }
        for path in ["operator.yaml", "../b.yaml"] {
            assert!(scope.text(&package.join(path), 1).is_ok(), "{path}");
        }
    }

    #[test]
    fn named_files_of_a_repository_lead_nowhere_else() {
        let folder = folder(&[
            (".git/config", b"c"),
            ("p/operator.yaml", b"o"),
            ("p/out.yaml", b"-> /etc/hostname"),
            ("p/etc", b"-> /etc"),
            ("p/git.yaml", b"-> ../.git/config"),
            (".mine/a.yaml", b"a"),
        ]);
        let own = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path().join(".git/config"), own.path().join("link")).unwrap();
        let package = [folder.path().join("p")];
        let read = |path: &str| read_named(&package, &package[0].join(path), 1 << 10);
        for path in ["out.yaml", "etc/hostname"] {
            assert!(matches!(read(path), Err(Unread::Outside(_))), "{path}");
        }
        assert!(matches!(read("git.yaml"), Err(Unread::Hidden(_))));
        assert!(matches!(read("../.mine"), Err(Unread::Irregular)));
        // What the user has named, and what is the user's own.
        assert_eq!(read("../.mine/a.yaml").unwrap(), "a");
        assert_eq!(read_named(&package, &own.path().join("link"), 1).unwrap(), "c");
        assert!(matches!(read_named(&package, own.path(), 1), Err(Unread::Irregular)));
    }
}
