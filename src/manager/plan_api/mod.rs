//! What plans need on the API server: the CRDs of PlanRuns and of stored revisions, and the admission policies that decide
//! who may run and approve plans. Policies and bindings are watched, and restored at once. While one is not whole,
//! requests and approvals wait: see [`Protection`]. Before a request or an answer counts, the policy and its binding are read live.

mod reconcile;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tracing::{info, warn};

use super::raw::Raw;
use crate::api::{ApiKind, CallError};
use crate::backoff::{Backoff, Retry};
use crate::children::names::REGISTRAR;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::package::store::objects;
use crate::plan::crds::{self, Integrity};
use crate::plan::{Protection, SETTLE};
pub(super) use reconcile::reconcile;
pub(super) use verify::Unverified;

/// How long after the CRD the policies may be created when both are installed together.
const INSTALLATION: Duration = Duration::from_secs(60);

/// A policy or a binding: its kind and name.
type Part = (Box<str>, Box<str>);
/// The uid and the generation of a part.
type Mark = (Option<String>, Option<i64>);

/// The API of plans: whether this process has installed it, and whether it is whole.
#[derive(Default)]
pub(super) struct PlanApi {
    /// The user of this manager, once it is installed.
    user: OnceCell<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    protection: Protection,
    /// The parts as they were checked.
    checked: BTreeMap<Part, Mark>,
    /// The parts as events have brought them last.
    latest: BTreeMap<Part, Mark>,
    /// Whether a live read has not found the policy of runs as it was checked, or has failed: all parts are checked again.
    is_suspect: bool,
    /// Whether a check has found a part missing or altered, or another object than the one that was checked before, and no check has
    /// come to its end since.
    was_lost: bool,
    /// How often a part was gone.
    losses: u64,
    /// Runs whose request is verified, with the number of verified answers, until both are noted in their status.
    verified: BTreeMap<Box<str>, usize>,
    /// The parts that the running list has brought so far.
    listed: BTreeSet<Part>,
    /// When the parts were restored last, and how often in a row.
    restored: Option<(Duration, u32)>,
}

/// The CustomResourceDefinitions that plans need.
fn kinds() -> [(ApiKind, Value); 3] {
    [crds::instance_state(), crds::plan_run(), objects::crd()].map(|crd| (ApiKind::crd(), crd))
}

/// The policies and bindings whose events [`PlanApi::on_event`] takes.
pub(super) fn watched() -> impl Iterator<Item = (ApiKind, &'static str)> {
    crds::POLICIES.into_iter().flat_map(|name| [(policy_kind(), name), (binding_kind(), name)])
}

