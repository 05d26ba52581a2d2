//! `render(package revision, spec, children)`: which objects an instance should have now.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::intent::{self, Intent};
use super::observed::{ObjectRef, Observed};
use super::refs::Refs;
use super::{ChildError, Context, MAX_CHILDREN, accepted, exceeds, is_covered, jobs, names};
use crate::package::{Child, Yields};
use crate::readiness::Readiness;
use crate::template::{EvalError, Expr, Function, Live, Scope, Var};

/// One object of the target, or why it cannot be told.
#[derive(Debug, Clone)]
pub struct Item {
    /// Index of the child in the resource.
    pub child: usize,
    /// `id` or `id[key]`.
    pub name: String,
    /// The `forEach` key, with its type.
    pub key: Option<Value>,
    /// What it should be.
    pub intent: Result<Intent, ChildError>,
    /// The live object, if there is one.
    pub observed: Option<Arc<Observed>>,
    /// Why it is not ready; `Ok` if it is.
    pub ready: Result<(), String>,
    /// A Job that has completed and is gone, or is going: nothing more is made of it.
    pub done: bool,
    /// Whether there is nothing to apply, so that its body is not kept.
    pub needs_no_body: bool,
    /// Whether its body was too much to be kept beside the others: it comes when they are written.
    pub is_later: bool,
}

impl Item {
    /// Whether the live object was last applied with this very intent.
    pub fn is_current(&self) -> bool {
        match (&self.intent, &self.observed) {
            (Ok(intent), Some(observed)) => {
                observed.intent.as_deref() == Some(&intent.hash) && !observed.terminating
            }
            (Ok(_), None) => self.done,
            _ => false,
        }
    }
}

/// What an instance should consist of.
#[derive(Debug)]
pub struct Target {
    /// Its objects, dependencies first.
    pub items: Vec<Item>,
    /// Children of which not even the number can be told, by index.
    pub open: BTreeMap<usize, ChildError>,
    /// The scope with all live children, for `status`, `readyWhen` and conditions.
    pub scope: Scope,
    /// What its refs name, and what is wrong with them.
    pub(super) refs: Refs,
}

/// About how many times its size live JSON takes once it is parsed.
const LIVE_FACTOR: usize = 4;

/// Computes the target. Once the budget of the context is exceeded, nothing more is evaluated and what is there
/// is not the whole.
pub fn target(ctx: &Context<'_>) -> Target {
    ctx.budget.about("the instance");
    let live: usize = ctx.observed.iter().filter_map(|o| Some(o.live.as_ref()?.len())).sum();
    if !ctx.budget.charge(ctx.instance) || !ctx.budget.charge_bytes(live.saturating_mul(LIVE_FACTOR)) {
        let (items, open, refs) = (Vec::new(), BTreeMap::new(), Refs::default());
        return Target { items, open, scope: Scope::within(Arc::clone(&ctx.budget)), refs };
    }
    let mut building = Building::new(ctx);
    for (index, child) in ctx.resource.children.iter().enumerate() {
        building.child(index, child);
    }
    refuse_twins(&mut building.items);
    for (index, child) in ctx.resource.children.iter().enumerate() {
        if !building.open.contains_key(&index) {
            let from = building.items.partition_point(|item| item.child < index);
            let to = building.items.partition_point(|item| item.child <= index);
            let var = building.computed_var(child, &building.items[from..to]);
            building.vars.insert(child.id.clone(), var);
        }
    }
    let scope = building.scope();
    Target { items: building.items, open: building.open, scope, refs: building.refs }
}

