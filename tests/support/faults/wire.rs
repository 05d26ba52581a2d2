//! The wire: its rules, the choice of the rule that strikes a request, its log and its open watches.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::body::Tap;
use super::{Call, Entry, Fault, Rule};

/// The connection between managers and the API server, on which faults can be injected.
#[derive(Clone)]
pub struct Wire(pub(super) Arc<Inner>);

pub(super) struct Inner {
    seed: u64,
    /// CRDs of other cases' groups are hidden: their own managers handle them.
    pub(super) group: String,
    /// Placeholders for text that differs between runs, such as the namespace.
    aliases: Vec<(String, String)>,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    rules: Vec<Armed>,
    log: Vec<Entry>,
    /// How many requests with the same description each rule has met.
    met: HashMap<(usize, String), u64>,
    serial: usize,
    /// The first answer to each read, which a stale read returns again.
    pub(super) answers: HashMap<String, Bytes>,
    pub(super) taps: Vec<(Call, Arc<Tap>)>,
    /// How many requests the server has not answered yet, not counting watches.
    pub(super) under_way: usize,
}

struct Armed {
    serial: usize,
    rule: Rule,
    seen: usize,
    used: usize,
}

impl Wire {
    pub fn new(seed: u64, group: &str, aliases: &[(&str, &str)]) -> Self {
        Self(Arc::new(Inner {
            seed,
            group: group.into(),
            aliases: aliases.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
            started: Instant::now(),
            state: Mutex::default(),
        }))
    }

    /// Adds a rule. Of the rules that match a request, the first one that strikes applies.
    pub fn rule(&self, rule: Rule) -> usize {
        let mut state = self.lock();
        state.serial += 1;
        let serial = state.serial;
        state.rules.push(Armed { serial, rule, seen: 0, used: 0 });
        serial
    }

    /// Adds a rule before all others, as an exception from them.
    pub fn rule_first(&self, rule: Rule) -> usize {
        let serial = self.rule(rule);
        self.lock().rules.rotate_right(1);
        serial
    }

    /// How often a rule has struck.
    pub fn struck(&self, serial: usize) -> usize {
        self.lock().rules.iter().find(|r| r.serial == serial).map_or(0, |r| r.used)
    }

    /// Makes the next answer to a list of a kind the one that stale reads return.
    pub fn forget_answers(&self, plural: &str) {
        let what = format!("/{plural}?");
        self.lock().answers.retain(|uri, _| !uri.contains(&what));
    }

    /// Removes all rules; watches that were held up go on.
    pub fn heal(&self) {
        self.lock().rules.clear();
        self.thaw();
    }

    /// The current position in the log.
    pub fn mark(&self) -> usize {
        self.lock().log.len()
    }

    /// The requests since a position in the log.
    pub fn since(&self, mark: usize) -> Vec<Entry> {
        self.lock().log[mark..].to_vec()
    }

    /// Whether the server has not answered some request yet.
    pub fn is_under_way(&self) -> bool {
        self.lock().under_way > 0
    }

    /// The writes since a position in the log, without Events.
    pub fn writes(&self, mark: usize) -> Vec<Entry> {
        let mut log = self.since(mark);
        log.retain(Entry::is_write);
        log
    }

    /// Holds up the events of open watches of a kind; the watches stay open.
    pub fn freeze(&self, plural: &str) {
        self.taps(Some(plural), Tap::freeze);
    }

    /// Passes on what was held up.
    pub fn thaw(&self) {
        self.taps(None, Tap::thaw);
    }

    /// Ends the open watches of a kind, or of all.
    pub fn end_watches(&self, plural: Option<&str>) {
        self.taps(plural, Tap::end);
    }

    /// Makes the open watches of a kind, or all, report an error.
    pub fn fail_watches(&self, plural: Option<&str>, code: u16) {
        self.taps(plural, |tap| tap.inject(&watch_error(code)));
    }

    fn taps(&self, plural: Option<&str>, what: impl Fn(&Tap)) {
        let mut state = self.lock();
        state.taps.retain(|(_, tap)| !tap.is_closed());
        for (call, tap) in &state.taps {
            if plural.is_none_or(|plural| call.plural == plural) {
                what(tap);
            }
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a request and returns its number and the fault that strikes it.
    pub(super) fn decide(&self, call: &Call) -> (usize, Option<Fault>) {
        let mut state = self.lock();
        let state = &mut *state;
        let mut struck = None;
        for armed in &mut state.rules {
            if !armed.rule.matches(call) {
                continue;
            }
            armed.seen += 1;
            if armed.seen <= armed.rule.skip || armed.used >= armed.rule.times {
                continue;
            }
            if armed.rule.chance < 1.0 {
                let what = self.anonymous(call);
                let met = state.met.entry((armed.serial, what.clone())).or_default();
                *met += 1;
                if dice(self.0.seed, armed.serial, &what, *met) >= armed.rule.chance {
                    continue;
                }
            }
            armed.used += 1;
            struck = Some(armed.rule.fault.clone());
            break;
        }
        let at = self.0.started.elapsed().as_secs_f64();
        state.log.push(Entry { call: call.clone(), fault: struck.clone(), code: None, at });
        (state.log.len() - 1, struck)
    }

    /// Describes a request without text that differs between runs.
    fn anonymous(&self, call: &Call) -> String {
        let text =
            format!("{:?} {}/{}/{}/{}", call.verb, call.plural, call.namespace, call.name, call.subresource);
        self.0.aliases.iter().fold(text, |text, (from, to)| text.replace(from.as_str(), to))
    }

    pub(super) fn note(&self, number: usize, code: u16) {
        self.lock().log[number].code = Some(code);
    }
}

/// A number from 0 to 1 that depends on the arguments only.
fn dice(seed: u64, rule: usize, what: &str, met: u64) -> f64 {
    let mut hasher = DefaultHasher::new();
    (seed, rule, what, met).hash(&mut hasher);
    fastrand::Rng::with_seed(hasher.finish()).f64()
}

pub(super) fn watch_error(code: u16) -> Value {
    let (reason, message) = match code {
        410 => ("Expired", "too old resource version: 1 (2)"),
        504 => ("Timeout", "Too large resource version: 99999999, current: 2"),
        _ => ("InternalError", "made up by a test"),
    };
    json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code}})
}
