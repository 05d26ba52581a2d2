//! Runs of plans: how fast N instances run a plan of five steps side by side, compared with a bare client
//! that sends the same writes; the cost of a step in a run that is alone; and the cost of a step that has
//! nothing to do.
//!
//! The bare client repeats the writes of a manager from the audit log, with the names, uids and
//! resourceVersions of other instances. The writes of one instance are sent one after another.

#![expect(clippy::cast_precision_loss, reason = "counts are small")]

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{ControlPlane, Operetta, options};
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use http::header::CONTENT_TYPE;
use operetta::local::Options;
use operetta::package::Package;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bare::{Bare, instance_kind, resource};
use crate::measure::{Cpu, until_quiet};
use crate::report::median;
use crate::rounds::{per_second, running};
use crate::watch::Readiness;
use crate::{Result, start};

/// The number of steps of the plan whose runs are timed.
const STEPS: usize = 5;
/// The number of runs that are timed alone.
const ALONE: usize = 20;
/// The number of items in each of the two steps without work, in the longer of the runs that are compared.
const ITEMS: usize = 100;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/packages/laps");

/// An audit policy that records each write with its body and its reply.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete]
- level: Metadata
";

/// The results.
#[derive(Debug, Serialize)]
pub(crate) struct Plans {
    instances: usize,
    concurrency: usize,
    /// The writes of one instance in order, by verb and resource.
    writes: Vec<String>,
    /// Seconds until all runs have ended, for each round.
    manager: Vec<f64>,
    /// Seconds of the bare client for the same writes, for each round.
    bare: Vec<f64>,
    manager_cpu: Vec<Cpu>,
    bare_cpu: Vec<Cpu>,
    /// The median of milliseconds from the creation of a single instance until its run has ended.
    alone: f64,
    /// The median of milliseconds of the bare client for the same writes of a single instance.
    bare_alone: f64,
    /// The medians of milliseconds of a run whose two steps have one item each, and of one with [`ITEMS`].
    idle: (f64, f64),
}

/// Runs the measurement.
pub(crate) async fn run(instances: usize, rounds: usize, concurrency: usize) -> Result<Plans> {
    let (package, _) =
        operetta::package::load(Path::new(FOLDER)).map_err(|e| operetta::diag::render(&e, false))?;
    let package = Arc::new(package);
    let writes = record(&package).await?;
    eprintln!("{} writes an instance", writes.len());
    let mut plans = Plans {
        instances,
        concurrency,
        writes: writes.iter().map(|write| write.what.clone()).collect(),
        manager: Vec::new(),
        bare: Vec::new(),
        manager_cpu: Vec::new(),
        bare_cpu: Vec::new(),
        alone: 0.0,
        bare_alone: 0.0,
        idle: (0.0, 0.0),
    };
    let plane = silent().await?;
    let alone = alone(&plane, &package, &writes).await;
    plane.stop().await;
    (plans.alone, plans.bare_alone, plans.idle) = alone?;
    for round in 1..=rounds {
        // Alternate the order; each has a control plane of its own.
        for is_manager in [round % 2 == 0, round % 2 == 1] {
            let plane = silent().await?;
            let result = many(&plane, &package, &writes, instances, concurrency, is_manager).await;
            plane.stop().await;
            let (seconds, cpu) = result?;
            let who = if is_manager { "manager" } else { "bare client" };
            eprintln!("round {round} of {rounds}: {who:<12} {:7.1} runs/s", per_second(instances, seconds));
            if is_manager {
                plans.manager.push(seconds);
                plans.manager_cpu.push(cpu);
            } else {
                plans.bare.push(seconds);
                plans.bare_cpu.push(cpu);
            }
        }
    }
    Ok(plans)
}

/// Starts a control plane without an audit log, which costs the server a few percent of its time.
async fn silent() -> Result<ControlPlane> {
    start(vec!["--audit-log-path=".into()]).await
}

fn manager(plane: &ControlPlane) -> Operetta {
    Operetta::run(plane, &["run", FOLDER])
}

/// Starts a manager and waits until it watches instances.
async fn watching(plane: &ControlPlane) -> Result<Operetta> {
    let mut manager = manager(plane);
    manager.wait_for("watching instances", Duration::from_secs(60)).await;
    running(&manager)?;
    Ok(manager)
}

