//! What is stored, held against a schema that is to come: before a CRD is changed so that instances would lose values or
//! become invalid, a person has to say that they may.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::children::names;
use crate::cluster::{ApiKind, CallError, Cluster, Query};
use crate::crd::{self, Narrowed};
use crate::diag::Diagnostic;
use crate::manager::raw::Raw;
use crate::package::Resource;

/// The code of a schema that would cost instances something.
pub(super) const CODE: &str = "crd::narrowed";
/// Instances a page: each may have more than a megabyte.
const PAGE: u32 = 50;
/// How many instances are named.
const NAMED: usize = 10;
/// How many paths of one instance.
const PATHS: usize = 3;

/// What keeps the spec of a CRD from being written, if something does. Asks the server only where the schema narrows.
///
/// # Errors
/// The instances cannot be read: then nobody knows.
pub(super) async fn refusal(
    cluster: &Cluster,
    live: &Value,
    spec: &Value,
    resource: &Resource,
) -> Result<Option<Diagnostic>, CallError> {
    let new = json!({"spec": spec});
    let narrowed = crd::narrowed(live, &new);
    let digest = digest(spec);
    let annotations = &live["metadata"]["annotations"];
    if narrowed.is_empty() || annotations[names::SCHEMA_ALLOWED] == digest.as_str() {
        return Ok(None);
    }
    let Some(mut kind) = crd::kind(live) else { return Ok(None) };
    let found = Found::default();
    for version in &narrowed {
        version.version.clone_into(&mut kind.version);
        let query = Query { page: Some(PAGE), ..Query::default() };
        cluster.list_all(&ApiKind::from(&kind), &query, |raw: Raw| found.look(version, &raw)).await?;
    }
    let count = found.instances();
    if count == 0 {
        return Ok(None);
    }
    let name = resource.crd_name();
    let instances = if count == 1 { "1 instance" } else { &format!("{count} instances") };
    // The command first: conditions and Events are cut at their end.
    let message = format!(
        "the CRD {name} stays as it is: by the package's schema {instances} would lose values or become invalid. Change \
         them or the schema, or allow exactly this schema: `kubectl annotate crd {name} --overwrite {}={digest}`. {}",
        names::SCHEMA_ALLOWED,
        found.text()
    );
    Ok(Some(Diagnostic::error(CODE, message).located(resource.crd_location.clone())))
}

/// What names the versions of a CRD, schemas included.
fn digest(spec: &Value) -> String {
    names::short_hash(&format!("{}{}", spec["versions"], spec["conversion"]), 8)
}

/// The instances that something would be taken from.
#[derive(Default)]
struct Found {
    /// A sentence each, of the first.
    named: Mutex<Vec<String>>,
    uids: Mutex<BTreeSet<u64>>,
    more: AtomicUsize,
}

impl Found {
    fn look(&self, version: &Narrowed<'_>, raw: &Raw) {
        let losses: Vec<String> = if raw.is_cut {
            vec!["is nested too deeply to be looked at".to_owned()]
        } else {
            let losses = version.losses(&raw.body);
            losses.into_iter().map(|loss| format!("{} {}", loss.path, loss.message)).collect()
        };
        if losses.is_empty() {
            return;
        }
        let meta = &raw.metadata;
        // In two versions it is the same.
        let mut hasher = DefaultHasher::new();
        meta.uid.hash(&mut hasher);
        if !self.uids.lock().unwrap_or_else(PoisonError::into_inner).insert(hasher.finish()) {
            return;
        }
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() >= NAMED {
            self.more.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut text = match &meta.namespace {
            Some(namespace) => format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default()),
            None => meta.name.clone().unwrap_or_default(),
        };
        let shown = losses.iter().take(PATHS).map(String::as_str).collect::<Vec<_>>().join(", ");
        let _ = write!(text, " ({shown}");
        if losses.len() > PATHS {
            let _ = write!(text, ", and {} more", losses.len() - PATHS);
        }
        text.push(')');
        named.push(text);
    }

    fn instances(&self) -> usize {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner).len();
        named + self.more.load(Ordering::Relaxed)
    }

    fn text(&self) -> String {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let more = self.more.load(Ordering::Relaxed);
        let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
        format!("{}{rest}", named.join("; "))
    }
}
