//! An object of any kind as a watch delivers it: typed metadata and plain JSON.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope, PartialObjectMeta};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use crate::api::Gvk;
use crate::children::{MAX_FIELD_BYTES, Observed, Paths, RawObject};
use crate::template::{JSON_VALUE_BYTES, json_entry_bytes};

/// How deep an object may be nested. The parser fails at 128, and with it the whole list or watch: one such instance would
/// stop all instances of its kind.
pub(super) const DEPTH: usize = 100;

/// An object of any kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Raw {
    /// Its metadata, managedFields included.
    pub metadata: ObjectMeta,
    /// The whole object without managedFields.
    pub body: Value,
    /// Why a part of it was not read.
    pub cut: Option<Cut>,
}

/// Why part of an object was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It is nested deeper than [`DEPTH`]; deeper values are null.
    Deep,
    /// A field takes [`MAX_FIELD_BYTES`] or more; that field is null.
    Large,
}

impl Cut {
    /// The reason of the condition, and what its message says of the object.
    pub(super) fn reason(self) -> (&'static str, String) {
        match self {
            Self::Deep => ("NestedTooDeep", format!("nested more than {DEPTH} levels deep")),
            Self::Large => {
                let most = MAX_FIELD_BYTES >> 20;
                (
                    "TooManyValues",
                    format!("a field holds so many values that they take more than {most} MiB of memory"),
                )
            }
        }
    }
}

impl Raw {
    /// From a reply of the API server.
    pub(crate) fn from_value(mut body: Value) -> Result<Self, serde_json::Error> {
        let metadata = match body.get("metadata") {
            Some(metadata) => ObjectMeta::deserialize(metadata)?,
            None => ObjectMeta::default(),
        };
        if let Some(map) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            map.remove("managedFields");
        }
        Ok(Self { metadata, body, cut: None })
    }

    /// The object, managedFields included.
    pub(crate) fn whole(self) -> Value {
        let mut body = self.body;
        // They came as JSON: they can be written as JSON.
        if let Some(entries) = self.metadata.managed_fields.and_then(|all| serde_json::to_value(all).ok()) {
            body["metadata"]["managedFields"] = entries;
        }
        body
    }

    /// Whether we have applied it. Labels alone do not show that; see [`Observed::is_made_by_us`].
    pub(crate) fn is_applied(&self) -> bool {
        self.metadata.managed_fields.iter().flatten().any(|entry| {
            let ours = entry.manager.as_deref().is_some_and(|manager| manager.starts_with("operetta/"));
            ours && entry.operation.as_deref() == Some("Apply")
        })
    }

    /// An object of which only the metadata was requested.
    pub(super) fn of_metadata(partial: PartialObjectMeta<Self>) -> Self {
        Self { metadata: partial.metadata, ..Self::default() }
    }

    /// The object as a child, if it is one.
    pub(crate) fn observe(
        &self,
        gvk: &Gvk,
        reports: bool,
        reads: impl Fn(&str, &str) -> Paths,
    ) -> Option<Observed> {
        RawObject { gvk, metadata: &self.metadata, body: Some(&self.body), reports }.observe(reads)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut reading = Reading { left: MAX_FIELD_BYTES, cut: None };
        let body = Bounded { depth: DEPTH, reading: &mut reading }.deserialize(deserializer)?;
        let raw = Self::from_value(body).map_err(D::Error::custom)?;
        Ok(Self { cut: reading.cut, ..raw })
    }
}

/// The progress of reading an object.
struct Reading {
    /// The bytes that the current field may still take.
    left: usize,
    cut: Option<Cut>,
}

impl Reading {
    fn take(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }
}

/// Reads a value down to a depth and up to a size, and skips the rest.
struct Bounded<'a> {
    depth: usize,
    reading: &'a mut Reading,
}

