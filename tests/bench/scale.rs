//! One manager with more and more instances: whether the cost of an instance stays the same, how much memory
//! the manager uses, and what it does without changes, after a restart, and when somebody changes children.

#![expect(clippy::cast_precision_loss, reason = "counts and bytes are small")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{ControlPlane, Operetta};
use kube::api::DynamicObject;
use operetta::local::{AuditEvent, AuditLog};
use operetta::package::Package;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Result;
use crate::bare::{Bare, resource};
use crate::measure::{Memory, cpu_seconds};
use crate::report::median;
use crate::rounds::{arguments, running, until_idle};
use crate::watch::{Changes, Readiness};

/// How long the steady state is measured.
const STEADY: Duration = Duration::from_secs(60);
/// How many objects are changed.
const EDITS: usize = 1_000;
/// The greatest number of batches with which the cost of one more instance is measured.
const BATCHES: usize = 7;
/// How often the manager is restarted.
const RESTARTS: usize = 5;
const BATCH: usize = 100;

/// The cost of one more instance at a number of instances: medians over some batches.
#[derive(Debug, Serialize)]
pub(crate) struct StepCost {
    /// The number of instances before the first batch.
    instances: usize,
    /// Milliseconds from the creation of a batch until all are Ready, divided by their number.
    milliseconds: f64,
    /// Requests for each instance, without watches.
    requests: f64,
    /// CPU milliseconds of the manager for each instance.
    cpu: f64,
    /// Memory of the idle manager before the first batch.
    memory: Memory,
}

/// The cost of an instance.
struct Cost {
    milliseconds: f64,
    requests: f64,
    cpu: f64,
}

/// The results.
#[derive(Debug, Serialize)]
pub(crate) struct Scale {
    steps: Vec<StepCost>,
    /// Resident bytes a child: the increase from a manager without instances to the last step.
    bytes_a_child: f64,
    /// Requests in a minute without changes, not counting watches.
    steady_requests: BTreeMap<String, usize>,
    /// CPU seconds in that minute.
    steady_cpu: f64,
    /// Restarts, one after another.
    restarts: Vec<Restart>,
    /// The manager's requests after the last restart, without watches.
    restart_requests: BTreeMap<String, usize>,
    /// The repair of changes to children.
    meddling: Meddling,
}

/// Times of a restart of the manager, in seconds.
#[derive(Debug, Serialize)]
struct Restart {
    /// How long a bare client needs before it to list all objects that the manager watches.
    lists: f64,
    /// Seconds until the manager reports that it is ready.
    ready: f64,
    /// Seconds until the manager is idle: it has reconciled every instance without a change.
    rested: f64,
}

/// Times of repairs in milliseconds: median and 99th percentile.
#[derive(Debug, Serialize)]
struct Meddling {
    /// One apply of the bare client, for comparison.
    apply: (f64, f64),
    /// From the answer to an edit or a deletion until a watch shows that it is repaired.
    repaired: (f64, f64),
    /// Repairs of edits alone.
    edited: (f64, f64),
    /// Repairs of deletions alone.
    deleted: (f64, f64),
}

