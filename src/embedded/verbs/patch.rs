//! Requests that change an object by a patch.

use operetta_kube_model::Fault;
use operetta_kube_model::fields::MANAGED;

use super::apply::apply;
use super::response::Response;
use super::write::save;
use crate::body;
use crate::body::patch::Patch;
use crate::model::{Context, Failure, Outcome, meta};
use crate::state::{Live, State};

/// Changes an object by a patch.
pub(crate) fn patch(state: &mut State, context: &mut Context<'_>) -> Outcome<Response> {
    let content_type = context.request.content_type.split(';').next().unwrap_or_default().trim();
    if matches!(content_type, "application/apply-patch+yaml" | "application/apply-patch+cbor") {
        return apply(state, context);
    }
    let is_dry = context.query.is_dry_run()?;
    let kind = context.kind.clone();
    let patch = Patch::parse(&kind, content_type, context.request.body)?;
    if context.query.has("force") {
        let fault = Fault::forbidden("force", "may not be specified for non-apply patch");
        return Err(Failure::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
    }
    let live = Live::of(state, context)?;
    // Only what a patch names can change the managers.
    let names_managers = has_word(context.request.body, MANAGED);
    let is_whole = names_managers || matches!(patch, Patch::Json(_));
    let mut object = if is_whole { live.parsed.whole() } else { live.parsed.value.clone() };
    patch.apply(&kind, &mut object)?;
    let again = || {
        let mut object = live.parsed.whole();
        let _ = patch.apply(&kind, &mut object);
        object
    };
    let strays = body::strays(&patch, context.request.body);
    let mut object = body::settle_strictly(context, object, strays, Some(&again))?;
    meta::check_path(context, &mut object)?;
    Ok(Response::of(200, save(state, context, &live, object, None, is_dry)?))
}

/// Whether a body has a word.
fn has_word(body: &[u8], word: &str) -> bool {
    body.windows(word.len()).any(|part| part == word.as_bytes())
}
