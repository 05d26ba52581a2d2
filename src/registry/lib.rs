//! Packages in OCI registries and layouts: references, artifacts, a client, copies, signatures.
//!
//! What is computed from values, such as [`Reference`], [`Artifact`] and [`bundle`], does no I/O. [`Store`] is a
//! repository of a registry or a layout in a folder; [`copy()`] copies between two of them, and [`signatures`] signs and
//! verifies what is in one. Registries are not trusted: each answer is bounded, and what is read by digest is checked.

// Only tests may panic; product code returns an error instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod archive;
pub mod artifact;
mod atomic;
pub mod attached;
pub mod bundle;
mod challenge;
mod client;
mod copy;
mod credentials;
pub mod deprecation;
mod digest;
mod document;
mod error;
pub mod evidence;
mod fetch;
mod identity;
pub mod index;
mod keyless;
mod keys;
mod layout;
mod manifest;
mod policy;
mod provenance;
mod reference;
mod registry;
mod repository;
mod search;
pub mod signatures;
mod signers;
#[cfg(feature = "sigstore-verify")]
mod sigstore_ring;
mod store;
pub mod survey;
#[cfg(test)]
mod tests;
mod transport;

pub use archive::{Archive, archive};
pub use artifact::{Artifact, Config};
pub use atomic::write;
pub use attached::{attach, attached};
pub use client::{Client, Options};
pub use copy::{Progress, Step, copy, push};
pub use credentials::{CredentialFiles, Credentials};
pub use digest::{Digest, NotADigest};
pub use error::Error;
pub use evidence::Evidence;
pub use fetch::{Fetched, fetch};
pub use identity::Identity;
pub use index::PackageIndex;
pub use keyless::{ROOT_BYTES, TrustedRoot};
pub use keys::{PrivateKey, PublicKey};
pub use layout::Layout;
pub use manifest::{BLOB_BYTES, Content, Descriptor, Manifest, Stored};
pub use policy::{Permit, Policies, Policy};
pub use provenance::Provenance;
pub use reference::{Reference, is_tag, tag_of};
pub use registry::{Listed, Registry};
pub use repository::Repository;
pub use search::search;
pub use signers::{Proven, Signer, Signers};
pub use store::{Place, Store};
