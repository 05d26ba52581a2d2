//! The fields of `metadata` that a child's template may set.

/// The fields that values may set. For each of them, other checks apply.
const FROM_VALUES: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// Fields that no template may set: the API server or Operetta sets them.
pub const NEVER: [&str; 9] = [
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

/// Whether values may set a field of the metadata. All other fields must be literal in the template.
pub fn may_come_from_values(field: &str) -> bool {
    FROM_VALUES.contains(&field)
}
