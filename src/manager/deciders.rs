//! Where decisions are made: on threads of their own, so that nothing that is rendered holds up calls, watches,
//! probes or the Lease; and how many are made at once, so that their memory is bounded.
//!
//! Nearly every instance stays within the small budget. Several of those are decided about at once, and none takes
//! long. An instance that needs more is *large*: one of a package, and [`LARGE`] of all, may have their turn at
//! once, and one decision about them is made at a time. They wait for each other, and nobody waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Span;

/// How many large instances may have their turn at once. Each holds what it is about to write.
const LARGE: usize = 2;

/// Leave to decide.
pub(super) struct Deciders {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    large_turns: Arc<Semaphore>,
    of_package: Mutex<HashMap<Box<str>, Arc<Semaphore>>>,
}

/// Leave for the turn of a large instance, given back when dropped.
pub(super) struct LargeTurn(
    #[expect(dead_code, reason = "held, not read")] [Option<OwnedSemaphorePermit>; 2],
);

impl Default for Deciders {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            small: Arc::new(Semaphore::new(processors.max(2))),
            large: Arc::new(Semaphore::new(1)),
            large_turns: Arc::new(Semaphore::new(LARGE)),
            of_package: Mutex::default(),
        }
    }
}

impl Deciders {
    /// Runs a decision on another thread, as soon as it is its turn. A panic in it goes on here.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        is_large: bool,
        decide: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let leave = if is_large { &self.large } else { &self.small };
        // Nobody closes a semaphore, so it does not fail.
        let leave = Arc::clone(leave).acquire_owned().await.ok();
        let span = Span::current();
        let decided = tokio::task::spawn_blocking(move || {
            // Given back here: whoever does not wait for the end any more does not make room.
            let _leave = leave;
            span.in_scope(decide)
        });
        match decided.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(decided) => decided,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The process ends.
            Err(Err(_)) => std::future::pending().await,
        }
    }

    /// Leave for the turn of a large instance. Packages take turns.
    pub(super) async fn large_turn(&self, package: &str) -> LargeTurn {
        let of_package = {
            let mut all = self.of_package.lock().unwrap_or_else(PoisonError::into_inner);
            let semaphore = all.entry(package.into()).or_insert_with(|| Arc::new(Semaphore::new(1)));
            Arc::clone(semaphore)
        };
        let own = of_package.acquire_owned().await.ok();
        LargeTurn([own, Arc::clone(&self.large_turns).acquire_owned().await.ok()])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// How long is waited for what does not come.
    const NEVER: Duration = Duration::from_millis(50);

    /// On a runtime of one thread, which any decision made on it would stop.
    #[tokio::test]
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
        // However many large ones there are, one is decided about, and the small ones have their own room.
        for number in 0..100 {
            assert_eq!(deciders.run(false, move || number).await, number);
        }
        assert!(stuck.iter().all(|task| !task.is_finished()));
        drop(end);
        for task in stuck {
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_package_has_one_large_turn_and_all_have_two() {
        let deciders = Deciders::default();
        let first = deciders.large_turn("a").await;
        let _second = deciders.large_turn("b").await;
        let waits = async |package| tokio::time::timeout(NEVER, deciders.large_turn(package)).await.is_err();
        assert!(waits("a").await && waits("c").await);
        drop(first);
        let third = deciders.large_turn("c").await;
        assert!(waits("b").await && waits("a").await);
        drop(third);
        drop(deciders.large_turn("a").await);
    }

    #[tokio::test]
    async fn a_panic_is_the_callers() {
        let deciders = Arc::new(Deciders::default());
        let caller = tokio::spawn(async move { deciders.run(false, || panic!("in a decision")).await });
        assert!(caller.await.is_err_and(|error| error.is_panic()));
    }
}
