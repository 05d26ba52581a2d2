//! Control flow: loops, parallel steps, inline plans, and what follows a failure.

use serde_json::json;

use super::super::build::{
    StepBuild, apply, fail, http, inline, job, note, parallel, pause, phase, plan, step, text, wait,
};
use super::super::sim::{Sim, status};
use super::member;
use crate::package::plan::{OnFailure, Plan, Step};
use crate::plan::{JobResult, Phase, RecordedFact, StepPhase, retried};

#[test]
fn loops_store_their_list_and_run_their_items_in_order() {
    let body = vec![
        http("ask", "POST", "http://h/{{ item }}").output("id", "body.id"),
        note("note", "last", "item ~ outputs.ask.id"),
    ];
    let steps = vec![
        phase("all", body).each("spec.list", "item", 1),
        note("sum", "count", "outputs.all | length"),
        note("first", "first", "outputs.all[0].item"),
    ];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.turn();
    sim.cluster.spec = json!({"size": 3, "list": []});
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    let steps: Vec<_> = sim.cluster.requests.iter().map(|(step, ..)| step.as_str()).collect();
    assert_eq!(steps, ["all[p]/ask", "all[q]/ask"]);
    assert_eq!(sim.status().record["last"].value, json!("qb-1"));
    assert_eq!(
        (&sim.status().record["count"].value, &sim.status().record["first"].value),
        (&json!(2), &json!("p"))
    );
}

#[test]
fn parallel_items_start_together_up_to_their_limit() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![apply("all", &["members[{{ i }}]"]).each("range(3)", "i", 2)])]);
    for index in 0..3 {
        sim.cluster.stuck.push(member(index));
    }
    sim.settle();
    assert_eq!(sim.cluster.writes, [member(0), member(1)]);
    sim.cluster.members.get_mut(&member(0)).unwrap().ready = true;
    sim.settle();
    assert_eq!(sim.cluster.writes, [member(0), member(1), member(2)]);
}

#[test]
fn a_plan_that_is_not_interruptible_is_not_where_a_step_runs_it() {
    for (plan_says, step_says, expected) in [
        (true, None, None),
        (false, None, Some(false)),
        (false, Some(true), Some(true)),
        (true, Some(false), Some(false)),
    ] {
        let held = Step { interruptible: step_says, ..wait("held", "false") };
        let inner = Plan { interruptible: plan_says, ..plan("inner", vec![held]) };
        let mut sim = Sim::new(vec![plan("deploy", vec![inline("call", "inner")]), inner]);
        sim.settle();
        assert_eq!(sim.status().step_interruptible, expected, "{plan_says} {step_says:?}");
    }
}

#[test]
fn limit_of_parallel_items_may_be_a_template_and_is_kept() {
    let looping = |most: &str| {
        let mut step = apply("all", &["members[{{ i }}]"]).each("range(4)", "i", 1);
        step.for_each.as_mut().unwrap().max_parallel = Some(text(most));
        let mut sim = Sim::new(vec![plan("deploy", vec![note("first", "most", "2"), step])]);
        (0..4).for_each(|index| sim.cluster.stuck.push(member(index)));
        sim
    };
    let mut sim = looping("{{ record.most }}");
    sim.settle();
    assert_eq!(sim.cluster.writes, [member(0), member(1)]);
    // The number of the moment when the step was reached counts.
    sim.status_mut().record.get_mut("most").unwrap().value = json!(1);
    sim.cluster.members.get_mut(&member(1)).unwrap().ready = true;
    sim.settle();
    assert_eq!(sim.cluster.writes, [member(0), member(1), member(2)]);

    let message = "step `all`: maxParallel is 0, not a whole number from 1 to 1000";
    assert_eq!(looping("{{ record.most - 2 }}").finish().message, message);
}

#[test]
fn failed_item_stops_the_loop_unless_failures_are_ignored() {
    let failing = || http("ask", "POST", "http://h/").each("spec.list", "item", 1).output("id", "body.id");
    let reply = vec![status(400, json!(null))];
    let mut sim = Sim::new(vec![plan("deploy", vec![failing()])]);
    sim.cluster.replies.insert("ask[p]".into(), reply.clone());
    assert_eq!(sim.finish().message, "step `ask[p]`: the server answered 400");
    assert_eq!(sim.cluster.requests.len(), 1);

    let steps = vec![failing().on_failure(OnFailure::Continue), note("sum", "items", "outputs.ask")];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.cluster.replies.insert("ask[p]".into(), reply);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.status().record["items"].value, json!([{"item": "q", "id": "b-1"}]));
}

#[test]
fn failure_plan_runs_and_then_the_step_has_failed() {
    let steps = vec![http("promote", "POST", "http://h/").on_failure(OnFailure::Plan("comeback".into()))];
    let comeback = plan("comeback", vec![apply("old", &["a"]), note("note", "back", "run.failure")]);
    let mut sim = Sim::new(vec![plan("failover", steps), comeback]);
    sim.cluster.replies.insert("promote".into(), vec![status(400, json!(null))]);
    let status = sim.finish();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "UnexpectedAnswer"));
    let failure =
        json!({"step": "promote", "reason": "UnexpectedAnswer", "message": "the server answered 400"});
    assert_eq!(status.record["back"].value, failure);
    assert_eq!(sim.phase_of("promote/onFailure/old"), Some(StepPhase::Succeeded));
}

