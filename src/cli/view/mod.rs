//! The output of `operetta dev`: on a terminal a table that is redrawn, otherwise one line per change.

mod table;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::model::{State, Status};
use super::out::{self, printable};
use super::show::Screen;
use crate::children::Decision;
use crate::diag::Diagnostic;
use crate::manager::{InstanceKey, Observer};

/// The minimum interval of redrawing the table.
const FRAME: Duration = Duration::from_millis(100);

/// The live view.
pub(super) struct View {
    live: bool,
    rows: Mutex<Rows>,
    changed: Notify,
    /// The reader has closed standard output.
    unread: Notify,
}

#[derive(Default)]
struct Rows {
    /// Lines that stay above the table.
    header: Vec<String>,
    instances: BTreeMap<String, Row>,
    screen: Screen,
    /// The table is final.
    finished: bool,
    /// Log lines are dropped.
    silent: bool,
}

#[derive(Clone, PartialEq)]
struct Row {
    status: Status,
    children: Vec<Child>,
}

#[derive(Clone, PartialEq)]
struct Child {
    name: String,
    object: String,
    waits: Option<String>,
}

/// The reasons with which the message of an instance only repeats what its children say.
const OF_CHILDREN: [&str; 2] = ["Applying", "ChildrenNotReady"];

impl Row {
    /// The text about the instance. While the instance goes on by itself the reason, which is for programs,
    /// is left out.
    fn sentence(&self) -> String {
        match self.status.state {
            State::Reconciling => self.status.message.clone(),
            _ => self.status.sentence(),
        }
    }

    /// The row after a decision. If the decision does not contain the children, they stay as they were.
    fn of(decision: &Decision, before: Option<&Self>) -> Self {
        let children = match &decision.children {
            None => before.map(|row| row.children.clone()).unwrap_or_default(),
            Some(children) => children
                .iter()
                .map(|(name, object, ready)| Child {
                    name: printable(name),
                    object: object.as_ref().map(|object| printable(&object.to_string())).unwrap_or_default(),
                    waits: ready.as_ref().err().map(|waits| printable(waits)),
                })
                .collect(),
        };
        Self { status: Status::of_summary(&decision.summary()), children }
    }
}

impl View {
    pub(super) fn new(live: bool) -> Arc<Self> {
        Arc::new(Self { live, rows: Mutex::default(), changed: Notify::new(), unread: Notify::new() })
    }

    /// Prints a permanent line; it stays above the table and does not scroll away.
    pub(super) fn keep(&self, line: String) {
        if self.live {
            self.rows().header.push(line);
            self.changed.notify_one();
        } else {
            self.print(&line);
        }
    }

    /// Prints a line about an event.
    pub(super) fn say(&self, line: &str) {
        let line = printable(line);
        if self.live {
            self.above(&format!("{line}\n"));
        } else {
            self.print(&line);
        }
    }

    /// The callback for the manager's decisions.
    pub(super) fn observer(self: &Arc<Self>) -> Observer {
        let view = Arc::clone(self);
        Arc::new(move |key, decision| view.update(key, decision))
    }

    fn update(&self, key: &InstanceKey, decision: Option<&Decision>) {
        let name = printable(&key.to_string());
        let mut rows = self.rows();
        let before = rows.instances.get(&name);
        let row = decision.map(|decision| Row::of(decision, before));
        if before == row.as_ref() || rows.finished {
            return;
        }
        if !self.live {
            for line in changes(&name, before, row.as_ref()) {
                self.print(&line);
            }
        }
        match row {
            Some(row) => rows.instances.insert(name, row),
            None => rows.instances.remove(&name),
        };
        drop(rows);
        self.changed.notify_one();
    }

    fn print(&self, line: &str) {
        if !out::line(line) {
            self.unread.notify_one();
        }
    }

