//! What becomes of the CRDs of a package: the decisions of the manager, with dry runs and the instances that are known.

use std::time::Duration;

use serde_json::{Value, json};

use super::fleet::{full_name, text};
use crate::api::ApiKind;
use crate::children::crds::{
    CrdDecision, CrdHistory, CrdSnapshot, CrdState, DryRun, LossyInstance, MANAGER, ManagerIdentity,
    WebhookState, decide_crd, lease, left_behind,
};
use crate::children::names;
use crate::cli::catalog::{Catalog, unreadable};
use crate::cluster::{Cluster, Query, Trial};
use crate::crd::Narrowed;
use crate::manager::raw::Raw;
use crate::package::{Package, Resource};
use crate::preview::{CrdReport, CrdWrite, Rejected, differences};

/// The Service of the conversion webhook that `operetta manager install` creates.
const SERVICE: &str = "operetta-webhook";
/// Where the path of a conversion begins in a URL.
const PATH: &str = "/convert/";

/// What becomes of one CRD.
pub(super) struct Decided {
    pub(super) report: CrdReport,
    /// The CRD as it would be.
    pub(super) crd: Value,
}

/// Decides about the CRD of a resource. `live`: as it is now, `takes_from`: the package from which it is to be taken over,
/// `instances`: those of its kind.
///
/// # Errors
/// A request fails, for people.
pub(super) async fn decide(
    cluster: &Cluster,
    package: &Package,
    resource: &Resource,
    (live, takes_from): (Option<&Value>, Option<&str>),
    (instances, namespace): (&[Value], &str),
) -> Result<Decided, String> {
    let lease = live.and_then(lease).unwrap_or_default().to_owned();
    let client = webhook(live, namespace);
    let mut snapshot = CrdSnapshot {
        package,
        resource,
        takes_from,
        manager: ManagerIdentity { webhook: WebhookState::Up(&client), lease: &lease, namespace },
        live: Ok(live.cloned()),
        dry_run: DryRun::NotSent,
        lossy: None,
        names: None,
    };
    let history = CrdHistory::default();
    let mut rejected = Vec::new();
    let (write, refused) = loop {
        match decide_crd(&snapshot, &history, Duration::ZERO) {
            CrdDecision::DryRun(body) => {
                let answer = cluster.apply_as(&ApiKind::crd(), &body, MANAGER, true, Trial::This).await;
                snapshot.dry_run = DryRun::Answered(answer.map(Box::new));
            }
            CrdDecision::ListInstances => {
                let names = instances.iter().map(|instance| full_name(&instance["metadata"])).collect();
                snapshot.names = Some(Ok(names));
            }
            CrdDecision::CheckInstances(narrowed) => {
                rejected = rejections(&narrowed, instances);
                let found = lossy(&narrowed, instances);
                drop(narrowed);
                snapshot.lossy = Some(Ok(found));
            }
            CrdDecision::Apply(..) => {
                break (if live.is_none() { CrdWrite::Created } else { CrdWrite::Updated }, None);
            }
            CrdDecision::Migrate => break (CrdWrite::Updated, None),
            CrdDecision::Settled(state, _) => match state {
                CrdState::Ready(_)
                | CrdState::Pending(_)
                | CrdState::Migrating(..)
                | CrdState::Conflicted(_)
                | CrdState::HandedOver(_) => {
                    break (CrdWrite::Unchanged, None);
                }
                CrdState::Refused(problem) => {
                    let help = problem.help.map(|help| format!("; {help}")).unwrap_or_default();
                    break (CrdWrite::Refused, Some(format!("{}{help}", problem.message)));
                }
                CrdState::Failed(problem, _) => return Err(problem.message),
            },
        }
    };
    let tried = match &snapshot.dry_run {
        DryRun::Answered(Ok(tried)) => Some((**tried).clone()),
        _ => None,
    };
    let crd = match (write, tried) {
        (CrdWrite::Unchanged, _) => live.cloned(),
        (_, tried) => tried,
    };
    let mut crd = crd.unwrap_or_else(|| resource.augmented_crd());
    let migrates_from =
        if write == CrdWrite::Updated { end_migration(resource, &mut crd) } else { Vec::new() };
    let mut fields = match (write, live) {
        (CrdWrite::Updated, Some(live)) => differences(Some(live), &crd),
        _ => Vec::new(),
    };
    // Only a manager knows where its webhook is.
    fields.retain(|field| !field.path.starts_with("spec.conversion.webhook.clientConfig"));
    let name = resource.crd_name().to_owned();
    Ok(Decided {
        report: CrdReport {
            name,
            write,
            fields,
            migrates_from,
            refused,
            rejected,
            instances: instances.len(),
        },
        crd,
    })
}

