//! Tests with objects recorded from a kube-apiserver 1.36.3. Each file holds the desired object that was
//! applied and the live object as it was after that, or after an edit by hand.

use operetta_kube_model::fields::{FieldSet, Key};
use serde_json::{Value, json};

use super::*;

const MANAGER: &str = "operetta/test";

macro_rules! recorded {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("testdata/", $name, ".json")))),*]
    };
}

const APPLIED: &[(&str, &str)] = recorded![
    "configmap",
    "custom",
    "deployment",
    "horizontalpodautoscaler",
    "ingress",
    "networkpolicy",
    "persistentvolumeclaim",
    "pod",
    "pod-empties",
    "role",
    "secret",
    "service",
    "service-port-added",
    "serviceaccount",
    "statefulset",
];

const EDITED: &[(&str, &str)] = recorded![
    "custom-edited",
    "deployment-container-renamed",
    "networkpolicy-opened",
    "service-name-moved",
    "service-only-port-edited",
    "service-port-edited",
];

fn read(name: &str) -> (Value, Value) {
    let (_, text) = APPLIED.iter().chain(EDITED).find(|(known, _)| *known == name).expect(name);
    let file: Value = serde_json::from_str(text).expect(name);
    (file["intent"].clone(), file["live"].clone())
}

fn ours(live: &Value) -> FieldSet {
    of_manager(live, MANAGER).expect("our entry")
}

#[test]
fn applied_objects_are_covered() {
    for (name, _) in APPLIED {
        let (desired, live) = read(name);
        let others = of_others(&live, MANAGER);
        assert_eq!(uncovered(&desired, &ours(&live)), None, "{name}");
        assert_eq!(uncovered_beside(&desired, &ours(&live), &others), None, "{name}");
        assert_eq!(conflicting_items(&live, &desired, MANAGER), [], "{name}");
        // The metadata alone serves as well as the object.
        assert_eq!(of_manager(&live["metadata"], MANAGER), Some(ours(&live)), "{name}");
    }
}

#[test]
fn edited_objects_are_not_covered() {
    let cases = [
        ("custom-edited", Some("spec.free.a.b"), Some("spec.free.a.b")),
        (
            "deployment-container-renamed",
            Some("spec.template.spec.containers[name=web].env[name=A].name"),
            Some("spec.template.spec.containers[name=web].env[name=A].name"),
        ),
        ("networkpolicy-opened", None, Some("spec.ingress")),
        (
            "service-name-moved",
            Some("spec.ports[port=80,protocol=TCP].name"),
            Some("spec.ports[port=80,protocol=TCP].name"),
        ),
        ("service-only-port-edited", Some("spec.ports[name=http].name"), Some("spec.ports[name=http].name")),
        ("service-port-edited", Some("spec.ports[name=http].name"), Some("spec.ports[name=http].name")),
    ];
    assert_eq!(cases.len(), EDITED.len());
    for (name, alone, beside) in cases {
        let (desired, live) = read(name);
        let others = of_others(&live, MANAGER);
        assert_eq!(uncovered(&desired, &ours(&live)).as_deref(), alone, "{name}");
        assert_eq!(uncovered_beside(&desired, &ours(&live), &others).as_deref(), beside, "{name}");
    }
}

