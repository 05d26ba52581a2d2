//! Rights as a set of single permissions, and the RBAC rules that grant them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value, json};

/// Where a right is needed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// In the namespace of each instance.
    Home,
    /// In the manager's namespace.
    Manager,
    /// In this namespace.
    Namespace(String),
    /// In all namespaces.
    Everywhere,
    /// Nowhere: the objects have no namespace.
    Cluster,
}

/// One verb on one resource: what the authorizer of the API server decides about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Right {
    /// Where it is needed.
    pub place: Place,
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural, with a subresource: `pods`, `pods/exec`.
    pub resource: String,
    /// The name of the one object that it is for; `None` for all.
    pub name: Option<String>,
    /// The verb, such as `create`.
    pub verb: String,
}

impl Right {
    /// The name of the resource as kubectl writes it: `deployments.apps`, `pods/exec`.
    pub fn full_resource(&self) -> String {
        let Self { group, resource, .. } = self;
        match (group.as_str(), resource.split_once('/')) {
            ("", _) => resource.clone(),
            (group, Some((plural, subresource))) => format!("{plural}.{group}/{subresource}"),
            (group, None) => format!("{resource}.{group}"),
        }
    }

    /// Whether a rule for this right also grants another one, in whatever place.
    fn has_part(&self, other: &Self) -> bool {
        let is_same = |ours: &str, theirs: &str| ours == "*" || ours == theirs;
        is_same(&self.group, &other.group)
            && is_same(&self.resource, &other.resource)
            && is_same(&self.verb, &other.verb)
            && (self.name.is_none() || self.name == other.name)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.full_resource())?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        match &self.place {
            Place::Namespace(namespace) => write!(f, " in {namespace}"),
            Place::Manager => f.write_str(" in the manager's namespace"),
            Place::Home | Place::Everywhere | Place::Cluster => Ok(()),
        }
    }
}

/// A set of rights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights(BTreeSet<Right>);

impl Rights {
    /// Adds verbs on a resource.
    pub fn add(&mut self, place: &Place, group: &str, resource: &str, verbs: &[&str]) {
        self.0.extend(verbs.iter().map(|verb| Right {
            place: place.clone(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: None,
            verb: (*verb).to_owned(),
        }));
    }

    /// Adds verbs on the object of that name.
    pub fn add_named(&mut self, place: &Place, group: &str, resource: &str, name: &str, verbs: &[&str]) {
        self.0.extend(verbs.iter().map(|verb| Right {
            place: place.clone(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: Some(name.to_owned()),
            verb: (*verb).to_owned(),
        }));
    }

    /// Adds one right.
    pub fn insert(&mut self, right: Right) {
        self.0.insert(right);
    }

    /// All rights, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Right> {
        self.0.iter()
    }

    /// Whether there are no rights.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set grants a right, in a place that includes the right's own.
    pub fn grants(&self, right: &Right) -> bool {
        self.0.iter().any(|ours| {
            let is_there = ours.place == right.place
                || ours.place == Place::Everywhere && right.place != Place::Cluster
                || ours.place == Place::Home && right.place == Place::Everywhere;
            is_there && ours.has_part(right)
        })
    }

    /// The rights in the places that `is_wanted` names.
    #[must_use]
    pub fn of(&self, is_wanted: impl Fn(&Place) -> bool) -> Self {
        Self(self.0.iter().filter(|right| is_wanted(&right.place)).cloned().collect())
    }

    /// The namespaces in which rights are needed that are needed nowhere else.
    pub fn namespaces(&self) -> BTreeSet<&str> {
        let places = self.0.iter().map(|right| &right.place);
        let named = places.filter_map(|place| match place {
            Place::Namespace(namespace) => Some(namespace.as_str()),
            _ => None,
        });
        named.collect()
    }

    /// The `rules` of a role that grants them, whatever their places: resources of one group with the same
    /// verbs are one rule.
    pub fn rules(&self) -> Vec<Value> {
        type Names<'a> = BTreeSet<&'a str>;
        let mut verbs: BTreeMap<(&str, &str, Option<&str>), Names<'_>> = BTreeMap::new();
        for right in &self.0 {
            let key = (right.group.as_str(), right.resource.as_str(), right.name.as_deref());
            verbs.entry(key).or_default().insert(&right.verb);
        }
        let mut names: BTreeMap<(&str, &str, Names<'_>), Names<'_>> = BTreeMap::new();
        for ((group, resource, name), verbs) in verbs {
            names.entry((group, resource, verbs)).or_default().extend(name);
        }
        let mut resources: BTreeMap<(&str, Names<'_>, Names<'_>), Names<'_>> = BTreeMap::new();
        for ((group, resource, verbs), names) in names {
            resources.entry((group, names, verbs)).or_default().insert(resource);
        }
        let rule = |((group, names, verbs), resources): ((&str, Names<'_>, Names<'_>), Names<'_>)| {
            let mut rule = Map::new();
            rule.insert("apiGroups".into(), json!([group]));
            rule.insert("resources".into(), json!(resources));
            if !names.is_empty() {
                rule.insert("resourceNames".into(), json!(names));
            }
            rule.insert("verbs".into(), json!(in_order(&verbs)));
            Value::Object(rule)
        };
        resources.into_iter().map(rule).collect()
    }
}

impl Extend<Right> for Rights {
    fn extend<I: IntoIterator<Item = Right>>(&mut self, rights: I) {
        self.0.extend(rights);
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<I: IntoIterator<Item = Right>>(rights: I) -> Self {
        Self(rights.into_iter().collect())
    }
}

/// A rule as YAML on one line.
pub fn flow(rule: &Value) -> String {
    let fields = rule.as_object().into_iter().flatten().map(|(name, values)| {
        let values = values.as_array().into_iter().flatten().filter_map(Value::as_str);
        let values: Vec<&str> = values.map(|value| if value.is_empty() { "\"\"" } else { value }).collect();
        format!("{name}: [{}]", values.join(", "))
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

/// Verbs as people write them: those that read first.
pub(super) fn in_order<'a>(verbs: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let place = |verb: &str| super::VERBS.iter().position(|known| *known == verb).unwrap_or(usize::MAX);
    let mut verbs: Vec<&str> = verbs.iter().copied().collect();
    verbs.sort_by_key(|verb| (place(verb), *verb));
    verbs
}
