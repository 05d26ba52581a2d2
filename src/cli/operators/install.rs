//! `operetta install` and `operetta upgrade`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use operetta_registry::Provenance;
use semver::{Version, VersionReq};
use serde_json::Value;

use super::shared::{End, NOT_AGREED, Waiting, all, connect, find, refuse_source};
use super::source::load;
use super::wait::until_active;
use super::{Failure, apply, changes, dependencies, downgrade, releases, rights, take_over};
use crate::api::Apis;
use crate::children::names::MANAGER_NAMESPACE;
use crate::cli::command::{Format, ask, is_yes};
use crate::cli::connect::{ClusterOptions, Server};
use crate::cli::model::name_of;
use crate::cli::registry::{Access, Trust};
use crate::cli::rights_review::{self, namespaces_of};
use crate::cli::show::plural;
use crate::cli::{out, preview};
use crate::manager::sources;
use crate::operators::{self, Object, OperatorSpec, Packed, TakeOver};
use crate::package::Package;
use crate::reach;
use crate::rights::Placement;

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
  operetta install oci://ghcr.io/acme/etcd:1.2.0 --key key.pub
  operetta install operators/etcd --dry-run -o yaml > clusters/prod/etcd.yaml      # for Git
  operetta install operators/etcd --dry-run -o yaml | kubectl apply --server-side -f -
  operetta install operators/etcd --preview           # writes nothing
  operetta install operators/etcd --accept-rights     # in a script
  operetta install operators/webapp --namespaces team-a,team-b
  operetta install operators/website --take-over-from webapp     # the package was renamed
  operetta install oci://ghcr.io/acme/shop:1.0.0 --yes   # with the packages that it requires

It shows which rights the account of the package gets. A terminal is asked about remarkable ones, such as to Secrets of all \
namespaces, and elsewhere --accept-rights is needed. They are granted once a manager has accepted the revision.

A package may require kinds that others bring (spec.requires.apis). What of that is missing is shown and installed first, in the versions that the package was published with: a terminal is asked, and elsewhere --yes is needed.

What --dry-run prints does the same when it is applied. It needs no cluster. --preview prints what `operetta preview` does, \
and has its exit codes. The packages that would be installed or upgraded first come first, and in JSON they are `required`.

Exit codes: 0 the package is active, or printed; 1 the package has errors, is refused, or is installed in another revision; \
2 wrong usage, or the package cannot be read; 3 the Operator is paused; 4 --timeout is over, and the manager goes on; \
5 the rights of the package, or other packages that it requires, are not accepted.")]
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
  operetta upgrade oci://ghcr.io/acme/etcd@sha256:...
  operetta upgrade etcd --to '^1.2'                   # from where it was installed: see `operetta outdated`
  operetta upgrade operators/site --take-over-from webapp,blog   # packages were merged
  operetta upgrade oci://ghcr.io/acme/shop:2.0.0 --yes   # with newer versions of the packages that it requires
  operetta rollback etcd                              # back to the revision before

It shows which rights the account of the package gains and loses. If it gains some, a terminal is asked, and elsewhere \
--accept-rights is needed. They are granted once the manager has accepted the revision.

The new revision may require newer versions of installed packages, or further packages (spec.requires.apis). Those are shown and \
upgraded or installed first, in the versions that the package was published with: a terminal is asked, and elsewhere --yes is needed.

--preview prints what `operetta preview` does, and has its exit codes. The packages that would be installed or upgraded first come \
first, and in JSON they are `required`. Each is compared with the cluster as it is now.

Exit codes: 0 the revision is active, or printed; 1 the package has errors, is refused, or is not installed; 2 wrong usage, \
or the package cannot be read; 3 the Operator is paused; 4 --timeout is over, and the manager goes on; 5 the rights of the \
package, or other packages that it requires, are not accepted.")]
pub(in crate::cli) struct UpgradeArgs {
    #[command(flatten)]
    what: What,

