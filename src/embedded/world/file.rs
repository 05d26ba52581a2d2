//! A file in play: its states, the pods that run, and its answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use operetta_lang::template::{Budget, EvalError, Live, Scope, Text, Var};
use operetta_package::decode::At;
use operetta_package::readiness;
use serde_json::{Map, Value, json};

use super::pattern::{Captures, split_url};
use super::pod::{self, Kinds};
use super::programs::{Call, CallResponse, Course, Exec, ExecResult, Objects};
use super::rules::{Delay, HttpRule, Rules};
use super::turn::{Outcome, Turn, failed};
use crate::model::request::decoded;

/// The time after which a pod is ready, if its rule does not say.
const READY_AFTER: Duration = Duration::from_secs(1);

/// A file in play.
#[derive(Debug, Clone)]
pub(super) struct File {
    rules: Arc<Rules>,
    /// The changed states by their key.
    states: BTreeMap<String, Value>,
    shared: Value,
    /// The pods that run, by uid.
    pods: BTreeMap<String, Started>,
    kinds: Kinds,
    /// How often the states have changed.
    changes: u64,
}

/// A pod whose containers run.
#[derive(Debug, Clone)]
struct Started {
    namespace: String,
    name: String,
    part: Part,
    /// The pod as it was read last, with its version.
    read: Option<(u64, Live)>,
    /// The rule that it follows.
    rule: Option<usize>,
}

/// The part that a pod has in the world. It stays the same while the pod runs.
#[derive(Debug, Clone)]
struct Part {
    key: String,
    env: Arc<Value>,
    disks: Arc<Value>,
}

impl Started {
    /// The pod as it is now.
    fn live(&mut self, objects: &dyn Objects) -> Option<Live> {
        let version = objects.version("v1", "Pod", &self.namespace, &self.name);
        if let Some((known, live)) = &self.read
            && version == Some(*known)
        {
            return Some(live.clone());
        }
        let pod = objects.object("v1", "Pod", &self.namespace, &self.name)?;
        let ready = readiness::of(&pod).is_ready();
        let live = Live { value: Arc::new(pod), ready, current: true, kept: false };
        self.read = version.map(|version| (version, live.clone()));
        Some(live)
    }
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Whether a rule is about a container.
fn concerns(of: Option<&String>, container: &str) -> bool {
    of.is_none_or(|name| name == container)
}

impl File {
    pub(super) fn new(rules: Rules) -> Self {
        let shared = rules.shared.clone();
        let (states, pods, kinds) = (BTreeMap::new(), BTreeMap::new(), Kinds::new());
        Self { rules: Arc::new(rules), states, shared, pods, kinds, changes: 0 }
    }

