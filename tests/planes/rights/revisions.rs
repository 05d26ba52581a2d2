//! Rights of revisions: after each upgrade, downgrade and rollback, by command and from Git, an account has
//! exactly the rights of the revision in use. The name of a package gives it no rights.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use crate::support::ControlPlane;
use operetta::rights::{self, Place};
use serde_json::{Value, json};

use super::{derived, shared_plane_with_operators, strict_plane};
use crate::support::crd::crd;
use crate::support::ext::{CRD, Kind, LONG, OPERATOR, Scene, condition, find_in, kind, put_file};
use crate::support::rights::{SYSTEM, manager, run_operators, user};
use crate::support::{Actor, Output, eventually, is_long, kubectl_of, operetta};

const GROUP: &str = "revisions.example.org";
const RULES_REVIEW: Kind = kind("authorization.k8s.io/v1", "selfsubjectrulesreviews");
/// The children that a package may have, all with the instance's name.
const CHILDREN: [(&str, Kind, &str); 4] = [
    ("config", kind("v1", "configmaps"), "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n"),
    ("service", kind("v1", "services"), "apiVersion: v1\nkind: Service\nspec: {ports: [{port: 80}]}\n"),
    ("account", kind("v1", "serviceaccounts"), "apiVersion: v1\nkind: ServiceAccount\n"),
    (
        "policy",
        kind("networking.k8s.io/v1", "networkpolicies"),
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nspec: {podSelector: {}}\n",
    ),
];

/// The contents of a version of a package.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// The children, as bits.
    pub(super) children: u8,
    /// Whether it has a second CRD.
    pub(super) has_second: bool,
    /// Whether it reads a `ConfigMap` in the namespace `default`.
    pub(super) reads_default: bool,
}

impl Shape {
    /// A shape that depends on the number.
    pub(super) fn of(seed: u32) -> Self {
        let bits = seed.wrapping_mul(2_654_435_761) >> 7;
        let children = u8::try_from(bits % 15).unwrap() + 1;
        Self { children, has_second: bits >> 5 & 1 == 1, reads_default: bits >> 6 & 1 == 1 }
    }

    fn has(self, index: usize) -> bool {
        self.children >> index & 1 == 1
    }

    /// Writes the package; `plural` is that of its first CRD.
    fn write(self, folder: &Path, (name, plural): (&str, &str), version: u32) {
        let write = |path: &str, text: &str| put_file(&folder.join(path), text);
        let schema = "schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object}}}}";
        write("crds/first.yaml", &crd(GROUP, plural, &kind_of(plural), schema));
        let mut text = format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: {name}}}\nspec:\n  version: 0.{version}.0\n  \
             resources:\n    - crd: crds/first.yaml\n      children:\n"
        );
        for (index, (id, _, template)) in CHILDREN.iter().enumerate().filter(|(index, _)| self.has(*index)) {
            let template = format!("{template}metadata: {{name: \"{{{{ name }}}}-x\"}}\n");
            write(&format!("templates/{id}.yaml"), &template);
            let _ = writeln!(text, "        - {{id: {id}, template: templates/{id}.yaml}} # {index}");
        }
        if self.reads_default {
            text.push_str(
                "      refs: [{id: shared, apiVersion: v1, kind: ConfigMap, name: shared, namespace: default, optional: true}]\n      \
                 status: {shared: refs.shared is defined}\n",
            );
        }
        if self.has_second {
            let plural = format!("more{name}");
            write("crds/second.yaml", &crd(GROUP, &plural, &kind_of(&plural), schema));
            write(
                "templates/second.yaml",
                "apiVersion: v1\nkind: LimitRange\nmetadata: {name: \"{{ name }}\"}\nspec: {limits: []}\n",
            );
            text.push_str(
                "    - crd: crds/second.yaml\n      children: [{id: second, template: templates/second.yaml}]\n",
            );
        }
        write("operator.yaml", &text);
    }
}

/// The instance of a package whose plural is its name.
pub(super) fn instance(plural: &str) -> String {
    let meta = json!({"name": "one"});
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind_of(plural), "metadata": meta, "spec": {}})
        .to_string()
}

fn kind_of(plural: &str) -> String {
    super::super::operators::kind_of(plural)
}

