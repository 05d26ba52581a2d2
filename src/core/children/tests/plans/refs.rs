//! Objects that refs bring, in the origins of rollouts.

use super::*;

/// Three members that read a Secret, and a note that does not.
fn package_of(trigger: &str) -> Arc<Package> {
    let resource = format!(
        "
refs:
  - {{id: tls, apiVersion: v1, kind: Secret, name: tls}}
  - {{id: other, apiVersion: v1, kind: ConfigMap, name: other, optional: true}}
children:
  - {{id: m, template: templates/m.yaml, exposesSecretData: true, forEach: {{in: range(spec.size), as: i, key: i}}}}
  - {{id: note, template: templates/note.yaml}}
plans:
  deploy:
    steps:
      - {{name: all, apply: [m, note]}}
  roll:
    {trigger}
    steps:
      - {{name: each, forEach: {{in: range(spec.size), as: i}}, apply: ['m[{{{{ i }}}}]']}}
"
    );
    let member = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-{{ i }}\"}\ndata: {crt: \"{{ refs.tls.data.crt }}\"}\n";
    let note = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-note\"}\ndata: {text: \"{{ refs.other.data.text | default('none') }}\"}\n";
    package(&resource, &[("m", member.into()), ("note", note.into())])
}

fn secret(crt: &str) -> Arc<Referred> {
    let metadata = json!({"name": "tls", "uid": crt, "resourceVersion": crt});
    referred(json!({"kind": "Secret", "metadata": metadata, "data": {"crt": crt}}), true)
}

fn deployed(trigger: &str) -> World {
    let mut world = World::with_runs(package_of(trigger), &json!({"size": 3}));
    world.foreign.push(secret("one"));
    assert_eq!(world.settle(), Verdict::Ready { children: 4 });
    assert_eq!(world.phases(), [("deploy".into(), Phase::Succeeded)]);
    world.log.clear();
    world
}

const ROLL: &str = "trigger: {changed: [refs.tls]}";

#[test]
fn a_rotated_certificate_restarts_one_member_at_a_time() {
    let mut world = deployed(ROLL);
    world.quick = false;
    world.foreign[0] = secret("two");
    for number in 0..3 {
        world.settle();
        assert_eq!(world.log, [format!("Update m[{number}]")]);
        world.log.clear();
        world.ready(&format!("a-{number}"));
    }
    assert_eq!(world.settle(), Verdict::Ready { children: 4 });
    assert_eq!(world.phases()[1], ("roll".into(), Phase::Succeeded));
}

#[test]
fn a_rotated_certificate_that_no_plan_names_runs_deploy_again() {
    let mut world = deployed("trigger: {changed: [spec.text]}");
    world.foreign[0] = secret("two");
    assert_eq!(world.settle(), Verdict::Ready { children: 4 });
    assert_eq!(world.phases()[1], ("deploy".into(), Phase::Succeeded));
    assert_eq!(world.value("a-2", "crt"), "two");
}

#[test]
fn a_missing_member_is_created_while_the_others_keep_the_old_certificate() {
    let mut world = deployed(ROLL);
    world.quick = false;
    world.foreign[0] = secret("two");
    world.settle();
    world.log.clear();
    world.remove("ConfigMap/a-2");
    world.settle();
    assert_eq!(world.log, ["Create m[2]"]);
    assert_eq!(world.value("a-1", "crt"), "one");
}

#[test]
fn an_unknown_ref_starts_no_run() {
    let mut world = deployed(ROLL);
    world.foreign.clear();
    world.settle();
    world.lost.insert("Secret".into());
    world.settle();
    world.restart();
    world.settle();
    world.lost.clear();
    // A new object with the same content starts no run.
    let mut again = (*secret("one")).clone();
    Arc::make_mut(&mut again.value)["metadata"]["uid"] = "another".into();
    world.foreign.push(Arc::new(again));
    assert_eq!(world.settle(), Verdict::Ready { children: 4 });
    assert_eq!((world.phases().len(), world.log.len()), (1, 0));
}

