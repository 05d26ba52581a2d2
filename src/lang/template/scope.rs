//! Variables of expressions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::budget::{self, Budget};
use super::reads::Segment;
use super::text::Text;
use super::value::{Flags, LiveVal, Name, Unknown, Val};

/// The value of a variable.
#[derive(Debug, Clone)]
pub enum Var {
    /// A JSON value. It is converted once for all scopes that are derived from this one.
    Json(Value),
    /// A large JSON value; only the parts that are read are converted.
    Shared(Arc<Value>),
    /// A live object.
    Object(Live),
    /// The live objects of a `forEach` child, in the order of its items. Keys keep their type.
    Map(Vec<(Value, Live)>),
    /// A map with any values, some of which may be unknown.
    Keyed(Vec<(Value, Var)>),
    /// A list.
    List(Vec<Var>),
    /// Named variables below this one, for example all of `children`.
    Vars(BTreeMap<String, Var>),
    /// A value that could not be read, with the reason. Expressions that read it have no value.
    Unknown(String),
    /// Nothing.
    Undefined,
    /// A callable value, for example `cluster.has`.
    Function(Function),
    /// Named values that are evaluated when they are read.
    Lets(Arc<Lets>),
}

/// A live object of the cluster.
#[derive(Debug, Clone)]
pub struct Live {
    /// The object.
    pub value: Arc<Value>,
    /// Whether it is ready: `is ready`.
    pub ready: bool,
    /// Whether its desired object is what the newest spec renders: `is current`.
    pub current: bool,
    /// Whether it is kept although nothing desires it. Then `is ready` and `is current` of all objects of its child do not
    /// depend on it.
    pub kept: bool,
}

/// A function that expressions can call. An error contains the message.
#[derive(Clone)]
pub struct Function(pub(super) Arc<Callable>);

type Callable = dyn Fn(&[Value]) -> Result<Var, String> + Send + Sync;

impl Function {
    /// A Rust function. It must be pure: equal arguments give equal values.
    pub fn new(call: impl Fn(&[Value]) -> Result<Value, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |args| call(args).map(Var::Json)))
    }

    /// A function whose result may be unknown.
    pub fn asking(call: impl Fn(&[Value]) -> Result<Var, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

/// Named texts, evaluated when they are read, in the scope of the reader, once for that scope.
#[derive(Debug)]
pub struct Lets {
    entries: BTreeMap<String, Let>,
}

#[derive(Debug)]
struct Let {
    text: Text,
    /// The variables that it reads, also through other lets.
    roots: BTreeSet<String>,
}

impl Lets {
    /// Lets with these names and texts; of equal names the last.
    pub fn new(entries: impl IntoIterator<Item = (String, Text)>) -> Self {
        let texts: BTreeMap<String, Text> = entries.into_iter().collect();
        let direct: BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> =
            texts.iter().map(|(name, text)| (name.clone(), direct_reads(text, &texts))).collect();
        let entries = texts
            .into_iter()
            .map(|(name, text)| {
                let mut roots = BTreeSet::new();
                let mut seen = BTreeSet::from([name.clone()]);
                let mut queue = vec![name.clone()];
                while let Some(next) = queue.pop() {
                    if let Some((variables, lets)) = direct.get(&next) {
                        roots.extend(variables.iter().cloned());
                        queue.extend(lets.iter().filter(|name| seen.insert((*name).clone())).cloned());
                    }
                }
                (name, Let { text, roots })
            })
            .collect();
        Self { entries }
    }

    /// The text of that name.
    pub fn get(&self, name: &str) -> Option<&Text> {
        self.entries.get(name).map(|entry| &entry.text)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Text)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), &entry.text))
    }

    /// A cycle of lets, if there is one: `[a, b, a]`. A cycle behind conditions may never be evaluated; evaluation
    /// reports it otherwise.
    pub fn cycle(&self) -> Option<Vec<String>> {
        let mut done = BTreeSet::new();
        self.entries.keys().find_map(|name| self.walk(name, &mut Vec::new(), &mut done))
    }

    fn walk(&self, name: &str, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|step| step == name) {
            let mut cycle = path[start..].to_vec();
            cycle.push(name.to_owned());
            return Some(cycle);
        }
        // The bound keeps a long chain of lets off the stack; evaluation refuses such a chain anyway.
        if done.contains(name) || path.len() > 200 {
            return None;
        }
        path.push(name.to_owned());
        for read in &self.get(name)?.reads().paths {
            if let ("let", [Segment::Key(next), ..]) = (read.root.as_str(), read.segments.as_slice())
                && let Some(cycle) = self.walk(next, path, done)
            {
                return Some(cycle);
            }
        }
        path.pop();
        done.insert(name.to_owned());
        None
    }
}

/// The variables and the lets that a text reads.
fn direct_reads(text: &Text, all: &BTreeMap<String, Text>) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut variables, mut lets) = (BTreeSet::from(["let".to_owned()]), BTreeSet::new());
    for read in &text.reads().paths {
        match (read.root.as_str(), read.segments.first()) {
            ("let", Some(Segment::Key(name))) => {
                lets.insert(name.clone());
            }
            // `let[x]` may be any of them.
            ("let", _) => lets.extend(all.keys().cloned()),
            (root, _) => {
                variables.insert(root.to_owned());
            }
        }
    }
    (variables, lets)
}

/// The variables of an evaluation. Copies are cheap and share their values.
#[derive(Clone)]
pub struct Scope(Arc<Layer>);

