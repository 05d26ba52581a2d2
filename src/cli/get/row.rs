//! Formats an instance as a line of the table, or objects as kubectl prints them. No I/O.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::age::age;
use crate::cli::catalog::{PackageKind, UNKNOWN, full_name};
use crate::cli::model::{Object, State, Status};
use crate::cli::out::printable;
use crate::cli::show::{Cell, Line, Severity, Table};

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The text of the column KIND.
    pub kind: String,
    pub object: Object,
    pub package: String,
    pub revision: String,
    /// The resourceVersion, if a change of it makes another row.
    pub version: String,
}

/// Which columns the table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shape {
    /// With the namespace.
    pub namespaces: bool,
    /// With package, revision and message.
    pub wide: bool,
    /// With the number of ready children.
    pub children: bool,
}

/// The number of ready children and of all children, by the uid of the instance.
pub(super) type Counts = HashMap<String, (usize, usize)>;

impl Row {
    pub(super) fn of(kind: &str, package: &str, instance: &Value) -> Self {
        Self {
            kind: kind.to_owned(),
            object: Object::instance(instance),
            package: package.to_owned(),
            revision: printable(instance["status"]["revision"].as_str().unwrap_or_default()),
            version: String::new(),
        }
    }

    /// The row after the instance was deleted.
    pub(super) fn gone(mut self) -> Self {
        self.object.status = Status { ready: "False".to_owned(), ..Status::DELETED };
        self
    }

    fn ready(&self) -> Cell {
        let status = &self.object.status;
        let severity = match status.ready.as_str() {
            "True" => Severity::Good,
            "False" if status.state == State::Stalled => Severity::Bad,
            _ => Severity::Busy,
        };
        Cell::new(&status.ready, severity)
    }

    fn children(&self, counts: &Counts) -> Cell {
        let (ready, all) = counts.get(&self.object.uid).copied().unwrap_or_default();
        let severity = if ready < all { Severity::Busy } else { Severity::Plain };
        match self.package.as_str() {
            UNKNOWN => Cell::plain(UNKNOWN),
            _ => Cell::new(format!("{ready}/{all}"), severity),
        }
    }
}

/// The columns of the table.
pub(super) fn table(shape: Shape, counts: &Counts, now: Timestamp) -> Table<'_, Row> {
    let Shape { namespaces, wide, children } = shape;
    Table::new()
        .column_if(namespaces, "NAMESPACE", |row: &Row| {
            Cell::plain(row.object.namespace.as_deref().unwrap_or_default())
        })
        .column("KIND", |row| Cell::plain(&row.kind))
        .column("NAME", |row| Cell::plain(&row.object.name))
        .column("READY", Row::ready)
        .column("STATUS", |row| row.object.status.state.cell())
        .column("REASON", |row| Cell::plain(&row.object.status.reason))
        .column_if(children, "CHILDREN", |row| row.children(counts))
        .column("AGE", move |row| Cell::plain(age(now, row.object.created.as_deref())))
        .column_if(wide, "PACKAGE", |row| Cell::plain(&row.package))
        .column_if(wide, "REVISION", |row| Cell::plain(&row.revision))
        .column_if(wide, "MESSAGE", |row| Cell::plain(&row.object.status.message))
}

/// A line that is as wide as most later lines of a watch.
pub(super) fn later(header: &Line) -> Line {
    let wide = |name: &str| match name {
        "READY" => "Unknown",
        "STATUS" => "Reconciling",
        "REASON" => "ChildrenNotReady",
        "AGE" => "999m",
        _ => "",
    };
    header.iter().map(|cell| Cell::plain(wide(&cell.text))).collect()
}

/// The text of the column KIND, with the group if two packages have a kind of the same name.
pub(super) fn kind_text(kind: &PackageKind, all: &[PackageKind]) -> String {
    let own = &kind.served.kind;
    let same = all.iter().filter(|other| other.served.kind.kind == own.kind).count();
    if same > 1 { format!("{}.{}", own.kind, own.group) } else { own.kind.clone() }
}

/// The name for kubectl: `etcdcluster.etcd.database.coreos.com/example`.
pub(super) fn name(kind: &PackageKind, instance: &Value) -> String {
    let served = &kind.served;
    let group = &served.kind.group;
    let singular = if served.singular.is_empty() {
        full_name(&served.kind)
    } else {
        format!("{}.{group}", served.singular)
    };
    format!("{singular}/{}", printable(instance["metadata"]["name"].as_str().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn instance(name: &str, ready: &str) -> Value {
        json!({
            "apiVersion": "a/v1", "kind": "Web",
            "metadata": {"name": name, "namespace": "n", "uid": "u", "generation": 1, "creationTimestamp": "2026-11-21T11:00:00Z"},
            "spec": {"text": "two\nlines\n\nand more", "list": [1, {"a": []}]},
            "status": {"observedGeneration": 1, "revision": "0.1.0-abc", "conditions": [
                {"type": "Ready", "status": ready, "reason": "ChildrenNotReady", "message": "a: waits"},
            ]},
        })
    }

    fn texts(line: Line) -> Vec<String> {
        line.into_iter().map(|cell| cell.text).collect()
    }

    #[test]
    fn lines_have_one_word_per_column() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let row = Row::of("Web", "web", &instance("a", "False"));
        let counts = Counts::from([("u".to_owned(), (1, 2))]);
        let narrow = Shape::default();
        let table = |shape| table(shape, &counts, now);
        assert_eq!(
            texts(table(narrow).line(&row)),
            ["Web", "a", "False", "Reconciling", "ChildrenNotReady", "60m"]
        );
        let wide = Shape { namespaces: true, wide: true, children: true };
        let expected = [
            "n",
            "Web",
            "a",
            "False",
            "Reconciling",
            "ChildrenNotReady",
            "1/2",
            "60m",
            "web",
            "0.1.0-abc",
            "a: waits",
        ];
        assert_eq!(texts(table(wide).line(&row)), expected);
        let header = texts(table(wide).header()).join(" ");
        assert_eq!(header, "NAMESPACE KIND NAME READY STATUS REASON CHILDREN AGE PACKAGE REVISION MESSAGE");
        // A cluster-scoped instance without a status.
        let bare = Row::of("Web", "web", &json!({"metadata": {"name": "b"}}));
        let expected = ["<none>", "Web", "b", "Unknown", "NotObserved", "<none>", "<unknown>"];
        assert_eq!(texts(table(Shape { namespaces: true, ..narrow }).line(&bare)), expected);
        assert_eq!(texts(table(narrow).line(&row.gone()))[3..5], ["Deleted", "<none>"]);
    }
}
