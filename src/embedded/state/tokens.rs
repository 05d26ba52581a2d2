//! Tokens of service accounts: opaque texts that only this API knows.

use std::collections::HashMap;

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use operetta_kube_model::facts::key;
use sha2::{Digest as _, Sha256};

use super::store::Store;
use crate::model::User;

/// The audience of the API server.
pub(crate) const OWN: &str = "https://kubernetes.default.svc";

/// A token that was given out.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) id: String,
    pub(crate) audiences: Vec<String>,
    pub(crate) expires: Timestamp,
}

impl Token {
    /// Whether the token is one for the API server.
    pub(crate) fn is_own(&self) -> bool {
        self.audiences.iter().any(|audience| audience == OWN)
    }

    pub(crate) fn user(&self) -> User {
        let id = format!("JTI={}", self.id);
        User {
            uid: self.uid.clone(),
            extra: [("authentication.kubernetes.io/credential-id".to_owned(), vec![id])].into(),
            ..User::account(&self.namespace, &self.name)
        }
    }
}

/// The tokens that were given out.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tokens {
    /// A secret from which tokens are computed, so that nobody can guess them. It is empty if only this process sends requests.
    pub(crate) key: String,
    given: HashMap<String, Token>,
}

impl Tokens {
    /// Gives out a token. Returns its text.
    pub(crate) fn issue(&mut self, token: Token) -> String {
        let digest = Sha256::new().chain_update(&self.key).chain_update(&token.id).finalize();
        let text = format!("embedded-token-{}", HEXLOWER.encode(&digest));
        self.given.insert(text.clone(), token);
        text
    }

    /// The token with a text, while it is valid and its account exists.
    pub(crate) fn live(&self, text: &str, store: &Store, now: Timestamp) -> Option<&Token> {
        let token = self.given.get(text).filter(|token| token.expires > now)?;
        let account = store.get("serviceaccounts", &key(&token.namespace, &token.name))?;
        (*account.uid == *token.uid).then_some(token)
    }
}
