//! Shared helpers for tests of plans: requests for runs, their ends, scripted Jobs, and a scripted HTTP API.

mod api;
mod commands;
mod programs;
mod twelve;
mod watch;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

pub use api::{Api, Call, Item, Reaction};
pub use commands::Commands;
pub use programs::Programs;
pub use twelve::{TWELVE, effects, outcome};
pub use watch::{RunWatch, StepWatch, UidWatch};

use super::{Actor, Kind, LONG, Output, Scene, condition, eventually, kind, name_of};

/// The user of the tests' kubeconfig.
pub const ADMIN: &str = "admin";

pub const PLAN_RUN: Kind = kind("operetta.dev/v1alpha1", "planruns");
pub const INSTANCE_STATE: Kind = kind("operetta.dev/v1alpha1", "instancestates");
pub const CONTROLLER_REVISION: Kind = kind("apps/v1", "controllerrevisions");

/// Lets a manager call the HTTP API of these tests, which is on this machine: calls to loopback addresses
/// need this flag.
pub const LOOPBACK: &str = "--allow-call-to=127.0.0.1";

/// The phases that a run never leaves.
pub const TERMINAL: [&str; 4] = ["Succeeded", "Failed", "Cancelled", "Superseded"];

/// An image whose containers end after seconds, and then again and again, in pods of an embedded API; kwok lets them run.
pub const CRASHES: &str = "registry.example.com/crash:1";

/// The template of an ended pod's status.
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

/// A stage of kwok for pods that are not deleted, of which each of these fields has one of these values. After a delay it
/// patches their status.
fn stage(name: &str, [(first, one), (second, other)]: [(&str, &str); 2], delay: &str, patch: &str) -> String {
    format!(
        "
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {{name: script-{name}}}
spec:
  resourceRef: {{apiGroup: v1, kind: Pod}}
  weight: 1
  selector:
    matchExpressions:
      - {{key: .metadata.deletionTimestamp, operator: DoesNotExist}}
      - {{key: '{first}', operator: In, values: [{one}]}}
      - {{key: '{second}', operator: In, values: [{other}]}}
  delay: {{{delay}}}
  steps: [{{patch: {{subresource: status, root: status, {patch}}}}}]
"
    )
}

/// The stages of a control plane for tests of plans: the default ones, and those by which pods choose their own fate in
/// annotations `script.example.com/...`:
///
/// - `end`: `succeed`, `fail`, `never` (runs on), `stuck` (never starts), `unpulled` (never starts, for its image cannot be pulled);
/// - `after`: how long it runs, `1s`;
/// - `message`: its termination message.
///
/// A pod with the image `registry.example.com/bad:1` does not start.
pub fn stages() -> String {
    const PHASE: &str = ".status.phase";
    const END: &str = ".metadata.annotations[\"script.example.com/end\"]";
    const LATE: &str = "durationMilliseconds: 86400000";
    const AFTER: &str = "durationMilliseconds: 0, durationFrom: {expressionFrom: \
                         '.metadata.annotations[\"script.example.com/after\"]'}";
    let says = |text: &str| format!("template: \"message: {text}\"");
    let ended = |phase: &str, code: &str, reason: &str| {
        let text = ENDED.replace("PHASE", phase).replace("CODE", code).replace("REASON", reason);
        format!("type: strategic, template: {}", serde_json::to_string(&text).expect("JSON"))
    };
    let bad = (".spec.containers.[].image", "\"registry.example.com/bad:1\"");
    let waits = (".status.containerStatuses.[].state.waiting.reason", "ContainerCreating");
    let runs = |end| [(PHASE, "Running"), (END, end)];
    let scripts = [
        stage("stuck", [(PHASE, "Pending"), (END, "stuck, unpulled")], LATE, &says("stuck")),
        stage("bad-image", [(PHASE, "Pending"), bad], LATE, &says("image")),
        stage("bad-restart", [waits, bad], LATE, &says("image")),
        stage("never", runs("never"), LATE, &says("never")),
        stage("succeed", runs("succeed"), AFTER, &ended("Succeeded", "0", "Completed")),
        stage("fail", runs("fail"), AFTER, &ended("Failed", "3", "Error")),
    ];
    operetta::local::DEFAULT_STAGES.to_owned() + &scripts.concat()
}

/// `status.phase` of a run; empty before it has one.
pub fn phase(run: &Value) -> &str {
    run["status"]["phase"].as_str().unwrap_or_default()
}

/// Whether a run has ended.
pub fn is_over(run: &Value) -> bool {
    TERMINAL.contains(&phase(run))
}

