//! Lookups of paths in schemas.

use serde_json::{Value, json};

use super::super::{Additions, Lookup, augment, lookup};
use super::{read, root};

#[test]
fn paths_are_looked_up_in_schemas() {
    let etcd = read("etcdcluster");
    let web = read("webapp");
    let of = |crd: &Value, path: &str| {
        let path: Vec<&str> = path.split('.').collect();
        match lookup(root(crd), &path) {
            Lookup::Known(schema) => schema["type"].as_str().unwrap_or("any").to_owned(),
            Lookup::Unknown { parent, candidates } => format!("{parent}: {}", candidates.join(" ")),
            Lookup::Open => "open".into(),
        }
    };
    let cases = [
        (&etcd, "spec", "object"),
        (&etcd, "spec.size", "integer"),
        (&etcd, "spec.sise", "spec: TLS maintenance paused pod repository size version"),
        (&etcd, "spec.size.x", "spec.size: "),
        (&etcd, "spec.TLS.static.member.peerSecret", "string"),
        (&etcd, "spec.TLS.static.members", "spec.TLS.static: member operatorSecret"),
        (&etcd, "spec.pod.persistentVolumeClaimSpec", "object"),
        (&etcd, "spec.pod.anything.below", "open"),
        (&etcd, "spec.*", "open"),
        (&etcd, "metadata.name", "open"),
        (&etcd, "apiVersion", "open"),
        (&etcd, "status.size", ": spec"),
        (&web, "spec.config.any-key", "string"),
        (&web, "spec.config.*", "string"),
        (&web, "spec.env", "array"),
        (&web, "spec.env.0", "object"),
        (&web, "spec.env.*.name", "open"),
        (&web, "spec.env.name", "spec.env: "),
        (&web, "spec.minAvailable", "any"),
        (&web, "spec.minAvailable.x", "spec.minAvailable: "),
        (&web, "spec.autoscaling.mx", "spec.autoscaling: cpu max min"),
    ];
    for (crd, path, expected) in cases {
        assert_eq!(of(crd, path), expected, "{path}");
    }
    let empty = json!({"type": "object", "properties": {"spec": {"type": "object"}, "any": {"x-kubernetes-preserve-unknown-fields": true}}});
    assert_eq!(lookup(&empty, &["spec", "a"]), Lookup::Unknown { parent: "spec".into(), candidates: vec![] });
    assert_eq!(lookup(&empty, &["any", "a"]), Lookup::Open);
    assert_eq!(lookup(&json!({}), &["spec"]), Lookup::Open);
    assert_eq!(lookup(&empty, &[]), Lookup::Known(&empty));
    // The fields that Operetta adds are found, too.
    let crd = augment(&etcd, &Additions { status: vec!["members.ready".into()], has_plans: false });
    assert_eq!(of(&crd, "status.conditions.*.type"), "string");
    assert_eq!(of(&crd, "status.members.ready.0"), "open");
}
