//! Runs under adverse conditions: the manager killed before and after every write of a run of twelve steps,
//! killed at random during twenty of them, two managers that both believe they lead, a clock that jumps, and
//! hundreds of schedules in one minute.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::ext::{
    CONFIG_MAP, JOB, Kind, LONG, POD, Scene, condition, copy_package, fixture, kind, name_of, run_flags,
    uid_of, watching,
};
use crate::support::faults::case::{Case, Subject};
use crate::support::faults::{Fault, Rule, Verb, WRITES};
use crate::support::plans::{
    Api, Commands, LOOPBACK, PLAN_RUN, RunWatch, UidWatch, phase, story_of, with_api,
};
use crate::support::{Operetta, eventually, is_long, own_embedded_plane, own_plane, plane, seed, signal};
use rustix::process::Signal;

pub(crate) const TWELVE: Subject = Subject {
    folder: "tests/fixtures/packages/plans-twelve",
    name: "plans-twelve",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Voyage",
    plural: "voyages",
    inner: None,
    children: &[CONFIG_MAP, POD],
    elsewhere: &[],
};

const VOYAGE: Kind = kind("fixtures.operetta.dev/v1", "voyages");
const ALARM: Kind = kind("fixtures.operetta.dev/v1", "alarms");

pub(crate) fn api() -> &'static Api {
    static API: OnceLock<Api> = OnceLock::new();
    API.get_or_init(Api::start)
}

/// The results of a run of twelve steps, without the instance's name.
pub(crate) async fn outcome(scene: &Scene, kind: Kind, name: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let status = scene.get(kind, name).await["status"].clone();
    all.insert(
        "status".to_owned(),
        json!([
            status["jobId"],
            status["itemId"],
            status["said"].as_str().map(|said| said.replace(name, "<name>"))
        ]),
    );
    for child in [CONFIG_MAP, POD] {
        for object in scene.list(child).await {
            let own = object["metadata"]["labels"]["operetta.dev/instance"] == name;
            if own
                && object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "operetta"
                && child.plural == CONFIG_MAP.plural
            {
                all.insert(name_of(&object).replace(name, "<name>"), object["data"].clone());
            } else if own && name_of(&object) == format!("{name}-pod") {
                all.insert("<name>-pod".to_owned(), object["spec"]["containers"][0]["image"].clone());
            }
        }
    }
    all
}

