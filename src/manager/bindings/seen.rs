//! Which versions of the roles and bindings of packages the manager has read or written, so that it looks at them again when
//! somebody else has changed one, and only then.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::runtime::watcher::Event;
use serde_json::Value;

use crate::children::names;
use crate::manager::raw::Raw;
use crate::rights::{begins_with, role};

/// The kinds of the objects.
pub(super) const KINDS: [&str; 4] = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

/// One of the objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Id {
    kind: &'static str,
    namespace: Box<str>,
    pub(super) name: Box<str>,
}

/// An object and its version.
pub(super) type Version = (Id, Box<str>);

/// The version of an object that was read or written.
pub(super) fn version(kind: &'static str, object: &Value) -> Version {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().into();
    (Id { kind, namespace: text("namespace"), name: text("name") }, text("resourceVersion"))
}

#[derive(Default)]
pub(super) struct Seen(Mutex<All>);

#[derive(Default)]
struct All {
    /// The objects, each with its package and its version.
    versions: HashMap<Id, (Arc<str>, Box<str>)>,
    /// What the lists that are under way have brought so far, by kind.
    listed: HashMap<&'static str, HashSet<Id>>,
    /// The packages with a change since they were read last.
    changed: HashSet<Arc<str>>,
}

impl Seen {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an event of a watch. Returns the packages to look at again.
    pub(super) fn on_event(&self, kind: &'static str, event: Event<Raw>) -> Vec<Arc<str>> {
        let mut all = self.all();
        let due = match event {
            Event::Init => {
                all.listed.insert(kind, HashSet::new());
                return Vec::new();
            }
            Event::InitApply(raw) => {
                let (package, (id, version)) = of_raw(kind, raw);
                all.listed.entry(kind).or_default().insert(id.clone());
                all.applied(package, &id, &version)
            }
            Event::Apply(raw) => {
                let (package, (id, version)) = of_raw(kind, raw);
                all.applied(package, &id, &version)
            }
            // An object that is not known may be one that is being read.
            Event::Delete(raw) => {
                let (package, (id, _)) = of_raw(kind, raw);
                all.versions.remove(&id).map(|(package, _)| package).or(package).into_iter().collect()
            }
            Event::InitDone => {
                let listed = all.listed.remove(kind).unwrap_or_default();
                let mut gone = Vec::new();
                all.versions.retain(|id, (package, _)| {
                    let stays = id.kind != kind || listed.contains(id);
                    if !stays {
                        gone.push(Arc::clone(package));
                    }
                    stays
                });
                gone
            }
        };
        all.changed.extend(due.iter().cloned());
        due
    }

    /// Whether somebody has changed an object of the package since this was asked last.
    pub(super) fn take(&self, package: &str) -> bool {
        self.all().changed.remove(package)
    }

    /// Replaces what is known of a package by what was read. Returns whether it differs.
    pub(super) fn read(&self, package: &str, objects: Vec<Version>) -> bool {
        let mut all = self.all();
        let of_package = |known: &(Arc<str>, Box<str>)| *known.0 == *package;
        let known = all.versions.values().filter(|known| of_package(known)).count();
        let is_same = |(id, version): &Version| {
            all.versions.get(id).is_some_and(|known| of_package(known) && known.1 == *version)
        };
        if known == objects.len() && objects.iter().all(is_same) {
            return false;
        }
        all.versions.retain(|_, known| !of_package(known));
        let package: Arc<str> = package.into();
        all.versions.extend(objects.into_iter().map(|(id, version)| (id, (Arc::clone(&package), version))));
        true
    }

    /// Records an object that the manager has written.
    pub(super) fn wrote(&self, package: &str, (id, version): Version) {
        self.all().versions.insert(id, (package.into(), version));
    }

    /// Forgets an object that the manager has deleted.
    pub(super) fn deleted(&self, (id, _): &Version) {
        self.all().versions.remove(id);
    }
}

