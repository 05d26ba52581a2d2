//! The work queue: a key never runs twice at once, waits out its delay, and is never lost; and each package
//! has a lane of its own, so that none waits for another's slow turns.
//!
//! A key that is added while it runs, runs once more afterwards. A failing key backs off by itself;
//! the others do not notice. Lanes take turns. How many keys of a lane run at once is bounded: a few are its
//! own, the rest come from a common part of which no lane may hold everything.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// First delay after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// Longest delay after failures.
const BACKOFF_LAST: Duration = Duration::from_secs(300);

/// How many keys may run at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Of each lane, whatever the others do.
    own: usize,
    /// Of one lane at most.
    most: usize,
    /// Of all lanes together, beyond what is their own.
    common: usize,
}

impl Limits {
    /// At most so many of one lane.
    pub(super) fn of_lane(most: usize) -> Self {
        let most = most.max(2);
        Self { own: (most / 8).max(1), most, common: most + most.div_ceil(4) }
    }
}

/// Which lane a key is in.
type LaneOf<K> = Box<dyn Fn(&K) -> Arc<str> + Send + Sync>;

/// A queue of keys. Shared by reference between those who add and those who work.
pub(super) struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
    lane_of: LaneOf<K>,
}

/// What a queue holds, for metrics and debugging.
#[derive(Debug, Default)]
pub(super) struct LaneView<K> {
    /// How many keys could run now.
    pub ready: usize,
    /// Keys that run.
    pub running: Vec<K>,
    /// Keys that wait: until when, and after how many failures in a row.
    pub delayed: Vec<(K, Duration, u32)>,
}

struct State<K> {
    lanes: HashMap<Arc<str>, Lane<K>>,
    /// Lanes with ready keys, next one first.
    order: VecDeque<Arc<str>>,
    /// How many keys run beyond what is their lanes' own.
    common: usize,
    limits: Limits,
    delayed: BinaryHeap<Reverse<(Instant, u64, K)>>,
    slots: HashMap<K, Slot>,
    serial: u64,
    closed: bool,
}

struct Lane<K> {
    ready: VecDeque<K>,
    running: usize,
}

struct Slot {
    lane: Arc<str>,
    queued: bool,
    running: bool,
    /// The delayed entry that counts; earlier ones of the key in the heap are void.
    due: Option<(Instant, u64)>,
    failures: u32,
    /// Since when it is queued, or runs.
    since: Instant,
}

impl Slot {
    fn is_idle(&self) -> bool {
        !self.queued && !self.running && self.due.is_none() && self.failures == 0
    }
}

