//! The conversion webhook: API servers ask it for objects in another version of their kind.
//!
//! Every replica serves it, with the same certificate, from a Secret. The rules are in an annotation of the CRD, so a
//! replica needs neither the packages nor the Lease, and instances stay readable while a package cannot be loaded. Only the
//! leader writes the Secret and the CRDs.

mod bodies;
mod certificates;
mod review;
mod rules;
mod serve;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Uri;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use super::own_namespace;
use crate::api::{ApiKind, CallError, Class};
use crate::children::names;
use crate::clock;
use crate::cluster::Cluster;
use crate::validation::dns_label;
use certificates::{CertificateError, Material, Stored};

/// How often the Secret is read. A certificate is replaced a month before its end.
const READ: Duration = Duration::from_secs(30);
/// How often the Secret is read while there is no certificate.
const READ_SOON: Duration = Duration::from_secs(1);
/// How long connections may take to end.
const CLOSED: Duration = Duration::from_secs(2);

/// Where API servers find the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookAddress {
    /// A URL without a path.
    Url(String),
    /// A Service of the cluster.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// An API in the same process, which asks a [`CrdConversion`]: nothing is served, and there is no certificate.
    Process,
}

/// The URL that a CRD names for [`WebhookAddress::Process`]. Nothing connects to it.
const IN_PROCESS: &str = "https://operetta.invalid";

impl WebhookAddress {
    /// Parses `https://HOST[:PORT]`.
    ///
    /// # Errors
    /// The form that it must have.
    pub fn url(text: &str) -> Result<Self, String> {
        let wrong = || "an https URL without a path, such as https://192.0.2.1:9443".to_owned();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_right =
            uri.scheme_str() == Some("https") && matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority().filter(|_| is_right).ok_or_else(wrong)?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(wrong());
        }
        Ok(Self::Url(format!("https://{authority}")))
    }

    /// Parses `NAMESPACE/NAME[:PORT]`.
    ///
    /// # Errors
    /// The form that it must have.
    pub fn service(text: &str) -> Result<Self, String> {
        let wrong = || "NAMESPACE/NAME or NAMESPACE/NAME:PORT".to_owned();
        let (namespace, rest) = text.split_once('/').ok_or_else(wrong)?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?),
            None => (rest, 443),
        };
        if [namespace, name].into_iter().any(|text| dns_label(text).is_some()) {
            return Err(wrong());
        }
        Ok(Self::Service { namespace: namespace.to_owned(), name: name.to_owned(), port })
    }

    /// The name that API servers expect in the certificate.
    fn name(&self) -> String {
        match self {
            Self::Url(url) => {
                let host =
                    url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
                let address = host.trim_start_matches('[').trim_end_matches(']');
                address.parse::<IpAddr>().map_or_else(|_| host.clone(), |address| address.to_string())
            }
            Self::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
            Self::Process => String::new(),
        }
    }

    /// The `clientConfig` of a CRD, without the path of the kind.
    fn client_config(&self, ca: &str) -> Value {
        use base64::Engine as _;
        let bundle = base64::engine::general_purpose::STANDARD.encode(ca);
        match self {
            Self::Url(url) => json!({"url": url, "caBundle": bundle}),
            Self::Service { namespace, name, port } => json!({
                "service": {"namespace": namespace, "name": name, "port": port}, "caBundle": bundle,
            }),
            Self::Process => json!({"url": IN_PROCESS}),
        }
    }
}

/// What the webhook answers for one CRD, without a connection.
#[derive(Debug, Clone)]
pub struct CrdConversion(rules::Known);

impl CrdConversion {
    /// Reads the rules that the manager keeps in a CRD. `None` if it has none, or if they cannot be read.
    pub fn of(crd: &Value) -> Option<Self> {
        let (_, known) = rules::Known::read(crd)?.ok()?;
        Some(Self(known))
    }

    /// Answers a `ConversionReview`.
    ///
    /// # Errors
    /// It is none.
    pub fn answer(&self, review: &str) -> Result<String, String> {
        let review = review::Review::read(review.as_bytes()).map_err(|error| error.to_string())?;
        Ok(review.answer(&self.0.rules, &self.0.stored))
    }
}

