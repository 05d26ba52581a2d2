//! kubectl against the embedded API that `operetta dev` serves.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use operetta::local::{Environment, OnProgress, Tool};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::support::dev::{dev, end};
use crate::support::{LONG, Operetta};

/// The path of kubectl.
pub(crate) async fn program() -> PathBuf {
    let progress: OnProgress = Arc::new(|progress| eprintln!("{progress}"));
    Tool::Kubectl.built(&Environment::of_process(), &progress).await.unwrap()
}

/// kubectl with the kubeconfig of a running `operetta dev`.
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: String,
    cache: tempfile::TempDir,
}

impl Kubectl {
    pub(crate) async fn of(dev: &Operetta) -> Self {
        let program = program().await;
        let told = dev.output();
        let kubeconfig = told.lines().find_map(|line| line.strip_prefix("export KUBECONFIG=")).unwrap();
        Self { program, kubeconfig: kubeconfig.to_owned(), cache: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Runs it; the output, or all output if it fails.
    pub(crate) async fn try_run(&self, line: &str, input: &str) -> Result<String, String> {
        let mut child = Command::new(&self.program)
            .args(line.split(' ').map(|word| word.replace('~', " ")))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", self.cache.path())
            .env("KUBE_EDITOR", "sed -i s/edited:.old/edited:\\ new/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let ended = tokio::time::timeout(LONG, child.wait_with_output()).await;
        let ended = ended.unwrap_or_else(|_| panic!("kubectl {line} does not end")).unwrap();
        let said = String::from_utf8_lossy(&[&ended.stdout[..], &ended.stderr[..]].concat()).into_owned();
        if ended.status.success() { Ok(said) } else { Err(said) }
    }

    /// Runs it with this input; its output must contain all of these words.
    pub(crate) async fn says(&self, line: &str, input: &str, words: &[&str]) -> String {
        let said = self.try_run(line, input).await.unwrap_or_else(|error| panic!("kubectl {line}: {error}"));
        for word in words {
            assert!(said.contains(word), "kubectl {line}: no {word} in\n{said}");
        }
        said
    }
}

/// Files with several objects, with a CRD and its object, and with a kind that does not exist; Services.
async fn several(kubectl: &Kubectl) {
    let list = "apiVersion: v1\nkind: List\nitems:\n\
                - {apiVersion: v1, kind: ConfigMap, metadata: {name: l1, annotations: {edited: old}}, data: {a: b}}\n\
                - {apiVersion: v1, kind: ConfigMap, metadata: {name: l2}, data: {a: b}}\n";
    kubectl.says("create -f -", list, &["configmap/l1 created", "configmap/l2 created"]).await;
    kubectl.says("apply -f -", &list.replace("a: b", "a: c"), &["configmap/l1 configured"]).await;
    kubectl.says("replace -f -", list, &["configmap/l1 replaced", "configmap/l2 replaced"]).await;
    kubectl.says("edit configmap l1 l2", "", &["configmap/l1 edited"]).await;
    let unknown =
        kubectl.try_run("apply -f -", &list.replace("data: {a: b}", "date: {a: b}")).await.unwrap_err();
    assert!(
        unknown.contains("error validating data") && unknown.contains("unknown field \"date\""),
        "{unknown}"
    );
    kubectl.says("delete -f -", list, &["\"l1\" deleted", "\"l2\" deleted"]).await;

    let misspelt = kubectl.try_run("apply -f -", &MAP.replace("ConfigMap", "ConfigMop")).await.unwrap_err();
    assert!(misspelt.contains("no matches for kind \"ConfigMop\" in version \"v1\""), "{misspelt}");
    let widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {a: b}\n";
    let both = format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: widgets.example.com}}\n\
         spec:\n  group: example.com\n  scope: Namespaced\n  names: {{plural: widgets, kind: Widget}}\n  versions:\n  \
         - {{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object, \
         properties: {{spec: {{type: object, properties: {{a: {{type: string}}}}}}}}}}}}}}\n---\n{widget}"
    );
    let crd = "customresourcedefinition.apiextensions.k8s.io/widgets.example.com created";
    // The object is looked up before the CRD is created.
    let missing = kubectl.try_run("apply -f -", &both).await.unwrap_err();
    assert!(missing.contains(crd) && missing.contains("no matches for kind \"Widget\""), "{missing}");
    kubectl.says("wait --for=condition=Established crd/widgets.example.com --timeout=300s", "", &[]).await;
    kubectl.says("apply -f -", &both, &["widget.example.com/w created"]).await;
    let wrong = kubectl.try_run("apply -f -", &widget.replace("a: b", "c: d")).await.unwrap_err();
    assert!(wrong.contains("unknown field \"spec.c\""), "{wrong}");
    kubectl.says("delete crd widgets.example.com", "", &["deleted"]).await;
    kubectl.says("get --raw /openapi/v2", "", &["\"swagger\":\"2.0\"", "io.k8s.api.core.v1.ConfigMap"]).await;

    kubectl.says("get service kubernetes", "", &["ClusterIP", "10.96.0.1", "443/TCP"]).await;
    kubectl.says("create service clusterip fixed --tcp=80 --clusterip=10.96.0.50", "", &["created"]).await;
    let taken = kubectl.try_run("create service clusterip other --tcp=80 --clusterip=10.96.0.50", "").await;
    let taken = taken.unwrap_err();
    assert!(taken.contains("provided IP is already allocated"), "{taken}");
    kubectl.says("create service loadbalancer lb --tcp=80", "", &["created"]).await;
    kubectl.says("get service lb", "", &["<pending>"]).await;
    kubectl.says("delete service fixed lb", "", &["deleted"]).await;
}

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {x: z}}\ndata: {a: b}\n";

