//! Random sequences of edits of the spec, edits and deletions of children, and kills of the manager end in
//! the same state as a fresh deployment of the last spec.
//!
//! The sequences depend on `OPERETTA_TEST_SEED`. `OPERETTA_TEST_SEQUENCES` sets their number; `=N` runs only
//! the Nth.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use crate::support::ext::{
    CONFIG_MAP, DEPLOYMENT, Kind, LONG, MIX, NETWORK_POLICY, SECRET, SERVICE, Scene, difference, is_ready,
    name_of, read, run_as, uid_of,
};
use crate::support::{ControlPlane, Operetta, eventually, own_plane_of_tests, seed};
use fastrand::Rng;
use http::{Method, Request};
use serde_json::{Value, json};
use tokio::sync::Notify;

const CHILDREN: [Kind; 5] = [CONFIG_MAP, SECRET, SERVICE, NETWORK_POLICY, DEPLOYMENT];

/// The default number of sequences.
const SEQUENCES: u64 = 50;

/// The largest number of steps in a sequence.
const STEPS: usize = 9;

/// The longest pause between two steps.
const PAUSE: Duration = Duration::from_secs(4);

/// One disturbance of a sequence.
#[derive(Debug, Clone)]
enum Disturbance {
    /// Sets fields of the spec.
    Spec(Value),
    /// A merge patch of a child.
    Child(Kind, String, Value),
    /// A JSON patch of a child, which may be impossible.
    Json(Kind, String, Value),
    /// Sets the replicas through the scale subresource.
    Scale(u32),
    Delete(Kind, String),
    Wait(Duration),
}

/// The steps of a sequence, and the final spec.
fn sequence(random: &mut Rng, name: &str) -> (Vec<Disturbance>, Value) {
    let mut spec = any_spec(random);
    let mut steps = vec![Disturbance::Spec(spec.clone())];
    for number in 0..random.usize(3..=STEPS) {
        steps.push(Disturbance::Wait(PAUSE.mul_f64(random.f64().powi(2))));
        let step = match random.u32(0..10) {
            0..4 => {
                let (other, mut patch) = (any_spec(random), json!({}));
                for (field, value) in other.as_object().unwrap() {
                    if random.u32(0..3) == 0 {
                        patch[field] = value.clone();
                        spec[field] = value.clone();
                    }
                }
                Disturbance::Spec(patch)
            }
            4..7 => damage(random, name, number),
            7 => Disturbance::Scale(random.u32(0..2)),
            _ => {
                let (kind, name) = any_child(random, name);
                Disturbance::Delete(kind, name)
            }
        };
        steps.push(step);
    }
    (steps, spec)
}

fn any_spec(random: &mut Rng) -> Value {
    let members: Vec<Value> = ["a", "b", "c", "d"]
        .iter()
        .filter_map(|name| {
            let colour = random.choice(["red", "green", "blue"]).unwrap();
            random.bool().then(|| json!({"name": name, "colour": colour}))
        })
        .collect();
    json!({
        "greeting": random.choice(["hello", "hi", "good day"]).unwrap(),
        "image": format!("example.org/web:{}", random.u32(1..4)),
        "port": random.u32(80..84),
        "exposed": random.u32(0..4) > 0,
        "fenced": random.bool(),
        "replicas": random.u32(0..2),
        "autoscaled": random.u32(0..3) == 0,
        "members": members,
    })
}

fn any_child(random: &mut Rng, name: &str) -> (Kind, String) {
    match random.u32(0..9) {
        0 => (CONFIG_MAP, format!("{name}-first")),
        1 => (CONFIG_MAP, format!("{name}-second")),
        2 => (CONFIG_MAP, format!("{name}-roster")),
        3 => (CONFIG_MAP, format!("{name}-member-a")),
        4 => (CONFIG_MAP, format!("{name}-member-b")),
        5 => (SECRET, name.to_owned()),
        6 => (SERVICE, name.to_owned()),
        7 => (NETWORK_POLICY, name.to_owned()),
        _ => (DEPLOYMENT, name.to_owned()),
    }
}

