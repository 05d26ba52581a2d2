//! The memory that requests take until they are answered. If it is used up, the request that has been sent for longest
//! ends: API servers send theirs at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes};
use tokio::sync::Notify;

/// Why a body was not read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum BodyError {
    #[error("the body is larger than {} MiB", .0 >> 20)]
    TooLarge(usize),
    #[error("the body was cut off")]
    CutOff,
    #[error("too many requests are being read")]
    Busy,
}

/// The memory of all bodies.
pub(super) struct Bodies {
    state: Mutex<State>,
}

struct State {
    free: usize,
    next: u64,
    /// The bytes of each body.
    taken: HashMap<u64, (usize, Arc<Notify>)>,
    /// The bodies that are not complete.
    reading: BTreeSet<u64>,
}

/// A body. Its memory is free when this is dropped.
pub(super) struct Held {
    bodies: Arc<Bodies>,
    id: u64,
    pub(super) bytes: Vec<u8>,
}

impl Bodies {
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        let (taken, reading) = (HashMap::new(), BTreeSet::new());
        Arc::new(Self { state: Mutex::new(State { free: bytes, next: 0, taken, reading }) })
    }

    /// Reads a body of at most `limit` bytes.
    pub(super) async fn read<B: Body<Data = Bytes> + Unpin>(
        self: &Arc<Self>,
        mut body: B,
        limit: usize,
    ) -> Result<Held, BodyError> {
        let (mut held, stop) = self.begin();
        let read = async {
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.map_err(|_| BodyError::CutOff)?.into_data() else { continue };
                if held.bytes.len() + data.len() > limit {
                    return Err(BodyError::TooLarge(limit));
                }
                if !self.take(held.id, data.len()) {
                    return Err(BodyError::Busy);
                }
                held.bytes.extend_from_slice(&data);
            }
            Ok(())
        };
        tokio::select! {
            read = read => read?,
            () = stop.notified() => return Err(BodyError::Busy),
        }
        self.locked(|state| state.reading.remove(&held.id));
        Ok(held)
    }

    fn locked<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin(self: &Arc<Self>) -> (Held, Arc<Notify>) {
        let stop = Arc::new(Notify::new());
        let id = self.locked(|state| {
            state.next += 1;
            state.taken.insert(state.next, (0, Arc::clone(&stop)));
            state.reading.insert(state.next);
            state.next
        });
        (Held { bodies: Arc::clone(self), id, bytes: Vec::new() }, stop)
    }

    /// Whether a body may take this many more bytes. To make room, older bodies that are not complete are
    /// ended.
    fn take(&self, id: u64, bytes: usize) -> bool {
        self.locked(|state| {
            while state.free < bytes {
                match state.reading.pop_first() {
                    Some(oldest) if oldest != id => state.give_back(oldest),
                    _ => return false,
                }
            }
            let Some((taken, _)) = state.taken.get_mut(&id) else { return false };
            *taken += bytes;
            state.free -= bytes;
            true
        })
    }
}

impl State {
    fn give_back(&mut self, id: u64) {
        self.reading.remove(&id);
        if let Some((bytes, stop)) = self.taken.remove(&id) {
            self.free += bytes;
            stop.notify_one();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bodies.locked(|state| state.give_back(self.id));
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    /// A body that sends this many bytes and then nothing.
    fn stuck(bytes: usize) -> impl Body<Data = Bytes, Error = std::convert::Infallible> + Unpin {
        let data = stream::iter([Ok(Frame::data(Bytes::from(vec![b'x'; bytes])))]);
        StreamBody::new(data.chain(stream::pending()))
    }

    fn whole(bytes: usize) -> Full<Bytes> {
        Full::new(Bytes::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn stuck_bodies_are_ended_to_make_room() {
        let bodies = Bodies::new(100);
        let mut first = tokio::spawn({
            let bodies = Arc::clone(&bodies);
            async move { bodies.read(stuck(60), 100).await.err() }
        });
        let second = tokio::spawn({
            let bodies = Arc::clone(&bodies);
            async move { bodies.read(stuck(30), 100).await.err() }
        });
        while bodies.locked(|state| state.free) > 10 {
            tokio::task::yield_now().await;
        }
        let held = bodies.read(whole(70), 100).await.unwrap();
        assert_eq!(held.bytes.len(), 70);
        assert_eq!((&mut first).await.unwrap(), Some(BodyError::Busy));
        assert!(!second.is_finished());
        // A complete body does not end; it is held until it is dropped.
        assert_eq!(bodies.read(whole(70), 100).await.err(), Some(BodyError::Busy));
        assert_eq!(second.await.unwrap(), Some(BodyError::Busy));
        drop(held);
        assert!(bodies.read(whole(100), 100).await.is_ok());
        assert_eq!(bodies.read(whole(101), 100).await.err(), Some(BodyError::TooLarge(100)));
        assert_eq!(bodies.locked(|state| state.free), 100);
    }
}
