//! The manager and a package installed from YAML by kubectl alone.

use std::collections::BTreeMap;

use operetta::local::Mark;

use super::{Cluster, denied, start};
use crate::support::rights::{SYSTEM, user};
use crate::support::{ETCD, LONG, Scene, eventually, file, is_ready, kubectl_of};

#[tokio::test]
async fn manager_and_etcd_can_be_installed_from_yaml() {
    let folder = tempfile::tempdir().unwrap();
    let plane = start(&folder.path().join("image")).await;
    let cluster = Cluster { plane: plane.clone() };
    let kubectl = async |args: &[&str], input: &str| kubectl_of(&plane, args, input).await;
    kubectl(&["apply", "--server-side", "-f", "docs/deploy/operetta.yaml"], "").await.ok();
    // `--dry-run` needs no cluster: its output may come from Git.
    let yaml = cluster.operetta(&["install", "operators/etcd", "--dry-run", "-o", "yaml"]).await.ok();
    eventually("the kinds of packages", LONG, async || {
        kubectl(&["apply", "--server-side", "-f", "-"], &yaml).await.result()
    })
    .await;
    let scene = Scene::on(&plane).await;
    // The node has the image of another version of etcd.
    let seed = file("examples/etcd/example-etcd-cluster.yaml");
    assert!(seed.contains("\"3.2.13\""));
    let seed = seed.replace("\"3.2.13\"", "\"3.6.8\"");
    eventually("the seed, once its kind is registered", LONG, async || {
        kubectl(&["-n", scene.namespace(), "apply", "-f", "-"], &seed).await.result()
    })
    .await;
    let name = "example-etcd-cluster";
    eventually("the cluster of etcd", LONG * 3, async || match scene.find(ETCD, name).await {
        Some(found) if is_ready(&found) => Ok(()),
        found => Err(format!("{:#}", found.unwrap_or_default()["status"])),
    })
    .await;
    assert!(file("docs/deploy/operetta.yaml").contains(SYSTEM));

    let requests = plane.audit().requests_since(Mark::START).unwrap();
    let own = ["etcdclusters", "events", "controllerrevisions", "planruns", "instancestates"];
    let writes = requests.iter().filter(|request| {
        request.user == user("operetta")
            && request.namespace == scene.namespace()
            && request.writes()
            && !own.contains(&request.resource.as_str())
    });
    let mut accounts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for request in writes {
        accounts.entry(&request.acting_as).or_default().push(&request.resource);
    }
    let of_package = user("operetta-etcd");
    assert_eq!(accounts.keys().copied().collect::<Vec<_>>(), [of_package.as_str()], "{accounts:?}");
    for resource in ["pods", "services", "configmaps", "poddisruptionbudgets"] {
        assert!(accounts[of_package.as_str()].contains(&resource), "{resource}: {accounts:?}");
    }
    // Only Kubernetes itself has made other writes in the namespace.
    let others = requests.iter().filter(|request| {
        request.namespace == scene.namespace()
            && request.writes()
            && request.user.starts_with("system:serviceaccount:")
            && request.user != user("operetta")
    });
    assert_eq!(others.count(), 0);
    assert!(denied(&requests).is_empty(), "{:?}", denied(&requests));
}
