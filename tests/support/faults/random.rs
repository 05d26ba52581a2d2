//! A random mix of faults that depends on a seed, and a scenario under it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::case::{Case, Process};
use super::{Answer, Fault, Rule, Verb, WRITES};
use crate::support::oracles::State;

/// Which faults occur, how likely each is, and how often each strikes at most.
#[derive(Debug, Clone)]
pub struct Mix {
    seed: u64,
    rules: Vec<Rule>,
}

impl Mix {
    /// The mix that belongs to a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rules = Vec::new();
        let answers = [
            Answer::status(409, "Conflict"),
            Answer::text(429).retry_after(1),
            Answer::status(503, "ServiceUnavailable").retry_after(1),
            Answer::status(500, "InternalError"),
            Answer::status(504, "Timeout"),
        ];
        let mut add = |verbs: &'static [Verb], fault: Fault, most: usize| {
            // Leave some faults out: a fault alone can show an error that others hide.
            if random.f64() < 0.6 {
                let chance = 0.05 + random.f64() * 0.35;
                rules.push(Rule::on(verbs, fault).chance(chance).times(random.usize(1..=most)));
            }
        };
        add(WRITES, Fault::DieBefore, 1);
        add(WRITES, Fault::DieAfter, 2);
        for answer in answers {
            add(WRITES, Fault::Answer(answer.clone()), 4);
            add(&[Verb::Get, Verb::List, Verb::DryRun], Fault::Answer(answer), 2);
        }
        add(WRITES, Fault::Cut, 6);
        add(WRITES, Fault::Refused, 4);
        add(WRITES, Fault::Lost, 2);
        add(WRITES, Fault::Never, 2);
        add(&[Verb::Get, Verb::DryRun], Fault::Never, 2);
        add(&[Verb::List], Fault::Never, 1);
        add(&[Verb::Get, Verb::List], Fault::Stale, 6);
        add(super::ALL, Fault::Delay(Duration::from_millis(200)), 10);
        add(&[Verb::Watch], Fault::WatchEnds(Duration::from_millis(300)), 6);
        add(&[Verb::Watch], Fault::WatchFails(Duration::from_millis(300), 410), 6);
        add(&[Verb::Watch], Fault::WatchFails(Duration::from_millis(300), 504), 3);
        add(&[Verb::Watch], Fault::Answer(Answer::status(410, "Expired")), 2);
        add(&[Verb::List], Fault::Cut, 3);
        Self { seed, rules }
    }

    pub fn arm(&self, case: &Case) {
        for rule in &self.rules {
            case.wire.rule(rule.clone());
        }
    }

    /// Keeps the faults active until `done`, or for the longest time that a step allows.
    pub async fn storm(&self, case: &Case, process: Process, done: impl AsyncFn()) -> Process {
        let process = alive(case, process, async || drop(tokio::time::timeout(STORM, done()).await)).await;
        case.wire.heal();
        process
    }
}

/// The longest time for which the faults of a step are active. Each retry waits twice as long as the one
/// before, so a request that failed all that time is retried within about the same time again, and `LONG` is
/// enough for the step to end.
const STORM: Duration = Duration::from_secs(15);

/// Creations and deletions by object.
type Counts = BTreeMap<String, (usize, usize)>;

/// Applies specs one after another (`None` deletes the instance) with the mix armed again for each. After
/// each, the state and the numbers of creations and deletions must equal those of an undisturbed run.
pub async fn drive(mix: Mix, specs: &[Option<Value>], expected: &[(&State, &Counts)]) {
    eprintln!("seed {}: {} kinds of faults", mix.seed, mix.rules.len());
    let case = Case::seeded(mix.seed).await.with_deadline(Duration::from_secs(3));
    let mut process = case.start().await;
    for (spec, (state, counts)) in specs.iter().zip(expected) {
        let mark = case.wire.mark();
        mix.arm(&case);
        match spec {
            Some(spec) => case.apply("i-any", spec).await,
            None => case.delete("i-any").await,
        }
        let done = async || match spec {
            Some(_) => drop(case.ready("i-any").await),
            None => case.gone("i-any").await,
        };
        process = mix.storm(&case, process, &done).await;
        process = alive(&case, process, done).await;
        case.same("i-any", state).await;
        assert_eq!(
            case.counts(mark, "i-any"),
            **counts,
            "created and deleted:\n{}",
            super::story(&case.wire.writes(mark))
        );
    }
    case.finish(process).await;
}

/// Restarts a process whenever it ends, until `done`.
pub async fn alive(case: &Case, mut process: Process, done: impl AsyncFn()) -> Process {
    let mut done = Box::pin(done());
    loop {
        let life = process.life.clone();
        tokio::select! {
            // Restart an ended process even if `done` completes at the same moment.
            biased;
            () = life.over() => {}
            () = &mut done => return process,
        }
        process.kill();
        process = loop {
            match case.try_start(std::sync::Arc::clone(&case.package)).await {
                Ok(process) => break process,
                Err(error) => eprintln!("it could not start: {error}"),
            }
        };
    }
}
