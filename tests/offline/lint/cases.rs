//! Mistakes in `tests/`, which lint reports without playing a case: each is planted in a package without any.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Mistake, OPERETTA, operetta, parse, planted, write};

const SOUND: &str = r#"
//- crd
            spec: {type: object, properties: {size: {type: integer, default: 1}, word: {type: string, default: a}}}
            status: {type: object, properties: {url: {type: string}}}
//- templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
data: {size: "{{ spec.size }}"}
//- templates/member.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ i }}"}
//- templates/account.yaml
apiVersion: v1
kind: ServiceAccount
metadata: {name: "{{ name }}-front"}
//- templates/pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: "{{ name }}", labels: {app: web}}
spec:
  containers:
  - {name: web, image: nginx, env: [{name: MODE, value: "{{ spec.word }}"}]}
//- resource
    - crd: crds/web.yaml
      children:
      - {id: cm, template: templates/cm.yaml}
      - {id: pod, template: templates/pod.yaml}
      - {id: account, template: templates/account.yaml}
      - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i}}
      conditions: [{type: Large, when: spec.size > 5, reason: Size, message: many}]
      plans:
        deploy: {steps: [{name: all, apply: [cm, account, pod, members]}]}
        announce:
          params: {type: object, properties: {count: {type: integer}}}
          steps:
          - {name: ask, exec: {child: pod, command: [webctl, status]}, idempotent: true}
          - {name: tell, http: {method: POST, url: "http://news.example.com/words", json: {word: "{{ spec.word }}"}}, retries: {limit: 2, backoff: 1s}}
//- tests/a.yaml
apiVersion: operetta.dev/v1alpha1
kind: PackageTest
always: ["instance is undefined or instance.spec.size >= 1"]
cases:
- name: one
  steps:
  - apply: {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: cats.x.org}, spec: {group: x.org, scope: Namespaced, names: {kind: Cat, plural: cats}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}
  - apply: {apiVersion: example.com/v1, kind: Web, metadata: {name: a}, spec: {size: 2}}
  - {patch: Web/a, with: {spec: {size: 3}}}
  - {patch: Web/a, with: {spec: {sise: many}}, refused: sise}
  - {run: announce, params: {count: 2}}
  - {run: nothing, refused: nothing}
  - {break: {verb: patch, resource: configmaps, answer: lost}}
  - expect:
      children: {cm: {data: {size: "3"}}, "members[0]": {}}
      instance: {conditions: {Ready: {status: "True", reason: Ready}, Large: {status: "False", reason: Size}}}
      objects: {Cat/a: absent, ServiceAccount/a-front: {}}
      runs: [{plan: announce, phase: Succeeded, steps: [{path: tell}]}]
      that:
      - "pods | map(attribute='metadata.name') | list"
      - "runs | selectattr('spec.plan', 'eq', 'announce') | selectattr('status.phase', 'eq', 'Succeeded') | list"
      - "objects.ConfigMap | selectattr('data.size', 'eq', '3') | list"
      - "'a' in deleted.Pod or children.members[0].metadata.name == 'a-0'"
      - "children.cm.data.size == '3' or instance.status.url is defined"
  - {delete: ConfigMap/a}
//- tests/world.yaml
apiVersion: operetta.dev/v1alpha1
kind: World
let: {mode: "{{ env.MODE }}"}
pods:
- {when: "pod.metadata.labels.app == 'web' and let.mode == 'a'", readyAfter: 2s}
- {readyAfter: 1s}
exec:
- {command: [webctl, status, "{what}"], exitCode: 1}
- {command: [webctl, status], stdout: "{{ pods | map(attribute='metadata.name') | join(',') }}"}
- {command: [fill, "{what}"]} # for people
http:
- {method: POST, url: "http://news.example.com/words", status: 201}
loadBalancers:
- {when: "service.spec.type == 'LoadBalancer'", address: 203.0.113.10}
"#;

const A: &str = "tests/a.yaml";
const WORLD: &str = "tests/world.yaml";

