//! What lies between a manager and an embedded API in the thread of its test: a real API server answers after milliseconds, and
//! tells the watchers of one kind later than those of another. Time is virtual, so a test waits for none of it.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use kube::client::Body;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::seed;

/// The body of an answer.
pub(super) type Answered = UnsyncBoxBody<Bytes, <Body as http_body::Body>::Error>;

/// How long requests travel, in milliseconds.
const REQUEST: std::ops::RangeInclusive<u64> = 1..=5;
/// How long what happens is unknown to a watcher, in milliseconds.
const WATCH: std::ops::RangeInclusive<u64> = 1..=300;

/// Latencies by chance, the same for each run with the same `OPERETTA_TEST_SEED`.
#[derive(Debug)]
pub(super) struct Latency(fastrand::Rng);

impl Latency {
    pub(super) fn new() -> Self {
        Self(fastrand::Rng::with_seed(seed()))
    }

    /// How long a request travels.
    pub(super) fn of_request(&mut self) -> Duration {
        Duration::from_millis(self.0.u64(REQUEST))
    }

    /// How much later than it is sent each part of the answer arrives.
    pub(super) fn of_answer(&mut self, request: &Request<Body>) -> Duration {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        Duration::from_millis(self.0.u64(if watches { WATCH } else { REQUEST }))
    }
}

/// The answer, each part of which arrives this much later than it is sent.
pub(super) fn late(answer: Response<Body>, lag: Duration) -> Response<Answered> {
    answer.map(|body| {
        let (sender, parts) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut body = BodyStream::new(body);
            loop {
                let part = tokio::select! {
                    () = sender.closed() => return,
                    part = body.next() => part,
                };
                let Some(part) = part else { return };
                if sender.send((Instant::now() + lag, part)).is_err() {
                    return;
                }
            }
        });
        let parts = stream::unfold(parts, async |mut parts| {
            let (due, part): (_, Result<Frame<Bytes>, _>) = parts.recv().await?;
            sleep_until(due).await;
            Some((part, parts))
        });
        StreamBody::new(parts).boxed_unsync()
    })
}
