//! Simulations over a small package, with answers instead of a cluster.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::api::{CallError, Class, Gvk};
use crate::children::{ActivePackage, DryRun, KindInfo, RawObject, Snapshot, names};
use crate::package::Package;

/// A package with the `ConfigMap`s `a` and `b`, and `c`, which is not rendered.
fn package() -> Arc<Package> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let schema = "schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}";
    write("crds/crd.yaml", &crate::test_crd::crd("example.org", "ws", "W", schema));
    for id in ["a", "b"] {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{{{{ name }}}}-{id}\"}}\ndata: {{value: new}}\n"
        );
        write(&format!("templates/{id}.yaml"), &text);
    }
    write(
        "operator.yaml",
        "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {name: p}\nspec:\n  version: 0.1.0\n  \
         resources:\n    - crd: crds/crd.yaml\n      children: [{id: a, template: templates/a.yaml}, {id: b, template: templates/b.yaml}, \
         {id: c, template: templates/b.yaml, when: spec.size > 9, deletionPolicy: Retain}]\n",
    );
    Arc::new(crate::package::load(folder.path()).unwrap().0)
}

/// A child of the instance `w` as an earlier revision has applied it.
fn live(id: &str) -> LiveChild {
    let labels = json!({names::OPERATOR: "p", names::KIND: "W.example.org", names::INSTANCE: "w",
        names::INSTANCE_UID: "u", names::CHILD: id, names::MANAGED_BY: "operetta"});
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("w-{id}"), "namespace": "n", "uid": format!("uid-{id}"), "resourceVersion": "7",
            "labels": labels, "annotations": {names::INTENT: "old"},
            "ownerReferences": [{"apiVersion": "example.org/v1", "kind": "W", "name": "w", "uid": "u"}],
            "managedFields": [{"manager": "operetta/p", "operation": "Apply", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:value": {}, "f:gone": {}}}}]},
        "data": {"value": "old", "gone": "1", "theirs": "2"},
    });
    let metadata = ObjectMeta::deserialize(&object["metadata"]).unwrap();
    let gvk = Gvk::new("v1", "ConfigMap");
    let seen = RawObject { gvk: &gvk, metadata: &metadata, body: Some(&object), reports: false };
    let observed = seen.observe(|_, _| Arc::from([])).unwrap();
    LiveChild { observed: Arc::new(observed), text: object.to_string().into() }
}

fn simulation(children: Vec<LiveChild>) -> Simulation {
    simulation_of(children, |_| {})
}

/// The preview of an instance after this change of it.
fn simulation_of(children: Vec<LiveChild>, change: impl Fn(&mut Value)) -> Simulation {
    let active = ActivePackage::new(&package(), 0).unwrap();
    let mut instance = json!({"apiVersion": "example.org/v1", "kind": "W",
        "metadata": {"name": "w", "namespace": "n", "uid": "u", "generation": 1}, "spec": {"size": 1}});
    change(&mut instance);
    let mut snapshot = Snapshot::new(active, instance, |_| true);
    snapshot.kinds = vec![KindInfo::listed(Gvk::new("v1", "ConfigMap"), true)];
    snapshot.observed = children.iter().map(|child| Arc::clone(&child.observed)).collect();
    Simulation::new(snapshot, children, &Arc::new(HashMap::new()), "operetta/p".to_owned())
}

/// Answers all dry runs, by the name of the item.
fn report(mut simulation: Simulation, answer: impl Fn(&str) -> Response) -> InstanceReport {
    loop {
        match simulation.advance() {
            SimulationState::Done(report) => return *report,
            SimulationState::Read(needs) => panic!("{needs:?}"),
            SimulationState::DryRun(requests) => {
                assert!(!requests.is_empty());
                for request in requests {
                    simulation.answer(&request.check, answer(&request.check.item));
                }
            }
        }
    }
}

fn writes(report: &InstanceReport) -> Vec<(&str, Write)> {
    report.changes.iter().map(|change| (change.item.as_str(), change.write)).collect()
}

#[test]
fn children_are_updated_created_and_pruned() {
    let report = report(simulation(vec![live("a"), live("z")]), |_| Response::DryRun(DryRun::Passed));
    assert_eq!(
        writes(&report),
        [("a", Write::Updated), ("b", Write::Created), ("z", Write::Pruned)],
        "{report:?}"
    );
    assert!(report.refused.is_empty() && report.waits.is_empty(), "{report:?}");
    let data: Vec<Value> = report.changes[0]
        .fields
        .iter()
        .filter(|field| field.path.starts_with("data"))
        .map(|field| json!([field.path, field.before, field.after]))
        .collect();
    // What others own stays.
    assert_eq!(data, [json!(["data.gone", "1", null]), json!(["data.value", "old", "new"])]);
}

