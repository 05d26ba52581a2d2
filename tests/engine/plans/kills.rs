//! The manager is killed before and after every write of a run of twelve steps, and at random during twenty of them.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{api, instance};
use crate::support::faults::case::Case;
use crate::support::faults::{Fault, Rule, WRITES};
use crate::support::plans::{Commands, LOOPBACK, RunWatch, TWELVE, effects, outcome, phase, with_api};
use crate::support::{JOB, Scene, VOYAGE, fixture, is_long, own_plane_of_tests, run_flags, seed};

#[tokio::test]
async fn run_resumes_when_killed_before_an_odd_write() {
    lane(&Fault::DieBefore, 1).await;
}

#[tokio::test]
async fn run_resumes_when_killed_before_an_even_write() {
    lane(&Fault::DieBefore, 2).await;
}

#[tokio::test]
async fn run_resumes_when_killed_after_an_odd_write() {
    lane(&Fault::DieAfter, 1).await;
}

#[tokio::test]
async fn run_resumes_when_killed_after_an_even_write() {
    lane(&Fault::DieAfter, 2).await;
}

/// Runs the twelve steps with a manager that ends at its kth write, for every second k (every sixth without `OPERETTA_SWEEP`)
/// until a manager makes fewer than k writes. The next manager finishes the run, and is the one that ends during the next
/// instance's run.
async fn lane(fault: &Fault, from: usize) {
    let commands = Commands::new();
    commands.prints("say", "ahoy");
    let case =
        Case::of(&TWELVE, 0).await.with_change(|text| text.replace("http://api.invalid", &api().url()));
    let scene = &case.scene;
    let spec = json!({"script": commands.script()});
    // The manager registers the kind of runs.
    let mut process = case.start().await;
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(scene).await);
    case.apply_ready("i-calm", &spec).await;
    let expected = outcome(scene, case.kind, "i-calm").await;
    assert!(expected.len() > 4, "{expected:?}");
    effects(scene, "i-calm", &jobs, "undisturbed").await;
    let mut settled = "i-calm".to_owned();
    for k in (from..).step_by(if is_long() { 2 } else { 6 }) {
        // Remaining writes of the previous run do not count.
        case.decided(&[&settled]).await;
        let name = format!("i-{k}-die");
        let rule = Rule::on(WRITES, fault.clone()).namespace(scene.namespace()).skip(k - 1).times(1);
        case.wire.rule(rule);
        case.apply(&name, &spec).await;
        let life = process.life.clone();
        let died = tokio::select! {
            () = life.over() => true,
            _ = case.ready(&name) => false,
        };
        case.wire.heal();
        if died {
            process.kill();
            process = case.start().await;
            case.ready(&name).await;
        }
        let story = format!("{fault:?}, k = {k}");
        assert_eq!(outcome(scene, case.kind, &name).await, expected, "{story}");
        effects(scene, &name, &jobs, &story).await;
        runs.check();
        let of_it = scene.runs(&name).await;
        assert_eq!(of_it.iter().map(phase).collect::<Vec<_>>(), ["Succeeded"], "{story}: {of_it:#?}");
        if !died {
            assert!(k > 24, "there are more than {k} writes");
            return case.finish(process).await;
        }
        settled = name;
    }
}

/// The kills depend on [`seed`].
#[tokio::test]
async fn twenty_runs_survive_random_kills() {
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let plane = own_plane_of_tests().await;
    let scene = Scene::on(&plane).await;
    let commands = Commands::new();
    commands.prints("say", "ahoy");
    let copy = with_api(Path::new(&fixture(TWELVE.name)), api());
    let folder = copy.path().to_str().expect("UTF-8");
    let start = || run_flags(&plane, &["--leader-elect=false", LOOPBACK], &[folder]);
    drop(start().watching(1).await);
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(&scene).await);
    let voyage = |name: &String| instance(("Voyage", VOYAGE), name, json!({"script": commands.script()}));
    let names: Vec<String> = (0..20).map(|i| format!("v{i:02}")).collect();
    let items: Vec<Value> = names.iter().map(voyage).collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    for _ in 0..if is_long() { 12 } else { 5 } {
        start().kill_after(&plane, random.usize(1..=60), Duration::from_secs(10)).await;
    }
    let _manager = start();
    for name in &names {
        scene.ready(VOYAGE, name).await;
        effects(&scene, name, &jobs, &format!("seed {seed}")).await;
    }
    runs.check();
}
