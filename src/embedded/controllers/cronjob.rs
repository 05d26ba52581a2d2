//! CronJobs: a Job at each time that the schedule matches.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use operetta_kube_model::facts::{
    self, controller_uid, has_condition, is_deleting, items, key_of, name, namespace, number, text, uid,
};
use operetta_package::plan::cron::Cron;
use serde_json::{Value, json};

use super::client::{self, CRON_JOBS, JOBS, MANAGER, below, get};
use super::job::is_finished;
use super::parts::{owner, parse_time, seconds_after};
use crate::api::Api;

/// How many missed times are looked at one by one.
const MISSED: usize = 100_000;

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut cron = get(api, &CRON_JOBS, key)?;
    let mut status = cron["status"].clone();
    let jobs = below(api, &JOBS, uid(&cron));
    let mut active = items(&status["active"]).to_vec();
    for job in &jobs {
        if !is_finished(job) {
            continue;
        }
        active.retain(|known| known["uid"] != uid(job));
        let ended = &job["status"]["completionTime"];
        if has_condition(job, "Complete") && text(ended) > text(&status["lastSuccessfulTime"]) {
            status["lastSuccessfulTime"] = ended.clone();
        }
    }
    active.retain(|known| jobs.iter().any(|job| known["uid"] == uid(job)));
    clean(api, &cron, &jobs, now);
    let due = if is_deleting(&cron) || cron["spec"]["suspend"] == true {
        None
    } else {
        start(api, &cron, &mut status, &mut active, now)
    };
    if active.is_empty() {
        if let Some(status) = status.as_object_mut() {
            status.remove("active");
        }
    } else {
        status["active"] = active.into();
    }
    client::set_status(api, MANAGER, &CRON_JOBS, &mut cron, status, now);
    due
}

/// Creates the Job that is due, and returns when the next one is.
fn start(
    api: &mut Api,
    cron: &Value,
    status: &mut Value,
    active: &mut Vec<Value>,
    now: Timestamp,
) -> Option<Timestamp> {
    let spec = &cron["spec"];
    let schedule = Cron::parse(text(&spec["schedule"])).ok()?;
    let zone = TimeZone::get(spec["timeZone"].as_str().unwrap_or("UTC")).ok()?;
    let after = |time: Timestamp| schedule.after(time, &zone);
    let mut last = parse_time(&cron["metadata"]["creationTimestamp"]).unwrap_or(now);
    last = last.max(parse_time(&status["lastScheduleTime"]).unwrap_or(last));
    let deadline = spec["startingDeadlineSeconds"].as_i64();
    if let Some(seconds) = deadline {
        last = last.max(seconds_after(now, -seconds));
    }
    let mut time = None;
    let mut next = after(last);
    for _ in 0..MISSED {
        match next.filter(|next| *next <= now) {
            Some(missed) => {
                time = Some(missed);
                next = after(missed);
            }
            None => break,
        }
    }
    let Some(scheduled) = time else { return next };
    let forbids = spec["concurrencyPolicy"] == "Forbid" && !active.is_empty();
    if deadline.is_some_and(|seconds| seconds_after(scheduled, seconds) < now) || forbids {
        return next;
    }
    if spec["concurrencyPolicy"] == "Replace" {
        for known in active.drain(..) {
            let job = json!({"metadata": {"namespace": namespace(cron), "name": known["name"], "uid": known["uid"]}});
            let _ = client::delete(api, MANAGER, &JOBS, &job, None, now);
        }
    }
    let template = &spec["jobTemplate"];
    let mut meta = json!({"name": format!("{}-{}", name(cron), scheduled.as_second() / 60), "namespace": namespace(cron),
        "ownerReferences": [owner(&CRON_JOBS, cron)]});
    for field in ["labels", "annotations"] {
        if template["metadata"][field].is_object() {
            meta[field] = template["metadata"][field].clone();
        }
    }
    meta["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] = facts::time(scheduled).into();
    let mut job = json!({"metadata": meta, "spec": template["spec"]});
    let key = key_of(&job);
    if client::create(api, MANAGER, &JOBS, &mut job, now).is_err() {
        // Two times of one minute have one name.
        let is_listed = |job: &Value| active.iter().any(|known| known["uid"] == uid(job));
        let known = get(api, &JOBS, &key);
        let known = known.filter(|known| controller_uid(known) == Some(uid(cron)) && !is_listed(known));
        let Some(known) = known else { return next };
        job = known;
    }
    active.push(json!({"apiVersion": JOBS.version, "kind": JOBS.kind, "namespace": namespace(cron), "name": name(&job),
        "uid": uid(&job), "resourceVersion": job["metadata"]["resourceVersion"]}));
    status["lastScheduleTime"] = facts::time(scheduled).into();
    next
}

/// Deletes Jobs that have ended, beyond the limits.
fn clean(api: &mut Api, cron: &Value, jobs: &[Value], now: Timestamp) {
    for (kind, limit) in [("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")] {
        let mut ended: Vec<&Value> = jobs.iter().filter(|job| has_condition(job, kind)).collect();
        ended.sort_by_key(|job| (text(&job["status"]["startTime"]).to_owned(), name(job).to_owned()));
        let limit = usize::try_from(number(&cron["spec"][limit])).unwrap_or(usize::MAX);
        let excess = ended.len().saturating_sub(limit);
        for job in ended.into_iter().take(excess).filter(|job| !is_deleting(job)) {
            let _ = client::delete(api, MANAGER, &JOBS, job, None, now);
        }
    }
}
