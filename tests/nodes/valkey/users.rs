//! Servers take over the passwords of users, and their certificate, without a restart.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{CLUSTER, IMAGE, MANAGER, is_whole};
use crate::database::{CLIENT, Stage, containers, patience};
use crate::pods::{Pods, turn};
use crate::support::{POD, SECRET, eventually, is_pod_ready};
use crate::tls;

/// No package of Debian 12 and no wheel has Valkey 9 with TLS: see `operators/valkey/tests/images/redis-as-valkey.yaml`.
const IMAGE_WITH_TLS: &str = "redis-as-valkey:7.0.15";

const TLS: &str = "--tls --cacert /ca/ca.crt";

/// A cluster of one shard, in which only alice may log in, with a password of a Secret.
fn spec(image: &str) -> Value {
    let alice = json!({
        "name": "alice", "passwordSecret": {"name": "people"}, "commands": {"allow": ["@all"]},
        "keys": {"readWrite": ["app:*"]},
    });
    json!({
        "shards": 1, "replicas": 1, "image": image, "podSecurityContext": {"runAsUser": 0},
        "users": [{"name": "default", "enabled": false}, alice],
    })
}

async fn set_password(stage: &Stage, password: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "people"}, "stringData": {"alice": password},
    });
    stage.scene.apply(&secret.to_string()).await;
}

/// Starts a pod for commands of clients, with what clients trust.
async fn start_client(stage: &Stage, image: &str) {
    let client = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": CLIENT},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": CLIENT, "image": image, "command": ["sleep", "100000"],
                "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
            }],
            "volumes": [{"name": "ca", "secret": {"secretName": "valkey-kv-ca", "optional": true}}],
        },
    });
    stage.scene.apply(&client.to_string()).await;
    stage.until("ready", POD, CLIENT, is_pod_ready).await;
}

/// Sets a key as alice by way of a node. Returns the answer.
async fn set(stage: &Stage, flags: &str, pod: &str, password: &str) -> String {
    let script = format!(
        "REDISCLI_AUTH={password} timeout 5 valkey-cli -c {flags} --user alice -h {pod}.valkey-kv set app:1 x 2>&1; true"
    );
    let answer = stage.scene.kubectl_input(&["exec", CLIENT, "--", "sh", "-c", &script], "").await;
    answer.unwrap_or_else(|error| error)
}

/// Waits until all nodes take one password, and refuse another.
async fn is_password(stage: &Stage, flags: &str, password: &str, wrong: &str) {
    eventually(&format!("the password {password}"), patience(), async || {
        for pod in stage.pods().await {
            let taken = set(stage, flags, &pod, password).await;
            let refused = set(stage, flags, &pod, wrong).await;
            if taken.trim() != "OK" || !refused.contains("WRONGPASS") {
                return Err(format!("{pod}: {taken}, {refused}"));
            }
        }
        Ok(())
    })
    .await;
}

/// Creates the cluster with a password, changes it in the Secret, and returns the containers of the nodes.
async fn password_changes(stage: &Stage, spec: &Value, flags: &str) -> BTreeMap<String, Value> {
    set_password(stage, "first").await;
    stage.create("ValkeyCluster", spec).await;
    start_client(stage, spec["image"].as_str().expect("an image")).await;
    is_password(stage, flags, "first", "second").await;
    let before = containers(&stage.scene.list(POD).await);
    set_password(stage, "second").await;
    is_password(stage, flags, "second", "first").await;
    stage.settled().await;
    assert_eq!(containers(&stage.scene.list(POD).await), before);
    before
}

/// A client that trusts `ca.crt` of the Secret for clients.
async fn connector(stage: &Stage) -> TlsConnector {
    let secret = stage.scene.get(SECRET, "valkey-kv-ca").await;
    let ca = STANDARD.decode(secret["data"]["ca.crt"].as_str().expect("ca.crt")).expect("base64");
    tls::client(&String::from_utf8(ca).expect("text"))
}

/// The certificates that the nodes present, by their pods.
async fn shown(
    stage: &Stage,
    client: &TlsConnector,
) -> Result<BTreeMap<String, CertificateDer<'static>>, String> {
    let mut shown = BTreeMap::new();
    for name in stage.pods().await {
        let pod = stage.scene.get(POD, &name).await;
        let address = pod["status"]["podIP"].as_str().ok_or("it has no address")?;
        let stream = TcpStream::connect((address, 6379)).await.map_err(|error| error.to_string())?;
        let host = ServerName::try_from("valkey-kv").expect("a name");
        let stream = client.connect(host, stream).await.map_err(|error| error.to_string())?;
        shown.insert(name, tls::presented(&stream)?);
    }
    Ok(shown)
}

#[tokio::test]
async fn users_are_taken_over_without_a_restart() {
    let _turn = turn().await;
    let stage = Stage::on(&MANAGER.node().await, CLUSTER, "kv", is_whole).await;
    let _pods = Pods::of(&stage.scene);
    password_changes(&stage, &spec(IMAGE), "").await;
}

#[tokio::test]
async fn users_and_tls_are_taken_over_without_a_restart() {
    let _turn = turn().await;
    let stage = Stage::on(&MANAGER.node().await, CLUSTER, "kv", is_whole).await;
    let _pods = Pods::of(&stage.scene);
    let mut spec = spec(IMAGE_WITH_TLS);
    spec["networking"] = json!({"tls": {"certificates": {"server": {"generated": {}}}}});
    let containers_before = password_changes(&stage, &spec, TLS).await;

    let client = connector(&stage).await;
    let before = shown(&stage, &client).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(before.len(), 2);
    stage.scene.kubectl(&["delete", "secret", "valkey-kv-tls"]).await;
    eventually("the next certificate", patience(), async || {
        let now = shown(&stage, &client).await?;
        let renewed = now.iter().filter(|(pod, certificate)| before[*pod] != **certificate).count();
        if renewed == before.len() { Ok(()) } else { Err(format!("{renewed} nodes have it")) }
    })
    .await;
    stage.settled().await;
    is_password(&stage, TLS, "second", "first").await;
    assert_eq!(containers(&stage.scene.list(POD).await), containers_before);
}
