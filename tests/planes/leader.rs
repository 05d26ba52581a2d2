//! Of several managers only the leader writes. A leader that was suspended past its Lease stops writing, and one that
//! receives SIGTERM hands over at once. Also: requests that hang, lost leases, panics, probes and metrics.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::barrier::{Address, get};
use crate::support::{
    Actor, CHAIN, CONFIG_MAP, ControlPlane, FENCE, Kind, LIGHT, LONG, Operetta, Scene, WEB_APP, copy_package,
    eventually, file, fixture, is_ready, list, plane, read, signal,
};
use http::Request;
use operetta::cluster::Cluster;
use operetta::local::{AuditEvent, Component, Mark, Options};
use operetta::manager::{Config, Manager, Monitor};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A Lease that a leader keeps on a machine that pauses for seconds, and that is free half a minute after its end.
pub(crate) const LEASE: [&str; 3] = [
    "--leader-elect-lease-duration=30s",
    "--leader-elect-renew-deadline=20s",
    "--leader-elect-retry-period=500ms",
];

/// How many instances change all the time.
const INSTANCES: usize = 30;

/// Starts a manager with a [`LEASE`].
fn start(plane: &ControlPlane, identity: &str, lease: &str, packages: &[&str]) -> Operetta {
    start_with(plane, identity, lease, packages, &[])
}

/// Like [`start`], with flags.
fn start_with(
    plane: &ControlPlane,
    identity: &str,
    lease: &str,
    packages: &[&str],
    flags: &[&str],
) -> Operetta {
    let packages: Vec<String> = packages.iter().map(|p| fixture(p)).collect();
    let identity = format!("--leader-elect-identity={identity}");
    let name = format!("--leader-elect-resource-name={lease}");
    let mut args = vec!["run", "--leader-elect", &identity, &name];
    args.extend(LEASE);
    args.extend(flags);
    args.extend(packages.iter().map(String::as_str));
    Operetta::run(plane, &args)
}

/// The writes of one manager, without those of its Lease.
fn writes(events: &[AuditEvent], identity: &str) -> Vec<AuditEvent> {
    let mark = format!("({identity})");
    let ours = |e: &&AuditEvent| e.user_agent.contains(&mark) && e.writes() && e.resource != "leases";
    events.iter().filter(ours).cloned().collect()
}

async fn lease(client: &kube::Client, name: &str) -> Value {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/operetta-system/leases/{name}");
    read(client, &path).await.unwrap_or_default()
}

async fn patch(client: &kube::Client, path: &str, patch: &Value) {
    let request = Request::patch(path)
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .expect("a request");
    client.request::<Value>(request).await.unwrap_or_else(|error| panic!("PATCH {path}: {error}"));
}

fn instances(kind: Kind, name: &str, count: usize) -> String {
    (0..count).fold(String::new(), |text, i| {
        let meta = json!({"name": format!("i{i}")});
        let object = json!({"apiVersion": kind.api_version(), "kind": name, "metadata": meta, "spec": {}});
        format!("{text}---\n{object}\n")
    })
}

