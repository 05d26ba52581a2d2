//! Finds the kinds of the objects that a template renders, from its text alone.

use std::collections::BTreeSet;

use super::code::{Stmt, Unit};
use crate::api::Gvk;
use crate::diag::{Diagnostic, Span};

/// Replaces an expression in a line.
const VALUE: char = '\u{0}';

/// The maximum number of distinguished paths through branches.
const MAX_STATES: usize = 64;

/// The maximum length of a line with `apiVersion` or `kind`.
const MAX_LINE: usize = 300;

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    api_version: Option<String>,
    kind: Option<String>,
    /// The line so far.
    line: String,
}

type States = BTreeSet<State>;

/// The kinds that `apiVersion` and `kind` at the top level name.
pub(super) fn kinds(unit: &Unit) -> Result<Vec<Gvk>, Diagnostic> {
    let states = run(&unit.body, States::from([State::default()]));
    let mut kinds = BTreeSet::new();
    let mut problem = None;
    for state in states.into_iter().map(State::end_of_line) {
        match (state.api_version, state.kind) {
            // This path through the branches renders no object.
            (None, None) => {}
            (Some(api_version), Some(kind))
                if ![&api_version, &kind].iter().any(|text| text.contains(VALUE)) =>
            {
                kinds.insert(Gvk::new(api_version, kind));
            }
            (Some(_), Some(_)) => problem = Some("the template computes its apiVersion or kind"),
            (None, Some(_)) => problem = Some("the template has no apiVersion"),
            (Some(_), None) => problem = Some("the template has no kind"),
        }
    }
    if problem.is_none() && kinds.is_empty() {
        problem = Some("the template has no apiVersion and no kind");
    }
    match problem {
        None => Ok(kinds.into_iter().collect()),
        Some(problem) => {
            let first_line = unit.source.text.lines().next().map_or(0, str::len);
            Err(Diagnostic::error("template::kind", problem)
                .at(&unit.source, Span::new(0, first_line))
                .help("write both as literals, each at the start of a line, in branches if there are several: they determine what the package may create"))
        }
    }
}

fn run(stmts: &[Stmt], mut states: States) -> States {
    for stmt in stmts {
        states = match stmt {
            Stmt::Raw(text, _) => states.into_iter().map(|state| state.text(text)).collect(),
            Stmt::Emit(_) | Stmt::Filter { .. } => states.into_iter().map(State::value).collect(),
            Stmt::If { then, otherwise, .. } => {
                let mut all = run(then, states.clone());
                all.extend(run(otherwise, states));
                all
            }
            Stmt::For(def) => {
                let mut all = run(&def.body, states.clone());
                all.extend(run(&def.otherwise, states));
                all
            }
            Stmt::With { body, .. } => run(body, states),
            Stmt::Set { .. } | Stmt::SetBlock { .. } | Stmt::Do(_) => states,
        };
        // If there are too many paths, those that differ only in an unfinished line are merged.
        if states.len() > MAX_STATES {
            let short = |state: State| State { line: String::new(), ..state };
            states = states.into_iter().map(short).take(MAX_STATES).collect();
        }
    }
    states
}

impl State {
    fn text(mut self, text: &str) -> Self {
        let mut lines = text.split('\n');
        self.push(lines.next().unwrap_or_default());
        for line in lines {
            self = self.end_of_line();
            self.push(line);
        }
        self
    }

    fn push(&mut self, text: &str) {
        let room = MAX_LINE.saturating_sub(self.line.len());
        self.line.extend(text.chars().take(room));
    }

    fn value(mut self) -> Self {
        self.push(&VALUE.to_string());
        self
    }

    fn end_of_line(mut self) -> Self {
        let line = std::mem::take(&mut self.line);
        if let Some((key, value)) = line.split_once(':') {
            let slot = match unquoted(key.trim_end()) {
                "apiVersion" => &mut self.api_version,
                "kind" => &mut self.kind,
                _ => return self,
            };
            let value = value.split_once(" #").map_or(value, |(value, _)| value);
            let value = unquoted(value.trim());
            if slot.is_none() && !value.is_empty() {
                *slot = Some(value.to_owned());
            }
        }
        self
    }
}

fn unquoted(text: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(text)
}
