//! `operetta catalog`: makes indexes of packages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use operetta_registry::index::{self, Entry, PackageIndex, TAG};
use operetta_registry::survey::{Found, survey};
use operetta_registry::{Listed, Options, Place, PrivateKey, Reference, Registry};

use super::access::{TimedAccess, private_key};
use crate::cli::command::Failure;
use crate::cli::out;
use crate::cli::show::plural;

/// How many repositories are read at once.
const AT_ONCE: usize = 8;
/// How many packages an index may have.
const PACKAGES: usize = 20_000;
/// How many warnings are printed.
const WARNINGS: usize = 50;

/// Make an index of the packages in registries, for search and show
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Build(BuildArgs),
}

/// Read the repositories of registries, and write an index of their packages
///
/// Reads tags, configs and signatures, and no files. Equal registries give equal bytes. The index is for searching: an
/// installation reads the registry. What cannot be read, or is no package, is a warning.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta catalog build registry.internal:5000/acme -o index.json
  operetta catalog build registry.internal:5000/acme --push oci://registry.internal:5000/acme/index --key key.pem
  operetta catalog build ghcr.io/acme/etcd ghcr.io/acme/webapp -o index.json    # a registry that keeps no list
  operetta search etcd --catalog index.json

Without -o and --push it prints the index. With --push it prints the reference with the digest. With --key, the signature of FILE is \
FILE.sigstore.json, and that of a pushed index is stored beside it, as that of a package.

Exit codes: 0 success, also with warnings; 1 a registry does not answer, or with --strict, a repository is left out; 2 wrong usage; \
4 --timeout is over.")]
struct BuildArgs {
    /// HOST, HOST/PATH: the repositories of the registry with this path, and below it. Where the registry keeps no list, PATH is
    /// one repository
    #[arg(value_name = "REGISTRY/PREFIX", required = true)]
    places: Vec<String>,

    /// Write the index to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write the index to this repository, `oci://HOST/PATH[:TAG]` [default of the tag: latest]
    #[arg(long, value_name = "REF")]
    push: Option<String>,

    /// Sign the index with this private key, as `operetta sign` does
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// How many versions of a package are listed, the newest
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    versions: u16,

    /// Fail, and write nothing, if a repository or a version cannot be read or is no package
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Command::Build(args) = &args.command;
    if args.key.is_some() && args.output.is_none() && args.push.is_none() {
        return Err(Failure::usage(
            "the signature of an index on standard output has no place: -o or --push",
        ));
    }
    let options = args.access.options()?;
    let key = args.key.as_deref().map(private_key).transpose()?;
    let to = args.push.as_deref().map(|text| target(text, &options)).transpose()?;
    let (index, warnings) = build(args, &options).await?;
    for warning in warnings.iter().take(WARNINGS) {
        out::note(format!("warning: {}", out::printable(warning)));
    }
    if warnings.len() > WARNINGS {
        out::note(format!("warning: and {} more like these", warnings.len() - WARNINGS));
    }
    if args.strict && !warnings.is_empty() {
        return Err(format!("nothing was written: {}", plural(warnings.len(), "warning")).into());
    }
    let bytes = index.bytes()?;
    out::note(format!("{} in {} bytes", plural(index.packages.len(), "package"), bytes.len()));
    write(args, &bytes, to, key.as_ref()).await
}

/// Where an index is pushed to, and its tag.
fn target(text: &str, options: &Options) -> Result<(Place, String), Failure> {
    if !Reference::is_one(text) {
        return Err(Failure::usage("--push takes a repository: oci://HOST/PATH[:TAG]; -o writes a file"));
    }
    let place = Place::open(text, options)?;
    if place.digest.is_some() {
        return Err(Failure::usage("the digest follows from the index: name a tag, or none"));
    }
    let tag = place.tag.clone().unwrap_or_else(|| TAG.to_owned());
    Ok((place, tag))
}

async fn write(
    args: &BuildArgs,
    bytes: &Bytes,
    to: Option<(Place, String)>,
    key: Option<&PrivateKey>,
) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.output {
        // The signature first: a reader that wants one never finds an index that has none yet.
        if let Some(key) = key {
            operetta_registry::write(&signature_of(path), &index::sign(bytes, key)?)?;
        }
        operetta_registry::write(path, bytes)?;
    }
    let text = match to {
        Some((mut place, tag)) => {
            let written = index::push(bytes, &place.store, &tag, key).await?;
            place.tag = Some(tag);
            format!("{}\n", place.name_of(&written.digest))
        }
        None if args.output.is_none() => String::from_utf8_lossy(bytes).into_owned(),
        None => String::new(),
    };
    Ok(out::all(&text, ExitCode::SUCCESS))
}

