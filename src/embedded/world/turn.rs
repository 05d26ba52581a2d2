//! One call: its variables, and the state that it changes. Nothing is kept of a call that fails.

use std::sync::Arc;
use std::time::Duration;

use operetta_lang::diag::Diagnostic;
use operetta_lang::template::{EvalError, Expr, Scope, Text, Var, json_bytes};
use operetta_package::Tree;
use operetta_package::decode::At;
use operetta_package::plan::parse_duration;
use serde_json::{Map, Value};

use super::pattern::Captures;
use super::rules::{Change, Operation, Place, Rules};

/// The most bytes of a state.
const MOST_STATE: usize = 4 << 20;

/// The code of results that have no use.
const VALUE: &str = "world::value";

pub(super) type Outcome<T> = Result<T, Box<Diagnostic>>;

/// A call.
pub(super) struct Turn<'r> {
    rules: &'r Rules,
    /// The variables of the call.
    base: Scope,
    /// The variables of the call and the captures of the rule that is tried.
    rule: Scope,
    /// The variables of the rule with the present state.
    scope: Scope,
    pub(super) state: Value,
    pub(super) shared: Value,
}

impl<'r> Turn<'r> {
    pub(super) fn new(rules: &'r Rules, base: &Scope, state: Value, shared: Value) -> Self {
        let base = base.with("let", Var::Lets(Arc::clone(&rules.lets)));
        let mut turn = Self { rules, rule: base.clone(), scope: base.clone(), base, state, shared };
        turn.refresh();
        turn
    }

    /// Makes the changed state visible.
    fn refresh(&mut self) {
        let state = Var::Shared(Arc::new(self.state.clone()));
        self.scope =
            self.rule.with("state", state).with("shared", Var::Shared(Arc::new(self.shared.clone())));
    }

    /// Begins a rule with the values of its captures.
    pub(super) fn begin(&mut self, captures: Captures) {
        let vars = |scope: Scope, (name, value): (String, String)| scope.with(&name, Var::Json(value.into()));
        self.rule = captures.into_iter().fold(self.base.clone(), vars);
        self.refresh();
    }

    /// Whether a rule applies.
    pub(super) fn holds(&self, when: Option<&At<Expr>>) -> Outcome<bool> {
        self.holds_in(when, &self.scope)
    }

    fn holds_in(&self, when: Option<&At<Expr>>, scope: &Scope) -> Outcome<bool> {
        let Some(when) = when else { return Ok(true) };
        self.rules.engine.holds(&when.value, scope).map_err(|error| failed(&error, when))
    }

    /// The value of a template; `None` if it is `omit`.
    pub(super) fn value(&self, text: &At<Text>) -> Outcome<Option<Value>> {
        self.rules.engine.eval_text(&text.value, &self.scope).map_err(|error| failed(&error, text))
    }

    /// The text of a template, which is empty without one. Lists and maps are JSON.
    pub(super) fn text(&self, text: Option<&At<Text>>) -> Outcome<String> {
        let Some(text) = text else { return Ok(String::new()) };
        Ok(match self.value(text)? {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        })
    }

    /// The value of a tree.
    pub(super) fn tree(&self, tree: &At<Tree>) -> Outcome<Option<Value>> {
        self.tree_in(&tree.value, &self.scope, tree)
    }

    fn tree_in<T>(&self, tree: &Tree, scope: &Scope, at: &At<T>) -> Outcome<Option<Value>> {
        tree.eval(&self.rules.engine, scope).map_err(|error| failed(&error, at))
    }

