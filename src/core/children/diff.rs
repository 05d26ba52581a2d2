//! How a live object differs from the desired one, regardless of order, limits and earlier refusals.

use super::model::{
    Desired, Difference, Drift, Item, Observed, ReconcileState, is_covered, is_of_former_package,
    owns_extra_fields,
};

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
    } else if observed.mark != observed.baseline {
        Difference::Drifted(Drift::Unexplained)
    } else if !is_as_applied && owns_extra_fields(desired, observed, true) {
        Difference::Drifted(Drift::ForeignFields)
    } else {
        Difference::Current
    }
}

impl Item {
    /// How the live object differs from the desired one; `None` if the desired one has no value.
    pub(super) fn difference(&self, state: &ReconcileState) -> Option<Difference> {
        let observed = self.observed.as_deref();
        let is_as_applied = observed.is_some_and(|observed| state.is_as_applied(observed));
        Some(match diff(self.desired.as_ref().ok()?, observed, is_as_applied) {
            Difference::Missing if self.done => Difference::Current,
            // Drift was compared before the body was dropped.
            Difference::Drifted(_) if self.needs_no_body => Difference::Current,
            difference => difference,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::children::model::RawObject;
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
            yields: Vec::new(),
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
        let seen = RawObject { gvk: &gvk, metadata, body: None, reports: false };
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
        let changed = Observed { baseline: lost.mark.clone(), ..live.clone() };
        assert_eq!(of(&changed), Difference::Drifted(Drift::Unexplained));
        for (hash, is_outdated) in [("h", false), ("other", true)] {
            let terminating = Observed { terminating: true, ..observed(hash, &ours) };
            assert_eq!(of(&terminating), Difference::Terminating { is_outdated });
        }
    }
}
