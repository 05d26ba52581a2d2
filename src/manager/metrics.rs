//! What Prometheus is told. Labels are packages, kinds and outcomes: there are few of them, and nothing of an
//! instance or of a Secret is among them.

use std::time::{Duration, Instant};

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::cluster::{Class, Requests};

/// How a turn has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing more to do before the next event.
    Done,
    /// It will be tried again, later each time.
    Failed,
    /// A bug; contained.
    Panicked,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfPackage {
    pub package: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Turn {
    package: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfKind {
    pub kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfState {
    pub state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfClass {
    class: &'static str,
}

type Histograms = Family<OfPackage, Histogram, fn() -> Histogram>;

/// All that is measured.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    started: Instant,
    turns: Family<Turn, Counter>,
    turn_seconds: Histograms,
    waited_seconds: Histograms,
    child_errors: Family<OfClass, Counter>,
    pub(super) watch_failures: Family<OfKind, Counter>,
    pub(super) events: Counter,
    pub(super) events_dropped: Counter,
    pub(super) leader: Gauge,
    // Set when they are asked for.
    pub(super) ready: Family<OfPackage, Gauge>,
    pub(super) running: Family<OfPackage, Gauge>,
    pub(super) delayed: Family<OfPackage, Gauge>,
    pub(super) watches: Family<OfState, Gauge>,
    pub(super) instances: Family<OfKind, Gauge>,
    pub(super) children: Gauge,
    memory: Gauge,
    uptime: Gauge,
}

impl Metrics {
    pub(super) fn new(requests: &Requests) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 18));
        let mut metrics = Self {
            registry: Registry::default(),
            started: Instant::now(),
            turns: Family::default(),
            turn_seconds: Family::new_with_constructor(seconds),
            waited_seconds: Family::new_with_constructor(seconds),
            child_errors: Family::default(),
            watch_failures: Family::default(),
            events: Counter::default(),
            events_dropped: Counter::default(),
            leader: Gauge::default(),
            ready: Family::default(),
            running: Family::default(),
            delayed: Family::default(),
            watches: Family::default(),
            instances: Family::default(),
            children: Gauge::default(),
            memory: Gauge::default(),
            uptime: Gauge::default(),
        };
        let mut all = std::mem::take(&mut metrics.registry);
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        all.register("operetta_build", "The version that runs", version);
        requests.register(&mut all);
        all.register(
            "operetta_turns",
            "Turns that instances were given, by how they ended",
            metrics.turns.clone(),
        );
        all.register("operetta_turn_duration_seconds", "How long turns took", metrics.turn_seconds.clone());
        all.register(
            "operetta_queue_wait_seconds",
            "How long instances waited for a turn that was due",
            metrics.waited_seconds.clone(),
        );
        all.register("operetta_queue_ready", "Instances whose turn is due", metrics.ready.clone());
        all.register("operetta_queue_running", "Instances that have their turn", metrics.running.clone());
        all.register(
            "operetta_queue_delayed",
            "Instances with a turn at a later time",
            metrics.delayed.clone(),
        );
        all.register(
            "operetta_child_errors",
            "Writes of children that failed, by what follows from it",
            metrics.child_errors.clone(),
        );
        all.register("operetta_watches", "Watches, by state", metrics.watches.clone());
        all.register(
            "operetta_watch_failures",
            "Failures of watches, each followed by another attempt",
            metrics.watch_failures.clone(),
        );
        all.register("operetta_instances", "Instances that are known", metrics.instances.clone());
        all.register("operetta_children", "Children that are known", metrics.children.clone());
        all.register("operetta_events", "Kubernetes Events that were handed in", metrics.events.clone());
        all.register(
            "operetta_events_dropped",
            "Kubernetes Events that were too many to be published",
            metrics.events_dropped.clone(),
        );
        all.register("operetta_leader", "1 if this process leads", metrics.leader.clone());
        all.register("process_resident_memory_bytes", "Resident memory", metrics.memory.clone());
        all.register("operetta_uptime_seconds", "How long this process runs", metrics.uptime.clone());
        metrics.registry = all;
        metrics
    }

    pub(super) fn turn(&self, package: &str, ending: Ending, waited: Duration, took: Duration) {
        let outcome = match ending {
            Ending::Done => "done",
            Ending::Failed => "failed",
            Ending::Panicked => "panicked",
        };
        self.turns.get_or_create(&Turn { package: package.to_owned(), outcome }).inc();
        let package = OfPackage { package: package.to_owned() };
        self.waited_seconds.get_or_create(&package).observe(waited.as_secs_f64());
        self.turn_seconds.get_or_create(&package).observe(took.as_secs_f64());
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
