//! The rules of the CRDs, as they were read last. Anyone who reaches the port can ask for any CRD and any rules, so what is
//! not there is remembered as well, CRDs without rules are read one at a time, and the rules of a CRD once in a while.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tracing::warn;

use crate::children::names;
use crate::clock::Instant;
use crate::crd::Conversion;
use crate::facts::texts;

/// How many CRDs are remembered.
const REMEMBERED: usize = 1_000;
/// How many sets of rules of a CRD are remembered: API servers ask for former ones until all have seen the new CRD.
const SETS: usize = 4;
/// How many sets of rules are remembered that a CRD does not have.
const OTHERS: usize = 16;
/// After this time the versions that are stored are read again.
const FRESH: Duration = Duration::from_secs(30);
/// How long it is remembered that there are no such rules, or that they cannot be read.
const UNKNOWN: Duration = Duration::from_secs(2);
/// The pause after a CRD without rules was read.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause between two reads of a CRD for rules that are not known. All that were asked for meanwhile share a read.
const BETWEEN: Duration = Duration::from_secs(1);

/// What is known of a CRD.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) rules: Arc<Conversion>,
    /// The versions in which objects may be stored.
    pub(super) stored: Arc<[String]>,
}

impl Known {
    /// Reads the rules of a CRD, and their text; an error if they are not rules, `None` if it has none.
    pub(super) fn read(crd: &Value) -> Option<Result<(&str, Self), serde_json::Error>> {
        let text = crd["metadata"]["annotations"][names::CONVERSION].as_str()?;
        let stored = texts(&crd["status"]["storedVersions"]).into();
        Some(serde_json::from_str(text).map(|rules| (text, Self { rules: Arc::new(rules), stored })))
    }
}

/// Reads a CRD.
type Read = Box<dyn Fn(String) -> BoxFuture<'static, Result<Option<Value>, String>> + Send + Sync>;

pub(super) struct RulesCache {
    read: Read,
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    /// Held while a CRD without known rules is read.
    turn: tokio::sync::Mutex<()>,
}

/// A CRD.
#[derive(Default)]
struct Entry {
    state: Mutex<State>,
    /// Held while the CRD is read.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Its rules by their digest, the newest first.
    rules: VecDeque<(String, Arc<Conversion>)>,
    stored: Arc<[String]>,
    /// Why the last read has found no rules.
    error: Option<String>,
    /// When the last read began.
    read: Option<Instant>,
    /// Digests that the CRD did not have, and until when that counts.
    others: VecDeque<(String, Instant)>,
}

impl State {
    fn rules(&self, digest: &str) -> Option<&Arc<Conversion>> {
        self.rules.iter().find(|(known, _)| known == digest).map(|(_, rules)| rules)
    }

    /// The rules with that digest; otherwise the newest, because the CRD has changed since; otherwise why
    /// there are none.
    fn answer(&self, digest: &str) -> Result<Known, String> {
        match self.rules(digest).or(self.rules.front().map(|(_, rules)| rules)) {
            Some(rules) => Ok(Known { rules: Arc::clone(rules), stored: Arc::clone(&self.stored) }),
            None => Err(self.error.clone().unwrap_or_default()),
        }
    }

