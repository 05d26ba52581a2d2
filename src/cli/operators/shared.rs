//! What the commands about packages of a cluster share.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use crate::api::{CallError, Class};
use crate::cli::command::{Failure, duration};
use crate::cli::connect::{self, ClusterOptions, Server};
use crate::cli::model::name_of;
use crate::cli::out;
use crate::diag::did_you_mean;
use crate::operators;

/// The field manager of these commands.
pub(super) const FIELD_MANAGER: &str = operators::INSTALLER;
/// The exit code if the `Operator` is paused.
pub(super) const PAUSED: u8 = 3;
/// The exit code if a person has not agreed to the rights of a package.
pub(super) const NOT_AGREED: u8 = 5;

/// The API server's refusal of a request.
pub(super) fn refused(what: &str, error: &CallError) -> Failure {
    let words = out::printable(&error.to_string());
    let help = match error.code {
        403 => {
            "\n  help: packages are installed by people who may write operators, operatorrevisions \
                (operetta.dev), and ConfigMaps in the manager's namespace"
        }
        _ => "",
    };
    format!("{what}: {words}{help}").into()
}

pub(super) type End = Result<ExitCode, Failure>;

/// Whether to wait until the revision is active.
#[derive(Debug, clap::Args)]
pub(super) struct Waiting {
    /// Return as soon as the API server has accepted everything
    #[arg(long)]
    pub(super) no_wait: bool,

    /// How long to wait, such as 90s or 10m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub(super) timeout: Duration,
}

pub(super) async fn connect(place: &ClusterOptions) -> Result<Server, Failure> {
    Ok(connect::connect_in(place).await?)
}

/// All `Operator`s of the cluster.
pub(super) async fn all(server: &Server) -> Result<Vec<Value>, Failure> {
    match server.cluster.list(&operators::kind(), None, "").await {
        Ok(all) => Ok(all),
        Err(error) if error.class == Class::NotFound => Err("this cluster has no kind Operator: no manager follows the \
             packages of this cluster\n  help: `operetta run` without packages installs the kind, and follows them"
            .to_owned()
            .into()),
        Err(error) => Err(refused("the Operators cannot be listed", &error)),
    }
}

/// The `Operator` of that name.
pub(super) async fn find(server: &Server, name: &str) -> Result<Value, Failure> {
    let all = all(server).await?;
    if let Some(found) = all.iter().find(|operator| name_of(operator) == name) {
        return Ok(found.clone());
    }
    let names: Vec<&str> = all.iter().map(name_of).collect();
    let name = out::printable(name);
    Err(match did_you_mean(&name, names.iter().copied()) {
        Some(near) => format!("there is no Operator {name}; did you mean {near}?"),
        None if names.is_empty() => format!("there is no Operator {name}: no package is installed"),
        None => format!("there is no Operator {name}; there are {}", names.join(", ")),
    }
    .into())
}

/// Refuses to name a revision in an `Operator` whose spec names a package in a registry. `reference`: the package that is meant.
pub(super) fn refuse_source(operator: &Value, reference: Option<&str>) -> Result<(), Failure> {
    let Some(source) = operator["spec"]["source"]["package"].as_str().map(out::printable) else {
        return Ok(());
    };
    let (name, wanted) = (name_of(operator), reference.unwrap_or("oci://HOST/PATH@sha256:..."));
    let message = format!(
        "the Operator {name} names its package itself (spec.source.package is {source}), and the manager fetches it\n  help: \
         change that field where it is from, such as in Git, or `kubectl patch operator {name} --type=merge -p \
         '{{\"spec\":{{\"source\":{{\"package\":\"{wanted}\"}}}}}}'`"
    );
    Err(message.into())
}