/// A package in a cluster, with its revisions.
pub(super) struct Subject {
    pub(super) name: String,
    /// The plural of its first kind.
    pub(super) plural: String,
    pub(super) scene: Scene,
    /// Whether its Operator names the namespace of its instance.
    pub(super) is_limited: bool,
    /// For each revision: its files, the output for Git, and its shape.
    pub(super) revisions: BTreeMap<String, (tempfile::TempDir, String, Shape)>,
    pub(super) order: Vec<String>,
}

/// A single right: the group, the resource, and the verb.
pub(super) type Rules = BTreeSet<(String, String, String)>;

impl Subject {
    fn plane(&self) -> &Arc<ControlPlane> {
        self.scene.plane()
    }

    pub(super) async fn operetta(&self, args: &[&str]) -> Output {
        operetta(self.plane().kubeconfig_path(), args).await
    }

    /// Writes another version. Returns the name of its revision.
    async fn version(&mut self, seed: u32) -> String {
        self.version_of(seed, Shape::of(seed)).await
    }

    /// Writes a version of this shape. Returns the name of its revision.
    pub(super) async fn version_of(&mut self, seed: u32, shape: Shape) -> String {
        let root = tempfile::tempdir().unwrap();
        shape.write(root.path(), (&self.name, &self.plural), seed);
        let printed = ["install", root.path().to_str().unwrap(), "--dry-run", "-o", "json"];
        let text = self.operetta(&printed).await.ok();
        let list: Value = serde_json::from_str(&text).unwrap();
        let mut objects = list["items"].as_array().unwrap().iter();
        let operator = objects.find(|object| object["kind"] == "Operator").unwrap();
        let revision = operator["spec"]["revision"].as_str().unwrap().to_owned();
        self.revisions.insert(revision.clone(), (root, text, shape));
        self.order.push(revision.clone());
        revision
    }

    pub(super) fn folder(&self, revision: &str) -> &str {
        self.revisions[revision].0.path().to_str().unwrap()
    }

    async fn apply_file(&self, revision: &str) {
        let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        kubectl_of(self.plane(), &args, &self.revisions[revision].1).await.ok();
    }

    /// Carries out one operation. `number` is that of the version, if it makes one.
    pub(super) async fn operate(&mut self, sort: u32, number: u32) -> String {
        let earlier = self.order[self.order.len().saturating_sub(2)].clone();
        match sort % 5 {
            0 => {
                let revision = self.version(number + 100).await;
                let told = self
                    .operetta(&["upgrade", self.folder(&revision), "--force-conflicts", "--accept-rights"])
                    .await;
                told.ok();
                "upgrade".to_owned()
            }
            1 => {
                let revision = self.version(number + 200).await;
                self.apply_file(&revision).await;
                "upgrade from Git".to_owned()
            }
            2 => {
                self.operetta(&["rollback", &self.name, "--force-conflicts", "--accept-rights"]).await.ok();
                "rollback".to_owned()
            }
            3 => {
                self.apply_file(&earlier).await;
                "an earlier file from Git".to_owned()
            }
            _ => {
                let named = self.order.last().unwrap();
                let patch = json!({"spec": {"revision": named}}).to_string();
                let args = ["patch", "operator", &self.name, "--type=merge", "-p", &patch];
                kubectl_of(self.plane(), &args, "").await.ok();
                "a stored revision by kubectl".to_owned()
            }
        }
    }

    /// Waits until the revision that the Operator names is active, and the account has exactly its rights.
    pub(super) async fn settles(&self, what: &str) {
        let operator = eventually(&format!("{}: {what}: active", self.name), LONG, async || {
            let operator = find_in(self.plane(), OPERATOR, None, &self.name).await.unwrap_or_default();
            let is_seen = operator["status"]["observedGeneration"] == operator["metadata"]["generation"];
            let is_active = is_seen && condition(&operator, "Ready")["status"] == "True";
            if is_active { Ok(operator) } else { Err(format!("{:#}", operator["status"])) }
        })
        .await;
        let revision = operator["spec"]["revision"].as_str().unwrap();
        let shape = self.revisions[revision].2;
        self.drop_second(revision).await;
        let home = self.scene.namespace();
        for (place, is_home) in [(home, true), ("default", false), ("kube-public", false)] {
            let expected = self.expected(revision, place, is_home);
            eventually(
                &format!("{}: {what}: the rights of {shape:?} in {place}", self.name),
                LONG,
                async || {
                    let found = self.rules(place).await;
                    if found == expected {
                        return Ok(());
                    }
                    let lacks: Vec<_> = expected.difference(&found).collect();
                    let leaves: Vec<_> = found.difference(&expected).collect();
                    Err(format!("lacking {lacks:?}, left over {leaves:?}"))
                },
            )
            .await;
        }
        self.scene.ready(self.kind(), "one").await;
        for (index, (_, kind, _)) in CHILDREN.iter().enumerate() {
            if shape.has(index) {
                self.scene.until("a child", *kind, "one-x", |_| true).await;
            } else {
                self.scene.gone(*kind, "one-x").await;
            }
        }
        let missing =
            &find_in(self.plane(), OPERATOR, None, &self.name).await.unwrap()["status"]["missingRights"];
        assert_eq!(*missing, Value::Null, "{}: {what}", self.name);
    }

