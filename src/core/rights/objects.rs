//! The objects that give a package its rights: an account, and the roles of the account, of the manager and of users.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Value, json};

use super::part::Part;
use super::rules::{Place, Rights};
use crate::api::ApiKind;
use crate::children::names;
use crate::package::store;
use crate::package::{Package, Resource};

pub(super) const API: &str = "rbac.authorization.k8s.io/v1";
pub(super) const EXTENSIONS: &str = "apiextensions.k8s.io";
pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

/// Label of the roles whose rules the manager's own `ClusterRole` has.
pub const TO_MANAGER: &str = "operetta.dev/aggregate-to-manager";

/// Annotation of a role of a revision: the digest of the rules with which it was made.
const RULES: &str = "operetta.dev/rules";

/// Label of the manager's own objects.
pub(super) const APP: &str = "app.kubernetes.io/name";

/// What is done to instances by the manager: see `manager/act/instance.rs` and `manager/status.rs`.
const INSTANCES: [&str; 4] = ["get", "list", "watch", "patch"];

/// Where the objects are to be.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The manager's namespace, which has the account.
    pub manager_namespace: String,
    /// The manager's `ServiceAccount` there.
    pub manager_account: String,
    /// The namespaces whose instances the package serves; `None` is all.
    pub namespaces: Option<BTreeSet<String>>,
}

impl Placement {
    /// A manager as `operetta manager install` makes it, for packages that serve all namespaces.
    pub fn everywhere(manager_namespace: &str) -> Self {
        Self {
            manager_namespace: manager_namespace.to_owned(),
            manager_account: super::MANAGER.to_owned(),
            namespaces: None,
        }
    }
}

/// The name of the `ServiceAccount` of a package. Names of accounts cannot contain a colon. The manager's own account is
/// `operetta` ([`super::MANAGER`]), which no package has: the name of a package is not empty.
pub fn account(package: &str) -> String {
    format!("operetta-{package}")
}

/// The name of the roles and bindings of the account of a package. The other roles of a package have it as their prefix, with
/// a colon after it. No name of a package contains a colon, so roles of different packages never have the same name, and none
/// has the name of one of the manager's.
pub fn role(package: &str) -> String {
    format!("operetta:{package}")
}

/// The name of the roles of one revision of a package, which is the prefix of others of the revision. `revision`: the name of the
/// `OperatorRevision`, which is that of the package and the start of a digest. No other role of a package has such a name: the
/// start of a digest has ten hexadecimal digits.
pub fn role_of_revision(package: &str, revision: &str) -> String {
    let digest = revision.strip_prefix(package).and_then(|rest| rest.strip_prefix('-')).unwrap_or(revision);
    format!("{}:{digest}", role(package))
}

/// The suffixes of the roles that a package had under the name of its account, before they had colons.
const FORMER: [&str; 6] = ["", "-instances", "-impersonate", "-view", "-edit", "-admin"];

/// The user name of an account.
pub fn user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// The labels of the roles and bindings of a package, as a selector. Children of instances have the same, and one more.
pub fn selector(package: &str) -> String {
    format!("{}={package},!{}", names::OPERATOR, names::INSTANCE_UID)
}

/// Whether a role or binding of that name is one of those whose names begin with `role`: of a package, or of a revision.
pub fn begins_with(role: &str, name: &str) -> bool {
    name.strip_prefix(role).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Whether an object is one of those of a package, and no child of an instance.
pub fn is_of_package(object: &Value, package: &str) -> bool {
    let is_named = object["metadata"]["name"].as_str().is_some_and(|name| {
        begins_with(&role(package), name)
            || name.strip_prefix(&account(package)).is_some_and(|rest| FORMER.contains(&rest))
    });
    is_named && Owner::of(object) == Owner::Package(package.to_owned())
}

/// Who has made a role, a binding or an account, by its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The object gives this package its rights.
    Package(String),
    /// The object is one of the manager's own.
    Manager,
    /// Something else.
    Other,
}

impl Owner {
    /// The owner of an object.
    pub fn of(object: &Value) -> Self {
        let labels = &object["metadata"]["labels"];
        // The chart makes the same objects, and Helm says so on each.
        let is_of_chart = labels[names::MANAGED_BY] == "Helm" && labels[APP] == super::MANAGER;
        let is_ours = labels[names::MANAGED_BY] == names::NOTES || is_of_chart;
        // Children of instances carry the label of their package as well.
        if !is_ours || !labels[names::INSTANCE_UID].is_null() {
            return Self::Other;
        }
        match labels[names::OPERATOR].as_str() {
            Some(package) => Self::Package(package.to_owned()),
            None if labels[APP] == super::MANAGER => Self::Manager,
            None => Self::Other,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Package(package) => write!(f, "the package {package}"),
            Self::Manager => f.write_str("the manager"),
            Self::Other => f.write_str("something else than Operetta"),
        }
    }
}

