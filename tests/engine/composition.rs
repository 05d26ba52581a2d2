//! Packages that use other packages: a child that is an instance of another package's kind, handled by the
//! same manager. Dependents wait for its Ready, it can be upgraded while they wait, and at the end it is
//! deleted in order, after its own children.

use std::ops::Deref;
use std::path::Path;

use crate::support::ext::{
    CONFIG_MAP, Kind, LONG, Scene, condition, is_managers, is_ready, kind, run, uid_of,
};
use crate::support::{Operetta, eventually, own_plane_of_tests};
use operetta::local::{AuditLog, Mark};
use serde_json::{Value, json};

const OUTER: Kind = kind("composition.example.org/v1", "outers");
const INNER: Kind = kind("composition.example.org/v1", "inners");

fn crd(kind: &str) -> String {
    let plural = format!("{}s", kind.to_lowercase());
    let schema = "schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {stage: {type: string}}}}}}";
    crate::support::crd::crd("composition.example.org", &plural, kind, schema)
}

/// Writes a package of one kind with the given children, status and templates.
fn package(root: &Path, kind: &str, version: &str, rest: &str, templates: &[(&str, String)]) -> String {
    let name = kind.to_lowercase();
    let folder = root.join(format!("{name}-{version}"));
    for part in ["crds", "templates"] {
        std::fs::create_dir_all(folder.join(part)).unwrap();
    }
    std::fs::write(folder.join("crds/crd.yaml"), crd(kind)).unwrap();
    for (name, text) in templates {
        std::fs::write(folder.join(format!("templates/{name}.yaml")), text).unwrap();
    }
    let manifest = format!(
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {{name: {name}}}
spec:
  version: {version}
  resources:
    - crd: crds/crd.yaml
{rest}"
    );
    std::fs::write(folder.join("operator.yaml"), manifest).unwrap();
    folder.to_str().unwrap().to_owned()
}

fn config(name: &str, data: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{{{{ name }}}}-{name}\"}}\ndata: {{{data}}}\n"
    )
}

/// A package whose instance is Ready once somebody has opened its gate for its stage. Each version has
/// another format in its store.
fn inner(root: &Path, version: &str) -> String {
    let rest = "      children:
        - {id: store, template: templates/store.yaml}
        - {id: gate, template: templates/gate.yaml, dependsOn: [store], readyWhen: self.data.open == spec.stage}
      status: {stage: children.gate.data.stage}
";
    let stage = "stage: \"{{ spec.stage }}\"";
    let store = config("store", &format!("{stage}, format: \"{version}\""));
    package(root, "Inner", version, rest, &[("store", store), ("gate", config("gate", stage))])
}

fn outer(root: &Path) -> String {
    let rest = "      children:
        - {id: before, template: templates/before.yaml}
        - {id: inner, template: templates/inner.yaml, dependsOn: [before], deletionPolicy: Delete}
        - {id: after, template: templates/after.yaml}
";
    let stage = "stage: \"{{ spec.stage }}\"";
    let inner = format!(
        "apiVersion: composition.example.org/v1\nkind: Inner\nmetadata: {{name: \"{{{{ name }}}}\"}}\nspec: {{{stage}}}\n"
    );
    let after = config("after", "stage: \"{{ children.inner.status.stage }}\"");
    package(
        root,
        "Outer",
        "1.0.0",
        rest,
        &[("before", config("before", stage)), ("inner", inner), ("after", after)],
    )
}

struct Place {
    manager: Operetta,
    scene: Scene,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.manager.output());
        }
    }
}

impl Deref for Place {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Place {
    async fn stage(&self, stage: &str) {
        let object = json!({"apiVersion": OUTER.api_version(), "kind": "Outer", "metadata": {"name": "o"},
            "spec": {"stage": stage}});
        self.apply(&object.to_string()).await;
    }

    async fn open(&self, stage: &str) {
        self.patch(CONFIG_MAP, "o-gate", "merge", &json!({"data": {"open": stage}})).await;
    }

    /// Waits until both report that they wait: the inner instance for its gate, the outer for the inner.
    async fn both_wait(&self) {
        self.until("waiting", INNER, "o", |o| {
            o["status"]["observedGeneration"] == o["metadata"]["generation"]
                && condition(o, "Ready")["message"].to_string().contains("gate")
        })
        .await;
        self.until("waiting", OUTER, "o", |o| {
            let ready = condition(o, "Ready");
            ready["status"] == "False" && ready["message"].to_string().contains("after waits for inner")
        })
        .await;
    }

