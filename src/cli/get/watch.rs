//! `--watch`: what there is, and then a line for each instance whose line would look different.

use std::collections::{HashMap, HashSet};

use futures::StreamExt;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use tokio::sync::mpsc::Sender;

use super::row::Row;
use crate::cluster::{CallError, Class};
use crate::manager::raw::Raw;

/// What a watch tells of one of the targets.
pub(super) enum Change {
    /// A list begins: at first, and when a watch was interrupted for too long.
    Begin,
    /// It is complete.
    Complete,
    /// An object of it, or a change.
    Is(Value),
    /// An object has gone.
    Gone(Value),
    /// The watch is tried again.
    Trouble(CallError),
    /// It cannot be had.
    Refused(CallError),
}

/// Follows a kind until nobody listens or the server refuses.
pub(super) async fn follow(
    api: Api<Raw>,
    config: watcher::Config,
    target: usize,
    changes: Sender<(usize, Change)>,
) {
    let mut events = kube::runtime::watcher(api, config).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let change = match event {
            Ok(Event::Init) => Change::Begin,
            Ok(Event::InitDone) => Change::Complete,
            Ok(Event::InitApply(raw) | Event::Apply(raw)) => Change::Is(raw.body),
            Ok(Event::Delete(raw)) => Change::Gone(raw.body),
            Err(error) => trouble(&error),
        };
        let ends = matches!(change, Change::Refused(_));
        if changes.send((target, change)).await.is_err() || ends {
            return;
        }
    }
}

fn trouble(error: &watcher::Error) -> Change {
    let error = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => CallError::from_kube(error),
        watcher::Error::WatchError(status) => CallError::from_status(status),
        watcher::Error::NoResourceVersion => return Change::Begin,
    };
    // 410: what was seen last is too old, and a new list begins.
    match error.class {
        Class::Permanent | Class::NotFound if error.code != 410 => Change::Refused(error),
        _ => Change::Trouble(error),
    }
}

/// An instance that is to be printed, and its object.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    pub target: usize,
    pub row: Row,
    pub object: Value,
}

/// What has been printed, so that only what differs is.
#[derive(Default)]
pub(super) struct Screen {
    rows: HashMap<(usize, String), Row>,
    /// Those that a list under way has brought so far.
    listed: HashMap<usize, HashSet<String>>,
}

impl Screen {
    /// An object as it is now; nothing if its line is the same as before.
    pub(super) fn is(&mut self, target: usize, row: Row, object: Value) -> Option<Line> {
        if let Some(listed) = self.listed.get_mut(&target) {
            listed.insert(row.uid.clone());
        }
        let before = self.rows.insert((target, row.uid.clone()), row.clone());
        (before.as_ref() != Some(&row)).then_some(Line { target, row, object })
    }

    /// An object that is gone.
    pub(super) fn gone(&mut self, target: usize, row: Row, object: Value) -> Option<Line> {
        self.rows.remove(&(target, row.uid.clone()))?;
        Some(Line { target, row: row.gone(), object })
    }

    /// A list begins.
    pub(super) fn begin(&mut self, target: usize) {
        self.listed.insert(target, HashSet::new());
    }

    /// A list is complete: what was there before it and is not in it, is gone.
    pub(super) fn complete(&mut self, target: usize) -> Vec<Line> {
        let listed = self.listed.remove(&target).unwrap_or_default();
        let missing: Vec<_> =
            self.rows.keys().filter(|(of, uid)| *of == target && !listed.contains(uid)).cloned().collect();
        let mut gone: Vec<Line> = missing
            .into_iter()
            .filter_map(|key| self.rows.remove(&key))
            .map(|row| Line { target, row: row.gone(), object: Value::Null })
            .collect();
        gone.sort_by(|a, b| (&a.row.namespace, &a.row.name).cmp(&(&b.row.namespace, &b.row.name)));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(uid: &str, ready: &str) -> Row {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        let instance = json!({"metadata": {"name": uid, "uid": uid, "generation": 1},
            "status": {"observedGeneration": 1, "conditions": conditions}});
        Row::of("Web", "web", &instance)
    }

    #[test]
    fn what_looks_the_same_is_not_printed_again() {
        let mut screen = Screen::default();
        let mut is = |uid: &str, ready: &str| screen.is(0, row(uid, ready), Value::Null).is_some();
        assert!(is("a", "False"));
        assert!(!is("a", "False"));
        assert!(is("a", "True"));
        assert!(is("b", "True"));
        let line = screen.gone(0, row("a", "True"), Value::Null).unwrap();
        assert_eq!((line.row.name.as_str(), line.row.standing.state.text()), ("a", "Deleted"));
        assert!(screen.gone(0, row("a", "True"), Value::Null).is_none());
        assert!(screen.is(1, row("b", "True"), Value::Null).is_some(), "of another kind");
    }

    #[test]
    fn a_new_list_tells_what_was_missed() {
        let mut screen = Screen::default();
        screen.begin(0);
        for uid in ["a", "b", "c"] {
            assert!(screen.is(0, row(uid, "True"), Value::Null).is_some());
        }
        assert_eq!(screen.complete(0), []);
        assert!(screen.is(1, row("d", "True"), Value::Null).is_some());
        screen.begin(0);
        assert!(screen.is(0, row("b", "True"), Value::Null).is_none());
        let gone: Vec<String> = screen.complete(0).into_iter().map(|line| line.row.name).collect();
        assert_eq!(gone, ["a", "c"]);
    }
}
