//! What a tenant may use of the manager: nested loops, large values in a thousand children, stuck
//! connections.

use std::path::Path;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::ControlPlane;
use crate::support::barrier::get;
use crate::support::ext::{CONFIG_MAP, FIGURE, LONG, Scene, condition, find_in, fixture, put_file};
use crate::support::{Operetta, eventually, kubectl_of};

/// Peak resident memory of the manager, in KiB.
const MANAGER: u64 = 150 << 10;

/// A package in which the spec of an instance sets how many children there are, and how much work and text
/// each is.
const BOMB: [(&str, &str); 3] = [
    (
        "operator.yaml",
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: bomb}
spec:
  version: 0.1.0
  resources:
    - crd: crds/bomb.yaml
      children:
        - id: m
          template: templates/m.yaml
          forEach: {in: range(spec.size), as: i, key: i}
",
    ),
    (
        "crds/bomb.yaml",
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: bombs.fixtures.operetta.dev}
spec:
  group: fixtures.operetta.dev
  scope: Namespaced
  names: {kind: Bomb, listKind: BombList, plural: bombs, singular: bomb}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties:
                size: {type: integer, default: 1}
                loops: {type: integer, default: 0}
                text: {type: string, default: ''}
",
    ),
    (
        "templates/m.yaml",
        "apiVersion: v1
kind: ConfigMap
metadata: {name: \"{{ name }}-{{ i }}\"}
data:
  loops: \"{% for a in range(spec.loops) %}{% for b in range(spec.loops) %}{% endfor %}{% endfor %}\"
  text: \"{{ spec.text }}\"
",
    ),
];

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        put_file(&folder.join(path), text);
    }
}

fn bomb(name: &str, spec: &Value) -> String {
    let object = json!({"apiVersion": "fixtures.operetta.dev/v1", "kind": "Bomb", "metadata": {"name": name}, "spec": spec});
    object.to_string()
}

fn echo(name: &str) -> String {
    let object = json!({"apiVersion": "fixtures.operetta.dev/v1", "kind": "Echo", "metadata": {"name": name}, "spec": {"text": "x"}});
    object.to_string()
}

struct World {
    plane: ControlPlane,
    folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &BOMB);
        Self { plane: ControlPlane::embedded().await, folder }
    }

    /// Starts a manager with leader election, which loses its Lease if it cannot renew it in time.
    async fn run(&self) -> Operetta {
        let args = ["run", "--leader-elect", self.folder.path().to_str().unwrap(), &fixture("echo")];
        Operetta::run(&self.plane, &args).watching(2).await
    }

    async fn apply(&self, manifest: &str) {
        // Client-side apply would double large manifests in its annotation.
        kubectl_of(&self.plane, &["apply", "--server-side", "-f", "-"], manifest).await.ok();
    }

    async fn child(&self, name: &str, manager: &Operetta) {
        eventually(name, LONG, async || {
            find_in(&self.plane, CONFIG_MAP, Some("default"), name).await.ok_or_else(|| manager.output())
        })
        .await;
    }

    /// Waits until an instance is Stalled; returns the message of the condition.
    async fn stalled(&self, name: &str, manager: &Operetta) -> String {
        eventually(name, LONG, async || {
            let live = kubectl_of(&self.plane, &["get", "bomb", name, "-o", "json"], "").await.ok();
            let live: Value = serde_json::from_str(&live).unwrap();
            let told = condition(&live, "Stalled");
            if told["reason"] == "LimitExceeded" {
                Ok(told["message"].as_str().unwrap_or_default().to_owned())
            } else {
                Err(format!("{}\n{}", live["status"], manager.output()))
            }
        })
        .await
    }
}

fn address(manager: &Operetta) -> String {
    let output = manager.output();
    let line = output.lines().find(|l| l.contains("serving /metrics")).expect("it serves");
    line.rsplit_once("address=").expect("the address").1.trim().to_owned()
}

/// The manager's peak resident memory in KiB.
fn peak(manager: &Operetta) -> u64 {
    peak_of(manager.pid()).unwrap()
}