#[test]
fn parallel_steps_are_settled_when_one_fails() {
    let steps = vec![parallel(
        "both",
        vec![
            job("slow"),
            http("bad", "POST", "http://h/"),
            phase("more", vec![pause("rest", "10m"), apply("never", &["a"])]),
        ],
    )];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.cluster.job_results.insert("both/slow".into(), vec![JobResult::Reading]);
    sim.cluster.replies.insert("both/bad".into(), vec![status(400, json!(null))]);
    assert_eq!(sim.finish().message, "step `both/bad`: the server answered 400");
    assert!(sim.cluster.jobs.is_empty(), "the Job is deleted");
    assert!(sim.cluster.writes.is_empty());
}

#[test]
fn plans_run_inline_with_their_own_outputs() {
    let inner = plan(
        "resize",
        vec![
            http("ask", "POST", "http://h/{{ run.params.to }}").output("id", "body.id"),
            note("note", "id", "outputs.ask.id"),
        ],
    );
    let mut sim =
        Sim::new(vec![plan("deploy", vec![inline("others", "resize"), inline("again", "resize")]), inner]);
    sim.run.spec.params = json!({"to": "x"});
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    let steps: Vec<_> = sim.cluster.requests.iter().map(|(step, ..)| step.as_str()).collect();
    assert_eq!(steps, ["others/ask", "again/ask"]);
    assert_ne!(sim.cluster.requests[0].1, sim.cluster.requests[1].1);
}

#[test]
fn a_plan_of_another_instance_is_one_planrun() {
    let call = crate::package::plan::Call {
        plan: "restore".into(),
        of: Some(crate::package::plan::Of { gvk: crate::api::Gvk::new("e/v1", "Etcd"), name: text("other") }),
        params: None,
    };
    let restore = step("restore", crate::package::plan::Action::Plan(call)).output("site", "recorded.site");
    let steps = vec![restore, note("note", "at", "[outputs.restore.ran, outputs.restore.site]")];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.runs.len(), 1);
    assert_eq!(sim.status().record["at"].value, json!([true, "b"]));
}

#[test]
fn a_step_says_whether_its_plan_has_run_and_what_it_recorded() {
    let inner = plan(
        "move",
        vec![
            note("to", "primary", "run.params.to"),
            note("never", "extra", "1").when("spec.size > 9"),
            phase("all", vec![note("each", "last", "item")]).each("spec.list", "item", 1),
            inline("deeper", "mark"),
        ],
    );
    let mark = plan("mark", vec![note("mark", "marked-as", "true")]);
    let steps = vec![
        note("before", "extra", "0"),
        phase("skipped", vec![inline("inside", "mark")]).when("spec.size > 9"),
        inline("idle", "mark").when("spec.size > 9"),
        inline("go", "move").output("all-of-it", "recorded"),
        inline("broken", "stop").on_failure(OnFailure::Continue),
        note("ran", "ran", "[outputs.inside.ran, outputs.idle.ran, outputs.go.ran, outputs.broken.ran]"),
        note("told", "told", "outputs.go['all-of-it']"),
        note("more", "more", "outputs.idle['all-of-it'] | default('none')"),
    ];
    let stop = plan("stop", vec![fail("no", "no")]);
    let mut sim = Sim::new(vec![plan("deploy", steps), inner, mark, stop]);
    sim.run.spec.params = json!({"to": 2});
    let status = sim.finish();
    assert_eq!(status.phase, Phase::Succeeded, "{}", status.message);
    assert_eq!(status.record["ran"].value, json!([false, false, true, false]));
    let told = json!({"primary": 2, "last": "q", "marked-as": true});
    assert_eq!(status.record["told"].value, told, "not what another step has recorded");
    assert_eq!(status.record["more"].value, json!("none"));
}

/// The facts that the failed run has recorded are those of the plan, too.
#[test]
fn retry_knows_facts_that_the_failed_run_recorded() {
    let inner = plan("move", vec![note("to", "primary", "2"), http("tell", "POST", "http://h/")]);
    let go = inline("go", "move").output("primary", "recorded.primary");
    let steps = vec![go, note("told", "told", "outputs.go.primary")];
    let mut sim = Sim::new(vec![plan("deploy", steps), inner]);
    sim.cluster.replies.insert("go/tell".into(), vec![status(400, json!(null))]);
    assert_eq!(sim.finish().phase, Phase::Failed);
    let known = RecordedFact { value: json!(2), sequence: 1 };
    assert_eq!(sim.status().record["primary"], known);
    let status = retried(&sim.run, jiff::Timestamp::UNIX_EPOCH);
    assert!(status.record.is_empty());
    sim.remembered.insert("primary".to_owned(), known);
    sim.run.status = Some(status);
    sim.cluster.by_key.clear();
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.status().record["told"].value, json!(2));
}

#[test]
fn a_fail_step_fails_the_run_if_its_condition_holds() {
    let steps = vec![
        fail("no", "never").when("spec.size > 9"),
        fail("stop", "size is {{ spec.size }}").when("spec.size == 3"),
    ];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    assert_eq!(sim.finish().message, "step `stop`: size is 3");
    assert_eq!(sim.phase_of("no"), Some(StepPhase::Skipped));
}

#[test]
fn ignored_failure_does_not_hide_another_failure() {
    let both = parallel(
        "both",
        vec![
            http("one", "POST", "http://h/").on_failure(OnFailure::Continue),
            phase("slow", vec![pause("rest", "1m"), apply("never", &["a"])]),
            phase("later", vec![pause("rest", "10s"), http("two", "POST", "http://h/")]),
        ],
    );
    let mut sim = Sim::new(vec![plan("deploy", vec![both])]);
    for path in ["both/one", "both/later/two"] {
        sim.cluster.replies.insert(path.into(), vec![status(400, json!(null))]);
    }
    assert_eq!(sim.finish().message, "step `both/later/two`: the server answered 400");
    assert!(sim.cluster.writes.is_empty());
}
