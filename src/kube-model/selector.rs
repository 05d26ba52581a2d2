//! Label selectors: as objects have them, and as the parameter `labelSelector` has them.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use crate::facts::{items, text};
use crate::validation::{label_value, qualified_name};
use Operator::{DoesNotExist, Equal, Exists, Greater, In, Less, NotEqual, NotIn};

/// How a requirement compares the value of a label with its own values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Operator {
    Equal,
    NotEqual,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Greater,
    Less,
}

/// The operators by their names in objects.
const NAMES: [(&str, Operator); 6] = [
    ("In", In),
    ("NotIn", NotIn),
    ("Exists", Exists),
    ("DoesNotExist", DoesNotExist),
    ("Gt", Greater),
    ("Lt", Less),
];

/// The operators by their signs between a key and values.
const SIGNS: [(&str, Operator); 7] = [
    ("=", Equal),
    ("==", Equal),
    ("!=", NotEqual),
    ("in", In),
    ("notin", NotIn),
    (">", Greater),
    ("<", Less),
];

impl Operator {
    fn find(all: &[(&str, Self)], name: &str) -> Option<Self> {
        all.iter().find(|(known, _)| *known == name).map(|(_, operator)| *operator)
    }

    /// Whether the value of a label fits; `None` is the value of a label that is absent.
    fn fits<'a>(self, value: Option<&str>, mut values: impl Iterator<Item = &'a str>) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        match self {
            Equal | In => value.is_some_and(|value| values.any(|known| known == value)),
            NotEqual | NotIn => value.is_none_or(|value| values.all(|known| known != value)),
            Exists => value.is_some(),
            DoesNotExist => value.is_none(),
            Greater | Less => {
                let limit = values.next().and_then(number);
                let order = value.and_then(number).zip(limit).map(|(value, limit)| value.cmp(&limit));
                order == Some(if self == Greater { Ordering::Greater } else { Ordering::Less })
            }
        }
    }
}

/// Whether a value fits an operator with values, by its name in objects; `None` is the value of a label that is absent.
pub fn fits(operator: &str, values: &[Value], value: Option<&str>) -> bool {
    let values = values.iter().filter_map(Value::as_str);
    Operator::find(&NAMES, operator).is_some_and(|operator| operator.fits(value, values))
}

/// Whether a value fits a requirement of an object, such as an item of `matchExpressions`.
pub fn meets(requirement: &Value, value: Option<&str>) -> bool {
    fits(text(&requirement["operator"]), items(&requirement["values"]), value)
}

/// Whether labels fit a selector that the API server has checked: `matchLabels` and `matchExpressions`.
pub fn labels_match(selector: &Value, labels: &Value) -> bool {
    let mut exact = selector["matchLabels"].as_object().into_iter().flatten();
    exact.all(|(key, value)| labels.get(key) == Some(value))
        && items(&selector["matchExpressions"])
            .iter()
            .all(|rule| meets(rule, labels.get(text(&rule["key"])).and_then(Value::as_str)))
}

/// What is required of one label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Requirement {
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

/// A label selector: all of its requirements hold. A selector without requirements fits everything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Selector(Vec<Requirement>);

impl Selector {
    /// The selector of objects that have a label, whatever its value.
    pub fn exists(label: &str) -> Self {
        Self::default().with(label, Exists)
    }

    /// The same, without the objects that have a label.
    #[must_use]
    pub fn without(self, label: &str) -> Self {
        self.with(label, DoesNotExist)
    }

    fn with(mut self, label: &str, operator: Operator) -> Self {
        self.0.push(Requirement { key: label.to_owned(), operator, values: BTreeSet::new() });
        Self::of(self.0)
    }

    fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort();
        requirements.dedup();
        Self(requirements)
    }

    /// Parses `{matchLabels, matchExpressions}`, or a plain map of labels.
    ///
    /// # Errors
    /// Says what is wrong with it; never shows a value.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let Value::Object(map) = value else { return Err("its selector is not a map".into()) };
        let structured = !map.is_empty() && map.keys().all(|k| k == "matchLabels" || k == "matchExpressions");
        let mut all = Vec::new();
        if structured {
            match map.get("matchLabels") {
                None | Some(Value::Null) => {}
                Some(Value::Object(labels)) => equal(labels, &mut all)?,
                Some(_) => return Err("matchLabels of its selector is not a map".into()),
            }
            match map.get("matchExpressions") {
                None | Some(Value::Null) => {}
                Some(Value::Array(expressions)) => {
                    for expression in expressions {
                        all.push(requirement(expression)?);
                    }
                }
                Some(_) => return Err("matchExpressions of its selector is not a list".into()),
            }
        } else {
            equal(map, &mut all)?;
        }
        Ok(Self::of(all))
    }

    /// Parses the parameter `labelSelector`.
    ///
    /// # Errors
    /// Says what is wrong with it, in the words of the API server.
    pub fn parse_text(text: &str) -> Result<Self, String> {
        let mut tokens = Tokens(text);
        let mut all = Vec::new();
        loop {
            match tokens.peek() {
                "" => break,
                word if is_word(word) || word == "!" => {}
                sign => return Err(format!("found '{sign}', expected: !, identifier, or 'end of string'")),
            }
            all.push(tokens.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?);
            match (tokens.take(), tokens.peek()) {
                ("", _) => break,
                (",", next) if is_word(next) || next == "!" => {}
                (",", next) => return Err(format!("found '{next}', expected: identifier after ','")),
                (other, _) => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
        Ok(Self::of(all))
    }

    /// Whether it fits everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the selector fits labels, each given by its key.
    pub fn fits<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|one| one.operator.fits(label(&one.key), one.values.iter().map(String::as_str)))
    }
}

