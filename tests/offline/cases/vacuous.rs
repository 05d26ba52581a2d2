//! Cases that could not fail do not pass, and cases end at rest.

use std::fs;
use std::process::Command;

use super::{HEAD, OPERETTA, READY, case, fails_with, package, says, test};

/// A case that passes.
fn passes(steps: &str) {
    let (code, text) = test(&[("a.yaml", &case(steps))], &[]);
    assert_eq!(code, 0, "{text}");
}

/// One case with these invariants and steps.
fn with_invariants(invariants: &str, steps: &str) -> String {
    format!("{HEAD}cases:\n- name: one\n  {invariants}\n  steps:{READY}{steps}")
}

#[test]
fn absence_of_what_is_never_there_fails() {
    for (expect, said) in [
        ("{objects: {Deployment/b: absent}}", "Deployment/b is never there: that it is absent says nothing"),
        ("{objects: {Secret/none: absent}}", "Secret/none is never there"),
        ("{that: [\"'none' not in deleted.Secret\"]}", "Secret/none is never there"),
        (
            "{that: [\"objects.Secret | selectattr('metadata.name', 'startingwith', 'none') | list == []\"]}",
            "a Secret whose name begins with `none` is never there",
        ),
        (
            "{children: {deployment: {metadata: {labels: {none: null}}}}}",
            "child deployment: metadata.labels.none never has a value",
        ),
        ("{instance: {conditions: {Missing: null}}}", "instance: conditions.Missing never has a value"),
    ] {
        let steps = format!("  - expect: {expect}\n");
        fails_with(&steps, &["test one ... FAILED", said, "a.yaml:8", "help: "]);
    }
    // The name that is meant.
    let steps = "  - expect: {objects: {Service/shop: absent}}\n- name: two\n  steps:\n  - apply: {apiVersion: v1, kind: \
                 Service, metadata: {name: shops}, spec: {ports: [{port: 80}]}}\n  - expect: {objects: {Service/shops: {}}}\n";
    fails_with(steps, &["Service/shop is never there", "did you mean `shops`?"]);
}

#[test]
fn absence_of_what_was_there_or_is_known_of_the_package_passes() {
    passes(
        "  - delete: WebApp/a\n  - expect: {instance: absent, objects: {Deployment/a: absent, Pod/*: 0}}\n",
    );
    // By a template, and by a schema.
    passes(
        "  - expect: {objects: {Ingress/a: absent}, children: {ingress: absent}, instance: {status: {url: null}}}\n",
    );
    passes("  - expect: {instance: {conditions: {Stalled: null}}}\n");
    // By another case, which need not be played.
    let steps = "  - expect: {objects: {Secret/other: absent}}\n- name: two\n  steps:\n  - apply: {apiVersion: v1, kind: \
                 Secret, metadata: {name: other}}\n  - expect: {objects: {Secret/other: {}}}\n";
    for flags in [&[][..], &["--case", "one"]] {
        let (code, text) = test(&[("a.yaml", &case(steps))], flags);
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn invariants_are_checked_if_nothing_writes() {
    let head = format!("{HEAD}before:{READY}cases:\n- name: one\n  ");
    let steps = "\n  steps:\n  - expect: {objects: {Pod/*: 1}}\n";
    for (invariant, code, said) in [
        ("always: [\"pods | length == 1\"]", 0, "test one ... ok"),
        ("always: [\"pods | length == 2\"]", 1, "always: pods | length == 2: it is false"),
        ("never: [\"pods | length == 1\"]", 1, "never: pods | length == 1: it is true"),
    ] {
        let (ended, text) = test(&[("a.yaml", &format!("{head}{invariant}{steps}"))], &[]);
        assert!(ended == code && text.contains(said), "{text}");
    }
}

/// A `CronJob` that starts a Job each minute.
const EACH_MINUTE: &str = r#"
  - apply: {apiVersion: batch/v1, kind: CronJob, metadata: {name: beat}, spec: {schedule: "* * * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}}}}
  - expect: {that: ["objects.Job | length > 1"]}
"#;

#[test]
fn case_with_a_cron_job_that_runs_each_minute_ends() {
    passes(EACH_MINUTE);
}

#[test]
fn case_with_a_plan_that_runs_each_minute_ends() {
    let folder = package(&[("a.yaml", &case(""))]);
    let path = folder.path().join("operator.yaml");
    let plan = "      plans:\n        tick:\n          trigger: {schedule: \"* * * * *\"}\n          steps: [{name: w, wait: {until: \
                \"true\"}}]\n      status:\n";
    let text = fs::read_to_string(&path).unwrap().replacen("      status:\n", plan, 1);
    fs::write(&path, text).unwrap();
    let output = Command::new(OPERETTA).arg("test").arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn always_that_reads_nothing_fails() {
    let steps = "  - expect: {objects: {Pod/*: 1}}\n";
    let always = with_invariants("always: [\"children.config.data | length == 1\"]", steps);
    let (code, text) = test(&[("a.yaml", &always)], &[]);
    assert!(code == 1 && text.contains("it reads nothing in the whole case"), "{text}");
    assert!(text.contains("if it may be absent, write `... is undefined or ...`"), "{text}");
    let read = with_invariants("always: [\"instance is undefined or instance.spec.image == 'x:1'\"]", steps);
    let (code, text) = test(&[("a.yaml", &read)], &[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn break_that_strikes_nothing_fails() {
    let patch = "  - {patch: WebApp/a, with: {spec: {replicas: 2}}}\n  - expect: {objects: {Pod/*: 2}}\n";
    let stray = format!("  - break: {{resource: secrets, answer: 500}}\n{patch}");
    fails_with(&stray, &["this `break` has struck nothing", "a.yaml:8"]);
    fails_with(&format!("  - break: {{exec: [nothing]}}\n{patch}"), &["this `break` has struck nothing"]);
    passes(&format!("  - break: {{resource: deployments, answer: 500}}\n{patch}"));
}

#[test]
fn case_that_expects_nothing_after_its_last_change_fails() {
    let patch = "  - {patch: WebApp/a, with: {spec: {replicas: 2}}}\n";
    fails_with(patch, &["the case expects nothing after its last change", "a.yaml:8"]);
    fails_with(&format!("{patch}  - wait: 1m\n"), &["the case expects nothing after its last change"]);
    passes(&format!("{patch}  - {{patch: WebApp/a, with: {{spec: {{port: 0}}}}, refused: spec.port}}\n"));
    let never = with_invariants("never: [deleted.Pod]", patch);
    let (code, text) = test(&[("a.yaml", &never)], &[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn invariants_hold_until_the_case_is_at_rest() {
    // The claim goes after the StatefulSet, when all that is expected holds already.
    let set = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: s}, spec: {serviceName: s, \
               persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}, selector: {matchLabels: {a: b}}, template: {metadata: \
               {labels: {a: b}}, spec: {containers: [{name: c, image: x}]}}, volumeClaimTemplates: [{metadata: {name: data}, spec: \
               {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}";
    let steps = format!(
        "  - apply: {set}\n  - expect: {{objects: {{PersistentVolumeClaim/data-s-0: {{}}, Pod/s-0: {{conditions: {{Ready: \
         \"True\"}}}}}}}}\n  - delete: StatefulSet/s\n"
    );
    let never = with_invariants("never: [deleted.PersistentVolumeClaim]", &steps);
    says(test(&[("a.yaml", &never)], &[]), 1, &["never: deleted.PersistentVolumeClaim: it is true"]);
}