    /// Redraws the table when something has changed, or the size of the terminal has. Returns when the reader has
    /// closed standard output.
    pub(super) async fn draw(&self) {
        let mut resized = signal(SignalKind::window_change()).ok();
        loop {
            let resize = async {
                match &mut resized {
                    Some(resized) => resized.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.unread.notified() => return,
                () = self.changed.notified() => {}
                _ = resize => {}
            }
            if self.live {
                if self.draw_now().is_err() {
                    return;
                }
                tokio::time::sleep(FRAME).await;
            }
        }
    }

    fn draw_now(&self) -> io::Result<()> {
        let mut rows = self.rows();
        if rows.finished {
            return Ok(());
        }
        let lines = table::table(&rows.header, &rows.instances, Screen::size());
        rows.screen.draw(&lines)
    }

    /// Makes the table final; further output is below it.
    pub(super) fn finish(&self) {
        let mut rows = self.rows();
        rows.finished = true;
        rows.screen.leave();
    }

    /// Drops further log lines.
    pub(super) fn silence(&self) {
        self.rows().silent = true;
    }

    /// Shows diagnostics above the table.
    pub(super) fn report(&self, diagnostics: &[Diagnostic]) {
        if diagnostics.is_empty() {
            return;
        }
        self.above(&crate::diag::render(diagnostics, out::colors()));
    }

    /// Writes lines above the table.
    fn above(&self, text: &str) {
        let mut rows = self.rows();
        rows.screen.clear();
        if !rows.silent {
            out::message(text);
        }
        drop(rows);
        self.changed.notify_one();
    }

    /// A writer for log lines that does not damage the table.
    pub(super) fn writer(self: &Arc<Self>) -> impl Fn() -> Writer + Send + Sync + 'static {
        let view = Arc::clone(self);
        move || Writer(Arc::clone(&view))
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes log lines above the table.
pub(super) struct Writer(Arc<View>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.above(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line for each changed child, and one for the instance if its state or message changed.
fn changes(name: &str, before: Option<&Row>, after: Option<&Row>) -> Vec<String> {
    let Some(after) = after else {
        return vec![format!("{name}: gone")];
    };
    let called = |child: &Child| match child.object.as_str() {
        "" => child.name.clone(),
        object => format!("{} ({object})", child.name),
    };
    let mut lines = Vec::new();
    for child in &after.children {
        let old = before.and_then(|row| row.children.iter().find(|c| c.name == child.name));
        if old != Some(child) {
            lines.push(match &child.waits {
                None => format!("{name}: {}: ready", called(child)),
                Some(waits) => format!("{name}: {}: {waits}", called(child)),
            });
        }
    }
    for child in before.iter().flat_map(|row| &row.children) {
        if !after.children.iter().any(|c| c.name == child.name) {
            lines.push(format!("{name}: {} is gone", called(child)));
        }
    }
    let is_said = !lines.is_empty()
        && after.status.state == State::Reconciling
        && OF_CHILDREN.contains(&after.status.reason.as_str());
    if !is_said && before.is_none_or(|row| row.status != after.status) {
        lines.push(format!("{name}: {}: {}", after.status.state.text(), after.sentence()));
    }
    lines
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::children::Verdict;

    pub(super) fn status(state: State, message: String) -> Status {
        Status { state, message, ..Status::DELETED }
    }

    fn row(state: State, children: &[(&str, Option<&str>)]) -> Row {
        let children = children.iter().map(|(name, waits)| Child {
            name: (*name).to_owned(),
            object: format!("Pod default/{name}"),
            waits: waits.map(str::to_owned),
        });
        Row { status: status(state, "m".to_owned()), children: children.collect() }
    }

    #[test]
    fn every_change_is_one_line() {
        let first = row(State::Reconciling, &[("a", None), ("b", Some("is Pending"))]);
        let second = row(State::Ready, &[("b", None)]);
        let expected =
            ["x: a (Pod default/a): ready", "x: b (Pod default/b): is Pending", "x: Reconciling: m"];
        assert_eq!(changes("x", None, Some(&first)), expected);
        let expected = ["x: b (Pod default/b): ready", "x: a (Pod default/a) is gone", "x: Ready: m"];
        assert_eq!(changes("x", Some(&first), Some(&second)), expected);
        assert_eq!(changes("x", Some(&second), Some(&second)), [""; 0]);
        assert_eq!(changes("x", Some(&second), None), ["x: gone"]);
    }

    #[test]
    fn an_instance_does_not_repeat_its_children() {
        let first = row(State::Reconciling, &[("a", Some("is Pending"))]);
        let because = |reason: &str, children| {
            let row = row(State::Reconciling, children);
            Row { status: Status { reason: reason.to_owned(), ..row.status }, ..row }
        };
        let second = because("ChildrenNotReady", &[("a", Some("is Running"))]);
        assert_eq!(changes("x", Some(&first), Some(&second)), ["x: a (Pod default/a): is Running"]);
        // Only the message of the instance says why it is not Ready.
        let third = because("ReadyWhen", &[("a", None)]);
        let expected = ["x: a (Pod default/a): ready", "x: Reconciling: m"];
        assert_eq!(changes("x", Some(&second), Some(&third)), expected);
    }

    #[test]
    fn children_that_a_decision_omits_stay_as_they_were() {
        let before = row(State::Ready, &[("a", None)]);
        let message = || "an earlier revision of the package is being loaded".to_owned();
        let unseen =
            Decision::idle(Verdict::Reconciling { reason: "RevisionPending".into(), message: message() });
        let after = Row::of(&unseen, Some(&before));
        assert_eq!(changes("x", Some(&before), Some(&after)), [format!("x: Reconciling: {}", message())]);
        let none = Row::of(&Decision { children: Some(Vec::new()), ..unseen }, Some(&before));
        assert!(
            changes("x", Some(&before), Some(&none)).contains(&"x: a (Pod default/a) is gone".to_owned())
        );
    }
}
