//! A CRD is handed over from one package to another: a package is renamed, split or merged from Git, in any order. Instances, children,
//! pods and the states of runs stay, and nothing is rolled out again.

use serde_json::{Value, json};

use super::{dies_at, start};
use crate::support::faults::Wire;
use crate::support::handover::{Life, package, write};
use crate::support::operators::{Cluster, GROUP, Package, is_active, operator};
use crate::support::{CRD, LONG, eventually};

/// `spec.takesOver` of an Operator that takes the CRD of a plural from another package.
fn takes_over(plural: &str, from: &str) -> Value {
    json!([{"crd": format!("{plural}.{GROUP}"), "from": from}])
}

/// Installs a package, or changes its revision, that takes the CRD of a plural from another one.
async fn put_over(cluster: &Cluster, package: &Package, plural: &str, from: &str) {
    let (revision, mut objects) = package.packed();
    let mut operator = operator(&package.name, &revision);
    operator["spec"]["takesOver"] = takes_over(plural, from);
    objects.push(operator);
    cluster.apply(&objects).await;
}

/// Lets an installed package take the CRD of a plural from another one.
async fn takes(cluster: &Cluster, package: &str, plural: &str, from: &str) {
    cluster.patch(package, &json!({"spec": {"takesOver": takes_over(plural, from)}})).await;
}

#[tokio::test]
async fn a_package_is_renamed_in_git_in_any_order() {
    let cluster = &*Cluster::shared().await;
    for (index, is_deleted_first) in [true, false].into_iter().enumerate() {
        let (old, new, plural) = (format!("olds{index}"), format!("news{index}"), format!("things{index}"));
        let first = package(&old, "0.1.0", &[&plural]);
        cluster.put_active(&first).await;
        let life = Life::begin(cluster, &[&plural]).await;
        let second = package(&new, "0.1.0", &[&plural]);
        if is_deleted_first {
            cluster.kubectl(&["delete", "operator", &old], "").await.ok();
        }
        put_over(cluster, &second, &plural, &old).await;
        cluster.is_named(&second).await;
        if !is_deleted_first {
            cluster.kubectl(&["delete", "operator", &old], "").await.ok();
        }
        life.is_of(&plural, &new).await;
        life.is_untouched(&format!("deleted first: {is_deleted_first}")).await;
        life.is_managed(&plural).await;
    }
}

#[tokio::test]
async fn a_package_is_split_in_any_order() {
    let cluster = &*Cluster::shared().await;
    for (index, new_version_first) in [true, false].into_iter().enumerate() {
        let (whole, part) = (format!("wholes{index}"), format!("parts{index}"));
        let (kept, given) = (format!("keeps{index}"), format!("gives{index}"));
        let first = package(&whole, "0.1.0", &[&kept, &given]);
        cluster.put_active(&first).await;
        let life = Life::begin(cluster, &[&kept, &given]).await;
        let second = package(&part, "1.0.0", &[&given]);
        write(&first, "0.2.0", &[&kept]);
        if new_version_first {
            cluster.put(&first).await;
            let message = cluster.until_refused(&whole, "CRDRefused").await;
            assert!(message.contains("--take-over-from"), "{message}");
            life.is_untouched("the new version is refused").await;
        }
        put_over(cluster, &second, &given, &whole).await;
        cluster.is_named(&second).await;
        if !new_version_first {
            let message = cluster.until_refused(&whole, "CRDHandedOver").await;
            assert!(message.contains(&format!("{given}.{GROUP} to {part}")), "{message}");
            cluster.put(&first).await;
        }
        cluster.is_named(&first).await;
        life.is_of(&given, &part).await;
        life.is_of(&kept, &whole).await;
        let mut expected = life.before.clone();
        // The other package was upgraded, which is a rollout of its own kind alone.
        let mut found = life.identities().await;
        let is_of_upgrade = |name: &String| {
            name.starts_with(&format!("planruns {kept}-"))
                || name.starts_with(&format!("controllerrevisions {kept}-"))
        };
        expected.retain(|name, _| !is_of_upgrade(name));
        found.retain(|name, _| !is_of_upgrade(name));
        assert_eq!(found, expected, "the new version first: {new_version_first}");
        life.is_managed(&given).await;
        life.is_managed(&kept).await;
    }
}

