//! The worlds of the packages: `tests/world.yaml` of each, and the detection of changes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use operetta_embedded::World;

use crate::diag::{Diagnostic, Source};
use crate::package::{FileScope, Unread};

/// The interval of reading the files, as for those of packages.
const EVERY: Duration = Duration::from_millis(500);
/// The file of a world in the folder of a package.
const FILE: &str = "tests/world.yaml";
/// The most bytes of such a file.
const BYTES: u64 = 8 << 20;

/// The files, and their texts when they were read last. Packages need not have one.
pub(super) struct Worlds {
    packages: Arc<[(PathBuf, FileScope)]>,
    texts: Vec<Result<Option<String>, String>>,
}

impl Worlds {
    /// Reads the worlds of packages.
    pub(super) async fn read(packages: &[PathBuf]) -> Self {
        let packages = packages.iter().map(|package| (package.clone(), FileScope::of(package)));
        let mut worlds = Self { packages: packages.collect(), texts: Vec::new() };
        worlds.texts = worlds.texts().await;
        worlds
    }

    /// What the programs of all packages do.
    ///
    /// # Errors
    /// All mistakes in the files.
    pub(super) fn compile(&self) -> Result<World, Vec<Diagnostic>> {
        let (mut sources, mut errors) = (Vec::new(), Vec::new());
        for ((package, _), text) in self.packages.iter().zip(&self.texts) {
            let file = package.join(FILE);
            match text {
                Ok(Some(text)) => sources.push(Source::new(file.display().to_string(), text.as_str())),
                Ok(None) => {}
                Err(why) => {
                    let message = format!("{} cannot be read: {why}", file.display());
                    errors.push(Diagnostic::error("world::unreadable", message));
                }
            }
        }
        if errors.is_empty() { World::parse(&sources) } else { Err(errors) }
    }

    /// Waits until a file has changed and is stable for a moment.
    pub(super) async fn changed(&mut self) {
        let mut last = self.texts.clone();
        loop {
            tokio::time::sleep(EVERY).await;
            let now = self.texts().await;
            if now == last && now != self.texts {
                self.texts = now;
                return;
            }
            last = now;
        }
    }

    async fn texts(&self) -> Vec<Result<Option<String>, String>> {
        let packages = Arc::clone(&self.packages);
        let texts = move || packages.iter().map(|(package, scope)| text_of(package, scope)).collect();
        tokio::task::spawn_blocking(texts).await.unwrap_or_default()
    }
}

/// The text of the world of a package. Whoever tries a package may not have written it.
fn text_of(package: &Path, scope: &FileScope) -> Result<Option<String>, String> {
    match scope.text(&package.join(FILE), BYTES) {
        Ok(text) => Ok(Some(text)),
        // A package may be an archive.
        Err(Unread::System(error))
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(why) => Err(why.to_string()),
    }
}
