//! What an `Operator` says of the instances of its package: the values in place of the package's defaults, and the
//! namespaces that are served. It is known before the first instance is reconciled.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Map, Value};

use crate::operators::OperatorSpec;
use crate::reach;
use crate::selector::Selector;

/// What an `Operator` says of the instances of its package.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::manager) struct Settings {
    /// The values that override the package's defaults.
    pub(in crate::manager) defaults: Arc<Map<String, Value>>,
    namespaces: Namespaces,
    /// The namespaces into which the package writes nothing for instances elsewhere. A package in a folder may write into all.
    pub(in crate::manager) closed: Arc<BTreeSet<String>>,
    /// The CRDs that it takes over, and the package from which it takes each.
    takes_over: BTreeMap<String, Arc<str>>,
    /// Whether there is an `Operator`. A package in a folder has none.
    is_of_operator: bool,
}

/// The namespaces whose instances are reconciled.
#[derive(Debug, Clone, Default, PartialEq)]
enum Namespaces {
    #[default]
    All,
    Names(BTreeSet<String>),
    Selector(Selector),
}

/// Whether the instances of a namespace are reconciled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::manager) enum Serves {
    Yes,
    No,
    /// The namespaces are being listed.
    Unknown,
}

impl Settings {
    /// The settings that a spec contains. `defaults`: the valid ones. `manager`: the manager's namespace.
    ///
    /// # Errors
    /// What is wrong with the spec.
    pub(in crate::manager) fn of(
        spec: &OperatorSpec,
        defaults: Map<String, Value>,
        manager: &str,
    ) -> Result<Self, String> {
        let namespaces = match &spec.namespaces {
            None => Namespaces::All,
            Some(one) => match (&one.names, &one.selector) {
                (Some(names), None) => Namespaces::Names(names.clone()),
                (None, Some(selector)) => Namespaces::Selector(
                    Selector::parse(selector)
                        .map_err(|error| format!("spec.namespaces.selector: {error}"))?,
                ),
                _ => return Err("spec.namespaces: set one of names and selector".into()),
            },
        };
        let takes_over =
            spec.takes_over.iter().map(|one| (one.crd.clone(), one.from.as_str().into())).collect();
        let closed = Arc::new(spec.closed(manager));
        Ok(Self { defaults: Arc::new(defaults), namespaces, closed, takes_over, is_of_operator: true })
    }

    /// The namespaces, if they are named one by one.
    pub(in crate::manager) fn names(&self) -> Option<&BTreeSet<String>> {
        match &self.namespaces {
            Namespaces::Names(names) => Some(names),
            Namespaces::All | Namespaces::Selector(_) => None,
        }
    }

    /// Whether the labels of namespaces decide which are served.
    fn reads_labels(&self) -> bool {
        matches!(self.namespaces, Namespaces::Selector(_))
    }

    /// Whether it matters which namespaces exist.
    pub(in crate::manager) fn reads_namespaces(&self) -> bool {
        !matches!(self.namespaces, Namespaces::All)
    }
}

/// The settings of all packages, and the labels of namespaces.
#[derive(Default)]
pub(in crate::manager) struct AllSettings {
    /// By package.
    of: RwLock<BTreeMap<String, Arc<Settings>>>,
    /// By namespace; `None` until they are listed.
    labels: RwLock<Labels>,
    /// The manager's namespace.
    manager: Arc<str>,
}

#[derive(Default)]
struct Labels {
    known: HashMap<String, BTreeMap<String, String>>,
    is_listed: bool,
}

impl AllSettings {
    /// Without settings of any package. `manager`: the manager's namespace.
    pub(in crate::manager) fn new(manager: &str) -> Self {
        Self { manager: manager.into(), ..Self::default() }
    }

    /// Whether a namespace is served only by Operators that name or select it: who may write there controls the cluster, or
    /// the manager.
    pub(in crate::manager) fn is_reserved(&self, namespace: &str) -> bool {
        reach::closed(&self.manager).contains(&namespace)
    }

    /// The settings of a package.
    pub(in crate::manager) fn get(&self, package: &str) -> Option<Arc<Settings>> {
        self.of.read().unwrap_or_else(PoisonError::into_inner).get(package).cloned()
    }

    /// Sets the settings of a package. Returns whether they have changed.
    pub(in crate::manager) fn set(&self, package: &str, settings: Settings) -> bool {
        let mut all = self.of.write().unwrap_or_else(PoisonError::into_inner);
        if all.get(package).is_some_and(|known| **known == settings) {
            return false;
        }
        all.insert(package.to_owned(), Arc::new(settings));
        true
    }

    /// The package from which a package takes a CRD over, as its `Operator` says.
    pub(in crate::manager) fn takes_from(&self, package: &str, crd: &str) -> Option<Arc<str>> {
        self.get(package)?.takes_over.get(crd).cloned()
    }

    /// Takes back what a package takes over, because its `Operator` is gone.
    pub(in crate::manager) fn retract(&self, package: &str) {
        if let Some(settings) = self.get(package) {
            self.set(package, Settings { takes_over: BTreeMap::new(), ..(*settings).clone() });
        }
    }

