//! What the checks of expressions know.

use serde_json::{Map, Value};

/// The variables of expressions, including those that only some expressions see.
pub(crate) const ROOTS: [&str; 17] = [
    "instance",
    "spec",
    "name",
    "namespace",
    "labels",
    "operator",
    "defaults",
    "let",
    "children",
    "retained",
    "refs",
    "cluster",
    "self",
    "record",
    "previous",
    "run",
    "outputs",
];

/// The facts about the resource that the checks need.
pub(crate) struct ResourceInfo<'a> {
    /// The schema of the instances, if the CRD has one.
    pub(crate) schema: Option<&'a Value>,
    /// Whether instances are namespaced.
    pub(crate) namespaced: bool,
    /// The package's constants.
    pub(crate) defaults: &'a Map<String, Value>,
    /// Whether all of `operator.yaml` could be read. Otherwise an unknown name may be in a part that could
    /// not be read.
    pub(crate) complete: bool,
}
