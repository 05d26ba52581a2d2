//! `operetta test`: what it prints and how it ends. The cases of the packages themselves are played by `.ci/check`.

mod authoring;
mod generated;
mod hostile;
mod rights;
mod vacuous;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::says::says;

pub(crate) const OPERETTA: &str = env!("CARGO_BIN_EXE_operetta");

const HEAD: &str = "apiVersion: operetta.dev/v1alpha1\nkind: PackageTest\n";

/// An instance of the package, and that it is ready.
const READY: &str = r#"
  - apply: {apiVersion: apps.operetta.dev/v1alpha1, kind: WebApp, metadata: {name: a}, spec: {image: "x:1"}}
  - expect: {instance: {conditions: {Ready: "True"}}}
"#;

/// The package webapp with other tests.
fn package(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(Path::new("operators/webapp"), folder.path());
    let tests = folder.path().join("tests");
    fs::create_dir_all(&tests).unwrap();
    for (name, text) in files {
        fs::write(tests.join(name), text).unwrap();
    }
    folder
}

/// Copies a package without its tests.
fn copy(from: &Path, to: &Path) {
    crate::explored::copy(from, to);
    let _ = fs::remove_dir_all(to.join("tests"));
}

/// Runs `operetta test` on a package with these tests.
fn test(files: &[(&str, &str)], flags: &[&str]) -> (i32, String) {
    run(package(files).path(), flags)
}

/// Runs `operetta test` on a folder. Returns the exit code and all that is printed.
fn run(folder: &Path, flags: &[&str]) -> (i32, String) {
    let output = Command::new(OPERETTA).arg("test").arg(folder).args(flags).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code().unwrap(), text)
}

/// One case with these steps.
fn case(steps: &str) -> String {
    format!("{HEAD}cases:\n- name: one\n  steps:{READY}{steps}")
}

