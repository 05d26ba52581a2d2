//! How a live object differs from the desired one, regardless of order, limits and earlier refusals.

use super::desired::Desired;
use super::observed::Observed;
use super::{fields, names};

/// How a live object differs from the desired one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Difference {
    /// There is nothing to apply.
    Current,
    /// There is no live object.
    Missing,
    /// It was last applied with another desired object.
    Outdated,
    /// It was last applied with this desired object, and has changed since.
    Drifted(Drift),
    /// It is being deleted: nothing can be applied until it is gone.
    Terminating {
        /// Whether it was last applied with another desired object.
        is_outdated: bool,
    },
}

/// What shows that an object has drifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drift {
    /// Our entry of managedFields lacks fields of the desired object.
    FieldsLost,
    /// Our entry of managedFields has more than the desired object.
    ForeignFields,
    /// Another client changed the object, and metadata cannot show whether the change concerns what we apply.
    Unexplained,
    /// It was applied for a package that has handed the kind over since.
    FormerPackage,
}

impl Difference {
    /// Whether an apply gives the child a new desired object. (All else restores the one it has.)
    pub(super) fn is_change(self) -> bool {
        matches!(self, Self::Missing | Self::Outdated)
    }
}

/// Compares a desired object with the live one. `is_as_applied`: our last apply left the managedFields as
/// they are, so that they show no drift.
pub(super) fn diff(desired: &Desired, observed: Option<&Observed>, is_as_applied: bool) -> Difference {
    let Some(observed) = observed else { return Difference::Missing };
    let is_outdated = observed.desired.as_deref() != Some(&desired.hash);
    if observed.terminating {
        Difference::Terminating { is_outdated }
    } else if is_outdated {
        Difference::Outdated
    } else if is_of_former_package(desired, observed) {
        Difference::Drifted(Drift::FormerPackage)
    } else if !is_as_applied && !is_covered(desired, observed) {
        Difference::Drifted(Drift::FieldsLost)
    } else if observed.mark != observed.settled {
        Difference::Drifted(Drift::Unexplained)
    } else if !is_as_applied && owns_extra_fields(desired, observed, true) {
        Difference::Drifted(Drift::ForeignFields)
    } else {
        Difference::Current
    }
}

/// Whether the field manager of another package has applied the object, as its label says.
pub(super) fn is_of_former_package(desired: &Desired, observed: &Observed) -> bool {
    let package = desired.body["metadata"]["labels"][names::OPERATOR].as_str();
    observed.is_made_by_us() && package.is_some_and(|package| *package != *observed.package)
}

/// Whether our entry of managedFields still owns every leaf of the desired object.
pub fn is_covered(desired: &Desired, observed: &Observed) -> bool {
    let owned = observed.owned.as_ref();
    owned.is_some_and(|owned| fields::uncovered_beside(&desired.body, owned, &observed.foreign).is_none())
}

/// Whether our entry of managedFields has fields that the desired object lacks, although it was applied last.
/// `items`: whether items of lists count. They do only while all of our items are intact: an item in place of
/// a lost one is to be removed.
pub fn owns_extra_fields(desired: &Desired, observed: &Observed, items: bool) -> bool {
    observed.desired.as_deref() == Some(&desired.hash)
        && observed
            .owned
            .as_ref()
            .is_some_and(|owned| !fields::excess(&desired.body, owned, &desired.keep, items).is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::children::Seen;
    use crate::children::names;

    fn desired(hash: &str) -> Desired {
        let observed = observed("h", &json!({"f:data": {"f:a": {}}}));
        let body = Arc::new(json!({"data": {"a": "1"}}));
        let hash = hash.to_owned();
        Desired {
            object: observed.object,
            body,
            hash,
            generated: Vec::new(),
            keep: Vec::new(),
            completion: None,
        }
    }

    /// An object that was applied with that hash, and of which we own those fields.
    fn observed(hash: &str, owned: &Value) -> Observed {
        let metadata = serde_json::from_value(json!({
            "name": "c", "namespace": "n", "uid": "u", "resourceVersion": "7",
            "labels": {names::OPERATOR: "o", names::CHILD: "c", names::INSTANCE_UID: "i"},
            "annotations": {names::INTENT: hash},
            "managedFields": [{"manager": "operetta/o", "operation": "Apply", "fieldsV1": owned}],
        }));
        let gvk = crate::api::Gvk::new("v1", "ConfigMap");
        let metadata = &metadata.unwrap();
        let seen = Seen { gvk: &gvk, metadata, body: None, reports: false };
        seen.observe(|_, _| Arc::from([])).unwrap()
    }

    #[test]
    fn metadata_shows_every_difference() {
        let ours = json!({"f:data": {"f:a": {}}});
        let of = |live: &Observed| diff(&desired("h"), Some(live), false);
        let live = observed("h", &ours);
        assert_eq!(diff(&desired("h"), None, false), Difference::Missing);
        assert_eq!(of(&live), Difference::Current);
        assert_eq!(of(&observed("other", &ours)), Difference::Outdated);
        let lost = observed("h", &json!({"f:metadata": {}}));
        assert_eq!(of(&lost), Difference::Drifted(Drift::FieldsLost));
        assert_eq!(diff(&desired("h"), Some(&lost), true), Difference::Current, "an apply changes nothing");
        let more = observed("h", &json!({"f:data": {"f:a": {}, "f:b": {}}}));
        assert_eq!(of(&more), Difference::Drifted(Drift::ForeignFields));
        let changed = Observed { settled: lost.mark.clone(), ..live.clone() };
        assert_eq!(of(&changed), Difference::Drifted(Drift::Unexplained));
        for (hash, is_outdated) in [("h", false), ("other", true)] {
            let terminating = Observed { terminating: true, ..observed(hash, &ours) };
            assert_eq!(of(&terminating), Difference::Terminating { is_outdated });
        }
    }
}
