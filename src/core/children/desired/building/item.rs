//! One item: its desired object, its live object and its readiness.

use std::sync::Arc;

use serde_json::Value;

use super::live::is_ready;
use super::{Building, Computed};
use crate::api::ObjectRef;
use crate::children::desired::render::render;
use crate::children::model::{Desired, Item, Observed, is_covered, is_of_former_package, owns_extra_fields};
use crate::children::names;
use crate::readiness::Readiness;
use crate::template::{EvalError, Scope, Var};

impl<'a> Building<'a> {
    /// The hash of what an origin renders for a member; `None` if it has no value.
    pub(super) fn hash(
        &self,
        Computed { position, number, child }: Computed<'_>,
        key: Option<&str>,
        scope: &Scope,
    ) -> Option<String> {
        let observed = |object: &ObjectRef| self.named(object).map(|observed| &**observed);
        let ctx = &self.sides[position].ctx;
        let scope = self.with_self(scope, self.find_any(number, key));
        render(ctx, child, key, &scope, &observed).ok().map(|desired| desired.hash)
    }

    /// The live object of a child and key, or the one that a deleted instance of that name has left.
    fn find_any(&self, number: usize, key: Option<&str>) -> Option<&'a Arc<Observed>> {
        self.find(number, key).or_else(|| self.find_retained(number, key))
    }

    /// The scope of a child's template, with its live object.
    fn with_self(&self, scope: &Scope, live: Option<&Arc<Observed>>) -> Scope {
        let is_own = |o: &Observed| *o.instance_uid == *self.ctx.origin.uid();
        let live = live.map(|o| self.live(o, is_own(o) && is_ready(o), false));
        scope.with("self", live.map_or(Var::Undefined, Var::Object))
    }

    pub(super) fn item(
        &self,
        computed: Computed<'a>,
        name: String,
        key: Option<Value>,
        scope: &Scope,
    ) -> Item {
        let Computed { position: origin, number, child } = computed;
        let ctx = &self.sides[origin].ctx;
        let key_text = key.as_ref().map(names::key_text);
        self.ctx.budget.about(&name);
        let before = self.find_any(number, key_text.as_deref());
        let outer = scope;
        let mut scope = self.with_self(outer, before);
        let rendered = |scope: &Scope| {
            let observed = |object: &ObjectRef| self.named(object).map(|observed| &**observed);
            render(ctx, child, key_text.as_deref(), scope, &observed)
                .map_err(|error| self.explained(computed, error))
        };
        let mut desired = rendered(&scope);
        // If its labels were changed, or former instances have left several objects of the key, the object is
        // found by its name. It is `self` then, so that a template that keeps values of `self` does not lose
        // them.
        let is_own = |o: &Observed| *o.instance_uid == *ctx.origin.uid();
        if let Ok(first) = &desired
            && let Some(named) = self.named(&first.object)
            && before.is_none_or(|before| !Arc::ptr_eq(before, named))
            && (self.retained_by_object.contains_key(&named.object) || is_own(named) && named.is_made_by_us())
        {
            let scope_of_named = self.with_self(outer, Some(named));
            let as_named = rendered(&scope_of_named);
            if as_named.as_ref().is_ok_and(|desired| desired.object == named.object) {
                (scope, desired) = (scope_of_named, as_named);
            }
        }
        // The live object is the one of the target's very name; another of the same key is to be pruned.
        let live = match &desired {
            Ok(desired) => self.named(&desired.object),
            Err(_) => before,
        };
        let observed = live.filter(|o| is_own(o)).cloned();
        let retained = live.filter(|o| self.retained_by_object.contains_key(&o.object)).cloned();
        let has_completed = desired.as_ref().is_ok_and(|i| i.completion.as_ref().is_some_and(|c| c.recorded));
        let done = has_completed && observed.as_ref().is_none_or(|observed| observed.terminating);
        let observed = observed.filter(|_| !done);
        let ready = match &retained {
            _ if done => Ok(()),
            Some(_) => Err("was left by a former instance of that name, and is not adopted yet".into()),
            None => self.ready(computed, observed.as_ref(), &scope),
        };
        let meets_lost_when =
            observed.as_ref().zip(child.lost_when.as_ref()).is_some_and(|(live, lost_when)| {
                let scope = scope.with("self", Var::Object(self.live(live, ready.is_ok(), false)));
                // If `lostWhen` has no value, the object does not meet it.
                ctx.origin.package.engine.truthy(lost_when, &scope).unwrap_or(false)
            });
        let (mut needs_no_body, mut is_later) = (false, false);
        if let Ok(desired) = &mut desired {
            let live = observed.as_ref();
            // A paused instance compares bodies only to report drift.
            let is_unneeded =
                self.is_paused && live.is_none_or(|o| o.desired.as_deref() != Some(&desired.hash));
            let is_unchanged = || live.is_some_and(|o| is_as_applied(desired, o));
            needs_no_body = match self.ctx.budget.shown() {
                Some(shown) => self.items.len() < shown,
                None => done || is_unneeded || is_unchanged(),
            };
            is_later = !needs_no_body && !self.ctx.budget.keep_body(&desired.body);
            if needs_no_body || is_later {
                desired.forget_body();
            }
        }
        Item {
            child: number,
            origin,
            name,
            key,
            desired,
            observed,
            retained,
            ready,
            done,
            needs_no_body,
            is_later,
            meets_lost_when,
            lost: None,
        }
    }

    fn ready(
        &self,
        Computed { position, child, .. }: Computed<'_>,
        observed: Option<&Arc<Observed>>,
        scope: &Scope,
    ) -> Result<(), String> {
        let Some(observed) = observed else { return Err("does not exist yet".into()) };
        if observed.terminating {
            return Err(terminating(observed));
        }
        if let Some(ready_when) = &child.ready_when {
            let scope = scope.with("self", Var::Object(self.live(observed, is_ready(observed), false)));
            return match self.ctx.origins.at(position).package.engine.truthy(ready_when, &scope) {
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
}

/// Why an object that is being deleted still exists.
fn terminating(observed: &Observed) -> String {
    if observed.held_by.is_empty() {
        "is being deleted".into()
    } else {
        let (object, finalizers) = (&observed.object, observed.held_by.join(", "));
        format!("{object} is being deleted, held by finalizer {finalizers}")
    }
}

/// Whether the live object is as last applied with this desired object.
fn is_as_applied(desired: &Desired, observed: &Observed) -> bool {
    observed.desired.as_deref() == Some(&desired.hash)
        && observed.mark == observed.baseline
        && !is_of_former_package(desired, observed)
        && is_covered(desired, observed)
        && !owns_extra_fields(desired, observed, true)
}