fn policy_kind() -> ApiKind {
    ApiKind {
        namespaced: false,
        ..ApiKind::built_in("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
    }
}

fn binding_kind() -> ApiKind {
    ApiKind {
        kind: "ValidatingAdmissionPolicyBinding".into(),
        plural: "validatingadmissionpolicybindings".into(),
        ..policy_kind()
    }
}

/// The mark of an object.
fn mark(object: &Value) -> Mark {
    let metadata = &object["metadata"];
    (metadata["uid"].as_str().map(str::to_owned), metadata["generation"].as_i64())
}

impl State {
    /// Notes whether a part has changed since it was checked. Returns whether that is news.
    fn compare(&mut self) -> bool {
        let is_other = |(part, mark)| self.checked.get(part) != Some(mark);
        let is_unknown = self.is_suspect || self.latest.iter().any(is_other);
        std::mem::replace(&mut self.protection.is_unknown, is_unknown) != is_unknown
    }

    /// Notes that a part is gone.
    fn lose(&mut self, part: &Part) {
        let (kind, name) = part;
        warn!(%kind, %name, "a part of the admission policies of runs is gone; it is restored");
        self.latest.remove(part);
        self.losses += 1;
        self.compare();
        self.protection.broken = Some(format!("the {kind} {name} is missing").into());
    }
}

impl PlanApi {
    /// Installs the API of plans, once a process.
    ///
    /// # Errors
    /// The API server refuses a part of it, or cannot be reached.
    pub(super) async fn install(&self, cluster: &Cluster, clock: &Clock) -> Result<(), CallError> {
        let install = async {
            let review = ApiKind::built_in("authentication.k8s.io/v1", "SelfSubjectReview");
            let body = json!({"apiVersion": review.api_version(), "kind": review.kind});
            let me: Value = cluster.review(&review, &body).await?;
            let user = me["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned();
            let plan_run = crds::plan_run();
            let name = plan_run["metadata"]["name"].as_str().unwrap_or_default();
            let before = cluster.get(&ApiKind::crd(), None, name).await?;
            install_objects(cluster, &kinds()).await?;
            let found = self.check(cluster, &user).await?;
            let mut state = self.state();
            state.was_lost = false;
            // Before the kind existed, no run could be requested or approved.
            if let Some(before) = before {
                state.protection.since = since(&before, &found, clock.now());
            }
            Ok(user)
        };
        self.user.get_or_try_init(|| install).await.map(drop)
    }

    /// Whether a CustomResourceDefinition, which is gone, is a part of what was installed.
    pub(super) fn is_own(&self, crd: &str) -> bool {
        self.user.initialized() && kinds().iter().any(|(_, own)| own["metadata"]["name"] == crd)
    }

    /// Installs the CustomResourceDefinitions again, until that succeeds: a standby may not write, and the API server may not
    /// answer.
    pub(super) async fn reinstall(&self, cluster: &Cluster) {
        let mut retry = Retry::new(Backoff::new(Duration::from_secs(1), Duration::from_secs(30)));
        while let Err(error) = install_objects(cluster, &kinds()).await {
            warn!(%error, "the kinds of runs cannot be installed again; trying again later");
            tokio::time::sleep(retry.failed()).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the policies are whole.
    pub(super) fn protection(&self) -> Protection {
        self.state().protection.clone()
    }

    /// Takes an event of a policy or a binding. Returns whether the policies are to be checked.
    pub(super) fn on_event(&self, kind: &str, name: &str, event: &Event<Raw>) -> bool {
        let part: Part = (kind.into(), name.into());
        let mut state = self.state();
        match event {
            Event::Init => {
                state.listed.remove(&part);
                false
            }
            Event::InitApply(Raw { metadata, .. }) | Event::Apply(Raw { metadata, .. }) => {
                let mark = (metadata.uid.clone(), metadata.generation);
                state.listed.insert(part.clone());
                let is_new = state.latest.insert(part, mark.clone()).as_ref() != Some(&mark);
                state.compare() || is_new && state.protection.is_unknown
            }
            Event::InitDone if state.listed.contains(&part) => false,
            // It was replaced already by a part that was checked.
            Event::Delete(Raw { metadata, .. })
                if state.checked.get(&part).is_some_and(|(uid, _)| *uid != metadata.uid) =>
            {
                false
            }
            Event::InitDone | Event::Delete(_) => {
                state.lose(&part);
                true
            }
        }
    }

    /// Checks all parts and restores those that are not whole. Returns the parts with what was found.
    async fn check(&self, cluster: &Cluster, user: &str) -> Result<Vec<(Value, Integrity)>, CallError> {
        let mut found = Vec::new();
        for policy in crds::policies() {
            let checked = restore(cluster, &policy_kind(), &policy, Some(user)).await?;
            let checked = exempt(cluster, checked, user).await?;
            self.note(&policy, &checked);
            found.push(checked);
        }
        // Bindings come last, so no policy is in force without the exemption.
        for binding in crds::bindings() {
            let checked = restore(cluster, &binding_kind(), &binding, None).await?;
            self.note(&binding, &checked);
            found.push(checked);
        }
        Ok(found)
    }

    /// Notes that a part is as it was read or written last, if that is whole. Another client may have altered it between two
    /// writes, or between a read and a write: such a part is not noted, so it is checked again.
    fn note(&self, wanted: &Value, (object, found): &(Value, Integrity)) {
        let name = |pointer: &str| wanted.pointer(pointer).and_then(Value::as_str).unwrap_or_default().into();
        let part = (name("/kind"), name("/metadata/name"));
        let mut state = self.state();
        state.was_lost |= matches!(found, Integrity::Missing | Integrity::Altered);
        if crds::integrity(Some(object), wanted) == Integrity::Whole {
            let now = mark(object);
            let before = state.checked.insert(part, now.clone());
            state.was_lost |= before.is_some_and(|(uid, _)| uid != now.0);
        } else {
            state.checked.remove(&part);
        }
    }
}

/// Since when the policies are in force at the start, as far as it is known. `before`: the CRD of `PlanRun`s as it was.
fn since(before: &Value, found: &[(Value, Integrity)], now: Timestamp) -> Option<Timestamp> {
    if found.iter().any(|(_, found)| matches!(found, Integrity::Missing | Integrity::Altered)) {
        return Some(now + SETTLE);
    }
    // Another process may have restored the policies just before this one began. Policies that were installed
    // together with the CRD were not restored.
    let created =
        |object: &Value| object["metadata"]["creationTimestamp"].as_str()?.parse::<Timestamp>().ok();
    let newest = found.iter().filter_map(|(object, _)| created(object)).max()?;
    let with_crd = created(before).is_none_or(|crd| newest <= crd + INSTALLATION);
    let since = newest + SETTLE;
    (!with_crd && since > now).then_some(since)
}

/// Restores a policy or a binding. Returns the object, and how it was found. A policy is created with the
/// exemption of `user`, so that it is never in force without it.
async fn restore(
    cluster: &Cluster,
    kind: &ApiKind,
    wanted: &Value,
    user: Option<&str>,
) -> Result<(Value, Integrity), CallError> {
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let live = cluster.get(kind, None, name).await?;
    let found = crds::integrity(live.as_ref(), wanted);
    let object = match (live, found) {
        (Some(live), Integrity::Whole) => live,
        (Some(live), Integrity::Altered | Integrity::Outdated) => {
            let mut patch = crds::repair(&live, wanted);
            if let Some(user) = user.filter(|user| !crds::is_exempt(&patch, user)) {
                let mut exempt = crds::exemption(name, user)["spec"]["matchConditions"].take();
                let kept = patch["spec"]["matchConditions"].take();
                if let (Value::Array(all), Value::Array(kept)) = (&mut exempt, kept) {
                    all.extend(kept);
                }
                patch["spec"]["matchConditions"] = exempt;
            }
            cluster.merge_patch(kind, None, name, None, &patch, REGISTRAR).await?
        }
        (None, _) | (_, Integrity::Missing) => {
            let mut wanted = wanted.clone();
            if let Some(user) = user {
                wanted["spec"]["matchConditions"] =
                    crds::exemption(name, user)["spec"]["matchConditions"].take();
            }
            cluster.apply(kind, &wanted, REGISTRAR, true).await?
        }
    };
    if found != Integrity::Whole {
        info!(kind = %kind.kind, %name, ?found, "a part of the API of Operetta is installed");
    }
    Ok((object, found))
}

/// Adds this manager, as a field manager of its own, to those whose writes a policy does not check.
async fn exempt(
    cluster: &Cluster,
    (policy, found): (Value, Integrity),
    user: &str,
) -> Result<(Value, Integrity), CallError> {
    if crds::is_exempt(&policy, user) && found == Integrity::Whole {
        return Ok((policy, found));
    }
    let name = policy["metadata"]["name"].as_str().unwrap_or_default();
    let owner = crds::exemption_owner(user);
    let policy = cluster.apply(&policy_kind(), &crds::exemption(name, user), &owner, true).await?;
    info!(%user, "an admission policy exempts this manager");
    Ok((policy, found))
}

/// Applies the cluster-scoped objects that differ from the live ones. Returns all of them as they are then.
///
/// # Errors
/// The API server refuses one of them, or cannot be reached.
pub(super) async fn install_objects(
    cluster: &Cluster,
    objects: &[(ApiKind, Value)],
) -> Result<Vec<Value>, CallError> {
    let mut installed = Vec::with_capacity(objects.len());
    for (kind, object) in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let live = cluster.get(kind, None, name).await?;
        if let Some(live) = live.filter(|live| crds::has_all_of(live, object)) {
            installed.push(live);
            continue;
        }
        installed.push(cluster.apply(kind, object, REGISTRAR, true).await?);
        info!(kind = %kind.kind, %name, "a part of the API of Operetta is installed");
    }
    Ok(installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_in_force_since_they_were_restored() {
        let at = |text: &str| json!({"metadata": {"creationTimestamp": text}});
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let crd = at("2026-01-01T00:00:00Z");
        let old = || (at("2026-01-01T00:00:05Z"), Integrity::Whole);
        assert_eq!(since(&crd, &[old(), old()], now), None);
        let settled = Some(now + SETTLE);
        for found in [Integrity::Missing, Integrity::Altered] {
            assert_eq!(since(&crd, &[old(), (at("2026-01-01T00:00:05Z"), found)], now), settled, "{found:?}");
        }
        assert_eq!(since(&crd, &[old(), (at("2026-01-01T00:00:05Z"), Integrity::Outdated)], now), None);
        // Another process has restored one just now; with a new CRD it was not there before.
        let new = || (at("2026-01-01T00:59:58Z"), Integrity::Whole);
        assert_eq!(since(&crd, &[old(), new()], now), Some("2026-01-01T01:00:08Z".parse().unwrap()));
        assert_eq!(since(&at("2026-01-01T00:59:57Z"), &[new()], now), None);
    }

    #[test]
    fn events_show_missing_and_changed_policies() {
        let api = PlanApi::default();
        let raw = |generation: i64| {
            let object = json!({"metadata": {"name": "p", "uid": "u", "generation": generation}});
            Raw::from_value(object).unwrap()
        };
        let check = |generation: i64| {
            api.state()
                .checked
                .insert(("Policy".into(), "p".into()), (Some("u".to_owned()), Some(generation)));
        };
        check(1);
        let on = |event: Event<Raw>| api.on_event("Policy", "p", &event);
        assert!(!on(Event::Init) && !on(Event::InitApply(raw(1))) && !on(Event::InitDone));
        assert_eq!(api.protection(), Protection::default());
        assert!(on(Event::Apply(raw(2))) && !on(Event::Apply(raw(2))));
        assert!(api.protection().is_unknown);
        // The reply to a write is known before its event.
        check(3);
        assert!(on(Event::Apply(raw(3))));
        assert!(!api.protection().is_unknown);
        assert!(on(Event::Delete(raw(2))));
        assert_eq!(api.protection().broken.as_deref(), Some("the Policy p is missing"));
        assert!(!on(Event::Init) && on(Event::InitDone));
    }
}