/// The CRDs of the package that its revision does not have any more. `is_followed`: whether an `Operator` installs the package,
/// whose manager refuses such a revision while there are instances.
///
/// # Errors
/// The instances cannot be listed, for people.
pub(super) async fn dropped(
    cluster: &Cluster,
    catalog: &Catalog,
    package: &Package,
    is_followed: bool,
) -> Result<Vec<CrdReport>, String> {
    let has = |name: &str| package.resources.iter().any(|resource| resource.crd_name() == name);
    let gone = catalog.kinds.iter().filter(|kind| kind.package == package.name && !has(&kind.full_name()));
    let mut reports = Vec::new();
    for kind in gone {
        let name = kind.full_name();
        let query = Query { metadata_only: true, ..Query::default() };
        let found = cluster.list_all(&kind.served.kind, &query, |_: Raw| ()).await;
        let count = found.map_err(|error| unreadable(&kind.served.kind, None, &error))?.len();
        let is_refused = count > 0 && is_followed;
        let refused = is_refused.then(|| {
            let problem = left_behind(&name, count, package);
            format!("{}; {}", problem.message, problem.help.unwrap_or_default())
        });
        let write = if is_refused { CrdWrite::Refused } else { CrdWrite::Dropped };
        let (fields, migrates_from, rejected) = Default::default();
        reports.push(CrdReport { name, write, fields, migrates_from, refused, rejected, instances: count });
    }
    Ok(reports)
}

/// The address of the conversion webhook: that of the live CRD, or else that of `operetta manager install`. Only the manager
/// knows whether it serves one; if it does not, it refuses a conversion.
fn webhook(live: Option<&Value>, namespace: &str) -> Value {
    let live = live.filter(|live| live["metadata"]["annotations"][names::CONVERSION].is_string());
    let mut client = live.map(|live| live["spec"]["conversion"]["webhook"]["clientConfig"].clone());
    if let Some(client) = &mut client {
        // Only the base is kept: the path names the conversion rules of the live CRD.
        if let Some(url) = client["url"].as_str() {
            let base = url.split(PATH).next().unwrap_or_default().to_owned();
            client["url"] = base.into();
        }
        if let Some(service) = client["service"].as_object_mut() {
            service.remove("path");
        }
    }
    let usual = || json!({"service": {"namespace": namespace, "name": SERVICE}});
    client.filter(|client| !client.is_null()).unwrap_or_else(usual)
}

/// Removes the versions that stay only until all instances are migrated, and returns their names.
fn end_migration(resource: &Resource, crd: &mut Value) -> Vec<String> {
    let wanted = resource.augmented_crd();
    let names = |crd: &Value| -> Vec<String> {
        crd["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|version| text(&version["name"]))
            .collect()
    };
    let wanted = names(&wanted);
    let removed: Vec<String> = names(crd).into_iter().filter(|name| !wanted.contains(name)).collect();
    if let Some(versions) = crd["spec"]["versions"].as_array_mut() {
        versions.retain(|version| !removed.contains(&text(&version["name"])));
    }
    removed
}

fn lossy(narrowed: &[Narrowed<'_>], instances: &[Value]) -> Vec<LossyInstance> {
    let find = |narrowed: &Narrowed<'_>, instance: &Value| {
        let meta = &instance["metadata"];
        LossyInstance::find(narrowed, &text(&meta["uid"]), &full_name(meta), Some(instance))
    };
    narrowed
        .iter()
        .flat_map(|narrowed| instances.iter().filter_map(move |instance| find(narrowed, instance)))
        .collect()
}

fn rejections(narrowed: &[Narrowed<'_>], instances: &[Value]) -> Vec<Rejected> {
    let violations = |instance: &Value| {
        let mut found: Vec<String> = Vec::new();
        for loss in narrowed.iter().flat_map(|narrowed| narrowed.losses(instance)) {
            let line = format!("{} {}", loss.path, loss.message);
            if !found.contains(&line) {
                found.push(line);
            }
        }
        found
    };
    let of = |instance: &Value| Rejected {
        instance: full_name(&instance["metadata"]),
        violations: violations(instance),
    };
    instances.iter().map(of).filter(|rejected| !rejected.violations.is_empty()).collect()
}
