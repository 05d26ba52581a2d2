//! Triggers that watch a condition, or when a certificate expires.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::eval::{NoValue, duration};
use super::expiry;
use super::schedule::LOOK_AGAIN;
use crate::package::plan::{Event, Plan, Trigger};
use crate::template::{Engine, EvalError, Expr, Scope, Text};

/// How long `expires` does not count after the end of the plan's own run, if the trigger does not say: a run that renews nothing is
/// not repeated at once.
const EXPIRES_COOLDOWN: Duration = Duration::from_secs(60 * 60);

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
    /// Whether the condition has held ever since; `None` while that is not known.
    stays: Option<bool>,
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
    /// The time, for certificates.
    pub now: Timestamp,
}

/// What is noticed beside the condition.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Noticed {
    /// What is wrong with `for`, `cooldown`, `before` and certificates: a reason and a message. It is noticed also while the condition
    /// does not hold.
    pub problems: Vec<(&'static str, String)>,
    /// When to look again.
    pub wake: Option<Duration>,
}

impl Conditions {
    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.triggers.is_empty()
    }

    /// Whether a condition of a plan has held ever since the plan's last run has ended, as far as this process has watched it.
    pub fn stay(&self, plan: &str) -> bool {
        self.triggers.iter().any(|((of, _), watched)| of == plan && watched.stays == Some(true))
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

    /// What is known of the conditions of a plan, of which an expiring certificate is one; `None` if it has none. The times are
    /// those of this decision: a change of them counts at once, and time that the condition has held before it counts.
    pub fn watch(&mut self, watch: &Watch<'_>, noticed: &mut Noticed) -> Option<ConditionState> {
        let mut found = None;
        for (index, trigger) in watch.plan.triggers.iter().enumerate() {
            let Some((value, times)) = watch.looked_at(trigger, noticed) else { continue };
            let verdict = self.verdict(watch, index, &value, times);
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
            watched.stays = None;
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
                watched.stays = Some(false);
                return ConditionState::Cleared;
            }
            // Time in which it is unknown does not count; what it has held before does not either.
            Err(EvalError::Unknown { .. }) => {
                (watched.held, watched.holds) = (Duration::ZERO, false);
                return ConditionState::Unknown;
            }
        }
        watched.holds = true;
        watched.stays.get_or_insert(watched.ended.is_some());
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

/// Whether a condition holds; and how long it has to hold, and to rest after a run, if that is known.
type Look = (Result<bool, EvalError>, Option<(Duration, Duration)>);

impl Watch<'_> {
    /// The condition of a trigger; `None` if it watches none.
    fn looked_at(&self, trigger: &Trigger, noticed: &mut Noticed) -> Option<Look> {
        let scope = match &trigger.event {
            Event::Condition { always: true, .. } => self.scope_always,
            _ => self.scope,
        };
        let when = trigger.when.as_ref().map_or(Ok(true), |when| self.engine.truthy(when, scope));
        let time = |text: Option<&Text>, what: &str, otherwise: Duration| match text {
            Some(text) if when == Ok(true) => duration(self.engine, text, scope, what),
            _ => Ok(otherwise),
        };
        let (value, times) = match &trigger.event {
            Event::Condition { condition, hold, cooldown, .. } => {
                let times = time(hold.as_ref(), "for", Duration::ZERO)
                    .and_then(|hold| Ok((hold, time(cooldown.as_ref(), "cooldown", Duration::ZERO)?)));
                (self.engine.truthy(condition, scope), times)
            }
            Event::Expires { certificate, before, cooldown } => {
                let times = time(Some(before), "before", Duration::ZERO)
                    .and_then(|before| Ok((before, time(cooldown.as_ref(), "cooldown", EXPIRES_COOLDOWN)?)));
                let value = match (&when, &times) {
                    (Ok(true), Ok((before, _))) => self.expires(certificate, *before, noticed),
                    _ => Ok(false),
                };
                (value, times.map(|(_, cooldown)| (Duration::ZERO, cooldown)))
            }
            _ => return None,
        };
        if let Err(NoValue::Wrong(why)) = &times {
            noticed.problems.push(("InvalidDuration", why.clone()));
        }
        let value = match value {
            Ok(true) => when,
            other => other,
        };
        Some((value, times.ok()))
    }

    /// Whether a certificate ends within this time.
    fn expires(
        &self,
        certificate: &Expr,
        before: Duration,
        noticed: &mut Noticed,
    ) -> Result<bool, EvalError> {
        let found = expiry::first_end(&self.engine.eval(certificate, self.scope)?);
        let end = match found {
            Ok(Some(end)) => end,
            Ok(None) => return Ok(false),
            Err(why) => {
                noticed.problems.push(("InvalidCertificate", format!("expires: {why}")));
                return Ok(false);
            }
        };
        let before = SignedDuration::try_from(before).unwrap_or(SignedDuration::MAX);
        let rest = end.duration_since(self.now).saturating_sub(before);
        let Some(rest) = Duration::try_from(rest).ok().filter(|rest| !rest.is_zero()) else {
            return Ok(true);
        };
        noticed.wake = Some(noticed.wake.unwrap_or(LOOK_AGAIN).min(rest));
        Ok(false)
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
        let now = Timestamp::from_second(i64::try_from(at).unwrap()).unwrap();
        let watch = Watch { plan, engine: &ENGINE, scope, scope_always: scope, ended, active, now };
        let mut noticed = Noticed::default();
        let found = conditions.watch(&watch, &mut noticed).unwrap();
        (found, noticed.problems.into_iter().map(|(_, problem)| problem).collect())
    }

    #[test]
    fn a_certificate_is_renewed_before_it_ends() {
        let event = Event::Expires {
            certificate: expr("children.tls.data['tls.crt']"),
            before: text("{{ spec.before }}"),
            cooldown: None,
        };
        let location = note("a", "b", "1").location;
        let plan = failover(vec![Trigger { event, when: None, location }]);
        let mut conditions = Conditions::default();
        // It ends on 2026-03-01.
        let mut at = |day: &str, before: &str, certificate: &str, ended: Option<&str>| {
            let now: Timestamp = format!("2026-{day}T00:00:00Z").parse().unwrap();
            conditions.pass(seconds(u64::try_from(now.as_second()).unwrap()), false);
            let tls = Var::Json(json!({"tls": {"data": {"tls.crt": certificate}}}));
            let scope = Scope::new().with("children", tls).with("spec", Var::Json(json!({"before": before})));
            let engine = &ENGINE;
            let (scope, scope_always) = (&scope, &scope);
            let watch = Watch { plan: &plan, engine, scope, scope_always, ended, active: false, now };
            let mut noticed = Noticed::default();
            (conditions.watch(&watch, &mut noticed).unwrap(), noticed)
        };
        let short = include_str!("tests/short.pem");
        let later = |wake| Noticed { wake: Some(wake), ..Noticed::default() };
        let wrong = |reason, why: &str| Noticed { problems: vec![(reason, why.to_owned())], wake: None };
        assert_eq!(at("01-01", "30d", short, None), (ConditionState::Cleared, later(LOOK_AGAIN)));
        assert_eq!(at("01-30", "10m", short, None), (ConditionState::Cleared, later(LOOK_AGAIN)));
        assert_eq!(at("01-30", "30d", short, None), (ConditionState::Due, Noticed::default()));
        // It has not been renewed by its run.
        let rest = (ConditionState::Cooldown(seconds(3600)), Noticed::default());
        assert_eq!(at("01-30", "30d", short, Some("run")), rest);
        assert_eq!(at("01-31", "30d", short, Some("run")), (ConditionState::Due, Noticed::default()));
        assert_eq!(at("04-01", "30d", short, Some("run")), (ConditionState::Due, Noticed::default()));
        let long = include_str!("tests/long.pem");
        assert_eq!(at("04-01", "30d", long, Some("run")).0, ConditionState::Cleared);
        let found = at("01-31", "30d", "hunter2", Some("run"));
        let no_certificate = wrong("InvalidCertificate", "expires: a value is no certificate");
        assert_eq!(found, (ConditionState::Cleared, no_certificate));
        let found = at("01-31", "soon", short, Some("run"));
        let no_time = wrong("InvalidDuration", "before: `soon` is not a duration");
        assert_eq!(found, (ConditionState::Cleared, no_time));
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
    fn a_condition_stays_until_it_does_not_hold() {
        let plan = failover(vec![trigger("spec.lost", Some("60s"), None)]);
        let mut conditions = Conditions::default();
        let mut stays = |at: u64, lost: bool, ended: Option<&str>, active: bool| {
            let scope = Scope::new().with("spec", Var::Json(json!({"lost": lost})));
            watched(&mut conditions, &plan, at, &scope, ended, active);
            conditions.stay("failover")
        };
        assert!(!stays(0, true, None, false), "no run has ended");
        assert!(!stays(60, true, None, true));
        assert!(stays(70, true, Some("one"), false));
        assert!(stays(130, true, Some("one"), true), "the next run is created");
        assert!(!stays(140, false, Some("one"), true));
        assert!(!stays(150, true, Some("one"), true), "it holds again");
        assert!(stays(160, true, Some("two"), false));
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
