//! The client against a registry in this process that is honest, slow or lies.

mod catalogues;
#[cfg(feature = "sigstore-verify")]
mod keyless;
mod lies;
mod policies;
mod server;
#[cfg(feature = "sigstore-verify")]
mod sigstore;
mod transfers;

use bytes::Bytes;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;

use crate::{Artifact, Config, Descriptor, PrivateKey, Signers, Step, Store};

/// A package with one file of this text.
fn package(text: &str) -> Artifact {
    Artifact::new(Config::new("etcd", "1.2.0", &"0".repeat(64)), [("operator.yaml", text.as_bytes())])
        .unwrap()
}

/// A blob that does not compress.
fn large(bytes: usize) -> (Descriptor, Bytes) {
    let mut noise = vec![0; bytes];
    fastrand::fill(&mut noise);
    (Descriptor::of("application/octet-stream", &noise), noise.into())
}

fn silent(_: Step<'_>) {}

async fn push(artifact: &Artifact, to: &Store) -> Result<(), crate::Error> {
    crate::push(artifact, &[], to, &["1.2.0"], false, &silent).await
}

fn key() -> PrivateKey {
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let text = data_encoding::BASE64.encode(der.as_ref());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    PrivateKey::parse("key", pem.as_bytes()).unwrap()
}

/// This key as the only signer.
fn by(key: &PrivateKey) -> Signers {
    Signers::of_keys(vec![key.public()])
}
