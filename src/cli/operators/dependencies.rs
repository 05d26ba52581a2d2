//! What packages of a cluster require of each other: which others a package brings along, and who depends on one.

use std::path::Path;

use operetta_registry::Provenance;
use semver::Version;
use serde_json::Value;

use super::shared::{all, refuse_source, refused};
use super::source::load;
use super::{Failure, revisions};
use crate::api::{ApiKind, Apis};
use crate::children::package_of_crd_value;
use crate::cli::connect::Server;
use crate::cli::model::name_of;
use crate::cli::out;
use crate::cli::registry::{Access, Trust, locate, resolve};
use crate::cluster::Cluster;
use crate::package::{Locked, Package, RequiredApi, Resource, dependencies};

/// A package that is installed or upgraded for another one.
pub(super) struct Other {
    pub package: Package,
    /// Where it is from.
    pub provenance: Option<Provenance>,
    /// Its `Operator` and the active version, if it is installed.
    pub installed: Option<(Value, Version)>,
}

/// The packages that must be installed or upgraded before `package`: those of its lock that bring what this cluster does not serve, or
/// of which an earlier version than the required ones is installed; and the served kinds, if they were asked for. `from`: where the
/// package was published.
///
/// # Errors
/// Packages exclude each other, by name; or one cannot be read.
pub(super) async fn needed(
    server: &Server,
    package: &Package,
    from: Option<&str>,
    (access, trust): (&Access, &Trust),
) -> Result<(Vec<Other>, Apis), Failure> {
    let operators = all(server).await?;
    let installed = installed(&server.cluster, &operators, &package.name).await;
    let (mut new, mut apis): (Vec<Other>, Apis) = (Vec::new(), Apis::default());
    // Why installed packages would be upgraded.
    let mut reasons = Vec::new();
    if !package.required.is_empty() {
        let served = server.cluster.discover().await;
        apis = served.map_err(|error| refused("the served kinds cannot be read", &error))?;
        let locked = locked(package, from.is_some(), (&apis, &installed), access).await?;
        let mut open: Vec<(String, RequiredApi)> = requires(package);
        while let Some((who, api)) = open.pop() {
            let is_met = is_met(&api, &apis, &installed, &locked);
            if is_met || new.iter().any(|other| other.package.resource_of(&api.gvk).is_some()) {
                continue;
            }
            let Some(locked) = of_lock(&locked, &api) else {
                out::note(out::printable(&format!(
                    "warning: {who} requires the kind {api}, which this cluster does not serve: install what brings it"
                )));
                continue;
            };
            let live = operators.iter().find(|operator| name_of(operator) == locked.name);
            let active = installed.iter().find(|other| other.name == locked.name);
            let live = live.map(|live| upgradable(live, active, locked, (&who, &api))).transpose()?;
            reasons.extend(live.as_ref().map(|(_, was)| {
                let (name, range) = (&locked.name, api.range_text());
                format!("{who} requires {name} in {range} for the kind {api}, and {name} {was} is installed")
            }));
            let other = read(locked, from, live, access, trust).await?;
            check_owners(&server.cluster, &other.package).await?;
            open.extend(requires(&other.package));
            new.push(other);
        }
    }
    let together: Vec<&Package> =
        [package].into_iter().chain(new.iter().map(|other| &other.package)).collect();
    let order = dependencies::order(&together)?;
    let stays = |one: &&Package| new.iter().all(|other| other.package.name != one.name);
    let installed: Vec<&Package> = installed.iter().filter(stays).collect();
    let problems = dependencies::misfits(&together, &installed);
    if !problems.is_empty() {
        let help = "\n  help: choose versions that fit together: an upgrade brings along newer versions of what it requires; \
                    --no-dependencies installs the package all the same";
        return Err(format!("{}{help}", [reasons, problems].concat().join("\n")).into());
    }
    // The first of them is the package itself.
    let mut new: Vec<Option<Other>> = new.into_iter().map(Some).collect();
    let sorted = order.into_iter().filter_map(|at| new.get_mut(at.checked_sub(1)?)?.take());
    Ok((sorted.collect(), apis))
}

/// The package of a lock that brings a kind.
fn of_lock<'l>(locked: &'l [Locked], api: &RequiredApi) -> Option<&'l Locked> {
    locked.iter().find(|locked| Some(&locked.package) == api.package.as_ref())
}

/// Whether the cluster serves a kind, and from a version that is supported if the package is installed that the lock names.
fn is_met(api: &RequiredApi, apis: &Apis, installed: &[Package], locked: &[Locked]) -> bool {
    let named = of_lock(locked, api);
    let provider = installed.iter().find(|other| named.is_some_and(|named| named.name == other.name));
    let fits = |other: &Package| {
        (api.range.is_none() || api.accepts(&other.version)) && other.resource(&api.gvk).is_some()
    };
    is_served(apis, api) && provider.is_none_or(fits)
}

