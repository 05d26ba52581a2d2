//! Which objects can be children of a resource's instances. Any client that may write an object can write its labels and
//! field managers, but not its namespace and kind. An object that no version of the package could have rendered in that
//! namespace is not a child, whatever its labels: otherwise an object of another tenant, with a finalizer, could block the
//! deletion of an instance forever.

use std::collections::BTreeSet;

use crate::api::{Gvk, ObjectRef};
use crate::package::Resource;

/// The text that stands for all namespaces.
const ANY: &str = "*";

/// The namespaces, beside that of the instance, in which its children may lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceScope {
    /// All namespaces: the instances are cluster-scoped, or nothing is on record.
    Anywhere,
    /// These namespaces: literals of the templates, and the namespace of the manager.
    Beyond(BTreeSet<String>),
}

impl NamespaceScope {
    /// The namespace of the instance alone.
    pub const HOME: Self = Self::Beyond(BTreeSet::new());

    /// The namespaces that the templates of a resource can render. `operator`: the manager's namespace.
    pub fn of(resource: &Resource, operator: &str) -> Self {
        let mut all = BTreeSet::new();
        for child in &resource.children {
            match child.namespaces.beyond(operator) {
                Some(some) => all.extend(some.map(str::to_owned)),
                None => return Self::Anywhere,
            }
        }
        Self::Beyond(all)
    }

    /// Reads the annotation [`super::names::CHILD_NAMESPACES`].
    pub fn read(annotation: Option<&str>) -> Self {
        let Some(text) = annotation.filter(|text| text.trim() != ANY) else { return Self::Anywhere };
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self::Beyond(names.map(str::to_owned).collect())
    }

    /// The text of the annotation.
    pub fn text(&self) -> String {
        match self {
            Self::Anywhere => ANY.to_owned(),
            Self::Beyond(all) => all.iter().map(String::as_str).collect::<Vec<_>>().join(","),
        }
    }

    /// The union of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Beyond(mut all), Self::Beyond(more)) => {
                all.extend(more);
                Self::Beyond(all)
            }
            _ => Self::Anywhere,
        }
    }

    /// Whether children may lie in a namespace, whatever that of their instance.
    pub fn has(&self, namespace: &str) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Beyond(all) => all.contains(namespace),
        }
    }

    /// Whether an object can be a child of an instance that lies in `home`. `kinds`: those that its children have,
    /// or had, in any version. (Only clients with wide rights can create cluster-scoped objects, so they are
    /// not checked.)
    pub fn holds(&self, home: Option<&str>, kinds: &BTreeSet<Gvk>, object: &ObjectRef) -> bool {
        let namespace = object.namespace.as_deref();
        let is_there = namespace.is_none_or(|namespace| home == Some(namespace) || self.has(namespace));
        is_there && kinds.iter().any(|gvk| gvk.is_version_of(&object.gvk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_outside_the_scope_are_no_children() {
        let kinds = BTreeSet::from([Gvk::new("g/v1", "Gadget"), Gvk::new("v1", "ConfigMap")]);
        let object = |api_version: &str, kind: &str, namespace: Option<&str>| ObjectRef {
            gvk: Gvk::new(api_version, kind),
            namespace: namespace.map(Into::into),
            name: "x".into(),
        };
        let some = NamespaceScope::read(Some("kube-public,system"));
        assert_eq!(some.text(), "kube-public,system");
        for (namespace, expected) in
            [(Some("home"), true), (Some("system"), true), (Some("evil"), false), (None, true)]
        {
            let map = object("v1", "ConfigMap", namespace);
            assert_eq!(some.holds(Some("home"), &kinds, &map), expected, "{namespace:?}");
            assert!(NamespaceScope::read(None).holds(Some("home"), &kinds, &map));
        }
        assert!(!NamespaceScope::read(Some("")).holds(
            None,
            &kinds,
            &object("v1", "ConfigMap", Some("home"))
        ));
        // Any version of the kind counts, but no other group.
        assert!(some.holds(Some("home"), &kinds, &object("g/v2", "Gadget", Some("home"))));
        assert!(!some.holds(Some("home"), &kinds, &object("h/v1", "Gadget", Some("home"))));
        assert!(!some.holds(Some("home"), &kinds, &object("v1", "Secret", Some("home"))));

        let both = some.and(NamespaceScope::read(Some("other")));
        assert_eq!(both.text(), "kube-public,other,system");
        assert_eq!(both.and(NamespaceScope::read(Some("*"))), NamespaceScope::Anywhere);
    }
}
