//! Observations of refs: requests that are made repeatedly, for as long as an instance reads the answer. An answer
//! that has not changed queues no instance.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing::{debug, error};

use crate::backoff::{Backoff, jitter};
use crate::children::{Poll, PollRequest, PollResult};
use crate::cluster::ConcurrencyLimits;
use crate::manager::effects::Effects;
use crate::manager::index::InstanceKey;
use crate::manager::scheduler::Scheduler;
use crate::plan::request::CallFailure;

/// How many requests of one package are under way at once.
const AT_ONCE: usize = 16;
/// How many observations a package may have: each keeps an answer of up to 64 KiB.
const MOST: usize = 5_000;
/// How long after a failure an observation is made again.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));
/// How long a first answer is awaited in silence; after that the status says that there is none.
const PATIENCE: Duration = Duration::from_secs(3);
/// By how much intervals vary, so that observations spread; see [`jitter`].
const SPREAD: f64 = 0.5;

/// All observations.
pub(super) struct Polls {
    effects: Arc<Effects>,
    scheduler: Arc<Scheduler>,
    limits: ConcurrencyLimits,
    set: Mutex<Set>,
}

#[derive(Default)]
struct Set {
    sources: HashMap<Arc<Poll>, Source>,
    /// What each instance reads.
    reads: HashMap<InstanceKey, Vec<Arc<Poll>>>,
}

struct Source {
    readers: HashSet<InstanceKey>,
    result: PollResult,
    /// Grows with each wish for a new answer: an answer to an earlier request is none.
    wanted: u64,
    /// Whether it is being asked.
    asking: bool,
    wake: Arc<Notify>,
    failures: u32,
    task: JoinHandle<()>,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What came of one request.
struct Answer {
    result: Result<Value, String>,
    /// Whether the server is in trouble, whatever the package expects.
    is_failure: bool,
    /// How long the server wants to be left alone.
    retry_after: Option<Duration>,
}

impl Polls {
    pub(super) fn new(effects: Arc<Effects>, scheduler: Arc<Scheduler>) -> Self {
        Self { effects, scheduler, limits: ConcurrencyLimits::new(AT_ONCE), set: Mutex::default() }
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of what an instance observes, as far as [`Self::follow`] was called for it.
    pub(super) fn known(&self, key: &InstanceKey) -> HashMap<Arc<Poll>, PollResult> {
        let set = self.set();
        let find = |poll: &Arc<Poll>| Some((Arc::clone(poll), set.sources.get(poll)?.result.clone()));
        set.reads.get(key).into_iter().flatten().filter_map(find).collect()
    }

    /// From now on these observations, and no others, are made for the instance. `true` if one of them has an answer
    /// that the instance did not see before.
    pub(super) fn follow(self: &Arc<Self>, key: &InstanceKey, polls: &[Arc<Poll>]) -> bool {
        let mut set = self.set();
        let before = set.reads.get(key).map(Vec::as_slice).unwrap_or_default();
        if before == polls {
            return false;
        }
        let before = before.to_vec();
        let mut has_answer = false;
        for poll in polls.iter().filter(|poll| !before.contains(poll)) {
            has_answer |= set.subscribe(self, key, poll);
        }
        for poll in before.iter().filter(|poll| !polls.contains(poll)) {
            set.unsubscribe(key, poll);
        }
        if polls.is_empty() {
            set.reads.remove(key);
        } else {
            set.reads.insert(key.clone(), polls.to_vec());
        }
        has_answer
    }

    /// Repeats all observations of an instance: until they are answered, they are pending. `true` if there are any.
    /// With `is_outdated`, an answer to a request that is under way does not count. Otherwise it is awaited, however long
    /// it takes: a request that takes longer than the interval would never be answered.
    pub(super) fn refresh(&self, key: &InstanceKey, is_outdated: bool) -> bool {
        let mut set = self.set();
        let polls = set.reads.get(key).cloned().unwrap_or_default();
        for poll in &polls {
            let Some(source) = set.sources.get_mut(poll) else { continue };
            if source.asking && !is_outdated {
                continue;
            }
            source.result = PollResult::Pending;
            source.wanted += 1;
            source.wake.notify_one();
        }
        !polls.is_empty()
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
        *self.set() = Set::default();
    }

    /// Makes an observation until its task is aborted.
    async fn run(self: Arc<Self>, poll: Arc<Poll>, wake: Arc<Notify>) {
        loop {
            let begin = |source: &mut Source| {
                source.asking = true;
                source.wanted
            };
            let Some(began) = self.set().sources.get_mut(&poll).map(begin) else { return };
            let patience = async {
                tokio::time::sleep(PATIENCE).await;
                self.lose_patience(&poll);
                std::future::pending().await
            };
            let answer = async {
                let _permit = self.limits.of(&poll.operator).permit().await;
                self.ask(&poll).await
            };
            let answer = tokio::select! {
                answer = answer => answer,
                never = patience => never,
            };
            let Some(pause) = self.learn(&poll, began, answer) else { continue };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = wake.notified() => {}
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
            PollRequest::Http(request) => match self.effects.http.send(request).await {
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
        source.asking = false;
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

    fn lose_patience(&self, poll: &Arc<Poll>) {
        let mut set = self.set();
        if let Some(source) = set.sources.get_mut(poll)
            && source.result == PollResult::Pending
        {
            source.result = PollResult::Failed(format!("{poll} is not answered yet"));
            self.scheduler.add_all(source.readers.iter().cloned());
        }
    }
}

impl Set {
    /// `true` if there is an answer already.
    fn subscribe(&mut self, polls: &Arc<Polls>, key: &InstanceKey, poll: &Arc<Poll>) -> bool {
        if let Some(source) = self.sources.get_mut(poll) {
            source.readers.insert(key.clone());
            return source.result != PollResult::Pending;
        }
        let is_too_many = self.sources.keys().filter(|other| other.operator == poll.operator).count() >= MOST;
        let wake = Arc::new(Notify::new());
        let (polls, what, notify) = (Arc::clone(polls), Arc::clone(poll), Arc::clone(&wake));
        let task = tokio::spawn(async move {
            if is_too_many {
                return;
            }
            while let Err(panic) =
                super::super::contained(Arc::clone(&polls).run(Arc::clone(&what), Arc::clone(&notify))).await
            {
                error!(observation = %what, %panic, "an observation panicked; this is a bug of Operetta, it is made again");
                tokio::time::sleep(super::RESTART).await;
            }
        });
        let result = if is_too_many {
            PollResult::Failed(format!("the package has more than {MOST} observations"))
        } else {
            PollResult::Pending
        };
        let readers = HashSet::from([key.clone()]);
        self.sources.insert(
            Arc::clone(poll),
            Source { readers, result, wanted: 0, asking: false, wake, failures: 0, task },
        );
        is_too_many
    }

    fn unsubscribe(&mut self, key: &InstanceKey, poll: &Arc<Poll>) {
        let Some(source) = self.sources.get_mut(poll) else { return };
        source.readers.remove(key);
        if source.readers.is_empty() {
            self.sources.remove(poll);
        }
    }
}
