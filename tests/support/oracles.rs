//! What must hold whatever fault occurs: the same end state as an undisturbed run, no child created or
//! deleted twice, nothing left over, a true status, no requests once settled, and no secret shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::Value;

use super::ext::{Kind, Scene, condition, name_of, read, uid_of};

/// Objects by kind and name, without what differs between two runs.
pub type State = BTreeMap<String, Value>;

/// The instances of a namespace and all that they have made in it. `renamed` has texts that differ between
/// runs, such as the instance's name, with their replacements.
pub async fn state(scene: &Scene, instances: &[Kind], children: &[Kind], renamed: &[(&str, &str)]) -> State {
    let mut stands_for = vec![(scene.namespace().to_owned(), "<namespace>".to_owned())];
    stands_for.extend(renamed.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())));
    let mut objects = Vec::new();
    for kind in instances {
        for object in scene.list(*kind).await {
            stands_for.push((uid_of(&object).to_owned(), format!("<uid of {}>", name_of(&object))));
            objects.push((format!("{} {}", kind.plural, name_of(&object)), instance_essence(object)));
        }
    }
    for kind in children {
        for object in scene.list(*kind).await {
            // Kubernetes itself creates these in each namespace.
            if matches!(name_of(&object), "kube-root-ca.crt" | "default") {
                continue;
            }
            stands_for.push((uid_of(&object).to_owned(), format!("<uid of {}>", name_of(&object))));
            // The uid of the instance, which may be gone.
            let labels = &object["metadata"]["labels"];
            if let Some(uid) = labels["operetta.dev/instance-uid"].as_str() {
                let instance = labels["operetta.dev/instance"].as_str().unwrap_or_default();
                stands_for.push((uid.to_owned(), format!("<uid of {instance}>")));
            }
            objects.push((format!("{} {}", kind.plural, name_of(&object)), child_essence(object)));
        }
    }
    // Replace longer texts first: they may contain shorter ones.
    stands_for.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
    let replace = |text: String| stands_for.iter().fold(text, |text, (from, to)| text.replace(from, to));
    let mut state = State::new();
    for (name, object) in objects {
        let object = serde_json::from_str(&without_hashes(&replace(object.to_string()))).unwrap();
        assert!(state.insert(replace(name), object).is_none());
    }
    state
}

/// Removes the hashes of uids from the names of runs that delete children, and the ids of containers.
pub fn without_hashes(text: &str) -> String {
    [("-delete-", 10), ("containerd://", 64)].into_iter().fold(text.to_owned(), |text, (mark, length)| {
        let mut parts = text.split(mark);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            let hash = part.get(..length).filter(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
            text + mark + &part[hash.map_or(0, str::len)..]
        })
    })
}

/// What instances of a namespace have made of a kind elsewhere: in another namespace, or cluster-scoped. The
/// selector matches no other test's objects.
pub async fn elsewhere(
    scene: &Scene,
    kind: Kind,
    namespace: Option<&str>,
    selector: &str,
    renamed: &[(&str, &str)],
) -> State {
    let path = kind.path(namespace, "");
    let path = format!("{}?labelSelector={selector}", path.trim_end_matches('/'));
    let list = read(&scene.client(), &path).await.expect("the kind is served");
    let here = [(scene.namespace(), "<namespace>")];
    let mut state = State::new();
    for object in list["items"].as_array().into_iter().flatten() {
        let labels = &object["metadata"]["labels"];
        let uids = [
            (uid_of(object), "<uid>"),
            (labels["operetta.dev/instance-uid"].as_str().expect("a label"), "<uid of the instance>"),
        ];
        // Replace longer texts first: they may contain shorter ones.
        let mut stands_for: Vec<_> = here.iter().chain(renamed).chain(&uids).collect();
        stands_for.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        let replace = |text: String| stands_for.iter().fold(text, |text, (from, to)| text.replace(from, to));
        let name = replace(format!("{} {}", kind.plural, name_of(object)));
        let essence = replace(child_essence(object.clone()).to_string());
        assert!(state.insert(name, serde_json::from_str(&essence).unwrap()).is_none());
    }
    state
}

fn drop_fields(meta: &mut Value, fields: &[&str]) {
    let meta = meta.as_object_mut().unwrap();
    for field in fields {
        meta.remove(*field);
    }
}

