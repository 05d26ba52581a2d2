//! A cluster of maps, and a manager that runs one run on it.
#![allow(clippy::unnecessary_wraps)] // answers and failures are given alike

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::build::ENGINE;
use crate::package::plan::Plan;
use crate::package::powers::Powers;
use crate::plan::request::{CallFailure, ExecReply, HttpReply};
use crate::plan::*;
use crate::reach::Reach;
use crate::template::{Live, Scope, Var};

static POWERS: LazyLock<Powers> = LazyLock::new(Powers::default);

/// The cluster and the servers: what survives the manager.
#[derive(Default)]
pub(super) struct Cluster {
    pub(super) spec: Value,
    /// The children in the target, in the order of the graph.
    pub(super) target: Vec<(String, Vec<Option<Value>>)>,
    pub(super) dependencies: HashMap<String, Vec<String>>,
    pub(super) members: HashMap<Member, MemberState>,
    /// The reason why nothing is known of a child.
    pub(super) unknown: HashMap<String, String>,
    pub(super) jobs: BTreeMap<String, Job>,
    /// The result of the nth Job of a step, in the order of their creation; without one they complete.
    pub(super) job_results: HashMap<String, Vec<JobResult>>,
    pub(super) created_jobs: Vec<(String, u32, String)>,
    pub(super) runs: BTreeMap<String, OtherRun>,
    /// The answers of the server to the nth request of a step; without one 200.
    pub(super) replies: HashMap<String, Vec<Result<Reply, CallFailure>>>,
    /// Requests as the servers have seen them: step, idempotency key, body.
    pub(super) requests: Vec<(String, String, String)>,
    /// The encoded data of Secrets, by the name of the member.
    pub(super) secret_data: BTreeMap<String, serde_json::Map<String, Value>>,
    /// Whether it is not known yet what the Secret of the run holds.
    pub(super) is_unread: bool,
    /// Members that do not become ready when they are written.
    pub(super) stuck: Vec<Member>,
    pub(super) refs: BTreeMap<String, Var>,
    /// What the server has answered, by idempotency key.
    pub(super) by_key: HashMap<String, Result<Reply, CallFailure>>,
    pub(super) uid: u64,
    pub(super) deleted: Vec<Member>,
    pub(super) writes: Vec<Member>,
}

/// The manager: what is lost when it dies.
#[derive(Default)]
pub(super) struct Memory {
    intents: HashMap<(String, u32), Request>,
    answers: HashMap<(String, u32), (Result<Reply, CallFailure>, Request)>,
    watch: Stopwatch,
    secrets: HashMap<String, serde_json::Map<String, Value>>,
}

pub(super) struct Sim {
    pub(super) cluster: Cluster,
    pub(super) memory: Memory,
    pub(super) plans: Vec<Plan>,
    pub(super) run: PlanRun,
    pub(super) now: Duration,
    pub(super) paused: bool,
    /// Facts of earlier runs.
    pub(super) remembered: BTreeMap<String, RecordedFact>,
    pub(super) protection: Protection,
    /// Whether the instance has observations.
    pub(super) observes: bool,
    pub(super) directive: Directive,
    /// All states that were stored.
    pub(super) history: Vec<RunStatus>,
    /// Whether requests stay without an answer.
    pub(super) silent: bool,
    /// How many writes and effects were made.
    pub(super) operations: usize,
    /// When the manager dies: before or after that operation.
    pub(super) dies: Box<dyn Fn(usize, bool) -> bool>,
}

struct View<'a>(&'a Cluster, &'a Memory);

