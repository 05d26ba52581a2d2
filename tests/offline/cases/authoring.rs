//! `operetta test` for authors: expectations that can never hold, `--update`, `--init`, users and commands.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{HEAD, OPERETTA, case, copy, fails_with, package, run, says, test};

#[test]
fn expectations_that_can_never_hold_are_mistakes() {
    for (expect, parts) in [
        (
            "{instance: {spec: {replcas: 2}}}",
            &["WebApp has no field `spec.replcas`", "did you mean `replicas`?"][..],
        ),
        (
            "{instance: {spec: {replicas: two}}}",
            &["`spec.replicas` of WebApp takes a whole number, not a string"],
        ),
        ("{instance: {status: {urls: x}}}", &["WebApp has no field `status.urls`", "did you mean `url`?"]),
        (
            "{instance: {conditions: {Redy: \"True\"}}}",
            &["there is no condition `Redy`", "did you mean `Ready`?"],
        ),
        ("{instance: {conditions: {Ready: Yes please}}}", &["a condition is True, False, Unknown"]),
        (
            "{instance: {conditions: {Ready: {status: \"True\", raeson: X}}}}",
            &["conditions.Ready.raeson", "`reason`?"],
        ),
        (
            "{children: {deployment: {spec: {replicas: \"2\"}}}}",
            &["`spec.replicas` of Deployment", "remove the quotes"],
        ),
        (
            "{children: {service: {spec: {type: ClusterIp}}}}",
            &["`spec.type` of Service does not take `ClusterIp`", "`ClusterIP`?"],
        ),
        (
            "{children: {deployment: {spec: {template: {spec: {containers: [{name: web, img: x}]}}}}}}",
            &["Deployment has no field `spec.template.spec.containers[0].img`"],
        ),
        (
            "{children: {deploymnt: 1}}",
            &["the package has no child `deploymnt`", "did you mean `deployment`?"],
        ),
        ("{objects: {Deploymnt/a: {}}}", &["there is no kind `Deploymnt`", "did you mean `Deployment`?"]),
        ("{objects: {Pod/a: {status: {phse: Running}}}}", &["Pod has no field `status.phse`"]),
        ("{events: [{reson: Created}]}", &["Event has no field `reson`", "did you mean `reason`?"]),
        ("{runs: [{phase: Done}]}", &["`phase` of a run does not take `Done`"]),
        ("{runs: [{plan: deploy}]}", &["the package has no plan `deploy`"]),
    ] {
        let steps = format!("  - {{wait: 1s}}\n  - expect: {expect}\n");
        fails_with(&steps, &[parts, &["a.yaml:9"]].concat());
        let (_, text) = test(&[("a.yaml", &case(&steps))], &[]);
        assert!(!text.contains("test one"), "nothing is played: {text}");
    }
}

#[test]
fn expectations_of_open_maps_and_of_other_kinds_are_no_mistakes() {
    let crd = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: cats.x.org}, spec: \
               {group: x.org, scope: Namespaced, names: {kind: Cat, plural: cats}, versions: [{name: v1, served: true, \
               storage: true, schema: {openAPIV3Schema: {type: object}}}]}}";
    let steps = format!(
        "  - apply: {crd}\n  - expect:\n      objects: {{Cat/a: absent, Cat/*: 0}}\n      children:\n        deployment: \
         {{metadata: {{labels: {{none.example.org/x: null}}}}, spec: {{selector: null, strategy: {{}}}}}}\n    within: 1s\n"
    );
    let (_, text) = test(&[("a.yaml", &case(&steps))], &[]);
    assert!(text.contains("spec.selector is {") && text.contains("not null"), "it is played: {text}");
}

