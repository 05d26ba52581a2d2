//! Helpers for tests of the manager: managers that tests share, a namespace with shortcuts for reading it, and
//! the audit log by client.

mod accounts;
mod folders;
mod kinds;
mod managers;
mod objects;
mod requests;
mod scene;

use std::time::Duration;

pub use accounts::*;
pub use folders::*;
pub use kinds::*;
pub use managers::*;
pub use objects::*;
pub use requests::*;
pub use scene::*;

/// A generous timeout for what mostly takes a second. No test depends on speed: the garbage collector, for
/// one, learns of a new kind within half a minute, and later on a busy machine.
pub const LONG: Duration = Duration::from_secs(300);
