//! Exploration finds bugs of the engine: requests that lack what makes it safe to send them late or twice.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::course::Part;
use super::deeds::Deed;
use super::disturbance::{Disturbance, InjectedFault, Target};
use super::explore::{Explored, Limits, explore, first_that_fails, replay};
use super::planted::Bug;
use super::sources::Sources;
use super::story::Story;
use super::suite::{Suite, load};
use crate::children::plans::state_name;
use crate::plan::Of;
use crate::test_crd::crd;

/// The CRD of the package.
fn mini() -> String {
    crd("fixtures.operetta.dev", "minis", "Mini", VERSION)
}

const VERSION: &str = "
subresources: {status: {}}
schema:
  openAPIV3Schema:
    type: object
    properties:
      spec: {type: object, properties: {word: {type: string, default: a}}}
      status: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

const OPERATOR: &str = "
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: mini}
spec:
  version: 0.1.0
  resources:
  - crd: crds/mini.yaml
    children:
    - {id: config, template: templates/config.yaml}
    - {id: pod, template: templates/pod.yaml, dependsOn: [config]}
    status: {noted: record.word | default('none')}
    plans:
      deploy: {steps: [{name: all, apply: [config, pod]}]}
      renew:
        steps:
        - {name: stop, delete: [pod]}
        - {name: start, apply: [pod]}
      note: {steps: [{name: note, record: {word: spec.word}}]}
      announce:
        steps:
        - {name: tell, http: {method: POST, url: \"http://news.example.com/words\", json: {word: \"{{ spec.word }}\"}}, retries: {limit: 2, backoff: 1s}}
";

const CONFIG: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: \"{{ name }}\"}
data: {word: \"{{ spec.word }}\"}
";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: \"{{ name }}\"}
spec: {containers: [{name: main, image: \"x:1\"}]}
";

const WORLD: &str = "
apiVersion: operetta.dev/v1alpha1
kind: World
http:
- {method: POST, url: \"http://news.example.com/words\", json: {}}
";

const CASES: &str = "
apiVersion: operetta.dev/v1alpha1
kind: PackageTest
before:
- apply: {apiVersion: fixtures.operetta.dev/v1, kind: Mini, metadata: {name: a}, spec: {word: a}}
- expect: {instance: {conditions: {Ready: \"True\"}}}
cases:
- name: the pod is made anew by a plan
  # Once the plan has ended, the pod stays.
  never: [\"(runs | last).spec.plan == 'renew' and (runs | last).status.phase == 'Succeeded' and not pods\"]
  steps:
  - {run: renew}
  - expect: {runs: [{plan: renew, phase: Succeeded}], instance: {conditions: {Ready: \"True\"}}}
  - wait: 2m
- name: nothing is left
  steps:
  - {patch: Mini/a, with: {spec: {word: b}}}
  - expect: {objects: {ConfigMap/a: {data: {word: b}}}}
  - {delete: Mini/a}
  - expect: {instance: absent, objects: {ConfigMap/a: absent, Pod/a: absent}}
  - wait: 2m
- name: a word is announced
  steps:
  - {run: announce}
  - expect: {runs: [{plan: announce, phase: Succeeded}]}
- name: an instance is made again
  steps:
  - {delete: Mini/a}
  - expect: {instance: absent}
  - wait: 2s
  - {apply: {apiVersion: fixtures.operetta.dev/v1, kind: Mini, metadata: {name: a}, spec: {word: c}}}
  - expect: {instance: {status: {noted: none}, conditions: {Ready: \"True\"}}, objects: {ConfigMap/a: {data: {word: c}}}}
- name: a backup is restored over what is left
  steps:
  - {run: note}
  - expect: {instance: {status: {noted: a}}}
  - {delete: Mini/a}
  - expect: {instance: absent}
  - wait: 2s
  - apply: {apiVersion: operetta.dev/v1alpha1, kind: InstanceState, metadata: {name: STATE}, spec: {
      of: {apiVersion: fixtures.operetta.dev/v1, kind: Mini, resource: minis, name: a}, uid: former, number: 7, hasEnded: false,
      record: {word: {value: b, sequence: 3}}}}
  - wait: 2s
  - {apply: {apiVersion: fixtures.operetta.dev/v1, kind: Mini, metadata: {name: a, annotations: {operetta.dev/state: former}}, spec: {word: c}}}
  - expect: {instance: {status: {noted: b}, conditions: {Ready: \"True\"}}}
";

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn suites() -> Vec<Suite> {
    let of = Of {
        api_version: "fixtures.operetta.dev/v1".into(),
        kind: "Mini".into(),
        name: "a".into(),
        ..Of::default()
    };
    suites_of(OPERATOR, &CASES.replace("STATE", &state_name(&of)))
}

fn suites_of(operator: &str, cases: &str) -> Vec<Suite> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("operator.yaml", operator),
        ("crds/mini.yaml", &mini()),
        ("templates/config.yaml", CONFIG),
        ("templates/pod.yaml", POD),
        ("tests/cases.yaml", cases),
        ("tests/world.yaml", WORLD),
    ] {
        write(folder.path(), name, text);
    }
    let (package, _) = crate::package::load(folder.path()).unwrap();
    let (suites, errors) = load(folder.path(), &Arc::new(package), &mut Sources::of(folder.path()));
    assert!(errors.is_empty(), "{errors:?}");
    suites
}

/// Explores the cases with an engine that has a bug.
fn explored(bug: Option<Bug>, case: usize, (schedules, seed): (usize, u64), threads: usize) -> Explored {
    let mut suites = suites();
    for suite in &mut suites {
        suite.bug = bug;
    }
    explore(&suites, &[(0, case)], Limits { schedules, failures: 1, time: None, seed, threads })
}

/// Finds a bug: in 1,000 schedules of three seeds in the long form, else among some schedules.
fn finds(bug: Bug, case: usize, short: impl IntoIterator<Item = Disturbance>) {
    if std::env::var("OPERETTA_SWEEP").is_ok_and(|value| value == "1") {
        for seed in 1..=3 {
            let found = explored(Some(bug), case, (1000, seed), 2);
            println!("{bug:?}, seed {seed}: {} schedules", found.played);
            let story = found.stories.into_iter().next();
            is_told(case, &story.unwrap_or_else(|| panic!("{bug:?} is not found")));
        }
        return;
    }
    let mut suites = suites();
    for suite in &mut suites {
        suite.bug = Some(bug);
    }
    let story = short.into_iter().find_map(|one| replay(&suites, (0, case), Part::After, &[one]));
    is_told(case, &story.unwrap_or_else(|| panic!("{bug:?} is not found")));
}

/// Writes that come late.
fn late_writes() -> impl Iterator<Item = Disturbance> {
    let late = (1..=16).flat_map(|number| [1, 10].map(|choice| (number, choice)));
    late.map(|(number, choice)| Disturbance {
        target: Target::Write,
        number,
        what: InjectedFault::TakenOver,
        choice,
    })
}

/// A story is short, and tells of the bug.
fn is_told(case: usize, story: &Story) {
    println!("{}", story.lines.join("\n"));
    assert!(!story.schedule.is_empty() && story.schedule.len() <= 2, "{story:#?}");
    assert!((2..=10).contains(&story.lines.len()), "{story:#?}");
    let sound = replay(&self::suites(), (0, case), story.part, &story.schedule);
    assert!(sound.is_none(), "it fails without the bug, too: {sound:#?}");
}

#[test]
fn deletion_without_precondition_is_found() {
    finds(Bug::Deletion, 0, late_writes());
}

#[test]
fn apply_without_precondition_is_found() {
    finds(Bug::Apply, 1, late_writes());
}

#[test]
fn call_with_another_key_each_time_is_found() {
    let killed = Disturbance { target: Target::Call, number: 1, what: InjectedFault::KillAfter, choice: 0 };
    finds(Bug::Key, 2, [killed]);
}

#[test]
fn conflicts_leave_nothing_behind() {
    let suites = suites();
    for number in 1..=14 {
        let conflict =
            Disturbance { target: Target::Write, number, what: InjectedFault::Conflict, choice: 0 };
        let story = replay(&suites, (0, 1), Part::After, &[conflict]);
        assert!(story.is_none(), "{story:#?}");
    }
}

#[test]
fn threads_change_nothing_and_the_engine_has_none_of_these_bugs() {
    let [one, three] = [1, 3].map(|threads| explored(None, 1, (16, 1), threads));
    assert_eq!((one.played, three.played), (16, 16));
    assert!(one.stories.is_empty() && three.stories.is_empty(), "{:#?}{:#?}", one.stories, three.stories);
}

/// A manager is killed beside a write that ends an instance or its memory, and an answer that the next one reads comes 3 s
/// later, while the instance is made again, or a backup restored.
fn kills_and_late_answers(deeds: &[Deed]) -> Vec<Vec<Disturbance>> {
    let ends = |deed: &&Deed| {
        deed.target == Target::Write
            && !deed.at.is_zero()
            && ["minis/a", "instancestates/"].iter().any(|what| deed.text.contains(what))
    };
    let reads = deeds.iter().filter(|deed| deed.target == Target::Read).count() as u64;
    let mut all = Vec::new();
    for write in deeds.iter().filter(ends).take(4) {
        let at_write =
            |what, choice| Disturbance { target: Target::Write, number: write.number, what, choice };
        // A manager that starts reads what the first one has read, and then what is decided from.
        for number in reads + 12..reads + 18 {
            let late = Disturbance { target: Target::Read, number, what: InjectedFault::Slow, choice: 3 };
            all.extend(
                [InjectedFault::KillBefore, InjectedFault::KillAfter]
                    .map(|what| vec![at_write(what, 0), late]),
            );
        }
        all.push(vec![at_write(InjectedFault::TakenOver, 1)]);
    }
    all
}

#[test]
fn kills_and_late_answers_lose_no_instance_that_is_made_again() {
    let story = first_that_fails(&suites(), (0, 3), Part::After, kills_and_late_answers);
    assert!(story.is_none(), "{story:#?}");
}

/// The package reads an object in a namespace that goes before the instance does.
const REFS: &str = "    refs: [{id: limits, apiVersion: v1, kind: LimitRange, name: limits, namespace: watched, optional: true}]
    status: {limited: refs.limits is defined, ";

const GONE: &str = "
apiVersion: operetta.dev/v1alpha1
kind: PackageTest
cases:
- name: a namespace goes before the instance
  steps:
  - apply: {apiVersion: v1, kind: Namespace, metadata: {name: watched}}
  - apply: {apiVersion: fixtures.operetta.dev/v1, kind: Mini, metadata: {name: a}, spec: {word: a}}
  - expect: {instance: {conditions: {Ready: \"True\"}}}
  - delete: Namespace/watched
  - expect: {objects: {Namespace/watched: absent}}
  - delete: Mini/a
  - expect: {instance: absent, objects: {ConfigMap/a: absent, Pod/a: absent}}
";

/// The manager is killed before a write of the instance, each in a schedule of its own.
fn kills_at_writes(deeds: &[Deed]) -> Vec<Vec<Disturbance>> {
    let of_instance = |deed: &&Deed| deed.target == Target::Write && deed.text.contains("minis/a");
    let kill = |deed: &Deed| Disturbance {
        target: Target::Write,
        number: deed.number,
        what: InjectedFault::KillBefore,
        choice: 0,
    };
    deeds.iter().filter(of_instance).map(|deed| vec![kill(deed)]).collect()
}

#[test]
fn manager_that_is_killed_when_a_namespace_is_gone_lacks_no_right() {
    let suites = suites_of(&OPERATOR.replacen("    status: {", REFS, 1), GONE);
    let story = first_that_fails(&suites, (0, 0), Part::Whole, kills_at_writes);
    assert!(story.is_none(), "{story:#?}");
}

#[test]
fn kills_and_late_answers_lose_no_memory_that_is_restored() {
    let story = first_that_fails(&suites(), (0, 4), Part::After, kills_and_late_answers);
    assert!(story.is_none(), "{story:#?}");
}
