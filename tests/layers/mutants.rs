//! Checks that the mistakes which `tests/mutants/run` plants fit the code and each other, and what it writes of outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn mutants_fit_the_code() {
    let list = fs::read_to_string("tests/mutants/mutants.txt").unwrap();
    let mut names = BTreeSet::new();
    let mut sources = BTreeMap::new();
    let mut wrong = Vec::new();
    for mutant in list.split("\n## ").skip(1) {
        let (title, body) = mutant.split_once('\n').unwrap_or((mutant, ""));
        let (name, what) = title.split_once(": ").unwrap_or((title, ""));
        let lines = |sign: char| -> String {
            let lines = body.lines().filter_map(|line| line.strip_prefix(sign));
            lines.flat_map(|line| [line, "\n"]).collect()
        };
        let (old, new) = (lines('-'), lines('+'));
        let file = body.lines().find(|line| line.starts_with("src/")).unwrap_or_default();
        // All mutants of a file are in it together.
        let source = sources.entry(file).or_insert_with(|| fs::read_to_string(file).unwrap_or_default());
        let fits = source.matches(old.as_str()).count() == 1 && new.contains("MUTANT");
        if !names.insert(name) || what.is_empty() || !fits {
            wrong.push(format!("{name}: {file}"));
        }
        *source = source.replacen(&old, &new, 1);
    }
    assert!(
        wrong.is_empty(),
        "of these mutants of tests/mutants/mutants.txt the replaced lines are not once in the file, those in their place do not have the \
         word MUTANT, or the name or title is wrong:\n{}",
        wrong.join("\n")
    );
}

const HEADER: &str = "<!-- mutants: begin -->

| mutant | what a user suffers | found by `cargo test` | of the tests of the engine, also on a real server |
| --- | --- | --- | --- |
";

/// The output of two binaries, of which the first has two tests that fail, and the second does not end.
const FOUND: &str = "     Running unittests src/core/lib.rs (target/debug/deps/operetta_core-0a1b)
test plan::b ... FAILED
test plan::a ... the words of a process
FAILED

failures:

---- plan::a stdout ----
    left

failures:
    plan::a
    plan::b

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.52s

     Running tests/engine/main.rs (target/debug/deps/engine-0a1b)
test drift::c ... FAILED
test drift::d ... ok

ended with 124
";

#[test]
fn table_says_which_tests_find_a_mutant() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let page = folder.join("page.md");
    // Writes the table of the outputs in the folder; returns its rows, and what was printed.
    let run = |arguments: &[&str], success: bool| {
        let mut command = Command::new("tests/mutants/run");
        let result =
            command.arg("--from").arg(&folder).arg("--page").arg(&page).args(arguments).output().unwrap();
        let printed = String::from_utf8([result.stdout, result.stderr].concat()).unwrap();
        assert_eq!(result.status.success(), success, "{arguments:?}: {printed}");
        let text = fs::read_to_string(&page).unwrap();
        let rows = text.strip_prefix(&format!("# Page\n\n{HEADER}")).unwrap_or(&text);
        (rows.to_owned(), printed)
    };
    let log = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    let end = "\n<!-- mutants: end -->\nstays\n";
    fs::write(
        &page,
        format!("# Page\n\n{HEADER}| gone | x | 1 | 1 of 1 |\n| job-repeated | x | 9 | 8 of 8 |\n{end}"),
    )
    .unwrap();
    assert!(run(&[], false).1.contains("has no output of a run"));
    assert!(run(&["no-such"], false).1.contains("there is no mutant no-such"));
    assert!(run(&["job-repeated", "--", "true"], false).1.contains("take no command"));

    log("backoff-never-grows.log", FOUND);
    log("right-too-many.log", "test result: ok. 9 passed\n\nended with 0\n");
    log("job-repeated.log", "error: the linker is killed\n\nended with 101\n");
    let (rows, printed) = run(&[], false);
    let found = "| backoff-never-grows | A key that always fails is tried several times a second. | 3: engine drift::c, \
                 operetta_core plan::a; the tests do not end |";
    let failed = "| job-repeated | A Job that was deleted before its result was read runs again, however few retries \
                  the step has. | 9 | 8 of 8 |\n";
    let escapes =
        "| right-too-many | An account may read in all namespaces what its package reads in one. | ESCAPES |";
    assert_eq!(rows, format!("{found}  |\n{failed}{escapes}  |\n{end}"));
    assert!(printed.contains("NOT TESTED error: the linker is killed\n"), "{printed}");

    log("backoff-never-grows.real.log", "running 1 test\ntest drift::c ... ok\n\nended with 0\n");
    let (rows, _) = run(&["--real", "backoff-never-grows", "right-too-many"], true);
    assert_eq!(rows, format!("{found} 0 of 1 |\n{failed}{escapes} - |\n{end}"));
    log("backoff-never-grows.real.log", "running 0 tests\n\nended with 0\n");
    assert!(run(&["--real", "backoff-never-grows"], false).1.contains("NOT TESTED"));
}

#[test]
fn docs_have_the_table_of_mutants() {
    let doc = fs::read_to_string("docs/testing.md").unwrap();
    assert!(doc.contains(HEADER), "docs/testing.md lacks the table of tests/mutants/run:\n{HEADER}");
}
