//! What `operetta dev` shows: on a terminal a table that is drawn anew, else a line a change.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use console::{Term, style, truncate_str};
use tokio::sync::Notify;

use crate::children::{Decision, Verdict};
use crate::manager::{InstanceKey, Observer};

/// How often the table is drawn at most.
const FRAME: Duration = Duration::from_millis(100);

/// The live view.
pub(super) struct View {
    live: bool,
    rows: Mutex<Rows>,
    changed: Notify,
}

#[derive(Default)]
struct Rows {
    instances: BTreeMap<String, Row>,
    /// How many lines of the table stand on the screen.
    drawn: usize,
}

#[derive(Clone, PartialEq)]
struct Row {
    state: State,
    message: String,
    children: Vec<Child>,
}

#[derive(Clone, PartialEq)]
struct Child {
    name: String,
    object: String,
    waits: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Reconciling,
    Stalled,
    Paused,
    Deleting,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::Paused => "Paused",
            Self::Deleting => "Deleting",
        }
    }
}

impl Row {
    fn of(decision: &Decision) -> Self {
        let (state, message) = match &decision.verdict {
            Verdict::Ready { children } => (State::Ready, format!("{children} children")),
            Verdict::Reconciling { message, .. } => (State::Reconciling, message.clone()),
            Verdict::Stalled { reason, message } => (State::Stalled, format!("{reason}: {message}")),
            Verdict::Paused => (State::Paused, String::new()),
            Verdict::Deleting { message } => (State::Deleting, message.clone()),
        };
        let children = decision
            .children
            .iter()
            .map(|(name, object, ready)| Child {
                name: name.clone(),
                object: object.as_ref().map(ToString::to_string).unwrap_or_default(),
                waits: ready.as_ref().err().cloned(),
            })
            .collect();
        Self { state, message, children }
    }
}

impl View {
    pub(super) fn new(live: bool) -> Arc<Self> {
        Arc::new(Self { live, rows: Mutex::default(), changed: Notify::new() })
    }

    /// What the manager tells its decisions to.
    pub(super) fn observer(self: &Arc<Self>) -> Observer {
        let view = Arc::clone(self);
        Arc::new(move |key, decision| view.update(key, decision))
    }

    fn update(&self, key: &InstanceKey, decision: Option<&Decision>) {
        let name = key.to_string();
        let row = decision.map(Row::of);
        let mut rows = self.rows();
        let before = rows.instances.get(&name);
        if before == row.as_ref() {
            return;
        }
        if !self.live {
            print_change(&name, before, row.as_ref());
        }
        match row {
            Some(row) => rows.instances.insert(name, row),
            None => rows.instances.remove(&name),
        };
        drop(rows);
        self.changed.notify_one();
    }

    /// Draws the table whenever something has changed; never ends. Does nothing without a terminal.
    pub(super) async fn draw(&self) {
        loop {
            self.changed.notified().await;
            if self.live {
                self.draw_now();
                tokio::time::sleep(FRAME).await;
            }
        }
    }

    fn draw_now(&self) {
        let mut rows = self.rows();
        let term = Term::stdout();
        let (height, width) = term.size();
        let lines =
            table(&rows.instances, usize::from(height).saturating_sub(2).max(4), usize::from(width).max(20));
        let _ = term.clear_last_lines(rows.drawn);
        for line in &lines {
            let _ = term.write_line(line);
        }
        rows.drawn = lines.len();
    }

    /// Writes lines above the table.
    fn above(&self, text: &str) {
        let mut rows = self.rows();
        if rows.drawn > 0 {
            let _ = Term::stdout().clear_last_lines(rows.drawn);
            rows.drawn = 0;
        }
        let mut stderr = io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes());
        let _ = stderr.flush();
        drop(rows);
        self.changed.notify_one();
    }

    /// Where log lines go, so that they do not tear the table.
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

/// One line for the instance if its state or message changed, one for each child that changed.
fn print_change(name: &str, before: Option<&Row>, after: Option<&Row>) {
    let Some(after) = after else {
        println!("{name}: gone");
        return;
    };
    for child in &after.children {
        let old = before.and_then(|row| row.children.iter().find(|c| c.name == child.name));
        if old != Some(child) {
            println!(
                "{name}: {} ({}): {}",
                child.name,
                child.object,
                child.waits.as_deref().unwrap_or("ready")
            );
        }
    }
    for child in before.iter().flat_map(|row| &row.children) {
        if !after.children.iter().any(|c| c.name == child.name) {
            println!("{name}: {} ({}) is gone", child.name, child.object);
        }
    }
    if before.is_none_or(|row| (row.state, &row.message) != (after.state, &after.message)) {
        println!("{name}: {}: {}", after.state.text(), after.message);
    }
}

/// The table in at most that many lines of that many columns.
fn table(instances: &BTreeMap<String, Row>, height: usize, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, row) in instances {
        let state = match row.state {
            State::Ready => style(row.state.text()).green(),
            State::Stalled => style(row.state.text()).red(),
            _ => style(row.state.text()).yellow(),
        };
        lines.push(format!("{} {state} {}", style(name).bold(), style(&row.message).dim()));
        for child in &row.children {
            lines.push(match &child.waits {
                None => format!("  {} {}  {}", style("●").green(), child.name, style(&child.object).dim()),
                Some(waits) => format!(
                    "  {} {}  {}  {waits}",
                    style("○").yellow(),
                    child.name,
                    style(&child.object).dim()
                ),
            });
        }
    }
    if instances.is_empty() {
        lines.push("no instances yet: kubectl apply one".into());
    }
    if lines.len() > height {
        let hidden = lines.len() - height + 1;
        lines.truncate(height - 1);
        lines.push(format!("… {hidden} more lines"));
    }
    lines.iter().map(|line| truncate_str(line, width, "…").into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_the_terminal() {
        let child = |i: usize| Child {
            name: format!("members[{i}]"),
            object: format!("Pod default/a-{i}"),
            waits: None,
        };
        let row =
            Row { state: State::Ready, message: "x".repeat(200), children: (0..50).map(child).collect() };
        let lines = table(&BTreeMap::from([("a".into(), row)]), 10, 40);
        assert_eq!(lines.len(), 10);
        assert!(lines.iter().all(|l| console::measure_text_width(l) <= 40));
        assert!(lines[9].contains("more lines"));
    }
}
