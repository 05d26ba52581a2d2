//! How a package and its CRDs stand: what is known of them, and when they are looked at next. No I/O.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::consider::Facts;
use super::record::{Record, Spent};
use super::watch::Meta;
use crate::cluster::scattered;
use crate::diag::{self, Diagnostic};
use crate::package::Package;

/// How long the server may take to establish a CRD before that is told: many large ones at once keep it busy.
const ESTABLISH: Duration = Duration::from_secs(120);
/// How long until a look that failed is repeated: doubled each time, up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LAST: Duration = Duration::from_secs(300);
/// How long until what is awaited is looked at although no event has told of it: doubled likewise.
const AWAIT_FIRST: Duration = Duration::from_millis(50);
const AWAIT_LAST: Duration = Duration::from_secs(30);
/// How long until it is seen whether something on record has come to be of no use: doubled likewise. It costs no
/// request.
const SPENT_FIRST: Duration = Duration::from_secs(5);
const SPENT_LAST: Duration = Duration::from_secs(300);
/// A CRD that is put back so often within [`WINDOW`] is left to whoever does it, until they have let it be for
/// as long.
pub(super) const REVERTS: usize = 3;
pub(super) const WINDOW: Duration = Duration::from_secs(600);

/// A package that is to be in force.
pub(super) struct Entry {
    pub package: Arc<Package>,
    pub crds: Vec<Crd>,
    /// A look at it is under way.
    pub is_looking: bool,
    /// Something has happened meanwhile, which the look may or may not have seen.
    pub is_overtaken: bool,
    /// When it is looked at next.
    pub next: Option<Instant>,
    /// Looks in a row that came to nothing.
    pub failures: u32,
    /// Since when something is awaited.
    pub awaiting: Option<Instant>,
    /// What keeps it from being in force, and whether that may pass by itself; `None` before the first look.
    pub verdict: Option<(Vec<Diagnostic>, bool)>,
    /// What was told of that last.
    pub told: String,
    /// It is in force: its kinds are watched.
    pub is_published: bool,
}

/// A CRD of a package.
#[derive(Default)]
pub(super) struct Crd {
    pub facts: Option<Facts>,
    pub was_right: bool,
    /// When somebody put it back.
    pub reverts: Vec<Instant>,
    pub is_contested: bool,
    /// Who put it back last, while it is contested.
    pub contender: Option<String>,
    /// Its objects are to be listed once more when it is served everywhere.
    pub was_changed: bool,
    /// What is on record and of no use any more.
    pub spent: Spent,
    /// When it is looked whether something of the record has come to be of no use; `None` if it holds no more than the
    /// package needs.
    pub spent_at: Option<Instant>,
    /// How often that was looked for.
    pub unspent: u32,
}

impl Entry {
    pub(super) fn new(package: Arc<Package>) -> Self {
        let crds = package.resources.iter().map(|_| Crd::default()).collect();
        Self {
            package,
            crds,
            is_looking: false,
            is_overtaken: false,
            next: Some(Instant::now()),
            failures: 0,
            awaiting: None,
            verdict: None,
            told: String::new(),
            is_published: false,
        }
    }

    pub(super) fn position(&self, crd: &str) -> Option<usize> {
        self.package.resources.iter().position(|resource| resource.crd_name() == crd)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.crds.iter().all(|crd| crd.facts.is_some())
    }

    pub(super) fn shares_a_crd(&self, other: &Self) -> bool {
        self.package.resources.iter().any(|resource| other.position(resource.crd_name()).is_some())
    }

    /// What keeps it from being active.
    pub(super) fn hindrance(&self) -> &str {
        let first = self.verdict.as_ref().and_then(|(problems, _)| problems.first());
        first.map_or("its CRDs are being registered", |problem| &problem.message)
    }

