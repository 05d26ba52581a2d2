//! The packages of `operetta dev`, and the detection of changed files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::diag::Diagnostic;
use crate::package::{self, Files, Package};

/// The interval of reading the files. A package is small, and on a developer's machine its files are cached.
const EVERY: Duration = Duration::from_millis(500);

/// A package, and the last read state of its files.
struct Source {
    path: PathBuf,
    package: Arc<Package>,
    files: State,
}

/// The digest of the files, or why they cannot be read.
#[derive(Debug, Clone, PartialEq)]
enum State {
    Files(String),
    Unreadable(Vec<Diagnostic>),
}

/// A changed package.
pub(super) enum Change {
    /// It is loaded, with these warnings.
    Loaded(Arc<Package>, Vec<Diagnostic>),
    /// It cannot be loaded; the last good version stays active.
    Broken(Arc<Package>, Vec<Diagnostic>),
}

/// The packages of the command line.
pub(super) struct Packages(Vec<Source>);

impl Packages {
    /// The packages that were loaded from these folders, in the same order.
    pub(super) fn new(paths: &[PathBuf], packages: Vec<Arc<Package>>) -> Self {
        let sources = paths.iter().zip(packages).map(|(path, package)| Source {
            path: path.clone(),
            // Later states are compared with what was loaded.
            files: State::Files(package.digest.clone()),
            package,
        });
        Self(sources.collect())
    }

    /// The last good version of each package.
    pub(super) fn all(&self) -> Vec<Arc<Package>> {
        self.0.iter().map(|source| Arc::clone(&source.package)).collect()
    }

    /// Waits until files have changed and are stable for a moment: an editor writes one after another.
    pub(super) async fn changed(&mut self) -> Vec<Change> {
        loop {
            tokio::time::sleep(EVERY).await;
            let mut now = self.read().await;
            if !self.0.iter().zip(&now).any(|(source, now)| source.files != *now) {
                continue;
            }
            loop {
                tokio::time::sleep(EVERY).await;
                let again = self.read().await;
                if again == now {
                    break;
                }
                now = again;
            }
            let changes = self.take(now);
            if !changes.is_empty() {
                return changes;
            }
        }
    }

    /// Loads the packages whose files have changed.
    fn take(&mut self, now: Vec<State>) -> Vec<Change> {
        let mut changes = Vec::new();
        for (index, state) in now.into_iter().enumerate() {
            if self.0[index].files == state {
                continue;
            }
            self.0[index].files = state;
            let loaded = package::load(&self.0[index].path).and_then(|(package, warnings)| {
                match self.0.iter().enumerate().find(|(i, s)| *i != index && s.package.name == package.name) {
                    Some((_, other)) => Err(vec![same_name(&package.name, &other.path)]),
                    None => Ok((package, warnings)),
                }
            });
            let source = &mut self.0[index];
            changes.push(match loaded {
                Ok((package, warnings)) => {
                    source.package = Arc::new(package);
                    Change::Loaded(Arc::clone(&source.package), warnings)
                }
                Err(errors) => Change::Broken(Arc::clone(&source.package), errors),
            });
        }
        changes
    }

    async fn read(&self) -> Vec<State> {
        let paths: Vec<PathBuf> = self.0.iter().map(|source| source.path.clone()).collect();
        let read = tokio::task::spawn_blocking(move || paths.iter().map(|path| state(path)).collect());
        // Reading does not panic; if it does, the package counts as unchanged.
        read.await.unwrap_or_else(|_| self.0.iter().map(|source| source.files.clone()).collect())
    }
}

fn state(path: &Path) -> State {
    match Files::read(path) {
        Ok(files) => State::Files(files.digest()),
        Err(errors) => State::Unreadable(errors),
    }
}

fn same_name(name: &str, other: &Path) -> Diagnostic {
    let message = format!("{} is named {name} as well", other.display());
    Diagnostic::error("package::same-name", message).help("change metadata.name in one of them")
}
