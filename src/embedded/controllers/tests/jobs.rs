//! Jobs and CronJobs.

use super::*;

const CRON_JOBS: &str = "/apis/batch/v1/namespaces/default/cronjobs";

fn job(name: &str, spec: &Value) -> Value {
    let mut job = json!({"metadata": {"name": name}, "spec": spec});
    job["spec"]["template"] =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "image:1"}]}});
    job
}

#[test]
fn a_job_succeeds_with_its_completions() {
    let mut cluster = Cluster::with(&[("load", ends_after(10, 0))]);
    cluster.create(
        JOBS,
        &job("load", &json!({"completions": 3, "parallelism": 2, "ttlSecondsAfterFinished": 100})),
    );
    cluster.settle();
    let load = cluster.get(&format!("{JOBS}/load"));
    assert_eq!((&load["status"]["active"], &load["status"]["ready"]), (&json!(2), &json!(0)));
    cluster.pass(15);
    assert_eq!(cluster.get(&format!("{JOBS}/load"))["status"]["succeeded"], 2);
    cluster.pass(15);
    let load = cluster.get(&format!("{JOBS}/load"));
    let status = &load["status"];
    assert_eq!((&status["succeeded"], &status["active"]), (&json!(3), &Value::Null));
    assert_eq!(status["completionTime"], "2026-01-01T00:00:20Z");
    assert_eq!(conditions(&load)["SuccessCriteriaMet"], "True CompletionsReached");
    assert_eq!(conditions(&load)["Complete"], "True CompletionsReached");
    let pods = cluster.items(PODS);
    assert_eq!(pods.len(), 3);
    assert!(
        pods.iter()
            .all(|pod| pod["status"]["phase"] == "Succeeded" && pod["metadata"]["finalizers"].is_null())
    );
    cluster.pass(100);
    assert!(cluster.names(JOBS).is_empty() && cluster.names(PODS).is_empty());
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn a_job_fails_after_its_backoff_limit() {
    let mut cluster = Cluster::with(&[("load", ends_after(1, 3))]);
    cluster.create(JOBS, &job("load", &json!({"backoffLimit": 2})));
    // Pods start at 0, 11 and 32 seconds.
    cluster.pass(10);
    assert_eq!(cluster.names(PODS).len(), 1);
    cluster.pass(1);
    assert_eq!(cluster.names(PODS).len(), 2);
    cluster.pass(20);
    assert_eq!(cluster.names(PODS).len(), 2);
    cluster.pass(5);
    let load = cluster.get(&format!("{JOBS}/load"));
    assert_eq!(load["status"]["failed"], 3);
    assert_eq!(conditions(&load)["FailureTarget"], "True BackoffLimitExceeded");
    assert_eq!(conditions(&load)["Failed"], "True BackoffLimitExceeded");
    let names = cluster.names(PODS);
    assert_eq!(names.len(), 3);
    assert!(names.iter().all(|name| name.starts_with("load-") && name.len() == "load-".len() + 5));
    let pod = cluster.items(PODS).remove(0);
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(3), &json!("Error")));
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn a_job_ends_at_its_deadline_and_not_while_it_is_suspended() {
    let mut cluster = Cluster::with(&[("load", ready_after(0))]);
    cluster.create(JOBS, &job("load", &json!({"activeDeadlineSeconds": 60, "suspend": true})));
    cluster.pass(100);
    assert!(cluster.names(PODS).is_empty());
    assert_eq!(conditions(&cluster.get(&format!("{JOBS}/load")))["Suspended"], "True JobSuspended");
    cluster.patch(&format!("{JOBS}/load"), &json!({"spec": {"suspend": false}}));
    cluster.pass(59);
    assert_eq!(cluster.get(&format!("{JOBS}/load"))["status"]["ready"], 1);
    cluster.pass(5);
    let load = cluster.get(&format!("{JOBS}/load"));
    assert_eq!(conditions(&load)["Failed"], "True DeadlineExceeded");
    assert_eq!(load["status"]["failed"], 1);
    assert!(cluster.names(PODS).is_empty());
}

