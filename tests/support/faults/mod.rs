//! A wire between a manager and the API server that breaks as it is told.
//!
//! A [`Wire`] is a `tower` service round a client of the library. Each request is matched with the rules in
//! force, and what happened to it is written down, also what the server has done with a request whose reply
//! the manager never saw. Whether a rule with a chance strikes depends on the seed and on how often a request
//! of that kind to that object was made before, not on what others do meanwhile: the same seed, the same
//! rules and the same requests, the same faults.

mod body;
mod call;
pub mod case;
mod entry;
mod line;
pub mod random;
mod rule;
mod wire;

pub use call::{ALL, Call, Verb, WRITES};
pub use entry::{Entry, made_and_taken, story};
pub use line::Life;
use line::{BoxError, broken, is_own};
pub use rule::{Answer, Fault, Rule};
pub use wire::Wire;
