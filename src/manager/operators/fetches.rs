//! What is known of the packages that Operators name in registries: the tasks that fetch them, and their limits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use operetta_registry::{Error, Provenance};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::manager::scheduler::{Key, Scheduler};
use crate::operators::{Lost, SourceRecord, SourceSpec};
use crate::package::Package;

/// How many packages are fetched of one registry at once: a slow one does not hold up the others.
const OF_REGISTRY: usize = 2;

/// Limits of fetches, of all Operators.
pub(super) struct Limits {
    registries: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Packages are compiled one after another.
    pub(super) compiling: Semaphore,
}

impl Default for Limits {
    fn default() -> Self {
        Self { registries: Mutex::default(), compiling: Semaphore::new(1) }
    }
}

impl Limits {
    pub(super) fn registry(&self, host: &str) -> Arc<Semaphore> {
        let mut all = self.registries.lock().unwrap_or_else(PoisonError::into_inner);
        // A registry without a running fetch is forgotten.
        all.retain(|_, one| Arc::strong_count(one) > 1);
        Arc::clone(all.entry(host.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(OF_REGISTRY))))
    }
}

/// What is remembered of the source of an `Operator`.
#[derive(Default)]
pub(super) struct Source {
    /// The package that was fetched last.
    pub(super) record: Option<SourceRecord>,
    /// Whether it must be fetched again: what is stored of it cannot be used.
    pub(super) is_lost: bool,
    pub(super) task: Option<Task<Result<Arrived, Lost>>>,
    pub(super) failed: Option<Failed>,
    pub(super) tag: Tag,
}

/// An attempt that has failed.
pub(super) struct Failed {
    pub(super) source: SourceSpec,
    pub(super) lost: Lost,
    /// When the next one is due.
    pub(super) due: Duration,
    /// The version of the policy at that time: another one is a reason to try again.
    pub(super) policy: u64,
}

/// What is known of the tag of a source.
#[derive(Default)]
pub(super) struct Tag {
    pub(super) task: Option<Task<Result<String, Error>>>,
    /// When it is looked up next.
    pub(super) due: Duration,
    /// The other digest that it names now.
    pub(super) moved: Option<String>,
}

/// A task about a source, which ends with it. When it has a result, it queues the `Operator`.
pub(super) struct Task<T> {
    pub(super) source: SourceSpec,
    result: Arc<Mutex<Option<T>>>,
    handle: JoinHandle<()>,
}

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn(
        source: &SourceSpec,
        (scheduler, name): (&Arc<Scheduler>, &Arc<str>),
        work: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        let result = Arc::new(Mutex::new(None));
        let (slot, scheduler, key) =
            (Arc::clone(&result), Arc::clone(scheduler), Key::Operator(Arc::clone(name)));
        let handle = tokio::spawn(async move {
            let done = work.await;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            scheduler.queue.add(key);
        });
        Self { source: source.clone(), result, handle }
    }

    /// Whether it has ended. What it came to can be taken then, unless it has panicked.
    pub(super) fn is_over(&self) -> bool {
        self.handle.is_finished()
    }

    /// Its result, if there is one; it is taken once.
    pub(super) fn take(&self) -> Option<T> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// A package that was fetched.
pub(super) struct Arrived {
    pub(super) package: Arc<Package>,
    pub(super) provenance: Provenance,
}