#[tokio::test]
async fn leader_suspended_past_its_lease_stops_writing() {
    let plane = plane().await;
    let mut first = start(plane, "leader-first", "sleepy", &["light"]);
    first.wait_for("watching instances", LONG).await;
    let mut second = start(plane, "leader-second", "sleepy", &["light"]);
    second.wait_for("standing by", LONG).await;
    let scene = Scene::unmanaged().await;
    scene.apply(&instances(LIGHT, "Light", INSTANCES)).await;
    for i in 0..INSTANCES {
        scene.ready(LIGHT, &format!("i{i}")).await;
    }
    let client = scene.client();
    let taken = lease(&client, "sleepy").await;
    assert_eq!(taken["spec"]["holderIdentity"], "leader-first");

    // Change instances all the time, so that the leader always has something to write.
    let ended = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (ended, client, namespace) = (Arc::clone(&ended), client.clone(), scene.namespace().to_owned());
        async move {
            let mut round = 0_usize;
            while !ended.load(Ordering::Relaxed) {
                round += 1;
                let name = format!("i{}", round % INSTANCES);
                let path =
                    format!("/apis/{}/namespaces/{namespace}/{}/{name}", LIGHT.api_version(), LIGHT.plural);
                let spec = json!({"spec": {"greeting": format!("hello {round}")}});
                patch(&client, &path, &spec).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            round
        }
    });
    let audit = plane.audit();
    let written = async |identity: &str, mark: Mark| {
        eventually(&format!("a write of {identity}"), LONG, async || {
            let events = audit.requests_since(mark).map_err(|e| e.to_string())?;
            if writes(&events, identity).is_empty() { Err("none".to_owned()) } else { Ok(()) }
        })
        .await;
    };
    written("leader-first", audit.mark().unwrap()).await;

    // Suspend it while all instances have to be written.
    let burst = (0..INSTANCES).map(|i| {
        let path =
            format!("/apis/{}/namespaces/{}/{}/i{i}", LIGHT.api_version(), scene.namespace(), LIGHT.plural);
        let client = client.clone();
        async move { patch(&client, &path, &json!({"spec": {"port": 9000}})).await }
    });
    futures::future::join_all(burst).await;
    signal(first.pid(), Signal::STOP);
    let stopped = audit.mark().unwrap();
    second.wait_for("leading", LONG).await;
    written("leader-second", stopped).await;
    signal(first.pid(), Signal::CONT);
    let status = first.wait(LONG).await;
    assert_eq!(status.code(), Some(1), "{}", first.output());
    assert!(first.output().contains("the Lease is lost"), "{}", first.output());

    // The second manager leads, and hands over when it receives SIGTERM during its work.
    written("leader-second", audit.mark().unwrap()).await;
    let mut third = start(plane, "leader-third", "sleepy", &["light"]);
    third.wait_for("standing by", LONG).await;
    written("leader-second", audit.mark().unwrap()).await;
    signal(second.pid(), Signal::TERM);
    let status = second.wait(LONG).await;
    assert!(status.success(), "{status}\n{}", second.output());
    assert!(second.output().contains("released"), "{}", second.output());
    third.wait_for("leading", LONG).await;
    written("leader-third", audit.mark().unwrap()).await;

    ended.store(true, Ordering::Relaxed);
    let rounds = load.await.unwrap();
    for i in 0..INSTANCES {
        // The last value that was requested.
        let round = rounds - (rounds + INSTANCES - i) % INSTANCES;
        let greeting = format!("hello {round}");
        let holds = |o: &Value| is_ready(o) && o["status"]["greeting"] == greeting;
        scene.until(&greeting, LIGHT, &format!("i{i}"), holds).await;
    }
    assert_eq!(lease(&client, "sleepy").await["spec"]["holderIdentity"], "leader-third");

    let events = audit.requests_since(Mark::START).unwrap();
    // A thread that is stopped between reading the clock and the system call still sends that one request:
    // design/0005.
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    for (before, after, most) in
        [("leader-first", "leader-second", threads), ("leader-second", "leader-third", 0)]
    {
        let begin = writes(&events, after).into_iter().map(|e| e.received).min().unwrap();
        let late: Vec<_> = writes(&events, before).into_iter().filter(|e| e.received > begin).collect();
        assert!(late.len() <= most, "{before} wrote after {after} began, at {begin}:\n{}", list(&late));
    }
    // The standby did not even try to write.
    let all = writes(&events, "leader-third");
    assert!(all.iter().all(|e| e.code != 0), "{}", list(&all));
}

