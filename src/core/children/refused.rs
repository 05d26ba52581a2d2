//! The parts of a status that the API server refuses. A status is written whole or not at all, so they are
//! left out: the conditions must not depend on what a package projects beside them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::model::Status;
use crate::api::{CallError, Class};

/// What the API server has refused, so that the same is not tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The fingerprint of the status that was refused.
    of: u64,
    fields: Vec<String>,
    /// The types of the refused conditions.
    conditions: Vec<String>,
    /// Whether the present values of the fields are removed. Otherwise they stay, because even their removal
    /// was refused.
    removes: bool,
    message: String,
}

impl Status {
    /// What to leave out after a refusal; `before`: what was left out already. `None` if nothing can be gained.
    pub fn refused(&self, error: &CallError, before: Option<&Refused>) -> Option<Refused> {
        if error.class != Class::Permanent || error.code == 403 {
            return None;
        }
        let of = self.fingerprint();
        let is_set = |(name, value): &(String, Option<_>)| value.is_some().then(|| name.clone());
        let all_fields: Vec<String> = self.projection.fields.iter().filter_map(is_set).collect();
        let own = self.conditions.iter().enumerate().filter(|(_, condition)| !condition.is_standard());
        let all_conditions: Vec<(usize, String)> =
            own.map(|(index, condition)| (index, condition.kind.clone())).collect();
        if all_fields.is_empty() && all_conditions.is_empty() {
            return None;
        }
        let said = |what: String| format!("the API server refuses {what}: {error}");
        let everything = |removes| Refused {
            of,
            fields: all_fields.clone(),
            conditions: all_conditions.iter().map(|(_, kind)| kind.clone()).collect(),
            removes,
            message: said("the status with all that the package projects".to_owned()),
        };
        match before {
            Some(before) if before.of == of && !before.removes => None,
            Some(before) if before.of == of => Some(everything(false)),
            _ => {
                let fields: BTreeSet<&String> = error
                    .causes
                    .iter()
                    .flat_map(|cause| all_fields.iter().filter(|name| concerns(&cause.field, name)))
                    .collect();
                let conditions: BTreeSet<&String> = error
                    .causes
                    .iter()
                    .flat_map(|cause| {
                        let is_it = move |(index, _): &&(usize, String)| {
                            cause.field.starts_with(&format!("status.conditions[{index}]"))
                        };
                        all_conditions.iter().filter(is_it).map(|(_, kind)| kind)
                    })
                    .collect();
                if fields.is_empty() && conditions.is_empty() {
                    return Some(everything(true));
                }
                let names = fields.iter().map(|name| format!("status.{name}"));
                let kinds = conditions.iter().map(|kind| format!("the condition {kind}"));
                let message = said(names.chain(kinds).collect::<Vec<_>>().join(", "));
                let fields = fields.into_iter().cloned().collect();
                let conditions = conditions.into_iter().cloned().collect();
                Some(Refused { of, fields, conditions, removes: true, message })
            }
        }
    }

    /// Leaves out what was refused, if the status has the same values, and reports it.
    pub fn leave_out(&mut self, refused: &Refused) {
        if self.fingerprint() != refused.of {
            return;
        }
        self.projection.leave_out(&refused.fields, refused.removes);
        self.projection.faults.push(refused.message.clone());
        self.conditions.retain(|condition| !refused.conditions.contains(&condition.kind));
    }

    /// A hash of what the API server may refuse of the status.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, value) in &self.projection.fields {
            (name, value.as_ref().map(ToString::to_string)).hash(&mut hasher);
        }
        for condition in self.conditions.iter().filter(|condition| !condition.is_standard()) {
            format!("{condition:?}").hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Whether a path of the status, which the server names, is a projected field, is within one, or contains
/// one.
fn concerns(path: &str, field: &str) -> bool {
    let field = format!("status.{field}");
    let is_within = |path: &str, field: &str| {
        path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    is_within(path, &field) || is_within(&field, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_concerns_a_field_within_it_or_around_it() {
        for (path, field, expected) in [
            ("status.a", "a", true),
            ("status.a.b[0]", "a", true),
            ("status.a[x]", "a", true),
            ("status.ab", "a", false),
            ("status.members", "members.ready", true),
            ("status", "a", true),
            ("metadata", "a", false),
            ("", "a", false),
        ] {
            assert_eq!(concerns(path, field), expected, "{path} {field}");
        }
    }
}
