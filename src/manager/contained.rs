//! Panics of tasks: each ends one task only.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;

/// How long until a task that panicked or ended, which it never should, is started again.
pub(super) const RESTART: Duration = Duration::from_secs(2);

/// Runs a task; a panic in it becomes an error.
pub(super) async fn contained<T>(task: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(task).catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_contained() {
        assert_eq!(contained(async { 1 }).await, Ok(1));
        let number = 1;
        assert_eq!(contained(async { assert!(number > 1, "at {number}") }).await, Err("at 1".to_owned()));
    }
}
