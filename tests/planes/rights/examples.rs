//! The example packages with their derived rights only: each right is needed, and none is left over.

use std::collections::BTreeSet;

use operetta::local::Mark;
use operetta::rights;
use serde_json::{Value, json};

use super::{derived, is_of_everybody, lose_label, rules_named, strict_plane, texts, used};
use crate::support::ext::{
    CONFIG_MAP, Kind, NETWORK_POLICY, QUOTA, ROLE_BINDING, SERVICE, SITE, Scene, condition, file, kind, list,
    name_of, watching,
};
use crate::support::rights::{grant, manager, run, user};

const GREETING: Kind = kind("examples.operetta.dev/v1", "greetings");
const TEAM: Kind = kind("examples.operetta.dev/v1", "teams");

const PACKAGES: [&str; 3] = ["hello", "site", "team"];

/// What is derived and not seen here, by package, and when it is needed.
const UNREACHED: [(&str, &str, &[&str]); 4] = [
    ("hello", "a later version of the package without such a child deletes it", &["delete configmaps"]),
    ("team", "the same", &["delete configmaps"]),
    ("site", "refs with a tlsSecret", &["list secrets", "watch secrets"]),
    // The first half of this test: without it the bindings are refused.
    ("team", "asked by the API server itself", &["bind clusterroles.rbac.authorization.k8s.io"]),
];

#[tokio::test]
async fn examples_use_the_derived_rights_and_no_others() {
    let folders: Vec<String> = PACKAGES.iter().map(|name| format!("examples/packages/{name}")).collect();
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    // Without the right that is declared, not derived.
    let without_bind = |objects: &mut Vec<Value>| {
        for role in rules_named(objects, "operetta-team") {
            role.retain(|rule| !rule["verbs"].as_array().unwrap().contains(&json!("bind")));
        }
    };
    grant(&plane, &folders, without_bind).await;
    let mut operetta = run(&plane, &kubeconfig, &folders);
    watching(&mut operetta, PACKAGES.len()).await;
    let scene = Scene::on(&plane).await;
    scene.apply(&file("examples/packages/hello/instances/world.yaml")).await;
    scene.apply(&file("examples/packages/site/instances/docs.yaml")).await;
    scene.apply(&file("examples/packages/team/instances/platform.yaml")).await;
    let is_refused = |team: &Value| {
        let stalled = condition(team, "Stalled");
        stalled["reason"] == "RightsMissing"
            && stalled["message"].as_str().unwrap().contains("bind clusterroles")
    };
    scene.until("refused", TEAM, "platform", is_refused).await;
    assert_eq!(scene.names(QUOTA).await, [""; 0], "nothing of it is written");
    grant(&plane, &folders, |_| {}).await;
    for (kind, name) in [(GREETING, "world"), (SITE, "docs"), (TEAM, "platform")] {
        scene.ready(kind, name).await;
    }
    for kind in [CONFIG_MAP, SERVICE, QUOTA, NETWORK_POLICY, ROLE_BINDING] {
        for object in scene.list(kind).await {
            if object["metadata"]["labels"]["operetta.dev/instance-uid"].is_string() {
                lose_label(&scene, kind, name_of(&object)).await;
            }
        }
    }
    let less = json!({"spec": {"quota": null, "isolated": false, "members": [{"user": "ada@example.org"}]}});
    scene.patch(TEAM, "platform", "merge", &less).await;
    scene.patch(SITE, "docs", "merge", &json!({"spec": {"mirrors": ["east"]}})).await;
    for (kind, left) in [(QUOTA, 0), (NETWORK_POLICY, 0), (ROLE_BINDING, 1), (SERVICE, 1)] {
        crate::support::eventually(&format!("{left} {kind:?}"), crate::support::ext::LONG, async || {
            let names = scene.names(kind).await;
            if names.len() == left { Ok(()) } else { Err(names.join(" ")) }
        })
        .await;
    }
    drop(operetta);

    let requests = plane.audit().requests_since(Mark::START).unwrap();
    let own = user(rights::MANAGER);
    let of_manager: Vec<_> = requests.into_iter().filter(|request| request.user == own).collect();
    let mut wrong = Vec::new();
    for (folder, name) in folders.iter().zip(PACKAGES) {
        let account = user(&rights::account(name));
        let used =
            used(of_manager.iter().filter(|request| request.acting_as == account && request.code != 403));
        let mut used: BTreeSet<String> = used.into_iter().filter(|right| !is_of_everybody(right)).collect();
        let derived = texts(&derived(folder));
        used.extend(derived.iter().filter(|right| right.ends_with("/finalizers")).cloned());
        let known: Vec<&str> = UNREACHED
            .iter()
            .filter(|(package, ..)| *package == name)
            .flat_map(|(_, _, rights)| rights.iter().copied())
            .collect();
        wrong.extend(
            used.difference(&derived).map(|right| format!("{name}: {right} is used and not derived")),
        );
        let left = derived.difference(&used).filter(|right| !known.contains(&right.as_str()));
        wrong.extend(left.map(|right| format!("{name}: {right} is derived and not used")));
        let gone = known.iter().filter(|right| !derived.contains(**right));
        wrong.extend(gone.map(|right| format!("{name}: {right} is not derived, take it off the list")));
    }
    let denied: Vec<_> = of_manager.into_iter().filter(|request| request.code == 403).collect();
    assert!(wrong.is_empty(), "{}\ndenied:\n{}", wrong.join("\n"), list(&denied));
}
