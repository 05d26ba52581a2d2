//! Every mistake that linting finds: a table of small packages with the expected findings marked in
//! the text.
//!
//! A fixture is several files. `//- path` begins a file. A line of carets below a line marks a finding
//! that begins where the carets begin: `#   ^^^ error: message; help`, or `^^^ error: ...` for the
//! first column. `//! error: ...` is a finding that has no place. `//- resource` is an operator.yaml
//! whose first lines are [`HEADER`], `//- crd` a CRD of the kind `Web` whose properties follow. Files of [`BASE`] are there unless a fixture brings its own.

mod cases;
mod conditional;
mod expressions;
mod guide;
mod mistakes;
mod object_mistakes;
mod outputs;
mod packages;
mod plan_mistakes;
mod plans;
mod refs;
mod schemas;
mod shared_mistakes;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::crd::crd_to_properties;
use operetta::diag::Diagnostic;
use operetta::package::{self, Package};

const HEADER: &str = "\
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: web}
spec:
  version: 0.1.0
  defaults: {image: nginx, ports: {http: 80}}
  resources:
";

const BASE: &str = "\
//- crd
            spec:
              type: object
              properties:
                size: {type: integer, default: 1}
                host: {type: string}
                envs: {type: array, items: {type: object, properties: {name: {type: string}}}}
                labels: {type: object, additionalProperties: {type: string}}
                free: {type: object, x-kubernetes-preserve-unknown-fields: true}
                pod: {type: object, properties: {image: {type: string}}}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
//- templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: \"{{ name }}\"}
";

struct Fixture {
    files: BTreeMap<String, String>,
    expected: Vec<String>,
}

/// A planted mistake: the file, the text to replace, its replacement, and words of the finding.
type Mistake = (&'static str, &'static str, &'static str, &'static str);

/// A package with a mistake planted in it; `None` if the text to replace is missing.
fn planted(sound: &str, (file, place, by, _): &Mistake) -> Option<BTreeMap<String, String>> {
    let mut files = parse(sound).files;
    let text = files.get_mut(*file).filter(|text| text.contains(place))?;
    *text = text.replacen(place, by, 1);
    Some(files)
}

/// All findings of a package, one a line.
fn findings(
    files: &BTreeMap<String, String>,
    find: fn(&Path) -> (Option<Package>, Vec<Diagnostic>),
) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), files);
    let (_, diagnostics) = find(folder.path());
    diagnostics.iter().map(|diagnostic| shown(folder.path(), diagnostic)).collect()
}

/// Checks that each mistake has a finding with its words. `is_in_place` says whether a finding is at the
/// place of the mistake.
fn all_are_found(
    sound: &str,
    mistakes: &[Mistake],
    find: fn(&Path) -> (Option<Package>, Vec<Diagnostic>),
    is_in_place: impl Fn(&Mistake, &str) -> bool,
) {
    let mut missed = Vec::new();
    for mistake in mistakes {
        let (file, place, by, wanted) = mistake;
        let Some(files) = planted(sound, mistake) else { panic!("{file} has no {place}") };
        let found = findings(&files, find);
        if !found.iter().any(|line| line.contains(wanted) && is_in_place(mistake, line)) {
            missed.push(format!("{file}: {by}\n  wanted: {wanted}\n  found: {}", found.join("\n         ")));
        }
    }
    println!("{} of {} planted mistakes are found", mistakes.len() - missed.len(), mistakes.len());
    assert!(missed.is_empty(), "{} of {} missed:\n{}", missed.len(), mistakes.len(), missed.join("\n"));
}

/// Whether a finding has a file, a line and a column, and a help text.
fn has_place_and_help(_: &Mistake, line: &str) -> bool {
    line.contains("; ") && line.split(": ").next().is_some_and(|at| at.matches(':').count() == 2)
}

