//! The worlds of the packages: `tests/world.yaml` of each, and the detection of changes.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use operetta_embedded::World;

use crate::diag::{Diagnostic, Source};

/// The interval of reading the files, as for those of packages.
const EVERY: Duration = Duration::from_millis(500);
/// The file of a world in the folder of a package.
const FILE: &str = "tests/world.yaml";

/// The files, and their texts when they were read last. Packages need not have one.
pub(super) struct Worlds {
    files: Vec<PathBuf>,
    texts: Vec<Result<Option<String>, String>>,
}

impl Worlds {
    /// Reads the worlds of packages.
    pub(super) async fn read(packages: &[PathBuf]) -> Self {
        let files: Vec<PathBuf> = packages.iter().map(|package| package.join(FILE)).collect();
        let mut worlds = Self { files, texts: Vec::new() };
        worlds.texts = worlds.texts().await;
        worlds
    }

    /// What the programs of all packages do.
    ///
    /// # Errors
    /// All mistakes in the files.
    pub(super) fn compile(&self) -> Result<World, Vec<Diagnostic>> {
        let (mut sources, mut errors) = (Vec::new(), Vec::new());
        for (file, text) in self.files.iter().zip(&self.texts) {
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
        let mut texts = Vec::with_capacity(self.files.len());
        for file in &self.files {
            texts.push(match tokio::fs::read_to_string(file).await {
                Ok(text) => Ok(Some(text)),
                // A package may be an archive.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    Ok(None)
                }
                Err(error) => Err(error.to_string()),
            });
        }
        texts
    }
}
