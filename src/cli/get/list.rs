//! `get` without `--watch`: reads the instances once, and prints a table or the objects.

use std::process::ExitCode;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use serde_json::Value;

use super::row::{self, Counts, Format, Row, Shape};
use super::{AT_ONCE, Get, Output, Task, cannot_read, complete, end, not_found, nothing};
use crate::cli::columns::{Cell, Columns};
use crate::cli::out;
use crate::cluster::Query;
use crate::manager::raw::Raw;

impl Get<'_> {
    /// Reads all instances of all tasks, in their order. `keep` extracts what is needed of each.
    async fn read<R>(
        &self,
        keep: impl Fn(&Task<'_>, &Value) -> R + Copy,
        problems: &mut Vec<String>,
    ) -> Vec<R> {
        let all = stream::iter(self.tasks).map(|task| self.read_one(task, keep)).buffered(AT_ONCE);
        let mut found = Vec::new();
        for answer in all.collect::<Vec<_>>().await {
            match answer {
                Ok(some) => found.extend(some),
                Err(problem) => problems.push(problem),
            }
        }
        found
    }

    async fn read_one<R>(
        &self,
        task: &Task<'_>,
        keep: impl Fn(&Task<'_>, &Value) -> R,
    ) -> Result<Vec<R>, String> {
        let (cluster, kind) = (&self.server.cluster, &*task.kind.served.kind);
        let namespace = task.namespace.as_deref();
        let Some(name) = task.name else {
            let labels = self.args.selector.as_deref().unwrap_or_default();
            let query = Query { namespace, labels, ..Query::default() };
            let listed = cluster.list_all(kind, &query, |mut raw: Raw| {
                complete(kind, &mut raw.body);
                keep(task, &raw.body)
            });
            return match listed.await {
                Ok(found) => Ok(found),
                Err(error) => task.refused(&error).map_or_else(|| Ok(Vec::new()), Err),
            };
        };
        let found =
            cluster.get(kind, namespace, name).await.map_err(|error| cannot_read(task, name, &error))?;
        let object = found.ok_or_else(|| not_found(task, name))?;
        let raw = Raw::from_value(object).map_err(|error| format!("{name}: {error}"))?;
        Ok(vec![keep(task, &raw.body)])
    }

    pub(super) async fn table(&self, mut problems: Vec<String>) -> ExitCode {
        let wide = self.args.output == Some(Output::Wide);
        let shape = Shape { namespaces: self.args.all_namespaces, wide, children: wide };
        let keep = |task: &Task<'_>, object: &Value| {
            (Row::of(&task.shown, &task.kind.package, object), Arc::clone(&task.kind.bounds))
        };
        let rows = self.read(keep, &mut problems).await;
        let counts =
            if wide && !rows.is_empty() { self.count(&rows, &mut problems).await } else { Counts::default() };
        if rows.is_empty() {
            if problems.is_empty() {
                out::note(nothing(self.tasks));
            }
            return end(&problems, ExitCode::SUCCESS);
        }
        let now = crate::clock::now();
        let mut lines: Vec<Vec<Cell>> = Vec::with_capacity(rows.len() + 1);
        if !self.args.no_headers {
            lines.push(row::header(shape));
        }
        lines.extend(rows.iter().map(|(row, _)| row.cells(shape, &counts, now)));
        let columns = Columns::fit(lines.iter().map(Vec::as_slice), console::colors_enabled());
        let mut text = String::new();
        for line in &lines {
            text.push_str(&columns.line(line));
            text.push('\n');
        }
        end(&problems, out::all(&text, ExitCode::SUCCESS))
    }

    pub(super) async fn objects(&self, output: Output, mut problems: Vec<String>) -> ExitCode {
        let format = match output {
            Output::Yaml => Format::Yaml,
            _ => Format::Json,
        };
        let names = output == Output::Name;
        let keep = |task: &Task<'_>, object: &Value| {
            if names { row::name(task.kind, object) } else { format.object(object) }
        };
        let texts = self.read(keep, &mut problems).await;
        let single = matches!(self.tasks, [Task { name: Some(_), .. }]);
        let text = match &texts[..] {
            _ if names => texts.iter().flat_map(|name| [name.as_str(), "\n"]).collect(),
            [object] if single => format!("{}\n", object.trim_end()),
            [] if single => String::new(),
            objects => format.list(objects),
        };
        if names && texts.is_empty() && problems.is_empty() {
            out::note(nothing(self.tasks));
        }
        end(&problems, out::all(&text, ExitCode::SUCCESS))
    }
}
