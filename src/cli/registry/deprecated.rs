//! What commands say about a deprecated version.

use operetta_registry::deprecation::{Found, find};
use operetta_registry::index::Deprecated;
use operetta_registry::{Signer, Signers, Store, Stored};
use serde_json::{Value, json};

use crate::cli::out;

/// How many deprecations of one version are said.
const SAID: usize = 3;

/// The deprecations of a version. That they cannot be read stops nothing.
pub(in crate::cli) async fn deprecations(store: &Store, manifest: &Stored, signers: &Signers) -> Vec<Found> {
    find(store, manifest, signers).await.unwrap_or_else(|error| {
        out::note(format!("warning: whether it is deprecated is not known: {error}"));
        Vec::new()
    })
}

/// Says on standard error that a version is deprecated, if it is. `name`: its reference.
pub(super) async fn warn(name: &str, store: &Store, manifest: &Stored, signers: &Signers) {
    let found = deprecations(store, manifest, signers).await;
    for one in found.iter().take(SAID) {
        out::note(format!(
            "warning: {name} is deprecated: {}",
            out::printable(&words(one, !signers.is_empty()))
        ));
    }
}

/// A deprecation in a sentence, and who says it. `has_signers`: whether signers were given.
pub(in crate::cli) fn words(found: &Found, has_signers: bool) -> String {
    let said = &found.deprecation;
    let instead = said.replaced_by.as_deref().map(|other| format!("; use {other} instead"));
    format!("{}{} ({})", said.message, instead.unwrap_or_default(), who(found, has_signers))
}

/// What an index says about a deprecated version. It names signers without proof.
pub(super) fn indexed(deprecated: &Deprecated) -> String {
    let instead = deprecated.replaced_by.as_deref().map(|other| format!("; use {other} instead"));
    let who = match &deprecated.signers[..] {
        [] => "unsigned".to_owned(),
        signers => format!("its signature names {}, unverified", signers.join(", ")),
    };
    format!("{}{} ({who})", deprecated.message, instead.unwrap_or_default())
}

/// Who says it. Anybody who may push to the repository can write a deprecation, so a signature says more.
fn who(found: &Found, has_signers: bool) -> String {
    match (&found.signer, &found.signers[..]) {
        (Some(signer), _) => format!("signed by the {signer}"),
        (None, []) if has_signers => {
            "not signed by a given key or identity: who may push can have written it".into()
        }
        (None, []) => "unsigned: who may push can have written it".into(),
        (None, signers) => {
            let rest = if has_signers { "which is not given" } else { "unverified" };
            format!("its signature names {}, {rest}", signers.join(", "))
        }
    }
}

/// Deprecations for programs.
pub(in crate::cli) fn document(found: &[Found]) -> Value {
    let found = found.iter().map(|one| {
        json!({
            "message": one.deprecation.message, "replacedBy": one.deprecation.replaced_by,
            "signers": one.signers, "verified": one.signer.as_ref().map(Signer::name),
        })
    });
    found.collect()
}
