//! Operators whose spec names a package in a registry. It is fetched beside the queue, checked against the policy of the
//! cluster, and stored as a revision; from then on the Operator is as one that names this revision, also if the registry is gone.

use std::sync::Arc;
use std::time::Duration;

use operetta_registry::{Error, Provenance, Reference, fetch};
use serde_json::Value;
use tracing::{info, warn};

use super::fetches::{Arrived, Failed, Source, Tag, Task};
use super::known::{Known, OperatorReconciler, revision_name};
use crate::api::{CallError, Class};
use crate::manager::deciders::beside;
use crate::manager::pull::{self, MOST_BYTES};
use crate::manager::scheduler::Key;
use crate::manager::sources;
use crate::operators::{self, Lost, OperatorSpec, RevisionProgress, SourceRecord, SourceSpec, UNTRUSTED};
use crate::package::Package;

/// How long one fetch may take, retries included.
const DEADLINE: Duration = Duration::from_secs(180);
/// How often it is looked up what a tag names.
const TAG: Duration = Duration::from_secs(600);
/// The reason of a registry that does not give the package.
const UNAVAILABLE: &str = "SourceUnavailable";
/// The reason of what is no package of that name.
const INVALID: &str = "SourceInvalid";
/// The reason of a tag that names another package than the one that was fetched.
const MOVED: &str = "TagMoved";

impl OperatorReconciler {
    /// Sets the revision in the spec of an `Operator` that names a source: the one that was fetched. Returns why the source is not
    /// followed, if it is not; then the revision is the one before.
    pub(super) async fn follow_source(
        &self,
        name: &Arc<str>,
        object: &mut Value,
        known: &mut Known,
    ) -> Option<RevisionProgress> {
        let spec = OperatorSpec::parse(object).unwrap_or_default();
        let Some(source) = spec.source else {
            known.source = Source::default();
            return None;
        };
        let stored = || serde_json::from_value(object["status"]["source"].clone()).ok();
        let record = known.source.record.take().or_else(stored);
        known.source.record = record.filter(|record: &SourceRecord| record.package == source.package);
        let active = self.crds.view(name).active.as_deref().map(revision_name);
        let record = known.source.record.as_ref();
        let is_active = record.is_some_and(|record| active.as_ref() == Some(&record.revision));
        if is_active && known.source.is_lost && !spec.paused {
            // What is active needs nothing but another proof: that of a signature which came later.
            let _ = self.fetch(name, &source, known).await;
        }
        let is_fetched = is_active || known.source.record.is_some() && !known.source.is_lost;
        let trouble = if is_fetched {
            self.look_at_tag(name, &source, known)
        } else if spec.paused {
            Some(RevisionProgress::Paused("spec.paused is true: its source is not fetched".into()))
        } else {
            self.fetch(name, &source, known).await
        };
        let record = known.source.record.as_ref();
        let revision = record.map_or_else(|| operators::named(object), |record| &record.revision).to_owned();
        object["spec"]["revision"] = revision.into();
        trouble
    }

    /// Fetches the package, and stores it. Returns how far that is, if it is not complete.
    async fn fetch(
        &self,
        name: &Arc<str>,
        source: &SourceSpec,
        known: &mut Known,
    ) -> Option<RevisionProgress> {
        let now = self.scheduler.clock.elapsed();
        known.source.failed.take_if(|failed| failed.source != *source);
        known.source.task.take_if(|task| task.source != *source);
        // A task that ended without a result has panicked.
        let is_over = known.source.task.as_ref().is_some_and(Task::is_over);
        let arrived = known.source.task.as_ref().and_then(Task::take);
        known.source.task.take_if(|_| is_over);
        if let Some(arrived) = arrived {
            known.source.task = None;
            let taken = match arrived {
                Ok(arrived) => self.take(name, source, arrived, known).await,
                Err(lost) => Err(lost),
            };
            let Err(lost) = taken else { return None };
            let wait = known.retry.failed();
            warn!(operator = %name, reason = lost.reason, "{}", lost.message);
            self.scheduler.queue.add_after(Key::Operator(Arc::clone(name)), wait);
            let policy = self.policies.version();
            known.source.failed = Some(Failed { source: source.clone(), lost, due: now + wait, policy });
        } else if known.source.task.is_none()
            && known
                .source
                .failed
                .as_ref()
                .is_none_or(|failed| failed.due <= now || failed.policy != self.policies.version())
        {
            // A tag that was looked up once is not followed.
            let record = known.source.record.as_ref();
            let pinned = record.map(|record| pinned(&source.package, &record.digest));
            let text = pinned.unwrap_or_else(|| source.package.clone());
            known.source.task = Some(self.spawn_fetch(name, source, text));
        }
        let failed = known.source.failed.as_ref().map(|failed| failed.lost.clone());
        Some(failed.map_or_else(
            || RevisionProgress::Progressing(format!("{} is being fetched", source.package)),
            RevisionProgress::NotLoaded,
        ))
    }

