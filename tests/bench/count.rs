//! A small round with the audit log: counts the manager's requests by verb and resource, and checks that the
//! bare client applies the same bodies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{ControlPlane, Operetta};
use operetta::package::Package;
use serde::Serialize;
use serde_json::Value;

use crate::Result;
use crate::bare::{Bare, resource};
use crate::rounds::{arguments, running, until_idle};
use crate::watch::Readiness;

const NAMESPACE: &str = "counted";

/// The requests of the manager.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Counted {
    /// The number of instances.
    pub(crate) instances: usize,
    /// The number of requests by verb and resource, and by the code of an error answer.
    pub(crate) requests: BTreeMap<String, usize>,
    /// The requests of a restarted manager when nothing has changed, until it is idle.
    pub(crate) restart: BTreeMap<String, usize>,
}

/// Counts the requests.
pub(crate) async fn count(
    plane: &ControlPlane,
    package: &Arc<Package>,
    instances: usize,
    concurrency: usize,
) -> Result<Counted> {
    eprintln!("counting the requests for {instances} instances");
    let bare = Bare::new(plane.client()?, concurrency);
    let resource = resource(package)?;
    // Start a manager before, so that the registration of the CRD does not count.
    let mut first = Operetta::run(plane, &arguments());
    first.wait_for("watching instances", Duration::from_secs(30)).await;
    drop(first);
    bare.create_namespace(NAMESPACE).await?;
    bare.create_instances(resource, NAMESPACE, instances).await?;

    let readiness = Readiness::watch(plane.client()?, resource, NAMESPACE);
    let audit = plane.audit();
    let mark = audit.mark()?;
    let mut manager = Operetta::run(plane, &arguments());
    readiness.all(instances, || running(&manager)).await?;
    until_idle(manager.pid()).await?;
    manager.kill9();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let requests = requests(&audit.requests_since(mark)?);

    let mark = audit.mark()?;
    let manager = Operetta::run(plane, &arguments());
    until_idle(manager.pid()).await?;
    drop(manager);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let restart = self::requests(&audit.requests_since(mark)?);

    same_bodies(&bare, package, instances).await?;
    Ok(Counted { instances, requests, restart })
}

/// Counts the manager's requests: everybody else has another user, or the user agent that is excluded here.
fn requests(events: &[operetta::local::AuditEvent]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events.iter().filter(|e| e.user == "admin" && !e.user_agent.starts_with("operetta-local/")) {
        let mut name = format!(
            "{} {}",
            event.verb,
            if event.resource.is_empty() { "(no resource)" } else { &event.resource }
        );
        if !event.subresource.is_empty() {
            name = format!("{name}/{}", event.subresource);
        }
        if event.code >= 400 {
            name = format!("{name} ({})", event.code);
        }
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// Checks the bodies of the bare client: applied after the manager with the same field manager, they change
/// no resourceVersion.
async fn same_bodies(bare: &Bare, package: &Arc<Package>, instances: usize) -> Result<()> {
    let versions = |children: &[Value]| -> HashMap<(String, String), String> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        children
            .iter()
            .map(|c| {
                ((text(&c["kind"]), text(&c["metadata"]["name"])), text(&c["metadata"]["resourceVersion"]))
            })
            .collect()
    };
    let resource = resource(package)?;
    let before = versions(&bare.children(package, NAMESPACE).await?);
    let applies = bare.render_again(package, &bare.instances(resource, NAMESPACE).await?).await?;
    bare.apply(&applies).await?;
    let after = versions(&bare.children(package, NAMESPACE).await?);
    let expected = instances * resource.children.len();
    if before.len() == expected && applies.len() == expected && before == after {
        return Ok(());
    }
    Err(format!(
        "the bare client applies other objects than the manager: {} and {} of {expected}",
        applies.len(),
        before.len()
    )
    .into())
}
