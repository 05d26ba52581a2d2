//! Failovers in a row lose no acknowledged row.

use std::time::Instant;

use super::operations::{another_pod, create, delete_by_force, no_row_is_lost, only_primary, whole};
use super::{WRITE_MANY, insert, primary, replicated, rows, stage};
use crate::database::{Stage, patience};
use crate::figures::{Line, median, print};
use crate::support::{POD, eventually, is_pod_ready, uid_of};

/// Checks that the primary has each row that is acknowledged so far. Returns how many there are.
async fn acknowledged(stage: &Stage) -> usize {
    let acknowledged = stage.acknowledged().await;
    let found = rows(&stage.scene, &only_primary(stage).await).await;
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    acknowledged.len()
}

/// Deletes the pod of the primary by force, and waits until the cluster is whole again. Returns how many seconds it took until another
/// instance was the primary; `None` if too few standbys were ready, and the primary went on in another pod.
pub(super) async fn fail_over(stage: &Stage, name: &str) -> Option<f64> {
    let before = uid_of(&stage.scene.get(POD, name).await).to_owned();
    let begun = Instant::now();
    delete_by_force(stage, name).await;
    let is_promoted = eventually("another primary", patience(), async || {
        let pod = stage.scene.find(POD, name).await;
        let is_back = pod.is_some_and(|pod| uid_of(&pod) != before && is_pod_ready(&pod));
        let cluster = stage.scene.get(stage.kind, stage.name).await;
        if primary(&cluster) != name {
            return Ok(true);
        }
        if is_back { Ok(false) } else { Err(format!("{:#}", cluster["status"])) }
    })
    .await;
    let took = begun.elapsed().as_secs_f64();
    another_pod(stage, name, &before).await;
    whole(stage).await;
    is_promoted.then_some(took)
}

/// Failovers in a row, while the client writes: primaries are killed until another instance has taken over so often.
pub(super) async fn failovers(stage: &Stage, count: usize) -> Line {
    let before = acknowledged(stage).await;
    let mut line = Line::of("failover of a killed primary");
    let mut promotions: Vec<f64> = Vec::new();
    while promotions.len() < count {
        let first = only_primary(stage).await;
        stage.measure(&mut line, async || promotions.extend(fail_over(stage, &first).await)).await;
    }
    let rows = acknowledged(stage).await - before;
    println!("{} killed primaries, {count} failovers, {rows} rows acknowledged, 0 lost", line.seconds.len());
    for (what, seconds) in [("another primary", &promotions), ("a whole cluster", &line.seconds)] {
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = seconds.iter().copied().fold(0.0, f64::max);
        println!("from a deletion to {what}: {least:.1} to {most:.1} s, median {:.1} s", median(seconds));
    }
    line
}

#[tokio::test]
#[ignore = "takes 10 minutes: -- --ignored --nocapture"]
async fn no_row_is_lost_in_fifty_failovers() {
    let (stage, _end) = stage().await;
    create(&stage, replicated(3)).await;
    insert(&stage, &only_primary(&stage).await, 100, WRITE_MANY).await;
    let line = failovers(&stage, 50).await;
    let acknowledged = stage.acknowledged().await;
    // The kubelet has not yet begun another file for the log of the client.
    assert_eq!(acknowledged.first(), Some(&1));
    assert!(acknowledged.len() >= 100_000, "only {} rows are acknowledged", acknowledged.len());
    no_row_is_lost(&stage).await;
    print(&[&line]);
}