/// The steps of a run that have been reached, by their path.
pub fn steps(run: &Value) -> BTreeMap<String, Value> {
    let list = run["status"]["steps"].as_array().cloned().unwrap_or_default();
    list.into_iter().map(|step| (step["path"].as_str().unwrap_or_default().to_owned(), step)).collect()
}

/// The whole run as text, for messages.
pub fn story_of(run: &Value) -> String {
    let mut run = run.clone();
    run["metadata"]["managedFields"].take();
    format!("{run:#}")
}

impl Scene {
    /// Creates a `PlanRun`, as `kubectl create -f -` does. Returns its name.
    pub async fn request(
        &self,
        (kind, plural): (&str, Kind),
        instance: &str,
        plan: &str,
        params: &Value,
    ) -> String {
        let of = json!({"apiVersion": plural.api_version(), "kind": kind, "resource": plural.plural, "name": instance});
        let mut run = json!({
            "apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun",
            "metadata": {"generateName": format!("{instance}-{plan}-")},
            "spec": {"of": of, "plan": plan, "requestedBy": ADMIN},
        });
        if !params.is_null() {
            run["spec"]["params"] = params.clone();
        }
        let created = Actor::admin(self.plane()).create(PLAN_RUN, Some(self.namespace()), &run).await;
        name_of(&created.unwrap_or_else(|error| panic!("{error}"))).to_owned()
    }

    /// Does the same as [`Self::request`], and waits as [`Self::run_is`] does. Returns the name of the run.
    pub async fn requested(
        &self,
        of: (&str, Kind),
        instance: &str,
        plan: &str,
        params: &Value,
        wanted: &str,
    ) -> String {
        let run = self.request(of, instance, plan, params).await;
        self.run_is(&run, wanted).await;
        run
    }

    /// Waits until a run has this phase; panics if it ends in another. For `Running` it also waits until the
    /// run is accepted: before that nothing of it was done, so a restored run would start again.
    pub async fn run_is(&self, name: &str, wanted: &str) -> Value {
        eventually(&format!("run {name}: {wanted}"), LONG, async || {
            let run = self.find(PLAN_RUN, name).await.ok_or("it does not exist")?;
            let found = phase(&run);
            let absorbed = TERMINAL.contains(&found) && found != wanted;
            assert!(!absorbed, "run {name} is {found}, not {wanted}: {}", story_of(&run));
            let is_taken = || run["metadata"]["annotations"]["operetta.dev/taken"].is_string();
            let holds = found == wanted && (wanted != "Running" || is_taken());
            if holds { Ok(run) } else { Err(story_of(&run)) }
        })
        .await
    }

