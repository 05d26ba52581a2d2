//! Waits at the end of a case, in which its invariants hold, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use operetta_embedded::Api;
use serde_json::Value;
use tokio::time::Instant;

use super::super::end::End;
use super::super::ended::Failure;
use super::super::objects::Source;
use super::super::view::Kinds;
use super::{PATIENCE, Play};
use crate::children::names;
use crate::diag::{Diagnostic, Location};
use crate::facts::text;
use crate::plan::crds::{INSTANCE_STATE, PLAN_RUN};

/// How long nothing must change until a case is at rest, and how long that is awaited.
const SETTLED: Duration = Duration::from_secs(120);
const SETTLES: Duration = Duration::from_secs(1800);
/// How long nothing must change until an end counts that is as expected.
const QUIET: Duration = Duration::from_secs(15);
/// The kind of Events.
const EVENT: &str = "Event";
/// How many objects that still change are named.
const NAMED: usize = 10;

impl Play {
    /// Waits until nothing changes any more: a short time if all that goes wrong has struck and the end is as expected.
    pub(super) async fn settle(&mut self, at: &Location, expected: Option<&End>) -> Result<(), Failure> {
        let (mut changes, limit) = (self.server.changes(), Instant::now() + SETTLES);
        loop {
            changes.mark_unchanged();
            let began = Instant::now();
            let (quiet, settled) = (began + QUIET, began + SETTLED);
            self.turn(&mut changes, quiet, at).await?;
            self.invariants()?;
            if Instant::now() >= limit {
                return Ok(());
            }
            if Instant::now() < quiet {
                continue;
            }
            if expected.is_some_and(|expected| self.faults.have_struck() && *expected == self.end()) {
                return Ok(());
            }
            self.turn(&mut changes, settled, at).await?;
            self.invariants()?;
            if Instant::now() >= settled {
                return Ok(());
            }
        }
    }

    /// Waits until nothing has changed for some time, unless that `has_settled`, and until no plan runs again and again.
    pub(super) async fn come_to_rest(&mut self, at: &Location, has_settled: bool) -> Result<(), Failure> {
        // If nothing writes in the whole case, nothing else has them checked.
        self.server.read(|api| self.watcher().look(api));
        self.invariants()?;
        if has_settled && self.repeating().is_none() {
            return Ok(());
        }
        let (mut changes, began) = (self.server.changes(), Instant::now());
        // The versions of objects a while before the limit.
        let mut before = None;
        loop {
            changes.mark_unchanged();
            let quiet = Instant::now() + SETTLED;
            self.turn(&mut changes, quiet, at).await?;
            self.invariants()?;
            let (now, repeating) = (Instant::now(), self.repeating());
            let passed = now - began;
            if repeating.is_none() && now >= quiet {
                return Ok(());
            }
            if before.is_none() && passed + SETTLED * 2 >= SETTLES {
                before = Some(self.versions());
            }
            let why = match repeating {
                Some(why) if passed >= PATIENCE => why,
                None if passed >= SETTLES => match self.changed(before) {
                    Some(names) => format!("after {} s these still change: {names}", SETTLES.as_secs()),
                    None => return Ok(()),
                },
                _ => continue,
            };
            let message = format!("the case does not come to rest: {why}");
            return Err(Box::new(Diagnostic::error("test::rest", message).located(at.clone())));
        }
    }

    pub(super) fn repeating(&self) -> Option<String> {
        self.server.read(|api| self.watcher().repeating(api))
    }

    fn versions(&self) -> BTreeMap<String, u64> {
        self.server.read(|api| versions(api, self.watcher().kinds()))
    }

    /// The names of the objects whose versions are others than before, or that are gone or new. `None` if there are none.
    fn changed(&self, before: Option<BTreeMap<String, u64>>) -> Option<String> {
        let (before, now) = (before.unwrap_or_default(), self.versions());
        let new = now.iter().filter(|(name, version)| before.get(*name) != Some(*version));
        let gone = before.keys().filter(|name| !now.contains_key(*name));
        let mut names: Vec<&str> =
            new.map(|(name, _)| name.as_str()).chain(gone.map(String::as_str)).collect();
        // An Event tells of another object.
        names.sort_by_key(|name| name.starts_with("Event "));
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!names.is_empty()).then(|| format!("{}{more}", names.join(", ")))
    }
}

/// An object, as far as it matters whether it rests.
struct Written<'k> {
    kind: &'k str,
    name: String,
    version: u64,
    uid: String,
    origins: Vec<String>,
    /// The uid of the instance whose run it is, or for whose run it was created.
    run_of: String,
    /// Whether it is a run that a schedule has started.
    is_scheduled: bool,
}

