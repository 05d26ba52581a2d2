//! Files and folders: fixtures, copies of packages, and folders that last as long as a process.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tempfile::TempDir;

use crate::support::alive;

/// The folder of a fixture package.
pub fn fixture(name: &str) -> String {
    format!("tests/fixtures/packages/{name}")
}

/// The text of a file of the repository.
pub fn file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Writes a file, in a folder that may be missing.
pub fn put_file(path: &Path, text: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The folder of what lasts as long as a process that runs tests.
pub const LASTING: &str = env!("CARGO_TARGET_TMPDIR");

/// A folder for a static, which is not dropped: the folders of processes that have ended are removed here.
pub fn lasting_folder(name: &str) -> PathBuf {
    static OF_PROCESS: LazyLock<PathBuf> = LazyLock::new(|| {
        let own = std::process::id();
        for entry in std::fs::read_dir(LASTING).into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            if pid.is_some_and(|pid| pid == own || !alive(pid)) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        Path::new(LASTING).join(own.to_string())
    });
    let folder = OF_PROCESS.join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Copies a folder and changes the text of each file.
pub fn copy_folder(from: &Path, to: &Path, change: &impl Fn(String) -> String) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path: PathBuf = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_folder(&path, &target, change);
        } else {
            std::fs::write(target, change(std::fs::read_to_string(path).expect("text"))).expect("a file");
        }
    }
}

/// Copies a package with another API group and another name, so that its manager does not touch the instances
/// of other tests. The first label of the new group is appended to the name.
pub fn copy_package(
    folder: &str,
    group: &str,
    new_group: &str,
    change: impl Fn(String) -> String,
) -> TempDir {
    let label = new_group.split('.').next().unwrap_or_default();
    let name = folder.rsplit('/').next().unwrap_or_default();
    let copy = tempfile::tempdir().expect("a folder");
    copy_folder(Path::new(folder), copy.path(), &|text| {
        let text = text.replace(group, new_group);
        let text = text.replace(
            &format!("metadata: {{name: {name}}}\n"),
            &format!("metadata: {{name: {name}-{label}}}\n"),
        );
        change(text.replace(&format!("\n  name: {name}\n"), &format!("\n  name: {name}-{label}\n")))
    });
    copy
}
