//! Clients with TLS, and the certificates that servers present to them.

use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The settings of a client that trusts these CAs.
pub(crate) fn trusting<'c>(
    authorities: impl IntoIterator<Item = CertificateDer<'c>>,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.into_owned()).expect("the certificate of a CA");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    config.expect("versions").with_root_certificates(roots)
}

/// A client without a certificate that trusts the CAs in a PEM text.
pub(crate) fn client(authorities: &str) -> TlsConnector {
    let authorities = CertificateDer::pem_slice_iter(authorities.as_bytes());
    let config = trusting(authorities.map(|authority| authority.expect("a certificate")));
    Arc::new(config.with_no_client_auth()).into()
}

/// The certificate that the server of a connection presents.
pub(crate) fn presented<S>(stream: &TlsStream<S>) -> Result<CertificateDer<'static>, String> {
    let certificates = stream.get_ref().1.peer_certificates().ok_or("it presents none")?;
    Ok(certificates[0].clone().into_owned())
}
