//! The tree as text. No I/O.

use k8s_openapi::jiff::Timestamp;

use super::branch::{Node, Place};
use crate::cli::columns::{Cell, Columns, Tone, age};
use crate::cli::out::printable;

/// How the terminal wants it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub colours: bool,
    /// Lines of box-drawing characters; else of ASCII.
    pub unicode: bool,
    pub header: bool,
    /// Columns of the terminal; longer messages are cut.
    pub width: Option<usize>,
}

/// The column of messages.
const MESSAGE: usize = 5;

/// What stands before a line's name.
struct Lines {
    tee: &'static str,
    elbow: &'static str,
    through: &'static str,
}

const UNICODE: Lines = Lines { tee: "├─ ", elbow: "└─ ", through: "│  " };
const ASCII: Lines = Lines { tee: "|- ", elbow: "`- ", through: "|  " };

/// The tree, and below it what its conditions tell.
pub(super) fn text(root: &Node, style: Style, now: Timestamp) -> String {
    let mut drawing = Drawing {
        lines: Vec::new(),
        symbols: if style.unicode { &UNICODE } else { &ASCII },
        home: root.namespace.as_deref(),
        now,
    };
    if style.header {
        drawing.lines.push(["NAME", "OBJECT", "READY", "STATUS", "AGE", "MESSAGE"].map(Cell::plain).to_vec());
    }
    let object = match &root.namespace {
        Some(namespace) => format!("{} {namespace}/{}", root.kind, root.name),
        None => format!("{} {}", root.kind, root.name),
    };
    // What its conditions tell stands below, whole.
    let message = if root.conditions.is_empty() { root.sentence() } else { String::new() };
    let cells = drawing.cells(root, root.name.clone(), object, message);
    drawing.lines.push(cells);
    drawing.below(root, "");
    let columns = Columns::fit(drawing.lines.iter().map(Vec::as_slice), style.colours);
    // Where not even the rest fits, a terminal wraps it: readiness must not be cut off.
    let width = style.width.filter(|width| columns.start(MESSAGE) < *width);
    let mark = if style.unicode { "…" } else { "~" };
    let mut text = String::new();
    for cells in &drawing.lines {
        let line = columns.line(cells);
        match width {
            Some(width) => text.push_str(&console::truncate_str(&line, width, mark)),
            None => text.push_str(&line),
        }
        text.push('\n');
    }
    let told = told(root);
    if !told.is_empty() {
        text.push('\n');
        text.push_str(&told);
    }
    text
}

struct Drawing<'a> {
    lines: Vec<Vec<Cell>>,
    symbols: &'a Lines,
    /// The namespace that needs no mention.
    home: Option<&'a str>,
    now: Timestamp,
}

impl Drawing<'_> {
    fn cells(&self, node: &Node, name: String, object: String, message: String) -> Vec<Cell> {
        let tone = match node.status {
            "Ready" => Tone::Good,
            "Failed" | "Stalled" => Tone::Bad,
            _ => Tone::Busy,
        };
        let is_instance = !matches!(node.status, "NotReady" | "Failed");
        let status = if is_instance || node.reason.is_empty() { node.status } else { &node.reason };
        vec![
            Cell::new(name, Tone::Plain),
            Cell::new(object, Tone::Dim),
            Cell::new(node.shown_ready.clone(), tone),
            Cell::new(status, tone),
            Cell::new(age(self.now, node.created.as_deref()), Tone::Plain),
            Cell::new(message, Tone::Plain),
        ]
    }

    fn object(&self, node: &Node) -> String {
        match &node.namespace {
            Some(namespace) if self.home != Some(namespace) => {
                format!("{} {namespace}/{}", node.kind, node.name)
            }
            _ => format!("{} {}", node.kind, node.name),
        }
    }

    /// What hangs below a node: children by id, the members of a forEach below theirs, then what it owns.
    fn below(&mut self, node: &Node, indent: &str) {
        let mut groups: Vec<(&str, Vec<&Node>)> = Vec::new();
        for child in &node.children {
            let Place::Child { id, .. } = &child.place else { continue };
            match groups.last_mut() {
                Some((last, members)) if last == id => members.push(child),
                _ => groups.push((id, vec![child])),
            }
        }
        let count = groups.len() + node.dependents.len();
        for (index, (id, members)) in groups.into_iter().enumerate() {
            let last = index + 1 == count;
            let keyed = |node: &&Node| matches!(&node.place, Place::Child { key: Some(_), .. });
            if let ([only], false) = (&members[..], members.iter().any(keyed)) {
                self.branch(only, id, indent, last);
                continue;
            }
            let ready = members.iter().filter(|member| member.ready).count();
            let tone = if ready == members.len() { Tone::Good } else { Tone::Busy };
            let symbol = if last { self.symbols.elbow } else { self.symbols.tee };
            self.lines.push(vec![
                Cell::new(format!("{indent}{symbol}{id}"), Tone::Plain),
                Cell::default(),
                Cell::new(format!("{ready}/{}", members.len()), tone),
            ]);
            let inner = self.deeper(indent, last);
            for (number, member) in members.iter().enumerate() {
                let name = match &member.place {
                    Place::Child { key: Some(key), .. } => format!("[{key}]"),
                    _ => id.to_owned(),
                };
                self.branch(member, &name, &inner, number + 1 == members.len());
            }
        }
        let owned = node.dependents.len();
        for (number, dependent) in node.dependents.iter().enumerate() {
            self.branch(dependent, &dependent.kind.to_lowercase(), indent, number + 1 == owned);
        }
    }

    fn branch(&mut self, node: &Node, name: &str, indent: &str, last: bool) {
        let symbol = if last { self.symbols.elbow } else { self.symbols.tee };
        let cells = self.cells(node, format!("{indent}{symbol}{name}"), self.object(node), node.sentence());
        self.lines.push(cells);
        let inner = self.deeper(indent, last);
        self.below(node, &inner);
    }

    fn deeper(&self, indent: &str, last: bool) -> String {
        format!("{indent}{}", if last { "   " } else { self.symbols.through })
    }
}

