//! Deployments: rollouts, scaling, and what their status says of them.

use jiff::Timestamp;
use operetta_kube_model::facts::{condition, is_deleting, is_terminal, items, name, number, text, time, uid};
use serde_json::{Value, json};

use super::client::{self, DEPLOYMENTS, PODS, REPLICA_SETS, get};
use super::ownership::claim;
use super::parts::{parse_time, put_condition, seconds_after, without_zeros};
use super::rollout::{Rollout, replicas};
use crate::api::Api;

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let deployment = get(api, &DEPLOYMENTS, key)?;
    let sets = claim(api, (&DEPLOYMENTS, &deployment), &REPLICA_SETS, now);
    let mut rollout = Rollout::new(deployment, sets, now);
    if is_deleting(&rollout.deployment) {
        rollout.ensure(api, false);
        return settle(&mut rollout, api, false);
    }
    pause(&mut rollout, api);
    let is_paused = rollout.deployment["spec"]["paused"] == true;
    if is_paused || rollout.is_scaling() {
        if !rollout.ensure(api, false) {
            return None;
        }
        scale(&mut rollout, api);
        if is_paused {
            rollout.clean(api);
        }
        return settle(&mut rollout, api, false);
    }
    if rollout.is_rolling() { roll(&mut rollout, api) } else { recreate(&mut rollout, api) }
}

/// Says in the status whether the Deployment is paused.
fn pause(rollout: &mut Rollout, api: &mut Api) {
    let reason = condition(&rollout.deployment, "Progressing").map(|known| text(&known["reason"]).to_owned());
    if !rollout.has_deadline() || reason.as_deref() == Some("ProgressDeadlineExceeded") {
        return;
    }
    let is_paused = rollout.deployment["spec"]["paused"] == true;
    let was_paused = reason.as_deref() == Some("DeploymentPaused");
    match (is_paused, was_paused) {
        (true, false) => {
            rollout.put_condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused");
        }
        (false, true) => {
            rollout.put_condition("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed");
        }
        _ => return,
    }
    rollout.write(api);
}

fn roll(rollout: &mut Rollout, api: &mut Api) -> Option<Timestamp> {
    if !rollout.ensure(api, true) {
        return None;
    }
    let wanted = replicas(&rollout.deployment);
    let new = rollout.new.as_ref()?;
    let (new_name, size) = (name(new).to_owned(), replicas(new));
    if size != wanted {
        let next = if size > wanted { wanted } else { rollout.new_size() };
        if rollout.resize(api, &new_name, next) {
            return settle(rollout, api, true);
        }
    }
    if shrink_old(rollout, api) {
        return settle(rollout, api, true);
    }
    if is_complete(&rollout.deployment, &rollout.deployment["status"]) {
        rollout.clean(api);
    }
    settle(rollout, api, true)
}

/// Scales old ReplicaSets down as far as enough pods stay available.
fn shrink_old(rollout: &mut Rollout, api: &mut Api) -> bool {
    if rollout.old.iter().map(replicas).sum::<i64>() == 0 {
        return false;
    }
    let available = |set: &Value| number(&set["status"]["availableReplicas"]);
    let least = replicas(&rollout.deployment) - rollout.max_unavailable();
    let unavailable = rollout.new.as_ref().map_or(0, |set| replicas(set) - available(set));
    let most = rollout.total() - least - unavailable;
    if most <= 0 {
        return false;
    }
    // Pods that are not available go first.
    let mut cleaned = 0;
    for set in rollout.old.clone() {
        let unhealthy = replicas(&set) - available(&set);
        if cleaned < most && replicas(&set) > 0 && unhealthy > 0 {
            let count = unhealthy.min(most - cleaned);
            rollout.resize(api, name(&set), replicas(&set) - count);
            cleaned += count;
        }
    }
    let spare = rollout.all().map(available).sum::<i64>() - least;
    let mut removed = 0;
    for set in rollout.old.clone() {
        if removed < spare && replicas(&set) > 0 {
            let count = replicas(&set).min(spare - removed);
            rollout.resize(api, name(&set), replicas(&set) - count);
            removed += count;
        }
    }
    cleaned + removed > 0
}

