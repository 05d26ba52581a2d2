//! `operetta test --update`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::cli::out;
use crate::diag::Diagnostic;
use crate::package::Package;
use crate::play::{self, Edit, Suite};

/// How often cases are played at most: what one round records may let a case go on to an expectation that differs, too.
const ROUNDS: usize = 10;

/// Records what is there in the files, and loads them again.
pub(super) fn run(
    mut suites: Vec<Suite>,
    folder: &Path,
    package: &Arc<Package>,
    case: Option<&str>,
    threads: usize,
) -> Result<Vec<Suite>, Vec<Diagnostic>> {
    let mut disputed = Vec::new();
    for _ in 0..ROUNDS {
        for suite in &mut suites {
            suite.records = true;
        }
        let ended = play::play(&suites, &play::select(&suites, case), threads, |_| {});
        let mut is_changed = false;
        disputed.clear();
        for (index, suite) in suites.iter().enumerate() {
            let edits = ended.iter().filter(|ended| ended.place.0 == index).flat_map(|ended| &ended.edits);
            is_changed |= write(suite, edits, &mut disputed).map_err(|error| vec![error])?;
        }
        if !is_changed {
            break;
        }
        suites = play::load(folder, package)?;
    }
    for line in disputed {
        out::note(line);
    }
    for suite in &mut suites {
        suite.records = false;
    }
    Ok(suites)
}

/// Writes the edits into a file. Returns whether there were any.
fn write<'e>(
    suite: &Suite,
    edits: impl Iterator<Item = &'e Edit>,
    disputed: &mut Vec<String>,
) -> Result<bool, Diagnostic> {
    let failed =
        |why: String| Diagnostic::error("test::update", format!("{} cannot be updated: {why}", suite.path));
    let text = fs::read_to_string(&suite.path).map_err(|error| failed(error.to_string()))?;
    if text != suite.source.text {
        return Err(failed("it has been changed meanwhile".to_owned()));
    }
    let (new, changes) = play::rewrite(&text, edits);
    for change in &changes {
        if change.is_disputed {
            disputed
                .push(format!("{}: not recorded, for cases or objects differ: {}", change.at, change.what));
        } else {
            out::note(format!("updated {}: {}", change.at, change.what));
        }
    }
    if new == text {
        return Ok(false);
    }
    operetta_registry::write(Path::new(&suite.path), new.as_bytes())
        .map_err(|error| failed(error.to_string()))?;
    Ok(true)
}
