//! The metrics for Prometheus. Labels are packages, kinds, plans, steps and outcomes: they are few, and contain nothing of
//! an instance or a Secret.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use serde_json::Value;

use super::registry::Registered;
use crate::api::Class;
use crate::clock::Instant;
use crate::cluster::Requests;
use crate::memory;
use crate::operators::{CONDITIONS, Rollout};
use crate::plan::{DELETE_CHILD, Ended};

/// How a reconcile has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing is left to do before the next event.
    Done,
    /// It is tried again, later each time.
    Failed,
    /// A panic. It is a bug and harms no other reconcile.
    Panicked,
}

impl Ending {
    const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Panicked];

    fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Panicked => "panicked",
        }
    }
}

/// The label of a class of errors.
fn class_label(class: Class) -> &'static str {
    match class {
        Class::Retry => "retry",
        Class::Conflict => "conflict",
        Class::NotFound => "not-found",
        Class::Permanent => "permanent",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfPackage {
    pub package: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    package: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfKind {
    pub kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfVerdict {
    pub kind: String,
    pub verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCondition {
    package: String,
    condition: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfUpgrade {
    package: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfState {
    pub state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfClass {
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPlan {
    package: String,
    kind: String,
    plan: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndedRun {
    package: String,
    kind: String,
    plan: String,
    phase: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfStep {
    package: String,
    kind: String,
    plan: String,
    step: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfRunState {
    pub package: String,
    pub kind: String,
    pub state: &'static str,
}

/// The buckets of the durations of runs and steps, in seconds: from a tenth of a second to six hours.
const RUN_BUCKETS: [f64; 7] = [0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0];

/// The plan of runs whose plan is not in the package: their names are up to users.
const NO_PLAN: &str = "unknown";

/// The phases in which runs end.
const FINAL_PHASES: [&str; 4] = ["Succeeded", "Failed", "Cancelled", "Superseded"];

type Histograms = Family<OfPackage, Histogram, fn() -> Histogram>;

/// All metrics.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    started: Instant,
    reconciles: Family<OfOutcome, Counter>,
    reconcile_seconds: Histograms,
    waited_seconds: Histograms,
    child_errors: Family<OfClass, Counter>,
    ended_runs: Family<EndedRun, Counter>,
    run_seconds: Family<OfPlan, Histogram, fn() -> Histogram>,
    step_seconds: Family<OfStep, Histogram, fn() -> Histogram>,
    pub(super) watch_failures: Family<OfKind, Counter>,
    pub(super) events: Counter,
    pub(super) events_dropped: Counter,
    pub(super) leader: Gauge,
    pub(super) unprotected: Gauge,
    migrated: Family<OfKind, Counter>,
    migration_left: Family<OfKind, Gauge>,
    conditions: Family<OfCondition, Gauge>,
    upgrades: Family<OfUpgrade, Gauge>,
    // Set when the metrics are read.
    pub(super) ready: Family<OfPackage, Gauge>,
    pub(super) running: Family<OfPackage, Gauge>,
    pub(super) delayed: Family<OfPackage, Gauge>,
    pub(super) watches: Family<OfState, Gauge>,
    pub(super) instances: Family<OfVerdict, Gauge>,
    pub(super) runs: Family<OfRunState, Gauge>,
    pub(super) oldest_run: Family<OfRunState, Gauge>,
    pub(super) children: Gauge,
    memory: Gauge,
    uptime: Gauge,
}

impl Metrics {
    pub(super) fn new(requests: &Requests) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 18));
        let of_run: fn() -> Histogram = || Histogram::new(RUN_BUCKETS);
        let mut metrics = Self {
            registry: Registry::default(),
            started: Instant::now(),
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(seconds),
            waited_seconds: Family::new_with_constructor(seconds),
            child_errors: Family::default(),
            ended_runs: Family::default(),
            run_seconds: Family::new_with_constructor(of_run),
            step_seconds: Family::new_with_constructor(of_run),
            watch_failures: Family::default(),
            events: Counter::default(),
            events_dropped: Counter::default(),
            leader: Gauge::default(),
            unprotected: Gauge::default(),
            migrated: Family::default(),
            migration_left: Family::default(),
            conditions: Family::default(),
            upgrades: Family::default(),
            ready: Family::default(),
            running: Family::default(),
            delayed: Family::default(),
            watches: Family::default(),
            instances: Family::default(),
            runs: Family::default(),
            oldest_run: Family::default(),
            children: Gauge::default(),
            memory: Gauge::default(),
            uptime: Gauge::default(),
        };
        let mut all = std::mem::take(&mut metrics.registry);
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        all.register("operetta_build", "The version that runs", version);
        requests.register(&mut all);
        all.register(
            "operetta_reconcile",
            "Reconciles of instances, by how they ended",
            metrics.reconciles.clone(),
        );
        all.register(
            "operetta_reconcile_duration_seconds",
            "How long reconciles took",
            metrics.reconcile_seconds.clone(),
        );
        all.register(
            "operetta_queue_wait_seconds",
            "How long instances waited in the queue after they were due",
            metrics.waited_seconds.clone(),
        );
        all.register("operetta_queue_ready", "Instances that are due", metrics.ready.clone());
        all.register(
            "operetta_queue_running",
            "Instances that are being reconciled",
            metrics.running.clone(),
        );
        all.register("operetta_queue_delayed", "Instances that are due later", metrics.delayed.clone());
        all.register(
            "operetta_child_errors",
            "Writes of children that failed, by what follows from it",
            metrics.child_errors.clone(),
        );
        all.register("operetta_runs", "Runs of plans that have not ended, by state", metrics.runs.clone());
        all.register(
            "operetta_oldest_run_age_seconds",
            "Since when the oldest run in that state has started or, before that, was requested; 0 without any",
            metrics.oldest_run.clone(),
        );
        all.register(
            "operetta_operator_condition",
            "1 while a condition of an Operator is True",
            metrics.conditions.clone(),
        );
        all.register(
            "operetta_upgrade_instances",
            "Instances of a package that are to have another revision, by how far they are; 0 while none are moved",
            metrics.upgrades.clone(),
        );
        all.register(
            "operetta_runs_ended",
            "Runs of plans that have ended, by their last phase",
            metrics.ended_runs.clone(),
        );
        all.register(
            "operetta_run_duration_seconds",
            "How long runs of plans took",
            metrics.run_seconds.clone(),
        );
        all.register(
            "operetta_step_duration_seconds",
            "How long steps of runs took",
            metrics.step_seconds.clone(),
        );
        all.register("operetta_watches", "Watches, by state", metrics.watches.clone());
        all.register(
            "operetta_watch_failures",
            "Failures of watches, each followed by another attempt",
            metrics.watch_failures.clone(),
        );
        all.register("operetta_instances", "Instances, by how they are", metrics.instances.clone());
        all.register("operetta_children", "Children that are known", metrics.children.clone());
        all.register("operetta_events", "Kubernetes Events that were handed in", metrics.events.clone());
        all.register(
            "operetta_events_dropped",
            "Kubernetes Events that were too many to be published",
            metrics.events_dropped.clone(),
        );
        all.register(
            "operetta_migrated_objects",
            "Stored objects that were written in the storage version of their CRD",
            metrics.migrated.clone(),
        );
        all.register(
            "operetta_migration_objects_left",
            "Stored objects that are still to be written in the storage version of their CRD",
            metrics.migration_left.clone(),
        );
        all.register(
            "operetta_unprotected",
            "1 while an admission policy of runs is missing or altered, so that requests and approvals wait",
            metrics.unprotected.clone(),
        );
        all.register("operetta_leader", "1 if this process leads", metrics.leader.clone());
        all.register("process_resident_memory_bytes", "Resident memory", metrics.memory.clone());
        all.register("operetta_uptime_seconds", "How long this process runs", metrics.uptime.clone());
        metrics.registry = all;
        for class in [Class::Retry, Class::Conflict, Class::NotFound, Class::Permanent] {
            let _ = metrics.child_errors.get_or_create(&OfClass { class: class_label(class) });
        }
        metrics
    }

    pub(super) fn reconciled(&self, package: &str, ending: Ending, waited: Duration, took: Duration) {
        for each in Ending::ALL {
            let of = OfOutcome { package: package.to_owned(), outcome: each.label() };
            self.reconciles.get_or_create(&of).inc_by(u64::from(each == ending));
        }
        let package = OfPackage { package: package.to_owned() };
        self.waited_seconds.get_or_create(&package).observe(waited.as_secs_f64());
        self.reconcile_seconds.get_or_create(&package).observe(took.as_secs_f64());
    }

    pub(super) fn child_error(&self, class: Class) {
        self.child_errors.get_or_create(&OfClass { class: class_label(class) }).inc();
    }

    /// Creates the counters of the plans of a kind with the value 0. Prometheus sees no increase in a counter whose first
    /// value is 1.
    pub(super) fn expect_runs<'a>(&self, package: &str, kind: &str, plans: impl Iterator<Item = &'a str>) {
        for plan in plans {
            for phase in FINAL_PHASES {
                let (plan, phase) = (plan.to_owned(), phase.to_owned());
                let of = EndedRun { package: package.to_owned(), kind: kind.to_owned(), plan, phase };
                let _ = self.ended_runs.get_or_create(&of);
            }
        }
    }

    /// Counts the parts of a run that have ended. `phase`: the phase of the run.
    pub(super) fn ended(&self, registered: &Registered, plan: &str, phase: &str, ended: &[Ended]) {
        let is_known = plan == DELETE_CHILD
            || registered
                .resource()
                .into_iter()
                .chain(registered.earlier())
                .any(|(_, resource)| resource.plan(plan).is_some());
        let plan = if is_known { plan } else { NO_PLAN }.to_owned();
        let (package, kind) = (registered.operator().to_owned(), registered.crd.to_string());
        for Ended { step, duration } in ended {
            let (package, kind, plan) = (package.clone(), kind.clone(), plan.clone());
            let seconds = duration.as_secs_f64();
            if let Some(step) = step.clone() {
                self.step_seconds.get_or_create(&OfStep { package, kind, plan, step }).observe(seconds);
                continue;
            }
            let of_plan = OfPlan { package: package.clone(), kind: kind.clone(), plan: plan.clone() };
            self.run_seconds.get_or_create(&of_plan).observe(seconds);
            let phase = phase.to_owned();
            self.ended_runs.get_or_create(&EndedRun { package, kind, plan, phase }).inc();
        }
    }

    /// Sets the metrics of an `Operator` from its status, and from how far its instances are moved.
    pub(super) fn operator(&self, package: &str, status: &Value, rollout: Option<&Rollout>) {
        for condition in CONDITIONS {
            let all = status["conditions"].as_array().into_iter().flatten();
            let holds = all.filter(|c| c["type"] == condition).any(|c| c["status"] == "True");
            let of = OfCondition { package: package.to_owned(), condition };
            self.conditions.get_or_create(&of).set(i64::from(holds));
        }
        let idle = Rollout::default();
        for (state, count) in rollout.unwrap_or(&idle).counts() {
            let of = OfUpgrade { package: package.to_owned(), state };
            self.upgrades.get_or_create(&of).set(gauge(count));
        }
    }

    /// Removes the metrics of an `Operator` that is gone.
    pub(super) fn operator_gone(&self, package: &str) {
        for condition in CONDITIONS {
            self.conditions.remove(&OfCondition { package: package.to_owned(), condition });
        }
        for (state, _) in Rollout::default().counts() {
            self.upgrades.remove(&OfUpgrade { package: package.to_owned(), state });
        }
    }

    /// Counts stored objects of a CRD that were written in its storage version.
    pub(super) fn migrated(&self, crd: &str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.migrated.get_or_create(&OfKind { kind: crd.to_owned() }).inc_by(count);
    }

    /// Sets the number of stored objects of a CRD that are still to be written in its storage version.
    pub(super) fn migration_left(&self, crd: &str, count: usize) {
        self.migration_left.get_or_create(&OfKind { kind: crd.to_owned() }).set(gauge(count));
    }

    /// Removes that number once the migration has ended.
    pub(super) fn migration_ended(&self, crd: &str) {
        self.migration_left.remove(&OfKind { kind: crd.to_owned() });
    }

    /// The text for Prometheus.
    pub(super) fn text(&self) -> String {
        self.memory.set(memory::resident().map_or(0, gauge));
        self.uptime.set(i64::try_from(self.started.elapsed().as_secs()).unwrap_or_default());
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

/// A number of things as a gauge has it.
pub(super) fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::manager::monitor::WATCH_STATES;
    use crate::manager::owned::RunState;
    use crate::operators::upgrade::VERDICTS;

    /// The values of the labels of a series.
    type Labels = BTreeMap<String, BTreeSet<String>>;

    /// The labels whose values are up to packages and to what the API server answers.
    const OPEN: [&str; 8] = ["package", "kind", "plan", "step", "verb", "resource", "code", "version"];

    /// All series that a manager can serve, by name, with all values of labels that are not [`OPEN`].
    fn served() -> BTreeMap<String, Labels> {
        let requests = Requests::default();
        requests.record(&http::Request::get("/api/v1/pods").body(()).unwrap());
        let metrics = Metrics::new(&requests);
        metrics.expect_runs("web", "webs.example.org", ["deploy"].into_iter());
        metrics.reconciled("web", Ending::Done, Duration::ZERO, Duration::ZERO);
        metrics.migrated("webs.example.org", 1);
        metrics.migration_left("webs.example.org", 1);
        metrics.operator("web", &Value::Null, None);
        let (package, kind, plan) = ("web".to_owned(), "webs.example.org".to_owned(), "deploy".to_owned());
        metrics.watch_failures.get_or_create(&OfKind { kind: kind.clone() }).inc();
        for verdict in VERDICTS {
            metrics.instances.get_or_create(&OfVerdict { kind: kind.clone(), verdict }).inc();
        }
        for state in WATCH_STATES {
            metrics.watches.get_or_create(&OfState { state }).inc();
        }
        for family in [&metrics.ready, &metrics.running, &metrics.delayed] {
            family.get_or_create(&OfPackage { package: package.clone() }).inc();
        }
        for state in RunState::ALL {
            let of = OfRunState { package: package.clone(), kind: kind.clone(), state: state.label() };
            metrics.runs.get_or_create(&of).inc();
            metrics.oldest_run.get_or_create(&of).inc();
        }
        let of_plan = OfPlan { package: package.clone(), kind: kind.clone(), plan: plan.clone() };
        metrics.run_seconds.get_or_create(&of_plan).observe(1.0);
        let of_step = OfStep { package, kind, plan, step: "all".to_owned() };
        metrics.step_seconds.get_or_create(&of_step).observe(1.0);
        let mut served: BTreeMap<String, Labels> = BTreeMap::new();
        for line in metrics.text().lines().filter(|line| !line.starts_with('#')) {
            let (name, _) = line.split_once(['{', ' ']).unwrap();
            let labels = served.entry(name.to_owned()).or_default();
            for (label, _, value) in matchers(&line[name.len()..]) {
                labels.entry(label.to_owned()).or_default().insert(value.to_owned());
            }
        }
        served
    }

    /// The label, the operator and the value of each matcher in the braces that a text begins with.
    fn matchers(text: &str) -> Vec<(&str, &str, &str)> {
        let inner =
            text.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inner, _)| inner);
        let mut parts = inner.split('"');
        let mut found = Vec::new();
        while let (Some(before), Some(value)) = (parts.next(), parts.next()) {
            let before = before.trim_start_matches(',').trim();
            let (label, operator) = before.split_at(before.find(['=', '!']).unwrap());
            found.push((label, operator, value));
        }
        found
    }

    /// The texts of a file of alerts or of a dashboard that have this name, wherever they are.
    fn texts<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    found.extend(value.as_str().filter(|_| key == name));
                    texts(value, name, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| texts(item, name, found)),
            _ => {}
        }
    }

    /// What is wrong with the metrics, labels and values of labels of an expression.
    fn mistakes(expression: &str, served: &BTreeMap<String, Labels>) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut labels = BTreeSet::from(["instance"]);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut rest = expression;
        while let Some(at) = ["operetta_", "process_"].iter().filter_map(|word| rest.find(word)).min() {
            rest = &rest[at..];
            let name = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
            rest = &rest[name.len()..];
            let Some(of) = served.get(name) else {
                wrong.push(format!("no manager serves {name}"));
                continue;
            };
            labels.extend(of.keys().map(String::as_str));
            for (label, operator, value) in matchers(rest) {
                let values = if operator.ends_with('~') { value.split('|').collect() } else { vec![value] };
                match of.get(label) {
                    None => wrong.push(format!("{name} has no label {label}")),
                    Some(_) if OPEN.contains(&label) => {}
                    Some(known) => {
                        let unknown = values.into_iter().filter(|value| !known.contains(*value));
                        wrong.extend(unknown.map(|value| format!("{name} never has {label}={value}")));
                    }
                }
            }
        }
        for group in ["by (", "on ("].iter().flat_map(|word| expression.split(word).skip(1)) {
            let (group, _) = group.split_once(')').unwrap();
            let unknown = group.split(',').map(str::trim).filter(|label| !labels.contains(label));
            wrong.extend(unknown.map(|label| format!("no metric here has the label {label}")));
        }
        wrong
    }

    #[test]
    fn alerts_and_dashboard_use_metrics_that_exist_and_the_guide_names_all() {
        let served = served();
        assert!(served.len() > 25, "{served:?}");
        let alerts = crate::yaml::from_str(include_str!("../../docs/monitoring/alerts.yaml")).unwrap();
        let dashboard = serde_json::from_str(include_str!("../../docs/monitoring/dashboard.json")).unwrap();
        for (file, content) in [("alerts.yaml", alerts), ("dashboard.json", dashboard)] {
            let mut expressions = Vec::new();
            texts(&content, "expr", &mut expressions);
            assert!(expressions.len() > 15, "{file}: {expressions:?}");
            for expression in expressions {
                assert!(expression.contains("operetta_"), "{file}: {expression}");
                assert_eq!(mistakes(expression, &served), Vec::<String>::new(), "{file}: {expression}");
            }
        }
        for (expression, mistake) in [
            ("operetta_turns_total > 0", "no manager serves operetta_turns_total"),
            ("operetta_instances{state=\"ready\"}", "operetta_instances has no label state"),
            ("operetta_instances{verdict=~\"ready|held\"}", "operetta_instances never has verdict=held"),
            ("sum by (kind, plan) (operetta_runs)", "no metric here has the label plan"),
        ] {
            assert_eq!(mistakes(expression, &served), [mistake]);
        }
        let guide = include_str!("../../docs/guide/running.md");
        for name in served.keys() {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let base = base.unwrap_or(name);
            // The guide has one row for the three metrics of queues.
            let base = base.strip_suffix("_running").or(base.strip_suffix("_delayed")).unwrap_or(base);
            assert!(guide.contains(base), "docs/guide/running.md does not describe {name}");
        }
    }

    #[test]
    fn an_operator_that_is_gone_has_no_series() {
        let metrics = Metrics::new(&Requests::default());
        let status = serde_json::json!({"conditions": [
            {"type": "Ready", "status": "False"}, {"type": "Stalled", "status": "True"},
        ]});
        let rollout = Rollout { waiting: 3, ..Rollout::default() };
        metrics.operator("web", &status, Some(&rollout));
        let text = metrics.text();
        for line in [
            "operetta_operator_condition{package=\"web\",condition=\"Ready\"} 0",
            "operetta_operator_condition{package=\"web\",condition=\"Stalled\"} 1",
            "operetta_upgrade_instances{package=\"web\",state=\"waiting\"} 3",
        ] {
            assert!(text.contains(line), "{text}");
        }
        metrics.operator_gone("web");
        assert!(!metrics.text().contains("package=\"web\""));
    }
}
