//! The projected fields of the status: their values, and why one has none that its schema takes. One bad field is left
//! out; the rest of the status does not depend on it.

use operetta_kube_model::schema::apply_defaults;
use serde_json::Value;

use super::model::{Context, Projection};
use crate::crd;
use crate::package::StatusField;
use crate::template::{EvalError, Scope};

impl Projection {
    /// Evaluates the fields of a resource.
    pub(super) fn of(ctx: &Context<'_>, scope: &Scope) -> Self {
        let mut projection = Self::default();
        for field in &ctx.origin.resource.status {
            ctx.budget.about(&format!("status.{}", field.name));
            let value = match value(ctx, field, scope) {
                // Unknown is not empty: the field keeps its value.
                Err(Fault::Unknown) => None,
                Err(Fault::Told(message)) => {
                    projection.faults.push(message);
                    Some(Value::Null)
                }
                Ok(value) => match refusal(field, &value) {
                    Some(message) => {
                        projection.faults.push(message);
                        Some(Value::Null)
                    }
                    None => Some(value),
                },
            };
            projection.fields.push((field.name.clone(), value));
        }
        projection
    }

    /// Leaves out fields that the API server has refused. `removes`: whether their present values are
    /// removed; otherwise they stay.
    pub(super) fn leave_out(&mut self, names: &[String], removes: bool) {
        for (name, value) in &mut self.fields {
            if names.contains(name) {
                *value = removes.then_some(Value::Null);
            }
        }
    }
}

enum Fault {
    Unknown,
    Told(String),
}

/// The value of a field; null if it has none.
fn value(ctx: &Context<'_>, field: &StatusField, scope: &Scope) -> Result<Value, Fault> {
    let told = |error: &dyn std::fmt::Display| Fault::Told(format!("status.{}: {error}", field.name));
    let value = match ctx.origin.package.engine.eval_optional(&field.expr, scope) {
        Ok(Some(value)) => value,
        Ok(None) | Err(EvalError::Undefined(_)) => return Ok(Value::Null),
        Err(EvalError::Unknown { .. }) => return Err(Fault::Unknown),
        Err(error @ EvalError::NotYet(_)) if !error.is_mixed() => return Ok(Value::Null),
        Err(error) => return Err(told(&error)),
    };
    match &field.search {
        Some(search) => search.of(&value, field.one).map_err(|error| told(&error)),
        None => Ok(value),
    }
}

/// Why the schema of a field does not accept a value, if it does not. Parts that the server would drop are no
/// reason.
fn refusal(field: &StatusField, value: &Value) -> Option<String> {
    let schema = field.schema.as_ref().filter(|_| !value.is_null())?;
    let mut stored = value.clone();
    drop_nulls(&mut stored);
    apply_defaults(schema, &mut stored);
    let path = format!("status.{}", field.name);
    let found = crd::validate_part(schema, &stored, &path);
    found
        .into_iter()
        .find(|violation| !violation.is_loss)
        .map(|violation| format!("{} {}", violation.path, violation.message))
}

/// Removes nulls, which a merge patch stores only within lists.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}