/// Two items that are one object would apply it in turn for ever. Neither has it: which of them is meant
/// nobody can tell, and the live object stays as it is.
fn refuse_twins(items: &mut [Item]) {
    let mut first: HashMap<ObjectRef, usize> = HashMap::new();
    let mut twins: Vec<(usize, usize)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Ok(intent) = &item.intent else { continue };
        match first.entry(intent.object.clone()) {
            Entry::Occupied(other) => twins.push((*other.get(), index)),
            Entry::Vacant(free) => {
                free.insert(index);
            }
        }
    }
    for (one, other) in twins {
        for (index, twin) in [(one, other), (other, one)] {
            let twin = items[twin].name.clone();
            if let Ok(intent) = &items[index].intent {
                let message =
                    format!("renders {}, and so does {twin}; give them different names", intent.object);
                items[index].intent = Err(ChildError::Invalid { message });
            }
        }
    }
}

/// The live objects of one child, by key: a thousand members are looked up, not searched through.
#[derive(Default)]
struct Made<'a>(BTreeMap<Option<&'a str>, Vec<&'a Arc<Observed>>>);

impl<'a> Made<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Arc<Observed>> + '_ {
        self.0.values().flatten().copied()
    }
}

struct Building<'a> {
    ctx: &'a Context<'a>,
    base: Scope,
    /// `children.<id>` so far: what is observed, and for children already computed whether it is current.
    vars: BTreeMap<String, Var>,
    /// The scope of children that read no other child; made once.
    plain: Scope,
    by_child: HashMap<&'a str, Made<'a>>,
    by_object: HashMap<&'a ObjectRef, &'a Arc<Observed>>,
    /// What expressions read of each.
    values: HashMap<&'a ObjectRef, Arc<Value>>,
    items: Vec<Item>,
    open: BTreeMap<usize, ChildError>,
    /// Children whose `when` is false.
    unwanted: BTreeSet<usize>,
    refs: Refs,
    /// By annotation: nothing will be applied.
    is_paused: bool,
}

impl<'a> Building<'a> {
    fn new(ctx: &'a Context<'a>) -> Self {
        // What bears an id of an earlier version belongs to the child that was renamed from it.
        let renamed: HashMap<&str, &str> = ctx
            .resource
            .children
            .iter()
            .flat_map(|child| child.renamed_from.iter().map(|id| (id.as_str(), child.id.as_str())))
            .collect();
        let mut by_child: HashMap<&str, Made<'_>> = HashMap::new();
        for observed in ctx.observed.iter().filter(|o| o.is_made_by_us()) {
            let id = renamed.get(&*observed.child).copied().unwrap_or(&observed.child);
            let made = by_child.entry(id).or_default().0.entry(observed.key.as_deref()).or_default();
            // One object, seen in two versions: it is what the child asks for.
            match made.iter_mut().find(|twin| twin.uid == observed.uid) {
                None => made.push(observed),
                Some(twin) if asks_for(ctx, id, observed) => *twin = observed,
                Some(_) => {}
            }
        }
        let base = base_scope(ctx);
        let mut building = Self {
            ctx,
            plain: base.clone(),
            base,
            vars: BTreeMap::new(),
            by_child,
            by_object: ctx.observed.iter().map(|o| (&o.object, o)).collect(),
            values: ctx.observed.iter().map(|o| (&o.object, Arc::new(value_of(o)))).collect(),
            items: Vec::new(),
            open: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            refs: Refs::default(),
            is_paused: ctx.instance["metadata"]["annotations"][names::PAUSED].as_str() == Some("true"),
        };
        for child in &ctx.resource.children {
            let var = building.observed_var(child);
            building.vars.insert(child.id.clone(), var);
        }
        if !ctx.resource.refs.is_empty() {
            building.refs = Refs::of(ctx, &building.scope());
            building.base = building.base.with("refs", Var::Vars(std::mem::take(&mut building.refs.vars)));
        }
        building.plain = building.scope();
        building
    }

    fn scope(&self) -> Scope {
        self.base.with("children", Var::Vars(self.vars.clone()))
    }

    fn child(&mut self, index: usize, child: &'a Child) {
        let scope = if child.depends_on.is_empty() { self.plain.clone() } else { self.scope() };
        let from = self.items.len();
        self.ctx.budget.about(&child.id);
        let result = match &child.for_each {
            None => self.single(index, child, &scope),
            Some(_) => self.members(index, child, &scope),
        };
        if let Err(error) = result {
            self.items.truncate(from);
            self.open.insert(index, self.explained(child, error));
            return;
        }
        if child.ordered {
            let var = self.computed_var(child, &self.items[from..]);
            self.vars.insert(child.id.clone(), var);
        }
    }

