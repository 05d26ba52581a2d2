//! Checks the type of a value against a schema: unknown fields, types, values, missing fields.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use operetta_kube_model::quantity::Quantity;
use serde_json::Value;

use super::{Basic, Fields, Lookup, Schema, Shape, Type, limits};
use crate::diag::{Diagnostic, Location, did_you_mean};

/// The maximum number of visited values per check; the rest is not checked.
const FUEL: usize = 50_000;
/// The maximum depth for comparing the schema of a value with the schema of its place.
const SCHEMA_DEPTH: usize = 6;
/// The maximum depth of the search for a field at the wrong level.
const SEARCH_DEPTH: usize = 5;
/// The maximum number of such searches.
const MAX_SEARCHES: usize = 50;

/// A check of the result of one template or expression.
pub struct Conform<'a> {
    /// The object of the values, `a Deployment`.
    what: String,
    /// The kind, if it is built in.
    built_in: Option<&'a str>,
    root: Option<Schema<'a>>,
    path: Path,
    found: Vec<Diagnostic>,
    /// For each place and required field: how often the place occurs, and how often without the field.
    required: BTreeMap<(String, usize, String), Lack>,
    fuel: usize,
}

struct Lack {
    seen: usize,
    missing: usize,
    at: Location,
    path: String,
}

/// The position in the object: in the usual notation, and with `[]` for the items of lists.
#[derive(Default)]
struct Path {
    shown: String,
    pattern: String,
}

impl Path {
    fn field(&mut self, key: &str) -> (usize, usize) {
        let before = (self.shown.len(), self.pattern.len());
        let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        for out in [&mut self.shown, &mut self.pattern] {
            let dot = if out.is_empty() { "" } else { "." };
            let _ = if plain { write!(out, "{dot}{key}") } else { write!(out, "[{key}]") };
        }
        before
    }

    fn item(&mut self, index: Option<usize>) -> (usize, usize) {
        let before = (self.shown.len(), self.pattern.len());
        let _ = match index {
            Some(index) => write!(self.shown, "[{index}]"),
            None => write!(self.shown, "[*]"),
        };
        self.pattern.push_str("[]");
        before
    }

    fn back(&mut self, to: (usize, usize)) {
        self.shown.truncate(to.0);
        self.pattern.truncate(to.1);
    }
}

impl<'a> Conform<'a> {
    /// A check of objects of a kind.
    pub fn new(what: impl Into<String>, built_in: Option<&'a str>, root: Option<Schema<'a>>) -> Self {
        Self {
            what: what.into(),
            built_in,
            root,
            path: Path::default(),
            found: Vec::new(),
            required: BTreeMap::new(),
            fuel: FUEL,
        }
    }

