//! Evidence: what is checked of a package when it is made, so that `operetta inspect --check` can check it again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::Arc;

use operetta_registry::evidence::{Case, Explored, Lint, Reached, Tests};
use operetta_registry::{Archive, Digest, Evidence, archive};

use crate::cli::command::Failure;
use crate::cli::out;
use crate::cli::show::plural;
use crate::diag::{Diagnostic, Severity};
use crate::package::{Package, plain};
use crate::play::{self, Ended, IMAGE, Limits, Sources, Suite};

/// The seed of explorations, as that of `operetta test --explore`.
const SEED: u64 = 1;

/// The maximum size of what a config states about cases, in bytes. A cluster stores the config with the revision, in an annotation.
const TESTS_BYTES: usize = 64 << 10;

/// What is checked beyond the lint.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Evidence")]
pub(super) struct Wanted {
    /// Play the cases of tests/ first, and store with the package that they pass. If one fails, nothing is written
    #[arg(long)]
    pub test: bool,

    /// With --test: play the cases under this many schedules of disturbances, too
    #[arg(long, value_name = "COUNT", requires = "test", value_parser = clap::value_parser!(u32).range(1..))]
    explore: Option<u32>,
}

/// Evidence, and the archive of the files that cases read.
pub(super) struct Proof {
    pub evidence: Evidence,
    pub tests: Option<Vec<u8>>,
}

/// Checks a package that was loaded from a folder or archive with these warnings.
pub(super) fn prove(
    path: &Path,
    package: &Arc<Package>,
    warnings: &[Diagnostic],
    wanted: &Wanted,
) -> Result<Proof, Failure> {
    let mut proof = Proof { evidence: linted(warnings), tests: None };
    if wanted.test {
        if !path.is_dir() {
            let message = format!("--test: the tests of {} are not in the archive", path.display());
            return Err(Failure::usage(format!("{message}\n  help: name the folder of the package")));
        }
        let mut sources = Sources::of(path);
        let explored = wanted.explore.map(|count| (count as usize, SEED));
        let played = Played::new(path, package, &mut sources, explored)?;
        if let Some(failure) = played.failures.first() {
            return Err(failure.clone().into());
        }
        let (folder, files) = bundle(path, &sources)?;
        let tests = Tests { files: files.tar, folder, ..played.tests };
        let bytes = serde_json::to_vec(&tests).map_or(usize::MAX, |text| text.len());
        if bytes > TESTS_BYTES {
            let message = format!(
                "the {} of {} would take {} KiB of the package's config, and {} KiB are allowed\n  help: give the cases shorter \
                 names, or join some",
                plural(tests.cases.len(), "case"),
                path.display(),
                bytes >> 10,
                TESTS_BYTES >> 10
            );
            return Err(message.into());
        }
        out::note(format!("tested  {}", summary(&tests)));
        (proof.evidence.tests, proof.tests) = (Some(tests), Some(files.bytes));
    }
    Ok(proof)
}

/// Evidence of a lint alone.
pub(super) fn linted(warnings: &[Diagnostic]) -> Evidence {
    let mut lint = Lint::default();
    for warning in warnings.iter().filter(|found| found.severity == Severity::Warning) {
        *lint.warnings.entry(warning.code.to_owned()).or_default() += 1;
    }
    Evidence { operetta: env!("CARGO_PKG_VERSION").to_owned(), lint, tests: None }
}

/// Cases in a sentence.
pub(super) fn summary(tests: &Tests) -> String {
    let passed = tests.cases.iter().filter(|case| case.outcome == PASSED).count();
    let skipped = tests.cases.len() - passed;
    let mut words = vec![format!("{} passed", plural(passed, "case"))];
    words.extend((skipped > 0).then(|| format!("{skipped} skipped")));
    let reached = tests.reached.iter().filter(|(_, found)| found.of > 0);
    words.extend(reached.map(|(what, found)| format!("{} of {} {what}", found.reached, found.of)));
    words.extend(
        tests
            .explored
            .map(|one| format!("{} of disturbances (seed {})", plural(one.schedules, "schedule"), one.seed)),
    );
    words.join(", ")
}

const PASSED: &str = "passed";

/// Cases that were played.
struct Played {
    /// Without the files.
    tests: Tests,
    /// A sentence about each case that fails.
    failures: Vec<String>,
}

