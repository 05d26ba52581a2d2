//! Compares what is there with a part that is expected.

use operetta_kube_model::schema::join;
use serde_json::Value;

use crate::yaml::PathItem;

/// How many differences are found at most.
const MOST: usize = 200;

/// A place where something else is there than expected.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    /// The path, for example `status.conditions[Ready]`.
    pub path: String,
    /// The same place in the expected part.
    pub place: Vec<PathItem>,
    pub expected: Value,
    /// `None` if the place does not exist.
    pub found: Option<Value>,
    /// Whether `expected` is an item that none fits; `found` is the nearest one.
    pub is_item: bool,
    /// What the object says of it.
    pub said: Option<String>,
}

/// Adds a step to the front of the places of differences.
fn place(found: &mut [Difference], item: impl Fn() -> PathItem) {
    for difference in found {
        difference.place.insert(0, item());
    }
}

/// What differs from the expected part. Fields that it does not name may have any value; null stands for an absent field. Of a list of
/// maps each item must fit another item; a list of other values is the whole list.
pub(super) fn differences(expected: &Value, found: Option<&Value>, path: &str) -> Vec<Difference> {
    let mut all = Vec::new();
    compare(expected, found, path, &mut all);
    all
}

fn compare(expected: &Value, found: Option<&Value>, path: &str, all: &mut Vec<Difference>) {
    if all.len() >= MOST {
        return;
    }
    let fits = match (expected, found) {
        (Value::Null, found) => found.is_none_or(Value::is_null),
        (Value::Object(part), Some(Value::Object(whole))) => {
            for (key, value) in part {
                let before = all.len();
                compare(value, whole.get(key), &join(path, key), all);
                place(&mut all[before..], || PathItem::Key(key.clone()));
            }
            true
        }
        (Value::Array(part), Some(Value::Array(whole))) if part.iter().any(Value::is_object) => {
            return compare_items(part, whole, path, all);
        }
        (Value::Number(a), Some(Value::Number(b))) => a.as_f64() == b.as_f64(),
        (expected, Some(found)) => expected == found,
        (_, None) => false,
    };
    if !fits {
        all.push(Difference {
            path: path.to_owned(),
            place: Vec::new(),
            expected: expected.clone(),
            found: found.cloned(),
            is_item: false,
            said: None,
        });
    }
}

/// Each expected item takes the first item that fits and that no other has taken.
fn compare_items(part: &[Value], whole: &[Value], path: &str, all: &mut Vec<Difference>) {
    let mut taken = vec![false; whole.len()];
    for (at, expected) in part.iter().enumerate() {
        let free = whole.iter().enumerate().filter(|(index, _)| !taken[*index]);
        let compared = free.map(|(index, item)| {
            let found = differences(expected, Some(item), &label(path, item, index));
            (index, found, !same_name(expected, item))
        });
        let nearest = compared.min_by_key(|(_, found, is_other)| (!found.is_empty(), *is_other, found.len()));
        match nearest {
            Some((index, found, _)) if found.is_empty() => taken[index] = true,
            Some((index, mut found, is_other))
                if !is_other || found.len() < expected.as_object().map_or(1, serde_json::Map::len) =>
            {
                taken[index] = !is_other;
                place(&mut found, || PathItem::Index(at));
                all.extend(found);
            }
            nearest => all.push(Difference {
                path: format!("{path}[]"),
                place: vec![PathItem::Index(at)],
                expected: expected.clone(),
                found: nearest.map(|(index, ..)| whole[index].clone()),
                is_item: true,
                said: None,
            }),
        }
    }
}

const NAMES: [&str; 4] = ["name", "type", "plan", "reason"];

fn same_name(a: &Value, b: &Value) -> bool {
    NAMES.iter().any(|name| a[*name].is_string() && a[*name] == b[*name])
}

/// The path of an item: by its name, if it has one.
fn label(path: &str, item: &Value, index: usize) -> String {
    match NAMES.iter().find_map(|name| item[*name].as_str()) {
        Some(name) => format!("{path}[{name}]"),
        None => format!("{path}[{index}]"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(expected: &Value, found: &Value) -> Vec<String> {
        differences(expected, Some(found), "").into_iter().map(|difference| difference.path).collect()
    }

    #[test]
    fn maps_are_partial_and_null_stands_for_absent() {
        let found = json!({"a": 1, "b": {"c": "x", "d": null}, "e": 2.0});
        assert!(paths(&json!({"b": {"c": "x"}, "e": 2, "f": null}), &found).is_empty());
        assert!(paths(&json!({"b": {"d": null}}), &found).is_empty());
        assert_eq!(paths(&json!({"a": 2, "b": {"c": "y", "z": 1}}), &found), ["a", "b.c", "b.z"]);
        assert_eq!(paths(&json!({"a": null}), &found), ["a"]);
    }

    #[test]
    fn items_that_are_maps_are_found_and_others_are_the_whole_list() {
        let found = json!({"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "False"}], "list": [1, 2]});
        assert!(
            paths(&json!({"conditions": [{"type": "B", "status": "False"}], "list": [1, 2]}), &found)
                .is_empty()
        );
        let wrong = json!({"conditions": [{"type": "B", "status": "True"}, {"type": "C"}], "list": [1]});
        assert_eq!(paths(&wrong, &found), ["conditions[B].status", "conditions[]", "list"]);
        // Two equal expectations need two items.
        let twice = json!({"conditions": [{"type": "A"}, {"type": "A"}]});
        assert_eq!(paths(&twice, &found), ["conditions[]"]);
    }

    #[test]
    fn differences_are_bounded() {
        let many: serde_json::Map<String, Value> = (0..1_000).map(|i| (i.to_string(), i.into())).collect();
        assert_eq!(paths(&many.into(), &json!({})).len(), MOST);
    }
}