struct Layer {
    vars: Vec<(Name, Val)>,
    parent: Option<Scope>,
    /// The shared budget of evaluations.
    budget: budget::Shared,
    /// The evaluated lets, and whether they were evaluated for a decision: a field that is absent from a status has
    /// another value then.
    memo: Mutex<BTreeMap<(Name, bool), Val>>,
}

impl Default for Scope {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Scope {
    /// Names only, because values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl Scope {
    /// No variables.
    pub fn new() -> Self {
        Self(Arc::new(Layer { vars: Vec::new(), parent: None, budget: None, memo: Mutex::default() }))
    }

    /// No variables; all evaluations in it, and in derived scopes, share a budget.
    pub fn within(budget: Arc<Budget>) -> Self {
        let layer = Layer { vars: Vec::new(), parent: None, budget: Some(budget), memo: Mutex::default() };
        Self(Arc::new(layer))
    }

    pub(super) fn budget(&self) -> &budget::Shared {
        &self.0.budget
    }

    /// The same variables; evaluations in it, and in scopes that are derived from it, have another budget.
    #[must_use]
    pub fn with_budget(&self, budget: Arc<Budget>) -> Self {
        let (vars, parent) = (Vec::new(), Some(self.clone()));
        Self(Arc::new(Layer { vars, parent, budget: Some(budget), memo: Mutex::default() }))
    }

    /// A derived scope with one more or one changed variable. Lets that do not read that variable stay evaluated.
    #[must_use]
    pub fn with(&self, name: &str, value: Var) -> Self {
        self.layer(vec![(name.into(), convert(name, value))])
    }

    pub(super) fn layer(&self, vars: Vec<(Name, Val)>) -> Self {
        let budget = self.0.budget.clone();
        Self(Arc::new(Layer { vars, parent: Some(self.clone()), budget, memo: Mutex::default() }))
    }

    /// Sets a variable here. Other copies of this scope are not affected.
    pub fn set(&mut self, name: &str, value: Var) {
        let value = convert(name, value);
        let Some(layer) = Arc::get_mut(&mut self.0) else {
            *self = self.layer(vec![(name.into(), value)]);
            return;
        };
        layer.memo.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        match layer.vars.iter_mut().find(|(known, _)| &**known == name) {
            Some(entry) => entry.1 = value,
            None => layer.vars.push((name.into(), value)),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Val> {
        let mut scope = self;
        loop {
            if let Some((_, value)) = scope.0.vars.iter().find(|(known, _)| &**known == name) {
                return Some(value);
            }
            scope = scope.0.parent.as_ref()?;
        }
    }

    /// The names of the variables, sorted.
    pub fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut scope = Some(self);
        while let Some(at) = scope {
            names.extend(at.0.vars.iter().map(|(name, _)| name.to_string()));
            scope = at.0.parent.as_ref();
        }
        names
    }

    /// The outermost layer in which that let has the same value as here.
    pub(super) fn layer_of(&self, lets: &Lets, name: &str) -> &Self {
        let mut scope = self;
        let Some(entry) = lets.entries.get(name) else { return scope };
        while let Some(parent) = &scope.0.parent {
            if scope.0.vars.iter().any(|(name, _)| entry.roots.contains(&**name)) {
                break;
            }
            scope = parent;
        }
        scope
    }

    pub(super) fn remembered(&self, name: &Name, decides: bool) -> Option<Val> {
        let memo = self.0.memo.lock().unwrap_or_else(PoisonError::into_inner);
        memo.get(&(Arc::clone(name), decides)).cloned()
    }

    pub(super) fn remember(&self, name: &Name, decides: bool, value: Val) {
        let mut memo = self.0.memo.lock().unwrap_or_else(PoisonError::into_inner);
        memo.insert((Arc::clone(name), decides), value);
    }

    /// The identity of the layer.
    pub(super) fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

pub(super) fn convert(path: &str, var: Var) -> Val {
    let live = |Live { value, ready, current, kept }: Live| {
        Val::Live(Arc::new(LiveVal::new(value, Some(Flags { ready, current, kept }))))
    };
    match var {
        Var::Json(value) => Val::from_json(&value),
        Var::Shared(value) => Val::Live(Arc::new(LiveVal::new(value, None))),
        Var::Object(object) => live(object),
        Var::Map(entries) => {
            let entries = entries.into_iter().map(|(key, object)| (Val::from_json(&key), live(object)));
            built(path, Val::keyed(entries.collect()))
        }
        Var::Keyed(entries) => {
            let entries = entries.into_iter().map(|(key, value)| {
                let value = convert(&format!("{path}[{key}]"), value);
                (Val::from_json(&key), value)
            });
            built(path, Val::keyed(entries.collect()))
        }
        Var::List(items) => {
            let items = items.into_iter().enumerate().map(|(i, item)| convert(&format!("{path}[{i}]"), item));
            built(path, Val::list(items.collect()))
        }
        Var::Vars(vars) => {
            let vars = vars.into_iter().map(|(name, value)| {
                let value = convert(&format!("{path}.{name}"), value);
                (Name::from(name), value)
            });
            built(path, Val::map(vars.collect()))
        }
        Var::Unknown(reason) => {
            Val::Unknown(Arc::new(Unknown { path: path.to_owned(), reason, absent: false }))
        }
        Var::Undefined => Val::Undefined,
        Var::Function(function) => Val::Function(function),
        Var::Lets(lets) => Val::Lets(lets),
    }
}

/// A variable; nested too deep it is unknown.
fn built(path: &str, value: super::errors::Res<Val>) -> Val {
    value.unwrap_or_else(|_| {
        let reason = "it is nested too deep".to_owned();
        Val::Unknown(Arc::new(Unknown { path: path.to_owned(), reason, absent: false }))
    })
}
