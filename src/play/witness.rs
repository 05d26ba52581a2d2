//! Whether something that a case says is not there is there at a moment.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde_json::Value;

use super::absence::{Absence, Owner, Place};
use super::view::View;
use crate::package::test_file::Address;
use crate::template::Live;

/// What is there at a moment. Objects are listed once, however many absences are about them.
pub(super) struct Moment<'v> {
    view: &'v View<'v>,
    children: OnceCell<Vec<(String, Option<String>, Live)>>,
    /// The names of objects, by kind.
    names: BTreeMap<String, BTreeSet<String>>,
}

impl<'v> Moment<'v> {
    pub(super) fn of(view: &'v View<'v>) -> Self {
        Self { view, children: OnceCell::new(), names: BTreeMap::new() }
    }

    fn children(&self) -> &[(String, Option<String>, Live)] {
        self.children.get_or_init(|| self.view.children())
    }

    fn names(&mut self, kind: &str) -> &BTreeSet<String> {
        let view = self.view;
        self.names.entry(kind.to_owned()).or_insert_with(|| {
            let objects = view.list(kind, "");
            objects
                .iter()
                .filter_map(|one| one.value["metadata"]["name"].as_str())
                .map(str::to_owned)
                .collect()
        })
    }

    /// Whether it is there.
    pub(super) fn has(&mut self, absence: &Absence) -> bool {
        let view = self.view;
        match absence {
            Absence::Instance => view.instance().is_some(),
            Absence::Object { namespace, kind, name } => {
                let (namespace, kind, name) = (namespace.clone(), kind.clone(), name.clone());
                view.find(&Address { namespace, kind, name }).is_some()
            }
            Absence::Member { id, key } => {
                self.children().iter().any(|(of, at, _)| of == id && at.as_deref() == Some(key.as_str()))
            }
            Absence::Named { kind, name, is_start } => is_among(self.names(kind), name, *is_start),
            Absence::Value(Owner::Instance, places) => {
                view.instance().is_some_and(|instance| has(&instance.value, places))
            }
            Absence::Value(Owner::Child(id), places) => {
                self.children().iter().any(|(of, _, object)| of == id && has(&object.value, places))
            }
            Absence::Value(Owner::Kind(kind), places) => {
                view.list(kind, "").iter().any(|object| has(&object.value, places))
            }
        }
    }
}

/// Whether a name, or one that begins so, is among names.
fn is_among(names: &BTreeSet<String>, name: &str, is_start: bool) -> bool {
    if is_start {
        let mut not_before = names.range::<str, _>((Bound::Included(name), Bound::Unbounded));
        not_before.next().is_some_and(|first| first.starts_with(name))
    } else {
        names.contains(name)
    }
}

/// Whether an object has a value at a path. `conditions` at its beginning stands for the conditions of the status, by their types.
pub(super) fn has(object: &Value, places: &[Place]) -> bool {
    if let [Place::Key(first), Place::Key(of_type), rest @ ..] = places
        && first == "conditions"
        && object["conditions"].is_null()
    {
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        return conditions.any(|one| one["type"] == *of_type && below(one, rest));
    }
    below(object, places)
}

fn below(value: &Value, places: &[Place]) -> bool {
    match places.split_first() {
        None => !value.is_null(),
        Some((Place::Key(key), rest)) => value.get(key).is_some_and(|value| below(value, rest)),
        Some((Place::Items, rest)) => value.as_array().into_iter().flatten().any(|item| below(item, rest)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_beginnings_are_found() {
        let names = BTreeSet::from(["a-1", "b", "c-2"].map(str::to_owned));
        for (name, is_start, found) in [
            ("b", false, true),
            ("a", false, false),
            ("a", true, true),
            ("a-2", true, false),
            ("b", true, true),
            ("d", true, false),
        ] {
            assert_eq!(is_among(&names, name, is_start), found, "{name} {is_start}");
        }
    }

    #[test]
    fn values_are_found_in_lists_and_conditions() {
        let object = json!({
            "data": {"a": null, "b": "x"},
            "spec": {"containers": [{"name": "a"}, {"name": "b", "envFrom": []}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let key = |key: &str| Place::Key(key.to_owned());
        let found = |places: &[Place]| has(&object, places);
        assert!(found(&[key("data"), key("b")]) && !found(&[key("data"), key("a")]));
        assert!(!found(&[key("data"), key("c")]));
        assert!(found(&[key("spec"), key("containers"), Place::Items, key("envFrom")]));
        assert!(!found(&[key("spec"), key("containers"), Place::Items, key("env")]));
        assert!(found(&[key("conditions"), key("Ready")]) && !found(&[key("conditions"), key("Stalled")]));
        assert!(found(&[key("conditions"), key("Ready"), key("status")]));
    }
}