/// The file with the signature of an index.
pub(super) fn signature_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sigstore.json");
    name.into()
}

/// The index, and what was left out.
async fn build(args: &BuildArgs, options: &Options) -> Result<(PackageIndex, Vec<String>), Failure> {
    let mut warnings = Vec::new();
    let mut repositories = Vec::new();
    for (host, paths) in by_registry(&args.places)? {
        let registry = Registry::new(&host, options.clone())?;
        let paths: Vec<String> = paths.into_iter().collect();
        let found = match registry.list(&paths).await? {
            Listed::Repositories(found, foreign) => {
                if foreign > 0 {
                    let names = plural(foreign, "name");
                    warnings.push(format!("{host} lists {names} that no repository can have: left out"));
                }
                found
            }
            Listed::Nothing => named(&host, paths)?,
        };
        if found.is_empty() {
            warnings.push(format!("{host} lists no repository with the given path"));
        }
        repositories.extend(found.into_iter().map(|path| {
            let store = registry.store(&path);
            (store, format!("oci://{host}/{path}"))
        }));
    }
    if repositories.len() > PACKAGES {
        return Err(format!(
            "there are {} repositories, and at most {PACKAGES} are read",
            repositories.len()
        )
        .into());
    }
    let most = usize::from(args.versions);
    let read = stream::iter(repositories)
        .map(|(store, name)| async move { (survey(&store, &name, most).await, name) });
    let read: Vec<_> = read.buffered(AT_ONCE).collect().await;
    let mut entries: Vec<Entry> = Vec::new();
    for (found, name) in read {
        match found {
            Ok(Found::Index) => {}
            Ok(Found::Package(entry, problems)) => {
                warnings.extend(problems.iter().map(|problem| format!("{name}: {}", first_line(problem))));
                entries.push(*entry);
            }
            Err(error) => warnings.push(format!("{name} is left out: {}", first_line(&error))),
        }
    }
    Ok((PackageIndex::new(entries), warnings))
}

/// An error without its help, which is about a single command.
fn first_line(error: &operetta_registry::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The repositories that are named, of a registry that keeps no list.
fn named(host: &str, paths: Vec<String>) -> Result<Vec<String>, Failure> {
    if paths.iter().any(String::is_empty) {
        let help = format!("help: name the repositories: operetta catalog build {host}/PATH {host}/PATH ...");
        return Err(format!("{host} does not list its repositories to this user\n  {help}").into());
    }
    out::note(format!(
        "{host} does not list its repositories to this user: each given path is read as one repository"
    ));
    Ok(paths)
}

/// The paths of each registry.
fn by_registry(places: &[String]) -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for place in places {
        let text = place.strip_prefix("oci://").unwrap_or(place).trim_end_matches('/');
        let (whole, has_path) = match text.split_once('/') {
            Some(_) => (format!("oci://{text}"), true),
            None => (format!("oci://{text}/any"), false),
        };
        let reference: Reference = whole.parse()?;
        if reference.tag.is_some() || reference.digest.is_some() {
            let message =
                format!("{place}: an index has all tags of a repository: name it without tag and digest");
            return Err(Failure::usage(message));
        }
        let path = if has_path { reference.repository } else { String::new() };
        found.entry(reference.registry).or_default().insert(path);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_hosts_and_paths() {
        let found = |places: &[&str]| {
            let places: Vec<String> = places.iter().map(|place| (*place).to_owned()).collect();
            by_registry(&places).ok().map(|found| {
                found
                    .into_iter()
                    .map(|(host, paths)| (host, paths.into_iter().collect::<Vec<_>>().join(" ")))
                    .collect::<Vec<_>>()
            })
        };
        let pair = |host: &str, paths: &str| (host.to_owned(), paths.to_owned());
        assert_eq!(
            found(&["localhost:5000", "oci://ghcr.io/acme/", "ghcr.io/acme/etcd"]),
            Some(vec![pair("ghcr.io", "acme acme/etcd"), pair("localhost:5000", "")])
        );
        for wrong in ["", "/", "ghcr.io/acme:1.0.0", "ghcr.io/ACME", "https://ghcr.io", "a b"] {
            assert_eq!(found(&[wrong]), None, "{wrong}");
        }
    }

    #[test]
    fn signatures_lie_beside_their_files() {
        assert_eq!(signature_of(Path::new("a/index.json")), Path::new("a/index.json.sigstore.json"));
    }
}
