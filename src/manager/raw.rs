//! An object of any kind as watches bring it: typed metadata beside the plain JSON.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use crate::children::{Observed, Paths, Seen};

/// How deep an object may be nested. The parser gives up at 128, and with the object goes the whole list or
/// watch that it is in: then one such instance would stop all of its kind.
pub(super) const DEPTH: usize = 100;

/// The object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Raw {
    /// Its metadata, managedFields included.
    pub metadata: ObjectMeta,
    /// All of it but managedFields.
    pub body: Value,
    /// Whether it was nested deeper than [`DEPTH`]; what lies below is missing.
    pub is_cut: bool,
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
        Ok(Self { metadata, body, is_cut: false })
    }

    /// Whether we have applied it, not only its labels say so; see [`Observed::is_made_by_us`].
    pub(crate) fn is_applied(&self) -> bool {
        self.metadata.managed_fields.iter().flatten().any(|entry| {
            let ours = entry.manager.as_deref().is_some_and(|manager| manager.starts_with("operetta/"));
            ours && entry.operation.as_deref() == Some("Apply")
        })
    }

    /// As a child of ours, if it is one.
    pub(super) fn observe(
        &self,
        api_version: &Arc<str>,
        kind: &Arc<str>,
        reports: bool,
        reads: impl Fn(&str, &str) -> Paths,
    ) -> Option<Observed> {
        Seen { api_version, kind, metadata: &self.metadata, body: Some(&self.body), reports }.observe(reads)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut is_cut = false;
        let body = Shallow { left: DEPTH, is_cut: &mut is_cut }.deserialize(deserializer)?;
        let raw = Self::from_value(body).map_err(D::Error::custom)?;
        Ok(Self { is_cut, ..raw })
    }
}

/// Reads a value down to a depth, and skips what lies below.
struct Shallow<'a> {
    left: usize,
    is_cut: &'a mut bool,
}

impl<'de> DeserializeSeed<'de> for Shallow<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.left == 0 {
            *self.is_cut = true;
            // Skipping does not recurse.
            IgnoredAny::deserialize(deserializer)?;
            return Ok(Value::Null);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Shallow<'_> {
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
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
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

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) =
            items.next_element_seed(Shallow { left: self.left - 1, is_cut: &mut *self.is_cut })?
        {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value =
                entries.next_value_seed(Shallow { left: self.left - 1, is_cut: &mut *self.is_cut })?;
            map.insert(key, value);
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

    #[test]
    fn one_deep_object_does_not_spoil_the_list() {
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
        assert_eq!(list.iter().map(|raw| raw.is_cut).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(list[1].body, serde_json::from_str::<Value>(&deep(90)).unwrap());
        assert_eq!(list[2].metadata.name.as_deref(), Some("x"));
    }
}
