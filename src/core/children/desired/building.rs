//! Computes a target: each child, with each origin that has it, in dependency order.

mod duplicates;
mod item;
mod live;
mod variables;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::render::base_scope;
use crate::api::ObjectRef;
use crate::children::model::{
    ChildError, Context, Item, MAX_CHILDREN, NEWEST, NewestMember, Observed, Refs, Target,
};
use crate::children::names;
use crate::package::Child;
use crate::template::{EvalError, Expr, Scope, Var, access};

use duplicates::resolve_duplicates;
use live::value_of;

/// Parsed JSON takes about this many times its size.
const LIVE_FACTOR: usize = 4;

/// Computes the target. Once the budget of the context is exceeded, nothing more is evaluated and the target is not
/// complete.
pub fn target(ctx: &Context<'_>) -> Target {
    ctx.budget.about("the instance");
    let live = ctx.snapshot.observed.iter().chain(ctx.snapshot.retained());
    let live: usize = live.filter_map(|o| Some(o.live.as_ref()?.len())).sum();
    let mut positions = 0..ctx.origins.len();
    if !positions.all(|position| ctx.budget.charge(ctx.origins.at(position).instance))
        || !ctx.budget.charge_bytes(live.saturating_mul(LIVE_FACTOR))
    {
        let scope = Scope::within(Arc::clone(&ctx.budget));
        let (items, open, refs, earlier_scopes, newest, children, digests) = Default::default();
        return Target { items, open, scope, earlier_scopes, children, digests, newest, refs };
    }
    let mut building = Building::new(ctx);
    for number in ctx.origins.in_order() {
        building.child(number);
    }
    building.items.sort_by_key(|item| item.child);
    resolve_duplicates(ctx, &mut building.items);
    for number in 0..ctx.origins.children() {
        if !building.open.contains_key(&number) {
            let from = building.items.partition_point(|item| item.child < number);
            let to = building.items.partition_point(|item| item.child <= number);
            building.set_computed(number, from..to, |_| true);
        }
    }
    let scope = building.sides[NEWEST].scope();
    let earlier_scopes = building.sides[NEWEST + 1..].iter().map(Side::scope).collect();
    let has_plans = ctx.origins.has_plans();
    let children = if has_plans { building.sides[NEWEST].vars.clone() } else { BTreeMap::new() };
    let digests = building.sides.iter_mut().map(|side| std::mem::take(&mut side.digests)).collect();
    let Building { items, open, refs, newest, .. } = building;
    Target { items, open, scope, earlier_scopes, children, digests, newest, refs }
}

/// The refs of the newest origin, without the rest of the target.
pub(in crate::children) fn refs(ctx: &Context<'_>) -> Refs {
    let mut building = Building::new(ctx);
    let digests = std::mem::take(&mut building.sides[NEWEST].digests);
    Refs { digests, ..building.refs }
}

/// The live objects of one child, by key.
#[derive(Default)]
struct LiveByKey<'a>(BTreeMap<Option<&'a str>, Vec<&'a Arc<Observed>>>);

impl<'a> LiveByKey<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Arc<Observed>> + '_ {
        self.0.values().flatten().copied()
    }
}

struct Building<'a> {
    ctx: &'a Context<'a>,
    /// The origins, newest first.
    sides: Vec<Side<'a>>,
    by_child: Vec<LiveByKey<'a>>,
    by_object: HashMap<&'a ObjectRef, &'a Arc<Observed>>,
    /// As `by_child`, for the objects that deleted instances of that name have left.
    retained: Vec<LiveByKey<'a>>,
    retained_by_object: HashMap<&'a ObjectRef, &'a Arc<Observed>>,
    items: Vec<Item>,
    open: BTreeMap<usize, ChildError>,
    refs: Refs,
    /// Whether the annotation pauses the instance: nothing will be applied.
    is_paused: bool,
    /// The items of the child that is computed in the target of the previous origin; `None` if they are not known.
    in_previous: Option<HashSet<String>>,
    /// With several origins: the items of the child in the target of the origin that is computed.
    names: Vec<String>,
    /// See [`Target::newest`].
    newest: Vec<NewestMember>,
}

