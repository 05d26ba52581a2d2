//! Checks the layers of the code by its imports, and the dependencies that it names. Links nothing of the
//! crate.

#[path = "layers/docs.rs"]
mod docs;
#[path = "layers/imports.rs"]
mod imports;
#[path = "layers/mutants.rs"]
mod mutants;
#[path = "layers/times.rs"]
mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use imports::{Crate, Edges, Source, circles};

/// The crates, and the modules of each from the bottom up: a module may import those that precede it in the
/// list, so there is no circle. The manifests say what a crate may import of another.
const LAYERS: [(&str, &[&str]); 6] = [
    ("src/lang", &["printable", "diag", "api", "naming", "backoff", "yaml", "schema", "template"]),
    ("src/package", &["crd", "readiness"]),
    ("src/core", &["names", "reach", "operators", "plan", "children", "rights", "preview"]),
    (
        "src/embedded",
        &[
            "schema",
            "decode",
            "fields",
            "crd",
            "defaults",
            "model",
            "selection",
            "forms",
            "body",
            "strategy",
            "world",
            "state",
            "access",
            "admission",
            "verbs",
            "discovery",
            "dispatch",
            "seed",
            "work",
            "api",
            "controllers",
            "tests",
        ],
    ),
    (
        "src/registry",
        &[
            "digest",
            "error",
            "reference",
            "manifest",
            "archive",
            "evidence",
            "artifact",
            "keys",
            "identity",
            "sigstore_ring",
            "keyless",
            "signers",
            "bundle",
            "challenge",
            "credentials",
            "transport",
            "client",
            "repository",
            "atomic",
            "layout",
            "store",
            "registry",
            "document",
            "attached",
            "copy",
            "signatures",
            "deprecation",
            "index",
            "search",
            "survey",
            "fetch",
            "provenance",
            "policy",
            "tests",
        ],
    ),
    ("src", &["clock", "memory", "random", "cluster", "manager", "apiserver", "play", "cli"]),
];

/// Circles between files that are left: the folder, how many files each of its circles has, and the reason. Other files
/// cannot import each other; a circle that is gone has no row.
const CIRCLES: &[(&str, &[usize], &str)] = &[
    ("src/cli", &[4], "`render` and the files below it share its output and its inputs"),
    ("src/cli/get", &[2], "the face of the folder has what its files share"),
    ("src/cli/manager", &[2], "to be taken apart"),
    ("src/cli/preview", &[4], "the face of the folder has what its files share"),
    ("src/cli/show", &[2], "to be taken apart"),
    ("src/cli/view", &[2], "the face of the folder has what its files share"),
    ("src/lang/schema", &[2], "a schema refers to the definitions of Kubernetes, which give schemas"),
    (
        "src/lang/template",
        &[25],
        "a value may be a function, code has values as constants, and both have faults",
    ),
    ("src/lang/template/dataflow", &[2], "to be taken apart"),
    ("src/lang/yaml", &[3], "the face of the folder has what its files share"),
    (
        "src/local",
        &[2, 2],
        "components know their flags on a node; the guard starts itself again in the namespaces of a node",
    ),
];

