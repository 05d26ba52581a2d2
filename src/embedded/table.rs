//! Tables, as kubectl prints them.

use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::request::Query;

/// A table of objects.
pub(crate) fn table(kind: &Kind, objects: &[Value], query: &Query, now: &str, with_columns: bool) -> Value {
    let _ = (kind, objects, query, now, with_columns);
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": [], "rows": []})
}
