//! Rights of packages that are installed in the cluster: a revision that needs more rights waits for them.

use serde_json::Value;

use super::{Cluster, OPERATOR, OfAccount, Package, Part, SIZE, is_active, says, scene};
use crate::support::rights::run_operators;
use crate::support::{CONFIG_MAP, SERVICE_ACCOUNT, kind, uid_of};

#[tokio::test]
async fn revision_with_another_kind_waits_for_its_rights() {
    let OfAccount { cluster, kubeconfig } = Cluster::of_account().await;
    let package = Package::new("badges", "0.1.0", "old {{ spec.size }}");
    let first = package.revision().await;
    cluster.install(&package).await;
    let scene = scene(cluster).await;
    for name in ["one", "two"] {
        package.ready(&scene, name, &serde_json::json!({})).await;
    }
    let before = [scene.get(CONFIG_MAP, "one").await, scene.get(CONFIG_MAP, "two").await];

    package.write("0.2.0", &[Part::new("badges", SIZE, "new")]);
    let path = std::path::Path::new(package.folder());
    std::fs::write(
        path.join("templates/account.yaml"),
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: \"{{ name }}\"}\nautomountServiceAccountToken: false\n",
    )
    .unwrap();
    let manifest = std::fs::read_to_string(path.join("operator.yaml")).unwrap();
    let children = "children: [{id: account, template: templates/account.yaml}, ";
    std::fs::write(path.join("operator.yaml"), manifest.replace("children: [", children)).unwrap();
    says(
        cluster.told(&["upgrade", package.folder(), "--rights=false"]).await,
        1,
        &["RightsMissing", "create serviceaccounts", &format!("{first} stays active")],
    );
    cluster.until_refused("badges", "RightsMissing").await;
    let operator = cluster.find(OPERATOR, "badges").await.unwrap();
    assert_eq!(operator["status"]["activeRevision"], first.as_str(), "{operator:#}");
    // The state is the same after a restart, when no instance is known yet.
    cluster.manager.lock().unwrap().kill9();
    let process = run_operators(&cluster.plane, kubeconfig).await;
    *cluster.manager.lock().unwrap() = process;
    cluster.install(&Package::new("markers", "0.1.0", "x")).await;
    let told = cluster.until_refused("badges", "RightsMissing").await;
    assert!(told.contains("create serviceaccounts"), "{told}");
    let operator = cluster.find(OPERATOR, "badges").await.unwrap();
    assert_eq!(operator["status"]["activeRevision"], first.as_str(), "{operator:#}");
    // Nothing is applied in part.
    for (name, before) in ["one", "two"].iter().zip(&before) {
        assert_eq!(scene.get(CONFIG_MAP, name).await, *before, "{name}");
    }
    let accounts: Vec<String> = scene.names(SERVICE_ACCOUNT).await;
    assert!(accounts.iter().all(|name| name == "default"), "{accounts:?}");
    // The former revision is still reconciled.
    scene.kubectl(&["delete", "configmap", "two"]).await;
    let made = |o: &Value| o["data"]["value"] == "old 1" && uid_of(o) != uid_of(&before[1]);
    scene.until("made anew", CONFIG_MAP, "two", made).await;

    // Once the rights are granted, it proceeds by itself.
    crate::support::rights::grant(&cluster.plane, &[package.folder()], |_| {}).await;
    cluster.until("badges", "upgraded", is_active).await;
    for name in ["one", "two"] {
        scene.until("upgraded", CONFIG_MAP, name, |o| o["data"]["value"] == "new").await;
        assert!(scene.find(SERVICE_ACCOUNT, name).await.is_some());
    }

    // With `--accept-rights` the rights are granted once nothing else is missing.
    package.write("0.3.0", &[Part::new("badges", SIZE, "newer")]);
    let path = std::path::Path::new(package.folder());
    std::fs::write(
        path.join("templates/quota.yaml"),
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: \"{{ name }}\"}\nspec: {hard: {pods: 99}}\n",
    )
    .unwrap();
    let manifest = std::fs::read_to_string(path.join("operator.yaml")).unwrap();
    let children = "children: [{id: quota, template: templates/quota.yaml}, ";
    std::fs::write(path.join("operator.yaml"), manifest.replace("children: [", children)).unwrap();
    cluster.operetta(&["upgrade", package.folder(), "--accept-rights"]).await.ok();
    for name in ["one", "two"] {
        scene.until("upgraded", CONFIG_MAP, name, |o| o["data"]["value"] == "newer").await;
        assert!(scene.find(kind("v1", "resourcequotas"), name).await.is_some());
    }
}
