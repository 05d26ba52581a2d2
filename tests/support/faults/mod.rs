//! A connection between a manager and the API server on which tests inject faults.
//!
//! A [`Wire`] is a `tower` service round a client of the library. It matches each request with its rules and
//! logs what happened to it, including what the server did with a request whose reply the manager never saw.
//! Whether a rule with a chance strikes depends on the seed and on how often the same request to the same
//! object was made before, not on concurrent requests: the same seed, rules and requests give the same
//! faults.

mod body;
mod call;
pub mod case;
mod entry;
mod line;
pub mod random;
mod rule;
mod subject;
mod wire;

pub use call::{ALL, Call, Verb, WRITES};
pub use entry::{Entry, made_and_taken, story};
pub use line::Life;
use line::{BoxError, broken, is_own};
pub use rule::{Answer, Fault, Rule};
pub use wire::Wire;

/// What this comes to in a thread of its own, with a runtime and a clock of its own: tests can share it whatever their clocks do.
/// Meanwhile this thread stands still.
pub fn apart<T: Send + 'static>(what: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(what())
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