/// Checks the effects of a Voyage's rollout: two Jobs, each created once, and three items of the API, each
/// created once.
pub(crate) async fn effects(scene: &Scene, name: &str, jobs: &UidWatch, story: &str) {
    let prefix = format!("{name}-");
    eventually("the watch of Jobs to show both", LONG, async || {
        let counts = jobs.counts();
        let own: Vec<_> = counts.iter().filter(|(job, _)| job.starts_with(&prefix)).collect();
        assert!(own.len() <= 2, "{name} has the Jobs {own:?}; {story}");
        assert!(own.iter().all(|(_, uids)| **uids == 1), "{name} has a Job twice: {own:?}; {story}");
        if own.len() == 2 { Ok(()) } else { Err(format!("{own:?}; {story}")) }
    })
    .await;
    let items = api().items(&format!("/{}/{name}/items", scene.namespace()));
    assert_eq!(items.len(), 3, "{name}: {items:#?}; {story}");
    assert!(items.iter().all(|item| item.effects == 1), "{name}: {items:#?}; {story}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_resumes_when_killed_before_an_odd_write() {
    lane(&Fault::DieBefore, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_resumes_when_killed_before_an_even_write() {
    lane(&Fault::DieBefore, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_resumes_when_killed_after_an_odd_write() {
    lane(&Fault::DieAfter, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_resumes_when_killed_after_an_even_write() {
    lane(&Fault::DieAfter, 2).await;
}

/// Runs the twelve steps with a manager that ends at its kth write, for every second k (every sixth without `OPERETTA_SWEEP`)
/// until a manager makes fewer than k writes. The next manager finishes the run, and is the one that ends during the next
/// instance's run.
async fn lane(fault: &Fault, from: usize) {
    let started = Instant::now();
    let commands = Commands::new();
    commands.prints("say", "ahoy");
    let case =
        Case::of(&TWELVE, 0).await.with_change(|text| text.replace("http://api.invalid", &api().url()));
    let scene = &case.scene;
    let spec = json!({"script": commands.script()});
    // The manager registers the kind of runs.
    let mut process = case.start().await;
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(scene).await);
    case.apply("i-calm", &spec).await;
    case.ready("i-calm").await;
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
        eprintln!("{story}: {} after {:?}", if died { "died" } else { "no such write" }, started.elapsed());
        if !died {
            assert!(k > 24, "there are more than {k} writes");
            return case.finish(process).await;
        }
        settled = name;
    }
}

/// A finished Job is deleted before its outputs are read: the attempt fails, and the Job is not created
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_job_deleted_unread_is_a_failed_attempt() {
    // On the embedded API the Job has finished before the run knows its uid.
    let case = Case::on(plane().await, &TWELVE, 0).await;
    let scene = &case.scene;
    let process = case.start().await;
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(scene).await);
    let unread =
        Rule::on(&[Verb::Get, Verb::List], Fault::Refused).plural("pods").namespace(scene.namespace());
    case.wire.rule(unread);
    case.apply("i", &json!({})).await;
    let job = eventually("a finished Job", LONG, async || {
        let jobs = scene.list(JOB).await;
        jobs.into_iter().find(|job| condition(job, "Complete")["status"] == "True").ok_or("none")
    })
    .await;
    scene.run_of("i", "deploy", |run| run["status"].to_string().contains(uid_of(&job))).await;
    scene.kubectl(&["delete", "job", name_of(&job)]).await;
    case.wire.heal();
    let run = scene.run_of("i", "deploy", |run| phase(run) == "Failed").await;
    assert!(story_of(&run).contains("was deleted before its result was read"), "{}", story_of(&run));
    runs.check();
    assert_eq!(jobs.counts(), BTreeMap::from([(name_of(&job).to_owned(), 1)]));
    case.finish(process).await;
}

/// A package of plans with its own API group, for managers in their own processes.
fn package(name: &str, group: &str) -> (tempfile::TempDir, Kind) {
    let copy = copy_package(&fixture(name), "fixtures.operetta.dev", group, |text| text);
    let with = with_api(copy.path(), api());
    (with, Kind::of(format!("{group}/v1"), VOYAGE.plural.to_owned()))
}

fn alarm(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": ALARM.api_version(), "kind": "Alarm", "metadata": {"name": name}, "spec": spec})
}

fn voyage(kind: Kind, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": kind.api_version(), "kind": "Voyage", "metadata": {"name": name}, "spec": spec})
}

/// The moments of the kills depend on [`seed`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_runs_survive_random_kills() {
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let plane = own_plane().await;
    let scene = Scene::on(&plane).await;
    let commands = Commands::new();
    commands.prints("say", "ahoy");
    let (folder, kind) = package("plans-twelve", "storm.plans.operetta.dev");
    let folder = folder.path().to_str().expect("UTF-8").to_owned() + "/";
    let start = async || {
        let mut manager = run_flags(&plane, &["--leader-elect=false", LOOPBACK], &[&folder]);
        watching(&mut manager, 1).await;
        manager
    };
    drop(start().await);
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(&scene).await);
    let spec = json!({"script": commands.script()});
    let all: Vec<Value> = (0..20).map(|i| voyage(kind, &format!("v{i:02}"), &spec)).collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string()).await;
    for _ in 0..if is_long() { 12 } else { 5 } {
        let mut manager = start().await;
        tokio::time::sleep(Duration::from_millis(random.u64(50..1500))).await;
        manager.kill9();
    }
    let manager = start().await;
    for i in 0..20 {
        let name = format!("v{i:02}");
        scene.ready(kind, &name).await;
        effects(&scene, &name, &jobs, &format!("seed {seed}")).await;
    }
    runs.check();
    drop(manager);
}

/// Two managers both believe for a while that they lead: no run and no step is carried out twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_leader_repeats_no_step() {
    let plane = own_embedded_plane().await;
    let scene = Scene::on(&plane).await;
    let commands = Commands::new();
    commands.prints("say", "ahoy");
    let (folder, kind) = package("plans-twelve", "sleepy.plans.operetta.dev");
    let folder = folder.path().to_str().expect("UTF-8").to_owned() + "/";
    let start = |identity: &str| {
        let identity = format!("--leader-elect-identity={identity}");
        let flags = [
            "--leader-elect",
            &identity,
            "--leader-elect-lease-duration=4s",
            "--leader-elect-renew-deadline=3s",
            "--leader-elect-retry-period=500ms",
            LOOPBACK,
        ];
        run_flags(&plane, &flags, &[&folder])
    };
    let mut first = start("first");
    watching(&mut first, 1).await;
    let mut second = start("second");
    second.wait_for("standing by", LONG).await;
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(&scene).await);
    let spec = json!({"script": commands.script()});
    let all: Vec<Value> = (0..10).map(|i| voyage(kind, &format!("v{i}"), &spec)).collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string()).await;
    eventually("some runs to be on their way", LONG, async || match jobs.counts().len() {
        4.. => Ok(()),
        n => Err(n),
    })
    .await;
    signal(first.pid(), Signal::STOP);
    watching(&mut second, 1).await;
    eventually("the second to go on", LONG, async || match jobs.counts().len() {
        8.. => Ok(()),
        n => Err(n),
    })
    .await;
    signal(first.pid(), Signal::CONT);
    for i in 0..10 {
        let name = format!("v{i}");
        scene.ready(kind, &name).await;
        effects(&scene, &name, &jobs, "two leaders").await;
    }
    runs.check();
}