#[tokio::test]
async fn taken_lease_ends_the_manager_but_a_deleted_one_does_not() {
    let plane = plane().await;
    let flags = ["--log-format=json", "no/such/package"];
    let mut manager = start_with(plane, "holder", "contested", &["echo"], &flags);
    manager.wait_for("watching instances", LONG).await;
    let client = plane.client().unwrap();
    let path = "/apis/coordination.k8s.io/v1/namespaces/operetta-system/leases/contested";
    let uid = lease(&client, "contested").await["metadata"]["uid"].clone();
    let request = Request::delete(path).body(Vec::new()).unwrap();
    client.request::<Value>(request).await.unwrap();
    eventually("the Lease to be made again", LONG, async || {
        let live = lease(&client, "contested").await;
        let again = live["spec"]["holderIdentity"] == "holder" && live["metadata"]["uid"] != uid;
        if again { Ok(()) } else { Err(live.to_string()) }
    })
    .await;
    // A changed label does not mean that another manager holds the Lease.
    patch(&client, path, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    let renewed = lease(&client, "contested").await["spec"]["renewTime"].clone();
    eventually("another renewal", LONG, async || {
        let live = lease(&client, "contested").await;
        if live["spec"]["renewTime"] == renewed { Err(live.to_string()) } else { Ok(()) }
    })
    .await;
    patch(&client, path, &json!({"spec": {"holderIdentity": "usurper"}})).await;
    let status = manager.wait(LONG).await;
    assert_eq!(status.code(), Some(1), "{}", manager.output());
    // Every line of the output is JSON.
    let output = manager.output();
    let lines: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}\n{output}")))
        .collect();
    let lost = |line: &&Value| {
        let told = line["message"].as_str().unwrap_or_default();
        line["level"] == "ERROR"
            && told.contains("the Lease is lost")
            && told.contains("usurper holds it now")
    };
    assert!(lines.iter().any(|line| lost(&line)), "{output}");
    let broken = |line: &&Value| line["level"] == "ERROR" && line["code"] == "package::unreadable";
    assert!(lines.iter().any(|line| broken(&line)), "{output}");
}

#[tokio::test]
async fn probes_metrics_and_state_are_served_without_object_content() {
    let plane = plane().await;
    let (ordered, refs) = (fixture("ordered"), fixture("refs"));
    let args = [
        "run",
        "--leader-elect=false",
        "--leader-elect-resource-name=telling",
        "--log-format=json",
        "--log=debug",
        &ordered,
        &refs,
    ];
    let mut manager = Operetta::run(plane, &args);
    manager.wait_for("serving /metrics", LONG).await;
    let line = |output: &str, text: &str| -> Option<Value> {
        output.lines().find(|l| l.contains(text)).and_then(|l| serde_json::from_str(l).ok())
    };
    let said = line(&manager.output(), "serving /metrics").expect("JSON");
    let address = said["address"].as_str().expect("an address").to_owned();
    assert_eq!(get(&address, "/healthz").await, ("HTTP/1.1 200 OK".into(), "ok\n".into()));
    eventually("it to be ready", LONG, async || match get(&address, "/readyz").await {
        (status, _) if status.contains(" 200 ") => Ok(()),
        (status, body) => Err(format!("{status} {body}")),
    })
    .await;
    let scene = Scene::unmanaged().await;
    let canary = "canary-7d1f";
    let chain = json!({"apiVersion": CHAIN.api_version(), "kind": "Chain",
        "metadata": {"name": "watched", "annotations": {"note": canary}}, "spec": {"size": 2}});
    scene.apply_ready(CHAIN, "watched", &chain.to_string()).await;
    let reader = json!({"apiVersion": "fixtures.operetta.dev/v1", "kind": "Reader", "metadata": {"name": "reader"},
        "spec": {"parts": []}});
    scene.apply(&reader.to_string()).await;
    eventually("the watch of a ref", LONG, async || {
        let (_, state) = get(&address, "/debug/state").await;
        if state.contains("reader-extra") && !state.contains("Listing") { Ok(()) } else { Err(state) }
    })
    .await;

    let (status, metrics) = get(&address, "/metrics").await;
    assert!(status.contains(" 200 "), "{status}");
    for expected in [
        "operetta_reconcile_total{package=\"ordered\",outcome=\"done\"}",
        "operetta_reconcile_duration_seconds_bucket{",
        "operetta_queue_wait_seconds_count{package=\"ordered\"}",
        "operetta_api_requests_total{verb=\"apply\",resource=\"configmaps\",code=\"201\"}",
        "verb=\"watch\"",
        "operetta_watches{state=\"watching\"}",
        "operetta_instances{kind=\"chains.fixtures.operetta.dev\",verdict=\"ready\"} 1",
        "operetta_children ",
        "operetta_leader 1",
        "operetta_events_dropped_total 0",
        "process_resident_memory_bytes ",
    ] {
        assert!(metrics.contains(expected), "no {expected} in\n{metrics}");
    }
    let (_, state) = get(&address, "/debug/state").await;
    let state: Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(state["phase"]["name"], "Leading");
    assert!(state["instances"].as_u64().is_some_and(|count| count >= 1), "{state:#}");
    let watches = state["watches"].as_array().expect("a list");
    assert!(watches.len() >= 2, "{state:#}");
    assert!(watches.iter().any(|w| w["watch"] == "children v1 ConfigMap"), "{state:#}");
    // The metric counts the same watches, none of which stays in the state Listing. Both are read one after
    // the other while watches begin and end, so poll.
    eventually("the same watches in both", LONG, async || {
        let (_, metrics) = get(&address, "/metrics").await;
        let (_, state) = get(&address, "/debug/state").await;
        let state: Value = serde_json::from_str(&state).expect("JSON");
        let watches = state["watches"].as_array().expect("a list");
        let words = [
            ("watching", &["Watching", "Degraded"][..]),
            ("listing", &["Listing"]),
            ("unknown", &["Unknown"]),
        ];
        for (label, words) in words {
            let is = |watch: &&Value| watch["state"].as_str().is_some_and(|word| words.contains(&word));
            let count = watches.iter().filter(is).count();
            let line = format!("operetta_watches{{state=\"{label}\"}} {count}\n");
            if !metrics.contains(&line) {
                return Err(format!("no {line} in\n{metrics}"));
            }
            if label == "listing" && count > 0 {
                return Err(format!("a watch is listing: {state:#}"));
            }
        }
        Ok(())
    })
    .await;
    assert!(get(&address, "/nothing").await.0.contains(" 404 "));

    // Each log line of a reconcile names its instance; none has the content of objects.
    let key = format!("chains/{}/watched", scene.namespace());
    let turn = line(&manager.output(), "acting").expect("a turn");
    assert_eq!(turn["span"]["instance"], key.as_str(), "{turn}");
    assert_eq!(turn["span"]["package"], "ordered", "{turn}");
    for told in [&metrics, &state.to_string(), &manager.output()] {
        assert!(!told.contains(canary), "{told}");
    }

    signal(manager.pid(), Signal::TERM);
    assert!(manager.wait(LONG).await.success(), "{}", manager.output());
}

