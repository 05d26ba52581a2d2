//! `children.<id>` in expressions: the live objects of a child.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{Item, is_newest, typed_key};
use super::{Building, Computed, is_ready};
use crate::children::observed::Observed;
use crate::children::{jobs, names};
use crate::package::Child;
use crate::template::{Live, Var};

impl Building<'_> {
    /// `children.<id>` before the child's target is known.
    pub(super) fn observed_var(&self, Computed { number, child, .. }: Computed<'_>) -> Var {
        if let Some(reason) = self.kind_unknown(child) {
            return Var::Unknown(reason);
        }
        let all = self.by_child[number].all();
        let flags = |o: &Observed| self.live(o, is_ready(o), false);
        if child.for_each.is_some() {
            Var::Map(all.map(|o| (typed_key(o.key.as_deref().unwrap_or_default()), flags(o))).collect())
        } else {
            self.find(number, None).map_or(Var::Undefined, |o| Var::Object(flags(o)))
        }
    }

    /// `children.<id>` once its items are known, with the readiness of each and whether it is current.
    pub(super) fn computed_var(&self, computed: Computed<'_>, items: &[Item]) -> Var {
        let Computed { number, child, .. } = computed;
        if let Some(reason) = self.kind_unknown(child) {
            return Var::Unknown(reason);
        }
        let one = |item: &Item| {
            let Some(observed) = item.observed.as_ref() else { return jobs::remembered(item) };
            Some(self.live(observed, item.ready.is_ok(), is_newest(&self.newest, item)))
        };
        if child.for_each.is_none() {
            let single = items.iter().find(|item| item.key.is_none());
            return single.and_then(one).map_or_else(|| self.observed_var(computed), Var::Object);
        }
        let mut map: Vec<(Value, Live)> =
            items.iter().filter_map(|item| Some((item.key.clone()?, one(item)?))).collect();
        // Members that left the target are live until they are pruned.
        let wanted: HashSet<String> =
            items.iter().filter_map(|item| Some(names::key_text(item.key.as_ref()?))).collect();
        for observed in self.by_child[number].all() {
            let key = observed.key.as_deref().unwrap_or_default();
            if !wanted.contains(key) {
                map.push((typed_key(key), self.live(observed, false, false)));
            }
        }
        Var::Map(map)
    }

    pub(super) fn live(&self, observed: &Observed, ready: bool, current: bool) -> Live {
        let value = self.values.get(&observed.object).cloned();
        Live { value: value.unwrap_or_else(|| Arc::new(value_of(observed))), ready, current }
    }

    fn kind_unknown(&self, child: &Child) -> Option<String> {
        child.kinds.iter().find_map(|gvk| self.ctx.snapshot.unknown(gvk)).map(str::to_owned)
    }
}

/// What expressions read of a live object.
pub(super) fn value_of(observed: &Observed) -> Value {
    // What was written as JSON reads as such.
    observed
        .live
        .as_ref()
        .and_then(|live| serde_json::from_str(live).ok())
        .unwrap_or_else(|| json!({"metadata": {"name": &*observed.object.name, "uid": &*observed.uid}}))
}
