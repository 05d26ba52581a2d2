//! The runs of plans in the decision about an instance: the active run gives each child its origin, is the schedule of
//! the writes, and its steps add actions. The engine is in `crate::plan`; here is what it sees of children.

pub(super) mod decide;
pub(super) mod delete;
mod history;
mod jobs;
mod lost;
mod past;
mod permits;
mod recover;
pub(in crate::children) mod refused;
mod run_order;
mod run_view;
mod runs;
mod secrets;
mod state;

pub use runs::tidy::released;
pub use state::{Stored, own_origins, recall, state_name};

pub use super::model::{Call, Calls, InstanceMemory, KeyProblem, PlanSnapshot, Revision};
