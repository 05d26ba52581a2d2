//! Bodies of replies: a whole body, or a watch that can be held up, ended, or made to report an error.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use kube::client::Body;
use serde_json::Value;

use super::{BoxError, Life};

/// The body of a reply.
pub(super) enum Reply {
    Whole(Option<Bytes>),
    Watch(Box<Watch>),
}

pub(super) struct Watch {
    inner: Body,
    tap: Arc<Tap>,
    life: Life,
    /// Completes when the process has ended.
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The beginning of a line that has not fully arrived.
    part: Vec<u8>,
    lines: Lines,
    /// The lines of the initial list, until that is complete.
    list: Vec<u8>,
    /// Whether a line was passed on.
    has_begun: bool,
}

/// What is done with the lines of a watch.
pub(super) struct Lines {
    /// The group whose CRDs are shown; `None` shows all.
    pub shows: Option<String>,
    /// Whether and how the watch breaks after the first line.
    pub breaks: Option<Break>,
    /// Receives the initial list, up to the bookmark that ends it.
    pub keep: Option<Keep>,
}

pub(super) type Keep = Box<dyn FnMut(Bytes) + Send>;

/// How a watch breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    Cut,
    Silent,
}

impl Reply {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }

    pub(super) fn watch(inner: Body, tap: Arc<Tap>, life: Life, lines: Lines) -> Self {
        let over = life.clone();
        let end = Box::pin(async move { over.over().await });
        let (part, list) = (Vec::new(), Vec::new());
        Self::Watch(Box::new(Watch { inner, tap, life, end, part, lines, list, has_begun: false }))
    }
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Watch(watch) => watch.poll(cx),
        }
    }
}

impl Watch {
    /// Passes on whole lines only, so that an injected event is not put into the middle of one.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if self.life.is_over() || self.end.as_mut().poll(cx).is_ready() {
                return Poll::Pending;
            }
            if self.has_begun {
                match self.lines.breaks {
                    Some(Break::Cut) => {
                        self.lines.breaks = Some(Break::Silent);
                        return Poll::Ready(Some(Err(super::broken(std::io::ErrorKind::ConnectionReset))));
                    }
                    Some(Break::Silent) => return Poll::Pending,
                    None => {}
                }
            }
            {
                let mut tap = self.tap.lock();
                tap.waker = Some(cx.waker().clone());
                if let Some(line) = tap.injected.pop_front() {
                    return Poll::Ready(Some(Ok(Frame::data(line))));
                }
                if tap.is_ended {
                    return Poll::Ready(None);
                }
                if tap.is_frozen {
                    return Poll::Pending;
                }
            }
            match Pin::new(&mut self.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.part.extend(frame.into_data().unwrap_or_default());
                    let Some(end) = self.part.iter().rposition(|b| *b == b'\n') else { continue };
                    let rest = self.part.split_off(end + 1);
                    let lines = std::mem::replace(&mut self.part, rest);
                    let mut shown = self.show(lines);
                    self.note(&shown);
                    if self.lines.breaks.is_some() {
                        shown.truncate(shown.iter().position(|b| *b == b'\n').map_or(0, |end| end + 1));
                    }
                    if !shown.is_empty() {
                        self.has_begun = true;
                        return Poll::Ready(Some(Ok(Frame::data(shown.into()))));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Collects the initial list.
    fn note(&mut self, lines: &[u8]) {
        let Some(keep) = &mut self.lines.keep else { return };
        for line in lines.split_inclusive(|b| *b == b'\n') {
            self.list.extend_from_slice(line);
            let event = serde_json::from_slice::<Value>(line).unwrap_or_default();
            if event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true" {
                keep(std::mem::take(&mut self.list).into());
                self.lines.keep = None;
                return;
            }
        }
    }

    fn show(&self, lines: Vec<u8>) -> Vec<u8> {
        let Some(group) = &self.lines.shows else { return lines };
        let own = |line: &&[u8]| {
            serde_json::from_slice::<Value>(line).is_ok_and(|event| super::is_own(&event["object"], group))
        };
        lines.split_inclusive(|b| *b == b'\n').filter(own).flatten().copied().collect()
    }
}

/// A handle that controls an open watch.
#[derive(Default)]
pub(super) struct Tap(Mutex<Hand>);

#[derive(Default)]
struct Hand {
    injected: VecDeque<Bytes>,
    is_frozen: bool,
    is_ended: bool,
    waker: Option<Waker>,
}

impl Tap {
    fn lock(&self) -> MutexGuard<'_, Hand> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, what: impl FnOnce(&mut Hand)) {
        let mut hand = self.lock();
        what(&mut hand);
        let waker = hand.waker.take();
        drop(hand);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn freeze(&self) {
        self.change(|hand| hand.is_frozen = true);
    }

    pub(super) fn thaw(&self) {
        self.change(|hand| hand.is_frozen = false);
    }

    pub(super) fn end(&self) {
        self.change(|hand| hand.is_ended = true);
    }

    pub(super) fn inject(&self, event: &Value) {
        self.change(|hand| hand.injected.push_back(format!("{event}\n").into()));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_ended
    }

    pub(super) fn later(self: Arc<Self>, after: Duration, what: impl FnOnce(&Self) + Send + 'static) {
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            what(&self);
        });
    }
}
