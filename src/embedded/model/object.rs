//! Stored objects: JSON text, and the trees of those that were written last.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use operetta_kube_model::fields::{MANAGED, quote};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::fields::Managed;

/// A stored object.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) version: u64,
    pub(crate) json: Box<str>,
    pub(crate) uid: Box<str>,
    pub(crate) labels: Box<[(Box<str>, Box<str>)]>,
    /// The uids of its owners.
    pub(crate) owners: Box<[Box<str>]>,
    pub(crate) is_deleting: bool,
    parsed: Mutex<Option<Arc<Parsed>>>,
    /// Whether copies of the store have it, too. Then its tree is not forgotten: the others still read it.
    is_shared: AtomicBool,
}

/// An object as a tree without `managedFields`, and those.
#[derive(Debug, Clone)]
pub(crate) struct Parsed {
    pub(crate) value: Value,
    pub(crate) managed: Managed,
}

impl Parsed {
    pub(crate) fn of(mut value: Value) -> Self {
        let managed = Managed::take(&mut value).unwrap_or_default();
        Self { value, managed }
    }

    /// The object as a whole.
    pub(crate) fn whole(&self) -> Value {
        let mut value = self.value.clone();
        self.managed.put(&mut value);
        value
    }

    fn print(&self) -> String {
        let (Some(map), false) = (self.value.as_object(), self.managed.is_empty()) else {
            return printed(&self.value);
        };
        let mut out = String::from("{");
        for (at, (name, value)) in map.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            out.push_str(comma);
            quote(name, &mut out);
            out.push(':');
            match value.as_object().filter(|_| name == "metadata") {
                Some(meta) => self.print_meta(meta, &mut out),
                None => out.push_str(&printed(value)),
            }
        }
        out + "}"
    }

    fn print_meta(&self, meta: &Map<String, Value>, out: &mut String) {
        out.push('{');
        // In the order of their names, as all fields.
        let split = meta.iter().partition::<Vec<_>, _>(|(name, _)| name.as_str() < MANAGED);
        let put = |fields: Vec<(&String, &Value)>, out: &mut String| {
            for (name, value) in fields {
                quote(name, out);
                out.push(':');
                out.push_str(&printed(value));
                out.push(',');
            }
        };
        put(split.0, out);
        out.extend(["\"", MANAGED, "\":"]);
        self.managed.write(out);
        out.push(',');
        put(split.1, out);
        out.pop();
        out.push('}');
    }
}

/// A value as JSON.
pub(crate) fn printed(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl Object {
    /// The object of a version, which is written into it.
    pub(crate) fn new(version: u64, mut parsed: Parsed) -> Self {
        parsed.value["metadata"]["resourceVersion"] = version.to_string().into();
        let meta = &parsed.value["metadata"];
        let labels = meta["labels"].as_object().into_iter().flatten();
        let owners = meta["ownerReferences"].as_array().into_iter().flatten();
        Self {
            version,
            json: parsed.print().into(),
            uid: meta["uid"].as_str().unwrap_or_default().into(),
            labels: labels
                .map(|(key, value)| (key.as_str().into(), value.as_str().unwrap_or_default().into()))
                .collect(),
            owners: owners.filter_map(|owner| owner["uid"].as_str()).map(Into::into).collect(),
            is_deleting: meta["deletionTimestamp"].is_string(),
            parsed: Mutex::new(Some(Arc::new(parsed))),
            is_shared: AtomicBool::new(false),
        }
    }

    /// The object as a tree.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }

    /// The fields of the object as texts.
    pub(crate) fn fields(&self) -> Option<BTreeMap<&str, &RawValue>> {
        serde_json::from_str(&self.json).ok()
    }

    fn known(&self) -> MutexGuard<'_, Option<Arc<Parsed>>> {
        self.parsed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets copies of the store have it, too.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// Keeps only the text.
    pub(crate) fn forget(&self) {
        if !self.is_shared.load(Ordering::Relaxed) {
            self.known().take();
        }
    }

    /// The object and its managers.
    pub(crate) fn parsed(&self) -> Arc<Parsed> {
        let known = self.known().clone();
        known.unwrap_or_else(|| Arc::new(Parsed::of(self.value())))
    }

    /// The object as a tree without its managers.
    pub(crate) fn bare(&self) -> Value {
        let known = self.known().clone();
        if let Some(known) = known {
            return known.value.clone();
        }
        let mut value = self.value();
        Managed::remove(&mut value);
        value
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| &**known == key).map(|(_, value)| &**value)
    }
}
