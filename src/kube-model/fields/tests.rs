use serde_json::{Value, json};

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "as `json!` gives them")]
fn set(fields_v1: Value) -> FieldSet {
    FieldSet::parse(&fields_v1).unwrap()
}

fn written(set: &FieldSet) -> Value {
    let mut text = String::new();
    set.write(&mut text);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn field_sets_are_read_and_written() {
    for invalid in [
        json!([]),
        json!({"f:a": 1}),
        json!({"a": {}}),
        json!({"k:[1]": {}}),
        json!({"v:x": {}}),
        json!({"i:x": {}}),
    ] {
        assert_eq!(FieldSet::parse(&invalid), None, "{invalid}");
    }
    // A type of key from the future is passed over, as the server does.
    assert!(set(json!({"z:a": {}})).is_empty());
    assert_eq!(set(json!({"f:a": {"z:b": {}}})), set(json!({"f:a": {}})));
    assert_eq!(set(json!({"f:a": {".": {}}})), set(json!({"f:a": {}})), "two ways to write the same");
    // Go writes whole numbers without a fraction.
    let whole = json!({"f:l": {"k:{\"port\":80}": {}}, "f:s": {"v:1": {}}});
    assert_eq!(written(&set(json!({"f:l": {"k:{ \"port\": 80.0 }": {}}, "f:s": {"v:1.0": {}}}))), whole);
    // The server keeps these, which other clients may write; neither is an item.
    assert_eq!(
        written(&set(json!({"f:l": {"i:-1": {}, "k:{}": {"f:a": {}}}}))),
        json!({"f:l": {"i:-1": {}}})
    );
    for (a, b) in [
        (json!({"f:a": {}}), json!({"f:b": {}})),
        (json!({"f:a": {}}), json!({})),
        (json!({"f:a": {"f:b": {}}}), json!({"f:a": {}, "f:b": {}})),
        (json!({"f:a": {"f:b": {}}}), json!({"f:a": {".": {}, "f:b": {}}})),
        (json!({"v:1": {}}), json!({"i:1": {}})),
        (json!({"v:\"1\"": {}}), json!({"v:1": {}})),
    ] {
        assert_ne!(set(a.clone()), set(b.clone()), "{a} {b}");
        assert_eq!((written(&set(a.clone())), written(&set(b.clone()))), (a, b));
    }
}

#[test]
fn keys_are_sorted_and_shown_as_the_server_does() {
    let list = json!({"f:a\"b": {}, "f:l": {".": {}, "i:0": {}, "v:\"x\"": {}, "v:2": {},
        "k:{\"port\":443,\"protocol\":\"TCP\"}": {"f:name": {}}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}});
    let set = set(list);
    // Members come before what is below others.
    assert_eq!(
        set.paths(),
        [
            ".a\"b",
            ".l",
            ".l[port=80,protocol=\"TCP\"]",
            ".l[=2]",
            ".l[=\"x\"]",
            ".l[0]",
            ".l[port=80,protocol=\"TCP\"].port",
            ".l[port=443,protocol=\"TCP\"].name",
        ]
    );
    let mut text = String::new();
    set.write(&mut text);
    let order: Vec<usize> = ["\"f:a\\\"b\"", "port\\\":80", "port\\\":443", "v:2", "v:\\\"x", "i:0"]
        .iter()
        .map(|part| text.find(part).unwrap())
        .collect();
    assert!(order.is_sorted(), "{text}");
}

#[test]
fn values_are_compared_as_the_server_does() {
    let sorted = [
        json!(-1),
        json!(1),
        json!(1.5),
        json!("a"),
        json!(false),
        json!([1]),
        json!([1, 2]),
        json!({}),
        json!(null),
    ];
    for (at, a) in sorted.iter().enumerate() {
        for (other, b) in sorted.iter().enumerate() {
            assert_eq!(compare(a, b), at.cmp(&other), "{a} {b}");
        }
    }
    assert!(same(&json!({"a": [80, {"b": 1.0}]}), &json!({"a": [80.0, {"b": 1}]})));
    let rising = [
        json!(i64::MAX - 1),
        json!(i64::MAX),
        json!(9_223_372_036_854_775_808_u64),
        json!(u64::MAX),
        json!(1e30),
    ];
    assert!(rising.is_sorted_by(|a, b| compare(a, b).is_lt()));
    assert!(same(&json!(9_223_372_036_854_775_808_u64), &json!(9_223_372_036_854_775_808_f64)));
}

/// Not one after another: each would move all that are greater.
#[test]
fn many_keys_in_another_order_are_sorted_at_once() {
    let keys = 1..100_000;
    let all: serde_json::Map<_, _> = keys.clone().map(|key| (format!("v:-{key}"), json!({}))).collect();
    let many = set(json!({"f:s": all}));
    let one_each = keys.map(|key| FieldSet::leaf().under(&[Key::field("s"), Key::value(json!(-key))]));
    assert_eq!(many, one_each.collect());
    assert!(many.get(&["s"]).unwrap().below().is_sorted_by(|(a, _), (b, _)| a < b));
}

#[test]
fn places_are_found() {
    let set =
        set(json!({"f:spec": {"f:ports": {"k:{\"port\":80}": {".": {}, "f:port": {}}}, "f:replicas": {}}}));
    assert!(set.get(&["spec", "replicas"]).is_some_and(FieldSet::is_leaf));
    assert!(set.get(&["spec", "paused"]).is_none() && set.get(&["spec", "replicas", "x"]).is_none());
    let item = Key::item([("port".into(), json!(80.0))]);
    let path = [Key::field("spec"), Key::field("ports"), item.clone()];
    assert!(set.at(&path).is_some_and(|place| place.member && !place.is_leaf()));
    let fits = |key: &Key, item: Value| key.fits(&item);
    assert_eq!(fits(&item, json!({"port": 80})), Some(Fit::Exact));
    assert_eq!(fits(&item, json!({"name": "a"})), Some(Fit::Partial));
    assert_eq!(fits(&item, json!({"port": 81})), None);
    assert_eq!(fits(&Key::item([]), json!({"port": 81})), Some(Fit::Exact), "any item");
    assert_eq!(fits(&Key::field("port"), json!({"port": 80})), None);
}

#[test]
fn sets_are_united_cut_and_compared() {
    let a = set(json!({"f:m": {"f:x": {}, "f:y": {}}, "f:n": {}}));
    let b = set(json!({"f:m": {".": {}, "f:y": {}, "f:z": {}}, "f:l": {"f:o": {}}}));
    let all = set(json!({"f:l": {"f:o": {}}, "f:m": {".": {}, "f:x": {}, "f:y": {}, "f:z": {}}, "f:n": {}}));
    assert_eq!(a.union(&b), all);
    assert_eq!([b.clone(), a.clone()].into_iter().collect::<FieldSet>(), all);
    // `{}` is a place with nothing below; it stays one when it gets something.
    assert_eq!(
        set(json!({"f:n": {}})).union(&set(json!({"f:n": {"f:o": {}}}))),
        set(json!({"f:n": {".": {}, "f:o": {}}}))
    );
    assert_eq!(a.intersection(&b), set(json!({"f:m": {"f:y": {}}})));
    assert_eq!(a.difference(&b), set(json!({"f:m": {"f:x": {}}, "f:n": {}})));
    assert_eq!(all.difference(&all), FieldSet::default());
    assert!(a.is_subset(&all) && b.is_subset(&all) && !all.is_subset(&a));
    assert!(a.intersects(&b) && !a.intersects(&set(json!({"f:m": {}, "f:n": {"f:o": {}}}))));
    let mut rest = all;
    rest.cut(&set(json!({"f:l": {"f:o": {}}, "f:m": {"f:x": {}}, "f:n": {}, "f:q": {}})));
    assert_eq!(rest, set(json!({"f:m": {".": {}, "f:y": {}, "f:z": {}}})));
    assert_eq!(FieldSet::of(&[&["m", "x"], &["m", "y"], &["n"], &[]]), a);
}

#[test]
fn entries_are_read_and_written() {
    let entry = json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}},
        "manager": "m", "operation": "Update", "subresource": "status", "time": "2026-01-01T00:00:00Z"});
    let apply = json!({"fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}, "manager": "a\"b", "operation": "Apply"});
    let managed = json!([entry, apply]);
    let mut all = read(&managed).unwrap();
    assert_eq!(to_value(&all), managed);
    sort(&mut all);
    assert_eq!(to_value(&all), json!([apply, entry]));
    assert!(all[0].owner.is_apply_of("a\"b") && !all[1].owner.is_update());
    assert_eq!(read(&json!(null)), Some(Vec::new()));
    let mut invalid = entry;
    invalid["operation"] = "Delete".into();
    assert_eq!(read(&json!([apply, invalid])), None);
    let object = json!({"metadata": {"managedFields": [apply, invalid]}});
    assert_eq!((entries(&object).count(), entries(&object["metadata"]).count()), (1, 1));
}
