//! A value whose strings are templates.

use serde_json::Value;

use crate::template::{Engine, EvalError, Scope, Text};

/// A value whose strings are templates.
#[derive(Debug, Clone)]
pub enum Tree {
    /// A template, or a constant.
    Text(Text),
    /// A list.
    List(Vec<Tree>),
    /// A map.
    Map(Vec<(String, Tree)>),
}

impl Tree {
    /// The value, without omitted parts.
    ///
    /// # Errors
    /// One of the templates has no value.
    pub fn eval(&self, engine: &Engine, scope: &Scope) -> Result<Option<Value>, EvalError> {
        Ok(Some(match self {
            Self::Text(text) => return engine.eval_text(text, scope),
            Self::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    list.extend(item.eval(engine, scope)?);
                }
                Value::Array(list)
            }
            Self::Map(entries) => {
                let mut map = serde_json::Map::new();
                for (key, value) in entries {
                    if let Some(value) = value.eval(engine, scope)? {
                        map.insert(key.clone(), value);
                    }
                }
                Value::Object(map)
            }
        }))
    }

    /// The templates at its leaves.
    pub fn texts<'a>(&'a self, out: &mut Vec<&'a Text>) {
        match self {
            Self::Text(text) => out.push(text),
            Self::List(items) => items.iter().for_each(|item| item.texts(out)),
            Self::Map(entries) => entries.iter().for_each(|(_, value)| value.texts(out)),
        }
    }
}
