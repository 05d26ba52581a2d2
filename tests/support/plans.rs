//! What tests of plans share: requests for runs, their ends, scripted Jobs, and an HTTP API that is told how to answer.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::ext::{Kind, LONG, Scene, condition, kind, name_of};
use super::{Output, eventually};

/// The user of the tests' kubeconfig.
pub const ADMIN: &str = "admin";

pub const PLAN_RUN: Kind = kind("operetta.dev/v1alpha1", "planruns");
pub const CONTROLLER_REVISION: Kind = kind("apps/v1", "controllerrevisions");

/// The HTTP API of these tests is on this machine, which a manager does not call unless it is told to.
pub const LOOPBACK: &str = "--allow-call-to=127.0.0.1";

/// The phases from which a run never moves on.
pub const TERMINAL: [&str; 4] = ["Succeeded", "Failed", "Cancelled", "Superseded"];

/// kwok's stages for pods that say what becomes of them, in annotations `script.example.com/...`:
///
/// - `end`: `succeed`, `fail`, `never` (runs on), `stuck` (never starts);
/// - `after`: how long it runs, `1s`;
/// - `message`: its termination message.
///
/// A pod with the image `registry.example.com/bad:1` does not start.
pub const STAGES: &str = r#"
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: script-stuck
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  weight: 1
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Pending]}
      - {key: '.metadata.annotations["script.example.com/end"]', operator: In, values: [stuck]}
  delay: {durationMilliseconds: 86400000}
  steps: [{patch: {subresource: status, root: status, template: "message: stuck"}}]
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: script-bad-image
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  weight: 1
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Pending]}
      - {key: '.spec.containers.[].image', operator: In, values: ["registry.example.com/bad:1"]}
  delay: {durationMilliseconds: 86400000}
  steps: [{patch: {subresource: status, root: status, template: "message: image"}}]
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: script-bad-restart
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  weight: 1
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: '.status.containerStatuses.[].state.waiting.reason', operator: In, values: [ContainerCreating]}
      - {key: '.spec.containers.[].image', operator: In, values: ["registry.example.com/bad:1"]}
  delay: {durationMilliseconds: 86400000}
  steps: [{patch: {subresource: status, root: status, template: "message: image"}}]
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: script-never
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  weight: 1
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Running]}
      - {key: '.metadata.annotations["script.example.com/end"]', operator: In, values: [never]}
  delay: {durationMilliseconds: 86400000}
  steps: [{patch: {subresource: status, root: status, template: "message: never"}}]
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: script-succeed
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  weight: 1
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Running]}
      - {key: '.metadata.annotations["script.example.com/end"]', operator: In, values: [succeed]}
  delay:
    durationMilliseconds: 0
    durationFrom: {expressionFrom: '.metadata.annotations["script.example.com/after"]'}
  steps: [{patch: {subresource: status, root: status, type: strategic, template: "SUCCEEDED"}}]
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: script-fail
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  weight: 1
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Running]}
      - {key: '.metadata.annotations["script.example.com/end"]', operator: In, values: [fail]}
  delay:
    durationMilliseconds: 0
    durationFrom: {expressionFrom: '.metadata.annotations["script.example.com/after"]'}
  steps: [{patch: {subresource: status, root: status, type: strategic, template: "FAILED"}}]
"#;

