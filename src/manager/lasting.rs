//! The library's watcher, made to last: it does not wait for ever for a list that never comes, and does not
//! ask for ever to go on from a resourceVersion that the server no longer knows.

use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use kube::core::DynamicResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::hub;
use crate::cluster::Cluster;

struct Lasting<F, T> {
    make: F,
    deadline: Duration,
    current: Option<BoxStream<'static, watcher::Result<Event<T>>>>,
    /// Whether a list is under way.
    is_listing: bool,
}

/// Lists and watches what `config` selects. After an error the next attempt waits, longer each time.
pub(super) fn watch<K>(
    cluster: &Cluster,
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = kube::core::ApiResource, Scope = DynamicResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let make = move || kube::runtime::watcher(api.clone(), config.clone()).boxed();
    lasting(cluster.deadline(), make).default_backoff()
}

/// The events of a watcher that `make` makes, as often as need be. `deadline` is how long an answer may take
/// while it lists; a watch may be silent.
fn lasting<T, F>(deadline: Duration, make: F) -> impl Stream<Item = watcher::Result<Event<T>>>
where
    F: Fn() -> BoxStream<'static, watcher::Result<Event<T>>>,
{
    let state = Lasting { make, deadline, current: None, is_listing: true };
    stream::unfold(state, |mut state| async move {
        let event = state.next().await;
        Some((event, state))
    })
}

impl<T, F: Fn() -> BoxStream<'static, watcher::Result<Event<T>>>> Lasting<F, T> {
    async fn next(&mut self) -> watcher::Result<Event<T>> {
        loop {
            let current = self.current.get_or_insert_with(|| {
                self.is_listing = true;
                (self.make)()
            });
            let next = if self.is_listing {
                let Ok(next) = tokio::time::timeout(self.deadline, current.next()).await else {
                    self.current = None;
                    return Err(too_late(self.deadline));
                };
                next
            } else {
                current.next().await
            };
            match next {
                Some(Ok(event)) => {
                    match event {
                        Event::Init => self.is_listing = true,
                        Event::InitDone => self.is_listing = false,
                        _ => {}
                    }
                    return Ok(event);
                }
                Some(Err(error)) => {
                    // The library begins anew only if the word comes in the midst of a watch.
                    if hub::is_expired(&error) {
                        self.current = None;
                    }
                    return Err(error);
                }
                None => self.current = None,
            }
        }
    }
}

fn too_late(deadline: Duration) -> watcher::Error {
    let text = format!("no list within {} s", deadline.as_secs());
    let error = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
    watcher::Error::InitialListFailed(kube::Error::Service(error.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::core::Status;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    fn expired() -> watcher::Error {
        let status = Status::failure("too old resource version", "Expired").with_code(410);
        watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_never_comes_is_asked_for_again_and_a_watch_may_be_silent() {
        let made = AtomicUsize::new(0);
        let mut events = std::pin::pin!(lasting(DEADLINE, || {
            match made.fetch_add(1, Ordering::Relaxed) {
                0 => stream::iter([Ok(Event::Init)]).chain(stream::pending()).boxed(),
                _ => stream::iter([Ok(Event::Init), Ok(Event::InitApply(1)), Ok(Event::InitDone)])
                    .chain(stream::pending())
                    .boxed(),
            }
        }));
        assert!(matches!(events.next().await, Some(Ok(Event::Init))));
        assert!(matches!(events.next().await, Some(Err(watcher::Error::InitialListFailed(_)))));
        assert!(matches!(events.next().await, Some(Ok(Event::Init))));
        assert!(matches!(events.next().await, Some(Ok(Event::InitApply(1)))));
        assert!(matches!(events.next().await, Some(Ok(Event::InitDone))));
        assert!(tokio::time::timeout(DEADLINE * 20, events.next()).await.is_err(), "a silent watch was cut");
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_expired_is_listed_anew() {
        let made = AtomicUsize::new(0);
        let mut events = std::pin::pin!(lasting(DEADLINE, || {
            match made.fetch_add(1, Ordering::Relaxed) {
                0 => stream::iter([Ok(Event::Init), Ok(Event::InitDone), Err(expired())])
                    .chain(stream::pending())
                    .boxed(),
                _ => stream::iter([Ok(Event::<()>::Init)]).chain(stream::pending()).boxed(),
            }
        }));
        for _ in 0..2 {
            assert!(matches!(events.next().await, Some(Ok(_))));
        }
        assert!(matches!(events.next().await, Some(Err(_))));
        assert!(matches!(events.next().await, Some(Ok(Event::Init))), "it goes on where it cannot");
    }
}
