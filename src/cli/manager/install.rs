//! `operetta manager install`: applies the objects of the manager, and waits until it is ready.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};

use super::objects::{self, Part};
use super::status;
use super::values::{self, Settings};
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::children::names::MANAGER_NAMESPACE;
use crate::cli::command::{BLOCKED, Failure, Format, duration, end};
use crate::cli::connect::{self, ClusterOptions};
use crate::cli::logging::Logging;
use crate::cli::model::name_of;
use crate::cli::out::{self, printable};
use crate::cli::wait::{Look, Wait};
use crate::cli::{operators, owned, rbac, run};
use crate::cluster::Cluster;
use crate::readiness::{self, Readiness};
use crate::rights::{self, MANAGER, Owner};
use crate::yaml;

/// The field manager of the objects.
const FIELD_MANAGER: &str = "operetta-install";
/// How often the Deployment is read.
const EVERY: Duration = Duration::from_secs(1);
/// How long a hindrance must last before the command gives up: a registry, or an API server that a manager
/// needs, may be unavailable for a moment.
const HOLDS: Duration = Duration::from_secs(15);

/// Apply the objects of the manager, and wait until it is ready
///
/// Applies by server-side apply: the namespace, the CRDs of Operetta with their policy, the account of the manager with its
/// roles, a deployment, its disruption budget, and a service for metrics. With --dry-run -o yaml it prints them for Git, and
/// needs no cluster: `kubectl apply --server-side` of that does the same. It can be repeated, and it upgrades: a value that is not
/// given again is the default again.
///
/// The values are those of the Helm chart (docs/deploy/chart/values.yaml): image, replicas, imagePullSecrets, extraArgs,
/// resources, nodeSelector, tolerations, affinity, priorityClassName, networkPolicy and serviceMonitor.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta manager install --image registry.example.org/operetta:0.1.0
  operetta manager install --values values.yaml --set networkPolicy.enabled=true
  operetta manager install --set 'tolerations=[{key: dedicated, operator: Exists}]'
  operetta manager install -- --allow-call-to bookings.internal
  operetta manager install --dry-run -o yaml | kubectl apply --server-side -f -

Exit codes: 0 the manager is ready (without --wait: applied); 1 refused, or no API server; 2 wrong usage; 4 --timeout is \
over, and the installation continues; 5 its pods cannot be created or do not start, and the message says why.")]
pub(super) struct Args {
    /// The manager's namespace
    #[arg(short, long, value_name = "NAMESPACE", default_value = MANAGER_NAMESPACE, value_parser = rbac::namespace)]
    namespace: String,

    /// The manager's image, which the nodes must be able to pull [default: operetta of this version]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// How many managers run: one leads, the others stand by [default: 2]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    replicas: Option<u32>,

    /// A file of values, as the chart has them; repeatable, later ones win
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    values: Vec<PathBuf>,

    /// A value, which wins over files: its path, and YAML; repeatable
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = values::assignment)]
    set: Vec<Value>,

    /// More flags of `operetta run` for the manager, after those of extraArgs
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,

    /// Print the objects instead of applying them
    #[arg(long)]
    dry_run: bool,

    /// Output format with --dry-run
    #[arg(short, long, value_enum, value_name = "FORMAT", requires = "dry_run")]
    output: Option<Format>,

    /// Wait until the manager is ready
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    wait: bool,

    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    cluster: ClusterOptions,
}

/// The settings that are given.
fn settings(args: &Args) -> Result<Settings, String> {
    let mut settings = Settings::defaults(&args.namespace);
    for path in &args.values {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        let given = yaml::from_str(&text).map_err(|error| failed(&error.message))?;
        // A file that contains only comments is null.
        if !given.is_null() {
            values::merge(&mut settings.values, &given).map_err(|error| failed(&error))?;
        }
    }
    for given in &args.set {
        values::merge(&mut settings.values, given).map_err(|error| format!("--set: {error}"))?;
    }
    if let Some(image) = &args.image {
        settings.values["image"] = json!(image);
    }
    if let Some(replicas) = args.replicas {
        settings.values["replicas"] = json!(replicas);
    }
    if let Some(flags) = settings.values["extraArgs"].as_array_mut() {
        flags.extend(args.flags.iter().map(|flag| json!(flag)));
    }
    check_flags(&settings)?;
    Ok(settings)
}

/// The flags of `operetta run`, the first word.
#[derive(Debug, Parser)]
#[command(name = "run")]
struct RunFlags {
    #[command(flatten)]
    run: run::Args,
    #[command(flatten)]
    _logging: Logging,
}

