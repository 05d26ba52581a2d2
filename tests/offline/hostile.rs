//! The packages of `tests/fixtures/hostile`: whoever reads, renders or tests them loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::cases::OPERETTA;

const FOLDER: &str = "tests/fixtures/hostile";
/// What the environment of the commands holds, `GITHUB_TOKEN`.
pub(crate) const TOKEN: &str = "ghp_this_is_no_token_1234567890";
/// Bounds of a command: its address space in KiB, and seconds of a processor. One that reaches them ends by a signal. One that hangs
/// ends after a quarter of an hour, with exit code 124.
const BOUNDS: &str = "ulimit -v 6291456; ulimit -t 120; ulimit -c 0; exec timeout -k 10 900 \"$0\" \"$@\"";
/// The most that a command prints, in bytes.
const MOST: usize = 4 << 20;

/// A row of the table in `README.md`: a package, a command and what it says.
struct Row {
    package: String,
    command: String,
    answer: String,
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(format!("{FOLDER}/README.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [package, _, command, answer] = cells[..] else { panic!("{line}") };
        Row { package: package.trim_matches('`').into(), command: command.into(), answer: answer.into() }
    };
    rows.map(row).collect()
}

/// A command on a package, within bounds.
pub(crate) fn bounded(command: &str, folder: &Path) -> Command {
    let mut bounded = Command::new("sh");
    bounded.args(["-c", BOUNDS, OPERETTA, command]).arg(folder).env("GITHUB_TOKEN", TOKEN);
    bounded
}

/// Nothing that is printed is a command to a runner of CI.
pub(crate) fn commands_nothing(text: &str) {
    assert!(!text.lines().any(|line| line.trim_start().starts_with("::")), "{text}");
    assert!(!text.contains("##vso[") && !text.contains("##["), "{text}");
}

/// What a command prints has nothing of this machine.
pub(crate) fn tells_nothing(text: &str) {
    for secret in [TOKEN, "root:x:0", "PATH="] {
        assert!(!text.contains(secret), "{text}");
    }
}

/// Runs a command on a package. It ends by itself, and tells and changes nothing of this machine.
fn run(command: &str, package: &str) -> String {
    let home = TempDir::new().unwrap();
    let folder = fs::canonicalize(FOLDER).unwrap().join(package);
    let instance = folder.join("instances/trap.yaml");
    let mut bounded = bounded(command, &folder);
    if command == "render" {
        bounded.arg("-f").arg(instance);
    }
    let output = bounded.current_dir(home.path()).env("HOME", home.path()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    let told =
        format!("{command} {package}: {}\n{}", output.status, text.chars().take(4_000).collect::<String>());
    assert!(output.status.signal().is_none() && matches!(output.status.code(), Some(0..=2)), "{told}");
    assert!(text.len() < MOST, "{} bytes of {told}", text.len());
    tells_nothing(&text);
    let is_unsafe = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!text.chars().any(is_unsafe), "{told:?}");
    commands_nothing(&text);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "{told}");
    text
}

/// The files of a folder with their sizes; links are not followed.
fn files(folder: &Path, found: &mut BTreeMap<String, u64>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.path().symlink_metadata().unwrap();
        if metadata.is_dir() {
            files(&entry.path(), found);
        } else {
            found.insert(entry.path().display().to_string(), metadata.len());
        }
    }
}

#[test]
fn hostile_packages_end_within_bounds_and_harm_nobody() {
    let rows = rows();
    let named: BTreeSet<String> = rows.iter().map(|row| row.package.clone()).collect();
    let folders = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap());
    let folders = folders.filter(|entry| entry.file_type().unwrap().is_dir());
    let folders: BTreeSet<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(named, folders, "README.md has a row for each package");
    let mut before = BTreeMap::new();
    files(Path::new(FOLDER), &mut before);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for command in ["lint", "render", "test"] {
                        let text = run(command, &row.package);
                        if command == row.command {
                            let Row { package, answer, .. } = row;
                            // A long line is wrapped.
                            let text = text.replace("\n  │ ", " ");
                            assert!(
                                text.contains(answer),
                                "{command} {package}: {answer:?} is not in\n{text}"
                            );
                        }
                    }
                }
            });
        }
    });
    let mut after = BTreeMap::new();
    files(Path::new(FOLDER), &mut after);
    assert_eq!(before, after);
}
