//! Which objects of stored revisions this process knows, and which of them others have changed or deleted since.

use std::collections::{BTreeMap, HashMap, HashSet};

use kube::runtime::watcher::Event;

use crate::api::Gvk;
use crate::manager::raw::Raw;
use crate::package::store::objects;

/// The `resourceVersion`s of the `OperatorRevision` of that name and of its parts, by name.
pub(super) type Versions = BTreeMap<String, String>;

#[derive(Default)]
pub(super) struct KnownObjects {
    /// The objects of each revision, by its name, as this process read or wrote them last.
    stored: HashMap<String, Versions>,
    /// The revisions with an object that differs from what is known.
    changed: HashSet<String>,
    /// The names that a list has brought so far, by kind.
    listed: HashMap<Gvk, HashSet<String>>,
}

impl KnownObjects {
    /// Whether the revision has been read or written.
    pub(super) fn has(&self, revision: &str) -> bool {
        self.stored.contains_key(revision)
    }

    /// Records that a revision is stored, with these objects.
    pub(super) fn set(&mut self, revision: String, objects: Versions) {
        self.stored.insert(revision, objects);
    }

    /// Whether an object of the revision differs from what is known.
    pub(super) fn has_changed(&self, revision: &str) -> bool {
        self.changed.contains(revision)
    }

    /// Sets whether the revision counts as changed.
    pub(super) fn set_changed(&mut self, revision: &str, has_changed: bool) {
        if has_changed {
            self.changed.insert(revision.to_owned());
        } else {
            self.changed.remove(revision);
        }
    }

    /// Takes in an event of a watch of `OperatorRevision`s or of their parts. Returns the packages with a changed revision.
    pub(super) fn on_event(&mut self, kind: &Gvk, event: &Event<Raw>) -> Vec<String> {
        let (name, version) = match event {
            Event::Init => {
                self.listed.insert(kind.clone(), HashSet::new());
                return Vec::new();
            }
            Event::InitDone => return self.missing(kind),
            Event::InitApply(raw) | Event::Apply(raw) => {
                (&raw.metadata.name, raw.metadata.resource_version.as_deref())
            }
            Event::Delete(raw) => (&raw.metadata.name, None),
        };
        let name = name.as_deref().unwrap_or_default();
        if let (Event::InitApply(_), Some(listed)) = (event, self.listed.get_mut(kind)) {
            listed.insert(name.to_owned());
        }
        let differs = |objects: &Versions| {
            objects.get(name).is_some_and(|known| version.is_none_or(|version| known != version))
        };
        let changed = self.stored.iter().filter(|(_, objects)| differs(objects));
        let changed: Vec<String> = changed.map(|(revision, _)| revision.clone()).collect();
        self.note(changed)
    }

    /// Ends the list of a kind: objects that it lacks were deleted.
    fn missing(&mut self, kind: &Gvk) -> Vec<String> {
        let listed = self.listed.remove(kind).unwrap_or_default();
        let is_revision = *kind == objects::kind().gvk();
        let lacks = |(revision, objects): &(&String, &Versions)| {
            objects.keys().any(|name| (name == *revision) == is_revision && !listed.contains(name))
        };
        let changed = self.stored.iter().filter(lacks).map(|(revision, _)| revision.clone()).collect();
        self.note(changed)
    }

    fn note(&mut self, changed: Vec<String>) -> Vec<String> {
        let package = |revision: &String| revision.rsplit_once('-').map(|(package, _)| package.to_owned());
        let packages = changed.iter().filter_map(package).collect();
        self.changed.extend(changed);
        packages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_that_others_change_or_delete_are_noticed() {
        let raw = |name: &str, version: &str| {
            let meta = json!({"metadata": {"name": name, "resourceVersion": version}});
            Raw::of_metadata(serde_json::from_value(meta).unwrap())
        };
        let (revisions, parts) = (objects::kind().gvk(), Gvk::new("v1", "ConfigMap"));
        let mut known = KnownObjects::default();
        let versions =
            [("web-1", "1"), ("web-1-0", "2")].map(|(name, version)| (name.into(), version.into()));
        known.set("web-1".into(), versions.into());
        for event in [Event::Apply(raw("web-1-0", "2")), Event::Apply(raw("web-2-0", "9"))] {
            assert!(known.on_event(&parts, &event).is_empty() && !known.has_changed("web-1"));
        }
        for (kind, event) in [
            (&parts, Event::Apply(raw("web-1-0", "3"))),
            (&parts, Event::Delete(raw("web-1-0", "2"))),
            (&revisions, Event::Delete(raw("web-1", "1"))),
        ] {
            assert_eq!(known.on_event(kind, &event), ["web"]);
            assert!(known.has_changed("web-1"));
            known.set_changed("web-1", false);
        }
        // A watch that begins anew may have missed a deletion.
        for (kind, name, version) in [(&revisions, "web-1", "1"), (&parts, "web-1-0", "2")] {
            known.on_event(kind, &Event::Init);
            known.on_event(kind, &Event::InitApply(raw(name, version)));
            assert!(known.on_event(kind, &Event::InitDone).is_empty());
            known.on_event(kind, &Event::Init);
            assert_eq!(known.on_event(kind, &Event::InitDone), ["web"]);
        }
    }
}
