//! Checks that `tests/times` sums the times of tests, and writes no rows of a run that has failed.

use std::fs;
use std::path::Path;
use std::process::Command;

const OUTPUT: &str = "
running 5 tests
test drift::long ... ignored, takes minutes
test drift::own::deep has been running for over 60 seconds
test plans::b ... ok <0.004s>
test plans::calls::panics - should panic ... ok <1.500s>
test drift::a ... ok <0.250s>
test drift::own::deep ... ok <61.000s>

test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 61.02s
";

const PAGE: &str = "# Page

| topic | backend | stays |

<!-- times: begin -->

| topic | backend |
| --- | --- |
| cluster | mixed | 1 | 1.00 | 1.00 |
| engine | embedded | 9 | 9.00 | 9.00 |
| engine | real | 8 | 8.00 | 8.00 |
| engine::drift | real | 8 | 8.00 | |
| engine::gone | embedded | 9 | 9.00 | |

<!-- times: end -->
| engine | embedded | stays |
";

const WRITTEN: &str = "# Page

| topic | backend | stays |

<!-- times: begin -->

| topic | backend | tests | sum of seconds | seconds of the binary |
| --- | --- | --- | --- | --- |
| cluster | mixed | 1 | 1.00 | 1.00 |
| engine | embedded | 4 | 62.75 | 61.02 |
| engine | real | 8 | 8.00 | 8.00 |
| engine::drift | embedded | 2 | 61.25 | |
| engine::drift | real | 8 | 8.00 | |
| engine::plans | embedded | 2 | 1.50 | |

<!-- times: end -->
| engine | embedded | stays |
";

#[test]
fn times_are_summed_by_topic() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("times");
    fs::create_dir_all(&folder).unwrap();
    let (page, output) = (folder.join("page.md"), folder.join("output.log"));
    // Writes the table of an output; returns the page, and what was wrong.
    let run = |name: &str, text: &str| {
        fs::write(&output, text).unwrap();
        let mut command = Command::new("tests/times");
        command.arg("--from").arg(&output).arg("--page").arg(&page).arg(name);
        let result = command.output().unwrap();
        let errors = String::from_utf8(result.stderr).unwrap();
        assert_eq!(result.status.success(), errors.is_empty(), "{}: {errors}", result.status);
        (fs::read_to_string(&page).unwrap(), errors)
    };
    fs::write(&page, PAGE).unwrap();
    for (from, to, error) in [
        ("ok. 4", "FAILED. 3", "tests have failed"),
        ("test result", "killed", "no single result"),
        ("0 filtered", "7 filtered", "7 tests are filtered out"),
        ("ok <0.250s>", "words of a process", "4 tests have passed, and 3 have a time"),
    ] {
        let (unchanged, errors) = run("engine", &OUTPUT.replace(from, to));
        assert!(errors.contains(error), "{errors}");
        assert_eq!(unchanged, PAGE, "{error}");
    }
    assert!(run("nodes", OUTPUT).1.contains("unknown option or run 'nodes'"));
    for _ in 0..2 {
        assert_eq!(run("engine", OUTPUT).0, WRITTEN);
    }
    let (real, _) = run("engine=real", OUTPUT);
    assert!(
        real.contains("\n| engine | embedded | 4 | 62.75 | 61.02 |\n| engine | real | 4 | 62.75 | 61.02 |\n")
    );
    let (mixed, _) = run("planes", OUTPUT);
    assert!(
        mixed.contains("\n| planes | mixed | 4 | 62.75 | 61.02 |\n| planes::drift | mixed | 2 | 61.25 | |\n")
    );
}

#[test]
fn docs_have_the_table_of_times() {
    let doc = fs::read_to_string("docs/testing.md").unwrap();
    let header = WRITTEN.split("| cluster").next().unwrap().split_once("<!--").unwrap().1;
    assert!(doc.contains(header), "docs/testing.md lacks the table of tests/times:\n<!--{header}");
}
