//! `operetta package`: writes a package as an archive or OCI layout.

use std::path::PathBuf;
use std::process::ExitCode;

use operetta_registry::{Place, tag_of};

use super::access::TimedAccess;
use super::evidence::Wanted;
use super::{locked, made};
use crate::cli::command::Failure;
use crate::cli::out;

/// Write a package to a file or OCI layout, as it is published
///
/// Checks the package as `operetta install` does. A .tgz has its files; an OCI layout is a folder that also has the manifest,
/// as `operetta push` sends it. Equal packages give equal bytes.
///
/// If spec.requires.apis names packages, one version of each is chosen, and written to operator.lock with its digest. What that file
/// has stays as long as it fits.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta package operators/etcd -o etcd.tgz
  operetta package operators/etcd -o layout           # then: operetta copy layout oci://ghcr.io/acme/etcd
  operetta package operators/shop -o shop.tgz --update    # the newest packages that it may require
  operetta package operators/etcd -o layout --test        # with the cases that pass: see `operetta inspect --check`

It prints the digest. Exit codes: 0 success, 1 the package has errors, or a case fails, 2 wrong usage, or the package cannot be read, \
4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// A folder, or a tar archive
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,

    /// The file (.tgz, .tar.gz), or the folder of the layout
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: PathBuf,

    /// Replace this version in the layout
    #[arg(long)]
    force: bool,

    /// Choose the required packages again: the newest versions in the ranges
    #[arg(long)]
    update: bool,

    #[command(flatten)]
    wanted: Wanted,

    /// Write an SBOM, in SPDX 2.3, to this file, and attach it in a layout
    #[arg(long, value_name = "FILE", help_heading = "Evidence")]
    sbom: Option<PathBuf>,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let options = args.access.options()?;
    let loaded = locked::load(&args.package, &options, args.update).await?;
    let version = loaded.0.version.to_string();
    let made = made::make(loaded, &args.package, &args.wanted)?;
    let digest = made.artifact.manifest.descriptor.digest.clone();
    if let Some(file) = &args.sbom {
        operetta_registry::write(file, out::json(&made.sbom).as_bytes())?;
    }
    if is_archive(&args.output) {
        operetta_registry::write(&args.output, &made.artifact.layer)?;
    } else {
        let to = Place::create(&args.output.to_string_lossy(), &options)?;
        let tag = to.tag.as_deref().map_or_else(|| tag_of(&version), Ok)?;
        made.push(&to.store, &[tag], args.force, args.sbom.is_some()).await?;
    }
    Ok(out::all(&format!("{digest}\n"), ExitCode::SUCCESS))
}

/// Whether a path is that of an archive.
pub(super) fn is_archive(path: &std::path::Path) -> bool {
    let name = path.to_string_lossy();
    [".tgz", ".tar.gz"].iter().any(|end| name.ends_with(end))
}