#[test]
fn an_indexed_job_has_a_pod_for_each_index() {
    let mut cluster = Cluster::with(&[("load-1", ends_after(1, 1)), ("load", ends_after(1, 0))]);
    cluster.create(
        JOBS,
        &job("load", &json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"})),
    );
    cluster.settle();
    let pods = cluster.items(PODS);
    let label = "batch.kubernetes.io/job-completion-index";
    let indexes: Vec<&Value> = pods.iter().map(|pod| &pod["metadata"]["labels"][label]).collect();
    assert_eq!(indexes, ["0", "1", "2", "3"]);
    cluster.pass(5);
    let load = cluster.get(&format!("{JOBS}/load"));
    let status = &load["status"];
    assert_eq!(
        (&status["completedIndexes"], &status["succeeded"], &status["failed"]),
        (&json!("0,2,3"), &json!(3), &json!(2))
    );
    // The first failure was not later than a success, so only the second one delayed the next pod.
    let now = cluster.now;
    cluster.api.set_programs(Box::new(Script(BTreeMap::from([("load", ends_after(1, 0))]))), now);
    cluster.pass(30);
    let load = cluster.get(&format!("{JOBS}/load"));
    assert_eq!(load["status"]["completedIndexes"], "0-3");
    assert_eq!(conditions(&load)["Complete"], "True CompletionsReached");
}

#[test]
fn an_indexed_job_that_shrinks_keeps_its_first_indexes() {
    let mut cluster = Cluster::with(&[("load-3", ends_after(1, 0)), ("load", ready_after(0))]);
    cluster.create(
        JOBS,
        &job("load", &json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"})),
    );
    cluster.pass(5);
    assert_eq!(cluster.get(&format!("{JOBS}/load"))["status"]["completedIndexes"], "3");
    cluster.patch(&format!("{JOBS}/load"), &json!({"spec": {"completions": 2, "parallelism": 2}}));
    cluster.pass(5);
    let load = cluster.get(&format!("{JOBS}/load"));
    assert_eq!((&load["status"]["active"], &load["status"]["succeeded"]), (&json!(2), &Value::Null));
    let running: Vec<String> = cluster
        .items(PODS)
        .iter()
        .filter(|pod| pod["status"]["phase"] == "Running")
        .map(|pod| pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"].to_string())
        .collect();
    assert_eq!(running, ["\"0\"", "\"1\""]);
}

#[test]
fn a_suspended_job_runs_with_its_new_resources() {
    let mut cluster = Cluster::with(&[("load", ready_after(0))]);
    cluster.create(JOBS, &job("load", &json!({})));
    cluster.pass(5);
    let path = format!("{JOBS}/load");
    let resources = json!([{"name": "main", "image": "image:1", "resources": {"requests": {"cpu": "2"}}}]);
    let change = json!({"spec": {"template": {"spec": {"containers": resources}}}});
    assert_eq!(cluster.send("PATCH", &path, &change).0, 422);
    cluster.patch(&path, &json!({"spec": {"suspend": true}}));
    cluster.pass(5);
    cluster.patch(&path, &change);
    cluster.patch(&path, &json!({"spec": {"suspend": false}}));
    cluster.pass(5);
    assert_eq!(
        cluster.items(PODS)[0]["spec"]["containers"][0]["resources"],
        json!({"requests": {"cpu": "2"}})
    );
}

#[test]
fn a_policy_fails_the_job_at_an_exit_code() {
    let mut cluster = Cluster::with(&[("load", ends_after(1, 42))]);
    let rule = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    cluster.create(JOBS, &job("load", &json!({"podFailurePolicy": {"rules": [rule]}})));
    cluster.pass(5);
    let load = cluster.get(&format!("{JOBS}/load"));
    assert_eq!(conditions(&load)["Failed"], "True PodFailurePolicy");
    let failed = load["status"]["conditions"].as_array().unwrap().last().unwrap();
    let pod = cluster.names(PODS).remove(0);
    let wanted = format!(
        "Container main for pod default/{pod} failed with exit code 42 matching FailJob rule at index 0"
    );
    assert_eq!(failed["message"], wanted);
}

#[test]
fn a_job_that_is_deleted_takes_its_pods_along() {
    let mut cluster = Cluster::with(&[("load", ready_after(0))]);
    cluster.create(JOBS, &job("load", &json!({})));
    cluster.pass(5);
    cluster.send("DELETE", &format!("{JOBS}/load?propagationPolicy=Background"), &Value::Null);
    cluster.settle();
    assert!(cluster.names(JOBS).is_empty());
    assert!(cluster.items(PODS)[0]["metadata"]["deletionTimestamp"].is_string());
    cluster.pass(5);
    assert!(cluster.names(PODS).is_empty());
}

fn cron_job(name: &str, spec: &Value) -> Value {
    let mut cron = json!({"metadata": {"name": name}, "spec": spec});
    cron["spec"]["jobTemplate"] = json!({"spec": job(name, &json!({}))["spec"]});
    cron
}

#[test]
fn a_cron_job_creates_jobs_and_keeps_the_last_ones() {
    let mut cluster = Cluster::with(&[("tidy", ends_after(5, 0))]);
    cluster.create(CRON_JOBS, &cron_job("tidy", &json!({"schedule": "*/10 * * * *"})));
    cluster.pass(599);
    assert!(cluster.names(JOBS).is_empty());
    cluster.pass(2);
    // 2026-01-01T00:10:00Z in minutes.
    assert_eq!(cluster.names(JOBS), ["tidy-29453770"]);
    let tidy = cluster.get(&format!("{CRON_JOBS}/tidy"));
    assert_eq!(tidy["status"]["lastScheduleTime"], "2026-01-01T00:10:00Z");
    assert_eq!(tidy["status"]["active"][0]["name"], "tidy-29453770");
    cluster.pass(10);
    let tidy = cluster.get(&format!("{CRON_JOBS}/tidy"));
    assert_eq!(
        (&tidy["status"]["active"], &tidy["status"]["lastSuccessfulTime"]),
        (&Value::Null, &json!("2026-01-01T00:10:05Z"))
    );
    cluster.pass(3600);
    assert_eq!(cluster.names(JOBS).len(), 3);
    cluster.patch(&format!("{CRON_JOBS}/tidy"), &json!({"spec": {"suspend": true}}));
    cluster.pass(10);
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn a_cron_job_runs_at_intervals_and_in_its_time_zone() {
    let mut cluster = Cluster::with(&[("often", ends_after(1, 0)), ("rome", ends_after(1, 0))]);
    cluster.create(CRON_JOBS, &cron_job("often", &json!({"schedule": "@every 90m"})));
    let zoned = json!({"schedule": "0 3 ? * ?", "timeZone": "Europe/Rome"});
    cluster.create(CRON_JOBS, &cron_job("rome", &zoned));
    cluster.pass(7_300);
    // 01:30 and 02:00 in minutes.
    assert_eq!(cluster.names(JOBS), ["often-29453850", "rome-29453880"]);
}

#[test]
fn the_concurrency_policy_forbids_or_replaces() {
    let mut cluster = Cluster::with(&[("slow", ready_after(0)), ("new", ready_after(0))]);
    cluster.create(
        CRON_JOBS,
        &cron_job("slow", &json!({"schedule": "* * * * *", "concurrencyPolicy": "Forbid"})),
    );
    cluster.create(
        CRON_JOBS,
        &cron_job("new", &json!({"schedule": "* * * * *", "concurrencyPolicy": "Replace"})),
    );
    cluster.pass(190);
    assert_eq!(cluster.names(JOBS), ["new-29453763", "slow-29453761"]);
}
