//! Files that are written as a whole: beside their place, under a lock, and then renamed. A killed writer leaves a
//! partial file without a lock, which the next writer in the folder removes.

use std::fs::{File, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::Error;

/// The prefix of the names of files that are being written.
pub(crate) const PARTIAL: &str = ".operetta-partial-";

/// Writes a file as a whole: it is replaced, or stays as it was.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    remove_abandoned(folder(path));
    replace(path, bytes)
}

/// The same without a look at what killed writers have left in the folder.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        let mut file = partial(folder(path))?;
        file.write_all(bytes)?;
        file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    };
    write().map(drop).map_err(Error::io("write", path))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new partial file, which is locked.
fn partial(folder: &Path) -> io::Result<NamedTempFile> {
    loop {
        let file = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(folder)?;
        // Another process that takes it for abandoned removes it. Where a file system has no locks, none does.
        let is_taken = matches!(file.as_file().try_lock(), Err(TryLockError::WouldBlock));
        if !is_taken && file.path().exists() {
            return Ok(file);
        }
    }
}

/// Removes the partial files of a folder whose writers have ended. Those that cannot be removed do no harm.
pub(crate) fn remove_abandoned(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_partial = entry.file_name().to_string_lossy().starts_with(PARTIAL);
        if !is_partial || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
        // It is removed under the lock, so that its writer, if there is one, makes another one.
        if file.try_lock().is_ok() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_files_of_killed_writers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (abandoned, result) = (folder.path().join(format!("{PARTIAL}abc")), folder.path().join("result"));
        std::fs::write(&abandoned, "half").unwrap();
        let writing = partial(folder.path()).unwrap();
        write(&result, b"whole").unwrap();
        assert_eq!(std::fs::read(&result).unwrap(), b"whole");
        assert!(!abandoned.exists());
        assert!(writing.path().exists(), "its writer still writes");
        drop(writing);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
