//! Watches: a place in the history, and which of its events are asked for.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use operetta_kube_model::Fault;
use operetta_kube_model::facts::{key, time};
use serde_json::{Value, json};

use crate::decode;
use crate::forms::{Form, check_table, no_list, table};
use crate::model::{Context, Failure, Kind, Object, Outcome, Query, meta, printed, versions};
use crate::selection::Selection;
use crate::state::Store;
use crate::state::store::Change;

/// Seconds between two bookmarks.
const BOOKMARKS: i64 = 60;

/// The least seconds that a watch lasts if it does not ask for a time; at most twice as many.
const LASTS: i64 = 1800;

/// An open watch. [`crate::Api::events`] returns what happened since it was asked last.
#[derive(Debug)]
pub struct Watch {
    kind: Arc<Kind>,
    prefix: String,
    name: Option<String>,
    selection: Selection,
    form: Form,
    query: Query,
    has_bookmarks: bool,
    /// The version of the last event that was considered.
    version: u64,
    first: VecDeque<String>,
    next_bookmark: Timestamp,
    ends: Timestamp,
    is_over: bool,
    has_columns: bool,
}

impl Watch {
    pub(crate) fn open(store: &Store, context: &Context<'_>) -> Outcome<Self> {
        let query = context.query.clone();
        let kind = context.kind.clone();
        let selection = Selection::parse(
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
        let form = Form::of(context.request.accept);
        match form {
            Form::MetadataList => return Err(no_list(&kind)),
            Form::Table => check_table(context)?,
            Form::Whole | Form::Metadata => {}
        }
        let text = query.get("timeoutSeconds").unwrap_or("0");
        let seconds: i64 = text.parse().map_err(|_| {
            Failure::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
        })?;
        // A real server adds a random part, so that watches do not end together.
        let more = i64::try_from(store.version()).unwrap_or_default() % LASTS;
        let ends = after(context.at, if seconds == 0 { LASTS + more } else { seconds });
        let mut watch = Self {
            prefix: context
                .route
                .namespace
                .as_deref()
                .map(|namespace| key(namespace, ""))
                .unwrap_or_default(),
            name: context.route.name.clone(),
            form,
            has_bookmarks: query.flag("allowWatchBookmarks"),
            version: 0,
            first: VecDeque::new(),
            next_bookmark: after(context.at, BOOKMARKS),
            ends,
            is_over: false,
            has_columns: false,
            kind,
            selection,
            query,
        };
        let given: u64 = watch.query.get("resourceVersion").unwrap_or("0").parse().map_err(|_| {
            let text = watch.query.get("resourceVersion").unwrap_or_default();
            let why = format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax");
            Failure::plain(500, why)
        })?;
        if initial || given == 0 {
            watch.version = store.version();
            let storage = watch.kind.storage();
            let prefix = watch.prefix.clone();
            for (key, object) in store.range(storage, &prefix, None) {
                if watch.wants(key, object) {
                    let event = watch.event("ADDED", object, None, &context.now);
                    watch.first.push_back(event);
                }
            }
            if initial && watch.has_bookmarks {
                let bookmark = watch.bookmark(true, &context.now);
                watch.first.push_back(bookmark);
            }
        } else if store.since(given).is_none() {
            // The connection is opened, and its only event is the error.
            watch.is_over = true;
            watch.first.push_back(error(&too_old(given)));
        } else {
            watch.version = given;
        }
        Ok(watch)
    }

    /// When it has an event or an end although nothing changes.
    pub fn due(&self) -> Option<Timestamp> {
        let bookmark = self.has_bookmarks.then_some(self.next_bookmark);
        bookmark.into_iter().chain([self.ends]).min()
    }

    /// The events that were not returned yet, as JSON. `None` once it has ended.
    pub(crate) fn events(&mut self, store: &Store, now: Timestamp) -> Option<Vec<String>> {
        let mut events: Vec<String> = self.first.drain(..).collect();
        if self.is_over {
            return (!events.is_empty()).then_some(events);
        }
        let text = time(now);
        match store.since(self.version) {
            // Most changes concern other kinds.
            Some(_) if store.latest(self.kind.storage()) <= self.version => {
                self.version = self.version.max(store.version());
            }
            None => {
                self.is_over = true;
                events.push(error(&too_old(self.version)));
            }
            Some(history) => {
                let kind = self.kind.clone();
                let resource = kind.storage();
                for event in history {
                    self.version = event.version;
                    if *event.resource != *resource {
                        continue;
                    }
                    let old = event.old.as_ref().is_some_and(|old| self.wants(&event.key, old));
                    let new = event.change != Change::Deleted && self.wants(&event.key, &event.object);
                    let found = match (old, new) {
                        (false, true) => "ADDED",
                        (true, true) => "MODIFIED",
                        (true, false) => "DELETED",
                        (false, false) => continue,
                    };
                    // An object that is no longer selected is shown as it was, at the version of the change.
                    let left = event.old.as_ref();
                    let left = left.filter(|_| found == "DELETED" && event.change == Change::Modified);
                    events.push(match left {
                        Some(old) => self.event(found, old, Some(event.version), &text),
                        None => self.event(found, &event.object, None, &text),
                    });
                }
            }
        }
        if self.has_bookmarks && now >= self.next_bookmark {
            self.next_bookmark = after(now, BOOKMARKS);
            events.push(self.bookmark(false, &text));
        }
        if now >= self.ends {
            self.is_over = true;
        }
        Some(events)
    }

    fn wants(&self, key: &str, object: &Object) -> bool {
        key.starts_with(&self.prefix)
            && self.name.as_deref().is_none_or(|name| key.split_once('/').is_some_and(|(_, n)| n == name))
            && self.selection.matches(key, object)
    }

    /// An event as JSON. `version` is the one that the object gets, if it is not its own.
    fn event(&mut self, kind: &str, object: &Object, version: Option<u64>, now: &str) -> String {
        if version.is_none() && versions::is_current(&self.kind, object) {
            let text = match self.form {
                Form::Whole => Some(Cow::Borrowed(&*object.json)),
                Form::Metadata => meta::partial_text(object).map(Cow::Owned),
                Form::Table | Form::MetadataList => None,
            };
            if let Some(text) = text {
                return format!("{{\"object\":{text},\"type\":\"{kind}\"}}");
            }
        }
        let mut value = match versions::read(&self.kind, object) {
            Ok(value) => value,
            Err(failure) => return error(&failure),
        };
        if let Some(version) = version {
            value["metadata"]["resourceVersion"] = version.to_string().into();
        }
        printed(&json!({"type": kind, "object": self.formed(value, now)}))
    }

    /// An object in the form that is asked for.
    fn formed(&mut self, value: Value, now: &str) -> Value {
        match self.form {
            Form::Whole => value,
            Form::Metadata | Form::MetadataList => meta::partial(&value),
            Form::Table => {
                let with_columns = !std::mem::replace(&mut self.has_columns, true);
                table::single(&self.kind, value, &self.query, now, with_columns)
            }
        }
    }

    /// A bookmark. `ends_initial`: whether it follows the objects that were there at first.
    fn bookmark(&mut self, ends_initial: bool, now: &str) -> String {
        let (version, kind) = (self.version.to_string(), &self.kind);
        let mut object = json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": {"resourceVersion": version}});
        if kind.custom().is_none() {
            object["metadata"]["creationTimestamp"] = Value::Null;
            decode::decode(kind.typed(), &mut object).ok();
            if ["deployments", "statefulsets", "replicasets", "replicationcontrollers"]
                .contains(&&*kind.plural)
            {
                object["spec"]["replicas"] = 0.into();
            }
        }
        if ends_initial {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        printed(&json!({"type": "BOOKMARK", "object": self.formed(object, now)}))
    }
}

fn after(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now)
}

fn error(failure: &Failure) -> String {
    printed(&json!({"type": "ERROR", "object": failure.to_json()}))
}

fn too_old(version: u64) -> Box<Failure> {
    Failure::expired(format!("too old resource version: {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Api, Body, Request, User};

    #[test]
    fn watches_last_as_long_as_asked() {
        let now: Timestamp = "2026-01-01T00:00:00.9Z".parse().unwrap();
        let (mut api, user) = (Api::bare(now), User::default());
        for (query, seconds) in
            [("&timeoutSeconds=1", 1..=1), ("", 1800..=3600), ("&timeoutSeconds=0", 1800..=3600)]
        {
            let uri = format!("/api/v1/namespaces?watch=1{query}");
            let request = Request {
                method: "GET",
                uri: &uri,
                content_type: "",
                accept: "application/json",
                user_agent: "",
                user: &user,
                body: b"",
            };
            let Body::Watch(watch) = api.handle(&request, now).body else { panic!("no watch") };
            let lasts = watch.due().unwrap().duration_since(now).as_secs();
            assert!(seconds.contains(&lasts), "{query}: {lasts}");
        }
    }
}
