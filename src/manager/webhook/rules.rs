//! The rules of the CRDs, as they were read last. Anyone who reaches the port can ask for any CRD, so failures are
//! remembered as well, and one unknown CRD is read at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tracing::warn;

use crate::children::names;
use crate::clock::Instant;
use crate::crd::Conversion;

/// How many sets of rules are remembered.
const REMEMBERED: usize = 1_000;
/// After this time the versions that are stored are read again.
const FRESH: Duration = Duration::from_secs(30);
/// How long it is remembered that there are no such rules, or that they cannot be read.
const UNKNOWN: Duration = Duration::from_secs(2);
/// The pause after a CRD without such rules was read.
const PAUSE: Duration = Duration::from_millis(50);

/// What is known of a CRD.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) rules: Arc<Conversion>,
    /// The versions in which objects may be stored.
    pub(super) stored: Arc<[String]>,
}

/// Reads a CRD.
type Read = Box<dyn Fn(String) -> BoxFuture<'static, Result<Option<Value>, String>> + Send + Sync>;

pub(super) struct RulesCache {
    read: Read,
    entries: Mutex<HashMap<String, Entry>>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Entry {
    found: Result<Known, String>,
    /// Whether they are the rules that were asked for.
    is_exact: bool,
    until: Instant,
}

impl RulesCache {
    pub(super) fn new(read: Read) -> Self {
        Self { read, entries: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// The rules of a CRD. `digest`: those that an API server asks for; others are used if these are not known, because
    /// the CRD has been changed since.
    pub(super) async fn find(&self, crd: &str, digest: &str) -> Result<Known, String> {
        let key = format!("{crd}/{digest}");
        let former = match self.remembered(&key) {
            Some(entry) if entry.until > Instant::now() => return entry.found,
            Some(Entry { found: Ok(known), is_exact: true, .. }) => {
                // Others use it meanwhile.
                self.remember(&key, Ok(known.clone()), true, UNKNOWN);
                Some(known)
            }
            _ => None,
        };
        let Some(former) = former else {
            let _turn = self.turn.lock().await;
            return match self.remembered(&key) {
                Some(entry) if entry.until > Instant::now() => entry.found,
                _ => self.find_unknown(crd, digest, &key).await,
            };
        };
        let Ok((read, is_exact)) = self.read_rules(crd, digest).await else { return Ok(former) };
        let rules = if is_exact { read.rules } else { former.rules };
        let known = Known { rules, stored: read.stored };
        self.remember(&key, Ok(known.clone()), true, FRESH);
        Ok(known)
    }

    async fn find_unknown(&self, crd: &str, digest: &str, key: &str) -> Result<Known, String> {
        let (found, is_exact) = match self.read_rules(crd, digest).await {
            Ok((known, is_exact)) => (Ok(known), is_exact),
            Err(message) => {
                warn!(%crd, "objects cannot be converted: {message}");
                (Err(message), false)
            }
        };
        self.remember(key, found.clone(), is_exact, if is_exact { FRESH } else { UNKNOWN });
        if !is_exact {
            tokio::time::sleep(PAUSE).await;
        }
        found
    }

    /// The rules that the CRD has now, and whether they have that digest.
    async fn read_rules(&self, crd: &str, digest: &str) -> Result<(Known, bool), String> {
        let live = (self.read)(crd.to_owned()).await;
        let live = live.map_err(|error| format!("the CRD {crd} cannot be read: {error}"))?;
        let live = live.unwrap_or_default();
        let text = live["metadata"]["annotations"][names::CONVERSION].as_str();
        let text = text.ok_or_else(|| format!("the CRD {crd} has no rules ({})", names::CONVERSION))?;
        let rules = serde_json::from_str(text)
            .map_err(|error| format!("the rules of the CRD {crd} cannot be read: {error}"))?;
        let stored = live["status"]["storedVersions"].as_array().into_iter().flatten();
        let stored = stored.filter_map(Value::as_str).map(str::to_owned).collect();
        Ok((Known { rules: Arc::new(rules), stored }, names::short_hash(text, 16) == digest))
    }

    fn remembered(&self, key: &str) -> Option<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn remember(&self, key: &str, found: Result<Known, String>, is_exact: bool, time: Duration) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= REMEMBERED {
            // Made-up names do not push out rules that are used.
            entries.retain(|_, entry| entry.is_exact);
            if entries.len() >= REMEMBERED {
                entries.clear();
            }
        }
        entries.insert(key.to_owned(), Entry { found, is_exact, until: Instant::now() + time });
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
        for _ in 0..100 {
            assert!(cache.find("a.b", "c").await.unwrap_err().contains("has no rules"));
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        // Those of made-up names are read one after the other, with a pause.
        let began = Instant::now();
        futures::future::join_all((0..100).map(|number| {
            let cache = &cache;
            async move { cache.find(&format!("a.b{number}"), "c").await }
        }))
        .await;
        assert!(began.elapsed() >= 100 * PAUSE);
        // It has rules now, but others than asked for.
        *live.lock().unwrap() = Ok(Some(crd(&["v1"])));
        tokio::time::sleep(UNKNOWN).await;
        reads.store(0, Ordering::Relaxed);
        for _ in 0..100 {
            cache.find("a.b", "c").await.unwrap();
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
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
        // Nor are they lost when the CRD cannot be read, or made-up names come.
        *live.lock().unwrap() = Err("down".to_owned());
        for number in 0..2 * REMEMBERED {
            assert!(cache.find(&format!("x.y{number}"), "c").await.is_err());
        }
        tokio::time::sleep(FRESH).await;
        assert_eq!(cache.find("a.b", &digest).await.unwrap().stored[..], ["v1"]);
    }
}
