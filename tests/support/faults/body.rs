//! Bodies of replies: whole, or a watch that can be held up, ended, and made to bring an error.

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

/// A body.
pub(super) enum Reply {
    Whole(Option<Bytes>),
    Watch(Box<Watch>),
}

pub(super) struct Watch {
    inner: Body,
    tap: Arc<Tap>,
    life: Life,
    /// Whether the process has ended; wakes who waits.
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Of which group CRDs are shown; `None` where nothing is hidden.
    shows: Option<String>,
    /// The beginning of a line whose end has not arrived.
    part: Vec<u8>,
}

impl Reply {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }

    pub(super) fn watch(inner: Body, tap: Arc<Tap>, life: Life, shows: Option<String>) -> Self {
        let over = life.clone();
        let end = Box::pin(async move { over.over().await });
        Self::Watch(Box::new(Watch { inner, tap, life, end, shows, part: Vec::new() }))
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
    /// Whole lines, so that nothing is put into the middle of one.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if self.life.is_over() || self.end.as_mut().poll(cx).is_ready() {
                return Poll::Pending;
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
                    let shown = self.show(lines);
                    if !shown.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(shown))));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn show(&self, lines: Vec<u8>) -> Bytes {
        let Some(group) = &self.shows else { return lines.into() };
        let own = |line: &&[u8]| {
            serde_json::from_slice::<Value>(line).is_ok_and(|event| super::is_own(&event["object"], group))
        };
        lines.split_inclusive(|b| *b == b'\n').filter(own).flatten().copied().collect()
    }
}

/// A hand on an open watch.
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
