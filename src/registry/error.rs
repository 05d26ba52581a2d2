//! The errors, each with what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::digest::{Digest, NotADigest};

/// The longest text of a registry that a message shows, in characters.
const SHOWN: usize = 200;

/// Why a package cannot be read from or written to a registry or layout.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text is not a reference.
    #[error(
        "{text:?} is no reference of a package: {reason}\n  \
         help: write oci://HOST/PATH:TAG, for example oci://ghcr.io/acme/etcd:1.2.0, or add @sha256:..."
    )]
    NotAReference {
        /// The text.
        text: String,
        /// The reason.
        reason: &'static str,
    },

    /// A text is not a digest.
    #[error(transparent)]
    NotADigest(#[from] NotADigest),

    /// The version cannot be a tag.
    #[error(
        "the version {version} cannot be a tag of a registry\n  \
         help: remove the build metadata (from + on) from spec.version, or name a tag: oci://HOST/PATH:TAG"
    )]
    NotATag {
        /// The version.
        version: String,
    },

    /// A manifest, index, config or bundle is not what it should be.
    #[error("{what} is invalid: {reason}")]
    Invalid {
        /// What was read, such as `the manifest sha256:...`.
        what: String,
        /// The reason.
        reason: String,
    },

    /// The artifact is not a package.
    #[error(
        "{what} is no package of Operetta: {reason}\n  \
         help: `operetta push` writes packages; `operetta inspect` shows what a reference is"
    )]
    NotAPackage {
        /// The reference.
        what: String,
        /// The reason.
        reason: String,
    },

    /// The bytes do not have the digest by which they were asked for.
    #[error(
        "{what} has the digest {found} instead of {wanted}: nothing of it is used\n  \
         help: the registry or a proxy has damaged or replaced it; push it again from a copy that is known to be good"
    )]
    WrongDigest {
        /// What was read.
        what: String,
        /// The digest that was asked for.
        wanted: Digest,
        /// The digest of the bytes.
        found: Digest,
    },

    /// The answer is larger than permitted.
    #[error("{what} is larger than {limit} bytes: it is not read further")]
    TooLarge {
        /// What was read.
        what: String,
        /// The limit.
        limit: u64,
    },

    /// There is no such manifest, blob or repository.
    #[error(
        "{what} does not exist\n  help: check host, path and tag; `operetta inspect` takes the same reference"
    )]
    NotFound {
        /// What was asked for.
        what: String,
    },

    /// The tag has another content already.
    #[error(
        "{what} already is {found}, and this is {pushed}\n  \
         help: give the package a new version; --force moves the tag, and those who use it get other content"
    )]
    TagExists {
        /// The reference with the tag.
        what: String,
        /// The digest that the tag has.
        found: Digest,
        /// The digest that was to be pushed.
        pushed: Digest,
    },

    /// A trusted root cannot be used.
    #[error(
        "the trusted root {what} cannot be used: {reason}\n  \
         help: `cosign trusted-root create --with-default-services` prints that of Sigstore's public instance"
    )]
    Root {
        /// Where it is.
        what: String,
        /// The reason.
        reason: String,
    },

    /// The registry wants credentials, or others.
    #[error("{registry} refuses access to {what}: {reason}\n  help: operetta login {registry}")]
    Unauthorized {
        /// The host of the registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// Whether credentials were sent, in words.
        reason: String,
    },

    /// The registry answered with an error.
    #[error("{registry} answers {status} to {what}{}", detail(message))]
    Status {
        /// The host of the registry.
        registry: String,
        /// The status code.
        status: u16,
        /// What was asked for.
        what: String,
        /// The message of the registry.
        message: String,
    },

    /// The registry answered with what is not permitted.
    #[error("the answer of {registry} to {what} is not followed: {reason}")]
    Refused {
        /// The host of the registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// The reason.
        reason: String,
    },

    /// The registry could not be reached, or the connection broke.
    #[error("{registry} cannot be reached for {what}: {reason}{}", transport_help(reason))]
    Transport {
        /// The host of the registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// The reason.
        reason: String,
    },

    /// The deadline is over.
    #[error("{registry} did not complete {what} within {} s\n  help: --timeout 10m gives it more time", waited.as_secs())]
    TimedOut {
        /// The host of the registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// The time that was waited.
        waited: Duration,
    },

    /// Another process has locked a layout.
    #[error(
        "another process has locked the layout {} for more than {} s\n  \
         help: repeat the command when it has ended, or end it; --timeout 10m waits longer",
        path.display(), waited.as_secs()
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The time that was waited.
        waited: Duration,
    },

    /// Credentials cannot be read or written.
    #[error("the credentials for {registry} cannot be used: {reason}")]
    Credentials {
        /// The host of the registry.
        registry: String,
        /// The reason, and what to do.
        reason: String,
    },

    /// A key cannot be used.
    #[error(
        "{what} cannot be used: {reason}\n  \
         help: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"
    )]
    Key {
        /// The key.
        what: String,
        /// The reason.
        reason: String,
    },

    /// No signature is of one of the signers.
    #[error("{what} has no valid signature of a trusted key or identity: {reason}")]
    NotSigned {
        /// What should be signed.
        what: String,
        /// What was found instead.
        reason: String,
    },

    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action, such as `write`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// Adds the action and the path to an I/O error; for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// Something that was read is invalid.
    pub(crate) fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), reason: reason.into() }
    }

    /// The start of a text of others, in one line of printable characters.
    pub(crate) fn shown(text: &str) -> String {
        let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        line.take(SHOWN).collect::<String>().trim().to_owned()
    }

    /// Whether it may pass by itself: the registry was not reached, is overloaded or slow, or a layout is locked.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Transport { .. } | Self::TimedOut { .. } | Self::Locked { .. } => true,
            Self::Status { status, .. } => *status >= 500 || matches!(status, 408 | 425 | 429),
            _ => false,
        }
    }

    /// Whether there is no such thing.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

fn transport_help(reason: &str) -> &'static str {
    if reason.contains("certificate") {
        "\n  help: --ca FILE names the certificate of the authority that signed the registry's"
    } else {
        ""
    }
}