/// The conditions that hold, and Ready where it does not: what is awaited, what is wrong.
fn told(root: &Node) -> String {
    let text =
        |condition: &serde_json::Value, key: &str| printable(condition[key].as_str().unwrap_or_default());
    let mut lines: Vec<String> = Vec::new();
    let mut messages: Vec<String> = Vec::new();
    // What Ready tells is mostly what Reconciling or Stalled tell, too.
    let (ready, others): (Vec<_>, Vec<_>) = root.conditions.iter().partition(|c| c["type"] == "Ready");
    let said = others.into_iter().filter(|c| c["status"] != "False");
    for condition in said.chain(ready.into_iter().filter(|c| c["status"] != "True")) {
        let (kind, status) = (text(condition, "type"), text(condition, "status"));
        let (reason, message) = (text(condition, "reason"), text(condition, "message"));
        if kind == "Ready" && messages.contains(&message) {
            continue;
        }
        let kind = if status == "True" { kind } else { format!("{kind} is {status}") };
        let reason = if reason.is_empty() || reason == kind { String::new() } else { format!(" ({reason})") };
        let colon = if message.is_empty() { "" } else { ": " };
        lines.push(format!("{kind}{reason}{colon}{message}\n"));
        messages.push(message);
    }
    lines.concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::branch::grow;
    use super::super::branch::tests::{child, root, running};
    use super::*;

    const STYLE: Style = Style { colours: false, unicode: true, header: true, width: None };

    fn tree() -> Node {
        let conditions = json!([
            {"type": "Ready", "status": "False", "reason": "ChildrenNotReady", "message": "members[1]: waits"},
            {"type": "Reconciling", "status": "True", "reason": "ChildrenNotReady", "message": "members[1]: waits"},
            {"type": "Stalled", "status": "False", "reason": "ChildrenNotReady", "message": ""},
            {"type": "EvenSize", "status": "True", "reason": "EvenSize", "message": "two\nmembers"},
            {"type": "Quorum", "status": "Unknown", "reason": "", "message": ""},
        ]);
        let mut web = child("web", None, 2, "web", &running());
        web.kind = "Deployment".into();
        let mut pod = child("x", None, 0, "web-x", &running());
        pod.place = Place::Dependent { owner: "web".into() };
        let mut far = child("far", None, 0, "far", &running());
        far.namespace = Some("other".into());
        let nodes = vec![
            web,
            pod,
            far,
            child("members", Some("0"), 1, "m-0", &running()),
            child("members", Some("1"), 1, "m-1", &json!({"phase": "Pending"})),
        ];
        grow(root(&conditions), nodes)
    }

    #[test]
    fn a_tree_with_what_is_awaited() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let expected = "\
NAME            OBJECT           READY   STATUS        AGE   MESSAGE
web             Web n/web        False   Reconciling   60m
├─ far          Pod other/far    True    Ready         30s
├─ members                       1/2
│  ├─ [0]       Pod m-0          True    Ready         30s
│  └─ [1]       Pod m-1          False   PodPending    30s   it has not started yet
└─ web          Deployment web   True    Ready         30s
   └─ pod       Pod web-x        True    Ready         30s

Reconciling (ChildrenNotReady): members[1]: waits
EvenSize: two members
Quorum is Unknown
";
        let text = text(&tree(), STYLE, now);
        let squeezed = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(squeezed(&text), squeezed(expected), "{text}");
    }

    #[test]
    fn a_terminal_gets_what_it_can_show() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let table = |width: usize| {
            let text = text(&tree(), Style { unicode: false, width: Some(width), ..STYLE }, now);
            assert!(text.is_ascii() && text.contains("`- web"), "{text}");
            text.split("\n\n").next().unwrap_or_default().to_owned()
        };
        let cut = table(68);
        assert!(cut.lines().all(|line| line.len() <= 68), "{cut}");
        assert!(cut.contains("it has no~"), "{cut}");
        assert!(
            table(40).contains("it has not started yet"),
            "wrapped by the terminal, for readiness counts"
        );
        assert!(text(&tree(), Style { colours: true, ..STYLE }, now).contains("\u{1b}[32mReady"));
    }
}
