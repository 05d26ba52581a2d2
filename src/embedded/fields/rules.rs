//! What a change of managers needs to know of the kind, and how a write changes an object in each of its versions.

use std::borrow::Cow;
use std::sync::Arc;

use operetta_kube_model::fields::FieldSet;
use serde_json::Value;

use super::compare::compare;
use super::typed::{check, joined};
use crate::schema::Typed;

/// Fields of other managers that an apply would change.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(pub(crate) Vec<(String, Vec<String>)>);

/// Why fields are not applied.
#[derive(Debug)]
pub(crate) enum Refused {
    Conflicts(Conflicts),
    /// The object cannot be read in a version that a manager has used.
    Unreadable(String),
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self::Unreadable(why)
    }
}

/// What an update of fields needs to know of the kind.
pub(crate) struct Rules<'r, 'a> {
    /// The schema of a version of the kind, if there is one.
    pub(crate) schema: &'r dyn Fn(&str) -> Option<Typed<'a>>,
    /// An object of the kind in another version.
    pub(crate) convert: &'r dyn Fn(&str, &Value) -> Result<Value, String>,
    /// Whether the kind is that of a CRD, whose versions and schemas change.
    pub(crate) is_custom: bool,
    /// Fields that writers of this subresource do not own.
    pub(crate) reset: &'r FieldSet,
    pub(crate) now: &'r str,
    /// A new object of the kind, before anything is set.
    pub(crate) empty: &'r dyn Fn() -> Value,
}

impl<'a> Rules<'_, 'a> {
    /// An object in a version, with the schema of this version. There is none if no built-in kind has the version.
    pub(super) fn view<'v>(
        &self,
        version: &str,
        object: &'v Value,
    ) -> Result<Option<(Typed<'a>, Cow<'v, Value>)>, String> {
        let Some(typed) = (self.schema)(version) else {
            let why = format!("request to convert CR to an invalid group/version: {version}");
            return if self.is_custom { Err(why) } else { Ok(None) };
        };
        if object["apiVersion"] == *version {
            return Ok(Some((typed, Cow::Borrowed(object))));
        }
        let converted = (self.convert)(version, object)?;
        let faults = check(typed, &converted, true);
        if faults.is_empty() { Ok(Some((typed, Cow::Owned(converted)))) } else { Err(joined(&faults)) }
    }
}

/// How a write changes an object: the fields that are new or changed, and those that are gone, by version.
#[derive(Default)]
pub(super) struct Changes(Vec<(String, Arc<(FieldSet, FieldSet)>)>);

impl Changes {
    pub(super) fn of(
        &mut self,
        version: &str,
        (old, new): (&Value, &Value),
        rules: &Rules<'_, '_>,
    ) -> Result<Option<Arc<(FieldSet, FieldSet)>>, String> {
        if let Some((_, known)) = self.0.iter().find(|(known, _)| known == version) {
            return Ok(Some(known.clone()));
        }
        let view = |object, what: &str| {
            rules.view(version, object).map_err(|why| format!("failed to convert {what} object: {why}"))
        };
        let (Some((typed, old)), Some((_, new))) = (view(old, "old")?, view(new, "new")?) else {
            return Ok(None);
        };
        let found = compare(typed, &old, &new);
        let (mut changed, mut removed) = (found.modified, found.removed);
        changed.extend(&found.added);
        // A CRD knows them for the version of the request only.
        if !rules.is_custom || matches!(old, Cow::Borrowed(_)) {
            changed.cut(rules.reset);
            removed.cut(rules.reset);
        }
        let found = Arc::new((changed, removed));
        self.0.push((version.to_owned(), found.clone()));
        Ok(Some(found))
    }
}
