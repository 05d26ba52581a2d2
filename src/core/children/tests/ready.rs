//! What makes an instance not Ready: runs and refs that affect it, and not those that do not.

use super::*;
use crate::children::model::PollResult;
use crate::children::status;
use crate::children::tests::plans::request;

fn conditions(decision: &Decision) -> Value {
    let status = decision.status.as_ref().expect("a status");
    let patch = status::patch(&json!({}), status, "now").expect("a patch");
    patch["conditions"].clone()
}

/// The reason and the message of a condition.
fn said(decision: &Decision, kind: &str) -> Option<(String, String)> {
    let object = json!({"status": {"conditions": conditions(decision)}});
    let found = crate::facts::condition(&object, kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("reason"), text("message")))
}

fn is_reconciling(world: &World) -> bool {
    matches!(world.decide().verdict, Verdict::Reconciling { .. })
}

const PLANS: &str = "
children:
  - {id: m, template: templates/m.yaml}
plans:
  deploy:
    steps: [{name: all, apply: [m]}]
  backup:
    exclusive: false
    steps: [{name: sure, approve: {message: Now?}}]
  loud:
    exclusive: false
    affectsReady: true
    steps: [{name: sure, approve: {message: Now?}}]
  vacuum:
    affectsReady: false
    steps: [{name: sure, approve: {message: Now?}}]
  move:
    steps: [{name: sure, approve: {message: Now?}}]
  restart:
    affectsReady: false
    steps:
      - {name: away, delete: [m]}
      - {name: sure, approve: {message: Now?}}
      - {name: back, apply: [m]}
  note:
    affectsReady: false
    steps:
      - {name: note, record: {primary: '1'}}
      - {name: stop, fail: {message: half-way}}
  cron:
    affectsReady: false
    trigger: {schedule: \"{{ spec.text }}\"}
    steps: [{name: note, record: {seen: '1'}}]
";

fn planned() -> World {
    let mut world =
        World::with_runs(package(PLANS, &[("m", config("{{ name }}-m"))]), &json!({"text": "@every 9h"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    world
}

#[test]
fn run_that_does_not_affect_ready_is_named_in_its_message() {
    for plan in ["backup", "vacuum"] {
        let mut world = planned();
        request(&mut world, "mine", plan);
        assert_eq!(world.settle(), Verdict::Ready { children: 1 }, "{plan}");
        let decision = world.decide();
        let (reason, message) = said(&decision, "Ready").expect("Ready");
        assert_eq!(reason, "Ready");
        assert!(message.contains("; meanwhile: run mine, step sure: "), "{message}");
        assert_eq!(decision.summary().message, message);
        assert_eq!(said(&decision, "Reconciling"), None);
        // A run that waits for it does not affect Ready either.
        request(&mut world, "other", plan);
        assert_eq!(world.settle(), Verdict::Ready { children: 1 }, "{plan}");
    }
}

#[test]
fn other_runs_affect_ready() {
    for plan in ["move", "loud"] {
        let mut world = planned();
        request(&mut world, "mine", plan);
        world.settle();
        assert!(is_reconciling(&world), "{plan}");
    }
}

#[test]
fn deleted_children_affect_ready_even_if_the_run_does_not() {
    let mut world = planned();
    request(&mut world, "mine", "restart");
    world.settle();
    assert!(world.objects.is_empty());
    let (_, message) = said(&world.decide(), "Reconciling").expect("the child is away");
    assert!(message.contains("m waits for the run mine"), "{message}");
}

#[test]
fn failed_run_that_does_not_affect_ready_has_a_condition() {
    let mut world = planned();
    request(&mut world, "mine", "note");
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    let (reason, message) = said(&world.decide(), "RunFailed").expect("it has failed");
    assert!(reason == "FailStep" && message.contains("half-way"), "{reason}: {message}");
    let mut world =
        World::with_runs(package(PLANS, &[("m", config("{{ name }}-m"))]), &json!({"text": "never"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    let (reason, _) = said(&world.decide(), "RunFailed").expect("its schedule is not valid");
    assert_eq!(reason, "InvalidSchedule");
}

const REFS: &str = "
refs:
  - {id: shown, apiVersion: v1, kind: Secret, name: shown}
  - {id: named, apiVersion: v1, kind: Secret, name: \"{{ refs.shown.metadata.name }}-2\"}
  - {id: used, apiVersion: v1, kind: Secret, name: used, affectsReady: false}
  - {id: needed, apiVersion: v1, kind: Secret, name: needed}
let: {name: \"{{ refs.named.metadata.name }}\"}
children:
  - {id: plain, template: templates/plain.yaml}
  - {id: extra, template: templates/extra.yaml}
  - {id: main, template: templates/main.yaml, when: refs.needed is defined}
status: {shown: let.name}
conditions: [{type: Shown, when: refs.shown is defined, reason: Is, message: x}]
";

fn secret(name: &str) -> Arc<Referred> {
    referred(json!({"metadata": {"name": name}}), true)
}

#[test]
fn a_ref_that_only_the_status_reads_does_not_affect_ready() {
    let [plain, extra, main] = ["plain", "extra", "main"].map(|id| config(&format!("{{{{ name }}}}-{id}")));
    let extra = extra.replace("spec.text | default('')", "refs.used.metadata.name");
    let templates = [("plain", plain), ("extra", extra), ("main", main)];
    let mut world = World::new(package(REFS, &templates), &json!({}));
    world.settle();
    let (reason, message) = said(&world.decide(), "Reconciling").expect("a child needs a ref");
    assert!(reason == "RefMissing" && message.contains("refs.needed"), "{message}");
    assert!(!message.contains("refs.shown") && !message.contains("refs.used"), "{message}");
    world.foreign.push(secret("needed"));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    let (reason, message) = said(&world.decide(), "RefUnknown").expect("refs are unknown");
    assert_eq!(reason, "RefMissing");
    for told in ["refs.shown", "refs.named", "extra: "] {
        assert!(message.contains(told), "{told}: {message}");
    }
    for name in ["shown", "shown-2", "used"] {
        world.foreign.push(secret(name));
    }
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    assert_eq!(said(&world.decide(), "RefUnknown"), None);
    // What is there keeps what it has, and is awaited as ever if it is not ready.
    world.foreign.retain(|object| &*object.name != "used");
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    world.objects.values_mut().for_each(|object| object.readiness = Readiness::Terminating);
    assert!(is_reconciling(&world));
}

#[test]
fn delayed_answer_is_reported_only_if_nothing_else_is() {
    let resource = "
refs: [{id: api, http: {url: 'http://x.example.org'}}]
children:
  - {id: plain, template: templates/plain.yaml}
  - {id: extra, template: templates/extra.yaml, when: refs.api.status == 200}
";
    let templates = ["plain", "extra"].map(|id| (id, config(&format!("{{{{ name }}}}-{id}"))));
    let mut world = World::new(package(resource, &templates), &json!({}));
    world.settle();
    let decide = |world: &World, result: Option<PollResult>| {
        let mut snapshot = world.snapshot();
        for poll in world.decide().needs.polls {
            snapshot.polls.extend(result.clone().map(|result| (poll, result)));
        }
        let decision = decide(&snapshot, &world.state, world.now);
        decision.input
    };
    assert_eq!(decide(&world, None), Input::Loading);
    assert_eq!(decide(&world, Some(PollResult::Pending)), Input::Loading);
    let known = PollResult::Known(Arc::new(json!({"status": 200})));
    assert_eq!(decide(&world, Some(known)), Input::Complete);
    assert_eq!(decide(&world, Some(PollResult::Failed("no".into()))), Input::Complete);
    assert_eq!(decide(&world, Some(PollResult::Delayed)), Input::Unanswered);
    world.objects.values_mut().for_each(|object| object.readiness = Readiness::Terminating);
    assert_eq!(decide(&world, Some(PollResult::Delayed)), Input::Complete);
}
