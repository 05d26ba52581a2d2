//! The cause of a refusal by the API server, recognised by its words: an immutable field, fields that exclude
//! each other, a missing permission. Measured on Kubernetes 1.36.

use std::hash::{DefaultHasher, Hash, Hasher};

use kube_core::Status;
use kube_core::response::StatusDetails;

/// The meaning of a refusal.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusal {
    /// The request changes an immutable field.
    pub immutable: bool,
    /// The paths of fields that exclude each other. Other causes may be consequences (a volume with two
    /// sources counts as none, so its mounts are not found), but none of them is about an immutable field.
    pub exclusive: Option<Box<[String]>>,
    /// The authorizer refused the request, not validation or an admission plugin.
    pub unauthorized: bool,
    /// Hashes of the field and message of each cause; hashes, because messages may contain values.
    pub causes: Box<[u64]>,
    /// What admission in the cluster has to do with it.
    pub admission: Option<Admission>,
}

/// What kept a request from being admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// A policy or a webhook of the cluster refused it.
    Refused,
    /// A webhook could not be called.
    Unanswered,
}

impl Refusal {
    pub(super) fn of(status: &Status) -> Self {
        let details = status.details.as_ref();
        let text = status.message.as_str();
        let admission = if text.contains("ValidatingAdmissionPolicy") || text.contains("admission webhook") {
            Some(Admission::Refused)
        } else {
            (status.code == 500 && text.contains("failed calling webhook")).then_some(Admission::Unanswered)
        };
        let causes = details.map_or(&[][..], |details: &StatusDetails| &details.causes);
        let invalid = status.code == 422 && admission.is_none();
        let immutable = invalid && causes.iter().any(|c| says_immutable(&c.message));
        let exclusive: Box<[String]> =
            causes.iter().filter(|c| says_exclusive(&c.message)).map(|c| c.field.clone()).collect();
        Self {
            immutable,
            exclusive: Some(exclusive).filter(|fields| invalid && !immutable && !fields.is_empty()),
            causes: causes.iter().map(|c| hash(&(&c.field, &c.message))).collect(),
            unauthorized: status.code == 403 && says_unauthorized(text),
            admission,
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Whether a cause says that a field is immutable: in the words of the built-in kinds or in those that
/// authors of CRDs use in their rules. An immutable field that is described in other words is found by
/// trying: see `docs/design/0016-field-ownership-and-refused-edits.md`.
fn says_immutable(text: &str) -> bool {
    // The forms are `Invalid value: VALUE: why` and `Forbidden: why`; a diff may follow.
    let line = text.lines().next().unwrap_or_default();
    let text = line.rsplit_once("\": ").or_else(|| line.rsplit_once("}: ")).map_or(line, |(_, why)| why);
    [
        "immutable",
        "may not change once set",
        "may not be changed",
        "may not change fields other than",
        "cannot be changed",
        "can not be changed",
        "cannot change roleRef",
        "for fields other than",
        "are forbidden after creation",
        "may not be unset",
        "can not be unset",
    ]
    .iter()
    .any(|mark| text.contains(mark))
        || text.contains("updates to ") && text.contains("forbidden")
}

/// Whether a cause says that a field excludes another one.
fn says_exclusive(text: &str) -> bool {
    let line = text.lines().next().unwrap_or_default();
    [
        "may not specify more than 1",
        "may not specify more than one",
        "may not have more than one",
        "may not populate information for more than one",
        "may not be specified when",
        "may not be specified with",
        "may not be specified if",
        "may not be set when",
        "may not be set if",
        "must not be set when",
        "may not set both",
        "cannot set both",
        "cannot be both set",
        "cannot both be set",
        "mutually exclusive",
        "one and only one schema (oneOf)",
    ]
    .iter()
    .any(|mark| line.contains(mark))
}

/// Whether a 403 says that the caller lacks a permission: to make the request, or to grant a permission it
/// does not have. Admission also refuses with 403: a quota that is exceeded, a volume that cannot be resized,
/// a webhook's denial.
pub fn says_unauthorized(text: &str) -> bool {
    let lacks = |mark: &str| text.contains(mark);
    (lacks(" is forbidden: User \"") && lacks("\" cannot "))
        || lacks("attempting to grant RBAC permissions not currently held")
        || lacks("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(code: u16, message: &str, causes: &[(&str, &str)]) -> Refusal {
        let causes: Vec<_> = causes.iter().map(|(f, m)| json!({"field": f, "message": m})).collect();
        let status = json!({"code": code, "message": message, "details": {"causes": causes}});
        Refusal::of(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn exclusive_fields_come_from_the_causes() {
        let volume = ("spec.volumes[0].hostPath", "Forbidden: may not specify more than 1 volume type");
        let other = ("spec.selector", "Invalid value: {}: field is immutable");
        assert_eq!(refusal(422, "", &[volume]).exclusive.unwrap()[..], ["spec.volumes[0].hostPath"]);
        let follows = ("spec.containers[0].volumeMounts[0].name", "Not found: \"v\"");
        assert_eq!(refusal(422, "", &[volume, follows]).exclusive.unwrap()[..], ["spec.volumes[0].hostPath"]);
        assert!(refusal(422, "", &[volume, other]).exclusive.is_none());
        assert!(refusal(422, "", &[follows]).exclusive.is_none());
        assert!(refusal(422, "", &[]).exclusive.is_none());
        assert!(refusal(403, "", &[volume]).exclusive.is_none());
    }

    #[test]
    fn missing_permission_is_distinguished_from_other_403s() {
        let rights = "secrets is forbidden: User \"u\" cannot patch resource \"secrets\" in API group \"\" in the namespace \"n\"";
        assert!(refusal(403, rights, &[]).unauthorized);
        for text in [
            "persistentvolumeclaims \"c\" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
            "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1",
            "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": privileged",
        ] {
            assert!(!refusal(403, text, &[]).unauthorized, "{text}");
        }
    }

    #[test]
    fn policy_refusal_is_not_an_immutable_field() {
        let text = "deployments.apps \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: image is immutable";
        let refused = refusal(422, text, &[("", text)]);
        assert!(refused.admission == Some(Admission::Refused) && !refused.immutable);
    }
}
