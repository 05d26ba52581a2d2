//! The additions to a CRD: printer columns, the status, categories.

use serde_json::{Value, json};

use super::super::{Additions, augment, schema_of, taken, validate};
use super::{CRDS, changed, read, root, with_schema};

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
fn missing_printer_columns_are_added() {
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    let ready = r#".status.conditions[?(@.type=="Ready")].status"#;
    let age = ".metadata.creationTimestamp";
    let cases = [
        (json!(null), false, vec!["Ready", "Age"]),
        (json!(null), true, vec!["Ready", "Plan", "Age"]),
        (json!([column("Size", ".spec.size")]), true, vec!["Size", "Ready", "Plan", "Age"]),
        // The author's column Ready counts members, so Operetta's column gets another name.
        (json!([column("Ready", ".status.size")]), false, vec!["Ready", "AllReady", "Age"]),
        (
            json!([column("READY", ".status.size"), column("AllReady", ".x")]),
            false,
            vec!["READY", "AllReady", "OperettaReady", "Age"],
        ),
        // The author already has columns for what Operetta would show.
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
fn status_schema_is_widened_but_keeps_author_fields() {
    let augmented = |schema: Value, status: &[&str]| {
        let additions =
            Additions { status: status.iter().map(ToString::to_string).collect(), has_plans: false };
        let once = augment(&with_schema(&schema), &additions);
        assert_eq!(augment(&once, &additions), once, "{schema}");
        root(&once).clone()
    };
    let status = |schema: &Value| schema["properties"]["status"].clone();
    let keep = json!({"x-kubernetes-preserve-unknown-fields": true});

    // A schema without content, and a root without fields.
    for bare in [json!({}), json!({"type": "object"}), json!({"type": "object", "properties": null})] {
        let schema = augmented(bare, &["a"]);
        assert_eq!(schema["type"], "object");
        assert_eq!(status(&schema)["properties"]["a"], keep);
        assert_eq!(
            status(&schema)["properties"]["conditions"]["x-kubernetes-list-map-keys"],
            json!(["type"])
        );
    }
    // The status of a root that keeps unknown fields keeps them, too.
    let schema = augmented(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), &["a"]);
    assert_eq!(status(&schema), json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));

    let of = |own: Value, names: &[&str]| {
        status(&augmented(json!({"type": "object", "properties": {"status": own}}), names))
    };
    // The author's schemas stay unchanged.
    let own = json!({"type": "object", "properties": {"conditions": {"type": "array", "items": {"type": "object", "properties": {"type": {"type": "string"}}}}, "a": {"type": "integer"}}});
    let got = of(own.clone(), &["a", "b"]);
    let known = &got["properties"]["conditions"]["items"]["properties"];
    assert_eq!(known["type"], json!({"type": "string"}));
    assert_eq!(got["properties"]["a"], json!({"type": "integer"}));
    assert_eq!(got["properties"]["b"], keep);
    // Operetta's conditions are valid under the author's schema of conditions.
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
    // The keys of a list must stay required.
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type", "severity"],
        "items": {"type": "object", "required": ["type", "severity", "area"], "properties": {"severity": {"type": "string"}}}});
    let got = of(json!({"type": "object", "properties": {"conditions": keyed}}), &[]);
    assert_eq!(got["properties"]["conditions"]["items"]["required"], json!(["type", "severity"]));
    // Required fields of a status are dropped, because a status is written step by step.
    let got = of(
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "object", "required": ["b", "c"], "properties": {"c": {"type": "string"}}}}}),
        &["a.b"],
    );
    assert_eq!(got.get("required"), None);
    assert_eq!(
        got["properties"]["a"],
        json!({"type": "object", "properties": {"b": keep, "c": {"type": "string"}}})
    );
    // The server would empty a projected object whose schema names no fields.
    let got = of(json!({"type": "object", "properties": {"a": {"type": "object"}}}), &["a"]);
    assert_eq!(
        got["properties"]["a"],
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
    );
    // Maps and open objects stay unchanged, because they already accept the field. So does a scalar, which
    // cannot contain it.
    for own in [
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        json!({"type": "string"}),
    ] {
        let got = of(json!({"type": "object", "properties": {"a": own}}), &["a.b"]);
        assert_eq!(got["properties"]["a"], own);
    }
    // With `additionalProperties: true` the server would empty objects in the map.
    let got = of(json!({"type": "object", "additionalProperties": true}), &["a"]);
    assert_eq!(got["properties"]["a"], keep);
    // A status that is not an object stays unchanged; `check` reports it.
    assert_eq!(of(json!({"type": "string"}), &["a"]), json!({"type": "string"}));

    let own = json!({"type": "object", "properties": {"status": {"type": "object", "properties": {"revision": {"type": "integer"}, "plan": {"type": "object"}, "history": {"x-kubernetes-preserve-unknown-fields": true}}}}});
    assert_eq!(taken(&with_schema(&own), "v1"), ["revision"]);
    for (name, _) in CRDS {
        assert_eq!(taken(&read(name), "v1"), Vec::<&str>::new());
    }
    // Broken CRDs stay unchanged.
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