fn instance_essence(mut object: Value) -> Value {
    let generation = object["metadata"]["generation"].take();
    drop_fields(
        &mut object["metadata"],
        &["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"],
    );
    let seen = |value: &mut Value| {
        if *value == generation {
            *value = "<generation>".into();
        }
    };
    seen(&mut object["status"]["observedGeneration"]);
    // Times and uids of runs differ, and their number depends on what was interrupted.
    if let Some(status) = object["status"].as_object_mut() {
        status.remove("plan");
        status.remove("history");
    }
    for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
        drop_fields(condition, &["lastTransitionTime"]);
        seen(&mut condition["observedGeneration"]);
    }
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        // An instance that is a child itself has this hash; `child_essence` explains it.
        annotations.remove("operetta.dev/applied-hash");
    }
    if let Some(time) = object["metadata"].get_mut("deletionTimestamp") {
        *time = "<time>".into();
    }
    object
}

fn child_essence(mut object: Value) -> Value {
    // Other controllers write the status.
    object.as_object_mut().unwrap().remove("status");
    let meta = &mut object["metadata"];
    let mut managed: Vec<Value> = meta["managedFields"].as_array().cloned().unwrap_or_default();
    managed.retain(|entry| entry["manager"].as_str().is_some_and(|m| m.starts_with("operetta")));
    for entry in &mut managed {
        entry.as_object_mut().unwrap().remove("time");
    }
    managed.sort_by_key(ToString::to_string);
    drop_fields(meta, &["uid", "resourceVersion", "creationTimestamp", "generation"]);
    meta["managedFields"] = managed.into();
    // The hash covers the namespace and the owner's uid, which differ between runs.
    if meta["labels"]["operetta.dev/instance-uid"].is_string() {
        assert!(meta["annotations"]["operetta.dev/applied-hash"].take().is_string(), "{meta}");
        if let Some(hash) = meta["annotations"].get_mut("operetta.dev/spec-hash") {
            assert!(hash.take().is_string(), "{meta}");
        }
    }
    // Generated values are random.
    let generated = meta["annotations"]["operetta.dev/generated"].as_str().unwrap_or_default().to_owned();
    for key in generated.split(',').filter(|key| !key.is_empty()) {
        let value = object["data"][key].take();
        assert!(value.as_str().is_some_and(|value| !value.is_empty()), "{key} is empty");
        object["data"][key] = "<generated>".into();
    }
    if !generated.is_empty() {
        let proof = object["metadata"]["annotations"]["operetta.dev/generated-proof"].take();
        assert!(proof.as_str().is_some_and(|proof| !proof.is_empty()), "no proof");
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    object
}

/// Describes the differences between two states; empty if there are none.
pub fn differences(calm: &State, storm: &State) -> String {
    let names: BTreeSet<&String> = calm.keys().chain(storm.keys()).collect();
    names.into_iter().filter(|n| calm.get(*n) != storm.get(*n)).fold(String::new(), |mut text, name| {
        match (calm.get(name), storm.get(name)) {
            (Some(_), None) => writeln!(text, "{name} is missing"),
            (None, Some(object)) => writeln!(text, "{name} is too much: {object}"),
            (calm, storm) => {
                writeln!(
                    text,
                    "{name} differs:\n  {}\n  {}",
                    calm.unwrap_or(&Value::Null),
                    storm.unwrap_or(&Value::Null)
                )
            }
        }
        .unwrap();
        text
    })
}

/// Records every state of the instances of a namespace from now on, to check that the status is always true
/// of the generation that it names.
pub struct Recorder {
    /// Each state, and whether it came from a list: states before a list may have been missed.
    seen: Arc<Mutex<Vec<(Value, bool)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Recorder {
    /// Starts recording; the kind must be served.
    pub async fn start(scene: &Scene, kind: Kind) -> Self {
        let api = Api::<DynamicObject>::namespaced_with(scene.client(), scene.namespace(), &kind.resource());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let (listed, wait) = tokio::sync::oneshot::channel();
        let mut listed = Some(listed);
        let task = tokio::spawn(async move {
            let mut events = Box::pin(watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let note = |object: DynamicObject, is_listed: bool| {
                    lock(&sink).push((serde_json::to_value(object).unwrap(), is_listed));
                };
                match event {
                    Ok(Event::Apply(object) | Event::Delete(object)) => note(object, false),
                    Ok(Event::InitApply(object)) => note(object, true),
                    Ok(Event::InitDone) => drop(listed.take().map(|listed| listed.send(()))),
                    // In tests of outages the server comes and goes, and a new kind is served late.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    Ok(Event::Init) => {}
                }
            }
        });
        wait.await.expect("a list");
        Self { seen, task }
    }

    /// Checks that observedGeneration never exceeds the generation and never falls, and that a status with
    /// Ready is about the generation at the time when it was written.
    pub fn check(&self) {
        let mut last: BTreeMap<String, Value> = BTreeMap::new();
        for (object, is_listed) in lock(&self.seen).iter() {
            let before = last.insert(uid_of(object).to_owned(), object.clone()).unwrap_or_default();
            let generation = |object: &Value| object["metadata"]["generation"].as_i64().unwrap_or_default();
            let observed =
                |object: &Value| object["status"]["observedGeneration"].as_i64().unwrap_or_default();
            let name = name_of(object);
            assert!(observed(object) <= generation(object), "{name}: ahead of its time: {object:#}");
            assert!(observed(object) >= observed(&before), "{name}: falls back: {before:#}\n{object:#}");
            // `plan` announces a run before the rest of the status is about the new generation.
            let said = |object: &Value| {
                let mut status = object["status"].clone();
                status.as_object_mut().map(|status| status.remove("plan"));
                status
            };
            let is_news = !is_listed && said(object) != said(&before);
            if is_news && condition(object, "Ready")["status"] == "True" {
                assert_eq!(observed(object), generation(object), "{name}: Ready, but of what? {object:#}");
                assert_eq!(condition(object, "Ready")["observedGeneration"], generation(object), "{name}");
            }
        }
    }

    /// Every value that Ready has had for an instance, without repetitions: status, reason and message.
    pub fn ready_of(&self, name: &str) -> Vec<String> {
        let of_it = |object: &Value| {
            let ready = condition(object, "Ready");
            let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
            (name_of(object) == name).then(|| [text("status"), text("reason"), text("message")].join(" "))
        };
        let mut said: Vec<String> = lock(&self.seen).iter().filter_map(|(object, _)| of_it(object)).collect();
        said.dedup();
        said
    }

    /// Returns a status that contained this text, if there ever was one.
    pub fn shows(&self, text: &str) -> Option<String> {
        lock(&self.seen).iter().map(|(o, _)| o["status"].to_string()).find(|status| status.contains(text))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What managers in this process have logged and must not, and all panics that no test caused on purpose.
///
/// Lines are judged as they are written: searching everything that all tests have logged, at the end of each, would
/// hold up the others, who log meanwhile.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    /// Log lines that contain the [`CANARY`].
    secrets: Vec<String>,
    /// Log lines about panics that were caught.
    caught: Vec<String>,
    panics: Vec<String>,
}

/// A text in the messages of panics that a test causes on purpose.
pub const MADE_BY_A_TEST: &str = "made by a test";

/// The beginning of secrets that no status, Event or log line may show.
pub const CANARY: &str = "canary-3f9c";

impl Logs {
    /// What is judged.
    pub const FILTER: &str = "operetta=trace,warn";

    /// Starts capturing at the first call, except in threads that have a log of their own.
    pub fn capture() -> Self {
        static START: Once = Once::new();
        static LOGS: Mutex<Option<Logs>> = Mutex::new(None);
        START.call_once(|| {
            let logs = Self::default();
            *lock(&LOGS) = Some(logs.clone());
            let sink = logs.clone();
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_env_filter(Self::FILTER)
                .with_writer(move || sink.clone())
                .init();
            let (sink, usual) = (logs.clone(), std::panic::take_hook());
            std::panic::set_hook(Box::new(move |panic| {
                if panic.location().is_none_or(|l| !l.file().starts_with("tests/")) {
                    lock(&sink.0).panics.push(panic.to_string());
                }
                usual(panic);
            }));
        });
        lock(&LOGS).clone().expect("they were started")
    }

    /// Checks that no secret was logged, and that no manager has panicked, except where a test made it panic.
    pub fn check(&self) {
        let noted = lock(&self.0);
        let told = [&noted.secrets, &noted.caught, &noted.panics].map(|lines| lines.join("\n"));
        drop(noted);
        let [secrets, caught, panics] = told;
        assert!(secrets.is_empty(), "a secret is in the log:\n{secrets}");
        assert!(panics.is_empty(), "{panics}");
        assert!(caught.is_empty(), "{caught}");
    }
}

impl std::io::Write for Logs {
    /// Is called with each line as a whole.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        if line.contains(CANARY) {
            lock(&self.0).secrets.push(line.to_string());
        }
        if line.contains("panicked") && !line.contains(MADE_BY_A_TEST) {
            lock(&self.0).caught.push(line.to_string());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