/// The wall clock jumps a day forward and back during a timeout and a schedule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_jump_ends_no_timeout_and_repeats_no_schedule() {
    const HOUR: i64 = 3_600;
    let plane = own_embedded_plane().await;
    let scene = Scene::on(&plane).await;
    let offset = plane.folder().join("clock-offset");
    let set = |seconds: i64| {
        // Replace the file by a rename: the manager may be reading it now.
        let fresh = plane.folder().join("clock-offset.fresh");
        std::fs::write(&fresh, seconds.to_string()).expect("a file");
        std::fs::rename(fresh, &offset).expect("a file");
    };
    set(0);
    let mut manager = Operetta::run_with(
        &["run", "--leader-elect=false", &fixture("plans-clock")],
        &[("KUBECONFIG", plane.kubeconfig_path()), ("OPERETTA_CLOCK_OFFSET_FILE", &offset)],
    );
    watching(&mut manager, 1).await;
    scene.apply(&alarm("a", &json!({"schedule": "@every 1h"})).to_string()).await;
    scene.ready(ALARM, "a").await;
    let held = scene.request(("Alarm", ALARM), "a", "hold", &Value::Null).await;
    scene.run_is(&held, "Running").await;
    let nightly =
        async || scene.runs("a").await.iter().filter(|run| run["spec"]["plan"] == "nightly").count();
    assert_eq!(nightly().await, 0);
    // One run makes up for the hours that seem to have passed. After the clock is set back, a day is not
    // waited for.
    for (jump, expected) in
        [(2, 1), (24, 2), (2, 2), (4, 3), (-24, 3), (4, 3), (5, 4)].map(|(hours, runs)| (hours * HOUR, runs))
    {
        set(jump);
        // A run that begins under the new time shows that everything is decided under it.
        let other = scene.request(("Alarm", ALARM), "a", "other", &Value::Null).await;
        let other = scene.run_is(&other, "Succeeded").await;
        let time = |value: &Value| value.as_str().expect("a time").parse::<Timestamp>().expect("a time");
        let created = time(&other["metadata"]["creationTimestamp"]);
        let ahead = time(&other["status"]["startedAt"]).duration_since(created).as_secs();
        assert!((ahead - jump).abs() < HOUR / 2, "{ahead} s ahead after a jump to {jump} s");
        let found = eventually("the runs of the schedule", LONG, async || {
            let count = nightly().await;
            if count >= expected { Ok(count) } else { Err(format!("{count} after a jump to {jump} s")) }
        })
        .await;
        assert_eq!(found, expected, "scheduled runs after a jump to {jump} s");
        let run = scene.get(PLAN_RUN, &held).await;
        assert_eq!(phase(&run), "Running", "after a jump to {jump} s: {run:#}");
    }
    scene.request(("Alarm", ALARM), "a", "open", &Value::Null).await;
    scene.run_is(&held, "Succeeded").await;
    assert_eq!(nightly().await, 4);
}

