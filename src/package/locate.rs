//! Finds the place in a template that writes a field, from a path in an error of the API server.
//!
//! Nothing is stored for this: the template is sketched again when an object is refused. The value of an
//! expression is located at the expression, and the value of a partial in the partial's file. In a loop, or
//! where the path leaves the literal parts, the result is the nearest literal parent of the field.

use std::collections::HashSet;
use std::sync::Arc;

use super::template_scan::{Outline, lone_expression};
use crate::diag::{Location, Source, Span};
use crate::template::Engine;
use crate::yaml::{Node, NodeValue};

/// The maximum depth of followed partials.
const MAX_PARTIALS: usize = 8;

/// One step of a path in the API server's notation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FieldSegment {
    /// A field or key: `.image`, `[app.kubernetes.io/name]`.
    Key(String),
    /// A list index: `[0]`.
    Index(usize),
    /// A list item by its keys: `[name="web"]`.
    Item(Vec<(String, String)>),
}

/// The location of a field in the template at `path`. `None` if the template does not write the field, or has no
/// sketch.
pub fn locate(engine: &Engine, path: &str, field: &str) -> Option<Location> {
    let steps = steps(field);
    if steps.is_empty() {
        return None;
    }
    let found = in_template(engine, path, &steps, 0, &mut HashSet::new())?;
    // If only the outermost field was found, the template does not write the field.
    (found.depth > 1 || found.depth == steps.len()).then_some(found.location)
}

/// The position of a path such as `spec.versions[0].name` or `data[a.b]`, or else of its nearest existing
/// parent.
pub fn place(root: &Node, path: &str) -> Span {
    let mut node = root;
    let mut span = Span::new(root.span.start, root.span.start);
    let mut rest = path;
    while !rest.is_empty() {
        let step;
        (step, rest) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']').unwrap_or((inner, "")),
            None => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
        };
        rest = rest.strip_prefix('.').unwrap_or(rest);
        let next = match (step.parse::<usize>(), &node.value) {
            (Ok(index), NodeValue::Seq(items)) => items.get(index).map(|item| (item.span, item)),
            _ => node.entry(step).map(|(key, value)| (key.span, value)),
        };
        let Some((at, value)) = next else { break };
        // Of a list item that is a list or a map, only the start is marked.
        let short = matches!(value.value, NodeValue::Seq(_) | NodeValue::Map(_)) && at == value.span;
        span = if short { Span::new(at.start, at.start) } else { at };
        node = value;
    }
    span
}

struct Found {
    location: Location,
    /// The number of steps that were found.
    depth: usize,
}

/// The partials that were searched, each with the number of remaining steps.
type Searched = HashSet<(String, usize)>;

fn in_template(
    engine: &Engine,
    path: &str,
    steps: &[FieldSegment],
    partials: usize,
    searched: &mut Searched,
) -> Option<Found> {
    let source = engine.template(path)?.source();
    let outline = Outline::of(source)?;
    let root = outline.last();
    let mut locator = Locator { engine, source, partials, searched };
    locator.node(&root, root.span, steps, 0)
}

struct Locator<'a> {
    engine: &'a Engine,
    source: &'a Arc<Source>,
    partials: usize,
    searched: &'a mut Searched,
}

impl Locator<'_> {
    fn written(&self, node: &Node) -> &str {
        self.source.text.get(node.span.start..node.span.end).unwrap_or_default()
    }

    /// Follows the rest of a path below a node, whose location is `at`.
    fn node(&mut self, node: &Node, at: Span, steps: &[FieldSegment], depth: usize) -> Option<Found> {
        let here = Found { location: Location::new(self.source, first_line(self.source, at)), depth };
        let Some((step, rest)) = steps.split_first() else { return Some(here) };
        match (&node.value, step) {
            (NodeValue::Map(_), FieldSegment::Key(_)) => {
                // A key may contain dots, which the path does not escape.
                let mut key = String::new();
                for taken in 1..=steps.len() {
                    let FieldSegment::Key(part) = &steps[taken - 1] else { break };
                    if taken > 1 {
                        key.push('.');
                    }
                    key.push_str(part);
                    if let Some((name, value)) = node.entry(&key) {
                        return self.node(value, name.span, &steps[taken..], depth + taken);
                    }
                }
                Some(self.merged(node, steps, depth).unwrap_or(here))
            }
            (NodeValue::Seq(items), _) => {
                let item = self.item(node, items, step);
                match item {
                    Some(item) => self.node(item, item.span, rest, depth + 1),
                    None => Some(here),
                }
            }
            (NodeValue::String(_), _) => Some(self.partial(node, steps, depth).unwrap_or(here)),
            _ => Some(here),
        }
    }

    /// The list item that a step selects.
    fn item<'n>(&self, list: &Node, items: &'n [Node], step: &FieldSegment) -> Option<&'n Node> {
        let is_loop = self.written(list).contains("{%");
        match step {
            FieldSegment::Index(_) if is_loop && items.len() == 1 => items.first(),
            FieldSegment::Index(_) if is_loop => None,
            FieldSegment::Index(index) => items.get(*index),
            FieldSegment::Item(keys) => {
                let has = |item: &&Node, computed: bool| {
                    keys.iter().all(|(key, wanted)| match item.get(key) {
                        Some(value) if self.written(value).contains("{{") => computed,
                        Some(value) => self.written(value).trim_matches(['"', '\'']) == wanted,
                        // The server may have set the key, such as the protocol of a port.
                        None => true,
                    })
                };
                let exact = items.iter().find(|item| has(item, false));
                exact.or_else(|| items.iter().find(|item| has(item, true)))
            }
            FieldSegment::Key(_) => None,
        }
    }

    /// Follows the path in a map that `<<` merges.
    fn merged(&mut self, node: &Node, steps: &[FieldSegment], depth: usize) -> Option<Found> {
        let merges = node.as_map()?.iter().filter(|(key, _)| key.is_merge_key());
        let mut nearest = None;
        for (key, value) in merges {
            let maps = value.as_seq().unwrap_or(std::slice::from_ref(value));
            for map in maps {
                let found = match &map.value {
                    NodeValue::Map(_) => self.node(map, key.span, steps, depth),
                    _ => self.partial(map, steps, depth),
                };
                if let Some(found) = found.filter(|found| found.depth > depth) {
                    return Some(found);
                }
                let location = Location::new(self.source, key.span);
                nearest = nearest.or(Some(Found { location, depth }));
            }
        }
        nearest
    }

    /// Follows the path in the partial that a scalar inserts.
    fn partial(&mut self, node: &Node, steps: &[FieldSegment], depth: usize) -> Option<Found> {
        let call = lone_expression(self.written(node).trim())?.strip_prefix("partial(")?.trim_start();
        let quote = call.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let name = call[1..].split(quote).next()?;
        let path = if name.starts_with("templates/") { name.to_owned() } else { format!("templates/{name}") };
        // A partial that did not write the field does not write it the second time.
        if self.partials >= MAX_PARTIALS || !self.searched.insert((path.clone(), steps.len())) {
            return None;
        }
        let found = in_template(self.engine, &path, steps, self.partials + 1, self.searched)?;
        (found.depth > 0).then_some(Found { depth: found.depth + depth, ..found })
    }
}

