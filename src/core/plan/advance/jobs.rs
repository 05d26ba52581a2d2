//! Steps that run Jobs.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::super::action::{RunAction, RunObject};
use super::super::eval::NoValue;
use super::super::inputs::{Job, JobResult, JobState};
use super::super::names::attempt_name;
use super::super::run::short;
use super::super::step_state::AttemptObject;
use super::attempts::Attempt;
use super::step::Acted;
use super::{Advancer, At, Failure};
use crate::api::Gvk;
use crate::names;
use crate::package::plan::{Action, Step};
use crate::reach::Planned;

/// Annotation of a Job: the `ttlSecondsAfterFinished` that it gets once its result is recorded.
pub(crate) const TTL_ANNOTATION: &str = "operetta.dev/ttl-seconds-after-finished";
/// The TTL of a Job whose template has none.
const DEFAULT_TTL: u64 = 60 * 60;
/// How long the pod of a Job may take to start before the reason is looked up.
pub(crate) const STARTING: Duration = Duration::from_secs(5);
/// How long the pod of a Job may take to start before the Job is deleted and its attempt has failed.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(5 * 60);
/// The reason of a step whose Job is deleted because the time is over.
const ENDING: &str = "Ending";
/// The reason of a step whose Job is deleted because its pod does not start.
const NOT_STARTING: &str = "NotStarting";
/// How many objects of attempts a step remembers.
const MOST_OBJECTS: usize = 10;