impl Played {
    /// Plays all cases of the package in a folder, and explores as many schedules, with this seed.
    fn new(
        folder: &Path,
        package: &Arc<Package>,
        sources: &mut Sources,
        explored: Option<(usize, u64)>,
    ) -> Result<Self, Failure> {
        let suites = play::load_from(folder, package, sources).map_err(|errors| {
            out::report(&errors);
            Failure::from(format!("the tests of {} cannot be read", folder.display()))
        })?;
        if suites.is_empty() {
            return Err(Failure::from(format!("{} has no case", folder.join("tests").display())));
        }
        let selected = play::select(&suites, None);
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let ended = play::play(&suites, &selected, threads, |_| ());
        let failed: Vec<&Ended> = ended.iter().filter(|ended| ended.failure.is_some()).collect();
        failed.iter().filter_map(|ended| ended.failure.as_deref()).for_each(|failure| {
            out::report(std::slice::from_ref(failure));
        });
        let name = |ended: &Ended| suites[ended.place.0].cases[ended.place.1].name.clone();
        let mut failures: Vec<String> =
            failed.iter().map(|ended| format!("the case \"{}\" fails", name(ended))).collect();
        let reached: play::Reached = ended.iter().flat_map(|ended| ended.reached.iter().cloned()).collect();
        let cases = ended.iter().map(|ended| Case {
            file: file(folder, &suites[ended.place.0]),
            name: name(ended),
            outcome: match (&ended.failure, &ended.skipped) {
                (Some(_), _) => "failed",
                (None, Some(_)) => "skipped",
                (None, None) => PASSED,
            }
            .to_owned(),
        });
        let mut tests = Tests {
            files: Digest::of(b""),
            folder: String::new(),
            cases: cases.collect(),
            reached: play::coverage(&suites, &reached)
                .map(|(what, reached, of)| (what.to_owned(), Reached { reached, of }))
                .into(),
            images: reached.iter().filter_map(|name| name.strip_prefix(IMAGE)).map(str::to_owned).collect(),
            explored: None,
        };
        if let Some((schedules, seed)) = explored.filter(|_| failures.is_empty()) {
            let limits = Limits { schedules, failures: 1, time: None, seed, threads };
            let found = play::explore(&suites, &selected, limits);
            if !found.stories.is_empty() {
                let folder = folder.display();
                failures.push(format!(
                    "a case fails under disturbances\n  help: `operetta test {folder} --explore --schedules {schedules}` shows it"
                ));
            }
            tests.explored = Some(Explored { schedules: found.played, seed });
        }
        Ok(Self { tests, failures })
    }
}

/// The file of cases, from the folder of the package.
fn file(folder: &Path, suite: &Suite) -> String {
    let path = Path::new(&suite.path);
    path.strip_prefix(folder).unwrap_or(path).display().to_string()
}

/// The archive of the files that cases have read, and where in it the folder of the package is. Cases may read files beside that.
fn bundle(folder: &Path, sources: &Sources) -> Result<(String, Archive), Failure> {
    let unusable =
        |why: &str| Failure::from(format!("the tests of {} cannot be stored: {why}", folder.display()));
    let folder = plain(folder).ok_or_else(|| unusable("it is no folder"))?;
    let mut root = folder.as_path();
    while !sources.files.keys().all(|path| path.starts_with(root)) {
        root = root.parent().ok_or_else(|| unusable("they have nothing in common"))?;
    }
    let name = |path: &Path| {
        let parts = path.strip_prefix(root).ok()?.components();
        parts.map(|part| part.as_os_str().to_str()).collect::<Option<Vec<_>>>().map(|parts| parts.join("/"))
    };
    let unnamed = || unusable("the path of a file is not UTF-8");
    let files = sources.files.iter().map(|(path, source)| Some((name(path)?, source.text.as_bytes())));
    let files: Vec<(String, &[u8])> = files.collect::<Option<_>>().ok_or_else(unnamed)?;
    let archived = archive(files.iter().map(|(path, text)| (path.as_str(), *text)));
    Ok((name(&folder).ok_or_else(unnamed)?, archived.map_err(|error| unusable(&error.to_string()))?))
}

/// A statement of a config that was checked.
pub(super) struct Point {
    /// What it is about.
    pub what: &'static str,
    /// What was found instead, or how it was checked.
    pub words: String,
    pub is_ok: bool,
}

