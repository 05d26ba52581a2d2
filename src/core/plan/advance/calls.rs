//! Steps that send requests: http, exec, patch.

use serde_json::{Map, Value};

use super::super::eval::{NoValue, truthy};
use super::super::inputs::{CallState, Reply};
use super::super::names::idempotency_key;
use super::super::render;
use super::super::request::{CallFailure, ExecReply, HttpReply, PatchRequest, Request};
use super::super::run::short;
use super::attempts::{Attempt, Blocked};
use super::step::Acted;
use super::{Advancer, At, Failure};
use crate::api::BuiltIn;
use crate::package::OPERATOR_YAML;
use crate::package::plan::{Action, Expect, Step};
use crate::reach::Planned;
use crate::template::Var;

impl Advancer<'_> {
    /// Renders the request of an attempt, and intends it.
    pub(super) fn intend_call(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
        attempt: u32,
    ) -> Result<(), Blocked> {
        let unanswered = self.state(path).is_some_and(|state| state.unanswered);
        // A request that may have been carried out is repeated as it was.
        let last = match self.inputs.cluster.call(path, attempt.saturating_sub(1)) {
            CallState::Failed(_, Some(request @ Request::Http(http))) if unanswered && http.pod.is_none() => {
                Some(request.clone())
            }
            _ => None,
        };
        let request = match last {
            Some(request) => request,
            None => self.request(step, path, at)?,
        };
        let hash = render::hash(&self.inputs.instance.digest_key, &request);
        if unanswered && matches!(request, Request::Http(_)) && self.has_changed(path, &hash) {
            return Err(Blocked::Failed(request_changed(path)));
        }
        self.state_mut(path).request = Some(hash);
        self.intend(path, attempt, request);
        Ok(())
    }

    fn has_changed(&self, path: &str, hash: &str) -> bool {
        self.state(path).and_then(|state| state.request.as_deref()).is_some_and(|known| known != hash)
    }

    pub(super) fn request(&mut self, step: &Step, path: &str, at: &At<'_>) -> Result<Request, Blocked> {
        let engine = self.inputs.engine;
        match &step.action {
            Action::Http(http) => {
                let pod = match &http.to {
                    None => None,
                    Some(to) => match self.pod(step, &to.pod, path, at) {
                        Ok(pod) => Some(pod?),
                        Err(failure) => return Err(Blocked::Failed(failure)),
                    },
                };
                let scope = self.scope(step, path, at);
                let key = idempotency_key(&self.inputs.instance.uid, self.stored.key(), path);
                Ok(Request::Http(render::http(engine, http, &scope, Some(&key), pod)?))
            }
            Action::Exec(exec) => {
                let pod = match self.pod(step, &exec.pod, path, at) {
                    Ok(pod) => pod?,
                    Err(failure) => return Err(Blocked::Failed(failure)),
                };
                let timeout = self.remaining_time(step, path, at);
                let scope = self.scope(step, path, at);
                Ok(Request::Exec(render::exec(engine, exec, &scope, pod, timeout)?))
            }
            Action::Patch(patch) => {
                let scope = self.scope(step, path, at);
                let namespace = &self.inputs.instance.namespace;
                let request = render::patch(engine, patch, &scope, namespace)?;
                // Of a kind that Kubernetes does not have, the namespace may mean nothing.
                let PatchRequest { gvk, namespace, name, merge } = &request;
                let is_placed = patch.namespace.is_some() || BuiltIn::find(gvk.group(), &gvk.kind).is_some();
                let namespace = Some(namespace.as_str()).filter(|_| is_placed);
                let planned = Planned { file: OPERATOR_YAML, gvk, name, namespace, body: merge };
                match self.inputs.reach.refuses(&planned) {
                    Some(why) => Err(Blocked::from(NoValue::Wrong(why))),
                    None => Ok(Request::Patch(request)),
                }
            }
            _ => Err(Blocked::Failed(Failure::new(path, "NoRequest", "the step sends no request"))),
        }
    }

    /// What became of the request of the last attempt.
    pub(super) fn poll_call(&mut self, step: &Step, path: &str, at: &At<'_>, expired: bool) -> Attempt {
        let attempt = self.state(path).map_or(1, |state| state.attempt);
        match self.inputs.cluster.call(path, attempt) {
            CallState::InFlight => {
                self.progress.in_flight = true;
                self.wait_for(step, path, at, "InFlight", "the request is not answered yet");
                Attempt::Open
            }
            // The request was not sent, and need not be.
            CallState::Intended(_) if self.hold && !self.inputs.paused && !self.was_unanswered(path) => {
                Attempt::Void
            }
            CallState::Intended(_) if self.inputs.paused => {
                self.progress.in_flight |= self.was_unanswered(path);
                self.wait(path, "Paused", "the request is not sent");
                Attempt::Open
            }
            CallState::Intended(request) => {
                self.send(step, path, at, attempt, request.clone());
                Attempt::Open
            }
            CallState::Answered(answer) => self.judge(step, path, at, answer),
            CallState::Failed(failure, _) => Attempt::Failed(call_failure(step, path, failure)),
            CallState::Unknown => self.repeat(step, path, at, attempt, expired),
        }
    }

    fn was_unanswered(&self, path: &str) -> bool {
        self.state(path).is_some_and(|state| state.unanswered)
    }

    fn send(&mut self, step: &Step, path: &str, at: &At<'_>, attempt: u32, request: Request) {
        self.call(path, attempt, request);
        self.progress.in_flight = true;
        self.wait_for(step, path, at, "InFlight", "the request is being sent");
    }

    /// A request that an earlier process intended: it may have been sent.
    fn repeat(&mut self, step: &Step, path: &str, at: &At<'_>, attempt: u32, expired: bool) -> Attempt {
        if expired {
            let mut failure =
                self.timed_out_after(step, path, at, "last attempt: the outcome of its request is unknown");
            failure.unanswered = true;
            return Attempt::Failed(failure);
        }
        if self.inputs.paused {
            self.progress.in_flight = true;
            self.wait(path, "Paused", "the outcome of its request is unknown");
            return Attempt::Open;
        }
        let is_guarded = step.when.is_some() || step.unless.is_some();
        match self.condition(step, path, at) {
            Ok(true) => {}
            // The condition says that the step is done.
            Ok(false) => return Attempt::Ended(Acted::Skipped),
            Err(NoValue::Unknown(why)) => {
                if !self.settle || !matches!(step.action, Action::Http(_)) {
                    self.progress.in_flight |= !self.settle || !step.idempotent;
                    self.wait_for(step, path, at, "Unknown", &why);
                    return Attempt::Open;
                }
            }
            Err(NoValue::Wrong(why)) => return Attempt::Failed(Failure::new(path, "ExpressionFailed", why)),
        }
        let is_exec = matches!(step.action, Action::Exec(_));
        if is_exec && !step.idempotent && !is_guarded {
            let message = "the manager was restarted while the command ran, and nothing tells whether it was carried \
                           out: give the step `idempotent: true`, or a `when` that reads what the command changes";
            return Attempt::Failed(Failure::new(path, "OutcomeUnknown", message));
        }
        // A command that may be repeated, or whose effect its condition reads, needs no settling.
        if is_exec && self.settle {
            return Attempt::Void;
        }
        let request = match self.request(step, path, at) {
            Ok(request) => request,
            Err(Blocked::Failed(failure)) => return Attempt::Failed(failure),
            Err(Blocked::NoValue(NoValue::Wrong(why))) => {
                return Attempt::Failed(Failure::new(path, "ExpressionFailed", why));
            }
            Err(Blocked::NoValue(NoValue::Unknown(why))) => {
                self.progress.in_flight = true;
                self.wait_for(step, path, at, "Unknown", &why);
                return Attempt::Open;
            }
        };
        let hash = render::hash(&self.inputs.instance.digest_key, &request);
        if matches!(request, Request::Http(_)) && self.has_changed(path, &hash) {
            return Attempt::Failed(request_changed(path));
        }
        self.send(step, path, at, attempt, request);
        Attempt::Open
    }

    fn judge(&mut self, step: &Step, path: &str, at: &At<'_>, answer: &Reply) -> Attempt {
        let variables = match answer {
            Reply::Http(reply) => http_variables(reply),
            Reply::Exec(reply) => exec_variables(reply),
            Reply::Patched => Vec::new(),
        };
        let is_expected = match (&step.expect, answer) {
            (Some(Expect::Statuses(statuses)), Reply::Http(reply)) => statuses.contains(&reply.status),
            (Some(Expect::Holds(expr)), _) => {
                let mut scope = self.scope(step, path, at);
                for (name, value) in &variables {
                    scope = scope.with(name, Var::Json(value.clone()));
                }
                match truthy(self.inputs.engine, expr, &scope) {
                    Ok(expected) => expected,
                    Err(NoValue::Unknown(why)) => {
                        self.progress.in_flight = true;
                        self.wait_for(step, path, at, "Unknown", &why);
                        return Attempt::Open;
                    }
                    Err(NoValue::Wrong(why)) => {
                        return Attempt::Failed(Failure::new(
                            path,
                            "ExpressionFailed",
                            format!("expect: {why}"),
                        ));
                    }
                }
            }
            (_, Reply::Http(reply)) => (200..300).contains(&reply.status),
            (_, Reply::Exec(reply)) => reply.exit_code == 0,
            (_, Reply::Patched) => true,
        };
        if is_expected {
            return Attempt::Ended(Acted::Done(variables));
        }
        Attempt::Failed(match answer {
            Reply::Http(reply) => {
                let message = format!("the server answered {}", reply.status);
                let may_pass = reply.status == 429 || reply.status >= 500;
                Failure {
                    retryable: may_pass,
                    retry_after: reply.retry_after,
                    ..Failure::new(path, "UnexpectedAnswer", message)
                }
            }
            Reply::Exec(reply) => {
                let shows_secrets = step.store.is_some()
                    || matches!(&step.action, Action::Exec(exec) if exec.stdin.is_some());
                let last = reply.stderr.trim().lines().last().filter(|_| !shows_secrets).unwrap_or_default();
                let detail = if last.is_empty() { String::new() } else { format!(": {}", short(last)) };
                let message = format!("the command ended with exit code {}{detail}", reply.exit_code);
                Failure::retryable(path, "CommandFailed", message)
            }
            Reply::Patched => Failure::new(path, "UnexpectedAnswer", "the patch was not expected"),
        })
    }
}

