//! What a revision of a package would do to live instances, without doing it.
//!
//! A [`Simulation`] asks [`crate::children::decide`] what is to be done about one instance, as the manager does, and carries
//! the answer out on the snapshot instead of the cluster, until nothing is left to do. Its caller sends the dry runs
//! and the reads that it asks for. [`Report`] is the result for all instances, [`Group`]s summarise it. Pure: no clock, no I/O.

mod apply;
mod diff;
mod instance;
mod report;
mod runs;
mod simulation;
mod summary;
#[cfg(test)]
mod tests;

pub use diff::{FieldChange, Shown, differences};
pub use instance::adjusted;
pub use report::{
    Change, CrdReport, CrdWrite, InstanceReport, PlanReport, Refused, Rejected, Report, Write, steps_of,
};
pub use simulation::{LiveChild, Request, Response, Simulation, SimulationState, Storing};
pub use summary::{Group, groups};
