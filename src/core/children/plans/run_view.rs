//! What the engine sees of an instance: its children as the target has them, the Jobs of its steps, and the answers to
//! their requests.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::lost::is_recreating;
use crate::api::{Gvk, ObjectRef};
use crate::children::model::{
    Call, Context, FieldProjection, Item, NEWEST, Observed, Origin, PlanSnapshot, Problem, ReconcileState,
    Referred, ResourceSelector, Select, Target, job_end, typed_key,
};
use crate::children::names;
use crate::children::refs::{find_pod, known, pod_of};
use crate::children::write_order::turn_holder;
use crate::facts::controller_uid;
use crate::plan::advance::{SECRET, START_LIMIT, STARTING};
use crate::plan::{
    self, CallKey, CallState, Instance, Job, JobResult, JobState, LiveSecret, Member, MemberState, Of,
    OtherRun, PlanRun, Pod, PodQuery, RunRef, SecretOutputs, outputs_name, reference,
};
use crate::readiness::{self, Readiness};
use crate::selector::Selector;

/// The instance as one run sees it.
pub(super) struct RunView<'a> {
    pub(super) ctx: &'a Context<'a>,
    pub(super) target: &'a Target,
    pub(super) plans: &'a PlanSnapshot,
    /// The instance, as the engine knows it.
    pub(super) instance: &'a Instance,
    /// The run.
    pub(super) run: &'a PlanRun,
    /// Whether the run brings the children to the target of its origin.
    pub(super) is_rollout: bool,
    pub(super) state: &'a ReconcileState,
    /// The selectors of the objects that the run reads.
    pub(super) wants: &'a RefCell<Vec<ResourceSelector>>,
}

impl<'a> RunView<'a> {
    fn items(&self, child: &str) -> impl Iterator<Item = &Item> + use<'_, 'a> {
        let number = self.ctx.origins.number(child);
        self.target.items.iter().filter(move |item| Some(item.child) == number)
    }

    fn item(&self, member: &Member) -> Option<&Item> {
        self.items(&member.child).find(|item| item.key == member.key)
    }

    fn live(&self, member: &Member) -> Option<&Observed> {
        let key = member.key.as_ref().map(names::key_text);
        let number = self.ctx.origins.number(&member.child)?;
        let is_it = |o: &Observed| {
            o.is_made_by_us()
                && self.ctx.origins.number(&o.child) == Some(number)
                && o.key.as_deref() == key.as_deref()
        };
        let live = self.ctx.snapshot.observed.iter().map(|observed| &**observed);
        live.filter(|o| is_it(o)).min_by_key(|o| o.terminating)
    }

    /// The objects that a selector names. They are watched for as long as the run asks for them.
    fn known(&self, want: ResourceSelector) -> Result<Vec<Arc<Referred>>, Problem> {
        let found = known(self.ctx.snapshot, &want);
        self.wants.borrow_mut().push(want);
        found
    }

