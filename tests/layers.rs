//! Checks the layers of the code by its imports, and the dependencies that it names. Links nothing of the
//! crate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates, and the modules of each from the bottom up: a module may import those that precede it in the
/// list, so there is no circle. The manifests say what a crate may import of another.
const LAYERS: [(&str, &[&str]); 4] = [
    ("src/lang", &["printable", "diag", "api", "naming", "backoff", "yaml", "schema", "template"]),
    ("src/package", &["crd", "readiness"]),
    ("src/core", &["operators", "plan", "children", "rights", "preview"]),
    ("src", &["clock", "cluster", "manager", "cli"]),
];

/// The crates that neither wait nor do I/O.
const PURE: [&str; 3] = ["src/lang", "src/package", "src/core"];
const IMPURE: [&str; 7] = ["tokio", "hyper", "clap", "kube", "futures", "operetta", "operetta-local"];

/// A mention of a path in a file.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    line: usize,
    module: String,
}

#[test]
fn imports_point_down() {
    let mut found = Vec::new();
    for (root, layers) in LAYERS {
        for (layer, module) in layers.iter().enumerate() {
            let single = Path::new(root).join(module).with_extension("rs");
            let files = rust_files(&Path::new(root).join(module))
                .into_iter()
                .chain(single.exists().then_some(single));
            for path in files {
                let text = fs::read_to_string(&path).unwrap();
                for import in imports(&text, depth(path.strip_prefix(root).unwrap())) {
                    if layers[layer + 1..].contains(&&*import.module) {
                        let Import { line, module: upper } = import;
                        found.push(format!(
                            "{}:{line}: `{module}` imports `{upper}`, a layer above it",
                            path.display()
                        ));
                    }
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_module_has_a_layer() {
    for (root, layers) in LAYERS {
        // The modules of `src/package` itself make one layer, above those in its list.
        if root == "src/package" {
            continue;
        }
        let text = fs::read_to_string(Path::new(root).join("lib.rs")).unwrap();
        let modules = text.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
        let modules: BTreeSet<&str> =
            modules.map(|name| name.trim_end_matches(';')).filter(|m| *m != "test_crd").collect();
        assert_eq!(modules, layers.iter().copied().collect(), "{root}/lib.rs and LAYERS");
    }
}

#[test]
fn pure_crates_cannot_wait() {
    for root in PURE {
        let manifest = fs::read_to_string(Path::new(root).join("Cargo.toml")).unwrap();
        let found: Vec<&str> = dependencies(&manifest).filter(|name| IMPURE.contains(name)).collect();
        assert!(found.is_empty(), "{root} is pure and depends on {}", found.join(", "));
    }
}

/// All time of the core and the manager goes through `clock`, so that a test that moves the clock moves all
/// of it.
#[test]
fn time_comes_from_the_clock() {
    let mut found = Vec::new();
    for path in ["src/core", "src/manager"].iter().flat_map(|folder| rust_files(Path::new(folder))) {
        for (line, code) in code(&fs::read_to_string(&path).unwrap()) {
            let is_time = code.contains("std::time") || code.contains("tokio::time");
            if code.contains("SystemTime::now") || is_time && code.contains("Instant") {
                found.push(format!("{}:{line}: use crate::clock", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A dependency that no file names costs build time for nothing.
#[test]
fn every_dependency_is_used() {
    let crates = [
        (
            ".",
            &["src/clock.rs", "src/cluster", "src/manager", "src/cli", "src/lib.rs", "src/main.rs", "tests"]
                as &[&str],
        ),
        ("src/lang", &["src/lang"]),
        ("src/package", &["src/package"]),
        ("src/core", &["src/core"]),
        ("src/local", &["src/local"]),
    ];
    for (root, folders) in crates {
        let manifest = fs::read_to_string(Path::new(root).join("Cargo.toml")).unwrap();
        let files = folders.iter().flat_map(|folder| rust_files(Path::new(folder)));
        let sources: Vec<String> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
        let is_used = |name: &str| {
            let name = name.replace('-', "_");
            sources
                .iter()
                .filter(|text| text.contains(&name))
                .flat_map(|text| code(text))
                .any(|(_, code)| names(code, &name))
        };
        let unused: Vec<&str> = dependencies(&manifest).filter(|name| !is_used(name)).collect();
        assert!(
            unused.is_empty(),
            "{root}/Cargo.toml: no file names {}; remove what is not used",
            unused.join(", ")
        );
    }
}

#[test]
fn imports_are_found_in_every_form() {
    let text = "\
//! [`crate::cli`] is no import.
use crate::{
    api,
    template::{self, parse},
};
use super::yaml::Tree;
use super::super::crd;
fn f() -> crate::naming::Rule { super::super::cluster::x(\"https://x\") }
mod tests {
    use super::cli;
    use super::super::super::manager;
}
";
    let found: Vec<(usize, String)> = imports(text, 2).into_iter().map(|i| (i.line, i.module)).collect();
    let wanted = [(2, "api"), (2, "template"), (7, "crd"), (8, "naming"), (8, "cluster"), (11, "manager")];
    assert_eq!(found, wanted.map(|(line, module)| (line, module.to_owned())));
}

#[test]
fn dependencies_are_read_from_the_manifest() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nserde-json.workspace = true\n# no = 1\n\n[dev-dependencies]\na = { version = \"1\" }\n[lints.rust]\nb = 1\n";
    assert_eq!(dependencies(manifest).collect::<Vec<_>>(), ["serde-json", "a"]);
    assert!(names("use serde_json::Value;", "serde_json") && names("let x = a::b();", "a"));
    assert!(names("pub use operetta_local as local;", "operetta_local"));
    assert!(!names("use my_serde_json::Value;", "serde_json") && !names("let a = 1;", "a"));
}

/// How deep the module of a file is.
fn depth(path: &Path) -> usize {
    let parts = path.components().count();
    if path.ends_with("mod.rs") { parts - 1 } else { parts }
}

/// All mentions of top-level modules in the code of a module that is `depth` deep.
fn imports(text: &str, depth: usize) -> Vec<Import> {
    let mut found = Vec::new();
    // rustfmt puts the braces of an inline module at the beginning of a line.
    let mut inline = 0;
    for (line, code) in code(text) {
        if code.starts_with("mod ") && code.ends_with('{') {
            inline = 1;
        } else if code.starts_with('}') {
            inline = 0;
        }
        // A list in braces may continue on the next lines.
        let start = code.as_ptr().addr() - text.as_ptr().addr();
        let to_root = "super::".repeat(depth + inline);
        let paths = ["crate::", &to_root];
        let after = paths.iter().flat_map(|path| code.match_indices(path).map(|(at, _)| at + path.len()));
        let modules: Vec<&str> = after.flat_map(|at| heads(&text[start + at..])).collect();
        found.extend(modules.into_iter().map(|module| Import { line, module: module.to_owned() }));
    }
    found
}

/// The first segment of a path, or of each path in its braces.
fn heads(path: &str) -> Vec<&str> {
    let word = |text: &'_ str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let Some(list) = path.strip_prefix('{') else { return vec![&path[..word(path)]] };
    let mut depth = 0;
    let mut heads = Vec::new();
    for (at, c) in list.char_indices() {
        let before = list[..at].trim_end();
        let starts = before.is_empty() || before.ends_with(',');
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ if depth == 0 && starts && c.is_alphabetic() => heads.push(&list[at..at + word(&list[at..])]),
            _ => {}
        }
    }
    heads
}

/// The lines of a text that are not comments, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether a line names a crate.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + name.len()..];
        let is_path = after.starts_with("::") || after.starts_with(" as ");
        is_path && before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}

/// The names in the sections of dependencies of a package's manifest.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut is_section = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            is_section = matches!(line, "[dependencies]" | "[dev-dependencies]");
        }
        let name = line.split_once(" = ").map(|(name, _)| name.trim_end_matches(".workspace"));
        name.filter(|name| is_section && !name.starts_with('#'))
    })
}

/// All Rust files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    if folder.is_file() {
        return vec![folder.to_owned()];
    }
    if !folder.is_dir() {
        return files;
    }
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}
