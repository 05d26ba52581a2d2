//! Checks that what docs/architecture.md and docs/testing.md name exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::rust_files;

/// Where paths of the page begin.
const ROOTS: [&str; 7] = ["src", "", "docs", "src/lang", "src/package", "src/core", "src/manager"];

/// Kinds of objects that have no type in the code.
const KINDS: [&str; 1] = ["Operator"];

/// The words in backticks outside of blocks of code.
fn quoted(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    outside.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

fn exists(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    ROOTS.iter().any(|root| {
        let path = Path::new(root).join(path);
        path.exists() || Path::new(&format!("{}.rs", path.display())).exists()
    })
}

/// The type that a text in backticks names, such as `Needs` in `Needs::revisions`; `None` for other texts.
fn type_of(text: &str) -> Option<&str> {
    let name = text.split("::").next()?;
    let is_type = name.starts_with(char::is_uppercase)
        && name.contains(char::is_lowercase)
        && name.chars().all(|c| c.is_ascii_alphanumeric());
    is_type.then_some(name)
}

#[test]
fn files_and_types_of_the_architecture_exist() {
    let text = fs::read_to_string("docs/architecture.md").unwrap();
    let mut declared = BTreeSet::from(KINDS.map(str::to_owned));
    for path in rust_files(Path::new("src")) {
        let source = fs::read_to_string(path).unwrap();
        let mut words =
            source.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            if ["struct", "enum", "trait", "type"].contains(&word) {
                declared.extend(words.next().map(str::to_owned));
            }
        }
    }
    let mut wrong = BTreeSet::new();
    // What is compared with the crates of others names those crates' paths and types.
    let (ours, _) = text.split_once("## What stays ours").unwrap();
    for word in quoted(ours) {
        let is_path = (word.contains('/') || Path::new(word).extension().is_some_and(|e| e == "rs"))
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        if is_path && !exists(word) {
            wrong.insert(format!("no file or folder `{word}`"));
        }
        if let Some(name) = type_of(word).filter(|name| !declared.contains(*name)) {
            wrong.insert(format!("no type `{name}`"));
        }
    }
    for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
        if !link.is_empty() && !link.contains("://") && !Path::new("docs").join(link).exists() {
            wrong.insert(format!("no page {link}"));
        }
    }
    // Each stop of a walk is a file and a type that the file declares or uses; no file comes twice in a walk.
    let walks = ["\n## One edit\n", "\n## One run of a plan\n"];
    for walk in walks {
        let section = text.split(walk).nth(1).unwrap().split("\n## ").next().unwrap();
        let mut seen = BTreeSet::new();
        for row in section.lines().filter(|line| line.starts_with("| ") && line.contains(".rs`")) {
            let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let [file, name] = [cells[2], cells[3]];
            let source = fs::read_to_string(Path::new("src").join(file)).unwrap_or_default();
            if !source.split(|c: char| !c.is_alphanumeric()).any(|word| word == name) {
                wrong.insert(format!("{file} does not name `{name}`"));
            }
            if !seen.insert(file) {
                wrong.insert(format!("{file} comes twice in{}", walk.trim_end().replace("\n##", "")));
            }
        }
        assert!(seen.len() > 10, "{walk}");
    }
    assert!(wrong.is_empty(), "docs/architecture.md:\n{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

/// The source of a topic, a file or a folder of one of the test binaries.
fn topic(name: &str) -> String {
    for binary in ["engine", "cluster", "planes", "offline"] {
        let path = format!("tests/{binary}/{name}");
        if let Ok(text) = fs::read_to_string(format!("{path}.rs")) {
            return text;
        }
        if let Ok(folder) = fs::read_dir(path) {
            let read = |path| fs::read_to_string(path).unwrap_or_default();
            return folder.map(|entry| read(entry.unwrap().path())).collect();
        }
    }
    panic!("no test binary has {name}.rs, nor a folder {name}")
}

/// `docs/testing.md` must name existing tests for each fault, and for each long form a variable that the file
/// reads.
#[test]
fn fault_tables_name_existing_tests() {
    let doc = fs::read_to_string("docs/testing.md").unwrap();
    let mut numbers = BTreeSet::new();
    let mut found = 0;
    for row in doc.lines().filter(|line| line.starts_with("| ")) {
        let first = row.trim_start_matches("| ").split(' ').next().unwrap_or_default();
        numbers.extend(first.parse::<u32>());
        let mut source = String::new();
        for word in row.split('`').skip(1).step_by(2) {
            if let Some(stem) = word.strip_suffix(".rs") {
                source = if word.starts_with("src/") || word.starts_with("tests/") {
                    fs::read_to_string(word).unwrap_or_else(|_| panic!("{word}, of {row}"))
                } else {
                    topic(stem)
                };
            } else if word.starts_with("OPERETTA_") {
                let name = word.split('=').next().unwrap_or_default();
                assert!(source.contains(&format!("\"{name}\"")), "{name}, of {row}");
            } else if word.contains('_') {
                assert!(source.contains(&format!("fn {word}(")), "{word}, of {row}");
                found += 1;
            }
        }
    }
    let missing: Vec<u32> = (1..=53).filter(|number| !numbers.contains(number)).collect();
    assert!(missing.is_empty(), "no test is named for {missing:?}");
    assert!(found > 60, "{found}");
}
