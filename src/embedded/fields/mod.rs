//! Who owns which fields: the sets in `managedFields`, and the merge, comparison and removal of values that server-side
//! apply is made of. The algorithms are those of structured-merge-diff, over JSON.

mod compare;
pub(crate) mod manager;
mod merge;
mod remove;
mod set;
mod typed;

pub(crate) use manager::{Conflicts, Managed, Owner};
pub(crate) use set::Set;
pub(crate) use typed::{check, go_value};
