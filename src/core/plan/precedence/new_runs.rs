//! The runs that the manager itself creates: rollouts, and runs for losses, conditions and schedules.

use super::super::condition::ConditionState;
use super::super::member::Member;
use super::super::run::{Cause, Phase, PlanRun};
use super::super::select::DEPLOY;
use super::rows::Difference;
use super::{NEWER_REVISION, NewRun, REFS_CHANGED, Rules, RunWrite, is_exclusive};

impl<'a> Rules<'a> {
    /// Ends rollouts that newer changes replace.
    pub(super) fn conclude_rollouts(&mut self) {
        let situation = self.situation;
        for run in self.open() {
            let Some(status) = &run.status else { continue };
            if status.cause != Cause::Rollout {
                continue;
            }
            if run.phase() == Phase::Running {
                let Some(name) = status.origin.as_deref().filter(|name| *name != situation.newest.name)
                else {
                    continue;
                };
                let origin = situation.origins.iter().find(|origin| origin.name == name);
                if !self.is_interruptible(run) {
                    continue;
                }
                if origin.is_none_or(|origin| origin.spec != situation.newest.spec) {
                    self.settle(run, Phase::Superseded, "NewerSpec", "a newer spec takes its place");
                } else if status.only_asks() {
                    let is_other_package =
                        origin.is_some_and(|origin| origin.revision != situation.newest.revision);
                    let (reason, message) = if is_other_package {
                        (
                            NEWER_REVISION,
                            "another revision of the package takes its place while it waits for approval",
                        )
                    } else {
                        (REFS_CHANGED, "what the instance reads has changed while it waits for approval")
                    };
                    self.settle(run, Phase::Superseded, reason, message);
                }
            } else if run.spec.retry_of.is_none() && situation.rollout.is_none() {
                self.end(run, Phase::Superseded, "NothingToDo", "nothing is left to be rolled out");
            } else if run.phase() == Phase::Interrupted && self.may_go_on(run) {
                self.end(run, Phase::Superseded, "DecidedAgain", "the rollout is decided again");
            }
        }
    }

    /// Whether an interrupted run may start again: one that waits for approval only after another answer.
    pub(super) fn may_go_on(&self, run: &PlanRun) -> bool {
        let parked = run.status.as_ref().and_then(|status| status.parked);
        let is_alone = || {
            let others =
                self.open().into_iter().filter(|other| other.name != run.name && !self.is_held(other));
            others.into_iter().all(|other| !is_exclusive(other, self.situation.plans))
        };
        parked.is_none_or(|answers| run.spec.approvals.len() > answers) || is_alone()
    }

    /// Whether a run may be interrupted. For a run that has begun, its own revision decides.
    pub(super) fn is_interruptible(&self, run: &PlanRun) -> bool {
        let status = run.status.as_ref();
        let stored = status.and_then(|status| status.step_interruptible.or(status.interruptible));
        let named = run.status.iter().flat_map(|status| &status.plans).chain([&run.spec.plan]);
        stored.unwrap_or_else(|| self.allows_interruption(named))
    }

