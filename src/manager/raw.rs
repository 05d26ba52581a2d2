//! An object of any kind as watches bring it: typed metadata beside the plain JSON.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::Value;

use crate::children::{Observed, Paths, Seen};

/// The object.
#[derive(Debug, Clone, Default)]
pub(super) struct Raw {
    /// Its metadata, managedFields included.
    pub metadata: ObjectMeta,
    /// All of it but managedFields.
    pub body: Value,
}

impl Raw {
    /// From a reply of the API server.
    pub(super) fn from_value(mut body: Value) -> Result<Self, serde_json::Error> {
        let metadata = match body.get("metadata") {
            Some(metadata) => ObjectMeta::deserialize(metadata)?,
            None => ObjectMeta::default(),
        };
        if let Some(map) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            map.remove("managedFields");
        }
        Ok(Self { metadata, body })
    }

    /// As a child of ours, if it is one.
    pub(super) fn observe(
        &self,
        api_version: &Arc<str>,
        kind: &Arc<str>,
        reads: impl Fn(&str, &str) -> Paths,
    ) -> Option<Observed> {
        Seen { api_version, kind, metadata: &self.metadata, body: Some(&self.body) }.observe(reads)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(D::Error::custom)
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