/// The status of a pod that has ended.
const ENDED: &str = r#"
          {{ $now := Now }}
          {{ $started := or .status.startTime $now }}
          {{ $message := or (index .metadata.annotations "script.example.com/message") "" }}
          phase: PHASE
          conditions:
            - {type: ContainersReady, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
            - {type: Ready, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
          containerStatuses:
          {{ range .spec.containers }}
            - name: {{ .name | Quote }}
              image: {{ .image | Quote }}
              imageID: ""
              ready: false
              restartCount: 0
              started: false
              state:
                terminated:
                  exitCode: CODE
                  reason: REASON
                  message: {{ $message | Quote }}
                  startedAt: {{ $started | Quote }}
                  finishedAt: {{ $now | Quote }}
          {{ end }}
"#;

/// The stages of a control plane for plans: the usual ones, and those that pods ask for.
pub fn stages() -> String {
    let ended = |phase: &str, code: &str, reason: &str| {
        let text = ENDED.replace("PHASE", phase).replace("CODE", code).replace("REASON", reason);
        serde_json::to_string(&text).expect("JSON")
    };
    let scripts = STAGES
        .replace("\"SUCCEEDED\"", &ended("Succeeded", "0", "Completed"))
        .replace("\"FAILED\"", &ended("Failed", "3", "Error"));
    format!("{}{scripts}", operetta::local::DEFAULT_STAGES)
}

/// `status.phase` of a run; empty before it has one.
pub fn phase(run: &Value) -> &str {
    run["status"]["phase"].as_str().unwrap_or_default()
}

/// Whether a run has ended.
pub fn is_over(run: &Value) -> bool {
    TERMINAL.contains(&phase(run))
}

/// The steps of a run by their path, as far as it has come to them.
pub fn steps(run: &Value) -> BTreeMap<String, Value> {
    let list = run["status"]["steps"].as_array().cloned().unwrap_or_default();
    list.into_iter().map(|step| (step["path"].as_str().unwrap_or_default().to_owned(), step)).collect()
}

/// What a run says of itself beside its steps.
pub fn story_of(run: &Value) -> String {
    let mut run = run.clone();
    run["metadata"]["managedFields"].take();
    format!("{run:#}")
}

impl Scene {
    /// Creates a `PlanRun`, as `kubectl create -f -` does; its name.
    pub async fn request(
        &self,
        (kind, plural): (&str, Kind),
        instance: &str,
        plan: &str,
        params: &Value,
    ) -> String {
        self.try_request((kind, plural), instance, plan, params)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same, which the API server may refuse.
    pub async fn try_request(
        &self,
        (kind, plural): (&str, Kind),
        instance: &str,
        plan: &str,
        params: &Value,
    ) -> Result<String, String> {
        let of = json!({"apiVersion": plural.api_version(), "kind": kind, "resource": plural.plural, "name": instance});
        let mut run = json!({
            "apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun",
            "metadata": {"generateName": format!("{instance}-{plan}-")},
            "spec": {"of": of, "plan": plan, "requestedBy": ADMIN},
        });
        if !params.is_null() {
            run["spec"]["params"] = params.clone();
        }
        let created = self.kubectl_input(&["create", "-o", "name", "-f", "-"], &run.to_string()).await?;
        Ok(created.trim().rsplit('/').next().unwrap_or_default().to_owned())
    }

    /// Waits until a run has this phase; panics if it ends in another.
    pub async fn run_is(&self, name: &str, wanted: &str) -> Value {
        eventually(&format!("run {name}: {wanted}"), LONG, async || {
            let run = self.find(PLAN_RUN, name).await.ok_or("it does not exist")?;
            let found = phase(&run);
            let absorbed = TERMINAL.contains(&found) && found != wanted;
            assert!(!absorbed, "run {name} is {found}, not {wanted}: {}", story_of(&run));
            if found == wanted { Ok(run) } else { Err(story_of(&run)) }
        })
        .await
    }

    /// Waits until a run of an instance and a plan exists that holds; the newest.
    pub async fn run_of(&self, instance: &str, plan: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("a run of {plan} of {instance}"), LONG, async || {
            let runs = self.runs(instance).await;
            let found = runs.iter().rev().find(|run| plans_of(run).contains(&plan) && holds(run));
            found.cloned().ok_or_else(|| runs.iter().map(story_of).collect::<String>())
        })
        .await
    }

    /// All runs of an instance, the oldest first.
    pub async fn runs(&self, instance: &str) -> Vec<Value> {
        let mut runs = self.list(PLAN_RUN).await;
        runs.retain(|run| run["spec"]["of"]["name"] == instance);
        runs.sort_by_key(|run| {
            let created = run["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
            let name = name_of(run).to_owned();
            let number = name.rsplit('-').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default();
            (created, number, name)
        });
        runs
    }

    /// The uids of all Jobs of the namespace, by name.
    pub async fn jobs(&self) -> BTreeMap<String, String> {
        let jobs = self.list(super::ext::JOB).await;
        jobs.iter().map(|job| (name_of(job).to_owned(), super::ext::uid_of(job).to_owned())).collect()
    }

    /// Runs `operetta` in the namespace.
    pub async fn operetta(&self, args: &[&str]) -> Output {
        self.operetta_anywhere(&[args, &["-n", self.namespace()]].concat()).await
    }

    /// Runs `operetta` without a namespace.
    pub async fn operetta_anywhere(&self, args: &[&str]) -> Output {
        super::operetta(self.plane().kubeconfig_path(), args).await
    }

    /// Approves or rejects a step, as admin.
    pub async fn answer(&self, run: &str, step: &str, verdict: &str) {
        let patch = json!({"spec": {"approvals": [{"step": step, "verdict": verdict, "by": ADMIN}]}});
        self.patch(PLAN_RUN, run, "merge", &patch).await;
    }

    /// Cancels a run.
    pub async fn cancel(&self, run: &str) {
        self.patch(PLAN_RUN, run, "merge", &json!({"spec": {"cancel": true}})).await;
    }

    /// A new request that continues a failed run at its failed step.
    pub async fn retry(&self, run: &str) -> String {
        let mut of = self.get(PLAN_RUN, run).await;
        let again = json!({
            "apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun",
            "metadata": {"generateName": format!("{run}-again-")},
            "spec": {"of": of["spec"]["of"].take(), "plan": of["spec"]["plan"].take(), "retryOf": run, "requestedBy": ADMIN},
        });
        let created = self.kubectl_input(&["create", "-o", "name", "-f", "-"], &again.to_string()).await;
        created
            .unwrap_or_else(|error| panic!("{error}"))
            .trim()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    /// Waits until an instance is Stalled; the message of the condition.
    pub async fn stalled(&self, kind: Kind, name: &str) -> String {
        let object = self.until("Stalled", kind, name, |o| condition(o, "Stalled")["status"] == "True").await;
        let stalled = condition(&object, "Stalled");
        format!(
            "{}: {}",
            stalled["reason"].as_str().unwrap_or_default(),
            stalled["message"].as_str().unwrap_or_default()
        )
    }
}

/// The plans of a run: of a rollout there may be several.
pub fn plans_of(run: &Value) -> Vec<&str> {
    let of_rollout = run["status"]["plans"].as_array().map_or(&[][..], Vec::as_slice);
    of_rollout.iter().chain([&run["spec"]["plan"]]).filter_map(Value::as_str).collect()
}

/// How a request is answered.
#[derive(Debug, Clone)]
pub enum Answer {
    /// With this status and body.
    Is(u16, Value),
    /// As it would be without a rule, after this time.
    Later(Duration),
    /// The connection is cut; nothing was done.
    Cut,
    /// It is done, and the connection is cut before the answer.
    DoneAndCut,
    /// It is done, and there is no answer until the rule is lifted.
    DoneAndSilent,
}

/// A request that has arrived.
#[derive(Debug, Clone)]
pub struct Call {
    pub method: String,
    /// Path and query.
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// JSON, or text.
    pub body: Value,
    /// The `Idempotency-Key`.
    pub key: String,
}

/// An item of the API.
#[derive(Debug, Clone)]
pub struct Item {
    pub path: String,
    pub body: Value,
    pub deleted: bool,
    /// How often something was done to it.
    pub effects: usize,
}

#[derive(Default)]
struct Inner {
    calls: Vec<Call>,
    rules: Vec<(String, String, VecDeque<Answer>, Option<Answer>)>,
    items: BTreeMap<String, Item>,
    keys: BTreeMap<(String, String), (u16, Value)>,
}

/// An HTTP API: POST creates an item below a path, GET reads it, PUT replaces it, DELETE marks it as deleted. A POST with
/// a known `Idempotency-Key` gets the first answer again. The first segment of a path is a namespace, so that tests do not
/// meet.
#[derive(Clone, Default)]
pub struct Api {
    inner: Arc<Mutex<Inner>>,
    port: u16,
}

impl Api {
    /// Starts it on a free port, in a thread of its own: runtimes of tests come and go.
    pub fn start() -> Self {
        let (send, receive) = std::sync::mpsc::channel();
        let inner = Arc::<Mutex<Inner>>::default();
        let shared = Arc::clone(&inner);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                send.send(listener.local_addr().expect("an address").port()).expect("it is awaited");
                loop {
                    let Ok((stream, _)) = listener.accept().await else { continue };
                    let inner = Arc::clone(&shared);
                    tokio::spawn(async move {
                        let service =
                            hyper::service::service_fn(move |request| serve(Arc::clone(&inner), request));
                        let http = hyper::server::conn::http1::Builder::new();
                        let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            });
        });
        Self { inner, port: receive.recv().expect("a port") }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the next requests of a method whose path begins so in these ways, one after another.
    pub fn next(&self, method: &str, path: &str, answers: impl IntoIterator<Item = Answer>) {
        let answers = answers.into_iter().collect();
        self.lock().rules.push((method.to_owned(), path.to_owned(), answers, None));
    }

    /// Answers all requests of a method whose path begins so in this way.
    pub fn always(&self, method: &str, path: &str, answer: Answer) {
        self.lock().rules.push((method.to_owned(), path.to_owned(), VecDeque::new(), Some(answer)));
    }

    /// Lifts all rules for paths that begin so.
    pub fn lift(&self, path: &str) {
        self.lock().rules.retain(|(_, of, _, _)| !of.starts_with(path));
    }

    /// The requests so far whose path begins so.
    pub fn calls(&self, method: &str, path: &str) -> Vec<Call> {
        let inner = self.lock();
        inner
            .calls
            .iter()
            .filter(|call| call.method == method && call.path.starts_with(path))
            .cloned()
            .collect()
    }

    /// The items whose path begins so.
    pub fn items(&self, path: &str) -> Vec<Item> {
        self.lock().items.values().filter(|item| item.path.starts_with(path)).cloned().collect()
    }

    /// Puts an item there, as somebody else.
    pub fn put(&self, path: &str, body: Value) {
        let item = Item { path: path.to_owned(), body, deleted: false, effects: 0 };
        self.lock().items.insert(path.to_owned(), item);
    }
}

async fn serve(inner: Arc<Mutex<Inner>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Gone> {
    let method = request.method().to_string();
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let headers: BTreeMap<String, String> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let body = request.into_body().collect().await.map_err(|_| Gone)?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    let body = serde_json::from_str(&text).unwrap_or_else(|_| text.into());
    let key = headers.get("idempotency-key").cloned().unwrap_or_default();
    let call = Call { method, path, headers, body, key };
    let rule = {
        let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.calls.push(call.clone());
        let matches = |(method, path, _, _): &&mut (String, String, VecDeque<Answer>, Option<Answer>)| {
            *method == call.method && call.path.starts_with(path.as_str())
        };
        inner
            .rules
            .iter_mut()
            .filter(matches)
            .find_map(|(_, _, next, always)| next.pop_front().or_else(|| always.clone()))
    };
    match rule {
        Some(Answer::Is(status, body)) => return Ok(answer(status, &body)),
        Some(Answer::Cut) => return Err(Gone),
        Some(Answer::Later(time)) => tokio::time::sleep(time).await,
        Some(Answer::DoneAndCut) => {
            carry_out(&inner, &call);
            return Err(Gone);
        }
        Some(Answer::DoneAndSilent) => {
            carry_out(&inner, &call);
            let silent = || {
                let inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
                inner.rules.iter().any(|(method, path, _, _)| {
                    *method == call.method && call.path.starts_with(path.as_str())
                })
            };
            while silent() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            return Err(Gone);
        }
        None => {}
    }
    let (status, body) = carry_out(&inner, &call);
    Ok(answer(status, &body))
}

fn carry_out(inner: &Mutex<Inner>, call: &Call) -> (u16, Value) {
    let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
    let path = call.path.split('?').next().unwrap_or_default().to_owned();
    match call.method.as_str() {
        "POST" => {
            if let Some(known) = inner.keys.get(&(path.clone(), call.key.clone())) {
                return known.clone();
            }
            let below = format!("{path}/");
            let id = format!("n{}", inner.items.keys().filter(|item| item.starts_with(&below)).count() + 1);
            let at = format!("{path}/{id}");
            let item = Item { path: at.clone(), body: call.body.clone(), deleted: false, effects: 1 };
            inner.items.insert(at, item);
            let reply = (201, json!({"id": id, "state": "made", "item": call.body}));
            if !call.key.is_empty() {
                inner.keys.insert((path, call.key.clone()), reply.clone());
            }
            reply
        }
        "GET" => match inner.items.get(&path) {
            Some(item) if item.deleted => (410, json!({"state": "deleted"})),
            Some(item) => (200, json!({"state": "made", "item": item.body})),
            None => (404, json!({"state": "unknown"})),
        },
        "PUT" | "DELETE" => {
            let Some(item) = inner.items.get_mut(&path) else { return (404, json!({"state": "unknown"})) };
            item.effects += 1;
            if call.method == "PUT" {
                item.body = call.body.clone();
            } else {
                item.deleted = true;
            }
            (200, json!({"state": if item.deleted { "deleted" } else { "made" }, "item": item.body}))
        }
        _ => (405, Value::Null),
    }
}

fn answer(status: u16, body: &Value) -> Response<Full<Bytes>> {
    let text = match body {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Response::builder().status(status).body(Full::new(Bytes::from(text))).expect("an answer")
}

/// The connection is cut.
#[derive(Debug)]
struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("gone")
    }
}

impl std::error::Error for Gone {}

impl From<Infallible> for Gone {
    fn from(_: Infallible) -> Self {
        Self
    }
}

/// A folder in which commands of exec steps are scripted: `sh FOLDER/do NAME ARGUMENTS...` notes the call in `calls`,
/// waits for `NAME.sleep` seconds, prints `NAME.out`, and fails if there is a `NAME.fail`.
pub struct Commands {
    folder: tempfile::TempDir,
}

const SCRIPT: &str = r#"cd "$(dirname "$0")" || exit 9
name=$1
echo "$@" >> calls
[ -f "$name.sleep" ] && sleep "$(cat "$name.sleep")"
[ -f "$name.fail" ] && { cat "$name.fail" >&2; exit 3; }
[ -f "$name.out" ] && cat "$name.out"
exit 0
"#;

impl Commands {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("do"), SCRIPT).expect("a script");
        Self { folder }
    }

    /// The script, which a command names after `sh`.
    pub fn script(&self) -> String {
        self.folder.path().join("do").to_str().expect("UTF-8").to_owned()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// What a command prints.
    pub fn prints(&self, name: &str, text: &str) {
        // In one piece: it may be read at this moment.
        let fresh = self.path(".fresh");
        std::fs::write(&fresh, text).expect("a file");
        std::fs::rename(fresh, self.path(&format!("{name}.out"))).expect("a file");
    }

    /// A command fails with this message, or no longer.
    pub fn fails(&self, name: &str, message: Option<&str>) {
        let path = self.path(&format!("{name}.fail"));
        match message {
            Some(message) => std::fs::write(path, message).expect("a file"),
            None => std::fs::remove_file(path).expect("it failed"),
        }
    }

    /// A command takes that long.
    pub fn takes(&self, name: &str, seconds: &str) {
        std::fs::write(self.path(&format!("{name}.sleep")), seconds).expect("a file");
    }

    /// The calls so far, one a line, of commands with this name.
    pub fn calls(&self, name: &str) -> Vec<String> {
        let all = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        all.lines().filter(|line| line.split(' ').next() == Some(name)).map(ToOwned::to_owned).collect()
    }
}

impl Default for Commands {
    fn default() -> Self {
        Self::new()
    }
}

/// A package for a manager of these tests: a copy in which `API` is the URL of the HTTP API.
pub fn with_api(folder: &Path, api: &Api) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    super::ext::copy_folder(folder, copy.path(), &|text| text.replace("http://api.invalid", &api.url()));
    copy
}

/// The Events about an instance or a run, as `reason: message`.
pub async fn events_about(scene: &Scene, name: &str) -> String {
    scene.list(super::ext::EVENT).await.iter().filter(|e| e["involvedObject"]["name"] == name).fold(
        String::new(),
        |mut text, event| {
            let reason = event["reason"].as_str().unwrap_or_default();
            let _ = writeln!(text, "{reason}: {}", event["message"].as_str().unwrap_or_default());
            text
        },
    )
}

/// The uids of all objects of a kind that ever were, by name.
pub struct Seen {
    uids: Arc<Mutex<BTreeMap<String, std::collections::BTreeSet<String>>>>,
    watch: tokio::task::JoinHandle<()>,
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Seen {
    /// How many objects there were of each name.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let uids = self.uids.lock().unwrap_or_else(PoisonError::into_inner);
        uids.iter().map(|(name, uids)| (name.clone(), uids.len())).collect()
    }
}

impl Scene {
    /// Watches all objects of a kind in the namespace from now on.
    pub async fn watch_uids(&self, kind: Kind) -> Seen {
        use futures::StreamExt;
        use kube::ResourceExt;
        use kube::runtime::watcher::{Config, Event, watcher};
        let api = kube::Api::<kube::api::DynamicObject>::namespaced_with(
            self.client(),
            self.namespace(),
            &kind.resource(),
        );
        let uids = Arc::<Mutex<BTreeMap<String, std::collections::BTreeSet<String>>>>::default();
        let seen = Arc::clone(&uids);
        let (listed, wait) = tokio::sync::oneshot::channel();
        let mut listed = Some(listed);
        let watch = tokio::spawn(async move {
            let mut events = Box::pin(watcher(api, Config::default()));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => {
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        seen.entry(object.name_any()).or_default().insert(object.uid().unwrap_or_default());
                    }
                    Ok(Event::InitDone) => drop(listed.take().map(|listed| listed.send(()))),
                    _ => {}
                }
            }
        });
        wait.await.expect("a list");
        Seen { uids, watch }
    }
}

