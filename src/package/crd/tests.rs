//! Tests as tables, over the CRDs of real packages and over small schemas. This file contains the CRDs.

mod augment;
mod check;
mod kind;
mod lookup;
mod values;

use serde_json::{Value, json};

use super::{kind, schema_of};

const CRDS: [(&str, &str); 6] = [
    ("flightticket", include_str!("testdata/flightticket.yaml")),
    ("etcdcluster", include_str!("testdata/etcdcluster.yaml")),
    ("etcdbackup", include_str!("testdata/etcdbackup.yaml")),
    ("etcdrestore", include_str!("testdata/etcdrestore.yaml")),
    ("postgrescluster", include_str!("testdata/postgrescluster.yaml")),
    ("webapp", include_str!("testdata/webapp.yaml")),
];

fn read(name: &str) -> Value {
    let (_, text) = CRDS.iter().find(|(known, _)| *known == name).expect(name);
    crate::yaml::from_str(text).expect(name)
}

fn root(crd: &Value) -> &Value {
    schema_of(crd, &kind(crd).expect("kind").version).expect("schema")
}

/// A CRD with one version of this schema.
fn with_schema(schema: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ws.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced", "names": {"kind": "W", "plural": "ws"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// A CRD in which one value is changed; null removes it.
fn changed(pointer: &str, value: Value) -> Value {
    let mut crd = with_schema(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}),
    );
    set(&mut crd, pointer, value);
    crd
}

fn set(object: &mut Value, pointer: &str, value: Value) {
    let (parent, last) = pointer.rsplit_once('/').expect("pointer");
    let parent = object.pointer_mut(parent).expect(pointer);
    match (parent, value) {
        (Value::Object(map), Value::Null) => {
            map.remove(last);
        }
        (parent, value) => parent[last] = value,
    }
}
