//! Observations: refs that are read by a request. The request is rendered here; the manager makes it again and again and
//! brings its answers with the snapshot.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::pods::find_pod;
use crate::children::model::{Context, PENDING, Poll, PollRequest, PollResult, Problem, Refs};
use crate::children::names;
use crate::package::plan::{ChildPod, Expect};
use crate::package::{Call, MAX_ANSWER, Observation, Ref};
use crate::plan::eval::NoValue;
use crate::plan::{Pod, PodQuery, render};
use crate::template::{EvalError, Scope, Var};

/// How long a command may take.
const EXEC_TIMEOUT: Duration = Duration::from_secs(30);

impl Refs {
    /// The value of an observation.
    pub(super) fn observation(
        &mut self,
        ctx: &Context<'_>,
        reference: &Ref,
        observation: &Observation,
        scope: &Scope,
    ) -> Result<Var, Problem> {
        let engine = &ctx.origin.package.engine;
        let (request, success) = match &observation.call {
            Call::Http(http) => {
                let pod = http.to.as_ref().map(|to| self.pod(ctx, &to.pod, scope)).transpose()?;
                let mut request = render::http(engine, http, scope, None, pod).map_err(unrendered)?;
                request.max_bytes = request.max_bytes.min(MAX_ANSWER);
                (PollRequest::Http(request), "status")
            }
            Call::Exec(exec) => {
                let pod = self.pod(ctx, &exec.pod, scope)?;
                let mut request = render::exec(engine, exec, scope, pod, EXEC_TIMEOUT).map_err(unrendered)?;
                request.max_bytes = MAX_ANSWER;
                (PollRequest::Exec(request), "exitCode")
            }
        };
        let mut keep: Vec<Vec<String>> =
            reference.reads.iter().chain(&observation.expect_reads).cloned().collect();
        keep.push(vec![success.to_owned()]);
        keep.sort();
        keep.dedup();
        let poll = Arc::new(Poll {
            operator: ctx.origin.package.name.as_str().into(),
            namespace: ctx.origin.namespace().unwrap_or_default().into(),
            request,
            every: observation.every,
            keep: keep.into(),
        });
        self.polls.push(Arc::clone(&poll));
        let failed = |message: String| Problem::waiting("ObservationFailed", message);
        match ctx.snapshot.polls.get(&poll) {
            result @ (None | Some(PollResult::Pending | PollResult::Delayed)) => {
                let is_delayed = matches!(result, Some(PollResult::Delayed));
                self.is_delayed |= is_delayed;
                self.pending |= !is_delayed;
                let message = format!("{poll} is not answered yet");
                Err(Problem::waiting(PENDING, message))
            }
            Some(PollResult::Failed(why)) => Err(failed(why.clone())),
            Some(PollResult::Known(answer)) => {
                if expected(ctx, observation, answer, scope)? {
                    return Ok(Var::Json((**answer).clone()));
                }
                let told = &answer[success];
                Err(failed(format!(
                    "{poll} is answered with {success} {told}, which `expect` does not allow"
                )))
            }
        }
    }

    /// The pod of a command.
    fn pod(&mut self, ctx: &Context<'_>, pod: &ChildPod, scope: &Scope) -> Result<Pod, Problem> {
        let engine = &ctx.origin.package.engine;
        let text = |text| engine.eval_text(text, scope).map_err(|error| Problem::of_field("child", error));
        let uid = match pod.of.as_ref().map(|of| (of, engine.eval_text(&of.uid, scope))) {
            None => None,
            Some((_, Ok(Some(Value::String(uid))))) => Some(uid),
            Some((of, Ok(_) | Err(EvalError::Undefined(_)))) => {
                return Err(Problem::absence(of.missing()));
            }
            Some((_, Err(error))) => return Err(Problem::of_field("of", error)),
        };
        let of = pod.of.as_ref().map(|of| of.reference.as_str()).zip(uid.as_deref());
        let key = pod.child.key.as_ref().map(text).transpose()?.flatten();
        let ordinal = pod.ordinal.as_ref().map(text).transpose()?.flatten();
        let number = |ordinal: &Value| {
            let number = names::key_text(ordinal).parse::<u64>();
            number.map_err(|_| Problem::invalid("the ordinal is not a number from 0"))
        };
        let ordinal = ordinal.as_ref().map(number).transpose()?;
        let wanted = PodQuery { of, child: &pod.child.child, key: key.as_ref(), ordinal };
        find_pod(ctx, &wanted, &mut |want| self.ask(ctx.snapshot, &want))
    }
}

/// Whether an answer is one that the package expects.
fn expected(
    ctx: &Context<'_>,
    observation: &Observation,
    answer: &Value,
    scope: &Scope,
) -> Result<bool, Problem> {
    let status = answer["status"].as_u64();
    Ok(match (&observation.expect, &observation.call) {
        (None, Call::Http(_)) => status.is_some_and(|status| (200..300).contains(&status)),
        (None, Call::Exec(_)) => answer["exitCode"] == 0,
        (Some(Expect::Statuses(statuses)), _) => {
            statuses.iter().any(|expected| status == Some(u64::from(*expected)))
        }
        (Some(Expect::Holds(expr)), _) => {
            let mut scope = scope.clone();
            for field in observation.fields() {
                let value = answer.get(field).map_or(Var::Undefined, |value| Var::Json(value.clone()));
                scope = scope.with(field, value);
            }
            match ctx.origin.package.engine.truthy(expr, &scope) {
                Err(EvalError::NotYet(_) | EvalError::Undefined(_)) => false,
                other => other.map_err(|error| Problem::of_field("expect", error))?,
            }
        }
    })
}

fn unrendered(error: NoValue) -> Problem {
    match error {
        NoValue::Unknown(message) => Problem::waiting("DependencyUnknown", message),
        NoValue::Wrong(message) => Problem::invalid(&message),
    }
}