    fn spawn_fetch(&self, name: &Arc<str>, source: &SourceSpec, text: String) -> Task<Result<Arrived, Lost>> {
        let (effects, limits) = (Arc::clone(&self.effects), Arc::clone(&self.limits));
        let (namespace, of) = (self.namespace.clone(), source.clone());
        let policies = Arc::clone(&self.policies);
        Task::spawn(source, (&self.scheduler, name), async move {
            let cluster = effects.clients.own();
            let all = async {
                let options = pull::options(cluster, &namespace, &of).await?;
                let policies = policies.get(cluster).await.map_err(|error| unread(&error))?;
                let host = text.parse::<Reference>().map(|reference| reference.registry).unwrap_or_default();
                let registry = limits.registry(&host);
                let permit = registry.acquire().await;
                let failed = |error: Error| lost(&error, &of, &namespace);
                let fetched = fetch(&text, &options, MOST_BYTES).await.map_err(failed)?;
                let provenance = Provenance::collect(&fetched, &policies.signers()).await.map_err(failed)?;
                drop(permit);
                let _permit = limits.compiling.acquire().await;
                let compiled =
                    beside(move || sources::compile(&fetched).map_err(|errors| errors.into_iter().next()));
                let compiled = compiled.await.ok().unwrap_or(Err(None));
                let (package, _) = compiled.map_err(|error| {
                    let why = error.map(|error| error.message).unwrap_or_default();
                    let message = format!("{text} is not a package that this Operetta can load: {why}");
                    Lost { reason: INVALID, message, is_temporary: false }
                })?;
                Ok(Arrived { package: Arc::new(package), provenance })
            };
            let late = || {
                let message = format!("{text} was not fetched within {} s", DEADLINE.as_secs());
                Err(Lost { reason: UNAVAILABLE, message, is_temporary: true })
            };
            tokio::time::timeout(DEADLINE, all).await.unwrap_or_else(|_| late())
        })
    }

    /// Checks a package that was fetched, and stores it.
    async fn take(
        &self,
        name: &Arc<str>,
        source: &SourceSpec,
        Arrived { package, provenance }: Arrived,
        known: &mut Known,
    ) -> Result<(), Lost> {
        let invalid = |message: String| Lost { reason: INVALID, message, is_temporary: false };
        if *package.name != **name {
            return Err(invalid(format!(
                "{} is the package {}: an Operator has the name of its package",
                provenance.reference, package.name
            )));
        }
        let digest = provenance.digest(&package.digest).map_err(|error| invalid(brief(&error)))?.to_string();
        let policies = self.policies.get(self.effects.clients.own()).await.map_err(|error| unread(&error))?;
        let permit = policies.check(Some(&provenance), &package.digest);
        let permit = permit.map_err(|message| Lost {
            reason: UNTRUSTED,
            message: one_line(&message),
            is_temporary: false,
        })?;
        self.watches.revisions.store_from(&package, &provenance).await.map_err(|error| Lost {
            reason: "RevisionNotStored",
            message: format!("the revision of {} cannot be stored: {error}", provenance.reference),
            is_temporary: error.class != Class::Permanent,
        })?;
        info!(operator = %name, "{} is fetched and stored as {}", provenance.reference, revision_name(&package));
        known.source = Source {
            record: Some(SourceRecord {
                package: source.package.clone(),
                digest,
                revision: revision_name(&package),
                signer: permit.signer,
                policy: permit.policy,
            }),
            tag: Tag { due: self.scheduler.clock.elapsed() + TAG, ..Tag::default() },
            ..Source::default()
        };
        known.retry.reset();
        known.provenances.insert(revision_name(&package), Arc::new(provenance));
        known.loaded = Some(package);
        Ok(())
    }

