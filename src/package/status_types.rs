//! Projected status fields against the CRD's schema: what can be told when the package is loaded.

use serde_json::Value;

use super::StatusField;
use crate::crd::{self, Lookup};
use crate::diag::Diagnostic;
use crate::template::{Engine, Outcome, Segment, Type};

/// The schema of each field, in the order of the fields; `None` where anything goes.
pub(super) fn schemas(crd: &Value, version: &str, fields: &[StatusField]) -> Vec<Option<Value>> {
    let status = fields.iter().map(|field| field.name.clone()).collect();
    let crd = crd::augment(crd, &crd::Additions { status, ..crd::Additions::default() });
    let schema = crd::schema_of(&crd, version);
    fields
        .iter()
        .map(|field| {
            let path: Vec<&str> = std::iter::once("status").chain(field.name.split('.')).collect();
            match crd::lookup(schema?, &path) {
                Lookup::Known(schema) => Some(schema.clone()),
                Lookup::Unknown { .. } | Lookup::Open => None,
            }
        })
        .collect()
}

/// Values that the schema of their field refuses: written out, or of a type that stands in the expression.
/// `instance`: the schema of the instances.
pub(super) fn check(engine: &Engine, fields: &[StatusField], instance: Option<&Value>) -> Vec<Diagnostic> {
    let type_of = |root: &str, path: &[Segment]| type_of(instance, root, path);
    let mut found = Vec::new();
    for field in fields.iter().filter(|field| field.search.is_none()) {
        let Some(schema) = &field.schema else { continue };
        for (outcome, place) in field.expr.outcomes(engine, &type_of) {
            let path = format!("status.{}", field.name);
            let problem = match &outcome {
                Outcome::Literal(value) => crd::validate_part(schema, value, &path)
                    .into_iter()
                    .find(|violation| !violation.is_loss)
                    .map(|violation| format!("{} {}", violation.path, violation.message)),
                Outcome::Of(kind) => refuses(schema, *kind)
                    .map(|wanted| format!("{path} must be {wanted}, this gives {}", noun(*kind))),
            };
            if let Some(problem) = problem {
                found.push(
                    Diagnostic::error("package::status-type", problem)
                        .located(place)
                        .help("so says the CRD's schema of the status; the field would be left out"),
                );
            }
        }
    }
    found
}

/// What the schema wants instead of a value of that type.
fn refuses(schema: &Value, kind: Type) -> Option<&'static str> {
    if schema["x-kubernetes-int-or-string"] == true {
        return (!matches!(kind, Type::Int | Type::Text)).then_some("an integer or a string");
    }
    let (fits, wanted) = match schema.get("type")?.as_str()? {
        "integer" => (kind == Type::Int, "an integer"),
        "number" => (kind == Type::Int, "a number"),
        "string" => (kind == Type::Text, "a string"),
        "boolean" => (kind == Type::Bool, "a boolean"),
        "array" => (kind == Type::List, "a list"),
        "object" => (kind == Type::Map, "an object"),
        _ => return None,
    };
    (!fits).then_some(wanted)
}

fn noun(kind: Type) -> &'static str {
    match kind {
        Type::Bool => "a boolean",
        Type::Int => "an integer",
        Type::Text => "a string",
        Type::List => "a list",
        Type::Map => "an object",
    }
}

/// The type of what is read of the instance.
fn type_of(instance: Option<&Value>, root: &str, path: &[Segment]) -> Option<Type> {
    if matches!(root, "name" | "namespace") && path.is_empty() {
        return Some(Type::Text);
    }
    if root != "spec" {
        return None;
    }
    let keys = path.iter().map(|segment| match segment {
        Segment::Key(key) => Some(key.as_str()),
        _ => None,
    });
    let keys: Option<Vec<&str>> = std::iter::once(Some("spec")).chain(keys).collect();
    let Lookup::Known(schema) = crd::lookup(instance?, &keys?) else { return None };
    match schema.get("type")?.as_str()? {
        "integer" => Some(Type::Int),
        "string" => Some(Type::Text),
        "boolean" => Some(Type::Bool),
        "array" => Some(Type::List),
        "object" => Some(Type::Map),
        _ => None,
    }
}
