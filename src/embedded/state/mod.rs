//! The state of the API: objects, served kinds, tokens, and caches of roles and policies.

pub(crate) mod addresses;
pub(crate) mod crds;
mod objects;
pub(crate) mod policies;
pub(crate) mod rights;
pub(crate) mod store;
pub(crate) mod stored;
pub(crate) mod tokens;

use std::sync::Arc;

use crate::crd::Converter;
use crate::model::Kinds;
use policies::Policies;
use rights::Rights;
use tokens::Tokens;

pub(crate) use store::Store;
pub(crate) use stored::{Live, Stored};

/// Which controllers act.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Active {
    #[default]
    All,
    /// The controllers of namespaces, CRDs and garbage.
    Bare,
    /// The controllers that are a part of kube-apiserver: of CRDs.
    Server,
}

/// The state that requests read and change.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) kinds: Kinds,
    /// The number of values that were generated: uids and suffixes of names.
    generated: u64,
    /// The number of addresses that Services were given.
    pub(crate) addresses: u32,
    /// The roles and bindings as they were when they were last read.
    rights: Option<Arc<Rights>>,
    /// The policies as they were when they were last read.
    policies: Option<Arc<Policies>>,
    /// Finds the conversion webhooks of CRDs.
    pub(crate) converter: Option<Arc<dyn Converter>>,
    /// The newest change of a cluster role when aggregated roles were last computed.
    pub(crate) aggregated: u64,
    pub(crate) tokens: Tokens,
    /// The certificates that pods trust, as PEM.
    pub(crate) root_ca: String,
    pub(crate) active: Active,
}

impl Default for State {
    fn default() -> Self {
        Self {
            store: Store::default(),
            kinds: Kinds::built_in(),
            generated: 0,
            addresses: 0,
            rights: None,
            policies: None,
            converter: None,
            aggregated: 0,
            tokens: Tokens::default(),
            root_ca: "# The embedded API is not served with TLS.\n".to_owned(),
            active: Active::default(),
        }
    }
}

impl State {
    /// The same state once more: what happens to one does not happen to the other.
    pub(crate) fn copy(&self) -> Self {
        self.store.share();
        self.clone()
    }

    /// The keys of the objects of a resource.
    pub(crate) fn keys(&self, resource: &str) -> Vec<Arc<str>> {
        self.store.range(resource, "", None).map(|(key, _)| key.clone()).collect()
    }

    /// The roles and bindings of now. They are read again only after one of them has changed.
    pub(crate) fn rights(&mut self) -> Arc<Rights> {
        if let Some(rights) =
            self.rights.as_ref().filter(|rights| rights.version == Rights::latest(&self.store))
        {
            return rights.clone();
        }
        let rights = Arc::new(Rights::read(&self.store));
        self.rights = Some(rights.clone());
        rights
    }

    /// The policies of now.
    pub(crate) fn policies(&mut self) -> Arc<Policies> {
        let policies = self.policies.take().unwrap_or_default().refreshed(&self.store);
        self.policies = Some(policies.clone());
        policies
    }

    /// A value that no other object has: the same requests get the same ones.
    fn generate(&mut self) -> u64 {
        self.generated += 1;
        // One step of splitmix64, so that neighbours look different.
        let mut z = self.generated.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn uid(&mut self) -> String {
        let (a, b) = (self.generate(), self.generated);
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{b:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            (a >> 4) & 0xfff,
            a & 0xfff
        )
    }

    /// The suffix of a generated name.
    pub(crate) fn suffix(&mut self) -> String {
        const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut number = self.generate();
        (0..5)
            .map(|_| {
                let letter = LETTERS[usize::try_from(number % 27).unwrap_or(0)];
                number /= 27;
                char::from(letter)
            })
            .collect()
    }
}
