//! Which plans a change selects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::build::*;
use crate::package::plan::{ChangedPath, Event, Plan, Trigger};
use crate::plan::*;

fn on(name: &str, children: &[&str], events: Vec<Event>) -> Plan {
    let mut plan = plan(name, vec![apply("a", children)]);
    let location = plan.location.clone();
    plan.triggers =
        events.into_iter().map(|event| Trigger { event, when: None, location: location.clone() }).collect();
    plan
}

fn paths(paths: &[&str]) -> Event {
    let spec = |path: &&str| match path.strip_prefix("refs.") {
        Some(id) => ChangedPath::Ref(id.into()),
        None => match path.strip_prefix("metadata.annotations.") {
            Some(key) => ChangedPath::Metadata { field: "annotations", key: key.into() },
            None => ChangedPath::Spec(path.split('.').map(str::to_owned).collect()),
        },
    };
    Event::Changed(paths.iter().map(spec).collect())
}

fn etcd() -> Vec<Plan> {
    vec![
        on("deploy", &["peers"], vec![Event::Created]),
        on("upgrade", &["members"], vec![Event::Upgraded, paths(&["spec.version", "spec.pod", "refs.tls"])]),
        on("resources", &["members"], vec![paths(&["spec.pod.resources"])]),
        on("resize", &["members"], vec![paths(&["spec.size"])]),
    ]
}

fn selected(plans: &[Plan], newest: &Value, in_use: &[&Value], children: &[&str]) -> Option<Vec<String>> {
    selected_after(None, plans, newest, in_use, children)
}

fn selected_after(
    unfinished: Option<&[String]>,
    plans: &[Plan],
    newest: &Value,
    in_use: &[&Value],
    children: &[&str],
) -> Option<Vec<String>> {
    let refs = |value: &Value| -> BTreeMap<String, String> {
        BTreeMap::from([("tls".to_owned(), value["tls"].to_string())])
    };
    let none = &serde_json::Map::new();
    let all: Vec<_> = std::iter::once(&newest).chain(in_use).map(|value| refs(value)).collect();
    let origins: Vec<ComparedOrigin<'_>> = std::iter::once(&newest)
        .chain(in_use)
        .zip(&all)
        .map(|(value, refs)| ComparedOrigin {
            name: "",
            revision: value["revision"].as_str().unwrap_or("1"),
            spec: &value["spec"],
            labels: none,
            annotations: value["annotations"].as_object().unwrap_or(none),
            refs,
        })
        .collect();
    let children: BTreeSet<String> = children.iter().map(|child| (*child).to_owned()).collect();
    let change = Change {
        plans,
        newest: origins[0],
        in_use: &origins[1..],
        initial: in_use.is_empty(),
        changed_children: &children,
        unfinished,
        holds: &|_| true,
    };
    select(&change).map(|selected| selected.plans)
}

#[test]
fn each_path_selects_the_plan_that_names_it_most_specifically() {
    let old =
        json!({"spec": {"size": 3, "version": "1", "pod": {"resources": 1, "labels": {"a": 1}}, "other": 1}});
    for (newest, expected) in [
        (json!({"spec": {"size": 5}}), vec!["resize"]),
        (json!({"spec": {"version": "2", "size": 5}}), vec!["upgrade", "resize"]),
        (json!({"spec": {"pod": {"resources": 2, "labels": {"a": 1}}}}), vec!["resources"]),
        (json!({"spec": {"pod": {"resources": 1, "labels": {"a": 2}}}}), vec!["upgrade"]),
        (json!({"spec": {"pod": null}}), vec!["upgrade", "resources"]),
        (json!({"revision": "2"}), vec!["upgrade"]),
        (json!({"tls": "new"}), vec!["upgrade"]),
        (json!({"spec": {"other": 2}}), vec![]),
        (json!({}), vec![]),
    ] {
        let mut merged = old.clone();
        for (key, value) in newest.as_object().unwrap() {
            match value.as_object() {
                Some(fields) => fields.iter().for_each(|(field, value)| merged[key][field] = value.clone()),
                None => merged[key] = value.clone(),
            }
        }
        let found = selected(&etcd(), &merged, &[&old], &[]).unwrap_or_default();
        assert_eq!(found, expected, "{newest}");
    }
}

