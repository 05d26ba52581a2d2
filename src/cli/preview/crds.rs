//! What becomes of the CRDs of a package: the decisions of the manager, with dry runs and the instances that are known.

use std::time::Duration;

use serde_json::Value;

use super::fleet::{full_name, text};
use crate::api::ApiKind;
use crate::children::crds::{
    CrdDecision, CrdHistory, CrdSnapshot, CrdState, DryRun, LossyInstance, MANAGER, ManagerIdentity,
    WebhookState, decide_crd, lease,
};
use crate::cluster::{Cluster, Trial};
use crate::crd::Narrowed;
use crate::package::{Package, Resource};
use crate::preview::{CrdReport, CrdWrite, Rejected, differences};

/// What becomes of one CRD.
pub(super) struct Decided {
    pub(super) report: CrdReport,
    /// The CRD as it would be.
    pub(super) crd: Value,
}

/// Decides about the CRD of a resource. `live`: as it is now, `instances`: those of its kind.
///
/// # Errors
/// A request fails, for people.
pub(super) async fn decide(
    cluster: &Cluster,
    package: &Package,
    resource: &Resource,
    live: Option<&Value>,
    (instances, namespace): (&[Value], &str),
) -> Result<Decided, String> {
    let lease = live.and_then(lease).unwrap_or_default().to_owned();
    let mut snapshot = CrdSnapshot {
        package,
        resource,
        manager: ManagerIdentity { webhook: WebhookState::Foreign, lease: &lease, namespace },
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
                | CrdState::Conflicted(_) => {
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
    let fields = match (write, live) {
        (CrdWrite::Updated, Some(live)) => differences(Some(live), &crd),
        _ => Vec::new(),
    };
    let name = resource.crd_name().to_owned();
    Ok(Decided { report: CrdReport { name, write, fields, migrates_from, refused, rejected }, crd })
}

/// Removes the versions that stay only until all instances are migrated; their names.
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