/// Only steps read it.
#[test]
fn a_ref_whose_object_comes_after_the_first_rollout_starts_a_run() {
    let resource = "
refs:
  - {id: tls, apiVersion: v1, kind: Secret, name: tls}
children:
  - {id: m, template: templates/m.yaml}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
  load:
    trigger: {changed: [refs.tls]}
    steps:
      - {name: note, record: {name: refs.tls.metadata.name}}
";
    let package = package(resource, &[("m", config("{{ name }}"))]);
    let mut world = World::with_runs(package, &json!({"text": "x"}));
    world.settle();
    assert_eq!(world.phases(), [("deploy".into(), Phase::Succeeded)]);
    world.foreign.push(secret("one"));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(plan_names(&world), ["deploy", "load"]);
    // Its last known content counts while it is gone.
    world.foreign.clear();
    world.settle();
    world.foreign.push(secret("one"));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(plan_names(&world), ["deploy", "load"]);
    world.foreign[0] = secret("two");
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(plan_names(&world), ["deploy", "load", "load"]);
}

/// Nothing says which content a rollout that has waited for it has brought: another one takes it over, and changes no child.
#[test]
fn a_ref_that_a_rollout_has_waited_for_is_taken_over_without_a_change() {
    let mut world = World::with_runs(package_of(ROLL), &json!({"size": 3}));
    world.settle();
    world.foreign.push(secret("one"));
    assert_eq!(world.settle(), Verdict::Ready { children: 4 });
    assert_eq!(plan_names(&world), ["deploy", "roll"]);
    assert!(world.log.iter().all(|write| write.starts_with("Create ")), "{:?}", world.log);
    world.foreign[0] = secret("two");
    assert_eq!(world.settle(), Verdict::Ready { children: 4 });
    assert_eq!(plan_names(&world), ["deploy", "roll", "roll"]);
    assert_eq!(world.value("a-2", "crt"), "two");
}

#[test]
fn origins_hold_no_secrets_and_another_key_starts_no_run() {
    let mut world = deployed(ROLL);
    let stored = world.store().origins.clone();
    let digest = stored[0]["data"]["refs"]["tls"].as_str().unwrap().to_owned();
    assert!(!stored[0].to_string().contains("one") && digest.len() > 16, "{digest}");
    // The key of the installation was lost: nobody can tell whether the certificate is another.
    let other_key = format!("00000000{}", &digest[8..]);
    world.store().origins[0]["data"]["refs"]["tls"] = other_key.into();
    world.settle();
    assert_eq!(world.phases().len(), 1);
}

#[test]
fn missing_digest_key_stops_decisions_and_is_reported() {
    for (is_permanent, is_stalled) in [(false, false), (true, true)] {
        let mut world = deployed(ROLL);
        world.foreign[0] = secret("two");
        world.store().key_problem =
            Some(KeyProblem { message: "Secret m/operetta-generated-data: 403".into(), is_permanent });
        let verdict = world.settle();
        let said = |text: &str| text.contains("operetta-generated-data");
        match &verdict {
            Verdict::Stalled { reason, message } => {
                assert!(is_stalled && reason == "DigestKeyUnreadable" && said(message), "{verdict:?}");
            }
            Verdict::Reconciling { reason, message } => {
                assert!(!is_stalled && reason == "DigestKeyUnreadable" && said(message), "{verdict:?}");
            }
            _ => panic!("{verdict:?}"),
        }
        assert!(world.decide().status.is_some());
        assert_eq!((world.phases().len(), world.log.len()), (1, 0));
        // A deletion without anything to settle needs no key.
        let mut deleted = deployed(ROLL);
        deleted.store().key_problem.clone_from(&world.store().key_problem);
        deleted.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        deleted.settle();
        assert!(deleted.objects.is_empty());
        // Once it can be read, the rotation is rolled out.
        world.store().key_problem = None;
        world.settle();
        assert_eq!(world.phases().len(), 2);
    }
}