/// A manual edit of fields that the manager owns. It adds nothing, because additions stay and are not
/// compared, and it sets no value that a spec might set. It does not remove all labels or managedFields
/// either: if the spec dropped the child at that moment, nobody could recognise it.
fn damage(random: &mut Rng, name: &str, number: usize) -> Disturbance {
    let hand = format!("hand-{number}");
    let of =
        |kind: Kind, suffix: &str, patch: Value| Disturbance::Child(kind, format!("{name}{suffix}"), patch);
    let json = |kind: Kind, path: &str, value: Value| {
        let patch = json!([{"op": "replace", "path": path, "value": value}]);
        Disturbance::Json(kind, name.to_owned(), patch)
    };
    let remove = |kind: Kind, path: &str| {
        Disturbance::Json(kind, name.to_owned(), json!([{"op": "remove", "path": path}]))
    };
    let container = "/spec/template/spec/containers/0";
    match random.u32(0..21) {
        0 => of(CONFIG_MAP, "-first", json!({"data": {"greeting": hand}})),
        1 => of(CONFIG_MAP, "-first", json!({"data": null})),
        2 => of(CONFIG_MAP, "-second", json!({"data": {"greeting": hand}})),
        3 => of(CONFIG_MAP, "-member-a", json!({"data": {"colour": hand}})),
        4 => of(
            CONFIG_MAP,
            "-member-b",
            json!({"metadata": {"annotations": {"operetta.dev/applied-hash": hand}}}),
        ),
        5 => of(CONFIG_MAP, "-roster", json!({"metadata": {"labels": {"operetta.dev/child": hand}}})),
        6 => of(CONFIG_MAP, "-first", json!({"metadata": {"managedFields": [{}]}, "data": {"kept": hand}})),
        7 => of(SECRET, "", json!({"stringData": {"greeting": hand}})),
        8 => of(SECRET, "", json!({"data": {"fixed": null}})),
        9 => of(SECRET, "", json!({"metadata": {"ownerReferences": null}})),
        10 => json(SERVICE, "/spec/ports/0/port", json!(900 + number)),
        11 => of(SERVICE, "", json!({"spec": {"selector": {"app": hand}}})),
        12 => json(SERVICE, "/spec/ports/0/name", json!(hand)),
        13 => of(NETWORK_POLICY, "", json!({"spec": {"ingress": [{}]}})),
        14 => of(NETWORK_POLICY, "", json!({"spec": {"egress": []}})),
        15 => json(DEPLOYMENT, &format!("{container}/image"), json!(format!("example.org/{hand}"))),
        16 => json(DEPLOYMENT, &format!("{container}/env/0/value"), json!(hand)),
        17 => remove(DEPLOYMENT, &format!("{container}/env/1")),
        18 => remove(DEPLOYMENT, &format!("{container}/resources/requests")),
        19 => Disturbance::Json(
            DEPLOYMENT,
            name.to_owned(),
            json!([
                {"op": "remove", "path": "/spec/template/spec/volumes/0/emptyDir"},
                {"op": "add", "path": "/spec/template/spec/volumes/0/hostPath", "value": {"path": "/tmp"}}]),
        ),
        _ => remove(DEPLOYMENT, "/metadata/annotations/operetta.dev~1intent"),
    }
}

/// Sends a request as another client; an object that is missing or unsuitable is left alone.
async fn ask(scene: &Scene, method: Method, path: &str, content: &str, body: &Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(body.to_string().into_bytes())
        .unwrap();
    match scene.client().request::<Value>(request).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
        result => drop(result.unwrap_or_else(|error| panic!("{path} {body}: {error}"))),
    }
}

async fn create(scene: &Scene, name: &str, spec: &Value) {
    let mix =
        json!({"apiVersion": MIX.api_version(), "kind": "Mix", "metadata": {"name": name}, "spec": spec});
    let path = MIX.path(Some(scene.namespace()), "");
    ask(scene, Method::POST, path.trim_end_matches('/'), "application/json", &mix).await;
}

async fn scale(scene: &Scene, name: &str, replicas: u32) {
    let path = DEPLOYMENT.path(Some(scene.namespace()), name);
    let path = format!("{path}/scale?fieldManager=horizontal-pod-autoscaler");
    ask(scene, Method::PATCH, &path, MERGE, &json!({"spec": {"replicas": replicas}})).await;
}

const MERGE: &str = "application/merge-patch+json";