/// Checks that an installed package can be upgraded to what the lock has.
fn upgradable(
    live: &Value,
    active: Option<&Package>,
    locked: &Locked,
    (who, api): (&str, &RequiredApi),
) -> Result<(Value, Version), Failure> {
    let Locked { name, version, .. } = locked;
    let reference = locked.reference();
    let Some(active) = active else {
        return Err(format!(
            "{who} requires the kind {api} of {name}, which is installed and not active\n  help: see `operetta operators {name}`"
        )
        .into());
    };
    if active.version >= *version {
        return Err(format!(
            "{who} requires {name} in {} for the kind {api}, and {} is installed, which is not older than {version} of the lock\n  \
             help: choose a version of the package that supports it; `operetta upgrade {reference}` goes back to that of the lock",
            api.range_text(),
            active.title()
        )
        .into());
    }
    refuse_source(live, Some(&reference)).map_err(|failure| Failure {
        message: format!(
            "{who} requires {name} {version}, and {} is installed: {}",
            active.title(),
            failure.message
        ),
        ..failure
    })?;
    Ok((live.clone(), active.version.clone()))
}

/// The lock of a package. For a folder whose lock does not fit, versions are chosen now.
async fn locked(
    package: &Package,
    is_published: bool,
    (apis, installed): (&Apis, &[Package]),
    access: &Access,
) -> Result<Vec<Locked>, Failure> {
    let is_met = |api: &RequiredApi| {
        let provider = installed.iter().find_map(|other| Some((other, other.resource_of(&api.gvk)?)));
        // Without a lock, it is not known which package is named.
        let fits = provider.is_none_or(|(other, _)| api.range.is_none() || api.accepts(&other.version));
        api.optional || (is_served(apis, api) && fits)
    };
    if package.is_locked() || package.required.iter().all(is_met) {
        return Ok(package.locked.clone());
    }
    if is_published {
        let message = format!("{} was published without the lock that it needs", package.title());
        return Err(format!("{message}\n  help: `operetta push` publishes a package with its lock").into());
    }
    resolve(package, &access.options()?, false).await
}

fn requires(package: &Package) -> Vec<(String, RequiredApi)> {
    let who = package.title();
    let required = package.required.iter().filter(|api| !api.optional);
    required.map(|api| (who.clone(), api.clone())).collect()
}

fn is_served(apis: &Apis, api: &RequiredApi) -> bool {
    apis.find(&api.gvk).is_ok_and(|found| found.is_some())
}

/// Fetches a package of a lock, and compares it with the lock.
async fn read(
    locked: &Locked,
    from: Option<&str>,
    installed: Option<(Value, Version)>,
    access: &Access,
    trust: &Trust,
) -> Result<Other, Failure> {
    let reference = locate(locked, from, &access.options()?).await?;
    let (package, provenance) = load(Path::new(&reference), access, trust).await?;
    if package.name != locked.name || package.version != locked.version {
        let (found, Locked { name, version, .. }) = (package.title(), locked);
        return Err(format!("{reference} is {found}, and the lock has {name} {version}").into());
    }
    Ok(Other { package, provenance, installed })
}

/// Refuses a package with a kind that an installed package has.
async fn check_owners(cluster: &Cluster, package: &Package) -> Result<(), Failure> {
    for crd in package.resources.iter().map(Resource::crd_name) {
        let live = cluster.get(&ApiKind::crd(), None, crd).await;
        let live = live.map_err(|error| refused(&format!("the CRD {crd} cannot be read"), &error))?;
        let owner = live.as_ref().and_then(package_of_crd_value).filter(|owner| *owner != package.name);
        if let Some(owner) = owner {
            return Err(format!(
                "{} would bring the CRD {crd}, which is of the installed package {owner}",
                package.title()
            )
            .into());
        }
    }
    Ok(())
}

/// The active packages of `Operator`s, except of one. A package that cannot be loaded is left out, with a note.
async fn installed(cluster: &Cluster, operators: &[Value], except: &str) -> Vec<Package> {
    let mut found = Vec::new();
    for operator in operators.iter().filter(|operator| name_of(operator) != except) {
        match revisions::active(cluster, operator).await {
            Ok(package) => found.extend(package),
            Err(why) => out::note(out::printable(&format!(
                "note: what {} requires is not known: {why}",
                name_of(operator)
            ))),
        }
    }
    found
}

/// The installed packages that require kinds of these CRDs: each with the first of the kinds.
pub(super) async fn dependents(
    server: &Server,
    name: &str,
    crds: &[Value],
) -> Result<Vec<(String, String)>, Failure> {
    let kinds: Vec<ApiKind> = crds.iter().filter_map(crate::crd::kind).collect();
    let brings = |api: &&RequiredApi| {
        !api.optional && kinds.iter().any(|kind| kind.group == api.gvk.group() && kind.kind == *api.gvk.kind)
    };
    let operators = all(server).await?;
    let others = installed(&server.cluster, &operators, name).await;
    let found = others.iter().filter_map(|other| {
        let api = other.required.iter().find(brings)?;
        Some((other.name.clone(), api.to_string()))
    });
    Ok(found.collect())
}
