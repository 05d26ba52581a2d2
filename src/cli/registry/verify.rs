//! `operetta verify`.

use std::process::ExitCode;

use operetta_registry::{Place, Signer, signatures};
use serde_json::json;

use super::access::{TimedAccess, Trust};
use crate::cli::command::{Failure, Format};
use crate::cli::out;

/// Check who has signed a package
///
/// Reads the signatures of `operetta sign`, those that cosign 3 and 2 make with keys, and those of identities that cosign 3 makes. Nothing but the
/// registry is asked: keys need no log and no timestamp, and what proves an identity is in the signature and in --trusted-root.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta verify oci://ghcr.io/acme/etcd:1.2.0 --key key.pub
  operetta install $(operetta verify oci://ghcr.io/acme/etcd:1.2.0 --key key.pub)
  operetta verify oci://ghcr.io/acme/etcd:1.2.0 --trusted-root root.json \\
    --issuer https://token.actions.githubusercontent.com \\
    --subject https://github.com/acme/etcd/.github/workflows/release.yaml

It prints the reference with the digest that is signed. Exit codes: 0 one of them has signed it, 1 none has, 2 wrong usage, \
4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// The package: `oci://HOST/PATH[:TAG][@sha256:...]`, or an OCI layout
    #[arg(value_name = "REF")]
    reference: String,

    #[command(flatten)]
    trust: Trust,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.trust.is_given() {
        let message = "say who must have signed it: --key FILE, or --subject, --issuer and --trusted-root";
        return Err(Failure::usage(message.to_owned()));
    }
    let signers = args.trust.signers()?;
    let mut place = Place::open(&args.reference, &args.access.options()?)?;
    let manifest = place.resolve().await?;
    let name = place.name_of(&manifest.descriptor.digest);
    let found = signatures::find(&place.store, &manifest).await?;
    let (signature, signer) = signatures::check(&name, &manifest, &found, &signers)?;
    if let Some(format) = args.output {
        let mut value = json!({
            "reference": name, "digest": manifest.descriptor.digest, "signature": signature.of.digest,
            "format": signature.format(),
        });
        match signer {
            Signer::Key(key) => value["key"] = key.hint().into(),
            Signer::Identity(identity) => value["identity"] = json!(identity),
        }
        return Ok(out::all(&format.document(&value), ExitCode::SUCCESS));
    }
    out::note(format!("signed: {}, {signer}", signature.format()));
    Ok(out::all(&format!("{name}\n"), ExitCode::SUCCESS))
}
