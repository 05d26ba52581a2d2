//! The certificates of real servers: they and their CA are replaced while the servers run.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::clients::{self, HAS_TLS, answers, authorities, connect, host, is_refused, secret};
use super::operations::{create, instance_pods, whole};
use super::{replicated, sql, stage};
use crate::database::{Stage, containers, patience};
use crate::support::plans::{PLAN_RUN, is_over, phase, story_of};
use crate::support::{POD, Scene, eventually, name_of};
use crate::tls;

/// The request for TLS with which a client of the server begins.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// The certificate that an instance presents to a client which trusts these CAs.
async fn shown(scene: &Scene, pod: &Value, authorities: &str) -> Result<CertificateDer<'static>, String> {
    let name = ServerName::try_from(host(scene)).expect("a name");

    let address = pod["status"]["podIP"].as_str().ok_or("it has no address")?;
    let mut stream = TcpStream::connect((address, 5432)).await.map_err(|error| error.to_string())?;
    stream.write_all(&SSL_REQUEST).await.map_err(|error| error.to_string())?;
    let answer = stream.read_u8().await.map_err(|error| error.to_string())?;
    if answer != b'S' {
        return Err(format!("the server answers {answer} to the request for TLS"));
    }
    let stream = tls::client(authorities).connect(name, stream).await.map_err(|error| error.to_string())?;
    tls::presented(&stream)
}

/// Waits until each server presents the certificate of the Secret. Returns that.
async fn served(stage: &Stage) -> CertificateDer<'static> {
    let scene = &stage.scene;
    let pem = secret(scene, "db-server", "tls.crt").await;
    let wanted = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
    let trusted = authorities(scene).await;
    eventually("the certificate of the Secret", patience(), async || {
        for pod in instance_pods(stage).await {
            let found = shown(scene, &pod, &trusted).await;
            let found = found.map_err(|error| format!("{}: {error}", name_of(&pod)))?;
            if found != wanted {
                return Err(format!("{} presents another one", name_of(&pod)));
            }
        }
        Ok(())
    })
    .await;
    wanted
}

/// Requests a plan, and lets clients connect until it has succeeded. Each of them reads the certificates of the CAs from the Secret, and
/// with those the server must be trusted all the time.
async fn request_while_clients_connect(stage: &Stage, plan: &str, login: [&str; 3]) {
    let scene = &stage.scene;
    let run = scene.request(("Cluster", stage.kind), stage.name, plan, &Value::Null).await;
    let run = eventually(&format!("the end of {run}"), patience(), async || {
        let trusted = authorities(scene).await;
        if let Err(error) = connect(scene, &host(scene), login, &trusted, HAS_TLS).await
            && error.contains("certificate")
        {
            // Another CA may sign since the client has read the Secret.
            assert_ne!(authorities(scene).await, trusted, "during {plan}: {error}");
        }
        let run = scene.get(PLAN_RUN, &run).await;
        if is_over(&run) { Ok(run) } else { Err(story_of(&run)) }
    })
    .await;
    assert_eq!(phase(&run), "Succeeded", "{}", story_of(&run));
    whole(stage).await;
    answers(scene, login, HAS_TLS, "t").await;
}

#[tokio::test]
async fn certificates_and_their_ca_are_replaced_without_a_restart() {
    let (stage, _end) = stage().await;
    let primary = create(&stage, replicated(2)).await;
    let scene = &stage.scene;
    clients::start(scene).await;
    let password = secret(scene, "db-app", "password").await;
    let app = ["app", password.as_str(), "app"];
    let before = containers(&instance_pods(&stage).await);

    let first = served(&stage).await;
    let first_ca = authorities(scene).await;
    answers(scene, app, HAS_TLS, "t").await;
    // The certificate is for names, not for addresses.
    let pod = scene.get(POD, &primary).await;
    let address = pod["status"]["podIP"].as_str().expect("an address");
    is_refused(scene, address, app, &first_ca, "does not match host name").await;

    // Another certificate of the same CA.
    request_while_clients_connect(&stage, "certificate", app).await;
    let second = served(&stage).await;
    assert_ne!(second, first);
    assert_eq!(authorities(scene).await, first_ca);

    // Another CA. Clients that know it trust the former one, too.
    request_while_clients_connect(&stage, "rotate", app).await;
    let third = served(&stage).await;
    assert!(third != first && third != second);
    let second_ca = authorities(scene).await;
    assert!(second_ca != first_ca && second_ca.contains(first_ca.trim()), "{second_ca}");
    is_refused(scene, &host(scene), app, &first_ca, "certificate verify failed").await;

    // The next CA takes the place of the first one, which no server uses any more.
    request_while_clients_connect(&stage, "rotate", app).await;
    let fourth = served(&stage).await;
    assert!(![&first, &second, &third].contains(&&fourth));
    assert!(!authorities(scene).await.contains(first_ca.trim()));
    is_refused(scene, &host(scene), app, &first_ca, "certificate verify failed").await;
    // What was read after the former replacement has no certificate of the present CA.
    is_refused(scene, &host(scene), app, &second_ca, "certificate verify failed").await;

    assert_eq!(whole(&stage).await, primary);
    let streams = "select count(*) from pg_stat_replication join pg_stat_ssl using (pid) \
                   where state = 'streaming' and ssl and application_name like 'db-%'";
    assert_eq!(sql(scene, &primary, streams).await, "1");
    assert_eq!(containers(&instance_pods(&stage).await), before);
}
