//! The rules for Jobs and CronJobs.

use jiff::tz::TimeZone;
use operetta_kube_model::Fault;
use operetta_kube_model::facts::{has_condition, number, text};
use operetta_package::plan::cron::Cron;
use serde_json::Value;

use super::checks::{Faults, immutable, not_negative};
use super::pods::pod_spec;

/// The longest name of a CronJob: its Jobs have eleven characters more.
const LONGEST: usize = 52;

pub(super) fn job(spec: &Value, path: &str, faults: &mut Faults) {
    for field in
        ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"]
    {
        not_negative(spec, field, path, faults);
    }
    if spec["completionMode"] == "Indexed" && spec["completions"].is_null() {
        faults.push(Fault::required(format!("{path}.completions"), "when completion mode is Indexed"));
    }
    let template = &spec["template"]["spec"];
    pod_spec(template, &format!("{path}.template.spec"), faults);
    let policy = text(&template["restartPolicy"]);
    if policy == "Always" || policy.is_empty() {
        faults.push(Fault::required(
            format!("{path}.template.spec.restartPolicy"),
            "valid values: \"OnFailure\", \"Never\"",
        ));
    }
}

pub(super) fn job_update(live: &Value, object: &Value, faults: &mut Faults) {
    // The server checks the spec twice.
    let again = faults.clone();
    faults.extend(again);
    let (old, new) = (&live["spec"], &object["spec"]);
    if new["completionMode"] != "Indexed" {
        immutable("spec.completions", &old["completions"], &new["completions"], faults);
    } else if old["completions"] != new["completions"]
        && !new["completions"].is_null()
        && new["completions"] != new["parallelism"]
    {
        let why = "can only be modified in tandem with spec.parallelism";
        faults.push(Fault::invalid("spec.completions", new["completions"].clone(), why));
    }
    template_update(live, new, faults);
    for field in [
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        immutable(&format!("spec.{field}"), &old[field], &new[field], faults);
    }
}

/// The pods of a suspended Job may get other resources, and other places to run.
fn template_update(live: &Value, new: &Value, faults: &mut Faults) {
    let old = &live["spec"];
    let is_open = old["suspend"] == true
        && (live["status"]["startTime"].is_null() || has_condition(live, "Suspended"))
        && number(&live["status"]["active"]) == 0;
    if !is_open {
        return immutable("spec.template", &old["template"], &new["template"], faults);
    }
    let (old, new) = (&old["template"]["spec"], &new["template"]["spec"]);
    if closed(old) != closed(new) {
        faults.push(Fault::invalid("spec.template.spec", new.clone(), "field is immutable"));
    }
}

/// What a suspended Job cannot change in the spec of its pods.
fn closed(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container["resources"] = Value::Null;
        }
    }
    if let Some(spec) = spec.as_object_mut() {
        for field in ["nodeSelector", "tolerations", "schedulingGates"] {
            spec.remove(field);
        }
        let affinity = spec.get_mut("affinity").and_then(Value::as_object_mut);
        let has_more = affinity.is_some_and(|affinity| {
            affinity.remove("nodeAffinity");
            !affinity.is_empty()
        });
        if !has_more {
            spec.remove("affinity");
        }
    }
    spec
}

/// The rules for the name of a new CronJob.
pub(super) fn cron_job_name(name: &str, faults: &mut Faults) {
    if name.len() > LONGEST {
        let why = format!("must be no more than {LONGEST} characters");
        faults.push(Fault::invalid("metadata.name", name, why));
    }
}

pub(super) fn cron_job(spec: &Value, faults: &mut Faults) {
    let line = text(&spec["schedule"]);
    if line.is_empty() {
        faults.push(Fault::required("spec.schedule", ""));
    } else if let Err(why) = schedule(line) {
        faults.push(Fault::invalid("spec.schedule", line, why));
    }
    if line.contains("TZ") {
        let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        faults.push(Fault::invalid("spec.schedule", line, why));
    }
    if let Some(zone) = spec["timeZone"].as_str() {
        let found = time_zone(zone).into_iter().map(|why| Fault::invalid("spec.timeZone", zone, why));
        faults.extend(found);
    }
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        not_negative(spec, field, "spec", faults);
    }
    let policies = ["Allow", "Forbid", "Replace"];
    let policy = text(&spec["concurrencyPolicy"]);
    if !policies.contains(&policy) && !policy.is_empty() {
        faults.push(Fault::not_supported("spec.concurrencyPolicy", policy, &policies));
    }
    let of_jobs = &spec["jobTemplate"]["spec"];
    job(of_jobs, "spec.jobTemplate.spec", faults);
    let (path, selector) = ("spec.jobTemplate.spec.selector", &of_jobs["selector"]);
    if !selector.is_null() {
        faults.push(Fault::invalid(path, selector.clone(), "`selector` will be auto-generated"));
    }
    if of_jobs["manualSelector"] == true {
        faults.push(Fault::not_supported("spec.jobTemplate.spec.manualSelector", true, &["nil", "false"]));
    }
}

/// Checks a schedule. A schedule that names a zone is parsed before it is refused.
fn schedule(line: &str) -> Result<(), String> {
    let zoned = line.strip_prefix("TZ=").or_else(|| line.strip_prefix("CRON_TZ="));
    let line = match zoned.map(|zoned| zoned.split_once(' ')) {
        None => line,
        Some(None) => {
            return Err("invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned());
        }
        Some(Some((zone, line))) => {
            location(zone).map_err(|why| format!("provided bad location {zone}: {why}"))?;
            line.trim()
        }
    };
    Cron::parse(line).map(|_| ())
}

/// Checks the name of a time zone.
fn time_zone(name: &str) -> Vec<String> {
    let is_part = |part: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
        ![".", ".."].contains(&part)
            && !part.starts_with('-')
            && (1..=14).contains(&part.len())
            && part.chars().all(fits)
    };
    if name.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    if !name.split('/').all(is_part) {
        return vec![format!("unknown time zone {name}")];
    }
    let local = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
    let local = name.eq_ignore_ascii_case("Local").then(|| local.to_owned());
    local.into_iter().chain(location(name).err()).collect()
}

/// Whether Go finds a time zone: by its exact name.
fn location(name: &str) -> Result<(), String> {
    let is_known = ["", "UTC", "Local"].contains(&name)
        || TimeZone::get(name).is_ok_and(|zone| zone.iana_name() == Some(name));
    is_known.then_some(()).ok_or_else(|| format!("unknown time zone {name}"))
}