/// Checks that a package has no findings after any of these valid changes of its files.
fn no_findings(sound: &str, right: &[&[(&str, &str, &str)]]) {
    let mut wrong = Vec::new();
    for changes in right {
        let mut files = parse(sound).files;
        for (file, place, by) in *changes {
            let text = files.get_mut(*file).unwrap();
            assert!(text.contains(place), "{file} has no {place}");
            *text = text.replacen(place, by, 1);
        }
        let found = findings(&files, whole_lint);
        if !found.is_empty() {
            wrong.push(format!("{changes:?}\n  found: {}", found.join("\n         ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn parse(text: &str) -> Fixture {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    let mut expected = Vec::new();
    let mut file = String::new();
    let mut lines = 0;
    for line in text.trim_start().lines() {
        if let Some(path) = line.strip_prefix("//- ") {
            let (path, start) = match path {
                "resource" => ("operator.yaml", HEADER.to_owned()),
                "crd" => ("crds/web.yaml", crd_to_properties("example.com", "webs", "Web")),
                path => (path, String::new()),
            };
            path.clone_into(&mut file);
            lines = start.lines().count();
            files.insert(file.clone(), start);
            continue;
        }
        if let Some(finding) = line.strip_prefix("//! ") {
            expected.push(finding.to_owned());
            continue;
        }
        let carets = line.trim_start_matches(['#', ' ']);
        if carets.starts_with('^') {
            let column = line.chars().count() - carets.chars().count() + 1;
            let finding = carets.trim_start_matches('^').trim();
            expected.push(format!("{file}:{lines}:{column}: {finding}"));
            continue;
        }
        lines += 1;
        let content = files.get_mut(&file).expect("a fixture begins with `//- path`");
        content.push_str(line);
        content.push('\n');
    }
    Fixture { files, expected }
}

fn write(folder: &Path, files: &BTreeMap<String, String>) {
    for (path, content) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn load(folder: &Path) -> (Option<Package>, Vec<Diagnostic>) {
    let (package, mut found) = match package::load(folder) {
        Ok((package, warnings)) => (Some(package), warnings),
        Err(diagnostics) => (None, diagnostics),
    };
    without_shared(&mut found);
    (package, found)
}

/// Reads a package and checks it against the schemas, as `lint` does.
fn lint(folder: &Path) -> (Option<Package>, Vec<Diagnostic>) {
    let (package, mut found) = whole_lint(folder);
    found.retain(|diagnostic| diagnostic.code != "package::unused-file");
    without_shared(&mut found);
    (package, found)
}

/// Removes findings about the CRD that fixtures share: few use each of its fields, and it does not limit names.
fn without_shared(found: &mut Vec<Diagnostic>) {
    found.retain(|diagnostic| !["package::unused-field", "package::name-length"].contains(&diagnostic.code));
}

fn whole_lint(folder: &Path) -> (Option<Package>, Vec<Diagnostic>) {
    let (package, mut found) = package::inspect(folder);
    for (_, diagnostic) in package.iter().flat_map(|package| package::check(&[package])) {
        if package::is_news(&found, &diagnostic) {
            found.push(diagnostic);
        }
    }
    (package, found)
}

fn shown(folder: &Path, diagnostic: &Diagnostic) -> String {
    let severity = if diagnostic.is_error() { "error" } else { "warning" };
    let place = diagnostic.location.as_ref().map_or_else(String::new, |location| format!("{location}: "));
    let help = diagnostic.help.as_ref().map_or_else(String::new, |help| format!("; {help}"));
    let text = format!("{place}{severity}: {}{help}", diagnostic.message);
    text.replace(&format!("{}/", folder.display()), "")
}

/// Loads the fixture and compares the findings with the marks.
fn check(text: &str) -> Option<Package> {
    check_with(text, load)
}

fn check_with(text: &str, find: fn(&Path) -> (Option<Package>, Vec<Diagnostic>)) -> Option<Package> {
    let mut fixture = parse(text);
    for (path, content) in parse(BASE).files {
        fixture.files.entry(path).or_insert(content);
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &fixture.files);
    let (package, diagnostics) = find(folder.path());
    let mut found: Vec<_> = diagnostics.iter().map(|diagnostic| shown(folder.path(), diagnostic)).collect();
    let mut expected = fixture.expected;
    found.sort();
    expected.sort();
    let only = |these: &[String], those: &[String]| {
        these.iter().filter(|line| !those.contains(line)).cloned().collect::<Vec<_>>().join("\n  ")
    };
    let (missing, surplus) = (only(&expected, &found), only(&found, &expected));
    assert!(found == expected, "\n--- expected only:\n  {missing}\n--- found only:\n  {surplus}\n");
    package
}

const OPERETTA: &str = env!("CARGO_BIN_EXE_operetta");

fn operetta(args: &[&str]) -> std::process::Output {
    std::process::Command::new(OPERETTA).args(args).output().unwrap()
}
