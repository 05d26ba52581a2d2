//! `operetta trust`.

use std::path::PathBuf;
use std::process::ExitCode;

use operetta_registry::signatures::Signature;
use operetta_registry::{Identity, Place, Policies, Policy, Reference, signatures};

use super::access::{TimedAccess, public_keys, read, trusted_root};
use crate::cli::command::{Failure, Format};
use crate::cli::out;
use crate::operators::policy::{self, PolicySpec};

/// Print the PackagePolicy that permits a package by who has signed it
///
/// Checks who has signed the package, and prints an entry for its repository with those who have. Nothing is applied.
/// Once there is a PackagePolicy in a cluster, packages that none matches are denied there, by `operetta install` and by the
/// manager.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta trust oci://ghcr.io/acme/etcd:1.2.0 --key acme.pub
  operetta trust oci://ghcr.io/acme/etcd:1.2.0 --key acme.pub --prefix ghcr.io/acme | kubectl apply -f -
  operetta trust oci://ghcr.io/acme/etcd:1.2.0 --trusted-root root.json
  kubectl get packagepolicies

A signature names the fingerprint of its key, and does not contain the key: get it from who publishes the package. A signature without a key \
has the certificate of an identity, which the trusted root proves.

Exit codes: 0 printed, 1 nobody who is given has signed the package, 2 wrong usage, 4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// The package: `oci://HOST/PATH[:TAG][@sha256:...]`
    #[arg(value_name = "REF")]
    reference: String,

    /// A public key in PEM; repeatable. Those that have signed the package are in the entry
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,

    /// A trusted root in JSON. The identities that it proves are in the entry, workflows at any Git ref
    #[arg(long, value_name = "FILE")]
    trusted_root: Option<PathBuf>,

    /// The registry and the first parts of the path of the packages that the entry is about [default: the repository of REF]
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,

    /// The name of the PackagePolicy [default: the prefix with dashes]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "yaml")]
    output: Format,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let reference: Reference = args.reference.parse()?;
    let repository = format!("{}/{}", reference.registry.to_ascii_lowercase(), reference.repository);
    let prefix = args.prefix.clone().unwrap_or_else(|| repository.clone());
    let entry = Policy { prefix: prefix.clone(), ..Policy::default() };
    if !Policies::new(vec![entry]).matches(&args.reference) {
        return Err(Failure::usage(format!(
            "--prefix {prefix} is not the start of {repository}, by whole parts"
        )));
    }
    let keys = public_keys(&args.keys)?;
    let root = args.trusted_root.as_deref().map(trusted_root).transpose()?;
    let mut place = Place::open(&args.reference, &args.access.options()?)?;
    let manifest = place.resolve().await?;
    let name = place.name_of(&manifest.descriptor.digest);
    let found = signatures::find(&place.store, &manifest).await?;
    let mut spec = PolicySpec { prefix: prefix.clone(), ..PolicySpec::default() };
    for key in keys.iter().filter(|key| found.iter().any(|one| one.verify(&manifest, key).is_ok())) {
        out::note(format!("{name} is signed by the key sha256:{}", key.hint()));
        spec.keys.push(key.pem());
    }
    let proven =
        root.iter().flat_map(|root| found.iter().filter_map(|one| one.identity(&manifest, root).ok()));
    for identity in proven {
        out::note(format!("{name} is signed by {}", out::printable(&identity.to_string())));
        let Identity { issuer, subject } = identity.at_any_ref();
        let entry = policy::Identity { issuer, subject };
        if !spec.identities.contains(&entry) {
            spec.identities.push(entry);
        }
    }
    if !spec.identities.is_empty()
        && let Some(path) = &args.trusted_root
    {
        spec.trusted_root = Some(String::from_utf8_lossy(&read(path)?).into_owned());
    }
    if spec.keys.is_empty() && spec.identities.is_empty() {
        let claim = |one: &Signature| one.claim().unwrap_or_else(|| "a key that it does not name".to_owned());
        let claims = out::printable(&found.iter().map(claim).collect::<Vec<_>>().join(", "));
        let is_given = !keys.is_empty() || root.is_some();
        let why = match (found.is_empty(), is_given) {
            (true, _) => "is not signed\n  help: operetta sign REF --key FILE".to_owned(),
            (false, false) => format!(
                "is signed by {claims}\n  help: give the public key with --key FILE, or what proves an identity with \
                 --trusted-root FILE"
            ),
            (false, true) => {
                format!("is signed by {claims}, and by nobody whom --key or --trusted-root proves")
            }
        };
        return Err(Failure::from(format!("{name} {why}")));
    }
    let called = args.name.clone().unwrap_or_else(|| object_name(&prefix));
    let text = args.output.objects([&policy::object(&called, &spec)]);
    Ok(out::all(&text, ExitCode::SUCCESS))
}

/// A name of an object for a prefix.
fn object_name(prefix: &str) -> String {
    let prefix = prefix.strip_prefix("oci://").unwrap_or(prefix).to_ascii_lowercase();
    let words = prefix.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name = words.collect::<Vec<_>>().join("-");
    if name.is_empty() { "packages".to_owned() } else { name.chars().take(63).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_become_names() {
        for (prefix, name) in [
            ("ghcr.io/acme/etcd", "ghcr-io-acme-etcd"),
            ("oci://[::1]:5000/a__b/", "1-5000-a-b"),
            ("", "packages"),
        ] {
            assert_eq!(object_name(prefix), name);
        }
    }
}