impl Bounded<'_> {
    fn child(&mut self) -> Bounded<'_> {
        Bounded { depth: self.depth - 1, reading: self.reading }
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.depth == 0 || self.reading.left == 0 {
            self.reading.cut = Some(if self.depth == 0 { Cut::Deep } else { Cut::Large });
            // Skipping does not recurse.
            IgnoredAny::deserialize(deserializer)?;
            return Ok(Value::Null);
        }
        self.reading.take(JSON_VALUE_BYTES);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        self.reading.take(value.len());
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        self.reading.take(value.len());
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.child())? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let is_object = self.depth == DEPTH;
        while let Some(key) = entries.next_key::<String>()? {
            self.reading.take(json_entry_bytes(map.len(), &key));
            // The server limits metadata, and an object without it is useless.
            if is_object {
                self.reading.left = if key == "metadata" { usize::MAX } else { MAX_FIELD_BYTES };
            }
            let value = entries.next_value_seed(self.child())?;
            if is_object && self.reading.left == 0 {
                self.reading.cut = Some(Cut::Large);
                map.insert(key, Value::Null);
            } else {
                map.insert(key, value);
            }
        }
        Ok(Value::Object(map))
    }
}

impl Resource for Raw {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(dt: &ApiResource) -> Cow<'_, str> {
        dt.kind.as_str().into()
    }

    fn group(dt: &ApiResource) -> Cow<'_, str> {
        dt.group.as_str().into()
    }

    fn version(dt: &ApiResource) -> Cow<'_, str> {
        dt.version.as_str().into()
    }

    fn api_version(dt: &ApiResource) -> Cow<'_, str> {
        dt.api_version.as_str().into()
    }

    fn plural(dt: &ApiResource) -> Cow<'_, str> {
        dt.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::json_bytes;

    #[test]
    fn one_deep_object_does_not_fail_the_list() {
        let deep = |depth: usize| {
            format!(
                r#"{{"metadata":{{"name":"x"}},"spec":{}1{}}}"#,
                r#"{"a":"#.repeat(depth),
                "}".repeat(depth)
            )
        };
        let flat = r#"{"metadata":{"name":"y"},"spec":[null,true,-1,18446744073709551615,1.5,"s",{}]}"#;
        let list = format!("[{flat},{},{}]", deep(90), deep(10_000));
        let list: Vec<Raw> = serde_json::from_str(&list).unwrap();
        assert_eq!(list[0].body, serde_json::from_str::<Value>(flat).unwrap());
        assert_eq!(list.iter().map(|raw| raw.cut).collect::<Vec<_>>(), [None, None, Some(Cut::Deep)]);
        assert_eq!(list[1].body, serde_json::from_str::<Value>(&deep(90)).unwrap());
        assert_eq!(list[2].metadata.name.as_deref(), Some("x"));
    }

    #[test]
    fn a_field_of_many_values_is_dropped_and_the_others_are_kept() {
        let object =
            |spec: &str| format!(r#"{{"metadata":{{"name":"x"}},"spec":{spec},"status":{{"a":1}}}}"#);
        let of = |spec: &str| -> Raw { serde_json::from_str(&object(spec)).unwrap() };
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        for (spec, is_whole) in [
            (list("0", MAX_FIELD_BYTES / JSON_VALUE_BYTES - 2), true),
            (list("0", MAX_FIELD_BYTES / JSON_VALUE_BYTES - 1), false),
            (list(r#"{"a":1}"#, 5_000), true),
            (list(r#"{"a":1}"#, 10_000), false),
            (format!("\"{}\"", "x".repeat(1 << 20)), true),
        ] {
            let raw = of(&spec);
            assert_eq!((raw.cut, raw.body["spec"].is_null()), ((!is_whole).then_some(Cut::Large), !is_whole));
            // `render` measures the parsed value.
            let value: Value = serde_json::from_str(&spec).unwrap();
            assert_eq!(json_bytes(&value) < MAX_FIELD_BYTES, is_whole);
            assert_eq!(
                (raw.metadata.name.as_deref(), raw.body["status"]["a"].as_i64()),
                (Some("x"), Some(1))
            );
        }
    }
}
