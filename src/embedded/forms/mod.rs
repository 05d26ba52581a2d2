//! The forms in which objects are asked for: whole, their metadata, tables.

pub(crate) mod rows;
pub(crate) mod table;

use serde_json::Value;

use crate::model::{Context, Failure, Kind, Outcome, meta};

/// The form in which objects are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Metadata,
    /// The metadata of the items of a list.
    MetadataList,
    Table,
}

impl Form {
    pub(crate) fn of(accept: &str) -> Self {
        for part in accept.split(',') {
            let has = |what: &str| part.split(';').any(|word| word.trim() == what);
            if has("as=Table") {
                return Self::Table;
            }
            if has("as=PartialObjectMetadata") {
                return Self::Metadata;
            }
            if has("as=PartialObjectMetadataList") {
                return Self::MetadataList;
            }
            if part.trim().starts_with("application/json") || part.trim() == "*/*" {
                return Self::Whole;
            }
        }
        Self::Whole
    }
}

/// An object in the form that is asked for.
pub(crate) fn formed(context: &Context<'_>, value: Value) -> Outcome<Value> {
    Ok(match Form::of(context.request.accept) {
        Form::Whole => value,
        Form::Metadata => meta::partial(&value),
        Form::MetadataList => return Err(no_list(&context.kind)),
        Form::Table => {
            check_table(context)?;
            table::single(&context.kind, value, &context.query, &context.now, true)
        }
    })
}

/// The refusal of an object in the form of a list.
pub(crate) fn no_list(kind: &Kind) -> Box<Failure> {
    let why = format!(
        "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
        kind.go_type()
    );
    Failure::new(406, "NotAcceptable", why)
}

/// The options of a table must be known.
pub(crate) fn check_table(context: &Context<'_>) -> Outcome<()> {
    match context.query.get("includeObject") {
        None | Some("None" | "Metadata" | "Object") => Ok(()),
        Some(other) => Err(Failure::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))),
    }
}