async fn perform(scene: &Scene, name: &str, step: &Disturbance) {
    let path = |kind: Kind, name: &str| {
        format!("{}?fieldManager=kubectl-edit", kind.path(Some(scene.namespace()), name))
    };
    match step {
        Disturbance::Spec(patch) => {
            if read(&scene.client(), &MIX.path(Some(scene.namespace()), name)).await.is_none() {
                create(scene, name, patch).await;
            } else {
                ask(scene, Method::PATCH, &path(MIX, name), MERGE, &json!({"spec": patch})).await;
            }
        }
        Disturbance::Child(kind, child, patch) => {
            ask(scene, Method::PATCH, &path(*kind, child), MERGE, patch).await;
        }
        Disturbance::Json(kind, child, patch) => {
            ask(scene, Method::PATCH, &path(*kind, child), "application/json-patch+json", patch).await;
        }
        Disturbance::Scale(replicas) => scale(scene, name, *replicas).await,
        Disturbance::Delete(kind, child) => {
            let options =
                json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
            ask(scene, Method::DELETE, &path(*kind, child), "application/json", &options).await;
        }
        Disturbance::Wait(time) => tokio::time::sleep(*time).await,
    }
}

/// All instances and what they have made, by instance, without what differs between two deployments.
async fn state(scene: &Scene) -> BTreeMap<String, BTreeMap<String, Value>> {
    let mut state: BTreeMap<String, BTreeMap<String, Value>> = BTreeMap::new();
    let mut uids = BTreeMap::new();
    for instance in scene.list(MIX).await {
        let name = name_of(&instance).to_owned();
        uids.insert(uid_of(&instance).to_owned(), name.clone());
        state.entry(name).or_default().insert("instance".into(), essence(instance));
    }
    for kind in CHILDREN {
        for object in scene.list(kind).await {
            let Some(uid) = object["metadata"]["labels"]["operetta.dev/instance-uid"].as_str() else {
                continue;
            };
            let owner = uids.get(uid).cloned().unwrap_or_else(|| format!("nobody ({uid})"));
            let name = format!("{} {}", kind.plural, name_of(&object));
            let text = essence(object.clone()).to_string().replace(uid, "<uid>");
            let text = text.replace(scene.namespace(), "<namespace>");
            state.entry(owner).or_default().insert(name, serde_json::from_str(&text).unwrap());
        }
    }
    state
}

fn essence(mut object: Value) -> Value {
    let is_instance = object["kind"] == "Mix";
    let meta = object["metadata"].as_object_mut().unwrap();
    let mut managed: Vec<Value> =
        meta.get("managedFields").and_then(Value::as_array).cloned().unwrap_or_default();
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        meta.remove(field);
    }
    if is_instance {
        object["status"]["observedGeneration"].take();
        object["metadata"].as_object_mut().unwrap().remove("namespace");
        for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
            let condition = condition.as_object_mut().unwrap();
            condition.remove("lastTransitionTime");
            condition.remove("observedGeneration");
        }
        return object;
    }
    // Other controllers write the status; that of a Deployment depends on its history.
    object.as_object_mut().unwrap().remove("status");
    managed.retain(|entry| entry["manager"].as_str().is_some_and(|m| m.starts_with("operetta")));
    for entry in &mut managed {
        entry.as_object_mut().unwrap().remove("time");
    }
    managed.sort_by_key(ToString::to_string);
    object["metadata"]["managedFields"] = managed.into();
    let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
    // The hash covers the namespace and the owner's uid, which differ.
    assert!(annotations.remove("operetta.dev/applied-hash").is_some(), "{annotations:?}");
    annotations.remove("deployment.kubernetes.io/revision");
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
        if let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) {
            ports.sort_by_key(ToString::to_string);
        }
    }
    object
}

fn differences(expected: &BTreeMap<String, Value>, found: &BTreeMap<String, Value>) -> String {
    let names: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    names.into_iter().filter(|n| expected.get(*n) != found.get(*n)).fold(String::new(), |mut text, name| {
        let _ = match (expected.get(name), found.get(name)) {
            (Some(_), None) => writeln!(text, "  {name} is missing"),
            (None, Some(_)) => writeln!(text, "  {name} is too much"),
            (a, b) => {
                let (a, b) = (a.unwrap_or(&Value::Null), b.unwrap_or(&Value::Null));
                writeln!(text, "  {name}: {}", difference(a, b, ""))
            }
        };
        text
    })
}

fn is_settled(instance: &Value) -> bool {
    crate::support::ext::condition(instance, "Ready")["status"] == "True"
}

