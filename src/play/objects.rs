//! The objects of a play as expectations and invariants read them: an object is read again only when it has changed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use operetta_embedded::{Api, Stamp};
use serde_json::Value;

use crate::readiness;
use crate::template::Live;

/// The objects of a kind by `NAMESPACE/NAME`, with their versions.
pub(super) type OfKind = BTreeMap<String, (u64, Live)>;

/// What objects are read from.
pub(super) trait Source {
    /// When the objects of a kind have changed last.
    fn stamp(&self, api_version: &str, kind: &str) -> Stamp;

    /// The versions of the objects of a kind, by `NAMESPACE/NAME`.
    fn versions(&self, api_version: &str, kind: &str) -> Vec<(String, u64)>;

    /// The object; `None` if there is none.
    fn object(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value>;
}

impl Source for Api {
    fn stamp(&self, api_version: &str, kind: &str) -> Stamp {
        Api::stamp(self, api_version, kind)
    }

    fn versions(&self, api_version: &str, kind: &str) -> Vec<(String, u64)> {
        Api::versions(self, api_version, kind).map(|(key, version)| (key.to_owned(), version)).collect()
    }

    fn object(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.objects().object(api_version, kind, namespace, name)
    }
}

/// Objects that were read.
#[derive(Debug, Default)]
pub(super) struct Cache {
    kinds: HashMap<(String, String), Kind>,
    /// How often something has changed.
    changes: u64,
}

#[derive(Debug, Default)]
struct Kind {
    stamp: Stamp,
    objects: Arc<OfKind>,
}

impl Cache {
    /// Reads again what has changed. Returns a number that is the same as long as nothing has that was read.
    pub(super) fn refresh(&mut self, api: &dyn Source) -> u64 {
        for ((api_version, kind), known) in &mut self.kinds {
            self.changes += u64::from(known.refresh(api, api_version, kind));
        }
        self.changes
    }

    /// Notes that something else has changed by which objects are read.
    pub(super) fn note_change(&mut self) {
        self.changes += 1;
    }

    /// The objects of a kind.
    pub(super) fn of(&mut self, api: &dyn Source, api_version: &str, kind: &str) -> Arc<OfKind> {
        let known = self.kinds.entry((api_version.to_owned(), kind.to_owned())).or_default();
        self.changes += u64::from(known.refresh(api, api_version, kind));
        Arc::clone(&known.objects)
    }
}

impl Kind {
    /// Returns whether something has changed.
    fn refresh(&mut self, api: &dyn Source, api_version: &str, kind: &str) -> bool {
        let stamp = api.stamp(api_version, kind);
        if self.stamp == stamp {
            return false;
        }
        let is_read = self.stamp.definition == stamp.definition;
        let before = std::mem::take(&mut self.objects);
        let mut objects = OfKind::new();
        for (key, version) in api.versions(api_version, kind) {
            let same = before.get(&key).filter(|(known, _)| is_read && *known == version).cloned();
            let read = || {
                let (namespace, name) = key.split_once('/')?;
                let value = api.object(api_version, kind, namespace, name)?;
                let ready = readiness::of(&value).is_ready();
                Some((version, Live { value: Arc::new(value), ready, current: true, kept: false }))
            };
            if let Some(object) = same.or_else(read) {
                objects.insert(key, object);
            }
        }
        (self.stamp, self.objects) = (stamp, Arc::new(objects));
        true
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use operetta_embedded::{Request, User};

    use super::*;

    fn put(api: &mut Api, name: &str, value: &str) {
        let text = format!(
            r#"{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "{name}"}}, "data": {{"a": "{value}"}}}}"#
        );
        let request = Request {
            method: "PATCH",
            uri: &format!("/api/v1/namespaces/default/configmaps/{name}?fieldManager=test"),
            content_type: "application/apply-patch+yaml",
            accept: "",
            user_agent: "",
            user: &User::default(),
            body: text.as_bytes(),
        };
        assert!(api.handle(&request, Timestamp::UNIX_EPOCH).code < 300);
    }

    #[test]
    fn only_what_has_changed_is_read_again() {
        let (mut api, mut cache) = (Api::bare(Timestamp::UNIX_EPOCH), Cache::default());
        let mut read = |api: &Api| {
            let objects = cache.of(api, "v1", "ConfigMap");
            (cache.refresh(api), objects)
        };
        put(&mut api, "a", "1");
        put(&mut api, "b", "1");
        let (number, before) = read(&api);
        assert!(before.contains_key("default/a") && before.contains_key("default/b"));
        assert_eq!(read(&api).0, number);
        put(&mut api, "b", "2");
        let (later, after) = read(&api);
        assert_ne!(later, number);
        let is_same = |name: &str| Arc::ptr_eq(&before[name].1.value, &after[name].1.value);
        assert!(is_same("default/a") && !is_same("default/b"));
        assert_eq!(after["default/b"].1.value["data"]["a"], "2");
    }
}