impl ClusterView for View<'_> {
    fn children(&self) -> Vec<String> {
        self.0.target.iter().map(|(child, _)| child.clone()).collect()
    }

    fn dependencies(&self, child: &str) -> Vec<String> {
        self.0.dependencies.get(child).cloned().unwrap_or_default()
    }

    fn target(&self, child: &str) -> Result<Vec<Option<Value>>, String> {
        if let Some(why) = self.0.unknown.get(child) {
            return Err(why.clone());
        }
        Ok(self.0.target.iter().find(|(id, _)| id == child).map(|(_, keys)| keys.clone()).unwrap_or_default())
    }

    fn existing(&self, child: &str) -> Result<Vec<Option<Value>>, String> {
        let mut keys = self.target(child)?;
        let mut live: Vec<_> =
            self.0.members.iter().filter(|(member, state)| member.child == child && state.exists).collect();
        live.sort_by_key(|(member, _)| member.to_string());
        for (member, _) in live {
            if !keys.contains(&member.key) {
                keys.push(member.key.clone());
            }
        }
        Ok(keys)
    }

    fn member(&self, member: &Member) -> MemberState {
        self.0.members.get(member).cloned().unwrap_or_default()
    }

    fn pod(&self, &PodQuery { child, key, .. }: &PodQuery<'_>) -> Result<Pod, String> {
        let member = Member::new(child, key.cloned());
        match self.0.members.get(&member) {
            Some(state) if state.exists => {
                Ok(Pod { namespace: "ns".into(), name: member.to_string(), uid: "pod".into() })
            }
            _ => Err(format!("{member} does not exist")),
        }
    }

    fn job(&self, name: &str) -> JobState {
        self.0.jobs.get(name).map_or(JobState::Absent, |job| JobState::Found(job.clone()))
    }

    fn run(&self, _: &Of, name: &str) -> OtherRun {
        self.0.runs.get(name).cloned().unwrap_or(OtherRun::Absent)
    }

    fn call(&self, step: &str, attempt: u32) -> CallState<'_> {
        let key = (step.to_owned(), attempt);
        match (self.1.answers.get(&key), self.1.intents.get(&key)) {
            (Some((Ok(answer), _)), _) => CallState::Answered(answer),
            (Some((Err(failure), request)), _) => CallState::Failed(failure, Some(request)),
            (None, Some(request)) => CallState::Intended(request),
            (None, None) => CallState::Unknown,
        }
    }

    fn secret(&self, member: &Member) -> Result<Option<LiveSecret>, String> {
        let name = member.to_string();
        let object = RunRef { name: name.clone(), ..RunRef::default() };
        Ok(self.0.secret_data.get(&name).map(|data| LiveSecret { object, data: SecretOutputs(data.clone()) }))
    }

    fn unread(&self, _: &str) -> Option<String> {
        self.0.is_unread.then(|| "Secret x is being listed".to_owned())
    }

    fn secrets(&self, step: &str) -> Option<serde_json::Map<String, Value>> {
        if self.0.is_unread {
            return None;
        }
        self.1.secrets.get(step).cloned()
    }
}

pub(super) fn status(code: u16, body: Value) -> Result<Reply, CallFailure> {
    Ok(Reply::Http(HttpReply { status: code, headers: Vec::new(), body, retry_after: None }))
}

pub(super) fn exit(exit_code: i32, stdout: &str) -> Result<Reply, CallFailure> {
    Ok(Reply::Exec(ExecReply { exit_code, stdout: stdout.into(), stderr: "no".into() }))
}

pub(super) fn cut() -> Result<Reply, CallFailure> {
    Err(CallFailure::Unanswered("the connection was cut".into()))
}

impl Sim {
    /// A request of the first plan. Its cluster has the children `a`, `b` and `members` with the keys 0, 1, 2.
    pub(super) fn new(plans: Vec<Plan>) -> Self {
        let name = plans[0].name.clone();
        let of = Of {
            api_version: "e/v1".into(),
            kind: "Etcd".into(),
            resource: "etcds".into(),
            name: "x".into(),
        };
        let cluster = Cluster {
            spec: json!({"size": 3, "image": "i", "list": ["p", "q"]}),
            target: vec![
                ("a".into(), vec![None]),
                ("b".into(), vec![None]),
                ("members".into(), (0..3).map(|key| Some(json!(key))).collect()),
            ],
            ..Cluster::default()
        };
        let status = RunStatus {
            phase: Phase::Running,
            id: "root".into(),
            plans: vec![name.clone()],
            started_at: Some("2026-01-01T00:00:00Z".into()),
            ..RunStatus::default()
        };
        let run = PlanRun {
            name: "x-1".into(),
            uid: "root".into(),
            spec: RunSpec { of, plan: name, requested_by: Some("eve".into()), ..RunSpec::default() },
            status: Some(status),
            ..PlanRun::default()
        };
        Self {
            cluster,
            memory: Memory::default(),
            plans,
            run,
            now: Duration::from_secs(1000),
            paused: false,
            remembered: BTreeMap::new(),
            protection: Protection::default(),
            observes: false,
            directive: Directive::Continue,
            history: Vec::new(),
            silent: false,
            operations: 0,
            dies: Box::new(|_, _| false),
        }
    }