    pub(super) fn name(&self) -> &str {
        &self.rules.name
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The states, and what they began with.
    pub(super) fn memory(&self) -> Value {
        let Rules { state, shared, .. } = &*self.rules;
        json!({"states": self.states, "began": state, "shared": self.shared, "shared began": shared})
    }

    /// Goes on with the states of a former version of this file. What begins with another value now begins anew.
    pub(super) fn resume(&mut self, memory: &Value) {
        let states = memory["states"].as_object().into_iter().flatten();
        let states =
            states.map(|(key, state)| (key.clone(), kept(&self.rules.state, &memory["began"], state)));
        self.states = states.collect();
        self.shared = kept(&self.rules.shared, &memory["shared began"], &memory["shared"]);
    }

    /// Remembers a pod that runs already. Its rule counts only for its readiness.
    pub(super) fn adopt(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) -> Outcome<()> {
        self.register(pod, objects)?;
        let rules = Arc::clone(&self.rules);
        let Some((_, turn)) = self.about(&rules, pod, objects, now, Vec::new())? else { return Ok(()) };
        for (index, rule) in rules.pods.iter().enumerate() {
            if turn.holds(rule.when.as_ref())? {
                if let Some(started) = self.pods.get_mut(uid(pod)) {
                    started.rule = Some(index);
                }
                break;
            }
        }
        Ok(())
    }

    /// The variables of a pod.
    fn scope(&mut self, pod: &Value, objects: &dyn Objects, env: &Arc<Value>, disks: &Arc<Value>) -> Scope {
        let mut scope = Scope::within(Arc::new(Budget::default()));
        scope.set("pod", Var::Shared(Arc::new(pod.clone())));
        if self.rules.reads.contains("owner") {
            scope.set("owner", Var::Shared(Arc::new(pod::owner(pod, objects, &mut self.kinds))));
        }
        scope.set("env", Var::Shared(Arc::clone(env)));
        scope.set("disks", Var::Shared(Arc::clone(disks)));
        scope
    }

    /// The part that a pod has; `None` if it is none of this world's.
    fn part(&mut self, pod: &Value, objects: &dyn Objects) -> Outcome<Option<Part>> {
        if let Some(started) = self.pods.get(uid(pod)) {
            return Ok(Some(started.part.clone()));
        }
        let read = |name: &str, value: &dyn Fn() -> Map<String, Value>| {
            Arc::new(Value::Object(if self.rules.reads.contains(name) { value() } else { Map::new() }))
        };
        let env = read("env", &|| pod::env(pod, objects));
        let disks = read("disks", &|| pod::disks(pod, objects));
        let rules = Arc::clone(&self.rules);
        let key = match &rules.per {
            None => pod::key(&pod::owner(pod, objects, &mut self.kinds)),
            Some(per) => {
                let scope = self.scope(pod, objects, &env, &disks);
                let Some(key) = key_of(&rules, per, &scope)? else { return Ok(None) };
                key
            }
        };
        Ok(Some(Part { key, env, disks }))
    }

    /// A call about a state.
    fn turn<'r>(
        &mut self,
        rules: &'r Rules,
        mut scope: Scope,
        key: &str,
        objects: &dyn Objects,
        now: Timestamp,
    ) -> Turn<'r> {
        scope.set("now", Var::Json(now.to_string().into()));
        scope.set("seconds", Var::Json((now.as_millisecond() / 1000).into()));
        if rules.reads.contains("pods") {
            let pods = self.pods.iter_mut().filter(|(_, started)| started.part.key == key);
            let pods = pods.filter_map(|(uid, started)| {
                let pod = started.live(objects)?;
                (pod.value["metadata"]["uid"] == **uid).then_some(Var::Object(pod))
            });
            scope.set("pods", Var::List(pods.collect()));
        }
        let state = self.states.get(key).unwrap_or(&rules.state).clone();
        Turn::new(rules, &scope, state, self.shared.clone())
    }

    /// Keeps what a call has changed.
    fn commit(&mut self, key: String, turn: Turn<'_>) {
        let before = self.states.get(&key).unwrap_or(&self.rules.state);
        if *before != turn.state || self.shared != turn.shared {
            self.changes += 1;
            self.states.insert(key, turn.state);
            self.shared = turn.shared;
        }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Begins a call about a pod.
    fn about<'r>(
        &mut self,
        rules: &'r Rules,
        pod: &Value,
        objects: &dyn Objects,
        now: Timestamp,
        vars: Vec<(&str, Value)>,
    ) -> Outcome<Option<(String, Turn<'r>)>> {
        let Some(part) = self.part(pod, objects)? else { return Ok(None) };
        let mut scope = self.scope(pod, objects, &part.env, &part.disks);
        for (name, value) in vars {
            scope.set(name, Var::Json(value));
        }
        let turn = self.turn(rules, scope, &part.key, objects, now);
        Ok(Some((part.key, turn)))
    }

