//! Packages whose Operator names namespaces, with an account that has Roles there and no `ClusterRole`; and
//! packages whose account lacks rights, beside others.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::{
    CONFIG_MAP, ControlPlane, GREETING, LONG, Operetta, SITE, Scene, condition, eventually, file, kubectl_of,
    list, name_of, uid_of,
};
use operetta::local::Mark;
use operetta::rights;
use serde_json::{Value, json};

use super::each::{install, store, until, until_missing};
use super::strict_plane;
use crate::support::barrier::Address;
use crate::support::rights::{grant_with, manager, run_operators, user};

const SITES: &str = "examples/packages/site";
const HELLO: &str = "examples/packages/hello";

/// Grants a package its rights by Roles in these namespaces.
async fn grant_in(plane: &ControlPlane, folder: &str, scenes: &[&Scene]) {
    let flags: Vec<String> =
        scenes.iter().map(|scene| format!("--namespace={}", scene.namespace())).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    grant_with(plane, &flags, &[folder], |objects| {
        let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole").map(name_of);
        let of_account: Vec<&str> =
            roles.filter(|name| !name.contains(":site:") && !name.contains(":hello:")).collect();
        assert_eq!(of_account, [""; 0], "the account has Roles only");
    })
    .await;
}

async fn serve(plane: &ControlPlane, operator: &str, scenes: &[&Scene]) {
    let names: Vec<&str> = scenes.iter().map(|scene| scene.namespace()).collect();
    let patch = json!({"spec": {"namespaces": {"names": names}}}).to_string();
    kubectl_of(plane, &["patch", "operator", operator, "--type=merge", "-p", &patch], "").await.ok();
}

fn names(scenes: &[&Scene]) -> BTreeSet<String> {
    scenes.iter().map(|scene| scene.namespace().to_owned()).collect()
}

async fn is_ready(operetta: &Operetta, expected: &str) {
    let address = Address::of(operetta);
    eventually("/readyz", LONG, async || {
        let (head, text) = address.get("/readyz").await;
        let holds = head.contains(" 200 ") && text.contains(expected);
        if holds { Ok(()) } else { Err(format!("{head}: {text}")) }
    })
    .await;
}

/// Checks that a deleted child comes back.
async fn repaired(scene: &Scene, name: &str) {
    let before = scene.get(CONFIG_MAP, name).await;
    scene.kubectl(&["delete", "configmap", name]).await;
    scene.until("made again", CONFIG_MAP, name, |object| uid_of(object) != uid_of(&before)).await;
}

#[tokio::test]
async fn account_with_roles_only_serves_named_namespaces() {
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    let (one, two, three) = (Scene::on(&plane).await, Scene::on(&plane).await, Scene::on(&plane).await);
    grant_in(&plane, SITES, &[&one, &two]).await;
    let operetta = run_operators(&plane, &kubeconfig).await;
    install(&plane, SITES, &names(&[&one, &two])).await;
    let mut site: Value = serde_json::from_str(
        &kubectl_of(
            &plane,
            &["create", "--dry-run=client", "-o", "json", "-f", "examples/packages/site/instances/docs.yaml"],
            "",
        )
        .await
        .ok(),
    )
    .unwrap();
    site["spec"]["tlsSecret"] = "tls".into();
    site["metadata"].as_object_mut().unwrap().remove("namespace");
    let site = site.to_string();
    let tls = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "data": {"tls.crt": "YQ=="}});
    for scene in [&one, &two, &three] {
        scene.apply(&tls.to_string()).await;
        scene.apply(&site).await;
    }
    for scene in [&one, &two] {
        scene.ready(SITE, "docs").await;
        repaired(scene, "docs").await;
        // Refs are watched in that namespace.
        let banner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "banner"}, "data": {"text": "News"}});
        scene.apply(&banner.to_string()).await;
        scene.until("the banner", CONFIG_MAP, "docs", |object| object["data"]["banner"] == "News").await;
    }
    let unserved = |object: &Value| {
        condition(object, "Ready")["message"]
            .as_str()
            .is_some_and(|text| text.contains("does not serve the namespace"))
    };
    three.until("not served", SITE, "docs", unserved).await;
    assert_eq!(three.names(CONFIG_MAP).await, [""; 0]);
    until_missing(&plane, "site", &BTreeSet::new()).await;
    is_ready(&operetta, "all watches are up").await;
    // No request was for all namespaces, and none was refused.
    let account = user(&rights::account("site"));
    let mut wrong = plane.audit().requests_since(Mark::START).unwrap();
    wrong.retain(|request| {
        let is_review = request.resource.starts_with("selfsubject");
        request.acting_as == account && !is_review && (request.namespace.is_empty() || request.code == 403)
    });
    assert!(wrong.is_empty(), "{}", list(&wrong));

    // One more namespace, at first without rights: that is reported and does not affect the others.
    serve(&plane, "site", &[&one, &two, &three]).await;
    let lacks = |operator: &Value| {
        let rights = operator["status"]["missingRights"].as_array().cloned().unwrap_or_default();
        let of_three = format!(" in {}", three.namespace());
        !rights.is_empty() && rights.iter().all(|right| right.as_str().unwrap().ends_with(&of_three))
    };
    until(&plane, "site", "rights missing there", lacks).await;
    repaired(&one, "docs").await;
    is_ready(&operetta, "").await;
    grant_in(&plane, SITES, &[&one, &two, &three]).await;
    three.ready(SITE, "docs").await;
    until_missing(&plane, "site", &BTreeSet::new()).await;

    // A namespace is no longer served: its children stay, and deletions are completed, also by another
    // manager.
    serve(&plane, "site", &[&two, &three]).await;
    one.until("not served", SITE, "docs", unserved).await;
    one.kubectl(&["delete", "configmap", "docs"]).await;
    drop(operetta);
    let _operetta = run_operators(&plane, &kubeconfig).await;
    repaired(&two, "docs").await;
    assert!(one.find(CONFIG_MAP, "docs").await.is_none(), "nothing repairs it");
    one.kubectl(&["delete", "site", "docs", "--wait=false"]).await;
    one.gone(SITE, "docs").await;
    repaired(&three, "docs").await;
}

