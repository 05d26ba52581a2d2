//! The rights that are granted to the account of a package, as its roles and bindings in the cluster say.

use serde_json::Value;

use super::demands::placed;
use super::objects::{Placement, account, role_of_revision};
use super::part::Part;
use super::rules::{Place, Right, Rights};
use crate::facts::texts;
use crate::package::store::objects::REVISION;

/// The roles and bindings of a package, each with its `kind`.
#[derive(Debug, Default)]
pub struct Live {
    /// `ClusterRole`s and `Role`s.
    pub roles: Vec<Value>,
    /// `ClusterRoleBinding`s and `RoleBinding`s.
    pub bindings: Vec<Value>,
}

impl Live {
    /// The rights by the roles of a revision, which the manager binds while the revision is in use, and by bindings that belong to
    /// no revision. `at`: where the rights of the revision are bound.
    pub fn granted(&self, package: &str, revision: &str, at: &Placement) -> Rights {
        let prefix = role_of_revision(package, revision);
        let mut rights = Rights::default();
        let is_of_revision =
            |role: &&Value| role["kind"] == "ClusterRole" && role["metadata"]["labels"][REVISION] == revision;
        for role in self.roles.iter().filter(is_of_revision) {
            let name = role["metadata"]["name"].as_str().unwrap_or_default();
            for place in Part::of(&prefix, name).map(places).unwrap_or_default() {
                rights.extend(by_rules(role, &place).iter().flat_map(|right| placed(right, at)));
            }
        }
        let user = account(package);
        for binding in self.bindings.iter().filter(|one| one["metadata"]["labels"][REVISION].is_null()) {
            let mut subjects = binding["subjects"].as_array().into_iter().flatten();
            let is_bound = subjects.any(|subject| {
                let is_account = subject["kind"] == "ServiceAccount" && subject["name"] == user.as_str();
                is_account && subject["namespace"] == at.manager_namespace.as_str()
            });
            let namespace = binding["metadata"]["namespace"].as_str();
            let there = match namespace {
                Some(namespace) => vec![Place::Namespace(namespace.to_owned())],
                None => vec![Place::Everywhere, Place::Cluster],
            };
            if let Some(role) = self.role(&binding["roleRef"], namespace).filter(|_| is_bound) {
                for place in there {
                    rights.extend(by_rules(role, &place).iter().cloned());
                }
            }
        }
        rights
    }

    fn role(&self, reference: &Value, namespace: Option<&str>) -> Option<&Value> {
        let is_in =
            |role: &Value| reference["kind"] != "Role" || role["metadata"]["namespace"].as_str() == namespace;
        self.roles.iter().find(|role| {
            role["kind"] == reference["kind"] && role["metadata"]["name"] == reference["name"] && is_in(role)
        })
    }
}

/// Where the role of a part holds.
fn places(part: Part) -> Vec<Place> {
    match part {
        Part::Home => vec![Place::Home],
        Part::Cluster => vec![Place::Everywhere, Place::Cluster],
        Part::In(namespace) => vec![Place::Namespace(namespace)],
    }
}

/// The rights by the rules of a role that is bound in a place.
pub fn by_rules(role: &Value, place: &Place) -> Rights {
    let mut rights = Rights::default();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let names = texts(&rule["resourceNames"]);
        let names: Vec<Option<String>> =
            if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    rights.extend(names.iter().map(|name| Right {
                        place: place.clone(),
                        group: group.clone(),
                        resource: resource.clone(),
                        name: name.clone(),
                        verb: verb.clone(),
                    }));
                }
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::objects::{objects, objects_of_revision};
    use super::super::tests::package;
    use super::super::{Demands, derive, review};
    use super::*;
    use crate::package::store;

    const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n";
    const CLASS: &str =
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: a}\nprovisioner: x\n";

    fn live(objects: Vec<Value>) -> Live {
        let (roles, others): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|object| object["kind"].as_str().unwrap().ends_with("Role"));
        Live { roles, bindings: others }
    }

    #[test]
    fn rights_without_roles_of_the_active_revision_need_consent() {
        let children = "      children: [{id: a, template: templates/a.yaml}, {id: b, template: templates/b.yaml}]\n      \
             refs: [{id: c, apiVersion: v1, kind: ConfigMap, name: c, namespace: kube-system}]\n      \
             status: {x: refs.c.metadata.name}\n";
        let package = package("", children, &[("templates/a.yaml", SECRET), ("templates/b.yaml", CLASS)]);
        let (rights, revision) =
            (derive(&[&package], &|_| None).rights, store::name(&package.name, &package.digest));
        for namespaces in [None, Some(BTreeSet::from(["x".to_owned(), "y".to_owned()]))] {
            let at = Placement { namespaces, ..Placement::everywhere("managers") };
            let demands = Demands::of(&package, &rights, &at);
            let needs_consent = |live: &Live| {
                let granted = live.granted(&package.name, &revision, &at);
                review(Some(&demands.granted_by(&granted)), &demands).needs_consent
            };
            let of_revision = live(objects_of_revision(&package, &rights, &at));
            assert!(!needs_consent(&of_revision), "{at:?}");
            assert!(!needs_consent(&live(objects(&package, &rights, &at))), "what `operetta rbac` prints");
            assert!(needs_consent(&Live::default()), "the revision came with --rights=false");
            let of_manager =
                |role: &Value| role["metadata"]["name"].as_str().unwrap().ends_with(":instances");
            let roles = of_revision.roles.into_iter().filter(of_manager).collect();
            assert!(needs_consent(&Live { roles, bindings: Vec::new() }), "the account has none of these");
        }
    }
}
