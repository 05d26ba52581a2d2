//! The type of a value, known without evaluating anything.

use std::rc::Rc;

use serde_json::Value;

use super::{Basic, Lookup, Schema};
use crate::diag::Location;

/// The maximum number of alternatives.
const MAX_ALTERNATIVES: usize = 24;

/// The type of a value.
#[derive(Debug, Clone)]
pub struct Type<'a> {
    /// Its basic types.
    pub basic: Basic,
    /// Its content.
    pub shape: Shape<'a>,
    /// The path from which the value was read, for instance `spec.tls.secret`.
    pub origin: Option<Rc<str>>,
    /// Its location.
    pub at: Option<Location>,
    /// The type of the expression, if quotes around it have made it a string.
    pub quoted: Option<Basic>,
}

/// The content of a value.
#[derive(Debug, Clone)]
pub enum Shape<'a> {
    /// Nothing is known of the value.
    Unknown,
    /// Described by a schema.
    Schema(Schema<'a>),
    /// A list whose items, or a map whose values, have one type.
    Each(Rc<Type<'a>>),
    /// A literal list.
    List(Rc<Vec<Type<'a>>>),
    /// A literal map.
    Map(Rc<Fields<'a>>),
    /// A literal.
    Literal(Rc<Value>),
    /// One of these.
    OneOf(Rc<Vec<Type<'a>>>),
}

/// The fields of a literal map.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    /// The known fields.
    pub entries: Vec<Field<'a>>,
    /// Whether there may be other fields.
    pub is_open: bool,
}

/// A field of a literal map.
#[derive(Debug, Clone)]
pub struct Field<'a> {
    /// The key.
    pub key: String,
    /// The location of the key.
    pub at: Option<Location>,
    /// The type of its value.
    pub value: Type<'a>,
}

/// The type of a field of a value.
pub enum Member<'a> {
    /// The field has this type.
    Found(Type<'a>),
    /// The map does not have this field, but these.
    Missing(Vec<String>),
    /// It is unknown whether the map has the field, or of which type the field is.
    Unknown,
}

impl<'a> Type<'a> {
    /// A value of these basic types, of which no more is known.
    pub fn of(basic: Basic) -> Self {
        Self { basic, shape: Shape::Unknown, origin: None, at: None, quoted: None }
    }

    /// A value of any type.
    pub fn any() -> Self {
        Self::of(Basic::ANY)
    }

    /// A string.
    pub fn string() -> Self {
        Self::of(Basic::STRING)
    }

    /// A list or a map of such values.
    pub fn each(basic: Basic, item: Self) -> Self {
        Self { shape: Shape::Each(Rc::new(item)), ..Self::of(basic) }
    }

    /// The type that a schema describes.
    pub fn of_schema(schema: Schema<'a>) -> Self {
        Self { shape: Shape::Schema(schema), ..Self::of(schema.basic()) }
    }

    /// The type of a literal.
    pub fn literal(value: &Value) -> Self {
        match value {
            Value::Array(items) => {
                let items = items.iter().map(Self::literal).collect();
                Self { shape: Shape::List(Rc::new(items)), ..Self::of(Basic::LIST) }
            }
            Value::Object(entries) => {
                let entries = entries
                    .iter()
                    .map(|(key, value)| Field { key: key.clone(), at: None, value: Self::literal(value) })
                    .collect();
                Self::map(Fields { entries, is_open: false })
            }
            scalar => {
                let basic = super::literal_basic(scalar);
                Self { shape: Shape::Literal(Rc::new(scalar.clone())), ..Self::of(basic) }
            }
        }
    }

    /// A literal list of such items.
    pub fn list(items: Vec<Self>) -> Self {
        Self { shape: Shape::List(Rc::new(items)), ..Self::of(Basic::LIST) }
    }

    /// A literal map of these fields.
    pub fn map(fields: Fields<'a>) -> Self {
        Self { shape: Shape::Map(Rc::new(fields)), ..Self::of(Basic::MAP) }
    }

    /// The type without what is only true for a literal.
    #[must_use]
    pub fn widened(&self) -> Self {
        match &self.shape {
            Shape::Literal(value) if value.is_null() => Self::any(),
            Shape::Literal(_) => Self::of(self.basic),
            Shape::List(items) => {
                let item = Self::one_of(items.iter().map(Self::widened).collect());
                Self::each(Basic::LIST, if items.is_empty() { Self::any() } else { item })
            }
            Shape::Map(fields) => {
                let entries = fields.entries.iter().map(|field| Field {
                    key: field.key.clone(),
                    at: None,
                    value: field.value.widened(),
                });
                Self::map(Fields { entries: entries.collect(), is_open: true })
            }
            _ => self.clone(),
        }
    }

    /// One of several types.
    pub fn one_of(types: Vec<Self>) -> Self {
        let mut all: Vec<Self> = Vec::with_capacity(types.len());
        for ty in types {
            match ty.shape {
                Shape::OneOf(inner) => all.extend(inner.iter().cloned()),
                _ => all.push(ty),
            }
        }
        if all.len() == 1
            && let Some(only) = all.pop()
        {
            return only;
        }
        let basic = all.iter().fold(Basic::NONE, |basic, ty| basic | ty.basic);
        if all.is_empty() || all.len() > MAX_ALTERNATIVES {
            return Self::of(if all.is_empty() { Basic::ANY } else { basic });
        }
        Self { shape: Shape::OneOf(Rc::new(all)), ..Self::of(basic) }
    }

    /// One of the two types.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::one_of(vec![self, other])
    }

    /// The type with further basic types.
    #[must_use]
    pub fn with(mut self, basic: Basic) -> Self {
        self.basic = self.basic | basic;
        self
    }

    /// The type without some basic types.
    #[must_use]
    pub fn without(mut self, basic: Basic) -> Self {
        self.basic = self.basic.without(basic);
        if let Shape::OneOf(types) = &self.shape {
            let types = types.iter().cloned().map(|ty| ty.without(basic)).filter(|ty| !ty.basic.is_none());
            self.shape = Shape::OneOf(Rc::new(types.collect()));
        }
        self
    }

    /// Sets the path from which the value was read.
    #[must_use]
    pub fn read_from(mut self, origin: Option<Rc<str>>) -> Self {
        self.origin = origin;
        self
    }

    /// Sets the location where the value is written.
    #[must_use]
    pub fn written(mut self, at: Location) -> Self {
        self.at = Some(at);
        self
    }

    /// The text of a literal string.
    pub fn as_text(&self) -> Option<&str> {
        match &self.shape {
            Shape::Literal(value) => value.as_str(),
            _ => None,
        }
    }

    /// The type of a field.
    pub fn member(&self, key: &str) -> Member<'a> {
        match &self.shape {
            Shape::Schema(schema) if !schema.basic().overlaps(Basic::MAP) || schema.basic().is_any() => {
                Member::Unknown
            }
            Shape::Schema(schema) => match schema.field(key) {
                Lookup::Known(found) => Member::Found(Self::of_schema(found)),
                Lookup::Unknown(names) => Member::Missing(names.into_iter().map(str::to_owned).collect()),
                Lookup::Open => Member::Unknown,
            },
            Shape::Each(item) if self.basic.contains(Basic::MAP) => Member::Found((**item).clone()),
            Shape::Unknown | Shape::Literal(_) | Shape::List(_) | Shape::Each(_) => Member::Unknown,
            Shape::Map(fields) => {
                let mut found: Vec<Self> =
                    fields.entries.iter().filter(|f| f.key == key).map(|f| f.value.clone()).collect();
                match found.pop() {
                    // The last entry takes precedence.
                    Some(last) => Member::Found(last),
                    None if fields.is_open => Member::Unknown,
                    None => Member::Missing(fields.entries.iter().map(|field| field.key.clone()).collect()),
                }
            }
            Shape::OneOf(types) => {
                let mut found = Vec::new();
                let mut names = Vec::new();
                for ty in types.iter().filter(|ty| ty.basic.value().overlaps(Basic::MAP)) {
                    match ty.member(key) {
                        Member::Found(ty) => found.push(ty),
                        Member::Missing(missing) => names.extend(missing),
                        Member::Unknown => return Member::Unknown,
                    }
                }
                match (found.is_empty(), names.is_empty()) {
                    (true, false) => Member::Missing(names),
                    (false, true) => Member::Found(Self::one_of(found)),
                    // If one alternative does not have the field, the result is uncertain.
                    (true, true) | (false, false) => Member::Unknown,
                }
            }
        }
    }

    /// The type of an item of a list, or of a value of a map.
    #[must_use]
    pub fn item(&self) -> Self {
        match &self.shape {
            Shape::Unknown | Shape::Literal(_) => Self::any(),
            Shape::Schema(schema) => {
                let below =
                    if schema.basic().contains(Basic::LIST) { schema.items() } else { schema.values() };
                below.filter(|_| !schema.basic().is_any()).map_or_else(Self::any, Self::of_schema)
            }
            Shape::Each(item) => (**item).clone(),
            Shape::List(items) if items.is_empty() => Self::any(),
            Shape::List(items) => Self::one_of(items.to_vec()),
            Shape::Map(fields) if fields.is_open || fields.entries.is_empty() => Self::any(),
            Shape::Map(fields) => Self::one_of(fields.entries.iter().map(|f| f.value.clone()).collect()),
            Shape::OneOf(types) => Self::one_of(types.iter().map(Self::item).collect()),
        }
    }
}