/// Checks the flags of the manager, which would not start with an unknown one.
fn check_flags(settings: &Settings) -> Result<(), String> {
    let extra = settings.values["extraArgs"].as_array().into_iter().flatten();
    let extra: Option<Vec<&str>> = extra.map(Value::as_str).collect();
    let extra = extra.ok_or("extraArgs must be a list of texts: put numbers into quotes")?;
    let own = objects::own_flags(&settings.namespace);
    let all = own.iter().map(String::as_str).chain(extra);
    let flags = RunFlags::try_parse_from(all).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        format!("the flags of the manager are wrong: {first}\n  help: `operetta run --help` lists them")
    })?;
    if flags.run.names_packages() {
        return Err("the flags of the manager name packages: a manager in a cluster follows Operators, which `operetta \
                    install PACKAGE` makes"
            .to_owned());
    }
    Ok(())
}

pub(super) async fn run(args: &Args) -> ExitCode {
    end(install(args).await)
}

async fn install(args: &Args) -> Result<ExitCode, Failure> {
    let settings = settings(args).map_err(|error| Failure::with_code(2, error))?;
    let objects = objects::made(&settings);
    if args.dry_run {
        let text = args.output.unwrap_or(Format::Yaml).objects(&objects);
        return Ok(out::all(&text, ExitCode::SUCCESS));
    }
    let server = connect::connect_in(&args.cluster).await?;
    for object in &objects {
        out::note(format!("{} applied", apply(&server.cluster, object).await?));
    }
    delete_former(&server.cluster, &args.namespace).await?;
    delete_unwanted(&server.cluster, &settings).await?;
    if args.wait { ready(&server.cluster, args).await } else { Ok(ExitCode::SUCCESS) }
}

/// Applies an object; returns its kind and name.
async fn apply(cluster: &Cluster, object: &Value) -> Result<String, Failure> {
    let Some(gvk) = Gvk::of(object) else { return Err("an object has no kind".into()) };
    let name = name_of(object);
    let what = format!("{} {name}", gvk.kind);
    let failed = |error: &CallError| -> Failure {
        let help = if error.code == 403 && error.is_unauthorized() {
            "\n  help: installing needs the rights of an administrator: who grants rights must have them"
        } else if error.class == Class::NotFound && &*gvk.kind == "ServiceMonitor" {
            "\n  help: the cluster has no Prometheus Operator: install it, or leave serviceMonitor.enabled false"
        } else {
            ""
        };
        format!("{what}: {error}{help}").into()
    };
    let applied = if gvk.api_version.starts_with("rbac.") || &*gvk.kind == "ServiceAccount" {
        owned::apply(cluster, object, FIELD_MANAGER).await.map_err(|refusal| refusal.failure(failed))
    } else {
        cluster
            .apply(&objects::kind_of(&gvk), object, FIELD_MANAGER, true)
            .await
            .map_err(|error| failed(&error))
    };
    applied.map(|_| what.clone())
}

/// Deletes the optional objects of an earlier installation that the settings do not enable.
async fn delete_unwanted(cluster: &Cluster, settings: &Settings) -> Result<(), Failure> {
    for Part { object, option, .. } in objects::all(settings) {
        let Some(value) = option.filter(|value| !settings.is_enabled(value)) else { continue };
        let Some(gvk) = Gvk::of(&object) else { continue };
        let (kind, name) = (objects::kind_of(&gvk), name_of(&object));
        let live = match cluster.get(&kind, Some(&settings.namespace), name).await {
            // The cluster does not have the kind, or the user may not read it.
            Err(error) if error.class == Class::NotFound || error.is_unauthorized() => continue,
            live => live.map_err(|error| format!("{} {name} cannot be read: {error}", kind.kind))?,
        };
        if let Some(live) = live.filter(|live| Owner::of(live) == Owner::Manager) {
            operators::delete(cluster, &kind, &live).await?;
            out::note(format!("{} {name} deleted: {value}.enabled is false", kind.kind));
        }
    }
    Ok(())
}

/// Deletes the roles that this manager had under earlier names.
async fn delete_former(cluster: &Cluster, namespace: &str) -> Result<(), Failure> {
    for [role, binding] in rights::manager::former(namespace) {
        let subjects = &binding["subjects"];
        let mut there = Vec::new();
        for object in [&binding, &role] {
            let Some(gvk) = Gvk::of(object) else { continue };
            let kind = ApiKind::built_in(&gvk.api_version, &gvk.kind);
            let (name, namespace) = (name_of(object), object["metadata"]["namespace"].as_str());
            let live = cluster.get(&kind, namespace, name).await;
            let live = live.map_err(|error| format!("{} {name} cannot be read: {error}", kind.kind))?;
            there.extend(live.filter(|live| Owner::of(live) == Owner::Manager).map(|live| (kind, live)));
        }
        // A manager in another namespace that was not upgraded may still use the role.
        if there.iter().any(|(_, live)| !live["subjects"].is_null() && live["subjects"] != *subjects) {
            continue;
        }
        for (kind, live) in &there {
            operators::delete(cluster, kind, live).await?;
        }
    }
    Ok(())
}

