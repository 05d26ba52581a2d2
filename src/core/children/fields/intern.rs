//! Sharing equal field sets: ten thousand siblings have one between them.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use serde_json::{Map, Value};

use super::path::Key;
use super::set::{FieldSet, unite};

/// What is in use now, by hash. Entries whose set is gone are swept when the table has doubled.
#[derive(Default)]
struct Table {
    sets: HashMap<u64, Vec<Weak<FieldSet>>>,
    sweep_at: usize,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl FieldSet {
    /// The one shared set that equals this one.
    pub fn interned(self) -> Arc<Self> {
        let mut hasher = HASHER.build_hasher();
        std::hash::Hash::hash(&self, &mut hasher);
        let hash = hasher.finish();
        let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = table.sets.entry(hash).or_default();
        if let Some(shared) = slot.iter().filter_map(Weak::upgrade).find(|shared| **shared == self) {
            return shared;
        }
        let shared = Arc::new(self);
        slot.retain(|weak| weak.strong_count() > 0);
        slot.push(Arc::downgrade(&shared));
        if table.sets.len() > table.sweep_at {
            table.sets.retain(|_, slot| slot.iter().any(|weak| weak.strong_count() > 0));
            table.sweep_at = (table.sets.len() * 2).max(1_024);
        }
        shared
    }

    /// The union of several `fieldsV1`. Those that cannot be read own nothing.
    pub fn united<'a>(entries: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut union = Map::new();
        for fields in entries.into_iter().filter_map(Value::as_object) {
            unite(&mut union, fields);
        }
        Self::parse(&Value::Object(union)).unwrap_or_default()
    }

    /// Whether the field at a path of plain names is owned, itself or by something below it.
    pub fn contains(&self, path: &[&str]) -> bool {
        let mut node = &self.root;
        for name in path {
            match node.child(&Key::Field((*name).into())) {
                // A node that is owned as a whole owns all below it. (The root has no owner.)
                Some(below) if below.is_leaf() => return true,
                Some(below) => node = below,
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_field_sets_share_one_allocation() {
        let set = || FieldSet::parse(&json!({"f:spec": {"f:replicas": {}}})).unwrap().interned();
        let (a, b) = (set(), set());
        assert!(Arc::ptr_eq(&a, &b));
        assert!(a.contains(&["spec", "replicas"]) && !a.contains(&["spec", "paused"]));
    }

    #[test]
    fn union_contains_the_fields_of_all_entries() {
        let union = FieldSet::united([&json!({"f:a": {"f:x": {}}}), &json!({"f:a": {"f:y": {}}}), &json!(7)]);
        assert!(union.contains(&["a", "x"]) && union.contains(&["a", "y"]) && !union.contains(&["b"]));
    }
}