    /// A Job, with how far its start has come. The pods are watched only while none of them is ready.
    fn started(&self, job: &Value) -> Job {
        let status = &job["status"];
        let is_done = job_end(job).is_some() || status["ready"].as_u64().is_some_and(|ready| ready > 0);
        let (meta, now) = (&job["metadata"], self.plans.now);
        let created = meta["creationTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let Some(created) = created.filter(|_| !is_done && meta["deletionTimestamp"].is_null()) else {
            return Job::default();
        };
        let age = Duration::try_from(now.duration_since(created)).unwrap_or_default();
        if age < STARTING {
            return Job { is_starting: true, ..Job::default() };
        }
        let labels = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}});
        let Ok(selector) = Selector::parse(&labels) else { return Job::default() };
        let pods = self.known(ResourceSelector {
            gvk: Gvk::new("v1", "Pod"),
            namespace: Some(self.plans.namespace.as_str().into()),
            select: Select::Labels(selector),
            keep: FieldProjection {
                paths: [vec!["metadata".to_owned()], vec!["status".to_owned()]].into(),
                content: true,
            },
        });
        let Ok(pods) = pods else { return Job::default() };
        // A suspended Job waits for another client, however long.
        let left = Some(START_LIMIT.saturating_sub(age)).filter(|_| job["spec"]["suspend"] != true);
        let created = |pod: &&Arc<Referred>| pod.value["metadata"]["creationTimestamp"].to_string();
        let own = pods.iter().filter(|pod| controller_uid(&pod.value) == meta["uid"].as_str());
        let Some(pod) = own.max_by_key(created) else {
            return Job { message: Some("it has no pod".to_owned()), start_left: left, ..Job::default() };
        };
        let mut live = (*pod.value).clone();
        live["apiVersion"] = "v1".into();
        live["kind"] = "Pod".into();
        let message = match readiness::of(&live) {
            Readiness::NotReady { message, .. } | Readiness::Failed { message, .. } => Some(message),
            Readiness::Ready | Readiness::Terminating => None,
        };
        let message = message.map(|message| format!("pod {}: {message}", pod.name));
        Job { message, start_left: left.filter(|_| live["status"]["phase"] == "Pending"), ..Job::default() }
    }

    /// The secret outputs of a step as they are stored; `None` if they are not, or are not known yet.
    fn stored_secrets(&self, step: &str) -> Result<Option<Map<String, Value>>, Problem> {
        let key = CallKey::new(&self.run.uid, step, 0);
        if let Some(values) = self.plans.calls.secrets.get(&key) {
            return Ok(Some(values.0.clone()));
        }
        let found = self.known(outputs_selector(self.plans, self.run))?;
        Ok(found.first().and_then(|secret| self.instance.stored_outputs(self.run, step, &secret.value)))
    }

    /// Why secret outputs of the run that later steps may read are not known.
    pub(super) fn unread_secrets(&self) -> Option<String> {
        let steps = self.run.status.iter().flat_map(|status| &status.steps);
        let mut steps = steps.filter(|step| step.outputs.values().any(|value| value == SECRET));
        steps.find_map(|step| match self.stored_secrets(&step.path) {
            Ok(Some(_)) => None,
            Ok(None) => Some(format!(
                "Secret {}/{} does not hold the secret outputs of step {} as they were stored: restore it, or cancel the run",
                self.plans.namespace,
                outputs_name(self.run),
                step.path
            )),
            Err(problem) => Some(problem.message),
        })
    }

    /// What the API server said when it refused to apply the present desired object of an item.
    fn refusal(&self, item: &Item) -> Option<String> {
        let failure = self.state.failure_of(item, item.desired.as_ref().ok()?)?;
        Some(failure.error.to_string())
    }

    /// Why the members of a child are unknown.
    fn unknown(&self, child: &str) -> Option<String> {
        let number = self.ctx.origins.number(child)?;
        let open = self.target.open.get(&number).map(ToString::to_string);
        open.or_else(|| self.unknown_objects(child).map(str::to_owned))
    }

    /// Why the objects of a child are unknown.
    fn unknown_objects(&self, child: &str) -> Option<&str> {
        let kinds = &self.ctx.origins.child(self.ctx.origins.number(child)?)?.kinds;
        self.ctx.snapshot.unknown_objects(kinds, self.items(child).next().is_some())
    }
}

impl PlanSnapshot {
    /// The instance as the engine knows it.
    pub(super) fn instance(&self, origin: Origin<'_>) -> Instance {
        let kind = &origin.resource.kind;
        let home = origin.namespace();
        let elsewhere = (home != Some(&self.namespace))
            .then(|| (names::INSTANCE_NAMESPACE, home.unwrap_or_default().to_owned()));
        let labels = [
            (names::MANAGED_BY, "operetta".to_owned()),
            (names::OPERATOR, origin.package.name.clone()),
            (names::KIND, names::kind_label(&kind.kind, &kind.group)),
            (names::INSTANCE, names::label_value(origin.name())),
            (names::RUN_OF, origin.uid().to_owned()),
        ];
        let labels = labels.into_iter().chain(elsewhere);
        Instance {
            of: Of {
                api_version: origin.instance["apiVersion"].as_str().unwrap_or_default().to_owned(),
                kind: kind.kind.clone(),
                resource: kind.plural.clone(),
                name: origin.name().to_owned(),
            },
            uid: origin.uid().to_owned(),
            namespace: self.namespace.clone(),
            labels: labels.map(|(name, value)| (name.to_owned(), value.into())).collect(),
            digest_key: self.digest_key.clone(),
        }
    }
}

