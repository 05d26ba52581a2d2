//! Packages that try to get more rights than their account has: fault 38.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::{rules_named, shared_plane};
use crate::support::crd::crd;
use crate::support::rights::{grant, run_as};
use crate::support::{CONFIG_MAP, Kind, Scene, condition, kind, kubectl_of, put_file};

/// An object in a template: its id, its text, and the words of the refusal.
const CASES: [(&str, &str, &str); 3] = [
    (
        "role",
        "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: \"{{ namespace }}-{{ name }}\"}
rules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]
",
        "attempting to grant RBAC permissions not currently held",
    ),
    (
        "binding",
        "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: \"{{ namespace }}-{{ name }}\"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: default, namespace: \"{{ namespace }}\"}]
",
        "attempting to grant RBAC permissions not currently held",
    ),
    (
        "pod",
        "apiVersion: v1
kind: Pod
metadata: {name: \"{{ name }}\"}
spec: {containers: [{name: a, image: busybox, securityContext: {privileged: true}}]}
",
        "violates PodSecurity",
    ),
];

const WEBHOOK: &str = "apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: \"{{ namespace }}-{{ name }}\"}
webhooks: []
";

/// A package with a `ConfigMap`, and after it each of these objects if the instance wants it.
fn write(folder: &Path, plural: &str, objects: &[(&str, &str)]) {
    let write = |path: &str, text: &str| put_file(&folder.join(path), text);
    let kind = super::super::operators::kind_of(plural);
    let schema = "schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {want: {type: \
        string, default: none}}}}}}";
    write(&format!("crds/{plural}.yaml"), &crd("greed.example.org", plural, &kind, schema));
    write("templates/first.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\n");
    let mut children = "        - {id: first, template: templates/first.yaml}\n".to_owned();
    for (id, text) in objects {
        write(&format!("templates/{id}.yaml"), text);
        let _ = writeln!(
            children,
            "        - {{id: {id}, template: templates/{id}.yaml, when: \"spec.want == '{id}'\", dependsOn: [first]}}"
        );
    }
    write(
        "operator.yaml",
        &format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: {plural}}}\nspec:\n  version: 0.1.0\n  \
             resources:\n    - crd: crds/{plural}.yaml\n      children:\n{children}"
        ),
    );
}

async fn refused(scene: &Scene, of: Kind, plural: &str, want: &str, words: &str) {
    let instance = json!({
        "apiVersion": "greed.example.org/v1", "kind": super::super::operators::kind_of(plural),
        "metadata": {"name": want}, "spec": {"want": want},
    });
    scene.apply(&instance.to_string()).await;
    let is_refused = |object: &Value| {
        let stalled = condition(object, "Stalled");
        stalled["status"] == "True" && stalled["message"].as_str().is_some_and(|told| told.contains(words))
    };
    scene.until(words, of, want, is_refused).await;
    assert!(scene.find(CONFIG_MAP, want).await.is_none(), "{want}: a child was applied");
}

#[tokio::test]
async fn escalation_is_refused_before_the_first_child() {
    let (plane, kubeconfig) = shared_plane().await;
    let (greeds, hooks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let objects: Vec<(&str, &str)> = CASES.iter().map(|(id, text, _)| (*id, *text)).collect();
    write(greeds.path(), "greeds", &objects);
    write(hooks.path(), "hooks", &[("webhook", WEBHOOK)]);
    let (greeds, hooks) = (greeds.path().to_str().unwrap(), hooks.path().to_str().unwrap());
    grant(plane, &[greeds], |_| {}).await;
    grant(plane, &[hooks], |objects| {
        for rules in rules_named(objects, "operetta:hooks") {
            rules.retain(|rule| !rule["resources"].to_string().contains("validatingwebhookconfigurations"));
        }
    })
    .await;
    let _operetta = run_as("greeds", plane, kubeconfig, &[greeds, hooks]).watching(2).await;
    let scene = Scene::on(plane).await;
    let label = "pod-security.kubernetes.io/enforce=baseline";
    kubectl_of(plane, &["label", "namespace", scene.namespace(), label], "").await.ok();
    for (want, _, words) in CASES {
        refused(&scene, kind("greed.example.org/v1", "greeds"), "greeds", want, words).await;
    }
    let words = "create validatingwebhookconfigurations.admissionregistration.k8s.io";
    refused(&scene, kind("greed.example.org/v1", "hooks"), "hooks", "webhook", words).await;
    // An instance that wants none of them works.
    let modest = json!({
        "apiVersion": "greed.example.org/v1", "kind": "Greed", "metadata": {"name": "modest"}, "spec": {},
    });
    scene.apply_ready(kind("greed.example.org/v1", "greeds"), "modest", &modest.to_string()).await;
}
