//! Clients that connect over the network with TLS, and check the certificate of the server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::IMAGE;
use crate::database::CLIENT;
use crate::support::{LONG, POD, SECRET, Scene, eventually, is_pod_ready};

/// Runs a query. The arguments are the certificates of the CAs, where to connect, and the query.
const CONNECT: &str = r#"printf %s "$1" > /tmp/ca.crt && exec psql "$2" -XqAt -c "$3""#;

/// Whether the connection of a query has TLS.
pub(super) const HAS_TLS: &str = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";

/// Starts the pod in which the clients run.
pub(super) async fn start(scene: &Scene) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": CLIENT},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": CLIENT, "image": IMAGE, "command": ["sh", "-c", "sleep 100000"]}],
        },
    });
    scene.apply(&pod.to_string()).await;
    scene.until("ready", POD, CLIENT, is_pod_ready).await;
}

/// A key of a Secret.
pub(super) async fn secret(scene: &Scene, name: &str, key: &str) -> String {
    let secret = scene.get(SECRET, name).await;
    let text = secret["data"][key].as_str().unwrap_or_else(|| panic!("the Secret {name} has no key {key}"));
    String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text")
}

/// The certificates of the CAs that clients of the cluster `db` trust.
pub(super) async fn authorities(scene: &Scene) -> String {
    secret(scene, "db-ca", "ca.crt").await
}

/// The name of the primary of the cluster `db`, which is in the certificates of its servers.
pub(super) fn host(scene: &Scene) -> String {
    format!("db-rw.{}.svc", scene.namespace())
}

/// Connects to a database at a host as a user, with these certificates of CAs, and returns the answer to a query.
pub(super) async fn connect(
    scene: &Scene,
    host: &str,
    [user, password, database]: [&str; 3],
    authorities: &str,
    query: &str,
) -> Result<String, String> {
    let target = format!(
        "host={host} user={user} password={password} dbname={database} connect_timeout=10 \
         sslmode=verify-full sslrootcert=/tmp/ca.crt"
    );
    let exec = ["exec", CLIENT, "--", "sh", "-c", CONNECT, "sh", authorities, &target, query];
    let answer = scene.kubectl_input(&exec, "").await?;
    Ok(answer.trim().to_owned())
}

/// Waits until a client gets this answer from the primary. Its Service may have endpoints a moment later than the cluster is Ready.
pub(super) async fn answers(scene: &Scene, login: [&str; 3], query: &str, expected: &str) {
    eventually(query, LONG, async || {
        let answer = connect(scene, &host(scene), login, &authorities(scene).await, query).await?;
        if answer == expected { Ok(()) } else { Err(answer) }
    })
    .await;
}

/// Checks that no client with these certificates of CAs can connect to a host, and waits for this message.
pub(super) async fn is_refused(
    scene: &Scene,
    host: &str,
    login: [&str; 3],
    authorities: &str,
    message: &str,
) {
    eventually(message, LONG, async || match connect(scene, host, login, authorities, "select 1").await {
        Ok(answer) => panic!("a client connects, which expects {message:?}: {answer}"),
        Err(error) if error.contains(message) => Ok(()),
        Err(error) => Err(error),
    })
    .await;
}
