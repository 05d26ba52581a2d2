//! Reads the files of a package from a folder, within size limits.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::scope::{FileScope, Unread, no_more};
use crate::diag::{Diagnostic, Source, Span};

/// The file that makes a folder a package.
pub const OPERATOR_YAML: &str = "operator.yaml";
/// The packages that were chosen for what the package requires, with their digests.
pub const LOCK: &str = "operator.lock";
/// The folders that are read, besides [`OPERATOR_YAML`] and [`LOCK`].
pub(super) const FOLDERS: [&str; 2] = ["crds", "templates"];
/// The code of errors about files that cannot be read, as opposed to files with mistakes.
pub const UNREADABLE: &str = "package::unreadable";

/// The maximum size of a file, in bytes. The largest `CustomResourceDefinition` that the API server accepts
/// (1.5 MB as JSON) fits, even as written by tools (nearly 3 MB).
pub(super) const FILE_BYTES: u64 = 4 << 20;
/// Maximum bytes of all files.
pub(super) const TOTAL_BYTES: u64 = 16 << 20;
/// Maximum number of files and folders.
pub(super) const ENTRIES: usize = 2_000;
/// Maximum depth of folders.
pub(super) const DEPTH: usize = 16;

/// The files of a package in memory, by their path in the package (`templates/service.yaml`).
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
    files: BTreeMap<String, Arc<Source>>,
}

impl Files {
    /// Reads `operator.yaml`, `operator.lock`, `crds/` and `templates/` of a folder. Hidden files and backups of editors
    /// (`x~`) are skipped.
    ///
    /// # Errors
    /// A file cannot be read, is not text, is outside the folder, or exceeds a limit.
    pub fn read(root: &Path) -> Result<Self, Vec<Diagnostic>> {
        match Self::read_readable(root) {
            (files, problems) if problems.is_empty() => Ok(files),
            (_, problems) => Err(problems),
        }
    }

    /// The files that could be read, and the errors about the others.
    pub(super) fn read_readable(root: &Path) -> (Self, Vec<Diagnostic>) {
        let mut reader = Reader {
            root,
            scope: FileScope::within(root),
            files: BTreeMap::new(),
            bytes: 0,
            entries: 0,
            diagnostics: Vec::new(),
        };
        reader.read_all();
        (Self { root: root.to_owned(), files: reader.files }, reader.diagnostics)
    }

    /// Creates it from texts in memory: pairs of a path in the package and a text. `root` is the folder that
    /// messages name.
    pub fn from_texts(
        root: impl Into<PathBuf>,
        files: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> Self {
        let root = root.into();
        let files = files
            .into_iter()
            .map(|(path, text)| {
                let path = path.into();
                let source = Source::new(root.join(&path).display().to_string(), text);
                (path, source)
            })
            .collect();
        Self { root, files }
    }

    /// Creates it from files that are already read.
    pub(super) fn of(root: PathBuf, files: BTreeMap<String, Arc<Source>>) -> Self {
        Self { root, files }
    }

    /// The folder, as given.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file at a path.
    pub fn get(&self, path: &str) -> Option<&Arc<Source>> {
        self.files.get(path)
    }

    /// All files, sorted by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<Source>)> {
        self.files.iter().map(|(path, source)| (path.as_str(), source))
    }

    /// The SHA-256 of all paths and contents, in hex. Packages with the same digest behave in the same way.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        self.archive(|bytes| hash.update(bytes));
        HEXLOWER.encode(&hash.finalize())
    }

    /// Writes the archive of all paths and contents, from which [`Self::digest`] is computed.
    pub(super) fn archive(&self, mut write: impl FnMut(&[u8])) {
        for (path, source) in &self.files {
            for part in [path.as_bytes(), source.text.as_bytes()] {
                // The length precedes the content, so that two different packages never yield the same bytes.
                write(&(part.len() as u64).to_le_bytes());
                write(part);
            }
        }
    }
}

