//! Stored objects as writes read and answer them.

use std::sync::Arc;

use serde_json::Value;

use crate::api::{Api, Context};
use crate::kinds::Kind;
use crate::request::Response;
use crate::status::{Failure, Outcome};
use crate::store::{Object, Parsed};
use crate::{meta, versions};

/// An object as it is answered.
pub(crate) enum Stored {
    Object(Arc<Object>),
    Parsed(Parsed),
}

impl Stored {
    pub(crate) fn respond(self, code: u16) -> Response {
        match self {
            Self::Object(object) => Response::text(code, object.json.clone()),
            Self::Parsed(parsed) => Response::json(code, &parsed.whole()),
        }
    }

    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Object(object) => object.value(),
            Self::Parsed(parsed) => parsed.whole(),
        }
    }
}

/// A live object in the version of a request.
pub(crate) struct Live {
    object: Arc<Object>,
    pub(crate) parsed: Arc<Parsed>,
}

impl Live {
    pub(crate) fn of(api: &Api, context: &Context<'_>) -> Outcome<Self> {
        let kind = &context.kind;
        let object = api.store.get(kind.storage(), &context.key());
        let object = object.ok_or_else(|| Failure::not_found(kind, context.name()))?.clone();
        Ok(Self { parsed: versions::parsed(kind, &object)?, object })
    }

    pub(crate) fn value(&self) -> Value {
        self.parsed.whole()
    }

    /// The live object as the answer to a write that changes nothing.
    pub(crate) fn answer(&self, kind: &Kind) -> Stored {
        if versions::is_current(kind, &self.object) {
            return Stored::Object(self.object.clone());
        }
        Stored::Parsed(Parsed::clone(&self.parsed))
    }
}

/// Stores an object. Returns it as it is answered: a webhook converts it to the version of storage and back.
pub(crate) fn store(api: &mut Api, kind: &Kind, key: &str, parsed: Parsed) -> Outcome<Stored> {
    if versions::hook(kind).is_some() {
        let object = Parsed::of(versions::for_storage(kind, parsed.whole())?);
        let mut value = api.store.put(kind.storage(), key, object).value();
        versions::convert(kind, &mut value)?;
        return Ok(Stored::Parsed(Parsed::of(value)));
    }
    let object = api.store.put(kind.storage(), key, parsed);
    crate::crd::changed(api, kind, Some(&object));
    Ok(Stored::Object(object))
}

/// Replaces an object on behalf of a controller. One that names no managers keeps those that it has.
pub(crate) fn put(api: &mut Api, kind: &Arc<Kind>, key: &str, value: Value) {
    let mut parsed = Parsed::of(value);
    if parsed.managed.is_empty()
        && let Some(old) = api.store.get(kind.storage(), key)
    {
        parsed.managed = old.parsed().managed.clone();
    }
    replace(api, kind, key, parsed);
}

pub(crate) fn replace(api: &mut Api, kind: &Arc<Kind>, key: &str, parsed: Parsed) {
    if meta::is_released(kind, &parsed.value) {
        api.store.remove(kind.storage(), key);
        crate::crd::changed(api, kind, None);
        return;
    }
    // What a webhook does not convert stays as it was: a controller has nobody to tell.
    let _ = store(api, kind, key, parsed);
}