/// The longest time that the server waits for a webhook.
const WEBHOOK: Duration = Duration::from_secs(30);

/// A webhook that accepts connections and never answers.
async fn silent_webhook() -> (u16, tokio::sync::watch::Receiver<usize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (count, counted) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
            count.send_replace(held.len());
        }
    });
    (port, counted)
}

#[tokio::test]
async fn hanging_calls_of_a_package_delay_no_other() {
    let scene = Scene::unmanaged().await;
    let (port, mut asked) = silent_webhook().await;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "silent"},
        "webhooks": [{
            "name": "silent.operetta.dev", "clientConfig": {"url": format!("https://127.0.0.1:{port}/")},
            "rules": [{"apiGroups": ["", "networking.k8s.io"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["*"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace()}},
            "objectSelector": {"matchLabels": {"operetta.dev/operator": "netpol"}},
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": WEBHOOK.as_secs(),
        }],
    });
    scene.apply(&webhook.to_string()).await;
    // The server learns of the webhook a moment later. Once it asks, there is no answer to wait for.
    let probe = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"generateName": "probe-", "labels": {"operetta.dev/operator": "netpol"}}});
    let admin = Actor::admin(plane().await).in_dry_runs();
    eventually("the webhook to be asked", LONG, async || {
        tokio::select! {
            asked = asked.changed() => asked.map_err(|error| error.to_string()),
            created = admin.create(CONFIG_MAP, Some(scene.namespace()), &probe) => Err(format!("{created:?}")),
        }
    })
    .await;
    let before = *asked.borrow_and_update();
    let manager = crate::support::ext::run_as("hanging", plane().await, &["netpol", "operators/webapp"]);
    let mut manager = manager.watching(2).await;
    let begun = Instant::now();
    scene.apply(&instances(FENCE, "Fence", 60)).await;
    tokio::time::timeout(LONG, asked.wait_for(|count| count - before >= 24))
        .await
        .expect("calls hang")
        .unwrap();
    scene.apply_ready(WEB_APP, "hello", &file("examples/webapp/minimal.yaml")).await;
    // At this time no call has ended yet, unless the machine is so slow that the server has given up the
    // first of them.
    let failed = manager.output().contains("an apply failed");
    assert!(!failed || begun.elapsed() > WEBHOOK, "{}", manager.output());

    signal(manager.pid(), Signal::TERM);
    manager.wait_for("stopping", LONG).await;
    signal(manager.pid(), Signal::TERM);
    let status = manager.wait(LONG).await;
    assert_eq!(status.code(), Some(1), "{}", manager.output());
    assert!(manager.output().contains("second signal"), "{}", manager.output());
    scene.kubectl(&["delete", "validatingwebhookconfiguration", "silent"]).await;
}

