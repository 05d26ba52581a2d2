//! TLS of one request: the roots of the system or a given CA, and a client certificate.

use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::plan::request::Tls;

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(ring::default_provider())))
}

/// The configuration of a connection. Errors show nothing of the material.
pub(super) fn config(tls: &Tls) -> Result<ClientConfig, String> {
    let verifier = match &tls.ca {
        Some(ca) => given_roots(ca)?,
        None => system_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (&tls.cert, &tls.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = certificates("tls.cert", cert)?;
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                .map_err(|_| "tls.key contains no private key in PEM".to_owned())?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("tls.cert and tls.key cannot be used: {error}"))?
        }
        (Some(_), None) => return Err("tls.cert needs tls.key".into()),
        (None, Some(_)) => return Err("tls.key needs tls.cert".into()),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{what} contains no certificate in PEM")),
    }
}

fn given_roots(pem: &str) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tls.ca", pem)? {
        roots
            .add(certificate)
            .map_err(|error| format!("tls.ca contains an unusable certificate: {error}"))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
    Ok(verifier.build().map_err(|error| format!("tls.ca cannot be used: {error}"))?)
}

/// The roots of the system, read once.
fn system_roots() -> Result<Arc<dyn ServerCertVerifier>, String> {
    static ROOTS: OnceLock<Result<Arc<rustls_platform_verifier::Verifier>, String>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        rustls_platform_verifier::Verifier::new(provider()).map(Arc::new).map_err(|error| error.to_string())
    });
    match roots {
        Ok(verifier) => Ok(Arc::clone(verifier) as Arc<dyn ServerCertVerifier>),
        Err(error) => Err(format!("this system has no CA certificates ({error}); set `tls.ca`")),
    }
}