/// The crates that neither wait nor do I/O.
const PURE: [&str; 5] = ["src/kube-model", "src/lang", "src/package", "src/core", "src/embedded"];
const IMPURE: [&str; 8] =
    ["tokio", "hyper", "clap", "kube", "futures", "operetta", "operetta-local", "operetta-registry"];

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
                for (line, upper) in top_modules(&text, depth(path.strip_prefix(root).unwrap())) {
                    if layers[layer + 1..].contains(&&*upper) {
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

/// No file needs another one that needs it in turn, apart from `CIRCLES`.
#[test]
fn no_circles_between_files() {
    let mut allowed: BTreeMap<PathBuf, Vec<usize>> = BTreeMap::new();
    for (folder, sizes, _) in CIRCLES {
        allowed.entry(folder.into()).or_default().extend(*sizes);
    }
    let mut found: BTreeMap<PathBuf, Vec<(usize, String)>> = BTreeMap::new();
    for root in [
        "src/kube-model",
        "src/lang",
        "src/package",
        "src/core",
        "src/embedded",
        "src/local",
        "src/registry",
        "src",
    ] {
        let edges = Crate::read(Path::new(root), &|path| fs::read_to_string(path).ok()).edges();
        for files in circles(&edges) {
            let circle = (files.len(), describe(&files, &edges));
            found.entry(common_folder(&files)).or_default().push(circle);
        }
    }
    let mut wrong = String::new();
    let folders: BTreeSet<&PathBuf> = allowed.keys().chain(found.keys()).collect();
    for folder in folders {
        let mut sizes = allowed.get(folder).cloned().unwrap_or_default();
        let circles = found.get(folder).map_or(&[][..], Vec::as_slice);
        let mut actual: Vec<usize> = circles.iter().map(|(size, _)| *size).collect();
        sizes.sort_unstable();
        actual.sort_unstable();
        if sizes != actual {
            let folder = folder.display();
            let _ = writeln!(wrong, "{folder}: circles of {actual:?} files, CIRCLES allows {sizes:?}");
            wrong.extend(circles.iter().map(|(_, text)| &**text));
        }
    }
    assert!(wrong.is_empty(), "move what both files need into a third one:\n{wrong}");
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
            &[
                "src/clock.rs",
                "src/random.rs",
                "src/cluster",
                "src/manager",
                "src/apiserver",
                "src/play",
                "src/cli",
                "src/lib.rs",
                "src/main.rs",
                "tests",
            ] as &[&str],
        ),
        ("src/kube-model", &["src/kube-model"]),
        ("src/lang", &["src/lang"]),
        ("src/package", &["src/package"]),
        ("src/core", &["src/core"]),
        ("src/embedded", &["src/embedded"]),
        ("src/local", &["src/local"]),
        ("src/registry", &["src/registry"]),
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
fn imports_are_found_in_every_syntax() {
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
    let found = top_modules(text, 2);
    let wanted = [
        (3, "api"),
        (4, "template"),
        (4, "template"),
        (7, "crd"),
        (8, "naming"),
        (8, "cluster"),
        (11, "manager"),
    ];
    assert_eq!(found, wanted.map(|(line, module)| (line, module.to_owned())));
}

#[test]
fn circles_are_found_through_every_syntax() {
    let circle = |files: &[(&str, &str)]| {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new("src").join(name) == path);
            file.map(|(_, text)| (*text).to_owned())
        };
        let edges = Crate::read(Path::new("src"), &read).edges();
        let found: Vec<String> = circles(&edges).iter().map(|files| describe(files, &edges)).collect();
        found.concat()
    };
    let lib = ("lib.rs", "pub mod a;\nmod b;\npub use a::A;\n");
    let (a, b) = (("a.rs", "use crate::b::B;\npub struct A(B);\n"), ("b.rs", "pub struct B;\n"));
    assert_eq!(circle(&[lib, a, b]), "");
    // A name that is exported to others leads to the file that has it.
    for text in [
        "use crate::A;",
        "use {super::A as C};",
        "\nuse super::*;\nstruct B(A);",
        "fn f() { crate::a::f(); }",
        "use super::a;\nfn f() -> a::A { g() }",
        "mod c { use super::super::A; }",
    ] {
        let found = circle(&[lib, a, ("b.rs", text)]);
        assert!(
            found.starts_with("a circle of 2 files:\n  src/a.rs:1: crate::b::B (src/b.rs)\n"),
            "{text}: {found}"
        );
        assert!(found.contains("  src/b.rs:") && found.ends_with(" (src/a.rs)\n"), "{text}: {found}");
    }
    for text in [
        "// use crate::A;\n/* super::A */ const A: &str = \"crate::A\";",
        "#[cfg(test)]\nmod tests { use crate::A; }",
        "#[cfg(test)]\nuse crate::A;",
        "use super::a;",
        "use std::fmt::A;\nfn f(a: A) { a.x(); other::A::new() }",
    ] {
        assert_eq!(circle(&[lib, a, ("b.rs", text)]), "", "{text}");
    }
    // The file of a module and those below it.
    let face = ("lib.rs", "mod a;\npub struct X(a::A);\n");
    let below = ("a/mod.rs", "mod b;\n#[cfg(test)]\nmod tests;\n");
    let test = ("a/tests.rs", "use crate::X;");
    assert_eq!(circle(&[face, below, test, ("a/b.rs", "fn f<'a>(c: char) { c == '\"' }")]), "");
    let found = circle(&[
        ("lib.rs", "mod a;\nuse a::b::f;\npub struct X;"),
        below,
        ("a/b.rs", "fn f(x: crate::X) {}"),
    ]);
    assert_eq!(
        found,
        "a circle of 2 files:\n  src/a/b.rs:1: crate::X (src/lib.rs)\n  src/lib.rs:2: a::b::f (src/a/b.rs)\n"
    );
    // Three files, and a fourth that is not in the circle.
    let four = [
        ("lib.rs", "mod a;mod b;mod c;mod d;"),
        ("a.rs", "use crate::b::B;use crate::d::D;"),
        ("b.rs", "use super::c::{self, C};"),
        ("c.rs", "struct C(crate::a::A);"),
        ("d.rs", "struct D;"),
    ];
    let found = circle(&four);
    assert!(found.starts_with("a circle of 3 files:\n") && !found.contains("src/d.rs"), "{found}");
}

