//! What is remembered of the CRDs of one package, and what follows from it. A package is active once all its CRDs are
//! ready.

use std::sync::Arc;
use std::time::Duration;

use super::child_scope::{ChildScope, ChildScopeUsage};
use super::compare::{claimed, taken_by_both};
use super::history::{CHANGES, CrdHistory, CrdOutcome, WINDOW};
use super::losses::NARROWED;
use super::model::{CrdState, CrdVersion, ManagerIdentity};
use crate::diag::Diagnostic;
use crate::package::Package;

/// How long the server may take to establish a CRD before that is reported: many large ones at once keep it busy.
const ESTABLISH: Duration = Duration::from_secs(120);
/// How long until a refused CRD is read again if no event comes.
const REFUSED: Duration = Duration::from_secs(300);
/// The code of a CRD that is not served yet.
const NOT_ESTABLISHED: &str = "crd::not-established";
/// The code of a revision that needs rights that the manager or the account of its package does not have.
pub const RIGHTS_LACKING: &str = "rights::missing";
/// The code of a CRD whose stored objects are being migrated before a version is removed.
pub const MIGRATING: &str = "crd::migrating";

/// The CRDs of one package. Times count from the start of the manager.
#[derive(Debug)]
pub struct PackageCrds {
    /// The package.
    pub package: Arc<Package>,
    /// Whether all its CRDs have been ready: its instances are reconciled from then on.
    pub is_active: bool,
    crds: Vec<CrdHistory>,
    acceptance: Option<Acceptance>,
    wait: Wait,
    pending_since: Option<Duration>,
    /// Whether the package was withdrawn: it stays inactive, and nothing is done about its CRDs.
    is_withdrawn: bool,
}

/// Why a package is not active, or why its CRDs are not as it wants them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// The problems; none if all is well.
    pub problems: Vec<Diagnostic>,
    /// Whether they may pass without a change of the package or of the CRD.
    pub is_temporary: bool,
}

/// What the next reconcile waits for, beside events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Only an event starts the next reconcile.
    Event,
    /// The backoff after a failure.
    Backoff,
    /// A point in time.
    Until(Duration),
}

/// Something to report.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    /// Log a problem with the package.
    Problem(Diagnostic),
    /// Publish a Warning on the CRD of that position: with reason and text.
    Warning(usize, &'static str, String),
    /// The CRD of that position names another manager, by its Lease.
    OtherManager(usize, String),
}

impl PackageCrds {
    /// A package of which nothing is known yet.
    pub fn new(package: Arc<Package>) -> Self {
        let crds = package.resources.iter().map(|_| CrdHistory::default()).collect();
        Self {
            package,
            is_active: false,
            crds,
            acceptance: None,
            wait: Wait::Event,
            pending_since: None,
            is_withdrawn: false,
        }
    }

    /// Marks the package as active only until another revision of it takes over, as before the restart.
    #[must_use]
    pub fn standing_in(mut self) -> Self {
        self.crds.iter_mut().for_each(CrdHistory::stand_in);
        self
    }

    /// Withdraws the package: it is inactive from now on, and nothing is done about its CRDs.
    pub fn withdraw(&mut self) {
        (self.is_active, self.is_withdrawn, self.wait) = (false, true, Wait::Event);
        self.acceptance = Some(Acceptance { problems: Vec::new(), is_temporary: false });
        self.crds.fill(CrdHistory::default());
    }

    /// Whether the package was withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    /// Has the CRDs read again if there were problems: a refusal may be over.
    pub fn read_again(&mut self) {
        if self.acceptance.as_ref().is_some_and(|found| !found.problems.is_empty()) {
            self.wait = Wait::Backoff;
        }
    }

    /// Has the CRDs read again.
    pub fn read_crds(&mut self) {
        self.wait = Wait::Backoff;
    }

    /// What is remembered of its CRDs, in the order of its resources.
    pub fn crds(&self) -> &[CrdHistory] {
        &self.crds
    }

    /// What is remembered of the CRD at that position, to be changed.
    pub fn crd_mut(&mut self, position: usize) -> &mut CrdHistory {
        &mut self.crds[position]
    }

    /// The position of a CRD among its resources.
    pub fn position(&self, crd: &str) -> Option<usize> {
        if self.is_withdrawn { None } else { self.package.position(crd) }
    }

    /// What the last reconcile has found; `None` before the first.
    pub fn acceptance(&self) -> Option<&Acceptance> {
        self.acceptance.as_ref()
    }

    /// Whether all its CRDs have been ready and exist, but for those that were handed over.
    pub fn is_complete(&self) -> bool {
        let is_settled = |crd: &CrdHistory| crd.info().is_some() || crd.handed_over().is_some();
        !self.is_withdrawn && self.crds.iter().all(is_settled)
    }

    /// Whether it has a CRD, which was not handed over.
    pub fn keeps(&self, crd: &str) -> bool {
        self.position(crd).is_some_and(|position| self.crds[position].handed_over().is_none())
    }

