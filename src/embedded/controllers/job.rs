//! Jobs: pods until enough of them have succeeded, or too many have failed. A pod is counted once: its uid is in the status
//! until the finalizer is gone from it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use operetta_kube_model::facts::{
    condition, has_condition, is_deleting, is_ready, is_terminal, items, key_of, name, number, text, time,
    uid,
};
use serde_json::{Value, json};

use super::client::{self, JOBS, MANAGER, PODS, get};
use super::job_index::{format_indexes, parse_indexes, prepare_index};
use super::job_policy::{Action, action};
use super::ownership::claim;
use super::parts::{self, earlier, is_active, parse_time, seconds_after, without_zeros};
use super::pod_status::restarts;
use crate::api::Api;
use crate::work::Failures;

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The shortest and the longest time between a failure and the next pod.
const BACKOFF: (i64, i64) = (10, 600);

/// How a Job ends: the type of the condition, its reason and its message.
#[derive(Debug, Clone)]
struct Finish {
    is_success: bool,
    reason: String,
    message: String,
}

impl Finish {
    fn failure(reason: &str, message: &str) -> Self {
        Self { is_success: false, reason: reason.to_owned(), message: message.to_owned() }
    }

    fn of(condition: &Value, is_success: bool) -> Self {
        let text = |field: &str| text(&condition[field]).to_owned();
        Self { is_success, reason: text("reason"), message: text("message") }
    }

    fn condition(&self, kind: &str, now: Timestamp) -> Value {
        json!({"type": kind, "status": "True", "reason": self.reason, "message": self.message,
            "lastProbeTime": time(now), "lastTransitionTime": time(now)})
    }
}

/// A Job with its pods.
struct Sync {
    job: Value,
    status: Value,
    pods: Vec<Value>,
    active: i64,
    ready: i64,
    terminating: i64,
    /// The indexes that have succeeded, if the Job has indexes.
    done: Option<BTreeSet<i64>>,
    now: Timestamp,
    due: Option<Timestamp>,
}

fn has_finalizer(pod: &Value) -> bool {
    items(&pod["metadata"]["finalizers"]).iter().any(|known| known == FINALIZER)
}

fn index(pod: &Value) -> Option<i64> {
    text(&pod["metadata"]["annotations"][INDEX]).parse().ok()
}

fn count(pods: &[Value], test: impl Fn(&Value) -> bool) -> i64 {
    i64::try_from(pods.iter().filter(|pod| test(pod)).count()).unwrap_or(0)
}

/// Whether a Job has ended.
pub(super) fn is_finished(job: &Value) -> bool {
    has_condition(job, "Complete") || has_condition(job, "Failed")
}

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let Some(job) = get(api, &JOBS, key) else {
        api.controllers.job_failures.remove(key);
        return None;
    };
    if job["spec"]["managedBy"].as_str().is_some_and(|by| by != "kubernetes.io/job-controller") {
        return None;
    }
    if is_finished(&job) {
        api.controllers.job_failures.remove(key);
        return expire(api, &job, now);
    }
    let pods = claim(api, (&JOBS, &job), &PODS, now);
    let active: Vec<Value> = pods.iter().filter(|pod| is_active(pod)).cloned().collect();
    let is_indexed = job["spec"]["completionMode"] == "Indexed";
    // A Job with indexes may have fewer than before.
    let mut completed = parse_indexes(text(&job["status"]["completedIndexes"]));
    completed.retain(|index| *index < number(&job["spec"]["completions"]));
    let mut sync = Sync {
        status: job["status"].clone(),
        active: count(&active, |_| true),
        ready: count(&active, is_ready),
        terminating: count(&pods, |pod| is_deleting(pod) && !is_terminal(pod)),
        done: is_indexed.then_some(completed),
        job,
        pods,
        now,
        due: None,
    };
    sync.run(api, &active);
    sync.due
}

/// Deletes a Job some time after its end.
fn expire(api: &mut Api, job: &Value, now: Timestamp) -> Option<Timestamp> {
    let seconds = job["spec"]["ttlSecondsAfterFinished"].as_i64()?;
    let ends = ["Complete", "Failed"].iter().find_map(|kind| condition(job, kind));
    let due = seconds_after(parse_time(&ends?["lastTransitionTime"])?, seconds);
    if is_deleting(job) || due > now {
        return (!is_deleting(job)).then_some(due);
    }
    let _ = client::delete(api, MANAGER, &JOBS, job, None, now);
    None
}

