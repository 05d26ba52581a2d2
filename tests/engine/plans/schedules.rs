//! Hundreds of schedules in one minute.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::instance;
use crate::support::ext::{ALARM, LONG, Scene, name_of, run_flags};
use crate::support::plans::{PLAN_RUN, phase};
use crate::support::{ControlPlane, Operetta, eventually, is_long, own_plane_of_tests};

fn alarm(name: &str, spec: Value) -> Value {
    instance(("Alarm", ALARM), name, spec)
}

async fn start(plane: &ControlPlane) -> Operetta {
    run_flags(plane, &["--leader-elect=false"], &["plans-clock"]).watching(1).await
}

/// The time for which a run is scheduled.
fn time_of(run: &Value) -> Timestamp {
    let at = run["metadata"]["annotations"]["operetta.dev/scheduled-at"].as_str().expect("a time");
    at.parse().expect("RFC 3339")
}

/// Waits until each of these instances has a run that has succeeded and is scheduled for later than `since`. Returns all such runs.
async fn all_run(scene: &Scene, instances: &[Value], since: Timestamp) -> Vec<Value> {
    let mut count = 0;
    loop {
        // A slow server may take long for all of them, but not for the next one.
        let runs = eventually("another one to run", LONG, async || {
            let mut runs = scene.list(PLAN_RUN).await;
            runs.retain(|run| {
                run["spec"]["plan"] == "nightly" && phase(run) == "Succeeded" && time_of(run) > since
            });
            let of: BTreeSet<&str> =
                runs.iter().filter_map(|run| run["spec"]["of"]["name"].as_str()).collect();
            let missing = instances.iter().map(name_of).find(|name| !of.contains(name));
            match missing {
                Some(name) if of.len() <= count => {
                    Err(format!("{count} of {}, without {name}", instances.len()))
                }
                _ => {
                    count = of.len();
                    Ok(runs)
                }
            }
        })
        .await;
        if count == instances.len() {
            return runs;
        }
    }
}

/// A thousand with `OPERETTA_SWEEP=1`: each runs once, and other work gets its turn among them.
#[tokio::test]
async fn hundreds_of_schedules_in_one_minute_all_run() {
    let many = if is_long() { 1000 } else { 300 };
    let plane = own_plane_of_tests().await;
    let scene = Scene::on(&plane).await;
    let mut manager = start(&plane).await;
    // Neither the first nor the last in lists of instances.
    let probe = "a0100-probe";
    scene.apply_ready(ALARM, probe, &alarm(probe, json!({})).to_string()).await;
    let every_minute = || json!({"schedule": "* * * * *"});
    let items: Vec<Value> = (0..many).map(|i| alarm(&format!("a{i:04}"), every_minute())).collect();
    for part in items.chunks(250) {
        scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": part}).to_string()).await;
    }
    all_run(&scene, &items, Timestamp::MIN).await;

    // Without a manager a minute begins, and the half minute over which its runs are spread passes: then all are due at once, beside
    // another run. Which one is first shows in the order of writes, for computing takes no virtual time.
    manager.kill9();
    let (away, mark) = (operetta::clock::now(), plane.audit().mark().expect("the audit log"));
    let other = scene.request(("Alarm", ALARM), probe, "other", &Value::Null).await;
    tokio::time::sleep(Duration::from_secs(95)).await;
    manager = start(&plane).await;
    scene.run_is(&other, "Succeeded").await;
    let late = all_run(&scene, &items, away).await;
    let mut begun = BTreeMap::new();
    for (number, request) in
        plane.audit().requests_since(mark).expect("the audit log").into_iter().enumerate()
    {
        if request.resource == "planruns" && request.subresource == "status" {
            begun.entry(request.name).or_insert(number);
        }
    }
    let is_earlier = |run: &&Value| begun.get(name_of(run)).is_some_and(|number| *number < begun[&other]);
    let before = late.iter().filter(is_earlier).count();
    assert!(before < many, "another run has begun after {before} others");

    let mut minutes = BTreeSet::new();
    for run in all_run(&scene, &items, Timestamp::MIN).await {
        let at = time_of(&run);
        assert!(minutes.insert((run["spec"]["of"]["name"].to_string(), at)), "twice at {at}: {run:#}");
    }
    manager.end().await;
}
