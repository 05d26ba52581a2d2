//! What is known of the objects of a selector.

use std::sync::Arc;

use crate::children::model::{
    LookupResult, PENDING, Problem, ReadError, Referred, Refs, ResourceSelector, Snapshot,
};

impl Refs {
    /// The objects that a selector names. They are watched from now on.
    pub(super) fn ask(
        &mut self,
        snapshot: &Snapshot,
        want: &ResourceSelector,
    ) -> Result<Vec<Arc<Referred>>, Problem> {
        self.wants.push(want.clone());
        let found = known(snapshot, want);
        self.pending |= found.as_ref().is_err_and(|problem| problem.reason == PENDING);
        found
    }
}

/// The objects that a selector names, or why they are unknown.
pub(in crate::children) fn known(
    snapshot: &Snapshot,
    want: &ResourceSelector,
) -> Result<Vec<Arc<Referred>>, Problem> {
    let problem = Problem::waiting;
    Err(match snapshot.lookup(want) {
        LookupResult::Known(objects) => return Ok(objects),
        LookupResult::Pending => problem(PENDING, format!("{want} is being read")),
        LookupResult::Unknown(ReadError::KindMissing) => problem(
            "KindMissing",
            format!("the API server does not serve {}; is its CRD installed?", want.gvk),
        ),
        LookupResult::Unknown(ReadError::Forbidden(why)) => {
            problem("RefForbidden", format!("{want} may not be read: {why}"))
        }
        LookupResult::Unknown(ReadError::Failed(why)) => {
            problem("RefUnreadable", format!("{want} cannot be read: {why}"))
        }
    })
}
