//! Checks projected status fields against the CRD's schema when the package is loaded.

use serde_json::Value;

use super::StatusField;
use crate::crd::{self, Lookup};
use crate::diag::Diagnostic;
use crate::template::{Engine, Infer, Lets};
use operetta_lang::schema::{Basic, Kubernetes, Schema, Shape, Type};

/// The schemas of the fields, in the same order; `None` if any value is allowed.
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

/// Reports status fields whose schema refuses the type of their value, as far as it is known. `instance`: the
/// schema of the instances.
pub(super) fn check(
    engine: &Engine,
    lets: &Lets,
    fields: &[StatusField],
    instance: Option<&Value>,
) -> Vec<Diagnostic> {
    // The schema of a CRD contains no references.
    let kubernetes = Kubernetes::none();
    let mut infer = Infer::new(engine, lets, "");
    for name in ["name", "namespace"] {
        infer.set(name, Type::string());
    }
    let schema = instance.map(|instance| Schema::of_object(instance, &kubernetes));
    if let Some(operetta_lang::schema::Lookup::Known(spec)) = schema.map(|schema| schema.field("spec")) {
        infer.set("spec", Type::of_schema(spec));
    }
    let mut found = Vec::new();
    for field in fields.iter().filter(|field| field.search.is_none()) {
        let Some(schema) = &field.schema else { continue };
        infer.refuel();
        for (ty, place) in infer.alternatives(&field.expr) {
            if let Some(problem) = refusal(&ty, schema, &format!("status.{}", field.name), &kubernetes) {
                found.push(
                    Diagnostic::error("package::status-type", problem)
                        .located(place)
                        .help("the CRD's schema of the status requires it; the field would be omitted"),
                );
            }
        }
    }
    found
}

/// The reason why the schema of a field refuses every value of a type. Null and `omit` omit the field.
fn refusal(ty: &Type<'_>, schema: &Value, path: &str, kubernetes: &Kubernetes) -> Option<String> {
    let got = ty.basic.value();
    if got.is_none() {
        return None;
    }
    if let Some(value) = literal(ty) {
        let violations = crd::validate_part(schema, &value, path);
        let violation = violations.into_iter().find(|violation| !violation.is_loss)?;
        return Some(format!("{} {}", violation.path, violation.message));
    }
    let wanted = Schema::new(schema, kubernetes).basic();
    let mut accepted = wanted;
    if wanted.contains(Basic::STRING) {
        accepted = accepted | Basic::QUANTITY | Basic::VERSION;
    }
    if wanted.contains(Basic::INT) {
        // The float may be a whole number.
        accepted = accepted | Basic::FLOAT;
    }
    let wanted = wanted.value().shown();
    got.misses(accepted).then(|| format!("{path} must be {wanted}, this gives {}", got.shown()))
}

/// The value of a type that has only one value.
fn literal(ty: &Type<'_>) -> Option<Value> {
    match &ty.shape {
        Shape::Literal(value) => Some((**value).clone()),
        Shape::List(items) => items.iter().map(literal).collect::<Option<Vec<_>>>().map(Value::Array),
        Shape::Map(fields) if !fields.is_open => {
            let entries = fields.entries.iter().map(|f| Some((f.key.clone(), literal(&f.value)?)));
            entries.collect::<Option<_>>().map(Value::Object)
        }
        _ => None,
    }
}