/// Runs the plan for `count` instances side by side. Returns seconds, and CPU seconds in that time.
async fn many(
    plane: &ControlPlane,
    package: &Arc<Package>,
    writes: &[Write],
    count: usize,
    concurrency: usize,
    is_manager: bool,
) -> Result<(f64, Cpu)> {
    let bare = Bare::new(plane.client()?, concurrency);
    // The first manager registers the CRDs.
    drop(watching(plane).await?);
    bare.create_namespace("many").await?;
    let instances = bare.create_instances(resource(package)?, "many", count).await?;
    until_quiet(plane).await?;
    if is_manager {
        let readiness = Readiness::watch(plane.client()?, resource(package)?, "many");
        let (before, started) = (Cpu::now(plane, None)?, Instant::now());
        let manager = manager(plane);
        let times = readiness.all(count, || running(&manager)).await?;
        let cpu = Cpu::now(plane, Some(manager.pid()))?.since(before);
        return Ok((times.last.saturating_duration_since(started).as_secs_f64(), cpu));
    }
    let client = plane.client()?;
    let (before, started) = (Cpu::now(plane, None)?, Instant::now());
    stream::iter(&instances)
        .map(|instance| repeat(&client, writes, instance))
        .buffer_unordered(concurrency)
        .try_collect::<()>()
        .await?;
    Ok((started.elapsed().as_secs_f64(), Cpu::now(plane, None)?.since(before)))
}

/// Runs the plan for one instance after another. Returns milliseconds of the manager, of the bare client, and
/// of runs whose steps have nothing to do.
async fn alone(
    plane: &ControlPlane,
    package: &Arc<Package>,
    writes: &[Write],
) -> Result<(f64, f64, (f64, f64))> {
    let client = plane.client()?;
    let bare = Bare::new(client.clone(), 1);
    let resource = resource(package)?;
    let manager = watching(plane).await?;
    let (mut with_manager, mut with_client) = (Vec::new(), Vec::new());
    for number in 0..ALONE {
        let namespace = format!("alone-{number}");
        bare.create_namespace(&namespace).await?;
        let readiness = Readiness::watch(client.clone(), resource, &namespace);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started = Instant::now();
        bare.create_instances(resource, &namespace, 1).await?;
        let times = readiness.all(1, || running(&manager)).await?;
        with_manager.push(millis(times.last.saturating_duration_since(started)));
    }
    let mut idle = (Vec::new(), Vec::new());
    for number in 0..ALONE {
        idle.0.push(requested(&client, &format!("alone-{number}"), 1).await?);
        idle.1.push(requested(&client, &format!("alone-{number}"), ITEMS).await?);
    }
    drop(manager);
    for number in 0..ALONE {
        let namespace = format!("client-{number}");
        bare.create_namespace(&namespace).await?;
        let started = Instant::now();
        let instance = bare.create_instances(resource, &namespace, 1).await?;
        repeat(&client, writes, &instance[0]).await?;
        with_client.push(millis(started.elapsed()));
    }
    Ok((median(with_manager), median(with_client), (median(idle.0), median(idle.1))))
}

/// Milliseconds from the request of a run of the plan without work until it has succeeded.
async fn requested(client: &kube::Client, namespace: &str, items: usize) -> Result<f64> {
    // Wait until the work after the last run, such as its Events, is done.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let path = format!("/apis/operetta.dev/v1alpha1/namespaces/{namespace}/planruns");
    let name = format!("idle-{items}");
    let run = json!({
        "apiVersion": "operetta.dev/v1alpha1", "kind": "PlanRun", "metadata": {"name": name},
        "spec": {
            "of": {"apiVersion": "fixtures.operetta.dev/v1", "kind": "Lap", "resource": "laps", "name": "light-0"},
            "plan": "idle", "params": {"count": items},
        },
    });
    let started = Instant::now();
    let body = run.to_string().into_bytes();
    client.request_text(Request::post(&path).header(CONTENT_TYPE, "application/json").body(body)?).await?;
    let mut pause = Duration::from_millis(1);
    loop {
        let text = client.request_text(Request::get(format!("{path}/{name}")).body(Vec::new())?).await?;
        let run: Value = serde_json::from_str(&text)?;
        match run["status"]["phase"].as_str() {
            Some("Succeeded") => return Ok(millis(started.elapsed())),
            Some("Failed") => return Err(format!("the run failed: {}", run["status"]["message"]).into()),
            _ if started.elapsed() > Duration::from_secs(60) => return Err("the run does not end".into()),
            _ => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_millis(4));
    }
}

