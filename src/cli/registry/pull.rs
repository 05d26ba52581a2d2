//! `operetta pull`.

use std::path::PathBuf;
use std::process::ExitCode;

use operetta_registry::{Place, copy};

use super::access::{TimedAccess, Trust, progress};
use super::fetch::find;
use super::package::is_archive;
use crate::cli::command::Failure;
use crate::cli::out;

/// Download a package from an OCI registry
///
/// Writes its files as a .tgz, or an OCI layout with its signatures, from which `operetta install` and `operetta copy` read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta pull oci://ghcr.io/acme/etcd                    # the newest version, as etcd-1.2.0.tgz
  operetta pull oci://ghcr.io/acme/etcd:1.2.0 -o layout    # with signatures
  operetta pull oci://ghcr.io/acme/etcd@sha256:... --key key.pub

It prints the reference with the digest. Exit codes: 0 success, 1 there is no such package, or it is not what it should be, \
2 wrong usage, 4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// The package: `oci://HOST/PATH[:TAG][@sha256:...]`, or an OCI layout
    #[arg(value_name = "REF")]
    reference: String,

    /// The file (.tgz, .tar.gz), or the folder of an OCI layout [default: NAME-VERSION.tgz]
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: Option<PathBuf>,

    #[command(flatten)]
    trust: Trust,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (signers, options) = (args.trust.signers()?, args.access.options()?);
    let found = find(&args.reference, &options).await?;
    if !signers.is_empty() {
        out::note(format!("signed: {}", found.check(&signers).await?));
    }
    let (package, _) = found.package()?;
    let output = args.output.clone();
    let output = output.unwrap_or_else(|| format!("{}-{}.tgz", package.name, package.version).into());
    if is_archive(&output) {
        operetta_registry::write(&output, &found.layer)?;
    } else {
        let to = Place::create(&output.to_string_lossy(), &options)?;
        let version = package.version.to_string();
        let tag = to.tag.as_deref().or(found.place.tag.as_deref()).unwrap_or(&version);
        copy(&found.manifest, &found.place.store, &to.store, Some(tag), false, &progress).await?;
    }
    out::note(format!("written to {}", output.display()));
    Ok(out::all(&format!("{}\n", found.name), ExitCode::SUCCESS))
}
