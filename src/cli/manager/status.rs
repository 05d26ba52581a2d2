//! `operetta manager status`: the version, the leader and the packages of the manager of a cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{ApiKind, CallError, Class};
use crate::children::{RIGHTS_MISSING, crds, names, package_of_crd_value};
use crate::cli::command::{Failure, end};
use crate::cli::connect::{self, ClusterOptions};
use crate::cli::{out, rbac};
use crate::cluster::Cluster;
use crate::facts::{self, condition};
use crate::operators;
use crate::rights::MANAGER;

/// Show the version, the leader and the packages of the manager
///
/// Reads the Deployment, the Lease, and the CRDs of packages. It also shows managers that were started by hand.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta manager status
  operetta manager status -o json | jq .leader

Exit codes: 0 a manager leads; 1 none leads, or no API server; 2 wrong usage.")]
pub(super) struct Args {
    /// The manager's namespace
    #[arg(short, long, value_name = "NAMESPACE", default_value = names::MANAGER_NAMESPACE, value_parser = rbac::namespace)]
    namespace: String,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,

    #[command(flatten)]
    cluster: ClusterOptions,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people
    Text,
    /// One object
    Json,
}

/// What is known of the manager.
struct State {
    deployment: Option<Value>,
    lease: Option<Value>,
    /// The Operators that lack rights, each with the message of its condition.
    lacking: Vec<(String, String)>,
    /// The CRDs of each package, and whether this manager reconciles their instances.
    packages: BTreeMap<String, Vec<(String, bool)>>,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    end(status(args).await)
}

async fn status(args: &Args) -> Result<ExitCode, Failure> {
    let server = connect::connect_in(&args.cluster).await?;
    let state = read(&server.cluster, &args.namespace).await.map_err(|error| error.to_string())?;
    let leader = state.lease.as_ref().and_then(|lease| leader(lease, crate::clock::now()));
    let code = if leader.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let text = match args.output {
        Output::Text => text(&state, leader, &args.namespace),
        Output::Json => out::json(&to_json(&state, leader, &args.namespace)),
    };
    Ok(out::all(&text, code))
}

async fn read(cluster: &Cluster, namespace: &str) -> Result<State, CallError> {
    let get = async |api_version: &str, kind: &str| {
        cluster.get(&ApiKind::built_in(api_version, kind), Some(namespace), MANAGER).await
    };
    let lease_name = format!("{namespace}/{MANAGER}");
    let mut packages: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for crd in cluster.list(&ApiKind::crd(), None, names::OPERATOR).await? {
        let Some(package) = package_of_crd_value(&crd) else { continue };
        let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let is_ours = crds::lease(&crd).is_none_or(|lease| lease == lease_name);
        packages.entry(package).or_default().push((name, is_ours));
    }
    let all = match cluster.list(&operators::kind(), None, "").await {
        // No manager has followed Operators yet.
        Err(error) if error.class == Class::NotFound => Vec::new(),
        all => all?,
    };
    let lacking = all.iter().filter_map(|operator| {
        let missing = condition(operator, RIGHTS_MISSING).filter(|c| c["status"] == "True")?;
        Some((facts::name(operator).to_owned(), facts::text(&missing["message"]).to_owned()))
    });
    Ok(State {
        lacking: lacking.collect(),
        deployment: get("apps/v1", "Deployment").await?,
        lease: get("coordination.k8s.io/v1", "Lease").await?,
        packages,
    })
}

/// The holder of a Lease that has not expired.
pub(super) fn leader(lease: &Value, now: Timestamp) -> Option<&str> {
    let spec = &lease["spec"];
    let renewed: Timestamp = spec["renewTime"].as_str()?.parse().ok()?;
    let seconds = spec["leaseDurationSeconds"].as_i64().unwrap_or_default();
    let is_fresh = now.as_second() - renewed.as_second() <= seconds;
    spec["holderIdentity"].as_str().filter(|holder| is_fresh && !holder.is_empty())
}