/// The peak resident memory of a process in KiB; `None` once it has ended.
pub(super) fn peak_of(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

#[tokio::test]
async fn a_costly_instance_blocks_neither_manager_nor_other_instances() {
    let world = World::new().await;
    let mut manager = world.run().await;
    for name in ["a", "b"] {
        world.apply(&bomb(name, &json!({"size": 1_000, "loops": 300}))).await;
    }
    world.apply(&bomb("fine", &json!({"size": 3}))).await;
    for restart in 0..2 {
        let name = format!("echo-{restart}");
        world.apply(&echo(&name)).await;
        world.child(&name, &manager).await;
        world.child("fine-2", &manager).await;
        for name in ["a", "b"] {
            let message = world.stalled(name, &manager).await;
            for part in ["m[", "templates/m.yaml:5", "10000000 steps"] {
                assert!(message.contains(part), "{part:?} is not in {message}");
            }
        }
        for path in ["/healthz", "/readyz", "/metrics"] {
            let (answer, _) = get(&address(&manager), path).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        assert!(find_in(&world.plane, CONFIG_MAP, Some("default"), "a-0").await.is_none());
        assert!(!manager.output().contains("Lease is lost"), "{}", manager.output());
        manager.kill9();
        manager = world.run().await;
    }
    // A corrected instance is evaluated again.
    kubectl_of(
        &world.plane,
        &["patch", "bomb", "a", "--type=merge", "-p", r#"{"spec":{"loops":1,"size":2}}"#],
        "",
    )
    .await
    .ok();
    world.child("a-1", &manager).await;
    world.plane.stop().await;
}

#[tokio::test]
async fn memory_is_bounded_whatever_is_rendered() {
    let world = World::new().await;
    let manager = world.run().await;
    let before = peak(&manager);
    let text = "x".repeat(900 << 10);
    for name in ["large", "more", "most"] {
        world.apply(&bomb(name, &json!({"size": 1_000, "text": text}))).await;
    }
    // Forty children at once that are within their limits: each is a few MiB.
    let text = "y".repeat(100 << 10);
    let many: Vec<String> =
        (0..10).map(|i| bomb(&format!("many-{i}"), &json!({"size": 20, "text": text}))).collect();
    for manifest in &many {
        world.apply(manifest).await;
    }
    for name in ["large", "more", "most"] {
        let message = world.stalled(name, &manager).await;
        assert!(message.contains("m[") && message.contains("32 MiB together"), "{message}");
        let paused = ["annotate", "bomb", name, "operetta.dev/paused=true"];
        kubectl_of(&world.plane, &paused, "").await.ok();
        world.stalled(name, &manager).await;
    }
    for i in 0..10 {
        world.child(&format!("many-{i}-19"), &manager).await;
    }
    let peak = peak(&manager);
    println!("{before} KiB before, {peak} KiB at most");
    assert!(peak < MANAGER, "{peak} KiB, {before} KiB before anything was rendered");
    world.plane.stop().await;
}

#[tokio::test]
async fn stuck_connections_do_not_delay_probes() {
    let world = World::new().await;
    let manager = world.run().await;
    let address = address(&manager);
    let mut stuck = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost").await.unwrap();
        stuck.push(stream);
    }
    assert_eq!(get(&address, "/healthz").await.1, "ok\n");
    assert!(get(&address, "/metrics").await.0.starts_with("HTTP/1.1 200 "));
    drop(stuck);
    world.plane.stop().await;
}

#[tokio::test]
async fn too_deeply_nested_spec_is_reported() {
    let scene = Scene::new().await;
    let deep = (0..150).fold(json!(1), |inner, _| json!({"a": inner}));
    let instance = |value: &Value| {
        json!({"apiVersion": FIGURE.api_version(), "kind": "Figure", "metadata": {"name": "deep"}, "spec": {"value": value}})
            .to_string()
    };
    // kubectl's own JSON reader has no limit of depth here.
    scene.kubectl_input(&["create", "--validate=false", "-f", "-"], &instance(&deep)).await.unwrap();
    let conditions = "jsonpath={range .status.conditions[*]}{.type}={.status}/{.reason} {end}";
    crate::support::eventually("a condition", crate::support::ext::LONG, async || {
        let told = scene.kubectl(&["get", "figure", "deep", "-o", conditions]).await;
        let expected = "Ready=False/NestedTooDeep Stalled=True/NestedTooDeep ";
        if told == expected { Ok(()) } else { Err(told) }
    })
    .await;
    scene.kubectl(&["delete", "figure", "deep"]).await;
    scene.apply_ready(FIGURE, "deep", &instance(&json!(1))).await;
}
