//! Chooses the packages that a package requires: the newest versions that all ranges permit, with their digests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use operetta_registry::{Digest, Options, Place};
use semver::Version;

use super::fetch::find;
use crate::cli::command::Failure;
use crate::cli::{operators, out};
use crate::diag::Diagnostic;
use crate::package::lock::{self, MOST_PACKAGES};
use crate::package::{self, Files, LOCK, Locked, Package, RequiredApi, dependencies};

/// How often versions are chosen before it ends with an error. They are chosen again if a chosen package restricts another one.
const ROUNDS: usize = 100;
/// How many versions a message names.
const NAMED: usize = 10;

/// Loads the package of a folder or archive, with a lock that fits to what it requires: `operator.lock` of the folder is written if
/// it does not fit, or if `update` says so. Returns the warnings, too.
pub(super) async fn load(
    path: &Path,
    options: &Options,
    update: bool,
) -> Result<(Package, Vec<Diagnostic>), Failure> {
    let (package, warnings) = operators::load_local(path)?;
    if package.is_locked() && !update {
        return Ok((package, warnings));
    }
    if !path.is_dir() {
        let message = format!("{} has no {LOCK} that fits to spec.requires.apis", path.display());
        return Err(
            format!("{message}\n  help: package its folder: `operetta package` writes the file").into()
        );
    }
    let locked = resolve(&package, options, update).await?;
    for change in changes(&package.locked, &locked) {
        out::note(out::printable(&change));
    }
    if locked == package.locked {
        return Ok((package, warnings));
    }
    let file = path.join(LOCK);
    if locked.is_empty() {
        std::fs::remove_file(&file).map_err(|error| unwritten(&file, &error))?;
    } else {
        operetta_registry::write(&file, lock::text(&locked).as_bytes())?;
    }
    with_lock(&package, &locked)
}

fn unwritten(file: &Path, error: &std::io::Error) -> Failure {
    format!("{} cannot be written: {}", file.display(), out::reason(error)).into()
}

/// The package with another lock.
fn with_lock(package: &Package, locked: &[Locked]) -> Result<(Package, Vec<Diagnostic>), Failure> {
    let files = package.files.iter().filter(|(path, _)| *path != LOCK);
    let files = files.map(|(path, source)| (path.to_owned(), source.text.clone()));
    let lock = (!locked.is_empty()).then(|| (LOCK.to_owned(), lock::text(locked)));
    let compiled = package::compile(&Files::from_texts(package.files.root(), files.chain(lock)));
    let (package, warnings) = compiled.map_err(|errors| {
        out::report(&errors);
        Failure::from(format!("the package {} has errors with the new {LOCK}", package.name))
    })?;
    let warnings = operators::lint(&package, warnings);
    Ok((package, warnings))
}

/// What a new lock changes, a line each.
fn changes(before: &[Locked], after: &[Locked]) -> Vec<String> {
    let old = |name: &str| before.iter().find(|old| old.name == name);
    let mut lines = Vec::new();
    for new in after {
        let was = match old(&new.name) {
            Some(old) if old == new => continue,
            Some(old) => format!(" (was {})", old.version),
            None => String::new(),
        };
        lines.push(format!("locked  {} {}{was}  {}", new.name, new.version, new.reference()));
    }
    let gone = before.iter().filter(|old| !after.iter().any(|new| new.name == old.name));
    lines.extend(gone.map(|old| format!("removed  {} {}", old.name, old.version)));
    lines
}

/// The newest of the versions of a repository, for a message.
pub(in crate::cli) fn named(versions: &[Version]) -> String {
    if versions.is_empty() {
        return "no version".to_owned();
    }
    let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
    crate::cli::show::named(&versions, NAMED)
}

/// Who requires a kind of a package in a repository.
type Demand = (String, RequiredApi);

/// Chooses a package for each kind that needs one, also for those of the chosen packages. What the lock has stays if it fits, unless
/// `update`. Each package comes after those that it requires.
pub(in crate::cli) async fn resolve(
    root: &Package,
    options: &Options,
    update: bool,
) -> Result<Vec<Locked>, Failure> {
    let mut found =
        Candidates { options, root, update, versions: BTreeMap::new(), packages: BTreeMap::new() };
    let mut chosen: BTreeMap<String, Candidate> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let demands = demands(root, &chosen);
        if demands.len() > MOST_PACKAGES {
            let message = format!("{} requires more than {MOST_PACKAGES} packages", root.name);
            return Err(message.into());
        }
        let mut next = BTreeMap::new();
        for (place, demands) in &demands {
            next.insert(place.clone(), found.choose(place, demands).await?);
        }
        let is_same = next.len() == chosen.len()
            && next.iter().all(|(place, new)| chosen.get(place).is_some_and(|old| old.digest == new.digest));
        if is_same {
            return finish(root, &demands, next);
        }
        chosen = next;
    }
    Err(format!("no choice of packages for {} was found in {ROUNDS} rounds: narrow the ranges", root.name)
        .into())
}