    fn single(&mut self, index: usize, child: &'a Child, scope: &Scope) -> Result<(), ChildError> {
        if self.wanted(child, scope)? {
            let item = self.item(index, child, None, scope);
            self.push(item)?;
        } else {
            self.unwanted.insert(index);
        }
        Ok(())
    }

    /// An error of a child that reads another one, whose `when` is false: that is the cause.
    fn explained(&self, child: &Child, error: ChildError) -> ChildError {
        let ChildError::Eval(EvalError::Undefined(diagnostic) | EvalError::NotYet(diagnostic)) = &error
        else {
            return error;
        };
        let dependencies = child.depends_on.iter().filter(|index| self.unwanted.contains(index));
        let mut absent = dependencies.map(|index| &self.ctx.resource.children[*index]);
        let text = format!("{} {}", diagnostic.message, diagnostic.help.as_deref().unwrap_or_default());
        let is_named = |other: &&Child| {
            text.contains(&format!("children.{}", other.id))
                || text.contains(&format!("the child `{}`", other.id))
        };
        let Some(other) = absent.find(is_named) else { return error };
        let when =
            other.when.as_ref().and_then(Expr::text).map(|when| format!(" ({when})")).unwrap_or_default();
        let (id, other) = (&child.id, &other.id);
        let message = format!(
            "{}: the child `{other}` does not exist because its `when`{when} is false; the package must give `{id}` \
             the same `when`, or `when: children.{other} is defined`",
            diagnostic.message
        );
        ChildError::DependencyAbsent { message }
    }

    fn members(&mut self, index: usize, child: &'a Child, scope: &Scope) -> Result<(), ChildError> {
        let Some(each) = &child.for_each else { return Ok(()) };
        let engine = &self.ctx.package.engine;
        let mut seen = BTreeSet::new();
        let values = engine.items(&each.in_, scope)?;
        // Without a condition all of them are children.
        if values.len() > MAX_CHILDREN && child.group_when.is_none() && child.when.is_none() {
            return Err(ChildError::TooMany);
        }
        for (position, value) in values.into_iter().enumerate() {
            self.ctx.budget.about(&child.id);
            let scope = scope.with(&each.as_, Var::Json(value.clone()));
            if !self.wanted(child, &scope)? {
                continue;
            }
            let key = match &each.key {
                Some(key) => engine.eval_deciding(key, &scope)?,
                None => value,
            };
            if let Some(problem) = crate::package::key_problem(&key) {
                let message = format!("item {position} of forEach of {}: {problem}", child.id);
                return Err(ChildError::Invalid { message });
            }
            if !seen.insert(names::key_text(&key)) {
                return Err(ChildError::Invalid {
                    message: format!("two items of forEach of {} have the same key", child.id),
                });
            }
            let item = self.item(index, child, Some(key), &scope);
            self.push(item)?;
        }
        Ok(())
    }

    fn push(&mut self, item: Item) -> Result<(), ChildError> {
        if self.items.len() >= MAX_CHILDREN {
            return Err(ChildError::TooMany);
        }
        self.items.push(item);
        Ok(())
    }