impl Point {
    pub(super) fn of(what: &'static str, problems: &[String], words: impl Into<String>) -> Self {
        let is_ok = problems.is_empty();
        Self { what, words: if is_ok { words.into() } else { problems.join("; ") }, is_ok }
    }
}

/// Plays the cases of a package again that its config states, and compares. `archives`: what is attached to it as its tests.
pub(super) fn replay(
    name: &str,
    package: &Package,
    stated: &Tests,
    archives: &[bytes::Bytes],
) -> Result<Point, Failure> {
    let path = Path::new(name);
    let mut found = None;
    for bytes in archives {
        // Anybody who may push can attach something: what counts is the digest that the config states.
        let Ok(files) = crate::package::archived(path, &bytes[..]) else { continue };
        let again = archive(files.iter().map(|(path, text)| (path.as_str(), &text[..])));
        if again.is_ok_and(|again| again.tar == stated.files) {
            found = Some(files);
        }
    }
    let Some(files) = found else {
        let problem = format!("the files with the digest {} are not attached", stated.files);
        return Ok(Point::of("tests", &[problem], ""));
    };
    if !is_below(&stated.folder) {
        let problem = format!("{:?} is no folder of the archive", out::printable(&stated.folder));
        return Ok(Point::of("tests", &[problem], ""));
    }
    let failed =
        |error: std::io::Error| Failure::from(format!("no folder for the tests: {}", out::reason(&error)));
    let temporary = tempfile::tempdir().map_err(failed)?;
    let root = temporary.path();
    let folder = root.join(&stated.folder);
    let of_package = package.files.iter().map(|(path, file)| (folder.join(path), file.text.as_bytes()));
    // The package is the one that the config is about, whatever the tests have brought along.
    let of_tests = files.iter().map(|(path, text)| (root.join(path), &text[..]));
    for (path, text) in of_tests.chain(of_package) {
        let parent = path.parent().unwrap_or(root);
        std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, text)).map_err(failed)?;
    }
    let (package, _) = crate::package::load(&folder).map_err(|errors| {
        out::report(&errors);
        Failure::from("the package cannot be loaded beside its tests")
    })?;
    let explored = stated.explored.map(|one| (one.schedules, one.seed));
    let played = Played::new(&folder, &Arc::new(package), &mut Sources::within(root), explored)?;
    let found = Tests { files: stated.files.clone(), folder: stated.folder.clone(), ..played.tests };
    let mut problems = played.failures;
    if problems.is_empty() {
        problems = compare(stated, &found);
    }
    Ok(Point::of("tests", &problems, format!("played again: {}", summary(&found))))
}

/// How what was found differs from what is stated.
fn compare(stated: &Tests, found: &Tests) -> Vec<String> {
    let of = |tests: &Tests| -> BTreeMap<String, String> {
        let key = |case: &Case| format!("the case \"{}\" of {}", case.name, case.file);
        tests.cases.iter().map(|case| (key(case), case.outcome.clone())).collect()
    };
    let mut problems = differences(&of(stated), &of(found));
    let reached = |tests: &Tests| -> BTreeMap<String, String> {
        tests.reached.iter().map(|(what, n)| (what.clone(), format!("{} of {}", n.reached, n.of))).collect()
    };
    problems.extend(differences(&reached(stated), &reached(found)));
    if stated.images != found.images {
        problems.push(format!(
            "images: stated {}, found {}",
            stated.images.join(", "),
            found.images.join(", ")
        ));
    }
    if stated.explored != found.explored {
        problems.push("the number of schedules differs".to_owned());
    }
    problems
}

/// Whether a text names a folder below another one.
fn is_below(folder: &str) -> bool {
    Path::new(folder).components().all(|part| matches!(part, Component::Normal(_)))
}

/// How two sets of numbers differ.
pub(super) fn differences<V: PartialEq + std::fmt::Display>(
    stated: &BTreeMap<String, V>,
    found: &BTreeMap<String, V>,
) -> Vec<String> {
    let names: BTreeSet<&String> = stated.keys().chain(found.keys()).collect();
    let differs = |name: &&String| stated.get(*name) != found.get(*name);
    let shown = |value: Option<&V>| value.map_or("none".to_owned(), ToString::to_string);
    let line = |name: &String| {
        format!("{name}: stated {}, found {}", shown(stated.get(name)), shown(found.get(name)))
    };
    names.into_iter().filter(differs).map(line).collect()
}
