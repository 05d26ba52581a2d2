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
