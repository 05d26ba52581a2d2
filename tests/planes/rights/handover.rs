//! Rights of two packages of which one hands over a kind to the other: the new account has its rights before
//! it has the kind, and no right of the old account remains.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::revisions::{Shape, Subject};
use super::shared_plane_with_operators;
use crate::support::{CRD, LONG, OPERATOR, Scene, condition, eventually, find_in, kubectl_of, uid_of};

#[tokio::test]
async fn new_account_has_rights_before_it_has_the_kind() {
    let plane = shared_plane_with_operators().await;
    let subject = |name: &str, scene: Scene| Subject {
        name: name.to_owned(),
        plural: "handeds".to_owned(),
        scene,
        is_limited: false,
        revisions: BTreeMap::new(),
        order: Vec::new(),
    };
    let mut old = subject("olds", Scene::on(plane).await);
    let mut new = subject("news", Scene::on(plane).await);
    // Use two kinds of children; the new package has no template of the second.
    let first = old.version_of(1, Shape { children: 0b11, has_second: false, reads_default: false }).await;
    old.operetta(&["install", old.folder(&first)]).await.ok();
    let instance = json!({
        "apiVersion": "revisions.example.org/v1", "kind": "Handed", "metadata": {"name": "one"}, "spec": {},
    });
    old.scene.apply(&instance.to_string()).await;
    old.settles("install").await;
    let config = old.scene.get(crate::support::ext::CONFIG_MAP, "one-x").await;

    let second = new.version_of(2, Shape { children: 0b01, has_second: false, reads_default: false }).await;
    let take = ["install", new.folder(&second), "--take-over-from", "olds", "--no-wait"];
    new.operetta(&take).await.ok();
    let message = eventually("refused for its rights", LONG, async || {
        let operator = find_in(plane, OPERATOR, None, "news").await.unwrap_or_default();
        let ready = condition(&operator, "Ready");
        let holds = ready["reason"] == "RightsMissing";
        if holds { Ok(ready["message"].to_string()) } else { Err(format!("{operator:#}")) }
    })
    .await;
    assert!(message.contains("services"), "{message}");
    let label = async || {
        let crd = find_in(plane, CRD, None, "handeds.revisions.example.org").await.unwrap();
        crd["metadata"]["labels"]["operetta.dev/operator"].clone()
    };
    assert_eq!(label().await, "olds");
    old.settles("the other is refused").await;

    // With both kinds it takes over, and has exactly its rights.
    let third = new.version_of(3, Shape { children: 0b11, has_second: false, reads_default: false }).await;
    new.operetta(&["upgrade", new.folder(&third), "--take-over-from", "olds", "--accept-rights"]).await.ok();
    assert_eq!(label().await, "news");
    new.scene = Scene::on(plane).await;
    std::mem::swap(&mut new.scene, &mut old.scene);
    new.settles("taken over").await;
    old.operetta(&["uninstall", "olds"]).await.ok();
    eventually("no right of the former account is left", LONG, async || {
        let left = old.rules(new.scene.namespace()).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let of_old = [
        "get",
        "clusterroles,clusterrolebindings,serviceaccounts",
        "-A",
        "-l",
        "operetta.dev/operator=olds",
        "-o",
        "name",
    ];
    assert_eq!(kubectl_of(plane, &of_old, "").await.ok().trim(), "");
    new.settles("the former package is uninstalled").await;
    assert_eq!(uid_of(&new.scene.get(crate::support::ext::CONFIG_MAP, "one-x").await), uid_of(&config));
    // The children are managed with the rights of the new account.
    new.scene.kubectl(&["delete", "configmap,service", "one-x"]).await;
    new.settles("repaired").await;
    let instance: Value = new.scene.get(new.kind(), "one").await;
    assert_eq!(condition(&instance, "Ready")["status"], "True");
}
