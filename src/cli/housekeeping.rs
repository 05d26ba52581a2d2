//! A runtime for tasks that must not be delayed by other work: renewing the Lease and answering probes.

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// A small runtime besides the one that reconciles.
pub(super) struct Housekeeping(Option<Runtime>);

impl Housekeeping {
    /// Starts its threads.
    ///
    /// # Errors
    ///
    /// Threads cannot be started.
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(2).thread_name("housekeeping").enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a task on this runtime; it is cancelled when the returned value is dropped.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinSet<T> {
        let mut tasks = JoinSet::new();
        if let Some(runtime) = &self.0 {
            tasks.spawn_on(task, runtime.handle());
        }
        tasks
    }

    /// Runs a task on this runtime to its end. It is cancelled with the caller.
    ///
    /// # Errors
    ///
    /// The task panicked, or the process ends.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, String> {
        match self.spawn(task).join_next().await {
            Some(Ok(result)) => Ok(result),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("the process ends".to_owned()),
        }
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Dropping a runtime waits for its tasks, which async code must not do. The remaining tasks have
            // nothing to lose.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// The single thread of the test's own runtime is blocked while the other runtime works.
    #[tokio::test]
    async fn tasks_run_while_the_main_runtime_is_blocked() {
        let housekeeping = Housekeeping::start().unwrap();
        let (sender, receiver) = mpsc::channel();
        let _task = housekeeping.spawn(async move {
            for beat in 0..3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                sender.send(beat).unwrap();
            }
        });
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(housekeeping.run(async { 7 }).await, Ok(7));
        assert!(housekeeping.run(async { panic!("there") }).await.is_err());
    }
}