    pub(super) fn rollout(plans: Vec<Plan>) -> Self {
        let names: Vec<String> = plans.iter().map(|plan| plan.name.clone()).collect();
        let mut sim = Self::new(plans);
        let status = sim.status_mut();
        status.cause = Cause::Rollout;
        status.plans = names;
        sim
    }

    pub(super) fn status_mut(&mut self) -> &mut RunStatus {
        self.run.status.as_mut().unwrap()
    }

    pub(super) fn status(&self) -> &RunStatus {
        self.run.status.as_ref().unwrap()
    }

    fn facts(&self) -> BTreeMap<String, RecordedFact> {
        let memory =
            crate::plan::Memory { record: self.remembered.clone(), ..crate::plan::Memory::default() };
        memory.facts([&self.run])
    }

    fn scope(&self) -> Scope {
        let mut scope = Scope::new();
        scope.set("spec", Var::Json(self.cluster.spec.clone()));
        scope.set("name", Var::Json(json!("x")));
        let record: serde_json::Map<String, Value> =
            self.facts().into_iter().map(|(key, fact)| (key, fact.value)).collect();
        scope.set("record", Var::Json(Value::Object(record)));
        let live = |state: &MemberState| Live {
            value: std::sync::Arc::new(json!({"status": {"phase": "Running"}})),
            ready: state.ready,
            current: state.current,
            kept: false,
        };
        let mut children = BTreeMap::new();
        for (child, keys) in &self.cluster.target {
            let objects = keys.iter().filter_map(|key| {
                let state = self.cluster.members.get(&Member::new(child.clone(), key.clone()))?;
                state.exists.then(|| (key.clone(), live(state)))
            });
            let objects: Vec<_> = objects.collect();
            let var = match objects.as_slice() {
                [(None, live)] => Var::Object(live.clone()),
                _ if keys == &[None] => Var::Undefined,
                _ => Var::Map(objects.into_iter().filter_map(|(key, live)| Some((key?, live))).collect()),
            };
            children.insert(child.clone(), var);
        }
        scope.set("children", Var::Vars(children));
        scope.set("refs", Var::Vars(self.cluster.refs.clone()));
        scope
    }

    pub(super) fn decide(&mut self) -> Progress {
        let scope = self.scope();
        let used = self.status().used_milliseconds;
        let elapsed = self.memory.watch.read(used, self.now, self.paused);
        let instance = Instance {
            of: self.run.spec.of.clone(),
            uid: "instance".into(),
            namespace: "ns".into(),
            digest_key: b"key".to_vec(),
            ..Instance::default()
        };
        let inputs = RunInputs {
            engine: &ENGINE,
            scope: &scope,
            record: &self.facts(),
            instance: &instance,
            reach: Reach::open(&POWERS),
            cluster: &View(&self.cluster, &self.memory),
            has_observations: self.observes,
            paused: self.paused,
            namespace_terminating: false,
            protection: &self.protection,
            elapsed,
            now: Timestamp::from_second(1_767_225_600 + i64::try_from(self.now.as_secs()).unwrap()).unwrap(),
        };
        advance(&self.run, &self.plans, &inputs, &self.directive)
    }

    /// Stores a new state, as the API server would.
    pub(super) fn store(&mut self, progress: Progress) {
        let Some(status) = progress.status else { return };
        self.store_only(status);
        for (call, request) in progress.intents {
            self.memory.intents.insert((call.step.into(), call.attempt), request);
        }
    }