/// Whether all replicas of the newest revision of the Deployment are ready; else what is awaited.
pub(super) fn progress(deployment: &Value) -> Result<String, String> {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    let wanted = number(&spec["replicas"]);
    if number(&status["observedGeneration"]) < number(&deployment["metadata"]["generation"]) {
        return Err("waiting for the Deployment controller".to_owned());
    }
    let (updated, ready) = (number(&status["updatedReplicas"]), number(&status["readyReplicas"]));
    if updated < wanted {
        return Err(format!("{updated} of {wanted} replicas are updated"));
    }
    if number(&status["replicas"]) > updated {
        return Err("replicas of the previous revision are ending".to_owned());
    }
    if ready < wanted {
        return Err(format!("{ready} of {wanted} replicas are ready"));
    }
    Ok(format!("{ready} of {wanted} replicas are ready"))
}

fn image(deployment: &Value) -> &str {
    let image = deployment.pointer("/spec/template/spec/containers/0/image");
    image.and_then(Value::as_str).unwrap_or_default()
}

fn text(state: &State, leader: Option<&str>, namespace: &str) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{:<12}{}", format!("{name}:"), out::printable(value));
    };
    line("Namespace", namespace);
    match &state.deployment {
        Some(deployment) => {
            let progress = progress(deployment).unwrap_or_else(|waiting| waiting);
            line("Deployment", &format!("{MANAGER}, {progress}"));
            line("Image", image(deployment));
        }
        None => line("Deployment", "none: `operetta manager install` makes one"),
    }
    line("Leader", leader.unwrap_or("none: no manager has renewed the Lease in time"));
    if state.packages.is_empty() {
        line("Packages", "none");
    }
    for (package, crds) in &state.packages {
        let crds: Vec<String> = crds
            .iter()
            .map(|(name, is_ours)| if *is_ours { name.clone() } else { format!("{name} (another manager)") })
            .collect();
        line("Package", &format!("{package}: {}", crds.join(", ")));
    }
    for (package, message) in &state.lacking {
        line("Rights", &format!("{package}: {message}"));
    }
    text
}

fn to_json(state: &State, leader: Option<&str>, namespace: &str) -> Value {
    let packages: Vec<Value> = state
        .packages
        .iter()
        .map(|(name, crds)| {
            let crds = crds.iter().map(|(name, is_ours)| json!({"name": name, "managed": is_ours}));
            json!({"name": name, "crds": crds.collect::<Vec<_>>()})
        })
        .collect();
    let deployment = state.deployment.as_ref().map(|deployment| {
        json!({
            "image": image(deployment),
            "ready": progress(deployment).is_ok(),
            "replicas": deployment["spec"]["replicas"],
            "readyReplicas": deployment["status"]["readyReplicas"],
        })
    });
    let lacking = state.lacking.iter().map(|(name, message)| json!({"package": name, "message": message}));
    json!({
        "namespace": namespace, "leader": leader, "deployment": deployment, "packages": packages,
        "missingRights": lacking.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_lease_has_no_leader() {
        let lease = json!({"spec": {
            "holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z",
        }});
        let at = |seconds: i64| {
            let renewed: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            Timestamp::from_second(renewed.as_second() + seconds).unwrap()
        };
        assert_eq!(leader(&lease, at(10)), Some("a"));
        assert_eq!(leader(&lease, at(16)), None);
        let released = json!({"spec": {"holderIdentity": "", "renewTime": "2026-01-01T00:00:00Z"}});
        assert_eq!(leader(&released, at(0)), None);
    }

    #[test]
    fn a_rollout_is_awaited_to_its_end() {
        let deployment =
            |status: Value| json!({"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": status});
        for (status, awaited) in [
            (json!({"observedGeneration": 1}), Some("controller")),
            (
                json!({"observedGeneration": 2, "updatedReplicas": 1, "replicas": 2}),
                Some("1 of 2 replicas are updated"),
            ),
            (json!({"observedGeneration": 2, "updatedReplicas": 2, "replicas": 3}), Some("previous")),
            (
                json!({"observedGeneration": 2, "updatedReplicas": 2, "replicas": 2, "readyReplicas": 1}),
                Some("1 of 2"),
            ),
            (json!({"observedGeneration": 2, "updatedReplicas": 2, "replicas": 2, "readyReplicas": 2}), None),
        ] {
            let found = progress(&deployment(status)).err();
            assert_eq!(found.is_some(), awaited.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(awaited.unwrap_or_default()));
        }
    }
}