    /// Waits until an instance has a run of a plan for which `holds` is true. Returns the newest.
    pub async fn run_of(&self, instance: &str, plan: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("a run of {plan} of {instance}"), LONG, async || {
            let runs = self.runs(instance).await;
            let found = runs.iter().rev().find(|run| plans_of(run).contains(&plan) && holds(run));
            found.cloned().ok_or_else(|| runs.iter().map(story_of).collect::<String>())
        })
        .await
    }

    /// All runs of an instance, oldest first.
    pub async fn runs(&self, instance: &str) -> Vec<Value> {
        let mut runs = self.list(PLAN_RUN).await;
        runs.retain(|run| run["spec"]["of"]["name"] == instance);
        // Times of creation are in seconds. A run that has not begun is the last.
        runs.sort_by_key(|run| {
            let started = run["status"]["startedAt"].as_str().and_then(|time| time.parse().ok());
            let created = run["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
            (started.unwrap_or(Timestamp::MAX), created, name_of(run).to_owned())
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

    /// Runs `operetta` without the flag for a namespace.
    pub async fn operetta_anywhere(&self, args: &[&str]) -> Output {
        super::operetta(self.plane().kubeconfig_path(), args).await
    }

    /// Approves or rejects a step, as admin.
    pub async fn answer(&self, run: &str, step: &str, verdict: &str) {
        let patch = json!({"spec": {"approvals": [{"step": step, "verdict": verdict, "by": ADMIN}]}});
        self.patch(PLAN_RUN, run, "merge", &patch).await;
    }

    /// Ends a running pod, as the kubelet does once its containers have ended with 0.
    pub async fn end_pod(&self, pod: &str) {
        let found = self.get(super::ext::POD, pod).await;
        let (container, now) = (&found["spec"]["containers"][0], operetta::clock::now().to_string());
        let message = &found["metadata"]["annotations"]["script.example.com/message"];
        let ended = json!({
            "exitCode": 0, "reason": "Completed", "message": message.as_str().unwrap_or_default(),
            "startedAt": found["status"]["startTime"], "finishedAt": now,
        });
        let status = json!({
            "name": container["name"], "image": container["image"], "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": ended},
        });
        let patch = json!({"status": {"phase": "Succeeded", "containerStatuses": [status]}}).to_string();
        self.kubectl(&["patch", "pod", pod, "--subresource=status", "--type=merge", "-p", &patch]).await;
    }

    /// Waits until a pod is told to wait for its image, as a kubelet tells. kwok does not.
    pub async fn cannot_pull(&self, pod: &str) {
        let why = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
        let is_waiting = |pod: &Value| pod["status"]["phase"] == "Pending" || why(pod).is_string();
        let found = self.until("waiting", super::ext::POD, pod, is_waiting).await;
        if why(&found) == "ImagePullBackOff" {
            return;
        }
        let container = &found["spec"]["containers"][0];
        let waiting = json!({"reason": "ImagePullBackOff", "message": "Back-off pulling image: not found"});
        let status = json!({
            "name": container["name"], "image": container["image"], "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": waiting},
        });
        let patch = json!({"status": {"containerStatuses": [status]}}).to_string();
        self.kubectl(&["patch", "pod", pod, "--subresource=status", "--type=merge", "-p", &patch]).await;
    }

    /// Cancels a run.
    pub async fn cancel(&self, run: &str) {
        self.patch(PLAN_RUN, run, "merge", &json!({"spec": {"cancel": true}})).await;
    }

    /// Creates a run that continues a failed run at its failed step.
    pub async fn retry(&self, run: &str) -> String {
        let mut of = self.get(PLAN_RUN, run).await;
        let again = json!({
            "apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun",
            "metadata": {"generateName": format!("{run}-again-")},
            "spec": {"of": of["spec"]["of"].take(), "plan": of["spec"]["plan"].take(), "retryOf": run, "requestedBy": ADMIN},
        });
        let created = Actor::admin(self.plane()).create(PLAN_RUN, Some(self.namespace()), &again).await;
        name_of(&created.unwrap_or_else(|error| panic!("{error}"))).to_owned()
    }

    /// Waits until an instance is Stalled. Returns the reason and the message of the condition.
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

/// The plans of a run; a run of a rollout may have several.
pub fn plans_of(run: &Value) -> Vec<&str> {
    let of_rollout = run["status"]["plans"].as_array().map_or(&[][..], Vec::as_slice);
    of_rollout.iter().chain([&run["spec"]["plan"]]).filter_map(Value::as_str).collect()
}

/// Copies a package and replaces `API` by the URL of the HTTP API.
pub fn with_api(folder: &Path, api: &Api) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    copy_with_api(folder, copy.path(), api);
    copy
}

/// Like [`with_api`], to this folder.
pub fn copy_with_api(folder: &Path, to: &Path, api: &Api) {
    super::ext::copy_folder(folder, to, &|text| text.replace("http://api.invalid", &api.url()));
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

impl Scene {
    /// Waits until Ready, `operetta tree`, `operetta plan status` of a run, and an Event of the instance each
    /// have a line with all of these words. Returns the four texts.
    pub async fn said_alike(&self, kind: Kind, name: &str, run: &str, words: &[&str]) -> [String; 4] {
        let said = |what: &str, text: &str| -> Result<String, String> {
            let says = |line: &&str| words.iter().all(|word| line.contains(word));
            let line = text.lines().find(says);
            line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .ok_or_else(|| format!("{what} does not say {words:?}:\n{text}"))
        };
        let all = eventually(&format!("{words:?} everywhere"), LONG, async || {
            let object = self.get(kind, name).await;
            let ready = condition(&object, "Ready");
            let ready = format!("{} {}: {}", ready["status"], ready["reason"], ready["message"]);
            let ready = said("Ready", &ready)?;
            let events = said("no Event", &events_about(self, name).await)?;
            let tree = self.operetta(&["tree", &format!("{}/{name}", kind.resource_name())]).await.ok();
            let tree = said("tree", &tree)?;
            let status = self.operetta(&["plan", "status", run]).await.ok();
            Ok::<_, String>([ready, tree, said("plan status", &status)?, events])
        })
        .await;
        for (what, line) in ["Ready", "tree", "plan status", "Event"].iter().zip(&all) {
            eprintln!("{name}, {what}: {line}");
        }
        all
    }
}
