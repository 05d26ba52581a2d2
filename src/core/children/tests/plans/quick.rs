//! Steps that are done quickly: only the memory has them, until a run waits.

use super::*;

fn begun() -> World {
    let resource = "
children:
  - {id: a, template: templates/a.yaml}
  - {id: b, template: templates/b.yaml, readyWhen: \"self.data.open == 'yes'\"}
plans:
  deploy:
    steps:
      - {name: first, apply: [a]}
      - {name: second, apply: [b], message: \"{{ name }} is slow\"}
";
    let templates = [("a", config("{{ name }}-a")), ("b", config("{{ name }}-b"))];
    let mut world = World::with_runs(package(resource, &templates), &json!({"text": "x"}));
    world.settle();
    world
}

fn stored_steps(world: &World) -> usize {
    world.runs.runs["a-1"]["status"]["steps"].as_array().map_or(0, Vec::len)
}

#[test]
fn plan_run_shows_steps_once_the_run_waits() {
    let mut world = begun();
    assert_eq!(world.value("a-b", "text"), "x");
    assert_eq!(stored_steps(&world), 0, "nothing waits yet");
    let decision = world.decide();
    assert!(decision.again.unwrap() <= Duration::from_secs(1), "{:?}", decision.again);
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(stored_steps(&world), 2);
    let status = world.runs.runs["a-1"]["status"].clone();
    assert_eq!(status["message"], "second: a is slow", "as it stands now, not as the memory has it");
    world.settle();
    assert_eq!(world.runs.runs["a-1"]["status"], status, "it is shown once");
}

#[test]
fn restarted_manager_resumes_from_the_memory() {
    let mut world = begun();
    world.log.clear();
    world.restart();
    world.settle();
    assert_eq!(world.log, Vec::<String>::new(), "no step is done twice");
    world.write("ConfigMap/a-b", |object| object["data"]["open"] = "yes".into());
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(world.phases(), [("deploy".into(), Phase::Succeeded)]);
    assert_eq!(stored_steps(&world), 3, "and the implicit one");
}

/// A `PlanRun` that is older than the memory decides nothing: its facts and steps are outdated.
#[test]
fn an_older_state_in_the_plan_run_does_not_count() {
    let mut world = begun();
    world.store().runs.get_mut("a-1").unwrap()["status"]["applied"] = json!([]);
    let runs = world.runs.snapshot(world.now, &world.instance).runs;
    assert!(runs[0].is_behind);
    assert_eq!(runs[0].status.as_ref().unwrap().applied.len(), 2);
}

/// What runs record explains that a child changes often: it is not held back as one that changes because of itself.
#[test]
fn facts_may_change_a_child_that_reads_live_objects() {
    let resource = "
children:
  - {id: a, template: templates/a.yaml}
plans:
  deploy: {steps: [{name: all, apply: [a]}]}
  count:
    steps:
      - {name: next, record: {count: record.count | default(0) + 1}}
      - {name: all, apply: [a]}
";
    let read = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {text: \"{{ record.count | default(0) }} {{ 'there' if self is defined else 'new' }}\"}\n";
    let mut world = World::with_runs(package(resource, &[("a", read.into())]), &json!({}));
    world.settle();
    let name = world.names().remove(0).to_owned();
    for n in 1..=20 {
        request(&mut world, &format!("r{n}"), "count");
        let verdict = world.settle();
        assert!(matches!(verdict, Verdict::Ready { .. }), "{n}: {verdict:?}");
        assert_eq!(world.value(&name, "text"), format!("{n} there"));
    }
}