    /// Starts below a path.
    #[must_use]
    pub fn below(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path.shown);
        path.clone_into(&mut self.path.pattern);
        self
    }

    /// All findings. A missing field counts if it is missing in every variant that contains its place.
    pub fn finish(mut self) -> Vec<Diagnostic> {
        if self.fuel == 0 {
            self.required.clear(); // incomplete: not all variants were visited
        }
        for ((_, _, field), lack) in std::mem::take(&mut self.required) {
            if lack.missing == lack.seen {
                let message = format!("`{}` of {} is missing", join(&lack.path, &field), self.what);
                self.found
                    .push(Diagnostic::error("schema::required", message).located(lack.at).path(lack.path));
            }
        }
        self.found
    }

    fn name(&self) -> String {
        format!("`{}` of {}", self.path.shown, self.what)
    }

    fn report(&mut self, code: &'static str, at: &Location, message: String, help: Option<String>) {
        let error = Diagnostic::error(code, message).located(at.clone()).path(self.path.shown.clone());
        self.found.push(Diagnostic { help, ..error });
    }

    /// Checks a value against a schema. `at` is the location if the value has none.
    pub fn check(&mut self, ty: &Type<'a>, schema: Schema<'a>, at: &Location) {
        if self.fuel == 0 {
            return;
        }
        self.fuel -= 1;
        // The marked position: the key of a map or a list, but a scalar itself.
        let is_scalar = !matches!(ty.shape, Shape::Map(_) | Shape::List(_));
        let at = ty.at.as_ref().filter(|_| is_scalar).unwrap_or(at);
        if let Shape::OneOf(types) = &ty.shape {
            for ty in types.iter() {
                self.check(ty, schema, at);
            }
            return;
        }
        if self.wrong_type(ty, schema, at) {
            return;
        }
        match &ty.shape {
            Shape::Literal(value) => self.literal(value, schema, at),
            Shape::Map(fields) => self.map(fields, schema, at),
            Shape::List(items) => {
                let Some(below) = schema.items() else { return };
                self.duplicates(items, schema, at);
                for (index, item) in items.iter().enumerate() {
                    let before = self.path.item(Some(index));
                    self.check(item, below, item.at.as_ref().unwrap_or(at));
                    self.path.back(before);
                }
            }
            Shape::Each(item) => {
                let below = if ty.basic.contains(Basic::LIST) { schema.items() } else { schema.values() };
                if let Some(below) = below.filter(|_| !ty.basic.is_any()) {
                    let before = self.path.item(None);
                    self.check(&Type::clone(item).without(Basic::ABSENT), below, at);
                    self.path.back(before);
                }
            }
            Shape::Schema(from) => self.schema(*from, schema, at, 0),
            Shape::Unknown | Shape::OneOf(_) => {}
        }
    }

    fn wrong_type(&mut self, ty: &Type<'a>, schema: Schema<'a>, at: &Location) -> bool {
        let wanted = schema.basic();
        let is_literal = matches!(ty.shape, Shape::Literal(_));
        let mut accepted = wanted;
        if wanted.contains(Basic::STRING) {
            accepted = accepted | Basic::QUANTITY | Basic::VERSION;
        }
        if wanted.contains(Basic::INT) && !is_literal {
            accepted = accepted | Basic::FLOAT; // the value may be a whole number
        }
        if !ty.basic.misses(accepted) {
            return false;
        }
        let got = ty.basic.value();
        let help = match ty.quoted {
            Some(native) if native.value().overlaps(accepted) && !native.is_any() => {
                Some("remove the quotes: they make it a string".to_owned())
            }
            _ if wanted == Basic::STRING && is_literal => {
                let written = at.source.text.get(at.span.start..at.span.end).unwrap_or_default();
                let is_odd = got == Basic::BOOL && !matches!(written, "true" | "false" | "");
                Some(if is_odd && written.len() <= 5 {
                    format!("`{written}` is a boolean in YAML: quote it")
                } else {
                    "quote it".to_owned()
                })
            }
            _ if wanted == Basic::STRING && !got.overlaps(Basic::LIST | Basic::MAP) => {
                Some("quote the expression: quotes make it a string".to_owned())
            }
            _ if wanted == Basic::STRING => Some("use `| to_json`, or name one of its fields".to_owned()),
            _ if wanted == Basic::INT && got == Basic::STRING && !is_literal => {
                Some("use `| int`, or a field that is a number".to_owned())
            }
            _ if wanted.overlaps(Basic::NUMBER) && got == Basic::STRING && numeric(ty) => {
                Some("remove the quotes".to_owned())
            }
            _ if wanted == Basic::BOOL && ty.as_text().is_some_and(|t| matches!(t, "true" | "false")) => {
                Some("remove the quotes".to_owned())
            }
            _ if wanted == Basic::LIST && got == Basic::MAP => Some("start each item with `- `".to_owned()),
            _ => None,
        };
        let message = format!("{} takes {}, not {}", self.name(), wanted.shown(), got.shown());
        self.report("schema::type", at, message, help);
        true
    }

    fn literal(&mut self, value: &Value, schema: Schema<'a>, at: &Location) {
        let field = self.path.pattern.rsplit('.').next().unwrap_or_default().to_owned();
        if value.is_null() {
            return;
        }
        let special = self.built_in.and_then(|kind| limits::choices(kind, &self.path.pattern));
        let listed: Option<Vec<Value>> = match special {
            Some(texts) => Some(texts.iter().map(|&text| Value::from(text)).collect()),
            None => schema.choices().map(<[Value]>::to_vec),
        };
        if let Some(choices) = listed.filter(|choices| !choices.contains(value)) {
            return self.no_choice(value, &choices, at);
        }
        match value {
            Value::Number(number) => {
                let (least, most) = if self.built_in.is_some() {
                    limits::range(&field, schema.format())
                } else {
                    (i64::MIN, i64::MAX)
                };
                let bound = |key: &str| schema.json().get(key).and_then(Value::as_f64);
                let float = number.as_f64().unwrap_or_default();
                let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
                let outside = whole.is_some_and(|int| int < i128::from(least) || int > i128::from(most))
                    || bound("minimum").is_some_and(|minimum| float < minimum)
                    || bound("maximum").is_some_and(|maximum| float > maximum);
                if outside {
                    let shown = |bound: Option<f64>, own: i64, none: i64| match bound {
                        Some(bound) => Some(bound.to_string()),
                        None => (own != none).then(|| own.to_string()),
                    };
                    let range = match (
                        shown(bound("minimum"), least, i64::MIN),
                        shown(bound("maximum"), most, i64::MAX),
                    ) {
                        (Some(least), Some(most)) => format!("from {least} to {most}"),
                        (Some(least), None) => format!("from {least}"),
                        (None, Some(most)) => format!("up to {most}"),
                        (None, None) => String::new(),
                    };
                    let help = (field == "mode" || field == "defaultMode")
                        .then(|| "write it in octal with a leading zero: 0644".to_owned());
                    let message = format!("{} takes numbers {range}, not {number}", self.name());
                    self.report("schema::value", at, message, help);
                }
            }
            Value::String(text) => self.text(text, schema, at),
            _ => {}
        }
    }

    fn text(&mut self, text: &str, schema: Schema<'a>, at: &Location) {
        if schema.is_quantity() && Quantity::saturating(text).is_none() {
            let message = format!("{} must be a quantity, `{text}` is not one", self.name());
            let help = "write for example 500m, 2 or 1.5Gi".to_owned();
            self.report("schema::value", at, message, Some(help));
        } else if schema.format() == Some("byte")
            && BASE64_STANDARD.decode(text.replace(['\n', '\r'], "")).is_err()
        {
            let message = format!("{} must be base64", self.name());
            let help = "write it in `stringData`, or `{{ 'text' | b64encode }}`".to_owned();
            self.report("schema::value", at, message, Some(help));
        }
    }

    fn no_choice(&mut self, value: &Value, choices: &[Value], at: &Location) {
        let texts: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
        let near = value.as_str().and_then(|text| {
            let same = texts.iter().find(|choice| choice.eq_ignore_ascii_case(text)).copied();
            same.or_else(|| did_you_mean(text, texts.iter().copied()))
        });
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None if choices.len() > 12 => format!("it takes {}, ...", shown(&choices[..12])),
            None => format!("it takes {}", shown(choices)),
        };
        let message = format!("{} does not take {}", self.name(), shown(std::slice::from_ref(value)));
        self.report("schema::value", at, message, Some(help));
    }

    fn map(&mut self, fields: &Fields<'a>, schema: Schema<'a>, at: &Location) {
        for field in &fields.entries {
            let here = field.at.as_ref().unwrap_or(at);
            if field.key.is_empty() {
                // A computed key.
                if let Some(values) = schema.values().filter(|_| !schema.has_named_fields()) {
                    let before = self.path.item(None);
                    self.check(&field.value, values, here);
                    self.path.back(before);
                }
                continue;
            }
            let looked_up = schema.field(&field.key);
            let before = self.path.field(&field.key);
            match looked_up {
                Lookup::Known(below) => self.check(&field.value, below, here),
                Lookup::Unknown(known) => {
                    let help = self.misplaced(&field.key, &known);
                    let message = format!("{} has no field `{}`", self.what, self.path.shown);
                    self.report("schema::unknown-field", here, message, help);
                }
                Lookup::Open => {}
            }
            self.path.back(before);
        }
        let special = self.built_in.map_or(&[][..], |kind| limits::required(kind, &self.path.pattern));
        let required: Vec<&str> = schema
            .required()
            .filter(|field| self.built_in.is_none() || !limits::may_lack(field, &self.path.pattern))
            .chain(special.iter().copied().filter(|field| matches!(schema.field(field), Lookup::Known(_))))
            .collect();
        for field in required {
            let has_default = matches!(schema.field(field), Lookup::Known(below) if below.has_default());
            let present = fields.is_open
                || has_default
                || fields.entries.iter().any(|entry| entry.key == field || entry.key.is_empty());
            let key = (at.source.name.clone(), at.span.start, field.to_owned());
            let lack = self.required.entry(key).or_insert_with(|| Lack {
                seen: 0,
                missing: 0,
                at: at.clone(),
                path: self.path.shown.clone(),
            });
            lack.seen += 1;
            lack.missing += usize::from(!present);
        }
    }

    /// The suggestion for an unknown field: another name, or another level.
    fn misplaced(&self, key: &str, known: &[&str]) -> Option<String> {
        if let Some(near) = did_you_mean(key, known.iter().copied()) {
            return Some(format!("did you mean `{near}`?"));
        }
        let root = self.root.filter(|_| self.found.len() < MAX_SEARCHES);
        if let Some(path) = root.and_then(|root| place_of(root, key)) {
            return Some(format!("it is a field of `{path}`"));
        }
        (known.len() <= 12).then(|| format!("there is {}", known.join(", ")))
    }

    /// Reports items of a list that the server treats as the same item.
    fn duplicates(&mut self, items: &[Type<'a>], schema: Schema<'a>, at: &Location) {
        let keys = schema.list_keys();
        if keys.is_empty() {
            return;
        }
        let mut seen = HashSet::new();
        for item in items {
            let Shape::Map(fields) = &item.shape else { continue };
            let known = keys.iter().map(|key| {
                match fields.entries.iter().find(|field| field.key == *key).map(|field| &field.value.shape) {
                    Some(Shape::Literal(value)) => Ok(Some((**value).clone())),
                    Some(_) => Err(()),
                    None if fields.is_open => Err(()),
                    None => Ok(None),
                }
            });
            let Ok(known) = known.collect::<Result<Vec<_>, ()>>() else { continue };
            if known.iter().all(Option::is_none) {
                continue;
            }
            if !seen.insert(format!("{known:?}")) {
                let values: Vec<Value> = known.into_iter().flatten().collect();
                let message = format!("two items of {} have the same {}", self.name(), keys.join(" and "));
                let help = format!("{} is a duplicate; rename one of them", shown(&values));
                let here = item.at.clone().unwrap_or_else(|| at.clone());
                self.report("schema::duplicate", &here, message, Some(help));
            }
        }
    }

    /// Checks a value with a known schema against the schema of its place.
    fn schema(&mut self, from: Schema<'a>, to: Schema<'a>, at: &Location, depth: usize) {
        if self.fuel == 0 || depth > SCHEMA_DEPTH || from == to {
            return;
        }
        self.fuel -= 1;
        if depth > 0 {
            let mut accepted = to.basic();
            if accepted.overlaps(Basic::INT) {
                accepted = accepted | Basic::FLOAT;
            }
            if from.basic().misses(accepted) {
                let (takes, not) = (to.basic().shown(), from.basic().shown());
                let message = format!("{} takes {takes}, and the CRD's schema gives {not}", self.name());
                return self.report("schema::type", at, message, None);
            }
        }
        if let (Some(given), Some(taken)) = (from.choices(), to.choices())
            && !given.iter().any(|value| taken.contains(value))
        {
            let message = format!("{} takes none of the values that the CRD's schema allows", self.name());
            let help = format!("it takes {}, the CRD allows {}", shown(taken), shown(given));
            return self.report("schema::value", at, message, Some(help));
        }
        if let (Some(from), Some(to)) = (from.items(), to.items()) {
            let before = self.path.item(None);
            self.schema(from, to, at, depth + 1);
            self.path.back(before);
        }
        if let (Some(from), Some(to)) = (from.values(), to.values()) {
            let before = self.path.item(None);
            self.schema(from, to, at, depth + 1);
            self.path.back(before);
        }
        for (name, field) in from.fields() {
            let before = self.path.field(name);
            match to.field(name) {
                Lookup::Known(below) => self.schema(field, below, at, depth + 1),
                Lookup::Unknown(known) => {
                    let help = self.misplaced(name, &known);
                    let message = format!(
                        "{} has no field `{}`, which the CRD's schema allows here",
                        self.what, self.path.shown
                    );
                    let found = Diagnostic::warning("schema::unknown-field", message).located(at.clone());
                    self.found.push(Diagnostic { help, ..found.path(self.path.shown.clone()) });
                }
                Lookup::Open => {}
            }
            self.path.back(before);
        }
    }
}

/// Whether a literal text looks like a number.
fn numeric(ty: &Type<'_>) -> bool {
    ty.as_text().is_some_and(|text| serde_json::from_str::<f64>(text).is_ok())
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

fn shown(values: &[Value]) -> String {
    let texts = values.iter().map(|value| match value {
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// The path of the object with a field of that name, nearest to the root.
fn place_of(root: Schema<'_>, key: &str) -> Option<String> {
    let mut level = vec![(String::new(), root)];
    for _ in 0..SEARCH_DEPTH {
        let mut next = Vec::new();
        for (path, schema) in level {
            for (name, field) in schema.fields() {
                if name == key && !path.is_empty() {
                    return Some(path);
                }
                if !matches!(name, "status" | "metadata") && next.len() < 200 {
                    let path = join(&path, name);
                    match field.items() {
                        Some(items) => next.push((format!("{path}[]"), items)),
                        None => next.push((path, field)),
                    }
                }
            }
        }
        level = next;
    }
    None
}