/// What an origin is evaluated with.
struct Side<'a> {
    ctx: Context<'a>,
    base: Scope,
    /// `children.<id>` so far: what is observed, and for children already computed whether it is current.
    vars: BTreeMap<String, Var>,
    /// The scope of children that read no other child; made once.
    plain: Scope,
    /// The numbers of children whose `when` is false.
    unwanted: BTreeSet<usize>,
    /// The digests of the object refs of the origin.
    digests: BTreeMap<String, String>,
}

impl Side<'_> {
    fn scope(&self) -> Scope {
        self.base.with("children", Var::Vars(self.vars.clone()))
    }
}

/// The child that is computed, as an origin has it.
#[derive(Clone, Copy)]
struct Computed<'a> {
    position: usize,
    number: usize,
    child: &'a Child,
}

impl<'a> Building<'a> {
    fn new(ctx: &'a Context<'a>) -> Self {
        let snapshot = ctx.snapshot;
        // A backup tool restores an object without our entry in its managedFields, so its kind decides: a
        // copy that is of no kind of the child is not ours.
        let is_retained = |o: &&Arc<Observed>| {
            o.is_made_by_us() || ctx.origins.number(&o.child).is_some_and(|number| asks_for(ctx, number, o))
        };
        let annotations = &ctx.snapshot.instance["metadata"]["annotations"];
        ctx.live.parse(snapshot.observed.iter().chain(snapshot.retained()), value_of);
        let mut building = Self {
            ctx,
            sides: Vec::with_capacity(ctx.origins.len()),
            by_child: by_child(ctx, snapshot.observed.iter().filter(|o| o.is_made_by_us())),
            by_object: snapshot.observed.iter().map(|o| (&o.object, o)).collect(),
            retained: by_child(ctx, snapshot.retained().filter(is_retained)),
            retained_by_object: snapshot.retained().map(|o| (&o.object, o)).collect(),
            items: Vec::new(),
            open: BTreeMap::new(),
            refs: Refs::default(),
            is_paused: annotations[names::PAUSED].as_str() == Some("true"),
            in_previous: Some(HashSet::new()),
            names: Vec::new(),
            newest: Vec::new(),
        };
        for position in 0..ctx.origins.len() {
            let side = building.side(position);
            building.sides.push(side);
        }
        building
    }

