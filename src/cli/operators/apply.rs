//! Applies the objects of a package.

use std::time::Duration;

use serde_json::{Value, json};

use super::{FIELD_MANAGER, Failure, name_of, refused, revisions};
use crate::api::{ApiKind, CallError, Class};
use crate::children::names::MANAGER_NAMESPACE;
use crate::cluster::{Cluster, Propagation};
use crate::operators::{Object, Packed};
use crate::package::store::objects;

/// How long an object that was deleted may still be there.
const GONE: Duration = Duration::from_secs(30);

/// Stores a revision, unless it is stored already. An incomplete or altered one is stored anew.
pub(super) async fn revision(cluster: &Cluster, packed: &Packed, namespace: &str) -> Result<(), Failure> {
    let kind = objects::kind();
    let live = cluster.get(&kind, None, &packed.revision).await;
    let live = live.map_err(|error| not_applied(&kind, &packed.revision, &error))?;
    if let Some(live) = live {
        if revisions::is_whole(cluster, &live, namespace).await? {
            return Ok(());
        }
        // Both are immutable.
        delete(cluster, &kind, &live).await?;
        for Object { kind, body } in packed.objects.iter().filter(|object| object.kind.kind == "ConfigMap") {
            let name = name_of(body);
            let part = cluster.get(kind, Some(namespace), name).await;
            if let Some(part) = part.map_err(|error| not_applied(kind, name, &error))? {
                delete(cluster, kind, &part).await?;
            }
        }
    }
    for object in &packed.objects {
        match apply(cluster, object, true).await {
            // The manager makes its namespace when it needs it first. Any other name may be a mistake.
            Err(error) if error.class == Class::NotFound && object.kind.namespaced => {
                if namespace != MANAGER_NAMESPACE {
                    let message = format!(
                        "there is no namespace {namespace}\n  help: --namespace is that of the manager, \
                         {MANAGER_NAMESPACE} if it was not installed elsewhere; if it is right, `kubectl create namespace \
                         {namespace}`"
                    );
                    return Err(message.into());
                }
                let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
                let kind = ApiKind::built_in("v1", "Namespace");
                let made = cluster.apply(&kind, &made, FIELD_MANAGER, false).await;
                made.map_err(|error| not_applied(&kind, namespace, &error))?;
                let again = apply(cluster, object, true).await;
                again.map_err(|error| not_applied(&object.kind, name_of(&object.body), &error))?;
            }
            result => {
                result.map_err(|error| not_applied(&object.kind, name_of(&object.body), &error))?;
            }
        }
    }
    Ok(())
}

/// Applies the `Operator`.
pub(super) async fn operator(cluster: &Cluster, object: &Object, force: bool) -> Result<Value, Failure> {
    apply(cluster, object, force).await.map_err(|error| {
        let mut failure = not_applied(&object.kind, name_of(&object.body), &error);
        if error.is_apply_conflict() {
            failure.message.push_str(
                "\n  help: change it where that manager has it from, such as in Git; --force-conflicts takes the fields over",
            );
        }
        failure
    })
}

async fn apply(cluster: &Cluster, object: &Object, force: bool) -> Result<Value, CallError> {
    cluster.apply(&object.kind, &object.body, FIELD_MANAGER, force).await
}

fn not_applied(kind: &ApiKind, name: &str, error: &CallError) -> Failure {
    refused(&format!("{} {name} cannot be applied", kind.kind), error)
}

/// Deletes exactly this object, and waits until it is gone.
pub(super) async fn delete(cluster: &Cluster, kind: &ApiKind, object: &Value) -> Result<(), Failure> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let (namespace, name) = (object["metadata"]["namespace"].as_str(), text("name"));
    let failed = |error: &CallError| refused(&format!("{} {name} cannot be deleted", kind.kind), error);
    let mut version = text("resourceVersion").to_owned();
    loop {
        let precondition = (text("uid"), version.as_str());
        match cluster.delete(kind, namespace, name, precondition, Propagation::Background).await {
            Ok(_) => break,
            Err(error) if error.class == Class::NotFound => return Ok(()),
            // A status is written now and then.
            Err(error) if error.class == Class::Conflict => {
                let live = cluster.get(kind, namespace, name).await.map_err(|error| failed(&error))?;
                match live.filter(|live| live["metadata"]["uid"] == object["metadata"]["uid"]) {
                    Some(live) => {
                        live["metadata"]["resourceVersion"]
                            .as_str()
                            .unwrap_or_default()
                            .clone_into(&mut version);
                    }
                    None => return Ok(()),
                }
            }
            Err(error) => return Err(failed(&error)),
        }
    }
    let deadline = tokio::time::Instant::now() + GONE;
    loop {
        let live = cluster.get(kind, namespace, name).await.map_err(|error| failed(&error))?;
        if live.is_none_or(|live| live["metadata"]["uid"] != object["metadata"]["uid"]) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            return Err(format!("{} {name} is still there: its finalizers keep it", kind.kind).into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
