//! A Job that has completed is done until its spec changes, however it vanished.
//!
//! The completion is recorded on the instance, in the annotation [`names::COMPLETED_JOBS`]. A template's
//! `ttlSecondsAfterFinished` is applied only once that is recorded, so the API server never removes a Job before its
//! completion is recorded, even if no manager runs. See
//! `docs/design/0017-completed-jobs-and-retained-objects.md`.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::model::{Completion, Context, Desired, Item, Target};
use super::names;
use crate::template::Live;

/// The field by which the API server removes a finished Job.
const TTL: &str = "ttlSecondsAfterFinished";

/// The completion of a rendered Job. Takes the Job's TTL out as long as its completion is not recorded.
pub(super) fn completion(ctx: &Context<'_>, name: &str, job: &mut Map<String, Value>) -> Completion {
    let ttl = job.get_mut("spec").and_then(Value::as_object_mut).and_then(|spec| spec.remove(TTL));
    let namespace = &job["metadata"]["namespace"];
    let spec = job.get("spec").unwrap_or(&Value::Null);
    let token = names::short_hash(&format!("{}\n{namespace}\n{name}\n{spec}", ctx.origin.uid()), 8);
    let recorded = recorded(&ctx.snapshot.instance).any(|known| known == token);
    if let (true, Some(ttl), Some(Value::Object(spec))) = (recorded, ttl, job.get_mut("spec")) {
        spec.insert(TTL.to_owned(), ttl);
    }
    Completion { token, recorded }
}

/// The tokens of completed Jobs in the annotation of an instance.
fn recorded(instance: &Value) -> impl Iterator<Item = &str> {
    let text = instance["metadata"]["annotations"][names::COMPLETED_JOBS].as_str().unwrap_or_default();
    text.split(',').filter(|token| !token.is_empty())
}

/// The text that the annotation should have; `None` if it has it. Tokens of Jobs that are not in the target
/// are removed, unless a part of the target is unknown.
pub(super) fn to_record(ctx: &Context<'_>, target: &Target) -> Option<String> {
    let before: BTreeSet<&str> = recorded(&ctx.snapshot.instance).collect();
    let mut now = BTreeSet::new();
    for item in &target.items {
        let Ok(Desired { completion: Some(completion), .. }) = &item.desired else { continue };
        let live = item.observed.as_ref();
        if completion.recorded || live.is_some_and(|live| live.completed && item.is_current()) {
            now.insert(&*completion.token);
        }
    }
    if !target.open.is_empty() || target.items.iter().any(|item| item.desired.is_err()) {
        now.extend(&before);
    }
    (now != before).then(|| now.into_iter().collect::<Vec<_>>().join(","))
}

/// What is known of a Job that has completed and is gone: what it was, and that it completed.
pub(super) fn remembered(item: &Item) -> Option<Live> {
    let desired = item.desired.as_ref().ok().filter(|_| item.done)?;
    let (body, object) = (&desired.body, &desired.object);
    let succeeded = body["spec"].get("completions").cloned().unwrap_or(json!(1));
    let value = json!({
        "apiVersion": &*object.gvk.api_version, "kind": &*object.gvk.kind,
        "metadata": {"name": &*object.name, "namespace": object.namespace.as_deref()},
        "spec": body["spec"],
        "status": {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": succeeded},
    });
    Some(Live { value: Arc::new(value), ready: true, current: true, kept: false })
}
