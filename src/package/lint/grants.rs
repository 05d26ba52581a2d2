//! What the roles and bindings among the children of a package grant, as their templates show it.

use super::sketch::{At, Part, Text};
use crate::api::Gvk;
use crate::diag::Location;
use crate::template_scan::Outlines;
use crate::{Child, Package, Permission};

/// A child that grants rights.
#[derive(Debug)]
pub struct Granted<'a> {
    /// The child.
    pub child: &'a Child,
    /// The rules of a role that its template shows.
    pub rules: Vec<Permission>,
    /// Whether these are all rules.
    pub is_whole: bool,
    /// The location of a rule about URLs, if there is one. `permissions` have none of these.
    pub urls: Option<Location>,
    /// The name of the `ClusterRole` that a binding names, if it is a literal.
    pub cluster_role: Option<String>,
    /// Whether a binding names a role that is a child, too.
    pub is_of_own_role: bool,
    /// The location of `roleRef` in the template, or that of the child in `operator.yaml`.
    pub location: Location,
}

impl Package {
    /// The children that are roles or bindings.
    pub fn granted(&self) -> Vec<Granted<'_>> {
        let children = self.resources.iter().flat_map(|resource| &resource.children);
        let found: Vec<&Child> = children.filter(|child| child.kinds.iter().any(grants)).collect();
        if found.is_empty() {
            return Vec::new();
        }
        let outlines = Outlines::of(self.files.iter());
        let roles: Vec<(&str, Text)> = found
            .iter()
            .filter_map(|child| {
                let At::Part(name) = outlines.root(&child.template)?.at(&["metadata", "name"]) else {
                    return None;
                };
                Some((&*child.kinds.first()?.kind, name.text()?))
            })
            .collect();
        found.into_iter().map(|child| granted(child, &outlines, &roles)).collect()
    }
}

fn grants(gvk: &Gvk) -> bool {
    gvk.group() == "rbac.authorization.k8s.io"
        && matches!(&*gvk.kind, "Role" | "ClusterRole" | "RoleBinding" | "ClusterRoleBinding")
}

fn granted<'a>(child: &'a Child, outlines: &Outlines, roles: &[(&str, Text)]) -> Granted<'a> {
    let mut granted = Granted {
        child,
        rules: Vec::new(),
        is_whole: false,
        urls: None,
        cluster_role: None,
        is_of_own_role: false,
        location: child.location.clone(),
    };
    let Some(root) = outlines.root(&child.template).filter(|_| child.kinds.len() == 1) else {
        return granted;
    };
    if let At::Part(role) = root.get("roleRef") {
        granted.location = role.location();
        let kind = literal(role, "kind");
        let name = match role.get("name") {
            At::Part(name) => name.text(),
            At::Absent | At::Open => None,
        };
        granted.is_of_own_role = kind
            .as_deref()
            .zip(name.as_ref())
            .is_some_and(|(kind, name)| roles.iter().any(|(known, of)| *known == kind && of == name));
        granted.cluster_role = literal(role, "name").filter(|_| kind.as_deref() == Some("ClusterRole"));
    }
    let rules = match root.get("rules") {
        At::Part(rules) => rules.all_items(),
        At::Absent => Some(Vec::new()),
        At::Open => None,
    };
    granted.is_whole = rules.is_some() && matches!(root.get("aggregationRule"), At::Absent);
    for rule in rules.into_iter().flatten() {
        if let At::Part(urls) = rule.get("nonResourceURLs") {
            granted.urls = Some(urls.location());
        }
        match permission(rule) {
            Some(permission) => granted.rules.push(permission),
            None => granted.is_whole = false,
        }
    }
    granted
}

pub(super) fn literal(part: Part<'_>, key: &str) -> Option<String> {
    match part.get(key) {
        At::Part(value) => match value.text()? {
            Text::Literal(text) => Some(text),
            Text::Computed(_) => None,
        },
        At::Absent | At::Open => None,
    }
}

/// A rule without expressions.
fn permission(rule: Part<'_>) -> Option<Permission> {
    let texts = |key: &str| -> Option<Vec<String>> {
        let list = match rule.get(key) {
            At::Part(list) => list.all_items()?,
            At::Absent => return Some(Vec::new()),
            At::Open => return None,
        };
        let texts = list.into_iter().map(|item| match item.text()? {
            Text::Literal(text) => Some(text),
            Text::Computed(_) => None,
        });
        texts.collect()
    };
    Some(Permission {
        api_groups: texts("apiGroups")?,
        resources: texts("resources")?,
        resource_names: texts("resourceNames")?,
        verbs: texts("verbs")?,
        location: rule.location(),
        path: "rules".to_owned(),
    })
}