fn call_failure(step: &Step, path: &str, failure: &CallFailure) -> Failure {
    let is_http = matches!(step.action, Action::Http(_));
    match failure {
        CallFailure::NotSent(why) => Failure::retryable(path, "NotReached", why.clone()),
        CallFailure::Unanswered(why) => {
            Failure { unanswered: is_http, ..Failure::retryable(path, "Unanswered", why.clone()) }
        }
        CallFailure::TryAgain(why, after) => {
            Failure { retry_after: *after, ..Failure::retryable(path, "TryAgain", why.clone()) }
        }
        CallFailure::Refused(why) => Failure::new(path, "Refused", why.clone()),
    }
}

fn request_changed(path: &str) -> Failure {
    let message = "the outcome of its request is unknown, and the request would be another one now: it is not sent. \
                   See what the server has made of the first one, then retry the run";
    Failure { unanswered: true, ..Failure::new(path, "RequestChanged", message) }
}

fn http_variables(reply: &HttpReply) -> Vec<(&'static str, Value)> {
    let headers: Map<String, Value> =
        reply.headers.iter().map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
    vec![("status", reply.status.into()), ("headers", Value::Object(headers)), ("body", reply.body.clone())]
}

fn exec_variables(reply: &ExecReply) -> Vec<(&'static str, Value)> {
    let stdout = reply.stdout.trim_end_matches('\n');
    let mut variables = vec![
        ("exitCode", reply.exit_code.into()),
        ("stdout", stdout.into()),
        ("stderr", reply.stderr.trim_end_matches('\n').into()),
    ];
    if let Ok(json) = serde_json::from_str::<Value>(stdout) {
        variables.push(("json", json));
    }
    variables
}