#[test]
fn update_replaces_the_values_that_differ_and_nothing_else() {
    let steps = "  - patch: WebApp/a\n    with: {spec: {replicas: 3}}   # three\n  - expect:\n      children:\n        \
                 deployment: {spec: {replicas: 2}}   # two\n        service:\n          spec:\n            # the port\n            \
                 ports:\n            - {port: 81, targetPort: http}\n      objects: {Pod/*: 1}\n      instance: {conditions: {Ready: \"False\"}}\n    \
                 within: 1m\n  - expect: {instance: {status: {replicas: 7}}}\n    within: 1m\n";
    let folder = package(&[("a.yaml", &case(steps))]);
    let run = |flags: &[&str]| run(folder.path(), flags);
    assert_eq!(run(&[]).0, 1);
    let text = says(run(&["--update"]), 0, &["1 passed; 0 failed"]);
    for said in [
        "a.yaml:12:39: child deployment: spec.replicas: 2 -> 3",
        "child service: spec.ports[http].port: 81 -> 80",
        "Pod/*: 1 -> 3",
        "instance: conditions.Ready.status: \"False\" -> \"True\"",
        "instance: status.replicas: 7 -> 3",
    ] {
        assert!(text.contains(said), "{said:?} is not in:\n{text}");
    }
    let new =
        steps.replace("replicas: 2}", "replicas: 3}").replace("81", "80").replace("Pod/*: 1", "Pod/*: 3");
    let new = new.replace("Ready: \"False\"", "Ready: \"True\"").replace("replicas: 7", "replicas: 3");
    assert_eq!(fs::read_to_string(folder.path().join("tests/a.yaml")).unwrap(), case(&new));
    let (code, text) = run(&["--update"]);
    assert!(code == 0 && !text.contains("updated"), "nothing is left: {text}");
}

#[test]
fn update_leaves_what_values_cannot_say() {
    let steps = "  - {expect: {objects: {Secret/none: {}}, that: [\"pods | length == 9\"]}, within: 1s}\n";
    let folder = package(&[("a.yaml", &case(steps))]);
    let output = Command::new(OPERETTA).arg("test").arg(folder.path()).arg("--update").output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("Secret/none: there is none"), "{text}");
    assert_eq!(fs::read_to_string(folder.path().join("tests/a.yaml")).unwrap(), case(steps));
}

#[test]
fn nearest_item_is_shown_when_none_fits() {
    fails_with(
        "  - {expect: {children: {service: {spec: {ports: [{port: 81, protocol: UDP, name: x}]}}}}, within: 1s}\n",
        &["no item of spec.ports[] fits {\"name\":\"x\",\"port\":81", "the nearest is {", "port\":80"],
    );
}