/// Lets a pod go whose Job is gone.
pub(super) fn release_orphan(api: &mut Api, key: &str, now: Timestamp) {
    let Some(object) = api.state.store.get("pods", key).filter(|pod| pod.json.contains(FINALIZER)) else {
        return;
    };
    let is_owned = object.owners.iter().any(|owner| api.state.store.place(owner).is_some());
    if !is_owned {
        let pod = object.bare();
        remove_finalizer(api, &pod, now);
    }
}

/// Lets a pod go that is counted.
fn remove_finalizer(api: &mut Api, pod: &Value, now: Timestamp) {
    let Some(mut pod) = get(api, &PODS, &key_of(pod)) else { return };
    let finalizers = items(&pod["metadata"]["finalizers"]);
    let rest: Vec<Value> = finalizers.iter().filter(|known| *known != FINALIZER).cloned().collect();
    if rest.len() < finalizers.len() {
        pod["metadata"]["finalizers"] = rest.into();
        let _ = client::update(api, MANAGER, &PODS, "", &mut pod, now);
    }
}

impl Sync {
    fn is_suspended(&self) -> bool {
        self.job["spec"]["suspend"] == true
    }

    /// Whether a pod counts as failed.
    fn has_failed(&self, pod: &Value) -> bool {
        let phase = &pod["status"]["phase"];
        let counts_deleted = self.job["spec"]["podReplacementPolicy"] != "Failed";
        *phase == "Failed" || counts_deleted && is_deleting(pod) && *phase != "Succeeded"
    }

    fn is_ignored(&self, pod: &Value) -> bool {
        matches!(action(&self.job, pod), Some(Action::Ignore))
    }

    fn uncounted(&self, list: &str) -> Vec<Value> {
        items(&self.status["uncountedTerminatedPods"][list]).to_vec()
    }

    fn is_new(&self, pod: &Value, list: &str) -> bool {
        has_finalizer(pod) && !self.uncounted(list).iter().any(|known| known == uid(pod))
    }

    fn run(&mut self, api: &mut Api, active: &[Value]) {
        if self.status["uncountedTerminatedPods"].is_null() {
            self.status["uncountedTerminatedPods"] = json!({});
        }
        let new_done =
            count(&self.pods, |pod| pod["status"]["phase"] == "Succeeded" && self.is_new(pod, "succeeded"));
        let new_failed = count(&self.pods, |pod| {
            self.has_failed(pod) && self.is_new(pod, "failed") && !self.is_ignored(pod)
        });
        let known = |list: &str| i64::try_from(self.uncounted(list).len()).unwrap_or(0);
        let mut succeeded = number(&self.status["succeeded"]) + known("succeeded") + new_done;
        let failed = number(&self.status["failed"]) + known("failed") + new_failed;
        if let Some(done) = &mut self.done {
            let pods =
                self.pods.iter().filter(|pod| pod["status"]["phase"] == "Succeeded" && has_finalizer(pod));
            done.extend(
                pods.filter_map(index).filter(|index| *index < number(&self.job["spec"]["completions"])),
            );
            succeeded = i64::try_from(done.len()).unwrap_or(0);
        }
        if self.status["startTime"].is_null() && !self.is_suspended() {
            self.status["startTime"] = time(self.now).into();
        }
        let failures = self.note_failures(api, new_done, new_failed);
        let mut finish = self.finish(failed);
        if finish.is_some() {
            for pod in active {
                let _ = client::delete(api, MANAGER, &PODS, pod, None, self.now);
            }
            // A pod without a node is removed at once.
            let gone = |pod: &&Value| text(&pod["spec"]["nodeName"]).is_empty() && !has_finalizer(pod);
            self.terminating += self.active - i64::try_from(active.iter().filter(gone).count()).unwrap_or(0);
            (self.active, self.ready) = (0, 0);
        } else if !is_deleting(&self.job) {
            self.manage(api, active, succeeded, failures);
            let is_complete = match self.job["spec"]["completions"].as_i64() {
                Some(wanted) => succeeded >= wanted && self.active == 0,
                None => succeeded > 0 && self.active == 0,
            };
            if is_complete {
                finish = Some(Finish {
                    is_success: true,
                    reason: "CompletionsReached".to_owned(),
                    message: "Reached expected number of succeeded pods".to_owned(),
                });
            } else {
                self.note_suspension();
            }
        }
        self.track(api, finish.as_ref());
    }