/// A key that is to run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken<K> {
    /// The key.
    pub key: K,
    /// Its lane.
    pub lane: Arc<str>,
    /// How long it could have run already.
    pub waited: Duration,
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// An empty queue, and how it is known which lane a key is in.
    pub(super) fn new(limits: Limits, lane_of: impl Fn(&K) -> Arc<str> + Send + Sync + 'static) -> Self {
        let state = State {
            lanes: HashMap::new(),
            order: VecDeque::new(),
            common: 0,
            limits,
            delayed: BinaryHeap::new(),
            slots: HashMap::new(),
            serial: 0,
            closed: false,
        };
        Self { state: Mutex::new(state), wake: Notify::new(), lane_of: Box::new(lane_of) }
    }

    /// Runs the key as soon as it is its turn. Shortens any delay.
    pub(super) fn add(&self, key: K) {
        let mut state = self.lock();
        let slot = self.slot(&mut state, &key);
        slot.due = None;
        if slot.queued {
            return;
        }
        slot.queued = true;
        // A running key is queued again by `done`.
        if !slot.running {
            state.push(key);
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
        let mut state = self.lock();
        let Some(slot) = state.slots.get_mut(&key).filter(|slot| slot.running) else { return };
        slot.running = false;
        slot.failures = if failed { slot.failures.saturating_add(1) } else { 0 };
        let (lane, queued, idle) = (Arc::clone(&slot.lane), slot.queued, slot.is_idle());
        let delay = failed.then(|| backoff(slot.failures));
        state.leave(&lane);
        if queued {
            state.push(key);
        } else if idle {
            state.slots.remove(&key);
        } else if let Some(delay) = delay {
            drop(state);
            self.add_after(key, delay);
        }
        // What runs no more makes room.
        self.wake.notify_one();
    }

    /// Wakes all workers with `None`; what is queued stays undone.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        // `notify_waiters` alone would miss a worker between its look and its wait.
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    /// What it holds, lane by lane.
    pub(super) fn view(&self) -> HashMap<Arc<str>, LaneView<K>> {
        let state = self.lock();
        let now = Instant::now();
        let mut lanes: HashMap<_, _> = state
            .lanes
            .iter()
            .map(|(name, lane)| {
                let view = LaneView { ready: lane.ready.len(), running: Vec::new(), delayed: Vec::new() };
                (Arc::clone(name), view)
            })
            .collect();
        for (key, slot) in &state.slots {
            let lane = lanes.entry(Arc::clone(&slot.lane)).or_insert_with(|| LaneView {
                ready: 0,
                running: Vec::new(),
                delayed: Vec::new(),
            });
            if slot.running {
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
            running: false,
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
        let lane = self
            .lanes
            .entry(Arc::clone(&slot.lane))
            .or_insert_with(|| Lane { ready: VecDeque::new(), running: 0 });
        if lane.ready.is_empty() {
            self.order.push_back(Arc::clone(&slot.lane));
        }
        lane.ready.push_back(key);
    }

    /// Takes the first key of the next lane that may run one.
    fn take(&mut self) -> Option<Taken<K>> {
        for _ in 0..self.order.len() {
            let name = self.order.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let own = lane.running < self.limits.own;
            if !own && (lane.running >= self.limits.most || self.common >= self.limits.common) {
                self.order.push_back(name);
                continue;
            }
            let Some(key) = lane.ready.pop_front() else { continue };
            lane.running += 1;
            self.common += usize::from(!own);
            if !lane.ready.is_empty() {
                self.order.push_back(Arc::clone(&name));
            }
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            slot.queued = false;
            slot.running = true;
            let now = Instant::now();
            let waited = now.saturating_duration_since(slot.since);
            slot.since = now;
            return Some(Taken { key, lane: name, waited });
        }
        None
    }

    /// A key of the lane runs no more.
    fn leave(&mut self, name: &str) {
        if let Some(lane) = self.lanes.get_mut(name) {
            self.common -= usize::from(lane.running > self.limits.own);
            lane.running -= 1;
            if lane.running == 0 && lane.ready.is_empty() {
                self.lanes.remove(name);
            }
        }
    }

    /// Moves what is due from the heap to its lane.
    fn release(&mut self, now: Instant) {
        while let Some(Reverse((at, serial, key))) = self.delayed.peek() {
            let slot = self.slots.get_mut(key);
            let valid = slot.filter(|slot| slot.due == Some((*at, *serial)));
            if valid.is_some() && *at > now {
                return;
            }
            let ready = valid.is_some_and(|slot| {
                slot.due = None;
                !std::mem::replace(&mut slot.queued, true) && !slot.running
            });
            if let Some(Reverse((.., key))) = self.delayed.pop()
                && ready
            {
                self.push(key);
            }
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

    /// Hundreds are lanes.
    fn queue() -> Queue<u32> {
        Queue::new(Limits::of_lane(32), |key: &u32| format!("lane {}", key / 100).into())
    }

    async fn next(queue: &Queue<u32>) -> Option<u32> {
        queue.next().await.map(|taken| taken.key)
    }

    /// All that may run now.
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
        queue.add(1);
        queue.add(1);
        assert_eq!(next(&queue).await, Some(1));
        queue.add(1);
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
    async fn what_is_looked_at_anyway_does_not_run_again() {
        let queue = queue();
        queue.add(1);
        queue.looking(&1);
        assert_eq!(next(&queue).await, Some(1), "only a running key looks");
        queue.add(1);
        queue.looking(&1);
        queue.done(1, false);
        assert!(queue.lock().slots.is_empty(), "ran again for what was seen");
        queue.add(1);
        assert_eq!(next(&queue).await, Some(1));
        queue.looking(&1);
        queue.add(1);
        queue.done(1, false);
        assert_eq!(next(&queue).await, Some(1), "an event after the look is lost");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_a_success_forgets() {
        let queue = queue();
        queue.add(1);
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
        queue.add(1);
        assert_eq!(next(&queue).await, Some(1));
        queue.done(1, false);
        assert!(queue.lock().slots.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_delays_counts() {
        let queue = queue();
        queue.add_after(1, Duration::from_secs(60));
        queue.add_after(1, Duration::from_secs(5));
        queue.add_after(2, Duration::from_secs(10));
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
    async fn close_wakes_everybody() {
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
    async fn lanes_take_turns() {
        let queue = queue();
        for key in [1, 2, 3, 101, 102, 201] {
            queue.add(key);
        }
        assert_eq!(all(&queue).await, [1, 101, 201, 2, 102, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_whose_turns_hang_delays_no_other() {
        let queue = queue();
        for key in 0..100 {
            queue.add(key);
            queue.add(100 + key);
        }
        queue.lock().order.retain(|lane| &**lane == "lane 0");
        assert_eq!(all(&queue).await.len(), 32, "a lane that is alone has what it may have");
        queue.lock().order.push_back("lane 1".into());
        assert_eq!(all(&queue).await.len(), 16, "its own, and what is left of the common part");
        // Both hang. A third comes, and for each that is done the next is let in.
        for key in 200..220 {
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
        // Room in the common part goes to whoever waits for it, in turn.
        queue.done(0, true);
        assert_eq!(all(&queue).await.len(), 1);
        assert_eq!(queue.view()["lane 0"].running.len() + queue.view()["lane 1"].running.len(), 48);
    }
}