#[test]
fn init_writes_a_first_file_that_passes() {
    let folder = tempfile::tempdir().unwrap();
    copy(Path::new("operators/webapp"), folder.path());
    let minimal = "examples/webapp/minimal.yaml";
    let (code, text) = run(folder.path(), &["--init", "--from", minimal]);
    assert!(
        code == 0 && text.contains("webapp.yaml is written, from examples/webapp/minimal.yaml"),
        "{text}"
    );
    let file = folder.path().join("tests/webapp.yaml");
    let written = fs::read_to_string(&file).unwrap();
    for part in [
        "instance: {conditions: {PodsFailing: \"False\", Ready: \"True\"}}",
        "a change of spec.replicas reaches the children",
        "with: {spec: {replicas: 2}}",
        "deployment: {spec: {replicas: 2}}",
        "children: {deployment: absent, service: absent}",
    ] {
        assert!(written.contains(part), "{part:?} is not in:\n{written}");
    }
    says(run(folder.path(), &[]), 0, &["3 passed; 0 failed"]);
    // It is not overwritten.
    says(run(folder.path(), &["--init", "--from", minimal]), 1, &["webapp.yaml exists already"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
}

#[test]
fn init_without_a_ready_instance_writes_nothing() {
    let folder = package(&[(
        "world.yaml",
        "apiVersion: operetta.dev/v1alpha1\nkind: World\npods: [{readyAfter: never}]\n",
    )]);
    for (flags, said) in [
        (&["--init"][..], "no example of webapp was found: give an instance with --from FILE"),
        (&["--init", "--from", "examples/etcd/volumes.yaml"], "has no instance of a kind of webapp"),
        (&["--init", "--from", "none.yaml"], "none.yaml cannot be read"),
        (&["--init", "--from", "examples/webapp/minimal.yaml"], "it does not hold within 1h"),
    ] {
        let (code, text) = run(folder.path(), flags);
        assert!(code == 1 && text.contains(said), "{said:?} is not in:\n{text}");
    }
    assert!(!folder.path().join("tests/webapp.yaml").exists());
}

#[test]
fn commands_run_as_kubectl_exec_runs_them() {
    let world = "apiVersion: operetta.dev/v1alpha1\nkind: World\nexec:\n- {command: [cat, \"{file}\"], stdout: \"text of {{ file }}\\n\"}\n";
    let pod = "  - apply: {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: x}]}}\n  - \
               expect: {objects: {Pod/p: {conditions: {Ready: \"True\"}}}}\n";
    let cases = [
        ("{pod: p, command: [cat, a], stdout: text of a}", None),
        ("{pod: p, command: [ls], exitCode: 127, stderr: no rule says}", None),
        (
            "{pod: p, command: [cat, a], stdout: text of b}",
            Some("`cat a` in pod p does not print \"text of b\""),
        ),
        ("{pod: p, command: [ls]}", Some("`ls` in pod p ends with exit code 127, not 0")),
        ("{pod: q, command: [ls]}", Some("there is no Pod q in namespace default")),
        ("{pod: p, container: d, command: [ls]}", Some("`ls` in pod p does not run")),
        ("{pod: p, command: []}", Some("`command` is empty")),
    ];
    for (exec, wrong) in cases {
        let steps = format!("{pod}  - exec: {exec}\n");
        let (code, text) = test(&[("a.yaml", &case(&steps)), ("world.yaml", world)], &[]);
        match wrong {
            None => assert_eq!(code, 0, "{exec}: {text}"),
            Some(wrong) => {
                assert!(code == 1 && text.contains(wrong) && text.contains("a.yaml:10"), "{exec}: {text}");
            }
        }
    }
}

#[test]
fn users_do_what_roles_let_them_do() {
    let role = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}, rules: [{apiGroups: \
                [operetta.dev], resources: [planruns], verbs: [get, create, patch]}, {apiGroups: [fixtures.operetta.dev], \
                resources: [errands], verbs: [run]}]}";
    let binding = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: b}, roleRef: \
                   {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: r}, subjects: [{kind: User, name: bob}]}";
    let text = format!(
        "{HEAD}cases:\n- name: one\n  steps:\n  - apply: [{{apiVersion: fixtures.operetta.dev/v1, kind: Errand, metadata: \
         {{name: a}}, spec: {{}}}}, {role}, {binding}]\n  - {{run: ask, as: eve, refused: cannot create resource}}\n  - {{run: ask, \
         as: bob}}\n  - {{approve: ask, as: bob, refused: may not approve steps of errands/a}}\n  - approve: ask\n  - approve: \
         ask\n  - expect: {{runs: [{{plan: ask, phase: Succeeded}}]}}\n"
    );
    let folder = tempfile::tempdir().unwrap();
    copy(Path::new("tests/fixtures/packages/plan-commands"), folder.path());
    fs::create_dir(folder.path().join("tests")).unwrap();
    fs::write(folder.path().join("tests/a.yaml"), text).unwrap();
    let (code, text) = run(folder.path(), &[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn refusal_of_a_rule_is_seen_as_a_whole() {
    let crd = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: cats.x.org}, spec: \
               {group: x.org, scope: Namespaced, names: {kind: Cat, plural: cats}, versions: [{name: v1, served: true, \
               storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {age: \
               {type: integer}}, x-kubernetes-validations: [{rule: self.age < 30, message: no cat is so old}]}}}}}]}}";
    let cat = "apply: {apiVersion: x.org/v1, kind: Cat, metadata: {name: a}, spec: {age: 31}}";
    let steps = format!("  - apply: {crd}\n  - wait: 10s\n  - {cat}\n    refused: no cat is so old\n");
    let (code, text) = test(&[("a.yaml", &case(&steps))], &[]);
    assert_eq!(code, 0, "{text}");
    let webapp =
        "  - {patch: WebApp/a, with: {spec: {port: 0}}, refused: should be greater than or equal to 1}\n";
    let (code, text) = test(&[("a.yaml", &case(webapp))], &[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn ten_thousand_objects_are_no_hang() {
    let many: Vec<String> = (0..10_000)
        .map(|i| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{i}}}\ndata: {{a: b}}\n"))
        .collect();
    let folder = package(&[(
        "a.yaml",
        &format!(
            "{HEAD}cases:\n- name: many\n  steps:\n  - apply: ../many.yaml\n  - {{expect: {{objects: {{ConfigMap/*: 9999}}}}, within: 1m}}\n"
        ),
    )]);
    fs::write(folder.path().join("many.yaml"), many.concat()).unwrap();
    says(run(folder.path(), &[]), 1, &["a.yaml:7", "ConfigMap/*: 10000, not 9999"]);
}
