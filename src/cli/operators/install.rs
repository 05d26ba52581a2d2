//! `operetta install` and `operetta upgrade`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use super::source::load;
use super::wait::until_active;
use super::{End, Failure, Waiting, all, apply, changes, connect, find, name_of, rights};
use crate::children::names::MANAGER_NAMESPACE;
use crate::cli::command::Manifests;
use crate::cli::connect::{ClusterOptions, Server};
use crate::cli::{out, preview};
use crate::operators::{self, Object, OperatorSpec, Packed};
use crate::package::Package;

/// Install a package in a cluster, whose manager then runs it
///
/// Checks the package, says what changes if there are instances, stores its files in the cluster (a revision and its
/// parts), creates the Operator that names them, and waits until the manager has registered the kinds of the package. A
/// manager follows Operators if it was started by `operetta run` without packages.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta install operators/etcd
  operetta install etcd-0.2.0.tgz
  tar -czf - -C operators/etcd . | operetta install -
  operetta install operators/etcd --dry-run -o yaml > clusters/prod/etcd.yaml      # for Git
  operetta install operators/etcd --dry-run -o yaml | kubectl apply --server-side -f -
  operetta install operators/etcd --preview           # writes nothing

What --dry-run prints does the same when it is applied. It needs no cluster. --preview prints what `operetta preview` does, \
and has its exit codes.

Exit codes: 0 the package is active, or printed; 1 the package has errors, is refused, or is installed in another revision; \
2 wrong usage, or the package cannot be read; 3 the Operator is paused; 4 --timeout is over, and the manager goes on.")]
pub(in crate::cli) struct InstallArgs {
    #[command(flatten)]
    what: What,
}

/// Upgrade an installed package to another revision
///
/// Like `operetta install`, for a package that is installed. It says in a few lines what changes; --preview shows all of it
/// and writes nothing. The manager checks the new revision first: a CRD that the API server refuses, a schema by which
/// instances would lose values, or a kind with instances that is no longer there leaves the active revision active. A run of
/// a plan ends with the revision that it has begun with.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta upgrade operators/etcd --preview           # writes nothing
  operetta upgrade operators/etcd
  operetta upgrade etcd-0.3.0.tgz --timeout 10m
  operetta rollback etcd                              # back to the revision before

--preview prints what `operetta preview` does, and has its exit codes.

Exit codes: 0 the revision is active, or printed; 1 the package has errors, is refused, or is not installed; 2 wrong usage, \
or the package cannot be read; 3 the Operator is paused; 4 --timeout is over, and the manager goes on.")]
pub(in crate::cli) struct UpgradeArgs {
    #[command(flatten)]
    what: What,
}

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
struct What {
    /// A folder, a tar archive (.tgz, .tar), or - for an archive on standard input
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,

    /// The manager's namespace, where the files of the package are stored
    #[arg(short, long, value_name = "NAMESPACE", default_value = MANAGER_NAMESPACE)]
    namespace: String,

    /// Apply the account of the package with its rights, as `operetta rbac` prints them
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    rights: bool,

    /// Print the objects instead of applying them
    #[arg(long, group = "print")]
    dry_run: bool,

    /// Print what would change in the cluster instead of applying anything, as `operetta preview` does
    #[arg(long, group = "print")]
    preview: bool,

    /// Apply without a preview, which reads all instances of the package and their children
    #[arg(long, conflicts_with = "print")]
    no_preview: bool,

    /// Output format of --dry-run [default: yaml] and of --preview [default: text]
    #[arg(short, long, value_enum, value_name = "FORMAT", requires = "print")]
    output: Option<Manifests>,

    /// Take fields of the Operator over from other managers, such as kubectl
    #[arg(long)]
    force_conflicts: bool,

    #[command(flatten)]
    waiting: Waiting,

    #[command(flatten)]
    place: ClusterOptions,
}

/// A package, ready to be applied.
struct Ready {
    package: Arc<Package>,
    packed: Packed,
    operator: Object,
}

