//! The CEL rules of a CRD that an API server refuses: what is wrong with them, and what to do.
//!
//! Whatever may be newer than the compiler is accepted: functions and macros are left to the API server.

use operetta_kube_model::cel::{Problem, Type};
use operetta_kube_model::crd::compile_rules;
use operetta_kube_model::schema::Notation;
use serde_json::Value;

use super::structure::Finding;
use crate::diag::did_you_mean;

/// The rules of a CRD that are refused.
pub fn problems(crd: &Value) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, version) in super::versions(crd).enumerate() {
        let Some(schema) = version.pointer("/schema/openAPIV3Schema") else { continue };
        let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
        for refusal in compile_rules(schema, &path, Notation::Quoted).1 {
            let at = refusal.fault.path.clone();
            match refusal.problem {
                None => {
                    let message = format!("the CEL rule is refused: {}", refusal.fault.detail());
                    found.push((at, message, None));
                }
                Some(problem) => found.extend(explain(&problem).map(|(message, help)| {
                    (at, format!("the CEL rule does not compile: {message}"), Some(help))
                })),
            }
        }
    }
    found
}

/// What is wrong with an expression, and what to do. `None` if another server may accept it.
fn explain(problem: &Problem) -> Option<(String, String)> {
    Some(match problem {
        Problem::Syntax(why, help) => (why.clone(), help.clone()),
        Problem::NoVariable(name) => {
            let near = did_you_mean(name, ["self", "oldSelf"]).filter(|_| name.len() > 2)?;
            (format!("there is no variable `{name}`"), format!("did you mean `{near}`?"))
        }
        Problem::NoField(of, name, known) => {
            let help = match did_you_mean(name, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None if known.is_empty() => "the value has no fields".to_owned(),
                None => format!("there is {}", known.join(", ")),
            };
            (format!("the schema has no field {of}.{name}"), help)
        }
        Problem::NoFields(of, name, _) => {
            (format!("the schema has no field {of}.{name}"), "the value has no fields".to_owned())
        }
        Problem::NoOverload(function, args) => {
            let are_numbers = args.iter().all(|arg| matches!(arg, Type::Int | Type::Double));
            let nouns: Vec<&str> =
                args.iter().map(|arg| if are_numbers { arg.name() } else { noun(arg) }).collect();
            let operator = function.trim_matches('_');
            let message = match &nouns[..] {
                [left, right] if matches!(operator, "==" | "!=" | "<" | "<=" | ">" | ">=") => {
                    format!("`{operator}` does not compare {left} with {right}")
                }
                _ => format!("`{operator}` does not take {}", nouns.join(" and ")),
            };
            let convert =
                if are_numbers { "`double(x)` converts" } else { "`int(x)` and `string(x)` convert" };
            (message, format!("compare values of one type; {convert}"))
        }
        Problem::NoFunction(_) | Problem::Other(_) => return None,
    })
}

fn noun(of: &Type) -> &'static str {
    match of {
        Type::Int | Type::Double => "a number",
        Type::String => "a string",
        Type::Bool => "a boolean",
        Type::List(_) => "a list",
        Type::Map(_) | Type::Object(_) => "a map",
        Type::Dyn | Type::Other => "a value",
    }
}

#[cfg(test)]
mod tests;
