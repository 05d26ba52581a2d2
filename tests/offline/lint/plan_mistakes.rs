//! Mistakes in plans that linting finds: each finding names the plan and the step, and says what to do.

use std::fmt::Write as _;

use super::{BASE, HEADER, load, parse, shown, write};

const CHILDREN: &str = "    - crd: crds/web.yaml
      refs:
        - {id: token, apiVersion: v1, kind: Secret, name: token, optional: true}
      children:
        - {id: config, template: templates/cm.yaml}
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i, key: i}}
      plans:
";

const MEMBER: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-{{ i }}\"}\n";
const JOB: &str = "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}\n";

/// The findings of a package with these plans, one a line.
fn found(plans: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut files = parse(BASE).files;
    files.insert("operator.yaml".to_owned(), format!("{HEADER}{CHILDREN}{plans}"));
    files.insert("templates/member.yaml".to_owned(), MEMBER.to_owned());
    files.insert("templates/job.yaml".to_owned(), JOB.to_owned());
    if !plans.contains("templates/job.yaml") {
        files.remove("templates/job.yaml");
    }
    write(folder.path(), &files);
    let (_, diagnostics) = load(folder.path());
    diagnostics.iter().map(|diagnostic| shown(folder.path(), diagnostic)).collect()
}

/// A plan `p` with these steps, or with these lines if they are a whole plan.
fn plan(text: &str) -> String {
    if text.contains("steps:") {
        return text.lines().fold(String::new(), |all, line| format!("{all}        {line}\n"));
    }
    let steps = text.lines().fold(String::new(), |all, line| format!("{all}            {line}\n"));
    format!("        p:\n          steps:\n{steps}")
}

