//! `get --watch`: follows all kinds, and prints the instances and then a line for each change.

use std::collections::HashMap;
use std::process::ExitCode;

use kube::runtime::watcher;
use serde_json::Value;

use super::row::{self, Counts, Row, Shape};
use super::watch::{self, Change, Line, PrintedRows};
use super::{Args, Task, report};
use crate::cli::command::{Output, documents};
use crate::cli::connect::Server;
use crate::cli::model::complete;
use crate::cli::out::{self, printable};
use crate::cli::show::Columns;

/// The command `get --watch`.
pub(super) struct Watching<'a> {
    pub(super) args: &'a Args,
    pub(super) server: &'a Server,
    pub(super) tasks: &'a [Task<'a>],
}

impl Watching<'_> {
    pub(super) async fn run(&self, mut problems: Vec<String>) -> ExitCode {
        let (sender, mut changes) = tokio::sync::mpsc::channel(256);
        for (index, task) in self.tasks.iter().enumerate() {
            let api = match self.server.cluster.api(&task.kind.served.kind, task.namespace.as_deref()) {
                Ok(api) => api,
                Err(error) => {
                    out::note(format!("error: {error}"));
                    return ExitCode::FAILURE;
                }
            };
            let mut config = watcher::Config::default();
            if let Some(labels) = &self.args.selector {
                config = config.labels(labels);
            }
            if let Some(name) = task.name {
                config = config.fields(&format!("metadata.name={name}"));
            }
            tokio::spawn(watch::follow(api, config, index, sender.clone()));
        }
        drop(sender);
        let mut screen = PrintedRows::default();
        // Collects the lines of the first lists until all lists are complete; then it is `None`.
        let mut first: Option<Vec<Line>> = Some(Vec::new());
        let mut open: Vec<bool> = vec![true; self.tasks.len()];
        let mut troubled: HashMap<usize, String> = HashMap::new();
        let mut printer = Printer { args: self.args, tasks: self.tasks, columns: None };
        loop {
            if open.iter().all(|open| !open)
                && let Some(mut lines) = first.take()
            {
                let hopeless =
                    lines.is_empty() && !problems.is_empty() && self.tasks.iter().all(|t| t.name.is_some());
                report(&std::mem::take(&mut problems), ExitCode::FAILURE);
                if hopeless {
                    return ExitCode::FAILURE;
                }
                lines.sort_by_key(|line| line.target);
                if !printer.print(&lines) {
                    return ExitCode::SUCCESS;
                }
            }
            // All watches have ended: each was refused.
            let Some((target, change)) = changes.recv().await else { return ExitCode::FAILURE };
            let Some(task) = self.tasks.get(target) else { continue };
            let row = |object: &Value| self.row(task, object);
            let lines: Vec<Line> = match change {
                Change::Begin => {
                    screen.begin(target);
                    Vec::new()
                }
                Change::Complete => {
                    troubled.remove(&target);
                    let lines = screen.complete(target);
                    let is_first = std::mem::replace(&mut open[target], false);
                    if let (true, Some(name), Some(first)) = (is_first, task.name, &first)
                        && !first.iter().any(|line| line.target == target)
                    {
                        problems.push(task.kind.has_none(task.namespace.as_deref(), name));
                    }
                    lines
                }
                Change::Is(mut object) => {
                    complete(&task.kind.served.kind, &mut object);
                    screen.is(target, row(&object), object).into_iter().collect()
                }
                Change::Gone(mut object) => {
                    complete(&task.kind.served.kind, &mut object);
                    screen.gone(target, row(&object), object).into_iter().collect()
                }
                Change::Trouble(error) => {
                    let text = error.to_string();
                    if troubled.get(&target) != Some(&text) {
                        let name = task.kind.full_name();
                        out::note(format!("warning: {name}: {}; trying again", printable(&text)));
                        troubled.insert(target, text);
                    }
                    Vec::new()
                }
                Change::Refused(error) => {
                    let is_first = std::mem::replace(&mut open[target], false);
                    match task.refused(&error) {
                        Some(problem) if is_first => problems.push(problem),
                        Some(problem) => out::note(format!("error: {problem}")),
                        None => {}
                    }
                    Vec::new()
                }
            };
            match &mut first {
                Some(first) => first.extend(lines),
                None if !printer.print(&lines) => return ExitCode::SUCCESS,
                None => {}
            }
        }
    }
}

impl Watching<'_> {
    /// The row of an instance. It differs from another row exactly if the printed text differs.
    fn row(&self, task: &Task<'_>, object: &Value) -> Row {
        let mut row = Row::of(&task.shown, &task.kind.package, object);
        match self.args.shown.output {
            Some(Output::Wide) => {}
            None | Some(Output::Name) => {
                row.object.status.message.clear();
                row.revision.clear();
            }
            Some(Output::Json | Output::Yaml) => {
                object["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap_or_default()
                    .clone_into(&mut row.version);
            }
        }
        row
    }
}

/// Prints lines of a watch; the first lines define the widths of columns.
struct Printer<'a> {
    args: &'a Args,
    tasks: &'a [Task<'a>],
    columns: Option<Columns>,
}

impl Printer<'_> {
    /// Returns false if the reader has closed the output.
    fn print(&mut self, lines: &[Line]) -> bool {
        if lines.is_empty() {
            return true;
        }
        let objects = lines.iter().map(|line| &line.object).filter(|object| !object.is_null());
        let text = match self.args.shown.output {
            None | Some(Output::Wide) => self.table(lines),
            Some(Output::Name) => lines
                .iter()
                .filter(|line| !line.object.is_null())
                .map(|line| row::name(self.tasks[line.target].kind, &line.object) + "\n")
                .collect(),
            Some(Output::Json) => objects.map(out::json).collect(),
            Some(Output::Yaml) => documents(objects),
        };
        out::text(&text)
    }

    fn table(&mut self, lines: &[Line]) -> String {
        let wide = self.args.shown.is_wide();
        let shape = Shape { namespaces: self.args.all_namespaces, wide, children: false };
        let counts = Counts::default();
        let table = row::table(shape, &counts, crate::clock::now());
        let has_header = self.columns.is_none() && !self.args.shown.no_headers;
        let lines = table.lines(lines.iter().map(|line| &line.row), has_header);
        let later = row::later(&table.header());
        let fit = || Columns::fit(lines.iter().chain([&later]), console::colors_enabled());
        let columns = self.columns.get_or_insert_with(fit);
        lines.iter().map(|line| columns.line(line) + "\n").collect()
    }
}
