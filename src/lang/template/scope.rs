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
    /// A large JSON value, of which only the parts that are read are converted.
    Shared(Arc<Value>),
    /// A live object.
    Object(Live),
    /// The live objects of a `forEach` child, in the order of its items. Keys keep their type.
    Map(Vec<(Value, Live)>),
    /// A map with any values, some of which may be unknown.
    Keyed(Vec<(Value, Var)>),
    /// A list.
    List(Vec<Var>),
    /// Variables below this one by name, for example all of `children`.
    Vars(BTreeMap<String, Var>),
    /// A value that could not be read, with the reason. Expressions that read it have no value.
    Unknown(String),
    /// An undefined value.
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
    /// Whether the desired object was rendered from the newest spec: `is current`.
    pub current: bool,
    /// Whether it is kept although nothing desires it any more. A kept object does not affect `is ready` and
    /// `is current` of its child.
    pub kept: bool,
}

/// A function that expressions can call. An error contains the message.
#[derive(Clone)]
pub struct Function(pub(super) Arc<Callable>);

type Callable = dyn Fn(&[Value]) -> Result<Var, String> + Send + Sync;

impl Function {
    /// Creates a function from a Rust function, which must be pure: equal arguments give equal values.
    pub fn new(call: impl Fn(&[Value]) -> Result<Value, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |args| call(args).map(Var::Json)))
    }

    /// Creates a function whose result may be unknown.
    pub fn asking(call: impl Fn(&[Value]) -> Result<Var, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

/// Named texts that are evaluated when they are read, in the scope of the reader, once for that scope.
#[derive(Debug)]
pub struct Lets {
    entries: BTreeMap<String, Let>,
}

#[derive(Debug)]
struct Let {
    text: Text,
    /// The variables that it reads, directly or through other lets.
    roots: BTreeSet<String>,
}

impl Lets {
    /// Creates lets from names and texts. Of equal names the last one counts.
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

    /// All lets, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Text)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), &entry.text))
    }

    /// A cycle of lets, if there is one: `[a, b, a]`. It may never be evaluated because of conditions; if it
    /// is, evaluation reports it.
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
        // The bound protects the stack from a long chain of lets, which evaluation refuses anyway.
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
            // `let[x]` may read any let.
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
    /// The evaluated lets. The flag says whether one was evaluated for a decision, because then a field that
    /// is absent from a status has another value.
    memo: Mutex<BTreeMap<(Name, bool), Val>>,
    /// Whether all evaluations are for a decision.
    decides: bool,
}

impl Layer {
    fn new(vars: Vec<(Name, Val)>, parent: Option<Scope>, budget: budget::Shared) -> Self {
        let decides = parent.as_ref().is_some_and(Scope::decides);
        Self { vars, parent, budget, memo: Mutex::default(), decides }
    }
}

impl Default for Scope {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Scope {
    /// Writes only the names, because values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl Scope {
    /// Creates a scope without variables.
    pub fn new() -> Self {
        Self(Arc::new(Layer::new(Vec::new(), None, None)))
    }

    /// Creates a scope without variables. All evaluations in it and in scopes derived from it share a budget.
    pub fn within(budget: Arc<Budget>) -> Self {
        Self(Arc::new(Layer::new(Vec::new(), None, Some(budget))))
    }

    pub(super) fn budget(&self) -> &budget::Shared {
        &self.0.budget
    }

    /// A scope with the same variables. Evaluations in it and in scopes derived from it have another budget.
    #[must_use]
    pub fn with_budget(&self, budget: Arc<Budget>) -> Self {
        Self(Arc::new(Layer::new(Vec::new(), Some(self.clone()), Some(budget))))
    }

    /// A derived scope with one more or one changed variable. Lets that do not read that variable are not
    /// evaluated again.
    #[must_use]
    pub fn with(&self, name: &str, value: Var) -> Self {
        self.layer(vec![(name.into(), convert(name, value))])
    }

    pub(super) fn layer(&self, vars: Vec<(Name, Val)>) -> Self {
        Self(Arc::new(Layer::new(vars, Some(self.clone()), self.0.budget.clone())))
    }

    /// A scope with the same variables in which each evaluation decides something, as [`super::Engine::truthy`] does: a field
    /// that is absent from the status of a live object is unknown.
    #[must_use]
    pub fn deciding(&self) -> Self {
        let layer = Layer::new(Vec::new(), Some(self.clone()), self.0.budget.clone());
        Self(Arc::new(Layer { decides: true, ..layer }))
    }

    pub(super) fn decides(&self) -> bool {
        self.0.decides
    }

    /// Sets a variable in this scope. Other copies of the scope are not affected.
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

    /// The outermost layer in which a let has the same value as in this scope.
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

/// Creates a variable, which is unknown if it is nested too deep.
fn built(path: &str, value: super::errors::Res<Val>) -> Val {
    value.unwrap_or_else(|_| {
        let reason = "it is nested too deep".to_owned();
        Val::Unknown(Arc::new(Unknown { path: path.to_owned(), reason, absent: false }))
    })
}
