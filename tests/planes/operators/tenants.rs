//! The commands for instances as tenants run them: users with one of the roles `view`, `edit` and `admin` in
//! one namespace, who may not read CRDs, Operators or other namespaces.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Cluster, GROUP, OPERATOR, Package, Part, SIZE, is_active, scene};
use crate::support::plans::PLAN_RUN;
use crate::support::rights::{apply, as_user, binding, role};
use crate::support::{self, CONFIG_MAP, LONG, Output, Scene, eventually};

const PLANS: &str = "      plans:
        work:
          params: {type: object, properties: {note: {type: string}}}
          steps: [{name: note, record: {note: \"'worked'\"}}]
        ask:
          steps: [{name: sure, approve: {message: Sure?}}]
";

/// A user with a role in a namespace.
struct Tenant {
    kubeconfig: PathBuf,
    namespace: String,
}

impl Tenant {
    async fn new(cluster: &Cluster, scene: &Scene, role: &str) -> Self {
        let user = format!("{role}-of-{}", scene.namespace());
        let binding = binding(Some(scene.namespace()), ("ClusterRole", role), &user);
        apply(&cluster.plane, &[binding]).await;
        Self { kubeconfig: as_user(&cluster.plane, &user), namespace: scene.namespace().to_owned() }
    }

    async fn run(&self, args: &[&str]) -> Output {
        support::operetta(&self.kubeconfig, args).await
    }

    /// Runs a command in the namespace. Returns its output and its messages.
    async fn here(&self, args: &[&str]) -> (String, String) {
        let output = self.run(&[args, &["-n", &self.namespace]].concat()).await;
        let told = output.stderr.clone();
        (output.result().unwrap_or_else(|error| panic!("{args:?}: {error}")), told)
    }
}

async fn installed(cluster: &Cluster, name: &str) -> Package {
    let part = Part { plans: PLANS.to_owned(), ..Part::new(name, SIZE, "old {{ spec.size }}") };
    let package = cluster.installed(Package::of(name, "0.1.0", &[part])).await;
    cluster.until(name, "active", is_active).await;
    package
}

#[tokio::test]
async fn tenants_see_and_run_what_is_in_their_namespace() {
    let cluster = Cluster::real().await;
    let package = installed(cluster, "lockers").await;
    let (own, others) = (scene(cluster).await, scene(cluster).await);
    for scene in [&own, &others] {
        package.ready(scene, "one", &json!({"size": 3})).await;
    }
    let editor = Tenant::new(cluster, &own, "edit").await;
    // The rules of the package are aggregated a moment later.
    eventually("the rights", LONG, async || {
        let output = editor.run(&["get", "lockers/one", "-n", own.namespace()]).await;
        output.result()
    })
    .await;

    let (table, told) = editor.here(&["get", "lockers"]).await;
    assert!(table.lines().nth(1).unwrap().starts_with("Locker   one    True"), "{table}");
    assert!(told.is_empty(), "{told}");
    let (table, told) = editor.here(&["get", "lockers", "-o", "wide"]).await;
    assert!(table.contains("<unknown>"), "{table}");
    assert!(told.contains("note: this user may not get the CRD lockers.ops.example.org"), "{told}");
    // Cluster-scoped kinds are left out.
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "beacons.tenants.example.org"},
        "spec": {
            "group": "tenants.example.org", "scope": "Cluster",
            "names": {"kind": "Beacon", "plural": "beacons", "categories": ["operetta"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    apply(&cluster.plane, &[crd]).await;
    eventually("the kind is served", LONG, async || {
        let (table, told) = editor.here(&["get"]).await;
        let note = "note: this user may not list beacons.tenants.example.org: ";
        if table.contains("Locker") && told.contains(note) { Ok(()) } else { Err(format!("{table} {told}")) }
    })
    .await;
    assert!(editor.run(&["get", "beacons"]).await.fails().contains("error: this user may not list beacons"));
    let all = editor.run(&["get", "lockers", "-A"]).await;
    assert_eq!(all.status.code(), Some(1));
    assert!(
        all.stderr.contains("this user may not list lockers.ops.example.org in all namespaces")
            && all.stderr.contains("help: -n NAMESPACE"),
        "{}",
        all.stderr
    );
    let elsewhere = editor.run(&["get", "lockers", "-n", others.namespace()]).await;
    assert!(elsewhere.fails().contains(&format!("in namespace {}", others.namespace())));

    let (tree, told) = editor.here(&["tree", "locker/one"]).await;
    assert!(tree.contains("config") && tree.contains("ConfigMap one"), "{tree}");
    assert!(told.contains("warning: this user may not get the CRD lockers.ops.example.org"), "{told}");

    // A tenant requests a run of a plan and sees it.
    let (created, told) =
        editor.here(&["plan", "run", "locker/one", "work", "--param", "note=x", "--wait"]).await;
    assert!(created.contains("Succeeded"), "{created} {told}");
    let (plans, told) = editor.here(&["plan", "list", "locker/one"]).await;
    assert!(
        plans.contains("work   <unknown>") && told.contains("only plans that have run"),
        "{plans} {told}"
    );
    let (history, _) = editor.here(&["plan", "history", "locker/one"]).await;
    assert!(history.contains("work"), "{history}");
    let (status, _) = editor.here(&["plan", "status", "locker/one"]).await;
    assert!(status.contains("note"), "{status}");
    let (asking, _) = editor.here(&["plan", "run", "locker/one", "ask", "-o", "name"]).await;
    let asking = asking.trim();
    let refused = editor.run(&["plan", "approve", asking, "-n", own.namespace()]).await;
    assert!(refused.fails().contains("approve"));
    // Only `admin` may approve.
    let admin = Tenant::new(cluster, &own, "admin").await;
    let (approved, _) = admin.here(&["plan", "approve", asking]).await;
    assert!(approved.contains("approved"), "{approved}");
    editor.here(&["plan", "wait", asking]).await;
    let (cancelled, _) = editor.here(&["plan", "run", "locker/one", "ask", "-o", "name"]).await;
    editor.here(&["plan", "cancel", cancelled.trim()]).await;

    // A user with `view` sees the same and may request nothing.
    let viewer = Tenant::new(cluster, &own, "view").await;
    for args in [
        &["get", "lockers"][..],
        &["tree", "locker/one"],
        &["plan", "list", "locker/one"],
        &["plan", "history", "locker/one"],
        &["plan", "status", "locker/one"],
        &["preview", package.folder()],
    ] {
        viewer.here(args).await;
    }
    let runs = own.list(PLAN_RUN).await.len();
    let refused = viewer.run(&["plan", "run", "locker/one", "work", "-n", own.namespace()]).await;
    assert!(refused.fails().contains("cannot be requested"));
    assert_eq!(own.list(PLAN_RUN).await.len(), runs);

    // With the right to get the CRD, everything is shown.
    let rules = json!([{"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
        "resourceNames": ["lockers.ops.example.org"], "verbs": ["get"]}]);
    let viewer_of = format!("view-of-{}", own.namespace());
    let described = "lockers-described";
    let objects = [role(None, described, &rules), binding(None, ("ClusterRole", described), &viewer_of)];
    apply(&cluster.plane, &objects).await;
    eventually("the CRD is read", LONG, async || {
        let (plans, told) = viewer.here(&["plan", "list", "locker/one", "-o", "wide"]).await;
        let holds = plans.contains("note (string)") && told.is_empty();
        if holds { Ok(()) } else { Err(format!("{plans} {told}")) }
    })
    .await;
}

#[tokio::test]
async fn a_tenant_previews_a_package_in_a_namespace() {
    let cluster = Cluster::real().await;
    let package = installed(cluster, "satchels").await;
    let own = scene(cluster).await;
    package.ready(&own, "one", &json!({"size": 3})).await;
    let editor = Tenant::new(cluster, &own, "edit").await;
    package.write(
        "0.2.0",
        &[Part { plans: PLANS.to_owned(), ..Part::new("satchels", SIZE, "new {{ spec.size }}") }],
    );
    // Add a child that `edit` may not write.
    let path = Path::new(package.folder());
    std::fs::write(
        path.join("templates/role.yaml"),
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: \"{{ name }}\"}\nrules: []\n",
    )
    .unwrap();
    let manifest = std::fs::read_to_string(path.join("operator.yaml")).unwrap();
    let children = "children: [{id: role, template: templates/role.yaml}, ";
    std::fs::write(path.join("operator.yaml"), manifest.replace("children: [", children)).unwrap();

    let before = own.get(CONFIG_MAP, "one").await;
    let (text, told) = eventually("the rights", LONG, async || {
        let output = editor.run(&["preview", package.folder(), "-n", own.namespace()]).await;
        let told = output.stderr.clone();
        output.result().map(|text| (text, told))
    })
    .await;
    for words in ["1 instance", "updated   config", "data.value: \"old 3\" -> \"new 3\""] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for words in [
        "note: this user may not get the CRD satchels.ops.example.org",
        "note: the Operator satchels cannot be read",
        "note: this user may not list roles.rbac.authorization.k8s.io",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(own.get(CONFIG_MAP, "one").await, before);
    let args = ["preview", package.folder(), "-n", own.namespace(), "satchel/one", "-o", "json"];
    let report: Value = serde_json::from_str(&editor.run(&args).await.ok()).unwrap();
    assert_eq!(report["problems"], json!([]), "{report:#}");
    assert!(!report["notes"].as_array().unwrap().is_empty(), "{report:#}");

    // A preview of all namespaces is not possible.
    let all = editor.run(&["preview", package.folder()]).await;
    let told = all.fails();
    assert!(told.contains(&format!("may not list satchels.{GROUP} in all namespaces")), "{told}");
    assert!(told.contains("help: -n NAMESPACE"), "{told}");
    assert!(cluster.find(OPERATOR, "satchels").await.is_some());
}
