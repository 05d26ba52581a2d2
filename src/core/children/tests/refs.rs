//! Refs, groups, and children that depend on their own output.

use super::*;

const READER: &str = "
refs:
  - {id: tls, apiVersion: v1, kind: Secret, name: \"{{ spec.host }}-tls\", when: spec.host is defined}
  - {id: extra, apiVersion: v1, kind: Secret, name: extra, optional: true}
children:
  - {id: reads, template: templates/reads.yaml, exposesSecretData: true}
  - {id: plain, template: templates/plain.yaml}
  - {id: only, template: templates/only.yaml, when: refs.extra is defined}
status:
  crt: {value: refs.tls.data.crt | default('none'), exposesSecretData: true}
";

fn reader() -> Arc<Package> {
    let reads = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-reads\"}\n\
                 data: {crt: \"{{ refs.tls.data.crt | default('none') }}\", extra: \"{{ refs.extra.data.x | default('none') }}\"}\n";
    package(
        READER,
        &[
            ("reads", reads.into()),
            ("plain", config("{{ name }}-plain")),
            ("only", config("{{ name }}-only")),
        ],
    )
}

#[allow(clippy::needless_pass_by_value)] // `json!` reads better in the call
fn foreign(name: &str, data: Value) -> Arc<Referred> {
    referred(json!({"metadata": {"name": name}, "data": data}), true)
}

fn text(world: &World, name: &str, key: &str) -> Value {
    world.server.objects[&format!("ConfigMap/{name}")]["data"][key].clone()
}

fn reason(verdict: &Verdict) -> (&str, &str) {
    match verdict {
        Verdict::Reconciling { reason, message } | Verdict::Stalled { reason, message } => (reason, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_required_object_is_awaited_and_the_others_go_on() {
    let mut world = World::new(reader(), &json!({"host": "a"}));
    let verdict = world.settle();
    assert_eq!(world.names(), ["a-plain"]);
    let (why, message) = reason(&verdict);
    assert_eq!(why, "RefMissing");
    assert!(message.contains("refs.tls") && message.contains("Secret n/a-tls does not exist"), "{message}");

    world.foreign.push(foreign("a-tls", json!({"crt": "one"})));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(text(&world, "a-reads", "crt"), "one");
    world.foreign[0] = foreign("a-tls", json!({"crt": "two"}));
    world.settle();
    assert_eq!(text(&world, "a-reads", "crt"), "two");

    // Gone is unknown, not empty: the child keeps what it has.
    world.foreign.clear();
    world.log.clear();
    let verdict = world.settle();
    let (why, message) = reason(&verdict);
    assert!(why == "RefMissing" && !message.contains("pruned"), "{message}");
    assert_eq!((world.log.len(), text(&world, "a-reads", "crt")), (0, json!("two")));

    // An instance that does not name the object does not need it.
    world.edit(json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(text(&world, "a-reads", "crt"), "none");
}

#[test]
fn an_optional_object_that_is_absent_is_undefined() {
    let mut world = World::new(reader(), &json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(text(&world, "a-reads", "extra"), "none");
    world.foreign.push(foreign("extra", json!({"x": "y"})));
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    assert_eq!(text(&world, "a-reads", "extra"), "y");
    world.foreign.clear();
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
}

#[test]
fn forbidden_ref_keeps_children_as_they_are() {
    let mut world = World::new(reader(), &json!({"host": "a"}));
    world.foreign = vec![foreign("a-tls", json!({"crt": "one"})), foreign("extra", json!({"x": "y"}))];
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    let before = world.objects.clone();
    world.lost.insert("Secret".into());
    world.log.clear();
    let verdict = world.settle();
    assert_eq!(reason(&verdict).0, "RefForbidden", "{verdict:?}");
    assert_eq!((world.objects.len(), world.log.len()), (before.len(), 0), "{:?}", world.log);
    // A status field keeps its value, what reads no ref is repaired.
    let status = world.decide().status.unwrap();
    let there = json!({"crt": "one"});
    assert_eq!(status_patch(&there, &status, "t").unwrap().get("crt"), None);
    world.remove("ConfigMap/a-plain");
    world.settle();
    assert_eq!(world.log, ["Create plain"]);
}

#[test]
fn a_missing_ref_is_reported_beside_one_whose_id_begins_with_its_id() {
    let reads = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {crt: \"{{ refs['tls-ca'].data.crt | sha256 }}\"}\n";
    let package = package(
        "refs:\n  - {id: tls, apiVersion: v1, kind: Secret, name: tls, affectsReady: true}\n  - {id: tls-ca, apiVersion: v1, kind: Secret, name: ca}\nchildren:\n  - {id: a, template: templates/a.yaml}\nstatus:\n  crt: refs.tls.data.crt | sha256\n",
        &[("a", reads.into())],
    );
    let mut world = World::new(package, &json!({}));
    let verdict = world.settle();
    let (why, message) = reason(&verdict);
    assert_eq!(why, "RefMissing");
    assert!(message.contains("Secret n/ca does not exist"), "{message}");
    assert!(message.contains("refs.tls: Secret n/tls does not exist"), "{message}");
}

#[test]
fn an_empty_key_is_named_with_its_item() {
    let package = package(
        "children:\n  - {id: a, template: templates/a.yaml, forEach: {in: \"['x', spec.text]\", as: i}}\n",
        &[("a", config("{{ name }}-{{ i }}"))],
    );
    let mut world = World::new(package, &json!({"text": ""}));
    let verdict = world.settle();
    let (why, message) = reason(&verdict);
    assert_eq!(why, "InvalidChild");
    assert_eq!(
        message,
        "a: item 1 of forEach of a: its key is the empty string; set `key` to a unique key per item"
    );
}

#[test]
fn an_invalid_ref_name_is_reported_and_not_read() {
    // A ref that only the status reads does not affect Ready, but a mistake in it does.
    let readers = [", when: refs.tls.data.x}\n", "}\nstatus:\n  x: refs.tls.metadata.name\n"];
    let hosts = ["a,metadata.namespace=kube-system", "../x", "a/b", "", "a b"];
    for (host, reader) in hosts.iter().flat_map(|host| readers.iter().map(move |reader| (host, reader))) {
        let yaml = format!(
            "refs:\n  - {{id: tls, apiVersion: v1, kind: Secret, name: \"{{{{ spec.host }}}}\"}}\nchildren:\n  - {{id: a, template: templates/a.yaml{reader}"
        );
        let mut world = World::new(package(&yaml, &[("a", config("{{ name }}"))]), &json!({"host": host}));
        let verdict = world.settle();
        assert!(matches!(&verdict, Verdict::Stalled { reason, .. } if reason == "InvalidRef"), "{verdict:?}");
        assert_eq!(world.decide().needs.watches, [], "{host}");
    }
}

const NAMED_REF: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-a\"}\ndata: {crt: \"{{ refs.tls.data.crt }}\"}\n";

#[test]
fn a_name_that_a_status_does_not_say_yet_is_awaited() {
    let package = package(
        "refs:\n  - {id: svc, apiVersion: v1, kind: Service, name: outer}\n  \
         - {id: tls, apiVersion: v1, kind: Secret, name: \"{{ refs.svc.status.loadBalancer.ingress[0].hostname }}\"}\n\
         children:\n  - {id: a, template: templates/a.yaml, exposesSecretData: true}\n",
        &[("a", NAMED_REF.into())],
    );
    let mut world = World::new(package, &json!({}));
    let service = |status: Value| {
        referred(json!({"metadata": {"name": "outer"}, "status": {"loadBalancer": status}}), true)
    };
    world.foreign = vec![service(json!({})), foreign("cert", json!({"crt": "one"}))];
    let verdict = world.settle();
    assert!(matches!(verdict, Verdict::Reconciling { .. }), "{verdict:?}");
    assert_eq!(reason(&verdict).0, "DependencyUnknown");
    world.foreign[0] = service(json!({"ingress": [{"hostname": "cert"}]}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(text(&world, "a-a", "crt"), "one");
}

#[test]
fn a_name_that_a_child_has_which_does_not_exist_yet_is_awaited() {
    let package = package(
        "refs:\n  - {id: tls, apiVersion: v1, kind: Secret, name: \"{{ children.c.data.text }}\"}\n\
         children:\n  - {id: b, template: templates/b.yaml}\n  - {id: c, template: templates/c.yaml, dependsOn: [b]}\n  \
         - {id: a, template: templates/a.yaml, exposesSecretData: true}\n",
        &[("a", NAMED_REF.into()), ("b", config("{{ name }}-b")), ("c", config("{{ name }}-c"))],
    );
    let mut world = World::new(package, &json!({"text": "cert"}));
    world.foreign = vec![foreign("cert", json!({"crt": "one"}))];
    world.quick = false;
    let verdict = world.settle();
    assert!(matches!(verdict, Verdict::Reconciling { .. }), "{verdict:?}");
    assert_eq!(world.names(), ["a-b"]);
    world.quick = true;
    world.ready("a-b");
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
}

#[test]
fn spec_cannot_move_a_ref_out_of_the_namespace() {
    let package = package(
        "refs:\n  - {id: own, apiVersion: v1, kind: Secret, name: \"{{ spec.host }}\", namespace: \"{{ namespace }}\"}\n  \
         - {id: ours, apiVersion: v1, kind: Secret, name: x, namespace: \"{{ operator.namespace }}\"}\n  \
         - {id: pods, apiVersion: v1, kind: Pod, selector: {app: \"{{ spec.host }}\"}, namespaces: [shared, \"{{ namespace }}\"]}\n\
         children:\n  - {id: a, template: templates/a.yaml, when: \"refs.own.data.x and refs.ours.data.x and refs.pods\"}\n",
        &[("a", config("{{ name }}"))],
    );
    let world = World::new(package, &json!({"host": "kube-system", "namespace": "kube-system"}));
    let needs = world.decide().needs;
    let mut snapshot = world.snapshot();
    assert_eq!(needs.unread(&snapshot).watches, needs.watches, "nothing is read yet");
    snapshot.look_up(&needs.watches[..3], |_| LookupResult::Pending);
    assert_eq!(
        needs.unread(&snapshot).watches,
        needs.watches[3..],
        "what is being read is not asked for again"
    );
    let wants = needs.watches;
    let places: Vec<_> =
        wants.iter().map(|want| (&*want.gvk.kind, want.namespace.as_deref().unwrap_or_default())).collect();
    assert_eq!(places, [("Pod", "n"), ("Pod", "shared"), ("Secret", "n"), ("Secret", "operetta-system")]);
    let secret = &wants[2].keep;
    assert_eq!((&*secret.paths, secret.content), (&[vec!["data".to_owned(), "x".to_owned()]][..], true));
}

#[test]
fn selector_ref_yields_a_list() {
    let package = package(
        "refs:\n  - {id: pods, apiVersion: v1, kind: Pod, selector: {app: web}}\nchildren:\n  - id: m\n    template: templates/m.yaml\n    forEach: {in: refs.pods, as: pod, key: pod.metadata.name}\n",
        &[("m", config("{{ name }}-{{ pod.metadata.name }}"))],
    );
    let mut world = World::new(package, &json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 0 });
    world.foreign = vec![foreign("x", json!({})), foreign("y", json!({}))];
    world.settle();
    assert_eq!(world.names(), ["a-x", "a-y"]);
    world.lost.insert("Pod".into());
    world.foreign.clear();
    world.settle();
    assert_eq!(world.names(), ["a-x", "a-y"], "unknown is not empty");
    world.lost.clear();
    world.settle();
    assert!(world.names().is_empty());
}

#[test]
fn children_of_a_group_are_ordered_key_by_key() {
    let package = package(
        "children:\n  - forEach: {in: range(spec.size), as: i, key: i}\n    when: i != 2\n    children:\n      \
         - {id: one, template: templates/one.yaml, when: i != 1}\n      - {id: two, template: templates/two.yaml, dependsOn: [one]}\n",
        &[("one", config("one-{{ i }}")), ("two", config("two-{{ i }}"))],
    );
    let mut world = World::new(package, &json!({"size": 4}));
    world.quick = false;
    world.settle();
    assert_eq!(world.names(), ["one-0", "one-3", "two-1"], "of key 1 there is no `one` to wait for");
    world.ready("one-3");
    world.settle();
    assert_eq!(world.names(), ["one-0", "one-3", "two-1", "two-3"]);
    world.edit(json!({"size": 1}));
    world.ready("one-0");
    world.settle();
    world.ready("two-0");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
}

#[test]
fn a_child_that_depends_on_its_own_content_is_held_back() {
    let package = package(
        "children:\n  - {id: a, template: templates/a.yaml}\n",
        &[(
            "a",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {count: \"{{ (self.data.count | default('0') | int) + 1 }}\"}\n"
                .into(),
        )],
    );
    let mut world = World::new(package, &json!({}));
    let mut verdict = None;
    for second in 0..60 {
        world.now = Duration::from_secs(second);
        let decision = world.decide();
        verdict = Some(decision.verdict);
        world.carry_out(decision.actions, decision.target_changes);
    }
    assert_eq!(world.log.len(), 1 + 10, "{verdict:?} {:?}", world.log);
    let verdict = verdict.unwrap();
    assert!(matches!(&verdict, Verdict::Stalled { reason, .. } if reason == "Oscillating"), "{verdict:?}");
    assert!(world.decide().again.is_some());
    world.edit(json!({"text": "new"}));
    assert_eq!(world.decide().actions.len(), 1, "somebody changes it");
}

#[test]
fn a_child_that_depends_on_its_own_absence_is_held_back() {
    let package = package(
        "refs:\n  - {id: own, apiVersion: v1, kind: ConfigMap, name: x, optional: true}\nchildren:\n  - {id: a, template: templates/a.yaml, when: refs.own is not defined}\n",
        &[("a", config("x"))],
    );
    let mut world = World::new(package, &json!({}));
    for second in 0..60 {
        world.now = Duration::from_secs(second);
        world.foreign = world.objects.values().map(|o| foreign(&o.object.name, json!({}))).collect();
        let decision = world.decide();
        world.carry_out(decision.actions, decision.target_changes);
    }
    let deleted = world.log.iter().filter(|line| line.starts_with("Delete")).count();
    assert_eq!(deleted, 10, "{:?}", world.log);
}

const KEYED: &str = "
refs:
  - {id: certs, apiVersion: v1, kind: Secret, forEach: {in: \"spec.host | default('') | split(',') | reject('empty') | list\", as: host}, name: \"{{ host }}-tls\", when: host != 'skip'}
children:
  - id: c
    template: templates/c.yaml
    exposesSecretData: true
    forEach: {in: \"spec.host | default('') | split(',') | reject('empty') | list\", as: host}
  - {id: plain, template: templates/plain.yaml}
status:
  known: refs.certs | known | keys | sort
";

fn keyed() -> Arc<Package> {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-{{ host }}\"}\n\
                    data: {crt: \"{{ refs.certs[host].data.crt | default('none') }}\"}\n";
    package(KEYED, &[("c", template.into()), ("plain", config("{{ name }}-plain"))])
}

#[test]
fn keys_of_a_ref_are_awaited_and_watched_separately() {
    let mut world = World::new(keyed(), &json!({"host": "x,y,skip"}));
    world.foreign.push(foreign("x-tls", json!({"crt": "one"})));
    let verdict = world.settle();
    assert_eq!(world.names(), ["a-plain", "a-skip", "a-x"], "{verdict:?}");
    let (why, message) = reason(&verdict);
    assert_eq!(why, "RefMissing");
    assert!(message.contains("refs.certs[\"y\"]") && message.contains("Secret n/y-tls"), "{message}");
    assert_eq!(text(&world, "a-skip", "crt"), "none");
    let wants = |world: &World| {
        let wants = world.decide().needs.watches;
        wants.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(wants(&world), ["Secret n/x-tls", "Secret n/y-tls"]);

    world.foreign.push(foreign("y-tls", json!({"crt": "two"})));
    assert_eq!(world.settle(), Verdict::Ready { children: 4 });
    assert_eq!(text(&world, "a-y", "crt"), "two");
    // If the object of one key is deleted, the other keys are left alone.
    world.foreign.remove(0);
    world.log.clear();
    assert_eq!(reason(&world.settle()).0, "RefMissing");
    assert_eq!((world.log.len(), text(&world, "a-x", "crt")), (0, json!("one")));
    world.foreign[0] = foreign("y-tls", json!({"crt": "three"}));
    world.settle();
    assert_eq!(text(&world, "a-y", "crt"), "three");
    let status = status_patch(&json!({}), &world.decide().status.unwrap(), "t").unwrap();
    assert_eq!(status["known"], json!(["y"]));

    // Another list is another set of objects.
    world.edit(json!({"host": "y"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(wants(&world), ["Secret n/y-tls"]);
    world.edit(json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert!(wants(&world).is_empty());
}

#[test]
fn duplicate_and_invalid_keys_of_refs_are_reported() {
    for (hosts, wanted) in [
        ("x,x", "two items of forEach have the same key"),
        ("x,../y", "cannot be the name of a Secret: it must not contain"),
    ] {
        let mut world = World::new(keyed(), &json!({"host": hosts}));
        world.foreign.push(foreign("x-tls", json!({"crt": "one"})));
        let told = format!("{:?} {:?}", world.settle(), world.decide().status);
        assert!(told.contains(wanted), "{told}");
        assert!(world.decide().needs.watches.iter().all(|want| !want.to_string().contains("..")));
    }
}
