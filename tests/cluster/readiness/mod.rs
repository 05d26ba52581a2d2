//! Readiness of real objects: a watch records every state that the API server, the controllers and the fake
//! nodes give to an object of each built-in kind. Where the rule for a kind reads only metadata, the rule for
//! the whole object must give the same result.

mod built_in;
mod custom;
mod every_kind;
mod ready_when;
mod record;
mod tally;
mod workloads;

use self::record::Record;
use crate::support::ext::Scene;

/// A manifest for kubectl, which takes a text that begins with a brace for JSON.
fn document(manifest: &str) -> String {
    format!("---\n{manifest}")
}

async fn apply(scene: &Scene, manifest: &str) {
    scene.apply(&document(manifest)).await;
}

/// Creates an object of a kind (API version, kind, plural), and records its states from the creation on.
async fn created(scene: &Scene, kind: (&str, &str, &str), name: &str, spec: &str) -> Record {
    let record = Record::of(scene, kind, true, name, None);
    record.watching().await;
    let (api, word, _) = kind;
    let manifest = format!("{{apiVersion: {api}, kind: {word}, metadata: {{name: {name}}}, spec: {spec}}}");
    apply(scene, &manifest).await;
    record
}

const POD_TEMPLATE: &str = "{metadata: {labels: {app: NAME}}, spec: {containers: [{name: a, image: a:1}]}}";

/// A workload with two replicas, or with one on each node.
fn workload(api: &str, kind: &str, name: &str, spec: &str) -> String {
    let template = POD_TEMPLATE.replace("NAME", name);
    format!(
        "{{apiVersion: {api}, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}, selector: {{matchLabels: {{app: {name}}}}}, \
         template: {template}}}}}"
    )
}