fn recreate(rollout: &mut Rollout, api: &mut Api) -> Option<Timestamp> {
    if !rollout.ensure(api, false) {
        return None;
    }
    let mut is_scaled = false;
    for set in rollout.old.clone().iter().filter(|set| replicas(set) > 0) {
        is_scaled |= rollout.resize(api, name(set), 0);
    }
    let has_pods = |set: &Value| client::below(api, &PODS, uid(set)).iter().any(|pod| !is_terminal(pod));
    if is_scaled || rollout.old.iter().any(has_pods) {
        return settle(rollout, api, true);
    }
    if rollout.new.is_none() && !rollout.ensure(api, true) {
        return None;
    }
    let (new, wanted) = (name(rollout.new.as_ref()?).to_owned(), replicas(&rollout.deployment));
    rollout.resize(api, &new, wanted);
    if is_complete(&rollout.deployment, &rollout.deployment["status"]) {
        rollout.clean(api);
    }
    settle(rollout, api, true)
}

/// Sizes the ReplicaSets for another number of replicas, in proportion if a rollout goes on.
fn scale(rollout: &mut Rollout, api: &mut Api) {
    let wanted = replicas(&rollout.deployment);
    let mut active: Vec<Value> = rollout.all().filter(|set| replicas(set) > 0).cloned().collect();
    if active.len() <= 1 {
        let only = active.first().or(rollout.new.as_ref()).or(rollout.old.last());
        if let Some(only) = only.filter(|set| replicas(set) != wanted) {
            let only = name(only).to_owned();
            rollout.resize(api, &only, wanted);
        }
        return;
    }
    if rollout.is_saturated() {
        for set in rollout.old.clone().iter().filter(|set| replicas(set) > 0) {
            rollout.resize(api, name(set), 0);
        }
        return;
    }
    if !rollout.is_rolling() {
        return;
    }
    let most = if wanted > 0 { wanted + rollout.max_surge() } else { 0 };
    let to_add = most - active.iter().map(replicas).sum::<i64>();
    // The largest first; of two of a size, the newer one if there will be more.
    let age = |set: &Value| text(&set["metadata"]["creationTimestamp"]).to_owned();
    active.sort_by(|a, b| {
        let by_age = if to_add > 0 { age(b).cmp(&age(a)) } else { age(a).cmp(&age(b)) };
        replicas(b).cmp(&replicas(a)).then(by_age)
    });
    let mut sizes = Vec::new();
    let mut added = 0;
    for set in &active {
        let (size, left) = (replicas(set), to_add - added);
        let share = match rollout.sized_for(set) {
            _ if wanted == 0 => -size,
            0 => 0,
            base => {
                let next = size * (wanted + rollout.max_surge());
                (2 * next + base).div_euclid(2 * base) - size
            }
        };
        let share = if left == 0 {
            0
        } else if to_add > 0 {
            share.min(left)
        } else {
            share.max(left)
        };
        added += share;
        sizes.push(size + share);
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    for (set, size) in active.iter().zip(sizes) {
        rollout.resize(api, name(set), size);
    }
}

fn is_complete(deployment: &Value, status: &Value) -> bool {
    let wanted = replicas(deployment);
    ["updatedReplicas", "replicas", "availableReplicas"].iter().all(|field| number(&status[*field]) == wanted)
        && number(&status["observedGeneration"]) >= number(&deployment["metadata"]["generation"])
}

/// Writes the status. `with_progress` is false while the Deployment is scaled, paused or deleted.
fn settle(rollout: &mut Rollout, api: &mut Api, with_progress: bool) -> Option<Timestamp> {
    let now = rollout.now;
    let deployment = &rollout.deployment;
    let sum = |field: &str| rollout.all().map(|set| number(&set["status"][field])).sum::<i64>();
    let available = sum("availableReplicas");
    let updated = rollout.new.as_ref().map_or(0, |set| number(&set["status"]["replicas"]));
    let mut status = json!({
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": sum("replicas"),
        "updatedReplicas": updated,
        "readyReplicas": sum("readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": (rollout.total() - available).max(0),
    });
    status = without_zeros(
        status,
        &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"],
    );
    if rollout.all().any(|set| set["status"]["terminatingReplicas"].is_number()) {
        status["terminatingReplicas"] = sum("terminatingReplicas").into();
    }
    if let Some(count) = deployment["status"].get("collisionCount") {
        status["collisionCount"] = count.clone();
    }
    let mut conditions = items(&deployment["status"]["conditions"]).to_vec();
    let mut put = |conditions: &mut Vec<Value>, kind: &str, state: &str, reason: &str, message: &str| {
        let new = json!({"type": kind, "status": state, "reason": reason, "message": message,
            "lastUpdateTime": time(now)});
        put_condition(conditions, new, now);
    };
    if available >= replicas(deployment) - rollout.max_unavailable() {
        let message = "Deployment has minimum availability.";
        put(&mut conditions, "Available", "True", "MinimumReplicasAvailable", message);
    } else {
        let message = "Deployment does not have minimum availability.";
        put(&mut conditions, "Available", "False", "MinimumReplicasUnavailable", message);
    }
    if with_progress {
        progress(rollout, &status, &mut conditions, &mut put);
        let failure = rollout.new.iter().chain(&rollout.old).find_map(|set| condition(set, "ReplicaFailure"));
        if let Some(failure) = failure {
            let mut failure = failure.clone();
            failure["lastUpdateTime"] = failure["lastTransitionTime"].clone();
            put_condition(&mut conditions, failure, now);
        } else {
            conditions.retain(|known| known["type"] != "ReplicaFailure");
        }
    }
    status["conditions"] = conditions.into();
    client::set_status(api, client::MANAGER, &DEPLOYMENTS, &mut rollout.deployment, status, now);
    deadline(rollout)
}

/// Estimates how the rollout progresses.
fn progress(
    rollout: &Rollout,
    status: &Value,
    conditions: &mut Vec<Value>,
    put: &mut impl FnMut(&mut Vec<Value>, &str, &str, &str, &str),
) {
    let deployment = &rollout.deployment;
    if !rollout.has_deadline() {
        conditions.retain(|known| known["type"] != "Progressing");
        return;
    }
    let current = condition(deployment, "Progressing").cloned();
    let reason = current.as_ref().map(|known| text(&known["reason"]).to_owned()).unwrap_or_default();
    let is_done = number(&status["replicas"]) == number(&status["updatedReplicas"]);
    if is_done && reason == "NewReplicaSetAvailable" {
        return;
    }
    let what = match &rollout.new {
        Some(set) => format!("ReplicaSet {:?}", name(set)),
        None => format!("Deployment {:?}", name(deployment)),
    };
    let old = &deployment["status"];
    let count = |status: &Value, field: &str| number(&status[field]);
    let outdated = |status: &Value| count(status, "replicas") - count(status, "updatedReplicas");
    let rises = |field: &str| count(status, field) > count(old, field);
    if is_complete(deployment, status) {
        let message = format!("{what} has successfully progressed.");
        put(conditions, "Progressing", "True", "NewReplicaSetAvailable", &message);
    } else if rises("updatedReplicas")
        || outdated(status) < outdated(old)
        || rises("readyReplicas")
        || rises("availableReplicas")
    {
        conditions.retain(|known| known["type"] != "Progressing");
        let message = format!("{what} is progressing.");
        put(conditions, "Progressing", "True", "ReplicaSetUpdated", &message);
        // The time of the last progress changes, that of the last transition does not.
        if let (Some(new), Some(current)) = (conditions.last_mut(), current)
            && current["status"] == "True"
        {
            new["lastTransitionTime"] = current["lastTransitionTime"].clone();
        }
    } else if reason == "ProgressDeadlineExceeded"
        || !["", "NewReplicaSetAvailable"].contains(&&*reason)
            && due(rollout, current.as_ref()).is_some_and(|due| due <= rollout.now)
    {
        let message = format!("{what} has timed out progressing.");
        put(conditions, "Progressing", "False", "ProgressDeadlineExceeded", &message);
    }
}

/// When a rollout that stands still has taken too long.
fn due(rollout: &Rollout, condition: Option<&Value>) -> Option<Timestamp> {
    let since = parse_time(&condition?["lastUpdateTime"])?;
    let seconds = number(&rollout.deployment["spec"]["progressDeadlineSeconds"]);
    Some(seconds_after(since, seconds + 1))
}

fn deadline(rollout: &Rollout) -> Option<Timestamp> {
    let deployment = &rollout.deployment;
    let current = condition(deployment, "Progressing")?;
    let is_over = ["ProgressDeadlineExceeded", "NewReplicaSetAvailable"].contains(&text(&current["reason"]));
    let waits = rollout.has_deadline() && !is_over && !is_complete(deployment, &deployment["status"]);
    // A Deployment that is paused makes no progress, and one that is deleted ends.
    let is_idle = deployment["spec"]["paused"] == true || is_deleting(deployment);
    if waits && !is_idle { due(rollout, Some(current)) } else { None }
}
