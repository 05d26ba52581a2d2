//! Checks CEL rules without evaluating them: syntax, fields of `self`, comparisons of values of different types.
//!
//! Whatever is unknown to it is accepted: functions, macros and libraries are left to the API server.

pub(super) mod tokens;

use serde_json::Value;

use super::is_int_or_string;
use super::lookup::{Lookup, lookup};
use crate::diag::did_you_mean;
use tokens::{CelProblem, Token, near, syntax, tokens};

/// Words that cannot be variables.
const RESERVED: [&str; 18] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The type of a value, as far as comparisons need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    Text,
    Bool,
    Unknown,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Text => "a string",
            Self::Bool => "a boolean",
            Self::Unknown => "a value",
        }
    }
}

/// The problem of a rule of the schema, if one is found.
pub(super) fn problem(rule: &str, schema: &Value) -> Option<CelProblem> {
    let tokens = match tokens(rule) {
        Ok(tokens) => tokens,
        Err(problem) => return Some(problem),
    };
    let mut parser = Parser { rule, tokens, at: 0, schema };
    let end = parser.expression().and_then(|_| match parser.peek() {
        Token::End => Ok(()),
        _ => Err(parser.unexpected("an operator")),
    });
    end.err()
}

struct Parser<'a> {
    rule: &'a str,
    tokens: Vec<(Token, usize)>,
    at: usize,
    /// The schema of `self`.
    schema: &'a Value,
}

type Parsed = Result<Kind, CelProblem>;

impl Parser<'_> {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(token, _)| token)
    }

    fn rest(&self) -> &str {
        let at = self.tokens.get(self.at).map_or(self.rule.len(), |(_, at)| *at);
        &self.rule[at..]
    }

    fn unexpected(&self, wanted: &str) -> CelProblem {
        match self.peek() {
            Token::End => syntax(format!("the rule ends where {wanted} is expected")),
            _ => syntax(format!("{wanted} is expected at {}", near(self.rest()))),
        }
    }

    fn takes(&mut self, symbol: &str) -> bool {
        let is_it = matches!(self.peek(), Token::Symbol(found) if *found == symbol);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, symbol: &str) -> Result<(), CelProblem> {
        if self.takes(symbol) { Ok(()) } else { Err(self.unexpected(&format!("`{symbol}`"))) }
    }

    fn expression(&mut self) -> Parsed {
        let mut kind = self.binary(0)?;
        if self.takes("?") {
            self.binary(0)?;
            self.expect(":")?;
            self.expression()?;
            kind = Kind::Unknown;
        }
        Ok(kind)
    }

    /// Parses the binary operators of a level and of all levels that bind tighter.
    fn binary(&mut self, level: usize) -> Parsed {
        const LEVELS: [&[&str]; 5] =
            [&["||"], &["&&"], &["<", "<=", ">=", ">", "==", "!="], &["+", "-"], &["*", "/", "%"]];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        loop {
            let is_in = level == 2 && matches!(self.peek(), Token::Word(word) if word == "in");
            self.at += usize::from(is_in);
            let operator = if is_in { None } else { operators.iter().find(|symbol| self.takes(symbol)) };
            if operator.is_none() && !is_in {
                return Ok(left);
            }
            let right = self.binary(level + 1)?;
            let is_known = left != Kind::Unknown && right != Kind::Unknown;
            if let Some(operator) = operator.filter(|_| level == 2 && is_known && left != right) {
                let (left, right) = (left.name(), right.name());
                return Err((
                    format!("`{operator}` does not compare {left} with {right}"),
                    "compare values of one type; `int(x)` and `string(x)` convert".to_owned(),
                ));
            }
            left = match level {
                0..=2 => Kind::Bool,
                _ => Kind::Unknown,
            };
        }
    }

    fn unary(&mut self) -> Parsed {
        let mut kind = None;
        loop {
            if self.takes("!") {
                kind = Some(Kind::Bool);
            } else if self.takes("-") {
                kind = Some(Kind::Unknown);
            } else {
                break;
            }
        }
        let value = self.member()?;
        Ok(kind.unwrap_or(value))
    }

    fn member(&mut self) -> Parsed {
        let (mut kind, mut path) = self.primary()?;
        loop {
            if self.takes(".") {
                self.takes("?");
                let Token::Word(name) = self.peek().clone() else { return Err(self.unexpected("a field")) };
                self.at += 1;
                if self.takes("(") {
                    self.list(")")?;
                    (kind, path) = (if name == "size" { Kind::Number } else { Kind::Unknown }, None);
                } else if let Some(keys) = &mut path {
                    keys.push(name);
                    kind = self.field(keys)?;
                } else {
                    kind = Kind::Unknown;
                }
            } else if self.takes("[") {
                self.takes("?");
                self.expression()?;
                self.expect("]")?;
                // The index is computed, so the path continues with any key.
                if let Some(keys) = &mut path {
                    keys.push("*".to_owned());
                }
                kind = Kind::Unknown;
            } else if self.takes("{") {
                self.list("}")?;
                (kind, path) = (Kind::Unknown, None);
            } else {
                return Ok(kind);
            }
        }
    }

    /// Parses a value. The path is set if the value is `self`.
    fn primary(&mut self) -> Result<(Kind, Option<Vec<String>>), CelProblem> {
        let token = self.peek().clone();
        if let Token::Symbol(symbol) = token {
            self.takes(".");
            let close = match symbol {
                "(" => {
                    self.at += 1;
                    let kind = self.expression()?;
                    self.expect(")")?;
                    return Ok((kind, None));
                }
                "[" => "]",
                "{" => "}",
                "." if matches!(self.peek(), Token::Word(_)) => return self.primary(),
                _ => return Err(self.unexpected("a value")),
            };
            self.at += 1;
            self.list(close)?;
            return Ok((Kind::Unknown, None));
        }
        self.at += 1;
        let word = match token {
            Token::Text => return Ok((if self.is_bytes() { Kind::Unknown } else { Kind::Text }, None)),
            Token::Number => return Ok((Kind::Number, None)),
            Token::Word(word) => word,
            Token::End | Token::Symbol(_) => {
                self.at -= 1;
                return Err(self.unexpected("a value"));
            }
        };
        if self.takes("(") {
            self.list(")")?;
            let kind = match word.as_str() {
                "size" | "int" => Kind::Number,
                "string" => Kind::Text,
                "has" => Kind::Bool,
                _ => Kind::Unknown,
            };
            return Ok((kind, None));
        }
        if RESERVED.contains(&word.as_str()) {
            return Err(syntax(format!("`{word}` cannot be a variable")));
        }
        match word.as_str() {
            "true" | "false" => Ok((Kind::Bool, None)),
            "self" | "oldSelf" => Ok((kind_of(self.schema), Some(Vec::new()))),
            _ => match did_you_mean(&word, ["self", "oldSelf"])
                .filter(|_| matches!(self.peek(), Token::Symbol(".")))
            {
                Some(near) if word.len() > 2 => {
                    Err((format!("there is no variable `{word}`"), format!("did you mean `{near}`?")))
                }
                _ => Ok((Kind::Unknown, None)),
            },
        }
    }

    /// Whether the string before the current token is a bytes literal.
    fn is_bytes(&self) -> bool {
        let at = self.tokens.get(self.at - 1).map_or(0, |(_, at)| *at);
        let prefix = self.rule[at..].split(['"', '\'']).next().unwrap_or_default();
        prefix.contains(['b', 'B'])
    }

    /// Parses values, or pairs of values, up to a closing bracket.
    fn list(&mut self, close: &'static str) -> Result<(), CelProblem> {
        while !self.takes(close) {
            self.takes("?");
            self.expression()?;
            if close == "}" {
                self.expect(":")?;
                self.expression()?;
            }
            if !self.takes(",") {
                return self.expect(close);
            }
        }
        Ok(())
    }

    /// The type of a field of `self`.
    fn field(&self, keys: &[String]) -> Parsed {
        // The server escapes names that are not identifiers, so such a field is not looked up.
        if keys.iter().any(|key| key.contains("__")) {
            return Ok(Kind::Unknown);
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        match lookup(self.schema, &keys) {
            Lookup::Known(field) => Ok(kind_of(field)),
            Lookup::Open => Ok(Kind::Unknown),
            Lookup::Unknown { candidates, .. } => {
                let last = keys.last().copied().unwrap_or_default();
                let help = match did_you_mean(last, candidates.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if candidates.is_empty() => "the value has no fields".to_owned(),
                    None => format!("there is {}", candidates.join(", ")),
                };
                Err((format!("the schema has no field self.{}", keys.join(".").replace(".*", "[]")), help))
            }
        }
    }
}

