//! Observations of refs: requests that are made repeatedly, for as long as an instance reads the answer. An answer
//! that has not changed queues no instance.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::{debug, error};

use super::poll_places::{Limits, Place, PollPlaces};
use crate::backoff::{Backoff, jitter};
use crate::children::{Poll, PollRequest, PollResult};
use crate::cluster::TenantLimits;
use crate::manager::contained::{RESTART, contained};
use crate::manager::effects::Effects;
use crate::manager::index::InstanceKey;
use crate::manager::scheduler::Scheduler;
use crate::plan::request::CallFailure;

/// How many requests the namespaces of a package share.
const AT_ONCE: usize = 16;
/// How many observations of a package are made: each keeps an answer of up to 64 KiB. The others wait for a place.
const PLACES: Limits = Limits { most: 5_000, first: 4_000, few: 100 };
/// How many of them one instance may have, so that a few instances do not take all places.
const MOST_OF_INSTANCE: usize = 200;
/// How long after a failure an observation is made again.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));
/// How long a first answer is awaited in silence; after that the status says that there is none, unless it is about the
/// instance as it is: then another process had an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// For how long a first answer is awaited in all. A request ends before that, but it may wait for others.
const LONGEST_PATIENCE: Duration = Duration::from_secs(120);
/// The interval while a step of a run waits, whatever the package says.
const OFTEN: Duration = Duration::from_secs(1);
/// By how much intervals vary, so that observations spread; see [`jitter`].
const SPREAD: f64 = 0.5;

/// All observations.
pub(super) struct Polls {
    effects: Arc<Effects>,
    scheduler: Arc<Scheduler>,
    limits: TenantLimits,
    set: Mutex<Set>,
}

struct Set {
    sources: HashMap<Arc<Poll>, Source>,
    /// What each instance reads.
    reads: HashMap<InstanceKey, Reads>,
    places: PollPlaces,
}

/// What an instance reads.
#[derive(Default, PartialEq, Eq)]
struct Reads {
    polls: Vec<Arc<Poll>>,
    /// Whether a step of a run waits: the observations are made often.
    is_step_waiting: bool,
}

struct Source {
    readers: HashSet<InstanceKey>,
    /// While it is [`Place::Awaited`], the observation is not made.
    place: Place,
    result: PollResult,
    /// The number of the last wish for a new answer: an answer to an earlier request does not count.
    wanted: u64,
    signals: Arc<Signals>,
    failures: u32,
    task: JoinHandle<()>,
}

/// The signals to the task of an observation.
#[derive(Default)]
struct Signals {
    wake: Notify,
    /// Whether a step of one of its readers waits.
    is_often: watch::Sender<bool>,
    /// Whether a step waits for it in the deletion of an instance.
    for_deletion: watch::Sender<bool>,
}