    /// Deletes the second CRD if the revision does not have it: as long as it exists, its instances could be created and deleted, so
    /// the rights to their children stay.
    pub(super) async fn drop_second(&self, revision: &str) {
        let second = format!("more{}.{GROUP}", self.name);
        if !self.revisions[revision].2.has_second && find_in(self.plane(), CRD, None, &second).await.is_some()
        {
            kubectl_of(self.plane(), &["delete", "crd", &second], "").await.ok();
        }
    }

    pub(super) fn kind(&self) -> Kind {
        Kind::of(format!("{GROUP}/v1"), self.plural.clone())
    }

    pub(super) fn expected(&self, revision: &str, place: &str, is_home: bool) -> Rules {
        let rights = derived(self.folder(revision));
        let there = rights.of(|of| match of {
            Place::Everywhere | Place::Cluster => true,
            Place::Home => is_home || !self.is_limited,
            Place::Manager => place == SYSTEM,
            Place::Namespace(named) => named == place,
        });
        there.iter().map(|right| (right.group.clone(), right.resource.clone(), right.verb.clone())).collect()
    }

    /// The account's rights according to the API server, without those that every account has.
    pub(super) async fn rules(&self, namespace: &str) -> Rules {
        let ours = rules_of(self.plane(), &rights::account(&self.name), namespace).await;
        let all = rules_of(self.plane(), "nobody", namespace).await;
        ours.difference(&all).cloned().collect()
    }
}

async fn rules_of(plane: &ControlPlane, account: &str, namespace: &str) -> Rules {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace},
    });
    let review = Actor::new(plane, &user(account)).create(RULES_REVIEW, None, &review).await.unwrap();
    let mut all = Rules::new();
    let words = |rule: &Value, field: &str| -> Vec<String> {
        serde_json::from_value(rule[field].clone()).unwrap_or_default()
    };
    for rule in review["status"]["resourceRules"].as_array().unwrap() {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                all.extend(
                    words(rule, "verbs").into_iter().map(|verb| (group.clone(), resource.clone(), verb)),
                );
            }
        }
    }
    all
}

