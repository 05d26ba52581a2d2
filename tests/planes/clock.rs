//! Jumps of a manager's wall clock, made with `OPERETTA_CLOCK_OFFSET_FILE`.

use crate::leader::LEASE;
use crate::support::ext::{Kind, LIGHT, LONG, Scene, condition, copy_package, fixture, kind, read};
use crate::support::{Operetta, eventually, plane};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const CLOCKED: Kind = kind("clock.example.org/v1", "lights");

/// How far a time is ahead of now, in hours.
#[expect(clippy::disallowed_methods, reason = "the test compares with the clock of the system")]
fn hours(time: &Value) -> i64 {
    let time: Timestamp = time.as_str().expect("a time").parse().expect("a time");
    let ahead = time.duration_since(Timestamp::now());
    (ahead + SignedDuration::from_mins(30)).as_secs().div_euclid(3_600)
}

#[tokio::test]
async fn clock_jump_of_a_day_changes_only_times() {
    let plane = plane().await;
    let folder = copy_package(&fixture("light"), LIGHT.group(), "clock.example.org", |text| text);
    let offset = tempfile::NamedTempFile::new().unwrap();
    let mut arguments = vec![
        "run",
        "--leader-elect",
        "--leader-elect-identity=clocked",
        "--leader-elect-resource-name=clock",
        folder.path().to_str().unwrap(),
    ];
    arguments.extend(LEASE);
    let environment =
        [("KUBECONFIG", plane.kubeconfig_path()), ("OPERETTA_CLOCK_OFFSET_FILE", offset.path())];
    let mut manager = Operetta::run_with(&arguments, &environment);
    manager.wait_for("watching instances", LONG).await;
    let scene = Scene::unmanaged().await;
    let client = scene.client();
    for (name, hours_ahead) in [("now", 0), ("ahead", 24), ("behind", -24)] {
        std::fs::write(offset.path(), format!("{}\n", hours_ahead * 3_600)).unwrap();
        let instance = json!({"apiVersion": CLOCKED.api_version(), "kind": "Light", "metadata": {"name": name}, "spec": {}});
        let ready = scene.apply_ready(CLOCKED, name, &instance.to_string()).await;
        assert_eq!(hours(&condition(&ready, "Ready")["lastTransitionTime"]), hours_ahead);
        let path = "/apis/coordination.k8s.io/v1/namespaces/operetta-system/leases/clock";
        let lease = eventually("a renewed Lease", LONG, async || {
            let lease = read(&client, path).await.ok_or("no Lease")?;
            let ahead = hours(&lease["spec"]["renewTime"]);
            if ahead == hours_ahead { Ok(lease) } else { Err(format!("{ahead} h")) }
        })
        .await;
        assert_eq!(lease["spec"]["holderIdentity"], "clocked");
        assert_eq!(lease["spec"]["leaseTransitions"], 0, "{}", manager.output());
    }
}
