//! Random mixes of faults over one scenario, each of which its seed repeats.

use futures::StreamExt;

use super::reference;
use crate::support::faults::case::Case;
use crate::support::faults::random::{Mix, drive};
use crate::support::faults::{Fault, Rule, WRITES};
use crate::support::seed;

/// How many mixes run at once.
pub(crate) const AT_ONCE: usize = 4;

/// How many mixes are tried: `OPERETTA_SCHEDULES`, or three.
fn schedules() -> u64 {
    std::env::var("OPERETTA_SCHEDULES")
        .map_or(3, |text| text.parse().expect("OPERETTA_SCHEDULES is a number"))
}

/// Each seed from [`seed`] on gives a mix.
#[tokio::test]
async fn any_mix_of_faults_ends_the_same() {
    let expected = reference();
    let steps = [&expected.deployed, &expected.edited, &expected.deleted];
    let steps = steps.map(|step| (&step.state, &step.counts));
    let specs = [Some(super::first()), Some(super::second()), None];
    let run = async |seed: u64| {
        let told = Told(seed);
        drive(Mix::of(seed), &specs, &steps).await;
        drop(told);
    };
    futures::stream::iter(seeds().into_iter().map(run)).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// The seeds of the mixes.
pub(crate) fn seeds() -> Vec<u64> {
    let first = seed();
    (first..first + schedules()).collect()
}

/// Prints how to repeat a failure.
pub(crate) struct Told(pub(crate) u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "to see it again: OPERETTA_TEST_SEED={} OPERETTA_SCHEDULES=1 cargo test --test engine any_mix_of_faults -- --nocapture",
                self.0
            );
        }
    }
}

/// Random choices depend only on the seed and the requests.
#[tokio::test]
async fn same_seed_gives_the_same_trace() {
    let struck = async |seed: u64| {
        let case = Case::seeded(seed).await;
        let process = case.start().await;
        case.wire.rule(
            Rule::on(WRITES, Fault::Cut).namespace(case.scene.namespace()).plural("configmaps").chance(0.4),
        );
        let mark = case.wire.mark();
        case.apply_ready("same", &super::first()).await;
        case.wire.heal();
        let mut trace: Vec<String> = case
            .wire
            .since(mark)
            .iter()
            .filter(|e| e.is_write() && e.call.plural == "configmaps")
            .map(|e| format!("{:?} {} {}", e.call.verb, e.call.name, e.fault.is_some()))
            .collect();
        // The order of concurrent requests is random; what happens to each is not.
        trace.sort();
        case.finish(process).await;
        trace
    };
    let mut traces = Vec::new();
    for seed in [5, 5, 6, 7] {
        traces.push(struck(seed).await);
    }
    assert_eq!(traces[0], traces[1]);
    assert!(traces[0] != traces[2] || traces[0] != traces[3], "{traces:?}");
}
