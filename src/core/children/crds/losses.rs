//! Instances that would lose values, or become invalid, by a narrower schema of their CRD. A person has to allow such a
//! schema.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::children::names;
use crate::crd::{self, Incompatible, Narrowed};
use crate::diag::Diagnostic;
use crate::package::Resource;

/// The code of a schema that takes values from instances.
pub(crate) const NARROWED: &str = "crd::narrowed";
/// The code of a change that Kubernetes does not allow.
const INCOMPATIBLE: &str = "crd::incompatible";
/// How many instances are named.
const NAMED: usize = 10;
/// How many paths of one instance are named.
const PATHS: usize = 3;

/// An instance that would lose values or become invalid.
#[derive(Debug, Clone)]
pub struct LossyInstance {
    uid: String,
    text: String,
}

impl LossyInstance {
    /// Its name, and what it would lose.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Describes the instance `name`, if it would lose something. `body`: the instance in the narrowed
    /// version; `None` if it is too deep or too large to be read.
    pub fn find(narrowed: &Narrowed<'_>, uid: &str, name: &str, body: Option<&Value>) -> Option<Self> {
        let losses = match body {
            Some(body) => {
                narrowed.losses(body).iter().map(|loss| format!("{} {}", loss.path, loss.message)).collect()
            }
            None => vec!["is too deep or too large to be checked".to_owned()],
        };
        let more = match losses.len().saturating_sub(PATHS) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let shown = losses.iter().take(PATHS).map(String::as_str).collect::<Vec<_>>().join(", ");
        (!losses.is_empty()).then(|| Self { uid: uid.to_owned(), text: format!("{name} ({shown}{more})") })
    }
}

/// The versions whose stored instances may lose something by a new spec, unless a person has allowed it.
pub(super) fn narrowed<'a>(live: &'a Value, spec: &Value) -> Vec<Narrowed<'a>> {
    let narrowed = crd::narrowed(live, &json!({"spec": spec}));
    let is_allowed = live["metadata"]["annotations"][names::SCHEMA_ALLOWED] == digest(spec).as_str();
    if is_allowed { Vec::new() } else { narrowed }
}

/// The refusal of a spec by which these instances would lose something.
pub(super) fn refusal(instances: &[LossyInstance], spec: &Value, resource: &Resource) -> Option<Diagnostic> {
    // An instance may be found in two versions.
    let mut uids = BTreeSet::new();
    let texts: Vec<&str> =
        instances.iter().filter(|i| uids.insert(&i.uid)).map(|instance| instance.text.as_str()).collect();
    let count = match texts.len() {
        0 => return None,
        1 => "1 instance".to_owned(),
        count => format!("{count} instances"),
    };
    let more = match texts.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let (name, digest) = (resource.crd_name(), digest(spec));
    // The command comes first: conditions and Events are cut at their end.
    let message = format!(
        "the CRD {name} stays as it is: by the package's schema {count} would lose values or become invalid. Change \
         them or the schema, or allow exactly this schema: `kubectl annotate crd {name} --overwrite {}={digest}`. {}{more}",
        names::SCHEMA_ALLOWED,
        texts[..texts.len().min(NAMED)].join("; "),
    );
    Some(Diagnostic::error(NARROWED, message).located(resource.crd_location.clone()))
}

/// The refusal of changes that Kubernetes does not allow. `names`: all instances.
pub(super) fn impossible(found: &[Incompatible], names: &[String], resource: &Resource) -> Diagnostic {
    let changes: Vec<String> = found.iter().map(|one| format!("{} {}", one.path, one.message)).collect();
    let of = match names.len() {
        0 => "there are no instances".to_owned(),
        1 => format!("1 instance is concerned: {}", names[0]),
        count => {
            let more = match count.saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{count} instances are concerned: {}{more}", names[..count.min(NAMED)].join(", "))
        }
    };
    let name = resource.crd_name();
    let message = format!("the CRD {name} stays as it is: {}; {of}", changes.join("; "));
    let mut help: Vec<&str> = found.iter().map(|one| one.help).collect();
    help.dedup();
    Diagnostic::error(INCOMPATIBLE, message).help(help.join("; ")).located(resource.crd_location.clone())
}

/// Identifies the versions of a CRD, schemas included.
fn digest(spec: &Value) -> String {
    // The address and the certificate of a webhook do not change what is lost.
    names::short_hash(&format!("{}{}", spec["versions"], spec["conversion"]["strategy"]), 8)
}