#[test]
fn annotation_selects_the_plans_that_name_it() {
    let plans = [
        on("update", &["members"], vec![Event::Changed(Vec::new())]),
        on(
            "roll",
            &["members"],
            vec![paths(&["metadata.annotations.example.com/restarted-at", "spec.version"])],
        ),
    ];
    let old = json!({"spec": {"size": 3}, "annotations": {"example.com/restarted-at": "1", "note": "a"}});
    for (annotations, expected) in [
        (json!({"example.com/restarted-at": "1", "note": "b"}), vec![]),
        (json!({"example.com/restarted-at": "2"}), vec!["roll"]),
        (json!({}), vec!["roll"]),
    ] {
        let new = json!({"spec": {"size": 3}, "annotations": annotations});
        assert_eq!(selected(&plans, &new, &[&old], &[]).unwrap_or_default(), expected, "{annotations}");
    }
    let both = json!({"spec": {"size": 4}});
    assert_eq!(selected(&plans, &both, &[&old], &[]).unwrap(), ["update", "roll"]);
}

#[test]
fn superseded_changes_are_still_rolled_out() {
    let one = json!({"spec": {"size": 3, "version": "1"}});
    let two = json!({"spec": {"size": 5, "version": "1"}});
    let three = json!({"spec": {"size": 5, "version": "2"}});
    assert_eq!(selected(&etcd(), &three, &[&one, &two], &[]).unwrap(), ["upgrade", "resize"]);
    // Reverted: what was started is undone.
    assert_eq!(selected(&etcd(), &one, &[&one, &two], &[]).unwrap(), ["resize"]);
}

#[test]
fn deploy_runs_first_and_when_no_other_plan_is_selected() {
    let old = json!({"spec": {"size": 3}});
    assert_eq!(selected(&etcd(), &old, &[], &[]).unwrap(), ["deploy"]);
    let other = json!({"spec": {"size": 3, "other": 2}});
    assert_eq!(selected(&etcd(), &other, &[&old], &["members"]).unwrap(), ["deploy"]);
    assert_eq!(selected(&etcd(), &other, &[&old], &["unnamed"]), None);
    let mut plans = etcd();
    plans.push(on("update", &["x"], vec![Event::Changed(Vec::new())]));
    assert_eq!(selected(&plans, &other, &[&old], &[]).unwrap(), ["update"]);
    assert_eq!(selected(&plans, &old, &[&old], &["members"]).unwrap(), ["update"]);
    // A new revision is a change, too.
    let upgraded = json!({"revision": "2", "spec": {"size": 3}});
    assert_eq!(selected(&plans[..1], &upgraded, &[&old], &[]).unwrap(), ["deploy"]);
    assert_eq!(selected(&[plans[0].clone(), plans[4].clone()], &upgraded, &[&old], &[]).unwrap(), ["update"]);
    let size = json!({"spec": {"size": 4}});
    assert_eq!(selected(&plans, &size, &[&old], &[]).unwrap(), ["resize"]);
}

#[test]
fn a_kind_without_rollout_plans_has_no_rollouts() {
    let plans = [plan("backup", vec![note("a", "b", "1")])];
    let spec = json!({"spec": {}});
    assert_eq!(selected(&plans, &spec, &[], &["members"]), None);
}

#[test]
fn a_rollout_that_has_not_succeeded_is_still_needed() {
    let old = json!({"spec": {"size": 3}});
    let deploy = ["deploy".to_owned()];
    // All children may be as the spec says.
    assert_eq!(selected_after(Some(&deploy), &etcd(), &old, &[&old], &[]).unwrap(), ["deploy"]);
    let size = json!({"spec": {"size": 4}});
    let found = selected_after(Some(&deploy), &etcd(), &size, &[&old], &[]);
    assert_eq!(found.unwrap(), ["deploy", "resize"]);
    // The revision no longer has its plan.
    let gone = ["gone".to_owned()];
    assert_eq!(selected_after(Some(&gone), &etcd(), &old, &[&old], &[]).unwrap(), ["deploy"]);
}