/// Runs the measurement.
pub(crate) async fn run(
    plane: &ControlPlane,
    package: &Arc<Package>,
    most: usize,
    concurrency: usize,
) -> Result<Scale> {
    let bare = Bare::new(plane.client()?, concurrency);
    let resource = resource(package)?;
    let each = resource.children.len();
    let audit = plane.audit();

    let mut manager = Operetta::run(plane, &arguments());
    manager.wait_for("watching instances", Duration::from_secs(30)).await;
    until_idle(manager.pid()).await?;
    let empty = Memory::of(manager.pid())?;
    let grow = async |namespace: &str, added: usize| -> Result<Cost> {
        // Wait for the Events of earlier instances.
        until_silent(&audit).await?;
        bare.create_namespace(namespace).await?;
        let readiness = Readiness::watch(plane.client()?, resource, namespace);
        let (mark, before, started) = (audit.mark()?, cpu_seconds(manager.pid())?, Instant::now());
        bare.create_instances(resource, namespace, added).await?;
        let times = readiness.all(added, || running(&manager)).await?;
        until_idle(manager.pid()).await?;
        let used = cpu_seconds(manager.pid())? - before;
        let asked = requests(&audit.requests_since(mark)?);
        Ok(Cost {
            milliseconds: share(millis(times.last.saturating_duration_since(started)), added),
            requests: share(asked.values().sum::<usize>() as f64, added),
            cpu: share(used * 1000.0, added),
        })
    };
    let mut steps = Vec::new();
    let (mut there, mut bytes_a_child) = (0, 0.0);
    // All batches of a step together are smaller than what the next step adds.
    let batch = (most / 100).clamp(1, BATCH);
    for count in [most / 100, most / 10, most].into_iter().filter(|count| *count > 0) {
        // The server is cold for the first instances.
        grow(&format!("scale-{count}"), count - there).await?;
        there = count;
        eprintln!("{count} instances are Ready");
        let memory = Memory::of(manager.pid())?;
        bytes_a_child = share(memory.resident.saturating_sub(empty.resident) as f64, there * each);
        let mut costs = Vec::new();
        for number in 1..=BATCHES {
            costs.push(grow(&format!("scale-{count}-{number}"), batch).await?);
            there += batch;
        }
        let of = |f: fn(&Cost) -> f64| median(costs.iter().map(f).collect());
        steps.push(StepCost {
            instances: count,
            milliseconds: of(|cost| cost.milliseconds),
            requests: of(|cost| cost.requests),
            cpu: of(|cost| cost.cpu),
            memory,
        });
    }
    until_silent(&audit).await?;
    eprintln!("a minute of rest");
    let (mark, before) = (audit.mark()?, cpu_seconds(manager.pid())?);
    tokio::time::sleep(STEADY).await;
    let steady_cpu = cpu_seconds(manager.pid())? - before;
    let steady_requests = requests(&audit.requests_since(mark)?);

    eprintln!("meddling with {EDITS} objects");
    let meddling = meddle(plane, &bare, package, &format!("scale-{most}")).await?;

    let mut restarts = Vec::new();
    let mut restart_requests = BTreeMap::new();
    for number in 1..=RESTARTS {
        eprintln!("restart {number} of {RESTARTS}");
        manager.kill9();
        drop(manager);
        let started = Instant::now();
        bare.list_all(package).await?;
        let lists = started.elapsed().as_secs_f64();
        let mark = audit.mark()?;
        let started = Instant::now();
        manager = Operetta::run(plane, &arguments());
        let ready = until_ready(&mut manager).await?.saturating_duration_since(started).as_secs_f64();
        let rested = until_idle(manager.pid()).await?.saturating_duration_since(started).as_secs_f64();
        tokio::time::sleep(Duration::from_secs(1)).await;
        restart_requests = requests(&audit.requests_since(mark)?);
        restarts.push(Restart { lists, ready, rested });
    }
    Ok(Scale { steps, bytes_a_child, steady_requests, steady_cpu, restarts, restart_requests, meddling })
}