    /// Whether the Job ends by what happened.
    fn finish(&mut self, failed: i64) -> Option<Finish> {
        if let Some(condition) = condition(&self.job, "SuccessCriteriaMet") {
            return Some(Finish::of(condition, true));
        }
        if let Some(condition) = condition(&self.job, "FailureTarget") {
            return Some(Finish::of(condition, false));
        }
        for pod in self.pods.iter().filter(|pod| self.has_failed(pod)) {
            if let Some(Action::Fail(message)) = action(&self.job, pod) {
                return Some(Finish::failure("PodFailurePolicy", &message));
            }
        }
        let spec = &self.job["spec"];
        let limit = number(&spec["backoffLimit"]);
        let restarts: i64 = match text(&spec["template"]["spec"]["restartPolicy"]) {
            "OnFailure" => self.pods.iter().filter(|pod| !is_terminal(pod)).map(restarts).sum(),
            _ => 0,
        };
        if failed > limit || restarts > 0 && restarts >= limit {
            let message = "Job has reached the specified backoff limit";
            return Some(Finish::failure("BackoffLimitExceeded", message));
        }
        let since = parse_time(&self.status["startTime"]);
        if let (Some(seconds), Some(since), false) =
            (spec["activeDeadlineSeconds"].as_i64(), since, self.is_suspended())
        {
            let due = seconds_after(since, seconds);
            if due <= self.now {
                let message = "Job was active longer than specified deadline";
                return Some(Finish::failure("DeadlineExceeded", message));
            }
            self.due = earlier(self.due, Some(due));
        }
        None
    }

    fn note_failures(&self, api: &mut Api, new_done: i64, new_failed: i64) -> Failures {
        let failures = api.controllers.job_failures.entry(key_of(&self.job).into()).or_default();
        if new_done > 0 {
            *failures = Failures::default();
        } else if new_failed > 0 {
            failures.count += u32::try_from(new_failed).unwrap_or(0);
            failures.last = Some(self.now);
        }
        *failures
    }

    /// Creates and deletes pods.
    fn manage(&mut self, api: &mut Api, active: &[Value], succeeded: i64, failures: Failures) {
        let spec = &self.job["spec"];
        let parallelism = number(&spec["parallelism"]);
        let wanted = match spec["completions"].as_i64() {
            _ if self.is_suspended() => 0,
            Some(completions) => (completions - succeeded).min(parallelism).max(0),
            None if succeeded > 0 => self.active,
            None => parallelism,
        };
        let is_beyond = |pod: &Value| {
            self.done.is_some() && index(pod).is_some_and(|index| index >= number(&spec["completions"]))
        };
        let excess = (self.active - wanted).max(count(active, is_beyond));
        if excess > 0 {
            let excess = usize::try_from(excess).unwrap_or(0);
            let mut active = active.to_vec();
            active.sort_by_key(|pod| {
                let created = text(&pod["metadata"]["creationTimestamp"]).to_owned();
                (!is_beyond(pod), is_ready(pod), created)
            });
            for pod in active.into_iter().take(excess) {
                self.active -= 1;
                self.ready -= i64::from(is_ready(&pod));
                self.terminating += i64::from(!text(&pod["spec"]["nodeName"]).is_empty());
                remove_finalizer(api, &pod, self.now);
                let _ = client::delete(api, MANAGER, &PODS, &pod, None, self.now);
            }
            return;
        }
        let held = if spec["podReplacementPolicy"] == "Failed" { self.terminating } else { 0 };
        let missing = wanted - self.active - held;
        if missing <= 0 {
            return;
        }
        if let Some(last) = failures.last {
            let seconds = (BACKOFF.0 << (failures.count.max(1) - 1).min(10)).min(BACKOFF.1);
            let due = seconds_after(last, seconds);
            if due > self.now {
                self.due = earlier(self.due, Some(due));
                return;
            }
        }
        let indexes = self.done.as_ref().map(|done| {
            let busy: BTreeSet<i64> = active.iter().filter_map(index).collect();
            let all = 0..number(&spec["completions"]);
            all.filter(|index| !done.contains(index) && !busy.contains(index)).collect::<Vec<_>>()
        });
        let mut indexes = indexes.map(Vec::into_iter);
        for _ in 0..missing {
            let mut pod = parts::pod(&JOBS, &self.job, &self.job["spec"]["template"]);
            let finalizers = items(&pod["metadata"]["finalizers"]).iter().cloned();
            pod["metadata"]["finalizers"] = finalizers.chain([FINALIZER.into()]).collect::<Vec<_>>().into();
            if let Some(indexes) = &mut indexes {
                let Some(index) = indexes.next() else { return };
                prepare_index(&mut pod, name(&self.job), index);
            }
            if client::create(api, MANAGER, &PODS, &mut pod, self.now).is_err() {
                return;
            }
            self.active += 1;
        }
    }

