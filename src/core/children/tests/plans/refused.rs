//! Writes for runs that the API server refuses: nothing else waits for them.

use super::jobs::JOB;
use super::*;
use crate::plan::{RUN_FINALIZER, TAKEN};

const RESOURCE: &str = "
children:
  - {id: c, template: templates/c.yaml, deletionPolicy: Delete}
  - {id: d, template: templates/d.yaml, onLoss: mend}
plans:
  deploy:
    steps:
      - {name: all, apply: [c, d]}
  mend:
    steps:
      - {name: back, apply: [d]}
  work:
    steps:
      - {name: work, job: {template: templates/job.yaml}, timeout: 1h}
  note:
    steps:
      - {name: note, record: {note: \"'noted'\"}}
  other:
    steps:
      - {name: other, record: {other: \"'noted'\"}}
  beside:
    exclusive: false
    concurrency: Queue
    steps:
      - {name: beside, record: {beside: \"'noted'\"}}
  hold:
    steps:
      - {name: held, wait: {until: \"children.c.data.open == 'yes'\"}, timeout: 1h}
  urgent:
    priority: 1
    steps:
      - {name: urgent, record: {urgent: '1'}}
";

/// An instance that is Ready.
fn ready() -> World {
    let templates = [("c", config("{{ name }}-c")), ("d", config("{{ name }}-d")), ("job", JOB.to_owned())];
    let mut world = World::with_runs(package(RESOURCE, &templates), &json!({"text": "x"}));
    assert_eq!(world.settle(), READY);
    world
}

const READY: Verdict = Verdict::Ready { children: 2 };

/// The API server refuses such writes from now on.
fn refuse(world: &mut World, refuses: fn(&RunAction) -> bool) {
    world.store().refuses = Some(refuses);
}

/// The API server refuses nothing any more, and everything is tried again.
fn accept(world: &mut World) -> Verdict {
    world.store().refuses = None;
    world.now += Duration::from_secs(600);
    world.settle()
}

/// The API server refuses nothing any more, and what is due is tried again.
fn accept_next(world: &mut World) -> Verdict {
    world.store().refuses = None;
    world.rest();
    world.settle()
}

/// Whether an action writes the status of a PlanRun.
fn writes_status(action: &RunAction, name: &str) -> bool {
    match action {
        RunAction::If { then, .. } => writes_status(then, name),
        RunAction::Store { run, memory: None, .. } | RunAction::Show(run, _) => run.name == name,
        _ => false,
    }
}

/// Whether an action changes a PlanRun otherwise.
fn changes(action: &RunAction, name: &str) -> bool {
    matches!(action, RunAction::Change(RunObject::PlanRun, run, _) if run.name == name)
}

fn open(world: &mut World) {
    world.write("ConfigMap/a-c", |object| object["data"]["open"] = "yes".into());
}

/// The phase that the PlanRun shows.
fn shown(world: &World, name: &str) -> Value {
    world.runs.runs[name]["status"]["phase"].clone()
}

/// What is said of a run.
fn said(world: &World, name: &str) -> Vec<String> {
    let all = world.decide().findings;
    all.iter().map(ToString::to_string).filter(|text| text.contains(&format!("run {name}"))).collect()
}

#[test]
fn nothing_waits_for_a_run_that_cannot_be_created() {
    let mut world = ready();
    world.edit(json!({"text": "y"}));
    request(&mut world, "mine", "note");
    refuse(&mut world, |action| matches!(action, RunAction::Create(RunObject::PlanRun, _)));
    let Verdict::Reconciling { reason, message } = world.settle() else { panic!() };
    assert_eq!(reason, "RunActive");
    assert!(message.contains("run a-2: its PlanRun cannot be created: exceeded quota"), "{message}");
    assert_eq!(shown(&world, "mine"), "Succeeded");
    assert_eq!(world.runs.runs["mine"]["metadata"]["finalizers"], json!([]), "it is released");
    assert_eq!(world.value("a-c", "text"), "x");
    // It is tried again, less and less often, until it is accepted.
    let first = world.decide().again.unwrap();
    world.now += first;
    world.settle();
    assert!(world.decide().again.unwrap() > first);
    assert_eq!(accept(&mut world), READY);
    assert_eq!((shown(&world, "a-2"), world.value("a-c", "text")), (json!("Succeeded"), json!("y")));
}

/// It would create what is lost without its plan.
#[test]
fn a_rollout_waits_for_a_run_for_a_loss_that_is_refused() {
    let is_mend = |action: &RunAction| match action {
        RunAction::Create(RunObject::PlanRun, body) => body["spec"]["plan"] == "mend",
        _ => false,
    };
    let starts_mend = |action: &RunAction| match action {
        RunAction::Store { run, status, .. } => run.name == "a-2" && status["phase"] == "Running",
        _ => false,
    };
    for refuses in [is_mend as fn(&RunAction) -> bool, starts_mend] {
        let mut world = ready();
        refuse(&mut world, refuses);
        world.remove("ConfigMap/a-d");
        world.settle();
        world.edit(json!({"text": "y"}));
        world.settle();
        assert_eq!((world.names(), world.value("a-c", "text")), (vec!["a-c"], json!("x")));
        assert_eq!(accept(&mut world), READY);
        assert_eq!((world.value("a-c", "text"), world.value("a-d", "text")), (json!("y"), json!("y")));
        let mended = |(plan, phase): &(String, Phase)| plan == "mend" && *phase == Phase::Succeeded;
        assert!(world.phases().iter().any(mended), "{:?}", world.phases());
    }
}

#[test]
fn nothing_waits_for_a_run_whose_status_is_refused() {
    let mut world = ready();
    request(&mut world, "bad", "note");
    request(&mut world, "good", "note");
    refuse(&mut world, |action| writes_status(action, "bad"));
    world.settle();
    assert_eq!((shown(&world, "bad"), shown(&world, "good")), (Value::Null, json!("Succeeded")));
    assert_eq!(accept(&mut world), READY);
    assert_eq!(shown(&world, "bad"), "Succeeded");
}

#[test]
fn nothing_waits_for_a_run_whose_start_is_refused() {
    let mut world = ready();
    for (name, plan) in [("long", "hold"), ("bad", "note"), ("good", "other")] {
        request(&mut world, name, plan);
        world.settle();
    }
    let phases = |world: &World| ["long", "bad", "good"].map(|name| shown(world, name));
    assert_eq!(phases(&world), ["Running", "Pending", "Pending"]);
    refuse(&mut world, |action| writes_status(action, "bad"));
    open(&mut world);
    world.settle();
    assert_eq!(phases(&world), ["Succeeded", "Pending", "Succeeded"]);
    assert_eq!(said(&world, "bad"), ["run bad: its PlanRun cannot be written: exceeded quota"]);
    // Nor does a rollout wait for it.
    world.edit(json!({"text": "y"}));
    world.settle();
    assert_eq!((world.value("a-c", "text"), shown(&world, "bad")), (json!("y"), json!("Pending")));
    assert_eq!(accept(&mut world), READY);
    assert_eq!(phases(&world), ["Succeeded"; 3]);
}

#[test]
fn a_later_run_of_the_plan_does_not_wait_for_a_start_that_is_refused() {
    let mut world = ready();
    refuse(&mut world, |action| match action {
        RunAction::Store { run, status, .. } => run.name == "bad" && status["phase"] == "Running",
        _ => false,
    });
    for name in ["bad", "good"] {
        request(&mut world, name, "beside");
    }
    world.settle();
    assert_eq!(["bad", "good"].map(|name| shown(&world, name)), ["Pending", "Succeeded"]);
    assert_eq!(accept(&mut world), READY);
    assert_eq!(shown(&world, "bad"), "Succeeded");
}

#[test]
fn a_run_that_cannot_start_keeps_no_other_interrupted() {
    let mut world = ready();
    request(&mut world, "long", "hold");
    world.settle();
    // The state that says that it waits is stored.
    request(&mut world, "bad", "urgent");
    let admitted = world.decide();
    world.carry_out(admitted.actions, admitted.target_changes);
    assert_eq!(shown(&world, "bad"), "Pending");
    refuse(&mut world, |action| writes_status(action, "bad"));
    let mut waits = Vec::new();
    for _ in 0..4 {
        world.settle();
        assert_eq!((shown(&world, "long"), shown(&world, "bad")), (json!("Running"), json!("Pending")));
        assert_eq!(said(&world, "bad"), ["run bad: its PlanRun cannot be written: exceeded quota"]);
        waits.push(world.decide().again.unwrap());
        world.rest();
    }
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
    accept(&mut world);
    assert_eq!((shown(&world, "long"), shown(&world, "bad")), (json!("Running"), json!("Succeeded")));
}

#[test]
fn no_step_runs_before_its_run_is_taken() {
    let mut world = ready();
    request(&mut world, "mine", "work");
    refuse(&mut world, |action| changes(action, "mine"));
    world.settle();
    assert!(world.store().jobs.is_empty());
    assert_eq!(said(&world, "mine"), ["run mine: its PlanRun cannot be written: exceeded quota"]);
    assert_eq!(shown(&world, "mine"), "Running");
    // Runs that change no children do not wait for it.
    request(&mut world, "next", "beside");
    world.settle();
    assert_eq!(shown(&world, "next"), "Succeeded");
    accept_next(&mut world);
    let metadata = world.runs.runs["mine"]["metadata"].clone();
    assert_eq!(
        (&metadata["annotations"][TAKEN], &metadata["finalizers"]),
        (&json!("uid-mine"), &json!([RUN_FINALIZER]))
    );
    assert_eq!((shown(&world, "mine"), world.store().jobs.len()), (json!("Running"), 1));
}

#[test]
fn a_run_that_is_not_taken_can_be_cancelled_and_lets_an_urgent_one_go_first() {
    let mut world = ready();
    request(&mut world, "mine", "work");
    refuse(&mut world, |action| changes(action, "mine"));
    world.settle();
    request(&mut world, "next", "urgent");
    world.settle();
    assert_eq!((shown(&world, "mine"), shown(&world, "next")), (json!("Running"), json!("Succeeded")));
    world.store().runs.get_mut("mine").unwrap()["spec"]["cancel"] = true.into();
    world.settle();
    assert_eq!((shown(&world, "mine"), world.store().jobs.len()), (json!("Cancelled"), 0));
}

#[test]
fn the_origin_of_a_start_that_is_refused_stays() {
    let mut world = ready();
    world.edit(json!({"text": "y"}));
    refuse(&mut world, |action| writes_status(action, "a-2"));
    world.settle();
    let names = |world: &World| -> Vec<Value> {
        world.runs.origins.iter().map(|origin| origin["metadata"]["name"].clone()).collect()
    };
    let before = names(&world);
    assert_eq!(before.len(), 2);
    let versions = world.runs.origins.clone();
    accept(&mut world);
    assert_eq!((names(&world), &world.runs.origins[1]), (before, &versions[1]));
}

#[test]
fn a_step_says_why_its_job_cannot_be_created() {
    let mut world = ready();
    request(&mut world, "mine", "work");
    refuse(&mut world, |action| matches!(action, RunAction::Create(RunObject::Job, _)));
    let Verdict::Reconciling { message, .. } = world.settle() else { panic!() };
    assert!(
        message.contains("Job a-work-") && message.contains("cannot be created: exceeded quota"),
        "{message}"
    );
    assert!(world.store().jobs.is_empty());
    accept_next(&mut world);
    assert_eq!(world.store().jobs.len(), 1);
}