const MISTAKES: &[Mistake] = &[
    (
        A,
        "delete: ConfigMap/a",
        "delete: ConfigMpa/a",
        "there is no kind `ConfigMpa`; did you mean `ConfigMap`?",
    ),
    (A, "patch: Web/a", "patch: Wbe/a", "there is no kind `Wbe`; did you mean `Web`?"),
    (
        A,
        "apiVersion: example.com/v1, kind: Web",
        "apiVersion: example.com/v2, kind: Web",
        "there is no kind `Web` in example.com/v2; write apiVersion: example.com/v1",
    ),
    (A, "{spec: {size: 3}}", "{spec: {siez: 3}}", "Web has no field `spec.siez`; did you mean `size`?"),
    (A, "run: announce", "run: anounce", "Web has no plan `anounce`; did you mean `announce`?"),
    (A, "params: {count: 2}", "params: {cuont: 2}", "has no field `cuont`; did you mean `count`?"),
    (
        A,
        "resource: configmaps",
        "resource: configmap",
        "there is no resource `configmap`; did you mean `configmaps`?",
    ),
    (A, "{cm: {data", "{cn: {data", "the package has no child `cn`; did you mean `cm`?"),
    (A, "\"members[0]\"", "\"cm[0]\"", "the child `cm` has no forEach, so it has no keys; write `cm`"),
    (A, "path: tell", "path: ask/tel", "no plan has a step `tel`; did you mean `tell`?"),
    (A, "Cat/a: absent", "Cta/a: absent", "there is no kind `Cta`; did you mean `Cat`?"),
    (
        A,
        "Cat/a: absent",
        "Cat/a: absent, ServiceAccount/a-fornt: absent",
        "ServiceAccount/a-fornt is never there: that it is absent says nothing; did you mean `a-front`?",
    ),
    (
        A,
        "reason: Ready}",
        "reason: Raedy}",
        "the condition `Ready` never has the reason `Raedy`; did you mean `Ready`?",
    ),
    (
        A,
        "reason: Size}",
        "reason: Sizes}",
        "the condition `Large` never has the reason `Sizes`; did you mean `Size`?",
    ),
    (A, "reason: Size}", "reason: Ready}", "the condition `Large` never has the reason `Ready`"),
    (A, "'spec.plan', 'eq'", "'plan', 'eq'", "there is no `runs[].plan`"),
    (A, "'Succeeded') | list", "'Suceeded') | list", "is never `Suceeded`; did you mean `Succeeded`?"),
    (
        A,
        "attribute='metadata.name'",
        "attribute='metadata.nmae'",
        "there is no `pods[].metadata.nmae`; did you mean `pods[].metadata.name`?",
    ),
    (
        A,
        "map(attribute='metadata.name')",
        "map(attribute='metadata.labels') | map(attribute='a.org/b')",
        "`a.org/b` is read field by field: a key with a dot is not found; use `map('attr', 'a.org/b')`",
    ),
    (
        A,
        "objects.ConfigMap |",
        "objects.ConfigMpa |",
        "there is no `objects.ConfigMpa`; did you mean `objects.ConfigMap`?",
    ),
    (A, "deleted.Pod", "deleted.Pdo", "there is no `deleted.Pdo`; did you mean `deleted.Pod`?"),
    (A, "children.cm.data", "children.cm.daat", "there is no `children.cm.daat`"),
    (A, "children.members[0]", "children.menbers[0]", "did you mean `children.members`?"),
    (A, "children.cm.data.size == '3'", "children.cm.data.size == 3", "are never equal"),
    (A, "instance.status.url", "instance.status.ulr", "did you mean `instance.status.url`?"),
    (A, "instance.spec.size", "instance.spec.siez", "there is no `spec.siez`; did you mean `spec.size`?"),
    (WORLD, "metadata.labels.app", "metadata.labls.app", "there is no `pod.metadata.labls`"),
    (WORLD, "service.spec.type", "service.spec.tpye", "did you mean `service.spec.type`?"),
    (WORLD, "'metadata.name'", "'metadata.nmae'", "there is no `pods[].metadata.nmae`"),
    (
        WORLD,
        "{when: \"pod.metadata.labels.app == 'web' and let.mode == 'a'\", readyAfter: 2s}",
        "{readyAfter: 2s}",
        "this rule never answers: the one in line 5 does",
    ),
    (WORLD, "status, \"{what}\"]", "...]", "this rule never answers: the one in line 8 does"),
    (WORLD, "env.MODE", "env.MOED", "the environment variable `MOED`; did you mean `env.MODE`?"),
    (WORLD, "[webctl, status],", "[webctl, sttaus],", "a command with `sttaus`; did you mean `status`?"),
    (WORLD, "[fill,", "[/scripts/fill.sh,", "runs a command with `/scripts/fill.sh`"),
    (WORLD, "news.example.com", "newz.example.com", "no request goes to the host `newz.example.com`"),
    (WORLD, "com/words", "com/wrods", "no request has `wrods` in its path; did you mean `words`?"),
];