struct Reader<'a> {
    root: &'a Path,
    scope: FileScope,
    files: BTreeMap<String, Arc<Source>>,
    bytes: u64,
    entries: usize,
    diagnostics: Vec<Diagnostic>,
}

impl Reader<'_> {
    fn read_all(&mut self) {
        if let Err(error) = self.root.canonicalize() {
            return self.unreadable("", &error.into());
        }
        if !self.root.is_dir() {
            let shown = self.root.display();
            let help = if self.root.file_name().is_some_and(|name| name == OPERATOR_YAML) {
                "use the folder that contains it".to_owned()
            } else {
                format!("use the folder that contains {OPERATOR_YAML}")
            };
            return self
                .diagnostics
                .push(Diagnostic::error(UNREADABLE, format!("{shown} is not a folder")).help(help));
        }
        if !self.root.join(OPERATOR_YAML).exists() {
            let message = format!("{} has no {OPERATOR_YAML}", self.root.display());
            let help = "use the folder of a package: operator.yaml, crds/, templates/";
            return self.diagnostics.push(Diagnostic::error(UNREADABLE, message).help(help));
        }
        self.entry(OPERATOR_YAML, 0);
        for folder in [LOCK].into_iter().chain(FOLDERS) {
            if self.root.join(folder).exists() {
                self.entry(folder, 0);
            }
        }
    }

    fn shown(&self, path: &str) -> String {
        if path.is_empty() {
            self.root.display().to_string()
        } else {
            self.root.join(path).display().to_string()
        }
    }

    fn unreadable(&mut self, path: &str, why: &Unread) {
        let message = format!("cannot read {}: {why}", self.shown(path));
        self.diagnostics.push(Diagnostic::error(UNREADABLE, message));
    }

    fn refuse(&mut self, message: String, help: &str) {
        self.diagnostics.push(Diagnostic::error("package::budget", message).help(help));
    }

    /// Reads a file or a folder.
    fn entry(&mut self, path: &str, depth: usize) {
        if self.entries >= ENTRIES {
            return; // already reported by `folder`
        }
        self.entries += 1;
        let full = self.root.join(path);
        match self.scope.resolve(&full) {
            Ok(_) => {}
            Err(why @ Unread::System(_)) => return self.unreadable(path, &why),
            Err(why) => {
                let is_hidden = matches!(why, Unread::Hidden(_));
                let place = if is_hidden { "a hidden place" } else { "a place outside the package" };
                let message = format!("{} is a link to {place}", self.shown(path));
                return self.refuse(message, "copy its target into the package");
            }
        }
        match fs::metadata(&full) {
            Ok(metadata) if metadata.is_dir() => self.folder(path, depth),
            Ok(metadata) if metadata.is_file() => self.file(path),
            Ok(_) => {
                let message = format!("{} is neither a file nor a folder", self.shown(path));
                self.refuse(message, "remove it from the package");
            }
            Err(error) => self.unreadable(path, &error.into()),
        }
    }

    fn folder(&mut self, path: &str, depth: usize) {
        if depth >= DEPTH {
            let message = format!("{} is more than {DEPTH} folders deep", self.shown(path));
            return self.refuse(message, "a link to a parent folder has this effect");
        }
        let entries = match fs::read_dir(self.root.join(path)) {
            Ok(entries) => entries,
            Err(error) => return self.unreadable(path, &error.into()),
        };
        let mut names = Vec::new();
        for entry in entries.take(ENTRIES + 1) {
            match entry {
                Ok(entry) => names.push(entry.file_name()),
                Err(error) => self.unreadable(path, &error.into()),
            }
        }
        names.sort();
        for name in names {
            let Some(name) = name.to_str() else {
                let message =
                    format!("the name of {} is not UTF-8", self.root.join(path).join(&name).display());
                self.refuse(message, "rename it");
                continue;
            };
            if name.starts_with('.') || name.ends_with('~') {
                continue;
            }
            if self.entries >= ENTRIES {
                if self.entries == ENTRIES {
                    self.entries += 1;
                    let message = format!("{} has more than {ENTRIES} files", self.shown(""));
                    self.refuse(message, "a package consists of operator.yaml, crds/ and templates/");
                }
                return;
            }
            self.entry(&format!("{path}/{name}"), depth + 1);
        }
    }

    fn file(&mut self, path: &str) {
        if self.bytes > TOTAL_BYTES {
            return; // already reported below
        }
        let opened = fs::File::open(self.root.join(path)).map_err(Unread::from);
        let content = match opened.and_then(|file| no_more(file, FILE_BYTES)) {
            Ok(content) => content,
            Err(Unread::TooLarge(most)) => {
                let message = format!("{} is larger than {} MiB", self.shown(path), most >> 20);
                return self.refuse(message, "a child that needs large data must fetch it at run time");
            }
            Err(why) => return self.unreadable(path, &why),
        };
        self.bytes += content.len() as u64;
        if self.bytes > TOTAL_BYTES {
            let message =
                format!("the files of {} are larger than {} MiB together", self.shown(""), TOTAL_BYTES >> 20);
            return self.refuse(message, "a package consists of operator.yaml, crds/ and templates/");
        }
        match decode(self.shown(path), content) {
            Ok(source) => {
                self.files.insert(path.to_owned(), source);
            }
            Err(diagnostic) => self.diagnostics.push(diagnostic),
        }
    }
}

