//! Defaults and validation of values.

use operetta_kube_model::schema::apply_defaults;
use serde_json::{Value, json};

use super::super::*;
use super::{read, root};

#[test]
fn defaults_of_a_real_crd_are_applied() {
    let mut cluster = json!({"spec": {"size": 3, "version": "3.2.13"}});
    apply_defaults(root(&read("etcdcluster")), &mut cluster);
    assert_eq!(
        cluster["spec"],
        json!({"size": 3, "version": "3.2.13", "repository": "quay.io/coreos/etcd", "paused": false})
    );
}

#[test]
fn violations_are_reported_with_their_paths() {
    let port = json!({"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}, "protocol": {"type": "string"}}});
    let cases: Vec<(Value, Value, &[&str])> = vec![
        (json!({"type": "string"}), json!("x"), &[]),
        (json!({"type": "string"}), json!(1), &["spec must be a string, is a number"]),
        (json!({"type": "integer"}), json!(1.5), &["spec must be an integer, is a number with a fraction"]),
        (json!({"type": "integer"}), json!(1.0), &[]),
        (json!({"type": "number"}), json!(1), &[]),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!({}),
            &["spec must be a list, is an object"],
        ),
        (json!({"type": "object"}), json!([]), &["spec must be an object, is a list"]),
        (json!({"type": "boolean"}), json!("true"), &["spec must be a boolean, is a string"]),
        (json!({"type": "string"}), json!(null), &["spec must not be null"]),
        (json!({"type": "string", "nullable": true, "enum": ["a", null]}), json!(null), &[]),
        (
            json!({"type": "string", "nullable": true, "enum": ["a"]}),
            json!(null),
            &["spec must be one of: a"],
        ),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), json!(null), &[]),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%"), &[]),
        (json!({"x-kubernetes-int-or-string": true}), json!(1), &[]),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            &["spec must be an integer or a string, is a boolean"],
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "pattern": "^[0-9]+%$"}),
            json!("half"),
            &["spec must match the pattern ^[0-9]+%$"],
        ),
        (json!({"type": "string", "enum": ["a", "b"]}), json!("c"), &["spec must be one of: a, b"]),
        (json!({"type": "integer", "minimum": 1, "maximum": 9}), json!(0), &["spec must be at least 1"]),
        (json!({"type": "integer", "minimum": 1, "maximum": 9}), json!(10), &["spec must be at most 9"]),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
            json!(1),
            &["spec must be greater than 1"],
        ),
        (
            json!({"type": "number", "maximum": 1, "exclusiveMaximum": true}),
            json!(1),
            &["spec must be less than 1"],
        ),
        (json!({"type": "integer", "multipleOf": 5}), json!(12), &["spec must be a multiple of 5"]),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3), &[]),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_i64),
            &["spec is out of the range of its integer format"],
        ),
        (
            json!({"type": "integer", "format": "int64"}),
            json!(u64::MAX),
            &["spec must be an integer, is a number too large for an integer"],
        ),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            json!("é"),
            &["spec must have at least 2 characters, has 1"],
        ),
        (
            json!({"type": "string", "maxLength": 3}),
            json!("éééé"),
            &["spec must have at most 3 characters, has 4"],
        ),
        (json!({"type": "string", "pattern": r"^\d+\.\d+$"}), json!("3.5"), &[]),
        (json!({"type": "string", "pattern": r"^\d+$"}), json!("٣"), &[r"spec must match the pattern ^\d+$"]),
        (json!({"type": "string", "pattern": "(?!x)"}), json!("anything"), &[]),
        (json!({"type": "string", "format": "date-time"}), json!("2026-01-31T12:00:00.5+01:00"), &[]),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("yesterday"),
            &["spec must be a time such as 2026-01-31T12:00:00Z"],
        ),
        (
            json!({"type": "string", "format": "date"}),
            json!("2026-13-01"),
            &["spec must be a date such as 2026-01-31"],
        ),
        (json!({"type": "string", "format": "ipv4"}), json!("1.2.3"), &["spec must be an IPv4 address"]),
        (json!({"type": "string", "format": "unknown"}), json!("x"), &[]),
        (
            json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1}),
            json!([1, "x"]),
            &["spec must have at most 1 items, has 2", "spec[1] must be an integer, is a string"],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
            json!(["a", "b", "a"]),
            &["spec[2] has the same value as item 0"],
        ),
        (
            json!({"type": "array", "items": port, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"]}),
            json!([{"port": 1}, {"port": 1, "protocol": "UDP"}, {"port": 1}]),
            &["spec[2] has the same port, protocol as item 0"],
        ),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}),
            json!({}),
            &["spec.a is required"],
        ),
        (
            json!({"type": "object", "properties": {"size": {"type": "integer"}}}),
            json!({"sise": 3, "other": 1}),
            &["spec.other is not in the schema", "spec.sise is not in the schema; did you mean `size`?"],
        ),
        (json!({"type": "object"}), json!({"a": 1}), &["spec.a is not in the schema"]),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"a.b/c": 1}),
            &["spec[\"a.b/c\"] must be a string, is a number"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 1}),
            json!({"a": "1", "b": "2"}),
            &["spec must have at most 1 fields, has 2"],
        ),
        (
            json!({"type": "object", "additionalProperties": true}),
            json!({"a": 1, "b": [{"c": 2}]}),
            &[
                "spec.b[0].c is dropped by the server: `additionalProperties: true` keeps no fields of objects",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "object", "properties": {}}}}),
            json!({"x": 1, "a": {"y": 1}}),
            &["spec.a.y is not in the schema"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({}),
            &["spec spec.a is required, or spec.b is required"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"a": "", "b": ""}),
            &["spec fits 2 of the forms that exclude each other (oneOf)"],
        ),
        (
            json!({"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 5}]}),
            json!(3),
            &["spec must be at most 1, or must be at least 5"],
        ),
        (
            json!({"type": "integer", "allOf": [{"maximum": 1}, {"minimum": 5}]}),
            json!(3),
            &["spec must be at most 1", "spec must be at least 5"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}}, "allOf": [{"properties": {"a": {"properties": {"b": {"maximum": 1}}}}}]}),
            json!({"a": {"b": 2}}),
            &["spec.a.b must be at most 1"],
        ),
        (
            json!({"type": "string", "not": {"enum": ["x"]}}),
            json!("x"),
            &["spec has a form that the schema excludes (not)"],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"kind": "A", "metadata": {"any": 1}}),
            &["spec.apiVersion is required: this field holds a whole Kubernetes object"],
        ),
    ];
    for (schema, value, expected) in cases {
        let whole = json!({"type": "object", "properties": {"spec": schema}});
        let object = json!({"apiVersion": "a/v1", "kind": "B", "metadata": {"name": "c", "labels": {}}, "spec": value});
        let got: Vec<String> = validate(&whole, &object)
            .into_iter()
            .map(|fault| format!("{} {}", fault.path, fault.message))
            .collect();
        assert_eq!(got, expected, "{schema} over {value}");
    }
    let name = json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}}});
    let got = validate(&name, &json!({"metadata": {"name": "four", "labels": {}}}));
    assert_eq!(
        got,
        [Violation {
            path: "metadata.name".into(),
            message: "must have at most 3 characters, has 4".into(),
            is_loss: false
        }]
    );
}

#[test]
fn messages_contain_no_values() {
    let canary = "hunter2";
    let schemas = [
        json!({"type": "integer"}),
        json!({"type": "string", "enum": ["a"]}),
        json!({"type": "string", "pattern": "^$"}),
        json!({"type": "string", "maxLength": 1}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "string", "not": {"minLength": 1}}),
        json!({"type": "string", "anyOf": [{"maxLength": 1}, {"enum": ["b"]}]}),
    ];
    for schema in schemas {
        let schema = json!({"type": "object", "properties": {"a": schema}});
        for fault in validate(&schema, &json!({"a": canary})) {
            assert!(!fault.message.contains(canary), "{fault:?}");
        }
    }
}
