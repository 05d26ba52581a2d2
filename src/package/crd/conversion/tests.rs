//! Conversions of handwritten and generated objects.

use std::cell::Cell;

use serde_json::{Map, Value, json};

use super::kept::{KEPT, MAX_ANNOTATIONS};
use super::*;

thread_local! {
    /// The number of repeated steps in the current test.
    pub(super) static WORK: Cell<usize> = const { Cell::new(0) };
}

/// A CRD with the schemas of the spec in `v1alpha1` and in the storage version `v1`.
fn crd(own: &Value, hub: &Value) -> Value {
    let version = |name: &str, storage: bool, spec: &Value| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": spec}}}})
    };
    json!({"spec": {
        "group": "g.org", "scope": "Namespaced", "names": {"kind": "W", "plural": "ws"},
        "versions": [version("v1alpha1", false, own), version("v1", true, hub)],
    }})
}

fn object(properties: &Value) -> Value {
    json!({"type": "object", "properties": properties})
}

fn moved(from: &str, to: &str) -> Rule {
    Rule { path: from.into(), kind: RuleKind::Move(to.into()) }
}

fn keep(path: &str) -> Rule {
    Rule { path: path.into(), kind: RuleKind::Keep }
}

fn default(path: &str, value: Value) -> Rule {
    Rule { path: path.into(), kind: RuleKind::Default(value) }
}

/// Schemas that differ in every way that a rule can handle.
fn rich() -> (Value, Vec<Rule>) {
    let pools = |fields: Value| {
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": object(&fields)})
    };
    let own = object(&json!({
        "replicas": {"type": "integer"},
        "same": {"type": "string"},
        "legacy": {"type": "string"},
        "old": {"type": "integer"},
        "net": object(&json!({"port": {"type": "integer"}, "host": {"type": "string"}})),
        "scale": object(&json!({"other": {"type": "string"}})),
        "pools": pools(json!({"name": {"type": "string"}, "count": {"type": "integer"}, "note": {"type": "string"}})),
        "plain": {"type": "array", "items": object(&json!({"a": {"type": "string"}}))},
        "swap": {"type": "string"},
        "swapped": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    }));
    let hub = object(&json!({
        "scale": object(&json!({"other": {"type": "string"}, "size": {"type": "integer"}})),
        "same": {"type": "string"},
        "mode": {"type": "string", "enum": ["fast", "safe"]},
        "opts": object(&json!({"deep": object(&json!({"level": {"type": "integer"}, "hint": {"type": "string"}}))})),
        "port": {"type": "integer"},
        "endpoint": object(&json!({"host": {"type": "string"}})),
        "pools": pools(json!({"name": {"type": "string"}, "size": {"type": "integer"}, "zone": {"type": "string"}})),
        "plain": {"type": "array", "items": object(&json!({"b": {"type": "string"}}))},
        "swap": {"type": "string"},
        "swapped": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    }));
    let rules = vec![
        moved("spec.replicas", "spec.scale.size"),
        keep("spec.legacy"),
        default("spec.old", json!(7)),
        moved("spec.net.port", "spec.port"),
        moved("spec.net.host", "spec.endpoint.host"),
        moved("spec.pools[*].count", "spec.pools[*].size"),
        keep("spec.pools[*].note"),
        default("spec.pools[*].zone", json!("a")),
        moved("spec.plain[*].a", "spec.plain[*].b"),
        moved("spec.swap", "spec.swapped"),
        moved("spec.swapped", "spec.swap"),
        default("spec.mode", json!("fast")),
        default("spec.opts.deep.level", json!(1)),
        keep("spec.opts.deep.hint"),
    ];
    (crd(&own, &hub), rules)
}

fn compiled() -> (Value, Conversion) {
    let (crd, rules) = rich();
    let conversion = compile(&crd, &[("v1alpha1", rules)]).unwrap_or_else(|problems| panic!("{problems:#?}"));
    // Replicas read the conversion from the annotation.
    let text = serde_json::to_string(&conversion).unwrap();
    assert_eq!(serde_json::from_str::<Conversion>(&text).unwrap(), conversion, "{text}");
    (crd, conversion)
}

fn instance(version: &str, spec: Value) -> Value {
    let mut object =
        json!({"apiVersion": format!("g.org/{version}"), "kind": "W", "metadata": {"name": "x"}});
    object["spec"] = spec;
    object
}