impl plan::ClusterView for RunView<'_> {
    fn children(&self) -> Vec<String> {
        self.ctx.origin.resource.children.iter().map(|child| child.id.clone()).collect()
    }

    fn dependencies(&self, child: &str) -> Vec<String> {
        let children = &self.ctx.origin.resource.children;
        let found = children.iter().find(|known| known.id == child);
        let indices = found.map_or(&[][..], |child| &child.depends_on);
        indices.iter().map(|index| children[*index].id.clone()).collect()
    }

    fn target(&self, child: &str) -> Result<Vec<Option<Value>>, String> {
        if let Some(reason) = self.unknown(child) {
            return Err(reason);
        }
        let Some(number) = self.ctx.origins.number(child) else { return Ok(Vec::new()) };
        let newest = self.target.newest.iter().filter(|member| member.child == number);
        let mut keys: Vec<Option<Value>> = newest.map(|member| member.key.clone()).collect();
        if !self.is_rollout {
            // Items that no rollout has reached stay what they were, also if a newer spec omits them.
            for item in self.items(child).filter(|item| item.origin != NEWEST) {
                if !keys.contains(&item.key) {
                    keys.push(item.key.clone());
                }
            }
        }
        Ok(keys)
    }

    fn existing(&self, child: &str) -> Result<Vec<Option<Value>>, String> {
        if let Some(reason) = self.unknown_objects(child) {
            return Err(reason.to_owned());
        }
        let mut keys: Vec<Option<Value>> = self.items(child).map(|item| item.key.clone()).collect();
        let number = self.ctx.origins.number(child);
        for observed in &self.ctx.snapshot.observed {
            if observed.is_made_by_us() && self.ctx.origins.number(&observed.child) == number {
                let key = observed.key.as_deref().map(typed_key);
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        Ok(keys)
    }

    fn member(&self, member: &Member) -> MemberState {
        let Some(item) = self.item(member) else {
            let live = self.live(member);
            return MemberState {
                exists: live.is_some(),
                terminating: live.is_some_and(|live| live.terminating),
                message: live.filter(|live| live.terminating).map(held_by),
                ..MemberState::default()
            };
        };
        MemberState {
            exists: item.observed.is_some() || self.live(member).is_some(),
            terminating: item.observed.as_ref().is_some_and(|live| live.terminating),
            current: if self.is_rollout { self.target.is_newest(item) } else { item.is_current() },
            ready: item.ready.is_ok(),
            recreating: is_recreating(self.ctx, self.state, item),
            waits_for_turn: turn_holder(self.ctx, self.target, item)
                .map(|holder| format!("waits for {holder}")),
            message: self.refusal(item).or_else(|| Some(item.unready()).filter(|_| !item.is_settled())),
        }
    }

    fn pod(&self, wanted: &PodQuery<'_>) -> Result<Pod, String> {
        if wanted.of.is_some() {
            let found = find_pod(self.ctx, wanted, &mut |want| self.known(want));
            return found.map_err(|problem| problem.message);
        }
        let PodQuery { child, key, ordinal, .. } = *wanted;
        let is_wanted = |item: &&Item| key.is_none_or(|key| item.key.as_ref() == Some(key));
        let live =
            self.items(child).filter(is_wanted).filter_map(|item| Some((item, item.observed.as_ref()?)));
        let mut message = None;
        for (item, observed) in live {
            if observed.terminating {
                continue;
            }
            let object = &observed.object;
            if object.gvk.is("v1", "Pod") {
                // A step that names a key gets exactly that pod, ready or not.
                if key.is_some() || item.ready.is_ok() {
                    return Ok(pod(object, observed.uid.to_string()));
                }
                message = item.ready.clone().err().map(|why| format!("{}: {why}", item.name));
                continue;
            }
            message = match pod_of(observed, ordinal, &mut |want| self.known(want)) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => Some(format!("{} has no ready pod", item.name)),
                Err(problem) => Some(format!("{}: {}", item.name, problem.message)),
            };
        }
        Err(message.unwrap_or_else(|| format!("{child} has no pod")))
    }

    fn job(&self, name: &str) -> JobState {
        if let Some(reason) = &self.plans.unknown {
            return JobState::Unknown(reason.clone());
        }
        let Some(job) = self.plans.jobs.iter().find(|job| job["metadata"]["name"] == name) else {
            let is_taken = self.plans.calls.taken.contains(name);
            return if is_taken { JobState::Foreign } else { JobState::Absent };
        };
        // Anybody who may create Jobs can give them this name and these labels.
        if job["metadata"]["annotations"][names::RUN_PROOF] != self.instance.proof(name) {
            return JobState::Foreign;
        }
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        JobState::Found(Job {
            object: RunRef::of(job),
            terminating: !job["metadata"]["deletionTimestamp"].is_null(),
            result: job_end(job)
                .map(|_| self.plans.calls.jobs.get(uid).cloned().unwrap_or(JobResult::Reading)),
            has_ttl: !job["spec"]["ttlSecondsAfterFinished"].is_null(),
            ..self.started(job)
        })
    }

    fn run(&self, of: &Of, name: &str) -> OtherRun {
        if let Some(reason) = &self.plans.unknown {
            return OtherRun::Unknown(reason.clone());
        }
        let is_taken = self.plans.calls.taken.contains(name);
        let own = self.instance.called_by();
        let is_own = |run: &&PlanRun| {
            run.annotations.get(names::CALLED_BY) == Some(&own)
                && (&run.spec.of.name, &run.spec.of.kind) == (&of.name, &of.kind)
        };
        let named = self.plans.others.iter().find(|run| run.name == name);
        match named.filter(is_own) {
            None if named.is_some() || is_taken => OtherRun::Foreign,
            None => OtherRun::Absent,
            Some(run) => OtherRun::Found {
                object: reference(run),
                phase: run.phase(),
                message: run.status.as_ref().map(|status| status.message.clone()).unwrap_or_default(),
                recorded: run
                    .status
                    .iter()
                    .flat_map(|status| &status.record)
                    .map(|(key, fact)| (key.clone(), fact.value.clone()))
                    .collect(),
            },
        }
    }

    fn secret(&self, member: &Member) -> Result<Option<LiveSecret>, String> {
        let observed =
            self.item(member).and_then(|item| item.observed.as_deref()).or_else(|| self.live(member));
        let Some(observed) = observed.filter(|observed| !observed.terminating) else { return Ok(None) };
        let found = self.known(ResourceSelector {
            gvk: Gvk::new("v1", "Secret"),
            namespace: observed.object.namespace.as_deref().map(Into::into),
            select: Select::Name((&*observed.object.name).into()),
            keep: FieldProjection {
                paths: [vec!["data".to_owned()], vec!["metadata".to_owned()]].into(),
                content: true,
            },
        });
        let found = found.map_err(|problem| problem.message)?;
        let is_it = |secret: &&Arc<Referred>| secret.value["metadata"]["uid"] == *observed.uid;
        let Some(secret) = found.iter().find(is_it) else {
            return Err(format!("Secret {} is being read", observed.object.name));
        };
        Ok(Some(LiveSecret {
            object: RunRef::of(&secret.value),
            data: SecretOutputs(secret.value["data"].as_object().cloned().unwrap_or_default()),
        }))
    }

    fn unread(&self, step: &str) -> Option<String> {
        self.stored_secrets(step).err().map(|problem| problem.message)
    }

    fn has_stored(&self, step: &str) -> bool {
        self.plans.calls.stored.contains(&CallKey::new(&self.run.uid, step, 0))
    }

    fn secrets(&self, step: &str) -> Option<Map<String, Value>> {
        self.stored_secrets(step).ok().flatten()
    }

    fn call(&self, step: &str, attempt: u32) -> CallState<'_> {
        let key = CallKey::new(&self.run.uid, step, attempt);
        match self.plans.calls.requests.get(&key).map(|call| &**call) {
            None => CallState::Unknown,
            Some(Call::Intended(request)) => CallState::Intended(request),
            Some(Call::InFlight) => CallState::InFlight,
            Some(Call::Answered(answer)) => CallState::Answered(answer),
            Some(Call::Failed(failure, request)) => CallState::Failed(failure, request.as_ref()),
        }
    }
}

/// The Secret that holds the secret outputs of a run.
fn outputs_selector(plans: &PlanSnapshot, run: &PlanRun) -> ResourceSelector {
    ResourceSelector {
        gvk: Gvk::new("v1", "Secret"),
        namespace: Some(plans.namespace.as_str().into()),
        select: Select::Name(outputs_name(run).into()),
        keep: FieldProjection { paths: [vec!["data".to_owned()]].into(), content: true },
    }
}

fn pod(object: &ObjectRef, uid: String) -> Pod {
    let namespace = object.namespace.as_deref().unwrap_or_default().to_owned();
    Pod { namespace, name: object.name.to_string(), uid }
}

fn held_by(live: &Observed) -> String {
    match &live.held_by[..] {
        [] => "is being deleted".to_owned(),
        finalizers => format!("is being deleted, held by finalizer {}", finalizers.join(", ")),
    }
}
