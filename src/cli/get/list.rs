//! `get` without `--watch`: reads the instances once, and prints a table or the objects.

use std::process::ExitCode;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use serde_json::Value;

use super::row::{self, Counts, Row, Shape};
use super::{AT_ONCE, Get, Task, nothing, report};
use crate::cli::command::{Format, list};
use crate::cli::model::complete;
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
        let (cluster, kind) = (&self.session.server.cluster, &*task.kind.served.kind);
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
        let object = self.session.read(task.kind, namespace, name).await?;
        let raw = Raw::from_value(object).map_err(|error| format!("{name}: {error}"))?;
        Ok(vec![keep(task, &raw.body)])
    }

    pub(super) async fn table(&self, mut problems: Vec<String>) -> ExitCode {
        let wide = self.args.shown.is_wide();
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
            return report(&problems, ExitCode::SUCCESS);
        }
        let table = row::table(shape, &counts, crate::clock::now());
        let text = table.text(rows.iter().map(|(row, _)| row), !self.args.shown.no_headers);
        report(&problems, out::all(&text, ExitCode::SUCCESS))
    }

    pub(super) async fn names(&self, mut problems: Vec<String>) -> ExitCode {
        let names = self.read(|task, object| row::name(task.kind, object) + "\n", &mut problems).await;
        if names.is_empty() && problems.is_empty() {
            out::note(nothing(self.tasks));
        }
        report(&problems, out::all(&names.concat(), ExitCode::SUCCESS))
    }

    pub(super) async fn objects(&self, format: Format, mut problems: Vec<String>) -> ExitCode {
        let objects = self.read(|_, object| object.clone(), &mut problems).await;
        let text = match (self.tasks, &objects[..]) {
            ([Task { name: Some(_), .. }], []) => String::new(),
            ([Task { name: Some(_), .. }], [object]) => format.document(object),
            _ => format.document(&list(&objects)),
        };
        report(&problems, out::all(&text, ExitCode::SUCCESS))
    }
}