#[test]
fn conflicting_items_are_found_and_moved_to_our_entry() {
    let cases: [(&str, &[&str]); 6] = [
        ("custom-edited", &[]),
        ("deployment-container-renamed", &["spec.template.spec.containers[name=web2]"]),
        ("networkpolicy-opened", &[]),
        ("service-name-moved", &["spec.ports[port=81,protocol=TCP]"]),
        ("service-only-port-edited", &["spec.ports[port=81,protocol=TCP]"]),
        ("service-port-edited", &["spec.ports[port=81,protocol=TCP]"]),
    ];
    assert_eq!(cases.len(), EDITED.len());
    for (name, expected) in cases {
        let (desired, live) = read(name);
        let found = conflicting_items(&live, &desired, MANAGER);
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{name}");
        let before = &live["metadata"]["managedFields"];
        let Some(after) = move_to_ours(before, MANAGER, &found) else {
            assert!(found.is_empty(), "{name}");
            continue;
        };
        let object = json!({"metadata": {"managedFields": after}});
        let (own, others) = (ours(&object), of_others(&object, MANAGER));
        for path in &found {
            assert!(own.at(&path.0).is_some_and(|node| node.member), "{name}: {path} is ours");
            assert!(others.at(&path.0).is_none(), "{name}: {path} is in no other entry");
        }
        assert_eq!(move_to_ours(&after, MANAGER, &found), None, "{name}: nothing left to move");
        // No leaf of any entry is lost.
        let total = |managed: &Value| managed.as_array().expect("array").iter().map(leaves).sum::<usize>();
        assert!(total(&after) >= total(before), "{name}: nothing got lost");
    }
}

fn leaves(entry: &Value) -> usize {
    fn count(value: &Value) -> usize {
        let map = value.as_object().expect("map");
        if map.is_empty() { 1 } else { map.values().map(count).sum() }
    }
    count(&entry["fieldsV1"])
}

/// This very array was written to a Service on a real API server; the apply after it was accepted
/// and took the port 81 away. (With the port in both entries it was refused: an item that a plain
/// write still owns stays.)
#[test]
fn service_port_is_moved_as_recorded() {
    let (desired, live) = read("service-port-edited");
    let before = &live["metadata"]["managedFields"];
    let after = move_to_ours(before, MANAGER, &conflicting_items(&live, &desired, MANAGER)).expect("moved");
    let mut ours = before[0].clone();
    let key = r#"k:{"port":81,"protocol":"TCP"}"#;
    ours["fieldsV1"]["f:spec"]["f:ports"][key] = before[1]["fieldsV1"]["f:spec"]["f:ports"][key].clone();
    assert_eq!(after, json!([ours]));
}

