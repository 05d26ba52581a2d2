//! Decisions run on threads of their own, so that rendering delays no calls, watches, probes or Lease, and in limited
//! numbers, so that their memory is bounded.
//!
//! Nearly every instance stays within the small budget. Several of those are decided about at once, and none takes
//! long. An instance that needs more is *large*: [`LARGE`] of them, and one of a package, are reconciled at once, and one
//! decision about them is made at a time. Large instances wait for each other; no other instance waits for them.

use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tracing::Span;

use crate::cluster::{ConcurrencyLimits, Permit};

/// How many large instances are reconciled at once. Each holds the objects that it is about to write.
const LARGE: usize = 2;

/// The limits of concurrent decisions.
pub(super) struct Deciders {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    large_instances: ConcurrencyLimits,
}

impl Default for Deciders {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            small: Arc::new(Semaphore::new(processors.max(2))),
            large: Arc::new(Semaphore::new(1)),
            large_instances: ConcurrencyLimits::common(LARGE, 1),
        }
    }
}

/// Computes what takes long beside the runtime. A runtime with one thread is that of a play, or of a test: nothing else waits, and
/// its clock must not move meanwhile.
pub(super) async fn beside<T: Send + 'static>(
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(compute());
    }
    tokio::task::spawn_blocking(compute).await
}

impl Deciders {
    /// Runs a decision on another thread, as soon as there is a permit. A panic in it continues here.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        is_large: bool,
        decide: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let semaphore = if is_large { &self.large } else { &self.small };
        // The semaphore is never closed, so this does not fail.
        let permit = Arc::clone(semaphore).acquire_owned().await.ok();
        let span = Span::current();
        // A runtime with one thread is that of a play, or of a test: nothing else waits, and its clock must not move meanwhile.
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return span.in_scope(decide);
        }
        let decided = tokio::task::spawn_blocking(move || {
            // The permit is returned when the decision ends, also if the caller no longer waits for it.
            let _permit = permit;
            span.in_scope(decide)
        });
        match decided.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(decided) => decided,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The task was cancelled, because the process ends.
            Err(Err(_)) => std::future::pending().await,
        }
    }

    /// A permit to reconcile a large instance.
    pub(super) async fn large_permit(&self, package: &str) -> Permit {
        self.large_instances.of(package).permit().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use super::*;

    /// How long a test waits for what must not happen.
    const NEVER: Duration = Duration::from_millis(50);

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn decisions_that_do_not_end_hold_up_nothing_else() {
        let deciders = Arc::new(Deciders::default());
        let (end, ends) = mpsc::channel::<()>();
        let ends = Arc::new(Mutex::new(ends));
        let mut stuck = Vec::new();
        for _ in 0..10 {
            let (deciders, ends) = (Arc::clone(&deciders), Arc::clone(&ends));
            stuck.push(tokio::spawn(async move {
                deciders.run(true, move || ends.lock().unwrap().recv().is_err()).await;
            }));
        }
        // One large decision runs, and small decisions have permits of their own.
        for number in 0..100 {
            assert_eq!(deciders.run(false, move || number).await, number);
        }
        assert!(stuck.iter().all(|task| !task.is_finished()));
        drop(end);
        for task in stuck {
            task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_package_has_one_large_permit_and_all_have_two() {
        let deciders = Deciders::default();
        let first = deciders.large_permit("a").await;
        let _second = deciders.large_permit("b").await;
        let waits =
            async |package| tokio::time::timeout(NEVER, deciders.large_permit(package)).await.is_err();
        assert!(waits("a").await && waits("c").await);
        drop(first);
        let third = deciders.large_permit("c").await;
        assert!(waits("b").await && waits("a").await);
        drop(third);
        drop(deciders.large_permit("a").await);
    }

    #[tokio::test]
    async fn a_panic_in_a_decision_reaches_the_caller() {
        let deciders = Arc::new(Deciders::default());
        let caller = tokio::spawn(async move { deciders.run(false, || panic!("in a decision")).await });
        assert!(caller.await.is_err_and(|error| error.is_panic()));
    }
}
