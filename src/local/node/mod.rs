//! Runs a real node on this machine, instead of fake ones: containerd, kubelet, kube-proxy, `CoreDNS`, and a
//! registry of images that are built from Go modules, Debian packages and archives. Linux only, as root.

pub(super) mod config;
pub(super) mod images;
mod layouts;
pub(super) mod namespaces;
pub(super) mod network;
pub(super) mod registry;
pub(super) mod requirements;

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};

use super::binaries::Binaries;
use super::components::KUBELET_CLIENT;
use super::error::Error;
use super::kubeconfig;
use super::tools::Tool;
use config::{KUBELET_CA, Programs};
use network::Place;

/// The name of the images' folder in the folder of the control plane.
const IMAGES: &str = "images";

/// Writes the files of the node's components. `images` are the folders of images in the cache, `layouts`
/// contain additional images.
pub(super) fn prepare(
    folder: &Path,
    place: &Place,
    binaries: &Binaries,
    runc: &Path,
    images: &[PathBuf],
    layouts: &[PathBuf],
) -> Result<(), Error> {
    let cni = binaries.path(Tool::CniPtp);
    let programs =
        Programs { runc, shim: binaries.path(Tool::ContainerdShim), cni: cni.parent().unwrap_or(cni) };
    for (name, text) in config::files(folder, place, programs) {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        }
        kubeconfig::write(&path, &text)?;
    }
    layouts::merge(images, layouts, &folder.join(IMAGES))?;
    let [ca, certificate, key] =
        kubelet_client().map_err(|error| Error::Certificate { reason: error.to_string() })?;
    kubeconfig::write(&folder.join(KUBELET_CA), &ca)?;
    kubeconfig::write(&folder.join(KUBELET_CLIENT[0]), &certificate)?;
    kubeconfig::write(&folder.join(KUBELET_CLIENT[1]), &key)
}

/// Creates a CA, and a certificate and key with which kube-apiserver calls the kubelet, all as PEM. The key
/// of the CA is discarded.
fn kubelet_client() -> Result<[String; 3], rcgen::Error> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &ca)?;
    Ok([ca.pem(), certificate.pem(), key.serialize_pem()])
}