#[tokio::test]
async fn a_leader_without_an_api_server_exits_by_itself_and_on_sigterm() {
    let options = Options { nodes: 0, ..crate::support::options() };
    let plane = ControlPlane::start(options).await.unwrap_or_else(|error| panic!("{error}"));
    let mut leader = start(&plane, "leader", "a", &["light"]);
    let mut told = start(&plane, "told", "b", &["echo"]);
    for manager in [&mut leader, &mut told] {
        manager.wait_for("watching instances", LONG).await;
    }
    plane.pause(Component::ApiServer).unwrap();
    // The guard passes the signal on, so wait until the API server is paused.
    crate::support::until_paused(plane.pid(Component::ApiServer).expect("it runs")).await;
    signal(told.pid(), Signal::TERM);
    assert_eq!(Address::of(&told).get("/healthz").await.1, "ok\n");
    let status = told.wait(LONG).await;
    assert!(status.success(), "{status}\n{}", told.output());
    assert!(told.output().contains("could not be released"), "{}", told.output());
    let status = leader.wait(LONG).await;
    assert_eq!(status.code(), Some(1), "{}", leader.output());
    assert!(leader.output().contains("could not be renewed for 20 s"), "{}", leader.output());
    plane.resume(Component::ApiServer).unwrap();
    plane.stop().await;
}

/// Runs the manager in this process with an observer that panics.
#[tokio::test]
async fn panic_in_one_reconcile_affects_no_other() {
    let scene = Scene::unmanaged().await;
    let folder = copy_package(&fixture("light"), LIGHT.group(), "panics.example.org", |text| text);
    let (package, _) = operetta::package::load(folder.path()).expect("a package");
    let cluster = Cluster::of_kubeconfig(plane().await.kubeconfig_path()).await.unwrap();
    let monitor = Arc::new(Monitor::default());
    let config = Config {
        observer: Some(Arc::new(|key, _| {
            assert!(&*key.name != "bad", "the observer of bad, made by a test");
        })),
        monitor: Arc::clone(&monitor),
        lease: "tests/panicking".into(),
        ..Config::default()
    };
    let manager = Manager::start(cluster, vec![Arc::new(package)], config).await.unwrap();
    assert!(manager.problems.is_empty());
    let object = |name: &str| json!({"apiVersion": "panics.example.org/v1", "kind": "Light", "metadata": {"name": name}, "spec": {}});
    scene.apply(&object("bad").to_string()).await;
    let panicked = || {
        let metrics = monitor.metrics();
        let mark = "operetta_reconcile_total{package=\"light-panics\",outcome=\"panicked\"} ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(mark)?.parse::<u64>().ok());
        count.unwrap_or_default()
    };
    eventually("it to be tried again", LONG, async || if panicked() > 1 { Ok(()) } else { Err("not yet") })
        .await;
    scene.apply(&object("good").to_string()).await;
    let path = format!("/apis/panics.example.org/v1/namespaces/{}/lights/good", scene.namespace());
    eventually("the other to be ready", LONG, async || {
        let live = read(&scene.client(), &path).await.unwrap_or_default();
        if is_ready(&live) { Ok(()) } else { Err(live.to_string()) }
    })
    .await;
    manager.stop().await;
}