    fn side(&mut self, position: usize) -> Side<'a> {
        let ctx = self.ctx.at(position);
        let children = ctx.origin.resource.children.iter().enumerate();
        let vars = children.map(|(index, child)| {
            let number = ctx.origins.number_at(position, index);
            (child.id.clone(), self.observed_var(Computed { position, number, child }))
        });
        let vars = vars.collect();
        let mut base = base_scope(&ctx);
        base.set("retained", Var::Vars(self.retained_vars(position)));
        let (unwanted, digests) = Default::default();
        let mut side = Side { ctx, plain: base.clone(), base, vars, unwanted, digests };
        if !side.ctx.origin.resource.refs.is_empty() {
            let mut refs = Refs::of(&side.ctx, &side.scope());
            side.base = side.base.with("refs", Var::Vars(std::mem::take(&mut refs.vars)));
            side.digests = std::mem::take(&mut refs.digests);
            self.refs.add(refs);
        }
        side.plain = side.scope();
        side
    }

    /// Adds the items of a child, those of `previous` first: items that no other origin has are of the
    /// newest.
    fn child(&mut self, number: usize) {
        let (first, origins) = (self.items.len(), self.ctx.origins);
        let previous = origins.previous();
        self.in_previous = Some(HashSet::new());
        let mut order = Vec::new();
        let others = (0..origins.len()).filter(|position| Some(*position) != previous);
        for position in previous.into_iter().chain(others) {
            let Some(child) = origins.child_at(position, number) else { continue };
            if !origins.is_used(position, number) {
                continue;
            }
            let side = &self.sides[position];
            let scope = if child.depends_on.is_empty() { side.plain.clone() } else { side.scope() };
            let from = self.items.len();
            self.ctx.budget.about(&child.id);
            let computed = Computed { position, number, child };
            let result = match &child.for_each {
                None => self.single(computed, &scope),
                Some(_) => self.members(computed, &scope),
            };
            if position == NEWEST {
                merge(&mut self.names, std::mem::take(&mut order));
                order = std::mem::take(&mut self.names);
            } else {
                merge(&mut order, std::mem::take(&mut self.names));
            }
            let is_previous = Some(position) == previous;
            if let Err(error) = result {
                self.items.truncate(from);
                self.open.insert(number, self.explained(computed, error));
                if is_previous {
                    self.in_previous = None;
                }
            } else if is_previous {
                let names = self.items[from..].iter().map(|item| item.name.clone());
                self.in_previous = Some(names.collect());
            }
        }
        if origins.len() > 1 {
            let rank: HashMap<&str, usize> = order.iter().map(String::as_str).zip(0..).collect();
            self.items[first..].sort_by_key(|item| rank.get(&*item.name).copied());
        }
        if !self.open.contains_key(&number) {
            self.set_computed(number, first..self.items.len(), |child| child.ordered);
        }
    }

    /// Whether an item of an origin's target is rendered from that origin.
    fn is_of(&self, position: usize, name: &str) -> bool {
        let origins = self.ctx.origins;
        let is_previous = origins.previous() == Some(position);
        let in_previous = self.in_previous.as_ref().map(|names| is_previous || names.contains(name));
        origins.source_of(name, in_previous) == Some(position)
    }

    /// Computes `children.<id>` of a child in the scopes of all origins that have it.
    fn set_computed(&mut self, number: usize, items: Range<usize>, is_wanted: impl Fn(&Child) -> bool) {
        for position in 0..self.sides.len() {
            let child = self.ctx.origins.child_at(position, number);
            if let Some(child) = child.filter(|child| is_wanted(child)) {
                let computed = Computed { position, number, child };
                let var = self.computed_var(computed, &self.items[items.clone()]);
                self.sides[position].vars.insert(child.id.clone(), var);
            }
        }
    }

    fn single(&mut self, computed: Computed<'a>, scope: &Scope) -> Result<(), ChildError> {
        if self.wanted(computed, scope)? {
            self.add(computed, None, scope)
        } else {
            self.sides[computed.position].unwanted.insert(computed.number);
            Ok(())
        }
    }

    /// Explains an error of a child that reads another one whose `when` is false.
    fn explained(&self, Computed { position, child, .. }: Computed<'_>, error: ChildError) -> ChildError {
        let ChildError::Eval(EvalError::Undefined(diagnostic) | EvalError::NotYet(diagnostic)) = &error
        else {
            return error;
        };
        let (origins, side) = (self.ctx.origins, &self.sides[position]);
        let is_unwanted = |index: &&usize| side.unwanted.contains(&origins.number_at(position, **index));
        let dependencies = child.depends_on.iter().filter(is_unwanted);
        let mut absent = dependencies.map(|index| &side.ctx.origin.resource.children[*index]);
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
             the same `when`, or `when: children{} is defined`",
            diagnostic.message,
            access(other)
        );
        ChildError::DependencyAbsent { message }
    }

    fn members(&mut self, computed: Computed<'a>, scope: &Scope) -> Result<(), ChildError> {
        let Computed { position: origin, child, .. } = computed;
        let Some(each) = &child.for_each else { return Ok(()) };
        let engine = &self.ctx.origins.at(origin).package.engine;
        let mut seen = BTreeSet::new();
        let values = engine.items(&each.in_, scope)?;
        // Without a condition all values are children.
        if values.len() > MAX_CHILDREN && child.group_when.is_none() && child.when.is_none() {
            return Err(ChildError::TooMany);
        }
        for (position, value) in values.into_iter().enumerate() {
            self.ctx.budget.about(&child.id);
            let scope = scope.with(&each.as_, Var::Json(value.clone()));
            if !self.wanted(computed, &scope)? {
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
            self.add(computed, Some(key), &scope)?;
        }
        Ok(())
    }

    fn wanted(
        &self,
        Computed { position, child, .. }: Computed<'_>,
        scope: &Scope,
    ) -> Result<bool, EvalError> {
        for when in child.group_when.iter().chain(&child.when) {
            if !self.ctx.origins.at(position).package.engine.truthy(when, scope)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds an item, unless another origin has it.
    fn add(&mut self, computed: Computed<'a>, key: Option<Value>, scope: &Scope) -> Result<(), ChildError> {
        let key_text = key.as_ref().map(names::key_text);
        let name = names::item_name(self.ctx.origins.child_id(computed.number), key_text.as_deref());
        if self.ctx.origins.len() > 1 {
            self.names.push(name.clone());
        }
        let is_of = self.is_of(computed.position, &name);
        if computed.position == NEWEST && self.ctx.origins.has_plans() {
            if self.newest.len() >= MAX_CHILDREN {
                return Err(ChildError::TooMany);
            }
            let hash = if is_of { None } else { self.hash(computed, key_text.as_deref(), scope) };
            let (child, key) = (computed.number, key.clone());
            self.newest.push(NewestMember { child, name: name.clone(), key, hash });
        }
        if is_of {
            if self.items.len() >= MAX_CHILDREN {
                return Err(ChildError::TooMany);
            }
            let item = self.item(computed, name, key, scope);
            self.items.push(item);
        }
        Ok(())
    }

    /// The live object of a child and key. If there are several, because an old name waits to be pruned, one
    /// that stays.
    fn find(&self, number: usize, key: Option<&str>) -> Option<&'a Arc<Observed>> {
        let all = self.by_child[number].0.get(&key)?;
        all.iter().min_by_key(|o| (o.terminating, o.retained == Some(true))).copied()
    }

    /// The object of a child and key that deleted instances of that name have left. Of several, the one applied last.
    fn find_retained(&self, number: usize, key: Option<&str>) -> Option<&'a Arc<Observed>> {
        let all = self.retained[number].0.get(&key)?;
        all.iter().max_by_key(|o| (!o.terminating, o.mark.applied())).copied()
    }

    /// The live object of a name, or the one that is adopted under it.
    fn named(&self, object: &ObjectRef) -> Option<&'a Arc<Observed>> {
        self.by_object.get(object).or_else(|| self.retained_by_object.get(object)).copied()
    }
}