fn convert(conversion: &Conversion, object: &Value, to: &str) -> Value {
    try_convert(conversion, object, to, &[]).unwrap()
}

fn try_convert(
    conversion: &Conversion,
    object: &Value,
    to: &str,
    stored: &[&str],
) -> Result<Value, ConvertError> {
    let stored: Vec<String> = stored.iter().map(|version| (*version).to_owned()).collect();
    let text = conversion.convert(&object.to_string(), &format!("g.org/{to}"), &stored)?;
    Ok(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// The size of the annotations of an object.
fn annotations(object: &Value) -> usize {
    let all = object["metadata"]["annotations"].as_object().into_iter().flatten();
    all.map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum()
}

#[test]
fn object_is_converted_and_converted_back() {
    let (_, conversion) = compiled();
    let old = instance(
        "v1alpha1",
        json!({"replicas": 3, "legacy": "l", "net": {"port": 80}, "swap": "s", "plain": [{"a": "1"}, {}],
            "pools": [{"name": "p", "count": 2, "note": "n"}]}),
    );
    let new = convert(&conversion, &old, "v1");
    assert_eq!(
        new["spec"],
        json!({"scale": {"size": 3}, "port": 80, "swapped": "s", "plain": [{"b": "1"}, {}], "mode": "fast",
            "opts": {"deep": {"level": 1}}, "pools": [{"name": "p", "size": 2, "zone": "a"}]})
    );
    assert_eq!(convert(&conversion, &new, "v1alpha1"), old);
    // An object that is created in the new version.
    let new = instance("v1", json!({"scale": {"size": 1}, "mode": "safe"}));
    let old = convert(&conversion, &new, "v1alpha1");
    assert_eq!(old["spec"], json!({"replicas": 1, "scale": {}, "old": 7}));
    assert_eq!(convert(&conversion, &old, "v1"), new);
}

#[test]
fn changes_made_in_another_version_are_kept() {
    let (_, conversion) = compiled();
    let new = instance(
        "v1",
        json!({"mode": "safe", "scale": {"size": 1},
            "pools": [{"name": "p", "size": 1, "zone": "x"}, {"name": "q", "size": 2, "zone": "y"}]}),
    );
    let mut old = convert(&conversion, &new, "v1alpha1");
    old["spec"]["replicas"] = json!(5);
    // One pool is removed, another is added, and the order changes.
    old["spec"]["pools"] = json!([{"name": "r", "count": 9}, {"name": "q", "count": 3}]);
    let again = convert(&conversion, &old, "v1");
    assert_eq!(
        again["spec"],
        json!({"mode": "safe", "scale": {"size": 5},
            "pools": [{"name": "r", "size": 9, "zone": "a"}, {"name": "q", "size": 3, "zone": "y"}]})
    );
}

#[test]
fn invalid_annotation_entries_are_ignored() {
    let (_, conversion) = compiled();
    let with = |text: &str| {
        let mut old = instance("v1alpha1", json!({"replicas": 1}));
        old["metadata"]["annotations"] = json!({KEPT: text});
        convert(&conversion, &old, "v1")
    };
    for text in [
        "",
        "x",
        "[]",
        "7",
        "{\"v1\": 7}",
        r#"{"v1": [7, [], [7], [[7], 1], [["spec"], 1], [["spec", "nope"], 1]]}"#,
        // Values that the schema refuses, or of another type.
        r#"{"v1": [[["spec", "mode"], "evil"]]}"#,
        r#"{"v1": [[["spec", "mode"], {"a": 1}]]}"#,
        r#"{"v1": [[["spec", "opts"], 3]]}"#,
        r#"{"v1": [[["spec", "scale", "size"], 3]]}"#,
        r#"{"v1": [[["metadata", "name"], "y"]]}"#,
        r#"{"v1": [[["spec", "pools", 7, "zone"], "y"]]}"#,
    ] {
        let new = with(text);
        assert_eq!(new["spec"]["mode"], "fast", "{text}");
        assert_eq!(new["spec"]["scale"]["size"], 1, "{text}");
        assert_eq!(new["metadata"]["name"], "x", "{text}");
    }
    assert_eq!(with(r#"{"v1": [[["spec", "mode"], "safe"]]}"#)["spec"]["mode"], "safe");
    // Values at places that no rule handles are ignored, too.
    assert_eq!(
        with(r#"{"v1": [[["spec", "opts"], {"deep": {"level": "evil"}}]]}"#)["spec"]["opts"],
        json!({"deep": {"level": 1}})
    );
    assert_eq!(with(r#"{"v1": [[["spec", "port"], "evil"]]}"#)["spec"]["port"], json!(null));
    // Objects that no schema permits are converted nevertheless.
    for spec in
        [json!(null), json!([]), json!("x"), json!({"pools": {"a": 1}, "plain": [1, null], "scale": "s"})]
    {
        let old = instance("v1alpha1", spec);
        let new = convert(&conversion, &old, "v1");
        let back = convert(&conversion, &new, "v1alpha1");
        assert_eq!(back, old, "{new}");
    }
    let old = instance("v1alpha1", json!({"replicas": 12_345, "scale": "s"}));
    let new = convert(&conversion, &old, "v1");
    assert_eq!(new["spec"]["scale"], "s");
    let back = convert(&conversion, &new, "v1alpha1");
    for object in [new, back] {
        assert!(object["metadata"]["annotations"][KEPT].as_str().unwrap().contains("12345"), "{object}");
    }
}

#[test]
fn only_writes_that_lose_left_out_values_are_refused() {
    let text = json!({"type": "string"});
    let (own, hub) = (object(&json!({"note": text, "b": text})), object(&json!({"big": text, "b": text})));
    let conversion =
        compile(&crd(&own, &hub), &[("v1alpha1", vec![keep("spec.note"), keep("spec.big")])]).unwrap();
    let with = |version: &str, spec: Value, own: usize| {
        let mut object = instance(version, spec);
        object["metadata"]["annotations"] = json!({"a": "ä".repeat((own - 1) / 2)});
        object
    };
    let large = "x".repeat(300 << 10);
    // The object can be read in every version. A write in a version without the value is refused.
    for (spec, own) in [
        (json!({"big": large}), 101),
        (json!({"big": "y"}), MAX_ANNOTATIONS - 1),
        (json!({"big": "y"}), MAX_ANNOTATIONS - 51),
    ] {
        let first = with("v1", spec.clone(), own);
        let there = convert(&conversion, &first, "v1alpha1");
        assert!(annotations(&there) <= MAX_ANNOTATIONS, "{}", annotations(&there));
        assert_eq!(there["spec"], json!({}));
        let refused = try_convert(&conversion, &there, "v1", &["v1"]);
        assert!(matches!(refused, Err(ConvertError::LeftOut { .. })), "{own}: {refused:?}");
        // While objects may be stored in that version, the request may be a read, and the annotation may come
        // from a user.
        let read = try_convert(&conversion, &there, "v1", &["v1alpha1", "v1"]).unwrap();
        assert_eq!((&read["spec"], annotations(&read)), (&json!({}), annotations(&first)));
    }
    // Annotations up to the limit are kept completely.
    let kept = r#"{"v1":[[["spec","big"],"y"]]}"#.len() + KEPT.len();
    let fits = with("v1", json!({"big": "y"}), (MAX_ANNOTATIONS - kept - 1) / 2 * 2 + 1);
    let there = convert(&conversion, &fits, "v1alpha1");
    assert!(MAX_ANNOTATIONS - annotations(&there) < 2);
    assert_eq!(convert(&conversion, &there, "v1"), fits);
    // A write is refused if it would lose a value of the version in which it is written.
    let old = with("v1alpha1", json!({"note": large}), 101);
    let refused = try_convert(&conversion, &old, "v1", &["v1"]);
    assert!(matches!(refused, Err(ConvertError::NoRoom { .. })), "{refused:?}");
    let read = try_convert(&conversion, &old, "v1", &["v1alpha1"]).unwrap();
    let mark = read["metadata"]["annotations"][KEPT].as_str().unwrap();
    let leaves_out = |text: &str| leaves_out(Some(&BTreeMap::from([(KEPT.to_owned(), text.to_owned())])));
    assert!(leaves_out(mark), "{mark}");
    assert!(!leaves_out(r#"{"v1":[[["spec","big"],"left out"]]}"#));
    // An annotation that a user writes in the storage version has no effect.
    let mut marked = with("v1", json!({"b": "b"}), 101);
    marked["metadata"]["annotations"][KEPT] = r#"{"v1":"left out"}"#.into();
    let there = convert(&conversion, &marked, "v1alpha1");
    assert_eq!(there["metadata"]["annotations"].as_object().unwrap().len(), 1);
    assert_eq!(convert(&conversion, &there, "v1")["spec"], marked["spec"]);
}

#[test]
fn deep_values_and_numbers_are_kept_as_they_are_written() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"n": {"type": "integer"}}});
    let (own, hub) = (object(&json!({})), object(&json!({"free": open, "ratio": {"type": "number"}})));
    let rules = vec![keep("spec.free"), default("spec.ratio", json!(0.3))];
    let conversion = compile(&crd(&own, &hub), &[("v1alpha1", rules)]).unwrap();
    let deep = "{\"a\":".repeat(1_000) + "1.0e+2" + &"}".repeat(1_000);
    let object = |n: &str, ratio: &str| {
        format!(
            r#"{{"apiVersion":"g.org/v1","kind":"W","metadata":{{"name":"x"}},"spec":{{"free":{{"n":{n},"x":{deep}}},"ratio":{ratio}}}}}"#
        )
    };
    for ratio in ["0.30000000000000004", "0.1234567890123456789", "0.3", "1e-7"] {
        let first = object("1", ratio);
        let there = conversion.convert(&first, "g.org/v1alpha1", &[]).unwrap();
        assert_eq!(conversion.convert(&there, "g.org/v1", &[]).unwrap(), first);
    }
    // A deep value is validated, too.
    let there = conversion.convert(&object("1", "1"), "g.org/v1alpha1", &[]).unwrap();
    let evil = there.replace(r#"{\"n\":1"#, r#"{\"n\":\"evil\""#);
    assert_ne!(evil, there);
    assert!(!conversion.convert(&evil, "g.org/v1", &[]).unwrap().contains("free\":{"), "{evil}");
}

#[test]
fn conversion_takes_linear_work() {
    let pools = |fields: Value| {
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": object(&fields)})
    };
    let word = json!({"type": "string", "pattern": "^[a-z]{1,20}$"});
    let own = object(&json!({"pools": pools(json!({"name": {"type": "string"}}))}));
    let hub = object(&json!({"mode": word, "pools": pools(json!({"name": {"type": "string"}, "zone": word,
        "extra": object(&json!({"a": word}))}))}));
    let rules =
        vec![default("spec.pools[*].zone", json!("a")), keep("spec.pools[*].extra.a"), keep("spec.mode")];
    let conversion = compile(&crd(&own, &hub), &[("v1alpha1", rules)]).unwrap();
    let items = 3_000;
    let pools = |fields: &Value| -> Value {
        (0..items)
            .map(|number| {
                let mut pool = fields.clone();
                pool["name"] = format!("n{number}").into();
                pool
            })
            .collect()
    };
    let work_of = |object: &Value, to: &str| {
        WORK.set(0);
        let converted = convert(&conversion, object, to);
        (WORK.get(), converted)
    };
    // The entries of each item exist, are absent, or have the default.
    for fields in [json!({"zone": "b"}), json!({"extra": {}}), json!({"zone": "a"})] {
        let new = instance("v1", json!({"pools": pools(&fields)}));
        let (there, old) = work_of(&new, "v1alpha1");
        let (back, again) = work_of(&old, "v1");
        assert_eq!(again, new);
        assert!(there.max(back) <= 12 * items, "{fields}: {there}, {back}");
    }
    // Entries that a user may have written: for no field, for one field, for items that do not exist.
    let mut places: Vec<Value> = (0..5_000).map(|_| json!([[], "a"])).collect();
    places.extend((0..2_000).map(|_| json!([["spec", "mode"], "b"])));
    places.extend((0..2_000).map(|number| json!([["spec", "pools", [format!("x{number}")], "zone"], "b"])));
    let mut old = instance("v1alpha1", json!({"pools": pools(&json!({}))}));
    old["metadata"]["annotations"] = json!({KEPT: json!({"v1": places}).to_string()});
    let (work, new) = work_of(&old, "v1");
    assert_eq!((&new["spec"]["mode"], &new["spec"]["pools"][7]["zone"]), (&json!("b"), &json!("a")));
    assert!(work <= 4_000 + 4 * items, "{work}");
}

#[test]
fn total_size_of_defaults_is_limited() {
    let map =
        |fields: &Value| object(&json!({"l": {"type": "object", "additionalProperties": object(fields)}}));
    let (own, hub) = (map(&json!({})), map(&json!({"text": {"type": "string"}})));
    let large = "x".repeat(50 << 10);
    let conversion =
        compile(&crd(&own, &hub), &[("v1alpha1", vec![default("spec.l[*].text", large.into())])]).unwrap();
    let map: Map<String, Value> = (0..2_000).map(|number| (number.to_string(), json!({}))).collect();
    let new = convert(&conversion, &instance("v1alpha1", json!({"l": map})), "v1");
    assert!(new.to_string().len() < 20 << 20);
}

/// Generates a value that is valid under a schema. The keys of lists are unique.
fn generate(schema: &Value, random: &mut fastrand::Rng) -> Value {
    if let Some(values) = schema["enum"].as_array() {
        return values[random.usize(..values.len())].clone();
    }
    match schema["type"].as_str() {
        Some("integer") => random.i32(0..3).into(),
        Some("string") => ["a", "b", "", "ü"][random.usize(..4)].into(),
        Some("array") => {
            let count = random.usize(..4);
            let mut items: Vec<Value> = (0..count).map(|_| generate(&schema["items"], random)).collect();
            if schema["x-kubernetes-list-map-keys"].is_array() {
                for (index, item) in items.iter_mut().enumerate() {
                    item["name"] = format!("n{index}").into();
                }
            }
            items.into()
        }
        _ => {
            let mut map = Map::new();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                if random.u8(..3) > 0 {
                    map.insert(name.clone(), generate(field, random));
                }
            }
            if schema["additionalProperties"].is_object() {
                for name in ["x", "y.z/a"].iter().take(random.usize(..3)) {
                    map.insert((*name).to_owned(), generate(&schema["additionalProperties"], random));
                }
            }
            map.into()
        }
    }
}

#[test]
fn generated_objects_survive_a_round_trip() {
    let (crd, conversion) = compiled();
    for seed in 0..4_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        for (version, other) in [("v1alpha1", "v1"), ("v1", "v1alpha1")] {
            let schema = crate::crd::schema_of(&crd, version).unwrap();
            let mut first = instance(version, generate(&schema["properties"]["spec"], &mut random));
            if random.bool() {
                first["metadata"]["annotations"] = json!({"a": "b"});
            }
            let there = convert(&conversion, &first, other);
            let unfit = crate::crd::validate(crate::crd::schema_of(&crd, other).unwrap(), &there);
            assert!(unfit.is_empty(), "seed {seed}: {unfit:?}: {there:#}");
            let back = convert(&conversion, &there, version);
            assert_eq!(back, first, "seed {seed}: {there:#}");
            assert_eq!(convert(&conversion, &back, other), there, "seed {seed}");
        }
    }
}

#[test]
fn versions_are_converted_through_the_hub() {
    let version = |name: &str, storage: bool, field: &str| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": object(&json!({
            "spec": object(&json!({field: {"type": "integer"}, format!("only{name}"): {"type": "string"}}))}))}})
    };
    let crd = json!({"spec": {"group": "g.org", "scope": "Namespaced", "names": {"kind": "W", "plural": "ws"},
        "versions": [version("v1", false, "a"), version("v2", false, "b"), version("v3", true, "c")]}});
    let rules = |name: &str, field: &str| {
        vec![
            moved(&format!("spec.{field}"), "spec.c"),
            keep(&format!("spec.only{name}")),
            default("spec.onlyv3", json!("x")),
        ]
    };
    let conversion = compile(&crd, &[("v1", rules("v1", "a")), ("v2", rules("v2", "b"))]).unwrap();
    let first = instance("v1", json!({"a": 1, "onlyv1": "q"}));
    let second = convert(&conversion, &first, "v2");
    assert_eq!(second["spec"], json!({"b": 1}));
    let third = convert(&conversion, &second, "v3");
    assert_eq!(third["spec"], json!({"c": 1, "onlyv3": "x"}));
    assert_eq!(convert(&conversion, &third, "v1"), first);
    assert_eq!(convert(&conversion, &second, "v1"), first);
}