#[tokio::test]
async fn account_has_exactly_the_rights_of_its_revision() {
    const PACKAGES: u32 = 6;
    let changes: u32 = if is_long() { 10 } else { 4 };
    let plane = shared_plane_with_operators().await;
    let run = async |index: u32| {
        let (name, scene) =
            (format!("subject{}s", char::from(b'a' + u8::try_from(index).unwrap())), Scene::on(plane).await);
        let (revisions, order) = (BTreeMap::new(), Vec::new());
        let plural = name.clone();
        let mut subject = Subject { name, plural, scene, is_limited: index % 2 == 1, revisions, order };
        let first = subject.version(index + 1).await;
        subject.operetta(&["install", subject.folder(&first), "--accept-rights"]).await.ok();
        if subject.is_limited {
            let patch = json!({"spec": {"namespaces": {"names": [subject.scene.namespace()]}}}).to_string();
            let args = ["patch", "operator", &subject.name, "--type=merge", "-p", &patch];
            kubectl_of(plane, &args, "").await.ok();
        }
        subject.scene.apply(&instance(&subject.name)).await;
        subject.settles("install").await;
        for change in 0..changes {
            let what = subject.operate(change + index % 2, index * changes + change).await;
            subject.settles(&format!("{change}: {what}")).await;
        }
        // No right of an uninstalled package remains.
        subject.operetta(&["uninstall", &subject.name, "--instances", "delete"]).await.ok();
        eventually("no right is left", LONG, async || {
            let left = subject.rules(subject.scene.namespace()).await;
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        let label = format!("operetta.dev/operator={}", subject.name);
        let kinds = "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts";
        let left = kubectl_of(plane, &["get", kinds, "-A", "-l", &label, "-o", "name"], "").await.ok();
        assert_eq!(left.trim(), "");
    };
    futures::future::join_all((0..PACKAGES).map(run)).await;
}

/// Builds before the first release had other names for the roles of a package. An upgrade deletes those roles with their
/// rights, and no role of another package.
#[tokio::test]
async fn roles_with_former_names_are_replaced() {
    let plane = shared_plane_with_operators().await;
    let scene = Scene::on(plane).await;
    let (revisions, order) = (BTreeMap::new(), Vec::new());
    let (name, plural) = ("formers".to_owned(), "formers".to_owned());
    let mut subject = Subject { name, plural, scene, is_limited: false, revisions, order };
    let first = subject.version(1).await;
    subject.operetta(&["install", subject.folder(&first), "--accept-rights"]).await.ok();
    subject.scene.apply(&instance(&subject.name)).await;
    subject.settles("install").await;
    let role = |name: &str, package: &str| {
        let labels = json!({"app.kubernetes.io/managed-by": "operetta", "operetta.dev/operator": package});
        let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
        let subject =
            json!({"kind": "ServiceAccount", "namespace": SYSTEM, "name": rights::account(package)});
        [
            json!({
                "apiVersion": api, "kind": "ClusterRole", "metadata": {"name": name, "labels": labels},
                "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["delete"]}],
            }),
            json!({
                "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": {"name": name, "labels": labels},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name}, "subjects": [subject],
            }),
        ]
    };
    let mut items = role("operetta-formers", "formers").to_vec();
    items.extend(role("operetta-formers-view", "formers-view"));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    kubectl_of(plane, &["create", "-f", "-"], &list).await.ok();
    assert!(subject.rules("default").await.contains(&(String::new(), "nodes".into(), "delete".into())));
    let next = subject.version(2).await;
    subject.operetta(&["upgrade", subject.folder(&next), "--accept-rights"]).await.ok();
    subject.settles("upgrade").await;
    let named = ["get", "clusterroles,clusterrolebindings", "-o", "name"];
    let left = kubectl_of(plane, &named, "").await.ok();
    let left: Vec<&str> = left.lines().filter(|line| line.contains("/operetta-formers")).collect();
    assert_eq!(left.len(), 2, "those of another package: {left:?}");
    assert!(left.iter().all(|line| line.ends_with("/operetta-formers-view")), "{left:?}");
}

/// Installs a package with this name.
async fn install(plane: &Arc<ControlPlane>, name: &str, seed: u32) -> (tempfile::TempDir, Output) {
    let root = tempfile::tempdir().unwrap();
    Shape::of(seed).write(root.path(), (name, name), seed);
    let output = operetta(plane.kubeconfig_path(), &["install", root.path().to_str().unwrap()]).await;
    (root, output)
}

#[tokio::test]
async fn package_name_gives_no_role_of_another_package() {
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    let operetta_process = run_operators(&plane, &kubeconfig).await;
    let all_of_manager = async || {
        let args = [
            "get",
            "clusterroles,clusterrolebindings,serviceaccounts",
            "-A",
            "-l",
            "app.kubernetes.io/name=operetta",
            "-o",
            "name",
        ];
        kubectl_of(&plane, &args, "").await.ok()
    };
    let before = all_of_manager().await;
    assert!(before.contains("operetta-manager:packages"), "{before}");
    for name in ["packages", "manager", "org", "org-view", "view"] {
        install(&plane, name, 1).await.1.ok();
    }
    // A package whose name ends like the role of another package's users gives those users nothing.
    let view = kubectl_of(&plane, &["get", "clusterrole", "view", "-o", "json"], "").await.ok();
    let view: Value = serde_json::from_str(&view).unwrap();
    let verbs: Vec<&Value> =
        view["rules"].as_array().unwrap().iter().flat_map(|rule| rule["verbs"].as_array().unwrap()).collect();
    assert!(verbs.iter().all(|verb| ["get", "list", "watch"].contains(&verb.as_str().unwrap())), "{view:#}");
    for name in ["packages", "manager", "view"] {
        operetta(plane.kubeconfig_path(), &["uninstall", name]).await.ok();
    }
    assert_eq!(all_of_manager().await, before);

    // A package cannot have CRDs in these groups.
    for group in ["operetta.dev", "apps", "networking.k8s.io"] {
        let root = tempfile::tempdir().unwrap();
        Shape::of(1).write(root.path(), ("greedy", "greedy"), 1);
        let path = root.path().join("crds/first.yaml");
        let text = std::fs::read_to_string(&path).unwrap().replace(GROUP, group);
        std::fs::write(path, text).unwrap();
        for command in ["lint", "install"] {
            let output = operetta(plane.kubeconfig_path(), &[command, root.path().to_str().unwrap()]).await;
            let told = format!("{}{}", output.stdout, output.stderr);
            assert!(
                !output.status.success() && told.contains("crd::reserved-group"),
                "{command} {group}: {told}"
            );
        }
    }

    // A role of that name that somebody else has created is left alone.
    for (package, role, labels) in [
        ("mine", "operetta:mine:view", json!({})),
        (
            "yours",
            "operetta:yours:edit",
            json!({"app.kubernetes.io/managed-by": "operetta", "operetta.dev/operator": "org"}),
        ),
    ] {
        let foreign = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": role, "labels": labels}, "rules": [],
        });
        kubectl_of(&plane, &["create", "-f", "-"], &foreign.to_string()).await.ok();
        let (_root, output) = install(&plane, package, 3).await;
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stderr.contains(role) && output.stderr.contains("was made by"), "{}", output.stderr);
        let live = kubectl_of(&plane, &["get", "clusterrole", role, "-o", "json"], "").await.ok();
        assert_eq!(serde_json::from_str::<Value>(&live).unwrap()["rules"], json!(null));
    }
    drop(operetta_process);
    the_manager_binds_nothing_else(&plane).await;
}

