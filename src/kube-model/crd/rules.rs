//! `x-kubernetes-validations`: rules in CEL, compiled when a CRD is written and evaluated when its objects are.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::OptionalValue;
use serde_json::Value;

use crate::Fault;
use crate::cel::{Environment, Problem, Program, Scope, Type, typed};
use crate::schema::{Counterparts, Notation, Path, below, join};

/// The longest message that an expression may make.
const MAX_MESSAGE: usize = 5 << 10;

/// The rules of a schema and of what is below it.
#[derive(Debug, Default)]
pub struct Rules {
    own: Vec<Rule>,
    properties: BTreeMap<String, Rules>,
    additional: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
}

#[derive(Debug)]
struct Rule {
    program: Program,
    /// Only an update can break it.
    reads_old: bool,
    old_is_optional: bool,
    message: Option<Program>,
    /// The message without `messageExpression`, and the rule as errors name it.
    default_message: String,
    shown: String,
    reason: String,
    /// The path below the object to which the rule belongs.
    path: String,
}

/// Why a rule is refused.
#[derive(Debug)]
pub struct Refusal {
    /// The cause with which the API server refuses the CRD.
    pub fault: Fault,
    /// What is wrong with the expression, if it is not compiled.
    pub problem: Option<Problem>,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self { fault, problem: None }
    }
}

/// Compiles the rules of a schema, whose path in the CRD is `path`.
pub fn compile_rules(schema: &Value, path: &str, notation: Notation) -> (Option<Rules>, Vec<Refusal>) {
    let mut compiler = Compiler { notation, refused: Vec::new() };
    let rules = compiler.level(schema, path, true, None);
    (rules, compiler.refused)
}

struct Compiler {
    notation: Notation,
    refused: Vec<Refusal>,
}

impl Compiler {
    /// `uncorrelated` is the schema above it whose items or fields have no counterpart in the old object.
    fn level(
        &mut self,
        schema: &Value,
        path: &str,
        is_root: bool,
        uncorrelated: Option<&str>,
    ) -> Option<Rules> {
        let mut rules = Rules::default();
        let is_atomic = schema["x-kubernetes-map-type"] == "atomic";
        let within = uncorrelated.or_else(|| is_atomic.then_some(path));
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = match self.notation {
                Notation::Quoted => join(&format!("{path}.properties"), name),
                _ => format!("{path}.properties[{name}]"),
            };
            if let Some(found) = self.level(below, &path, false, within) {
                rules.properties.insert(name.clone(), found);
            }
        }
        if schema["additionalProperties"].is_object() {
            let path = format!("{path}.additionalProperties");
            rules.additional =
                self.level(&schema["additionalProperties"], &path, false, uncorrelated).map(Box::new);
        }
        if schema["items"].is_object() {
            let is_map = schema["x-kubernetes-list-type"] == "map";
            let uncorrelated = uncorrelated.or_else(|| (!is_map).then_some(path));
            let path = format!("{path}.items");
            rules.items = self.level(&schema["items"], &path, false, uncorrelated).map(Box::new);
        }
        let given = schema["x-kubernetes-validations"].as_array().map(Vec::as_slice).unwrap_or_default();
        // All rules of a schema share its type, which may be large.
        let own = if given.is_empty() { Type::Dyn } else { Type::of(schema, is_root) };
        for (at, rule) in given.iter().enumerate() {
            let path = format!("{path}.x-kubernetes-validations[{at}]");
            rules.own.extend(self.one(schema, rule, &path, own.clone(), uncorrelated));
        }
        let is_empty = rules.own.is_empty() && rules.properties.is_empty();
        (!is_empty || rules.additional.is_some() || rules.items.is_some()).then_some(rules)
    }

    fn one(
        &mut self,
        schema: &Value,
        rule: &Value,
        path: &str,
        own: Type,
        uncorrelated: Option<&str>,
    ) -> Option<Rule> {
        let text = |field: &str| rule[field].as_str().unwrap_or_default();
        let before = self.refused.len();
        self.refused.extend(check(schema, rule, path).into_iter().map(Refusal::from));
        let old_is_optional = rule["optionalOldSelf"] == true;
        let old = if old_is_optional { Type::Dyn } else { own.clone() };
        let environment = Environment::default().with("self", own).with("oldSelf", old);
        if text("rule").trim().is_empty() {
            return None;
        }
        let mut refuse = |field: &str, why: String, problem: Option<Problem>| {
            let fault = Fault::shown(format!("{path}.{field}"), as_go(rule), why);
            self.refused.push(Refusal { fault, problem });
        };
        let program = match Program::compile(text("rule"), &environment) {
            Ok((program, Type::Bool | Type::Dyn)) => Some(program),
            Ok(_) => {
                refuse("rule", "cel expression must evaluate to a bool".to_owned(), None);
                None
            }
            Err(error) => {
                refuse("rule", error.to_string(), Some(error.problem));
                None
            }
        };
        let mut message = None;
        if !text("messageExpression").is_empty() {
            match Program::compile(text("messageExpression"), &environment) {
                Ok((program, Type::String | Type::Dyn)) => message = Some(program),
                Ok(_) => {
                    let why = "messageExpression must evaluate to a string".to_owned();
                    refuse("messageExpression", why, None);
                }
                Err(error) => {
                    refuse("messageExpression", format!("messageExpression {error}"), Some(error.problem));
                }
            }
        }
        let program = program?;
        let reads_old = program.reads("oldSelf");
        if reads_old && let Some(above) = uncorrelated {
            let why =
                format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {above}");
            self.refused.push(Fault::invalid(format!("{path}.rule"), text("rule"), why).into());
        }
        if old_is_optional && !reads_old {
            let why = "may not be set if oldSelf is not used in rule";
            self.refused.push(Fault::invalid(format!("{path}.optionalOldSelf"), true, why).into());
        }
        let (given, rule) = (text("message").trim(), text("rule").trim());
        (self.refused.len() == before).then(|| Rule {
            program,
            reads_old,
            old_is_optional,
            message,
            default_message: if given.is_empty() { format!("failed rule: {rule}") } else { given.to_owned() },
            shown: if given.is_empty() { rule } else { given }.to_owned(),
            reason: text("reason").to_owned(),
            path: field_path(text("fieldPath")),
        })
    }
}