    /// The packages that serve some namespaces only, and whether their labels decide.
    pub(in crate::manager) fn readers(&self) -> Vec<(String, bool)> {
        let all = self.of.read().unwrap_or_else(PoisonError::into_inner);
        let readers = all.iter().filter(|(_, one)| one.reads_namespaces());
        readers.map(|(name, one)| (name.clone(), one.reads_labels())).collect()
    }

    /// The namespaces that an `Operator` names and that do not exist; none while they are being listed.
    pub(in crate::manager) fn missing(&self, package: &str) -> Vec<String> {
        let Some(settings) = self.get(package) else { return Vec::new() };
        let Namespaces::Names(names) = &settings.namespaces else { return Vec::new() };
        let all = self.labels.read().unwrap_or_else(PoisonError::into_inner);
        let is_missing = |name: &&String| all.is_listed && !all.known.contains_key(*name);
        names.iter().filter(is_missing).cloned().collect()
    }

    /// Records the labels of a namespace; `None`: it is gone. Returns whether they have changed.
    pub(in crate::manager) fn label(
        &self,
        namespace: &str,
        labels: Option<BTreeMap<String, String>>,
    ) -> bool {
        let mut all = self.labels.write().unwrap_or_else(PoisonError::into_inner);
        let before = match labels {
            Some(labels) if all.known.get(namespace) == Some(&labels) => return false,
            Some(labels) => all.known.insert(namespace.to_owned(), labels),
            None => return all.known.remove(namespace).is_some(),
        };
        before.is_some() || all.is_listed
    }

    /// Records that all namespaces have been listed. Returns `false` if they were before.
    pub(in crate::manager) fn listed(&self) -> bool {
        let mut all = self.labels.write().unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut all.is_listed, true)
    }

    /// Whether the instances of a namespace are reconciled. Cluster-scoped instances always are.
    pub(in crate::manager) fn serves(&self, settings: &Settings, namespace: Option<&str>) -> Serves {
        let Some(namespace) = namespace else { return Serves::Yes };
        let is_served = match &settings.namespaces {
            Namespaces::All => !(settings.is_of_operator && self.is_reserved(namespace)),
            Namespaces::Names(names) => names.contains(namespace),
            Namespaces::Selector(selector) => {
                let all = self.labels.read().unwrap_or_else(PoisonError::into_inner);
                match all.known.get(namespace) {
                    Some(labels) => selector.fits(|key| labels.get(key).map(String::as_str)),
                    // The event of the namespace is still to come.
                    None => return Serves::Unknown,
                }
            }
        };
        if is_served { Serves::Yes } else { Serves::No }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn namespaces_are_served_by_name_or_label() {
        let settings = |namespaces: Value| {
            let spec = json!({"spec": {"revision": "a-1", "namespaces": namespaces}});
            Settings::of(&OperatorSpec::parse(&spec).unwrap(), Map::new(), "managers")
        };
        let all = AllSettings::default();
        let labels = |value: &str| Some(BTreeMap::from([("tier".to_owned(), value.to_owned())]));
        let serves = |settings: &Settings, namespace| all.serves(settings, namespace);
        let named = settings(json!({"names": ["a"]})).unwrap();
        assert_eq!(serves(&named, Some("a")), Serves::Yes);
        assert_eq!(serves(&named, Some("b")), Serves::No);
        assert_eq!(serves(&named, None), Serves::Yes);
        // A spec without names and labels serves all namespaces that are not reserved.
        let (all_of_them, reserved) = (settings(json!(null)).unwrap(), AllSettings::new("managers"));
        for (namespace, served) in [("a", Serves::Yes), ("managers", Serves::No), ("kube-system", Serves::No)]
        {
            assert_eq!(reserved.serves(&all_of_them, Some(namespace)), served, "{namespace}");
            assert_eq!(reserved.serves(&Settings::default(), Some(namespace)), Serves::Yes, "of a folder");
        }
        let named_there = settings(json!({"names": ["kube-system"]})).unwrap();
        let closed = |settings: &Settings| settings.closed.iter().cloned().collect::<Vec<_>>();
        assert_eq!(closed(&all_of_them), ["kube-system", "managers"]);
        assert_eq!(closed(&named_there), ["managers"]);
        assert!(closed(&Settings::default()).is_empty(), "of a folder");
        assert_eq!(reserved.serves(&named_there, Some("kube-system")), Serves::Yes);
        let selected = settings(json!({"selector": {"matchLabels": {"tier": "gold"}}})).unwrap();
        assert_eq!(serves(&selected, Some("a")), Serves::Unknown);
        assert!(!all.label("a", labels("gold")), "the list is not complete");
        assert!(all.listed() && !all.listed());
        assert_eq!(serves(&selected, Some("a")), Serves::Yes);
        assert!(!all.label("a", labels("gold")));
        assert!(all.label("a", labels("iron")));
        assert_eq!(serves(&selected, Some("a")), Serves::No);
        all.set("p", settings(json!({"names": ["a", "b", "c"]})).unwrap());
        assert_eq!(all.missing("p"), ["b", "c"]);
        assert!(AllSettings::default().missing("p").is_empty());
        assert!(all.label("a", None));
        assert_eq!(serves(&selected, Some("a")), Serves::Unknown);
        assert_eq!(serves(&settings(json!(null)).unwrap(), Some("x")), Serves::Yes);
        for wrong in
            [json!({}), json!({"names": [], "selector": {}}), json!({"selector": {"matchLabels": 1}})]
        {
            assert!(settings(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
