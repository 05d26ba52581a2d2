//! Requests of steps that take longer than a reconcile may: they run beside the queue. Their results are kept
//! until the run has stored them; an answer queues the instance.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::index::InstanceKey;
use crate::children::plans::{Call, Calls as OfInstance};
use crate::cluster::{Tenant, TenantLimits, TenantPermit};
use crate::plan::{CallKey, JobResult, SecretOutputs};

/// How many requests the namespaces of a package share. Each may take minutes.
const AT_ONCE: usize = 64;

/// All requests of steps that this process knows.
pub(super) struct Calls {
    known: Mutex<HashMap<InstanceKey, OfInstance>>,
    limits: TenantLimits,
}

impl Default for Calls {
    fn default() -> Self {
        Self { known: Mutex::default(), limits: TenantLimits::new(AT_ONCE) }
    }
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceKey, OfInstance>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a package may send one more request for an instance. `is_deleting`: whether the instance is being deleted.
    pub(super) async fn permit(&self, operator: &str, key: &InstanceKey, is_deleting: bool) -> TenantPermit {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let tenant = if is_deleting { Tenant::deletion(namespace) } else { Tenant::of(namespace) };
        self.limits.permit(operator, &tenant).await
    }

    /// What is known of the requests of an instance.
    pub(super) fn of(&self, key: &InstanceKey) -> OfInstance {
        self.lock().get(key).cloned().unwrap_or_default()
    }

    /// Records the state of a request.
    pub(super) fn set(&self, key: &InstanceKey, call: CallKey, state: Call) {
        self.lock().entry(key.clone()).or_default().requests.insert(call, Arc::new(state));
    }

    /// Marks a request as sent; `false` if it was before.
    pub(super) fn begin(&self, key: &InstanceKey, call: &CallKey) -> bool {
        let mut known = self.lock();
        let requests = &mut known.entry(key.clone()).or_default().requests;
        let sent = requests.get(call).map(|call| &**call);
        if matches!(sent, Some(Call::InFlight | Call::Answered(_))) {
            return false;
        }
        requests.insert(call.clone(), Arc::new(Call::InFlight));
        true
    }

    /// Marks the pods of a Job as being read; `false` if they were before.
    pub(super) fn begin_job(&self, key: &InstanceKey, uid: &str) -> bool {
        let mut known = self.lock();
        let jobs = &mut known.entry(key.clone()).or_default().jobs;
        let is_new = !jobs.contains_key(uid);
        if is_new {
            jobs.insert(uid.into(), JobResult::Reading);
        }
        is_new
    }

    /// Records the result of a finished Job.
    pub(super) fn set_job(&self, key: &InstanceKey, uid: &str, result: JobResult) {
        self.lock().entry(key.clone()).or_default().jobs.insert(uid.into(), result);
    }

    /// Records that the secret outputs of a step are stored.
    pub(super) fn set_secrets(&self, key: &InstanceKey, step: CallKey, values: SecretOutputs) {
        self.lock().entry(key.clone()).or_default().secrets.insert(step, values);
    }

    /// Records that the answer of a step is written into a Secret.
    pub(super) fn set_stored(&self, key: &InstanceKey, step: CallKey) {
        self.lock().entry(key.clone()).or_default().stored.insert(step);
    }

    /// Records that another object has the name of a Job or PlanRun of a step.
    pub(super) fn set_taken(&self, key: &InstanceKey, name: &str) {
        self.lock().entry(key.clone()).or_default().taken.insert(name.into());
    }

    /// Forgets a Job whose pods could not be read, so that they are read again.
    pub(super) fn forget_job(&self, key: &InstanceKey, uid: &str) {
        if let Some(known) = self.lock().get_mut(key) {
            known.jobs.remove(uid);
        }
    }

    /// Forgets what no run of the instance awaits any more.
    pub(super) fn keep(
        &self,
        key: &InstanceKey,
        awaited: &dyn Fn(&CallKey) -> bool,
        jobs: &dyn Fn(&str) -> bool,
        runs: &dyn Fn(&str) -> bool,
        names: &dyn Fn(&str) -> bool,
    ) {
        let mut all = self.lock();
        let Some(known) = all.get_mut(key) else { return };
        known.requests.retain(|call, state| awaited(call) || matches!(**state, Call::InFlight));
        known.jobs.retain(|uid, _| jobs(uid));
        known.secrets.retain(|step, _| runs(&step.run));
        known.stored.retain(|step| runs(&step.run));
        known.taken.retain(|name| names(name));
        if known.requests.is_empty()
            && known.jobs.is_empty()
            && known.secrets.is_empty()
            && known.stored.is_empty()
            && known.taken.is_empty()
        {
            all.remove(key);
        }
    }
}