#[test]
fn moved_items_keep_the_nodes_above_them() {
    let path = FieldPath(vec![
        Key::Field("spec".into()),
        Key::Field("l".into()),
        Key::Item([("name".into(), json!("b"))].into()),
    ]);
    let entry = |manager: &str, operation: &str, fields: Value| json!({"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields});
    let item = r#"k:{"name":"b"}"#;
    let cases = [
        // A list that is ours as such stays so; an item changed in part by two writers comes whole.
        (
            json!([
                entry("me", "Apply", json!({"f:spec": {"f:l": {}}})),
                entry("x", "Update", json!({"f:spec": {"f:l": {".": {}, item: {"f:a": {}}}}})),
                entry("y", "Update", json!({"f:spec": {"f:l": {item: {"f:b": {}}}}})),
            ]),
            Some(json!([
                entry(
                    "me",
                    "Apply",
                    json!({"f:spec": {"f:l": {".": {}, item: {".": {}, "f:a": {}, "f:b": {}}}}})
                ),
                entry("x", "Update", json!({"f:spec": {"f:l": {}}})),
            ])),
        ),
        // No entry of ours; an entry of ours for a subresource only.
        (json!([entry("x", "Update", json!({"f:spec": {"f:l": {item: {}}}}))]), None),
        (json!([{"manager": "me", "operation": "Apply", "subresource": "status", "fieldsV1": {}}]), None),
        (json!("nonsense"), None),
        // Another manager's declaration is not taken.
        (
            json!([
                entry("me", "Apply", json!({"f:spec": {"f:a": {}}})),
                entry("x", "Apply", json!({"f:spec": {"f:l": {item: {}}}})),
            ]),
            None,
        ),
    ];
    for (before, after) in cases {
        assert_eq!(move_to_ours(&before, "me", std::slice::from_ref(&path)), after, "{before}");
    }
}

#[test]
fn managed_fields_show_whether_conflicting_items_exist() {
    for (name, _) in APPLIED.iter().chain(EDITED) {
        let (desired, live) = read(name);
        let others = of_others(&live, MANAGER);
        let found = conflicting_items(&live, &desired, MANAGER);
        let told = lost_items(&desired, &ours(&live), &others);
        assert_eq!(told, !found.is_empty(), "{name}: {found:?}");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `json!` gives them")]
fn with_entries(spec: Value, ours: Value, theirs: Value) -> Value {
    json!({"spec": spec, "metadata": {"managedFields": [
        {"manager": MANAGER, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": ours}},
        {"manager": "kubectl-edit", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": theirs}},
    ]}})
}

#[test]
fn fields_that_exclude_ours_are_found_only_after_a_refusal() {
    let key = r#"k:{"name":"A"}"#;
    let cases = [
        // `value` has become `valueFrom`; a field beside what is intact is left alone.
        (
            json!({"env": [{"name": "A", "value": "x"}], "keep": {"a": 1}}),
            json!({"env": [{"name": "A", "valueFrom": {"f": {}}}], "keep": {"a": 1, "b": 2}}),
            json!({"f:env": {key: {".": {}, "f:name": {}}}, "f:keep": {"f:a": {}}}),
            json!({"f:env": {key: {"f:valueFrom": {".": {}, "f:f": {}}}}, "f:keep": {"f:b": {}}}),
            "spec.env[0].valueFrom",
            Some("spec.env[name=A].valueFrom"),
        ),
        // The server names ours, and only one can be meant: the other is of another sort.
        (
            json!({"probe": {"tcp": {"port": 1}}}),
            json!({"probe": {"http": {"port": 2}, "seconds": 9}}),
            json!({"f:probe": {".": {}}, "f:other": {}}),
            json!({"f:probe": {"f:http": {"f:port": {}}, "f:seconds": {}}}),
            "spec.probe.tcp",
            None,
        ),
        (
            json!({"probe": {"tcp": {"port": 1}, "path": "x"}}),
            json!({"probe": {"http": {"port": 2}, "seconds": 9, "path": "x"}}),
            json!({"f:probe": {".": {}, "f:path": {}}}),
            json!({"f:probe": {"f:http": {"f:port": {}}, "f:seconds": {}}}),
            "spec.probe.tcp",
            Some("spec.probe.http"),
        ),
        // The server names neither: the field beside ours is left alone.
        (
            json!({"low": 9, "extra": 1}),
            json!({"low": 1, "replicas": 5}),
            json!({"f:low": {}}),
            json!({"f:replicas": {}}),
            "spec.other",
            None,
        ),
        // An empty map of ours, and nothing else, is gone.
        (
            json!({"env": [{"name": "A", "emptyDir": {}}]}),
            json!({"env": [{"name": "A", "hostPath": {"path": "/"}}]}),
            json!({"f:env": {key: {".": {}, "f:name": {}}}}),
            json!({"f:env": {key: {"f:hostPath": {".": {}, "f:path": {}}}}}),
            // Our list has the item at another index.
            "spec.env[3].hostPath",
            Some("spec.env[name=A].hostPath"),
        ),
    ];
    for (desired, live, ours, theirs, fault, expected) in cases {
        let (desired, live) = (json!({"spec": desired}), with_entries(live, ours, theirs));
        assert_eq!(conflicting_items(&live, &desired, MANAGER), []);
        let found = excluding(&live, &desired, MANAGER, &[fault.to_owned()]);
        let told = found.iter().flatten().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{fault}");
        let Some(found) = found else { continue };
        let before = &live["metadata"]["managedFields"];
        let moved = move_to_ours(before, MANAGER, &found).expect("moved");
        assert_ne!(moved[0], before[0]);
        // A release with the managedFields of before restores the owner; without them, the field has none.
        assert_eq!(release(&moved, MANAGER, &found, Some(before)).as_ref(), Some(before));
        let free = release(&moved, MANAGER, &found, None).expect("released");
        assert_eq!((&free[0], free.get(1)), (&before[0], moved.get(1)));
        assert_eq!(release(before, MANAGER, &found, None), None);
    }
}

#[test]
fn ownerless_field_that_excludes_ours_is_claimed() {
    let key = r#"k:{"name":"A"}"#;
    let desired = json!({"spec": {"env": [{"name": "A", "emptyDir": {}}]}});
    let live = json!({"env": [{"name": "A", "hostPath": {"path": "/"}}]});
    let live = with_entries(live, json!({"f:env": {key: {".": {}, "f:name": {}}}}), json!({"f:other": {}}));
    let found = excluding(&live, &desired, MANAGER, &["spec.env[0].hostPath".to_owned()]).expect("found");
    let before = &live["metadata"]["managedFields"];
    let claimed = move_to_ours(before, MANAGER, &found).expect("claimed");
    assert_eq!(claimed[0]["fieldsV1"]["f:spec"]["f:env"][key]["f:hostPath"], json!({}), "{claimed}");
    assert_eq!(claimed[1], before[1]);
    // If the apply is refused nevertheless, nobody owns it again.
    assert_eq!(release(&claimed, MANAGER, &found, Some(before)).as_ref(), Some(before));
    // What the server does not name is left alone.
    assert_eq!(excluding(&live, &desired, MANAGER, &["spec.env[0].emptyDir".to_owned()]), None);
}

/// The API server sets a default map for a type. No manager owns the map when the type changes.
#[test]
fn former_member_of_a_union_is_claimed_where_the_server_names_it() {
    let fault = ["spec.strategy.rollingUpdate"];
    let desired = |kind: &str| json!({"spec": {"strategy": {"type": kind}}});
    let rolling =
        json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}, "replicas": 3}});
    let found = |ours: Value, theirs: Value, kind: &str, fault: [&str; 1]| {
        let live = with_entries(rolling.clone(), ours, theirs);
        let found = former_members(&live, &desired(kind), MANAGER, fault);
        found
            .into_iter()
            .map(|path| (is_ownerless(&live, &path), live["metadata"]["managedFields"].clone(), path))
            .next()
    };
    let (ours, other) = (json!({"f:strategy": {"f:type": {}}}), json!({"f:other": {}}));
    // Whether the type was applied before makes no difference.
    for ours in [ours.clone(), json!({"f:b": {}})] {
        let (is_ownerless, before, path) = found(ours, other.clone(), "Recreate", fault).expect("found");
        assert!(is_ownerless && path.to_string() == fault[0], "{path}");
        let claimed = move_to_ours(&before, MANAGER, std::slice::from_ref(&path)).expect("claimed");
        assert_eq!(claimed[0]["fieldsV1"]["f:spec"]["f:strategy"]["f:rollingUpdate"], json!({}), "{claimed}");
        assert_eq!(release(&claimed, MANAGER, &[path], Some(&before)).as_ref(), Some(&before));
    }
    // Not claimed are: a map whose type does not change, a field that is not a map, and a field with an owner, also through a subresource.
    assert_eq!(found(ours.clone(), other.clone(), "RollingUpdate", fault), None);
    assert_eq!(found(ours.clone(), other, "Recreate", ["spec.strategy.replicas"]), None);
    let theirs = json!({"f:strategy": {"f:rollingUpdate": {"f:maxSurge": {}}}});
    assert_eq!(found(ours.clone(), theirs.clone(), "Recreate", fault), None);
    assert_eq!(found(ours.clone(), json!({"f:strategy": {}}), "Recreate", fault), None, "owned as a whole");
    let mut live = with_entries(rolling.clone(), ours, theirs);
    live["metadata"]["managedFields"][1]["subresource"] = "scale".into();
    assert_eq!(former_members(&live, &desired("Recreate"), MANAGER, fault), []);
}

/// The desired object leaves a part of the key to the server, and another client has set another value.
#[test]
fn item_with_an_edited_default_key_conflicts() {
    let (tcp, udp) = (r#"k:{"port":80,"protocol":"TCP"}"#, r#"k:{"port":80,"protocol":"UDP"}"#);
    let item = json!({".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}});
    let desired = json!({"spec": {"ports": [{"name": "a", "port": 80}]}});
    let live = json!({"ports": [{"name": "a", "port": 80, "protocol": "UDP"}]});
    let edited = with_entries(live, json!({}), json!({"f:ports": {udp: item}}));
    let found = conflicting_items(&edited, &desired, MANAGER);
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["spec.ports[port=80,protocol=UDP]"]
    );
    // An item of another client beside ours is not taken for ours, at any index.
    let live = json!({"ports": [{"name": "b", "port": 80, "protocol": "UDP"}, {"name": "a", "port": 80, "protocol": "TCP"}]});
    let ours = json!({"f:ports": {tcp: {".": {}, "f:name": {}, "f:port": {}}}});
    let added = with_entries(live, ours, json!({"f:ports": {udp: item}}));
    assert_eq!(conflicting_items(&added, &desired, MANAGER), []);
}

#[test]
fn refusal_of_a_list_concerns_its_items() {
    let item = Key::Item([("port".into(), json!(81))].into());
    let path = FieldPath(vec![Key::Field("spec".into()), Key::Field("ports".into()), item]);
    for (fault, is_in) in [
        ("spec.ports[1].name", true),
        ("spec.ports", true),
        ("spec.portsOther", false),
        ("spec", false),
        ("", false),
    ] {
        assert_eq!(path.is_in_list_of(fault), is_in, "{fault}");
    }
    assert!(!FieldPath(vec![Key::Field("spec".into())]).is_in_list_of("spec"));
}

#[test]
fn owned_fields_beyond_the_desired_object_are_found() {
    let tcp = r#"k:{"port":80,"protocol":"TCP"}"#;
    let other = r#"k:{"port":81,"protocol":"TCP"}"#;
    let desired = json!({"metadata": {"labels": {"a": "b"}, "name": "x"},
        "spec": {"ports": [{"port": 80}], "set": ["a"], "none": null, "map": {}, "list": []}});
    let exact = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {".": {}, "f:none": {}, "f:map": {}, "f:list": {},
        "f:ports": {tcp: {".": {}, "f:port": {}}}, "f:set": {".": {}, "v:\"a\"": {}}}});
    let told = |owned: &Value, keep: &[String], items: bool| {
        let found = excess(&desired, &FieldSet::parse(owned).unwrap(), keep, items);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(told(&exact, &[], true).is_empty());
    let mut more = exact.clone();
    more["f:spec"]["f:replicas"] = json!({});
    more["f:spec"]["f:template"] = json!({"f:x": {"f:y": {}}});
    more["f:spec"]["f:ports"][other] = json!({".": {}, "f:port": {}});
    more["f:spec"]["f:ports"][tcp]["f:nodePort"] = json!({});
    let ports = ["spec.ports[port=80,protocol=TCP].nodePort", "spec.ports[port=81,protocol=TCP]"];
    assert_eq!(told(&more, &[], true), [ports[0], ports[1], "spec.replicas", "spec.template"]);
    assert_eq!(told(&more, &[], false), [ports[0], "spec.replicas", "spec.template"]);
    // Yielded fields that are applied with their live values are no excess.
    let keep = ["spec.replicas".to_owned(), "spec.template.x.y".to_owned()];
    assert_eq!(told(&more, &keep, false), [ports[0]]);
}

#[test]
fn owned_fields_cover_the_desired_object() {
    let port = |text: &str| format!("k:{text}");
    let tcp = port(r#"{"port":53,"protocol":"TCP"}"#);
    let udp = port(r#"{"port":53,"protocol":"UDP"}"#);
    let both = json!({"f:spec": {"f:ports": {&tcp: {".": {}, "f:port": {}}, &udp: {".": {}, "f:port": {}, "f:protocol": {}}}}});
    let only_udp = json!({"f:spec": {"f:ports": {&udp: {".": {}, "f:port": {}, "f:protocol": {}}}}});
    let dns = json!({"spec": {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}});
    let cases: Vec<(&str, Value, Value, Option<&str>)> = vec![
        ("nothing", json!({}), json!({}), None),
        (
            "identity is not tracked",
            json!({"apiVersion": "v1", "kind": "A", "metadata": {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1"}}),
            json!({}),
            None,
        ),
        ("nulls", json!({"spec": {"a": null}}), json!({}), None),
        ("status", json!({"status": {"a": 1}}), json!({}), None),
        (
            "status of a kind without subresource",
            json!({"status": {"a": 1}}),
            json!({"f:status": {"f:b": {}}}),
            Some("status.a"),
        ),
        ("scalar", json!({"spec": {"a": 1}}), json!({"f:spec": {"f:b": {}}}), Some("spec.a")),
        (
            "scalar, only a path",
            json!({"spec": {"a": 1}}),
            json!({"f:spec": {"f:a": {"f:b": {}}}}),
            Some("spec.a"),
        ),
        ("atomic map", json!({"spec": {"a": {"b": 1}}}), json!({"f:spec": {"f:a": {}}}), None),
        ("empty map", json!({"spec": {"a": {}}}), json!({"f:spec": {"f:b": {}}}), Some("spec.a")),
        ("odd keys", json!({"data": {"a.b/c": "x"}}), json!({"f:data": {"f:d": {}}}), Some("data[a.b/c]")),
        ("empty key", json!({"data": {"": "x"}}), json!({"f:data": {"f:": {}}}), None),
        (
            "set",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"f:metadata": {"f:finalizers": {"v:\"a\"": {}}}}),
            Some("metadata.finalizers[1]"),
        ),
        (
            "set in other order",
            json!({"metadata": {"finalizers": ["b", "a"]}}),
            json!({"f:metadata": {"f:finalizers": {"v:\"a\"": {}, "v:\"b\"": {}}}}),
            None,
        ),
        ("places", json!({"a": [1, 2]}), json!({"f:a": {"i:0": {}}}), Some("a[1]")),
        ("key left to its default", dns.clone(), both, None),
        ("two items never share one", dns, only_udp, Some("spec.ports[0].port")),
        (
            "duplicates are one leaf",
            json!({"p": [{"n": 1, "x": "a"}, {"n": 1, "x": "b"}]}),
            json!({"f:p": {"k:{\"n\":1}": {}}}),
            None,
        ),
        (
            "a number is a number",
            json!({"p": [{"n": 1.0}]}),
            json!({"f:p": {"k:{\"n\":1}": {".": {}, "f:n": {}}}}),
            None,
        ),
        ("keyed list, whole atomic", json!({"p": [{"n": 1}]}), json!({"f:p": {}}), None),
    ];
    for (name, desired, fields, expected) in cases {
        let set = FieldSet::parse(&fields).expect(name);
        assert_eq!(uncovered(&desired, &set).as_deref(), expected, "{name}");
        assert_eq!(uncovered_beside(&desired, &set, &FieldSet::default()).as_deref(), expected, "{name}");
    }
    // Only the sets of others show that a map which looks atomic is open.
    let set = FieldSet::parse(&json!({"f:m": {"f:x": {}}})).expect("set");
    let others = FieldSet::parse(&json!({"f:m": {"f:x": {"f:a": {}}}})).expect("set");
    for (desired, expected) in [
        (json!({"m": {"x": {"a": 1}}}), Some("m.x.a")),
        (json!({"m": {"x": {"b": 1}}}), None),
        (json!({"m": {"x": {}}}), None),
    ] {
        assert_eq!(uncovered_beside(&desired, &set, &others).as_deref(), expected);
    }
}

#[test]
fn only_the_apply_of_the_object_itself_is_ours() {
    let entry = json!({"managedFields": [
        {"manager": MANAGER, "operation": "Update", "fieldsV1": {"f:a": {}}},
        {"manager": MANAGER, "operation": "Apply", "subresource": "status", "fieldsV1": {"f:a": {}}},
    ]});
    assert_eq!(of_manager(&entry, MANAGER), None);
    assert!(!of_others(&entry, MANAGER).is_empty());
}