    fn wanted(&self, child: &Child, scope: &Scope) -> Result<bool, EvalError> {
        for when in child.group_when.iter().chain(&child.when) {
            if !self.ctx.package.engine.truthy(when, scope)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn item(&self, index: usize, child: &'a Child, key: Option<Value>, scope: &Scope) -> Item {
        let key_text = key.as_ref().map(names::key_text);
        let name = names::item_name(&child.id, key_text.as_deref());
        self.ctx.budget.about(&name);
        let before = self.find(child, key_text.as_deref());
        let with_self = |live_object: Option<&Arc<Observed>>| {
            scope.with(
                "self",
                live_object.map_or(Var::Undefined, |o| Var::Object(self.live(o, is_ready(o), false))),
            )
        };
        let mut scope = with_self(before);
        let render = |scope: &Scope| {
            self.intent(child, key_text.as_deref(), scope).map_err(|error| self.explained(child, error))
        };
        let mut intent = render(&scope);
        // Somebody has changed the labels by which it would be found: what it is called tells as well, and a
        // template that keeps what `self` has must not lose that.
        if let Ok(first) = &intent
            && let Some(named) = self.by_object.get(&first.object).copied()
            && before.is_none_or(|before| !Arc::ptr_eq(before, named))
            && *named.instance_uid == *self.ctx.uid()
            && named.is_made_by_us()
        {
            let anew = with_self(Some(named));
            let again = render(&anew);
            if again.as_ref().is_ok_and(|again| again.object == named.object) {
                (scope, intent) = (anew, again);
            }
        }
        // The live object is the one of the target's very name; another of the same key is to be pruned.
        let observed = match &intent {
            Ok(intent) => self.by_object.get(&intent.object).copied(),
            Err(_) => before,
        };
        let observed = observed.filter(|o| *o.instance_uid == *self.ctx.uid()).cloned();
        let has_completed = intent.as_ref().is_ok_and(|i| i.completion.as_ref().is_some_and(|c| c.recorded));
        let done = has_completed && observed.as_ref().is_none_or(|observed| observed.terminating);
        let observed = observed.filter(|_| !done);
        let ready = if done { Ok(()) } else { self.ready(child, observed.as_ref(), &scope) };
        let (mut needs_no_body, mut is_later) = (false, false);
        if let Ok(intent) = &mut intent {
            needs_no_body = match self.ctx.budget.shown() {
                Some(shown) => self.items.len() < shown,
                None => done || self.is_paused || observed.as_ref().is_some_and(|o| is_as_applied(intent, o)),
            };
            is_later = !needs_no_body && !self.ctx.budget.keep_body(&intent.body);
            if needs_no_body || is_later {
                intent.forget_body();
            }
        }
        Item { child: index, name, key, intent, observed, ready, done, needs_no_body, is_later }
    }

    fn intent(&self, child: &Child, key: Option<&str>, scope: &Scope) -> Result<Intent, ChildError> {
        let engine = &self.ctx.package.engine;
        let Some(template) = engine.template(&child.template) else {
            return Err(ChildError::Invalid { message: format!("there is no template {}", child.template) });
        };
        let body = engine.render_object(template, scope)?;
        let yields = self.yields(child, scope)?;
        // Whoever edits our labels does not thereby make us take back what we have given up.
        let observed = |object: &ObjectRef| self.by_object.get(object).map(|observed| &***observed);
        let intent = match intent::build(self.ctx, child, key, body, &observed, &yields) {
            Err(ChildError::KindMissing { api_version, kind }) => {
                let reason = (self.ctx.unknown)(&api_version, &kind);
                return Err(reason.map_or_else(
                    || ChildError::KindMissing { api_version, kind },
                    |reason| ChildError::KindNotServed { reason },
                ));
            }
            intent => intent?,
        };
        match (self.ctx.unknown)(&intent.object.api_version, &intent.object.kind) {
            Some(reason) => Err(ChildError::KindUnknown { reason }),
            None => Ok(intent),
        }
    }

    fn yields(&self, child: &Child, scope: &Scope) -> Result<Vec<String>, ChildError> {
        let engine = &self.ctx.package.engine;
        let values = match &child.yields {
            None => return Ok(Vec::new()),
            Some(Yields::One(text)) => match engine.eval_text(text, scope)? {
                Some(Value::Array(values)) => values,
                Some(Value::Null) | None => Vec::new(),
                Some(other) => vec![other],
            },
            Some(Yields::List(texts)) => {
                let mut values = Vec::new();
                for text in texts {
                    values.extend(engine.eval_text(text, scope)?);
                }
                values
            }
        };
        values
            .into_iter()
            .map(|value| match value {
                Value::String(path) => Ok(path),
                _ => Err(ChildError::Invalid {
                    message: format!("yields of {} is not a list of field paths", child.id),
                }),
            })
            .collect()
    }

    /// The live object of a child and key. Of several (an old name waits to be pruned) one that stays.
    fn find(&self, child: &Child, key: Option<&str>) -> Option<&'a Arc<Observed>> {
        let all = self.by_child.get(child.id.as_str())?.0.get(&key)?;
        all.iter().min_by_key(|o| (o.terminating, o.retained == Some(true))).copied()
    }

    fn ready(&self, child: &Child, observed: Option<&Arc<Observed>>, scope: &Scope) -> Result<(), String> {
        let Some(observed) = observed else { return Err("does not exist yet".into()) };
        if observed.terminating {
            return Err(terminating(observed));
        }
        if let Some(ready_when) = &child.ready_when {
            let scope = scope.with("self", Var::Object(self.live(observed, is_ready(observed), false)));
            return match self.ctx.package.engine.truthy(ready_when, &scope) {
                Ok(true) => Ok(()),
                Ok(false) => Err("readyWhen is not met yet".into()),
                Err(EvalError::Undefined(_) | EvalError::NotYet(_)) => {
                    Err("readyWhen has no value yet".into())
                }
                Err(error) => Err(format!("readyWhen: {error}")),
            };
        }
        match &observed.readiness {
            Readiness::Ready => Ok(()),
            Readiness::NotReady { message, .. } | Readiness::Failed { message, .. } => Err(message.clone()),
            Readiness::Terminating => Err(terminating(observed)),
        }
    }

    /// `children.<id>` before the child's target is known.
    fn observed_var(&self, child: &Child) -> Var {
        if let Some(reason) = self.kind_unknown(child) {
            return Var::Unknown(reason);
        }
        let all = self.by_child.get(child.id.as_str()).into_iter().flat_map(Made::all);
        let flags = |o: &Observed| self.live(o, is_ready(o), false);
        if child.for_each.is_some() {
            Var::Map(all.map(|o| (typed_key(o.key.as_deref().unwrap_or_default()), flags(o))).collect())
        } else {
            self.find(child, None).map_or(Var::Undefined, |o| Var::Object(flags(o)))
        }
    }

    /// `children.<id>` once its target is known: ready and current are told of each.
    fn computed_var(&self, child: &Child, items: &[Item]) -> Var {
        if let Some(reason) = self.kind_unknown(child) {
            return Var::Unknown(reason);
        }
        let one = |item: &Item| {
            let Some(observed) = item.observed.as_ref() else { return jobs::remembered(item) };
            Some(self.live(observed, item.ready.is_ok(), item.is_current()))
        };
        if child.for_each.is_none() {
            return items.first().and_then(one).map_or_else(|| self.observed_var(child), Var::Object);
        }
        let mut map: Vec<(Value, Live)> =
            items.iter().filter_map(|item| Some((item.key.clone()?, one(item)?))).collect();
        // Members that left the target are live until they are pruned.
        let wanted: HashSet<String> =
            items.iter().filter_map(|item| Some(names::key_text(item.key.as_ref()?))).collect();
        for observed in self.by_child.get(child.id.as_str()).into_iter().flat_map(Made::all) {
            let key = observed.key.as_deref().unwrap_or_default();
            if !wanted.contains(key) {
                map.push((typed_key(key), self.live(observed, false, false)));
            }
        }
        Var::Map(map)
    }

    fn live(&self, observed: &Observed, ready: bool, current: bool) -> Live {
        let value = self.values.get(&observed.object).cloned();
        Live { value: value.unwrap_or_else(|| Arc::new(value_of(observed))), ready, current }
    }

    fn kind_unknown(&self, child: &Child) -> Option<String> {
        child.kinds.iter().find_map(|(api_version, kind)| (self.ctx.unknown)(api_version, kind))
    }
}

/// Whether a child of that id can be of the object's kind and version.
fn asks_for(ctx: &Context<'_>, id: &str, observed: &Observed) -> bool {
    let ObjectRef { api_version, kind, .. } = &observed.object;
    let child = ctx.resource.children.iter().find(|child| child.id == id);
    child.is_some_and(|child| child.has_kind(api_version, kind))
}

/// What holds an object that is being deleted.
fn terminating(observed: &Observed) -> String {
    if observed.held_by.is_empty() {
        "is being deleted".into()
    } else {
        let (object, finalizers) = (&observed.object, observed.held_by.join(", "));
        format!("{object} is being deleted, held by finalizer {finalizers}")
    }
}

/// Whether the live object is what the intent says, and nobody has touched it since.
fn is_as_applied(intent: &Intent, observed: &Observed) -> bool {
    observed.intent.as_deref() == Some(&intent.hash)
        && observed.mark == observed.settled
        && is_covered(intent, observed)
        && !exceeds(intent, observed, true)
}

/// Ready by the rules of its kind.
fn is_ready(observed: &Observed) -> bool {
    !observed.terminating && observed.readiness == Readiness::Ready
}

/// What expressions read of a live object.
fn value_of(observed: &Observed) -> Value {
    // What was written as JSON reads as such.
    observed
        .live
        .as_ref()
        .and_then(|live| serde_json::from_str(live).ok())
        .unwrap_or_else(|| json!({"metadata": {"name": &*observed.object.name, "uid": &*observed.uid}}))
}

/// The key of a member known by its label alone: what reads as an integer is taken for one.
fn typed_key(text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(number) if number.to_string() == text => Value::from(number),
        _ => Value::from(text),
    }
}