#[tokio::test]
async fn two_packages_are_merged_in_any_order() {
    let cluster = &*Cluster::shared().await;
    for (index, goes_first) in [true, false].into_iter().enumerate() {
        let (stays, goes) = (format!("stays{index}"), format!("goes{index}"));
        let (own, taken) = (format!("owns{index}"), format!("takens{index}"));
        let (first, second) = (package(&stays, "0.1.0", &[&own]), package(&goes, "0.1.0", &[&taken]));
        for package in [&first, &second] {
            cluster.put_active(package).await;
        }
        let life = Life::begin(cluster, &[&taken]).await;
        write(&first, "0.2.0", &[&own, &taken]);
        if goes_first {
            cluster.kubectl(&["delete", "operator", &goes], "").await.ok();
        }
        put_over(cluster, &first, &taken, &goes).await;
        cluster.is_named(&first).await;
        if !goes_first {
            cluster.kubectl(&["delete", "operator", &goes], "").await.ok();
        }
        life.is_of(&taken, &stays).await;
        life.is_untouched(&format!("deleted first: {goes_first}")).await;
        life.is_managed(&taken).await;
    }
}

/// A kind is handed over and back while the other package stays installed. Two Operators that take the same
/// CRD from each other are refused.
#[tokio::test]
async fn kind_can_be_handed_over_and_back() {
    let cluster = &*Cluster::shared().await;
    let (here, there) = (package("heres", "0.1.0", &["wanders"]), package("theres", "0.1.0", &["wanders"]));
    cluster.put_active(&here).await;
    let life = Life::begin(cluster, &["wanders"]).await;
    put_over(cluster, &there, "wanders", "heres").await;
    cluster.is_named(&there).await;
    life.is_of("wanders", "theres").await;
    cluster.until_refused("heres", "CRDHandedOver").await;
    // Both Operators name the CRD: it stays where it is.
    takes(cluster, "heres", "wanders", "theres").await;
    let names_both =
        |o: &Value| o["status"].to_string().contains("spec.takesOver of both Operators names it");
    cluster.until("heres", "refused", names_both).await;
    life.is_of("wanders", "theres").await;
    cluster.patch("theres", &json!({"spec": {"takesOver": null}})).await;
    cluster.until("heres", "active", is_active).await;
    life.is_of("wanders", "heres").await;
    cluster.until_refused("theres", "CRDHandedOver").await;
    life.is_untouched("there and back").await;
    cluster.kubectl(&["delete", "operator", "theres"], "").await.ok();
    life.is_untouched("the other is deleted").await;
    life.is_managed("wanders").await;
}

/// Hands over and back, with a manager that ends at its kth write, until a manager makes fewer than k writes.
#[tokio::test]
async fn handover_is_resumed_after_a_kill_at_any_write() {
    let cluster = Cluster::start().await;
    let (odd, even) = (package("odds", "0.1.0", &["dies"]), package("evens", "0.1.0", &["dies"]));
    cluster.put_active(&odd).await;
    let life = Life::begin(&cluster, &["dies"]).await;
    cluster.put(&even).await;
    cluster.until_refused("evens", "CRDRefused").await;
    cluster.manager.lock().unwrap().kill9();

    let wire = Wire::new(1, GROUP, &[]);
    let mut most = 0;
    for k in 1.. {
        let mut died = false;
        for (to, from) in [("evens", "odds"), ("odds", "evens")] {
            cluster.patch(from, &json!({"spec": {"takesOver": null}})).await;
            takes(&cluster, to, "dies", from).await;
            let done = async || {
                cluster.until(to, "done", is_active).await;
                eventually("the CRD", LONG, async || {
                    let crd = cluster.find(CRD, &format!("dies.{GROUP}")).await.unwrap();
                    let label = &crd["metadata"]["labels"]["operetta.dev/operator"];
                    if *label == to { Ok(()) } else { Err(format!("{label}")) }
                })
                .await;
                life.is_of("dies", to).await;
            };
            died |= dies_at(k, &wire, &cluster.plane, &done).await;
            let process = start(&wire, &cluster.plane).await.expect("it lives");
            done().await;
            life.is_untouched(&format!("to {to}, k = {k}")).await;
            process.manager.stop().await;
        }
        if !died {
            most = k;
            break;
        }
    }
    assert!(most > 5, "there are more than {most} writes");
}
