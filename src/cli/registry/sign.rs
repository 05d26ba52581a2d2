//! `operetta sign`.

use std::path::PathBuf;
use std::process::ExitCode;

use operetta_registry::{Place, signatures};

use super::access::{TimedAccess, private_key};
use crate::cli::command::Failure;
use crate::cli::out;

/// Sign a package in a registry or OCI layout with a key
///
/// The signature is of the digest, and is stored beside the package: a Sigstore bundle v0.3 that refers to the manifest, the
/// format of cosign 3. Nothing is sent anywhere else; there is no log and no timestamp.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem     # or -algorithm ed25519
  openssl pkey -in key.pem -pubout -out key.pub
  operetta sign oci://ghcr.io/acme/etcd@sha256:... --key key.pem
  operetta verify oci://ghcr.io/acme/etcd@sha256:... --key key.pub

It prints the reference that is signed. Exit codes: 0 success, 1 the key or the reference cannot be used, 2 wrong usage, \
4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// The package: `oci://HOST/PATH[:TAG][@sha256:...]`, or an OCI layout
    #[arg(value_name = "REF")]
    reference: String,

    /// The private key: a PEM file with PKCS #8, ECDSA P-256 or Ed25519, without a password
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let key = private_key(&args.key)?;
    let mut place = Place::open(&args.reference, &args.access.options()?)?;
    let manifest = place.resolve().await?;
    let written = signatures::attach(&place.store, &manifest, &key).await?;
    out::note(format!("signature {} by the key sha256:{}", written.digest, key.public().hint()));
    Ok(out::all(&format!("{}\n", place.name_of(&manifest.descriptor.digest)), ExitCode::SUCCESS))
}
