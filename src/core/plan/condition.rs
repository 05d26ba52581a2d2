//! Triggers that watch a condition.

use std::collections::HashMap;
use std::time::Duration;

use super::eval::{NoValue, duration};
use crate::package::plan::{Event, Plan};
use crate::template::{Engine, EvalError, Scope, Text};

/// What is known of the condition of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionState {
    /// The condition has held for long enough.
    Due,
    /// The condition holds, and has to hold for this much longer.
    Holding(Duration),
    /// Its own run has ended a short time ago: it counts again after this time.
    Cooldown(Duration),
    /// The condition has no value: it reads something unknown, or an object that the active run still awaits; or
    /// its `for` or `cooldown` has none.
    Unknown,
    /// The condition does not hold.
    Cleared,
}

/// For how long conditions have held, while this process has watched them.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    /// The conditions, by the name of the plan and the position of the trigger.
    triggers: HashMap<(String, usize), Watched>,
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
    /// The variables with these members, for conditions with `during: always`.
    pub scope_always: &'a Scope,
    /// The uid of the newest run of the plan that has ended.
    pub ended: Option<&'a str>,
    /// Whether a run of the plan is active or waits.
    pub active: bool,
}

impl Conditions {
    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.triggers.is_empty()
    }

    /// Starts a decision: lets the time pass for all conditions. `now` is a monotonic time.
    pub fn pass(&mut self, now: Duration, paused: bool) {
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.last = (!paused).then_some(now);
        if paused {
            return;
        }
        for watched in self.triggers.values_mut() {
            if watched.holds {
                watched.held += passed;
            }
            if let Some((_, since)) = &mut watched.ended {
                *since += passed;
            }
        }
    }

    /// What is known of the condition of a plan; `None` if it has none. `problems`: what is wrong with each `for` and `cooldown`
    /// is added, also while the condition does not hold. The times are those of this decision: a change of them counts at once,
    /// and time that the condition has held before it counts.
    pub fn watch(&mut self, watch: &Watch<'_>, problems: &mut Vec<String>) -> Option<ConditionState> {
        let mut found = None;
        for (index, trigger) in watch.plan.triggers.iter().enumerate() {
            let Event::Condition { condition, hold, cooldown, always } = &trigger.event else { continue };
            let scope = if *always { watch.scope_always } else { watch.scope };
            let when = trigger.when.as_ref().map_or(Ok(true), |when| watch.engine.truthy(when, scope));
            let time = |text: &Option<Text>, what: &str| match text {
                Some(text) if when == Ok(true) => duration(watch.engine, text, scope, what),
                _ => Ok(Duration::ZERO),
            };
            let times = time(hold, "for").and_then(|hold| Ok((hold, time(cooldown, "cooldown")?)));
            if let Err(NoValue::Wrong(why)) = &times {
                problems.push(why.clone());
            }
            let value = match watch.engine.truthy(condition, scope) {
                Ok(true) => when,
                other => other,
            };
            let verdict = self.verdict(watch, index, &value, times.ok());
            if found.is_none_or(|known| rank(verdict) < rank(known)) {
                found = Some(verdict);
            }
        }
        found
    }

    fn verdict(
        &mut self,
        watch: &Watch<'_>,
        trigger: usize,
        value: &Result<bool, EvalError>,
        times: Option<(Duration, Duration)>,
    ) -> ConditionState {
        let watched = self.triggers.entry((watch.plan.name.clone(), trigger)).or_default();
        if watched.ended.as_ref().map(|(uid, _)| uid.as_str()) != watch.ended {
            // After a run of the plan, `for` counts from the end of that run.
            (watched.held, watched.holds) = (Duration::ZERO, false);
            watched.ended = watch.ended.map(|uid| (uid.to_owned(), Duration::ZERO));
        }
        if watch.active {
            (watched.held, watched.holds) = (Duration::ZERO, false);
        }
        match value {
            Ok(true) => {}
            // An error counts as a condition that does not hold.
            Ok(false)
            | Err(
                EvalError::NotYet(_) | EvalError::Undefined(_) | EvalError::Failed(_) | EvalError::Limit(_),
            ) => {
                (watched.held, watched.holds) = (Duration::ZERO, false);
                return ConditionState::Cleared;
            }
            // Time in which it is unknown does not count; what it has held before does not either.
            Err(EvalError::Unknown { .. }) => {
                (watched.held, watched.holds) = (Duration::ZERO, false);
                return ConditionState::Unknown;
            }
        }
        watched.holds = true;
        let Some((hold, cooldown)) = times else { return ConditionState::Unknown };
        let rest =
            watched.ended.as_ref().map_or(Duration::ZERO, |(_, since)| cooldown.saturating_sub(*since));
        if !rest.is_zero() {
            return ConditionState::Cooldown(rest);
        }
        let rest = hold.saturating_sub(watched.held);
        if rest.is_zero() { ConditionState::Due } else { ConditionState::Holding(rest) }
    }
}

