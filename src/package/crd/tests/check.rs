//! The errors that the check of a CRD finds, and the CRDs that it accepts.

use serde_json::{Value, json};

use super::super::{Additions, augment, check};
use super::{CRDS, changed, read, set, with_schema};

#[test]
fn check_accepts_what_the_server_accepts() {
    for (name, _) in CRDS {
        let crd = read(name);
        assert_eq!(check(&crd), [], "{name}");
        assert_eq!(
            check(&augment(&crd, &Additions { status: vec!["a.b".into()], has_plans: true })),
            [],
            "{name}, augmented"
        );
    }
}

#[test]
fn check_finds_errors_in_crds() {
    let root = "/spec/versions/0/schema/openAPIV3Schema";
    let spec = &format!("{root}/properties/spec");
    let a = &format!("{spec}/properties/a");
    let cases: Vec<(String, Value, &str, &str)> = vec![
        (
            "/apiVersion".into(),
            json!("apiextensions.k8s.io/v1beta1"),
            "apiVersion",
            "apiextensions.k8s.io/v1beta1 was removed in Kubernetes 1.22; convert it to apiextensions.k8s.io/v1: schema, subresources and columns are in each entry of spec.versions",
        ),
        ("/kind".into(), json!("Crd"), "kind", "`kind` must be CustomResourceDefinition"),
        ("/metadata".into(), Value::Null, "", "`metadata` is missing"),
        (
            "/metadata/name".into(),
            json!("w.example.org"),
            "metadata.name",
            "the name must be the plural and the group; the server accepts only ws.example.org",
        ),
        ("/spec".into(), Value::Null, "", "`spec` is missing"),
        (
            "/spec/group".into(),
            json!("org"),
            "spec.group",
            "`group` must be a domain with at least one dot; for example example.org",
        ),
        ("/spec/scope".into(), json!("namespaced"), "spec.scope", "`scope` must be Namespaced or Cluster"),
        (
            "/spec/version".into(),
            json!("v1"),
            "spec.version",
            "unknown key `version`; did you mean `versions`?",
        ),
        (
            "/spec/preserveUnknownFields".into(),
            json!(true),
            "spec.preserveUnknownFields",
            "`preserveUnknownFields` must be false; use `x-kubernetes-preserve-unknown-fields: true` in the schema instead",
        ),
        ("/spec/names/kind".into(), Value::Null, "spec.names", "`kind` is missing"),
        (
            "/spec/names/listKind".into(),
            json!("W"),
            "spec.names.listKind",
            "`listKind` must differ from `kind`",
        ),
        (
            "/spec/names/shortNames".into(),
            json!(["W"]),
            "spec.names.shortNames[0]",
            "must be letters in lower case, digits and dashes, starting with a letter",
        ),
        ("/spec/versions".into(), json!([]), "spec.versions", "`versions` must list at least one version"),
        (
            "/spec/versions/0/name".into(),
            json!("1"),
            "spec.versions[0].name",
            "must be a name such as v1 or v1beta1",
        ),
        (
            "/spec/versions/0/storage".into(),
            json!(false),
            "spec.versions",
            "exactly one version must have `storage: true`, 0 have",
        ),
        (
            "/spec/versions/0/served".into(),
            Value::Null,
            "spec.versions[0]",
            "`served` is missing; true or false",
        ),
        ("/spec/versions/0/schema".into(), Value::Null, "spec.versions[0]", "`schema` is missing"),
        (
            "/spec/versions/0/additionalPrinterColumns".into(),
            json!([{"name": "A", "type": "int", "jsonPath": ".spec.a"}]),
            "spec.versions[0].additionalPrinterColumns[0].type",
            "must be one of: boolean, date, integer, number, string",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns".into(),
            json!([{"name": "A", "type": "string", "jsonPath": "spec.a"}]),
            "spec.versions[0].additionalPrinterColumns[0].jsonPath",
            "must start with a dot; for example .spec.size",
        ),
        (
            "/spec/versions/0/subresources".into(),
            json!({"scale": {"specReplicasPath": ".status.a", "statusReplicasPath": ".status.a"}}),
            "spec.versions[0].subresources.scale.specReplicasPath",
            "must be a path under .spec",
        ),
        (format!("{root}/type"), json!("string"), "$.type", "must be object at the root"),
        (
            format!("{root}/oneOf"),
            json!([]),
            "$.oneOf",
            "`oneOf` is not allowed at the root of a schema with a status subresource, which Operetta needs; put it under properties.spec",
        ),
        (
            format!("{root}/properties/metadata"),
            json!({"type": "object", "properties": {"labels": {"type": "object"}}}),
            "$.properties.metadata",
            "is the same for all kinds and cannot be described here; keep only `type: object` and, if needed, the properties name and generateName",
        ),
        (
            format!("{root}/properties/status"),
            json!({"type": "string"}),
            "$.properties.status.type",
            "must be object: Operetta writes conditions there",
        ),
        (
            format!("{root}/properties/status"),
            json!({"type": "object", "properties": {"conditions": {"type": "object"}}}),
            "$.properties.status.properties.conditions.type",
            "must be array: Operetta writes `status.conditions`",
        ),
        (
            a.clone(),
            json!({}),
            "$.properties.spec.properties.a",
            "`type` is missing; or `x-kubernetes-preserve-unknown-fields: true`, or `x-kubernetes-int-or-string: true`",
        ),
        (
            a.clone(),
            json!({"type": "int"}),
            "$.properties.spec.properties.a.type",
            "must be one of: array, boolean, integer, number, object, string",
        ),
        (a.clone(), json!({"type": "array"}), "$.properties.spec.properties.a", "`items` is missing"),
        (a.clone(), json!("string"), "$.properties.spec.properties.a", "a schema must be a mapping"),
        (
            a.clone(),
            json!({"type": "string", "patern": "x"}),
            "$.properties.spec.properties.a.patern",
            "unknown key `patern`; did you mean `pattern`?",
        ),
        (
            a.clone(),
            json!({"$ref": "#/x", "type": "object"}),
            "$.properties.spec.properties.a[\"$ref\"]",
            "`$ref` is not allowed in a CRD; replace it by what it refers to",
        ),
        (
            a.clone(),
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            "$.properties.spec.properties.a",
            "`properties` and `additionalProperties` exclude each other",
        ),
        (
            a.clone(),
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            "$.properties.spec.properties.a.uniqueItems",
            "is not allowed; use `x-kubernetes-list-type: set`",
        ),
        (
            a.clone(),
            json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object", "properties": {"n": {"type": "string"}}}}),
            "$.properties.spec.properties.a",
            "a list of type map needs `x-kubernetes-list-map-keys`",
        ),
        (
            a.clone(),
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": {"type": "object", "properties": {"n": {"type": "string"}}}}),
            "$.properties.spec.properties.a.x-kubernetes-list-map-keys[0]",
            "a key must be required in the items, or have a default",
        ),
        (
            a.clone(),
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
            "$.properties.spec.properties.a.x-kubernetes-preserve-unknown-fields",
            "must be true, or omitted",
        ),
        (
            a.clone(),
            json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}),
            "$.properties.spec.properties.a",
            "an int-or-string has no fields to preserve",
        ),
        (
            a.clone(),
            json!({"type": "string", "anyOf": [{"type": "string"}]}),
            "$.properties.spec.properties.a.anyOf[0].type",
            "`type` is not allowed below allOf, anyOf, oneOf and not; move it to the schema around them",
        ),
        (
            a.clone(),
            json!({"type": "string", "pattern": "("}),
            "$.properties.spec.properties.a.pattern",
            "is not a regular expression that the server accepts: unclosed group",
        ),
        (
            a.clone(),
            json!({"type": "integer", "minimum": "1"}),
            "$.properties.spec.properties.a.minimum",
            "must be a number",
        ),
        (
            a.clone(),
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}),
            "$.properties.spec.properties.a.items",
            "items of a set must be scalars, or atomic; set `x-kubernetes-map-type: atomic` on them",
        ),
        (
            a.clone(),
            json!({"type": "object", "x-kubernetes-map-type": "sharp"}),
            "$.properties.spec.properties.a.x-kubernetes-map-type",
            "must be one of: atomic, granular",
        ),
        (
            a.clone(),
            json!({"type": "object", "x-kubernetes-embedded-resource": true}),
            "$.properties.spec.properties.a",
            "an embedded resource needs `properties`, or to preserve unknown fields; add `x-kubernetes-preserve-unknown-fields: true`",
        ),
        (
            format!("{root}/properties/kind"),
            json!({"type": "integer"}),
            "$.properties.kind",
            "must be of type string, without a default",
        ),
        (
            a.clone(),
            json!({"type": "integer", "default": "3"}),
            "$.properties.spec.properties.a.default",
            "does not fit its schema: must be an integer, is a string",
        ),
        (
            a.clone(),
            json!({"type": "object", "default": {"other": 1}, "properties": {"b": {"type": "string"}}}),
            "$.properties.spec.properties.a.default",
            "does not fit its schema at other: is not in the schema",
        ),
    ];
    for (pointer, value, path, said) in cases {
        let path = path.replacen("$.", "spec.versions[0].schema.openAPIV3Schema.", 1);
        let found: Vec<(String, String)> = check(&changed(&pointer, value.clone()))
            .into_iter()
            .map(|(path, message, help)| {
                (path, help.map_or(message.clone(), |help| format!("{message}; {help}")))
            })
            .collect();
        assert!(found.contains(&(path, said.to_owned())), "{pointer} = {value}: {found:#?}");
    }
    // Valid schemas: restrictions of int-or-string, a map of any values, a protected group with an approval.
    for (pointer, value) in [
        (
            a.clone(),
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ),
        (
            a.clone(),
            json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "x"}]}),
        ),
        (
            a.clone(),
            json!({"type": "object", "additionalProperties": true, "properties": {"b": {"type": "string"}}}),
        ),
        (
            a.clone(),
            json!({"type": "object", "default": {}, "properties": {"b": {"type": "string", "default": "x"}}}),
        ),
        (
            format!("{root}/properties/metadata"),
            json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}}}),
        ),
    ] {
        assert_eq!(check(&changed(&pointer, value.clone())), [], "{value}");
    }
    for (annotation, findings) in [(None, 1), (Some("unapproved, a test"), 0)] {
        let mut crd = changed("/spec/group", json!("apps.k8s.io"));
        set(&mut crd, "/metadata/name", json!("ws.apps.k8s.io"));
        if let Some(annotation) = annotation {
            crd["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": annotation});
        }
        assert_eq!(check(&crd).len(), findings, "{annotation:?}");
    }
    for nonsense in [
        json!(null),
        json!([]),
        json!({"spec": {"versions": [1, null, {"schema": {"openAPIV3Schema": []}}], "names": 3}}),
    ] {
        assert!(!check(&nonsense).is_empty());
    }
}

#[test]
fn large_crd_is_checked_and_augmented() {
    let field = json!({"type": "object", "description": "d".repeat(80), "properties": {"a": {"type": "string", "description": "d".repeat(80)}}});
    let fields: serde_json::Map<String, Value> =
        (0..4000).map(|n| (format!("field{n}"), field.clone())).collect();
    let crd = with_schema(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}),
    );
    assert!(crd.to_string().len() > 1_000_000);
    let got = augment(&crd, &Additions { status: vec!["a".into()], has_plans: true });
    assert_eq!(check(&got), []);
}