/// Watches the runs of a namespace: their steps never go back, their ends never change, their revision stays.
pub struct RunWatch {
    wrong: Arc<Mutex<Vec<String>>>,
    watch: tokio::task::JoinHandle<()>,
}

impl Drop for RunWatch {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl RunWatch {
    pub async fn start(scene: &Scene) -> Self {
        use futures::StreamExt;
        use kube::runtime::watcher::{Config, Event, watcher};
        let api = kube::Api::<kube::api::DynamicObject>::namespaced_with(
            scene.client(),
            scene.namespace(),
            &PLAN_RUN.resource(),
        );
        let wrong = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&wrong);
        let (listed, wait) = tokio::sync::oneshot::channel();
        let mut listed = Some(listed);
        let watch = tokio::spawn(async move {
            let mut last: BTreeMap<String, Value> = BTreeMap::new();
            let mut events = Box::pin(watcher(api, Config::default()));
            while let Some(event) = events.next().await {
                let object = match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => object,
                    Ok(Event::InitDone) => {
                        listed.take().map(|listed| listed.send(()));
                        continue;
                    }
                    _ => continue,
                };
                let run = serde_json::to_value(object).expect("JSON");
                let before = last.insert(super::ext::uid_of(&run).to_owned(), run.clone());
                if let Some(error) = before.and_then(|before| went_back(&before, &run)) {
                    told.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                }
            }
        });
        wait.await.expect("a list");
        Self { wrong, watch }
    }

    /// Panics with all that went back.
    pub fn check(&self) {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// What of a run is no longer what it was, and should be.
fn went_back(before: &Value, after: &Value) -> Option<String> {
    let name = name_of(after);
    if is_over(before) && phase(after) != phase(before) {
        return Some(format!("{name} was {} and is {}", phase(before), phase(after)));
    }
    let revision = &before["status"]["revision"];
    if !revision.is_null() && after["status"]["revision"] != *revision {
        return Some(format!("{name} had revision {revision} and has {}", after["status"]["revision"]));
    }
    let after = steps(after);
    steps(before).into_iter().find_map(|(path, step)| {
        let now = after.get(&path).map_or(&Value::Null, |step| &step["phase"]);
        let ended = ["Succeeded", "Skipped", "Failed"].contains(&step["phase"].as_str().unwrap_or_default());
        let lost = now.is_null() || ended && *now != step["phase"];
        lost.then(|| format!("{name}: step {path} was {} and is {now}", step["phase"]))
    })
}
