//! Why an object is refused, in the words of the API server.

use serde_json::Value;

/// What is wrong with a field: where, the reason, and the text of the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The path of the field, as the API server shows it.
    pub path: String,
    kind: FaultKind,
    detail: String,
    /// The value as it is shown.
    value: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultKind {
    Required,
    Invalid,
    NotSupported,
    Forbidden,
    Duplicate,
    NotFound,
    TooLong,
    TooMany,
    TypeInvalid,
}

impl Fault {
    fn new(
        kind: FaultKind,
        path: impl Into<String>,
        value: Option<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), kind, detail: detail.into(), value: value.map(|value| value.to_string()) }
    }

    /// A field that must have a value.
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FaultKind::Required, path, None, detail)
    }

    /// An invalid value.
    pub fn invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(FaultKind::Invalid, path, Some(value.into()), detail)
    }

    /// An invalid value that is not shown.
    pub fn invalid_field(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FaultKind::Invalid, path, None, detail)
    }

    /// An invalid value that is shown in the order and with the names of Go's fields.
    pub fn shown(path: impl Into<String>, value: String, detail: impl Into<String>) -> Self {
        Self { value: Some(value), ..Self::new(FaultKind::Invalid, path, None, detail) }
    }

    /// A value that another item has, too, shown like [`Fault::shown`].
    pub fn shown_duplicate(path: impl Into<String>, value: String) -> Self {
        Self { value: Some(value), ..Self::new(FaultKind::Duplicate, path, None, "") }
    }

    /// A field that may not be set or changed.
    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FaultKind::Forbidden, path, None, detail)
    }

    /// A value that another item has, too.
    pub fn duplicate(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(FaultKind::Duplicate, path, Some(value.into()), "")
    }

    /// A name of something that does not exist.
    pub fn not_found(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(FaultKind::NotFound, path, Some(value.into()), "")
    }

    /// A text that is too long.
    pub fn too_long(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FaultKind::TooLong, path, None, detail)
    }

    /// A list or map that has too many items.
    pub fn too_many(path: impl Into<String>, value: usize, most: u64) -> Self {
        let detail = format!("must have at most {most} items");
        Self::new(FaultKind::TooMany, path, Some(value.into()), detail)
    }

    /// A value of the wrong type.
    pub fn type_invalid(path: impl Into<String>, value: Value, detail: impl Into<String>) -> Self {
        Self::new(FaultKind::TypeInvalid, path, Some(value), detail)
    }

    /// A value that is not one of the choices.
    pub fn not_supported(path: impl Into<String>, value: impl Into<Value>, choices: &[&str]) -> Self {
        let choices: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
        let detail = format!("supported values: {}", choices.join(", "));
        Self::new(FaultKind::NotSupported, path, Some(value.into()), detail)
    }

    /// Whether it is about a null that the schema does not allow.
    pub fn is_about_null(&self) -> bool {
        self.kind == FaultKind::TypeInvalid && self.value.as_deref() == Some("\"null\"")
    }

    /// Whether rules of the schema are not evaluated with such a fault.
    pub fn is_blocking(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::NotSupported
                | FaultKind::Required
                | FaultKind::TooLong
                | FaultKind::TooMany
                | FaultKind::TypeInvalid
        )
    }

    /// The reason, as a `Status` has it.
    pub fn reason(&self) -> &'static str {
        match self.kind {
            FaultKind::Required => "FieldValueRequired",
            FaultKind::Invalid => "FieldValueInvalid",
            FaultKind::NotSupported => "FieldValueNotSupported",
            FaultKind::Forbidden => "FieldValueForbidden",
            FaultKind::Duplicate => "FieldValueDuplicate",
            FaultKind::NotFound => "FieldValueNotFound",
            FaultKind::TooLong => "FieldValueTooLong",
            FaultKind::TooMany => "FieldValueTooMany",
            FaultKind::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    /// What is wrong, without the value.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The message without the path.
    pub fn body(&self) -> String {
        let name = match self.kind {
            FaultKind::Required => "Required value",
            FaultKind::Invalid | FaultKind::TypeInvalid => "Invalid value",
            FaultKind::NotSupported => "Unsupported value",
            FaultKind::Forbidden => "Forbidden",
            FaultKind::Duplicate => "Duplicate value",
            FaultKind::NotFound => "Not found",
            FaultKind::TooLong => "Too long",
            FaultKind::TooMany => "Too many",
        };
        let value = self.value.as_ref().map(|value| format!(": {value}")).unwrap_or_default();
        let detail = if self.detail.is_empty() { String::new() } else { format!(": {}", self.detail) };
        format!("{name}{value}{detail}")
    }

    /// The message.
    pub fn message(&self) -> String {
        format!("{}: {}", self.path, self.body())
    }
}
