//! What requests to the embedded API cost: CPU time of this process, without sockets. Nothing is judged.
//!
//! `cargo bench -p operetta-embedded` prints a line for each operation; words after `--` select lines that have one of them.

// Figures for people.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_wrap)]

use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use operetta_embedded::{Api, Body, Request, User};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of objects of each kind whose writes are measured.
const OBJECTS: usize = 1000;
/// The number of objects whose memory is measured.
const MANY: usize = 10_000;

const CRD: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../operators/etcd/crds/etcdcluster.yaml"));
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let report = |name: &str, per: f64| {
        println!("{name:<40} {per:>10.1} us {:>10.0} /s", 1e6 / per);
    };
    if wanted("new") {
        let start = at(0);
        report("first API of the process", cpu(1, |_| drop(Api::new(start))));
        report("new API at the same time", cpu(1000, |_| drop(Api::new(start))));
        report("new API at another time", cpu(100, |n| drop(Api::new(at(n as i64)))));
        report("kind with a large schema", cpu(20, |_| drop(Cluster::new(Api::bare(start)))));
    }
    for kind in kinds() {
        if wanted(kind.name) {
            requests(&kind, &report);
        }
    }
    if wanted("pod") {
        pods(&report);
    }
    for kind in kinds() {
        if std::env::args().any(|arg| arg == format!("--memory={}", kind.name)) {
            memory(&kind);
        } else if wanted("memory") {
            // A process of its own, whose memory nothing else has used.
            let program = std::env::current_exe().unwrap_or_default();
            let child = Command::new(program).arg("none").arg(format!("--memory={}", kind.name)).status();
            assert!(child.is_ok_and(|status| status.success()));
        }
    }
}

/// A time some seconds after the start.
fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap_or_default();
    start + SignedDuration::from_secs(seconds)
}

/// Microseconds of CPU time a call.
fn cpu(times: usize, mut call: impl FnMut(usize)) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let before = now();
    (0..times).for_each(&mut call);
    (now() - before) / times as f64
}

/// An API with its time.
struct Cluster {
    api: Api,
    now: Timestamp,
    user: User,
}

impl Cluster {
    fn new(api: Api) -> Self {
        let mut cluster = Self { api, now: at(0), user: User::default() };
        cluster.settle();
        cluster.send(
            "POST",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "application/yaml",
            CRD,
        );
        cluster.settle();
        cluster
    }

    /// Sends a request that has to succeed.
    fn send(&mut self, method: &str, uri: &str, content_type: &str, body: &str) -> Body {
        let request = Request {
            method,
            uri,
            content_type,
            accept: JSON,
            user_agent: "bench/1.0",
            user: &self.user,
            body: body.as_bytes(),
        };
        let response = self.api.handle(&request, self.now);
        assert!(response.code < 300, "{method} {uri}: {:?}", response.body);
        response.body
    }

    fn text(&mut self, method: &str, uri: &str, content_type: &str, body: &str) -> Box<str> {
        let Body::Text(text) = self.send(method, uri, content_type, body) else { panic!("a stream: {uri}") };
        text
    }

    fn settle(&mut self) {
        while self.api.tick(self.now) {}
    }
}

/// A kind whose objects are written.
struct Kind {
    name: &'static str,
    path: &'static str,
    object: fn(usize) -> Value,
    /// The part that updates change, as a merge patch.
    change: fn(usize) -> Value,
    status: Option<fn(usize) -> Value>,
}

