//! `children.<id>` in expressions: the live objects of a child.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::live::{is_ready, value_of};
use super::{Building, Computed};
use crate::children::model::{Item, Observed, is_newest, typed_key};
use crate::children::{jobs, names};
use crate::package::Child;
use crate::template::{Live, Var};

impl Building<'_> {
    /// `children.<id>` before the child's target is known.
    pub(super) fn observed_var(&self, computed: Computed<'_>) -> Var {
        self.kind_unknown(computed.child).map_or_else(|| self.live_var(computed), Var::Unknown)
    }

    fn live_var(&self, Computed { number, child, .. }: Computed<'_>) -> Var {
        let flags = |o: &Observed| self.live(o, is_ready(o), false);
        if child.for_each.is_some() {
            let own = self.by_child[number].all();
            let mut map: Vec<_> =
                own.map(|o| (typed_key(o.key.as_deref().unwrap_or_default()), flags(o))).collect();
            map.extend(
                self.retained_members(number)
                    .filter(|(key, _)| !self.has_own(number, key))
                    .map(|(key, o)| (typed_key(key), self.live(o, false, false))),
            );
            return Var::Map(map);
        }
        let own = self.find(number, None).map(|o| flags(o));
        let live = own.or_else(|| Some(self.live(self.find_retained(number, None)?, false, false)));
        live.map_or(Var::Undefined, Var::Object)
    }

    /// `retained.<id>` of each child: the objects that deleted instances of that name have left.
    pub(super) fn retained_vars(&self, position: usize) -> BTreeMap<String, Var> {
        let origins = self.ctx.origins;
        let children = origins.at(position).resource.children.iter().enumerate();
        let var = |(index, child): (usize, &Child)| {
            let number = origins.number_at(position, index);
            let live = |o: &Observed| self.live(o, false, false);
            let var = match self.kind_unknown(child) {
                Some(reason) => Var::Unknown(reason),
                None if child.for_each.is_some() => Var::Map(
                    self.retained_members(number).map(|(key, o)| (typed_key(key), live(o))).collect(),
                ),
                None => self.find_retained(number, None).map_or(Var::Undefined, |o| Var::Object(live(o))),
            };
            (child.id.clone(), var)
        };
        children.map(var).collect()
    }

    /// The objects of a `forEach` child that deleted instances of that name have left, one for each key.
    fn retained_members(&self, number: usize) -> impl Iterator<Item = (&str, &Arc<Observed>)> {
        let keys: BTreeSet<&str> = self.retained[number].0.keys().copied().flatten().collect();
        keys.into_iter().filter_map(move |key| Some((key, self.find_retained(number, Some(key))?)))
    }

    fn has_own(&self, number: usize, key: &str) -> bool {
        self.by_child[number].0.contains_key(&Some(key))
    }

    /// `children.<id>` once its items are known, with the readiness of each and whether it is current.
    pub(super) fn computed_var(&self, computed: Computed<'_>, items: &[Item]) -> Var {
        let Computed { number, child, .. } = computed;
        if let Some(reason) = self.ctx.snapshot.unknown_objects(&child.kinds, !items.is_empty()) {
            return Var::Unknown(reason.to_owned());
        }
        let one = |item: &Item| {
            let Some(observed) = item.observed.as_ref() else {
                let key = item.key.as_ref().map(names::key_text);
                let retained = || self.find_retained(number, key.as_deref());
                let retained = item.retained.as_ref().or_else(retained);
                return jobs::remembered(item).or_else(|| Some(self.live(retained?, false, false)));
            };
            Some(self.live(observed, item.ready.is_ok(), is_newest(&self.newest, item)))
        };
        if child.for_each.is_none() {
            let single = items.iter().find(|item| item.key.is_none());
            return single.and_then(one).map_or_else(|| self.live_var(computed), Var::Object);
        }
        let mut map: Vec<(Value, Live)> =
            items.iter().filter_map(|item| Some((item.key.clone()?, one(item)?))).collect();
        // Members that left the target are live until they are pruned.
        let wanted: HashSet<String> =
            items.iter().filter_map(|item| Some(names::key_text(item.key.as_ref()?))).collect();
        for observed in self.by_child[number].all() {
            let key = observed.key.as_deref().unwrap_or_default();
            if !wanted.contains(key) {
                let live = self.live(observed, false, false);
                map.push((typed_key(key), Live { kept: observed.retained == Some(true), ..live }));
            }
        }
        for (key, observed) in self.retained_members(number) {
            if !wanted.contains(key) && !self.has_own(number, key) {
                map.push((typed_key(key), Live { kept: true, ..self.live(observed, false, false) }));
            }
        }
        Var::Map(map)
    }

    pub(super) fn live(&self, observed: &Observed, ready: bool, current: bool) -> Live {
        let value = self.ctx.live.get(observed).unwrap_or_else(|| Arc::new(value_of(observed)));
        Live { value, ready, current, kept: false }
    }

    fn kind_unknown(&self, child: &Child) -> Option<String> {
        child.kinds.iter().find_map(|gvk| self.ctx.snapshot.unknown(gvk)).map(str::to_owned)
    }
}
