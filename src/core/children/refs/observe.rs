//! Observations: refs that are read by a request. The request is rendered here; the manager makes it again and again and
//! brings its answers with the snapshot.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{FieldProjection, Problem, Referred, Refs, ResourceSelector, Select, Selector, invalid};
use crate::api::{Gvk, controller_uid};
use crate::children::{Context, Observed, names};
use crate::package::plan::{Exec, Expect};
use crate::package::{Call, MAX_ANSWER, Observation, Ref};
use crate::plan::eval::NoValue;
use crate::plan::request::{ExecReply, ExecRequest, HttpReply, HttpRequest};
use crate::plan::{Pod, render};
use crate::readiness::Readiness;
use crate::template::{EvalError, Scope, Var};

/// How long a command may take.
const EXEC_TIMEOUT: Duration = Duration::from_secs(30);

/// A request that is made repeatedly. Equal ones are made once for all instances of a package in a namespace,
/// so that tenants cannot affect the requests of other namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Poll {
    /// The package.
    pub operator: Box<str>,
    /// The namespace of the instances; empty for cluster-scoped ones.
    pub namespace: Arc<str>,
    /// The request.
    pub request: PollRequest,
    /// The interval between two requests.
    pub every: Duration,
    /// The paths of the answer that are read.
    pub keep: Arc<[Vec<String>]>,
}

/// The request of an observation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PollRequest {
    /// To an HTTP server.
    Http(HttpRequest),
    /// To a container.
    Exec(ExecRequest),
}

/// What is known of an observation.
#[derive(Debug, Clone, PartialEq)]
pub enum PollResult {
    /// It has not been made, or is to be made again.
    Pending,
    /// It has been pending for longer than the status waits for it in silence.
    Delayed,
    /// The answer, as far as it is read.
    Known(Arc<Value>),
    /// It failed. Says why, without anything of the answer.
    Failed(String),
}

/// The request in messages, without what may be secret.
impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            PollRequest::Http(http) => {
                let host = http.url.split('/').nth(2).unwrap_or_default();
                write!(f, "{} {}", http.method, host.rsplit('@').next().unwrap_or_default())
            }
            PollRequest::Exec(exec) => write!(f, "exec {}/{}", exec.namespace, exec.pod),
        }
    }
}

impl Poll {
    /// The value of an HTTP answer.
    pub fn http(&self, reply: HttpReply) -> Value {
        let headers = reply.headers.into_iter().map(|(name, value)| (name, Value::String(value)));
        let headers = Value::Object(headers.collect());
        self.kept(&serde_json::json!({"status": reply.status, "headers": headers, "body": reply.body}))
    }

    /// The value of a command's output.
    ///
    /// # Errors
    ///
    /// `json` is read, and the output is no JSON.
    pub fn exec(&self, reply: ExecReply) -> Result<Value, String> {
        let ExecReply { exit_code, stdout, stderr } = reply;
        let mut value = serde_json::json!({"exitCode": exit_code, "stderr": stderr});
        if self.keep.iter().any(|path| path.first().is_none_or(|first| first == "json")) {
            match serde_json::from_str(&stdout) {
                Ok(json) => value["json"] = json,
                Err(_) if exit_code != 0 => {}
                Err(_) => return Err("the output of the command is not JSON".into()),
            }
        }
        value["stdout"] = stdout.into();
        Ok(self.kept(&value))
    }

    fn kept(&self, value: &Value) -> Value {
        if self.keep.iter().any(Vec::is_empty) {
            return value.clone();
        }
        let mut kept = Value::Object(serde_json::Map::new());
        for path in &*self.keep {
            let mut found = value;
            let mut place = &mut kept;
            for (depth, key) in path.iter().enumerate() {
                // A value that is no map is kept as a whole, so that expressions see its type.
                let Some(next) = found.as_object().and_then(|map| map.get(key)) else { break };
                let is_last = depth + 1 == path.len() || !next.is_object();
                let Some(map) = place.as_object_mut() else { break };
                if is_last {
                    map.insert(key.clone(), next.clone());
                    break;
                }
                place = map.entry(key.as_str()).or_insert_with(|| Value::Object(serde_json::Map::new()));
                found = next;
            }
        }
        kept
    }
}

impl Refs {
    /// The value of an observation.
    pub(super) fn observe(
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
                Err(Problem::waiting(super::PENDING, message))
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
        let text = |text| engine.eval_text(text, scope).map_err(|error| super::self_problem("exec", error));
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
            } else if let Some(pod) = pod_of(object, ordinal.as_ref(), &mut |want| self.ask(ctx, &want))? {
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
        return Err(invalid(&format!("{} has no pods to run a command in", workload.object)));
    }
    let selector = Selector::parse(selector).map_err(|error| invalid(&error))?;
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
                other => other.map_err(|error| super::self_problem("expect", error))?,
            }
        }
    })
}

fn unrendered(error: NoValue) -> Problem {
    match error {
        NoValue::Unknown(message) => Problem::waiting("DependencyUnknown", message),
        NoValue::Wrong(message) => invalid(&message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn poll(keep: &[&str]) -> Poll {
        let path = |path: &&str| path.split('.').filter(|key| !key.is_empty()).map(str::to_owned).collect();
        let request = ExecRequest {
            namespace: "n".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: None,
            command: Vec::new(),
            stdin: None,
            max_bytes: 0,
            timeout: Duration::ZERO,
        };
        Poll {
            operator: "o".into(),
            namespace: "n".into(),
            request: PollRequest::Exec(request),
            every: Duration::ZERO,
            keep: keep.iter().map(path).collect(),
        }
    }

    #[test]
    fn answers_keep_only_the_fields_that_are_read() {
        let reply = |body: Value| HttpReply {
            status: 200,
            headers: vec![("date".into(), "now".into()), ("etag".into(), "1".into())],
            body,
            retry_after: None,
        };
        let kept = |keep: &[&str], body: Value| poll(keep).http(reply(body));
        assert_eq!(kept(&["status"], json!(1)), json!({"status": 200}));
        assert_eq!(kept(&["headers.etag"], json!(1)), json!({"headers": {"etag": "1"}}));
        assert_eq!(
            kept(&["body.a", "body.c"], json!({"a": {"b": 1}, "x": 2})),
            json!({"body": {"a": {"b": 1}}})
        );
        assert_eq!(kept(&["body.a.b", "body"], json!({"a": 1})), json!({"body": {"a": 1}}));
        assert_eq!(kept(&["body.a"], json!([1])), json!({"body": [1]}));
        assert_eq!(kept(&[""], json!(null))["headers"]["date"], "now");
    }

    #[test]
    fn output_must_be_json_only_where_json_is_read() {
        let reply =
            |exit_code: i32, stdout: &str| ExecReply { exit_code, stdout: stdout.into(), stderr: "e".into() };
        assert_eq!(poll(&["json.a"]).exec(reply(0, r#"{"a": 1, "b": 2}"#)), Ok(json!({"json": {"a": 1}})));
        assert!(poll(&["json.a"]).exec(reply(0, "secret text")).is_err_and(|why| !why.contains("secret")));
        assert_eq!(poll(&["stdout"]).exec(reply(0, "text")), Ok(json!({"stdout": "text"})));
        assert_eq!(poll(&["json", "exitCode"]).exec(reply(1, "")), Ok(json!({"exitCode": 1})));
    }
}
