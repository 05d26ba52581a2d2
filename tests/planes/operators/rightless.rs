//! Commands that wait for a manager end as soon as the cause is known.

use std::sync::Arc;

use super::{Cluster, Package, Part, SIZE, is_active};
use crate::support::ext::{LONG, condition};
use crate::support::own_plane;
use crate::support::rights::{apply, manager, run};

#[tokio::test]
async fn an_installation_without_rights_ends_with_what_is_missing() {
    let plane = own_plane().await;
    let kubeconfig = manager(&plane).await;
    let mut process = run(&plane, &kubeconfig, &[]);
    process.wait_for("following the Operators of the cluster", LONG).await;
    let cluster = Cluster { plane: Arc::clone(&plane), manager: std::sync::Mutex::new(process) };
    let package = Package::new("lamps", "0.1.0", "old {{ spec.size }}");
    // With the exit code of a refusal, and not that of a time that is over.
    let rightless = ["install", package.folder(), "--rights=false", "--timeout", "1h"];
    let (code, told) = cluster.told(&rightless).await;
    assert!(
        code == 1 && told.contains("error: RightsMissing: ") && told.contains("rights are missing"),
        "{code} {told}"
    );
    assert!(told.contains("CRD lamps.ops.example.org"), "{told}");

    // The manager may register its kind, and the account may nothing.
    let objects =
        crate::support::operetta(plane.kubeconfig_path(), &["rbac", "-o", "json", package.folder()]).await;
    let mut list: serde_json::Value = serde_json::from_str(&objects.ok()).unwrap();
    let mut objects: Vec<serde_json::Value> = serde_json::from_value(list["items"].take()).unwrap();
    for object in &mut objects {
        for rule in object.get_mut("rules").and_then(serde_json::Value::as_array_mut).into_iter().flatten() {
            let resources = rule["resources"].as_array_mut().into_iter().flatten();
            resources
                .filter(|resource| **resource == "configmaps")
                .for_each(|resource| *resource = "events".into());
        }
    }
    apply(&plane, &objects).await;
    let (code, told) = cluster.told(&rightless).await;
    assert!(code == 1 && told.contains("error: RightsMissing: "), "{code} {told}");
    assert!(told.contains("configmaps"), "{told}");
    // The rights of the manager may reach the API server's authorizer after those of the account are looked at.
    cluster.until("lamps", "Active", |operator| condition(operator, "Active")["status"] == "True").await;
    let table = cluster.operetta(&["operators"]).await.ok();
    assert!(table.contains("RightsMissing") && table.contains("rights are missing: "), "{table}");

    cluster.operetta(&["install", package.folder(), "--accept-rights"]).await.ok();
    let operator = cluster.until("lamps", "all is well", is_active).await;
    assert_eq!(condition(&operator, "Ready")["reason"], "Active", "{operator:#}");
}

#[tokio::test]
async fn a_downgrade_is_announced() {
    let cluster = Cluster::shared().await;
    let package = Package::new("downs", "0.10.0", "new");
    cluster.install(&package).await;
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
    // The other way it is none.
    let back = cluster.operetta(&["rollback", "downs"]).await;
    assert!(!back.stderr.contains("downgrade"), "{}", back.stderr);
    back.ok();
}