    /// The last seen version of a CRD that the package has had and not handed over.
    pub fn had(&self, crd: &str) -> Option<&CrdVersion> {
        let crd = &self.crds[self.position(crd)?];
        crd.seen().filter(|_| crd.info().is_some() && crd.handed_over().is_none())
    }

    /// Its CRDs that were handed over, and the package that each was handed over to.
    pub fn handed_over(&self) -> impl Iterator<Item = (&str, &str)> {
        let crds = self.crds.iter().zip(&self.package.resources);
        crds.filter_map(|(crd, resource)| Some((resource.crd_name(), crd.handed_over()?)))
    }

    /// Remembers that a CRD was handed over to the package `to`.
    pub fn hand_over(&mut self, crd: &str, to: &str) {
        if let Some(position) = self.position(crd) {
            self.crds[position].hand_over(to);
        }
    }

    /// Why the package is not active.
    pub fn obstacle(&self) -> &str {
        let first = self.acceptance.as_ref().and_then(|found| found.problems.first());
        first.map_or("its CRDs are being registered", |problem| &problem.message)
    }

    /// Whether both have a CRD in common.
    pub fn shares_a_crd(&self, other: &Self) -> bool {
        self.package.resources.iter().any(|resource| other.position(resource.crd_name()).is_some())
    }

