//! A tenant with `edit` on the kind of a package and nothing else: through the manager the tenant can do what
//! the package's account may do in that namespace, and no more.

use std::path::Path;

use crate::support::ControlPlane;
use operetta::local::Mark;
use operetta::rights;
use serde_json::{Value, json};

use super::shared_plane;
use crate::support::crd::crd;
use crate::support::ext::{CONFIG_MAP, Kind, ROLE_BINDING, Scene, condition, kind, list, put_file};
use crate::support::kubectl_of;
use crate::support::rights::{apply, binding, grant, run_as, user};

const DESK: Kind = kind("tenants.example.org/v1", "desks");

/// A package whose instances say which role is bound and which `ConfigMap` is copied.
fn desks(folder: &Path) {
    let write = |path: &str, text: &str| put_file(&folder.join(path), text);
    let schema = "schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {role: {type: \
                  string}, source: {type: string}}}}}}";
    write("crds/desk.yaml", &crd("tenants.example.org", "desks", "Desk", schema));
    write(
        "operator.yaml",
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: desks}
spec:
  version: 0.1.0
  permissions:
    - {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [view], verbs: [bind]}
  resources:
    - crd: crds/desk.yaml
      refs:
        - {id: source, apiVersion: v1, kind: ConfigMap, name: \"{{ spec.source }}\", when: spec.source is defined}
      children:
        - {id: access, template: templates/access.yaml, when: spec.role is defined}
        - {id: copy, template: templates/copy.yaml, when: spec.source is defined}
",
    );
    write(
        "templates/access.yaml",
        "apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: \"{{ name }}\"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \"{{ spec.role }}\"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant}]
",
    );
    write(
        "templates/copy.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-copy\"}\ndata: {text: \"{{ refs.source.data.text }}\"}\n",
    );
}

/// Applies an instance as the tenant. Returns the API server's answer.
async fn as_tenant(
    plane: &ControlPlane,
    namespace: &str,
    name: &str,
    spec: &Value,
) -> Result<String, String> {
    let desk =
        json!({"apiVersion": DESK.api_version(), "kind": "Desk", "metadata": {"name": name}, "spec": spec});
    let args = ["--as", "tenant", "-n", namespace, "apply", "--server-side", "-f", "-"];
    kubectl_of(plane, &args, &desk.to_string()).await.result()
}

fn config_map(name: &str, text: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
        .to_string()
}

#[tokio::test]
async fn tenant_gets_only_the_accounts_rights_in_the_namespace() {
    let root = tempfile::tempdir().unwrap();
    desks(root.path());
    let package = root.path().to_str().unwrap();
    let (plane, kubeconfig) = shared_plane().await;
    grant(plane, &[package], |_| {}).await;
    let _operetta = run_as("desks", plane, kubeconfig, &[package]).watching(1).await;
    let (own, others) = (Scene::on(plane).await, Scene::on(plane).await);
    let binding = binding(Some(own.namespace()), ("ClusterRole", "operetta:desks:edit"), "tenant");
    apply(plane, &[binding]).await;
    others.apply(&config_map("plans", "a secret of others")).await;
    own.apply(&config_map("mine", "hello")).await;
    let here = own.namespace();

    // The intended use works, in this namespace only.
    as_tenant(plane, here, "works", &json!({"role": "view", "source": "mine"})).await.unwrap();
    own.ready(DESK, "works").await;
    assert_eq!(own.get(CONFIG_MAP, "works-copy").await["data"]["text"], "hello");
    let refused =
        as_tenant(plane, others.namespace(), "elsewhere", &json!({"source": "plans"})).await.unwrap_err();
    assert!(refused.to_lowercase().contains("forbidden"), "{refused}");

    // The tenant gets no role that the account may not bind.
    as_tenant(plane, here, "greedy", &json!({"role": "cluster-admin", "source": "mine"})).await.unwrap();
    let stalled = |object: &Value| condition(object, "Stalled")["status"] == "True";
    let greedy = own.until("refused", DESK, "greedy", stalled).await;
    let told = condition(&greedy, "Stalled")["message"].as_str().unwrap();
    assert!(told.contains("RoleBinding") && told.contains("not currently held"), "{told}");
    assert!(own.find(ROLE_BINDING, "greedy").await.is_none());

    // Names of objects in other namespaces, in whatever form, copy nothing from there.
    let forms = [
        ("by-name", "plans".to_owned()),
        ("by-path", format!("{}/plans", others.namespace())),
        ("by-climbing", format!("../../{}/configmaps/plans", others.namespace())),
        ("by-selector", format!("plans&metadata.namespace={}", others.namespace())),
    ];
    for (name, source) in &forms {
        as_tenant(plane, here, name, &json!({"source": source})).await.unwrap();
        own.until("reported", DESK, name, |object| condition(object, "Ready")["status"] == "False").await;
    }
    // The name is valid once the tenant's own namespace has such an object.
    own.apply(&config_map("plans", "his own")).await;
    own.ready(DESK, "by-name").await;
    assert_eq!(own.get(CONFIG_MAP, "by-name-copy").await["data"]["text"], "his own");
    for object in own.list(CONFIG_MAP).await {
        assert!(!object["data"].to_string().contains("a secret of others"), "{object:#}");
    }
    for desk in own.list(DESK).await {
        assert!(!desk["status"].to_string().contains("a secret of others"), "{desk:#}");
    }

    // The manager has read and written nothing there, under any user.
    let account = user(&rights::account("desks"));
    let mut there = plane.audit().requests_since(Mark::START).unwrap();
    there.retain(|request| {
        let is_of_operetta = request.user == user(rights::MANAGER) || request.acting_as == account;
        is_of_operetta && request.namespace == others.namespace()
    });
    assert!(there.is_empty(), "{}", list(&there));
}