/// The part of a range on its first line.
fn first_line(source: &Source, span: Span) -> Span {
    let text = source.text.get(span.start..span.end).unwrap_or_default();
    Span::new(span.start, text.find('\n').map_or(span.end, |at| span.start + at))
}

/// Parses `spec.containers[0].image`, `data[a.b]`, `.spec.containers[name="web"].image` into steps.
fn steps(field: &str) -> Vec<FieldSegment> {
    let mut steps = Vec::new();
    let mut rest = field.trim().trim_start_matches('.');
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (step, after) = inner.split_once(']').unwrap_or((inner, ""));
            steps.push(bracket(step));
            rest = after.trim_start_matches('.');
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(FieldSegment::Key(rest[..end].to_owned()));
            rest = rest[end..].strip_prefix('.').unwrap_or(&rest[end..]);
        }
    }
    steps
}

fn bracket(text: &str) -> FieldSegment {
    if let Ok(index) = text.parse() {
        return FieldSegment::Index(index);
    }
    if !text.contains('=') {
        return FieldSegment::Key(text.trim_matches('"').to_owned());
    }
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    FieldSegment::Item(
        pairs.map(|(key, value)| (key.to_owned(), value.trim_matches('"').to_owned())).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Limits;

    const WEB: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ name }}
  labels:
    <<: {{ partial(\"labels.yaml\") }}
    app.kubernetes.io/name: {{ name }}
spec:
  {% if spec.size %}
  replicas: {{ spec.size }}
  {% endif %}
  template:
    spec:
      containers:
        - name: web
          image: {{ spec.image }}
          resources: {{ spec.resources }}
        - {name: side, image: x}
      volumes:
        {% for v in spec.volumes %}
        - name: {{ v }}
          emptyDir: {}
        {% endfor %}
";
    const LABELS: &str = "tier: web\nteam: {{ spec.team }}\n";

    #[test]
    fn fields_are_located_in_the_template() {
        let files = [("web", WEB), ("labels", LABELS)].map(|(name, text)| {
            let path = format!("templates/{name}.yaml");
            (path.clone(), Source::new(path, text))
        });
        let (engine, errors) = Engine::compile(&files, Limits::default());
        assert_eq!(errors, []);
        for (field, wanted) in [
            ("spec.replicas", Some("web.yaml:10:3")),
            ("spec.template.spec.containers[0].image", Some("web.yaml:16:11")),
            ("spec.template.spec.containers[1].image", Some("web.yaml:18:24")),
            (".spec.template.spec.containers[name=\"side\"].image", Some("web.yaml:18:24")),
            ("spec.template.spec.containers[0].resources.limits[cpu]", Some("web.yaml:17:11")),
            ("spec.template.spec.volumes[3].name", Some("web.yaml:19:7")),
            ("spec.template.spec.initContainers[0].image", Some("web.yaml:13:5")),
            ("metadata.labels[app.kubernetes.io/name]", Some("web.yaml:7:5")),
            ("metadata.labels.app.kubernetes.io/name", Some("web.yaml:7:5")),
            ("metadata.labels[team]", Some("labels.yaml:2:1")),
            ("metadata.labels", Some("web.yaml:5:3")),
            ("metadata.ownerReferences[0].uid", None),
            ("status.x", None),
            ("", None),
            ("[[", None),
        ] {
            let found = locate(&engine, "templates/web.yaml", field).map(|location| location.to_string());
            assert_eq!(found, wanted.map(|at| format!("templates/{at}")), "{field}");
        }
        assert_eq!(locate(&engine, "templates/none.yaml", "spec"), None);
    }

    #[test]
    fn partial_that_merges_itself_is_searched_once() {
        let text = format!("<<: [{}]\n", "{{ partial('x.yaml') }}, ".repeat(50));
        let file = ("templates/x.yaml".to_owned(), Source::new("templates/x.yaml", text));
        let (engine, _) = Engine::compile(&[file], Limits::default());
        let found = locate(&engine, "templates/x.yaml", "a.b").map(|location| location.to_string());
        assert_eq!(found, None);
    }
}
