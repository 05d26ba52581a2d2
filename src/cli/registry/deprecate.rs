//! `operetta deprecate`.

use std::path::PathBuf;
use std::process::ExitCode;

use operetta_registry::deprecation::{Deprecation, attach};
use operetta_registry::{Place, PrivateKey, Stored};

use super::access::{TimedAccess, private_key};
use crate::cli::command::Failure;
use crate::cli::out;

/// How many versions are deprecated at once.
const VERSIONS: usize = 1_000;

/// Say that a version of a package should not be used any more
///
/// A published version cannot change: a small artifact that refers to it has the message, and is copied with it. `install`, `upgrade`,
/// `inspect`, `show`, `versions`, `outdated` and indexes that are made later say it. Nothing is refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta deprecate oci://ghcr.io/acme/etcd:1.2.0 --message 'loses backups; use 1.2.1' --key key.pem
  operetta deprecate oci://ghcr.io/acme/etcd --all-versions --message 'not maintained any more' \\
      --replaced-by oci://ghcr.io/acme/etcd-next --key key.pem

Without --key the deprecation is unsigned: whoever may push to the repository can write such a one, and commands say so. A version that is \
published later is not deprecated. It prints a reference for each deprecated version.

Exit codes: 0 success, 1 the registry refuses it, or the key cannot be used, 2 wrong usage, 4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// The version: `oci://HOST/PATH:TAG`, or with @sha256:...; or an OCI layout
    #[arg(value_name = "REF")]
    reference: String,

    /// Why, and what to do: one line
    #[arg(short, long, value_name = "TEXT")]
    message: String,

    /// The repository or version to use instead: `oci://HOST/PATH[:TAG]`. Nothing is replaced by itself
    #[arg(long, value_name = "REF")]
    replaced_by: Option<String>,

    /// Deprecate all versions that the repository has
    #[arg(long)]
    all_versions: bool,

    /// Sign it with this private key, as `operetta sign` does
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let deprecation = Deprecation::new(&args.message, args.replaced_by.as_deref())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let key = args.key.as_deref().map(private_key).transpose()?;
    let mut place = Place::open(&args.reference, &args.access.options()?)?;
    let is_one = place.tag.is_some() || place.digest.is_some();
    if is_one == args.all_versions {
        let message = if is_one {
            "--all-versions takes a repository without tag and digest"
        } else {
            "name a version, or all of them with --all-versions"
        };
        return Err(Failure::usage(message));
    }
    let mut text = String::new();
    if is_one {
        let manifest = place.resolve().await?;
        text.push_str(&deprecate(&place, &manifest, &deprecation, key.as_ref()).await?);
    } else {
        let (versions, _) = place.versions().await?;
        if versions.is_empty() {
            return Err(format!("{} has no tags that are versions", place.name()).into());
        }
        for version in versions.iter().take(VERSIONS) {
            let tag = version.to_string();
            let manifest = place.store.manifest(&tag).await?;
            place.tag = Some(tag);
            text.push_str(&deprecate(&place, &manifest, &deprecation, key.as_ref()).await?);
        }
        if versions.len() > VERSIONS {
            out::note(format!("warning: only the newest {VERSIONS} versions are deprecated"));
        }
    }
    Ok(out::all(&text, ExitCode::SUCCESS))
}

/// Deprecates a version; a line with its reference.
async fn deprecate(
    place: &Place,
    manifest: &Stored,
    deprecation: &Deprecation,
    key: Option<&PrivateKey>,
) -> Result<String, Failure> {
    operetta_registry::artifact::parts(&place.name_of(&manifest.descriptor.digest), manifest)?;
    let written = attach(&place.store, manifest, deprecation, key).await?;
    let signer = key.map(|key| format!(", signed by the key sha256:{}", key.public().hint()));
    out::note(format!("deprecation {}{}", written.digest, signer.unwrap_or_default()));
    Ok(format!("{}\n", place.name_of(&manifest.descriptor.digest)))
}