/// Sorts objects by the child and the key on their labels.
fn by_child<'a>(ctx: &Context<'_>, objects: impl Iterator<Item = &'a Arc<Observed>>) -> Vec<LiveByKey<'a>> {
    let mut by_child: Vec<LiveByKey<'_>> = Vec::new();
    by_child.resize_with(ctx.origins.children(), LiveByKey::default);
    for observed in objects {
        let Some(number) = ctx.origins.number(&observed.child) else { continue };
        let made = by_child[number].0.entry(observed.key.as_deref()).or_default();
        // One object, watched in two versions: the version that the child renders counts.
        match made.iter_mut().find(|twin| twin.uid == observed.uid) {
            None => made.push(observed),
            Some(twin) if asks_for(ctx, number, observed) => *twin = observed,
            Some(_) => {}
        }
    }
    by_child
}

/// Inserts what only `other` has into `order`, behind what it follows in `other`.
fn merge(order: &mut Vec<String>, other: Vec<String>) {
    let mut at = 0;
    for name in other {
        let known = order.iter().position(|known| *known == name);
        if known.is_none() {
            order.insert(at, name);
        }
        at = known.unwrap_or(at) + 1;
    }
}

/// Whether a child can be of the object's kind and version.
fn asks_for(ctx: &Context<'_>, number: usize, observed: &Observed) -> bool {
    ctx.origins.child(number).is_some_and(|child| child.has_kind(&observed.object.gvk))
}
