//! The layers of the code, read from its imports, and the dependencies that it names. Links nothing of the crate.

use std::fs;
use std::path::{Path, PathBuf};

/// The top-level modules, from the bottom up: each may import those above it in this list, so there is no circle.
const LAYERS: [&str; 21] = [
    // The ground: values and small helpers.
    "printable",
    "diag",
    "api",
    "naming",
    "backoff",
    // Texts and types.
    "yaml",
    "schema",
    "template",
    "crd",
    "readiness",
    // The core.
    "package",
    "operators",
    "plan",
    "children",
    "rights",
    "preview",
    // The shell.
    "clock",
    "cluster",
    "manager",
    "local",
    "cli",
];

/// The first layer that may wait, or talk to an API server.
const SHELL: &str = "clock";

/// How one waits, or talks to an API server.
const CLIENTS: [&str; 5] = ["kube::Client", "kube::Api", "kube::client", "kube::runtime", "tokio::"];

/// A mention of a path in a file.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    line: usize,
    module: String,
}

#[test]
fn imports_point_down() {
    let mut found = Vec::new();
    for path in rust_files(Path::new("src")) {
        let Some((module, depth)) = place(&path) else { continue };
        let Some(layer) = LAYERS.iter().position(|layer| *layer == module) else {
            found.push(format!("{}: `{module}` has no layer: add it to LAYERS", path.display()));
            continue;
        };
        let text = fs::read_to_string(&path).unwrap();
        for import in imports(&text, depth) {
            let of = LAYERS.iter().position(|layer| *layer == import.module);
            if of.is_some_and(|of| of > layer) {
                let Import { line, module: upper } = import;
                found.push(format!(
                    "{}:{line}: `{module}` imports `{upper}`, a layer above it",
                    path.display()
                ));
            }
        }
        if LAYERS[layer..].contains(&SHELL) && module != SHELL {
            for (line, code) in code(&text) {
                if let Some(client) = CLIENTS.iter().find(|client| code.contains(*client)) {
                    found.push(format!("{}:{line}: `{module}` is pure and names `{client}`", path.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// All time of the core and the manager goes through `clock`: then a test that moves the clock moves all of it.
#[test]
fn time_comes_from_the_clock() {
    let mut found = Vec::new();
    for path in ["src/children", "src/manager"].iter().flat_map(|folder| rust_files(Path::new(folder))) {
        for (line, code) in code(&fs::read_to_string(&path).unwrap()) {
            let is_time = code.contains("std::time") || code.contains("tokio::time");
            if code.contains("SystemTime::now") || is_time && code.contains("Instant") {
                found.push(format!("{}:{line}: use crate::clock", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A dependency that no file names is built for nothing.
#[test]
fn every_dependency_is_used() {
    let manifest = fs::read_to_string("Cargo.toml").unwrap();
    let sources: Vec<String> = ["src", "tests"]
        .iter()
        .flat_map(|folder| rust_files(Path::new(folder)))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let is_used = |name: &str| {
        let name = name.replace('-', "_");
        sources
            .iter()
            .filter(|text| text.contains(&name))
            .flat_map(|text| code(text))
            .any(|(_, code)| names(code, &name))
    };
    let unused: Vec<&str> = dependencies(&manifest).filter(|name| !is_used(name)).collect();
    assert!(unused.is_empty(), "Cargo.toml: no file names {}; remove what is not used", unused.join(", "));
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
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nserde-json = \"1\"\n# no = 1\n\n[dev-dependencies]\na = { version = \"1\" }\n[lints.rust]\nb = 1\n";
    assert_eq!(dependencies(manifest).collect::<Vec<_>>(), ["serde-json", "a"]);
    assert!(names("use serde_json::Value;", "serde_json") && names("let x = a::b();", "a"));
    assert!(!names("use my_serde_json::Value;", "serde_json") && !names("let a = 1;", "a"));
}

/// The top-level module of a file, and how deep the module of the file is; none of the crate's roots.
fn place(path: &Path) -> Option<(String, usize)> {
    let parts: Vec<&str> = path.iter().skip(1).filter_map(|part| part.to_str()).collect();
    let module = parts[0].trim_end_matches(".rs");
    let depth = if parts.last() == Some(&"mod.rs") { parts.len() - 1 } else { parts.len() };
    (!matches!(module, "lib" | "main")).then(|| (module.to_owned(), depth))
}

/// All mentions of top-level modules in the code of a module that is `depth` deep.
fn imports(text: &str, depth: usize) -> Vec<Import> {
    let mut found = Vec::new();
    // rustfmt puts the brackets of an inline module at the beginning of a line.
    let mut inline = 0;
    for (line, code) in code(text) {
        if code.starts_with("mod ") && code.ends_with('{') {
            inline = 1;
        } else if code.starts_with('}') {
            inline = 0;
        }
        // A list in brackets may go on in the next lines.
        let start = code.as_ptr().addr() - text.as_ptr().addr();
        let to_root = "super::".repeat(depth + inline);
        let paths = ["crate::", &to_root];
        let after = paths.iter().flat_map(|path| code.match_indices(path).map(|(at, _)| at + path.len()));
        let modules: Vec<&str> = after.flat_map(|at| heads(&text[start + at..])).collect();
        found.extend(modules.into_iter().map(|module| Import { line, module: module.to_owned() }));
    }
    found
}

/// The first words of a path, or of each path in its brackets.
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

/// The lines of a text that are no comments, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether a line names a crate.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        code[at + name.len()..].starts_with("::") && before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}

/// The names in the sections of dependencies of a manifest.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut is_section = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            is_section = line.ends_with("dependencies]");
        }
        line.split_once(" = ").map(|(name, _)| name).filter(|name| is_section && !name.starts_with('#'))
    })
}

/// All Rust files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
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
