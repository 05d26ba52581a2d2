//! The work queue. A key never runs twice at once, waits for its delay, and is never lost. Each package has a lane,
//! so that no package waits for slow keys of another.
//!
//! A key that is added while it runs runs once more afterwards. A failing key backs off and delays no other. Lanes
//! are served round-robin. The number of keys of a lane that run at once is limited by [`ConcurrencyLimits`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backoff::Backoff;
use crate::clock::Instant;
use crate::cluster::{ConcurrencyLimits, Permit};

/// The delay after failures.
const FAILED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(300));

/// Returns the lane of a key.
type LaneOf<K> = Box<dyn Fn(&K) -> Arc<str> + Send + Sync>;

/// A queue of keys. It is shared between the callers that add keys and the workers.
pub(super) struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
    lane_of: LaneOf<K>,
}

/// The keys of a lane, for metrics and debugging.
#[derive(Debug)]
pub(super) struct LaneView<K> {
    /// How many keys are ready.
    pub ready: usize,
    /// Running keys.
    pub running: Vec<K>,
    /// Delayed keys: for how long, and after how many failures in a row.
    pub delayed: Vec<(K, Duration, u32)>,
}

struct State<K> {
    /// The ready keys by lane.
    lanes: HashMap<Arc<str>, VecDeque<K>>,
    /// Lanes with ready keys, next one first.
    order: VecDeque<Arc<str>>,
    limits: ConcurrencyLimits,
    delayed: BinaryHeap<Reverse<(Instant, u64, K)>>,
    slots: HashMap<K, Slot>,
    serial: u64,
    closed: bool,
}

struct Slot {
    lane: Arc<str>,
    queued: bool,
    /// Present while the key runs.
    permit: Option<Permit>,
    /// The valid delayed entry. Earlier entries of the key in the heap are ignored.
    due: Option<(Instant, u64)>,
    failures: u32,
    /// When it was queued or started.
    since: Instant,
}

impl Slot {
    fn is_idle(&self) -> bool {
        !self.queued && self.permit.is_none() && self.due.is_none() && self.failures == 0
    }
}

