//! The time of day, for people to read: in Events, conditions, the Lease, the ages in tables.
//!
//! Nothing is decided by it. It may jump by a day, forwards or back, while something waits; so what waits counts by
//! `std::time::Instant`, and who leads by the time since the machine started (`cluster::fence`). `clippy.toml` forbids
//! to ask for the time of day anywhere else.

use k8s_openapi::jiff::Timestamp;

/// The time of day.
#[expect(clippy::disallowed_methods, reason = "the one place that asks")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
