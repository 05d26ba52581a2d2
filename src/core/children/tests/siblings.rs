//! Commands in children of other instances of the package.

use super::*;
use crate::children::model::Sibling;
use crate::test_crd::open_crd;

const EXEC: &str = "exec: {of: base, child: 'm[0]', command: [look]}";
const HTTP: &str = "http: {of: base, child: 'm[0]', port: 8008, path: '/x/{{ name ~ \"/\" }}?a={{ spec.base }}', scheme: https, host: s.example}";

/// A base with members, and a guest that looks into the first member of the base that it names.
fn package_of_two(call: &str) -> Arc<Package> {
    let operator = format!(
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {{name: p}}
spec:
  version: 0.1.0
  resources:
    - crd: crds/base.yaml
      children:
        - {{id: m, template: templates/m.yaml, forEach: {{in: range(2), as: i, key: i}}}}
    - crd: crds/guest.yaml
      refs:
        - {{id: base, apiVersion: example.org/v1, kind: Base, name: '{{{{ spec.base }}}}', optional: true}}
        - {{id: seen, {call}}}
      children: [{{id: c, template: templates/c.yaml}}]
"
    );
    let member = "apiVersion: v1\nkind: Pod\nmetadata: {name: \"{{ name }}-{{ i }}\"}\nspec: {containers: [{name: c, image: i}]}\n";
    let config =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: \"{{ refs.seen | to_json }}\"}\n";
    let files = [
        ("operator.yaml", operator.as_str()),
        ("crds/base.yaml", &open_crd("example.org", "bases", "Base")),
        ("crds/guest.yaml", &open_crd("example.org", "guests", "Guest")),
        ("templates/m.yaml", member),
        ("templates/c.yaml", config),
    ];
    match compile(&Files::from_texts("p", files)) {
        Ok((package, _)) => Arc::new(package),
        Err(errors) => panic!("{}", crate::diag::render(&errors, false)),
    }
}

/// The base `a` as it has been created.
fn base(package: &Arc<Package>) -> World {
    let mut world = World::new(Arc::clone(package), &json!({}));
    world.instance["kind"] = "Base".into();
    world.settle();
    world
}

/// What the manager knows of the base.
fn sibling(world: &World) -> Sibling {
    let places = world.objects.values().map(|object| {
        let item = ItemId::new(&object.child, object.key.as_deref());
        (item, Arc::new(object.clone()))
    });
    let first = world.objects.values().next().expect("a member");
    let places = Some(places.collect());
    Sibling { uid: "uid-1".into(), namespace: Some("n".into()), claim: first.claim, places }
}

/// The pod that the guest looks into, or what it says.
fn looked_into(package: &Arc<Package>, has_base: bool, siblings: Option<Vec<Sibling>>) -> String {
    let instance = json!({"apiVersion": "example.org/v1", "kind": "Guest", "spec": {"base": "a"},
        "metadata": {"name": "g", "namespace": "n", "uid": "uid-2", "generation": 1, "resourceVersion": "1"}});
    let active = ActivePackage::new(package, 1).unwrap();
    let mut snapshot = Snapshot::new(active, instance, |_| true);
    snapshot.siblings = siblings;
    loop {
        let decision = decide(&snapshot, &ReconcileState::default(), Duration::ZERO);
        let base = referred(json!({"metadata": {"name": "a", "uid": "uid-1"}}), true);
        let found: Vec<_> = has_base.then_some(base).into_iter().collect();
        if snapshot.look_up(&decision.needs.watches, |_| LookupResult::Known(found.clone())) {
            continue;
        }
        return match decision.needs.polls.first().map(|poll| &poll.request) {
            Some(PollRequest::Http(http)) => {
                let pod = http.pod.as_ref().unwrap();
                format!("{}/{} {} {}", pod.namespace, pod.name, pod.uid, http.url)
            }
            Some(PollRequest::Exec(exec)) => format!("{}/{} {}", exec.namespace, exec.pod, exec.uid),
            _ => format!("{:?}", decision.verdict),
        };
    }
}

#[test]
fn commands_run_in_the_proven_child_of_another_instance() {
    let package = package_of_two(EXEC);
    let base = base(&package);
    let uid = base.objects["Pod/a-0"].uid.clone();
    let found = looked_into(&package, true, Some(vec![sibling(&base)]));
    assert_eq!(found, format!("n/a-0 {uid}"));
    let found = looked_into(&package_of_two(HTTP), true, Some(vec![sibling(&base)]));
    assert_eq!(found, format!("n/a-0 {uid} https://s.example:8008/x/g%2F?a=a"));
}

/// Makes a child one that only looks like it.
type Forge = fn(&mut Observed);

#[test]
fn forged_pods_are_no_children() {
    let package = package_of_two(EXEC);
    let base = base(&package);
    let forgeries: [(&str, Forge); 6] = [
        ("it has the labels, and others have applied it", |pod| pod.owned = None),
        ("it is of another instance", |pod| pod.instance_uid = "uid-9".into()),
        ("it names another instance", |pod| pod.claim = [0; 16]),
        ("another package has applied it", |pod| pod.package = "q".into()),
        ("its owner is another one", |pod| pod.owner_reference = false),
        ("it is being deleted", |pod| pod.terminating = true),
    ];
    for (what, forge) in forgeries {
        let mut sibling = sibling(&base);
        for (_, object) in sibling.places.iter_mut().flatten() {
            forge(Arc::make_mut(object));
        }
        let found = looked_into(&package, true, Some(vec![sibling]));
        assert!(found.contains("m[0] of refs.base does not exist"), "{what}: {found}");
    }
}

#[test]
fn unknown_instances_are_waited_for() {
    let package = package_of_two(EXEC);
    let base = base(&package);
    let said = |has_base: bool, siblings: Option<Vec<Sibling>>, wanted: &str| {
        let found = looked_into(&package, has_base, siblings);
        assert!(found.contains(wanted), "{found}");
    };
    said(false, Some(Vec::new()), "refs.base does not exist");
    said(true, Some(Vec::new()), "the children of refs.base are not known yet");
    let undecided = Sibling { places: None, ..sibling(&base) };
    said(true, Some(vec![undecided]), "the children of refs.base are not known yet");
    let empty = Sibling { places: Some(Vec::new()), ..sibling(&base) };
    said(true, Some(vec![empty]), "m[0] of refs.base does not exist");
    let elsewhere = Sibling { namespace: Some("other".into()), ..sibling(&base) };
    said(true, Some(vec![elsewhere]), "in another namespace");
    said(true, None, "a preview makes no observations");
}
