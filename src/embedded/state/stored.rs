//! Stored objects as writes read and answer them.

use std::sync::Arc;

use serde_json::Value;

use super::{State, crds};
use crate::model::{Context, Failure, Kind, Object, Outcome, Parsed, meta, versions};

/// An object as it is answered.
pub(crate) enum Stored {
    Object(Arc<Object>),
    Parsed(Parsed),
}

impl Stored {
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
    pub(crate) fn of(state: &State, context: &Context<'_>) -> Outcome<Self> {
        let kind = &context.kind;
        let object = state.store.get(kind.storage(), &context.key());
        let object = object.ok_or_else(|| Failure::not_found(kind, context.name()))?.clone();
        Ok(Self { parsed: versions::parsed(kind, &object)?, object })
    }

    pub(crate) fn value(&self) -> Value {
        self.parsed.whole()
    }

    /// The live object as it is answered after a write that changes nothing.
    pub(crate) fn unchanged(&self, kind: &Kind) -> Stored {
        if versions::is_current(kind, &self.object) {
            return Stored::Object(self.object.clone());
        }
        Stored::Parsed(Parsed::clone(&self.parsed))
    }
}

/// Stores an object. Returns it as it is answered: a webhook converts it to the version of storage and back.
pub(crate) fn store(state: &mut State, kind: &Kind, key: &str, parsed: Parsed) -> Outcome<Stored> {
    if versions::hook(kind).is_some() {
        let object = Parsed::of(versions::for_storage(kind, parsed.whole())?);
        let mut value = state.store.put(kind.storage(), key, object).value();
        versions::convert(kind, &mut value)?;
        return Ok(Stored::Parsed(Parsed::of(value)));
    }
    let object = state.store.put(kind.storage(), key, parsed);
    crds::changed(state, kind, Some(&object));
    Ok(Stored::Object(object))
}

/// Replaces an object on behalf of a controller. One that names no managers keeps those that it has.
pub(crate) fn put(state: &mut State, kind: &Arc<Kind>, key: &str, value: Value) {
    let mut parsed = Parsed::of(value);
    if parsed.managed.is_empty()
        && let Some(old) = state.store.get(kind.storage(), key)
    {
        parsed.managed = old.parsed().managed.clone();
    }
    replace(state, kind, key, parsed);
}

/// Replaces an object, or removes it if nothing holds it back from being deleted.
pub(crate) fn replace(state: &mut State, kind: &Arc<Kind>, key: &str, parsed: Parsed) {
    if meta::is_released(kind, &parsed.value) {
        remove(state, kind, key);
        return;
    }
    // If a webhook does not convert the object, it stays as it was: no request waits for the error.
    let _ = store(state, kind, key, parsed);
}

/// Removes an object.
pub(crate) fn remove(state: &mut State, kind: &Kind, key: &str) {
    state.store.remove(kind.storage(), key);
    crds::changed(state, kind, None);
}