fn rank(verdict: ConditionState) -> u8 {
    match verdict {
        ConditionState::Due => 0,
        ConditionState::Holding(_) => 1,
        ConditionState::Cooldown(_) => 2,
        ConditionState::Unknown => 3,
        ConditionState::Cleared => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::plan::Trigger;
    use crate::plan::tests::build::{ENGINE, expr, note, plan, text};
    use crate::template::Var;
    use serde_json::{Value, json};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn trigger(condition: &str, hold: Option<&str>, cooldown: Option<&str>) -> Trigger {
        let (condition, (hold, cooldown)) = (expr(condition), (hold.map(text), cooldown.map(text)));
        let event = Event::Condition { condition, hold, cooldown, always: false };
        Trigger { event, when: None, location: note("a", "b", "1").location }
    }

    fn failover(triggers: Vec<Trigger>) -> Plan {
        Plan { triggers, ..plan("failover", vec![note("a", "b", "1")]) }
    }

    /// What is known at a time, and what is wrong.
    fn watched(
        conditions: &mut Conditions,
        plan: &Plan,
        at: u64,
        scope: &Scope,
        ended: Option<&str>,
        active: bool,
    ) -> (ConditionState, Vec<String>) {
        conditions.pass(seconds(at), false);
        let watch = Watch { plan, engine: &ENGINE, scope, scope_always: scope, ended, active };
        let mut problems = Vec::new();
        (conditions.watch(&watch, &mut problems).unwrap(), problems)
    }

    #[test]
    fn a_condition_has_to_hold_and_cools_down_after_its_run() {
        let plan = failover(vec![trigger("not refs.primary.ready", Some("60s"), Some("5m"))]);
        let mut conditions = Conditions::default();
        let mut at = |at: u64, primary: Var, ended: Option<&str>, active: bool| {
            let scope = Scope::new().with("refs", Var::Vars([("primary".to_owned(), primary)].into()));
            watched(&mut conditions, &plan, at, &scope, ended, active).0
        };
        let ready = |ready: bool| Var::Json(json!({"ready": ready}));
        let unknown = || Var::Unknown("it is awaited".into());
        assert_eq!(at(0, ready(true), None, false), ConditionState::Cleared);
        assert_eq!(at(10, ready(false), None, false), ConditionState::Holding(seconds(60)));
        assert_eq!(at(50, ready(false), None, false), ConditionState::Holding(seconds(20)));
        assert_eq!(at(60, unknown(), None, false), ConditionState::Unknown);
        assert_eq!(at(70, ready(false), None, false), ConditionState::Holding(seconds(60)));
        assert_eq!(at(130, ready(false), None, false), ConditionState::Due);
        assert_eq!(at(140, ready(false), None, true), ConditionState::Holding(seconds(60)));
        assert_eq!(at(150, ready(false), Some("run"), false), ConditionState::Cooldown(seconds(300)));
        assert_eq!(at(440, ready(false), Some("run"), false), ConditionState::Cooldown(seconds(10)));
        assert_eq!(at(450, ready(false), Some("run"), false), ConditionState::Due);
    }

    #[test]
    fn changed_durations_count_at_once() {
        let mut only =
            trigger("spec.lost", Some("{{ spec.after }}"), Some("{{ spec.rest | default('0s') }}"));
        only.when = Some(expr("spec.after is defined"));
        let plan = failover(vec![only]);
        let mut conditions = Conditions::default();
        let mut at = |at: u64, spec: Value, ended: Option<&str>| {
            let scope = Scope::new().with("spec", Var::Json(spec));
            watched(&mut conditions, &plan, at, &scope, ended, false)
        };
        let mut lost = |time: u64, after: &str| at(time, json!({"lost": true, "after": after}), None);
        let holding = |rest: u64| (ConditionState::Holding(seconds(rest)), Vec::new());
        assert_eq!(lost(0, "60s"), holding(60));
        assert_eq!(lost(40, "60s"), holding(20));
        assert_eq!(lost(40, "30s"), (ConditionState::Due, Vec::new()));
        assert_eq!(lost(50, "1h"), holding(3550));
        // An invalid duration starts nothing; the time goes on counting.
        for (after, why) in [
            ("soon", "for: `soon` is not a duration"),
            ("-1s", "for: `-1s` is not a duration"),
            ("99999d", "for: `99999d` is longer than ten years"),
        ] {
            assert_eq!(lost(60, after), (ConditionState::Unknown, vec![why.to_owned()]), "{after}");
        }
        assert_eq!(lost(60, "61s"), holding(1));
        assert_eq!(lost(61, "61s"), (ConditionState::Due, Vec::new()));
        // An invalid duration is reported before it is needed, and not if the trigger does not count.
        let (verdict, problems) = at(70, json!({"lost": false, "after": 30}), None);
        assert_eq!(
            (verdict, problems),
            (ConditionState::Cleared, vec!["for: `30` is not a duration".to_owned()])
        );
        assert_eq!(at(70, json!({"lost": true}), None), (ConditionState::Cleared, Vec::new()));
        let resting = |rest: &str| json!({"lost": true, "after": "0s", "rest": rest});
        assert_eq!(at(80, resting("1m"), Some("run")).0, ConditionState::Cooldown(seconds(60)));
        assert_eq!(at(100, resting("30s"), Some("run")).0, ConditionState::Cooldown(seconds(10)));
        assert_eq!(at(110, resting("30s"), Some("run")).0, ConditionState::Due);
        // A duration that is not known yet is no problem.
        let unknown = Scope::new().with("spec", Var::Vars([("lost".into(), Var::Json(json!(true)))].into()));
        let plan = failover(vec![trigger("spec.lost", Some("{{ refs.a.after }}"), None)]);
        let unknown = unknown.with("refs", Var::Vars([("a".into(), Var::Unknown("not read".into()))].into()));
        let found = watched(&mut Conditions::default(), &plan, 0, &unknown, None, false);
        assert_eq!(found, (ConditionState::Unknown, Vec::new()));
    }

    /// A condition that does not hold says nothing about the time of the other one.
    #[test]
    fn each_trigger_of_a_plan_has_its_own_time() {
        let plan =
            failover(vec![trigger("spec.lost", Some("60s"), None), trigger("spec.slow", Some("30s"), None)]);
        let mut conditions = Conditions::default();
        let scope = Scope::new().with("spec", Var::Json(json!({"lost": false, "slow": true})));
        let mut at = |at: u64| watched(&mut conditions, &plan, at, &scope, None, false).0;
        assert_eq!(at(0), ConditionState::Holding(seconds(30)));
        assert_eq!(at(20), ConditionState::Holding(seconds(10)));
        assert_eq!(at(30), ConditionState::Due);
    }
}
