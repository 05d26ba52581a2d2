//! `--watch`: the current instances, and then a line for each instance whose line changes.

use std::collections::{HashMap, HashSet};

use futures::StreamExt;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use tokio::sync::mpsc::Sender;

use super::row::Row;
use crate::api::{CallError, Class};
use crate::cluster::call_error;
use crate::manager::raw::Raw;

/// An event of the watch of one target.
pub(super) enum Change {
    /// A list starts: at first, and after a long interruption of the watch.
    Begin,
    /// The list is complete.
    Complete,
    /// An object of the list, or a changed object.
    Is(Value),
    /// A deleted object.
    Gone(Value),
    /// The watch failed and is retried.
    Trouble(CallError),
    /// The API server refuses the watch.
    Refused(CallError),
}

/// Watches a kind until the receiver is dropped or the API server refuses.
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
        | watcher::Error::WatchFailed(error) => call_error(error),
        watcher::Error::WatchError(status) => CallError::from_status(status),
        watcher::Error::NoResourceVersion => return Change::Begin,
    };
    // 410: the resourceVersion is too old, and a new list starts.
    match error.class {
        Class::Permanent | Class::NotFound if error.code != 410 => Change::Refused(error),
        _ => Change::Trouble(error),
    }
}

/// A row to print, with its object.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    pub target: usize,
    pub row: Row,
    pub object: Value,
}

/// The printed rows, so that only changed rows are printed.
#[derive(Default)]
pub(super) struct PrintedRows {
    rows: HashMap<(usize, String), Row>,
    /// The uids that a running list has returned so far.
    listed: HashMap<usize, HashSet<String>>,
}

impl PrintedRows {
    /// A current object; `None` if its row is unchanged.
    pub(super) fn is(&mut self, target: usize, row: Row, object: Value) -> Option<Line> {
        if let Some(listed) = self.listed.get_mut(&target) {
            listed.insert(row.object.uid.clone());
        }
        let before = self.rows.insert((target, row.object.uid.clone()), row.clone());
        (before.as_ref() != Some(&row)).then_some(Line { target, row, object })
    }

    /// A deleted object.
    pub(super) fn gone(&mut self, target: usize, row: Row, object: Value) -> Option<Line> {
        self.rows.remove(&(target, row.object.uid.clone()))?;
        Some(Line { target, row: row.gone(), object })
    }

    /// A list starts.
    pub(super) fn begin(&mut self, target: usize) {
        self.listed.insert(target, HashSet::new());
    }

    /// A list is complete: rows that it does not contain are deleted.
    pub(super) fn complete(&mut self, target: usize) -> Vec<Line> {
        let listed = self.listed.remove(&target).unwrap_or_default();
        let missing: Vec<_> =
            self.rows.keys().filter(|(of, uid)| *of == target && !listed.contains(uid)).cloned().collect();
        let mut gone: Vec<Line> = missing
            .into_iter()
            .filter_map(|key| self.rows.remove(&key))
            .map(|row| Line { target, row: row.gone(), object: Value::Null })
            .collect();
        gone.sort_by(|a, b| {
            (&a.row.object.namespace, &a.row.object.name).cmp(&(&b.row.object.namespace, &b.row.object.name))
        });
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
    fn unchanged_rows_are_not_printed_again() {
        let mut screen = PrintedRows::default();
        let mut is = |uid: &str, ready: &str| screen.is(0, row(uid, ready), Value::Null).is_some();
        assert!(is("a", "False"));
        assert!(!is("a", "False"));
        assert!(is("a", "True"));
        assert!(is("b", "True"));
        let line = screen.gone(0, row("a", "True"), Value::Null).unwrap();
        assert_eq!((line.row.object.name.as_str(), line.row.object.status.state.text()), ("a", "Deleted"));
        assert!(screen.gone(0, row("a", "True"), Value::Null).is_none());
        assert!(screen.is(1, row("b", "True"), Value::Null).is_some(), "of another kind");
    }

    #[test]
    fn a_new_list_reports_missed_deletions() {
        let mut screen = PrintedRows::default();
        screen.begin(0);
        for uid in ["a", "b", "c"] {
            assert!(screen.is(0, row(uid, "True"), Value::Null).is_some());
        }
        assert_eq!(screen.complete(0), []);
        assert!(screen.is(1, row("d", "True"), Value::Null).is_some());
        screen.begin(0);
        assert!(screen.is(0, row("b", "True"), Value::Null).is_none());
        let gone: Vec<String> = screen.complete(0).into_iter().map(|line| line.row.object.name).collect();
        assert_eq!(gone, ["a", "c"]);
    }
}
