//! Checks the tables of stored formats (docs/stored-formats.md) against the source. Links nothing of the crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const DOMAIN: &str = "operetta.dev/";

/// What follows the domain in the source and names nothing that is stored: the version of the API, and URLs.
const OTHERS: [&str; 3] = ["v1alpha1", "schemas", "sbom"];

/// The numbers of formats: the file that has the constant, the constant, and the row that says it.
const NUMBERS: [(&str, &str, &str); 3] = [
    ("src/core/plan/memory.rs", "const FORMAT: u64 = ", "InstanceState"),
    ("src/package/store/mod.rs", "const FORMAT: u64 = ", "OperatorRevision"),
    ("src/core/plan/crds/admission.rs", "const VERSION: u64 = ", "operetta.dev/policy-version"),
];

/// The first cell of each row, without quotes, and the row.
fn rows(table: &str) -> Vec<(&str, &str)> {
    table.lines().filter_map(|line| Some((line.strip_prefix("| `")?.split_once("` |")?.0, line))).collect()
}

#[test]
fn every_stored_name_is_in_the_tables() {
    let table = fs::read_to_string("docs/stored-formats.md").unwrap();
    let rows = rows(&table);
    let listed: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed.len(), rows.len(), "each name has one row");
    let (mut names, mut source) = (BTreeMap::new(), String::new());
    visit(Path::new("src"), &mut names, &mut source);
    let missing: Vec<String> = names
        .iter()
        .filter(|(name, _)| !listed.contains(format!("{DOMAIN}{name}").as_str()))
        .map(|(name, place)| format!("{DOMAIN}{name} ({place})"))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/stored-formats.md has no row for these; what is not stored belongs into OTHERS of this test:\n{}",
        missing.join("\n")
    );
    let is_used = |name: &str| match name.strip_prefix(DOMAIN) {
        Some(name) => names.contains_key(name),
        // The name of the Secret derives from that of the Lease.
        None => source.contains(name.trim_start_matches("LEASE")),
    };
    let gone: Vec<&&str> = listed.iter().filter(|name| !is_used(name)).collect();
    assert!(gone.is_empty(), "nothing in the source has these names of docs/stored-formats.md: {gone:?}");
}

#[test]
fn tables_have_the_numbers_of_the_formats() {
    let table = fs::read_to_string("docs/stored-formats.md").unwrap();
    let rows: BTreeMap<&str, &str> = rows(&table).into_iter().collect();
    for (file, constant, row) in NUMBERS {
        let text = fs::read_to_string(file).unwrap();
        let number = text.split_once(constant).and_then(|(_, rest)| rest.split_once(';')).unwrap().0;
        assert!(rows[row].contains(&format!("now {number}")), "{row}: the format is {number}");
    }
}

/// Collects the names behind the domain in all files below a folder with the place where each was found first, and the
/// whole text.
fn visit(folder: &Path, names: &mut BTreeMap<String, String>, source: &mut String) {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            visit(&path, names, source);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for (number, line) in text.lines().enumerate() {
                for name in names_in(line) {
                    names.entry(name).or_insert_with(|| format!("{}:{}", path.display(), number + 1));
                }
            }
            source.push_str(text);
        }
    }
}

/// The names behind the domain in a line.
fn names_in(line: &str) -> impl Iterator<Item = String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let name = move |rest: &str| rest.chars().take_while(|c| is_part(*c)).collect::<String>();
    let parts: Vec<&str> = line.split(DOMAIN).collect();
    // In `planrun.operetta.dev/NAME`, as kubectl prints it, the domain is the end of a longer one.
    let is_whole = |before: &str| !before.ends_with('.');
    let found = parts.windows(2).filter(|pair| is_whole(pair[0])).map(|pair| name(pair[1]));
    found.filter(|name| !name.is_empty() && !OTHERS.contains(&name.as_str())).collect::<Vec<_>>().into_iter()
}