/// What a package and the chosen ones require, by repository.
fn demands(root: &Package, chosen: &BTreeMap<String, Candidate>) -> BTreeMap<String, Vec<Demand>> {
    let mut demands: BTreeMap<String, Vec<Demand>> = BTreeMap::new();
    let mut open = vec![root];
    while let Some(package) = open.pop() {
        let who = package.title();
        for api in package.required.iter().filter(|api| !api.optional) {
            let Some(place) = &api.package else { continue };
            let of_place = demands.entry(place.clone()).or_default();
            if of_place.is_empty()
                && let Some(next) = chosen.get(place)
            {
                open.push(&next.package);
            }
            of_place.push((who.clone(), api.clone()));
        }
    }
    demands
}

/// Checks what was chosen, and orders it.
fn finish(
    root: &Package,
    demands: &BTreeMap<String, Vec<Demand>>,
    chosen: BTreeMap<String, Candidate>,
) -> Result<Vec<Locked>, Failure> {
    for (place, demands) in demands {
        let Some(one) = chosen.get(place) else { continue };
        for (who, api) in demands {
            if one.package.resource_of(&api.gvk).is_none() {
                let kinds: Vec<&str> = one.package.resources.iter().map(|r| r.kind.kind.as_str()).collect();
                return Err(format!(
                    "{who} requires the kind {api} of {place}, and {} has {}",
                    one.package.title(),
                    kinds.join(", ")
                )
                .into());
            }
        }
    }
    let places: Vec<(String, Candidate)> = chosen.into_iter().collect();
    let all: Vec<&Package> = [root].into_iter().chain(places.iter().map(|(_, one)| &*one.package)).collect();
    let order = dependencies::order(&all)?;
    let problems = dependencies::misfits(&all, &[]);
    if !problems.is_empty() {
        return Err(problems.join("\n").into());
    }
    let locked = |at: usize| {
        let (place, one) = places.get(at.checked_sub(1)?)?;
        Some(Locked {
            name: one.package.name.clone(),
            version: one.package.version.clone(),
            package: place.clone(),
            digest: one.digest.to_string(),
        })
    };
    Ok(order.into_iter().filter_map(locked).collect())
}

/// A package that may be chosen.
#[derive(Clone)]
struct Candidate {
    package: Arc<Package>,
    digest: Digest,
}

/// What was read of registries.
struct Candidates<'o> {
    options: &'o Options,
    root: &'o Package,
    update: bool,
    /// The versions among the tags of a repository, the newest first.
    versions: BTreeMap<String, Vec<Version>>,
    /// Packages by their references.
    packages: BTreeMap<String, Candidate>,
}

impl Candidates<'_> {
    async fn choose(&mut self, place: &str, demands: &[Demand]) -> Result<Candidate, Failure> {
        let fits = |version: &Version| demands.iter().all(|(_, api)| api.accepts(version));
        let locked = self.root.locked.iter().find(|locked| locked.package == place && fits(&locked.version));
        if let Some(locked) = locked.filter(|_| !self.update) {
            return self.read(&locked.reference(), &locked.version).await;
        }
        if !self.versions.contains_key(place) {
            let (versions, _) = Place::open(place, self.options)?.versions().await?;
            self.versions.insert(place.to_owned(), versions);
        }
        let versions = self.versions.get(place).map(Vec::as_slice).unwrap_or_default();
        let Some(version) = versions.iter().find(|version| fits(version)).cloned() else {
            let wanted: Vec<String> =
                demands.iter().map(|(who, api)| format!("{} ({who})", api.range_text())).collect();
            return Err(format!(
                "no version of {place} is in all ranges that are required: {}; there is {}",
                wanted.join(", "),
                named(versions)
            )
            .into());
        };
        self.read(&format!("{place}:{version}"), &version).await
    }

    async fn read(&mut self, reference: &str, version: &Version) -> Result<Candidate, Failure> {
        if let Some(known) = self.packages.get(reference) {
            return Ok(known.clone());
        }
        let found = find(reference, self.options).await?;
        let package = Arc::new(found.package()?.0);
        if package.version != *version {
            let message = format!("{} is {}, and not {version}", found.name, package.title());
            return Err(message.into());
        }
        let candidate = Candidate { package, digest: found.manifest.descriptor.digest.clone() };
        self.packages.insert(reference.to_owned(), candidate.clone());
        Ok(candidate)
    }
}
