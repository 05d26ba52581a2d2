//! An API server in memory: server-side apply, merge patches and writes of others, with the managedFields of maps and
//! scalars; a list is one field. What makes a request, and what is made of a reply, is not here.

use std::collections::{BTreeMap, BTreeSet};

use operetta_kube_model::patch::merge;
use serde_json::{Map, Value, json};

/// The path of a value.
type Path = Vec<String>;

/// The objects of an API server, by any key.
#[derive(Clone, Default)]
pub(super) struct Server {
    pub(super) objects: BTreeMap<String, Value>,
    serial: u64,
}

impl Server {
    /// A forced server-side apply; `None` if its precondition does not hold.
    pub(super) fn apply(&mut self, key: &str, body: &Value, manager: &str) -> Option<&Value> {
        let wanted = &body["metadata"];
        let mut live = match self.objects.get(key) {
            None if wanted["resourceVersion"] == "1" => {
                json!({"metadata": {"uid": format!("u{}", self.serial + 1), "managedFields": []}})
            }
            Some(live) if wanted["resourceVersion"].is_null() && live["metadata"]["uid"] == wanted["uid"] => {
                live.clone()
            }
            _ => return None,
        };
        let mut entries = entries_of(&live);
        let old = entries.remove(&(manager.to_owned(), "Apply".to_owned())).unwrap_or_default();
        let new = owned_by(body);
        for path in old.difference(&new).filter(|path| !entries.values().any(|all| all.contains(*path))) {
            remove(&mut live, path);
        }
        for path in &new {
            let value = at(body, path);
            if at(&live, path) != value {
                set(&mut live, path, value.clone());
                for all in entries.values_mut() {
                    all.remove(path);
                }
            }
        }
        for field in ["apiVersion", "kind"] {
            live[field] = body[field].clone();
        }
        for field in ["name", "namespace"] {
            live["metadata"][field] = wanted[field].clone();
        }
        entries.insert((manager.to_owned(), "Apply".to_owned()), new);
        write_entries(&mut live, &entries);
        Some(self.store(key, live))
    }

    /// A merge patch of the metadata; `None` if its precondition does not hold.
    pub(super) fn patch(&mut self, key: &str, patch: &Value, manager: &str) -> Option<&Value> {
        let (meta, change) = (&self.objects.get(key)?["metadata"], &patch["metadata"]);
        if change["uid"] != meta["uid"] || change["resourceVersion"] != meta["resourceVersion"] {
            return None;
        }
        let entries = change.get("managedFields").cloned();
        self.write(key, manager, |live| merge(live, patch));
        if let Some(entries) = entries {
            self.objects.get_mut(key)?["metadata"]["managedFields"] = entries;
        }
        self.objects.get(key)
    }

    /// Another client writes an object: what it changes is its own from then on.
    pub(super) fn write(&mut self, key: &str, manager: &str, change: impl FnOnce(&mut Value)) {
        let mut live = self.objects[key].clone();
        let mut entries = entries_of(&live);
        let before = live.clone();
        change(&mut live);
        let (was, is) = (owned_by(&before), owned_by(&live));
        let changed: BTreeSet<_> =
            was.union(&is).filter(|path| at(&before, path) != at(&live, path)).cloned().collect();
        for all in entries.values_mut() {
            all.retain(|path| !changed.contains(path));
        }
        let own = entries.entry((manager.to_owned(), "Update".to_owned())).or_default();
        own.extend(changed.intersection(&is).cloned());
        write_entries(&mut live, &entries);
        self.store(key, live);
    }

    fn store(&mut self, key: &str, mut live: Value) -> &Value {
        let before = self.objects.get(key);
        if before != Some(&live) {
            self.serial += 1;
            let content = |object: &Value| {
                let mut object = object.clone();
                for field in ["metadata", "status"] {
                    object[field] = Value::Null;
                }
                object
            };
            if before.is_none_or(|before| content(before) != content(&live)) {
                live["metadata"]["generation"] = self.serial.into();
            }
            live["metadata"]["resourceVersion"] = self.serial.to_string().into();
        }
        self.objects.insert(key.to_owned(), live);
        &self.objects[key]
    }
}

/// The paths of the fields of an object that have owners.
fn owned_by(object: &Value) -> BTreeSet<Path> {
    const UNOWNED: [&str; 6] = ["name", "namespace", "uid", "resourceVersion", "generation", "managedFields"];
    let mut fields = BTreeSet::new();
    for (name, value) in object.as_object().unwrap() {
        match (name.as_str(), value) {
            ("apiVersion" | "kind" | "status", _) => {}
            ("metadata", Value::Object(meta)) => {
                for (field, value) in meta.iter().filter(|(field, _)| !UNOWNED.contains(&field.as_str())) {
                    leaves(value, &mut vec![name.clone(), field.clone()], &mut fields);
                }
            }
            _ => leaves(value, &mut vec![name.clone()], &mut fields),
        }
    }
    fields
}

fn leaves(value: &Value, path: &mut Path, into: &mut BTreeSet<Path>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                path.push(name.clone());
                leaves(value, path, into);
                path.pop();
            }
        }
        _ => drop(into.insert(path.clone())),
    }
}

fn at<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(object, |value, name| &value[name])
}

fn set(object: &mut Value, path: &[String], value: Value) {
    *path.iter().fold(object, |value, name| &mut value[name]) = value;
}

fn remove(object: &mut Value, path: &[String]) {
    let Some((last, way)) = path.split_last() else { return };
    let parent = way.iter().fold(&mut *object, |value, name| &mut value[name]);
    let Some(map) = parent.as_object_mut() else { return };
    map.remove(last);
    if map.is_empty() && way.len() > 1 {
        remove(object, way);
    }
}

type Entries = BTreeMap<(String, String), BTreeSet<Path>>;

fn entries_of(live: &Value) -> Entries {
    let entries = live["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap().to_owned();
            let mut paths = BTreeSet::new();
            parse(&entry["fieldsV1"], &mut Vec::new(), &mut paths);
            ((text("manager"), text("operation")), paths)
        })
        .collect()
}

fn parse(fields: &Value, path: &mut Path, into: &mut BTreeSet<Path>) {
    let map = fields.as_object().unwrap();
    if map.is_empty() {
        into.insert(path.clone());
    }
    for (name, below) in map {
        path.push(name.strip_prefix("f:").unwrap().to_owned());
        parse(below, path, into);
        path.pop();
    }
}

fn write_entries(live: &mut Value, entries: &Entries) {
    let entries =
        entries.iter().filter(|(_, paths)| !paths.is_empty()).map(|((manager, operation), paths)| {
            let mut fields = Value::Object(Map::new());
            for path in paths {
                let path: Path = path.iter().map(|name| format!("f:{name}")).collect();
                set(&mut fields, &path, json!({}));
            }
            json!({"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields,
            "apiVersion": live["apiVersion"]})
        });
    let entries: Vec<Value> = entries.collect();
    live["metadata"]["managedFields"] = entries.into();
}
