//! Runs of plans of instances that keep an earlier revision: that revision's plans count, not those of the
//! active one.

use operetta::plan::scheduled_name;
use serde_json::{Value, json};

use crate::support::operators::{Cluster, Package, Part, SIZE, kind_of, scene};
use crate::support::plans::{ADMIN, PLAN_RUN, phase};
use crate::support::{LONG, Scene, eventually, name_of};

const PLANS: &str = "      plans:
        work:
          steps: [{name: note, record: {note: \"'worked'\"}}]
        tick:
          trigger: {schedule: '@every 1m', suspend: spec.size == 1}
          steps: [{name: note, record: {ticks: \"'yes'\"}}]
";

/// A kind with plans, and the same kind without.
fn parts(name: &str) -> (Part, Part) {
    (Part { plans: PLANS.to_owned(), ..Part::new(name, SIZE, "old") }, Part::new(name, SIZE, "new"))
}

/// Installs both revisions one after the other, and pins `kept` to the first; `moved` has the second.
async fn upgraded(cluster: &Cluster, package: &Package, second: Part, scene: &Scene) {
    cluster.put_active(package).await;
    for name in ["kept", "moved"] {
        package.ready(scene, name, &json!({})).await;
    }
    let labels = json!({"metadata": {"labels": {"keep": "yes"}}});
    scene.patch(package.kind(), "kept", "merge", &labels).await;
    let pin = json!({"spec": {"upgrade": {"pin": {"matchLabels": {"keep": "yes"}}}}});
    cluster.patch(&package.name, &pin).await;
    package.write("0.2.0", &[second]);
    cluster.put_active(package).await;
    let is_at = |version: &'static str| {
        move |o: &Value| {
            o["status"]["revision"].as_str().is_some_and(|revision| revision.starts_with(version))
        }
    };
    scene.until("moved", package.kind(), "moved", is_at("0.2.0")).await;
    scene.until("kept", package.kind(), "kept", is_at("0.1.0")).await;
}

#[tokio::test]
async fn an_instance_runs_the_plans_of_the_revision_that_it_keeps() {
    let cluster = &*Cluster::shared().await;
    let (first, second) = parts("dials");
    let package = Package::of("dials", "0.1.0", &[first]);
    let scene = scene(cluster).await;
    upgraded(cluster, &package, second, &scene).await;
    let kind = kind_of("dials");

    // Runs of another instance have the names that the next scheduled runs would get.
    let kept = scene.get(package.kind(), "kept").await;
    let created: k8s_openapi::jiff::Timestamp =
        kept["metadata"]["creationTimestamp"].as_str().unwrap().parse().unwrap();
    let at =
        |number: i64| k8s_openapi::jiff::Timestamp::from_second(created.as_second() + 60 * number).unwrap();
    let taken: Vec<String> = (1..=4).map(|number| scheduled_name("kept", "tick", at(number))).collect();
    for name in &taken {
        let run = json!({
            "apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun", "metadata": {"name": name},
            "spec": {"plan": "tick", "requestedBy": ADMIN, "of": {
                "apiVersion": package.kind().api_version(), "kind": kind, "resource": "dials", "name": "another"}},
        });
        scene.kubectl_input(&["create", "-f", "-"], &run.to_string()).await.unwrap();
    }

    // The instance that keeps its revision has the plan, the other has not.
    let works = scene.request((&kind, package.kind()), "kept", "work", &Value::Null).await;
    let done = scene.run_is(&works, "Succeeded").await;
    assert!(done["status"]["revision"].as_str().unwrap().starts_with("0.1.0"), "{done:#}");
    let refused = scene.request((&kind, package.kind()), "moved", "work", &Value::Null).await;
    let told =
        scene.until("answered", PLAN_RUN, &refused, |run| run["status"]["reason"] == "PlanMissing").await;
    assert!(told["status"]["message"].as_str().unwrap().contains("Dial has no plans"), "{told:#}");

    // The schedule creates a run under a free name.
    scene.patch(package.kind(), "kept", "merge", &json!({"spec": {"size": 2}})).await;
    eventually("a scheduled run", LONG, async || {
        let runs = scene.runs("kept").await;
        let ticks = runs.iter().find(|run| run["spec"]["plan"] == "tick" && phase(run) == "Succeeded");
        match ticks {
            Some(run) if taken.iter().any(|name| name_of(run) == format!("{name}-2")) => Ok(()),
            _ => Err(format!("{:?}", runs.iter().map(name_of).collect::<Vec<_>>())),
        }
    })
    .await;
}

/// The opposite case: the active revision has plans, and the revision that an instance keeps has none.
#[tokio::test]
async fn request_for_a_kept_revision_without_plans_waits() {
    let cluster = &*Cluster::shared().await;
    let (second, first) = parts("knobs");
    let package = Package::of("knobs", "0.1.0", &[first]);
    let scene = scene(cluster).await;
    upgraded(cluster, &package, second, &scene).await;
    let kind = kind_of("knobs");
    let refused = scene.request((&kind, package.kind()), "kept", "work", &Value::Null).await;
    let told =
        scene.until("answered", PLAN_RUN, &refused, |run| run["status"]["reason"] == "PlanMissing").await;
    let message = told["status"]["message"].as_str().unwrap();
    assert!(message.contains("Knob has no plans in revision 0.1.0-"), "{told:#}");
    scene.requested((&kind, package.kind()), "moved", "work", &Value::Null, "Succeeded").await;
    // Once the instance is moved, it runs the earlier request.
    cluster.patch("knobs", &json!({"spec": {"upgrade": null}})).await;
    let done = scene.run_is(&refused, "Succeeded").await;
    assert!(done["status"]["revision"].as_str().unwrap().starts_with("0.2.0"), "{done:#}");
}
