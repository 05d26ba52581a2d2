//! Finds items that render the same object.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::api::ObjectRef;
use crate::children::model::{ChildError, Context, Item};

/// Two items that render the same object would overwrite each other for ever. Neither is applied, and the live object is
/// left unchanged. If the items have different origins, the object belongs to the newer one once a rollout has recorded it;
/// until then the write order blocks that item.
pub(super) fn resolve_duplicates(ctx: &Context<'_>, items: &mut Vec<Item>) {
    let mut first: HashMap<ObjectRef, usize> = HashMap::new();
    let mut duplicates: Vec<(usize, usize)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Ok(desired) = &item.desired else { continue };
        match first.entry(desired.object.clone()) {
            Entry::Occupied(other) => duplicates.push((*other.get(), index)),
            Entry::Vacant(free) => {
                free.insert(index);
            }
        }
    }
    let mut replaced = Vec::new();
    for (one, other) in duplicates {
        if items[one].origin != items[other].origin {
            let (new, old) =
                if items[one].origin < items[other].origin { (one, other) } else { (other, one) };
            replaced.extend(ctx.origins.memory(&items[new].name).origin.map(|_| old));
            continue;
        }
        for (index, twin) in [(one, other), (other, one)] {
            let twin = items[twin].name.clone();
            if let Ok(desired) = &items[index].desired {
                let message =
                    format!("renders {}, and so does {twin}; give them different names", desired.object);
                items[index].desired = Err(ChildError::Invalid { message });
            }
        }
    }
    replaced.sort_unstable();
    replaced.dedup();
    for index in replaced.into_iter().rev() {
        items.remove(index);
    }
}
