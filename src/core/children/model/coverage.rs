//! What our entry of managedFields says of a live object, compared with the desired one.

use super::desired::Desired;
use super::observed::Observed;
use crate::children::{fields, names};

/// Whether the field manager of another package has applied the object, as its label says.
pub(in crate::children) fn is_of_former_package(desired: &Desired, observed: &Observed) -> bool {
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
