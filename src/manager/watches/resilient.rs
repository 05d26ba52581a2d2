//! A resilient watch: it begins with a list as a stream, or in pages where there are no streams. A list has a deadline,
//! an expired resourceVersion starts a new list, and failures are retried with backoff.

use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use kube::core::DynamicResourceScope;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::streaming;
use crate::api::{CallError, Class};
use crate::backoff::Backoff;
use crate::clock::Instant;
use crate::cluster::{Cluster, call_error};

/// How long until the next attempt, where it may succeed and where a person has to do something first.
const FAILED: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(10));
const REFUSED: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
/// Failures that are further apart than this are not in a row: a working watch may be silent.
const APART: Duration = Duration::from_secs(120);

/// How long lists come in pages after a streaming list has failed. An aggregated API server may ignore the parameters
/// of streaming lists and send changes only.
const PAGES: Duration = Duration::from_secs(600);

/// How a list comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListMode {
    Stream,
    Pages,
}

/// How long to wait after failures. The library's own backoff starts over with each attempt, because a list begins before
/// it fails.
#[derive(Default)]
struct RetryDelay {
    failures: u32,
    last: Option<Instant>,
}

impl RetryDelay {
    fn after(&mut self, error: &watcher::Error) -> Duration {
        let now = Instant::now();
        if self.last.replace(now).is_some_and(|last| now.duration_since(last) > APART) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let cause = cause(error);
        let is_refused = cause.as_ref().is_some_and(|error| error.class == Class::Permanent);
        let asked = cause.and_then(|error| error.asked_to_wait()).unwrap_or_default();
        let backoff = if is_refused { REFUSED } else { FAILED };
        backoff.after(self.failures).max(asked)
    }
}

struct Resilient<F, T> {
    make: F,
    deadline: Duration,
    current: Option<BoxStream<'static, watcher::Result<Event<T>>>>,
    /// Whether a list is running.
    is_listing: bool,
    delay: RetryDelay,
    /// No request before this time.
    until: Option<Instant>,
    /// Lists come in pages until this time.
    pages: Option<Instant>,
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
    let streams = cluster.streams().clone();
    let make = move |mode| {
        if mode == ListMode::Stream && streams.may_come() {
            streaming::watch(api.clone(), &config, streams.clone()).boxed()
        } else {
            kube::runtime::watcher(api.clone(), config.clone()).boxed()
        }
    };
    resilient(cluster.deadline(), make)
}

/// The events of watchers that `make` creates, one after another. `deadline` is for each reply during a list; a watch
/// may be silent.
fn resilient<T, F>(deadline: Duration, make: F) -> impl Stream<Item = watcher::Result<Event<T>>>
where
    F: Fn(ListMode) -> BoxStream<'static, watcher::Result<Event<T>>>,
{
    let state = Resilient {
        make,
        deadline,
        current: None,
        is_listing: true,
        delay: RetryDelay::default(),
        until: None,
        pages: None,
    };
    stream::unfold(state, |mut state| async move {
        if let Some(until) = state.until.take() {
            tokio::time::sleep_until(until).await;
        }
        let event = state.next().await;
        match &event {
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => state.delay.failures = 0,
            Ok(Event::Init | Event::InitApply(_)) => {}
            Err(error) => state.until = Some(Instant::now() + state.delay.after(error)),
        }
        Some((event, state))
    })
}

impl<T, F: Fn(ListMode) -> BoxStream<'static, watcher::Result<Event<T>>>> Resilient<F, T> {
    async fn next(&mut self) -> watcher::Result<Event<T>> {
        loop {
            let current = self.current.get_or_insert_with(|| {
                self.is_listing = true;
                let paged = self.pages.is_some_and(|until| Instant::now() < until);
                (self.make)(if paged { ListMode::Pages } else { ListMode::Stream })
            });
            let next = if self.is_listing {
                let Ok(next) = tokio::time::timeout(self.deadline, current.next()).await else {
                    self.next_in_pages();
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
                    // kube's watcher lists again only if the error arrives during a watch; ours never does.
                    if is_expired(&error) {
                        self.current = None;
                    }
                    return Err(error);
                }
                None => self.next_in_pages(),
            }
        }
    }

    /// Begins again, in pages.
    fn next_in_pages(&mut self) {
        self.current = None;
        self.pages = Some(Instant::now() + PAGES);
    }
}

