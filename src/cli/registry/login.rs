//! `operetta login` and `operetta logout`.

use std::io::Read as _;
use std::process::ExitCode;

use operetta_registry::{Client, CredentialFiles, Credentials, Reference};

use super::access::TimedAccess;
use crate::cli::command::Failure;
use crate::cli::out;

/// The longest password that is read.
const PASSWORD_BYTES: u64 = 64 << 10;

/// Store credentials for a registry, where Docker has them
///
/// Tries them first. They are stored in Docker's config.json (`REGISTRY_AUTH_FILE`, `DOCKER_CONFIG`), or by the helper that it
/// names. Credentials that `docker login` and `podman login` have stored are used without this.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta login ghcr.io --username acme --password-stdin < token
  pass show registry | operetta login registry.internal:5000 --ca ca.pem -u acme --password-stdin

Exit codes: 0 success, 1 the registry refuses them, or they cannot be stored, 2 wrong usage, 4 --timeout is over.")]
pub(in crate::cli) struct LoginArgs {
    /// The host, and the port if there is one
    #[arg(value_name = "REGISTRY")]
    registry: String,

    /// The name of the user
    #[arg(short, long, value_name = "NAME")]
    username: String,

    /// Read the password or token from standard input
    #[arg(long)]
    password_stdin: bool,

    #[command(flatten)]
    access: TimedAccess,
}

/// Remove credentials for a registry
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 success, or there are none, 1 they cannot be removed, 2 wrong usage.")]
pub(in crate::cli) struct LogoutArgs {
    /// The host, and the port if there is one
    #[arg(value_name = "REGISTRY")]
    registry: String,
}

/// The registry of a host, with or without `oci://`.
fn parse(text: &str) -> Result<Reference, Failure> {
    let host = text.strip_prefix("oci://").unwrap_or(text).trim_end_matches('/');
    let reference = format!("oci://{host}/any").parse::<Reference>();
    let reference = reference.ok().filter(|reference| reference.repository == "any");
    let reference = reference.ok_or_else(|| {
        Failure::usage(format!("{text:?} is no host of a registry: for example ghcr.io or localhost:5000"))
    })?;
    Ok(Reference { repository: String::new(), ..reference })
}

pub(super) async fn login(args: &LoginArgs) -> Result<ExitCode, Failure> {
    let reference = parse(&args.registry)?;
    if !args.password_stdin {
        let help = "help: operetta login HOST -u NAME --password-stdin < FILE";
        return Err(Failure::usage(format!("a password in a command line is seen by other users\n  {help}")));
    }
    let mut password = String::new();
    std::io::stdin()
        .take(PASSWORD_BYTES)
        .read_to_string(&mut password)
        .map_err(|error| out::reason(&error))?;
    let password = password.trim_end_matches(['\r', '\n']).to_owned();
    if password.is_empty() {
        return Err(Failure::usage("there is no password on standard input"));
    }
    let user = args.username.clone();
    let credentials = Credentials::Password { user, password: password.clone() };
    let options = args.access.options()?;
    let files = options.credentials.clone();
    Client::new(&reference, options)?.with_credentials(credentials).ping().await?;
    let place = files.store(&reference.registry, &args.username, &password).await?;
    out::note(format!("credentials for {} are in {place}", reference.registry));
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn logout(args: &LogoutArgs) -> Result<ExitCode, Failure> {
    let registry = parse(&args.registry)?.registry;
    let found = CredentialFiles::of_user().erase(&registry).await?;
    out::note(if found {
        format!("the credentials for {registry} are removed")
    } else {
        format!("there are no credentials for {registry}")
    });
    Ok(ExitCode::SUCCESS)
}
