//! Which packages may be installed: by the prefix of their repository, and by who has signed them.

use crate::error::Error;
use crate::identity::Identity;
use crate::keyless::TrustedRoot;
use crate::keys::PublicKey;
use crate::provenance::Provenance;
use crate::reference::Reference;
use crate::signers::{Proven, Signers};

/// An entry of the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Its name, for people.
    pub name: String,
    /// The registry and the first parts of the path, such as `ghcr.io/acme`. Empty: everything, also what is from no registry.
    pub prefix: String,
    /// Public keys in PEM; one of them or of the identities must have signed the package.
    pub keys: Vec<String>,
    /// Identities.
    pub identities: Vec<Identity>,
    /// The root that proves the identities, in JSON.
    pub trusted_root: Option<String>,
    /// Whether packages need no signature.
    pub unsigned: bool,
}

/// All entries. The longest prefix decides; what none matches is denied once there is one.
#[derive(Debug, Clone, Default)]
pub struct Policies(Vec<Entry>);

#[derive(Debug, Clone)]
struct Entry {
    name: String,
    /// As prefixes are compared.
    prefix: String,
    signers: Signers,
    /// What of it cannot be used.
    unusable: Vec<String>,
    unsigned: bool,
}

/// The permission to install a package: the policy that gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permit {
    /// The name of the entry that permits it; `None` if there are no entries.
    pub policy: Option<String>,
    /// Who has signed it, if the entry demands a signature: the key (`sha256:...`), or the identity.
    pub signer: Option<String>,
}

impl Policies {
    /// These entries.
    pub fn new(entries: Vec<Policy>) -> Self {
        Self(entries.into_iter().map(Entry::of).collect())
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the prefix of an entry matches a reference.
    pub fn matches(&self, reference: &str) -> bool {
        let repository = repository(reference);
        self.0.iter().any(|entry| is_below(repository.as_deref(), &entry.prefix))
    }

    /// The signers of all entries.
    pub fn signers(&self) -> Signers {
        Signers::of_all(self.0.iter().map(|entry| &entry.signers))
    }

    /// Decides about a package with these files (the SHA-256 in hex, as a revision has it). `provenance`: where it is from, if
    /// it is from a registry or layout.
    ///
    /// # Errors
    /// It may not be installed; the text says why and what to do.
    pub fn check(&self, provenance: Option<&Provenance>, revision: &str) -> Result<Permit, String> {
        if self.0.is_empty() {
            return Ok(Permit::default());
        }
        let repository = provenance.and_then(|provenance| repository(&provenance.reference));
        let what = match (provenance, &repository) {
            (Some(provenance), Some(_)) => Error::shown(&provenance.reference),
            (Some(_), None) => "a package of an OCI layout, which has no registry,".to_owned(),
            (None, _) => {
                "a package of a folder or archive, which has no registry and no signature,".to_owned()
            }
        };
        let matching = self.0.iter().filter(|entry| is_below(repository.as_deref(), &entry.prefix));
        let longest = matching.clone().map(|entry| entry.prefix.len()).max();
        let deciding: Vec<&Entry> = matching.filter(|entry| Some(entry.prefix.len()) == longest).collect();
        let Some(first) = deciding.first() else {
            return Err(format!(
                "{what} matches the prefix of no PackagePolicy, and what none matches is denied once there is one: \
                 `operetta trust REF` prints an entry"
            ));
        };
        let is_open = |entry: &&Entry| entry.signers.is_empty() && entry.unusable.is_empty();
        if deciding.iter().all(is_open) && deciding.iter().any(|entry| entry.unsigned) {
            return Ok(Permit { policy: Some(first.name.clone()), signer: None });
        }
        let names = deciding.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
        let unusable = deciding.iter().flat_map(|entry| &entry.unusable);
        let note = unusable.fold(String::new(), |note, reason| note + "; " + reason);
        let Some(provenance) = provenance else {
            return Err(format!("{what} is not permitted: PackagePolicy {names} demands a signature{note}"));
        };
        for entry in &deciding {
            if let Ok((signer, _)) = provenance.verify(revision, &entry.signers) {
                return Ok(Permit { policy: Some(entry.name.clone()), signer: Some(signer.name()) });
            }
        }
        let all = Signers::of_all(deciding.iter().map(|entry| &entry.signers));
        let why = provenance.verify(revision, &all).err().map(|error| error.to_string()).unwrap_or_default();
        Err(format!("PackagePolicy {names} does not permit it: {why}{note}"))
    }
}

impl Entry {
    fn of(policy: Policy) -> Self {
        let Policy { name, prefix, keys, identities, trusted_root, unsigned } = policy;
        let (mut signers, mut unusable) = (Signers::default(), Vec::new());
        for pem in &keys {
            match PublicKey::parse("a key", pem.as_bytes()) {
                Ok(key) => signers.keys.push(key),
                Err(_) => unusable.push(format!(
                    "a key of {name} cannot be read: it is no public key in PEM, ECDSA P-256 or Ed25519"
                )),
            }
        }
        if !identities.is_empty() {
            let root = trusted_root.unwrap_or_default();
            match TrustedRoot::parse(&format!("of {name}"), root.as_bytes()) {
                Ok(root) => signers.identities.push(Proven { root, identities }),
                Err(error) => unusable.push(error.to_string()),
            }
        }
        Self { name, prefix: normal(&prefix), signers, unusable, unsigned }
    }
}

/// The registry and the path of a reference, as prefixes are compared with it; `None` for a layout.
fn repository(reference: &str) -> Option<String> {
    let Reference { registry, repository, .. } = reference.parse().ok()?;
    Some(normal(&format!("{registry}/{repository}")))
}

/// A prefix as it is compared: without scheme, default port and slashes at the end; hosts are lower case.
fn normal(prefix: &str) -> String {
    let prefix = prefix.trim().strip_prefix("oci://").unwrap_or(prefix.trim()).trim_end_matches('/');
    let (host, path) = prefix.split_once('/').unwrap_or((prefix, ""));
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix(":443").unwrap_or(&host);
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// Whether a repository is the prefix or below it, by whole parts of the path.
fn is_below(repository: Option<&str>, prefix: &str) -> bool {
    let rest = repository.unwrap_or_default().strip_prefix(prefix);
    prefix.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
