//! Triggers that watch a condition.

use std::collections::HashMap;
use std::time::Duration;

use crate::package::plan::{Event, Plan};
use crate::template::{Engine, EvalError, Scope};

/// What is known of the condition of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has held for long enough.
    Due,
    /// It holds, and has to hold for so long.
    Holding(Duration),
    /// Its own run has ended a short time ago: it counts again after this time.
    Cooldown(Duration),
    /// It has no value: it reads something unknown, or an object that the active run still awaits.
    Unknown,
    /// It does not hold.
    Cleared,
}

/// For how long conditions have held, while this process has watched them.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    plans: HashMap<String, Watched>,
    last: Option<Duration>,
}

#[derive(Debug, Clone, Default)]
struct Watched {
    held: Duration,
    holds: bool,
    /// The uid of the newest run of the plan that has ended, and for how long it has been seen so.
    ended: Option<(String, Duration)>,
}

/// What a condition is evaluated with.
pub struct Watch<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The templates.
    pub engine: &'a Engine,
    /// The variables. In it, the members that the active run awaits are unknown ([`super::Progress::awaited`]).
    pub scope: &'a Scope,
    /// The same with these members, for conditions with `during: always`.
    pub scope_always: &'a Scope,
    /// The uid of the newest run of the plan that has ended.
    pub ended: Option<&'a str>,
    /// Whether a run of the plan is active or waits.
    pub active: bool,
}

impl Conditions {
    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Starts a decision: lets the time pass for all conditions. `now` is a monotonic time.
    pub fn pass(&mut self, now: Duration, paused: bool) {
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.last = (!paused).then_some(now);
        if paused {
            return;
        }
        for watched in self.plans.values_mut() {
            if watched.holds {
                watched.held += passed;
            }
            if let Some((_, since)) = &mut watched.ended {
                *since += passed;
            }
        }
    }

    /// What is known of the condition of a plan; `None` if it has none.
    pub fn watch(&mut self, watch: &Watch<'_>) -> Option<Verdict> {
        let mut found = None;
        for trigger in &watch.plan.triggers {
            let Event::Condition { condition, hold, cooldown, always } = &trigger.event else { continue };
            let scope = if *always { watch.scope_always } else { watch.scope };
            let mut value = watch.engine.truthy(condition, scope);
            if let (Ok(true), Some(when)) = (&value, &trigger.when) {
                value = watch.engine.truthy(when, scope);
            }
            let verdict = self.verdict(watch, &value, *hold, *cooldown);
            if found.is_none_or(|known| rank(verdict) < rank(known)) {
                found = Some(verdict);
            }
        }
        found
    }

    fn verdict(
        &mut self,
        watch: &Watch<'_>,
        value: &Result<bool, EvalError>,
        hold: Duration,
        cooldown: Duration,
    ) -> Verdict {
        let watched = self.plans.entry(watch.plan.name.clone()).or_default();
        if watched.ended.as_ref().map(|(uid, _)| uid.as_str()) != watch.ended {
            // `for` counts from the end of its own run, too.
            (watched.held, watched.holds) = (Duration::ZERO, false);
            watched.ended = watch.ended.map(|uid| (uid.to_owned(), Duration::ZERO));
        }
        if watch.active {
            (watched.held, watched.holds) = (Duration::ZERO, false);
        }
        match value {
            Ok(true) => {}
            // An error means no.
            Ok(false)
            | Err(
                EvalError::NotYet(_) | EvalError::Undefined(_) | EvalError::Failed(_) | EvalError::Limit(_),
            ) => {
                (watched.held, watched.holds) = (Duration::ZERO, false);
                return Verdict::Cleared;
            }
            // Time in which it is unknown does not count; what it has held before does not either.
            Err(EvalError::Unknown { .. }) => {
                (watched.held, watched.holds) = (Duration::ZERO, false);
                return Verdict::Unknown;
            }
        }
        watched.holds = true;
        let rest =
            watched.ended.as_ref().map_or(Duration::ZERO, |(_, since)| cooldown.saturating_sub(*since));
        if !rest.is_zero() {
            return Verdict::Cooldown(rest);
        }
        let rest = hold.saturating_sub(watched.held);
        if rest.is_zero() { Verdict::Due } else { Verdict::Holding(rest) }
    }
}

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Due => 0,
        Verdict::Holding(_) => 1,
        Verdict::Cooldown(_) => 2,
        Verdict::Unknown => 3,
        Verdict::Cleared => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::plan::Trigger;
    use crate::plan::tests::build::{ENGINE, expr, note, plan};
    use crate::template::Var;
    use serde_json::json;

    #[test]
    fn a_condition_has_to_hold_and_cools_down_after_its_run() {
        let mut failover = plan("failover", vec![note("a", "b", "1")]);
        let event = Event::Condition {
            condition: expr("not refs.primary.ready"),
            hold: Duration::from_secs(60),
            cooldown: Duration::from_secs(300),
            always: false,
        };
        let location = failover.location.clone();
        failover.triggers.push(Trigger { event, when: None, location });
        let mut conditions = Conditions::default();
        let mut at = |seconds: u64, primary: Var, ended: Option<&str>, active: bool| {
            let mut scope = Scope::new();
            scope.set("refs", Var::Vars([("primary".to_owned(), primary)].into()));
            conditions.pass(Duration::from_secs(seconds), false);
            let watch = Watch {
                plan: &failover,
                engine: &ENGINE,
                scope: &scope,
                scope_always: &scope,
                ended,
                active,
            };
            conditions.watch(&watch).unwrap()
        };
        let ready = |ready: bool| Var::Json(json!({"ready": ready}));
        let unknown = || Var::Unknown("it is awaited".into());
        let seconds = Duration::from_secs;
        assert_eq!(at(0, ready(true), None, false), Verdict::Cleared);
        assert_eq!(at(10, ready(false), None, false), Verdict::Holding(seconds(60)));
        assert_eq!(at(50, ready(false), None, false), Verdict::Holding(seconds(20)));
        assert_eq!(at(60, unknown(), None, false), Verdict::Unknown);
        assert_eq!(at(70, ready(false), None, false), Verdict::Holding(seconds(60)));
        assert_eq!(at(130, ready(false), None, false), Verdict::Due);
        assert_eq!(at(140, ready(false), None, true), Verdict::Holding(seconds(60)));
        assert_eq!(at(150, ready(false), Some("run"), false), Verdict::Cooldown(seconds(300)));
        assert_eq!(at(440, ready(false), Some("run"), false), Verdict::Cooldown(seconds(10)));
        assert_eq!(at(450, ready(false), Some("run"), false), Verdict::Due);
    }
}