#[tokio::test]
async fn package_without_rights_affects_no_other() {
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    let scene = Scene::on(&plane).await;
    let operetta = run_operators(&plane, &kubeconfig).await;
    // One package has no rights at all: neither its children nor its instances can be listed.
    let here = names(&[&scene]);
    grant_in(&plane, SITES, &[&scene]).await;
    // Without a role that names its CRD the manager could not even register its kind.
    let crd = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "hello-crd", "labels": {"operetta.dev/aggregate-to-manager": "true"}},
        "rules": [{
            "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
            "resourceNames": ["greetings.examples.operetta.dev"], "verbs": ["create", "patch"],
        }],
    });
    kubectl_of(&plane, &["apply", "-f", "-"], &crd.to_string()).await.ok();
    store(&plane, HELLO, &here).await;
    install(&plane, SITES, &here).await;
    eventually("the kind of the other", LONG, async || {
        let found = kubectl_of(&plane, &["get", "greetings", "-A"], "").await;
        if found.status.success() { Ok(()) } else { Err(found.stderr) }
    })
    .await;
    scene.apply(&file("examples/packages/site/instances/docs.yaml")).await;
    scene.apply(&file("examples/packages/hello/instances/world.yaml")).await;
    scene.ready(SITE, "docs").await;
    let refused = |operator: &Value| {
        let told = condition(operator, "RightsMissing");
        let text = told["message"].as_str().unwrap_or_default();
        // The manager may neither impersonate the account nor list the instances.
        let words =
            ["operetta rbac", "impersonate", "operetta-hello", "instances greetings.examples.operetta.dev"];
        let ready = condition(operator, "Ready");
        let is_ready = ready["status"] == "True" || ready["reason"] != "RightsMissing";
        told["status"] == "True" && !is_ready && words.iter().all(|word| text.contains(word))
    };
    until(&plane, "hello", "its rights are missing", refused).await;
    let status = crate::support::operetta(plane.kubeconfig_path(), &["manager", "status"]).await.stdout;
    assert!(
        status.contains("hello: rights are missing: ")
            && status.contains("apply what `operetta rbac` prints"),
        "{status}"
    );
    until_missing(&plane, "site", &BTreeSet::new()).await;
    is_ready(&operetta, "instances greetings.examples.operetta.dev").await;
    repaired(&scene, "docs").await;
    assert!(scene.find(CONFIG_MAP, "world").await.is_none());
    // Once the rights are granted, everything continues by itself.
    grant_in(&plane, HELLO, &[&scene]).await;
    scene.ready(GREETING, "world").await;
    until_missing(&plane, "hello", &BTreeSet::new()).await;
    is_ready(&operetta, "all watches are up").await;
    // A right that is withdrawn while a watch is open is reported when the watch is opened again.
    revoke_watch(&plane, &scene).await;
    drop(operetta);
    let operetta = run_operators(&plane, &kubeconfig).await;
    let expected = BTreeSet::from([format!("watch configmaps in {}", scene.namespace())]);
    until_missing(&plane, "hello", &expected).await;
    is_ready(&operetta, "").await;
    repaired(&scene, "docs").await;
}

async fn revoke_watch(plane: &Arc<ControlPlane>, scene: &Scene) {
    let role =
        kubectl_of(plane, &["-n", scene.namespace(), "get", "role", "operetta:hello", "-o", "json"], "")
            .await;
    let mut role: Value = serde_json::from_str(&role.ok()).unwrap();
    for rule in role["rules"].as_array_mut().unwrap() {
        rule["verbs"].as_array_mut().unwrap().retain(|verb| verb != "watch");
    }
    kubectl_of(plane, &["replace", "-f", "-"], &role.to_string()).await.ok();
}
