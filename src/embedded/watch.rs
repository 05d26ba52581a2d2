//! Watches: a place in the history, and which of its events are asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{Api, Context, key};
use crate::kinds::Kind;
use crate::read::Form;
use crate::request::Query;
use crate::selector::Selector;
use crate::status::{Failure, Fault, Outcome};
use crate::store::{Change, Object};
use crate::{meta, table, versions};

/// Seconds between two bookmarks.
const BOOKMARKS: i64 = 60;

/// An open watch. [`Api::events`] returns what happened since it was asked last.
#[derive(Debug)]
pub struct Watch {
    kind: Arc<Kind>,
    prefix: String,
    name: Option<String>,
    selector: Selector,
    form: Form,
    query: Query,
    has_bookmarks: bool,
    /// The version of the last event that was considered.
    version: u64,
    first: VecDeque<Value>,
    next_bookmark: Timestamp,
    ends: Option<Timestamp>,
    is_over: bool,
    has_columns: bool,
}

impl Watch {
    pub(crate) fn open(api: &Api, context: &Context<'_>) -> Outcome<Self> {
        let query = context.query.clone();
        let kind = context.kind.clone();
        let selector = Selector::parse(
            &kind,
            query.get("labelSelector").unwrap_or_default(),
            query.get("fieldSelector").unwrap_or_default(),
        )?;
        let initial = query.flag("sendInitialEvents");
        if query.has("sendInitialEvents") && query.get("resourceVersionMatch") != Some("NotOlderThan") {
            let fault = Fault::forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
            return Err(Failure::invalid("meta.k8s.io", "ListOptions", "", &[fault]));
        }
        let now: Timestamp = context.now.parse().unwrap_or_default();
        let seconds = |text: &str| text.parse().ok().filter(|seconds| *seconds > 0);
        let ends = query.get("timeoutSeconds").and_then(seconds).map(|seconds| after(now, seconds));
        let mut watch = Self {
            prefix: context
                .route
                .namespace
                .as_deref()
                .map(|namespace| key(namespace, ""))
                .unwrap_or_default(),
            name: context.route.name.clone(),
            form: Form::of(context.request.accept),
            has_bookmarks: query.flag("allowWatchBookmarks"),
            version: 0,
            first: VecDeque::new(),
            next_bookmark: after(now, BOOKMARKS),
            ends,
            is_over: false,
            has_columns: false,
            kind,
            selector,
            query,
        };
        let given: u64 = watch.query.get("resourceVersion").unwrap_or("0").parse().map_err(|_| {
            let text = watch.query.get("resourceVersion").unwrap_or_default();
            let why = format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax");
            Failure::plain(500, why)
        })?;
        if initial || given == 0 {
            watch.version = api.store.version();
            let storage = watch.kind.storage();
            let prefix = watch.prefix.clone();
            for (key, object) in api.store.range(&storage, &prefix, None) {
                if watch.wants(key, object) {
                    let event = watch.event("ADDED", object, &context.now);
                    watch.first.push_back(event);
                }
            }
            if initial && watch.has_bookmarks {
                let mut bookmark = watch.bookmark();
                bookmark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
                watch.first.push_back(bookmark);
            }
        } else if api.store.since(given).is_none() {
            // The connection is opened, and its only event is the error.
            watch.is_over = true;
            watch.first.push_back(json!({"type": "ERROR", "object": too_old(given).to_json()}));
        } else {
            watch.version = given;
        }
        Ok(watch)
    }

    /// When it has an event or an end although nothing changes.
    pub fn due(&self) -> Option<Timestamp> {
        let bookmark = self.has_bookmarks.then_some(self.next_bookmark);
        bookmark.into_iter().chain(self.ends).min()
    }

    fn wants(&self, key: &str, object: &Object) -> bool {
        key.starts_with(&self.prefix)
            && self.name.as_deref().is_none_or(|name| key.split_once('/').is_some_and(|(_, n)| n == name))
            && self.selector.matches(key, object)
    }

    fn event(&mut self, kind: &str, object: &Object, now: &str) -> Value {
        let value = match versions::read(&self.kind, object) {
            Ok(value) => value,
            Err(failure) => return json!({"type": "ERROR", "object": failure.to_json()}),
        };
        let object = match self.form {
            Form::Whole => value,
            Form::Metadata => meta::partial(&value),
            Form::Table => {
                let with_columns = !std::mem::replace(&mut self.has_columns, true);
                let version = value["metadata"]["resourceVersion"].clone();
                let mut table = table::table(&self.kind, &[value], &self.query, now, with_columns);
                table["metadata"] = json!({"resourceVersion": version});
                table
            }
        };
        json!({"type": kind, "object": object})
    }

    fn bookmark(&self) -> Value {
        let (version, kind) = (self.version.to_string(), &self.kind);
        let mut object = json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": {"resourceVersion": version}});
        if kind.custom().is_none() {
            object["metadata"]["creationTimestamp"] = Value::Null;
            crate::decode::decode(kind.typed(), &mut object).ok();
            if ["deployments", "statefulsets", "replicasets", "replicationcontrollers"]
                .contains(&&*kind.plural)
            {
                object["spec"]["replicas"] = 0.into();
            }
        }
        json!({"type": "BOOKMARK", "object": object})
    }
}

fn after(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now)
}

fn too_old(version: u64) -> Box<Failure> {
    Failure::expired(format!("too old resource version: {version}"))
}

impl Api {
    /// The events of a watch that were not returned yet, as JSON. `None` once it has ended.
    pub fn events(&self, watch: &mut Watch, now: Timestamp) -> Option<Vec<String>> {
        let mut events: Vec<Value> = watch.first.drain(..).collect();
        if watch.is_over {
            return (!events.is_empty()).then(|| events.iter().map(Value::to_string).collect());
        }
        let text = crate::api::time(now);
        match self.store.since(watch.version) {
            None => {
                watch.is_over = true;
                events.push(json!({"type": "ERROR", "object": too_old(watch.version).to_json()}));
            }
            Some(history) => {
                let resource = watch.kind.storage();
                for event in history {
                    watch.version = event.version;
                    if *event.resource != *resource {
                        continue;
                    }
                    let old = event.old.as_ref().is_some_and(|old| watch.wants(&event.key, old));
                    let new = event.change != Change::Deleted && watch.wants(&event.key, &event.object);
                    let found = match (old, new) {
                        (false, true) => "ADDED",
                        (true, true) => "MODIFIED",
                        (true, false) => "DELETED",
                        (false, false) => continue,
                    };
                    // An object that is no longer selected is shown as it was, at the version of the change.
                    if let Some(old) =
                        event.old.as_ref().filter(|_| found == "DELETED" && event.change == Change::Modified)
                    {
                        let mut shown = watch.event(found, old, &text);
                        shown["object"]["metadata"]["resourceVersion"] = event.version.to_string().into();
                        events.push(shown);
                    } else {
                        let shown = watch.event(found, &event.object, &text);
                        events.push(shown);
                    }
                }
            }
        }
        if watch.has_bookmarks && now >= watch.next_bookmark {
            watch.next_bookmark = after(now, BOOKMARKS);
            events.push(watch.bookmark());
        }
        if watch.ends.is_some_and(|ends| now >= ends) {
            watch.is_over = true;
        }
        Some(events.iter().map(Value::to_string).collect())
    }
}