impl Signals {
    /// Ends when the observation is to be made again for a step that waits.
    async fn often(&self) {
        // The sender is this one, so there is no error.
        let _ = self.is_often.subscribe().wait_for(|is_often| *is_often).await;
        tokio::time::sleep(OFTEN).await;
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The result of one request.
struct Answer {
    result: Result<Value, String>,
    /// Whether the request failed, or the server reports an error or too many requests.
    is_failure: bool,
    /// How long the server asks to wait.
    retry_after: Option<Duration>,
}

impl Polls {
    pub(super) fn new(effects: Arc<Effects>, scheduler: Arc<Scheduler>) -> Self {
        Self { effects, scheduler, limits: TenantLimits::new(AT_ONCE), set: Mutex::new(Set::new(PLACES)) }
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of what an instance observes, as far as [`Self::poll_for`] was called for it.
    pub(super) fn known(&self, key: &InstanceKey) -> HashMap<Arc<Poll>, PollResult> {
        let set = self.set();
        set.known(key)
    }

    /// Sets the observations that are made for the instance. Returns whether one of them has an answer that
    /// the instance did not see before. `is_step_waiting`: whether a step of a run waits for what they say.
    pub(super) fn poll_for(
        self: &Arc<Self>,
        key: &InstanceKey,
        polls: &[Arc<Poll>],
        is_step_waiting: bool,
    ) -> bool {
        let mut set = self.set();
        let before = set.reads.get(key);
        if before.map_or(polls.is_empty(), |before| {
            before.polls == polls && before.is_step_waiting == is_step_waiting
        }) {
            return false;
        }
        set.poll_for(key, polls, is_step_waiting, |poll, signals| {
            let (polls, poll, signals) = (Arc::clone(self), Arc::clone(poll), Arc::clone(signals));
            tokio::spawn(async move {
                while let Err(panic) =
                    contained(Arc::clone(&polls).run(Arc::clone(&poll), Arc::clone(&signals)))
                        .await
                {
                    error!(observation = %poll, %panic, "an observation panicked; this is a bug of Operetta, it is made again");
                    tokio::time::sleep(RESTART).await;
                }
            })
        })
    }

    /// Repeats all observations of an instance: until they are answered, they are pending, and an answer to a request that
    /// is under way does not count. `is_deleting`: whether the instance is being deleted.
    pub(super) fn refresh(&self, key: &InstanceKey, is_deleting: bool) {
        let mut set = self.set();
        let Set { sources, reads, .. } = &mut *set;
        let polls = reads.get(key).map(|reads| &*reads.polls).unwrap_or_default();
        for poll in split(polls).0 {
            let Some(source) = sources.get_mut(poll) else { continue };
            if is_deleting {
                source.signals.for_deletion.send_replace(true);
            }
            if source.place.is_awaited() {
                continue;
            }
            source.result = PollResult::Pending;
            source.wanted += 1;
            source.signals.wake.notify_one();
        }
    }

    /// All observations, for people.
    pub(super) fn view(&self) -> Value {
        let set = self.set();
        let mut lines: Vec<Value> = set
            .sources
            .iter()
            .map(|(poll, source)| {
                let state = match &source.result {
                    PollResult::Pending => "Pending",
                    PollResult::Delayed => "Delayed",
                    PollResult::Known(_) => "Known",
                    PollResult::Failed(_) => "Failed",
                };
                json!({
                    "package": poll.operator, "request": poll.to_string(), "state": state,
                    "everySeconds": poll.every.as_secs(), "failures": source.failures, "readers": source.readers.len(),
                })
            })
            .collect();
        lines.sort_by_key(ToString::to_string);
        lines.into()
    }

    /// Ends all observations.
    pub(super) fn stop(&self) {
        *self.set() = Set::new(PLACES);
    }

    /// Makes an observation until its task is aborted.
    async fn run(self: Arc<Self>, poll: Arc<Poll>, signals: Arc<Signals>) {
        loop {
            // The request answers all wishes up to now, so none of them makes another one.
            let _ = signals.wake.notified().now_or_never();
            let Some(begun) = self.set().begin(&poll) else { return };
            let Begun::Asking(began) = begun else {
                signals.wake.notified().await;
                continue;
            };
            let patience = async {
                tokio::time::sleep(PATIENCE).await;
                self.lose_patience(&poll, PollResult::Delayed);
                tokio::time::sleep(LONGEST_PATIENCE).await;
                self.lose_patience(&poll, PollResult::Failed(format!("{poll} is not answered yet")));
                std::future::pending().await
            };
            let answer = async {
                let (package, namespace) = (&poll.operator, &poll.namespace);
                let _permit = self.limits.permit_of_either(package, namespace, &signals.for_deletion).await;
                self.ask(&poll).await
            };
            let answer = tokio::select! {
                answer = answer => answer,
                never = patience => never,
            };
            let Some(pause) = self.learn(&poll, began, answer) else { continue };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = signals.wake.notified() => {}
                () = signals.often() => {}
            }
        }
    }

    async fn ask(&self, poll: &Poll) -> Answer {
        let failed = |failure: &CallFailure| Answer {
            result: Err(format!("{poll}: {failure}")),
            is_failure: true,
            retry_after: None,
        };
        match &poll.request {
            PollRequest::Http(request) => match self.effects.send(&poll.operator, request).await {
                Ok(reply) => Answer {
                    is_failure: reply.status == 429 || reply.status >= 500,
                    retry_after: reply.retry_after,
                    result: Ok(poll.http(reply)),
                },
                Err(failure) => failed(&failure),
            },
            PollRequest::Exec(request) => {
                match self.effects.clients.for_operator(&poll.operator).exec(request).await {
                    Ok(reply) => {
                        let result = poll.exec(reply).map_err(|why| format!("{poll}: {why}"));
                        Answer { is_failure: result.is_err(), result, retry_after: None }
                    }
                    Err(failure) => failed(&failure),
                }
            }
        }
    }

    /// Takes an answer; returns how long until the next request, or `None` if the request is to be repeated.
    fn learn(&self, poll: &Arc<Poll>, began: u64, answer: Answer) -> Option<Duration> {
        let mut set = self.set();
        let source = set.sources.get_mut(poll)?;
        if source.wanted != began {
            return None;
        }
        source.failures = if answer.is_failure { source.failures.saturating_add(1) } else { 0 };
        let pause = match source.failures {
            0 => jitter(poll.every, SPREAD.mul_add(fastrand::f64(), 0.5)),
            failures => AGAIN.after(failures).min(poll.every.max(Duration::from_secs(60))),
        };
        let pause = pause.max(answer.retry_after.unwrap_or_default());
        let result = match answer.result {
            Ok(value) => PollResult::Known(Arc::new(value)),
            Err(why) => {
                debug!(observation = %poll, %why, "an observation failed");
                PollResult::Failed(why)
            }
        };
        if source.result != result {
            source.result = result;
            self.scheduler.add_all(source.readers.iter().cloned());
        }
        Some(pause)
    }

    fn lose_patience(&self, poll: &Arc<Poll>, result: PollResult) {
        let mut set = self.set();
        if let Some(source) = set.sources.get_mut(poll)
            && matches!(source.result, PollResult::Pending | PollResult::Delayed)
        {
            source.result = result;
            self.scheduler.add_all(source.readers.iter().cloned());
        }
    }
}

/// What an observation does next.
#[derive(Debug, PartialEq, Eq)]
enum Begun {
    /// It waits for a place.
    Waiting,
    /// It sends a request, for the wish of that number.
    Asking(u64),
}

impl Set {
    fn new(places: Limits) -> Self {
        Self { sources: HashMap::new(), reads: HashMap::new(), places: PollPlaces::new(places) }
    }

    /// See [`Polls::known`].
    fn known(&self, key: &InstanceKey) -> HashMap<Arc<Poll>, PollResult> {
        let polls = self.reads.get(key).map(|reads| &*reads.polls).unwrap_or_default();
        let (made, refused) = split(polls);
        let made =
            made.iter().filter_map(|poll| Some((Arc::clone(poll), self.sources.get(poll)?.result.clone())));
        let message = || format!("the instance has more than {MOST_OF_INSTANCE} observations");
        let refused = refused.iter().map(|poll| (Arc::clone(poll), PollResult::Failed(message())));
        made.chain(refused).collect()
    }

    /// See [`Polls::poll_for`]. `spawn`: starts the task of an observation, which its signals wake.
    fn poll_for(
        &mut self,
        key: &InstanceKey,
        polls: &[Arc<Poll>],
        is_step_waiting: bool,
        spawn: impl Fn(&Arc<Poll>, &Arc<Signals>) -> JoinHandle<()>,
    ) -> bool {
        let before = self.reads.remove(key).unwrap_or_default().polls;
        let ((made, refused), (made_before, refused_before)) = (split(polls), split(&before));
        let known: HashSet<&Arc<Poll>> = made_before.iter().collect();
        let mut has_answer = refused.iter().any(|poll| !refused_before.contains(poll));
        for poll in made.iter().filter(|poll| !known.contains(poll)) {
            has_answer |= self.subscribe(key, poll, &spawn);
        }
        let kept: HashSet<&Arc<Poll>> = made.iter().collect();
        for poll in made_before.iter().filter(|poll| !kept.contains(poll)) {
            self.unsubscribe(key, poll);
        }
        if !polls.is_empty() {
            self.reads.insert(key.clone(), Reads { polls: polls.to_vec(), is_step_waiting });
        }
        for poll in made.iter().chain(made_before) {
            self.set_interval(poll);
        }
        has_answer
    }

    /// Tells the task of an observation whether a step of a reader waits.
    fn set_interval(&self, poll: &Arc<Poll>) {
        let Some(source) = self.sources.get(poll) else { return };
        let waits = |reader: &InstanceKey| self.reads.get(reader).is_some_and(|reads| reads.is_step_waiting);
        let is_often = source.readers.iter().any(waits);
        source.signals.is_often.send_if_modified(|before| std::mem::replace(before, is_often) != is_often);
    }

    /// Adds a reader of an observation. Returns whether there is an answer already.
    fn subscribe(
        &mut self,
        key: &InstanceKey,
        poll: &Arc<Poll>,
        spawn: impl Fn(&Arc<Poll>, &Arc<Signals>) -> JoinHandle<()>,
    ) -> bool {
        if let Some(source) = self.sources.get_mut(poll) {
            source.readers.insert(key.clone());
            return source.result != PollResult::Pending;
        }
        let place = self.places.take(poll);
        let waits = place.is_awaited();
        let result = if waits { PollResult::Failed(self.places.why()) } else { PollResult::Pending };
        let signals = Arc::<Signals>::default();
        let task = spawn(poll, &signals);
        let readers = HashSet::from([key.clone()]);
        self.sources.insert(
            Arc::clone(poll),
            Source { readers, place, result, wanted: 0, signals, failures: 0, task },
        );
        waits
    }

    fn unsubscribe(&mut self, key: &InstanceKey, poll: &Arc<Poll>) {
        let Some(source) = self.sources.get_mut(poll) else { return };
        source.readers.remove(key);
        if !source.readers.is_empty() {
            return;
        }
        let Some(left) = self.sources.remove(poll) else { return };
        for next in self.places.leave(poll, left.place) {
            if let Some(source) = self.sources.get_mut(&next) {
                // Until the first answer the result says that the observation waits.
                source.place = Place::Taken;
                source.signals.wake.notify_one();
            }
        }
    }

    /// Begins an observation, if it has a place; `None` if no instance reads it any more.
    fn begin(&mut self, poll: &Arc<Poll>) -> Option<Begun> {
        let source = self.sources.get_mut(poll)?;
        if source.place.is_awaited() {
            return Some(Begun::Waiting);
        }
        Some(Begun::Asking(source.wanted))
    }
}

/// Splits the observations of an instance into those within its limit, which are made, and the rest.
fn split(polls: &[Arc<Poll>]) -> (&[Arc<Poll>], &[Arc<Poll>]) {
    polls.split_at(polls.len().min(MOST_OF_INSTANCE))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::children::PollRequest;
    use crate::plan::request::{HttpRequest, Tls};

    fn key(name: &str) -> InstanceKey {
        InstanceKey { crd: "things.example.org".into(), namespace: Some("n".into()), name: name.into() }
    }

    fn poll(operator: &str, url: &str) -> Arc<Poll> {
        poll_in("n", operator, url)
    }

    pub(in crate::manager::watches) fn poll_in(namespace: &str, operator: &str, url: &str) -> Arc<Poll> {
        let request = HttpRequest {
            pod: None,
            method: "GET".into(),
            url: url.into(),
            hosts: Vec::new(),
            headers: Vec::new(),
            body: Vec::new(),
            tls: Tls::default(),
            redirects: 0,
            max_bytes: 1,
            timeout: Duration::from_secs(1),
        };
        let (every, keep) = (Duration::from_secs(60), Arc::from([]));
        let (operator, namespace, request) = (operator.into(), namespace.into(), PollRequest::Http(request));
        Arc::new(Poll { operator, namespace, request, every, keep })
    }

    /// A task that never ends.
    fn idle(_: &Arc<Poll>, _: &Arc<Signals>) -> JoinHandle<()> {
        tokio::spawn(std::future::pending())
    }

    fn is_asked(set: &mut Set, poll: &Arc<Poll>) -> bool {
        matches!(set.begin(poll), Some(Begun::Asking(_)))
    }

    #[tokio::test]
    async fn a_waiting_observation_gets_the_next_free_place() {
        let mut set = Set::new(Limits { most: 2, first: 2, few: 2 });
        let [a, b, c, d, last] = ["a", "b", "c", "d", "e"].map(|url| poll("p", url));
        assert!(!set.poll_for(&key("first"), &[Arc::clone(&a), Arc::clone(&b)], false, idle));
        let failed = |set: &Set, name: &str, poll: &Arc<Poll>| matches!(set.known(&key(name)).get(poll), Some(PollResult::Failed(why)) if why.contains("waits for a free place"));
        for (name, poll) in [("second", &c), ("third", &d), ("fourth", &last)] {
            assert!(set.poll_for(&key(name), std::slice::from_ref(poll), false, idle), "it is told at once");
            assert!(failed(&set, name, poll) && !is_asked(&mut set, poll));
        }
        // Another package has places of its own.
        let other = poll("q", "a");
        assert!(!set.poll_for(&key("other"), std::slice::from_ref(&other), false, idle));
        assert!(is_asked(&mut set, &other));
        // A waiting observation that no instance reads any more takes no place.
        set.poll_for(&key("second"), &[], false, idle);
        assert_eq!(set.begin(&c), None);
        assert!(!is_asked(&mut set, &d));
        set.poll_for(&key("first"), std::slice::from_ref(&b), false, idle);
        assert!(is_asked(&mut set, &d) && !is_asked(&mut set, &last));
        // The task of the observation waits for this signal.
        set.sources[&d].signals.wake.notified().await;
        set.poll_for(&key("first"), &[], false, idle);
        assert!(is_asked(&mut set, &last));
        for name in ["third", "fourth", "other"] {
            set.poll_for(&key(name), &[], false, idle);
        }
        assert!(set.sources.is_empty() && set.reads.is_empty());
        assert_eq!((set.places.taken("p"), set.places.taken("q")), (0, 0));
    }

    #[tokio::test]
    async fn a_namespace_does_not_affect_the_observations_of_another() {
        let mut set = Set::new(Limits { most: 4, first: 2, few: 1 });
        let hostile: Vec<_> = (0..10).map(|number| poll_in("hostile", "p", &number.to_string())).collect();
        set.poll_for(&key("hostile"), &hostile, false, idle);
        // The hostile namespace has two of four places, and waits with an equal request.
        let own = poll_in("n", "p", "9");
        assert!(!is_asked(&mut set, &hostile[9]));
        assert!(!set.poll_for(&key("own"), std::slice::from_ref(&own), false, idle));
        assert!(is_asked(&mut set, &own));
        set.poll_for(&key("own"), &[], false, idle);
        set.poll_for(&key("hostile"), &[], false, idle);
        assert_eq!(set.places.taken("p"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn observations_are_made_often_while_a_step_of_a_reader_waits() {
        let mut set = Set::new(PLACES);
        let read = poll("p", "a");
        let is_often = async |set: &Set| {
            let signals = Arc::clone(&set.sources[&read].signals);
            tokio::time::timeout(OFTEN * 2, signals.often()).await.is_ok()
        };
        let read_by = |set: &mut Set, name: &str, is_step_waiting| {
            set.poll_for(&key(name), std::slice::from_ref(&read), is_step_waiting, idle);
        };
        read_by(&mut set, "a", false);
        read_by(&mut set, "b", false);
        assert!(!is_often(&set).await);
        read_by(&mut set, "a", true);
        assert!(is_often(&set).await);
        read_by(&mut set, "b", true);
        read_by(&mut set, "a", false);
        assert!(is_often(&set).await, "b waits");
        set.poll_for(&key("b"), &[], false, idle);
        assert!(!is_often(&set).await);
    }

    /// For example with a rotated password: failures of the request before delay it no further.
    #[tokio::test]
    async fn a_changed_request_is_made_at_once() {
        let mut set = Set::new(PLACES);
        let [before, now] = ["a", "b"].map(|url| poll("p", url));
        set.poll_for(&key("one"), std::slice::from_ref(&before), false, idle);
        let source = set.sources.get_mut(&before).unwrap();
        (source.failures, source.result) = (9, PollResult::Failed("401".into()));
        assert!(!set.poll_for(&key("one"), std::slice::from_ref(&now), false, idle), "no answer yet");
        assert!(is_asked(&mut set, &now) && !set.sources.contains_key(&before));
        assert_eq!((set.sources[&now].failures, &set.sources[&now].result), (0, &PollResult::Pending));
    }

    #[tokio::test]
    async fn one_instance_takes_at_most_its_part_of_the_places() {
        let mut set = Set::new(PLACES);
        let many: Vec<_> = (0..1_000).map(|number| poll("p", &number.to_string())).collect();
        assert!(set.poll_for(&key("greedy"), &many, false, idle));
        assert_eq!(set.sources.len(), MOST_OF_INSTANCE);
        let known = set.known(&key("greedy"));
        assert_eq!(known.len(), 1_000);
        let refused = known.values().filter(|result| matches!(result, PollResult::Failed(_))).count();
        assert_eq!(refused, 1_000 - MOST_OF_INSTANCE);
        assert!(
            matches!(&known[&many[999]], PollResult::Failed(why) if why.contains("the instance has more than 200"))
        );
        // With fewer observations all are made.
        assert!(!set.poll_for(&key("greedy"), &many[900..], false, idle));
        assert_eq!(set.sources.len(), 100);
        assert!(set.known(&key("greedy")).values().all(|result| *result == PollResult::Pending));
        assert!(is_asked(&mut set, &many[999]) && set.places.taken("p") == 100);
    }
}
