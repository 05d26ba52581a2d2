//! The entries of `managedFields`.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::key::quote;
use super::set::FieldSet;

/// The field of the metadata.
pub const MANAGED: &str = "managedFields";

/// The fields of the metadata that nobody owns.
pub const UNOWNED: [&str; 8] =
    ["name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", MANAGED, "resourceVersion"];

/// Who writes: the identity of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The name of the manager.
    pub manager: String,
    /// Whether it applies. Other writes are updates.
    pub is_apply: bool,
    /// The `apiVersion` in which it writes.
    pub version: String,
    /// The subresource to which it writes; empty for the object itself.
    pub subresource: String,
}

impl Owner {
    /// Reads the owner of an entry; `None` if it is invalid.
    pub fn parse(entry: &Value) -> Option<Self> {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let is_apply = match entry["operation"].as_str() {
            Some("Apply") => true,
            Some("Update") => false,
            _ => return None,
        };
        Some(Self {
            manager: text("manager"),
            is_apply,
            version: text("apiVersion"),
            subresource: text("subresource"),
        })
    }

    /// Whether an entry of `other` is this owner's. The version does not matter for applies.
    pub fn is(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.is_apply == other.is_apply
            && self.subresource == other.subresource
            && (self.is_apply || self.version == other.version)
    }

    /// Whether this is what `manager` applies to objects themselves.
    pub fn is_apply_of(&self, manager: &str) -> bool {
        self.is_apply && self.subresource.is_empty() && self.manager == manager
    }

    /// Whether this is a plain write to objects themselves.
    pub fn is_update(&self) -> bool {
        !self.is_apply && self.subresource.is_empty()
    }
}

/// The fields of an entry with their text, which most writes do not change.
#[derive(Debug)]
pub struct Fields {
    set: FieldSet,
    text: OnceLock<String>,
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.set == other.set
    }
}

// So that two references to the same fields are compared at once.
impl Eq for Fields {}

impl From<FieldSet> for Arc<Fields> {
    fn from(set: FieldSet) -> Self {
        Self::new(Fields { set, text: OnceLock::new() })
    }
}

impl Fields {
    fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let mut text = String::new();
            self.set.write(&mut text);
            text
        })
    }
}

/// An entry of `managedFields`.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Who owns the fields.
    pub owner: Arc<Owner>,
    /// When the owner has written last.
    pub time: Option<String>,
    /// The fields.
    pub fields: Arc<Fields>,
}

impl Entry {
    /// Reads an entry; `None` if it is invalid.
    pub fn parse(entry: &Value) -> Option<Self> {
        let owner = Owner::parse(entry)?;
        if entry["fieldsType"] != "FieldsV1" && !entry["fieldsType"].is_null() {
            return None;
        }
        let fields = &entry["fieldsV1"];
        let set = if fields.is_null() { FieldSet::default() } else { FieldSet::parse(fields)? };
        let time = entry["time"].as_str().map(str::to_owned);
        Some(Self { owner: owner.into(), time, fields: set.into() })
    }

    /// The fields.
    pub fn set(&self) -> &FieldSet {
        &self.fields.set
    }

    /// Adds fields.
    pub fn add(&mut self, more: &FieldSet) {
        if !more.is_subset(self.set()) {
            self.fields = self.set().union(more).into();
        }
    }

    /// Removes fields.
    pub fn subtract(&mut self, gone: &FieldSet) {
        if self.set().intersects(gone) {
            self.fields = self.set().difference(gone).into();
        }
    }

    /// By what entries are sorted.
    fn order(&self) -> (bool, Option<&str>, &str, &str, &str) {
        let Owner { manager, is_apply, version, subresource } = &*self.owner;
        (!is_apply, self.time.as_deref(), manager, version, subresource)
    }
}

/// The entries of an object or its metadata that can be read.
pub fn entries(object_or_metadata: &Value) -> impl Iterator<Item = Entry> {
    let metadata = object_or_metadata.get("metadata").unwrap_or(object_or_metadata);
    metadata[MANAGED].as_array().into_iter().flatten().filter_map(Entry::parse)
}

/// Reads `managedFields`; `None` if an entry is invalid.
pub fn read(managed_fields: &Value) -> Option<Vec<Entry>> {
    managed_fields.as_array().into_iter().flatten().map(Entry::parse).collect()
}

/// Sorts entries as the API server stores them.
pub fn sort(entries: &mut [Entry]) {
    entries.sort_by(|a, b| a.order().cmp(&b.order()));
}

/// Writes `managedFields`.
pub fn write(entries: &[Entry], out: &mut String) {
    out.push('[');
    for (at, entry) in entries.iter().enumerate() {
        out.push_str(if at > 0 { ",{" } else { "{" });
        let mut put = |key: &str, value: &str| {
            if !value.is_empty() {
                out.extend(["\"", key, "\":"]);
                if key == "fieldsV1" {
                    out.push_str(value);
                } else {
                    quote(value, out);
                }
                out.push(',');
            }
        };
        put("apiVersion", &entry.owner.version);
        put("fieldsType", "FieldsV1");
        put("fieldsV1", entry.fields.text());
        put("manager", &entry.owner.manager);
        put("operation", if entry.owner.is_apply { "Apply" } else { "Update" });
        put("subresource", &entry.owner.subresource);
        put("time", entry.time.as_deref().unwrap_or_default());
        out.pop();
        out.push('}');
    }
    out.push(']');
}

/// The value of `managedFields`.
pub fn to_value(entries: &[Entry]) -> Value {
    let mut text = String::new();
    write(entries, &mut text);
    serde_json::from_str(&text).unwrap_or_default()
}
