//! The value of `cluster` in expressions. Discovery is asked when a package first reads it, and again when an API may
//! have appeared or disappeared. Watches on APIServices and CRDs report that, so a steady cluster gets no request.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::warn;

use super::apis::Known;
use super::set::Watches;
use super::watch::WatchState;
use crate::api::ApiKind;

/// When the server is asked after a change: an announced API may take a while to be served.
const ASK: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(10)];
/// How long until a server that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(10);
/// How often it is asked while the list of APIs cannot be watched.
const POLL: Duration = Duration::from_secs(10);

impl Watches {
    /// What the server serves, for `cluster` in expressions. Starts to ask for it when it is called first.
    pub(in crate::manager) fn served_apis(self: &Arc<Self>) -> Known {
        let watches = Arc::clone(self);
        self.apis.get(|| tokio::spawn(async move { keep_asking(&watches).await }))
    }
}

async fn keep_asking(watches: &Arc<Watches>) {
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