/// Writes the selector as the parameter `labelSelector` has it.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, Requirement { key, operator, values }) in self.0.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            let values = values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            let sign = SIGNS.iter().find(|(_, known)| known == operator).map_or("", |&(sign, _)| sign);
            match operator {
                In | NotIn => write!(f, "{comma}{key} {sign} ({values})"),
                DoesNotExist => write!(f, "{comma}!{key}"),
                _ => write!(f, "{comma}{key}{sign}{values}"),
            }?;
        }
        Ok(())
    }
}

fn equal(labels: &Map<String, Value>, out: &mut Vec<Requirement>) -> Result<(), String> {
    for (name, value) in labels {
        out.push(Requirement { key: key(name)?, operator: Equal, values: [label(value)?].into() });
    }
    Ok(())
}

fn requirement(expression: &Value) -> Result<Requirement, String> {
    let key = key(text(&expression["key"]))?;
    let values: BTreeSet<String> =
        items(&expression["values"]).iter().map(label).collect::<Result<_, _>>()?;
    let operator = Operator::find(&NAMES, text(&expression["operator"]));
    match (operator, values.is_empty()) {
        (Some(operator @ (In | NotIn)), false) | (Some(operator @ (Exists | DoesNotExist)), true) => {
            Ok(Requirement { key, operator, values })
        }
        (Some(In | NotIn), true) => Err("In and NotIn in its selector need values".into()),
        (Some(Exists | DoesNotExist), false) => {
            Err("Exists and DoesNotExist in its selector take no values".into())
        }
        _ => Err("an operator in its selector is none of In, NotIn, Exists, DoesNotExist".into()),
    }
}

fn key(text: &str) -> Result<String, String> {
    match qualified_name(text) {
        None => Ok(text.to_owned()),
        Some(_) => Err("a key of its selector is no key of a label".into()),
    }
}

fn label(value: &Value) -> Result<String, String> {
    match value.as_str() {
        Some(text) if label_value(text).is_none() => Ok(text.to_owned()),
        Some(_) => Err("a value of its selector is no value of a label".into()),
        None => Err("a value of its selector is not a string; quote it".into()),
    }
}

const SPECIAL: [char; 7] = ['=', '!', '(', ')', ',', '>', '<'];

/// Whether a token is a key, a value or a name of an operator; the empty one is the end.
fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(SPECIAL)
}

/// The rest of a text, which is read token by token: signs and words.
struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    /// The next token and what follows it.
    fn split(&self) -> (&'a str, &'a str) {
        let is_blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
        let rest = self.0.trim_start_matches(is_blank);
        let end = if rest.starts_with("==") || rest.starts_with("!=") {
            2
        } else if rest.starts_with(SPECIAL) {
            1
        } else {
            rest.find(|c: char| is_blank(c) || SPECIAL.contains(&c)).unwrap_or(rest.len())
        };
        rest.split_at(end)
    }

    fn peek(&self) -> &'a str {
        self.split().0
    }

    fn take(&mut self) -> &'a str {
        let (token, rest) = self.split();
        self.0 = rest;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let is_absent = self.peek() == "!";
        if is_absent {
            self.take();
        }
        let key = self.take();
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        if let Some(why) = qualified_name(key) {
            return Err(format!("<nil>: Invalid value: {key:?}: {why}"));
        }
        let with = |operator, values| Requirement { key: key.to_owned(), operator, values };
        if is_absent || matches!(self.peek(), "" | ",") {
            let operator = if is_absent { DoesNotExist } else { Exists };
            return Ok(with(operator, BTreeSet::new()));
        }
        let sign = self.take();
        let operator = Operator::find(&SIGNS, sign)
            .ok_or_else(|| format!("found '{sign}', expected: in, notin, =, ==, !=, gt, lt"))?;
        let values = match operator {
            In | NotIn => self.list()?,
            _ => [self.value()?.to_owned()].into(),
        };
        for (at, value) in values.iter().enumerate() {
            if matches!(operator, Greater | Less) && value.parse::<i64>().is_err() {
                return Err(format!(
                    "values[{at}]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
            if let Some(why) = label_value(value) {
                return Err(format!("values[{at}][{key}]: Invalid value: {value:?}: {why}"));
            }
        }
        Ok(with(operator, values))
    }

    /// One value, which may be empty.
    fn value(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            "" | "," => Ok(""),
            word if is_word(word) => Ok(self.take()),
            sign => Err(format!("found '{sign}', expected: identifier")),
        }
    }

    /// Values in parentheses, each of which may be empty.
    fn list(&mut self) -> Result<BTreeSet<String>, String> {
        match self.take() {
            "(" => {}
            other => return Err(format!("found '{other}' expected: '('")),
        }
        let mut values = BTreeSet::new();
        loop {
            let value = if is_word(self.peek()) { self.take() } else { "" };
            values.insert(value.to_owned());
            match self.take() {
                "," => {}
                ")" => return Ok(values),
                other => return Err(format!("found '{other}', expected: ',' or ')'")),
            }
        }
    }
}

#[cfg(test)]
mod tests;