/// What can be wrong with a rule besides its expressions.
fn check(schema: &Value, rule: &Value, path: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let text = |field: &str| rule[field].as_str().unwrap_or_default();
    if text("rule").trim().is_empty() {
        faults.push(Fault::required(format!("{path}.rule"), "rule is not specified"));
    }
    let message = text("message");
    if !message.is_empty() && message.trim().is_empty() {
        faults.push(Fault::invalid(
            format!("{path}.message"),
            message,
            "message must be non-empty if specified",
        ));
    } else if message.trim().contains('\n') {
        faults.push(Fault::invalid(format!("{path}.message"), message, "must not contain line breaks"));
    } else if text("rule").trim().contains('\n') && message.is_empty() {
        let why = "message must be specified if rule contains line breaks";
        faults.push(Fault::required(format!("{path}.message"), why));
    }
    let reasons = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
    if !rule["reason"].is_null() && !reasons.contains(&text("reason")) {
        faults.push(Fault::not_supported(format!("{path}.reason"), text("reason"), &reasons));
    }
    let given = text("fieldPath");
    if !given.is_empty() && (!given.starts_with(['.', '[']) || !exists(schema, given)) {
        faults.push(Fault::invalid(format!("{path}.fieldPath"), given, "must be a valid path"));
    }
    faults
}

/// The names of a path like `.spec['a.b'].c`.
fn steps(path: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("['") {
            let (name, after) = quoted.split_once("']").unwrap_or((quoted, ""));
            out.push(name.replace("\\'", "'"));
            rest = after;
        } else {
            let named = rest.trim_start_matches('.');
            let end = named.find(['.', '[']).unwrap_or(named.len());
            out.push(named[..end].to_owned());
            rest = if end == 0 { "" } else { &named[end..] };
        }
    }
    out
}

fn exists(schema: &Value, path: &str) -> bool {
    let mut at = schema;
    for name in steps(path) {
        let Some(below) = at["properties"].get(&name).or_else(|| at.get("additionalProperties")) else {
            return false;
        };
        at = below;
    }
    true
}

fn field_path(path: &str) -> String {
    steps(path).join(".")
}

/// A rule as Go shows it.
fn as_go(rule: &Value) -> String {
    let text = |field: &str| {
        let shown = Value::from(rule[field].as_str().unwrap_or_default()).to_string();
        shown.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
    };
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        text("rule"),
        text("message"),
        text("messageExpression"),
        rule["reason"],
        text("fieldPath"),
        rule["optionalOldSelf"]
    )
}

/// What an object breaks. Faults of what an update has not changed are warnings.
#[derive(Debug, Default)]
pub struct Findings {
    /// Why the object is refused.
    pub faults: Vec<Fault>,
    /// What it broke before.
    pub warnings: Vec<Fault>,
}

/// A value with its schema and its counterpart in the old object.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The schema.
    pub schema: &'a Value,
    /// The value.
    pub value: &'a Value,
    /// Its counterpart.
    pub old: Option<&'a Value>,
    /// Whether it is a whole custom resource.
    pub is_root: bool,
}

