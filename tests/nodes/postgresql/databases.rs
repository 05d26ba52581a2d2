//! Databases and roles on a real server, and clients that use them.

use serde_json::{Value, json};

use super::clients::{self, HAS_TLS, answers, authorities, host, is_refused};
use super::operations::instance_pods;
use super::{CLUSTER, replicated, sql, stage};
use crate::database::containers;
use crate::support::{Kind, LONG, Scene, condition, eventually, is_ready, kind};

const DATABASE: Kind = kind("postgresql.cnpg.io/v1", "databases");
const DATABASE_ROLE: Kind = kind("postgresql.cnpg.io/v1", "databaseroles");

/// What the server says of a failed login.
const WRONG_PASSWORD: &str = "password authentication failed";

/// The Secret with the password of `clerk`.
fn password(password: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "clerk"}, "stringData": {"password": password}})
        .to_string()
}

/// Creates an object for a database of `clerk`.
async fn declare(scene: &Scene, name: &str, database: &str, policy: Option<&str>) {
    let mut spec = json!({
        "cluster": {"name": "db"}, "name": database, "owner": "clerk", "extensions": [{"name": "pg_trgm"}],
    });
    if let Some(policy) = policy {
        spec["databaseReclaimPolicy"] = policy.into();
    }
    let object = json!({
        "apiVersion": DATABASE.api_version(), "kind": "Database", "metadata": {"name": name}, "spec": spec,
    });
    scene.apply(&object.to_string()).await;
}

/// Deletes the object for a database, and waits until it is gone.
async fn delete(scene: &Scene, name: &str) {
    scene.kubectl(&["delete", &DATABASE.resource_name(), name]).await;
}

/// The databases of `clerk`.
async fn databases(scene: &Scene) -> String {
    let query = "select coalesce(string_agg(datname, ' ' order by datname), '') from pg_database \
                 where pg_get_userbyid(datdba) = 'clerk'";
    sql(scene, "db-1", query).await
}

/// Makes a change behind the back of the manager, and waits until a query says that it is undone.
async fn is_repaired(scene: &Scene, change: &str, query: &str) {
    sql(scene, "db-1", change).await;
    eventually(&format!("{change}: the repair"), LONG, async || match sql(scene, "db-1", query).await {
        answer if answer == "t" => Ok(()),
        answer => Err(answer),
    })
    .await;
}

#[tokio::test]
async fn databases_and_roles_are_kept_as_their_specs_say() {
    let (stage, _end) = stage().await;
    stage.create("Cluster", &replicated(1)).await;
    let scene = &stage.scene;
    clients::start(scene).await;

    scene.apply(&password("open-sesame")).await;
    let role = json!({
        "apiVersion": DATABASE_ROLE.api_version(), "kind": "DatabaseRole", "metadata": {"name": "clerk"},
        "spec": {"cluster": {"name": "db"}, "name": "clerk", "login": true, "passwordSecret": {"name": "clerk"}},
    });
    scene.apply_ready(DATABASE_ROLE, "clerk", &role.to_string()).await;
    declare(scene, "shop", "shop", None).await;
    scene.ready(DATABASE, "shop").await;
    let before = containers(&instance_pods(&stage).await);

    let clerk = ["clerk", "open-sesame", "shop"];
    answers(scene, clerk, HAS_TLS, "t").await;
    answers(scene, clerk, "select similarity('word', 'words') > 0", "t").await;
    let (host, trusted) = (host(scene), authorities(scene).await);
    is_refused(scene, &host, ["clerk", "open-barley", "shop"], &trusted, WRONG_PASSWORD).await;

    // What another hand changes is repaired.
    let can_log_in = "select rolcanlogin from pg_roles where rolname = 'clerk'";
    is_repaired(scene, "alter role clerk nologin", can_log_in).await;
    answers(scene, clerk, HAS_TLS, "t").await;
    let is_owner = "select pg_get_userbyid(datdba) = 'clerk' from pg_database where datname = 'shop'";
    is_repaired(scene, "alter database shop owner to postgres", is_owner).await;
    scene.ready(DATABASE, "shop").await;

    // Another password counts for the running server.
    scene.apply(&password("open-barley")).await;
    answers(scene, ["clerk", "open-barley", "shop"], HAS_TLS, "t").await;
    is_refused(scene, &host, clerk, &trusted, WRONG_PASSWORD).await;
    scene.ready(DATABASE_ROLE, "clerk").await;

    // The second object for a database does nothing. If both were created in one second, the first by name would manage it.
    declare(scene, "shop-again", "shop", Some("delete")).await;
    let is_duplicate = |object: &Value| condition(object, "Duplicate")["status"] == "True";
    let second = scene.until("a duplicate", DATABASE, "shop-again", is_duplicate).await;
    assert!(!is_ready(&second), "{second:#}");
    let first = scene.ready(DATABASE, "shop").await;
    assert!(!is_duplicate(&first), "{first:#}");
    delete(scene, "shop-again").await;
    assert_eq!(databases(scene).await, "shop");
    answers(scene, ["clerk", "open-barley", "shop"], HAS_TLS, "t").await;

    // A database is dropped with its object only if the object says so.
    declare(scene, "stock", "stock", Some("delete")).await;
    scene.ready(DATABASE, "stock").await;
    assert_eq!(databases(scene).await, "shop stock");
    delete(scene, "stock").await;
    assert_eq!(databases(scene).await, "shop");
    delete(scene, "shop").await;
    assert_eq!(databases(scene).await, "shop");

    scene.ready(CLUSTER, "db").await;
    assert_eq!(containers(&instance_pods(&stage).await), before);
}
