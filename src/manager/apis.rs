//! What `cluster` is in expressions. Asked for when a package first reads it, and anew when an API may have
//! come or gone: the server's list of APIs is watched for that, and the watch on CRDs tells of theirs, so that a
//! steady cluster is not asked at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::Shared;
use super::lasting;
use super::raw::Raw;
use crate::cluster::Apis;

/// How long after the last sign of a change the server is asked: what was announced may take a while to be
/// served.
const ASK: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(10)];
/// How long until a server that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(10);
/// How long until a watch that the server does not allow is replaced by asking.
const POLL: Duration = Duration::from_secs(10);

/// What the server serves, or why that is not known; nothing until it was asked.
pub(super) type Known = Option<Result<Arc<Apis>, String>>;

/// What the server serves, as far as somebody reads it.
#[derive(Default)]
pub(super) struct Served {
    state: Mutex<(Known, Option<JoinHandle<()>>)>,
    /// A CRD has come, changed or gone.
    crds: Notify,
}

impl Served {
    fn state(&self) -> MutexGuard<'_, (Known, Option<JoinHandle<()>>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known; begins to ask.
    pub(super) fn get(&self, shared: &Arc<Shared>) -> Known {
        let mut state = self.state();
        if state.1.is_none() {
            let shared = Arc::clone(shared);
            state.1 = Some(tokio::spawn(async move { follow(&shared).await }));
        }
        state.0.clone()
    }

    /// What is known now.
    pub(super) fn known(&self) -> Known {
        self.state().0.clone()
    }

    /// A CRD has come, changed or gone, and with it perhaps an API.
    pub(super) fn crds_changed(&self) {
        self.crds.notify_one();
    }

    /// Ends the watch.
    pub(super) fn stop(&self) {
        if let Some(task) = self.state().1.take() {
            task.abort();
        }
    }

    /// `true` if it is news.
    fn put(&self, found: Result<Arc<Apis>, String>) -> bool {
        let mut state = self.state();
        // What was known once is not forgotten because the server is out of breath.
        if found.is_err() && matches!(state.0, Some(Ok(_))) {
            return false;
        }
        let news = state.0.as_ref() != Some(&found);
        state.0 = Some(found);
        news
    }
}

async fn follow(shared: &Arc<Shared>) {
    let mut answered = ask(shared).await;
    let kind = GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService");
    let cluster = shared.clients.own();
    let api = Api::<PartialObjectMeta<Raw>>::all_with(cluster.client(), &ApiResource::from_gvk(&kind));
    let mut signs = lasting::watch(cluster, api, watcher::Config::default()).boxed();
    // How often was asked since the last sign. The first lists are a sign: something may have changed since.
    let mut asked = 0;
    loop {
        let pause = match (answered, ASK.get(asked)) {
            (true, Some(pause)) => Some(*pause),
            (true, None) => None,
            (false, _) => Some(AGAIN),
        };
        let sign = async {
            tokio::select! {
                sign = signs.next() => sign.map(|sign| sign.map(drop)),
                () = shared.served.crds.notified() => Some(Ok(())),
            }
        };
        let sign = match pause {
            Some(pause) => timeout(pause, sign).await,
            None => Ok(sign.await),
        };
        match sign {
            Ok(Some(Ok(()))) => asked = 0,
            Ok(Some(Err(error))) => {
                // Who may not watch has to ask.
                debug!(%error, "what the API server serves cannot be watched");
                tokio::time::sleep(POLL).await;
                answered = ask(shared).await;
            }
            Ok(None) => return,
            Err(_) => {
                asked += 1;
                answered = ask(shared).await;
            }
        }
    }
}

/// Asks, and runs who reads the answer if it is another one.
async fn ask(shared: &Arc<Shared>) -> bool {
    let found = shared.clients.own().apis().await;
    let answered = found.is_ok();
    let found = found.map(Arc::new).map_err(|error| {
        warn!(%error, "the API server does not say what it serves; asking again");
        error.to_string()
    });
    if shared.served.put(found) {
        let registry = shared.registry();
        let readers = registry
            .iter()
            .filter(|entry| entry.resource().is_some_and(|(_, resource)| resource.reads_cluster));
        let index = shared.index();
        let keys: Vec<_> =
            readers.flat_map(|entry| index.instances_of(&entry.crd).cloned().collect::<Vec<_>>()).collect();
        drop(index);
        for key in keys {
            shared.queue.add(key);
        }
    }
    answered
}