/// Waits until `/readyz` reports that everything is listed. Returns when.
async fn until_ready(manager: &mut Operetta) -> Result<Instant> {
    manager.wait_for("address=", Duration::from_secs(60)).await;
    let output = manager.output();
    let address = output.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let address = address.ok_or("where it listens is not told")?.to_owned();
    loop {
        let mut stream = TcpStream::connect(&address).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.starts_with("HTTP/1.1 200") {
            return Ok(Instant::now());
        }
        running(manager)?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for the last Events, which are sent slowly.
async fn until_silent(audit: &AuditLog) -> Result<()> {
    loop {
        let mark = audit.mark()?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        if requests(&audit.requests_since(mark)?).values().sum::<usize>() < 5 {
            return Ok(());
        }
    }
}

/// Edits half of the objects and deletes the other half, one after another in random order.
async fn meddle(
    plane: &ControlPlane,
    bare: &Bare,
    package: &Arc<Package>,
    namespace: &str,
) -> Result<Meddling> {
    let instances = bare.instances(resource(package)?, namespace).await?;
    let pick = || instances[fastrand::usize(..instances.len())]["metadata"]["name"].clone();
    let (mut applies, mut edits, mut deletions) = (Vec::new(), Vec::new(), Vec::new());
    let mut changes = Changes::watch(plane.client()?, namespace).await;
    let version = |object: &Value| -> u64 {
        object["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0)
    };
    for number in 0..EDITS {
        let name = pick();
        let name = name.as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
        let started = Instant::now();
        // Change a field that is not the manager's: one round trip that writes to the store.
        let note = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "annotations": {"example.org/edit": number.to_string()}}});
        let before = bare.apply_one(&path, &note).await?;
        applies.push(millis(started.elapsed()));
        if number % 2 == 0 {
            let edit = json!({"data": {"greeting": format!("edited {number}")}});
            let edited = version(&bare.patch(&path, &edit).await?);
            let replied = Instant::now();
            let undone = |object: &DynamicObject| {
                let object = json!({"metadata": object.metadata, "data": object.data["data"]});
                version(&object) > edited && object["data"] == before["data"]
            };
            edits.push(millis(changes.until(name, undone).await?.saturating_duration_since(replied)));
        } else {
            bare.delete(&path).await?;
            let replied = Instant::now();
            let anew =
                |object: &DynamicObject| object.metadata.uid.as_deref() != before["metadata"]["uid"].as_str();
            deletions.push(millis(changes.until(name, anew).await?.saturating_duration_since(replied)));
        }
    }
    let repairs = edits.iter().chain(&deletions).copied().collect();
    Ok(Meddling {
        apply: spread(applies),
        repaired: spread(repairs),
        edited: spread(edits),
        deleted: spread(deletions),
    })
}

/// Counts the manager's requests by verb and resource; everybody else has another user or user agent.
fn requests(events: &[AuditEvent]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events.iter().filter(|e| e.user == "admin" && e.user_agent.starts_with("operetta/")) {
        if event.verb != "watch" || event.streams_list() {
            *counts.entry(format!("{} {}", event.verb, event.resource)).or_default() += 1;
        }
    }
    counts
}

/// The median and the 99th percentile.
fn spread(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |percent: usize| values.get((values.len() * percent / 100).min(values.len().saturating_sub(1)));
    (at(50).copied().unwrap_or(f64::NAN), at(99).copied().unwrap_or(f64::NAN))
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn share(of: f64, by: usize) -> f64 {
    of / by as f64
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "{:>10} {:>14} {:>14} {:>14} {:>10} {:>10}",
            "instances", "ms one more", "requests", "CPU ms", "RSS MiB", "peak MiB"
        )?;
        for step in &self.steps {
            writeln!(
                f,
                "{:>10} {:>14.2} {:>14.2} {:>14.2} {:>10.1} {:>10.1}",
                step.instances,
                step.milliseconds,
                step.requests,
                step.cpu,
                mib(step.memory.resident),
                mib(step.memory.peak)
            )?;
        }
        writeln!(f, "\nresident bytes a child: {:.0}", self.bytes_a_child)?;
        writeln!(f, "a minute of rest: {:.2} CPU seconds; requests besides watches:", self.steady_cpu)?;
        for (name, count) in &self.steady_requests {
            writeln!(f, "    {count:>6} {name}")?;
        }
        let of = |part: fn(&Restart) -> f64| median(self.restarts.iter().map(part).collect());
        writeln!(
            f,
            "a restart, median of {}: ready after {:.2} s, at rest after {:.2} s; the lists alone {:.2} s; the ratio of a \
             round {:.2}",
            self.restarts.len(),
            of(|restart| restart.ready),
            of(|restart| restart.rested),
            of(|restart| restart.lists),
            of(|restart| restart.ready / restart.lists)
        )?;
        for (name, count) in &self.restart_requests {
            writeln!(f, "    {count:>6} {name}")?;
        }
        for (name, (median, high)) in [
            ("one apply of the bare client", self.meddling.apply),
            ("from an edit or a deletion until all is right", self.meddling.repaired),
            ("from an edit until it is undone", self.meddling.edited),
            ("from a deletion until it is there again", self.meddling.deleted),
        ] {
            writeln!(f, "{name:<46} median {median:>7.2} ms, p99 {high:>7.2} ms")?;
        }
        Ok(())
    }
}