    async fn restart(&mut self, packages: &[&str]) {
        assert!(self.manager.end().await.success(), "{}", self.manager.output());
        self.manager = run(self.plane(), packages).watching(packages.len()).await;
    }
}

/// What the manager deleted, in order, and when it removed the finalizer of each instance.
fn deletions(audit: &AuditLog, mark: Mark) -> Vec<String> {
    let mut requests = audit.requests_since(mark).unwrap();
    requests.retain(|r| is_managers(r) && r.namespace == "default" && r.code < 300 && r.resource != "events");
    // A watch may show the effect of a request before its answer is in the log.
    requests.sort_by(|a, b| a.received.cmp(&b.received));
    let last = |resource: &str| requests.iter().rposition(|r| r.resource == resource && r.verb == "patch");
    let released = [last("inners"), last("outers")];
    let told = requests.iter().enumerate().filter_map(|(i, r)| {
        let is_release = released.contains(&Some(i));
        (is_release || r.verb == "delete")
            .then(|| format!("{} {} {}", if is_release { "release" } else { "delete" }, r.resource, r.name))
    });
    told.collect()
}

#[tokio::test]
async fn child_instance_gates_upgrades_and_is_deleted_in_order() {
    let root = tempfile::tempdir().unwrap();
    let outer = outer(root.path());
    let (old, new) = (inner(root.path(), "1.0.0"), inner(root.path(), "2.0.0"));
    let scene = Scene::existing(&own_plane_of_tests().await, "default");
    // The outer package comes first: the kind of its child is registered a moment later.
    let manager = run(scene.plane(), &[&outer, &old]).watching(2).await;
    let mut place = Place { manager, scene };
    place.stage("one").await;
    place.both_wait().await;
    assert!(place.find(CONFIG_MAP, "o-after").await.is_none());
    let format = |format: &'static str| move |o: &Value| o["data"]["format"] == format;
    let store = place.until("old", CONFIG_MAP, "o-store", format("1.0.0")).await;

    // The inner package is upgraded and its children follow, while the outer instance still waits.
    place.restart(&[&outer, &new]).await;
    let upgraded = place.until("new", CONFIG_MAP, "o-store", format("2.0.0")).await;
    assert_eq!(uid_of(&upgraded), uid_of(&store));
    place.both_wait().await;
    assert!(place.find(CONFIG_MAP, "o-after").await.is_none());
    place.open("one").await;
    place.until("Ready", INNER, "o", is_ready).await;
    place.until("Ready", OUTER, "o", is_ready).await;
    assert_eq!(place.find(CONFIG_MAP, "o-after").await.unwrap()["data"]["stage"], "one");

    // An edit of the outer instance reaches the inner one's children and waits again, also across an upgrade
    // and its reversal.
    place.stage("two").await;
    place.until("two", CONFIG_MAP, "o-store", |o| o["data"]["stage"] == "two").await;
    place.until("waiting", INNER, "o", |o| !is_ready(o)).await;
    place.until("waiting", OUTER, "o", |o| !is_ready(o)).await;
    place.restart(&[&outer, &old]).await;
    place.until("old again", CONFIG_MAP, "o-store", format("1.0.0")).await;
    place.open("two").await;
    place.until("two", CONFIG_MAP, "o-after", |o| o["data"]["stage"] == "two").await;
    let ready = place.until("Ready", OUTER, "o", is_ready).await;
    assert_eq!(ready["metadata"]["generation"], 2);
    let inner = place.find(INNER, "o").await.unwrap();
    assert_eq!((&inner["metadata"]["generation"], &inner["status"]["stage"]), (&json!(2), &json!("two")));

    // The deletion: first what depends on the inner instance, then the inner instance with its children in
    // reverse order, then what it depends on. It waits where one of its children is held.
    let audit = place.plane().audit();
    let mark = audit.mark().unwrap();
    let hold = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    place.patch(CONFIG_MAP, "o-store", "merge", &hold(json!(["example.org/hold"]))).await;
    place.kubectl(&["delete", "outer", "o", "--wait=false"]).await;
    place.gone(CONFIG_MAP, "o-after").await;
    place.gone(CONFIG_MAP, "o-gate").await;
    let holds = |o: &Value| o["status"].to_string().contains("example.org/hold");
    place.until("to name what holds it", INNER, "o", holds).await;
    let holds = |o: &Value| condition(o, "Ready")["message"].to_string().contains("Inner default/o");
    place.until("to name the inner one", OUTER, "o", holds).await;
    assert!(place.find(CONFIG_MAP, "o-before").await.is_some());
    place.patch(CONFIG_MAP, "o-store", "merge", &hold(Value::Null)).await;
    place.gone(OUTER, "o").await;
    let expected = [
        "delete configmaps o-after",
        "delete inners o",
        "delete configmaps o-gate",
        "delete configmaps o-store",
        "release inners o",
        "delete configmaps o-before",
        "release outers o",
    ];
    eventually("the story in the audit log", LONG, async || {
        let told = deletions(&audit, mark);
        if told == expected { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
    assert!(!place.manager.output().contains("panicked"), "{}", place.manager.output());
}
