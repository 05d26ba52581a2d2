//! Which fields of `metadata` the template of a child may have.

/// What may come from values, each by rules of its own.
const FROM_VALUES: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// What no template may have, written or not: the API server or Operetta sets it.
pub(crate) const NEVER: [&str; 9] = [
    "generateName",
    "uid",
    "resourceVersion",
    "ownerReferences",
    "managedFields",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
];

/// Whether a value may bring that field of the metadata. All others stand in the template, or nowhere.
pub(crate) fn may_come_from_values(field: &str) -> bool {
    FROM_VALUES.contains(&field)
}
