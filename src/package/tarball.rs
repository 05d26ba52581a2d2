//! Reads the files of a package from a tar archive, possibly compressed with gzip. Nothing is written to
//! disk. The archive may come from anybody: its size is limited before and after decompression, and it may
//! contain only files and folders below one folder.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use tar::EntryType;

use super::files::{
    DEPTH, ENTRIES, FILE_BYTES, FOLDERS, Files, LOCK, OPERATOR_YAML, TOTAL_BYTES, UNREADABLE, decode,
};
use super::load::contained;
use super::scope::reason;
use super::{Package, compile};
use crate::diag::{Diagnostic, Source};

/// The maximum size of an archive in bytes, before and after decompression. It may contain files that are not
/// read.
const MOST_BYTES: u64 = 64 << 20;
/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The code of errors about the content of an archive.
const CODE: &str = "package::archive";

/// Reads and compiles the package in an archive. `root` is the name of the archive in messages. The result
/// contains the warnings.
///
/// # Errors
/// All diagnostics, warnings included, if one of them is an error.
pub fn load_archive(root: &Path, archive: impl Read) -> Result<(Package, Vec<Diagnostic>), Vec<Diagnostic>> {
    let files = read(root, archive).map_err(|problem| vec![problem])?;
    contained(root, || compile(&files))
}

/// The files of an archive, by paths that are below one folder.
///
/// # Errors
/// It cannot be read, has something else than files and folders, or exceeds a limit.
pub fn archived(root: &Path, archive: impl Read) -> Result<BTreeMap<String, Vec<u8>>, Diagnostic> {
    let mut archive = BufReader::new(archive.take(MOST_BYTES));
    let start = archive.fill_buf().map_err(|error| unreadable(root, &error))?;
    if start.starts_with(&GZIP) {
        entries(root, MultiGzDecoder::new(archive))
    } else {
        entries(root, archive)
    }
}

fn read(root: &Path, archive: impl Read) -> Result<Files, Diagnostic> {
    let mut found = archived(root, archive)?;
    let tops: Vec<String> =
        found.keys().filter_map(|path| path.split_once('/')).map(|(top, _)| top.to_owned()).collect();
    let mut prefix = String::new();
    if !found.contains_key(OPERATOR_YAML) {
        // The archive contains the folder of the package instead of its content.
        match tops.first() {
            Some(top)
                if found.contains_key(&format!("{top}/{OPERATOR_YAML}")) && tops.iter().all(|t| t == top) =>
            {
                prefix = format!("{top}/");
            }
            _ => {
                let message = format!("{} has no {OPERATOR_YAML}", root.display());
                let help = "use an archive of the folder of a package: operator.yaml, crds/, templates/";
                return Err(Diagnostic::error(UNREADABLE, message).help(help));
            }
        }
    }
    let mut files: BTreeMap<String, Arc<Source>> = BTreeMap::new();
    let mut bytes = 0;
    for (path, content) in std::mem::take(&mut found) {
        let Some(path) = path.strip_prefix(&prefix).filter(|path| is_of_package(path)) else { continue };
        bytes += content.len() as u64;
        if bytes > TOTAL_BYTES {
            let message = format!(
                "the files of the package in {} are larger than {} MiB together",
                root.display(),
                TOTAL_BYTES >> 20
            );
            return Err(Diagnostic::error("package::budget", message)
                .help("a package consists of operator.yaml, crds/ and templates/"));
        }
        let shown = root.join(path).display().to_string();
        files.insert(path.to_owned(), decode(shown, content)?);
    }
    Ok(Files::of(root.to_owned(), files))
}

/// Whether the loader would read this file of a package folder.
fn is_of_package(path: &str) -> bool {
    let mut parts = path.split('/');
    [OPERATOR_YAML, LOCK].contains(&path)
        || (parts.next().is_some_and(|first| FOLDERS.contains(&first))
            && path.contains('/')
            && parts.all(|part| !part.starts_with('.') && !part.ends_with('~')))
}

