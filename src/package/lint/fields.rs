//! Fields of the spec that nothing in the package reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::columns::Written;
use crate::api::{ApiKind, Gvk};
use crate::crd;
use crate::diag::{Diagnostic, Source, Span};
use crate::expression_sites::Parts;
use crate::locate::place;
use crate::plan::{ChangedPath, Event};
use crate::template::{Engine, ReadPath, Reads, Segment};

/// The fields of specs that the resources of a package read.
#[derive(Default)]
pub(crate) struct SpecReads {
    /// The paths below `spec` that are read, by group and kind.
    read: BTreeMap<(String, String), Vec<Vec<Segment>>>,
    fields: Vec<Field>,
}

/// A field of a spec.
struct Field {
    kind: (String, String),
    path: Vec<String>,
    source: Arc<Source>,
    span: Span,
    /// Whether it contains other fields that are in the list.
    is_parent: bool,
}

impl SpecReads {
    /// Adds the reads of a resource, and the fields of its kind.
    pub(crate) fn add(&mut self, engine: &Engine, parts: &Parts, kind: &ApiKind, written: &Written<'_>) {
        let own = (kind.group.clone(), kind.kind.clone());
        let sites = parts.expression_sites(engine);
        let lets = parts.lets.iter().map(|(_, text)| text.reads());
        for path in sites.iter().map(|site| site.reads).chain(lets).flat_map(|reads: &Reads| &reads.paths) {
            self.path(path, parts, &own);
        }
        let events = parts.plans.iter().flat_map(|plan| &plan.triggers).map(|trigger| &trigger.event);
        for event in events {
            let Event::Changed(paths) = event else { continue };
            for path in paths {
                if let ChangedPath::Spec(names) = path {
                    let below = names.iter().skip(1).cloned().map(Segment::Key).collect();
                    self.read.entry(own.clone()).or_default().push(below);
                }
            }
        }
        if let Some(schema) = crd::schema_of(written.crd, &kind.version) {
            let version = written.crd["spec"]["versions"].as_array().into_iter().flatten();
            let Some(index) = version.map(|version| &version["name"]).position(|name| *name == kind.version)
            else {
                return;
            };
            let others = mentions(written.crd);
            let base = format!("spec.versions[{index}].schema.openAPIV3Schema.properties.spec");
            self.fields_of(&schema["properties"]["spec"], &mut Vec::new(), &base, &own, written, &others);
        }
    }

    fn path(&mut self, path: &ReadPath, parts: &Parts, own: &(String, String)) {
        let key = |gvk: &Gvk| (gvk.group().to_owned(), gvk.kind.to_string());
        let segments = path.segments.as_slice();
        let id = segments.first().and_then(Segment::as_key);
        let kinds: Vec<(String, String)> = match path.root.as_str() {
            "spec" | "previous" => return self.read.entry(own.clone()).or_default().push(segments.to_vec()),
            "instance" => vec![own.clone()],
            "refs" => parts
                .refs
                .iter()
                .filter(|reference| id.is_none_or(|id| reference.id == id))
                .filter_map(|reference| reference.gvk.as_ref().map(key))
                .collect(),
            "children" | "retained" | "self" => {
                let of = |child: &&crate::Child| path.root == "self" || id.is_none_or(|id| child.id == id);
                parts.children.iter().filter(of).flat_map(|child| child.kinds.iter().map(key)).collect()
            }
            _ => return,
        };
        let spec = segments.iter().position(|segment| segment.as_key() == Some("spec"));
        let other = segments.iter().any(|segment| matches!(segment.as_key(), Some("status" | "metadata")));
        let below = match spec {
            Some(at) => segments[at + 1..].to_vec(),
            None if other || path.flag => return,
            None => Vec::new(), // the whole object
        };
        for kind in kinds {
            self.read.entry(kind).or_default().push(below.clone());
        }
    }

    fn fields_of(
        &mut self,
        schema: &Value,
        path: &mut Vec<String>,
        at: &str,
        kind: &(String, String),
        written: &Written<'_>,
        others: &str,
    ) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let is_deprecated =
                field["description"].as_str().is_some_and(|text| text.to_lowercase().contains("deprecated"));
            // The field may exist for a CEL rule, a column or the subresource `scale`.
            if is_deprecated || others.contains(name.as_str()) {
                continue;
            }
            path.push(name.clone());
            let at = format!("{at}.properties.{name}");
            let is_parent = field["properties"].is_object();
            let span = place(written.node, &at);
            let source = Arc::clone(written.source);
            self.fields.push(Field { kind: kind.clone(), path: path.clone(), source, span, is_parent });
            self.fields_of(field, path, &at, kind, written, others);
            path.pop();
        }
    }

    /// Reports the fields that nothing reads. Of nested fields, only the outermost.
    pub(crate) fn unread(&self) -> Vec<Diagnostic> {
        let mut found: Vec<&Field> = Vec::new();
        for field in &self.fields {
            let read = self.read.get(&field.kind).map(Vec::as_slice).unwrap_or_default();
            let meets = |path: &Vec<Segment>| {
                path.iter().zip(&field.path).all(|(step, name)| step.as_key().is_none_or(|key| key == name))
            };
            let is_inside = |outer: &&Field| outer.kind == field.kind && field.path.starts_with(&outer.path);
            if !read.iter().any(meets) && !found.iter().any(is_inside) {
                found.push(field);
            }
        }
        let warning = |field: &Field| {
            let path = field.path.join(".");
            let what = if field.is_parent { "it and the fields in it" } else { "it" };
            let message = format!("nothing reads spec.{path}: an instance that sets it changes nothing");
            Diagnostic::warning("package::unused-field", message).at(&field.source, field.span).help(format!(
                "read spec.{path} in a template or an expression, or remove {what} from the CRD"
            ))
        };
        found.into_iter().map(warning).collect()
    }
}

/// All rules, columns and scale paths of a CRD as one text.
fn mentions(crd: &Value) -> String {
    let mut text = String::new();
    let mut open = vec![crd];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match key.as_str() {
                        "x-kubernetes-validations" | "additionalPrinterColumns" | "subresources" => {
                            text.push_str(&value.to_string());
                        }
                        _ => open.push(value),
                    }
                }
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    text
}