/// A key that is to run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken<K> {
    /// The key.
    pub key: K,
    /// Its lane.
    pub lane: Arc<str>,
    /// How long it was ready.
    pub waited: Duration,
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// An empty queue. `limits`: how many keys of a lane run at once. `lane_of` returns the lane of a key.
    pub(super) fn new(
        limits: ConcurrencyLimits,
        lane_of: impl Fn(&K) -> Arc<str> + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            lanes: HashMap::new(),
            order: VecDeque::new(),
            limits,
            delayed: BinaryHeap::new(),
            slots: HashMap::new(),
            serial: 0,
            closed: false,
        };
        Self { state: Mutex::new(state), wake: Notify::new(), lane_of: Box::new(lane_of) }
    }

    /// Queues the key, without any delay that it has.
    pub(super) fn add(&self, key: impl Into<K>) {
        let key = key.into();
        let mut state = self.lock();
        let slot = self.slot(&mut state, &key);
        slot.due = None;
        if slot.queued {
            return;
        }
        slot.queued = true;
        // A running key is queued again by `done`.
        if slot.permit.is_none() {
            state.push(key);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Runs the key after a delay, unless it is due sooner anyway.
    pub(super) fn add_after(&self, key: impl Into<K>, delay: Duration) {
        let key = key.into();
        let mut state = self.lock();
        state.serial += 1;
        let serial = state.serial;
        let at = Instant::now() + delay;
        let slot = self.slot(&mut state, &key);
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
    pub(super) async fn next(&self) -> Option<Taken<K>> {
        loop {
            let notified = self.wake.notified();
            let due = {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                state.release(Instant::now());
                if let Some(taken) = state.take() {
                    if !state.order.is_empty() {
                        self.wake.notify_one();
                    }
                    return Some(taken);
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

    /// The running key reads the current state after this call. Only what is added from now on runs it again.
    pub(super) fn clear_queued(&self, key: &K) {
        if let Some(slot) = self.lock().slots.get_mut(key)
            && slot.permit.is_some()
        {
            slot.queued = false;
        }
    }

    /// Gives a key back. After a failure it runs again, later each time; after a success its backoff is reset.
    pub(super) fn done(&self, key: K, failed: bool) {
        let mut state = self.lock();
        let Some(slot) = state.slots.get_mut(&key).filter(|slot| slot.permit.is_some()) else { return };
        slot.permit = None;
        slot.failures = if failed { slot.failures.saturating_add(1) } else { 0 };
        let (queued, idle) = (slot.queued, slot.is_idle());
        let delay = failed.then(|| FAILED.after(slot.failures));
        if queued {
            state.push(key);
        } else if idle {
            state.slots.remove(&key);
        } else if let Some(delay) = delay {
            drop(state);
            self.add_after(key, delay);
        }
        // Another key may run now.
        self.wake.notify_one();
    }

    /// Wakes all workers with `None`. Queued keys do not run.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        // `notify_waiters` alone would miss a worker that has not begun to wait yet.
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    /// All keys by lane.
    pub(super) fn view(&self) -> HashMap<Arc<str>, LaneView<K>> {
        let state = self.lock();
        let now = Instant::now();
        let mut lanes: HashMap<Arc<str>, LaneView<K>> = HashMap::new();
        for (key, slot) in &state.slots {
            let lane = lanes.entry(Arc::clone(&slot.lane)).or_insert_with(|| LaneView {
                ready: state.lanes.get(&slot.lane).map_or(0, VecDeque::len),
                running: Vec::new(),
                delayed: Vec::new(),
            });
            if slot.permit.is_some() {
                lane.running.push(key.clone());
            }
            if let Some((at, _)) = slot.due {
                lane.delayed.push((key.clone(), at.saturating_duration_since(now), slot.failures));
            }
        }
        lanes
    }

    fn slot<'a>(&self, state: &'a mut State<K>, key: &K) -> &'a mut Slot {
        state.slots.entry(key.clone()).or_insert_with(|| Slot {
            lane: (self.lane_of)(key),
            queued: false,
            permit: None,
            due: None,
            failures: 0,
            since: Instant::now(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    /// Puts a key that is marked as queued at the end of its lane.
    fn push(&mut self, key: K) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        slot.since = Instant::now();
        let lane = self.lanes.entry(Arc::clone(&slot.lane)).or_default();
        if lane.is_empty() {
            self.order.push_back(Arc::clone(&slot.lane));
        }
        lane.push_back(key);
    }

    /// Takes the first key of the next lane that may run one.
    fn take(&mut self) -> Option<Taken<K>> {
        for _ in 0..self.order.len() {
            let name = self.order.pop_front()?;
            let Some(permit) = self.limits.of(&name).try_permit() else {
                self.order.push_back(name);
                continue;
            };
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let Some(key) = lane.pop_front() else { continue };
            if lane.is_empty() {
                self.lanes.remove(&name);
            } else {
                self.order.push_back(Arc::clone(&name));
            }
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            slot.queued = false;
            slot.permit = Some(permit);
            let now = Instant::now();
            let waited = now.saturating_duration_since(slot.since);
            slot.since = now;
            return Some(Taken { key, lane: name, waited });
        }
        None
    }

    /// Moves due keys from the heap to their lanes.
    fn release(&mut self, now: Instant) {
        while let Some(Reverse((at, serial, key))) = self.delayed.peek() {
            let slot = self.slots.get_mut(key);
            let valid = slot.filter(|slot| slot.due == Some((*at, *serial)));
            if valid.is_some() && *at > now {
                return;
            }
            let ready = valid.is_some_and(|slot| {
                slot.due = None;
                !std::mem::replace(&mut slot.queued, true) && slot.permit.is_none()
            });
            if let Some(Reverse((.., key))) = self.delayed.pop()
                && ready
            {
                self.push(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue in which each hundred of keys is a lane.
    fn queue() -> Queue<u32> {
        Queue::new(ConcurrencyLimits::new(32), |key: &u32| format!("lane {}", key / 100).into())
    }

    async fn next(queue: &Queue<u32>) -> Option<u32> {
        queue.next().await.map(|taken| taken.key)
    }

    /// All keys that are ready.
    async fn all(queue: &Queue<u32>) -> Vec<u32> {
        let mut keys = Vec::new();
        while let Ok(Some(key)) = tokio::time::timeout(Duration::from_millis(1), next(queue)).await {
            keys.push(key);
        }
        keys
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_never_runs_twice_at_once_and_is_not_lost() {
        let queue = queue();
        queue.add(1_u32);
        queue.add(1_u32);
        assert_eq!(next(&queue).await, Some(1));
        queue.add(1_u32);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err(),
            "ran twice at once"
        );
        queue.done(1, false);
        assert_eq!(next(&queue).await, Some(1));
        queue.done(1, false);
        assert!(queue.lock().slots.is_empty() && queue.lock().lanes.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_added_before_its_snapshot_does_not_run_again() {
        let queue = queue();
        queue.add(1_u32);
        queue.clear_queued(&1);
        assert_eq!(next(&queue).await, Some(1), "only a running key looks");
        queue.add(1_u32);
        queue.clear_queued(&1);
        queue.done(1, false);
        assert!(queue.lock().slots.is_empty(), "ran again for what was seen");
        queue.add(1_u32);
        assert_eq!(next(&queue).await, Some(1));
        queue.clear_queued(&1);
        queue.add(1_u32);
        queue.done(1, false);
        assert_eq!(next(&queue).await, Some(1), "an event after the look is lost");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_a_success_resets_the_delay() {
        let queue = queue();
        queue.add(1_u32);
        let mut delays = Vec::new();
        for _ in 0..4 {
            let started = Instant::now();
            assert_eq!(next(&queue).await, Some(1));
            delays.push(started.elapsed());
            queue.done(1, true);
        }
        assert!(delays[0].is_zero());
        assert!(delays.windows(2).all(|w| w[0] < w[1]), "{delays:?}");
        assert_eq!(queue.view()["lane 0"].delayed[0].2, 4);
        queue.add(1_u32);
        assert_eq!(next(&queue).await, Some(1));
        queue.done(1, false);
        assert!(queue.lock().slots.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_delays_counts() {
        let queue = queue();
        queue.add_after(1_u32, Duration::from_secs(60));
        queue.add_after(1_u32, Duration::from_secs(5));
        queue.add_after(2_u32, Duration::from_secs(10));
        let start = Instant::now();
        assert_eq!(next(&queue).await, Some(1));
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.done(1, false);
        assert_eq!(next(&queue).await, Some(2));
        queue.done(2, false);
        assert!(
            tokio::time::timeout(Duration::from_secs(300), queue.next()).await.is_err(),
            "the void delay ran"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn close_wakes_all_workers() {
        let queue = Arc::new(queue());
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.next().await })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        for worker in workers {
            assert_eq!(worker.await.unwrap(), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_are_served_round_robin() {
        let queue = queue();
        for key in [1_u32, 2, 3, 101, 102, 201] {
            queue.add(key);
        }
        assert_eq!(all(&queue).await, [1, 101, 201, 2, 102, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_whose_keys_hang_delays_no_other() {
        let queue = queue();
        for key in 0..100_u32 {
            queue.add(key);
            queue.add(100 + key);
        }
        queue.lock().order.retain(|lane| &**lane == "lane 0");
        assert_eq!(all(&queue).await.len(), 32, "a lane that is alone has what it may have");
        queue.lock().order.push_back("lane 1".into());
        assert_eq!(all(&queue).await.len(), 16, "its own, and what is left of the common part");
        // While two lanes hang, a third runs, and each end lets its next key run.
        for key in 200..220_u32 {
            queue.add(key);
        }
        let mut running = VecDeque::from(all(&queue).await);
        assert_eq!(running, [200, 201, 202, 203]);
        let mut done = 0;
        while let Some(key) = running.pop_front() {
            queue.done(key, false);
            done += 1;
            running.extend(all(&queue).await);
        }
        assert_eq!(done, 20);
        // Common permits go to waiting lanes in order.
        queue.done(0, true);
        assert_eq!(all(&queue).await.len(), 1);
        assert_eq!(queue.view()["lane 0"].running.len() + queue.view()["lane 1"].running.len(), 48);
    }
}
