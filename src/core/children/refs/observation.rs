//! Observations: refs that are read by a request. The request is rendered here; the manager makes it again and again and
//! brings its answers with the snapshot.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::{Gvk, controller_uid};
use crate::children::model::{
    Context, FieldProjection, Observed, PENDING, Poll, PollRequest, PollResult, Problem, Referred, Refs,
    ResourceSelector, Select, Selector,
};
use crate::children::names;
use crate::package::plan::{Exec, Expect};
use crate::package::{Call, MAX_ANSWER, Observation, Ref};
use crate::plan::eval::NoValue;
use crate::plan::{Pod, render};
use crate::readiness::Readiness;
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
                let mut request = render::http(engine, http, scope, None).map_err(unrendered)?;
                request.max_bytes = request.max_bytes.min(MAX_ANSWER);
                (PollRequest::Http(request), "status")
            }
            Call::Exec(exec) => {
                let pod = self.pod(ctx, exec, scope)?;
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

    /// The pod of a command: a ready one of the instance's own.
    fn pod(&mut self, ctx: &Context<'_>, exec: &Exec, scope: &Scope) -> Result<Pod, Problem> {
        let engine = &ctx.origin.package.engine;
        let text = |text| engine.eval_text(text, scope).map_err(|error| Problem::of_field("exec", error));
        let key = exec.child.key.as_ref().map(text).transpose()?.flatten();
        let ordinal = exec.ordinal.as_ref().map(text).transpose()?.flatten();
        let key_text = key.as_ref().map(names::key_text);
        let mut live: Vec<&Arc<Observed>> = ctx
            .snapshot
            .observed
            .iter()
            .filter(|object| *object.child == *exec.child.child && !object.terminating)
            .filter(|object| key_text.is_none() || object.key.as_deref() == key_text.as_deref())
            .collect();
        live.sort_by(|a, b| a.object.cmp(&b.object));
        let none = |why: String| Problem::waiting("DependencyNotReady", why);
        let what = match &key_text {
            Some(key) => format!("{}[{key}]", exec.child.child),
            None => exec.child.child.clone(),
        };
        for object in &live {
            let is_ready = matches!(object.readiness, Readiness::Ready);
            let namespace = object.object.namespace.as_deref().unwrap_or_default().to_owned();
            if object.object.gvk.is("v1", "Pod") {
                if is_ready || key.is_some() {
                    let (name, uid) = (object.object.name.to_string(), object.uid.to_string());
                    return Ok(Pod { namespace, name, uid });
                }
            } else if let Some(pod) =
                pod_of(object, ordinal.as_ref(), &mut |want| self.ask(ctx.snapshot, &want))?
            {
                return Ok(pod);
            }
        }
        let state = if live.is_empty() { "does not exist" } else { "has no ready pod" };
        Err(none(format!("{what} {state}")))
    }
}

/// A ready pod of a workload; with an ordinal the pod of that number. `look_up`: what is known of the objects that a
/// selector names.
///
/// Labels prove nothing: every editor of the pod can write them. So a pod must name the workload, or a `ReplicaSet` of it, as its
/// controller.
pub(in crate::children) fn pod_of(
    workload: &Observed,
    ordinal: Option<&Value>,
    look_up: &mut dyn FnMut(ResourceSelector) -> Result<Vec<Arc<Referred>>, Problem>,
) -> Result<Option<Pod>, Problem> {
    let live: Value =
        workload.live.as_deref().and_then(|live| serde_json::from_str(live).ok()).unwrap_or_default();
    let selector = &live["spec"]["selector"];
    if selector["matchLabels"].is_null() && selector["matchExpressions"].is_null() {
        return Err(Problem::invalid(&format!("{} has no pods to run a command in", workload.object)));
    }
    let selector = Selector::parse(selector).map_err(|error| Problem::invalid(&error))?;
    let want = |gvk: Gvk, content: bool| ResourceSelector {
        gvk,
        namespace: workload.object.namespace.as_deref().map(Box::from),
        select: Select::Labels(selector.clone()),
        keep: FieldProjection { paths: [vec!["metadata".to_owned()]].into(), content },
    };
    let mut owners: Vec<String> = vec![workload.uid.to_string()];
    if &*workload.object.gvk.kind == "Deployment" {
        let sets = look_up(want(Gvk::new("apps/v1", "ReplicaSet"), false))?;
        let own = sets.iter().filter(|set| is_controlled(set, &owners)).filter_map(|set| uid(set));
        owners = own.collect();
    }
    let pods = look_up(want(Gvk::new("v1", "Pod"), true))?;
    let numbered = ordinal.map(|ordinal| format!("{}-{}", workload.object.name, names::key_text(ordinal)));
    let is_wanted = |pod: &&Arc<Referred>| match &numbered {
        Some(name) => *pod.name == **name,
        None => pod.ready,
    };
    let mut pods = pods.iter().filter(|pod| is_controlled(pod, &owners)).filter(is_wanted);
    Ok(pods.next().and_then(|pod| {
        let namespace = pod.namespace.as_deref().unwrap_or_default().to_owned();
        Some(Pod { namespace, name: pod.name.to_string(), uid: uid(pod)? })
    }))
}

fn uid(object: &Referred) -> Option<String> {
    object.value["metadata"]["uid"].as_str().map(str::to_owned)
}

fn is_controlled(object: &Referred, owners: &[String]) -> bool {
    controller_uid(&object.value).is_some_and(|controller| owners.iter().any(|uid| uid == controller))
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
