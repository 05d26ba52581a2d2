//! Commands that wait for a manager end as soon as the cause is known.

use serde_json::Value;

use super::{Cluster, OfAccount, Package, Part, SIZE, is_active, says};
use crate::support::ext::condition;
use crate::support::rights::apply;

#[tokio::test]
async fn an_installation_without_rights_ends_with_what_is_missing() {
    let OfAccount { cluster, .. } = Cluster::of_account().await;
    let plane = &cluster.plane;
    let package = Package::new("lamps", "0.1.0", "old {{ spec.size }}");
    // The exit code is that of a refusal, not that of a timeout.
    let rightless = ["install", package.folder(), "--rights=false", "--timeout", "1h"];
    says(
        cluster.told(&rightless).await,
        1,
        &["error: RightsMissing: ", "rights are missing", "CRD lamps.ops.example.org"],
    );

    // The manager may register the kind, and the package's account has no rights.
    let objects =
        crate::support::operetta(plane.kubeconfig_path(), &["rbac", "-o", "json", package.folder()]).await;
    let mut list: Value = serde_json::from_str(&objects.ok()).unwrap();
    let mut objects: Vec<Value> = serde_json::from_value(list["items"].take()).unwrap();
    for object in &mut objects {
        for rule in object.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
            let resources = rule["resources"].as_array_mut().into_iter().flatten();
            resources
                .filter(|resource| **resource == "configmaps")
                .for_each(|resource| *resource = "events".into());
        }
    }
    apply(plane, &objects).await;
    says(cluster.told(&rightless).await, 1, &["error: RightsMissing: ", "configmaps"]);
    // `install` ends as soon as rights are missing: the manager's rights may reach the API server's
    // authorizer later, and instances are listed only then.
    let is_rightless = |operator: &Value| {
        condition(operator, "Active")["status"] == "True"
            && condition(operator, "Ready")["reason"] == "RightsMissing"
    };
    cluster.until("lamps", "active without rights", is_rightless).await;
    let table = cluster.operetta(&["operators"]).await.ok();
    assert!(table.contains("RightsMissing") && table.contains("rights are missing: "), "{table}");

    cluster.operetta(&["install", package.folder(), "--accept-rights"]).await.ok();
    let operator = cluster.until("lamps", "all is well", is_active).await;
    assert_eq!(condition(&operator, "Ready")["reason"], "Active", "{operator:#}");
}

#[tokio::test]
async fn a_downgrade_is_announced() {
    let cluster = Cluster::shared().await;
    let package = cluster.installed(Package::new("downs", "0.10.0", "new")).await;
    package.write("0.9.0", &[Part::new("downs", SIZE, "old")]);
    let (code, told) = cluster.told(&["install", package.folder()]).await;
    assert!(code == 1 && told.contains("this is a downgrade from 0.10.0 to 0.9.0"), "{code} {told}");
    let preview = cluster.operetta(&["upgrade", package.folder(), "--preview"]).await;
    assert!(
        preview.stderr.contains("warning: this is a downgrade from 0.10.0 to 0.9.0"),
        "{}",
        preview.stderr
    );
    let upgraded = cluster.operetta(&["upgrade", package.folder()]).await;
    assert!(
        upgraded.stderr.contains("warning: this is a downgrade from 0.10.0 to 0.9.0"),
        "{}",
        upgraded.stderr
    );
    upgraded.ok();
    // The rollback to the newer version is no downgrade.
    let back = cluster.operetta(&["rollback", "downs"]).await;
    assert!(!back.stderr.contains("downgrade"), "{}", back.stderr);
    back.ok();
}
