//! Formats the tree as text. No I/O.

use k8s_openapi::jiff::Timestamp;

use super::branch::{Node, NodePosition};
use crate::cli::columns::{Branches, Cell, Columns, Severity, age, wrapped};
use crate::cli::model::{Object, State};
use crate::cli::out::printable;

/// The capabilities of the terminal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub colours: bool,
    /// Use box-drawing characters; otherwise ASCII.
    pub unicode: bool,
    pub header: bool,
    /// Columns of the terminal; longer messages take several lines.
    pub width: Option<usize>,
}

/// The column of messages.
const MESSAGE: usize = 5;

/// The tree, and below it the conditions of the instance.
pub(super) fn text(root: &Node, style: Style, now: Timestamp) -> String {
    let mut drawing = Drawing {
        lines: Vec::new(),
        symbols: Branches::of(style.unicode),
        home: root.object.namespace.as_deref(),
        now,
    };
    if style.header {
        drawing.lines.push(["NAME", "OBJECT", "READY", "STATUS", "AGE", "MESSAGE"].map(Cell::plain).to_vec());
    }
    let object = object(root, None);
    // The conditions are below the table, in full.
    let message = if root.conditions.is_empty() { root.sentence() } else { String::new() };
    let cells = drawing.cells(root, root.object.name.clone(), object, message);
    drawing.lines.push(cells);
    drawing.below(root, "");
    let columns = Columns::fit(drawing.lines.iter().map(Vec::as_slice), style.colours);
    // If the terminal is too narrow for the other columns, lines wrap: readiness must not be cut off.
    let width = style.width.filter(|width| columns.start(MESSAGE) < *width);
    let mut text = String::new();
    for cells in &drawing.lines {
        let message = cells.get(MESSAGE).map_or("", |cell| &cell.text);
        let room = width.map_or(usize::MAX, |width| width - columns.start(MESSAGE));
        let mut messages = wrapped(message, room).into_iter();
        let mut cells = cells.clone();
        if let (Some(cell), Some(first)) = (cells.get_mut(MESSAGE), messages.next()) {
            cell.text = first;
        }
        text.push_str(&columns.line(&cells));
        text.push('\n');
        let branches = cells.first().map(|name| below_name(&name.text)).unwrap_or_default();
        for more in messages {
            let blank =
                [Cell::plain(&branches), Cell::default(), Cell::default(), Cell::default(), Cell::default()];
            let cells: Vec<Cell> = blank.into_iter().chain([Cell::plain(more)]).collect();
            text.push_str(&columns.line(&cells));
            text.push('\n');
        }
    }
    let conditions = conditions(root);
    if !conditions.is_empty() {
        text.push('\n');
        text.push_str(&conditions);
    }
    text
}

/// The branches that go on below the line of a name.
fn below_name(name: &str) -> String {
    let below = |c: char| match c {
        '│' | '├' => '│',
        '|' => '|',
        _ => ' ',
    };
    name.chars().map(below).collect()
}

struct Drawing<'a> {
    lines: Vec<Vec<Cell>>,
    symbols: &'static Branches,
    /// The namespace of the instance, which is not repeated.
    home: Option<&'a str>,
    now: Timestamp,
}

