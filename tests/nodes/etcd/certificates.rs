//! TLS between members and with clients: certificates that are renewed, missing, or empty.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::writer::Endpoint;
use super::{CLUSTER, PATIENCE, Stage, durable, names};
use crate::support::plans::{events_about, plans_of};
use crate::support::{POD, SECRET, condition, eventually};
use crate::tls::{self, presented};

/// The TLS settings of a client.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    host: ServerName<'static>,
}

impl Tls {
    pub(super) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        self.connector.connect(self.host.clone(), stream).await.map_err(|error| error.to_string())
    }
}

/// A CA that signs certificates for one cluster.
struct Authority {
    ca: CertifiedIssuer<'static, KeyPair>,
    cluster: String,
    domain: String,
}

impl Authority {
    fn new(stage: &Stage, cluster: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let domain = format!("{cluster}.{}.svc", stage.scene.namespace());
        Self { ca, cluster: cluster.to_owned(), domain }
    }

    /// Issues a certificate for members, for servers and clients, with its key.
    fn issue(&self) -> (CertificateDer<'static>, KeyPair, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let client = self.domain.replacen(&self.cluster, &format!("{}-client", self.cluster), 1);
        let members = names(&self.cluster, 5).into_iter().map(|member| format!("{member}.{}", self.domain));
        let hosts = members.chain([format!("*.{}", self.domain), client, "localhost".to_owned()]);
        params.subject_alt_names = hosts.map(|host| SanType::DnsName(host.try_into().unwrap())).collect();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        let pem = certificate.pem();
        (certificate.into(), key, pem)
    }

    /// A Secret with a new certificate, and the certificate itself.
    fn secret(&self, name: &str, prefix: &str) -> (Value, CertificateDer<'static>) {
        let (certificate, key, pem) = self.issue();
        let data: BTreeMap<String, String> = [
            (format!("{prefix}.crt"), pem),
            (format!("{prefix}.key"), key.serialize_pem()),
            (format!("{prefix}-ca.crt"), self.ca.pem()),
        ]
        .into_iter()
        .map(|(file, text)| (file, STANDARD.encode(text)))
        .collect();
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data});
        (secret, certificate)
    }

    /// Replaces all certificates of a cluster. Returns the new server certificate.
    async fn renew(&self, stage: &Stage) -> CertificateDer<'static> {
        let (server, certificate) = self.secret("server", "server");
        let items = [self.secret("peer", "peer").0, server, self.secret("client", "etcd-client").0];
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        stage.scene.kubectl_input(&["apply", "--server-side", "-f", "-"], &list).await.unwrap();
        certificate
    }

    /// The settings of a client with a certificate of this CA.
    fn client(&self) -> Tls {
        let (certificate, key, _) = self.issue();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = tls::trusting([self.ca.der().clone()]);
        let config = config.with_client_auth_cert(vec![certificate], key).unwrap();
        Tls { connector: Arc::new(config).into(), host: "localhost".try_into().unwrap() }
    }
}

/// Adds TLS for all connections to a spec.
fn secured(mut spec: Value) -> Value {
    spec["TLS"] = json!({"static": {"member": {"peerSecret": "peer", "serverSecret": "server"}, "operatorSecret": "client"}});
    spec["pod"]["busyboxImage"] = json!("busybox:1.35.0");
    spec
}

/// The certificate that a member presents.
async fn shown(tls: &Tls, pod: &Value) -> Result<CertificateDer<'static>, String> {
    let address = pod["status"]["podIP"].as_str().ok_or("it has no address")?;
    let stream = TcpStream::connect((address, 2379)).await.map_err(|error| error.to_string())?;
    presented(&tls.connect(stream).await?)
}

