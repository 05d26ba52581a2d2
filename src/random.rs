//! Random bytes of which passwords and keys are made: the system's, or, in a play, those of a seed.

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use crate::api::{CallError, Class};

/// What random bytes are for: a key of the data of a Secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'a> {
    /// The namespace of the Secret.
    pub(crate) namespace: &'a str,
    /// Its name.
    pub(crate) name: &'a str,
    /// The key of its data.
    pub(crate) key: &'a str,
}

/// How many Secrets of this namespace and name there have been.
type Creations = dyn Fn(&str, &str) -> u64 + Send + Sync;

/// Where random bytes are from: the system, so that nobody can foresee them. Only a play has others.
#[derive(Clone, Default)]
pub struct Randomness(Option<Arc<Creations>>);

impl fmt::Debug for Randomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_seeded() { "Seeded" } else { "System" })
    }
}

impl Randomness {
    /// Bytes that depend on the field, and on how often its Secret was created before: in each play of a case they are the
    /// same, whatever else happens in it. A Secret that is created again has others. Nobody outside this crate can ask for them.
    pub(crate) fn seeded(creations: impl Fn(&str, &str) -> u64 + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(creations)))
    }

    pub(crate) fn is_seeded(&self) -> bool {
        self.0.is_some()
    }

    /// Bytes for a field; those of another number are others.
    ///
    /// # Errors
    /// The system has none.
    pub(crate) fn block(&self, field: Field<'_>, number: u64) -> Result<[u8; 32], CallError> {
        let mut bytes = [0; 32];
        match &self.0 {
            None => getrandom::fill(&mut bytes).map_err(|error| {
                let message = format!("the system has no random bytes: {error}");
                CallError::new(Class::Retry, 0, "NoRandomness", message)
            })?,
            Some(creations) => {
                let before = creations(field.namespace, field.name);
                let text = format!("{}/{}\n{}\n{before}\n{number}", field.namespace, field.name, field.key);
                bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
            }
        }
        Ok(bytes)
    }
}