    fn note_suspension(&mut self) {
        let conditions = items(&self.status["conditions"]).to_vec();
        let old = conditions.iter().find(|known| known["type"] == "Suspended");
        let (state, reason, message) = match (self.is_suspended(), old) {
            (true, old) if old.is_none_or(|old| old["status"] != "True") => {
                ("True", "JobSuspended", "Job suspended")
            }
            (false, Some(old)) if old["status"] == "True" => ("False", "JobResumed", "Job resumed"),
            _ => return,
        };
        let new = json!({"type": "Suspended", "status": state, "reason": reason, "message": message,
            "lastProbeTime": time(self.now), "lastTransitionTime": time(self.now)});
        let others = conditions.into_iter().filter(|known| known["type"] != "Suspended");
        self.status["conditions"] = others.chain([new]).collect::<Vec<_>>().into();
        if let Some(status) = self.status.as_object_mut() {
            status.remove("startTime");
            if state == "False" {
                status.insert("startTime".to_owned(), time(self.now).into());
            }
        }
    }

    /// Counts the pods that have ended, and ends the Job once all are counted.
    fn track(&mut self, api: &mut Api, finish: Option<&Finish>) {
        let mut released = Vec::new();
        for pod in self.pods.clone().into_iter().filter(has_finalizer) {
            let (is_done, has_failed) = (pod["status"]["phase"] == "Succeeded", self.has_failed(&pod));
            if !(is_done || has_failed || finish.is_some() || is_deleting(&self.job)) {
                continue;
            }
            let is_failure = has_failed || finish.is_some_and(|finish| !finish.is_success);
            let list = if is_done {
                self.done.is_none().then_some("succeeded")
            } else {
                (is_failure && !self.is_ignored(&pod)).then_some("failed")
            };
            if let Some(list) = list.filter(|list| self.is_new(&pod, list)) {
                let mut uids = self.uncounted(list);
                uids.push(uid(&pod).into());
                self.status["uncountedTerminatedPods"][list] = uids.into();
            }
            released.push(pod);
        }
        if let Some(done) = &self.done {
            self.status["succeeded"] = done.len().into();
            let text = format_indexes(done);
            if !text.is_empty() || !self.status["completedIndexes"].is_null() {
                self.status["completedIndexes"] = text.into();
            }
        }
        if let Some(finish) = finish {
            self.put_condition(
                finish,
                if finish.is_success { "SuccessCriteriaMet" } else { "FailureTarget" },
            );
        }
        self.write(api);
        for pod in released {
            remove_finalizer(api, &pod, self.now);
        }
        for (list, counter) in [("succeeded", "succeeded"), ("failed", "failed")] {
            let counted = i64::try_from(self.uncounted(list).len()).unwrap_or(0);
            self.status[counter] = (number(&self.status[counter]) + counted).into();
        }
        self.status["uncountedTerminatedPods"] = json!({});
        if let Some(finish) = finish.filter(|_| self.terminating == 0) {
            self.put_condition(finish, if finish.is_success { "Complete" } else { "Failed" });
            if finish.is_success {
                self.status["completionTime"] = time(self.now).into();
            }
        }
        self.write(api);
    }

    fn put_condition(&mut self, finish: &Finish, kind: &str) {
        let mut conditions = items(&self.status["conditions"]).to_vec();
        if !conditions.iter().any(|known| known["type"] == kind && known["status"] == "True") {
            conditions.push(finish.condition(kind, self.now));
            self.status["conditions"] = conditions.into();
        }
    }

    fn write(&mut self, api: &mut Api) {
        self.status["active"] = self.active.into();
        self.status["ready"] = self.ready.into();
        self.status["terminating"] = self.terminating.into();
        let status = without_zeros(self.status.clone(), &["active", "succeeded", "failed"]);
        client::set_status(api, MANAGER, &JOBS, &mut self.job, status, self.now);
    }
}
