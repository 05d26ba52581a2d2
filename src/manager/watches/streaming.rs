//! A streaming list: a watch that first sends all objects, then a bookmark that marks the end of the list, then
//! changes. Neither the server nor we hold the whole list.
//!
//! kube has such a watcher, which begins with the state of the server's cache. This one begins with the newest state:
//! see `docs/design/0010-streaming-lists.md`.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, Stream, StreamExt};
use kube::api::{WatchEvent, WatchParams};
use kube::core::watch::BookmarkMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::api::CallError;
use crate::cluster::{Streams, call_error, refuses_streams};

/// The idle time after which a watch is renewed. The server ends it after 290 s, but the end may not arrive.
const IDLE: Duration = Duration::from_secs(295);
/// The annotation of the bookmark after the last object of the list.
const ALL: &str = "k8s.io/initial-events-end";

type Events<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;
type EventsFuture<K> = BoxFuture<'static, kube::Result<Events<K>>>;

/// The start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since<'a> {
    /// All objects, then changes.
    Ever,
    /// Changes since that resourceVersion.
    Version(&'a str),
}

struct Streaming<K, A> {
    ask: A,
    streams: Streams,
    phase: Phase<K>,
}

enum Phase<K> {
    /// Before a list.
    Begin,
    /// The start of the list was reported. The list may not contain objects that are written from now on.
    Begun,
    /// During a list.
    Listing(Events<K>),
    /// After the list: everything up to that resourceVersion was reported.
    Watching(String, Option<Events<K>>),
}

/// Lists and watches what `config` selects. Ends if the server does not support it, and records a refusal in
/// `streams`.
pub(super) fn watch<K>(
    api: Api<K>,
    config: &watcher::Config,
    streams: Streams,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let params = WatchParams {
        label_selector: config.label_selector.clone(),
        field_selector: config.field_selector.clone(),
        ..WatchParams::default()
    };
    let ask = move |since: Since<'_>| {
        let (version, all) = match since {
            // No resourceVersion asks for a consistent read; 0 would be whatever there is.
            Since::Ever => (String::new(), true),
            Since::Version(version) => (version.to_owned(), false),
        };
        let (api, params) = (api.clone(), WatchParams { send_initial_events: all, ..params.clone() });
        async move { api.watch(&params, &version).await.map(StreamExt::boxed) }.boxed()
    };
    streaming(ask, streams)
}

