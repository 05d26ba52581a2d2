//! The controllers of workloads and the kubelet. Each is a function of the state and the time that brings one object a step
//! further and returns when it has to look again. A set of work says which objects have to be looked at, so that a cluster at
//! rest costs nothing.

mod balancers;
mod client;
pub(crate) mod crds;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
mod endpoints;
mod exec;
mod garbage;
mod job;
mod job_index;
mod job_policy;
mod kubelet;
mod namespaces;
mod node;
mod ownership;
mod parts;
mod pod_status;
mod quota;
mod replicaset;
mod revisions;
mod roles;
mod rollout;
mod scheduler;
mod set_claims;
mod statefulset;
#[cfg(test)]
mod tests;
mod volumes;

use jiff::Timestamp;
use operetta_kube_model::facts::time;

use crate::api::Api;
use crate::crd::CRDS;
use crate::state::lateness::Lateness;
use crate::state::policies::Policies;
use crate::state::{Active, Store};
use crate::verbs::accounts;
use crate::work::Controller;

impl Api {
    /// Lets the controllers act once. Returns whether one of them changed something. Once it has returned false, nothing
    /// happens before [`Api::next_due`] or a write.
    pub fn tick(&mut self, now: Timestamp) -> bool {
        let before = self.state.store.version();
        let active = self.state.active;
        if active == Active::All && !self.controllers.is_set_up {
            self.controllers.is_set_up = true;
            node::set_up(self, now);
        }
        self.state.inform(now);
        let is_late = self.state.lateness.is_some();
        let controllers = &mut self.controllers;
        let seen = controllers.observe(&self.state, now);
        controllers.wake(now);
        let policies = Policies::latest(self.state.known());
        if std::mem::replace(&mut controllers.policies, policies) != policies {
            controllers.work.append(&mut controllers.refused);
        }
        if std::mem::take(&mut controllers.kubelet.is_stirred) {
            let running = controllers.kubelet.runs.keys().map(|key| (Controller::Pods, key.clone()));
            controllers.work.extend(running);
        }
        let work = std::mem::take(&mut controllers.work);
        let garbage = std::mem::take(&mut controllers.garbage);
        if seen.any || !garbage.is_empty() {
            let text = time(now);
            let has_manager = active != Active::Server;
            if has_manager {
                roles::aggregate(self, now);
            }
            if !is_late && (seen.crds || has_deleting(&self.state.store, CRDS)) {
                crds::tick(&mut self.state, &text);
            }
            accounts::give(&mut self.state, seen.namespaces.iter().map(|name| &**name), now);
            if has_manager {
                if !is_late {
                    namespaces::terminate_all(&mut self.state, &text);
                }
                garbage::collect(&mut self.state, &garbage, &text);
                roles::aggregate(self, now);
            }
        }
        for (controller, key) in work {
            let due = sync(controller, self, &key, now);
            if std::mem::take(&mut self.controllers.was_refused) {
                self.controllers.refused.insert((controller, key.clone()));
            }
            self.controllers.set_due(controller, &key, due, now);
        }
        self.state.inform(now);
        self.state.store.version() != before
    }

    /// The next time at which something happens by itself.
    pub fn next_due(&self) -> Option<Timestamp> {
        let by_time = self.controllers.by_time.first().map(|(time, ..)| *time);
        let later = self.controllers.later.first().map(|(time, _)| *time);
        let known = self.state.lateness.as_ref().and_then(Lateness::next);
        [by_time, later, known].into_iter().flatten().min()
    }
}

fn has_deleting(store: &Store, resource: &str) -> bool {
    store.range(resource, "", None).any(|(_, object)| object.is_deleting)
}

/// Brings an object a step further. Returns when it has to be looked at again, if nothing happens before.
fn sync(controller: Controller, api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    match controller {
        Controller::Quotas => quota::sync(api, key, now),
        Controller::CronJobs => cronjob::sync(api, key, now),
        Controller::Jobs => job::sync(api, key, now),
        Controller::Deployments => deployment::sync(api, key, now),
        Controller::ReplicaSets => replicaset::sync(api, key, now),
        Controller::StatefulSets => statefulset::sync(api, key, now),
        Controller::DaemonSets => daemonset::sync(api, key, now),
        Controller::Claims => volumes::sync_claim(api, key, now),
        Controller::Volumes => volumes::sync_volume(api, key, now),
        Controller::Attributes => volumes::sync_attributes(api, key, now),
        Controller::Pods => {
            job::release_orphan(api, key, now);
            kubelet::sync(api, key, now)
        }
        Controller::Endpoints => {
            balancers::sync(api, key, now);
            endpoints::sync(api, key, now)
        }
        Controller::Budgets => disruption::sync(api, key, now),
        Controller::Namespaces => {
            namespaces::terminate(&mut api.state, key, &time(now));
            namespaces::due(&api.state, key, now)
        }
        Controller::Crds => {
            crds::tick(&mut api.state, &time(now));
            None
        }
    }
}