impl Advancer<'_> {
    /// Intends the object of an attempt: its name is stored before it is created.
    pub(super) fn intend_object(&mut self, path: &str, attempt: u32) {
        let instance = self.inputs.instance;
        let name = attempt_name(&instance.digest_key, &instance.of.name, &self.stored.id, path, attempt);
        let objects = &mut self.state_mut(path).objects;
        objects.push(AttemptObject { name, uid: None });
        if objects.len() > MOST_OBJECTS {
            objects.remove(0);
        }
    }

    /// The object of the last attempt.
    pub(super) fn attempt_object(&self, path: &str) -> AttemptObject {
        self.state(path).and_then(|state| state.objects.last()).cloned().unwrap_or_default()
    }

    pub(super) fn record_uid(&mut self, path: &str, uid: &str) {
        if let Some(object) = self.state_mut(path).objects.last_mut() {
            object.uid = Some(uid.to_owned());
        }
    }

    pub(super) fn poll_job(&mut self, step: &Step, path: &str, at: &At<'_>, expired: bool) -> Attempt {
        let AttemptObject { name, uid } = self.attempt_object(path);
        let gone = || {
            let message = format!("Job {name} was deleted before its result was read");
            Attempt::Failed(Failure::retryable(path, "JobGone", message))
        };
        let job = match self.inputs.cluster.job(&name) {
            JobState::Unknown(why) => {
                self.progress.in_flight = true;
                self.wait_for(step, path, at, "Unknown", &format!("Job {name}: {why}"));
                return Attempt::Open;
            }
            JobState::Absent => {
                return match uid {
                    // It was deleted because the run is settled, or the time is over.
                    Some(_) if (self.settle || expired) && !self.inputs.paused => Attempt::Void,
                    Some(_) if self.is_not_starting(path) => {
                        let why = self.state(path).map(|state| state.message.clone()).unwrap_or_default();
                        Attempt::Failed(Failure::retryable(path, "JobNotStarted", why))
                    }
                    Some(_) => gone(),
                    None if self.settle || expired => Attempt::Void,
                    None => self.create_job(step, path, at, &name),
                };
            }
            JobState::Foreign if uid.is_some() => return gone(),
            JobState::Foreign if self.settle || expired => return Attempt::Void,
            JobState::Foreign => return Attempt::Failed(name_taken(path, "Job", &name)),
            JobState::Found(job) if uid.as_ref().is_some_and(|uid| *uid != job.object.uid) => return gone(),
            JobState::Found(job) => job,
        };
        match &job.result {
            Some(JobResult::Completed(message)) => {
                self.record_uid(path, &job.object.uid);
                let message = message.as_deref().unwrap_or_default();
                let value =
                    serde_json::from_str(message).unwrap_or_else(|_| Value::String(message.to_owned()));
                Attempt::Ended(Acted::Done(vec![("message", value)]))
            }
            Some(JobResult::Failed(why)) => {
                self.record_uid(path, &job.object.uid);
                Attempt::Failed(Failure::retryable(path, "JobFailed", format!("Job {name} failed: {why}")))
            }
            Some(JobResult::Reading) => {
                self.progress.in_flight = true;
                self.wait_for(
                    step,
                    path,
                    at,
                    "JobCompleted",
                    &format!("the result of Job {name} is being read"),
                );
                Attempt::Open
            }
            None => self.running_job(step, path, at, &name, &job, expired),
        }
    }

    fn running_job(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
        name: &str,
        job: &Job,
        expired: bool,
    ) -> Attempt {
        self.record_uid(path, &job.object.uid);
        self.progress.in_flight = true;
        let detail = job.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
        let is_stuck = job.start_left == Some(Duration::ZERO) || self.is_not_starting(path);
        if (expired || self.settle || is_stuck) && !self.inputs.paused {
            // Once the Job is deleted, nothing else tells what it waited for.
            let (reason, what) = if expired {
                (ENDING, format!("Job {name} was not done{detail}"))
            } else {
                let minutes = START_LIMIT.as_secs() / 60;
                (NOT_STARTING, format!("Job {name} has not started within {minutes} minutes{detail}"))
            };
            let state = self.state_mut(path);
            if (expired || is_stuck) && state.reason != reason {
                reason.clone_into(&mut state.reason);
                state.message = short(&what);
            }
            if !job.terminating {
                self.progress.effects.push(RunAction::Delete(RunObject::Job, job.object.clone()));
            }
            self.wait_for(step, path, at, "DeletingJob", &format!("Job {name} is being deleted"));
            return Attempt::Open;
        }
        if job.is_starting {
            self.wake_after(STARTING);
        } else if let Some(left) = job.start_left {
            self.wake_after(left);
        }
        self.wait_for(step, path, at, "JobRunning", &format!("Job {name} is not done{detail}"));
        Attempt::Open
    }

    /// Whether the Job of a step is given up because its pod does not start.
    fn is_not_starting(&self, path: &str) -> bool {
        self.state(path).is_some_and(|state| state.reason == NOT_STARTING)
    }

    fn create_job(&mut self, step: &Step, path: &str, at: &At<'_>, name: &str) -> Attempt {
        if self.inputs.paused {
            self.wait(path, "Paused", "the Job is not created");
            return Attempt::Open;
        }
        match self.job(step, path, at, name) {
            Ok(job) => {
                self.progress.effects.push(RunAction::Create(RunObject::Job, Box::new(job)));
                self.progress.in_flight = true;
                self.wait_for(step, path, at, "CreatingJob", &format!("Job {name} is being created"));
                Attempt::Open
            }
            Err(NoValue::Unknown(why)) => {
                self.wait_for(step, path, at, "Unknown", &why);
                Attempt::Open
            }
            Err(NoValue::Wrong(why)) => Attempt::Failed(Failure::new(path, "ExpressionFailed", why)),
        }
    }

    /// The Job of a step.
    pub(super) fn job(&mut self, step: &Step, path: &str, at: &At<'_>, name: &str) -> Result<Value, NoValue> {
        let Action::Job { template } = &step.action else {
            return Err(NoValue::Wrong("the step runs no Job".into()));
        };
        let wrong = |why: String| NoValue::Wrong(short(&format!("{template}: {why}")));
        let scope = self.scope(step, path, at);
        let engine = self.inputs.engine;
        let compiled = engine.template(template).ok_or_else(|| wrong("there is no such template".into()))?;
        let rendered = engine.render(compiled, &scope)?;
        let Value::Object(mut job) = rendered else { return Err(wrong("it renders no object".into())) };
        job.entry("apiVersion").or_insert_with(|| "batch/v1".into());
        job.entry("kind").or_insert_with(|| "Job".into());
        let metadata = object(&mut job, "metadata").ok_or_else(|| wrong("metadata is no map".into()))?;
        metadata.insert("name".into(), name.into());
        metadata.insert("namespace".into(), self.inputs.instance.namespace.clone().into());
        let labels = object(metadata, "labels").ok_or_else(|| wrong("metadata.labels is no map".into()))?;
        labels.extend(self.inputs.instance.labels.clone());
        let spec = object(&mut job, "spec").ok_or_else(|| wrong("spec is no map".into()))?;
        let ttl = spec.remove("ttlSecondsAfterFinished").unwrap_or_else(|| DEFAULT_TTL.into());
        spec.entry("backoffLimit").or_insert_with(|| json!(0));
        let pod = object(spec, "template").and_then(|template| object(template, "spec"));
        let pod = pod.ok_or_else(|| wrong("spec.template.spec is no map".into()))?;
        pod.entry("restartPolicy").or_insert_with(|| "Never".into());
        if let Some(metadata) = object(&mut job, "metadata")
            && let Some(annotations) = object(metadata, "annotations")
        {
            annotations.insert(TTL_ANNOTATION.into(), ttl.to_string().into());
            annotations.insert(names::RUN_PROOF.into(), self.inputs.instance.proof(name).into());
        }
        let job = Value::Object(job);
        let (gvk, namespace) = (Gvk::new("batch/v1", "Job"), Some(self.inputs.instance.namespace.as_str()));
        let planned = Planned { file: template, gvk: &gvk, name, namespace, body: &job };
        match self.inputs.reach.refuses(&planned) {
            Some(why) => Err(wrong(why)),
            None => Ok(job),
        }
    }
}

/// The failure of an attempt whose object another client has created first. The next one has another name.
pub(super) fn name_taken(path: &str, kind: &str, name: &str) -> Failure {
    let message = format!("{kind} {name} was not created by this run: delete it");
    Failure::retryable(path, "NameTaken", message)
}

/// The map of that name in a map, which is added if it is absent.
fn object<'m>(map: &'m mut Map<String, Value>, name: &str) -> Option<&'m mut Map<String, Value>> {
    let entry = map.entry(name).or_insert(Value::Null);
    if entry.is_null() {
        *entry = json!({});
    }
    entry.as_object_mut()
}