    /// Whether the tag of a source names another package than the one that was fetched. That is reported, and not followed.
    fn look_at_tag(
        &self,
        name: &Arc<str>,
        source: &SourceSpec,
        known: &mut Known,
    ) -> Option<RevisionProgress> {
        let digest = known.source.record.as_ref()?.digest.clone();
        let Ok(reference) = source.package.parse::<Reference>() else { return None };
        if reference.digest.is_some() || reference.tag.is_none() {
            return None;
        }
        let (now, tag) = (self.scheduler.clock.elapsed(), &mut known.source.tag);
        tag.task.take_if(|task| task.source != *source);
        let is_over = tag.task.as_ref().is_some_and(Task::is_over);
        let found = tag.task.as_ref().and_then(Task::take);
        tag.task.take_if(|_| is_over);
        if let Some(found) = found {
            (tag.task, tag.due) = (None, now + TAG);
            match found {
                Ok(found) => tag.moved = (found != digest).then_some(found),
                Err(error) => info!(operator = %name, "the tag cannot be looked up: {}", brief(&error)),
            }
        } else if tag.task.is_none() && tag.due <= now {
            let effects = Arc::clone(&self.effects);
            let (namespace, of) = (self.namespace.clone(), source.clone());
            let registry = self.limits.registry(&reference.registry);
            let task = Task::spawn(source, (&self.scheduler, name), async move {
                let options = pull::options(effects.clients.own(), &namespace, &of).await;
                let _permit = registry.acquire().await;
                pull::digest(&of.package, &options.unwrap_or_else(|_| pull::anonymous())).await
            });
            tag.task = Some(task);
        }
        let moved = tag.moved.as_ref()?;
        let message = format!(
            "the tag of {} names {moved} now, and {digest} was installed, which stays: to accept the other one, name it as {}",
            source.package,
            pinned(&source.package, moved),
        );
        Some(RevisionProgress::Refused { reason: MOVED, message, is_temporary: false })
    }

    /// Checks the active revision against the policy. Returns where it is from and who has signed it, and why it is not permitted.
    pub(super) async fn check_active(
        &self,
        active: Option<&Arc<Package>>,
        object: &Value,
        known: &mut Known,
    ) -> (Option<SourceRecord>, Option<String>) {
        let stored = || serde_json::from_value::<SourceRecord>(object["status"]["source"].clone()).ok();
        let fetched = known.source.record.clone();
        let Some(active) = active else { return (fetched.or_else(stored), None) };
        let Ok(policies) = self.policies.get(self.effects.clients.own()).await else {
            return (fetched.or_else(stored), known.untrusted.clone());
        };
        let revision = revision_name(active);
        let loaded = known.loaded.as_deref().map(revision_name);
        known.provenances.retain(|name, _| *name == revision || loaded.as_ref() == Some(name));
        let provenance = known.provenances.get(&revision);
        let checked = policies.check(provenance.map(|one| &**one), &active.digest);
        known.untrusted = checked.as_ref().err().map(|why| one_line(why));
        if fetched.as_ref().is_some_and(|record| record.revision == revision) {
            known.source.is_lost = checked.is_err();
        }
        let permit = checked.unwrap_or_default();
        let of_active = |package: String| {
            let digest = provenance?.digest(&active.digest).ok()?.to_string();
            let (signer, policy) = (permit.signer.clone(), permit.policy.clone());
            Some(SourceRecord { package, digest, revision: revision.clone(), signer, policy })
        };
        let record = match fetched {
            Some(record) if record.revision != revision => Some(record),
            Some(record) => of_active(record.package),
            // Its source is not followed yet: the record is of the one before.
            None if !object["spec"]["source"].is_null() => stored(),
            None => provenance.and_then(|provenance| of_active(provenance.reference.clone())),
        };
        (record, known.untrusted.clone())
    }

    /// Why the policy does not permit a package, if it does not.
    pub(super) async fn refuses_package(&self, package: &Package, known: &Known) -> Result<(), Lost> {
        let policies = self.policies.get(self.effects.clients.own()).await.map_err(|error| unread(&error))?;
        let provenance = known.provenances.get(&revision_name(package));
        let checked = policies.check(provenance.map(|one| &**one), &package.digest);
        checked.map(drop).map_err(|message| Lost {
            reason: UNTRUSTED,
            message: one_line(&message),
            is_temporary: false,
        })
    }
}

/// The reference with this digest, which decides.
fn pinned(package: &str, digest: &str) -> String {
    format!("{}@{digest}", package.split('@').next().unwrap_or_default())
}

fn unread(error: &CallError) -> Lost {
    let message = format!("the PackagePolicies cannot be read: {error}");
    Lost { reason: UNTRUSTED, message, is_temporary: true }
}

/// Why a package cannot be fetched.
fn lost(error: &Error, source: &SourceSpec, namespace: &str) -> Lost {
    let reason = match error {
        // The status is that of the target of a redirect.
        Error::Unauthorized { .. }
        | Error::NotFound { .. }
        | Error::Credentials { .. }
        | Error::Status { status: 401 | 403, .. } => UNAVAILABLE,
        error if error.is_temporary() => UNAVAILABLE,
        _ => INVALID,
    };
    let help = match error {
        Error::Unauthorized { .. } => {
            format!(": the Secret {namespace}/{} has the credentials of registries", source.secret())
        }
        _ => String::new(),
    };
    Lost { reason, message: format!("{}{help}", brief(error)), is_temporary: error.is_temporary() }
}

/// The message without the help for people at a terminal.
fn brief(error: &Error) -> String {
    one_line(&error.to_string())
}

fn one_line(text: &str) -> String {
    text.split("\n  help:").next().unwrap_or_default().replace('\n', " ")
}