    /// The newest version in this range, such as ^1.2. PACKAGE is then a repository without tag, or the name of an installed
    /// package, whose repository is known
    #[arg(long, value_name = "RANGE")]
    to: Option<VersionReq>,
}

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
struct What {
    /// A folder, a tar archive (.tgz, .tar), - for an archive on standard input, `oci://HOST/PATH[:TAG][@sha256:...]`, or an OCI
    /// layout
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,

    /// The manager's namespace, where the files of the package are stored
    #[arg(short, long, value_name = "NAMESPACE", default_value = MANAGER_NAMESPACE)]
    namespace: String,

    /// Apply the account of the package with its rights, as `operetta rbac` prints them
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    rights: bool,

    /// Agree to the rights of the package without being asked
    #[arg(long)]
    accept_rights: bool,

    /// Install and upgrade packages that the package requires without being asked. Remarkable rights of theirs need --accept-rights,
    /// too
    #[arg(short, long)]
    yes: bool,

    /// Neither install nor check packages that require each other
    #[arg(long)]
    no_dependencies: bool,

    /// Reconcile instances in these namespaces only, and grant the rights there; with commas. Without it an upgrade keeps
    /// the namespaces, and a new installation serves all but kube-system and the manager's
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',', value_parser = crate::cli::rbac::namespace)]
    namespaces: Vec<String>,

    /// Let the package write into these namespaces, with commas, which are closed otherwise: kube-system and the manager's. Without it
    /// an upgrade keeps them
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',', value_parser = crate::cli::rbac::namespace)]
    system_namespaces: Vec<String>,

    /// Take CRDs of the package over from these installed packages, with commas: their instances and children stay as they are.
    /// With --dry-run, all CRDs of the package from one package
    #[arg(long, value_name = "PACKAGES", value_delimiter = ',')]
    take_over_from: Vec<String>,

    /// Print the objects instead of applying them
    #[arg(long, group = "print")]
    dry_run: bool,

    /// Print what would change in the cluster instead of applying anything, as `operetta preview` does
    #[arg(long, group = "print")]
    preview: bool,

    /// With --preview: exit with code 6 if one of these would happen, with commas; a refusal has code 3 in any case
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', requires = "preview")]
    fail_on: Vec<preview::FailOn>,

    /// Apply without a preview, which reads all instances of the package and their children
    #[arg(long, conflicts_with = "print")]
    no_preview: bool,

    /// Output format of --dry-run [default: yaml] and of --preview [default: text]
    #[arg(short, long, value_enum, value_name = "FORMAT", requires = "print")]
    output: Option<Format>,

    /// Take fields of the Operator over from other managers, such as kubectl
    #[arg(long)]
    force_conflicts: bool,

    #[command(flatten)]
    trust: Trust,

    #[command(flatten)]
    access: Access,

    #[command(flatten)]
    waiting: Waiting,

    #[command(flatten)]
    place: ClusterOptions,
}

/// A package, ready to be applied.
struct Ready {
    package: Arc<Package>,
    packed: Packed,
    /// Where it is from, if it is from a registry or layout.
    provenance: Option<Provenance>,
}

impl Ready {
    /// Connects to the cluster, unless the package is not for it.
    async fn connect(&self, place: &ClusterOptions) -> Result<Server, Failure> {
        let server = connect(place).await?;
        self.check(&server).await?;
        Ok(server)
    }

    /// Checks whether the cluster permits the package.
    async fn check(&self, server: &Server) -> Result<(), Failure> {
        match self.package.refuses_kubernetes(&server.version) {
            Some(message) => Err(message.into()),
            None => self.check_policy(server).await,
        }
    }

    /// Checks the package against the policy of the cluster. The manager does the same, so a policy that this user cannot read is
    /// not skipped.
    async fn check_policy(&self, server: &Server) -> Result<(), Failure> {
        let policies = match sources::policies(&server.cluster).await {
            Ok(policies) => policies,
            Err(error) => {
                out::note(format!(
                    "the PackagePolicies are checked by the manager only: they cannot be read: {error}"
                ));
                return Ok(());
            }
        };
        let checked = policies.check(self.provenance.as_ref(), &self.package.digest);
        let permit = checked
            .map_err(|why| Failure::from(format!("the policy of the cluster denies the package: {why}")))?;
        if let Some(policy) = permit.policy {
            let signed = permit.signer.map_or("unsigned".to_owned(), |signer| format!("signed by {signer}"));
            out::note(format!("permitted by the PackagePolicy {policy}, {signed}"));
        }
        Ok(())
    }
}

