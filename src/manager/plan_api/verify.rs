//! A live read of the admission policy of `PlanRun`s and of its binding. The manager watches both, and checks an event of either, but
//! policies and runs have different watches: a request or an answer may be seen before the removal of the policy that let it pass.
//!
//! - **What is checked:** that the policy and its binding have the uid and the generation with which they were checked last. If they
//!   do, they have not changed since, so the API server has checked everything that was written before the read.
//! - **When:** before a decision about an instance with a run whose request is new, or that has more answers than its status notes.
//!   Nothing is read while requests and answers do not count anyway.
//! - **What it costs:** two reads for each request and for each answer. Both are noted in the status of the run with the decision that
//!   follows, so a steady state costs nothing, and neither does a run that this process has created.
//! - **If the read fails or finds something else:** the reconciler of the policies checks all parts. Until then nothing new counts.
//!   Another manager that adds its exemption changes the generation, too; then the policy is whole, and requests count.
//! - **What it does not cover:** a change of the policy that was undone before it was checked first, and later changes of a run. That
//!   a run still requests what was admitted is checked by `RunStatus::request_digest`.

use tracing::warn;

use super::{Part, PlanApi, binding_kind, mark, policy_kind};
use crate::api::CallError;
use crate::cluster::Cluster;
use crate::plan::PlanRun;
use crate::plan::crds::POLICY;

/// How many runs may be remembered as verified before they are forgotten, and verified again.
const MOST: usize = 4096;

/// The uid of a run, and how many answers it has.
pub(in crate::manager) type Unverified = (Box<str>, usize);

impl PlanApi {
    /// Those of the runs whose request or answers are new, and not verified.
    pub(in crate::manager) fn unverified<'r>(
        &self,
        runs: impl Iterator<Item = &'r PlanRun>,
    ) -> Vec<Unverified> {
        let mut state = self.state();
        let mut found = Vec::new();
        for run in runs {
            let noted = run.status.as_ref().map_or(0, |status| status.answers.len());
            let answers = run.spec.approvals.len();
            if run.is_final() || !run.is_new() && answers <= noted {
                state.verified.remove(&*run.uid);
            } else if state.verified.get(&*run.uid).is_none_or(|verified| *verified < answers) {
                found.push((run.uid.as_str().into(), answers));
            }
        }
        found
    }

    /// Notes that this process has created a run: nobody else has requested it.
    pub(in crate::manager) fn created(&self, uid: &str) {
        self.state().verify([(uid.into(), 0)]);
    }

    /// Verifies what runs say. Returns false if the policy or its binding is not as it was checked last, or cannot be read: nothing
    /// counts until all parts are checked again.
    pub(in crate::manager) async fn verify(&self, cluster: &Cluster, runs: Vec<Unverified>) -> bool {
        let is_same = match self.is_as_checked(cluster).await {
            Ok(is_same) => is_same,
            Err(error) => {
                warn!(%error, "the admission policy of runs cannot be read");
                false
            }
        };
        let mut state = self.state();
        if is_same {
            state.verify(runs);
        } else {
            state.is_suspect = true;
            state.compare();
        }
        is_same
    }

    async fn is_as_checked(&self, cluster: &Cluster) -> Result<bool, CallError> {
        let mut is_same = true;
        for kind in [policy_kind(), binding_kind()] {
            let live = cluster.get(&kind, None, POLICY).await?.unwrap_or_default();
            let part: Part = (kind.kind.as_str().into(), POLICY.into());
            is_same &= self.state().checked.get(&part) == Some(&mark(&live));
        }
        Ok(is_same)
    }
}

impl super::State {
    fn verify(&mut self, runs: impl IntoIterator<Item = Unverified>) {
        if self.verified.len() > MOST {
            self.verified.clear();
        }
        self.verified.extend(runs);
    }
}