impl Rules {
    /// Evaluates the rules. `path` is that of the value in the object.
    pub fn evaluate(&self, at: At<'_>, path: &Path<'_>, found: &mut Findings) {
        if at.value.is_null() {
            return;
        }
        let old = at.old.filter(|old| !old.is_null());
        let own = if self.own.is_empty() { Cel::Null } else { typed(at.value, at.schema, at.is_root) };
        let old_own = old.filter(|_| self.own.iter().any(|rule| rule.reads_old));
        let old_own = old_own.map(|old| typed(old, at.schema, at.is_root));
        for rule in &self.own {
            rule.evaluate(&at, &own, old_own.as_ref(), path, found);
        }
        match at.value {
            Value::Object(map) => {
                for (name, value) in map {
                    let (rules, schema, path) = match self.properties.get(name) {
                        Some(rules) => (rules, &at.schema["properties"][name], path.field(name)),
                        None => match &self.additional {
                            Some(rules) if at.schema["properties"].get(name).is_none() => {
                                (&**rules, &at.schema["additionalProperties"], path.key(name))
                            }
                            _ => continue,
                        },
                    };
                    let old = old.and_then(|old| old.get(name));
                    rules.evaluate(At { schema, value, old, is_root: false }, &path, found);
                }
            }
            Value::Array(items) => {
                let Some(rules) = &self.items else { return };
                let counterparts = Counterparts::new(at.schema, old);
                for (index, value) in items.iter().enumerate() {
                    let old = counterparts.of(value);
                    let item = At { schema: &at.schema["items"], value, old, is_root: false };
                    rules.evaluate(item, &path.index(index), found);
                }
            }
            _ => {}
        }
    }
}

impl Rule {
    fn evaluate(&self, at: &At<'_>, own: &Cel, old: Option<&Cel>, path: &Path<'_>, found: &mut Findings) {
        if self.reads_old && old.is_none() && !self.old_is_optional {
            return;
        }
        let mut scope = Scope::default();
        scope.set("self", own.clone());
        if self.old_is_optional {
            let old = old.map_or_else(OptionalValue::none, |old| OptionalValue::of(old.clone()));
            scope.set("oldSelf", Cel::Opaque(Arc::new(old)));
        } else if let Some(old) = old {
            scope.set("oldSelf", old.clone());
        }
        let kind = at.schema["type"].as_str().unwrap_or_default();
        // The root has no path.
        let shown = |path: String| if path.is_empty() { "<nil>".to_owned() } else { path };
        match self.program.evaluate(&scope) {
            Ok(Cel::Bool(true)) => return,
            Ok(_) => {}
            Err(why) => {
                let why = if why.starts_with("no such overload") {
                    format!(
                        "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                        self.shown
                    )
                } else if why.starts_with("operation cancelled") {
                    format!(
                        "'{why}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                        self.shown
                    )
                } else {
                    format!("{why} evaluating rule: {}", self.shown)
                };
                found.faults.push(Fault::invalid(shown(path.show(Notation::Keyed)), kind, why));
                return;
            }
        }
        let detail = self.message.as_ref().and_then(|program| match program.evaluate(&scope) {
            Ok(Cel::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        });
        let detail =
            detail.filter(|text| !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n'));
        let detail = detail.unwrap_or_else(|| self.default_message.clone());
        let path = shown(below(&path.show(Notation::Keyed), &self.path));
        let is_collection = matches!(kind, "object" | "array");
        let fault = match &*self.reason {
            "FieldValueForbidden" => Fault::forbidden(path, detail),
            "FieldValueRequired" => Fault::required(path, detail),
            "FieldValueDuplicate" => Fault::duplicate(path, at.value.clone()),
            _ if is_collection => Fault::invalid_field(path, detail),
            _ => Fault::invalid(path, at.value.clone(), detail),
        };
        let unchanged = at.old.is_some_and(|old| old == at.value);
        if unchanged && !self.reads_old { found.warnings.push(fault) } else { found.faults.push(fault) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_values_cannot_be_read_where_nothing_corresponds() {
        let text = json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]});
        let refused = |schema: &Value| {
            let found = compile_rules(schema, "s", Notation::Dotted).1;
            found.iter().map(|refusal| refusal.fault.detail().to_owned()).collect::<Vec<_>>()
        };
        let why = "oldSelf cannot be used on the uncorrelatable portion of the schema within s";
        let atomic = |key: &str, value: &Value| {
            let mut schema = json!({"type": "object", "x-kubernetes-map-type": "atomic"});
            schema[key] = value.clone();
            schema
        };
        assert_eq!(refused(&atomic("properties", &json!({"a": text}))), [why]);
        assert!(refused(&atomic("additionalProperties", &text)).is_empty());
        assert!(refused(&json!({"type": "object", "properties": {"a": text}})).is_empty());
        assert_eq!(refused(&json!({"type": "array", "items": text})), [why]);
    }
}
