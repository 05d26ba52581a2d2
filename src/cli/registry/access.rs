//! How the commands reach registries, and what they share: keys, progress, failures.

use std::path::{Path, PathBuf};
use std::time::Duration;

use operetta_registry::{
    Error, Identity, Options, PrivateKey, Proven, PublicKey, Signers, Step, TrustedRoot,
};

use crate::cli::command::{Failure, TIMED_OUT, duration};
use crate::cli::out;

/// The maximum size of a file with a key or certificates.
const FILE_BYTES: u64 = 1 << 20;

/// How registries are reached.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Registries")]
pub(in crate::cli) struct Access {
    /// Trust the authorities in this PEM file instead of the system's. Registries of this machine are called with TLS only
    /// then
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Call registries of other machines without TLS: what they answer can be altered on the way
    #[arg(long, conflicts_with = "ca")]
    plain_http: bool,
}

/// The same, with a time limit.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct TimedAccess {
    #[command(flatten)]
    access: Access,

    /// How long one request may take, retries included, and the wait for another process that writes to the same layout, such as
    /// 90s or 10m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,
}

impl Access {
    pub(in crate::cli) fn options(&self) -> Result<Options, Failure> {
        let ca = self.ca.as_deref().map(read).transpose()?;
        let plain_http = self.plain_http;
        Ok(Options { ca, plain_http, on_retry: report_retry, on_wait: report_wait, ..Options::default() })
    }
}

impl TimedAccess {
    pub(in crate::cli) fn options(&self) -> Result<Options, Failure> {
        Ok(Options { timeout: self.timeout, ..self.access.options()? })
    }
}

/// Who must have signed a package.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Signatures")]
pub(in crate::cli) struct Trust {
    /// Accept a package of a registry or layout only if one of these public keys has signed it; repeatable
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,

    /// Or if this identity has signed it: an e-mail address, or the URI of a workflow, which without @REF is meant at any Git
    /// ref
    #[arg(long, value_name = "SUBJECT", requires_all = ["issuer", "trusted_root"])]
    subject: Option<String>,

    /// Who vouches for the identity: `https://token.actions.githubusercontent.com` for workflows of GitHub
    #[arg(long, value_name = "URL", requires = "subject")]
    issuer: Option<String>,

    /// The root that proves the identity, in JSON: `cosign trusted-root create --with-default-services` prints Sigstore's
    #[arg(long, value_name = "FILE", requires = "subject")]
    trusted_root: Option<PathBuf>,
}

impl Trust {
    /// Whether somebody must have signed it.
    pub(in crate::cli) fn is_given(&self) -> bool {
        !self.keys.is_empty() || self.subject.is_some()
    }

    pub(super) fn signers(&self) -> Result<Signers, Failure> {
        let mut signers = Signers::of_keys(public_keys(&self.keys)?);
        if let (Some(subject), Some(issuer), Some(root)) = (&self.subject, &self.issuer, &self.trusted_root) {
            let identity = Identity { issuer: issuer.clone(), subject: subject.clone() };
            if let Some(problem) = identity.problem() {
                return Err(Failure::usage(format!("--issuer and --subject name nobody: {problem}")));
            }
            signers.identities.push(Proven { root: trusted_root(root)?, identities: vec![identity] });
        }
        Ok(signers)
    }
}

/// A trusted root in a file.
pub(super) fn trusted_root(path: &Path) -> Result<TrustedRoot, Failure> {
    Ok(TrustedRoot::parse(&path.display().to_string(), &read(path)?)?)
}

/// Public keys in PEM files.
pub(super) fn public_keys(paths: &[PathBuf]) -> Result<Vec<PublicKey>, Failure> {
    let parse = |path: &PathBuf| Ok(PublicKey::parse(&path.display().to_string(), &read(path)?)?);
    paths.iter().map(parse).collect()
}

/// The private key in a PEM file.
pub(super) fn private_key(path: &Path) -> Result<PrivateKey, Failure> {
    Ok(PrivateKey::parse(&path.display().to_string(), &read(path)?)?)
}

/// Reads a small file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    read_at_most(path, FILE_BYTES)
}

/// Reads a file of at most that many bytes, a multiple of 1 MiB.
pub(super) fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    use std::io::Read as _;
    let unusable =
        |reason: &str| Failure::with_code(out::UNUSABLE, format!("cannot read {}: {reason}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| unusable(&out::reason(&error)))?;
    let length = file.metadata().map_or(0, |file| file.len()).min(most);
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default() + 1);
    let read = file.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| unusable(&out::reason(&error)))?;
    if bytes.len() as u64 > most {
        return Err(unusable(&format!("it is larger than {} MiB", most >> 20)));
    }
    Ok(bytes)
}

/// Says that a request is sent again: all waits together are many seconds.
fn report_retry(error: &Error, wait: Duration) {
    let text = error.to_string();
    let reason = text.lines().next().unwrap_or_default();
    out::note(format!("warning: {reason}; trying again in {:.1} s", wait.as_secs_f32()));
}

/// Says that the command waits for another one.
fn report_wait(layout: &Path) {
    out::note(format!("waiting for another process that writes to {}", layout.display()));
}

/// Prints what a copy does.
pub(super) fn progress(step: Step<'_>) {
    let (word, of) = match step {
        Step::Present(of) => ("present", of),
        Step::Written(of) => ("written", of),
    };
    let kind = of.artifact_type.as_deref().unwrap_or(&of.media_type);
    let digest = &of.digest.hex()[..12];
    out::note(format!("{word}  {digest}  {:>9}  {}", size(of.size), out::printable(kind)));
}

/// A size for people.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=9_999_999 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::NotAReference { .. } | Error::NotADigest(_) => 2,
            Error::TimedOut { .. } | Error::Locked { .. } => TIMED_OUT,
            _ => 1,
        };
        Self::with_code(code, error.to_string())
    }
}
