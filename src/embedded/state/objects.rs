//! Objects as programs read them.

use operetta_kube_model::facts::key;
use serde_json::Value;

use super::State;
use crate::model::versions;
use crate::world::programs::Objects;

impl Objects for State {
    fn version(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<u64> {
        // The schema of a custom resource says how it is read.
        let kind = self.kinds.named(api_version, kind).filter(|kind| kind.custom().is_none())?;
        Some(self.store.get(kind.storage(), &key(namespace, name))?.version)
    }

    fn object(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = self.kinds.named(api_version, kind)?;
        let object = self.store.get(kind.storage(), &key(namespace, name))?;
        Some(versions::parsed(kind, object).ok()?.value.clone())
    }

    fn objects(&self, api_version: &str, kind: &str, namespace: &str) -> Vec<Value> {
        let Some(kind) = self.kinds.named(api_version, kind) else { return Vec::new() };
        let prefix = if namespace.is_empty() { String::new() } else { key(namespace, "") };
        let objects = self.store.range(kind.storage(), &prefix, None);
        objects.filter_map(|(_, object)| Some(versions::parsed(kind, object).ok()?.value.clone())).collect()
    }
}