    /// Whether a request for that digest can be answered without a read.
    fn is_fresh(&self, digest: &str) -> bool {
        let is_within = |time: Duration| self.read.is_some_and(|read| read.elapsed() < time);
        if self.rules(digest).is_some() {
            return is_within(FRESH);
        }
        let is_other = |(other, until): &(String, Instant)| other == digest && *until > Instant::now();
        if self.rules.is_empty() { is_within(UNKNOWN) } else { self.others.iter().any(is_other) }
    }
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RulesCache {
    pub(super) fn new(read: Read) -> Self {
        Self { read, entries: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// The rules of a CRD. `digest`: those that an API server asks for; others are used if the CRD does not have these.
    pub(super) async fn find(&self, crd: &str, digest: &str) -> Result<Known, String> {
        let asked = Instant::now();
        let entry = self.entry(crd);
        let has_rules = {
            let state = entry.state();
            if state.is_fresh(digest) {
                return state.answer(digest);
            }
            state.rules(digest).is_some()
        };
        if has_rules {
            // Other requests use the known rules meanwhile, and the rules stay if the CRD cannot be read.
            entry.state().read = Some(asked);
            match self.read_rules(crd).await {
                Ok(read) => Self::remember(&entry, digest, Ok(read)),
                Err(_) => entry.state().read = asked.checked_sub(FRESH.saturating_sub(UNKNOWN)),
            }
            return entry.state().answer(digest);
        }
        let _turn = entry.turn.lock().await;
        let last = {
            let state = entry.state();
            // Another request has read it meanwhile.
            if state.read.is_some_and(|read| read > asked) || state.is_fresh(digest) {
                return state.answer(digest);
            }
            if state.rules.is_empty() { None } else { state.read }
        };
        if let Some(last) = last {
            tokio::time::sleep(BETWEEN.saturating_sub(last.elapsed())).await;
            self.read_into(&entry, crd, digest).await;
        } else {
            let _turn = self.turn.lock().await;
            self.read_into(&entry, crd, digest).await;
            if entry.state().rules.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
        }
        entry.state().answer(digest)
    }

    async fn read_into(&self, entry: &Entry, crd: &str, digest: &str) {
        let began = Instant::now();
        let read = self.read_rules(crd).await;
        if let Err(message) = &read {
            warn!(%crd, "objects cannot be converted: {message}");
        }
        entry.state().read = Some(began);
        Self::remember(entry, digest, read);
    }

    /// Records what a read for the rules of that digest has found.
    fn remember(entry: &Entry, digest: &str, read: Result<(String, Known), String>) {
        let mut state = entry.state();
        match read {
            Ok((found, Known { rules, stored })) => {
                state.rules.retain(|(known, _)| *known != found);
                state.rules.push_front((found, rules));
                state.rules.truncate(SETS);
                (state.stored, state.error) = (stored, None);
            }
            Err(message) => state.error = Some(message),
        }
        if state.rules(digest).is_none() {
            state.others.push_front((digest.to_owned(), Instant::now() + UNKNOWN));
            state.others.truncate(OTHERS);
        }
    }

    /// The rules that the CRD has now, and their digest.
    async fn read_rules(&self, crd: &str) -> Result<(String, Known), String> {
        let live = (self.read)(crd.to_owned()).await;
        let live = live.map_err(|error| format!("the CRD {crd} cannot be read: {error}"))?;
        let live = live.unwrap_or_default();
        let read = Known::read(&live);
        let read = read.ok_or_else(|| format!("the CRD {crd} has no rules ({})", names::CONVERSION))?;
        let (text, known) =
            read.map_err(|error| format!("the rules of the CRD {crd} cannot be read: {error}"))?;
        Ok((names::short_hash(text, 16), known))
    }

    fn entry(&self, crd: &str) -> Arc<Entry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(crd) {
            return Arc::clone(entry);
        }
        if entries.len() >= REMEMBERED {
            // Made-up names do not push out rules that are used.
            entries.retain(|_, entry| !entry.state().rules.is_empty());
            if entries.len() >= REMEMBERED {
                entries.clear();
            }
        }
        Arc::clone(entries.entry(crd.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    const RULES: &str = r#"{"group":"g.org","kind":"W","hub":"v1","versions":{}}"#;

    /// A cache that reads these CRDs, and how many it has read.
    fn cache(live: Arc<Mutex<Result<Option<Value>, String>>>) -> (RulesCache, Arc<AtomicUsize>) {
        let reads = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reads);
        let read = move |_| -> BoxFuture<'static, _> {
            count.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(live.lock().unwrap().clone()))
        };
        (RulesCache::new(Box::new(read)), reads)
    }

    fn crd(stored: &[&str]) -> Value {
        json!({"metadata": {"annotations": {names::CONVERSION: RULES}}, "status": {"storedVersions": stored}})
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_crd_is_read_once_in_a_while() {
        let live = Arc::new(Mutex::new(Ok(None)));
        let (cache, reads) = cache(Arc::clone(&live));
        // It does not matter which rules are asked for.
        for number in 0..100 {
            assert!(cache.find("a.b", &number.to_string()).await.unwrap_err().contains("has no rules"));
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        // CRDs of made-up names are read one after the other, with a pause.
        let began = Instant::now();
        futures::future::join_all((0..100).map(|number| {
            let cache = &cache;
            async move { cache.find(&format!("a.b{number}"), "c").await }
        }))
        .await;
        assert!(began.elapsed() >= 100 * PAUSE);
        // The CRD has rules now, but others than those asked for.
        *live.lock().unwrap() = Ok(Some(crd(&["v1"])));
        tokio::time::sleep(UNKNOWN).await;
        reads.store(0, Ordering::Relaxed);
        for _ in 0..100 {
            cache.find("a.b", "c").await.unwrap();
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn rules_that_a_crd_does_not_have_are_looked_for_together() {
        let digest = names::short_hash(RULES, 16);
        let live = Arc::new(Mutex::new(Ok(Some(crd(&["v1"])))));
        let (cache, reads) = cache(Arc::clone(&live));
        cache.find("a.b", &digest).await.unwrap();
        let made_up = async |from: usize| {
            let cache = &cache;
            let all = (from..from + 1_000)
                .map(|number| async move { cache.find("a.b", &number.to_string()).await });
            assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
        };
        made_up(0).await;
        assert_eq!(reads.load(Ordering::Relaxed), 2);
        // Requests for rules that the CRD has are answered meanwhile, and new rules are found.
        let new = RULES.replace(r#""v1""#, r#""v2""#);
        *live.lock().unwrap() = Ok(Some(json!({"metadata": {"annotations": {names::CONVERSION: new}}})));
        let new = names::short_hash(&new, 16);
        let began = Instant::now();
        let ((), known, ()) = futures::join!(made_up(2_000), cache.find("a.b", &new), async {
            assert!(cache.find("a.b", &digest).await.is_ok());
        });
        let known = serde_json::to_value(&*known.unwrap().rules).unwrap();
        assert_eq!((&known["hub"], reads.load(Ordering::Relaxed)), (&json!("v2"), 3));
        assert!(began.elapsed() <= BETWEEN);
    }

    #[tokio::test(start_paused = true)]
    async fn rules_stay_and_the_stored_versions_are_read_again() {
        let digest = names::short_hash(RULES, 16);
        let live = Arc::new(Mutex::new(Ok(Some(crd(&["v0", "v1"])))));
        let (cache, reads) = cache(Arc::clone(&live));
        assert_eq!(cache.find("a.b", &digest).await.unwrap().stored[..], ["v0", "v1"]);
        *live.lock().unwrap() = Ok(Some(crd(&["v1"])));
        assert_eq!(cache.find("a.b", &digest).await.unwrap().stored.len(), 2);
        tokio::time::sleep(FRESH).await;
        assert_eq!(cache.find("a.b", &digest).await.unwrap().stored[..], ["v1"]);
        assert_eq!(reads.load(Ordering::Relaxed), 2);
        // The rules are not lost when the CRD cannot be read, or when made-up names are asked for.
        *live.lock().unwrap() = Err("down".to_owned());
        for number in 0..2 * REMEMBERED {
            assert!(cache.find(&format!("x.y{number}"), "c").await.is_err());
        }
        tokio::time::sleep(FRESH).await;
        assert_eq!(cache.find("a.b", &digest).await.unwrap().stored[..], ["v1"]);
    }
}