/// A recorded write of the manager.
struct Write {
    what: String,
    method: &'static str,
    uri: String,
    content: &'static str,
    body: Value,
    /// The uid in the reply.
    uid: String,
    resource_version: String,
    /// The recorded instance's namespace. All writes have the same, and the same next two fields.
    namespace: String,
    instance_uid: String,
    instance_version: String,
}

/// An entry of the audit log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    #[serde(rename = "requestURI")]
    uri: String,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: Value,
    #[serde(default)]
    request_object: Value,
    #[serde(default)]
    response_object: Value,
    #[serde(default)]
    response_status: Value,
}

/// Records the writes of a manager for one instance, without Events, which are sent in the background.
async fn record(package: &Arc<Package>) -> Result<Vec<Write>> {
    let policy = tempfile::NamedTempFile::new()?;
    std::fs::write(policy.path(), POLICY)?;
    let flag = format!("--audit-policy-file={}", policy.path().display());
    let plane = ControlPlane::start(Options { nodes: 0, apiserver_flags: vec![flag], ..options() }).await?;
    let recorded = record_on(&plane, package).await;
    plane.stop().await;
    recorded
}

async fn record_on(plane: &ControlPlane, package: &Arc<Package>) -> Result<Vec<Write>> {
    let (bare, resource) = (Bare::new(plane.client()?, 1), resource(package)?);
    let manager = watching(plane).await?;
    // Use a first instance, so that the dry runs of the children's signatures are not recorded.
    for namespace in ["first", "recorded"] {
        bare.create_namespace(namespace).await?;
        let readiness = Readiness::watch(plane.client()?, resource, namespace);
        bare.create_instances(resource, namespace, 1).await?;
        readiness.all(1, || running(&manager)).await?;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(manager);
    let text = std::fs::read_to_string(plane.audit().path())?;
    let mut created = Value::Null;
    let mut writes = Vec::new();
    for line in text.lines() {
        let Ok(entry) = serde_json::from_str::<Entry>(line) else { continue };
        let namespace = entry.object_ref["namespace"].as_str().unwrap_or_default();
        let plural = entry.object_ref["resource"].as_str().unwrap_or_default();
        let is_write = ["create", "update", "patch", "delete"].contains(&&*entry.verb);
        if namespace != "recorded" || !is_write {
            continue;
        }
        if entry.verb == "create" && plural == instance_kind(resource).plural {
            created = entry.response_object["metadata"].clone();
            continue;
        }
        let is_refused = entry.response_status["code"].as_u64().is_none_or(|code| code >= 400);
        let is_managers = entry.user_agent.starts_with("operetta/");
        if !is_managers || plural == "events" || entry.uri.contains("dryRun=All") || is_refused {
            continue;
        }
        let content = match &entry.request_object {
            _ if entry.verb == "create" => "application/json",
            Value::Array(_) => "application/json-patch+json",
            _ if entry.uri.contains("force=true") => "application/apply-patch+yaml",
            _ => "application/merge-patch+json",
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subresource = entry.object_ref["subresource"].as_str();
        let metadata = &entry.response_object["metadata"];
        let mut body = entry.request_object;
        if entry.verb == "create"
            && let Some(metadata) = body["metadata"].as_object_mut()
        {
            // The log has the object with the server's additions.
            metadata
                .retain(|name, _| ["name", "namespace", "labels", "annotations"].contains(&name.as_str()));
        }
        writes.push(Write {
            what: format!(
                "{} {plural}{}",
                entry.verb,
                subresource.map(|s| format!("/{s}")).unwrap_or_default()
            ),
            method: if entry.verb == "create" { "POST" } else { "PATCH" },
            uri: entry.uri,
            content,
            body,
            uid: text(&metadata["uid"]),
            resource_version: text(&metadata["resourceVersion"]),
            namespace: "recorded".to_owned(),
            instance_uid: text(&created["uid"]),
            instance_version: text(&created["resourceVersion"]),
        });
    }
    if writes.len() < 2 * STEPS {
        return Err(format!("the audit log has only {} writes", writes.len()).into());
    }
    Ok(writes)
}

/// The parts of a reply that are read.
#[derive(Deserialize)]
struct Reply {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    uid: String,
    resource_version: String,
}

/// Sends the recorded writes for another instance, one after another.
async fn repeat(client: &kube::Client, writes: &[Write], instance: &Value) -> Result<()> {
    let Some(first) = writes.first() else { return Ok(()) };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, namespace) = (text(&instance["metadata"]["name"]), text(&instance["metadata"]["namespace"]));
    let names = |text: &str| text.replace("light-0", &name).replace(&first.namespace, &namespace);
    // The new uids and resourceVersions, by the recorded ones.
    let mut known: HashMap<&str, String> = HashMap::from([
        (&*first.instance_uid, text(&instance["metadata"]["uid"])),
        (&*first.instance_version, text(&instance["metadata"]["resourceVersion"])),
    ]);
    for write in writes {
        let mut body = write.body.clone();
        adapt(&mut body, &|text: &str| known.get(text).cloned().unwrap_or_else(|| names(text)));
        let request = Request::builder()
            .method(write.method)
            .uri(names(&write.uri))
            .header(CONTENT_TYPE, write.content)
            .body(body.to_string().into_bytes())?;
        let reply = client.request_text(request).await.map_err(|error| format!("{}: {error}", write.what))?;
        let Reply { metadata } = serde_json::from_str(&reply)?;
        known.insert(&write.uid, metadata.uid);
        known.insert(&write.resource_version, metadata.resource_version);
    }
    Ok(())
}

/// Changes all strings in a value.
fn adapt(value: &mut Value, change: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| adapt(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| adapt(field, change)),
        _ => {}
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

impl fmt::Display for Plans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instances, concurrency, writes, .. } = self;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for what in writes {
            *counts.entry(what).or_default() += 1;
        }
        writeln!(
            f,
            "{instances} runs of {STEPS} steps side by side; {concurrency} requests in flight of the bare client"
        )?;
        writeln!(f, "{} writes a run:", writes.len())?;
        for (what, count) in counts {
            writeln!(f, "    {count:>3} {what}")?;
        }
        let cpu = |cpu: &[Cpu], of: fn(&Cpu) -> f64| median(cpu.iter().map(of).collect());
        for (who, seconds, of) in
            [("manager", &self.manager, &self.manager_cpu), ("bare client", &self.bare, &self.bare_cpu)]
        {
            writeln!(
                f,
                "{who:<12} {:>7.1} runs/s, median of {} rounds; CPU seconds: manager {:.1}, client {:.1}, kube-apiserver {:.1}, etcd {:.1}",
                median(seconds.iter().map(|seconds| per_second(*instances, *seconds)).collect()),
                seconds.len(),
                cpu(of, |cpu| cpu.manager),
                cpu(of, |cpu| cpu.client),
                cpu(of, |cpu| cpu.apiserver),
                cpu(of, |cpu| cpu.etcd),
            )?;
        }
        let ratios = self.manager.iter().zip(&self.bare).map(|(manager, bare)| bare / manager).collect();
        writeln!(f, "ratio of the rates, median of the rounds: {:.2}", median(ratios))?;
        writeln!(
            f,
            "one run alone: {:.1} ms, the bare client {:.1} ms: {:.2} ms a step beyond the writes",
            self.alone,
            self.bare_alone,
            (self.alone - self.bare_alone) / STEPS as f64
        )?;
        let (one, many) = self.idle;
        let steps = 2 * (ITEMS - 1);
        writeln!(
            f,
            "a run of 2 steps without work: {one:.1} ms, of {}: {many:.1} ms: {:.3} ms a step",
            2 * ITEMS,
            (many - one) / steps as f64
        )
    }
}