fn fails_with(steps: &str, parts: &[&str]) {
    let (code, text) = test(&[("a.yaml", &case(steps))], &[]);
    assert_eq!(code, 1, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn cases_that_pass_are_listed() {
    let steps = "  - {patch: WebApp/a, with: {spec: {replicas: 2}}}\n  - expect: {objects: {Pod/*: 2}}\n";
    let (code, text) = test(&[("a.yaml", &case(steps))], &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("test one ... ok") && text.contains("1 passed; 0 failed"), "{text}");
    assert!(text.contains("reached: 2 of"), "{text}");
}

#[test]
fn difference_is_shown_with_its_path_and_line() {
    fails_with(
        "  - expect: {children: {deployment: {spec: {replicas: 2}}}}\n    within: 1m\n",
        &[
            "test one ... FAILED",
            "a.yaml:8",
            "spec.replicas is 1, not 2",
            "does not hold within 1m",
            "0 passed; 1 failed",
        ],
    );
    fails_with("  - {expect: {objects: {Secret/none: {}}}, within: 1s}\n", &["Secret/none: there is none"]);
    fails_with(
        "  - {expect: {instance: absent}, within: 1s}\n",
        &["instance: it is there, and should not be"],
    );
    fails_with("  - {expect: {objects: {Pod/*: 5}}, within: 1s}\n", &["Pod/*: 1, not 5"]);
    fails_with(
        "  - {expect: {that: [\"pods | length == 7\"]}, within: 1s}\n",
        &["pods | length == 7: it is false, for pods | length is 1"],
    );
}

#[test]
fn expectation_must_hold_as_long_as_it_says() {
    let steps =
        "  - {patch: WebApp/a, with: {spec: {replicas: 3}}}\n  - {expect: {objects: {Pod/*: 1}}, for: 1h}\n";
    fails_with(steps, &["it held for", "of 1h", "Pod/*: 3, not 1"]);
}

#[test]
fn invariant_is_checked_at_each_change() {
    let never = "never: [\"pods | length >= 3\"]\n";
    let steps = "  - {patch: WebApp/a, with: {spec: {replicas: 4}}}\n  - expect: {objects: {Pod/*: 4}}\n";
    let text = case(steps).replace("cases:", &format!("{never}cases:"));
    let (code, text) = test(&[("a.yaml", &text)], &[]);
    assert!(
        code == 1 && text.contains("never: pods | length >= 3: it is true, for pods | length is "),
        "{text}"
    );
}

#[test]
fn refusal_must_be_the_expected_one() {
    let wrong = "  - {patch: WebApp/a, with: {spec: {port: 0}}}\n";
    fails_with(wrong, &["the API server refuses it", "spec.port"]);
    let other = "  - {patch: WebApp/a, with: {spec: {port: 0}}, refused: replicas}\n";
    fails_with(other, &["but not for \"replicas\""]);
    let accepted = "  - {patch: WebApp/a, with: {spec: {port: 80}}, refused: spec.port}\n";
    fails_with(accepted, &["the API server accepts it; expected: spec.port"]);
    fails_with("  - {delete: Secret/none}\n", &["there is no Secret none"]);
    fails_with("  - {delete: Nothing/none}\n", &["there is no kind `Nothing`"]);
}

#[test]
fn case_ends_after_a_day_of_its_own_time() {
    fails_with(
        "  - {wait: 20h}\n  - {wait: 20h}\n",
        &["the case has not ended within a day of its own time"],
    );
}

#[test]
fn mistakes_of_files_are_named_before_anything_is_played() {
    for (steps, parts) in [
        ("  - {aply: a.yaml}\n", &["aply", "apply", "a.yaml:8"][..]),
        ("  - {wait: 1h, delete: Pod/a}\n", &["a step is one of apply, patch"]),
        ("  - {patch: WebApp/a}\n", &["`patch` and `with` belong together"]),
        ("  - {wait: soon}\n", &["`soon` is not a duration"]),
        ("  - {delete: webapp}\n", &["`webapp` is no KIND/NAME"]),
        ("  - {expect: {}}\n", &["nothing is expected"]),
        (
            "  - {expect: {children: {deploymnt: 1}}}\n",
            &["the package has no child `deploymnt`", "did you mean `deployment`?"],
        ),
        ("  - {expect: {that: [podz]}}\n", &["there is no variable `podz` here", "did you mean `pods`?"]),
        ("  - {expect: {that: [\"pods |\"]}}\n", &["a.yaml:8"]),
        ("  - {expect: {objects: {Pod/*: absent}}}\n", &["KIND/* is a number of objects"]),
        ("  - {apply: none.yaml}\n", &["none.yaml cannot be read", "a.yaml:8"]),
        ("  - {break: {answer: 200}}\n", &["a status code from 400 to 599, lost, or cut"]),
        ("  - {break: {times: 2}}\n", &["`break` needs `exec`, or `answer`"]),
        ("  - {break: {stdout: x}}\n", &["`exitCode`, `stdout` and `stderr` need `exec`"]),
        ("  - {break: {answer: 500, exitCode: 1}}\n", &["`exitCode`, `stdout` and `stderr` need `exec`"]),
        (
            "  - {upgrade: ../none}\n",
            &["the package ../none cannot be read: there is no such file or folder"],
        ),
    ] {
        fails_with(steps, parts);
        let (_, text) = test(&[("a.yaml", &case(steps))], &[]);
        assert!(!text.contains("test one"), "{text}");
    }
    let twice = format!("{}- name: one\n  steps: [{{wait: 1s}}]\n", case(""));
    says(test(&[("a.yaml", &twice)], &[]), 1, &["two cases are named \"one\""]);
    says(test(&[("a.yaml", &format!("{HEAD}cases: []\n"))], &[]), 1, &["has no case"]);
}

#[test]
fn mistakes_of_a_world_are_named() {
    let world = "apiVersion: operetta.dev/v1alpha1\nkind: World\npods:\n- {when: podd.a, readyAfter: 1s}\n";
    says(test(&[("a.yaml", &case("")), ("world.yaml", world)], &[]), 1, &["podd", "world.yaml:4"]);
    // One that shows only when it is played.
    let world = world.replace("podd.a", "\"1 / (pod.spec.containers | length - 1) == 1\"");
    let (code, text) = test(&[("a.yaml", &case("")), ("world.yaml", &world)], &[]);
    assert!(code == 1 && text.contains("test one ... FAILED") && text.contains("world.yaml:4"), "{text}");
}

#[test]
fn package_without_cases_is_an_error() {
    says(test(&[], &[]), 1, &["tests has no case", "--allow-no-cases"]);
    assert_eq!(test(&[], &["--allow-no-cases"]).0, 0);
    let folder = tempfile::tempdir().unwrap();
    copy(Path::new("operators/webapp"), folder.path());
    let output = Command::new(OPERETTA).arg("test").arg(folder.path()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("cannot be read"), "{text}");
    let output =
        Command::new(OPERETTA).args(["test", "--allow-no-cases"]).arg(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn name_of_no_case_is_an_error() {
    let files = [("a.yaml", &*case("- name: two\n  steps: [{expect: {objects: {Pod/*: 0}}}]\n"))];
    for flags in [&["--case", "typo"][..], &["--case", "typo", "--explore"], &["--case", "typo", "--update"]]
    {
        says(test(&files, flags), 1, &["error: no case has `typo` in its name", "the names are one, two"]);
    }
    // One of several packages may have none.
    let (one, other) = (package(&files), package(&[("a.yaml", &case(""))]));
    let run =
        Command::new(OPERETTA).arg("test").args([one.path(), other.path()]).args(["--case", "two"]).output();
    let output = run.unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && text.contains("1 passed; 0 failed; 1 filtered out"), "{text}");
}

#[test]
fn reports_are_json_and_junit() {
    let steps = "  - {expect: {objects: {Pod/*: 5}}, within: 1s}\n- name: \"<two>\"\n  steps: [{expect: {objects: {Pod/*: 0}}}]\n";
    let files = [("a.yaml", &*case(steps))];
    let (code, text) = test(&files, &["-o", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let cases = &report["packages"][0]["cases"];
    assert_eq!((code, &cases[0]["passed"], &cases[1]["passed"]), (1, &false.into(), &true.into()), "{text}");
    assert!(cases[0]["failure"].as_str().unwrap().contains("does not hold within 1s"), "{text}");
    assert!(report["packages"][0]["notReached"].as_array().unwrap().len() > 1, "{text}");
    let (code, text) = test(&files, &["-o", "junit"]);
    assert_eq!(code, 1);
    assert!(text.contains("tests=\"2\" failures=\"1\"") && text.contains("name=\"&lt;two&gt;\""), "{text}");
    says(test(&files, &["--case", "two"]), 0, &["1 passed; 0 failed; 1 filtered out"]);
}

#[test]
fn exploration_finds_a_case_that_a_disturbance_breaks_and_replays_it() {
    // Without disturbance it holds at once; after a refused write it needs a second attempt.
    let steps = "  - {patch: WebApp/a, with: {spec: {replicas: 2}}}\n  - {expect: {objects: {Pod/*: 2}}, within: 10ms}\n";
    let folder = package(&[("a.yaml", &case(steps))]);
    let stored = folder.path().join("schedule.json");
    let run = |flags: &[&str]| run(folder.path(), flags);
    let save = stored.to_str().unwrap();
    let (code, text) = run(&["--explore", "--schedules", "400", "--save", save]);
    assert!(code == 1 && text.contains("exploration: FAILED"), "{text}");
    assert!(text.contains("write ") && text.contains("does not hold within 10ms"), "{text}");
    let schedule: Value = serde_json::from_slice(&fs::read(&stored).unwrap()).unwrap();
    assert_eq!((&schedule["case"], schedule["disturbances"].as_array().unwrap().len()), (&"one".into(), 1));
    says(run(&["--replay", save]), 1, &["replay: FAILED", "does not hold within 10ms"]);
    fs::write(&stored, schedule.to_string().replace("\"one\"", "\"two\"")).unwrap();
    assert_eq!(run(&["--replay", save]).0, 1);
    // With time for a second attempt nothing breaks.
    fs::write(folder.path().join("tests/a.yaml"), case(&steps.replace("10ms", "10m"))).unwrap();
    let (code, text) = run(&["--explore", "--schedules", "30", "--seed", "7", "--save", save]);
    assert!(code == 0 && text.contains("exploration: ok. 30 schedules"), "{text}");
}
