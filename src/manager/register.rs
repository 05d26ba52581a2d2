//! Registering the kinds of a package: augmenting its CRDs, applying them, waiting until they are served.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::registry::Registered;
use crate::children::fields::{FieldSet, uncovered};
use crate::children::names;
use crate::cluster::{ApiKind, CallError, Class, Cluster, Kinds};
use crate::crd;
use crate::diag::Diagnostic;
use crate::package::{Package, Resource};

/// The field manager of CRDs.
const MANAGER: &str = "operetta";
/// How long the server may take to establish a CRD.
const ESTABLISH: Duration = Duration::from_secs(30);
/// How often a call that may succeed later is tried.
const ATTEMPTS: u32 = 5;

/// The kind of CRDs.
static CRD: LazyLock<ApiKind> = LazyLock::new(|| ApiKind {
    group: "apiextensions.k8s.io".into(),
    version: "v1".into(),
    kind: "CustomResourceDefinition".into(),
    plural: "customresourcedefinitions".into(),
    namespaced: false,
});

/// Registers all kinds of a package: all, or none is returned.
///
/// # Errors
/// Each with the file of the CRD at fault.
pub(super) async fn register(
    cluster: &Cluster,
    kinds: &Kinds,
    package: &Arc<Package>,
) -> Result<Vec<Registered>, Vec<Diagnostic>> {
    let mut problems = Vec::new();
    let mut plans = Vec::new();
    // All are tried before the first is applied, so that a package is not left half installed.
    for (index, resource) in package.resources.iter().enumerate() {
        match prepare(cluster, package, resource).await {
            Ok(plan) => plans.push((index, resource, plan)),
            Err(problem) => problems.push(problem.located(resource.crd_location.clone())),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut registered = Vec::new();
    for (index, resource, plan) in plans {
        match install(cluster, &plan).await {
            Ok(()) => registered.push(Registered {
                crd: plan.name.as_str().into(),
                kind: kinds.insert(api_kind(&resource.kind)),
                package: Some((Arc::clone(package), index)),
                child_kinds: plan.child_kinds,
            }),
            Err(problem) => problems.push(problem.located(resource.crd_location.clone())),
        }
    }
    if problems.is_empty() { Ok(registered) } else { Err(problems) }
}

/// A CRD as it is to be applied.
struct Plan {
    name: String,
    body: Value,
    child_kinds: BTreeSet<(String, String)>,
    /// It is there already, just so.
    done: bool,
}

async fn prepare(cluster: &Cluster, package: &Package, resource: &Resource) -> Result<Plan, Diagnostic> {
    let name = resource.crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let existing = retrying(|| cluster.get(&CRD, None, &name)).await.map_err(|e| unreachable(&name, &e))?;
    if let Some(existing) = &existing {
        check_owner(existing, &name, package, resource)?;
    }
    let mut child_kinds = existing.as_ref().map(recorded_kinds).unwrap_or_default();
    child_kinds.extend(resource.children.iter().flat_map(|child| child.kinds.iter().cloned()));
    let body = body(package, resource, &child_kinds);
    let done = existing.as_ref().is_some_and(|existing| {
        existing["metadata"]["annotations"][names::INTENT] == body["metadata"]["annotations"][names::INTENT]
            && is_established(existing)
            && FieldSet::of_manager(existing, MANAGER).is_some_and(|owned| uncovered(&body, &owned).is_none())
    });
    if !done {
        retrying(|| cluster.apply_checked(&CRD, &body, MANAGER, true, true)).await.map_err(|e| {
            Diagnostic::error("crd::refused", format!("the API server refuses the CRD {name}: {e}"))
                .help("mend the CRD; `kubectl apply --dry-run=server -f` on the file shows the server's words in full")
        })?;
    }
    Ok(Plan { name, body, child_kinds, done })
}

/// What is applied: the package's CRD with what Operetta adds.
fn body(package: &Package, resource: &Resource, child_kinds: &BTreeSet<(String, String)>) -> Value {
    let mut body = crd::augment(&resource.crd, &additions(resource));
    if let Some(map) = body.as_object_mut() {
        map.remove("status");
    }
    let meta = &mut body["metadata"];
    let kinds: Vec<String> =
        child_kinds.iter().map(|(api_version, kind)| format!("{api_version}/{kind}")).collect();
    meta["labels"][names::OPERATOR] = package.name.as_str().into();
    meta["labels"][names::MANAGED_BY] = "operetta".into();
    meta["annotations"][names::CHILD_KINDS] = kinds.join(",").into();
    let hash = names::short_hash(&body.to_string(), 16);
    body["metadata"]["annotations"][names::INTENT] = hash.into();
    body
}

fn additions(resource: &Resource) -> crd::Additions {
    crd::Additions {
        status: resource.status.iter().map(|field| field.name.clone()).collect(),
        ..crd::Additions::default()
    }
}

/// Two packages cannot have one kind, and a CRD that others installed is theirs unless the package says
/// `adopt: true`.
fn check_owner(
    existing: &Value,
    name: &str,
    package: &Package,
    resource: &Resource,
) -> Result<(), Diagnostic> {
    match existing["metadata"]["labels"][names::OPERATOR].as_str() {
        Some(owner) if owner == package.name => Ok(()),
        Some(owner) => {
            Err(Diagnostic::error("crd::claimed", format!("the CRD {name} belongs to the package {owner}"))
                .help(format!(
                    "one kind has one package: remove {owner}, or give this package's kind another group"
                )))
        }
        None if resource.adopt => Ok(()),
        None => Err(Diagnostic::error(
            "crd::foreign",
            format!("the CRD {name} exists and was not installed by Operetta"),
        )
        .help("set `adopt: true` beside `crd` to take it over, or delete it if nobody uses it")),
    }
}

async fn install(cluster: &Cluster, plan: &Plan) -> Result<(), Diagnostic> {
    let Plan { name, body, done, .. } = plan;
    if *done {
        debug!(crd = %name, "registered already");
        return Ok(());
    }
    retrying(|| cluster.apply(&CRD, body, MANAGER, true)).await.map_err(|e| {
        Diagnostic::error("crd::refused", format!("the API server refuses the CRD {name}: {e}"))
    })?;
    let deadline = Instant::now() + ESTABLISH;
    loop {
        let live = retrying(|| cluster.get(&CRD, None, name)).await.map_err(|e| unreachable(name, &e))?;
        if live.as_ref().is_some_and(is_established) {
            info!(crd = %name, "registered");
            return Ok(());
        }
        if let Some(message) = live.as_ref().and_then(names_refused) {
            return Err(Diagnostic::error(
                "crd::names",
                format!("the names of the CRD {name} are taken: {message}"),
            )
            .help("two CRDs of one group cannot share kind, plural or short names"));
        }
        if Instant::now() > deadline {
            return Err(Diagnostic::error(
                "crd::not-established",
                format!("the API server has not established the CRD {name} within 30 s"),
            ));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn condition<'a>(crd: &'a Value, kind: &str) -> Option<&'a Value> {
    crd["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

fn is_established(crd: &Value) -> bool {
    condition(crd, "Established").is_some_and(|c| c["status"] == "True")
}

fn names_refused(crd: &Value) -> Option<String> {
    let condition = condition(crd, "NamesAccepted").filter(|c| c["status"] == "False")?;
    condition["message"].as_str().map(str::to_owned)
}

/// The kinds that children of a CRD's instances have, or had.
fn recorded_kinds(crd: &Value) -> BTreeSet<(String, String)> {
    let text = crd["metadata"]["annotations"][names::CHILD_KINDS].as_str().unwrap_or_default();
    text.split(',')
        .filter_map(|entry| entry.rsplit_once('/'))
        .map(|(a, k)| (a.to_owned(), k.to_owned()))
        .collect()
}

/// CRDs of packages that are not loaded now. Their instances are only helped to go.
pub(super) async fn orphans(
    cluster: &Cluster,
    kinds: &Kinds,
    loaded: &BTreeSet<String>,
) -> Result<Vec<Registered>, CallError> {
    let crds = retrying(|| cluster.list(&CRD, None, names::OPERATOR, 500)).await?;
    let mut found = Vec::new();
    for crd in crds {
        let name = crd["metadata"]["name"].as_str().unwrap_or_default();
        if loaded.contains(name) {
            continue;
        }
        let Some(kind) = crd::kind(&crd) else { continue };
        warn!(crd = %name, "its package is not loaded: instances are left as they are, and helped to go when they are deleted");
        found.push(Registered {
            crd: name.into(),
            kind: kinds.insert(api_kind(&kind)),
            package: None,
            child_kinds: recorded_kinds(&crd),
        });
    }
    Ok(found)
}

fn api_kind(kind: &crd::Kind) -> ApiKind {
    ApiKind {
        group: kind.group.clone(),
        version: kind.version.clone(),
        kind: kind.kind.clone(),
        plural: kind.plural.clone(),
        namespaced: kind.namespaced,
    }
}

fn unreachable(name: &str, error: &CallError) -> Diagnostic {
    Diagnostic::error("crd::unreachable", format!("the CRD {name} cannot be read: {error}"))
}

/// Repeats a call while its failure may pass.
async fn retrying<T, F: Future<Output = Result<T, CallError>>>(call: impl Fn() -> F) -> Result<T, CallError> {
    let mut wait = Duration::from_millis(250);
    for attempt in 1.. {
        match call().await {
            Err(error) if matches!(error.class, Class::Retry | Class::Conflict) && attempt < ATTEMPTS => {
                debug!(%error, "trying again");
                tokio::time::sleep(error.retry_after.unwrap_or(wait)).await;
                wait *= 2;
            }
            result => return result,
        }
    }
    call().await
}
