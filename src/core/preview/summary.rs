//! Groups like changes of many instances, for the report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::diff::{FieldChange, Shown};
use super::report::{Change, InstanceReport, Report, Write};
use crate::children::ItemId;

/// How many different values of one field are counted exactly.
const MOST_VALUES: usize = 1_000;

/// Changes that are alike: of the same child, by the same write, of the same fields.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The kind of the instances.
    pub instance_kind: String,
    /// The id of the child.
    pub child: String,
    /// The kind of the objects.
    pub kind: String,
    /// What is done.
    pub write: Write,
    /// Whether pods restart.
    pub restarts_pods: bool,
    /// The number of objects.
    pub objects: usize,
    /// The number of instances.
    pub instances: usize,
    /// The name of one of the instances.
    pub example: String,
    /// The fields; where values differ from object to object, those of the first.
    pub fields: Vec<FieldGroup>,
}

/// The change of one field in a group.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldGroup {
    /// The field, as the first object has it.
    #[serde(flatten)]
    pub change: FieldChange,
    /// How many different pairs of values the objects have.
    pub variants: usize,
}

/// What the changes of a group have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    instance_kind: &'a str,
    write: Write,
    child: String,
    kind: &'a str,
    restarts_pods: bool,
    /// The paths of the fields, without the name of the instance, by which items of lists are named.
    paths: Vec<String>,
}

#[derive(Default)]
struct Members<'a> {
    objects: usize,
    instances: BTreeSet<String>,
    first: Option<(&'a InstanceReport, &'a Change)>,
    values: Vec<BTreeSet<String>>,
}

impl Report {
    /// The whole report as JSON.
    pub fn to_json(&self) -> Value {
        let count = |is: &dyn Fn(&InstanceReport) -> bool| {
            self.instances.iter().filter(|instance| is(instance)).count()
        };
        json!({
            "apiVersion": "operetta.dev/v1alpha1",
            "kind": "Preview",
            "package": {"name": self.package, "revision": self.revision, "active": self.active},
            "summary": {
                "instances": self.instances.len(),
                "unchanged": count(&InstanceReport::is_unchanged),
                "refused": count(&|instance| !instance.refused.is_empty()),
                "restartsPods": count(&|instance| instance.changes.iter().any(|change| change.restarts_pods)),
                "isRefused": self.is_refused(),
            },
            "groups": groups(&self.instances),
            "crds": self.crds,
            "instances": self.instances,
            "problems": self.problems,
            "notes": self.notes,
            "rights": self.rights.to_json(),
        })
    }
}

/// The changes of all instances, like ones together: the writes in their order, and the largest groups first.
pub fn groups(instances: &[InstanceReport]) -> Vec<Group> {
    let mut found: BTreeMap<Key<'_>, Members<'_>> = BTreeMap::new();
    for instance in instances {
        for change in &instance.changes {
            // The fields of an object that comes into being say little about a fleet.
            let has_fields = change.write != Write::Created;
            let fields = if has_fields { &change.fields[..] } else { &[] };
            let key = Key {
                instance_kind: &instance.kind,
                write: change.write,
                child: ItemId::named(&change.item).child().to_owned(),
                kind: &change.object.gvk.kind,
                restarts_pods: change.restarts_pods,
                paths: fields.iter().map(|field| unnamed(&field.path, &instance.name)).collect(),
            };
            let members = found.entry(key).or_default();
            members.objects += 1;
            members.instances.insert(instance.full_name());
            members.first.get_or_insert((instance, change));
            members.values.resize(fields.len(), BTreeSet::new());
            for (field, values) in fields.iter().zip(&mut members.values) {
                if values.len() < MOST_VALUES {
                    values.insert(variant(instance, field));
                }
            }
        }
    }
    let mut groups: Vec<Group> = found.into_iter().filter_map(|(key, members)| group(key, members)).collect();
    groups.sort_by(|a, b| {
        (&a.instance_kind, a.write).cmp(&(&b.instance_kind, b.write)).then(b.objects.cmp(&a.objects))
    });
    groups
}

fn group(key: Key<'_>, members: Members<'_>) -> Option<Group> {
    let Members { objects, instances, first, values } = members;
    let (instance, change) = first?;
    let fields = change.fields.iter().zip(values);
    let fields = fields.map(|(change, values)| FieldGroup { change: change.clone(), variants: values.len() });
    Some(Group {
        instance_kind: key.instance_kind.to_owned(),
        child: key.child,
        kind: key.kind.to_owned(),
        write: key.write,
        restarts_pods: key.restarts_pods,
        objects,
        instances: instances.len(),
        example: instance.full_name(),
        fields: fields.collect(),
    })
}

/// A path without the name of the instance in the names of items: `volumes[name=hello-data]`.
fn unnamed(path: &str, name: &str) -> String {
    let mut parts = path.split('[');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (item, rest) = part.split_once(']').unwrap_or((part, ""));
        let _ = write!(text, "[{}]{rest}", item.replace(name, "\0"));
    }
    text
}

/// The values of a field, with the name of the instance taken out.
fn variant(instance: &InstanceReport, field: &FieldChange) -> String {
    let text = |shown: &Shown| match shown {
        Shown::Absent => "-".to_owned(),
        Shown::Hidden => "*".to_owned(),
        Shown::Value(value) => value.to_string().replace(&instance.name, "\0"),
    };
    format!("{} {}", text(&field.before), text(&field.after))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::{Gvk, ObjectRef};
    use crate::preview::differences;

    fn instance(name: &str, image: &str) -> InstanceReport {
        let of = |image: &str| {
            let volumes = json!([{"name": format!("{name}-data"), "size": 1}]);
            json!({"spec": {"image": image, "host": format!("{name}.example.org"), "volumes": volumes}})
        };
        let object = ObjectRef { gvk: Gvk::new("v1", "Pod"), namespace: None, name: name.into() };
        let old = json!({"spec": {"image": "old"}});
        let fields = differences(Some(&old), &of(image));
        let changes = ["pods[0]", "pods[1]"]
            .map(|item| Change {
                item: item.to_owned(),
                object: object.clone(),
                write: Write::Updated,
                fields: fields.clone(),
                restarts_pods: false,
            })
            .to_vec();
        InstanceReport { kind: "Web".into(), name: name.to_owned(), changes, ..InstanceReport::default() }
    }

    #[test]
    fn like_changes_are_one_group() {
        let groups = groups(&[instance("i1", "new"), instance("i2", "new"), instance("i3", "newer")]);
        let [group] = &groups[..] else { panic!("{groups:?}") };
        assert_eq!((group.child.as_str(), group.objects, group.instances), ("pods", 6, 3));
        let variants: Vec<_> = group.fields.iter().map(|f| (f.change.path.as_str(), f.variants)).collect();
        // The host differs by the name of the instance only.
        let of_volume = ["name", "size"].map(|field| format!("spec.volumes[name=i1-data].{field}"));
        let expected = [("spec.host", 1), ("spec.image", 2), (&*of_volume[0], 1), (&*of_volume[1], 1)];
        assert_eq!(variants, expected);
    }
}
