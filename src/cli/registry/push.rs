//! `operetta push`.

use std::path::PathBuf;
use std::process::ExitCode;

use operetta_registry::{Place, Reference, is_tag, tag_of};

use super::access::TimedAccess;
use super::evidence::Wanted;
use super::fetch::is_place;
use super::{locked, made};
use crate::cli::command::Failure;
use crate::cli::out;

/// Publish a package in an OCI registry
///
/// Checks the package as `operetta install` does, and writes it with its version as the tag. A version that is there with
/// another content is not replaced: who has installed it by its tag relies on it.
///
/// The config states the capability level, what the lint finds, and with --test which cases pass: `operetta inspect --check` checks
/// that again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta push operators/etcd oci://ghcr.io/acme/etcd              # with the version as the tag
  operetta push operators/etcd oci://ghcr.io/acme/etcd --tag stable --force
  operetta push operators/etcd oci://ghcr.io/acme/etcd --test --sbom    # with what others can check
  operetta sign $(operetta push operators/etcd oci://ghcr.io/acme/etcd) --key key.pem

It prints the reference with the digest. Credentials are those of Docker and Podman: see `operetta login`.

Exit codes: 0 success, 1 the package has errors, a case fails, or the registry refuses it, 2 wrong usage, or the package cannot be read, \
4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// A folder, or a tar archive
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,

    /// The repository: `oci://HOST/PATH`, and :TAG instead of the version
    #[arg(value_name = "REF")]
    reference: String,

    /// Set this tag, too; repeatable
    #[arg(long = "tag", value_name = "TAG", value_parser = tag)]
    tags: Vec<String>,

    /// Move tags that have another content
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    wanted: Wanted,

    /// Attach an SBOM, in SPDX 2.3: the package, the packages that it requires, its images
    #[arg(long, help_heading = "Evidence")]
    sbom: bool,

    #[command(flatten)]
    access: TimedAccess,
}

fn tag(text: &str) -> Result<String, &'static str> {
    if is_tag(text) { Ok(text.to_owned()) } else { Err("a tag has letters, digits and . _ - only") }
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    if is_place(&args.package) {
        let message = "it is published already\n  help: `operetta copy` copies it with its signatures";
        return Err(Failure::usage(format!("{}: {message}", args.package.display())));
    }
    let reference: Reference = args.reference.parse()?;
    if reference.digest.is_some() {
        return Err(Failure::usage("the digest follows from the package: name a tag, or none"));
    }
    let options = args.access.options()?;
    let loaded = locked::load(&args.package, &options, false).await?;
    let version = loaded.0.version.to_string();
    let made = made::make(loaded, &args.package, &args.wanted)?;
    let digest = made.artifact.manifest.descriptor.digest.clone();
    let first = reference.tag.as_deref().map_or_else(|| tag_of(&version), Ok)?;
    let tags: Vec<&str> = [first].into_iter().chain(args.tags.iter().map(String::as_str)).collect();
    let to = Place::open(&args.reference, &options)?;
    made.push(&to.store, &tags, args.force, args.sbom).await?;
    let name = Reference { digest: Some(digest), ..reference.tagged(first) };
    Ok(out::all(&format!("{name}\n"), ExitCode::SUCCESS))
}
