//! Formats an instance as a line of the table, or objects as kubectl prints them. No I/O.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::cli::catalog::{PackageKind, UNKNOWN, full_name};
use crate::cli::columns::{Cell, Severity, age};
use crate::cli::model::{Object, State, Status};
use crate::cli::out::printable;
use crate::yaml;

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

/// The columns of the table.
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

    pub(super) fn cells(&self, shape: Shape, counts: &Counts, now: Timestamp) -> Vec<Cell> {
        let Object { namespace, name, uid, created, status, .. } = &self.object;
        let mut cells = Vec::new();
        if shape.namespaces {
            cells.push(Cell::plain(namespace.as_deref().unwrap_or_default()));
        }
        let ready = match status.ready.as_str() {
            "True" => Severity::Good,
            "False" if status.state == State::Stalled => Severity::Bad,
            _ => Severity::Busy,
        };
        cells.extend([
            Cell::plain(&self.kind),
            Cell::plain(name),
            Cell::new(&status.ready, ready),
            Cell::new(status.state.text(), status.state.severity()),
            Cell::plain(&status.reason),
        ]);
        if shape.children {
            let (ready, all) = counts.get(uid).copied().unwrap_or_default();
            let severity = if ready < all { Severity::Busy } else { Severity::Plain };
            cells.push(match self.package.as_str() {
                UNKNOWN => Cell::plain(UNKNOWN),
                _ => Cell::new(format!("{ready}/{all}"), severity),
            });
        }
        cells.push(Cell::plain(age(now, created.as_deref())));
        if shape.wide {
            cells.extend([&self.package, &self.revision, &status.message].map(Cell::plain));
        }
        cells
    }
}

/// A line that is as wide as most later lines of a watch.
pub(super) fn later(shape: Shape) -> Vec<Cell> {
    let wide = |name: &str| match name {
        "READY" => "Unknown",
        "STATUS" => "Reconciling",
        "REASON" => "ChildrenNotReady",
        "AGE" => "999m",
        _ => "",
    };
    header(shape).iter().map(|cell| Cell::plain(wide(&cell.text))).collect()
}

/// The names of the columns.
pub(super) fn header(shape: Shape) -> Vec<Cell> {
    let mut names = vec!["KIND", "NAME", "READY", "STATUS", "REASON"];
    if shape.namespaces {
        names.insert(0, "NAMESPACE");
    }
    if shape.children {
        names.push("CHILDREN");
    }
    names.push("AGE");
    if shape.wide {
        names.extend(["PACKAGE", "REVISION", "MESSAGE"]);
    }
    names.into_iter().map(Cell::plain).collect()
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

/// How objects are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

impl Format {
    /// A single object, also for use in [`Self::list`].
    pub(super) fn object(self, object: &Value) -> String {
        match self {
            Self::Json => crate::printable::json(&format!("{object:#}")).into_owned(),
            Self::Yaml => yaml::to_string(object),
        }
    }

    /// One of several consecutive objects.
    pub(super) fn document(self, object: &str) -> String {
        match self {
            Self::Json => format!("{object}\n"),
            Self::Yaml => format!("---\n{object}"),
        }
    }

    /// A List of objects from [`Self::object`].
    pub(super) fn list(self, objects: &[String]) -> String {
        let indented = |text: &str, by: &str| {
            // Empty lines stay empty.
            let lines = text.trim_end().lines().enumerate();
            lines.fold(String::new(), |text, (number, line)| match (number, line) {
                (0, line) => line.to_owned(),
                (_, "") => text + "\n",
                (_, line) => text + "\n" + by + line,
            })
        };
        match (self, objects) {
            (Self::Json, _) => {
                let items: Vec<String> =
                    objects.iter().map(|o| format!("\n    {}", indented(o, "    "))).collect();
                let end = if items.is_empty() { "" } else { "\n  " };
                format!(
                    "{{\n  \"apiVersion\": \"v1\",\n  \"items\": [{}{end}],\n  \"kind\": \"List\",\n  \"metadata\": {{\n    \
                     \"resourceVersion\": \"\"\n  }}\n}}\n",
                    items.join(",")
                )
            }
            (Self::Yaml, []) => {
                "apiVersion: v1\nitems: []\nkind: List\nmetadata:\n  resourceVersion: \"\"\n".to_owned()
            }
            (Self::Yaml, _) => {
                let items: Vec<String> =
                    objects.iter().map(|o| format!("- {}\n", indented(o, "  "))).collect();
                let items = items.concat();
                format!("apiVersion: v1\nitems:\n{items}kind: List\nmetadata:\n  resourceVersion: \"\"\n")
            }
        }
    }
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

    fn texts(cells: &[Cell]) -> Vec<&str> {
        cells.iter().map(|cell| cell.text.as_str()).collect()
    }

    #[test]
    fn lines_have_one_word_per_column() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let row = Row::of("Web", "web", &instance("a", "False"));
        let counts = Counts::from([("u".to_owned(), (1, 2))]);
        let narrow = Shape::default();
        assert_eq!(
            texts(&row.cells(narrow, &counts, now)),
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
        assert_eq!(texts(&row.cells(wide, &counts, now)), expected);
        assert_eq!(header(wide).len(), expected.len());
        assert_eq!(header(narrow).len(), 6);
        // A cluster-scoped instance without a status.
        let bare = Row::of("Web", "web", &json!({"metadata": {"name": "b"}}));
        let expected = ["<none>", "Web", "b", "Unknown", "NotObserved", "<none>", "<unknown>"];
        assert_eq!(texts(&bare.cells(Shape { namespaces: true, ..narrow }, &counts, now)), expected);
        assert_eq!(texts(&row.gone().cells(narrow, &counts, now))[3..5], ["Deleted", "<none>"]);
    }

    #[test]
    fn a_list_reads_back_as_its_objects() {
        for count in 0..3 {
            let objects: Vec<Value> = (0..count).map(|i| instance(&format!("a-{i}"), "True")).collect();
            let expected = json!({"apiVersion": "v1", "kind": "List", "items": objects, "metadata": {"resourceVersion": ""}});
            for format in [Format::Json, Format::Yaml] {
                let texts: Vec<String> = objects.iter().map(|object| format.object(object)).collect();
                let list = format.list(&texts);
                assert_eq!(yaml::from_str(&list).unwrap(), expected, "{list}");
                if format == Format::Json {
                    assert_eq!(list, format!("{expected:#}\n"));
                } else {
                    assert_eq!(list, yaml::to_string(&expected));
                }
            }
        }
    }
}