    /// Draws the conclusion from a look: in force, to be looked at again, or not to be had.
    pub(super) fn conclude(
        &mut self,
        mut problems: Vec<Diagnostic>,
        awaited: &[String],
        is_passing: bool,
        after: Option<Duration>,
        now: Instant,
    ) {
        if problems.is_empty() && awaited.is_empty() {
            (self.failures, self.awaiting) = (0, None);
            self.judge(Vec::new(), false, now);
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let doubled = |first: Duration, last: Duration| {
            first.saturating_mul(2u32.saturating_pow(self.failures.saturating_sub(1).min(16))).min(last)
        };
        if problems.is_empty() {
            let since = *self.awaiting.get_or_insert(now);
            self.wake(now + doubled(AWAIT_FIRST, AWAIT_LAST));
            if now.duration_since(since) < ESTABLISH {
                return;
            }
            let waited = ESTABLISH.as_secs();
            problems.extend(awaited.iter().map(|why| {
                Diagnostic::error("crd::not-established", format!("{why}, for more than {waited} s"))
            }));
            self.judge(problems, true, now);
            return;
        }
        let wait = if is_passing { doubled(RETRY_FIRST, RETRY_LAST) } else { RETRY_LAST };
        let wait = after.unwrap_or_else(|| scattered(wait));
        self.wake(now + wait);
        self.judge(problems, is_passing, now);
    }

    fn wake(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Records how it stands, and tells it if that is news.
    pub(super) fn judge(&mut self, problems: Vec<Diagnostic>, is_passing: bool, now: Instant) {
        let text = diag::render(&problems, false);
        let name = &self.package.name;
        // The first verdict is told by whoever has started the manager.
        if self.verdict.is_some() && self.told != text {
            for problem in &problems {
                warn!(package = %name, code = problem.code, "{}", problem.message);
            }
        }
        if !problems.is_empty() && !is_passing {
            self.wake(now + RETRY_LAST);
        }
        self.told = text;
        self.verdict = Some((problems, is_passing));
    }
}

impl Crd {
    /// Whether it may be mended: not after the third time.
    pub(super) fn may_mend(&self, now: Instant) -> bool {
        let recent = self.reverts.iter().filter(|at| now.duration_since(**at) < WINDOW).count();
        !self.is_contested && recent + 1 < REVERTS
    }

    /// A look has shown the record.
    pub(super) fn on_record(&mut self, record: &Record, needed: &Record, now: Instant) {
        self.spent = Spent::NOTHING;
        if self.facts.as_ref().is_none_or(|facts| facts.record != *record) {
            self.spent_at = None;
        }
        // Whoever puts it back again and again meets ever longer waits.
        self.spent_at = record.exceeds(needed).then(|| self.spent_at.unwrap_or(now + self.until_asked()));
    }

    fn until_asked(&self) -> Duration {
        SPENT_FIRST.saturating_mul(2u32.saturating_pow(self.unspent.min(16))).min(SPENT_LAST)
    }

    /// What of the record is of no use any more. If it is nothing, the question is asked again later.
    pub(super) fn on_spent(&mut self, spent: Spent, now: Instant) {
        self.spent_at = Some(now + self.until_asked());
        self.unspent = self.unspent.saturating_add(1);
        self.spent = spent;
    }

    /// The manager that it names now and did not before.
    pub(super) fn taken_by<'a>(&self, now: &'a Facts) -> Option<&'a str> {
        let before = self.facts.as_ref().and_then(|facts| facts.lease.as_deref());
        now.lease.as_deref().filter(|lease| before != Some(lease))
    }
}

/// What is told of a contested CRD.
pub(super) fn contested_text(name: &str, package: &Package, crd: &Crd) -> Option<String> {
    let facts = crd.facts.as_ref().filter(|_| crd.is_contested)?;
    let lost =
        if facts.has_status { "" } else { " Without its status subresource no instance can be written." };
    Some(format!(
        "the CRD {name} has been put back {REVERTS} times in {} minutes, last by {}, without what Operetta adds, and \
         is left as it is.{lost} Keep what `operetta crd` prints for the package {} where the CRD comes from.",
        WINDOW.as_secs() / 60,
        crd.contender.as_deref().unwrap_or("somebody"),
        package.name,
    ))
}

/// Whether it is the same CRD with the same text.
pub(super) fn is_same(before: Option<&Facts>, now: &Facts) -> bool {
    before.is_some_and(|before| (&before.uid, before.generation) == (&now.uid, now.generation))
}

/// Whether what the watch tells of a CRD is more than was looked at.
pub(super) fn is_news(meta: Option<&Meta>, seen: Option<&Facts>) -> bool {
    match (meta, seen) {
        (Some(meta), Some(facts)) => {
            facts.uid != meta.uid || is_later(&meta.resource_version, &facts.resource_version)
        }
        (None, None) => false,
        _ => true,
    }
}

/// Whether a resourceVersion is later than another; if that cannot be told, it is.
pub(super) fn is_later(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a > b,
        _ => a != b,
    }
}