#[test]
fn valid_plan_steps_are_accepted() {
    let sound = "deploy:
  trigger: [created, changed]
  steps:
    - {name: config, apply: [config]}
    - {name: one, apply: [\"members[{{ 0 }}]\"], timeout: 1m, until: children.config is ready}
    - name: each
      forEach: {in: range(spec.size), as: i, maxParallel: 2}
      when: i > 0
      steps:
        - {name: gone, delete: [\"members[{{ i }}]\"]}
        - {name: work, job: {template: templates/job.yaml}, outputs: {id: message.id}, retries: {limit: 3, backoff: 5s}}
        - {name: note, record: {id: outputs.work.id}}
    - {name: call, http: {method: POST, url: \"https://api.example.com/{{ name }}\", json: {a: \"{{ spec.size }}\"}, auth: {bearer: \"{{ refs.token.data.t | b64decode if refs.token else omit }}\"}}, expect: [200]}
    - {name: settle, wait: {until: record.id is defined}, message: \"{{ name }} settles\"}
    - {name: pause, wait: {duration: 10s}}
    - {name: ask, approve: {message: sure?, count: 2, notRequester: true}}
    - {name: other, plan: resize}
    - {name: stop, when: spec.size > 9, fail: {message: too many}}
resize:
  trigger: {changed: [spec.size]}
  params: {type: object, properties: {to: {type: integer}}}
  steps: [{name: note, record: {to: run.params.to}}]
nightly:
  trigger: {schedule: 0 3 * * *, timeZone: Europe/Rome, startingDeadline: 1h, suspend: spec.size == 0}
  exclusive: false
  concurrency: Forbid
  interruptible: false
  steps: [{name: note, record: {last: run.id}}]
late:
  trigger: {condition: record.id is undefined, for: 60s, cooldown: 5m}
  steps: [{name: note, record: {id: \"'x'\"}}]
";
    assert_eq!(found(&plan(sound)), Vec::<String>::new());
}

#[test]
fn each_plan_mistake_is_found_with_a_remedy() {
    // A mistake, and words of one of its findings.
    let cases: &[(&str, &[&str])] = &[
        ("- {name: a, apply: [confg]}", &["error", "confg", "config"]),
        ("- {name: a, delete: [\"membrs[{{ 0 }}]\"]}", &["error", "membrs", "members"]),
        ("- {name: a, apply: [\"config[{{ 0 }}]\"]}", &["error", "config"]),
        ("- {name: a, plan: reszie}", &["error", "reszie"]),
        ("- {name: a, plan: p}", &["error", "p"]),
        ("p: {steps: [{name: a, plan: q}]}\nq: {steps: [{name: b, plan: p}]}", &["error", "p", "q"]),
        ("- {name: a, record: {b: outputs.nothing.id}}", &["error", "`nothing`", "outputs.<step>"]),
        ("- {name: a, apply: [config]}\n- {name: a, delete: [config]}", &["error", "`a`"]),
        ("- {name: a}", &["error", "a"]),
        ("- {name: a, apply: [config], delete: [config]}", &["error", "delete"]),
        ("- {name: a, aply: [config]}", &["error", "aply", "apply"]),
        ("- {name: a, apply: [config], timeout: soon}", &["error", "soon"]),
        ("- {name: a, apply: [config], timeout: 10}", &["error", "10s"]),
        ("- {name: a, job: {template: templates/job.yaml}, retries: {limit: -1}}", &["error", "-1"]),
        ("- {name: a, apply: [config], onFailure: retry}", &["error", "retry"]),
        ("- {name: a, wait: {until: spec.sise > 1}}", &["spec.sise", "size"]),
        ("- {name: a, when: \"spec.size >\", apply: [config]}", &["error", "expression"]),
        ("- {name: a, job: {template: templates/jb.yaml}}", &["error", "templates/jb.yaml"]),
        ("- {name: a, exec: {child: members, command: [ls]}}", &["error", "idempotent"]),
        ("- {name: a, exec: {child: nobody, command: [ls]}, idempotent: true}", &["error", "nobody"]),
        (
            "- {name: a, exec: {child: members, command: [sh, -c, \"echo {{ spec.host }}\"]}, idempotent: true}",
            &["shell script", "[sh, -c"],
        ),
        ("- {name: a, http: {url: \"https://{{ spec.host }}/x\"}}", &["error", "host"]),
        ("- {name: a, http: {url: \"https://api.example.com\", json: {}, body: x}}", &["error", "body"]),
        ("- {name: a, http: {url: \"https://api.example.com\"}, expect: [99]}", &["error", "99"]),
        ("- {name: a, record: {t: refs.token.data.t}}", &["error", "ecret"]),
        ("- {name: a, fail: {message: \"{{ refs.token.data.t }}\"}}", &["error", "ecret"]),
        ("- {name: a, approve: {count: 2}}", &["error", "message"]),
        (
            "- {name: a, patch: {apiVersion: v1, kind: ConfigMap, name: x, namespace: \"{{ spec.host }}\", merge: {}}}",
            &["error", "namespace"],
        ),
        ("p: {steps: []}", &["error", "steps"]),
        ("p: {trigger: {schedule: 61 3 * * *}, steps: [{name: a, apply: [config]}]}", &["error", "61"]),
        ("p: {trigger: {schedule: every day}, steps: [{name: a, apply: [config]}]}", &["error", "every day"]),
        (
            "p: {trigger: {schedule: \"@every banana\"}, steps: [{name: a, apply: [config]}]}",
            &["error", "banana"],
        ),
        (
            "p: {trigger: {schedule: 0 3 * * *, timeZone: Europe/Rom}, steps: [{name: a, apply: [config]}]}",
            &["error", "Europe/Rom"],
        ),
        ("p: {trigger: {changed: [spec.sise]}, steps: [{name: a, apply: [config]}]}", &["spec.sise", "size"]),
        (
            "p: {trigger: {changed: [refs.nothing]}, steps: [{name: a, apply: [config]}]}",
            &["error", "nothing"],
        ),
        (
            "p: {trigger: {changed: [spec.size]}, steps: [{name: a, apply: [config]}]}\nq: {trigger: {changed: [spec.size]}, steps: [{name: a, apply: [config]}]}",
            &["error", "spec.size", "p", "q"],
        ),
        ("p: {trigger: changd, steps: [{name: a, apply: [config]}]}", &["error", "changed"]),
        (
            "p: {trigger: {condition: spec.size > 1, for: long}, steps: [{name: a, apply: [config]}]}",
            &["error", "long"],
        ),
        ("p: {exclusive: false, steps: [{name: a, apply: [config]}]}", &["error", "exclusive"]),
        (
            "p: {exclusive: false, affectsReady: false, steps: [{name: a, record: {x: 1}}]}",
            &["warning", "affectsReady: false", "`p`", "default with exclusive: false"],
        ),
        (
            "p: {affectsReady: true, steps: [{name: a, apply: [config]}]}",
            &["warning", "default with exclusive: true"],
        ),
        (
            "update: {affectsReady: false, steps: [{name: a, apply: [config]}]}",
            &["warning", "affectsReady: false", "`update`", "only for requested runs"],
        ),
        ("p: {concurrency: Maybe, steps: [{name: a, apply: [config]}]}", &["error", "Forbid"]),
        (
            "p: {params: {type: object, properties: {a: {type: strng}}}, steps: [{name: a, apply: [config]}]}",
            &["error", "string"],
        ),
        (
            "p: {params: {type: object, properties: {a: {type: string}}}, steps: [{name: a, record: {b: run.params.aa}}]}",
            &["aa", "run.params.a"],
        ),
        (
            "p: {exclusive: false, steps: [{name: a, record: {x: 1}}]}\nq: {steps: [{name: a, record: {x: 2}}]}",
            &["error", "x"],
        ),
    ];
    let mut wrong = String::new();
    for (text, words) in cases {
        let found = found(&plan(text));
        let says = |line: &String| words.iter().all(|word| line.contains(word));
        if !found.iter().any(says) {
            let _ = writeln!(wrong, "{text}\n  wants {words:?}\n  found {found:#?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Checks facts about volumes that outlive the instance, with the children of [`CHILDREN`] and such volumes.
#[test]
fn facts_about_retained_volumes_must_be_retained() {
    let found = |steps: &str, state: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut files = parse(BASE).files;
        let children = "    - crd: crds/web.yaml
      children:
        - {id: data, template: templates/data.yaml, deletionPolicy: Retain}
        - {id: state, template: templates/state.yaml, deletionPolicy: Retain}
      plans:
";
        files.insert("operator.yaml".to_owned(), format!("{HEADER}{children}{}", plan(steps)));
        let data = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: \"{{ name }}\"}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n";
        files.insert("templates/data.yaml".to_owned(), data.to_owned());
        let state = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{{{{ name }}}}\"}}\ndata: {{a: \"{state}\"}}\n"
        );
        files.insert("templates/state.yaml".to_owned(), state);
        files.remove("templates/cm.yaml");
        write(folder.path(), &files);
        let (_, diagnostics) = load(folder.path());
        diagnostics.iter().map(|diagnostic| shown(folder.path(), diagnostic)).collect::<Vec<_>>()
    };
    let apply = "- {name: all, apply: [data, state]}";
    let fact = |more: &str| format!("- {{name: note, {more}}}\n{apply}");
    let lost = found(&fact("record: {formatted: true}"), "b");
    assert!(lost.len() == 1 && lost[0].contains("`data` outlives the instance"), "{lost:#?}");
    assert!(lost[0].contains("from `retained.data`"), "{lost:#?}");
    let none = Vec::<String>::new();
    assert_eq!(found(apply, "b"), none, "no facts");
    assert_eq!(
        found(&fact("record: {formatted: true}"), "{{ self.data.a | default(record.formatted) }}"),
        none
    );
    let known = "when: retained.data is defined, record: {formatted: true}";
    assert_eq!(found(&fact(known), "b"), none);
    let once = "when: record.formatted is undefined, record: {formatted: retained.data is defined}";
    assert_eq!(found(&fact(once), "b"), none);
    let again = found(&fact("record: {formatted: retained.data is defined}"), "b");
    assert!(again.len() == 1 && again[0].contains("add `when: record.formatted is undefined`"), "{again:#?}");
}