/// The variables that all expressions of an instance see.
fn base_scope(ctx: &Context<'_>) -> Scope {
    let package = ctx.package;
    let mut scope = Scope::within(Arc::clone(&ctx.budget));
    let meta = &ctx.instance["metadata"];
    let spec = ctx.instance.get("spec").cloned().unwrap_or_else(|| json!({}));
    scope.set("instance", Var::Shared(Arc::new(accepted::shown(ctx.instance))));
    scope.set("spec", Var::Json(spec));
    scope.set("name", Var::Json(meta["name"].clone()));
    scope.set("namespace", ctx.namespace().map_or(Var::Undefined, |ns| Var::Json(ns.into())));
    scope.set("labels", Var::Json(meta.get("labels").cloned().unwrap_or_else(|| json!({}))));
    scope.set("defaults", Var::Json(package.defaults.clone()));
    scope.set(
        "operator",
        Var::Json(json!({
            "name": package.name,
            "version": package.version.to_string(),
            "appVersion": package.app_version,
            "revision": package.revision(),
            "namespace": ctx.operator_namespace,
        })),
    );
    if ctx.resource.reads_cluster {
        scope.set("cluster", cluster(ctx));
    }
    scope.set("self", Var::Undefined);
    scope.set("let", Var::Lets(Arc::clone(&ctx.resource.lets)));
    scope
}

/// `cluster`: what the API server serves.
fn cluster(ctx: &Context<'_>) -> Var {
    let apis = match ctx.apis {
        Some(Ok(apis)) => apis,
        Some(Err(why)) => return Var::Unknown(format!("the API server does not say what it serves: {why}")),
        None => return Var::Unknown("the API server is being asked what it serves".into()),
    };
    let asked = Arc::clone(apis);
    let has = Function::asking(move |args| {
        let [Value::String(api)] = args else {
            return Err("wants one string, such as 'policy/v1'".to_owned());
        };
        Ok(match asked.has(api)? {
            Some(answer) => Var::Json(answer.into()),
            None => Var::Unknown(format!("the server of {api} does not answer")),
        })
    });
    let version = Var::Json(apis.version().into());
    Var::Vars([("version".to_owned(), version), ("has".to_owned(), Var::Function(has))].into())
}
