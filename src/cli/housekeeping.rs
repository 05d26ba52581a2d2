//! Threads for what must go on whatever else the process does: the Lease is renewed and probes are answered there.

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// A small runtime beside the one that reconciles.
pub(super) struct Housekeeping(Option<Runtime>);

impl Housekeeping {
    /// Starts its threads.
    ///
    /// # Errors
    /// No threads can be started.
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(2).thread_name("housekeeping").enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a task there; it ends with what is returned.
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

    /// Runs a task there to its end. It is cut off with whoever waits for it.
    ///
    /// # Errors
    /// It panicked, or the process ends.
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
            // Within a task nothing may block; what is left has nothing to lose.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// The test's own thread, on which all its tasks run, is blocked while the other works.
    #[tokio::test]
    async fn it_works_while_the_rest_is_blocked() {
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