#[tokio::test]
async fn kubectl_works_on_the_embedded_api() {
    let temporary = tempfile::tempdir().unwrap();
    let hello = "examples/packages/hello";
    let world = format!("{hello}/instances/world.yaml");
    let mut dev = dev(&[hello, "--apply", &world, "--plain"], temporary.path());
    dev.wait_for("greetings/default/world: Ready", LONG).await;
    let kubectl = Kubectl::of(&dev).await;
    assert!(Path::new(&kubectl.kubeconfig).starts_with(temporary.path()));

    kubectl.says("version", "", &["Server Version: v1.36"]).await;
    kubectl.says("api-resources", "", &["greetings", "deployments"]).await;
    kubectl.says("apply -f -", MAP, &["configmap/a created"]).await;
    kubectl.says("apply -f -", &MAP.replace("a: b", "a: c"), &["configmap/a configured"]).await;
    kubectl.says("diff -f -", &MAP.replace("a: b", "a: c"), &[]).await;
    let other = MAP.replace("name: a", "name: s");
    kubectl.says("apply --server-side --field-manager=one -f -", &other, &["serverside-applied"]).await;
    let other = other.replace("a: b", "a: c");
    let conflict = kubectl.try_run("apply --server-side --field-manager=two -f -", &other).await.unwrap_err();
    assert!(conflict.contains("conflict with \"one\""), "{conflict}");
    let force = "apply --server-side --field-manager=two --force-conflicts -f -";
    kubectl.says(force, &other, &["serverside-applied"]).await;
    kubectl
        .says(
            "get configmap a -o yaml --show-managed-fields",
            "",
            &["a: c", "manager: kubectl-client-side-apply"],
        )
        .await;
    kubectl.says("get configmaps -l x=z -o wide", "", &["NAME", "DATA", "a "]).await;
    kubectl.says("describe configmap a", "", &["Labels:", "x=z", "BinaryData"]).await;
    kubectl.says("patch configmap a --type=merge -p {\"data\":{\"e\":\"f\"}}", "", &["patched"]).await;
    kubectl.says("label configmap a one=1", "", &["labeled"]).await;
    kubectl.says("annotate configmap a edited=old", "", &["annotated"]).await;
    kubectl.says("edit configmap a", "", &["configmap/a edited"]).await;
    kubectl.says("get configmap a -o jsonpath={.metadata.annotations.edited}", "", &["new"]).await;
    kubectl.says("wait --for=jsonpath={.data.e}=f configmap/a --timeout=300s", "", &["condition met"]).await;
    kubectl.says("wait --for=condition=Ready greeting/world --timeout=300s", "", &["condition met"]).await;
    kubectl.says("get greetings", "", &["NAME", "READY", "world", "True"]).await;
    kubectl.says("describe greeting world", "", &["Conditions:", "Events:", "created ConfigMap"]).await;
    kubectl.says("get events", "", &["greeting/world"]).await;
    kubectl.says("explain greeting.spec", "", &["FIELDS:", "times"]).await;
    kubectl.says("explain deployment.spec.replicas", "", &["<integer>"]).await;
    kubectl.says("get --raw /readyz", "", &["ok"]).await;
    kubectl.says("get nodes -o wide", "", &["STATUS", "INTERNAL-IP", "embedded   Ready"]).await;
    kubectl.says("get clusterrolebindings -o wide", "", &["ROLE", "GROUPS", "system:masters"]).await;
    kubectl.says("get storageclasses", "", &["PROVISIONER", "standard (default)"]).await;
    kubectl.says("get events.events.k8s.io", "", &["REASON", "greeting/world", "created ConfigMap"]).await;
    kubectl.says("delete configmap a", "", &["deleted"]).await;
    let gone = kubectl.try_run("get configmap a", "").await.unwrap_err();
    assert!(gone.contains("not found"), "{gone}");
    several(&kubectl).await;
    kubectl.says("create namespace n", "", &["created"]).await;
    kubectl.says("delete namespace n", "", &["deleted"]).await;
    kubectl.says("delete greeting world", "", &["deleted"]).await;
    end(dev, temporary.path()).await;
}