impl<'k> Written<'k> {
    fn of(kind: &'k str, name: &str, version: u64, object: &Value) -> Self {
        let meta = &object["metadata"];
        Self {
            kind,
            name: name.to_owned(),
            version,
            uid: text(&meta["uid"]).to_owned(),
            origins: origins(object),
            run_of: text(&meta["labels"][names::RUN_OF]).to_owned(),
            is_scheduled: kind == PLAN_RUN.kind && object["status"]["cause"] == "Schedule",
        }
    }
}

/// The versions of objects, by their kind and name. What schedules make changes for ever and is left out.
fn versions(api: &Api, kinds: &Kinds) -> BTreeMap<String, u64> {
    let mut all = Vec::new();
    for (kind, api_version) in kinds.iter() {
        for (key, version) in Source::versions(api, api_version, kind) {
            let (namespace, name) = key.split_once('/').unwrap_or(("", key.as_str()));
            let object = Source::object(api, api_version, kind, namespace, name);
            all.extend(object.map(|object| Written::of(kind, key.trim_start_matches('/'), version, &object)));
        }
    }
    let recurring = recurring(&all);
    let lasting = all.iter().filter(|one| !recurring.contains(one.uid.as_str()));
    lasting.map(|one| (format!("{} {}", one.kind, one.name), one.version)).collect()
}

/// The uids of what changes by a schedule: `CronJobs` and runs of plans, what exists because of them, and the instances of such runs.
fn recurring<'a>(all: &'a [Written<'_>]) -> BTreeSet<&'a str> {
    let there: BTreeSet<&str> = all.iter().map(|one| one.uid.as_str()).collect();
    let scheduled = all.iter().filter(|one| one.is_scheduled && !one.run_of.is_empty());
    let instances: BTreeSet<&str> = scheduled.map(|one| one.run_of.as_str()).collect();
    let mut found: BTreeSet<&str> = BTreeSet::new();
    loop {
        let known = found.len();
        for one in all {
            // What an Event is about may be gone already.
            let is_gone = |of: &str| one.kind == EVENT && !there.contains(of);
            let mut origins = one.origins.iter().map(String::as_str);
            if one.kind == "CronJob"
                || instances.contains(one.run_of.as_str())
                || origins.any(|of| found.contains(of) || is_gone(of))
            {
                found.insert(&one.uid);
            }
        }
        if found.len() == known {
            break;
        }
    }
    // The children of these instances do not change with the runs.
    let with_instances = all.iter().filter(|one| match one.kind {
        EVENT => one.origins.iter().any(|of| instances.contains(of.as_str())),
        kind if kind == INSTANCE_STATE.kind => !instances.is_empty(),
        _ => instances.contains(one.uid.as_str()),
    });
    found.extend(with_instances.map(|one| one.uid.as_str()));
    found
}

/// The uids of the objects because of which an object exists: its owners, and what an Event is about.
fn origins(object: &Value) -> Vec<String> {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let of_event = [&object["involvedObject"], &object["regarding"]];
    let uids = owners.chain(of_event).map(|origin| text(&origin["uid"]));
    uids.filter(|uid| !uid.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_of_schedules_are_recurring() {
        fn written<'k>(kind: &'k str, uid: &str, mut object: Value) -> Written<'k> {
            object["metadata"]["uid"] = uid.into();
            Written::of(kind, uid, 1, &object)
        }
        let owned = |by: &str| json!({"metadata": {"ownerReferences": [{"uid": by}]}});
        let event = |of: &str| json!({"involvedObject": {"uid": of}});
        let all = [
            written("Event", "of-pod", event("pod")),
            written("Event", "of-gone", event("gone")),
            written("Event", "of-other", event("other")),
            written("Pod", "pod", owned("job")),
            written("Job", "job", owned("cron")),
            written("Job", "other", owned("gone")),
            written("CronJob", "cron", json!({})),
        ];
        assert_eq!(recurring(&all), BTreeSet::from(["of-pod", "of-gone", "pod", "job", "cron"]));
        let run =
            |cause: &str| json!({"metadata": {"labels": {names::RUN_OF: "a"}}, "status": {"cause": cause}});
        let mut all = vec![
            written("PlanRun", "asked", run("Request")),
            written("InstanceState", "state", json!({})),
            written("WebApp", "a", json!({})),
            written("Event", "of-a", event("a")),
            written("Deployment", "child", owned("a")),
        ];
        assert_eq!(recurring(&all), BTreeSet::new());
        all.push(written("PlanRun", "run", run("Schedule")));
        assert_eq!(recurring(&all), BTreeSet::from(["asked", "state", "a", "of-a", "run"]));
    }
}
