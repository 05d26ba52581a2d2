//! The wire's log: each request with its fault and the server's answer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Call, Fault, Verb};

/// A request, the fault that struck it, and the server's answer.
#[derive(Debug, Clone)]
pub struct Entry {
    pub call: Call,
    /// The fault that struck it, if any.
    pub fault: Option<Fault>,
    /// The status code of the server's answer, if there was one; the manager may not have seen it.
    pub code: Option<u16>,
    /// Seconds since the wire was created.
    pub at: f64,
}

impl Entry {
    /// Whether it is a write. Events do not count, because they are sent in the background at any time.
    /// Reviews do not count either, because they store nothing.
    pub fn is_write(&self) -> bool {
        self.call.verb.writes() && !["events", "selfsubjectreviews"].contains(&self.call.plural.as_str())
    }

    /// Whether it counts against silence: watches and Events do not.
    pub fn is_asking(&self) -> bool {
        self.call.verb != Verb::Watch && self.call.plural != "events"
    }
}

/// How often managers created and deleted each child, according to the server's answers: children in a
/// namespace, and children elsewhere whose names begin with the namespace's name.
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
