//! The table of `operetta dev`: what fits the terminal, the most urgent first.

use std::collections::BTreeMap;

use console::{measure_text_width, style, truncate_str};

use super::{Child, Row};
use crate::cli::model::State;
use crate::cli::show::{Cell, Columns, Line, Severity};

/// The table with at most that many lines and columns. If not everything fits, ready children are omitted, then ready
/// instances; the header and the totals always stay.
pub(super) fn table(
    header: &[String],
    instances: &BTreeMap<String, Row>,
    (height, width): (usize, usize),
) -> Vec<String> {
    // The header is meant to be copied: it is never cut, and counts as the lines that it wraps to.
    let wrapped: usize = header.iter().map(|line| measure_text_width(line).div_ceil(width + 1).max(1)).sum();
    let room = height.saturating_sub(wrapped + 1);
    let mut body = body(instances, true);
    if body.len() > room {
        body = self::body(instances, false);
    }
    if body.len() > room {
        let hidden = body.len() + 1 - room.max(1);
        body.truncate(room.saturating_sub(1));
        body.push(style(format!("… {hidden} more lines")).dim().to_string());
    }
    let header = header.iter().map(|line| style(line).bold().to_string());
    let cut = |line: String| truncate_str(&line, width, "…").into_owned();
    let totals = style(totals(instances)).dim().to_string();
    header.chain(body.into_iter().chain([totals]).map(cut)).collect()
}

/// All instances with all children; or the urgent ones first, with only those children that are not ready.
fn body(instances: &BTreeMap<String, Row>, whole: bool) -> Vec<String> {
    let mut instances: Vec<_> = instances.iter().collect();
    if !whole {
        instances.sort_by_key(|(name, row)| (row.status.state, *name));
    }
    let heads: Vec<Line> = instances.iter().map(|(name, row)| head(name, row)).collect();
    let columns = Columns::fit(&heads, console::colors_enabled());
    let mut lines = Vec::new();
    for ((_, row), head) in instances.iter().zip(&heads) {
        lines.push(columns.line(head));
        let shown = row.children.iter().filter(|child| whole || child.waits.is_some());
        let children: Vec<Line> = shown.map(child).collect();
        let columns = Columns::fit(&children, console::colors_enabled());
        lines.extend(children.iter().map(|child| format!("  {}", columns.line(child))));
    }
    lines
}

fn head(name: &str, row: &Row) -> Line {
    vec![row.status.state.cell(), Cell::text(name), Cell::new(row.sentence(), Severity::Dim)]
}

fn child(child: &Child) -> Line {
    let (symbol, severity) =
        if child.waits.is_none() { ('●', Severity::Good) } else { ('○', Severity::Busy) };
    let waits = child.waits.as_deref().unwrap_or_default();
    vec![
        Cell::new(format!("{symbol} {}", child.name), severity),
        Cell::new(&child.object, Severity::Dim),
        Cell::text(waits),
    ]
}

fn totals(instances: &BTreeMap<String, Row>) -> String {
    let mut states: BTreeMap<State, usize> = BTreeMap::new();
    for row in instances.values() {
        *states.entry(row.status.state).or_default() += 1;
    }
    let states: Vec<String> =
        states.iter().rev().map(|(state, count)| format!("{count} {}", state.text())).collect();
    let count = match states.len() {
        0 => "no instances yet: kubectl apply one".to_owned(),
        _ => format!("instances: {}", states.join(", ")),
    };
    format!("{count}; Ctrl-C stops it")
}

#[cfg(test)]
mod tests {
    use super::super::tests::status;
    use super::*;

    fn row(state: State, ready: usize, waiting: usize) -> Row {
        let child = |i: usize, waits: Option<&str>| Child {
            name: format!("members[{i}]"),
            object: format!("Pod default/a-{i}"),
            waits: waits.map(str::to_owned),
        };
        let children = (0..ready).map(|i| child(i, None));
        let children = children.chain((ready..ready + waiting).map(|i| child(i, Some("is Pending"))));
        Row { status: status(state, "x".repeat(200)), children: children.collect() }
    }

    fn shown(instances: &[(&str, Row)], height: usize) -> Vec<String> {
        let instances = instances.iter().map(|(name, row)| ((*name).to_owned(), row.clone())).collect();
        let lines = table(&["export KUBECONFIG=/k".to_owned()], &instances, (height, 60));
        assert!(lines.len() <= height, "{lines:#?}");
        let lines: Vec<String> =
            lines.iter().map(|line| console::strip_ansi_codes(line).trim_end().to_owned()).collect();
        assert!(lines.iter().all(|line| measure_text_width(line) <= 60), "{lines:#?}");
        assert_eq!(lines[0], "export KUBECONFIG=/k");
        lines
    }

    #[test]
    fn everything_is_shown_if_it_fits() {
        let instances = [("a", row(State::Ready, 2, 0)), ("b", row(State::Reconciling, 1, 1))];
        let lines = shown(&instances, 24);
        let starts =
            ["export", "Ready         a   x", "  ● members[0]   Pod default/a-0", "  ● ", "Reconciling   b"];
        assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{lines:#?}");
        assert_eq!(lines[6], "  ○ members[1]   Pod default/a-1   is Pending");
        assert_eq!(lines[7], "instances: 1 Ready, 1 Reconciling; Ctrl-C stops it");
    }

    #[test]
    fn urgent_instances_come_first_if_space_is_short() {
        let instances = [("a", row(State::Ready, 50, 0)), ("b", row(State::Stalled, 5, 1))];
        let lines = shown(&instances, 10);
        let starts = ["export", "Stalled   b", "  ○ members[5]", "Ready     a", "instances: 1 Ready, 1 S"];
        assert_eq!(lines.len(), starts.len(), "{lines:#?}");
        assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{lines:#?}");
    }

    #[test]
    fn hidden_lines_are_counted() {
        let lines = shown(&[("a", row(State::Reconciling, 0, 50)), ("b", row(State::Ready, 1, 0))], 10);
        assert_eq!(lines.len(), 10);
        // 52 lines, of which 7 are shown.
        assert_eq!(lines[8], "… 45 more lines");
        assert!(lines[9].starts_with("instances: 1 Ready, 1 Reconciling"));
    }

    #[test]
    fn an_empty_table_suggests_kubectl_apply() {
        assert!(shown(&[], 24)[1].starts_with("no instances yet"));
    }
}
