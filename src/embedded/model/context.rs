//! A request about objects of a kind.

use std::sync::Arc;

use jiff::Timestamp;
use operetta_kube_model::facts::{key, time};
use serde_json::Value;

use super::{Kind, Query, Request, Route};

/// A request about objects.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) kind: Arc<Kind>,
    pub(crate) route: Route,
    pub(crate) query: Query,
    pub(crate) request: &'a Request<'a>,
    pub(crate) now: String,
    /// The exact time.
    pub(crate) at: Timestamp,
    pub(crate) warnings: Vec<String>,
    /// The body, if a controller has sent it as a value.
    pub(crate) given: Option<Value>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        kind: Arc<Kind>,
        route: Route,
        query: Query,
        request: &'a Request<'a>,
        at: Timestamp,
    ) -> Self {
        Self { kind, route, query, request, now: time(at), at, warnings: Vec::new(), given: None }
    }

    pub(crate) fn namespace(&self) -> &str {
        self.route.namespace.as_deref().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.route.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn subresource(&self) -> &str {
        self.route.subresource.as_deref().unwrap_or_default()
    }

    /// The key of the object in the store.
    pub(crate) fn key(&self) -> String {
        key(self.namespace(), self.name())
    }
}
