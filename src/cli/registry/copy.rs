//! `operetta copy`.

use std::process::ExitCode;

use operetta_registry::{Options, Place, Store, copy, is_tag};

use super::access::{TimedAccess, progress};
use super::beside::{locate, repository};
use super::fetch::find;
use crate::cli::command::Failure;
use crate::cli::out;

/// The annotation with the version.
const VERSION: &str = "org.opencontainers.image.version";

/// Copy a package with its signatures, between registries and OCI layouts
///
/// Digests stay as they are, so signatures stay valid. What is there already is not sent again: a copy that was interrupted is
/// repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta copy oci://ghcr.io/acme/etcd:1.2.0 layout                  # out of one network
  operetta copy layout oci://registry.internal:5000/mirror/etcd       # into another
  operetta copy oci://ghcr.io/acme/shop:1.0.0 oci://registry.internal/acme/shop --with-dependencies
  operetta copy oci://ghcr.io/acme/etcd@sha256:... oci://registry.internal/etcd:stable --force

It prints the copy's reference with the digest. Exit codes: 0 success, 1 something cannot be read or written, 2 wrong usage, \
4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// `oci://HOST/PATH[:TAG][@sha256:...]`, or an OCI layout: FOLDER, FOLDER:TAG, FOLDER@sha256:...
    #[arg(value_name = "FROM")]
    from: String,

    /// `oci://HOST/PATH[:TAG]`, or a folder [default of the tag: FROM's, or the version]
    #[arg(value_name = "TO")]
    to: String,

    /// Move a tag that has another content
    #[arg(long)]
    force: bool,

    /// Copy the packages of operator.lock first: into repositories of their names beside TO, or into the same layout. An
    /// installation from there finds them
    #[arg(long)]
    with_dependencies: bool,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let options = args.access.options()?;
    let mut from = Place::open(&args.from, &options)?;
    let manifest = from.resolve().await?;
    let mut to = Place::create(&args.to, &options)?;
    if to.digest.is_some() {
        return Err(Failure::usage("the digest of a copy is the original's: name a tag, or none"));
    }
    if args.with_dependencies {
        let name = from.name_of(&manifest.descriptor.digest);
        dependencies(&name, &to, args.force, &options).await?;
    }
    let version = manifest.manifest().and_then(|manifest| manifest.annotations.get(VERSION));
    let version = version.filter(|version| is_tag(version)).cloned();
    to.tag = to.tag.or(from.tag.clone()).or(version);
    copy(&manifest, &from.store, &to.store, to.tag.as_deref(), args.force, &progress).await?;
    Ok(out::all(&format!("{}\n", to.name_of(&manifest.descriptor.digest)), ExitCode::SUCCESS))
}

/// Copies the packages of the lock of a package, which come before it: what is installed from the copy is complete.
async fn dependencies(name: &str, to: &Place, force: bool, options: &Options) -> Result<(), Failure> {
    let (package, _) = find(name, options).await?.package()?;
    if !package.is_locked() {
        let message = format!("{name} was published without the lock that it needs");
        return Err(format!("{message}\n  help: `operetta push` publishes a package with its lock").into());
    }
    for locked in &package.locked {
        let reference = locate(locked, Some(name), options).await?;
        let mut from = Place::open(&reference, options)?;
        let manifest = from.resolve().await?;
        let place = Place::create(&repository(to, locked), options)?;
        // In a layout, tags are those of the package that requires them.
        let version = locked.version.to_string();
        let tag =
            Some(version.as_str()).filter(|tag| is_tag(tag) && matches!(place.store, Store::Registry(_)));
        copy(&manifest, &from.store, &place.store, tag, force, &progress).await?;
        out::note(format!("copied  {} {}  {}@{}", locked.name, locked.version, place.name(), locked.digest));
    }
    Ok(())
}
