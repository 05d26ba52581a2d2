//! Writes roles, bindings and accounts, and never one that something else has made.

use serde_json::Value;

use super::command::Failure;
use super::out::printable;
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::cluster::Cluster;
use crate::rights::Owner;

/// How often an object is read again if others keep changing it.
const ATTEMPTS: u32 = 5;

/// Applies an object, unless there is one of its name that another owner has made.
pub(super) async fn apply(cluster: &Cluster, object: &Value, field_manager: &str) -> Result<Value, Refusal> {
    let Some(gvk) = Gvk::of(object) else { return Err(Refusal::NoKind) };
    let kind = ApiKind::built_in(&gvk.api_version, &gvk.kind);
    let metadata = &object["metadata"];
    let (name, namespace) = (metadata["name"].as_str().unwrap_or_default(), metadata["namespace"].as_str());
    let ours = Owner::of(object);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut body = object.clone();
        if let Some(live) = cluster.get(&kind, namespace, name).await.map_err(Refusal::Call)? {
            let owner = Owner::of(&live);
            if owner != ours {
                let what = printable(&format!("{} {name}", gvk.kind));
                return Err(Refusal::Foreign { what, owner });
            }
            // The apply is refused if the object is not the one that was read.
            body["metadata"]["uid"] = live["metadata"]["uid"].clone();
            body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        }
        match cluster.apply(&kind, &body, field_manager, true).await {
            Err(error) if error.class == Class::Conflict && attempts < ATTEMPTS => {}
            result => return result.map_err(Refusal::Call),
        }
    }
}

/// Why an object was not applied.
pub(super) enum Refusal {
    /// The API server refuses it.
    Call(CallError),
    /// An object of this name has another owner.
    Foreign {
        /// Kind and name.
        what: String,
        owner: Owner,
    },
    /// The object has no apiVersion or no kind.
    NoKind,
}

impl Refusal {
    /// The failure of a command. `call` describes a refusal by the API server.
    pub(super) fn failure(self, call: impl FnOnce(&CallError) -> Failure) -> Failure {
        match self {
            Self::Call(error) => call(&error),
            Self::Foreign { what, owner } => format!(
                "{what} exists and was made by {owner}: it is left as it is\n  help: delete it, if nothing needs it, and give \
                 the command again"
            )
            .into(),
            Self::NoKind => "an object has no kind".to_owned().into(),
        }
    }
}