/// Why the certificates cannot be kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// The webhook of this process.
pub struct Webhook {
    address: WebhookAddress,
    /// The names of the certificate.
    names: Vec<String>,
    /// The Secret with the certificates.
    secret: String,
    namespace: String,
    material: Mutex<Option<Arc<Material>>>,
    /// What was read or written last, by which a deleted Secret is made again.
    last: Mutex<Stored>,
    /// Whether connections are closed after each answer.
    retired: watch::Sender<bool>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("address", &self.address).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Webhook {
    /// A webhook that is found at that address. The Secret is in `namespace`; its name begins with that of the Lease, which
    /// replicas have in common.
    pub fn new(address: WebhookAddress, namespace: &str, lease: &str) -> Arc<Self> {
        Arc::new(Self {
            names: vec![address.name()],
            address,
            secret: format!("{lease}-webhook"),
            namespace: namespace.to_owned(),
            material: Mutex::default(),
            last: Mutex::default(),
            retired: watch::Sender::default(),
        })
    }

    /// Closes each connection after its next answer: API servers go on with another replica.
    pub fn retire(&self) {
        self.retired.send_replace(true);
    }

    /// Waits until all connections are closed, but not long: API servers keep those open that they do not use.
    pub async fn closed(&self) {
        let _ = tokio::time::timeout(CLOSED, self.retired.closed()).await;
    }

    /// Creates and renews the certificates until the future is dropped. `changed` is called when the CRDs
    /// have to name another CA.
    pub(super) async fn keep(self: Arc<Self>, cluster: Cluster, changed: impl Fn() + Send) {
        if self.address == WebhookAddress::Process {
            return;
        }
        let mut ca = lock(&self.material).as_ref().map(|material| material.ca.clone());
        loop {
            match self.renew(&cluster).await {
                Ok(()) => {}
                Err(KeepError::Call(error)) if error.class == Class::Conflict => continue,
                Err(error) => warn!(
                    %error, secret = %self.secret, namespace = %self.namespace,
                    "the certificates of the conversion webhook cannot be renewed: allow the manager to get, create and \
                     update this Secret"
                ),
            }
            let now = lock(&self.material).as_ref().map(|material| material.ca.clone());
            if now != ca {
                ca = now;
                changed();
            }
            tokio::time::sleep(if self.is_up() { READ } else { READ_SOON }).await;
        }
    }

    /// Whether it has a certificate.
    fn is_up(&self) -> bool {
        lock(&self.material).is_some()
    }

    /// The `clientConfig` of a CRD, without the path of the kind; `None` while there is no certificate.
    pub(super) fn client_config(&self) -> Option<Value> {
        if self.address == WebhookAddress::Process {
            return Some(self.address.client_config(""));
        }
        Some(self.address.client_config(&lock(&self.material).as_ref()?.ca))
    }

    async fn secret(&self, cluster: &Cluster) -> Result<Option<Value>, CallError> {
        let secret = ApiKind::built_in("v1", "Secret");
        cluster.get(&secret, Some(&self.namespace), &self.secret).await.map_err(|error| error.about(true))
    }

    async fn read(&self, cluster: &Cluster) -> Result<(), CallError> {
        if let Some(secret) = self.secret(cluster).await? {
            self.load(&Stored::of(&secret));
        }
        Ok(())
    }

    /// Uses the stored certificate. If it cannot be used, the former one stays in use.
    fn load(&self, stored: &Stored) {
        if let Some(material) = stored.material(&self.names, clock::now()) {
            *lock(&self.material) = Some(Arc::new(material));
            lock(&self.last).clone_from(stored);
        }
    }

    async fn renew(&self, cluster: &Cluster) -> Result<(), KeepError> {
        let kind = ApiKind::built_in("v1", "Secret");
        let live = self.secret(cluster).await?;
        let stored = live.as_ref().map(Stored::of);
        let known = stored.clone().unwrap_or_else(|| lock(&self.last).clone());
        let new = known.renewed(&self.names, clock::now())?.unwrap_or(known);
        if stored.as_ref() == Some(&new) {
            self.load(&new);
            return Ok(());
        }
        let is_new = live.is_none();
        let mut secret = live.unwrap_or_else(|| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": {
                    "name": self.secret, "namespace": self.namespace, "labels": {names::MANAGED_BY: "operetta"},
                },
            })
        });
        new.write(&mut secret);
        let written = if is_new {
            own_namespace::create(cluster, &kind, &self.namespace, &secret).await
        } else {
            cluster.replace(&kind, &secret, names::NOTES).await
        };
        written.map_err(|error| error.about(true))?;
        info!(secret = %self.secret, namespace = %self.namespace, "the certificates of the conversion webhook are renewed");
        self.load(&new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_addresses_are_parsed() {
        let url = |text: &str| WebhookAddress::url(text);
        assert_eq!(url("https://10.0.0.1:9443/").unwrap().name(), "10.0.0.1");
        assert_eq!(url("https://[::1]:9443").unwrap().name(), "::1");
        assert_eq!(url("https://hooks.example.org").unwrap().name(), "hooks.example.org");
        for text in ["http://a:1", "https://a/b", "a:1", "https://", "https://u@a", "https://a?x"] {
            assert!(url(text).is_err(), "{text}");
        }
        let service = |text: &str| WebhookAddress::service(text);
        let found = service("ns/operetta:8443").unwrap();
        assert_eq!(found.name(), "operetta.ns.svc");
        assert_eq!(found.client_config("x")["service"]["port"], 8443);
        assert_eq!(service("ns/a").unwrap().client_config("x")["service"]["port"], 443);
        for text in ["a", "a/", "/b", "a/b:0", "a/b:x", "a/b/c", "A/b"] {
            assert!(service(text).is_err(), "{text}");
        }
    }
}