fn too_late(deadline: Duration) -> watcher::Error {
    let text = format!("no list within {} s", deadline.as_secs());
    let error = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
    watcher::Error::InitialListFailed(kube::Error::Service(error.into()))
}

/// The failed call behind an error of a watch.
pub(super) fn cause(error: &watcher::Error) -> Option<CallError> {
    match error {
        watcher::Error::InitialListFailed(e)
        | watcher::Error::WatchStartFailed(e)
        | watcher::Error::WatchFailed(e) => Some(call_error(e)),
        watcher::Error::WatchError(status) => Some(CallError::from_status(status)),
        watcher::Error::NoResourceVersion => None,
    }
}

/// An error of a watch, for people.
pub(super) fn explain(error: &watcher::Error) -> String {
    cause(error).map_or_else(|| error.to_string(), |e| e.to_string())
}

/// Whether the server no longer knows the resourceVersion at which a watch was to continue.
pub(super) fn is_expired(error: &watcher::Error) -> bool {
    cause(error).is_some_and(|e| e.code == 410)
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
    async fn a_stuck_list_is_repeated_and_a_watch_may_be_silent() {
        let made = AtomicUsize::new(0);
        let mut events = std::pin::pin!(resilient(DEADLINE, |_| {
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
    async fn failed_streaming_lists_come_in_pages_for_a_while() {
        let modes = std::sync::Mutex::new(Vec::new());
        let mut events = std::pin::pin!(resilient(DEADLINE, |mode| {
            let mut modes = modes.lock().unwrap();
            modes.push(mode);
            let expires = stream::once(async {
                tokio::time::sleep(PAGES / 2).await;
                Err(expired())
            });
            match modes.len() {
                // A list that never ends; one that ends before it is complete; a complete list.
                1 => {
                    stream::iter([Ok(Event::Init), Ok(Event::InitApply(1))]).chain(stream::pending()).boxed()
                }
                4 => stream::iter([Ok(Event::Init), Ok(Event::InitApply(1))]).boxed(),
                _ => stream::iter([Ok(Event::Init), Ok(Event::InitDone)]).chain(expires).boxed(),
            }
        }));
        let mut errors = 0;
        while modes.lock().unwrap().len() < 6 {
            errors += usize::from(events.next().await.unwrap().is_err());
        }
        let told: String = modes
            .lock()
            .unwrap()
            .iter()
            .map(|mode| if *mode == ListMode::Stream { 's' } else { 'p' })
            .collect();
        assert_eq!(told, "sppspp");
        assert_eq!(errors, 4, "what ended early is no failure: it is asked for at once");
    }

    /// How often a server that answers with this failure is asked within that time.
    async fn attempts(within: Duration, code: u16, reason: &str) -> usize {
        let made = AtomicUsize::new(0);
        let failure = || {
            made.fetch_add(1, Ordering::Relaxed);
            let status = Status::failure("no", reason).with_code(code);
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status.boxed())))
        };
        let make = |_| stream::iter([Ok(Event::<()>::Init), failure()]).boxed();
        let listen = resilient(DEADLINE, make).for_each(|_| std::future::ready(()));
        assert!(tokio::time::timeout(within, listen).await.is_err(), "it gave up");
        made.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn refused_watches_are_retried_with_backoff() {
        let hour = Duration::from_secs(3_600);
        let forbidden = attempts(hour, 403, "Forbidden").await;
        assert!((100..150).contains(&forbidden), "{forbidden} in an hour");
        let failed = attempts(hour, 500, "InternalError").await;
        assert!((300..450).contains(&failed), "{failed} in an hour");
        let soon = attempts(Duration::from_secs(10), 403, "Forbidden").await;
        assert!((3..=5).contains(&soon), "{soon} in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_far_apart_do_not_add_up() {
        let mut delay = RetryDelay::default();
        for _ in 0..10 {
            delay.after(&expired());
        }
        assert!(delay.after(&expired()) > FAILED.exact(u32::MAX) / 2);
        tokio::time::sleep(APART * 2).await;
        assert!(delay.after(&expired()) < FAILED.exact(1) * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_watch_starts_a_new_list() {
        let made = AtomicUsize::new(0);
        let mut events = std::pin::pin!(resilient(DEADLINE, |_| {
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