fn streaming<K, A>(ask: A, streams: Streams) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Send + 'static,
    A: Fn(Since<'_>) -> EventsFuture<K> + Send,
{
    stream::unfold(Streaming { ask, streams, phase: Phase::Begin }, |mut state| async move {
        state.next().await.map(|event| (event, state))
    })
}

/// Whether an error would be the same for a paged list. Other errors may be due to the stream: 429 while the server's
/// cache of the kind is not ready, which paged lists do not need; 500 if its etcd is too old.
fn concerns_any_list(code: u16) -> bool {
    matches!(code, 401 | 403 | 404 | 410)
}

impl<K: Resource, A: Fn(Since<'_>) -> EventsFuture<K>> Streaming<K, A> {
    /// The next event; `None` if this list does not come as a stream. After an error the list begins again.
    async fn next(&mut self) -> Option<watcher::Result<Event<K>>> {
        loop {
            match std::mem::replace(&mut self.phase, Phase::Begin) {
                Phase::Begin => {
                    self.phase = Phase::Begun;
                    return Some(Ok(Event::Init));
                }
                Phase::Begun => match (self.ask)(Since::Ever).await {
                    Ok(events) => self.phase = Phase::Listing(events),
                    Err(error) => {
                        let why = call_error(&error);
                        let is_answer = matches!(error, kube::Error::Api(_));
                        if !is_answer || concerns_any_list(why.code) {
                            return Some(Err(watcher::Error::WatchStartFailed(error)));
                        }
                        if refuses_streams(&why) && self.streams.note_refusal() {
                            info!(%why, "the API server sends no lists as streams; they come in pages");
                        }
                        debug!(%why, "no list as a stream");
                        return None;
                    }
                },
                Phase::Listing(mut events) => {
                    let event = match events.next().await {
                        Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                            Event::InitApply(object)
                        }
                        // The server's cache may be behind: it sends the deletions until it has caught up.
                        Some(Ok(WatchEvent::Deleted(object))) => Event::Delete(object),
                        Some(Ok(WatchEvent::Bookmark(mark))) => {
                            let BookmarkMeta { resource_version: version, annotations } = mark.metadata;
                            if annotations.get(ALL).is_none_or(|is| is != "true") {
                                self.phase = Phase::Listing(events);
                                continue;
                            }
                            if version.is_empty() {
                                return Some(Err(watcher::Error::NoResourceVersion));
                            }
                            self.phase = Phase::Watching(version, Some(events));
                            return Some(Ok(Event::InitDone));
                        }
                        Some(Ok(WatchEvent::Error(status))) => {
                            if concerns_any_list(status.code) {
                                return Some(Err(watcher::Error::WatchError(status)));
                            }
                            debug!(why = %CallError::from_status(&status), "no list as a stream");
                            return None;
                        }
                        Some(Err(error)) => return Some(Err(watcher::Error::WatchFailed(error))),
                        None => {
                            debug!("a list ended before it was complete");
                            return None;
                        }
                    };
                    self.phase = Phase::Listing(events);
                    return Some(Ok(event));
                }
                Phase::Watching(version, None) => {
                    let asked = (self.ask)(Since::Version(&version)).await;
                    let (events, error) = match asked {
                        Ok(events) => (Some(events), None),
                        Err(error) => (None, Some(watcher::Error::WatchStartFailed(error))),
                    };
                    self.phase = Phase::Watching(version, events);
                    if let Some(error) = error {
                        return Some(Err(error));
                    }
                }
                Phase::Watching(mut version, Some(mut events)) => {
                    let told = match timeout(IDLE, events.next()).await {
                        Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                            Ok(Event::Apply(object))
                        }
                        Ok(Some(Ok(WatchEvent::Deleted(object)))) => Ok(Event::Delete(object)),
                        Ok(Some(Ok(WatchEvent::Bookmark(mark)))) => {
                            self.phase = Phase::Watching(mark.metadata.resource_version, Some(events));
                            continue;
                        }
                        Ok(Some(Ok(WatchEvent::Error(status)))) => Err(watcher::Error::WatchError(status)),
                        Ok(Some(Err(error))) => Err(watcher::Error::WatchFailed(error)),
                        Ok(None) | Err(_) => {
                            self.phase = Phase::Watching(version, None);
                            continue;
                        }
                    };
                    if let Ok(Event::Apply(object) | Event::Delete(object)) = &told {
                        match object.meta().resource_version.as_deref() {
                            Some(at) if !at.is_empty() => at.clone_into(&mut version),
                            _ => return Some(Err(watcher::Error::NoResourceVersion)),
                        }
                    }
                    self.phase = Phase::Watching(version, Some(events));
                    return Some(told);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;
    use crate::manager::raw::Raw;

    /// What a server answers to one request: a refusal, or lines and whether it ends then.
    enum Answer {
        Refusal(u16, &'static str),
        Lines(Vec<Value>, bool),
    }

    /// The requests: `None` for a list, or the resourceVersion after which changes were asked for.
    type Log = Arc<Mutex<Vec<Option<String>>>>;

    /// A watch of a server that gives these answers, one for each request, and then none.
    fn watch(
        answers: impl IntoIterator<Item = Answer>,
        streams: &Streams,
    ) -> (BoxStream<'static, watcher::Result<Event<Raw>>>, Log) {
        let log = Log::default();
        let asked = Arc::clone(&log);
        let answers = Mutex::new(answers.into_iter().collect::<VecDeque<_>>());
        let ask = move |since: Since<'_>| -> EventsFuture<Raw> {
            asked.lock().unwrap().push(match since {
                Since::Ever => None,
                Since::Version(version) => Some(version.to_owned()),
            });
            let answer = answers.lock().unwrap().pop_front();
            async move {
                match answer {
                    None => std::future::pending().await,
                    Some(Answer::Refusal(code, words)) => {
                        Err(kube::Error::Api(Status::failure(words, "").with_code(code).boxed()))
                    }
                    Some(Answer::Lines(lines, ends)) => {
                        let lines = lines
                            .into_iter()
                            .map(|line| serde_json::from_value(line).map_err(kube::Error::SerdeError));
                        let lines = stream::iter(lines);
                        Ok(if ends { lines.boxed() } else { lines.chain(stream::pending()).boxed() })
                    }
                }
            }
            .boxed()
        };
        (streaming(ask, streams.clone()).boxed(), log)
    }

    fn line(what: &str, name: &str, version: &str) -> Value {
        json!({"type": what, "object": {"metadata": {"name": name, "resourceVersion": version}}})
    }

    fn bookmark(version: &str, all: Option<&str>) -> Value {
        let annotations = all.map_or_else(|| json!({}), |all| json!({"k8s.io/initial-events-end": all}));
        json!({"type": "BOOKMARK", "object": {"kind": "X", "apiVersion": "v1", "metadata": {"resourceVersion": version, "annotations": annotations}}})
    }

    /// The next events, in short.
    async fn next(events: &mut BoxStream<'static, watcher::Result<Event<Raw>>>, count: usize) -> Vec<String> {
        let name = |raw: &Raw| raw.metadata.name.clone().unwrap_or_default();
        let told = events.take(count).map(|event| match event {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitApply(raw)) => format!("has {}", name(&raw)),
            Ok(Event::InitDone) => "done".to_owned(),
            Ok(Event::Apply(raw)) => format!("apply {}", name(&raw)),
            Ok(Event::Delete(raw)) => format!("delete {}", name(&raw)),
            Err(_) => "error".to_owned(),
        });
        told.collect().await
    }

    async fn is_silent(events: &mut BoxStream<'static, watcher::Result<Event<Raw>>>) -> bool {
        timeout(IDLE * 3 + IDLE / 2, events.next()).await.is_err()
    }

    fn log(log: &Log) -> Vec<Option<String>> {
        log.lock().unwrap().clone()
    }

    fn at(versions: &[&str]) -> Vec<Option<String>> {
        versions.iter().map(|version| Some((*version).to_owned()).filter(|v| !v.is_empty())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn watch_continues_after_its_initial_list() {
        let first = vec![
            line("ADDED", "b", "7"),
            // These bookmarks do not end the list: the annotation is missing, or false.
            bookmark("7", None),
            bookmark("7", Some("false")),
            line("ADDED", "a", "3"),
            line("MODIFIED", "b", "8"),
            line("DELETED", "a", "9"),
            bookmark("9", Some("true")),
            line("ADDED", "c", "10"),
            line("MODIFIED", "b", "11"),
            line("DELETED", "c", "12"),
        ];
        let answers = [
            Answer::Lines(first, true),
            Answer::Lines(vec![bookmark("20", None)], true),
            Answer::Refusal(500, "not now"),
            Answer::Lines(vec![line("ADDED", "d", "21")], false),
            Answer::Lines(vec![], false),
        ];
        let (mut events, asked) = watch(answers, &Streams::default());
        let listed = ["init", "has b", "has a", "has b", "delete a", "done"];
        assert_eq!(next(&mut events, 6).await, listed);
        assert_eq!(next(&mut events, 3).await, ["apply c", "apply b", "delete c"]);
        assert_eq!(next(&mut events, 2).await, ["error", "apply d"]);
        assert_eq!(log(&asked), at(&["", "12", "20", "20"]), "a list is asked for once");
        // The watch is renewed when it has been silent for longer than the server's limit.
        assert!(is_silent(&mut events).await);
        assert_eq!(log(&asked), at(&["", "12", "20", "20", "21", "21"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_list_starts_again_and_a_failed_watch_resumes() {
        let gone = json!({"type": "ERROR", "object": {"status": "Failure", "code": 410, "message": "x"}});
        let all = bookmark("5", Some("true"));
        let broken = json!({"type": "ADDED", "object": {"metadata": 1}});
        let answers = [
            Answer::Refusal(403, "cannot watch"),
            Answer::Lines(vec![line("ADDED", "a", "3"), gone.clone()], true),
            Answer::Lines(vec![line("ADDED", "a", "3"), broken.clone(), all.clone()], true),
            Answer::Lines(vec![bookmark("", Some("true"))], true),
            Answer::Lines(vec![all, gone, broken, line("ADDED", "b", "6"), line("ADDED", "c", "")], true),
        ];
        let streams = Streams::default();
        let (mut events, asked) = watch(answers, &streams);
        assert_eq!(next(&mut events, 2).await, ["init", "error"]);
        assert_eq!(next(&mut events, 3).await, ["init", "has a", "error"]);
        assert_eq!(next(&mut events, 3).await, ["init", "has a", "error"], "what cannot be read is missing");
        assert_eq!(next(&mut events, 2).await, ["init", "error"]);
        assert_eq!(next(&mut events, 5).await, ["init", "done", "error", "error", "apply b"]);
        assert_eq!(next(&mut events, 2).await, ["error", "init"], "nobody knows where to go on");
        assert_eq!(log(&asked), at(&["", "", "", "", ""]));
        assert!(streams.may_come(), "an error is no refusal");
    }

    #[tokio::test(start_paused = true)]
    async fn the_stream_ends_without_streaming_lists() {
        let streams = Streams::default();
        let (mut events, _) = watch([Answer::Lines(vec![line("ADDED", "a", "3")], true)], &streams);
        assert_eq!(next(&mut events, 9).await, ["init", "has a"], "it ended before it was complete");
        let (mut events, _) = watch([Answer::Refusal(429, "storage is (re)initializing")], &streams);
        assert_eq!(next(&mut events, 9).await, ["init"]);
        // A server whose etcd does not report its progress.
        let words = "the required storage feature RequestWatchProgress is disabled";
        let error = json!({"type": "ERROR", "object": {"status": "Failure", "code": 500, "message": words}});
        let (mut events, _) = watch([Answer::Lines(vec![error], true)], &streams);
        assert_eq!(next(&mut events, 9).await, ["init"]);
        assert!(streams.may_come(), "there may be others");
        let refusal = Answer::Refusal(422, "sendInitialEvents is forbidden for watch");
        let (mut events, asked) = watch([refusal], &streams);
        assert_eq!(next(&mut events, 9).await, ["init"]);
        assert_eq!(log(&asked), at(&[""]));
        assert!(!streams.may_come());
    }
}
