//! The objects that give a package its rights: an account, and the roles of the account, of the manager and of users.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::rules::{Place, Rights};
use crate::api::ApiKind;
use crate::children::names;
use crate::package::{Package, Resource};

const API: &str = "rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";

/// Label of the roles whose rules the manager's own `ClusterRole` has.
pub const TO_MANAGER: &str = "operetta.dev/aggregate-to-manager";

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

/// The name of the account of a package, and of its roles.
pub fn account(package: &str) -> String {
    format!("operetta-{package}")
}

/// The user name of an account.
pub fn user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// Whether an object is one of those of a package, and no child of an instance.
pub fn is_of_package(object: &Value, package: &str) -> bool {
    let labels = &object["metadata"]["labels"];
    let is_named =
        object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&account(package)));
    is_named && labels[names::OPERATOR] == package && labels[names::INSTANCE_UID].is_null()
}

/// The objects that give a package its rights, in an order in which they can be applied.
pub fn objects(package: &Package, rights: &Rights, at: &Placement) -> Vec<Value> {
    let name = account(&package.name);
    let maker = Maker { package: &package.name, name: &name, at };
    let mut objects = vec![maker.account()];
    objects.extend(maker.of_account(rights));
    objects.extend(maker.of_manager(&package.resources));
    objects.extend(maker.of_users(&package.resources));
    objects
}

/// The namespaces of the objects, beside the manager's.
pub fn namespaces(rights: &Rights, at: &Placement) -> BTreeSet<String> {
    let named = rights.namespaces().into_iter().map(str::to_owned);
    named.chain(at.namespaces.iter().flatten().cloned()).collect()
}

struct Maker<'a> {
    package: &'a str,
    name: &'a str,
    at: &'a Placement,
}

impl Maker<'_> {
    fn metadata(&self, name: &str, namespace: Option<&str>) -> Value {
        let mut metadata = json!({
            "name": name,
            "labels": {names::MANAGED_BY: names::NOTES, names::OPERATOR: self.package},
        });
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        metadata
    }

    /// Nothing runs as the account, so no pod gets a token of it.
    fn account(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": self.metadata(self.name, Some(&self.at.manager_namespace)),
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
            objects.extend(self.role(self.name, None, &everywhere.rules(), &[self.subject(self.name)]));
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
                let subjects = [self.subject(self.name)];
                objects.extend(self.role(self.name, Some(&namespace), &here.rules(), &subjects));
            }
        }
        objects
    }

    /// What the manager itself needs for this package: its instances, and to act as its account.
    fn of_manager(&self, resources: &[Resource]) -> Vec<Value> {
        let mut rights = Rights::default();
        for Resource { kind, .. } in resources {
            rights.add(&Place::Everywhere, &kind.group, &kind.plural, &INSTANCES);
            rights.add(&Place::Everywhere, &kind.group, &format!("{}/status", kind.plural), &["patch"]);
        }
        let mut instances = json!({
            "apiVersion": API, "kind": "ClusterRole",
            "metadata": self.metadata(&format!("{}-instances", self.name), None),
            "rules": rights.rules(),
        });
        instances["metadata"]["labels"][TO_MANAGER] = "true".into();
        let impersonate = json!({
            "apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": [self.name],
            "verbs": ["impersonate"],
        });
        let namespace = Some(self.at.manager_namespace.as_str());
        let subjects = [self.subject(&self.at.manager_account)];
        let name = format!("{}-impersonate", self.name);
        let mut objects = vec![instances];
        objects.extend(self.role(&name, namespace, &[impersonate], &subjects));
        objects
    }

    /// What is added to the roles `view`, `edit` and `admin` that every cluster has.
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
                edit.add(&Place::Home, "operetta.dev", "planruns", &["create", "update", "patch", "delete"]);
                // What the policy of PlanRuns asks for.
                edit.add(&Place::Home, group, plural, &["run"]);
                admin.add(&Place::Home, group, plural, &["approve"]);
            }
        }
        let all = [("view", view), ("edit", edit), ("admin", admin)];
        let role = |(to, rights): (&str, Rights)| {
            let mut role = json!({
                "apiVersion": API, "kind": "ClusterRole",
                "metadata": self.metadata(&format!("{}-{to}", self.name), None),
                "rules": rights.rules(),
            });
            role["metadata"]["labels"][format!("{GROUP}/aggregate-to-{to}")] = "true".into();
            role
        };
        all.into_iter().filter(|(_, rights)| !rights.is_empty()).map(role).collect()
    }

    fn subject(&self, account: &str) -> Value {
        json!({"kind": "ServiceAccount", "name": account, "namespace": self.at.manager_namespace})
    }

    fn role(&self, name: &str, namespace: Option<&str>, rules: &[Value], subjects: &[Value]) -> [Value; 2] {
        bound_role(&self.metadata(name, namespace), namespace, json!({"rules": rules}), subjects)
    }
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
