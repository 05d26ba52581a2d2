//! What must hold when the network, the API server, other people and the manager itself misbehave, with
//! faults injected between a manager and an API server. Comments of tests give the numbers of the faults in
//! the tables of `docs/testing.md`.

mod hands;
mod kills;
mod reads;
mod replies;
mod schedules;
mod sweeps;

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::support::faults::apart;
use crate::support::faults::case::Case;
use crate::support::oracles::State;

/// The first spec.
fn first() -> Value {
    json!({"stage": "one"})
}

/// The second spec, in which something of every kind changes.
fn second() -> Value {
    json!({"stage": "two", "members": ["b", "c"], "keep": false, "port": 81})
}

/// The states of an undisturbed run after each step, with the creations and deletions of the step.
struct Reference {
    deployed: Checkpoint,
    edited: Checkpoint,
    deleted: Checkpoint,
}

struct Checkpoint {
    state: State,
    counts: Counts,
}

/// Creations and deletions by object.
type Counts = std::collections::BTreeMap<String, (usize, usize)>;

fn reference() -> &'static Reference {
    static REFERENCE: OnceLock<Reference> = OnceLock::new();
    REFERENCE.get_or_init(|| apart(undisturbed))
}

async fn undisturbed() -> Reference {
    let (case, process) = Case::started().await;
    let mut steps = Vec::new();
    for spec in [Some(first()), Some(second()), None] {
        let mark = case.wire.mark();
        if let Some(spec) = spec {
            case.apply_ready("i-calm", &spec).await;
        } else {
            case.remove("i-calm").await;
            case.collected().await;
        }
        case.quiet().await;
        steps.push(Checkpoint { state: case.state("i-calm").await, counts: case.counts(mark, "i-calm") });
    }
    case.finish(process).await;
    let [deployed, edited, deleted] = <[Checkpoint; 3]>::try_from(steps).ok().expect("three steps");
    assert_eq!(deployed.state.len(), 8, "{:?}", deployed.state.keys());
    assert_eq!(deleted.state.keys().collect::<Vec<_>>(), ["configmaps <name>-kept"]);
    Reference { deployed, edited, deleted }
}
