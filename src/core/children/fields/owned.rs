//! Which fields managers own, by their entries of managedFields.

use operetta_kube_model::fields::{Entry, FieldSet, Key, MANAGED, Owner};
use serde_json::Value;

/// What `manager` owns by server-side apply of the object itself (no subresource). `None`: there is no such entry, or it
/// cannot be read; then the manager owns nothing. Takes an object or its metadata.
pub fn of_manager(object_or_metadata: &Value, manager: &str) -> Option<FieldSet> {
    sets(object_or_metadata, |owner| owner.is_apply_of(manager)).next()
}

/// The union of what everybody else owns, except by subresources. Takes an object or its metadata.
pub fn of_others(object_or_metadata: &Value, manager: &str) -> FieldSet {
    let is_other = |owner: &Owner| owner.subresource.is_empty() && !owner.is_apply_of(manager);
    sets(object_or_metadata, is_other).collect()
}

/// Whether another manager has taken over a field of an object from `manager`, also by a subresource such as `scale`.
pub fn is_taken_over(object: &Value, manager: &str, path: &[&str]) -> bool {
    let has_it = |set: FieldSet| set.get(path).is_some();
    let is_other = |owner: &Owner| owner.subresource != "status" && !owner.is_apply_of(manager);
    sets(object, is_other).any(has_it) && !of_manager(object, manager).is_some_and(has_it)
}

/// The sets of the owners that are wanted. Those that cannot be read own nothing.
pub(super) fn sets<'a>(
    object_or_metadata: &'a Value,
    is_wanted: impl Fn(&Owner) -> bool + 'a,
) -> impl Iterator<Item = FieldSet> + 'a {
    let metadata = object_or_metadata.get("metadata").unwrap_or(object_or_metadata);
    let entries = metadata[MANAGED].as_array().into_iter().flatten();
    let wanted = entries.filter(move |entry| Owner::parse(entry).is_some_and(|owner| is_wanted(&owner)));
    wanted.filter_map(|entry| FieldSet::parse(&entry["fieldsV1"]))
}

/// Reads the `fieldsV1` of a child of the instance with that uid. The place of the instance among the owners is that of
/// any item: the sets of all siblings are equal then, and one is kept for all.
pub fn of_child(fields_v1: &Value, instance_uid: &str) -> Option<FieldSet> {
    let mut set = FieldSet::parse(fields_v1)?;
    let owners = ["metadata", "ownerReferences"].map(Key::field);
    let instance = [&owners[..], &[Key::item([("uid".into(), instance_uid.into())])]].concat();
    if let Some(owned) = set.at(&instance).cloned() {
        set.cut(&FieldSet::leaf().under(&instance));
        set.extend(&owned.under(&[&owners[..], &[Key::item([])]].concat()));
    }
    Some(set)
}

/// Takes a field and all below it from an entry. Returns the set of what was taken.
pub(super) fn take(entry: &mut Entry, path: &[Key]) -> Option<FieldSet> {
    let taken = entry.set().at(path)?.clone().under(path);
    let mut rest = entry.set().clone();
    rest.cut(&FieldSet::leaf().under(path));
    entry.fields = rest.into();
    Some(taken)
}

/// Adds the fields of an entry to those of its owner.
pub(super) fn give(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.iter_mut().find(|known| known.owner.is(&entry.owner)) {
        Some(known) => known.add(entry.set()),
        None => entries.push(entry),
    }
}
