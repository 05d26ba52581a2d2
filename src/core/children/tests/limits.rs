//! `maxUnavailable` that is computed.

use super::*;

#[test]
fn an_invalid_max_unavailable_updates_nothing_and_is_reported() {
    let mut world = World::settled(
        members("    maxUnavailable: \"{{ spec.host }}\"\n"),
        &json!({"size": 3, "host": "2"}),
    );
    for (host, what) in [
        (json!("many"), "InvalidMaxUnavailable"),
        (json!("0"), "InvalidMaxUnavailable"),
        (json!("101%"), "InvalidMaxUnavailable"),
        (json!(""), "InvalidMaxUnavailable"),
        (Value::Null, "InvalidMaxUnavailable"),
        (Value::Bool(true), "RenderFailed"),
    ] {
        let spec =
            if host == true { json!({"size": 4}) } else { json!({"size": 4, "host": host, "text": "new"}) };
        world.edit(spec);
        let verdict = world.settle();
        assert!(
            matches!(&verdict, Verdict::Stalled { reason, message } if reason == what && message.contains("maxUnavailable of m")),
            "{host}: {verdict:?}"
        );
        assert!(!world.log.iter().any(|line| line.starts_with("Update")), "{host}: {:?}", world.log);
    }
    assert_eq!(world.names(), ["a-0", "a-1", "a-2", "a-3"], "what is missing is made all the same");
    for host in ["1", "50%", "{{ omit }}"] {
        world.edit(json!({"size": 4, "host": host, "text": host}));
        if host.starts_with('{') {
            world.package = members("    maxUnavailable: \"{{ omit }}\"\n");
        }
        assert_eq!(world.settle(), Verdict::Ready { children: 4 }, "{host}");
    }
}

/// Members of kind Pod, one of which is not ready.
fn with_an_unavailable_pod(spec: &Value) -> World {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"{{ name }}-{{ i }}\"\n  labels: {text: \"{{ spec.text }}\"}\n\
        spec:\n  containers: [{name: c, image: \"{{ spec.host }}\"}]\n";
    let children = "children:\n  - id: m\n    template: templates/m.yaml\n    forEach: {in: range(spec.size), as: i, key: i}\n    \
        maxUnavailable: 1\n    readyWhen: self.status.phase == 'Running'\n";
    let mut world = World::new(package(children, &[("m", pod.to_owned())]), spec);
    world.settle();
    for (number, phase) in [(0, "Running"), (1, "Running"), (2, "Pending")] {
        world.write(&format!("Pod/a-{number}"), |object| object["status"] = json!({"phase": phase}));
    }
    world.settle();
    world.log.clear();
    world
}

#[test]
fn metadata_change_is_not_limited_by_max_unavailable() {
    let mut world = with_an_unavailable_pod(&json!({"size": 3, "text": "x", "host": "e:1"}));
    world.edit(json!({"size": 3, "text": "y", "host": "e:1"}));
    world.settle();
    let updates = world.log.iter().filter(|line| line.starts_with("Update")).count();
    assert_eq!(updates, 3, "{:?}", world.log);
}

#[test]
fn member_that_blocks_an_update_is_named() {
    let mut world = with_an_unavailable_pod(&json!({"size": 3, "text": "x", "host": "e:1"}));
    world.edit(json!({"size": 3, "text": "x", "host": "e:2"}));
    world.settle();
    let findings: Vec<String> = world.decide().findings.iter().map(ToString::to_string).collect();
    let wanted = "m[0] waits for m[2], which is not available (";
    assert!(findings.iter().any(|finding| finding.starts_with(wanted)), "{findings:?}");
    let updates = world.log.iter().filter(|line| line.starts_with("Update")).count();
    assert_eq!(updates, 1, "only the one that is unavailable anyway: {:?}", world.log);
}