/// Hundreds of schedules in one minute, a thousand with `OPERETTA_SWEEP=1`: each runs once, and other work
/// gets its turn among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_schedules_in_one_minute_all_run() {
    let many = if is_long() { 1000 } else { 300 };
    let plane = own_embedded_plane().await;
    let scene = Scene::on(&plane).await;
    let mut manager = run_flags(&plane, &["--leader-elect=false"], &["plans-clock"]);
    watching(&mut manager, 1).await;
    scene.apply(&alarm("probe", &json!({})).to_string()).await;
    scene.ready(ALARM, "probe").await;
    let spec = json!({"schedule": "* * * * *"});
    let items: Vec<Value> = (0..many).map(|i| alarm(&format!("a{i:04}"), &spec)).collect();
    for part in items.chunks(250) {
        scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": part}).to_string()).await;
    }
    let ended = async || -> Vec<Value> {
        let mut runs = scene.list(PLAN_RUN).await;
        runs.retain(|run| run["spec"]["plan"] == "nightly" && phase(run) == "Succeeded");
        runs
    };
    let counts = async || {
        let mut counts = BTreeMap::<String, usize>::new();
        for run in ended().await {
            *counts.entry(run["spec"]["of"]["name"].to_string()).or_default() += 1;
        }
        counts
    };
    let before = eventually("the minute", LONG, async || {
        let counts = counts().await;
        if counts.is_empty() { Err("not yet") } else { Ok(counts) }
    })
    .await;
    let started = Instant::now();
    let other = scene.request(("Alarm", ALARM), "probe", "other", &Value::Null).await;
    scene.run_is(&other, "Succeeded").await;
    eprintln!("another run took {:?}", started.elapsed());
    // On a slow machine the next minutes begin meanwhile. A fair queue lets no instance run repeatedly before
    // the other work.
    for (name, count) in counts().await {
        let meanwhile = count - before.get(&name).copied().unwrap_or(0);
        assert!(meanwhile <= 2, "another run waited for {meanwhile} runs of {name}");
    }
    let mut all = 0;
    let runs = loop {
        // A slow machine may take long for all of them, but not for the next one.
        let runs = eventually("another one", LONG, async || {
            let runs = ended().await;
            let of: BTreeSet<&str> =
                runs.iter().filter_map(|run| run["spec"]["of"]["name"].as_str()).collect();
            if of.len() > all || of.len() == many {
                all = of.len();
                Ok(runs)
            } else {
                let mut missing = items.iter().map(|item| &item["metadata"]["name"]);
                let name = missing.find(|name| !of.contains(name.as_str().expect("a name")));
                let name = name.and_then(Value::as_str).expect("one is missing");
                let (instance, runs) = (scene.get(ALARM, name).await, scene.runs(name).await);
                Err(format!("{} of {many}, without {name}: {instance:#} {runs:#?}", of.len()))
            }
        })
        .await;
        if all == many {
            break runs;
        }
    };
    eprintln!("{} runs after {:?}", runs.len(), started.elapsed());
    let mut minutes = BTreeSet::new();
    for run in &runs {
        let at = run["metadata"]["annotations"]["operetta.dev/scheduled-at"].as_str().expect("a time");
        assert!(minutes.insert((run["spec"]["of"]["name"].to_string(), at)), "twice at {at}: {run:#}");
    }
}