/// A package that must be installed or upgraded before another one.
struct Required {
    ready: Ready,
    /// Its `Operator` and the active version, if it is installed.
    live: Option<Value>,
    was: Option<Version>,
}

impl Required {
    fn line(&self) -> String {
        let Package { name, version, .. } = &*self.ready.package;
        let from = self.ready.provenance.as_ref().map(|from| from.reference.as_str()).unwrap_or_default();
        let was = self.was.as_ref().map(|was| format!(" (now {was})")).unwrap_or_default();
        format!("  {name} {version}{was}  {}", out::printable(from))
    }
}

/// Says that a package requires others, and returns what is done with them.
fn announce(ready: &Ready, others: &[Required]) -> &'static str {
    let upgrades = others.iter().filter(|other| other.live.is_some()).count();
    let (done, verb) = match upgrades {
        0 => ("installed", "Install"),
        all if all == others.len() => ("upgraded", "Upgrade"),
        _ => ("installed or upgraded", "Install or upgrade"),
    };
    let count = plural(others.len(), "other package");
    out::note(format!("{} requires {count}, which would be {done} first:", ready.package.name));
    verb
}

impl What {
    async fn ready(&self, package: &Path) -> Result<Ready, Failure> {
        let closed = reach::closed(&self.namespace);
        if let Some(other) = self.system_namespaces.iter().find(|name| !closed.contains(&name.as_str())) {
            let message = format!(
                "--system-namespaces {other}: that namespace is not closed; {} are",
                closed.join(" and ")
            );
            return Err(Failure::with_code(2, message));
        }
        let (package, provenance) = load(package, &self.access, &self.trust).await?;
        self.pack(package, provenance)
    }

    fn pack(&self, package: Package, provenance: Option<Provenance>) -> Result<Ready, Failure> {
        let package = Arc::new(package);
        let mut packed = operators::pack(&package, &self.namespace).map_err(|error| error.to_string())?;
        if let (Some(provenance), Some(revision)) = (&provenance, packed.objects.last_mut()) {
            sources::annotate(&mut revision.body, provenance);
        }
        Ok(Ready { package, packed, provenance })
    }

    /// The namespaces that are given.
    fn names(&self) -> Option<BTreeSet<String>> {
        (!self.namespaces.is_empty()).then(|| self.namespaces.iter().cloned().collect())
    }

    /// The system namespaces that are opened.
    fn opened(&self) -> BTreeSet<String> {
        self.system_namespaces.iter().cloned().collect()
    }

    /// Where the package gets its rights. `live`: its `Operator`.
    fn placement(&self, live: Option<&Value>) -> Placement {
        let namespaces = self.names().or_else(|| live.and_then(namespaces_of));
        Placement { namespaces, ..Placement::everywhere(&self.namespace) }
    }

    fn operator(&self, ready: &Ready, live: Option<&Value>, takes_over: Vec<TakeOver>) -> Object {
        let settings = apply::Settings {
            namespaces: self.names(),
            system_namespaces: (!self.system_namespaces.is_empty()).then(|| self.opened()),
            takes_over,
        };
        apply::operator_of(&ready.package.name, &ready.packed.revision, live, settings)
    }

    fn print(&self, ready: &Ready) -> End {
        for locked in &ready.package.locked {
            out::note(format!(
                "note: it requires {} {}: {}",
                locked.name,
                locked.version,
                locked.reference()
            ));
        }
        let takes_over = take_over::all(&ready.package, &self.take_over_from)?;
        let rights =
            if self.rights { rights::objects(&ready.package, &self.placement(None)) } else { Vec::new() };
        let stored = ready.packed.objects.iter().map(|object| &object.body);
        let operator = self.operator(ready, None, takes_over);
        let objects = stored.chain(&rights).chain([&operator.body]);
        Ok(out::all(&self.output.unwrap_or(Format::Yaml).objects(objects), ExitCode::SUCCESS))
    }