/// The type of the values of a schema.
fn kind_of(schema: &Value) -> Kind {
    if is_int_or_string(schema) || schema.get("nullable") == Some(&Value::Bool(true)) {
        return Kind::Unknown;
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("integer" | "number") => Kind::Number,
        Some("boolean") => Kind::Bool,
        // A string with a format may have a CEL type of its own.
        Some("string") if schema.get("format").is_none() => Kind::Text,
        _ => Kind::Unknown,
    }
}

/// The rules of a CRD that do not compile, with their paths.
pub fn problems(crd: &Value) -> Vec<(String, CelProblem)> {
    let mut found = Vec::new();
    for (index, version) in super::versions(crd).enumerate() {
        let Some(schema) = version.pointer("/schema/openAPIV3Schema") else { continue };
        of_schema(schema, &format!("spec.versions[{index}].schema.openAPIV3Schema"), &mut found);
    }
    found
}

fn of_schema(schema: &Value, path: &str, found: &mut Vec<(String, CelProblem)>) {
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        for key in ["rule", "messageExpression"] {
            let Some(text) = rule.get(key).and_then(Value::as_str) else { continue };
            if let Some(problem) = problem(text, schema) {
                found.push((format!("{path}.x-kubernetes-validations[{index}].{key}"), problem));
            }
        }
    }
    for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        of_schema(below, &format!("{path}.properties.{name}"), found);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(below) = schema.get(key).filter(|below| below.is_object()) {
            of_schema(below, &format!("{path}.{key}"), found);
        }
    }
}

#[cfg(test)]
mod tests;
