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

/// Of the durations of runs and steps, in seconds: from a tenth to six hours.
const RUN_BUCKETS: [f64; 7] = [0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0];

/// The plan of runs whose plan is not in the package: their names are up to users.
const NO_PLAN: &str = "unknown";

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
        metrics
    }

    pub(super) fn reconciled(&self, package: &str, ending: Ending, waited: Duration, took: Duration) {
        let outcome = match ending {
            Ending::Done => "done",
            Ending::Failed => "failed",
            Ending::Panicked => "panicked",
        };
        self.reconciles.get_or_create(&OfOutcome { package: package.to_owned(), outcome }).inc();
        let package = OfPackage { package: package.to_owned() };
        self.waited_seconds.get_or_create(&package).observe(waited.as_secs_f64());
        self.reconcile_seconds.get_or_create(&package).observe(took.as_secs_f64());
    }

    pub(super) fn child_error(&self, class: Class) {
        let class = match class {
            Class::Retry => "retry",
            Class::Conflict => "conflict",
            Class::NotFound => "not-found",
            Class::Permanent => "permanent",
        };
        self.child_errors.get_or_create(&OfClass { class }).inc();
    }

    /// Parts of a run have ended, and the run is in that phase.
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

    /// An `Operator` is as its status says, and instances are moved so far.
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

    /// There is no `Operator` of that name any more.
    pub(super) fn operator_gone(&self, package: &str) {
        for condition in CONDITIONS {
            self.conditions.remove(&OfCondition { package: package.to_owned(), condition });
        }
        for (state, _) in Rollout::default().counts() {
            self.upgrades.remove(&OfUpgrade { package: package.to_owned(), state });
        }
    }

    /// So many stored objects of a CRD were written in its storage version.
    pub(super) fn migrated(&self, crd: &str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.migrated.get_or_create(&OfKind { kind: crd.to_owned() }).inc_by(count);
    }

    /// So many are still to be written.
    pub(super) fn migration_left(&self, crd: &str, count: usize) {
        self.migration_left.get_or_create(&OfKind { kind: crd.to_owned() }).set(gauge(count));
    }

    /// None is to be written any more.
    pub(super) fn migration_ended(&self, crd: &str) {
        self.migration_left.remove(&OfKind { kind: crd.to_owned() });
    }

    /// The text for Prometheus.
    pub(super) fn text(&self) -> String {
        self.memory.set(resident().unwrap_or_default());
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

/// Resident memory in bytes.
fn resident() -> Option<i64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(i64::try_from(rustix::param::page_size()).ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Metrics with a value of each family: without one it is not in the text.
    fn filled() -> Metrics {
        let requests = Requests::default();
        requests.record(&http::Request::get("/api/v1/pods").body(()).unwrap());
        let metrics = Metrics::new(&requests);
        metrics.reconciled("web", Ending::Done, Duration::ZERO, Duration::ZERO);
        metrics.child_error(Class::Permanent);
        metrics.migrated("webs.example.org", 1);
        metrics.migration_left("webs.example.org", 1);
        metrics.operator("web", &Value::Null, None);
        let (package, kind, plan) = ("web".to_owned(), "webs.example.org".to_owned(), "deploy".to_owned());
        let of_kind = OfKind { kind: kind.clone() };
        metrics.watch_failures.get_or_create(&of_kind).inc();
        metrics.instances.get_or_create(&OfVerdict { kind: kind.clone(), verdict: "ready" }).inc();
        metrics.watches.get_or_create(&OfState { state: "watching" }).inc();
        for family in [&metrics.ready, &metrics.running, &metrics.delayed] {
            family.get_or_create(&OfPackage { package: package.clone() }).inc();
        }
        let of_runs = OfRunState { package: package.clone(), kind: kind.clone(), state: "active" };
        metrics.runs.get_or_create(&of_runs).inc();
        metrics.oldest_run.get_or_create(&of_runs).inc();
        let of_plan = OfPlan { package: package.clone(), kind: kind.clone(), plan: plan.clone() };
        metrics.run_seconds.get_or_create(&of_plan).observe(1.0);
        let (step, phase) = ("all".to_owned(), "Failed".to_owned());
        let of_step = OfStep { package: package.clone(), kind: kind.clone(), plan: plan.clone(), step };
        metrics.step_seconds.get_or_create(&of_step).observe(1.0);
        metrics.ended_runs.get_or_create(&EndedRun { package, kind, plan, phase }).inc();
        metrics
    }

    /// The names of the series that the manager serves.
    fn served() -> BTreeSet<String> {
        let text = filled().text();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let series = types.flat_map(|(name, kind)| {
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                "info" => &["_info"],
                _ => &[""],
            };
            suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
        });
        series.collect()
    }

    /// The words of a text that look like names of metrics.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("operetta_") || word.starts_with("process_")).collect()
    }

    #[test]
    fn alerts_and_dashboard_name_metrics_that_exist_and_the_guide_names_all() {
        let served = served();
        assert!(served.len() > 25, "{served:?}");
        for (file, text) in [
            ("alerts.yaml", include_str!("../../docs/monitoring/alerts.yaml")),
            ("dashboard.json", include_str!("../../docs/monitoring/dashboard.json")),
        ] {
            let named = named(text);
            assert!(named.len() > 8, "{file}: {named:?}");
            let unknown: Vec<_> = named.iter().filter(|name| !served.contains(**name)).collect();
            assert!(unknown.is_empty(), "{file} names what no manager serves: {unknown:?}");
        }
        let guide = include_str!("../../docs/guide/running.md");
        for name in &served {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let base = base.unwrap_or(name);
            // One row has the three queues.
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