/// The last warnings of a manager, for messages.
fn warnings(manager: &Operetta) -> String {
    let output = manager.output();
    let lines: Vec<&str> = output.lines().filter(|l| l.contains("WARN") || l.contains("ERROR")).collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Starts the manager without waiting for the Lease of its predecessor.
fn start(plane: &ControlPlane) -> Operetta {
    run_as("mix", plane, &["mix"])
}

/// Kills the manager after random numbers of writes or random times, some before it has started, until `over`; then leaves one
/// running.
async fn kills(plane: &ControlPlane, random: &mut Rng, over: &Notify) -> Operetta {
    let mut count = 0;
    loop {
        let mut manager = start(plane);
        let (writes, life) = (random.usize(1..=100), Duration::from_millis(random.u64(100..4_000)));
        tokio::select! {
            () = over.notified() => break,
            () = manager.kill_after(plane, writes, life) => count += 1,
        }
    }
    eprintln!("the manager was killed {count} times");
    start(plane)
}

#[tokio::test]
async fn random_changes_end_as_a_fresh_deployment() {
    let seed = seed();
    let wanted = std::env::var("OPERETTA_TEST_SEQUENCES").unwrap_or_default();
    let numbers: Vec<u64> = match wanted.strip_prefix('=') {
        Some(one) => vec![one.parse().expect("OPERETTA_TEST_SEQUENCES is a number, or one after =")],
        None => (0..wanted.parse().unwrap_or(SEQUENCES)).collect(),
    };
    let sequences: BTreeMap<String, (Vec<Disturbance>, Value)> = numbers
        .into_iter()
        .map(|number| {
            let name = format!("mix-{number}");
            let steps = sequence(&mut Rng::with_seed(seed.wrapping_add(number)), &name);
            (name, steps)
        })
        .collect();

    let plane = own_plane_of_tests().await;
    let disturbed = Scene::on(&plane).await;
    let calm = Scene::on(&plane).await;
    // Register the kind.
    let mut manager = start(&plane).watching(1).await;
    manager.kill9();
    let over = Notify::new();
    let mut random = Rng::with_seed(seed);
    let all = async {
        let each = sequences.iter().map(async |(name, (steps, _))| {
            for step in steps {
                perform(&disturbed, name, step).await;
            }
        });
        futures::future::join_all(each).await;
        over.notify_one();
    };
    let (manager, ()) = tokio::join!(kills(&plane, &mut random, &over), all);

    for (name, (_, spec)) in &sequences {
        create(&calm, name, spec).await;
    }
    // Only the autoscaler knows the last number of replicas that it set.
    for scene in [&calm, &disturbed] {
        for (name, _) in sequences.iter().filter(|(_, (_, spec))| spec["autoscaled"] == true) {
            eventually(&format!("{name} to be Ready"), LONG * 2, async || {
                match scene.find(MIX, name).await {
                    Some(mix) if is_ready(&mix) => Ok(()),
                    mix => Err(format!("OPERETTA_TEST_SEED={seed}: {mix:?}\n{}", warnings(&manager))),
                }
            })
            .await;
            // Set a number that no spec has: setting the same number would only add a second owner.
            scale(scene, name, 2).await;
        }
    }
    eventually("the state of a fresh deploy", LONG * 2, async || {
        let (expected, found) = (state(&calm).await, state(&disturbed).await);
        let mut wrong = String::new();
        for (name, (steps, spec)) in &sequences {
            let empty = BTreeMap::new();
            let (a, b) = (expected.get(name).unwrap_or(&empty), found.get(name).unwrap_or(&empty));
            let ready =
                a.get("instance").is_some_and(is_settled) && b.get("instance").is_some_and(is_settled);
            if a != b || !ready {
                let _ = writeln!(wrong, "{name} ({spec}):\n{}", differences(a, b));
                for step in steps.iter().filter(|step| !matches!(step, Disturbance::Wait(_))) {
                    let _ = writeln!(wrong, "    {step:?}");
                }
                if !ready {
                    let status =
                        |of: &BTreeMap<String, Value>| of.get("instance").map(|i| i["status"].clone());
                    let _ = writeln!(wrong, "    {:?}\n    {:?}", status(a), status(b));
                }
            }
        }
        let right = wrong.is_empty();
        if right { Ok(()) } else { Err(format!("OPERETTA_TEST_SEED={seed}\n{wrong}{}", warnings(&manager))) }
    })
    .await;
    let objects: usize = state(&disturbed).await.values().map(BTreeMap::len).sum();
    eprintln!("{} sequences, {objects} objects", sequences.len());
}
