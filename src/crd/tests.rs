//! Tables, over the CRDs of the packages that people have and over small schemas.

mod values;

use serde_json::{Value, json};

use super::*;

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

/// The same with one thing changed; a null removes it.
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

#[test]
fn kinds() {
    let of = |name: &str| kind(&read(name)).expect(name);
    let ticket = of("flightticket");
    assert_eq!(
        ticket,
        ApiKind {
            group: "flights.com".into(),
            version: "v1".into(),
            kind: "FlightTicket".into(),
            plural: "flighttickets".into(),
            namespaced: true,
        }
    );
    assert_eq!(ticket.api_version(), "flights.com/v1");
    assert_eq!(of("etcdcluster").version, "v1beta2");
    let versions = |list: Value| kind(&changed("/spec/versions", list)).map(|kind| kind.version);
    let version =
        |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage});
    assert_eq!(
        versions(json!([version("v1", true, false), version("v2", true, true)])).as_deref(),
        Some("v2")
    );
    assert_eq!(
        versions(json!([version("v1", true, false), version("v2", false, true)])).as_deref(),
        Some("v1")
    );
    assert_eq!(versions(json!([version("v1", false, true)])), None);
    assert!(!kind(&changed("/spec/scope", json!("Cluster"))).expect("kind").namespaced);
    for broken in [
        json!(null),
        json!({"spec": []}),
        changed("/spec/names/plural", json!("")),
        changed("/spec/group", json!(1)),
    ] {
        assert_eq!(kind(&broken), None);
    }
}

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
fn check_finds() {
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
    // Good: what int-or-string may say, a map of anything, protected groups that are approved.
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
fn augmenting_keeps_real_crds_valid() {
    let additions = Additions {
        status: vec!["phase".into(), "members.ready".into(), "members.unready".into()],
        has_plans: true,
    };
    for (name, _) in CRDS {
        let crd = read(name);
        let once = augment(&crd, &additions);
        assert_eq!(augment(&once, &additions), once, "{name}: idempotent");
        let (mut names, own) = (once["spec"]["names"].clone(), &crd["spec"]["names"]["categories"]);
        let categories = names.as_object_mut().unwrap().remove("categories").unwrap();
        assert!(own.as_array().is_none_or(|own| categories.as_array().unwrap().starts_with(own)), "{name}");
        assert_eq!(categories.as_array().unwrap().last().unwrap(), "operetta", "{name}");
        names["categories"] = own.clone();
        let mut expected = crd["spec"]["names"].clone();
        expected["categories"] = own.clone();
        assert_eq!(names, expected, "{name}: the other names are the author's");
        assert_eq!(once["spec"]["versions"][0]["subresources"]["status"], json!({}), "{name}");
        assert_eq!(
            once["spec"]["versions"][0]["subresources"]["scale"],
            crd["spec"]["versions"][0]["subresources"]["scale"]
        );
        assert_eq!(
            root(&once)["properties"]["spec"],
            root(&crd)["properties"]["spec"],
            "{name}: the spec is the author's"
        );
        let status = json!({
            "apiVersion": "a/v1", "kind": "B", "metadata": {"name": "x"},
            "spec": {"clusterName": "c", "etcdCluster": {"name": "c"}, "storage": {"size": "1Gi"}, "image": "i", "size": 3},
            "status": {
                "observedGeneration": 3, "revision": "abc", "phase": {"any": ["thing"]},
                "members": {"ready": ["a"], "unready": []},
                "conditions": [{"type": "Ready", "status": "True", "reason": "A", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3}],
                "plan": {"name": "deploy", "phase": "Running"}, "history": [{"plan": "deploy"}],
            },
        });
        let faults: Vec<_> = validate(root(&once), &status)
            .into_iter()
            .filter(|fault| fault.path.starts_with("status"))
            .collect();
        assert_eq!(faults, [], "{name}");
    }
}

fn columns(crd: &Value) -> Vec<&str> {
    let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().expect("columns");
    columns.iter().map(|column| column["name"].as_str().expect("name")).collect()
}

#[test]
fn printer_columns() {
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    let ready = r#".status.conditions[?(@.type=="Ready")].status"#;
    let age = ".metadata.creationTimestamp";
    let cases = [
        (json!(null), false, vec!["Ready", "Age"]),
        (json!(null), true, vec!["Ready", "Plan", "Age"]),
        (json!([column("Size", ".spec.size")]), true, vec!["Size", "Ready", "Plan", "Age"]),
        // A Ready that counts members: ours needs another name.
        (json!([column("Ready", ".status.size")]), false, vec!["Ready", "AllReady", "Age"]),
        (
            json!([column("READY", ".status.size"), column("AllReady", ".x")]),
            false,
            vec!["READY", "AllReady", "OperettaReady", "Age"],
        ),
        // The author's own columns for what ours would show.
        (json!([column("OK", ready)]), false, vec!["OK", "Age"]),
        (
            json!([column("OK", ".status.conditions[?( @.type == 'Ready' )].reason")]),
            false,
            vec!["OK", "Age"],
        ),
        (json!([column("Age", age)]), true, vec!["Ready", "Plan", "Age"]),
        (json!([column("Since", age), column("Size", ".spec.size")]), false, vec!["Since", "Size", "Ready"]),
        (json!([column("plan", ".spec.plan")]), true, vec!["plan", "Ready", "Age"]),
    ];
    for (own, has_plans, expected) in cases {
        let crd = changed("/spec/versions/0/additionalPrinterColumns", own.clone());
        let additions = Additions { status: vec![], has_plans };
        let once = augment(&crd, &additions);
        assert_eq!(columns(&once), expected, "{own}");
        assert_eq!(augment(&once, &additions), once, "{own}");
        let planned = augment(&once, &Additions { has_plans: true, ..additions });
        if expected.last() == Some(&"Age") {
            assert_eq!(columns(&planned).last(), Some(&"Age"), "Age stays last");
        }
    }
    assert_eq!(
        columns(&augment(&read("etcdcluster"), &Additions::default())),
        ["Size", "Ready", "Version", "AllReady", "Age"]
    );
}

#[test]
fn status_schemas() {
    let augmented = |schema: Value, status: &[&str]| {
        let additions =
            Additions { status: status.iter().map(ToString::to_string).collect(), has_plans: false };
        let once = augment(&with_schema(&schema), &additions);
        assert_eq!(augment(&once, &additions), once, "{schema}");
        root(&once).clone()
    };
    let status = |schema: &Value| schema["properties"]["status"].clone();
    let keep = json!({"x-kubernetes-preserve-unknown-fields": true});

    // Nothing at all, and a root that is bare.
    for bare in [json!({}), json!({"type": "object"}), json!({"type": "object", "properties": null})] {
        let schema = augmented(bare, &["a"]);
        assert_eq!(schema["type"], "object");
        assert_eq!(status(&schema)["properties"]["a"], keep);
        assert_eq!(
            status(&schema)["properties"]["conditions"]["x-kubernetes-list-map-keys"],
            json!(["type"])
        );
    }
    // A root that keeps everything: so does its status.
    let schema = augmented(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), &["a"]);
    assert_eq!(status(&schema), json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));

    let of = |own: Value, names: &[&str]| {
        status(&augmented(json!({"type": "object", "properties": {"status": own}}), names))
    };
    // What the author says stays.
    let own = json!({"type": "object", "properties": {"conditions": {"type": "array", "items": {"type": "object", "properties": {"type": {"type": "string"}}}}, "a": {"type": "integer"}}});
    let got = of(own.clone(), &["a", "b"]);
    let known = &got["properties"]["conditions"]["items"]["properties"];
    assert_eq!(known["type"], json!({"type": "string"}));
    assert_eq!(got["properties"]["a"], json!({"type": "integer"}));
    assert_eq!(got["properties"]["b"], keep);
    // Our conditions fit among those that the author knows.
    let conditions = |items: Value| {
        let own = json!({"type": "array", "maxItems": 8, "items": items});
        let got = of(json!({"type": "object", "properties": {"conditions": own}}), &[]);
        let mut got = got["properties"]["conditions"].clone();
        assert_eq!(got["maxItems"], 8);
        got["items"].take()
    };
    let got = conditions(json!({
        "type": "object",
        "required": ["type", "severity"],
        "properties": {
            "type": {"type": "string", "enum": ["Up", "Down"], "maxLength": 99},
            "status": {"type": "string", "enum": ["True", "False"]},
            "message": {"type": "string", "maxLength": 32_768},
            "severity": {"type": "string"},
        },
    }));
    assert_eq!(got["required"], json!(["type"]));
    assert_eq!(got["properties"]["type"], json!({"type": "string", "maxLength": 99}));
    assert_eq!(got["properties"]["message"]["maxLength"], 32_768);
    assert_eq!(got["properties"]["severity"], json!({"type": "string"}));
    assert_eq!(got["properties"]["status"].get("enum"), None, "Unknown is among ours");
    for name in ["reason", "lastTransitionTime", "observedGeneration"] {
        assert!(got["properties"][name].is_object(), "{name}: {got}");
    }
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(conditions(open.clone()), open);
    let texts = json!({"type": "string"});
    assert_eq!(conditions(texts.clone()), texts);
    // What tells the items of a list apart has to be required.
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type", "severity"],
        "items": {"type": "object", "required": ["type", "severity", "area"], "properties": {"severity": {"type": "string"}}}});
    let got = of(json!({"type": "object", "properties": {"conditions": keyed}}), &[]);
    assert_eq!(got["properties"]["conditions"]["items"]["required"], json!(["type", "severity"]));
    // A status is written before all of it is known.
    let got = of(
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "object", "required": ["b", "c"], "properties": {"c": {"type": "string"}}}}}),
        &["a.b"],
    );
    assert_eq!(got.get("required"), None);
    assert_eq!(
        got["properties"]["a"],
        json!({"type": "object", "properties": {"b": keep, "c": {"type": "string"}}})
    );
    // A projected object whose fields nobody named would arrive empty.
    let got = of(json!({"type": "object", "properties": {"a": {"type": "object"}}}), &["a"]);
    assert_eq!(
        got["properties"]["a"],
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
    );
    // Maps and open objects take the field as they are; a scalar cannot hold one.
    for own in [
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        json!({"type": "string"}),
    ] {
        let got = of(json!({"type": "object", "properties": {"a": own}}), &["a.b"]);
        assert_eq!(got["properties"]["a"], own);
    }
    // Kept by the server, but emptied: named fields are not.
    let got = of(json!({"type": "object", "additionalProperties": true}), &["a"]);
    assert_eq!(got["properties"]["a"], keep);
    // A status that is no object is left alone; `check` says so.
    assert_eq!(of(json!({"type": "string"}), &["a"]), json!({"type": "string"}));

    let own = json!({"type": "object", "properties": {"status": {"type": "object", "properties": {"revision": {"type": "integer"}, "plan": {"type": "object"}, "history": {"x-kubernetes-preserve-unknown-fields": true}}}}});
    assert_eq!(taken(&with_schema(&own), "v1"), ["revision"]);
    for (name, _) in CRDS {
        assert_eq!(taken(&read(name), "v1"), Vec::<&str>::new());
    }
    // Broken CRDs pass through.
    for broken in [
        json!(null),
        json!({"spec": {"versions": [null, 1, {"schema": 1, "subresources": 2, "additionalPrinterColumns": 3}]}}),
    ] {
        augment(&broken, &Additions { status: vec!["a".into()], has_plans: true });
    }
}

