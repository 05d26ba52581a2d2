//! Applies the objects of a package.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::shared::{FIELD_MANAGER, refused};
use super::{Failure, revisions};
use crate::api::{ApiKind, CallError, Class};
use crate::children::fields;
use crate::children::names::MANAGER_NAMESPACE;
use crate::cli::model::name_of;
use crate::cli::wait::{Look, Wait};
use crate::cli::{connect, out};
use crate::cluster::{Cluster, Propagation};
use crate::manager::sources;
use crate::operators::{self, NAMED_BY, NamespacesSpec, Object, OperatorSpec, Packed, TakeOver};
use crate::package::store::objects;

/// How long to wait until a deleted object is gone.
const GONE: Duration = Duration::from_secs(30);

/// Stores a revision, unless it is stored already. An incomplete or altered one is stored anew.
pub(super) async fn revision(cluster: &Cluster, packed: &Packed, namespace: &str) -> Result<(), Failure> {
    let kind = objects::kind();
    let live = cluster.get(&kind, None, &packed.revision).await;
    let live = live.map_err(|error| not_applied(&kind, &packed.revision, &error))?;
    if let Some(live) = live {
        if revisions::is_whole(cluster, &live, namespace).await? {
            // The same files may be from another registry now, or be signed.
            let recorded = packed.objects.last().and_then(|wanted| sources::annotation(&live, &wanted.body));
            if let Some(patch) = recorded {
                let name = &packed.revision;
                let patched = cluster.merge_patch(&kind, None, name, None, &patch, FIELD_MANAGER).await;
                patched.map_err(|error| not_applied(&kind, name, &error))?;
            }
            return Ok(());
        }
        // The revision and its parts are immutable, so they are deleted and created again.
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
            // The manager creates its own namespace when it needs it first. Any other missing namespace may
            // be a mistake.
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

/// What a command sets in an `Operator` beside the revision.
#[derive(Default)]
pub(super) struct Settings {
    pub(super) namespaces: Option<BTreeSet<String>>,
    pub(super) system_namespaces: Option<BTreeSet<String>>,
    /// It is given with every call.
    pub(super) takes_over: Vec<TakeOver>,
}

/// The `Operator` that names a revision. The namespaces that this command has set before stay, unless others
/// are given: an apply without them would remove them.
pub(super) fn operator_of(name: &str, revision: &str, live: Option<&Value>, settings: Settings) -> Object {
    // What is kept of a field, as far as this command has set it.
    let kept = |field: &str| {
        let owned = fields::of_manager(live?, FIELD_MANAGER)?;
        owned.get(&["spec", field]).and_then(|_| OperatorSpec::parse(live?).ok())
    };
    let Settings { namespaces, system_namespaces, takes_over } = settings;
    let namespaces = namespaces.or_else(|| kept("namespaces")?.namespaces?.names);
    let system_namespaces =
        system_namespaces.or_else(|| Some(kept("systemNamespaces")?.system_namespaces)).unwrap_or_default();
    let spec = OperatorSpec {
        revision: revision.to_owned(),
        namespaces: namespaces.map(|names| NamespacesSpec { names: Some(names), selector: None }),
        system_namespaces,
        takes_over,
        ..OperatorSpec::default()
    };
    operators::operator(name, &spec)
}

/// Applies the `Operator` with the name of the user, which its history shows.
pub(super) async fn operator(cluster: &Cluster, mut object: Object, force: bool) -> Result<Value, Failure> {
    if let Ok(user) = connect::user(cluster).await {
        let revision = object.body["spec"]["revision"].as_str().unwrap_or_default();
        object.body["metadata"]["annotations"] = json!({(NAMED_BY): format!("{revision} {user}")});
    }
    apply(cluster, &object, force).await.map_err(|error| {
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

/// Deletes exactly this object. Does not wait until it is gone.
pub(in crate::cli) async fn begin_deletion(
    cluster: &Cluster,
    kind: &ApiKind,
    object: &Value,
) -> Result<(), Failure> {
    let (namespace, name) = (object["metadata"]["namespace"].as_str(), name_of(object));
    let failed = |error: &CallError| refused(&format!("{} {name} cannot be deleted", kind.kind), error);
    let mut live = Some(object.clone());
    while let Some(object) = live {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let precondition = (text("uid"), text("resourceVersion"));
        match cluster.delete(kind, namespace, name, precondition, Propagation::Background).await {
            Ok(_) => return Ok(()),
            Err(error) if error.class == Class::NotFound => return Ok(()),
            // A write of the status has changed the resourceVersion.
            Err(error) if error.class == Class::Conflict => {
                live = cluster.get(kind, namespace, name).await.map_err(|error| failed(&error))?;
                live = live.filter(|live| live["metadata"]["uid"] == object["metadata"]["uid"]);
            }
            Err(error) => return Err(failed(&error)),
        }
    }
    Ok(())
}

/// Deletes exactly this object, and waits until it is gone.
pub(in crate::cli) async fn delete(cluster: &Cluster, kind: &ApiKind, object: &Value) -> Result<(), Failure> {
    begin_deletion(cluster, kind, object).await?;
    let (namespace, name) = (object["metadata"]["namespace"].as_str(), name_of(object));
    let failed = |error: &CallError| refused(&format!("{} {name} cannot be deleted", kind.kind), error);
    let over = |why: &str| format!("{} {name} is still there{why}", kind.kind);
    let look = async || {
        let live = cluster.get(kind, namespace, name).await.map_err(|error| failed(&error))?;
        let live = live.filter(|live| live["metadata"]["uid"] == object["metadata"]["uid"]);
        Ok(live.map_or(Look::Done(()), |live| {
            let finalizers = live["metadata"]["finalizers"].as_array().into_iter().flatten();
            let finalizers: Vec<&str> = finalizers.filter_map(Value::as_str).collect();
            Look::Waits(match &finalizers[..] {
                [] => String::new(),
                held => out::printable(&format!(": its finalizers keep it: {}", held.join(", "))),
            })
        }))
    };
    let wait = Wait { is_quiet: true, ..Wait::new(Duration::from_millis(100), GONE) };
    wait.until(over, look).await
}