impl Drawing<'_> {
    fn cells(&self, node: &Node, name: String, object: String, message: String) -> Vec<Cell> {
        let status = &node.object.status;
        let severity = status.state.severity();
        let text = match status.state {
            State::NotReady | State::Failed if !status.reason.is_empty() => &status.reason,
            state => state.text(),
        };
        vec![
            Cell::new(name, Severity::Plain),
            Cell::new(object, Severity::Dim),
            Cell::new(&status.ready, severity),
            Cell::new(text, severity),
            Cell::new(age(self.now, node.object.created.as_deref()), Severity::Plain),
            Cell::new(message, Severity::Plain),
        ]
    }

    /// Adds the lines below a node: children by id, the members of a forEach below their id, then dependents.
    fn below(&mut self, node: &Node, indent: &str) {
        let mut groups: Vec<(&str, Vec<&Node>)> = Vec::new();
        for child in &node.children {
            let NodePosition::Child { id, .. } = &child.position else { continue };
            match groups.last_mut() {
                Some((last, members)) if last == id => members.push(child),
                _ => groups.push((id, vec![child])),
            }
        }
        let count = groups.len() + node.dependents.len();
        for (index, (id, members)) in groups.into_iter().enumerate() {
            let last = index + 1 == count;
            let keyed = |node: &&Node| matches!(&node.position, NodePosition::Child { key: Some(_), .. });
            if let ([only], false) = (&members[..], members.iter().any(keyed)) {
                self.branch(only, id, indent, last);
                continue;
            }
            let ready = members.iter().filter(|member| member.object.is_ready()).count();
            let severity = if ready == members.len() { Severity::Good } else { Severity::Busy };
            let symbol = if last { self.symbols.elbow } else { self.symbols.tee };
            self.lines.push(vec![
                Cell::new(format!("{indent}{symbol}{id}"), Severity::Plain),
                Cell::default(),
                Cell::new(format!("{ready}/{}", members.len()), severity),
            ]);
            let inner = self.deeper(indent, last);
            for (number, member) in members.iter().enumerate() {
                let name = match &member.position {
                    NodePosition::Child { key: Some(key), .. } => format!("[{key}]"),
                    _ => id.to_owned(),
                };
                self.branch(member, &name, &inner, number + 1 == members.len());
            }
        }
        let owned = node.dependents.len();
        for (number, dependent) in node.dependents.iter().enumerate() {
            self.branch(dependent, &dependent.object.kind.to_lowercase(), indent, number + 1 == owned);
        }
    }

    fn branch(&mut self, node: &Node, name: &str, indent: &str, last: bool) {
        let symbol = if last { self.symbols.elbow } else { self.symbols.tee };
        let object = object(node, self.home);
        let cells = self.cells(node, format!("{indent}{symbol}{name}"), object, node.sentence());
        self.lines.push(cells);
        let inner = self.deeper(indent, last);
        self.below(node, &inner);
    }

    fn deeper(&self, indent: &str, last: bool) -> String {
        format!("{indent}{}", if last { "   " } else { self.symbols.through })
    }
}

/// Kind and name of an object, with its namespace unless it is that of the instance.
fn object(node: &Node, home: Option<&str>) -> String {
    let Object { kind, namespace, name, .. } = &node.object;
    match namespace.as_deref().filter(|namespace| home != Some(namespace)) {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// The conditions that are true, and Ready if it is not.
fn conditions(root: &Node) -> String {
    let text =
        |condition: &serde_json::Value, key: &str| printable(condition[key].as_str().unwrap_or_default());
    let mut lines: Vec<String> = Vec::new();
    let mut messages: Vec<String> = Vec::new();
    // Ready usually has the same message as Reconciling or Stalled.
    let (ready, others): (Vec<_>, Vec<_>) = root.conditions.iter().partition(|c| c["type"] == "Ready");
    let active = others.into_iter().filter(|c| c["status"] != "False");
    for condition in active.chain(ready.into_iter().filter(|c| c["status"] != "True")) {
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
        web.object.kind = "Deployment".into();
        let mut pod = child("x", None, 0, "web-x", &running());
        pod.position = NodePosition::Dependent { owner: "web".into() };
        let mut far = child("far", None, 0, "far", &running());
        far.object.namespace = Some("other".into());
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
    fn the_tree_and_the_active_conditions_are_shown() {
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
    fn long_messages_are_wrapped_between_words() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let table = |width: usize| {
            let text = text(&tree(), Style { unicode: false, width: Some(width), ..STYLE }, now);
            assert!(text.is_ascii() && text.contains("`- web"), "{text}");
            text.split("\n\n").next().unwrap_or_default().to_owned()
        };
        let broken = table(68);
        assert!(broken.lines().all(|line| line.len() <= 68), "{broken}");
        let from = broken.lines().position(|line| line.ends_with("it has not")).unwrap();
        let more: Vec<_> = broken.lines().skip(from + 1).take(2).collect();
        let words: Vec<Vec<&str>> = more.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words, [["|", "started"], ["|", "yet"]], "{broken}");
        assert!(
            table(40).contains("it has not started yet"),
            "wrapped by the terminal, so that readiness stays visible"
        );
        assert!(text(&tree(), Style { colours: true, ..STYLE }, now).contains("\u{1b}[32mReady"));
    }
}