impl What {
    fn ready(&self) -> Result<Ready, Failure> {
        let package = Arc::new(load(&self.package)?);
        let packed = operators::pack(&package, &self.namespace).map_err(|error| error.to_string())?;
        let spec = OperatorSpec { revision: packed.revision.clone(), ..OperatorSpec::default() };
        let operator = operators::operator(&package.name, &spec);
        Ok(Ready { package, packed, operator })
    }

    fn print(&self, ready: &Ready) -> ExitCode {
        let rights = if self.rights { rights::objects(&ready.package, &self.namespace) } else { Vec::new() };
        let stored = ready.packed.objects.iter().map(|object| &object.body);
        let objects = stored.chain(&rights).chain([&ready.operator.body]);
        out::all(&self.output.unwrap_or(Manifests::Yaml).text(objects), ExitCode::SUCCESS)
    }

    /// Prints what would change.
    async fn print_changes(&self, server: &Server, ready: &Ready) -> End {
        let output = self.output.map(|output| match output {
            Manifests::Yaml => preview::Output::Yaml,
            Manifests::Json => preview::Output::Json,
        });
        changes::print(server, &ready.package, &self.namespace, output).await
    }

    /// Says what is about to change.
    async fn tell_changes(&self, server: &Server, ready: &Ready) {
        if !self.no_preview {
            changes::tell(server, &ready.package, &self.namespace).await;
        }
    }
}

pub(super) async fn install(args: &InstallArgs) -> End {
    let what = &args.what;
    let ready = what.ready()?;
    if what.dry_run {
        return Ok(what.print(&ready));
    }
    let server = connect(&what.place).await?;
    if what.preview {
        return what.print_changes(&server, &ready).await;
    }
    let name = &ready.package.name;
    let there = all(&server).await?.into_iter().find(|operator| name_of(operator) == name);
    let named = there.as_ref().and_then(|operator| operator["spec"]["revision"].as_str());
    if let Some(other) = named.filter(|named| *named != ready.packed.revision) {
        let message = format!(
            "the package {name} is installed as {other}\n  help: `operetta upgrade {}` makes {} active",
            what.package.display(),
            ready.packed.revision
        );
        return Err(message.into());
    }
    // Instances may be there from an earlier installation.
    if there.is_none() {
        what.tell_changes(&server, &ready).await;
    }
    apply::revision(&server.cluster, &ready.packed, &what.namespace).await?;
    if what.rights {
        rights::grant(&server.cluster, &ready.package, there.as_ref(), None, &what.namespace).await?;
    }
    // Whoever has created it owns its fields, which are the same.
    if there.is_none() {
        apply::operator(&server.cluster, &ready.operator, what.force_conflicts).await?;
    }
    until_active(&server, name, &ready.packed.revision, &what.waiting).await
}

pub(super) async fn upgrade(args: &UpgradeArgs) -> End {
    let what = &args.what;
    let ready = what.ready()?;
    if what.dry_run {
        return Ok(what.print(&ready));
    }
    let server = connect(&what.place).await?;
    let name = &ready.package.name;
    let live = find(&server, name).await.map_err(|failure| Failure {
        message: format!("{}\n  help: `operetta install` installs a package", failure.message),
        ..failure
    })?;
    if what.preview {
        return what.print_changes(&server, &ready).await;
    }
    let active = live["status"]["activeRevision"].as_str();
    let active = active.filter(|active| *active != ready.packed.revision);
    if active.is_some() {
        what.tell_changes(&server, &ready).await;
    }
    apply::revision(&server.cluster, &ready.packed, &what.namespace).await?;
    if what.rights {
        rights::grant(&server.cluster, &ready.package, Some(&live), active, &what.namespace).await?;
    }
    if live["spec"]["revision"] != ready.packed.revision.as_str() {
        apply::operator(&server.cluster, &ready.operator, what.force_conflicts).await?;
    }
    until_active(&server, name, &ready.packed.revision, &what.waiting).await
}