/// The objects that give a package its rights, in an order in which they can be applied.
pub fn objects(package: &Package, rights: &Rights, at: &Placement) -> Vec<Value> {
    let (account, role) = (self::account(&package.name), self::role(&package.name));
    let maker = Maker { package: &package.name, account: &account, role: &role, at };
    let mut objects = vec![maker.account()];
    objects.extend(maker.of_account(rights));
    objects.push(maker.instances(&role, &package.resources));
    objects.extend(maker.impersonation());
    objects.extend(maker.of_users(&package.resources));
    objects
}

/// The objects that give one revision of a package its rights. The manager binds the roles while the revision is in use
/// ([`super::bindings`]), and deletes them before it deletes the revision. The `OperatorRevision` is not their owner: if somebody
/// deletes it, the manager stores it again, and it could not create the roles again. All roles are cluster-wide, so that none
/// needs a namespace that does not exist yet.
pub fn objects_of_revision(package: &Package, rights: &Rights, at: &Placement) -> Vec<Value> {
    let revision = store::name(&package.name, &package.digest);
    let (account, role) = (self::account(&package.name), role_of_revision(&package.name, &revision));
    let maker = Maker { package: &package.name, account: &account, role: &role, at };
    let mut roles = maker.parts(rights);
    let bound: Vec<String> =
        roles.iter().filter_map(|role| role["metadata"]["name"].as_str().map(str::to_owned)).collect();
    roles.push(maker.instances(&role, &package.resources));
    roles.push(maker.bindings(&role_of_bindings(&package.name, &revision), &bound));
    for role in &mut roles {
        role["metadata"]["labels"][store::objects::REVISION] = revision.as_str().into();
        role["metadata"]["annotations"][RULES] = digest_of_rules(role).into();
        for (name, value) in store::objects::KEPT {
            role["metadata"]["annotations"][name] = value.into();
        }
    }
    let mut all = vec![maker.account()];
    all.extend(roles);
    let of_package = self::role(&package.name);
    let maker = Maker { role: &of_package, ..maker };
    all.extend(maker.impersonation());
    all.extend(maker.of_users(&package.resources));
    all
}

/// The rights of the manager to the instances of a kind.
pub fn to_instances(kind: &ApiKind) -> Rights {
    let mut rights = Rights::default();
    rights.add(&Place::Everywhere, &kind.group, &kind.plural, &INSTANCES);
    rights.add(&Place::Everywhere, &kind.group, &format!("{}/status", kind.plural), &["patch"]);
    rights
}

/// Whether a role of a revision has other rules than those with which it was made. Roles of earlier builds do not say.
pub fn is_changed(role: &Value) -> bool {
    role["metadata"]["annotations"][RULES].as_str().is_some_and(|made| made != digest_of_rules(role))
}

/// A digest of the rules of a role. The API server leaves out empty lists, and keeps all else as it was sent.
fn digest_of_rules(role: &Value) -> String {
    let fields = ["apiGroups", "nonResourceURLs", "resourceNames", "resources", "verbs"];
    let is_set = |list: &&Value| list.as_array().is_some_and(|list| !list.is_empty());
    let words = |rule: &Value| -> Value {
        fields.iter().filter_map(|field| Some((*field, rule.get(field).filter(is_set)?.clone()))).collect()
    };
    let rules: Value = role["rules"].as_array().into_iter().flatten().map(words).collect();
    names::value_hash(&rules, 8)
}

/// The names of the `ClusterRole`s of the manager that a revision of a package brings. No review of the account's rights misses
/// them.
pub fn roles_of_manager(package: &str, revision: &str) -> BTreeSet<String> {
    let instances = format!("{}:instances", role_of_revision(package, revision));
    [instances, role_of_bindings(package, revision)].into()
}

/// The name of the `ClusterRole` by which the manager binds the roles of a revision, and deletes them: each revision that has roles
/// has this one.
pub fn role_of_bindings(package: &str, revision: &str) -> String {
    format!("{}:bindings", role_of_revision(package, revision))
}

/// The namespaces of the objects, beside the manager's.
pub fn namespaces(rights: &Rights, at: &Placement) -> BTreeSet<String> {
    let named = rights.namespaces().into_iter().map(str::to_owned);
    named.chain(at.namespaces.iter().flatten().cloned()).collect()
}

/// The labels of the objects of a package, by which [`Owner::of`] knows them.
pub(super) fn labels(package: &str) -> Value {
    json!({names::MANAGED_BY: names::NOTES, names::OPERATOR: package})
}

struct Maker<'a> {
    package: &'a str,
    account: &'a str,
    role: &'a str,
    at: &'a Placement,
}

