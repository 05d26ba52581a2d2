//! Roles and bindings, read from the store: what they allow to whom.

use std::collections::HashMap;

use operetta_kube_model::facts::texts;
use operetta_kube_model::selector::labels_match;
use serde_json::Value;

use super::store::Store;
use crate::model::User;

/// The group of roles and bindings.
pub(crate) const RBAC: &str = "rbac.authorization.k8s.io";

pub(crate) const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

/// The manager of the rules of aggregated roles.
pub(crate) const AGGREGATOR: &str = "clusterrole-aggregation-controller";

/// The attributes of a request that RBAC decides about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attributes<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    /// The path, if the request is not about a resource.
    pub(crate) path: Option<&'a str>,
}

/// A rule of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) resources: Vec<String>,
    pub(crate) names: Vec<String>,
    pub(crate) urls: Vec<String>,
}

fn has(set: &[String], item: &str) -> bool {
    set.iter().any(|known| known == item)
}

impl Rule {
    fn parse(value: &Value) -> Self {
        Self {
            verbs: texts(&value["verbs"]),
            groups: texts(&value["apiGroups"]),
            resources: texts(&value["resources"]),
            names: texts(&value["resourceNames"]),
            urls: texts(&value["nonResourceURLs"]),
        }
    }

    /// The rules of a role.
    pub(crate) fn all(role: &Value) -> Vec<Self> {
        role["rules"].as_array().into_iter().flatten().map(Self::parse).collect()
    }

    fn allows(&self, wanted: &Attributes<'_>) -> bool {
        if !has(&self.verbs, "*") && !has(&self.verbs, wanted.verb) {
            return false;
        }
        if let Some(path) = wanted.path {
            return self.urls.iter().any(|url| url == "*" || url_covers(url, path));
        }
        let is_resource = |rule: &String| {
            let (resource, sub) = rule.split_once('/').unwrap_or((rule, ""));
            rule == "*"
                || sub == wanted.subresource
                    && (resource == wanted.resource || resource == "*" && !sub.is_empty())
        };
        (has(&self.groups, "*") || has(&self.groups, wanted.group))
            && self.resources.iter().any(is_resource)
            && (self.names.is_empty() || has(&self.names, wanted.name))
    }