/// All files of an archive that may belong to a package, by path.
fn entries(root: &Path, archive: impl Read) -> Result<BTreeMap<String, Vec<u8>>, Diagnostic> {
    let broken = |error: &io::Error| unreadable(root, error);
    // The limit is one byte more than what is allowed, to distinguish an archive that is too large from one
    // of exactly that size.
    let mut archive = tar::Archive::new(Bounded { inner: archive, left: MOST_BYTES });
    let mut found: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut count = 0_usize;
    let mut bytes = 0;
    for entry in archive.entries().map_err(|error| broken(&error))? {
        let mut entry = entry.map_err(|error| broken(&error))?;
        count += 1;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let refuse = |what: &str, help: &str| {
            let shown: String = name.chars().take(100).collect();
            Diagnostic::error(CODE, format!("{}: the entry {shown:?} {what}", root.display())).help(help)
        };
        if count > ENTRIES {
            let message = format!("{} has more than {ENTRIES} files", root.display());
            let help = "a package consists of operator.yaml, crds/ and templates/";
            return Err(Diagnostic::error("package::budget", message).help(help));
        }
        let kind = entry.header().entry_type();
        match kind {
            EntryType::XGlobalHeader => continue,
            EntryType::Regular | EntryType::Continuous | EntryType::Directory => {}
            EntryType::Symlink | EntryType::Link => {
                return Err(refuse(
                    "is a link",
                    "archive its target instead: tar --dereference, --hard-dereference",
                ));
            }
            _ => return Err(refuse("is neither a file nor a folder", "remove it from the archive")),
        }
        let path = match place(&name) {
            Ok(path) => path,
            Err(what) => {
                return Err(refuse(what, "archive the folder of the package from inside or above it"));
            }
        };
        let Some(path) = path else {
            if kind == EntryType::Directory {
                continue;
            }
            return Err(refuse("is a file without a name", "create the archive again"));
        };
        if kind == EntryType::Directory {
            continue;
        }
        if found.contains_key(&path) {
            return Err(refuse("is there twice", "create the archive again"));
        }
        let mut content = Vec::new();
        (&mut entry).take(FILE_BYTES + 1).read_to_end(&mut content).map_err(|error| broken(&error))?;
        if content.len() as u64 > FILE_BYTES {
            let what = format!("is larger than {} MiB", FILE_BYTES >> 20);
            return Err(refuse(&what, "a child that needs large data must fetch it at run time"));
        }
        bytes += content.len() as u64;
        if bytes > MOST_BYTES {
            return Err(too_large(root));
        }
        found.insert(path, content);
    }
    Ok(found)
}

/// The normalised path of an entry; `None` for the folder itself.
fn place(name: &str) -> Result<Option<String>, &'static str> {
    if name.contains('\u{fffd}') {
        return Err("has a name that is not UTF-8");
    }
    if name.starts_with('/') {
        return Err("has an absolute path");
    }
    let mut parts: Vec<&str> = Vec::new();
    for (index, part) in name.split('/').enumerate() {
        match part {
            "." if index == 0 => {}
            // The name of a folder may end with a slash.
            "" if index > 0 && name.ends_with('/') && index == name.matches('/').count() => {}
            ".." => return Err("leaves its folder"),
            "." | "" => return Err("has an empty part in its path"),
            part if part.contains('\\') || part.chars().any(char::is_control) => {
                return Err("has a name with a backslash or a control character");
            }
            part => parts.push(part),
        }
    }
    if parts.len() > DEPTH + 2 {
        return Err("is too deep");
    }
    Ok((!parts.is_empty()).then(|| parts.join("/")))
}

/// A reader that fails, instead of ending, once it has read the maximum number of bytes.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.inner.read(&mut buffer[..most])?;
        self.left -= read as u64;
        Ok(read)
    }
}

fn too_large(root: &Path) -> Diagnostic {
    let message = format!("{} is larger than {} MiB when decompressed", root.display(), MOST_BYTES >> 20);
    Diagnostic::error("package::budget", message)
        .help("a package consists of operator.yaml, crds/ and templates/")
}

fn unreadable(root: &Path, error: &io::Error) -> Diagnostic {
    if error.kind() == io::ErrorKind::FileTooLarge {
        return too_large(root);
    }
    let message = format!("{} cannot be read as a tar archive: {}", root.display(), reason(error));
    Diagnostic::error(UNREADABLE, message).help("make it with `tar -czf NAME.tgz -C FOLDER .`")
}
