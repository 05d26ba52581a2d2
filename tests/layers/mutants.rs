//! Checks that the mistakes which `tests/mutants/run` plants fit the code.

use std::collections::BTreeSet;
use std::fs;

#[test]
fn mutants_fit_the_code() {
    let list = fs::read_to_string("tests/mutants/mutants.txt").unwrap();
    let mut names = BTreeSet::new();
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
        let source = fs::read_to_string(file).unwrap_or_default();
        if !names.insert(name) || what.is_empty() || old == new || source.matches(old.as_str()).count() != 1 {
            wrong.push(format!("{name}: {file}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "of these mutants of tests/mutants/mutants.txt the replaced lines are not once in the file, or the name or title is wrong:\n{}",
        wrong.join("\n")
    );
}
