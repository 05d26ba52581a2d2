//! The value of `cluster` in expressions. Discovery is asked when a package first reads it, and again when an API may
//! have appeared or disappeared. Watches on APIServices and CRDs report that, so a steady cluster gets no request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::warn;

use super::Watches;
use super::watch::WatchState;
use crate::api::{ApiKind, Apis};

/// When the server is asked after a change: an announced API may take a while to be served.
const ASK: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(10)];
/// How long until a server that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(10);
/// How often it is asked while the list of APIs cannot be watched.
const POLL: Duration = Duration::from_secs(10);

/// What the server serves, or why that is not known; nothing until it was asked.
pub(in crate::manager) type Known = Option<Result<Arc<Apis>, String>>;

/// What the server serves, while an instance reads it.
#[derive(Default)]
pub(super) struct ServedApis {
    state: Mutex<(Known, Option<JoinHandle<()>>)>,
    /// Wakes the task when an API may have come or gone.
    changed: Notify,
}

impl ServedApis {
    fn state(&self) -> MutexGuard<'_, (Known, Option<JoinHandle<()>>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known. Starts to ask the server when it is called first.
    pub(super) fn get(&self, watches: &Arc<Watches>) -> Known {
        let mut state = self.state();
        if state.1.is_none() {
            let watches = Arc::clone(watches);
            state.1 = Some(tokio::spawn(async move { follow(&watches).await }));
        }
        state.0.clone()
    }

    /// Notes that an API may have come or gone.
    pub(super) fn note_change(&self) {
        self.changed.notify_one();
    }

    /// Stops asking.
    pub(super) fn stop(&self) {
        if let Some(task) = self.state().1.take() {
            task.abort();
        }
    }

    /// Records what was found. Returns whether it is news.
    fn put(&self, found: Result<Arc<Apis>, String>) -> bool {
        let mut state = self.state();
        // A failure does not replace what is known: the server may only be overloaded.
        if found.is_err() && matches!(state.0, Some(Ok(_))) {
            return false;
        }
        let news = state.0.as_ref() != Some(&found);
        state.0 = Some(found);
        news
    }
}

async fn follow(watches: &Arc<Watches>) {
    let mut answered = ask(watches).await;
    let kind = ApiKind::built_in("apiregistration.k8s.io/v1", "APIService");
    let kind = watches.store.kinds.insert(kind);
    let watch = watches.open_api_services(&kind);
    // How often the server was asked since the last change. The start counts as a change, because something
    // may have changed since the first answer.
    let mut asked = 0;
    loop {
        let pause = match ASK.get(asked) {
            _ if !answered => AGAIN,
            Some(pause) => *pause,
            None => POLL,
        };
        if timeout(pause, watches.apis.changed.notified()).await.is_ok() {
            asked = 0;
            continue;
        }
        let is_blind = matches!(watch.state(), WatchState::Unavailable(_));
        if !answered || asked < ASK.len() || is_blind {
            asked += 1;
            answered = ask(watches).await;
        }
    }
}

/// Asks the server, and queues the instances that read the answer if it has changed. Returns whether the
/// server answered.
async fn ask(watches: &Arc<Watches>) -> bool {
    let found = watches.effects.clients.own().apis().await;
    let answered = found.is_ok();
    let found = found.map(Arc::new).map_err(|error| {
        warn!(%error, "the API server does not say what it serves; asking again");
        error.to_string()
    });
    if watches.apis.put(found) {
        for entry in watches.store.registry().iter() {
            if entry.resource().into_iter().chain(entry.earlier()).any(|(_, resource)| resource.reads_cluster)
            {
                watches.scheduler.add_all(watches.store.instances_of(&entry.crd));
            }
        }
    }
    answered
}
