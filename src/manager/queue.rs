//! The work queue: a key never runs twice at once, waits out its delay, and is never lost.
//!
//! A key that is added while it runs, runs once more afterwards. A failing key backs off by itself;
//! the others do not notice.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// First delay after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// Longest delay after failures.
const BACKOFF_LAST: Duration = Duration::from_secs(300);

/// A queue of keys. Shared by reference between those who add and those who work.
pub(super) struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    delayed: BinaryHeap<Reverse<(Instant, u64, K)>>,
    slots: HashMap<K, Slot>,
    serial: u64,
    closed: bool,
}

#[derive(Default)]
struct Slot {
    queued: bool,
    running: bool,
    /// The delayed entry that counts; earlier ones of the key in the heap are void.
    due: Option<(Instant, u64)>,
    failures: u32,
}

impl Slot {
    fn is_idle(&self) -> bool {
        !self.queued && !self.running && self.due.is_none() && self.failures == 0
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// An empty queue.
    pub(super) fn new() -> Self {
        let state = State {
            ready: VecDeque::new(),
            delayed: BinaryHeap::new(),
            slots: HashMap::new(),
            serial: 0,
            closed: false,
        };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }

    /// Runs the key as soon as a worker is free. Shortens any delay.
    pub(super) fn add(&self, key: K) {
        let mut state = self.lock();
        let slot = state.slots.entry(key.clone()).or_default();
        slot.due = None;
        if slot.queued {
            return;
        }
        slot.queued = true;
        // A running key is queued again by `done`.
        if !slot.running {
            state.ready.push_back(key);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Runs the key after a delay, unless it is due sooner anyway.
    pub(super) fn add_after(&self, key: K, delay: Duration) {
        let mut state = self.lock();
        state.serial += 1;
        let serial = state.serial;
        let at = Instant::now() + delay;
        let slot = state.slots.entry(key.clone()).or_default();
        if slot.queued || slot.due.is_some_and(|(due, _)| due <= at) {
            return;
        }
        slot.due = Some((at, serial));
        state.delayed.push(Reverse((at, serial, key)));
        drop(state);
        self.wake.notify_one();
    }

    /// The next key to work on; `None` once the queue is closed. Each key must be given back by
    /// [`Self::done`].
    pub(super) async fn next(&self) -> Option<K> {
        loop {
            let notified = self.wake.notified();
            let due = {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                state.release(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    if let Some(slot) = state.slots.get_mut(&key) {
                        slot.queued = false;
                        slot.running = true;
                    }
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return Some(key);
                }
                state.delayed.peek().map(|Reverse((at, ..))| *at)
            };
            match due {
                Some(at) => {
                    tokio::select! {
                        () = notified => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => notified.await,
            }
        }
    }

    /// Says of a running key that all it was added for so far is going to be looked at: only what comes from
    /// now on runs it again.
    pub(super) fn looking(&self, key: &K) {
        if let Some(slot) = self.lock().slots.get_mut(key)
            && slot.running
        {
            slot.queued = false;
        }
    }

    /// Gives a key back. After a failure it runs again, later each time; after a success its delays
    /// start anew.
    pub(super) fn done(&self, key: K, failed: bool) {
        let backoff = {
            let mut state = self.lock();
            let Some(slot) = state.slots.get_mut(&key) else { return };
            slot.running = false;
            slot.failures = if failed { slot.failures.saturating_add(1) } else { 0 };
            let backoff = failed.then(|| backoff(slot.failures));
            if slot.queued {
                state.ready.push_back(key);
                drop(state);
                self.wake.notify_one();
                return;
            }
            if slot.is_idle() {
                state.slots.remove(&key);
                return;
            }
            backoff
        };
        if let Some(delay) = backoff {
            self.add_after(key, delay);
        }
    }

    /// Wakes all workers with `None`; what is queued stays undone.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        // `notify_waiters` alone would miss a worker between its look and its wait.
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash + Ord> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    /// Moves what is due from the heap to the ready list.
    fn release(&mut self, now: Instant) {
        while let Some(Reverse((at, serial, _))) = self.delayed.peek() {
            let (at, serial) = (*at, *serial);
            let Some(slot) = self.delayed.peek().and_then(|Reverse((.., key))| self.slots.get_mut(key))
            else {
                self.delayed.pop();
                continue;
            };
            let valid = slot.due == Some((at, serial));
            if valid && at > now {
                return;
            }
            if valid {
                slot.due = None;
                if !slot.queued {
                    slot.queued = true;
                    if !slot.running
                        && let Some(Reverse((.., key))) = self.delayed.pop()
                    {
                        self.ready.push_back(key);
                        continue;
                    }
                }
            }
            self.delayed.pop();
        }
    }
}

/// Doubles from [`BACKOFF_FIRST`] to [`BACKOFF_LAST`], a fifth of it by chance, so that many keys that fail
/// together do not come back together.
fn backoff(failures: u32) -> Duration {
    let base = BACKOFF_FIRST
        .saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(20)))
        .min(BACKOFF_LAST);
    base.mul_f64(0.8 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_never_runs_twice_at_once_and_is_not_lost() {
        let queue = Queue::new();
        queue.add(1);
        queue.add(1);
        assert_eq!(queue.next().await, Some(1));
        queue.add(1);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err(),
            "ran twice at once"
        );
        queue.done(1, false);
        assert_eq!(queue.next().await, Some(1));
        queue.done(1, false);
        assert!(queue.lock().slots.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_looked_at_anyway_does_not_run_again() {
        let queue = Queue::new();
        queue.add(1);
        queue.looking(&1);
        assert_eq!(queue.next().await, Some(1), "only a running key looks");
        queue.add(1);
        queue.looking(&1);
        queue.done(1, false);
        assert!(queue.lock().slots.is_empty(), "ran again for what was seen");
        queue.add(1);
        assert_eq!(queue.next().await, Some(1));
        queue.looking(&1);
        queue.add(1);
        queue.done(1, false);
        assert_eq!(queue.next().await, Some(1), "an event after the look is lost");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_a_success_forgets() {
        let queue = Queue::new();
        queue.add(1);
        let mut delays = Vec::new();
        for _ in 0..4 {
            let started = Instant::now();
            assert_eq!(queue.next().await, Some(1));
            delays.push(started.elapsed());
            queue.done(1, true);
        }
        assert!(delays[0].is_zero());
        assert!(delays.windows(2).all(|w| w[0] < w[1]), "{delays:?}");
        queue.add(1);
        assert_eq!(queue.next().await, Some(1));
        queue.done(1, false);
        assert!(queue.lock().slots.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_delays_counts() {
        let queue = Queue::new();
        queue.add_after(1, Duration::from_secs(60));
        queue.add_after(1, Duration::from_secs(5));
        queue.add_after(2, Duration::from_secs(10));
        let start = Instant::now();
        assert_eq!(queue.next().await, Some(1));
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.done(1, false);
        assert_eq!(queue.next().await, Some(2));
        queue.done(2, false);
        assert!(
            tokio::time::timeout(Duration::from_secs(300), queue.next()).await.is_err(),
            "the void delay ran"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn close_wakes_everybody() {
        let queue = std::sync::Arc::new(Queue::<u32>::new());
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = std::sync::Arc::clone(&queue);
                tokio::spawn(async move { queue.next().await })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        for worker in workers {
            assert_eq!(worker.await.unwrap(), None);
        }
    }
}
