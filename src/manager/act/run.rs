//! Carries out the actions of plan runs. Every write has a precondition; every reply goes into the store.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tracing::{debug, warn};

use super::super::index::InstanceKey;
use super::super::own_namespace;
use super::super::registry::Registered;
use super::{Executor, NOTES};
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::children::plans::Call;
use crate::children::{ActionOutcome, names};
use crate::clock::Instant;
use crate::cluster::{Cluster, Propagation};
use crate::plan::{
    CallKey, DELETE_CHILD, Guard, PatchRequest, Reply, Request, RunAction, RunEvent, RunObject, RunRef,
    StateWrite, request::CallFailure,
};

/// From when on a webhook that does not answer keeps an instance from other work. It is not asked again for ten times as long.
const SLOW: Duration = Duration::from_secs(1);

impl Executor {
    /// Carries out the actions of runs, one after another. Stops at the first whose precondition does not
    /// hold: the next decision sees what has changed. One on which no other depends, and which the API server refuses, stops no
    /// other but a write of the memory, which may say that it was done. After one that a webhook has kept waiting, the
    /// others are left to the next decision.
    ///
    /// # Errors
    /// A request failed, other than by its precondition.
    pub(super) async fn act_for_runs(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        instance: &Value,
        actions: Vec<RunAction>,
        outcomes: &mut Vec<ActionOutcome>,
    ) -> Result<(), CallError> {
        let mut is_any_refused = false;
        for action in actions {
            if is_any_refused && matches!(action, RunAction::Remember(_)) {
                return Ok(());
            }
            let subject = action.subject();
            let begun = Instant::now();
            match (self.act_for_run(key, registered, instance, action).await, subject) {
                (Ok(true), _) => {}
                (Ok(false), _) => return Ok(()),
                (Err(error), Some(subject))
                    if error.class == Class::Permanent || error.is_webhook_failure() =>
                {
                    is_any_refused = true;
                    warn!(%error, "a write for a run is refused");
                    let is_slow = error.is_webhook_failure() && begun.elapsed() > SLOW;
                    let error = if is_slow { error.after(begun.elapsed() * 10) } else { error };
                    outcomes.push(ActionOutcome::RunRefused(subject, error));
                    if is_slow {
                        outcomes.push(ActionOutcome::WebhookSlow);
                        return Ok(());
                    }
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok(())
    }

    /// Carries out an action of a run; `false` if its precondition does not hold.
    ///
    /// # Errors
    /// A request failed, other than by its precondition.
    pub(in crate::manager) async fn act_for_run(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        instance: &Value,
        action: RunAction,
    ) -> Result<bool, CallError> {
        let action = match action {
            RunAction::If { guard, then } => {
                if !self.holds(key, registered, instance, &guard).await? {
                    return Ok(false);
                }
                *then
            }
            action => action,
        };
        match action {
            // Guards are never nested.
            RunAction::If { .. } => {}
            RunAction::Create(sort, body) => self.create(key, registered, sort, &body).await?,
            RunAction::Store { run, status, memory, intents, event, ended } => {
                let is_stored = match memory {
                    Some(memory) => self.remember(key, registered, instance, *memory).await?,
                    None => self.store_run(registered, &run, &status).await?,
                };
                if !is_stored {
                    return Ok(false);
                }
                for (call, request) in intents {
                    self.effects.calls.set(key, call, Call::Intended(request));
                }
                let (plan, ended) = ended;
                let phase = status["phase"].as_str().unwrap_or_default();
                self.effects.health.metrics.ended(registered, &plan, phase, &ended);
                if let Some(RunEvent { is_warning, reason, message }) = event {
                    self.effects.events.publish(instance, is_warning, reason, &message);
                }
            }
            RunAction::Show(run, status) => {
                return self.store_run(registered, &run, &status).await;
            }
            RunAction::Remember(write) => {
                return self.remember(key, registered, instance, write).await;
            }
            RunAction::Change(sort, object, patch) => {
                let mut patch = *patch;
                patch["metadata"]["uid"] = object.uid.as_str().into();
                if !object.resource_version.is_empty() {
                    patch["metadata"]["resourceVersion"] = object.resource_version.as_str().into();
                }
                let cluster = self.cluster_of(registered, sort);
                let (namespace, name) = (Some(object.namespace.as_str()), object.name.as_str());
                let reply = cluster.merge_patch(&sort.kind(), namespace, name, None, &patch, NOTES).await;
                return self.learn_reply(&cluster, sort, &object, reply).await;
            }
            RunAction::Annotate(annotations) => {
                let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
                let values: serde_json::Map<String, Value> =
                    annotations.into_iter().map(|(name, value)| (name, value.into())).collect();
                self.annotate_instance(key, registered, uid, &values.into()).await?;
            }
            RunAction::Delete(sort, object) => self.delete_run_object(registered, sort, &object).await?,
            RunAction::DeleteState(state) => {
                if !self.store.index().has_instance(key) {
                    self.delete_state(registered, &state).await?;
                }
            }
            RunAction::Call(call, request) => {
                let is_deleting = !instance["metadata"]["deletionTimestamp"].is_null();
                self.call(key, registered, call, *request, is_deleting);
            }
            RunAction::ReadJob(job, end) => self.read_job(key, registered, job, end),
            RunAction::EmptySecret(secret) => self.empty_secret(registered, &secret).await?,
            RunAction::StoreInChild { step, secret, data } => {
                let patch = json!({
                    "metadata": {"uid": secret.uid, "resourceVersion": secret.resource_version},
                    "data": data.0,
                });
                let (namespace, name) = (Some(secret.namespace.as_str()), secret.name.as_str());
                let kind = ApiKind::built_in("v1", "Secret");
                let cluster = self.effects.for_children(registered);
                let reply = cluster.merge_patch(&kind, namespace, name, None, &patch, names::STORE).await;
                if let Err(mut error) = reply {
                    // The Secret is read again before anything is decided.
                    if error.class == Class::Conflict {
                        error.class = Class::Retry;
                    }
                    return Err(error.about(true));
                }
                self.effects.calls.set_stored(key, step);
            }
            RunAction::StoreSecrets { step, values, secret } => {
                self.store_secrets(registered, &secret).await?;
                self.effects.calls.set_secrets(key, step, values);
            }
        }
        Ok(true)
    }

    /// Whether a live read shows what an action requires.
    async fn holds(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        guard: &Guard,
    ) -> Result<bool, CallError> {
        match guard {
            Guard::IsGone(object, uid) => {
                Ok(!self.is_still_child(key, registered, instance, object, uid).await?)
            }
            Guard::IsCurrent => {
                let Some(live) = self.refresh(key, registered).await? else { return Ok(false) };
                let fields = ["uid", "generation", "deletionTimestamp"];
                Ok(fields.iter().all(|field| live["metadata"][field] == instance["metadata"][field]))
            }
            Guard::RunIsGone(run) => {
                let sort = RunObject::PlanRun;
                let cluster = self.cluster_of(registered, sort);
                let live = cluster.get(&sort.kind(), Some(&run.namespace), &run.name).await?;
                let live = live.filter(|live| live["metadata"]["uid"] == *run.uid);
                let is_gone = live.is_none();
                if let Some(live) = live {
                    self.learn(sort, live);
                }
                Ok(is_gone)
            }
        }
    }

    /// Writes the memory of an instance; `false` if another client has written it in between.
    async fn remember(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        write: StateWrite,
    ) -> Result<bool, CallError> {
        let StateWrite { state, body, note } = write;
        let is_written = if let Some(state) = state {
            self.replace_state(registered, &state, &body).await?
        } else {
            self.create(key, registered, RunObject::State, &body).await?;
            true
        };
        if let Some((reason, note)) = note.filter(|_| is_written) {
            self.effects.events.publish(instance, false, reason, note);
        }
        Ok(is_written)
    }

    async fn replace_state(
        &self,
        registered: &Registered,
        state: &RunRef,
        body: &Value,
    ) -> Result<bool, CallError> {
        let sort = RunObject::State;
        let cluster = self.cluster_of(registered, sort);
        let patch = json!([
            {"op": "replace", "path": "/metadata/uid", "value": state.uid},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": state.resource_version},
            {"op": "add", "path": "/metadata/finalizers", "value": body["metadata"]["finalizers"]},
            {"op": "add", "path": "/spec", "value": body["spec"]},
        ]);
        let namespace = Some(state.namespace.as_str());
        let reply = cluster.json_patch(&sort.kind(), namespace, &state.name, None, &patch, NOTES).await;
        self.learn_reply(&cluster, sort, state, reply).await
    }

    /// Deletes the memory of an instance that is gone. The finalizer is removed first: an object that it
    /// holds could be deleted twice.
    pub(in crate::manager) async fn delete_state(
        &self,
        registered: &Registered,
        state: &RunRef,
    ) -> Result<(), CallError> {
        let sort = RunObject::State;
        let cluster = self.cluster_of(registered, sort);
        // A restored memory has the same uid, and so has one that a new instance has taken over: only the resourceVersion differs.
        let metadata =
            json!({"uid": state.uid, "resourceVersion": state.resource_version, "finalizers": null});
        let patch = json!({"metadata": metadata});
        let namespace = Some(state.namespace.as_str());
        match cluster.merge_patch(&sort.kind(), namespace, &state.name, None, &patch, NOTES).await {
            Ok(live) if live["metadata"]["deletionTimestamp"].is_null() => {
                return self.delete_run_object(registered, sort, &RunRef::of(&live)).await;
            }
            Ok(_) => {}
            Err(error) if error.class == Class::NotFound => {}
            Err(mut error) if error.class == Class::Conflict => {
                // Another object has the name by now, or this one has been written since.
                let live = cluster.get(&sort.kind(), namespace, &state.name).await?;
                if let Some(live) = live.filter(|live| live["metadata"]["uid"] == *state.uid) {
                    self.learn(sort, live);
                    error.class = Class::Retry;
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        self.store.forget_run_object(sort, state);
        Ok(())
    }

    /// The connection for objects of runs: Jobs are written with the package's rights, all others with the
    /// manager's own.
    pub(super) fn cluster_of(&self, registered: &Registered, sort: RunObject) -> Cluster {
        match sort {
            RunObject::Job => self.effects.for_children(registered),
            RunObject::PlanRun | RunObject::Origin | RunObject::State => {
                self.effects.for_instances(registered)
            }
        }
    }

    pub(super) fn learn(&self, sort: RunObject, object: Value) {
        for key in self.store.learn_run_object(sort, object) {
            self.queue.add(key);
        }
    }

    async fn create(
        &self,
        instance: &InstanceKey,
        registered: &Registered,
        sort: RunObject,
        body: &Value,
    ) -> Result<(), CallError> {
        let cluster = self.cluster_of(registered, sort);
        let (kind, namespace) = (sort.kind(), body["metadata"]["namespace"].as_str());
        let mut body = body.clone();
        // A step names another instance by its kind, so the plural is added here.
        if sort == RunObject::PlanRun
            && body["spec"]["of"]["resource"].as_str().is_none_or(str::is_empty)
            && let Some(gvk) = Gvk::of(&body["spec"]["of"])
            && let Some(of) = self.store.kinds.find(&cluster, &gvk).await?
        {
            body["spec"]["of"]["resource"] = of.plural.as_str().into();
        }
        let body = &body;
        let created = match namespace {
            Some(namespace) if namespace == self.namespace => {
                own_namespace::create(&cluster, &kind, namespace, body).await
            }
            namespace => cluster.create(&kind, namespace, body, NOTES).await,
        };
        let reply = match created {
            // An earlier request, or another manager, has created it.
            Err(mut error) if error.class == Class::Conflict => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let Some(live) = cluster.get(&kind, namespace, name).await? else {
                    // It does not exist: the conflict is one of another object, such as a quota. What follows must not be done
                    // without it.
                    error.class = Class::Retry;
                    return Err(error);
                };
                if let Some(other) = other_object(sort, &live, body) {
                    let is_called = body["metadata"]["annotations"][names::CALLED_BY].is_string();
                    if sort == RunObject::Job || is_called {
                        // The step fails that names it.
                        self.effects.calls.set_taken(instance, name);
                        return Ok(());
                    }
                    if sort == RunObject::PlanRun && body["spec"]["plan"] != DELETE_CHILD {
                        self.learn(sort, live.clone());
                        if self.store.owned().has(&kind.gvk(), namespace.unwrap_or_default(), name) {
                            // Another name is chosen with the next decision.
                            return Ok(());
                        }
                    }
                    let message = format!(
                        "the name of the {} {name} is taken by {other}: delete that object",
                        kind.kind
                    );
                    return Err(CallError::new(Class::Permanent, 409, "AlreadyExists", message));
                }
                live
            }
            reply => {
                let reply = reply?;
                if sort == RunObject::PlanRun {
                    self.effects.plan_api.created(reply["metadata"]["uid"].as_str().unwrap_or_default());
                }
                reply
            }
        };
        self.learn(sort, reply);
        Ok(())
    }

    /// Adds outputs to the Secret of a run, which is created if there is none.
    async fn store_secrets(&self, registered: &Registered, secret: &Value) -> Result<(), CallError> {
        let cluster = self.effects.for_children(registered);
        let kind = ApiKind::built_in("v1", "Secret");
        let meta = &secret["metadata"];
        let (namespace, name) = (meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default());
        match cluster.merge_patch(&kind, namespace, name, None, secret, NOTES).await {
            Err(error) if error.class == Class::NotFound => {
                cluster.create(&kind, namespace, secret, NOTES).await?;
            }
            reply => {
                reply?;
            }
        }
        Ok(())
    }

    /// Removes the data of a Secret, if there is one.
    async fn empty_secret(&self, registered: &Registered, secret: &Value) -> Result<(), CallError> {
        let (kind, meta) = (ApiKind::built_in("v1", "Secret"), &secret["metadata"]);
        let (namespace, name) = (meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default());
        let cluster = self.effects.for_children(registered);
        match cluster.merge_patch(&kind, namespace, name, None, secret, NOTES).await {
            // A later revision of the package may have no secret outputs, and so no right to Secrets.
            Err(error) if error.code == 403 => {
                warn!(secret = name, %error, "the outputs of a run that has ended stay until its PlanRun is deleted");
                Ok(())
            }
            Err(error) if error.class != Class::NotFound => Err(error.about(true)),
            _ => Ok(()),
        }
    }

    /// Stores the state of a run in its `PlanRun`; `false` if another client has written that in between.
    async fn store_run(
        &self,
        registered: &Registered,
        run: &RunRef,
        status: &Value,
    ) -> Result<bool, CallError> {
        let cluster = self.cluster_of(registered, RunObject::PlanRun);
        // A merge patch could not store a null in an output.
        let patch = json!([
            {"op": "replace", "path": "/metadata/uid", "value": run.uid},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": run.resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]);
        let (namespace, name) = (Some(run.namespace.as_str()), run.name.as_str());
        let kind = RunObject::PlanRun.kind();
        let reply = cluster.json_patch(&kind, namespace, name, Some("status"), &patch, NOTES).await;
        self.learn_reply(&cluster, RunObject::PlanRun, run, reply).await
    }

    /// Takes the reply to a write into the store. Returns `false` if its precondition did not hold; then the
    /// object is read.
    async fn learn_reply(
        &self,
        cluster: &Cluster,
        sort: RunObject,
        object: &RunRef,
        reply: Result<Value, CallError>,
    ) -> Result<bool, CallError> {
        match reply {
            Ok(reply) => {
                self.learn(sort, reply);
                Ok(true)
            }
            Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => {
                debug!(object = %object.name, %error, "another client was first; reading again");
                match cluster.get(&sort.kind(), Some(&object.namespace), &object.name).await? {
                    Some(live) => {
                        self.learn(sort, live);
                    }
                    None => self.store.forget_run_object(sort, object),
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn delete_run_object(
        &self,
        registered: &Registered,
        sort: RunObject,
        object: &RunRef,
    ) -> Result<(), CallError> {
        let cluster = self.cluster_of(registered, sort);
        let (kind, namespace) = (sort.kind(), Some(object.namespace.as_str()));
        let preconditions = (object.uid.as_str(), object.resource_version.as_str());
        match cluster.delete(&kind, namespace, &object.name, preconditions, Propagation::Background).await {
            // The object stays until its finalizers are removed.
            Ok(reply) if reply["kind"] != "Status" && !reply["metadata"]["deletionTimestamp"].is_null() => {
                self.learn(sort, reply);
                Ok(())
            }
            Ok(_) => {
                self.store.forget_run_object(sort, object);
                Ok(())
            }
            Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => {
                match cluster.get(&kind, namespace, &object.name).await? {
                    Some(live) if live["metadata"]["uid"] == *object.uid => {
                        self.learn(sort, live);
                    }
                    _ => self.store.forget_run_object(sort, object),
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request beside the queue, unless it is sent already.
    fn call(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        call: CallKey,
        request: Request,
        is_deleting: bool,
    ) {
        if !self.effects.calls.begin(key, &call) {
            return;
        }
        let (shared, key, registered) = (Arc::clone(self), key.clone(), Arc::clone(registered));
        tokio::spawn(async move {
            let permit = shared.effects.calls.permit(registered.operator(), &key, is_deleting).await;
            let answer = shared.answer(&registered, &request).await;
            drop(permit);
            let state = match answer {
                Ok(answer) => Call::Answered(answer),
                Err(failure) => {
                    warn!(instance = %key, step = %call.step, error = %failure, "a request of a step failed");
                    Call::Failed(failure, Some(request))
                }
            };
            shared.effects.calls.set(&key, call, state);
            shared.queue.add(key);
        });
    }

    async fn answer(&self, registered: &Registered, request: &Request) -> Result<Reply, CallFailure> {
        let cluster = self.effects.for_children(registered);
        match request {
            Request::Http(request) => {
                self.effects.send(registered.operator(), request).await.map(Reply::Http)
            }
            Request::Exec(request) => cluster.exec(request).await.map(Reply::Exec),
            Request::Patch(patch) => self.patch(&cluster, patch).await.map(|()| Reply::Patched),
        }
    }

    async fn patch(&self, cluster: &Cluster, request: &PatchRequest) -> Result<(), CallFailure> {
        let PatchRequest { gvk, namespace, name, merge } = request;
        let found = self.store.kinds.find(cluster, gvk).await;
        let kind = match found {
            Ok(Some(kind)) => kind,
            Ok(None) => return Err(CallFailure::Refused(format!("the API server does not serve {gvk}"))),
            Err(error) => return Err(CallFailure::TryAgain(error.to_string(), error.asked_to_wait())),
        };
        let namespace = Some(namespace.as_str()).filter(|_| kind.namespaced);
        match cluster.merge_patch(&kind, namespace, name, None, merge, NOTES).await {
            Ok(_) => Ok(()),
            Err(error) if error.class == Class::Permanent || error.class == Class::NotFound => {
                Err(CallFailure::Refused(error.to_string()))
            }
            Err(error) => Err(CallFailure::TryAgain(error.to_string(), error.asked_to_wait())),
        }
    }
}

/// What a live object is that has the name of one that was to be created; `None` if that very object was created before.
/// The admission policies let only managers write `InstanceState`s.
fn other_object(sort: RunObject, live: &Value, body: &Value) -> Option<String> {
    let meta = |object: &Value, map: &str, name: &str| object["metadata"][map][name].clone();
    let is_same = |map: &str, name: &str| meta(live, map, name) == meta(body, map, name);
    match sort {
        RunObject::State => None,
        RunObject::Origin => (live["data"] != body["data"]).then(|| "one with other data".to_owned()),
        RunObject::Job => {
            let is_ours = is_same("annotations", names::RUN_PROOF) && is_same("labels", names::RUN_OF);
            (!is_ours).then(|| "one of another client".to_owned())
        }
        RunObject::PlanRun => {
            let of = |run: &Value| {
                ["apiVersion", "kind", "name", "resource"].map(|field| run["spec"]["of"][field].clone())
            };
            let is_ours = of(live) == of(body)
                && live["spec"]["plan"] == body["spec"]["plan"]
                && is_same("annotations", names::CALLED_BY);
            let other =
                || format!("a run of the plan {} of {}", live["spec"]["plan"], live["spec"]["of"]["name"]);
            (!is_ours).then(other)
        }
    }
}