/// Waits until all replicas of the newest revision are ready.
async fn ready(cluster: &Cluster, args: &Args) -> Result<ExitCode, Failure> {
    let kind = ApiKind::built_in("apps/v1", "Deployment");
    let help = || {
        format!("\n  help: kubectl -n {} describe pods -l app.kubernetes.io/name={MANAGER}", args.namespace)
    };
    let over = |why: &str| format!("not ready within {} s: {why}{}", args.timeout.as_secs(), help());
    let mut crashing = None;
    let look = async || {
        let deployment = match cluster.get(&kind, Some(&args.namespace), MANAGER).await {
            Ok(Some(deployment)) => deployment,
            Ok(None) => return Err("the Deployment is gone".into()),
            Err(error) if error.class == Class::Retry => return Ok(Look::Waits(error.to_string())),
            Err(error) => return Err(error.to_string().into()),
        };
        let waiting = match status::progress(&deployment) {
            Ok(done) => return Ok(Look::Done(done)),
            Err(waiting) => waiting,
        };
        let pods = cluster
            .list(&ApiKind::built_in("v1", "Pod"), Some(&args.namespace), &objects::selector_text())
            .await;
        Ok(match hindrance(&deployment, &pods.unwrap_or_default()) {
            None => Look::Waits(waiting),
            Some(Hindrance { why, may_pass: true, .. }) => Look::Waits(format!("{waiting}: {why}")),
            Some(Hindrance { why, log_of, .. }) => {
                crashing = log_of;
                let failure = printable(&format!("{waiting}: {why}")) + &help();
                Look::Blocked(Failure::with_code(BLOCKED, failure), HOLDS)
            }
        })
    };
    let mut end = Wait::new(EVERY, args.timeout).until(over, look).await;
    if let (Err(failure), Some(pod)) = (&mut end, crashing) {
        let log = cluster.log(&args.namespace, &pod, 1).await.unwrap_or_default();
        let _ = write!(failure.message, "\n  last line of its log: {}", printable(log.trim()));
    }
    out::note(end?);
    Ok(ExitCode::SUCCESS)
}

/// Why the Deployment is not ready.
#[derive(Debug, PartialEq, Eq)]
struct Hindrance {
    why: String,
    /// Whether the hindrance may pass without an action of a person.
    may_pass: bool,
    /// The pod whose log says more.
    log_of: Option<String>,
}