fn kinds() -> [Kind; 3] {
    [
        Kind {
            name: "ConfigMap",
            path: "/api/v1/namespaces/default/configmaps",
            object: |n| {
                let meta = meta(n);
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta,
                    "data": {"config.yaml": "log: info\nlisten: 0.0.0.0:8080\n", "mode": "cluster"}})
            },
            change: |n| json!({"data": {"mode": format!("mode-{n}")}}),
            status: None,
        },
        Kind {
            name: "Deployment",
            path: "/apis/apps/v1/namespaces/default/deployments",
            object: |n| {
                let meta = meta(n);
                let labels = meta["labels"].clone();
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {
                    "replicas": 3, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
                        "containers": [{"name": "web", "image": "registry.example/web:1.2.3", "args": ["--port", "8080"],
                            "ports": [{"name": "http", "containerPort": 8080}],
                            "env": [{"name": "MODE", "value": "cluster"}, {"name": "REGION", "value": "eu"}],
                            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5},
                            "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}]}],
                        "volumes": [{"name": "config", "configMap": {"name": format!("object-{n}")}}]}}}})
            },
            change: |n| json!({"spec": {"replicas": n % 7}}),
            status: Some(|n| {
                json!({"observedGeneration": n, "replicas": 3, "conditions": [{"type": "Available", "status": "True",
                    "reason": "MinimumReplicasAvailable", "message": format!("round {n}"), "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
            }),
        },
        Kind {
            name: "EtcdCluster",
            path: "/apis/etcd.database.coreos.com/v1beta2/namespaces/default/etcdclusters",
            object: |n| json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster", "metadata": meta(n), "spec": {"size": 3}}),
            change: |n| json!({"spec": {"size": 1 + n % 2 * 2}}),
            status: Some(|n| {
                json!({"size": 3, "readyMembers": n, "members": {"ready": ["a-0", "a-1", "a-2"], "unready": []},
                    "serviceName": "a-client", "clientPort": 2379, "currentVersion": "3.6.0"})
            }),
        },
    ]
}

fn meta(n: usize) -> Value {
    json!({"name": format!("object-{n}"), "namespace": "default",
        "labels": {"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("object-{n}"), "app.kubernetes.io/managed-by": "bench"},
        "annotations": {"example.com/hash": "0123456789abcdef"}})
}

/// What each request about a kind costs.
fn requests(kind: &Kind, report: &impl Fn(&str, f64)) {
    let report = |what: &str, per: f64| report(&format!("{} {what}", kind.name), per);
    let mut cluster = Cluster::new(Api::bare(at(0)));
    let path = kind.path;
    let uri = |n: usize| format!("{path}/object-{}", n % OBJECTS);
    let with = |n: usize, change: Value| {
        let mut object = (kind.object)(n);
        json_patch::merge(&mut object, &change);
        object.to_string()
    };
    let bodies: Vec<String> = (0..OBJECTS).map(|n| (kind.object)(n).to_string()).collect();
    report("create", cpu(OBJECTS, |n| drop(cluster.send("POST", path, JSON, &bodies[n]))));
    let mut live: Vec<Value> = (0..OBJECTS)
        .map(|n| serde_json::from_str(&cluster.text("GET", &uri(n), "", "")).unwrap_or_default())
        .collect();
    live.iter_mut().enumerate().for_each(|(n, live)| json_patch::merge(live, &(kind.change)(n + 3)));
    let bodies: Vec<String> = live.iter().map(Value::to_string).collect();
    report("update", cpu(OBJECTS, |n| drop(cluster.send("PUT", &uri(n), JSON, &bodies[n]))));
    let bodies: Vec<String> = (0..OBJECTS).map(|n| (kind.change)(n + 5).to_string()).collect();
    report("merge patch", cpu(OBJECTS, |n| drop(cluster.send("PATCH", &uri(n), MERGE, &bodies[n]))));

    let applied = |n: usize| format!("{}?fieldManager=applier&force=true", uri(n));
    let mut cluster = Cluster::new(Api::bare(at(0)));
    for what in ["apply of a new object", "apply of a change", "apply of no change"] {
        let bodies: Vec<String> = (0..OBJECTS)
            .map(|n| {
                if what.ends_with("new object") { with(n, json!({})) } else { with(n, (kind.change)(n + 9)) }
            })
            .collect();
        report(what, cpu(OBJECTS, |n| drop(cluster.send("PATCH", &applied(n), APPLY, &bodies[n]))));
    }
    if let Some(status) = kind.status {
        let bodies: Vec<String> = (0..OBJECTS)
            .map(|n| {
                let object = (kind.object)(n);
                json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": object["metadata"]["name"]},
                    "status": status(n)})
                .to_string()
            })
            .collect();
        let uri = |n: usize| format!("{}/status?fieldManager=status&force=true", uri(n));
        report(
            "apply of a status",
            cpu(OBJECTS, |n| drop(cluster.send("PATCH", &uri(n), APPLY, &bodies[n]))),
        );
    }
    report("get", cpu(OBJECTS, |n| drop(cluster.send("GET", &uri(n), "", ""))));
    let list = format!("{path}?limit=100");
    report("list of 100", cpu(100, |_| drop(cluster.send("GET", &list, "", ""))));

    let latest: Value = serde_json::from_str(&cluster.text("GET", &list, "", "")).unwrap_or_default();
    let latest = latest["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let watch = format!("{path}?watch=1&resourceVersion={latest}");
    let mut watches: Vec<_> = (0..10)
        .filter_map(|_| match cluster.send("GET", &watch, "", "") {
            Body::Watch(watch) => Some(watch),
            Body::Text(_) | Body::Bytes(_) => None,
        })
        .collect();
    let bodies: Vec<String> = (0..OBJECTS).map(|n| (kind.change)(n + 12).to_string()).collect();
    let mut delivery = 0.0;
    for (n, body) in bodies.iter().enumerate() {
        cluster.send("PATCH", &uri(n), MERGE, body);
        delivery += cpu(1, |_| {
            for watch in &mut watches {
                let events = cluster.api.events(watch, cluster.now).unwrap_or_default();
                assert_eq!(events.len(), 1);
            }
        });
    }
    report("event to 10 watches", delivery / OBJECTS as f64);
    cluster.settle();
    report("tick at rest", cpu(1000, |_| assert!(!cluster.api.tick(cluster.now))));
    report("delete", cpu(OBJECTS, |n| drop(cluster.send("DELETE", &uri(n), "", ""))));
}

/// The life of pods: created, scheduled, ready, deleted, gone.
fn pods(report: &impl Fn(&str, f64)) {
    let mut cluster = Cluster::new(Api::new(at(0)));
    let path = "/api/v1/namespaces/default/pods";
    let spec = json!({"containers": [{"name": "web", "image": "registry.example/web:1.2.3"}]});
    let bodies: Vec<String> = (0..OBJECTS)
        .map(|n| json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta(n), "spec": spec}).to_string())
        .collect();
    let life = cpu(OBJECTS, |n| {
        cluster.send("POST", path, JSON, &bodies[n]);
        for _ in 0..2 {
            cluster.settle();
            while let Some(due) = cluster.api.next_due() {
                cluster.now = due;
                cluster.settle();
            }
            if cluster.text("GET", path, "", "").contains(&format!("object-{n}\"")) {
                cluster.send("DELETE", &format!("{path}/object-{n}"), "", "");
            }
        }
    });
    report("pod: created, ready, deleted, gone", life);

    let deployments = &kinds()[1];
    let mut cluster = Cluster::new(Api::new(at(0)));
    let count = OBJECTS / 10;
    let bodies: Vec<String> = (0..count)
        .map(|n| {
            let mut object = (deployments.object)(n);
            if let Some(spec) = object["spec"]["template"]["spec"].as_object_mut() {
                spec.remove("volumes");
            }
            object["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = json!([]);
            object.to_string()
        })
        .collect();
    let ready = cpu(count, |n| {
        cluster.send("POST", deployments.path, JSON, &bodies[n]);
        cluster.settle();
        while let Some(due) = cluster.api.next_due() {
            cluster.now = due;
            cluster.settle();
        }
    });
    let last = cluster.text("GET", &format!("{}/object-{}", deployments.path, count - 1), "", "");
    assert!(last.contains("\"readyReplicas\":3"), "{last}");
    report("pod: 3 of a Deployment, with it, to ready", ready);
}

/// The memory of many objects.
fn memory(kind: &Kind) {
    let mut cluster = Cluster::new(Api::bare(at(0)));
    let before = resident();
    let time = cpu(1, |_| {
        for n in 0..MANY {
            let uri = format!("{}/object-{n}?fieldManager=applier", kind.path);
            cluster.send("PATCH", &uri, APPLY, &(kind.object)(n).to_string());
        }
    });
    let each = (resident() - before) / MANY;
    let text = cluster.text("GET", &format!("{}/object-0", kind.path), "", "").len();
    let name = format!("{} memory, {MANY} applied", kind.name);
    println!("{name:<40} {each:>10} bytes each, {text} of them text; {:.0} ms", time / 1e3);
}

/// The memory of this process that is in use.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}
