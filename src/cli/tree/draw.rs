//! Formats the tree as text. No I/O.

use k8s_openapi::jiff::Timestamp;

use crate::age::age;
use crate::cli::model::{Node, Object, State};
use crate::cli::out::printable;
use crate::cli::show::{Branch, Cell, Line, Severity, Terminal, with_messages};

/// The columns of the table; messages are in the last one.
const HEADER: [&str; 6] = ["NAME", "OBJECT", "READY", "STATUS", "AGE", "MESSAGE"];

/// The tree, and below it the conditions of the instance.
pub(super) fn text(root: &Node, has_header: bool, terminal: Terminal, now: Timestamp) -> String {
    let drawing = Drawing { home: root.object.namespace.as_deref(), now };
    // The conditions are below the table, in full.
    let message = if root.conditions.is_empty() { root.sentence() } else { String::new() };
    let line = drawing.line(root, &root.object.name, object(root, None), message);
    let tree = Branch { line, below: drawing.below(root) };
    let header = has_header.then(|| HEADER.map(Cell::plain).to_vec());
    let lines: Vec<Line> = header.into_iter().chain(tree.lines(terminal)).collect();
    let mut text = with_messages(&lines, HEADER.len() - 1, terminal);
    let conditions = conditions(root);
    if !conditions.is_empty() {
        text.push('\n');
        text.push_str(&conditions);
    }
    text
}

struct Drawing<'a> {
    /// The namespace of the instance, which is not repeated.
    home: Option<&'a str>,
    now: Timestamp,
}

impl Drawing<'_> {
    fn line(&self, node: &Node, name: &str, object: String, message: String) -> Line {
        let status = &node.object.status;
        let severity = status.state.severity();
        let text = match status.state {
            State::NotReady | State::Failed if !status.reason.is_empty() => &status.reason,
            state => state.text(),
        };
        vec![
            Cell::text(name),
            Cell::new(object, Severity::Dim),
            Cell::new(&status.ready, severity),
            Cell::new(text, severity),
            Cell::text(age(self.now, node.object.created.as_deref())),
            Cell::text(message),
        ]
    }

    fn branch(&self, node: &Node, name: &str) -> Branch {
        let line = self.line(node, name, object(node, self.home), node.sentence());
        Branch { line, below: self.below(node) }
    }

    /// What is below a node: children by id, the members of a forEach below their id, then dependents.
    fn below(&self, node: &Node) -> Vec<Branch> {
        let mut branches = Vec::new();
        for members in node.children.chunk_by(|a, b| a.position.id() == b.position.id()) {
            let id = members[0].position.id();
            if let ([only], None) = (members, members[0].position.key()) {
                branches.push(self.branch(only, id));
                continue;
            }
            let ready = members.iter().filter(|member| member.object.is_ready()).count();
            let severity = if ready == members.len() { Severity::Good } else { Severity::Busy };
            let count = Cell::new(format!("{ready}/{}", members.len()), severity);
            let member = |member: &Node| match member.position.key() {
                Some(key) => self.branch(member, &format!("[{key}]")),
                None => self.branch(member, id),
            };
            let below = members.iter().map(member).collect();
            branches.push(Branch { line: vec![Cell::text(id), Cell::default(), count], below });
        }
        let owned = node.dependents.iter();
        branches.extend(owned.map(|owned| self.branch(owned, &owned.object.kind.to_lowercase())));
        branches
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

    use super::*;
    use crate::cli::model::node_tests::{child, root, running};
    use crate::cli::model::{NodePosition, grow};

    const TERMINAL: Terminal = Terminal { colours: false, unicode: true, width: None };

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
NAME         OBJECT           READY   STATUS        AGE   MESSAGE
web          Web n/web        False   Reconciling   60m
├─ far       Pod other/far    True    Ready         30s
├─ members                    1/2
│  ├─ [0]    Pod m-0          True    Ready         30s
│  └─ [1]    Pod m-1          False   PodPending    30s   it has not started yet
└─ web       Deployment web   True    Ready         30s
   └─ pod    Pod web-x        True    Ready         30s

Reconciling (ChildrenNotReady): members[1]: waits
EvenSize: two members
Quorum is Unknown
";
        assert_eq!(text(&tree(), true, TERMINAL, now), expected);
    }

    #[test]
    fn long_messages_are_wrapped_between_words() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let table = |width: usize| {
            let text = text(&tree(), true, Terminal { unicode: false, width: Some(width), ..TERMINAL }, now);
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
        assert!(text(&tree(), true, Terminal { colours: true, ..TERMINAL }, now).contains("\u{1b}[32mReady"));
    }
}