    /// Remembers a pod that starts.
    pub(super) fn register(&mut self, pod: &Value, objects: &dyn Objects) -> Outcome<()> {
        self.stop(pod);
        if let Some(part) = self.part(pod, objects)? {
            let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
            let started =
                Started { namespace: text("namespace"), name: text("name"), part, read: None, rule: None };
            self.pods.insert(uid(pod).to_owned(), started);
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, pod: &Value) {
        self.pods.remove(uid(pod));
    }

    pub(super) fn start(
        &mut self,
        pod: &Value,
        objects: &dyn Objects,
        now: Timestamp,
    ) -> Outcome<Option<Course>> {
        let rules = Arc::clone(&self.rules);
        let Some((key, mut turn)) = self.about(&rules, pod, objects, now, Vec::new())? else {
            return Ok(None);
        };
        for (index, rule) in rules.pods.iter().enumerate() {
            if !turn.holds(rule.when.as_ref())? {
                continue;
            }
            turn.apply(&rule.changes)?;
            let ends_after = turn.time(rule.ends_after.as_ref())?;
            let ready_after = match &rule.ready_after {
                Delay::Default => Some(if ends_after.is_some() { Duration::ZERO } else { READY_AFTER }),
                Delay::Never => None,
                Delay::After(after) => turn.time(Some(after))?,
            };
            let exit_code = turn.number(rule.exit_code.as_ref(), 0, (0, 255))?.into();
            let (message, waiting) = (turn.text(rule.message.as_ref())?, turn.text(rule.waiting.as_ref())?);
            let course = Course { ready_after, ends_after, exit_code, message, waiting };
            self.commit(key, turn);
            if let Some(started) = self.pods.get_mut(uid(pod)) {
                started.rule = Some(index);
            }
            return Ok(Some(course));
        }
        Ok(None)
    }

    /// Whether the readiness of a pod may change without a change of the pod.
    pub(super) fn has_readiness(&self) -> bool {
        self.rules.pods.iter().any(|rule| rule.ready_when.is_some())
    }

    pub(super) fn ready(
        &mut self,
        pod: &Value,
        objects: &dyn Objects,
        now: Timestamp,
    ) -> Outcome<Option<bool>> {
        let rules = Arc::clone(&self.rules);
        let rule = self.pods.get(uid(pod)).and_then(|started| rules.pods.get(started.rule?));
        let Some(rule) = rule else { return Ok(None) };
        if rule.ready_when.is_none() {
            return Ok(Some(true));
        }
        let about = self.about(&rules, pod, objects, now, Vec::new())?;
        about.map(|(_, turn)| turn.holds(rule.ready_when.as_ref())).transpose()
    }

    pub(super) fn exec(&mut self, exec: &Exec<'_>, objects: &dyn Objects) -> Outcome<Option<ExecResult>> {
        let rules = Arc::clone(&self.rules);
        let fitting = rules.exec.iter().filter(|rule| concerns(rule.container.as_ref(), exec.container));
        let fitting: Vec<_> =
            fitting.filter_map(|rule| Some((rule, rule.command.captures(exec.command)?))).collect();
        if fitting.is_empty() {
            return Ok(None);
        }
        let vars = vec![
            ("container", exec.container.into()),
            ("command", exec.command.into()),
            ("stdin", String::from_utf8_lossy(exec.stdin).into_owned().into()),
        ];
        let Some((key, mut turn)) = self.about(&rules, exec.pod, objects, exec.now, vars)? else {
            return Ok(None);
        };
        for (rule, captures) in fitting {
            turn.begin(captures);
            if !turn.holds(rule.when.as_ref())? {
                continue;
            }
            turn.apply(&rule.changes)?;
            let result = ExecResult {
                stdout: turn.text(rule.stdout.as_ref())?,
                stderr: turn.text(rule.stderr.as_ref())?,
                exit_code: turn.number(rule.exit_code.as_ref(), 0, (0, 255))?.into(),
                takes: turn.time(rule.takes.as_ref())?.unwrap_or_default(),
            };
            self.commit(key, turn);
            return Ok(Some(result));
        }
        Ok(None)
    }

    pub(super) fn log(
        &mut self,
        pod: &Value,
        container: &str,
        objects: &dyn Objects,
        now: Timestamp,
    ) -> Outcome<Option<String>> {
        let rules = Arc::clone(&self.rules);
        if rules.logs.is_empty() {
            return Ok(None);
        }
        let vars = vec![("container", container.into())];
        let Some((_, turn)) = self.about(&rules, pod, objects, now, vars)? else { return Ok(None) };
        for rule in rules.logs.iter().filter(|rule| concerns(rule.container.as_ref(), container)) {
            if turn.holds(rule.when.as_ref())? {
                return turn.text(Some(&rule.text)).map(Some);
            }
        }
        Ok(None)
    }

    /// The address that a load balancer gives a Service. Its state is that of the pods of the same owner.
    pub(super) fn address(
        &mut self,
        service: &Value,
        objects: &dyn Objects,
        now: Timestamp,
    ) -> Outcome<Option<String>> {
        let rules = Arc::clone(&self.rules);
        if rules.balancers.is_empty() {
            return Ok(None);
        }
        let owner = Arc::new(pod::owner(service, objects, &mut self.kinds));
        let mut scope = Scope::within(Arc::new(Budget::default()));
        scope.set("service", Var::Shared(Arc::new(service.clone())));
        scope.set("owner", Var::Shared(Arc::clone(&owner)));
        let key = match &rules.per {
            None => Some(pod::key(&owner)),
            Some(per) => key_of(&rules, per, &scope)?,
        };
        let Some(key) = key else { return Ok(None) };
        let turn = self.turn(&rules, scope, &key, objects, now);
        for rule in &rules.balancers {
            if turn.holds(rule.when.as_ref())? {
                return Ok(Some(turn.text(Some(&rule.address))?).filter(|address| !address.is_empty()));
            }
        }
        Ok(None)
    }

    /// The answer to a request, or why none arrives.
    pub(super) fn call(
        &mut self,
        call: &Call<'_>,
        objects: &dyn Objects,
    ) -> Outcome<Option<Result<CallResponse, String>>> {
        let rules = Arc::clone(&self.rules);
        let (url, origin, query) = split_url(call.url);
        // Rules for pods see the path alone: a pod has many names.
        let path = if call.pod.is_some() { &url[origin.len()..] } else { url };
        let port = origin.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let part = match call.pod {
            Some(pod) => match self.part(pod, objects)? {
                Some(part) => Some((pod, part)),
                None => return Ok(None),
            },
            None => None,
        };
        let is_for = |rule: &&HttpRule| {
            rule.is_pod == call.pod.is_some()
                && rule.method.as_ref().is_none_or(|method| method == call.method)
                && (rule.port.is_none() || rule.port == port)
        };
        for rule in rules.http.iter().filter(is_for) {
            let mut captures = Captures::new();
            if !rule.url.fits(path, &mut captures) {
                continue;
            }
            for (_, value) in &mut captures {
                *value = decoded(value, false);
            }
            let scope = match &part {
                None => Scope::within(Arc::new(Budget::default())),
                Some((pod, part)) => self.scope(pod, objects, &part.env, &part.disks),
            };
            let scope = request(scope, call, path, &query);
            let keyed = captures.iter().fold(scope.clone(), |scope, (name, value)| {
                scope.with(name, Var::Json(value.as_str().into()))
            });
            let key = match (&rule.per, &part) {
                (None, None) => origin.to_owned(),
                (None, Some((_, part))) => part.key.clone(),
                (Some(per), _) => match rules.engine.eval_text(&per.value, &keyed) {
                    Ok(Some(Value::String(key))) => key,
                    Ok(key) => key.unwrap_or_default().to_string(),
                    Err(error) => return Err(failed(&error, per)),
                },
            };
            let mut turn = self.turn(&rules, scope, &key, objects, call.now);
            turn.begin(captures);
            if !turn.holds(rule.when.as_ref())? {
                continue;
            }
            turn.apply(&rule.changes)?;
            let mut headers = Vec::new();
            let body = match &rule.json {
                Some(json) => {
                    headers.push(("content-type".to_owned(), "application/json".to_owned()));
                    turn.tree(json)?.map(|json| json.to_string()).unwrap_or_default()
                }
                None => turn.text(rule.body.as_ref())?,
            };
            for (name, text) in &rule.headers {
                headers.retain(|(known, _)| known != name);
                headers.push((name.clone(), turn.text(Some(text))?));
            }
            let status = turn.number(rule.status.as_ref(), 200, (100, 599))?;
            let takes = turn.time(rule.takes.as_ref())?.unwrap_or_default();
            let fails = rule.fails.is_some().then(|| turn.text(rule.fails.as_ref())).transpose()?;
            self.commit(key, turn);
            // An empty reason is none: the template decides.
            return Ok(Some(match fails.filter(|why| !why.is_empty()) {
                Some(why) => Err(why),
                None => Ok(CallResponse { status, headers, body: body.into_bytes(), takes }),
            }));
        }
        Ok(None)
    }
}

/// The key of a state; `None` if it is undefined: then what asks has no part in the world.
fn key_of(rules: &Rules, per: &At<Text>, scope: &Scope) -> Outcome<Option<String>> {
    match rules.engine.eval_text(&per.value, scope) {
        Ok(Some(Value::String(key))) => Ok(Some(key)),
        Ok(Some(key)) if !key.is_null() => Ok(Some(key.to_string())),
        Ok(_) | Err(EvalError::Undefined(_)) => Ok(None),
        Err(error) => Err(failed(&error, per)),
    }
}

/// The values of a state whose beginning is unchanged; others begin.
fn kept(begins: &Value, began: &Value, state: &Value) -> Value {
    let entries = begins.as_object().into_iter().flatten().filter_map(|(name, begin)| {
        let value = if began.get(name) == Some(begin) { state.get(name)? } else { begin };
        Some((name.clone(), value.clone()))
    });
    entries.collect::<Map<_, _>>().into()
}

/// The variables of a request.
fn request(mut scope: Scope, call: &Call<'_>, path: &str, query: &Captures) -> Scope {
    let map = |pairs: &[(String, String)]| {
        Value::Object(pairs.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect())
    };
    let text = String::from_utf8_lossy(call.body);
    let body = serde_json::from_slice(call.body).unwrap_or_else(|_| text.as_ref().into());
    scope.set("method", Var::Json(call.method.into()));
    scope.set("url", Var::Json(path.into()));
    scope.set("query", Var::Json(map(query)));
    scope.set("headers", Var::Json(map(call.headers)));
    scope.set("body", Var::Json(body));
    scope
}
