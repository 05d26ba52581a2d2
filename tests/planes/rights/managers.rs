//! Two managers with different users, each with a package that has plans.

use serde_json::json;

use super::strict_plane;
use crate::support::rights::{grant, manager, user};
use crate::support::{ERRAND, Kind, LONG, Scene, eventually, fixture, kind, kubectl_of, run_flags};

const LAP: Kind = kind("fixtures.operetta.dev/v1", "laps");

#[tokio::test]
async fn managers_with_different_users_run_plans_in_one_cluster() {
    let plane = strict_plane().await;
    let instance = |kind: &str, name: &str| {
        json!({"apiVersion": LAP.api_version(), "kind": kind, "metadata": {"name": name}, "spec": {}})
            .to_string()
    };
    let flags = ["--leader-elect=false", "--leader-elect-resource-name=laps"];
    let mut admin = run_flags(&plane, &flags, &["laps"]).watching(1).await;
    let scene = Scene::on(&plane).await;
    scene.apply_ready(LAP, "a", &instance("Lap", "a")).await;

    let kubeconfig = manager(&plane).await;
    let errands = fixture("plan-commands");
    grant(&plane, &[&errands], |_| {}).await;
    let mut account = crate::support::rights::run(&plane, &kubeconfig, &[&errands]).watching(1).await;
    // Each manager creates runs, also after the other has started.
    for name in ["b", "c"] {
        scene.apply_ready(ERRAND, name, &instance("Errand", name)).await;
        scene.apply_ready(LAP, name, &instance("Lap", name)).await;
    }
    let path = "jsonpath={.spec.matchConditions[*].expression}";
    let conditions = ["get", "validatingadmissionpolicy", "planruns.operetta.dev", "-o", path];
    let exempt = kubectl_of(&plane, &conditions, "").await.ok();
    assert!(exempt.contains(&user("operetta")), "{exempt}");
    assert_eq!(exempt.matches("username !=").count(), 2, "{exempt}");

    // A deleted policy is restored for both managers after their restart.
    let gone =
        ["delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "planruns.operetta.dev"];
    kubectl_of(&plane, &gone, "").await.ok();
    for manager in [&mut admin, &mut account] {
        manager.end().await;
    }
    let admin = run_flags(&plane, &flags, &["laps"]);
    let account = crate::support::rights::run(&plane, &kubeconfig, &[&errands]);
    let (_admin, _account) = (admin.watching(1).await, account.watching(1).await);
    for (kind, of) in [("Errand", ERRAND), ("Lap", LAP)] {
        scene.apply_ready(of, "d", &instance(kind, "d")).await;
    }
    let again = eventually("both exemptions", LONG, async || {
        let text = kubectl_of(&plane, &conditions, "").await.ok();
        if text.matches("username !=").count() == 2 { Ok(text) } else { Err(text) }
    })
    .await;
    assert_eq!(sorted(&again), sorted(&exempt));
}

/// The words of a text, sorted.
fn sorted(text: &str) -> Vec<&str> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_unstable();
    words
}
