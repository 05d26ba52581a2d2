//! Exploration finds bugs of packages: three are planted in copies of `operators/etcd`, each by one replacement. Those of the engine are
//! in `src/play/tests.rs`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::says::says;

const OPERETTA: &str = env!("CARGO_BIN_EXE_operetta");

/// A bug: what it is, and a part of `operator.yaml` that another one replaces.
struct Planted {
    name: &'static str,
    right: &'static str,
    wrong: &'static str,
}

/// A member is removed from etcd's list if its pod is away, although its volume is there and the pod comes back.
const REMOVED_ALIVE: Planted = Planted {
    name: "a member removed before it is known to be dead",
    right: " and children.volumes['g' ~ let.generation ~ '-' ~ peer.ordinal] is undefined",
    wrong: "",
};

/// A member is added again by whoever repeats the step.
const DONE_TWICE: Planted = Planted {
    name: "a step without a condition",
    right: "                - name: add\n                  when: i not in let.joined\n",
    wrong: "                - name: add\n                  idempotent: true\n",
};

/// The volume of a member whose pod is away is deleted, although it is in etcd's list.
const DELETED_EARLY: Planted = Planted {
    name: "a volume deleted too early",
    right: "                - name: clean # data of a removed member never starts again\n                  when: i not in let.joined\n",
    wrong: "                - name: clean\n",
};

/// A cluster of three members that becomes one of four, and keeps its first three volumes.
const GROWS: &str = r#"apiVersion: operetta.dev/v1alpha1
kind: PackageTest
before:
- apply:
    apiVersion: etcd.database.coreos.com/v1beta2
    kind: EtcdCluster
    metadata: {name: orders}
    spec:
      size: 3
      version: 3.6.0
      pod: {persistentVolumeClaimSpec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
- expect: {instance: {conditions: {Ready: "True"}, status: {readyMembers: 3}}}
cases:
- name: a fourth member joins
  never: ["deleted.PersistentVolumeClaim | select('in', ['orders-0', 'orders-1', 'orders-2']) | list"]
  steps:
  - {patch: EtcdCluster/orders, with: {spec: {size: 4}}}
  - expect:
      instance: {conditions: {Ready: "True"}, status: {readyMembers: 4}}
      runs: [{plan: resize, phase: Succeeded}]
    within: 5m
"#;

/// Whether more seeds are explored, and of the package itself its own cases.
fn is_long() -> bool {
    std::env::var("OPERETTA_SWEEP").is_ok_and(|value| value == "1")
}

/// Copies a folder.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A copy of etcd, with a bug if one is given. Its tests read `examples`.
fn etcd(planted: Option<&Planted>) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let package = root.path().join("operators/etcd");
    copy(Path::new("operators/etcd"), &package);
    copy(Path::new("examples"), &root.path().join("examples"));
    if let Some(Planted { name, right, wrong }) = planted {
        let path = package.join("operator.yaml");
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(right).count(), 1, "{name}: the part to replace is not there once");
        fs::write(path, text.replace(right, wrong)).unwrap();
    }
    if planted.is_some() || !is_long() {
        let tests = package.join("tests");
        for entry in fs::read_dir(&tests).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("world.yaml") {
                fs::remove_file(path).unwrap();
            }
        }
        fs::write(tests.join("grows.yaml"), GROWS).unwrap();
    }
    root
}

fn run(root: &Path, flags: &[&str]) -> (i32, String) {
    let output = Command::new(OPERETTA)
        .args(["test", "operators/etcd"])
        .args(flags)
        .current_dir(root)
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// In the long form with other seeds, too.
fn is_found(planted: &Planted) {
    for seed in 1..=if is_long() { 3 } else { 1 } {
        is_found_with(planted, seed);
    }
}

fn is_found_with(planted: &Planted, seed: u64) {
    let root = etcd(Some(planted));
    let seed = seed.to_string();
    let flags = ["--explore", "--schedules", "1000", "--failures", "1", "--seed", &seed];
    let (code, text) = run(root.path(), &[&flags[..], &["--save", "found.json", "-o", "json"]].concat());
    let report: Value = serde_json::from_str(&text).unwrap();
    let package = &report["packages"][0];
    let (schedules, failures) = (&package["schedules"], package["failures"].as_array().unwrap());
    assert!(code == 1 && !failures.is_empty(), "{}, seed {seed}: not found: {text}", planted.name);
    let failure = &failures[0];
    println!("{}, seed {seed}: {schedules} schedules\n{:#}", planted.name, failure["story"]);
    assert!(!failure["disturbances"].as_array().unwrap().is_empty(), "{}: {text}", planted.name);
    assert!((2..=10).contains(&failure["story"].as_array().unwrap().len()), "{}: {text}", planted.name);
    let (code, text) = run(root.path(), &["--replay", "found.json"]);
    // Names of revisions are others in each play.
    let wrong = failure["story"].as_array().unwrap().last().unwrap().as_str().unwrap();
    assert!(code == 1 && text.contains("replay: FAILED") && text.contains(wrong), "{text}");
}

#[test]
fn member_that_is_removed_before_it_is_known_to_be_dead_is_found() {
    is_found(&REMOVED_ALIVE);
}

#[test]
#[ignore = "two minutes, most of them in runs that fail: bash .ci/long schedules"]
fn step_that_is_done_twice_is_found() {
    is_found(&DONE_TWICE);
}

#[test]
fn volume_that_is_deleted_too_early_is_found() {
    is_found(&DELETED_EARLY);
}

#[test]
fn the_package_itself_withstands_schedules() {
    let root = etcd(None);
    let schedules = if is_long() { "10000" } else { "16" };
    says(run(root.path(), &["--explore", "--schedules", schedules]), 0, &["exploration: ok"]);
}