/// What keeps the Deployment from becoming ready, if it is known: that pods cannot be created, or why the
/// first pod of the newest revision that is not ready does not start.
fn hindrance(deployment: &Value, pods: &[Value]) -> Option<Hindrance> {
    let container = |spec: &Value| {
        let container = &spec["containers"][0];
        (container["image"].clone(), container["args"].clone())
    };
    let newest = container(&deployment["spec"]["template"]["spec"]);
    let of_pods = pods.iter().filter(|pod| container(&pod["spec"]) == newest).find_map(|pod| {
        let (Readiness::NotReady { reason, message } | Readiness::Failed { reason, message }) =
            readiness::of(pod)
        else {
            return None;
        };
        let name = name_of(pod);
        let status = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        let detail = status["message"].as_str().map(|detail| format!(": {detail}")).unwrap_or_default();
        let (why, may_pass, log_of) = match &*reason {
            // The reason changes with every attempt.
            "ImagePullBackOff" | "ErrImagePull" => ("its image cannot be pulled".to_owned(), false, None),
            "InvalidImageName" | "CreateContainerConfigError" | "CreateContainerError" => {
                (format!("{message}{detail}"), false, None)
            }
            "CrashLoopBackOff" => (message, false, Some(name.to_owned())),
            "PodPending" | "ContainersNotReady" | "PodNotObserved" | "PodNotReady" => return None,
            // For example a pod that cannot be scheduled: a node may be added.
            _ => (message, true, None),
        };
        let image = newest.0.as_str().unwrap_or_default();
        Some(Hindrance { why: format!("pod {name} ({image}): {why}"), may_pass, log_of })
    });
    of_pods.or_else(|| match readiness::of(deployment) {
        Readiness::NotReady { reason, message } if reason == "ReplicaFailure" => {
            Some(Hindrance { why: message, may_pass: false, log_of: None })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(flags: &[&str]) -> Result<Settings, String> {
        let all = ["operetta", "manager", "install"].into_iter().chain(flags.iter().copied());
        let cli = crate::cli::Cli::try_parse_from(all).map_err(|error| error.to_string())?;
        let crate::cli::Command::Manager(args) = &cli.command else { panic!() };
        let super::super::Command::Install(args) = &args.command else { panic!() };
        settings(args)
    }

    #[test]
    fn reasons_why_pods_do_not_start_are_recognized() {
        let spec =
            |image: &str| json!({"containers": [{"name": "manager", "image": image, "args": ["run"]}]});
        let condition =
            |failure: &str| json!({"type": "ReplicaFailure", "status": "True", "message": failure});
        let deployment = |conditions: Value| {
            json!({
                "kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"generation": 1},
                "spec": {"replicas": 2, "template": {"spec": spec("a:1")}},
                "status": {"observedGeneration": 1, "conditions": conditions},
            })
        };
        let pod = |image: &str, state: Value| {
            json!({
                "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "operetta-1"}, "spec": spec(image),
                "status": {"phase": "Pending", "containerStatuses": [{"name": "manager", "state": {"waiting": state}}]},
            })
        };
        let unscheduled = json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "operetta-1"}, "spec": spec("a:1"),
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}]},
        });
        let none = || deployment(json!([]));
        let pull = |reason: &str| pod("a:1", json!({"reason": reason, "message": "not found"}));
        let found = |deployment: Value, pods: &[Value]| {
            hindrance(&deployment, pods).map(|found| (found.why, found.may_pass, found.log_of.is_some()))
        };
        let cannot_pull = "pod operetta-1 (a:1): its image cannot be pulled".to_owned();
        for reason in ["ErrImagePull", "ImagePullBackOff"] {
            assert_eq!(found(none(), &[pull(reason)]), Some((cannot_pull.clone(), false, false)), "{reason}");
        }
        // A pod of another revision says nothing about the newest one.
        assert_eq!(found(none(), &[pod("a:0", json!({"reason": "ErrImagePull"}))]), None);
        assert_eq!(found(none(), &[pod("a:1", json!({"reason": "ContainerCreating"}))]), None);
        let (why, may_pass, _) = found(none(), &[unscheduled]).unwrap();
        assert!(may_pass && why.contains("no node fits"), "{why}");
        let config = json!({"reason": "CreateContainerConfigError", "message": "secret \"x\" not found"});
        let (why, may_pass, _) = found(none(), &[pod("a:1", config)]).unwrap();
        assert!(!may_pass && why.contains("secret \"x\" not found"), "{why}");
        let mut crashing = pod("a:1", json!({"reason": "CrashLoopBackOff"}));
        crashing["status"]["phase"] = "Running".into();
        assert!(found(none(), &[crashing]).unwrap().2);
        let (why, may_pass, _) = found(deployment(json!([condition("exceeded quota")])), &[]).unwrap();
        assert!(!may_pass && why.contains("exceeded quota"), "{why}");
    }

    #[test]
    fn flags_win_over_sets_and_sets_over_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "image: a\nreplicas: 5\nextraArgs: [--allow-call-to, a.internal]\n")
            .unwrap();
        let file = file.path().to_str().unwrap();
        let settings = given(&[
            "-f",
            file,
            "--set",
            "replicas=4",
            "--image",
            "b",
            "--",
            "--allow-call-to",
            "10.0.0.0/8",
        ])
        .unwrap();
        assert_eq!((&settings.values["image"], &settings.values["replicas"]), (&json!("b"), &json!(4)));
        assert_eq!(
            settings.values["extraArgs"],
            json!(["--allow-call-to", "a.internal", "--allow-call-to", "10.0.0.0/8"])
        );
        let all = objects::made(&settings);
        let deployment = all.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"].as_array().unwrap().last(), Some(&json!("10.0.0.0/8")));
        assert!(!all.iter().any(|object| object["kind"] == "NetworkPolicy"));
        let settings = given(&["--set", "networkPolicy.enabled=true"]).unwrap();
        assert!(objects::made(&settings).iter().any(|object| object["kind"] == "NetworkPolicy"));
    }

    #[test]
    fn invalid_flags_of_the_manager_are_refused() {
        for (flags, words) in [
            (&["--", "--alow-call-to", "a"][..], "unexpected argument '--alow-call-to'"),
            (&["--", "--listen", "0"], "'--listen <ADDRESS>' cannot be used multiple times"),
            (&["--", "operators/etcd"], "name packages"),
            (&["--set", "extraArgs=[--allow-call-to, 1]"], "put numbers into quotes"),
            (&["--set", "nodeSelektor={}"], "did you mean nodeSelector?"),
        ] {
            let error = given(flags).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