    /// Prints what would change, also of the packages that would be installed or upgraded first.
    async fn print_changes(&self, server: &Server, ready: &Ready) -> End {
        let (others, _) = self.required(server, ready).await?;
        if !others.is_empty() {
            announce(ready, &others);
        }
        for other in &others {
            out::note(other.line());
            other.ready.check(server).await?;
        }
        let others: Vec<&Arc<Package>> = others.iter().map(|other| &other.ready.package).collect();
        let about = (&self.namespace[..], &self.take_over_from[..]);
        changes::print(server, (&others, &ready.package), about, (self.output, &self.fail_on)).await
    }

    /// Whether an `Operator` names the revision and the namespaces already.
    fn is_named(&self, ready: &Ready, live: &Value) -> bool {
        let names = self.names();
        let opened = || OperatorSpec::parse(live).unwrap_or_default().system_namespaces;
        operators::named(live) == ready.packed.revision
            && (names.is_none() || names == namespaces_of(live))
            && (self.system_namespaces.is_empty() || opened() == self.opened())
    }

    /// The packages that must be installed or upgraded first, and the served kinds, if they were asked for.
    async fn required(&self, server: &Server, ready: &Ready) -> Result<(Vec<Required>, Apis), Failure> {
        if self.no_dependencies {
            return Ok((Vec::new(), Apis::default()));
        }
        let from = ready.provenance.as_ref().map(|from| from.reference.as_str());
        let found = dependencies::needed(server, &ready.package, from, (&self.access, &self.trust));
        let (found, apis) = found.await?;
        let required = found.into_iter().map(|other| {
            let (live, was) = other.installed.unzip();
            Ok(Required { ready: self.pack(other.package, other.provenance)?, live, was })
        });
        Ok((required.collect::<Result<_, Failure>>()?, apis))
    }

    /// The packages that must be installed or upgraded first, to which a person has agreed.
    async fn others(&self, server: &Server, ready: &Ready) -> Result<Vec<Required>, Failure> {
        let (others, apis) = self.required(server, ready).await?;
        if others.is_empty() {
            return Ok(others);
        }
        let verb = announce(ready, &others);
        let count = plural(others.len(), "other package");
        let mut needs_consent = false;
        for other in &others {
            out::note(other.line());
            let (package, live) = (&other.ready.package, other.live.as_ref());
            let review =
                rights_review::read(&server.cluster, &apis, package, live, &self.placement(live)).await;
            for line in review.lines() {
                out::note(format!("    {}", out::printable(&line)));
            }
            needs_consent |= review.needs_consent && self.rights;
        }
        for other in &others {
            other.ready.check(server).await?;
            if other.live.is_some() {
                self.tell_changes(server, &other.ready).await;
            }
        }
        if !self.yes {
            let answer = ask(&format!("{verb} {count} with these rights? [y/N] "))?;
            let Some(answer) = answer else {
                let message = format!(
                    "{} requires {count}: there is no terminal to ask on, and nothing was written\n  help: --yes installs and \
                     upgrades what it requires",
                    ready.package.name
                );
                return Err(Failure::with_code(NOT_AGREED, message));
            };
            if !is_yes(&answer) {
                let message = "the required packages are not accepted: nothing was written";
                return Err(Failure::with_code(NOT_AGREED, message));
            }
        } else if needs_consent && !self.accept_rights && !rights::confirmed()? {
            return Err(Failure::with_code(NOT_AGREED, "the rights are not accepted: nothing was written"));
        }
        Ok(others)
    }

    /// Installs a package, after those that it requires.
    async fn carry_out(&self, server: &Server, ready: &Ready, live: Option<&Value>) -> End {
        if let Some(live) = live.filter(|live| !self.is_named(ready, live)) {
            let reference = ready.provenance.as_ref().map(|from| from.reference.as_str());
            refuse_source(live, reference)?;
        }
        let takes_over = take_over::find(&server.cluster, &ready.package, &self.take_over_from).await?;
        let others = self.others(server, ready).await?;
        let is_accepted = !self.rights || self.accept_rights;
        rights::agree(server, &ready.package, live, &self.placement(live), is_accepted).await?;
        for other in &others {
            let end = self.write(server, &other.ready, other.live.as_ref(), Vec::new()).await?;
            if end != ExitCode::SUCCESS {
                return Ok(end);
            }
        }
        self.write(server, ready, live, takes_over).await
    }

