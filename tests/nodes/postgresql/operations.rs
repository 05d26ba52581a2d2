//! Operations on a cluster. Each ends once the cluster is as its spec wants it.

use serde_json::{Value, json};

use super::{primary, rows, sql, try_sql};
use crate::database::{Stage, patience};
use crate::support::plans::{PLAN_RUN, is_over, phase, story_of};
use crate::support::{POD, VOLUME_CLAIM, eventually, is_pod_ready, name_of, uid_of};

/// The pods of the instances of the cluster.
pub(super) async fn instance_pods(stage: &Stage) -> Vec<Value> {
    let mut pods = stage.scene.list(POD).await;
    pods.retain(|pod| {
        let labels = &pod["metadata"]["labels"];
        labels["cnpg.io/cluster"] == stage.name && labels["cnpg.io/podRole"] == "instance"
    });
    pods
}

/// The names of the instances of the cluster.
pub(super) async fn instances(stage: &Stage) -> Vec<String> {
    instance_pods(stage).await.iter().map(|pod| name_of(pod).to_owned()).collect()
}

/// An instance that is not the primary.
pub(super) async fn standby(stage: &Stage, primary: &str) -> String {
    instances(stage).await.into_iter().find(|name| name != primary).expect("a standby")
}

/// The number of an instance.
pub(super) fn number(instance: &str) -> usize {
    instance.rsplit('-').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Waits until the cluster is as its spec wants it and each standby streams. Returns its primary.
pub(super) async fn whole(stage: &Stage) -> String {
    eventually("standbys that stream", patience(), async || {
        let cluster = stage.settled().await;
        let primary = primary(&cluster);
        let wanted = cluster["spec"]["instances"].as_u64().expect("a number") - 1;
        let query = format!(
            "select count(distinct application_name) from pg_stat_replication \
             where state = 'streaming' and application_name like '{}-%'",
            stage.name
        );
        let found = try_sql(&stage.scene, &primary, &query).await?;
        if found == wanted.to_string() { Ok(primary) } else { Err(format!("{found} at {primary}")) }
    })
    .await
}

pub(super) async fn create(stage: &Stage, spec: Value) -> String {
    stage.create("Cluster", &spec).await;
    whole(stage).await
}

pub(super) async fn change(stage: &Stage, spec: Value) -> String {
    stage.edit(spec).await;
    whole(stage).await
}

/// Requests a plan, and waits until it has succeeded and the cluster is whole.
pub(super) async fn request(stage: &Stage, plan: &str, params: Value) -> String {
    let run = stage.scene.request(("Cluster", stage.kind), stage.name, plan, &params).await;
    let run = stage.until("its end", PLAN_RUN, &run, is_over).await;
    assert_eq!(phase(&run), "Succeeded", "{}", story_of(&run));
    whole(stage).await
}

/// Deletes an instance with its volume, as if its node were gone, and waits until the cluster is whole again.
pub(super) async fn lose(stage: &Stage, name: &str) -> String {
    let before = uid_of(&stage.scene.get(VOLUME_CLAIM, name).await).to_owned();
    let pod = uid_of(&stage.scene.get(POD, name).await).to_owned();
    stage.scene.kubectl(&["delete", "pvc", name, "--wait=false"]).await;
    delete_by_force(stage, name).await;
    stage.until("another volume", VOLUME_CLAIM, name, |claim| uid_of(claim) != before).await;
    another_pod(stage, name, &pod).await;
    whole(stage).await
}

/// Deletes the pod of an instance without waiting for its end.
pub(super) async fn delete_by_force(stage: &Stage, name: &str) {
    stage.scene.kubectl(&["delete", "pod", name, "--force", "--grace-period=0", "--wait=false"]).await;
}

/// Waits until an instance has a pod with another uid that is ready. Until the container of the former pod has ended, a command for the
/// new pod would reach the old container.
pub(super) async fn another_pod(stage: &Stage, name: &str, before: &str) {
    stage.until("another pod", POD, name, |pod| uid_of(pod) != before && is_pod_ready(pod)).await;
}

/// The annotation that lets the cluster sleep.
pub(super) async fn hibernate(stage: &Stage, value: &str) {
    let patch = json!({"metadata": {"annotations": {"cnpg.io/hibernation": value}}});
    stage.scene.patch(stage.kind, stage.name, "merge", &patch).await;
}

/// Returns the one instance that is a primary, which must be that of the status.
pub(super) async fn only_primary(stage: &Stage) -> String {
    let mut primaries = Vec::new();
    for pod in instances(stage).await {
        if sql(&stage.scene, &pod, "select pg_is_in_recovery()").await == "f" {
            primaries.push(pod);
        }
    }
    let named = primary(&stage.scene.get(stage.kind, stage.name).await);
    assert_eq!(primaries, [named.as_str()]);
    named
}

/// Ends the client, and checks that the primary has what was acknowledged.
pub(super) async fn no_row_is_lost(stage: &Stage) {
    let written = stage.stop_client().await;
    written.is_found(&rows(&stage.scene, &only_primary(stage).await).await);
}
