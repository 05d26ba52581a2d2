//! Helm, and the way in which Argo CD works, on the embedded API.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tokio::process::Command;

use super::kubectl::Kubectl;
use crate::programs::{HELM, built};
use crate::support::dev::{dev, end};
use crate::support::{LONG, eventually};

const TEMPLATE: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: '{{ .Release.Name }}', labels: {release: '{{ .Release.Name }}'}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: '{{ .Release.Name }}'}}
  template:
    metadata: {labels: {app: '{{ .Release.Name }}'}}
    spec: {containers: [{name: web, image: 'nginx:1'}]}
---
apiVersion: v1
kind: Service
metadata: {name: '{{ .Release.Name }}'}
spec: {selector: {app: '{{ .Release.Name }}'}, ports: [{port: 80}]}
";

/// Writes a chart with a Deployment and a Service.
fn chart(folder: &Path) {
    std::fs::create_dir_all(folder.join("templates")).unwrap();
    std::fs::write(folder.join("Chart.yaml"), "apiVersion: v2\nname: small\nversion: 0.1.0\n").unwrap();
    std::fs::write(folder.join("values.yaml"), "replicas: 1\n").unwrap();
    std::fs::write(folder.join("templates/all.yaml"), TEMPLATE).unwrap();
}

#[tokio::test]
async fn helm_installs_upgrades_and_uninstalls_a_chart() {
    let (temporary, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut dev = dev(&["examples/packages/hello", "--plain"], temporary.path());
    dev.wait_for("export KUBECONFIG=", LONG).await;
    let kubectl = Kubectl::of(&dev).await;
    let program = built(HELM).await;
    let folder = home.path().join("small");
    chart(&folder);
    let helm = async |line: &str| {
        let line = line.replace("CHART", folder.to_str().unwrap());
        let mut command = Command::new(&program);
        command.args(line.split(' ')).env("KUBECONFIG", kubectl.kubeconfig());
        for variable in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
            command.env(variable, home.path());
        }
        let ended = tokio::time::timeout(LONG, command.output()).await;
        let ended = ended.unwrap_or_else(|_| panic!("helm {line} does not end")).unwrap();
        let said = String::from_utf8_lossy(&[&ended.stdout[..], &ended.stderr[..]].concat()).into_owned();
        assert!(ended.status.success(), "helm {line}: {said}");
        said
    };
    assert!(helm("install one CHART --wait --timeout 300s").await.contains("STATUS: deployed"));
    kubectl.says("get deployment one", "", &["1/1"]).await;
    helm("upgrade one CHART --set replicas=3 --wait --timeout 300s").await;
    kubectl.says("get deployment one", "", &["3/3"]).await;
    assert!(helm("list").await.contains("small-0.1.0"));
    helm("rollback one 1 --wait --timeout 300s").await;
    kubectl.says("get deployment one", "", &["1/1"]).await;
    helm("uninstall one --wait --timeout 300s").await;
    // Helm does not wait for pods to end.
    eventually("all to be gone", LONG, async || {
        let said = kubectl.says("get deployments,pods", "", &[]).await;
        if said.contains("No resources found") { Ok(()) } else { Err(said) }
    })
    .await;
    // The Service of the API server is always there.
    let services = kubectl.says("get services", "", &["kubernetes"]).await;
    assert!(!services.lines().any(|line| line.starts_with("one")), "{services}");
    end(dev, temporary.path()).await;
}

/// Argo CD lists all kinds in pages and watches them from there, and compares by server-side dry runs.
#[tokio::test]
async fn all_kinds_are_listed_in_pages_and_differences_found_by_dry_runs() {
    let temporary = tempfile::tempdir().unwrap();
    let example = "examples/webapp/minimal.yaml";
    let mut dev = dev(&["operators/webapp", "--apply", example, "--plain"], temporary.path());
    dev.wait_for("webapps/default/hello: Ready", LONG).await;
    let kubectl = Kubectl::of(&dev).await;
    let raw = async |path: &str| -> Value {
        let said = kubectl.says(&format!("get --raw {path}"), "", &[]).await;
        // A warning may follow: Endpoints are deprecated.
        serde_json::Deserializer::from_str(&said).into_iter().next().unwrap().unwrap()
    };
    let mut groups = vec!["/api/v1".to_owned()];
    for group in raw("/apis").await["groups"].as_array().unwrap() {
        groups.push(format!("/apis/{}", group["preferredVersion"]["groupVersion"].as_str().unwrap()));
    }
    let (mut kinds, mut found) = (0, BTreeSet::new());
    for group in groups {
        for resource in raw(&group).await["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            let verbs = resource["verbs"].as_array().unwrap();
            if name.contains('/') || !["list", "watch"].iter().all(|verb| verbs.contains(&(*verb).into())) {
                continue;
            }
            kinds += 1;
            let (mut token, mut pages) = (String::new(), 0);
            loop {
                let page = raw(&format!("{group}/{name}?limit=1&continue={token}")).await;
                let items = page["items"].as_array().unwrap();
                assert!(items.len() <= 1, "{name}: {page:#}");
                found.extend(
                    items.iter().map(|item| {
                        format!("{name}/{}", item["metadata"]["name"].as_str().unwrap_or_default())
                    }),
                );
                pages += 1;
                token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
                if token.is_empty() || pages == 3 {
                    let version = page["metadata"]["resourceVersion"].as_str().unwrap();
                    let watch =
                        format!("{group}/{name}?watch=true&timeoutSeconds=1&resourceVersion={version}");
                    if pages == 3 {
                        kubectl.says(&format!("get --raw {watch}"), "", &[]).await;
                    }
                    break;
                }
            }
        }
    }
    assert!(kinds > 40 && found.contains("deployments/hello"), "{kinds}: {found:?}");

    // A live object that is as desired differs in nothing; another one shows what would change.
    let desired = |replicas: u8| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n  \
             selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    \
             spec: {{containers: [{{name: c, image: x}}]}}\n"
        )
    };
    let apply = "apply --server-side --field-manager=argocd-controller -f -";
    kubectl.says(apply, &desired(1), &["serverside-applied"]).await;
    kubectl.says("rollout status deployment/web --timeout=300s", "", &["successfully"]).await;
    let dry = format!("{apply} --dry-run=server -o json");
    let version = async |text: &str| -> (Value, Value) {
        let object: Value = serde_json::from_str(&kubectl.says(&dry, text, &[]).await).unwrap();
        (object["metadata"]["generation"].clone(), object["spec"]["replicas"].clone())
    };
    assert_eq!(version(&desired(1)).await, (1.into(), 1.into()));
    assert_eq!(version(&desired(2)).await, (2.into(), 2.into()));
    kubectl.says("diff --server-side --field-manager=argocd-controller -f -", &desired(1), &[]).await;
    let difference = kubectl
        .try_run("diff --server-side --field-manager=argocd-controller -f -", &desired(2))
        .await
        .unwrap_err();
    assert!(difference.contains("-  replicas: 1") && difference.contains("+  replicas: 2"), "{difference}");
    end(dev, temporary.path()).await;
}