/// The findings in `tests/`, one a line, without their paths; each has one.
fn findings(files: &BTreeMap<String, String>) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), files);
    let output = operetta(&["lint", folder.path().to_str().unwrap(), "-o", "json"]);
    let found: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found.iter().all(|one| one["severity"] != "error" || in_tests(one)), "{found:#?}");
    found.iter().filter(|one| in_tests(one)).map(shown).collect()
}

fn in_tests(finding: &Value) -> bool {
    finding["file"].as_str().is_some_and(|file| file.contains("/tests/"))
}

fn shown(finding: &Value) -> String {
    let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let file = text("file").rsplit('/').next().unwrap_or_default().to_owned();
    format!("{file}:{}:{}: {}; {}", finding["line"], finding["column"], text("message"), text("help"))
}

#[test]
fn each_mistake_in_tests_is_found_at_its_place() {
    assert_eq!(findings(&parse(SOUND).files), Vec::<String>::new());
    let mut missed = Vec::new();
    for mistake in MISTAKES {
        let (file, place, by, wanted) = mistake;
        let files = planted(SOUND, mistake).unwrap_or_else(|| panic!("{file} has no {place}"));
        // A rule that never answers is reported where it is, not where the earlier one is.
        let at = files[*file].find(by).map(|at| files[*file][..at].lines().count().max(1)).unwrap();
        let lines = [at, at + 1].map(|line| format!("{}:{line}:", file.trim_start_matches("tests/")));
        let found = findings(&files);
        let is_it =
            |line: &String| line.contains(wanted) && lines.iter().any(|place| line.starts_with(&**place));
        if !found.iter().any(is_it) {
            missed.push(format!("{by}\n  wanted: {wanted}\n  found: {}", found.join("\n         ")));
        }
    }
    assert!(missed.is_empty(), "{} of {} missed:\n{}", missed.len(), MISTAKES.len(), missed.join("\n"));
}

/// Names that are computed, or that may be meant to be wrong.
#[test]
fn values_that_lint_cannot_know_are_not_reported() {
    for (file, place, by) in [
        (WORLD, "env.MODE", "env.OTHER | default('')"),
        ("templates/pod.yaml", "name: MODE", "name: \"{{ spec.word | upper }}ODE\""),
        (WORLD, "news.example.com", "{host}"),
        (WORLD, "[webctl, status],", "[psql, ...],"),
        (A, "{run: nothing, refused: nothing}", "{wait: 1s}"),
        (A, "children.members[0]", "children[instance.spec.word][0]"),
        (A, "objects.ConfigMap |", "objects[instance.kind] |"),
        (A, "path: tell", "path: \"tell[3]\""),
        (A, "instance.status.url", "instance.metadata.annotations.url"),
        (A, "resource: configmaps", "resource: selfsubjectaccessreviews"),
        (A, "Cat/a: absent", "Cat/a: absent, Secret/a-fornt: absent, ConfigMap/a-fornt: absent"),
        (A, "Large: {", "ByOthers: {"),
    ] {
        let files = planted(SOUND, &(file, place, by, "")).unwrap_or_else(|| panic!("{file} has no {place}"));
        assert_eq!(findings(&files), Vec::<String>::new(), "{by}");
    }
}

#[test]
fn test_reports_what_lint_reports_and_plays_nothing() {
    let files = planted(SOUND, &MISTAKES[0]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &files);
    let output = std::process::Command::new(OPERETTA).arg("test").arg(folder.path()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("there is no kind `ConfigMpa`") && !text.contains("test one"), "{text}");
}

#[test]
fn world_without_cases_is_checked() {
    let mistake = MISTAKES.iter().find(|mistake| mistake.0 == WORLD).unwrap();
    let mut files = planted(SOUND, mistake).unwrap();
    files.remove(A);
    let found = findings(&files);
    assert!(found.iter().any(|line| line.contains(mistake.3)), "{found:#?}");
}

/// The tests of the packages that ship have no findings.
#[test]
fn tests_of_packages_have_no_findings() {
    let mut folders = Vec::new();
    for parent in ["operators", "examples/packages"] {
        let entries = std::fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path());
        folders.extend(
            entries.filter(|path| path.join("tests").exists()).map(|path| path.display().to_string()),
        );
    }
    assert!(folders.len() > 8, "{folders:?}");
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    let output = operetta(&[&["lint", "-o", "json"][..], &folders[..]].concat());
    let found: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let found: Vec<String> = found.iter().filter(|one| in_tests(one)).map(shown).collect();
    assert_eq!(found, Vec::<String>::new());
}
