//! `operetta rollback`.

use super::shared::{End, Waiting, connect, find, refuse_source};
use super::wait::until_active;
use super::{apply, downgrade, revisions, rights};
use crate::cli::connect::ClusterOptions;
use crate::cli::out;
use crate::operators;

/// Return to an earlier revision of an installed package
///
/// Without --to it is the revision that was active before. It is checked like any other: a CRD whose schema would take
/// values from instances is refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta rollback etcd
  operetta rollback etcd --to 0.1.0
  operetta rollback etcd --to etcd-3f1c22ab90
  kubectl get operatorrevisions -l operetta.dev/package=etcd      # those that are stored

The active revision, the five newest others and those that instances still use are stored, with their roles. A revision that was \
stored with --rights=false has none: then the command shows the rights that the package gets, and asks as `operetta upgrade` does.

Exit codes: 0 the revision is active; 1 it is not stored, or is refused; 2 wrong usage; 3 the Operator is paused; \
4 --timeout is over, and the manager goes on; 5 the rights of the package are not accepted.")]
pub(in crate::cli) struct Args {
    /// The package
    #[arg(value_name = "NAME")]
    name: String,

    /// The revision: its name, the start of its digest, or its version
    #[arg(long, value_name = "REVISION")]
    to: Option<String>,

    /// Agree to the rights of the revision without being asked, if it has none any more
    #[arg(long)]
    accept_rights: bool,

    /// Take fields of the Operator over from other managers, such as kubectl
    #[arg(long)]
    force_conflicts: bool,

    #[command(flatten)]
    waiting: Waiting,

    #[command(flatten)]
    place: ClusterOptions,
}

pub(super) async fn run(args: &Args) -> End {
    let server = connect(&args.place).await?;
    let (name, live) = (&args.name, find(&server, &args.name).await?);
    let stored = revisions::of(&server.cluster, name).await?;
    let (status, named) = (&live["status"], operators::named(&live));
    let wanted = match &args.to {
        Some(wanted) => wanted.as_str(),
        // If the named revision is not active, then the active one is the one before it.
        None => match (status["activeRevision"].as_str(), status["previousRevision"].as_str()) {
            (Some(active), _) if active != named => active,
            (_, Some(previous)) => previous,
            _ => {
                return Err(format!(
                    "no revision of {name} was active before {named}\n  help: --to REVISION returns to a stored one"
                )
                .into());
            }
        },
    };
    let revision = revisions::find(&stored, name, wanted).map_err(|message| out::printable(&message))?;
    if revision.name != named {
        refuse_source(&live, revision.reference.as_deref())?;
        downgrade::announce(&live, &revision.version);
        rights::restore(&server, &live, &revision.name, args.accept_rights).await?;
        let operator = apply::operator_of(name, &revision.name, Some(&live), apply::Settings::default());
        apply::operator(&server.cluster, operator, args.force_conflicts).await?;
    }
    until_active(&server, (name, &revision.name), true, &args.waiting).await
}