/// The manager may bind the roles of revisions under their names, and may not change rules.
async fn the_manager_binds_nothing_else(plane: &Arc<ControlPlane>) {
    let roles = kubectl_of(
        plane,
        &["get", "clusterroles", "-l", "operetta.dev/operator=org,operetta.dev/revision", "-o", "json"],
        "",
    )
    .await;
    let roles: Value = serde_json::from_str(&roles.ok()).unwrap();
    let names: Vec<&str> = roles["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|role| role["metadata"]["name"].as_str().unwrap())
        .collect();
    let name = *names.iter().find(|name| name.matches(':').count() == 2).unwrap();
    let own = user(rights::MANAGER);
    let apply = async |kind: &str, name: &str, role: &str| {
        let mut object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "namespace": SYSTEM, "name": rights::account("org")}],
        });
        if kind == "RoleBinding" {
            object["metadata"]["namespace"] = "default".into();
        }
        let args =
            ["apply", "--server-side", "--force-conflicts", "--as", &own, "--validate=false", "-f", "-"];
        kubectl_of(plane, &args, &object.to_string()).await.result()
    };
    apply("RoleBinding", name, name).await.unwrap();
    for (kind, binding, role) in [
        ("ClusterRoleBinding", "more", name),
        ("RoleBinding", "more", name),
        ("RoleBinding", "operetta:org:0000000000", name),
        ("ClusterRoleBinding", "operetta-manager", "cluster-admin"),
    ] {
        let refused = apply(kind, binding, role).await.unwrap_err();
        assert!(refused.contains("cannot") || refused.contains("forbidden"), "{kind} {binding}: {refused}");
    }
    kubectl_of(plane, &["delete", "clusterrolebinding", name], "").await.ok();
    let refused = apply("ClusterRoleBinding", name, "cluster-admin").await.unwrap_err();
    assert!(refused.contains("cluster-admin") || refused.contains("not currently held"), "{refused}");
    let more = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    });
    let args = ["apply", "--server-side", "--force-conflicts", "--as", &own, "--validate=false", "-f", "-"];
    let refused = kubectl_of(plane, &args, &more.to_string()).await.result().unwrap_err();
    assert!(refused.contains("cannot patch resource"), "{refused}");
}
