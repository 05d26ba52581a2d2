//! Policies with their expressions compiled.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kube_cel::cel::Value as Cel;
use operetta_kube_model::Fault;
use operetta_kube_model::cel::{Environment, PLAIN, Program, Scope, Type, variable};
use operetta_kube_model::facts::items;
use serde_json::{Value, json};

/// A policy.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) spec: Value,
    pub(crate) ignores_failures: bool,
    pub(crate) variables: BTreeMap<String, Program>,
    pub(crate) conditions: Vec<(String, Compiled)>,
    pub(crate) validations: Vec<Validation>,
}

/// An expression, or why it cannot be compiled.
type Compiled = Result<Program, String>;

#[derive(Debug)]
pub(crate) struct Validation {
    pub(crate) text: String,
    pub(crate) expression: Compiled,
    /// The message if there is no expression for it, or it fails.
    pub(crate) message: String,
    pub(crate) message_expression: Option<Compiled>,
    pub(crate) reason: String,
}

/// Whether a condition holds.
pub(crate) fn truth(condition: &Compiled, scope: &Scope<'_>) -> Result<bool, String> {
    match condition {
        Err(why) => Err(why.clone()),
        Ok(program) => match program.evaluate(scope)? {
            Cel::Bool(holds) => Ok(holds),
            _ => Err("must evaluate to bool".to_owned()),
        },
    }
}

/// The type of the variable `request`.
fn request() -> Type {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| {
        let text = json!({"type": "string"});
        let of = |names: &[&str]| {
            let fields = names.iter().map(|name| ((*name).to_owned(), text.clone()));
            json!({"type": "object", PLAIN: true, "properties": fields.collect::<serde_json::Map<_, _>>()})
        };
        let kind = of(&["group", "version", "kind"]);
        let resource = of(&["group", "version", "resource"]);
        let mut user = of(&["username", "uid"]);
        let texts = json!({"type": "array", "items": text});
        user["properties"]["groups"] = texts.clone();
        user["properties"]["extra"] = json!({"type": "object", "additionalProperties": texts});
        let mut all = of(&["subResource", "requestSubResource", "name", "namespace", "operation"]);
        for (name, schema) in [
            ("kind", kind.clone()),
            ("requestKind", kind),
            ("resource", resource.clone()),
            ("requestResource", resource),
            ("userInfo", user),
            ("dryRun", json!({"type": "boolean"})),
            ("options", json!({})),
        ] {
            all["properties"][name] = schema;
        }
        all
    });
    Type::of(schema, false)
}

fn environment(spec: &Value) -> Environment<'static> {
    let mut environment = Environment::default().with("request", request());
    for name in ["object", "oldObject", "namespaceObject"] {
        environment = environment.with(name, Type::Dyn);
    }
    for name in ["authorizer", "authorizer.requestResource"] {
        environment = environment.with(name, Type::Other);
    }
    if spec["paramKind"].is_object() { environment.with("params", Type::Dyn) } else { environment }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// An expression that is a condition.
fn condition(expression: &str, environment: &Environment<'_>) -> Compiled {
    match Program::compile(expression, environment)? {
        (program, Type::Bool | Type::Dyn) => Ok(program),
        (_, other) => Err(format!("must evaluate to bool but got {}", other.name())),
    }
}

impl Policy {
    pub(crate) fn compile(name: &str, spec: &Value) -> Self {
        let plain = environment(spec);
        let (environment, variables, _) = variables(spec, plain.clone());
        let conditions = items(&spec["matchConditions"])
            .iter()
            .map(|found| (text(found, "name").to_owned(), condition(text(found, "expression"), &plain)));
        let validations = items(&spec["validations"]).iter().map(|found| {
            let expression = text(found, "expression").trim().to_owned();
            let message = text(found, "message").trim();
            let made = Some(text(found, "messageExpression")).filter(|text| !text.is_empty());
            Validation {
                expression: condition(&expression, &environment),
                message: if message.is_empty() {
                    format!("failed expression: {expression}")
                } else {
                    message.to_owned()
                },
                message_expression: made.map(|text| {
                    Program::compile(text, &environment).map(|(program, _)| program).map_err(String::from)
                }),
                reason: text(found, "reason").to_owned(),
                text: expression,
            }
        });
        Self {
            name: name.to_owned(),
            spec: spec.clone(),
            ignores_failures: spec["failurePolicy"] == "Ignore",
            conditions: conditions.collect(),
            validations: validations.collect(),
            variables,
        }
    }
}

type Variables = (Environment<'static>, BTreeMap<String, Program>, Vec<Fault>);

/// Compiles the variables, each of which may read those before it.
fn variables(spec: &Value, mut environment: Environment<'static>) -> Variables {
    let (mut programs, mut faults) = (BTreeMap::new(), Vec::new());
    for (at, found) in items(&spec["variables"]).iter().enumerate() {
        let (name, expression) = (text(found, "name"), text(found, "expression"));
        let known = match Program::compile(expression, &environment) {
            Ok((program, known)) => {
                programs.insert(variable(name), program);
                known
            }
            Err(why) => {
                faults.push(Fault::invalid(format!("spec.variables[{at}].expression"), expression, why));
                Type::Dyn
            }
        };
        environment = environment.with(variable(name), known);
    }
    (environment, programs, faults)
}

/// Checks the expressions of a policy.
pub(crate) fn faults(spec: &Value) -> Vec<Fault> {
    let plain = environment(spec);
    let (environment, _, mut faults) = variables(spec, plain.clone());
    for (at, found) in items(&spec["matchConditions"]).iter().enumerate() {
        let expression = text(found, "expression");
        if let Err(why) = condition(expression, &plain) {
            faults.push(Fault::invalid(format!("spec.matchConditions[{at}].expression"), expression, why));
        }
    }
    for (at, found) in items(&spec["validations"]).iter().enumerate() {
        let expression = text(found, "expression");
        if expression.trim().is_empty() {
            faults.push(Fault::required(
                format!("spec.validations[{at}].expression"),
                "expression is not specified",
            ));
        } else if let Err(why) = condition(expression, &environment) {
            faults.push(Fault::invalid(format!("spec.validations[{at}].expression"), expression, why));
        }
        let message = text(found, "messageExpression");
        let why = match Program::compile(message, &environment) {
            _ if message.is_empty() => continue,
            Ok((_, Type::String | Type::Dyn)) => continue,
            Ok((_, other)) => format!("must evaluate to string but got {}", other.name()),
            Err(error) => error.into(),
        };
        faults.push(Fault::invalid(format!("spec.validations[{at}].messageExpression"), message, why));
    }
    faults
}
