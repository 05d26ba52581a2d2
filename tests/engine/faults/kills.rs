//! The manager ends at any of its writes, before it or after it without seeing the reply: its successor
//! finishes the work, and nothing is created twice or left over.

use super::{first, reference, second};
use crate::support::faults::Fault;
use crate::support::faults::case::Case;

#[tokio::test]
async fn instance_resumes_when_killed_before_an_odd_write() {
    lane(&Fault::DieBefore, 1).await;
}

#[tokio::test]
async fn instance_resumes_when_killed_before_an_even_write() {
    lane(&Fault::DieBefore, 2).await;
}

#[tokio::test]
async fn instance_resumes_when_killed_after_an_odd_write() {
    lane(&Fault::DieAfter, 1).await;
}

#[tokio::test]
async fn instance_resumes_when_killed_after_an_even_write() {
    lane(&Fault::DieAfter, 2).await;
}

/// Deploys, edits and deletes an instance, each with a manager that ends at its kth write, for every second k
/// until a manager makes fewer than k writes.
async fn lane(fault: &Fault, from: usize) {
    let (expected, case) = (reference(), Case::new().await);
    case.start().await.stop().await;
    for k in (from..).step_by(2) {
        let name = format!("i-{k}-die");
        let mut died = false;
        for (step, spec, expected) in [
            ("deployed", Some(first()), &expected.deployed),
            ("edited", Some(second()), &expected.edited),
            ("deleted", None, &expected.deleted),
        ] {
            let mark = case.wire.mark();
            match &spec {
                Some(spec) => case.apply(&name, spec).await,
                None => case.delete(&name).await,
            }
            let done = async || match &spec {
                Some(_) => drop(case.ready(&name).await),
                None => case.gone(&name).await,
            };
            died |= case.dies_at(k, fault.clone(), &done).await;
            let process = case.start().await;
            done().await;
            case.same(&name, &expected.state).await;
            assert_eq!(case.counts(mark, &name), expected.counts, "{step}, k = {k}");
            process.stop().await;
        }
        case.scene.kubectl(&["delete", "configmap", &format!("{name}-kept")]).await;
        if !died {
            assert!(k > 8, "there are more than {k} writes");
            let process = case.start().await;
            return case.finish(process).await;
        }
    }
}