    /// The rules with one verb and one resource each that allow the same.
    fn split(&self) -> Vec<Self> {
        let one = |text: &String| vec![text.clone()];
        let mut out = Vec::new();
        for group in &self.groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let rule = Self {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Self::default()
                    };
                    if self.names.is_empty() {
                        out.push(rule);
                    } else {
                        out.extend(self.names.iter().map(|name| Self { names: one(name), ..rule.clone() }));
                    }
                }
            }
        }
        for url in &self.urls {
            out.extend(self.verbs.iter().map(|verb| Self {
                verbs: one(verb),
                urls: one(url),
                ..Self::default()
            }));
        }
        out
    }

    /// Whether this rule allows all that `one`, which is the result of a split, allows.
    fn covers(&self, one: &Self) -> bool {
        let all =
            |own: &[String], wanted: &[String]| has(own, "*") || wanted.iter().all(|item| has(own, item));
        let resource = |path: &String| {
            has(&self.resources, path)
                || path.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
        };
        all(&self.verbs, &one.verbs)
            && all(&self.groups, &one.groups)
            && (has(&self.resources, "*") || one.resources.iter().all(resource))
            && (self.names.is_empty()
                || !one.names.is_empty() && one.names.iter().all(|name| has(&self.names, name)))
            && one.urls.iter().all(|path| self.urls.iter().any(|url| url == path || url_covers(url, path)))
    }

    /// The rule as messages show it.
    fn shown(&self) -> String {
        let list = |name: &str, items: &[String]| {
            let items: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
            (!items.is_empty()).then(|| format!("{name}:[{}]", items.join(" ")))
        };
        let parts = [
            list("APIGroups", &self.groups),
            list("Resources", &self.resources),
            list("NonResourceURLs", &self.urls),
            list("ResourceNames", &self.names),
            list("Verbs", &self.verbs),
        ];
        format!("{{{}}}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

fn url_covers(url: &str, path: &str) -> bool {
    url == path || url.ends_with('*') && path.starts_with(url.trim_end_matches('*'))
}

/// The rules of `wanted` that `own` do not cover, as messages show them.
pub(crate) fn missing(own: &[&Rule], wanted: &[Rule]) -> Vec<String> {
    let mut compact: Vec<Rule> = Vec::new();
    for one in wanted.iter().flat_map(Rule::split) {
        if own.iter().any(|rule| rule.covers(&one)) {
            continue;
        }
        let same = compact.iter_mut().find(|known| {
            one.urls.is_empty()
                && (&known.groups, &known.resources, &known.names)
                    == (&one.groups, &one.resources, &one.names)
        });
        match same {
            Some(known) => known.verbs.extend(one.verbs),
            None => compact.push(one),
        }
    }
    let mut shown: Vec<String> = compact.iter().map(Rule::shown).collect();
    shown.sort();
    shown.dedup();
    shown
}

/// Whom a binding is for.
#[derive(Debug)]
struct Subject {
    kind: String,
    namespace: String,
    name: String,
}

impl Subject {
    fn parse(value: &Value) -> Self {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        Self { kind: text("kind"), namespace: text("namespace"), name: text("name") }
    }

    /// The namespace of an account; `place` is that of the binding.
    fn place<'a>(&'a self, place: &'a str) -> &'a str {
        if self.namespace.is_empty() { place } else { &self.namespace }
    }

    fn is(&self, user: &User, place: &str) -> bool {
        match &*self.kind {
            "User" => user.name == self.name,
            "Group" => user.groups.contains(&self.name),
            "ServiceAccount" => {
                let place = self.place(place);
                !place.is_empty() && user.service_account() == Some((place, self.name.as_str()))
            }
            _ => false,
        }
    }

    fn shown(&self, place: &str) -> String {
        match &*self.kind {
            "ServiceAccount" => {
                format!("ServiceAccount {:?}", format!("{}/{}", self.name, self.place(place)))
            }
            kind => format!("{kind} {:?}", self.name),
        }
    }
}

/// A binding: its subjects and its role.
#[derive(Debug)]
struct Binding {
    subjects: Vec<Subject>,
    role_kind: String,
    role: String,
    /// The binding as reasons show it.
    shown: String,
}

/// All roles and bindings of a store.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// By namespace; those of the cluster have an empty one.
    bindings: HashMap<String, Vec<Binding>>,
    /// By namespace and name.
    roles: HashMap<(String, String), Vec<Rule>>,
    /// The roles and bindings that were read.
    pub(crate) version: u64,
}

/// Whether a request is allowed, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

impl Rights {
    /// The version of the newest change of a role or binding.
    pub(crate) fn latest(store: &Store) -> u64 {
        RESOURCES.iter().map(|resource| store.latest(resource)).max().unwrap_or_default()
    }

    pub(crate) fn read(store: &Store) -> Self {
        let mut rights = Self { version: Self::latest(store), ..Self::default() };
        for resource in RESOURCES {
            for (key, object) in store.range(resource, "", None) {
                let (namespace, name) = key.split_once('/').unwrap_or_default();
                let value = &object.parsed().value;
                if !resource.contains("bindings") {
                    rights.roles.insert((namespace.to_owned(), name.to_owned()), Rule::all(value));
                    continue;
                }
                let (role_kind, role) = role_ref(value);
                let place = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
                let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
                let subjects = value["subjects"].as_array().into_iter().flatten();
                rights.bindings.entry(namespace.to_owned()).or_default().push(Binding {
                    subjects: subjects.map(Subject::parse).collect(),
                    role_kind: role_kind.to_owned(),
                    role: role.to_owned(),
                    shown: format!("{kind} {:?} of {role_kind} {role:?}", format!("{name}{place}")),
                });
            }
        }
        rights
    }

    /// The rules of a role that a binding in a namespace names; otherwise why there are none.
    pub(crate) fn role(&self, kind: &str, name: &str, namespace: &str) -> Result<&[Rule], String> {
        let place = if kind == "Role" { namespace } else { "" };
        let found = self.roles.get(&(place.to_owned(), name.to_owned()));
        found.map(Vec::as_slice).ok_or_else(|| format!("{}.{RBAC} {name:?} not found", kind.to_lowercase()))
    }

    /// Calls `visit` with each rule of a user in a namespace and where it is from, until it returns false. Returns why roles
    /// were not found.
    fn visit<'a>(
        &'a self,
        user: &User,
        namespace: &str,
        mut visit: impl FnMut(&'a Rule, &dyn Fn() -> String) -> bool,
    ) -> Vec<String> {
        let mut errors = Vec::new();
        let places = if namespace.is_empty() { vec![""] } else { vec!["", namespace] };
        for place in places {
            for binding in self.bindings.get(place).into_iter().flatten() {
                let Some(subject) = binding.subjects.iter().find(|subject| subject.is(user, place)) else {
                    continue;
                };
                match self.role(&binding.role_kind, &binding.role, place) {
                    Err(error) => errors.push(error),
                    Ok(rules) => {
                        let source = || format!("{} to {}", binding.shown, subject.shown(place));
                        if !rules.iter().all(|rule| visit(rule, &source)) {
                            return errors;
                        }
                    }
                }
            }
        }
        errors
    }

    pub(crate) fn decide(&self, user: &User, wanted: &Attributes<'_>) -> Decision {
        if user.is_master() {
            return Decision { allowed: true, reason: String::new() };
        }
        let mut found = None;
        let errors = self.visit(user, wanted.namespace, |rule, source| {
            let allows = rule.allows(wanted);
            if allows {
                found = Some(format!("RBAC: allowed by {}", source()));
            }
            !allows
        });
        match found {
            Some(reason) => Decision { allowed: true, reason },
            None if errors.is_empty() => Decision::default(),
            None => Decision { allowed: false, reason: format!("RBAC: {}", aggregate(&errors)) },
        }
    }

    /// All rules of a user in a namespace, and why roles were not found.
    pub(crate) fn rules_for(&self, user: &User, namespace: &str) -> (Vec<&Rule>, Vec<String>) {
        let mut rules = Vec::new();
        let errors = self.visit(user, namespace, |rule, _| {
            rules.push(rule);
            true
        });
        (rules, errors)
    }
}

/// The resources that are read.
pub(super) const RESOURCES: [&str; 4] = [
    CLUSTER_ROLES,
    "roles.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
];

/// The kind and name of the role of a binding.
pub(crate) fn role_ref(binding: &Value) -> (&str, &str) {
    let text = |field: &str| binding["roleRef"][field].as_str().unwrap_or_default();
    (text("kind"), text("name"))
}

/// Errors as Go shows several.
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for error in errors {
        if !unique.contains(&error.as_str()) {
            unique.push(error);
        }
    }
    if let [one] = unique[..] { one.to_owned() } else { format!("[{}]", unique.join(", ")) }
}

/// The rules that an aggregated role gets: those of the roles that its selectors choose, by name.
pub(crate) fn aggregated(role: &Value, all: &[Value]) -> Vec<Value> {
    let selectors: Vec<&Value> =
        role["aggregationRule"]["clusterRoleSelectors"].as_array().into_iter().flatten().collect();
    let mut rules: Vec<Value> = Vec::new();
    for selector in selectors {
        let chosen = all.iter().filter(|other| {
            other["metadata"]["name"] != role["metadata"]["name"]
                && labels_match(selector, &other["metadata"]["labels"])
        });
        for rule in chosen.flat_map(|other| other["rules"].as_array().into_iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}
