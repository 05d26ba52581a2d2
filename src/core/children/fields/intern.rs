//! Sharing equal field sets: ten thousand siblings have one between them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use operetta_kube_model::fields::FieldSet;

/// What is in use now, by hash. Entries whose set is gone are swept when the table has doubled.
#[derive(Default)]
struct Table {
    sets: HashMap<u64, Vec<Weak<FieldSet>>>,
    sweep_at: usize,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The one shared set that equals this one.
pub fn interned(set: &FieldSet) -> Arc<FieldSet> {
    let hash = HASHER.hash_one(set);
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = table.sets.entry(hash).or_default();
    if let Some(shared) = slot.iter().filter_map(Weak::upgrade).find(|shared| **shared == *set) {
        return shared;
    }
    // A copy has no spare room.
    let shared = Arc::new(set.clone());
    slot.retain(|weak| weak.strong_count() > 0);
    slot.push(Arc::downgrade(&shared));
    if table.sets.len() > table.sweep_at {
        table.sets.retain(|_, slot| slot.iter().any(|weak| weak.strong_count() > 0));
        table.sweep_at = (table.sets.len() * 2).max(1_024);
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_field_sets_share_one_allocation() {
        let set = || interned(&FieldSet::of(&[&["spec", "replicas"]]));
        assert!(Arc::ptr_eq(&set(), &set()));
    }
}
