//! The wire's log: each request and what became of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Call, Fault, Verb};

/// A request and what became of it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub call: Call,
    /// What went wrong, if anything did.
    pub fault: Option<Fault>,
    /// What the server has answered, if it was asked and has; the manager may not have seen it.
    pub code: Option<u16>,
    /// Seconds since the wire was made.
    pub at: f64,
}

impl Entry {
    /// Whether it asked for a change. Events do not count: they come in the background, whenever. Nor do reviews, which
    /// store nothing.
    pub fn is_write(&self) -> bool {
        self.call.verb.writes() && !["events", "selfsubjectreviews"].contains(&self.call.plural.as_str())
    }

    /// Whether it counts where silence is asked for: watches do not, nor Events.
    pub fn is_asking(&self) -> bool {
        self.call.verb != Verb::Watch && self.call.plural != "events"
    }
}

/// How often each child was created and deleted by managers, as the server has answered: those in a namespace, and
/// those elsewhere whose names begin with its name.
pub fn made_and_taken(log: &[Entry], namespace: &str) -> BTreeMap<String, (usize, usize)> {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let prefix = format!("{namespace}-");
    let ours = |call: &Call| call.namespace == namespace || call.name.starts_with(&prefix);
    for entry in log.iter().filter(|e| e.is_write() && ours(&e.call)) {
        let name = format!("{} {}", entry.call.plural, entry.call.name);
        match (entry.call.verb, entry.code) {
            (Verb::Apply | Verb::Create, Some(201)) => counts.entry(name).or_default().0 += 1,
            (Verb::Delete, Some(200 | 202)) => counts.entry(name).or_default().1 += 1,
            _ => {}
        }
    }
    counts
}

/// Requests, one a line, for messages.
pub fn story(log: &[Entry]) -> String {
    log.iter().fold(String::new(), |mut text, e| {
        let Entry { call, fault, code, at } = e;
        let fault = fault.as_ref().map(|f| format!(" !{f:?}")).unwrap_or_default();
        let code = code.map_or_else(|| "-".to_owned(), |c| c.to_string());
        let path =
            [&call.plural, &call.namespace, &call.name, &call.subresource].map(String::as_str).join("/");
        writeln!(text, "{at:8.3} {:?} {path} {code}{fault}", call.verb).unwrap();
        text
    })
}