impl All {
    fn applied(&self, package: Option<Arc<str>>, id: &Id, version: &str) -> Vec<Arc<str>> {
        let known = self.versions.get(id);
        if known.is_some_and(|(of, known)| **known == *version && package.as_ref() == Some(of)) {
            return Vec::new();
        }
        // The label may have been changed.
        let known = known.map(|(of, _)| Arc::clone(of));
        let other = package.filter(|package| known.as_ref() != Some(package));
        known.into_iter().chain(other).collect()
    }
}

/// The package of an object, if the object has a name for that package, and its version. Other names do not matter: in their own
/// namespaces, tenants may create objects with any label.
fn of_raw(kind: &'static str, raw: Raw) -> (Option<Arc<str>>, Version) {
    let meta = raw.metadata;
    let name = meta.name.unwrap_or_default();
    let is_named = |package: &String| begins_with(&role(package), &name);
    let package = meta.labels.and_then(|mut labels| labels.remove(names::OPERATOR)).filter(is_named);
    let id = Id { kind, namespace: meta.namespace.unwrap_or_default().into(), name: name.into() };
    (package.map(Into::into), (id, meta.resource_version.unwrap_or_default().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ROLE: &str = "ClusterRole";

    fn object(package: &str, name: &str, version: u32) -> Value {
        json!({"metadata": {
            "name": format!("operetta:{name}"), "resourceVersion": version.to_string(), "labels": {names::OPERATOR: package},
        }})
    }

    fn event(wrap: impl Fn(Raw) -> Event<Raw>, package: &str, name: &str, version: u32) -> Event<Raw> {
        wrap(Raw::from_value(object(package, name, version)).unwrap())
    }

    fn told(seen: &Seen, event: Event<Raw>) -> Vec<String> {
        seen.on_event(ROLE, event).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_changes_by_others_are_a_reason_to_look_again() {
        let seen = Seen::default();
        let read = |version: u32| vec![version_of("web:a", version), version_of("web:b", 1)];
        assert!(seen.read("web", read(1)));
        assert!(!seen.read("web", read(1)), "nothing has changed");
        assert_eq!(told(&seen, event(Event::Apply, "web", "web:a", 1)), [""; 0]);
        seen.wrote("web", version_of("web:a", 2));
        assert_eq!(told(&seen, event(Event::Apply, "web", "web:a", 2)), [""; 0]);
        assert!(!seen.read("web", read(2)), "what was written is known");
        assert!(!seen.take("web"));
        assert_eq!(told(&seen, event(Event::Apply, "web", "web:a", 3)), ["web"]);
        assert!(seen.take("web") && !seen.take("web"));
        assert!(seen.read("web", read(3)));
        // A new object, and one that is deleted.
        assert_eq!(told(&seen, event(Event::Apply, "other", "other:c", 1)), ["other"]);
        assert_eq!(told(&seen, event(Event::Delete, "web", "web:a", 4)), ["web"]);
        // One that is being read, and one with a name of another package.
        assert_eq!(told(&seen, event(Event::Delete, "web", "web:unknown", 5)), ["web"]);
        for wrap in [Event::Delete, Event::Apply] {
            assert_eq!(told(&seen, event(wrap, "web", "webs:a", 5)), [""; 0]);
        }
    }

    #[test]
    fn a_list_shows_what_was_deleted_while_nothing_was_watched() {
        let seen = Seen::default();
        seen.read("web", vec![version_of("web:a", 1), version_of("web:b", 1)]);
        seen.wrote("shop", (Id { kind: "Role", ..version_of("other:c", 1).0 }, "1".into()));
        assert_eq!(told(&seen, Event::Init), [""; 0]);
        assert_eq!(told(&seen, event(Event::InitApply, "web", "web:a", 1)), [""; 0]);
        assert_eq!(told(&seen, Event::InitDone), ["web"]);
        assert!(seen.take("web") && !seen.take("shop"));
        assert!(seen.read("web", vec![version_of("web:a", 1), version_of("web:b", 2)]));
        // An object that has lost its label is none any more.
        assert_eq!(told(&seen, event(Event::Apply, "shop", "web:a", 2)), ["web"]);
    }

    fn version_of(name: &str, version: u32) -> Version {
        super::version(ROLE, &object("web", name, version))
    }
}