impl Maker<'_> {
    fn metadata(&self, name: &str, namespace: Option<&str>) -> Value {
        let mut metadata = json!({"name": name, "labels": labels(self.package)});
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        metadata
    }

    /// Nothing runs as the account, so no pod gets a token of it.
    fn account(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": self.metadata(self.account, Some(&self.at.manager_namespace)),
            "automountServiceAccountToken": false,
        })
    }

    /// What the account may do. Rights that are needed in one namespace alone are granted there alone.
    fn of_account(&self, rights: &Rights) -> Vec<Value> {
        let manager = self.at.manager_namespace.as_str();
        let home = |place: &Place| *place == Place::Home;
        let is_limited = self.at.namespaces.is_some();
        let everywhere = rights.of(|place| match place {
            Place::Everywhere | Place::Cluster => true,
            Place::Home => !is_limited,
            Place::Manager | Place::Namespace(_) => false,
        });
        let mut objects = Vec::new();
        if !everywhere.is_empty() {
            objects.extend(self.bound(self.role, None, &everywhere.rules(), &[self.subject(self.account)]));
        }
        let mut all = namespaces(rights, self.at);
        all.insert(manager.to_owned());
        for namespace in all {
            let is_served = self.at.namespaces.as_ref().is_some_and(|all| all.contains(&namespace));
            let here = rights.of(|place| match place {
                Place::Manager => namespace == manager,
                Place::Namespace(named) => *named == namespace,
                place => is_served && home(place),
            });
            // What is granted everywhere needs no second rule.
            let here: Rights = here.iter().filter(|right| !everywhere.grants(right)).cloned().collect();
            if !here.is_empty() {
                let subjects = [self.subject(self.account)];
                objects.extend(self.bound(self.role, Some(&namespace), &here.rules(), &subjects));
            }
        }
        objects
    }

    /// The rights of an account as cluster-wide roles, one for each place where they are bound.
    fn parts(&self, rights: &Rights) -> Vec<Value> {
        let manager = self.at.manager_namespace.as_str();
        let everywhere = rights.of(|place| matches!(place, Place::Everywhere | Place::Cluster));
        // What is granted everywhere needs no second rule.
        let beside = |is_there: &dyn Fn(&Place) -> bool| -> Rights {
            rights.of(is_there).iter().filter(|right| !everywhere.grants(right)).cloned().collect()
        };
        let mut parts =
            vec![(Part::Home, beside(&|place| *place == Place::Home)), (Part::Cluster, everywhere.clone())];
        let mut named = rights.namespaces();
        named.insert(manager);
        parts.extend(named.into_iter().map(|namespace| {
            let is_there = |place: &Place| match place {
                Place::Manager => namespace == manager,
                Place::Namespace(named) => named == namespace,
                Place::Home | Place::Everywhere | Place::Cluster => false,
            };
            (Part::In(namespace.to_owned()), beside(&is_there))
        }));
        let granted = parts.into_iter().filter(|(_, rights)| !rights.is_empty());
        granted
            .map(|(part, rights)| self.cluster_role(&format!("{}{part}", self.role), &rights.rules()))
            .collect()
    }

    /// Lets the manager bind these roles of a revision to the account, and delete the roles of the revision with it. Kubernetes
    /// checks the name of an object that server-side apply creates, so no other binding can be created.
    fn bindings(&self, name: &str, bound: &[String]) -> Value {
        let suffix = |name: &String| Part::of(self.role, name);
        let of_part = |is_wanted: &dyn Fn(&Part) -> bool| -> Vec<&String> {
            bound.iter().filter(|name| suffix(name).is_some_and(|part| is_wanted(&part))).collect()
        };
        let is_limited = self.at.namespaces.is_some();
        let in_cluster = of_part(&|part| *part == Part::Cluster || (*part == Part::Home && !is_limited));
        let in_namespaces = of_part(&|part| *part != Part::Cluster);
        let all: Vec<&str> = bound.iter().map(String::as_str).collect();
        let instances = format!("{}:instances", self.role);
        let owned: Vec<&str> = all.iter().copied().chain([instances.as_str(), name]).collect();
        let rule = |resource: &str, names: Value, verbs: &[&str]| json!({"apiGroups": [GROUP], "resources": [resource], "resourceNames": names, "verbs": verbs});
        let mut rules = vec![rule("clusterroles", json!(owned), &["delete"])];
        if !all.is_empty() {
            rules.push(rule("clusterroles", json!(all), &["bind"]));
        }
        // A binding that the Operator no longer permits must be deletable.
        let in_no_cluster = of_part(&|part| *part == Part::Home && is_limited);
        for (resource, names, verbs) in [
            ("clusterrolebindings", in_cluster, &["create", "patch", "delete"][..]),
            ("clusterrolebindings", in_no_cluster, &["delete"]),
            ("rolebindings", in_namespaces, &["create", "patch", "delete"]),
        ] {
            if !names.is_empty() {
                rules.push(rule(resource, json!(names), verbs));
            }
        }
        let mut role = self.cluster_role(name, &rules);
        role["metadata"]["labels"][TO_MANAGER] = "true".into();
        role
    }

    /// What the manager itself does with the instances of the package.
    fn instances(&self, role: &str, resources: &[Resource]) -> Value {
        let mut rights = Rights::default();
        for Resource { kind, .. } in resources {
            rights.extend(to_instances(kind).iter().cloned());
            add_crd(&mut rights, &format!("{}.{}", kind.plural, kind.group));
        }
        let mut instances = self.cluster_role(&format!("{role}:instances"), &rights.rules());
        instances["metadata"]["labels"][TO_MANAGER] = "true".into();
        instances
    }

    /// Lets the manager act as the account.
    fn impersonation(&self) -> [Value; 2] {
        let impersonate = json!({
            "apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": [self.account],
            "verbs": ["impersonate"],
        });
        let namespace = Some(self.at.manager_namespace.as_str());
        let subjects = [self.subject(&self.at.manager_account)];
        self.bound(&format!("{}:impersonate", self.role), namespace, &[impersonate], &subjects)
    }

    fn cluster_role(&self, name: &str, rules: &[Value]) -> Value {
        json!({"apiVersion": API, "kind": "ClusterRole", "metadata": self.metadata(name, None), "rules": rules})
    }

    /// The roles that are added to `view`, `edit` and `admin`, which every cluster has.
    fn of_users(&self, resources: &[Resource]) -> Vec<Value> {
        let (mut view, mut edit, mut admin) = (Rights::default(), Rights::default(), Rights::default());
        for resource in resources {
            let ApiKind { group, plural, .. } = &resource.kind;
            view.add(&Place::Home, group, plural, &["get", "list", "watch"]);
            edit.add(
                &Place::Home,
                group,
                plural,
                &["create", "update", "patch", "delete", "deletecollection"],
            );
            if resource.has_scale() {
                view.add(&Place::Home, group, &format!("{plural}/scale"), &["get"]);
                edit.add(&Place::Home, group, &format!("{plural}/scale"), &["update", "patch"]);
            }
            if resource.has_runs() {
                view.add(&Place::Home, "operetta.dev", "planruns", &["get", "list", "watch"]);
                view.add(&Place::Home, "operetta.dev", "instancestates", &["get", "list", "watch"]);
                edit.add(&Place::Home, "operetta.dev", "planruns", &["create", "update", "patch", "delete"]);
                // What the policy of PlanRuns asks for.
                edit.add(&Place::Home, group, plural, &["run"]);
                admin.add(&Place::Home, group, plural, &["approve"]);
            }
        }
        let all = [("view", view), ("edit", edit), ("admin", admin)];
        let role = |(to, rights): (&str, Rights)| {
            let mut role = self.cluster_role(&format!("{}:{to}", self.role), &rights.rules());
            role["metadata"]["labels"][format!("{GROUP}/aggregate-to-{to}")] = "true".into();
            role
        };
        all.into_iter().filter(|(_, rights)| !rights.is_empty()).map(role).collect()
    }

    fn subject(&self, account: &str) -> Value {
        json!({"kind": "ServiceAccount", "name": account, "namespace": self.at.manager_namespace})
    }

    fn bound(&self, name: &str, namespace: Option<&str>, rules: &[Value], subjects: &[Value]) -> [Value; 2] {
        bound_role(&self.metadata(name, namespace), namespace, json!({"rules": rules}), subjects)
    }
}

/// The rights to apply a CRD of a package, and to record its stored versions after a migration.
fn add_crd(rights: &mut Rights, name: &str) {
    let crds = "customresourcedefinitions";
    rights.add_named(&Place::Everywhere, EXTENSIONS, crds, name, &["create", "patch"]);
    rights.add_named(&Place::Everywhere, EXTENSIONS, &format!("{crds}/status"), name, &["patch"]);
}

/// A role and its binding, cluster-wide without a namespace. `fields`: the rules, and how they are aggregated.
pub(super) fn bound_role(
    metadata: &Value,
    namespace: Option<&str>,
    fields: Value,
    subjects: &[Value],
) -> [Value; 2] {
    let prefix = if namespace.is_some() { "" } else { "Cluster" };
    let kind = format!("{prefix}Role");
    let mut role = json!({"apiVersion": API, "kind": kind, "metadata": metadata});
    if let (Some(role), Value::Object(fields)) = (role.as_object_mut(), fields) {
        role.extend(fields);
    }
    let binding = json!({
        "apiVersion": API, "kind": format!("{kind}Binding"), "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": metadata["name"]},
        "subjects": subjects,
    });
    [role, binding]
}