    /// Whether all of these plans may be interrupted, as the newest revision says.
    pub(super) fn allows_interruption<'n>(&self, named: impl IntoIterator<Item = &'n String>) -> bool {
        let plans = self.situation.plans;
        let mut plans = named.into_iter().filter_map(|name| plans.iter().find(|plan| plan.name == *name));
        plans.all(|plan| plan.interruptible)
    }

    /// Creates the run that is needed most.
    pub(super) fn create_runs(&mut self) {
        self.note_repeating();
        // Runs that are created now would wait, and could not be distinguished from those that others create.
        if self.situation.paused || self.unprotected().is_some() {
            return;
        }
        let new = self.for_losses().or_else(|| self.for_conditions()).or_else(|| self.for_rollout());
        if let Some(new) = new {
            self.propose(RunWrite::Create(new));
        }
        self.for_schedules();
    }

    /// A run with the next number. A name that another PlanRun holds, such as one of another kind's instance of the same
    /// name, is passed over.
    pub(super) fn numbered(&self) -> NewRun {
        let highest = self.situation.runs.iter().filter_map(PlanRun::number).max().unwrap_or_default();
        let highest = highest.max(self.situation.number);
        let instance = self.situation.instance;
        let mut names = (highest.saturating_add(1)..).map(|number| format!("{instance}-{number}"));
        let name = names.find(|name| !self.situation.occupied.contains(name));
        NewRun { name: name.unwrap_or_default(), ..NewRun::default() }
    }

    /// The newest run with that cause and plan.
    fn newest(&self, cause: Cause, plan: &str) -> Option<&'a PlanRun> {
        let is_such = |run: &&&PlanRun| run.cause() == cause && run.spec.plan == plan;
        self.runs.iter().rev().find(is_such).copied()
    }

    fn for_losses(&mut self) -> Option<NewRun> {
        let mut wanted = None;
        for (plan, _) in &self.situation.losses {
            let unattended = self.unattended(plan, None);
            if unattended.is_empty() || self.loss_waits(plan, &unattended) {
                continue;
            }
            let new = NewRun { plan: plan.clone(), cause: Cause::Loss, ..self.numbered() };
            wanted.get_or_insert(new);
        }
        wanted
    }

    /// The lost children that no run of that plan is for. `new`: a run that does not count, because it is
    /// about to take note of them.
    pub(super) fn unattended(&self, plan: &str, new: Option<&PlanRun>) -> Vec<Member> {
        let is_for_losses = |run: &&&PlanRun| run.cause() == Cause::Loss && run.spec.plan == plan;
        // A run that is being ended counts until it has ended.
        let is_open = |run: &&&PlanRun| !run.is_final() && new.is_none_or(|new| run.name != new.name);
        let attended = |member: &&Member| {
            let runs = self.runs.iter().filter(is_for_losses).filter(is_open);
            // A run without a state is for all that are lost when it gets one.
            let mut runs =
                runs.filter(|run| run.status.as_ref().is_none_or(|status| status.lost.contains(member)));
            match (runs.next(), runs.next()) {
                (None, _) => false,
                // What it has restored is lost again. There is one more run at most, however often that happens.
                (Some(run), None) => run.status.as_ref().is_none_or(|status| !status.has_created(member)),
                (Some(_), Some(_)) => true,
            }
        };
        self.lost(plan).filter(|member| !attended(member)).cloned().collect()
    }

    fn for_conditions(&mut self) -> Option<NewRun> {
        let mut wanted = None;
        for (plan, verdict) in &self.situation.conditions {
            if self.open().iter().any(|run| run.cause() == Cause::Condition && run.spec.plan == *plan) {
                continue;
            }
            // A failed run that has recorded facts is half done: it is resumed, whatever the condition says
            // now.
            let half_done = self.newest(Cause::Condition, plan).filter(|run| {
                let status = run.status.as_ref();
                let has_recorded = run.has_recorded || status.is_some_and(|status| !status.record.is_empty());
                status.is_some_and(|status| status.phase == Phase::Failed && has_recorded)
            });
            let is_due = half_done.is_some() || *verdict == ConditionState::Due;
            if let ConditionState::Holding(rest) | ConditionState::Cooldown(rest) = verdict
                && !is_due
            {
                self.wake_after(*rest);
                self.note_staying(plan, *rest);
            }
            if is_due && !self.condition_waits(plan) {
                let retry_of = half_done.map(|failed| failed.name.clone());
                let new = NewRun { plan: plan.clone(), cause: Cause::Condition, retry_of, ..self.numbered() };
                wanted.get_or_insert(new);
            }
        }
        wanted
    }

    fn for_rollout(&mut self) -> Option<NewRun> {
        let rollout = self.situation.rollout.as_ref()?;
        if self.open().iter().any(|run| run.cause() == Cause::Rollout) || self.is_ending_rollout() {
            return None;
        }
        let plan = rollout.plans.first().map_or(DEPLOY, String::as_str);
        // A failed rollout is tried again with another spec or revision, if a ref changes that matters to it, or at the request of
        // a person.
        if let Some(last) = self.last_rollout()
            && matches!(last.phase, Phase::Failed | Phase::Cancelled)
            && last.origin.as_deref().is_some_and(|name| self.difference(name) == Difference::None)
        {
            return None;
        }
        if self.rollout_waits(plan) {
            return None;
        }
        Some(NewRun { plan: plan.to_owned(), cause: Cause::Rollout, ..self.numbered() })
    }

    /// Whether a rollout is active, though it is being ended.
    fn is_ending_rollout(&self) -> bool {
        self.runs.iter().any(|run| run.cause() == Cause::Rollout && run.phase() == Phase::Running)
    }

    fn for_schedules(&mut self) {
        for (plan, name, at) in &self.situation.due {
            let named = |name: &str| self.situation.runs.iter().find(|run| run.name == name);
            if named(name).is_some_and(|run| run.cause() == Cause::Schedule) {
                continue;
            }
            // Users may request a run under any name.
            let is_free = |name: &String| !self.situation.occupied.contains(name) && named(name).is_none();
            let more = (2u32..).map(|number| format!("{name}-{number}"));
            let mut names = std::iter::once(name.clone()).chain(more);
            let name = names.find(is_free).unwrap_or_default();
            let new = NewRun {
                name,
                plan: plan.clone(),
                cause: Cause::Schedule,
                scheduled_at: Some(*at),
                ..NewRun::default()
            };
            self.propose(RunWrite::Create(new));
        }
    }
}