/// Decodes the content of a file.
pub(super) fn decode(name: String, content: Vec<u8>) -> Result<Arc<Source>, Diagnostic> {
    match String::from_utf8(content) {
        Ok(mut text) => {
            // A byte order mark, which editors on Windows write, must not count as part of the first line.
            if text.starts_with('\u{feff}') {
                text.remove(0);
            }
            Ok(Source::new(name, text))
        }
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let source = Source::new(name, String::from_utf8_lossy(error.as_bytes()));
            // Lossy decoding does not change valid text, so the offset is still right.
            Err(Diagnostic::error("package::utf8", "the file is not UTF-8 text")
                .at(&source, Span::new(valid, valid + 1))
                .help("save it as UTF-8"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scope::tests::folder;
    use super::*;

    fn read(folder: &tempfile::TempDir) -> Result<Vec<String>, Vec<String>> {
        let shown = format!("{}/", folder.path().display());
        let say = |diagnostics: Vec<Diagnostic>| {
            diagnostics.iter().map(|diagnostic| diagnostic.to_string().replace(&shown, "")).collect()
        };
        Files::read(folder.path())
            .map(|files| files.iter().map(|(path, _)| path.to_owned()).collect())
            .map_err(say)
    }

    #[test]
    fn only_package_files_are_read() {
        let folder = folder(&[
            ("operator.yaml", b"a"),
            ("README.md", b"b"),
            ("tests/t.yaml", b"c"),
            ("crds/x.yaml", b"d"),
            ("templates/sub/y.yaml", b"e"),
            ("templates/.y.yaml.swp", b"\xff"),
            ("templates/y.yaml~", b"\xff"),
            ("templates/link.yaml", b"-> sub/y.yaml"),
        ]);
        let wanted = ["crds/x.yaml", "operator.yaml", "templates/link.yaml", "templates/sub/y.yaml"];
        assert_eq!(read(&folder).unwrap(), wanted);
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        let folder =
            folder(&[("operator.yaml", "\u{feff}a: b\n".as_bytes()), ("templates/x.yaml", b"\xef\xbb\xbfc")]);
        let files = Files::read(folder.path()).unwrap();
        let text = |path: &str| files.get(path).unwrap().text.clone();
        assert_eq!((text("operator.yaml"), text("templates/x.yaml")), ("a: b\n".to_owned(), "c".to_owned()));
    }

    #[test]
    fn unreadable_and_oversized_files_are_errors() {
        let large = vec![b'a'; (4 << 20) + 1];
        let half = vec![b'a'; 4 << 20];
        for (files, wanted) in [
            (&[("x", &b""[..])][..], "has no operator.yaml"),
            (&[("operator.yaml", &b"a\n\xffb"[..])], "operator.yaml:2:1: the file is not UTF-8 text"),
            (&[("operator.yaml", &large[..])], "operator.yaml is larger than 4 MiB"),
            (
                &[("operator.yaml", &b"-> /etc/hostname"[..])],
                "operator.yaml is a link to a place outside the package",
            ),
            (&[("operator.yaml", b""), ("crds", &b"-> /etc"[..])], "crds is a link to a place outside"),
            (
                &[("operator.yaml", b""), ("templates/a", &b"-> nowhere"[..])],
                "cannot read templates/a: there is no such",
            ),
            (&[("operator.yaml", b""), ("templates/a", &b"-> ."[..])], "more than 16 folders deep"),
            (&[("operator.yaml", b""), ("templates/a", &b"-> /dev/null"[..])], "outside the package"),
            (
                &[
                    ("operator.yaml", &half),
                    ("crds/a", &half),
                    ("crds/b", &half),
                    ("crds/c", &half),
                    ("crds/d", b"a"),
                ],
                "are larger than 16 MiB together",
            ),
        ] {
            let errors = read(&folder(files)).unwrap_err().join("\n");
            assert!(errors.contains(wanted), "{wanted}: {errors}");
        }
        let many: Vec<_> = (0..2_001).map(|index| format!("crds/{index}")).collect();
        let mut files: Vec<(&str, &[u8])> = many.iter().map(|path| (path.as_str(), &b""[..])).collect();
        files.push(("operator.yaml", b""));
        let errors = read(&folder(&files)).unwrap_err();
        assert_eq!(errors.len(), 1);
        assert!(errors[0].contains("more than 2000 files"), "{errors:?}");
    }

    #[test]
    fn special_files_are_not_opened() {
        let folder = folder(&[("operator.yaml", b""), ("templates/x", b"")]);
        let fifo = folder.path().join("templates/fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        if made.is_ok_and(|status| status.success()) {
            let errors = read(&folder).unwrap_err();
            assert!(errors[0].contains("neither a file nor a folder"), "{errors:?}");
        }
    }

    #[test]
    fn links_to_hidden_files_are_not_followed() {
        let hidden: [(&str, &[u8]); 2] = [("operator.yaml", b""), (".git/config", b"token")];
        for (path, target) in [("crds/a", "-> ../.git/config"), ("templates", "-> .git")] {
            let errors = read(&folder(&[&hidden[..], &[(path, target.as_bytes())]].concat())).unwrap_err();
            assert!(errors[0].contains("is a link to a hidden place"), "{errors:?}");
        }
        // A volume of Kubernetes.
        let volume = folder(&[("..2026_01/operator.yaml", b"a"), ("..data", b"-> ..2026_01")]);
        std::os::unix::fs::symlink("..data/operator.yaml", volume.path().join("operator.yaml")).unwrap();
        assert_eq!(read(&volume).unwrap(), ["operator.yaml"]);
    }

    #[test]
    fn different_packages_have_different_digests() {
        let digest = |files: &[(&str, &str)]| Files::from_texts("p", files.iter().copied()).digest();
        let one = digest(&[("a", "b"), ("c", "d")]);
        assert_eq!(one, digest(&[("c", "d"), ("a", "b")]));
        assert_eq!(one.len(), 64);
        for other in [
            &[("a", "b")][..],
            &[("a", "bc"), ("", "d")],
            &[("a", "b"), ("c", "D")],
            &[("ab", ""), ("c", "d")],
        ] {
            assert_ne!(one, digest(other));
        }
    }
}