    /// A number between two others.
    pub(super) fn number(
        &self,
        text: Option<&At<Text>>,
        default: u16,
        (least, most): (u16, u16),
    ) -> Outcome<u16> {
        let Some(text) = text else { return Ok(default) };
        let value = self.value(text)?.unwrap_or_default();
        let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| Box::new(text.error(VALUE, format!("must be a number from {least} to {most}"))))
    }

    /// A duration.
    pub(super) fn time(&self, text: Option<&At<Text>>) -> Outcome<Option<Duration>> {
        let Some(text) = text else { return Ok(None) };
        let Some(value) = self.value(text)? else { return Ok(None) };
        let time = value.as_str().and_then(|text| parse_duration(text).ok());
        time.map(Some).ok_or_else(|| {
            let error = text.error(VALUE, "must be a duration");
            Box::new(error.help("a duration is a number with a unit (ms, s, m, h, d), for example 10s"))
        })
    }

    /// Makes changes, each visible to those after it.
    pub(super) fn apply(&mut self, changes: &[Change]) -> Outcome<()> {
        for change in changes {
            let Some((list, name)) = &change.each else {
                self.change(change, &self.scope.clone())?;
                continue;
            };
            let items =
                self.rules.engine.items(&list.value, &self.scope).map_err(|error| failed(&error, list))?;
            for item in items {
                self.change(change, &self.scope.with(name, Var::Json(item)))?;
            }
        }
        Ok(())
    }

    fn change(&mut self, change: &Change, scope: &Scope) -> Outcome<()> {
        if !self.holds_in(change.when.as_ref(), scope)? {
            return Ok(());
        }
        let place = match &change.operation {
            Operation::Set(entries) => {
                let values = entries.iter().map(|(place, tree)| self.tree_in(tree, scope, &place.located()));
                let values = values.collect::<Outcome<Vec<_>>>()?;
                for ((place, _), value) in entries.iter().zip(values) {
                    set(self.root(place), place, value.as_ref())?;
                }
                entries.first().map(|(place, _)| place)
            }
            Operation::Add(place, item) => {
                let item = self.tree_in(item, scope, &place.located())?;
                match get(self.root(place), &place.keys) {
                    Some(Value::Array(items)) => items.extend(item),
                    _ => return Err(place.fault(format!("`{}` is not a list", place.text))),
                }
                Some(place)
            }
            Operation::Remove(place, which) => {
                let found = self.each(place, |turn, item, key| {
                    Ok(if turn.holds_in(which.as_ref(), &inner(scope, &item, key))? {
                        None
                    } else {
                        Some(item)
                    })
                })?;
                set(self.root(place), place, Some(&found))?;
                Some(place)
            }
            Operation::Change(place, which, fields) => {
                let found = self.each(place, |turn, mut item, key| {
                    let scope = inner(scope, &item, key);
                    if turn.holds_in(which.as_ref(), &scope)? {
                        let values =
                            fields.iter().map(|(field, tree)| turn.tree_in(tree, &scope, &field.located()));
                        for ((field, _), value) in fields.iter().zip(values.collect::<Outcome<Vec<_>>>()?) {
                            set(&mut item, field, value.as_ref())?;
                        }
                    }
                    Ok(Some(item))
                })?;
                set(self.root(place), place, Some(&found))?;
                Some(place)
            }
        };
        if let Some(place) = place
            && json_bytes(&self.state).max(json_bytes(&self.shared)) > MOST_STATE
        {
            return Err(place.fault(format!("the state exceeds {} MiB", MOST_STATE >> 20)));
        }
        self.refresh();
        Ok(())
    }

    fn root(&mut self, place: &Place) -> &mut Value {
        if place.is_shared { &mut self.shared } else { &mut self.state }
    }

    /// The list or map at a place, with each of its values changed; `None` removes one.
    fn each(
        &mut self,
        place: &Place,
        change: impl Fn(&Self, Value, &Value) -> Outcome<Option<Value>>,
    ) -> Outcome<Value> {
        let found = get(self.root(place), &place.keys).cloned();
        match found {
            Some(Value::Array(items)) => {
                let items = items.into_iter().filter_map(|item| change(self, item, &Value::Null).transpose());
                items.collect::<Outcome<Vec<_>>>().map(Value::Array)
            }
            Some(Value::Object(entries)) => {
                let entries = entries.into_iter().filter_map(|(key, item)| {
                    let item = change(self, item, &Value::from(&*key)).transpose()?;
                    Some(item.map(|item| (key, item)))
                });
                entries.collect::<Outcome<Map<_, _>>>().map(Value::Object)
            }
            _ => Err(place.fault(format!("`{}` is neither a list nor a map", place.text))),
        }
    }
}

/// The scope of an item.
fn inner(scope: &Scope, item: &Value, key: &Value) -> Scope {
    let scope = scope.with("item", Var::Json(item.clone()));
    if key.is_null() { scope } else { scope.with("key", Var::Json(key.clone())) }
}

impl Place {
    fn located(&self) -> At<()> {
        At { value: (), at: self.at.clone(), path: self.path.clone() }
    }

    fn fault(&self, message: String) -> Box<Diagnostic> {
        Box::new(self.located().error(VALUE, message))
    }
}

/// The value at keys.
fn get<'v>(root: &'v mut Value, keys: &[String]) -> Option<&'v mut Value> {
    keys.iter().try_fold(root, |value, key| value.get_mut(key))
}

/// Sets the value at a place, or removes it. Maps that are missing are added.
fn set(root: &mut Value, place: &Place, value: Option<&Value>) -> Outcome<()> {
    let mut at = root;
    let Some((last, parents)) = place.keys.split_last() else { return Ok(()) };
    for key in parents.iter().map(Some).chain([None]) {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(entries) = at else {
            return Err(place.fault(format!("`{}` is below a value that is no map", place.text)));
        };
        match (key, value) {
            (Some(key), _) => at = entries.entry(key).or_insert(Value::Null),
            (None, Some(value)) => {
                entries.insert(last.clone(), value.clone());
                break;
            }
            (None, None) => {
                entries.remove(last);
                break;
            }
        }
    }
    Ok(())
}

/// The fault of an expression.
pub(super) fn failed<T>(error: &EvalError, at: &At<T>) -> Box<Diagnostic> {
    let mut diagnostic = error.to_diagnostic();
    diagnostic.location.get_or_insert_with(|| at.at.clone());
    diagnostic.path.get_or_insert_with(|| at.path.clone());
    Box::new(diagnostic)
}