    /// The refusals of CRDs that an active package has already, whatever their labels say. `takes`: whether the first package
    /// is to take a CRD from the second.
    pub fn claims<'a>(
        &self,
        active: impl Iterator<Item = &'a Self>,
        takes: &dyn Fn(&str, &str, &str) -> bool,
    ) -> Vec<Diagnostic> {
        let name = &*self.package.name;
        let claim = |other: &Self, crd: &str| {
            let position = other.position(crd).filter(|_| other.keeps(crd))?;
            let owner = &*other.package.name;
            let info = other.crds[position].info();
            match (takes(name, crd, owner), takes(owner, crd, name)) {
                (true, false) => None,
                // The live CRD says that it was handed over.
                _ if info.is_some_and(|info| info.former.iter().any(|former| **former == *name)) => None,
                (true, true) => Some(taken_by_both(crd, owner, name)),
                (false, _) => Some(claimed(crd, owner, name)),
            }
        };
        let others: Vec<&Self> = active.collect();
        let resources = &self.package.resources;
        let found = resources.iter().flat_map(|resource| {
            let claims = others.iter().filter_map(|other| claim(other, resource.crd_name()));
            claims.map(|claim| claim.located(resource.crd_location.clone()))
        });
        found.collect()
    }

    /// Whether its CRDs are to be read. `live`: the version of each that the watch has shown last; `is_complete`: whether
    /// the watch has shown all.
    pub fn is_read_due(
        &self,
        live: impl Fn(&str) -> Option<CrdVersion>,
        is_complete: bool,
        now: Duration,
    ) -> bool {
        if self.is_withdrawn {
            return false;
        }
        let resources = self.package.resources.iter();
        self.acceptance.is_none()
            || match self.wait {
                Wait::Event => false,
                Wait::Backoff => true,
                Wait::Until(at) => at <= now,
            }
            || self.crds.iter().zip(resources).any(|(crd, resource)| {
                let live = live(resource.crd_name());
                crd.is_read_due(now) || (crd.is_news(live.as_ref()) && (is_complete || live.is_some()))
            })
    }

    /// When the next reconcile is due if no event comes.
    pub fn wait(&self) -> Wait {
        let due = self.crds.iter().filter_map(CrdHistory::due_at).min().map_or(Wait::Event, Wait::Until);
        match (self.wait, due) {
            (Wait::Until(at), Wait::Until(due)) => Wait::Until(at.min(due)),
            (Wait::Event, due) => due,
            (wait, _) => wait,
        }
    }

    /// Remembers the result of a reconcile of all its CRDs.
    pub fn record(
        &mut self,
        outcomes: Vec<CrdOutcome>,
        manager: ManagerIdentity<'_>,
        now: Duration,
    ) -> Vec<Finding> {
        let (mut findings, mut problems, mut pending) = (Vec::new(), Vec::new(), Vec::new());
        let (mut is_temporary, mut after, mut turn) = (false, None, None);
        for (position, outcome) in outcomes.into_iter().enumerate() {
            let needed = ChildScope::needed(&self.package.resources[position], manager.namespace);
            let shown = self.crds[position].record(&outcome, &needed, now);
            let other = shown.new_lease.filter(|lease| lease != manager.lease);
            findings.extend(other.map(|lease| Finding::OtherManager(position, lease)));
            if let Some(writer) = shown.changed_by {
                let restored = || format!("{writer} has changed it; what Operetta needs has been restored");
                let conflict = self.conflict_message(position);
                let (reason, text) = conflict
                    .map_or_else(|| ("CRDRestored", restored()), |text| ("CRDFieldManagerConflict", text));
                findings.push(Finding::Warning(position, reason, text));
            }
            match outcome.state {
                CrdState::Ready(_) | CrdState::Conflicted(_) | CrdState::HandedOver(_) => {}
                CrdState::Pending(why) => pending.push((NOT_ESTABLISHED, why)),
                CrdState::Migrating(why, wait) => {
                    turn = Some(turn.map_or(wait, |other: Duration| other.min(wait)));
                    pending.push((MIGRATING, why));
                }
                CrdState::Refused(problem) => {
                    if problem.code == NARROWED && !self.has_reported(&problem) {
                        findings.push(Finding::Warning(position, "SchemaRefused", problem.message.clone()));
                    }
                    problems.push(problem);
                }
                CrdState::Failed(problem, wait) => {
                    is_temporary = true;
                    after = after.max(wait);
                    problems.push(problem);
                }
            }
        }
        if !problems.is_empty() {
            self.wait = match after {
                Some(after) => Wait::Until(now + after),
                None if is_temporary => Wait::Backoff,
                None => Wait::Until(now + REFUSED),
            };
        } else if !pending.is_empty() {
            self.wait = turn.map_or(Wait::Backoff, |wait| Wait::Until(now + wait));
            let since = *self.pending_since.get_or_insert(now);
            if now.saturating_sub(since) < ESTABLISH {
                return findings;
            }
            is_temporary = true;
            let seconds = ESTABLISH.as_secs();
            problems.extend(
                pending
                    .iter()
                    .map(|(code, why)| Diagnostic::error(code, format!("{why}, for more than {seconds} s"))),
            );
        } else {
            (self.wait, self.pending_since) = (Wait::Event, None);
        }
        findings.extend(self.judge(Acceptance { problems, is_temporary }));
        findings
    }

    /// Remembers that other packages have some of its CRDs.
    pub fn record_claims(&mut self, problems: Vec<Diagnostic>, now: Duration) -> Vec<Finding> {
        self.wait = Wait::Until(now + REFUSED);
        self.judge(Acceptance { problems, is_temporary: false })
    }

    /// Remembers that a reconcile has panicked; the queue tries again.
    pub fn record_panic(&mut self, panic: &str) -> Vec<Finding> {
        let problem = Diagnostic::error("crd::panic", format!("the reconcile of the CRDs panicked: {panic}"))
            .help("this is a bug of Operetta; the reconcile is tried again");
        self.wait = Wait::Backoff;
        self.judge(Acceptance { problems: vec![problem], is_temporary: true })
    }

    /// Remembers that a CRD is gone. Returns whether it was served before.
    pub fn record_gone(&mut self, crd: &str, uid: &str) -> bool {
        self.position(crd).is_some_and(|position| self.crds[position].record_gone(uid))
    }

    /// Checks the records of its CRDs for unused parts, where that is due.
    pub fn record_usage(
        &mut self,
        manager: ManagerIdentity<'_>,
        usage: impl Fn(&str, &ChildScope, &ChildScope) -> ChildScopeUsage,
        now: Duration,
    ) {
        for (position, crd) in self.crds.iter_mut().enumerate().filter(|_| self.is_active) {
            let Some(info) = crd.info().filter(|_| crd.is_check_due(now)) else { continue };
            let resource = &self.package.resources[position];
            let needed = ChildScope::needed(resource, manager.namespace);
            let usage = usage(resource.crd_name(), &info.record, &needed);
            crd.record_check(&usage, &needed, now);
        }
    }

    /// What instances and Events say of a CRD that another client changes repeatedly.
    pub fn conflict_message(&self, position: usize) -> Option<String> {
        let crd = &self.crds[position];
        let (writer, info) = crd.conflicting_writer().zip(crd.info())?;
        let lost =
            if info.has_status { "" } else { " No instance can be written without its status subresource." };
        let (name, package) = (self.package.resources[position].crd_name(), &self.package.name);
        let minutes = WINDOW.as_secs() / 60;
        Some(format!(
            "the CRD {name} was changed {CHANGES} times within {minutes} minutes, last by {writer}, so that it lacks what \
             Operetta adds. It is left as it is.{lost} Keep the output of `operetta crd` for the package {package} where \
             the CRD comes from."
        ))
    }

    fn has_reported(&self, problem: &Diagnostic) -> bool {
        self.acceptance.as_ref().is_some_and(|acceptance| {
            acceptance.problems.iter().any(|reported| reported.message == problem.message)
        })
    }

    /// Keeps the acceptance and returns its problems if they have changed. The process that starts the manager
    /// reports the first acceptance.
    fn judge(&mut self, acceptance: Acceptance) -> Vec<Finding> {
        let before = self.acceptance.replace(acceptance.clone());
        let is_news = before.is_some_and(|before| before.problems != acceptance.problems);
        let problems = acceptance.problems.into_iter().filter(|_| is_news);
        problems.map(Finding::Problem).collect()
    }
}