#[test]
fn every_version_is_augmented() {
    let mut crd = with_schema(&json!({"type": "object"}));
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    crd["spec"]["versions"].as_array_mut().expect("versions").push(second);
    let got = augment(&crd, &Additions::default());
    for version in ["v1", "v2"] {
        assert!(
            schema_of(&got, version).expect("schema")["properties"]["status"]["properties"]["conditions"]
                .is_object()
        );
    }
}

#[test]
fn patterns_follow_go_syntax() {
    let cases = [
        (r"^[\d.]+$", "1.2", Some(true)),
        (r"^[\w-]+$", "a_b-c", Some(true)),
        (r"^\w+$", "é", Some(false)),
        (r"^\S+$", "a b", Some(false)),
        (r"^[^\s]+$", "a\tb", Some(false)),
        (r"^[[]$", "[", Some(true)),
        (r"^[]a]+$", "]a", Some(true)),
        (r"^[^]]+$", "]", Some(false)),
        (r"^[a&&b]+$", "&", Some(true)),
        (r"^[[:alpha:]_]+$", "a_", Some(true)),
        (r"^.{2}$", "éé", Some(true)),
        (r"\bfoo\b", "a foo b", Some(true)),
        (r"^\pL+$", "é", Some(true)),
        (r"(?i)^ABC$", "abc", Some(true)),
        (r"(?=x)", "x", None),
        (r"\Qx\E", "x", None),
        (r"x{1000}{1000}{1000}", "x", None),
        ("\\", "x", None),
    ];
    for (text, value, expected) in cases {
        assert_eq!(pattern::compile(text).map(|matcher| matcher.is_match(value)), expected, "{text}");
    }
}

#[test]
fn lookups() {
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
    // What we add is known, too.
    let crd = augment(&etcd, &Additions { status: vec!["members.ready".into()], has_plans: false });
    assert_eq!(of(&crd, "status.conditions.*.type"), "string");
    assert_eq!(of(&crd, "status.members.ready.0"), "open");
}

#[test]
fn a_crd_of_a_megabyte() {
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