#[test]
fn dependencies_are_read_from_the_manifest() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nserde-json.workspace = true\n# no = 1\n\n[dev-dependencies]\na = { version = \"1\" }\n[lints.rust]\nb = 1\n";
    assert_eq!(dependencies(manifest).collect::<Vec<_>>(), ["serde-json", "a"]);
    assert!(names("use serde_json::Value;", "serde_json") && names("let x = a::b();", "a"));
    assert!(names("pub use operetta_local as local;", "operetta_local"));
    assert!(!names("use my_serde_json::Value;", "serde_json") && !names("let a = 1;", "a"));
}

/// The files of a circle, with the line of each import that makes it.
fn describe(files: &[PathBuf], edges: &Edges) -> String {
    let mut text = format!("a circle of {} files:\n", files.len());
    for from in files {
        for (to, (line, path)) in edges[from].iter().filter(|(to, _)| files.contains(to)) {
            let _ = writeln!(text, "  {}:{line}: {path} ({})", from.display(), to.display());
        }
    }
    text
}

/// The deepest folder that contains all files.
fn common_folder(files: &[PathBuf]) -> PathBuf {
    let folders = files[0].ancestors().skip(1);
    let mut common = folders.filter(|folder| files.iter().all(|file| file.starts_with(folder)));
    common.next().unwrap().to_owned()
}

/// How deep the module of a file is.
fn depth(path: &Path) -> usize {
    let parts = path.components().count();
    if path.ends_with("mod.rs") { parts - 1 } else { parts }
}

/// The top-level modules that a file names whose module is `depth` deep, each with its line.
fn top_modules(text: &str, depth: usize) -> Vec<(usize, String)> {
    let source = Source::parse(text);
    let top = source.mentions.iter().filter_map(|mention| {
        let is_whole = mention.path[0] == "crate";
        let to_root = if is_whole { 1 } else { depth + mention.inline.len() };
        let is_root = is_whole || mention.path.iter().take(to_root).all(|name| name == "super");
        let name = mention.path.get(to_root).filter(|name| is_root && *name != "super")?;
        Some((mention.line, name.clone()))
    });
    top.collect()
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