    pub(super) fn store_only(&mut self, status: RunStatus) {
        let object = json!({
            "metadata": {"name": self.run.name, "uid": self.run.uid},
            "spec": self.run.spec,
            "status": status.to_json(),
        });
        let parsed = PlanRun::parse(&object).unwrap();
        assert_eq!(parsed.status.as_ref(), Some(&status), "what is stored is read again");
        self.history.push(status);
        self.run = parsed;
    }

    pub(super) fn carry_out(&mut self, effect: &RunAction) {
        self.cluster.uid += 1;
        let object = |name: &str| RunRef {
            name: name.to_owned(),
            uid: format!("uid-{}", self.cluster.uid),
            ..RunRef::default()
        };
        match effect {
            RunAction::Create(RunObject::Job, job) => {
                let name = job["metadata"]["name"].as_str().unwrap().to_owned();
                let is_its = |step: &&StepState| step.objects.iter().any(|object| object.name == name);
                let (step, attempt) = self
                    .status()
                    .steps
                    .iter()
                    .find(is_its)
                    .map(|step| (step.path.clone(), step.attempt))
                    .unwrap();
                assert!(job["spec"].get("ttlSecondsAfterFinished").is_none());
                if self.cluster.jobs.contains_key(&name) {
                    return;
                }
                let before = self.cluster.created_jobs.iter().filter(|(known, ..)| *known == step).count();
                let result =
                    self.cluster.job_results.get(&step).and_then(|results| results.get(before)).cloned();
                let result = result.unwrap_or_else(|| JobResult::Completed(Some(r#"{"id": 7}"#.into())));
                let result = if result == JobResult::Reading { None } else { Some(result) };
                self.cluster.created_jobs.push((step, attempt, name.clone()));
                let object = object(&name);
                self.cluster.jobs.insert(name, Job { object, result, ..Job::default() });
            }
            RunAction::Delete(RunObject::Job, job) => {
                assert_eq!(self.cluster.jobs[&job.name].object, *job);
                self.cluster.jobs.remove(&job.name);
            }
            RunAction::Change(RunObject::Job, job, _) => {
                self.cluster.jobs.get_mut(&job.name).unwrap().has_ttl = true;
            }
            RunAction::Call(CallKey { step, attempt, .. }, request) => {
                if self.silent {
                    return;
                }
                let step = &**step;
                let before = self.cluster.requests.iter().filter(|(known, ..)| known == step).count();
                let (key, body, default) = match &**request {
                    Request::Http(http) => {
                        let key = http.headers.iter().find(|(name, _)| name == "Idempotency-Key").unwrap();
                        let body = String::from_utf8(http.body.clone()).unwrap();
                        (key.1.clone(), body, status(200, json!({"id": "b-1"})))
                    }
                    Request::Exec(exec) => (String::new(), exec.command.join(" "), exit(0, "[1]")),
                    Request::Patch(patch) => (String::new(), patch.merge.to_string(), Ok(Reply::Patched)),
                };
                let reply = self.cluster.replies.get(step).and_then(|replies| replies.get(before)).cloned();
                let mut reply = reply.unwrap_or(default);
                if !key.is_empty() {
                    if let Some(known) = self.cluster.by_key.get(&key) {
                        reply = known.clone();
                    } else if matches!(&reply, Ok(Reply::Http(reply)) if reply.status < 429) {
                        self.cluster.by_key.insert(key.clone(), reply.clone());
                    }
                }
                self.cluster.requests.push((step.to_owned(), key, body));
                let answer = (reply, (**request).clone());
                self.memory.answers.insert((step.to_owned(), *attempt), answer);
            }
            RunAction::Create(RunObject::PlanRun, run) => {
                let name = run["metadata"]["name"].as_str().unwrap();
                let recorded = serde_json::Map::from_iter([("site".to_owned(), json!("b"))]);
                let found = OtherRun::Found {
                    object: object(name),
                    phase: Phase::Succeeded,
                    message: String::new(),
                    recorded,
                };
                self.cluster.runs.entry(name.to_owned()).or_insert(found);
            }
            RunAction::Change(RunObject::PlanRun, run, _) => {
                let recorded = serde_json::Map::new();
                let found = OtherRun::Found {
                    object: run.clone(),
                    phase: Phase::Cancelled,
                    message: String::new(),
                    recorded,
                };
                self.cluster.runs.insert(run.name.clone(), found);
            }
            RunAction::StoreSecrets { step, values, .. } => {
                self.memory.secrets.insert(step.step.to_string(), values.0.clone());
            }
            RunAction::StoreInChild { secret, data, .. } => {
                let live = self.cluster.secret_data.get_mut(&secret.name).unwrap();
                for (key, value) in &data.0 {
                    assert!(live.insert(key.clone(), value.clone()).is_none(), "{key} is overwritten");
                }
            }
            other => panic!("a step has no such effect: {other:?}"),
        }
    }

    pub(super) fn write(&mut self, permit: &Permit) {
        let member = &permit.member;
        match permit.verb {
            Verb::Apply => {
                assert!(self.status().has_applied(member), "{member} is recorded before it is applied");
                let ready = !self.cluster.stuck.contains(member);
                let state = MemberState { exists: true, current: true, ready, ..MemberState::default() };
                if self.cluster.members.get(member) != Some(&state) {
                    self.cluster.writes.push(member.clone());
                }
                self.cluster.members.insert(member.clone(), state);
            }
            Verb::Delete | Verb::ForceDelete => {
                assert!(self.status().has_deleted(member), "{member} is recorded before it is deleted");
                self.cluster.deleted.push(member.clone());
                self.cluster.members.remove(member);
            }
        }
    }

    /// Makes one decision and carries it out. `false`: nothing is to be done now.
    pub(super) fn turn(&mut self) -> bool {
        let progress = self.decide();
        if progress.status.is_some() {
            assert!(progress.effects.is_empty() && progress.permits.is_empty());
            if self.dies(false) {
                return true;
            }
            self.store(progress);
            self.dies(true);
            return true;
        }
        for effect in &progress.effects {
            if self.dies(false) {
                return true;
            }
            self.carry_out(effect);
            if self.dies(true) {
                return true;
            }
        }
        let before = self.cluster.writes.len() + self.cluster.deleted.len();
        for permit in &progress.permits {
            if self.dies(false) {
                return true;
            }
            self.write(permit);
            if self.dies(true) {
                return true;
            }
        }
        !progress.effects.is_empty() || self.cluster.writes.len() + self.cluster.deleted.len() > before
    }

    fn dies(&mut self, after: bool) -> bool {
        self.operations += usize::from(!after);
        let dies = (self.dies)(self.operations, after);
        if dies {
            self.restart();
        }
        dies
    }

    /// Turns until nothing is to be done now.
    pub(super) fn settle(&mut self) -> Progress {
        for _ in 0..1000 {
            if self.status().phase != Phase::Running || !self.turn() {
                return self.decide();
            }
        }
        panic!("it does not settle: {:?}", self.status());
    }

    /// Turns, and lets time pass, until the run has ended or nothing will happen.
    pub(super) fn finish(&mut self) -> &RunStatus {
        for _ in 0..1000 {
            match self.settle().wake {
                Some(wake) if self.status().phase == Phase::Running => self.now += wake,
                _ => return self.status(),
            }
        }
        panic!("it does not end: {:?}", self.status());
    }

    /// Whether no secret values of steps are stored.
    pub(super) fn memory_has_no_secrets(&self) -> bool {
        self.memory.secrets.is_empty()
    }

    /// The manager dies: what it remembers is lost.
    pub(super) fn restart(&mut self) {
        self.memory = Memory { secrets: std::mem::take(&mut self.memory.secrets), ..Memory::default() };
    }

    pub(super) fn phase_of(&self, path: &str) -> Option<StepPhase> {
        self.status().step(path).map(|step| step.phase)
    }
}
