//! Lines of the tables of measured operations in the READMEs of packages:
//!
//! ```sh
//! cargo test --test nodes figures -- --ignored --nocapture --test-threads 1
//! ```
//!
//! Run nothing else at the same time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use operetta::local::AuditEvent;

use crate::support::ext::{POD, Scene, is_managers, name_of, uid_of};

/// A line of a table.
pub(crate) struct Line {
    what: String,
    /// How long each measurement took.
    pub(crate) seconds: Vec<f64>,
    gaps: Vec<f64>,
    restarted: Vec<usize>,
    writes: Vec<usize>,
}

/// The median of values.
pub(crate) fn median<T: PartialOrd + Copy>(values: &[T]) -> T {
    let mut values = values.to_vec();
    values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    values[values.len() / 2]
}

/// The pods of a namespace: the uid of each, and how often its containers have restarted.
async fn pods(scene: &Scene) -> BTreeMap<String, (String, u64)> {
    let pods = scene.list(POD).await;
    let restarts = |pod: &serde_json::Value| {
        let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        containers.filter_map(|container| container["restartCount"].as_u64()).sum()
    };
    pods.iter().map(|pod| (name_of(pod).to_owned(), (uid_of(pod).to_owned(), restarts(pod)))).collect()
}

impl Line {
    pub(crate) fn of(what: &str) -> Self {
        let (seconds, gaps, restarted, writes) = Default::default();
        Self { what: what.to_owned(), seconds, gaps, restarted, writes }
    }

    /// Measures an operation of the manager: its time, the pods that are another one or in another container afterwards, and the
    /// writes of the manager in the namespace, without Events and commands.
    pub(crate) async fn measure(&mut self, scene: &Scene, operation: impl AsyncFnOnce()) {
        let audit = scene.plane().audit();
        let (before, mark) = (pods(scene).await, audit.mark().expect("a log"));
        let begun = Instant::now();
        operation().await;
        self.seconds.push(begun.elapsed().as_secs_f64());
        let after = pods(scene).await;
        let is_other =
            |(name, now): &(&String, &(String, u64))| before.get(*name).is_some_and(|then| then != *now);
        self.restarted.push(after.iter().filter(is_other).count());
        let requests = audit.requests_since(mark).expect("a log");
        let is_own = |e: &&AuditEvent| {
            is_managers(e)
                && e.namespace == scene.namespace()
                && e.writes()
                && e.resource != "events"
                && e.subresource != "exec"
        };
        self.writes.push(requests.iter().filter(is_own).count());
    }

    /// Adds the longest time without an acknowledged write during a measurement.
    pub(crate) fn gap(&mut self, gap: Duration) {
        self.gaps.push(gap.as_secs_f64());
    }

    fn print(&self) {
        let gap =
            if self.gaps.is_empty() { String::new() } else { format!("{:.2} s | 0", median(&self.gaps)) };
        let gap = if gap.is_empty() { " | ".to_owned() } else { gap };
        let (seconds, restarted) = (median(&self.seconds), median(&self.restarted));
        println!("| {} | {seconds:.1} s | {gap} | {restarted} | {} |", self.what, median(&self.writes));
    }
}

/// Prints a table. What was written is checked at the end of each measurement: none that was acknowledged is lost.
pub(crate) fn print(lines: &[&Line]) {
    println!(
        "| operation | time | longest gap in acknowledged writes | writes lost | pods restarted | API writes |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for line in lines {
        line.print();
    }
}