#[test]
fn objects_are_compared_as_a_server_stores_them() {
    // This server sets the field again that the package drops.
    let storing = |object: &Value| {
        let mut stored = object.clone();
        stored["data"]["gone"] = "1".into();
        Some(stored)
    };
    let simulation = simulation(vec![live("a")]).storing(Box::new(storing));
    let report = report(simulation, |_| Response::DryRun(DryRun::Passed));
    let data = report.changes[0].fields.iter().filter(|field| field.path.starts_with("data"));
    assert_eq!(data.map(|field| field.path.as_str()).collect::<Vec<_>>(), ["data.value"]);
    let created = report.changes[1].fields.iter().find(|field| field.path == "data.gone");
    assert_eq!(created, None, "a new object is shown as it is applied");
}

#[test]
fn a_refused_dry_run_holds_back_everything() {
    let refusal = || CallError::new(Class::Permanent, 422, "Invalid", "no".to_owned());
    let report = report(simulation(vec![live("a"), live("z")]), |item| {
        Response::DryRun(if item == "a" { DryRun::Refused(refusal()) } else { DryRun::Passed })
    });
    assert!(report.changes.is_empty(), "{report:?}");
    let refused: Vec<_> =
        report.refused.iter().map(|one| (one.item.as_deref(), one.reason.as_str())).collect();
    assert_eq!(refused, [(Some("a"), "ApplyRefused")]);
}

#[test]
fn object_of_another_client_is_refused_and_the_rest_is_not() {
    let occupied = || CallError::new(Class::Conflict, 409, "AlreadyExists", "it exists".to_owned());
    let report = report(simulation(vec![live("a"), live("z")]), |item| match item {
        "b" => Response::Occupied(occupied()),
        _ => Response::DryRun(DryRun::Passed),
    });
    // Nothing is pruned before all is applied.
    assert_eq!(writes(&report), [("a", Write::Updated)], "{report:?}");
    assert_eq!(report.refused[0].reason, "AlreadyExists");
}

#[test]
fn an_immutable_field_recreates_the_object_if_the_package_permits() {
    let refusal = || CallError::new(Class::Permanent, 422, "Invalid", "field is immutable".to_owned());
    let report = report(simulation(vec![live("a")]), |item| {
        Response::DryRun(if item == "a" { DryRun::Recreate(refusal()) } else { DryRun::Passed })
    });
    assert_eq!(writes(&report), [("a", Write::Recreated), ("b", Write::Created)], "{report:?}");
}

#[test]
fn a_policy_that_was_never_applied_is_noted() {
    let report = report(simulation(vec![live("c")]), |_| Response::DryRun(DryRun::Passed));
    assert_eq!(
        writes(&report),
        [("a", Write::Created), ("b", Write::Created), ("c", Write::Retained)],
        "{report:?}"
    );
    let [note] = &report.notes[..] else { panic!("{:?}", report.notes) };
    assert!(note.starts_with("ConfigMap n/w-c (c) was last applied with another deletionPolicy"), "{note}");
}

#[test]
fn a_pending_edit_is_noted() {
    let notes = |generation: i64| {
        let instance = |instance: &mut Value| {
            instance["metadata"]["generation"] = generation.into();
            instance["status"] = json!({"observedGeneration": 4});
        };
        report(simulation_of(Vec::new(), instance), |_| Response::DryRun(DryRun::Passed)).notes
    };
    assert_eq!(notes(4), [""; 0]);
    let edited = notes(5);
    assert!(edited[0].contains("generation 5, of which 4 is handled"), "{edited:?}");
}

#[test]
fn the_diff_of_a_recreated_object_has_no_defaults_of_the_server() {
    let mut child = live("a");
    let mut object: Value = serde_json::from_str(&child.text).unwrap();
    object["data"]["default"] = "by the server".into();
    let entry = json!({"manager": "other", "operation": "Update", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:theirs": {}}}});
    object["metadata"]["managedFields"].as_array_mut().unwrap().push(entry);
    child.text = object.to_string().into();
    let refusal = || CallError::new(Class::Permanent, 422, "Invalid", "field is immutable".to_owned());
    let report = report(simulation(vec![child]), |item| {
        Response::DryRun(if item == "a" { DryRun::Recreate(refusal()) } else { DryRun::Passed })
    });
    let fields = report.changes[0].fields.iter().map(|field| field.path.as_str());
    let data: Vec<&str> = fields.filter(|path| path.starts_with("data")).collect();
    // What other clients have set is lost with the object.
    assert_eq!(data, ["data.gone", "data.theirs", "data.value"], "{report:?}");
}