fn problems(own: &Value, hub: &Value, rules: Vec<Rule>) -> Vec<String> {
    let crd = crd(&object(own), &object(hub));
    let problems = compile(&crd, &[("v1alpha1", rules)]).err().unwrap_or_default();
    problems.into_iter().map(|p| format!("{:?} {}", p.rule, p.message)).collect()
}

#[test]
fn a_field_without_a_rule_is_an_error() {
    let int = json!({"type": "integer"});
    let text = json!({"type": "string"});
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (own, hub, rules, expected) in [
        (
            json!({"a": int}),
            json!({}),
            vec![],
            "None v1alpha1 has `spec.a`, v1 has not, and no rule is about it",
        ),
        (
            json!({}),
            json!({"a": int}),
            vec![],
            "None v1 has `spec.a`, v1alpha1 has not, and no rule is about it",
        ),
        (
            json!({"a": int}),
            json!({"a": text}),
            vec![],
            "None `spec.a` has different types in v1alpha1 and v1",
        ),
        (
            json!({"a": open}),
            json!({"a": object(&json!({}))}),
            vec![],
            "None `spec.a` allows different unknown fields in v1alpha1 and v1",
        ),
        (
            json!({"a": int}),
            json!({"b": int}),
            vec![moved("spec.a", "spec.c")],
            "Some(0) v1 has no field `spec.c`",
        ),
        (
            json!({"a": int}),
            json!({"b": text}),
            vec![moved("spec.a", "spec.b")],
            "Some(0) `spec.a` has different types in v1alpha1 and v1, so that a value cannot move without a change",
        ),
        (
            json!({"a": int}),
            json!({"a": int}),
            vec![keep("spec.a")],
            "Some(0) both v1alpha1 and v1 have `spec.a`, so it needs no rule",
        ),
        (
            json!({"a": int}),
            json!({}),
            vec![keep("spec.b")],
            "Some(0) v1alpha1 has no field `spec.b`, nor has v1",
        ),
        (
            json!({"a": int}),
            json!({}),
            vec![keep("a..b")],
            "Some(0) `a..b` is no path of a field, nor has v1",
        ),
        (
            json!({}),
            json!({"a": int}),
            vec![default("spec.a", json!("x"))],
            "Some(0) the default of v1 is invalid: spec.a must be an integer",
        ),
        (
            json!({"a": int}),
            json!({"b": int}),
            vec![moved("spec.a", "spec.b"), keep("spec.b")],
            "Some(1) `spec.b` is in two rules",
        ),
        (
            json!({"l": {"type": "array", "items": object(&json!({"a": int}))}}),
            json!({"l": {"type": "array", "items": object(&json!({}))}}),
            vec![keep("spec.l[*].a")],
            "Some(0) `spec.l[*].a` is in a list without keys, so its value could not be given back to the item it came from",
        ),
    ] {
        let found = problems(&own, &hub, rules);
        assert!(found.iter().any(|p| p.starts_with(expected)), "{expected}: {found:#?}");
    }
    let required = |mut schema: Value| {
        schema["required"] = json!(["a"]);
        schema
    };
    let (own, hub) = (object(&json!({})), required(object(&json!({"a": int}))));
    let found = compile(&crd(&own, &hub), &[("v1alpha1", vec![keep("spec.a")])]).unwrap_err();
    assert!(found[0].message.contains("v1 requires `spec.a`"), "{found:?}");
    let own = object(&json!({"a": int}));
    let found = compile(&crd(&own, &hub), &[]).unwrap_err();
    assert_eq!(found[0].message, "only v1 requires `spec.a`");
    let found = compile(&crd(&hub, &hub), &[("v1", vec![]), ("v1alpha", vec![])]).unwrap_err();
    let messages: Vec<_> = found.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
}

#[test]
fn rules_of_a_newer_version_are_refused() {
    let text = r#"{"group":"g.org","kind":"W","hub":"v1","versions":{"v1alpha1":{"own":{"fields":[{"path":["spec","note"],"schema":{}}]}}}}"#;
    let rules: Value = serde_json::from_str(text).unwrap();
    assert!(serde_json::from_value::<Conversion>(rules.clone()).is_ok(), "{rules}");
    for place in ["", "/versions/v1alpha1", "/versions/v1alpha1/own", "/versions/v1alpha1/own/fields/0"] {
        let mut newer = rules.clone();
        newer.pointer_mut(place).unwrap()["another"] = true.into();
        let error = serde_json::from_value::<Conversion>(newer).unwrap_err().to_string();
        assert!(error.contains("another"), "{place}: {error}");
    }
}