    /// Stores the revision, names it in the `Operator`, and grants its rights once it is accepted.
    async fn write(
        &self,
        server: &Server,
        ready: &Ready,
        live: Option<&Value>,
        takes_over: Vec<TakeOver>,
    ) -> End {
        let name = &ready.package.name;
        apply::revision(&server.cluster, &ready.packed, &self.namespace).await?;
        if self.rights {
            rights::grant(&server.cluster, &ready.package, live, &self.placement(live)).await?;
        }
        let is_named = live.is_some_and(|live| self.is_named(ready, live));
        // An Operator that names the revision already is not applied again: its fields belong to whoever has
        // applied it.
        if !is_named || !takes_over.is_empty() {
            let operator = self.operator(ready, live, takes_over);
            apply::operator(&server.cluster, operator, self.force_conflicts).await?;
        }
        let end = until_active(server, (name, &ready.packed.revision), self.rights, &self.waiting).await?;
        if self.rights {
            rights::replace_former(&server.cluster, name, &self.namespace).await?;
        }
        Ok(end)
    }

    /// Says what is about to change.
    async fn tell_changes(&self, server: &Server, ready: &Ready) {
        if !self.no_preview {
            let about = (&self.namespace[..], &self.take_over_from[..]);
            changes::tell(server, &ready.package, about).await;
        }
    }
}

pub(super) async fn install(args: &InstallArgs) -> End {
    let what = &args.what;
    let ready = what.ready(&what.package).await?;
    if what.dry_run {
        return what.print(&ready);
    }
    let server = ready.connect(&what.place).await?;
    if what.preview {
        return what.print_changes(&server, &ready).await;
    }
    let name = &ready.package.name;
    let there = all(&server).await?.into_iter().find(|operator| name_of(operator) == name);
    let named = there.as_ref().map(operators::named).filter(|named| !named.is_empty());
    if let Some(other) = named.filter(|named| *named != ready.packed.revision) {
        let version = ready.package.version.to_string();
        let downgrade = there.as_ref().and_then(|live| downgrade::of(live, &version));
        let downgrade = downgrade.map(|words| format!(": {words}")).unwrap_or_default();
        let message = format!(
            "the package {name} is installed as {other}\n  help: `operetta upgrade {}` makes {} active{downgrade}",
            what.package.display(),
            ready.packed.revision
        );
        return Err(message.into());
    }
    // Without an Operator, instances of an earlier installation may be left.
    if there.is_none() {
        what.tell_changes(&server, &ready).await;
    }
    what.carry_out(&server, &ready, there.as_ref()).await
}

pub(super) async fn upgrade(args: &UpgradeArgs) -> End {
    let what = &args.what;
    let ready = match &args.to {
        Some(range) => {
            let of = what.package.to_string_lossy();
            let found = releases::newest(&of, range, &what.access.options()?, &what.place).await?;
            what.ready(found.as_ref()).await?
        }
        None => what.ready(&what.package).await?,
    };
    if what.dry_run {
        return what.print(&ready);
    }
    let server = ready.connect(&what.place).await?;
    let name = &ready.package.name;
    let live = find(&server, name).await.map_err(|failure| Failure {
        message: format!("{}\n  help: `operetta install` installs a package", failure.message),
        ..failure
    })?;
    downgrade::announce(&live, &ready.package.version.to_string());
    if what.preview {
        return what.print_changes(&server, &ready).await;
    }
    let active = live["status"]["activeRevision"].as_str();
    let active = active.filter(|active| *active != ready.packed.revision);
    if active.is_some() {
        what.tell_changes(&server, &ready).await;
    }
    what.carry_out(&server, &ready, Some(&live)).await
}