#[tokio::test]
async fn renewed_certificates_reach_one_member_after_another() {
    let stage = Stage::new().await;
    let authority = Authority::new(&stage, "c");
    authority.renew(&stage).await;
    stage.cluster("c", secured(durable(3, "3.6.8"))).await;
    let tls = authority.client();
    let writer = stage.writer_with("c", Some(tls.clone())).await;
    writer.goes_on().await;
    let before = stage.members().await;
    let watch = stage.watch_replacements("c", 3);
    let certificate = authority.renew(&stage).await;
    eventually("new certificates", PATIENCE, async || {
        for pod in stage.scene.list(POD).await {
            if shown(&tls, &pod).await? != certificate {
                return Err("an old certificate".to_owned());
            }
        }
        Ok(())
    })
    .await;
    // On a busy machine etcd may have read the new files before its pod is replaced.
    eventually("other pods", PATIENCE, async || {
        let after = stage.members().await;
        let is_other = |(name, uid): (&String, &String)| before[name] != *uid;
        if after.len() == 3 && after.iter().all(is_other) { Ok(()) } else { Err(format!("{after:?}")) }
    })
    .await;
    stage.settled("c").await;
    watch.check();
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("certificates renewed").await;
}

#[tokio::test]
async fn without_usable_certificates_nothing_is_replaced() {
    let stage = Stage::new().await;
    let (authority, late) = (Authority::new(&stage, "c"), Authority::new(&stage, "late"));
    // The cluster is created before the Secrets: that is reported, and once they exist the members are
    // created.
    stage.create("late", secured(durable(1, "3.6.8"))).await;
    let lacks = |o: &Value| {
        let ready = condition(o, "Ready");
        let (status, message) = (&ready["status"], ready["message"].as_str().unwrap_or_default());
        *status != "True" && message.contains("Secret") && message.contains("does not exist")
    };
    stage.until("the missing Secret to be named", CLUSTER, "late", lacks).await;
    late.renew(&stage).await;
    stage.settled("late").await;
    stage.scene.kubectl(&["delete", "etcd", "late"]).await;
    stage.scene.gone(POD, "late-0").await;

    authority.renew(&stage).await;
    stage.cluster("c", secured(durable(3, "3.6.8"))).await;
    let writer = stage.writer_with("c", Some(authority.client())).await;
    let before = stage.members().await;
    // An emptied Secret is reported, and no member gets it.
    stage
        .scene
        .patch(SECRET, "server", "json", &json!([{"op": "replace", "path": "/data", "value": {}}]))
        .await;
    let is_told = |o: &Value| condition(o, "CertificatesInvalid")["status"] == "True";
    let object = stage.scene.until("CertificatesInvalid", CLUSTER, "c", is_told).await;
    let message = condition(&object, "CertificatesInvalid")["message"].as_str().unwrap_or_default();
    assert!(message.contains("server"), "{message}");
    let message = stage.scene.stalled(CLUSTER, "c").await;
    assert!(message.contains("Secret"), "{message}");
    // The kubelet updates the files of a pod that changes. The old files stay.
    stage.scene.kubectl(&["annotate", "pod", "--all", "fixtures/looked=at"]).await;
    eventually("the kubelet to miss a file", PATIENCE, async || {
        let events = events_about(&stage.scene, "c-0").await;
        if events.contains("non-existent secret key") { Ok(()) } else { Err(events) }
    })
    .await;
    writer.goes_on().await;
    assert_eq!(stage.members().await, before);
    // A deleted Secret has the same effect.
    stage.scene.kubectl(&["delete", "secret", "server"]).await;
    let is_gone = |o: &Value| {
        let told = condition(o, "CertificatesInvalid");
        told["status"] == "Unknown" && told["message"].to_string().contains("does not exist")
    };
    stage.scene.until("the Secret to be missed", CLUSTER, "c", is_gone).await;
    writer.goes_on().await;
    assert_eq!(stage.members().await, before);
    let runs = stage.scene.runs("c").await;
    assert!(!runs.iter().any(|run| plans_of(run).contains(&"failover")), "{runs:#?}");
    authority.renew(&stage).await;
    stage.settled("c").await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("certificates lost and renewed").await;
}

impl Stage {
    /// Starts the client of a cluster, with TLS if there are settings.
    pub(super) async fn writer_with(&self, cluster: &str, tls: Option<Tls>) -> super::Writer {
        super::Writer::start(Endpoint { tls, ..self.endpoint(cluster).await })
    }
}
