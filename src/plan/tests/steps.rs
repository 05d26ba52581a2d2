//! Every kind of step, and its modifiers.

use serde_json::json;

use super::build::*;
use super::sim::*;
use crate::package::plan::{OnFailure, Step};
use crate::plan::request::CallFailure;
use crate::plan::*;
use crate::template::Var;

fn member(index: u64) -> Member {
    Member::new("members", Some(json!(index)))
}

#[test]
fn an_apply_step_records_its_members_before_it_writes_them() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![apply("network", &["a", "b"]), apply("members", &["members"])])]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.writes.len(), 5);
    assert_eq!(sim.status().applied.len(), 5);
    // The first step's intent; its result with the second's intent; the end.
    assert_eq!(sim.history.len(), 3);
}

#[test]
fn an_apply_of_nothing_costs_one_write_with_its_neighbours() {
    let mut sim = Sim::new(vec![plan(
        "deploy",
        vec![apply("one", &["members[7]"]), wait("two", "spec.size == 3"), note("three", "done", "true")],
    )]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!((sim.history.len(), sim.cluster.writes.len()), (1, 0));
    assert_eq!(sim.status().record["done"].value, json!(true));
}

#[test]
fn an_apply_step_applies_dependencies_that_no_step_names() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![apply("members", &["members"]), apply("later", &["b"])])]);
    sim.cluster.dependencies.insert("members".into(), vec!["a".into(), "b".into()]);
    sim.settle();
    assert_eq!(sim.cluster.writes[0], Member::new("a", None));
    assert_eq!(sim.cluster.writes.last(), Some(&Member::new("b", None)));
}

#[test]
fn a_member_that_does_not_become_ready_stops_the_run_at_its_step() {
    let steps = vec![apply("one", &["members[0]"]).timeout("5m"), apply("two", &["members[1]"])];
    let mut sim = Sim::new(vec![plan("upgrade", steps)]);
    sim.cluster.stuck.push(member(0));
    let status = sim.finish();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "Timeout"));
    assert_eq!(status.message, "step `one`: timed out after 5m: members[0]: is not ready");
    assert_eq!(status.applied, [member(0)]);
    assert!(status.used_milliseconds >= 300_000);
    assert_eq!(sim.cluster.writes, [member(0)]);
}

#[test]
fn a_delete_step_records_and_waits_until_the_objects_are_gone() {
    let steps = vec![delete("old", &["members"]), apply("new", &["members[0]"])];
    let mut sim = Sim::new(vec![plan("restore", steps)]);
    for index in 0..4 {
        let state = MemberState { exists: true, current: true, ready: true, ..MemberState::default() };
        sim.cluster.members.insert(member(index), state);
    }
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.deleted, [member(0), member(1), member(2), member(3)]);
    assert_eq!(sim.status().deleted, [member(1), member(2), member(3)]);
    assert_eq!(sim.status().applied, [member(0)]);
}

#[test]
fn a_job_runs_once_and_hands_over_its_outputs() {
    let steps = vec![
        job("add").output("id", "message.id").records("member", "outputs.id"),
        http("tell", "POST", "http://h/{{ outputs.add.id }}"),
    ];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.created_jobs.len(), 1);
    assert_eq!(sim.status().step("add").unwrap().outputs["id"], json!(7));
    assert_eq!(sim.status().record["member"], Recorded { value: json!(7), sequence: 1 });
    assert!(sim.status().step("add").unwrap().objects[0].uid.is_some());
    // Its result was recorded before it got a TTL.
    assert!(sim.cluster.jobs.values().all(|job| job.has_ttl));
}

#[test]
fn a_failed_job_is_retried_under_another_name() {
    let mut sim = Sim::new(vec![plan("deploy", vec![job("add").retries(Some(3), 5)])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Failed("exit code 1".into()); 2]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    let state = sim.status().step("add").unwrap();
    assert_eq!((state.attempt, state.failures, state.objects.len()), (3, 2, 3));
    let mut names: Vec<_> = sim.cluster.created_jobs.iter().map(|(_, _, name)| name).collect();
    names.dedup();
    assert_eq!(names.len(), 3);
    assert!(sim.status().used_milliseconds >= 15_000);
}

#[test]
fn a_job_without_retries_fails_its_step_and_the_step_says_why() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![phase("grow", vec![job("add")]), apply("never", &["a"])])]);
    sim.cluster.job_results.insert("grow/add".into(), vec![JobResult::Failed("exit code 1".into())]);
    let status = sim.finish();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "JobFailed"));
    assert!(status.message.starts_with("step `grow/add`: Job x-add-"), "{}", status.message);
    assert!(status.message.ends_with("failed: exit code 1"), "{}", status.message);
    assert_eq!(sim.phase_of("never"), None);
}

#[test]
fn a_recorded_job_that_disappears_is_a_failed_attempt() {
    let mut sim = Sim::new(vec![plan("deploy", vec![job("add")])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Reading]);
    sim.settle();
    assert!(sim.status().step("add").unwrap().objects[0].uid.is_some());
    sim.cluster.jobs.clear();
    assert_eq!(sim.finish().reason, "JobGone");
    assert_eq!(sim.cluster.created_jobs.len(), 1);
}

#[test]
fn missing_outputs_fail_the_step_without_another_job() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![job("add").output("id", "message.id.x").retries(Some(3), 1)])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Completed(Some("done".into()))]);
    assert_eq!(sim.finish().reason, "OutputsMissing");
    assert_eq!(sim.cluster.created_jobs.len(), 1);
}

#[test]
fn a_job_that_takes_too_long_is_deleted_before_the_step_fails() {
    let mut sim = Sim::new(vec![plan("deploy", vec![job("add").timeout("1m").retries(None, 1)])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Reading]);
    assert_eq!(sim.finish().reason, "Timeout");
    assert!(sim.cluster.jobs.is_empty());
}

#[test]
fn http_retries_use_one_key_and_give_up_on_other_answers() {
    let mut sim = Sim::new(vec![plan("deploy", vec![http("book", "POST", "http://h/b").retries(None, 2)])]);
    sim.cluster
        .replies
        .insert("book".into(), vec![cut(), status(503, json!(null)), status(429, json!(null))]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.requests.len(), 4);
    assert!(
        sim.cluster.requests.iter().all(|(_, key, _)| *key == idempotency_key("instance", "root", "book"))
    );

    let mut sim = Sim::new(vec![plan("deploy", vec![http("book", "POST", "http://h/b").retries(None, 2)])]);
    sim.cluster.replies.insert("book".into(), vec![status(400, json!("secret"))]);
    let status = sim.finish();
    assert_eq!(
        (status.reason.as_str(), status.message.as_str()),
        ("UnexpectedAnswer", "step `book`: the server answered 400")
    );
    assert_eq!(sim.cluster.requests.len(), 1);
}

#[test]
fn a_request_that_may_have_been_sent_is_not_sent_in_another_form() {
    let mut sim = Sim::new(vec![plan("deploy", vec![http("book", "POST", "http://h/b").retries(None, 2)])]);
    sim.silent = true;
    assert!(sim.turn());
    sim.turn();
    sim.restart();
    // Unchanged: it is repeated.
    let repeated = sim.decide();
    assert!(matches!(&repeated.effects[..], [Effect::Call { attempt: 1, .. }]), "{repeated:?}");
    sim.cluster.spec = json!({"size": 4});
    sim.silent = false;
    assert_eq!(sim.finish().reason, "RequestChanged");
    assert!(sim.cluster.requests.is_empty());
}

#[test]
fn a_condition_that_clears_ends_the_attempts() {
    let mut sim = Sim::new(vec![plan(
        "deploy",
        vec![http("book", "POST", "http://h/b").when("not refs.booked").retries(None, 2)],
    )]);
    sim.cluster.refs.insert("booked".into(), Var::Json(json!(false)));
    sim.cluster.replies.insert("book".into(), vec![cut()]);
    sim.settle();
    sim.cluster.refs.insert("booked".into(), Var::Json(json!(true)));
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.phase_of("book"), Some(StepPhase::Skipped));
    assert_eq!(sim.cluster.requests.len(), 1);
}

#[test]
fn a_command_is_repeated_after_a_restart_only_if_that_is_safe() {
    for (step, expected) in [
        (exec("run", "a"), "OutcomeUnknown"),
        (exec("run", "a").idempotent(), ""),
        (exec("run", "a").when("spec.size == 3"), ""),
    ] {
        let mut sim = Sim::new(vec![plan("deploy", vec![step])]);
        let state = MemberState { exists: true, ..MemberState::default() };
        sim.cluster.members.insert(Member::new("a", None), state);
        sim.silent = true;
        sim.turn();
        sim.turn();
        sim.restart();
        sim.silent = false;
        assert_eq!(sim.finish().reason, expected);
    }
}

#[test]
fn a_command_is_retried_until_its_timeout() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![exec("run", "a").idempotent().retries(None, 1).timeout("30s")])]);
    let state = MemberState { exists: true, ..MemberState::default() };
    sim.cluster.members.insert(Member::new("a", None), state);
    sim.cluster.replies.insert("run".into(), vec![exit(1, ""); 100]);
    let status = sim.finish();
    assert_eq!(status.reason, "Timeout");
    assert_eq!(
        status.message,
        "step `run`: timed out after 30s; last attempt: the command ended with exit code 1: no"
    );
    assert_eq!(status.step("run").unwrap().failures, 5);
}

#[test]
fn unknown_waits_until_the_timeout() {
    let mut sim = Sim::new(vec![plan("deploy", vec![note("note", "x", "1").when("refs.api.ok")])]);
    sim.cluster.refs.insert("api".into(), Var::Unknown("it is not reached".into()));
    let progress = sim.settle();
    assert_eq!(progress.waiting[0].reason, "Unknown");
    assert_eq!(sim.phase_of("note"), Some(StepPhase::Pending));
    sim.cluster.refs.insert("api".into(), Var::Json(json!({"ok": false})));
    sim.settle();
    assert_eq!(sim.phase_of("note"), Some(StepPhase::Skipped));

    let mut sim = Sim::new(vec![plan("deploy", vec![note("note", "x", "1").when("refs.api.ok")])]);
    sim.cluster.refs.insert("api".into(), Var::Unknown("it is not reached".into()));
    assert_eq!(sim.finish().reason, "Timeout");
}

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
fn a_failed_item_stops_the_loop_or_not() {
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
fn another_plan_runs_after_a_failure_and_then_the_step_has_failed() {
    let steps = vec![http("promote", "POST", "http://h/").on_failure(OnFailure::Plan("comeback".into()))];
    let comeback = plan("comeback", vec![apply("old", &["a"]), note("note", "back", "true")]);
    let mut sim = Sim::new(vec![plan("failover", steps), comeback]);
    sim.cluster.replies.insert("promote".into(), vec![status(400, json!(null))]);
    let status = sim.finish();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "UnexpectedAnswer"));
    assert_eq!(status.record["back"].value, json!(true));
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
fn approvals_are_bound_to_their_question() {
    let yes =
        |by: &str| Approval { step: "sure".into(), verdict: Verdict::Approve, by: by.into(), message: None };
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Delete {{ name }}?", 2)])]);
    sim.run.spec.approvals.push(yes("early"));
    let progress = sim.settle();
    assert!(progress.awaits_approval && !progress.in_flight);
    assert_eq!(progress.waiting[0].message, "Delete x? (0 of 2 approvals)");
    for by in ["eve", "ann", "ann"] {
        sim.run.spec.approvals.push(yes(by));
    }
    assert_eq!(sim.finish().phase, Phase::Running);
    sim.run.spec.approvals.push(yes("bob"));
    assert_eq!(sim.finish().phase, Phase::Succeeded);

    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Delete {{ name }}?", 1)])]);
    sim.settle();
    sim.run.spec.approvals.push(Approval { verdict: Verdict::Reject, ..yes("bob") });
    assert_eq!(sim.finish().message, "step `sure`: bob has rejected: Delete x?");
}

#[test]
fn a_pause_takes_its_time_and_none_while_the_instance_is_paused() {
    let mut sim = Sim::new(vec![plan("deploy", vec![pause("rest", "10s")])]);
    sim.settle();
    sim.paused = true;
    sim.now += std::time::Duration::from_secs(100);
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Running);
    sim.paused = false;
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Running);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
}

#[test]
fn interruption_settles_what_is_in_flight_first() {
    let ending =
        Ending { phase: Phase::Interrupted, reason: "Interrupted", message: "failover goes first".into() };
    let mut sim = Sim::new(vec![plan(
        "deploy",
        vec![http("book", "POST", "http://h/b").retries(None, 2), job("slow"), apply("never", &["a"])],
    )]);
    sim.silent = true;
    sim.turn();
    sim.turn();
    sim.restart();
    sim.directive = Directive::Settle(ending.clone());
    (0..5).for_each(|_| assert!(sim.turn()));
    assert_eq!(sim.status().phase, Phase::Running, "the request is repeated until it is answered");
    sim.silent = false;
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Interrupted);
    assert_eq!((sim.phase_of("book"), sim.phase_of("slow")), (Some(StepPhase::Succeeded), None));
    // It resumes, and is interrupted in its Job.
    sim.directive = Directive::Continue;
    sim.status_mut().phase = Phase::Running;
    sim.cluster.job_results.insert("slow".into(), vec![JobResult::Reading]);
    sim.settle();
    sim.directive = Directive::Settle(ending);
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Interrupted);
    assert!(sim.cluster.jobs.is_empty());
    sim.directive = Directive::Continue;
    sim.status_mut().phase = Phase::Running;
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    let slow = sim.status().step("slow").unwrap();
    assert_eq!((slow.attempt, slow.failures), (2, 0));
}

/// Between its attempts a request without an answer is in flight as well, whatever retries its step has.
#[test]
fn a_request_without_an_answer_is_repeated_until_it_is_settled() {
    let ending = Ending { phase: Phase::Cancelled, reason: "Cancelled", message: "by a person".into() };
    for (step, ended) in [
        (http("book", "POST", "http://h/b").retries(None, 2), Phase::Cancelled),
        (http("book", "POST", "http://h/b").retries(Some(1), 2), Phase::Cancelled),
        (http("book", "POST", "http://h/b"), Phase::Cancelled),
        // Not within its timeout.
        (http("book", "POST", "http://h/b").timeout("8s"), Phase::Failed),
    ] {
        let mut sim = Sim::new(vec![plan("deploy", vec![step, apply("never", &["a"])])]);
        let not_sent = || Err(CallFailure::NotSent("refused".into()));
        let replies = vec![cut(), cut(), not_sent(), status(503, json!(null)), cut()];
        sim.cluster.replies.insert("book".into(), replies);
        while sim.cluster.requests.is_empty() {
            sim.turn();
        }
        sim.directive = Directive::Settle(ending.clone());
        sim.finish();
        assert_eq!(sim.status().phase, ended, "{:?}", sim.status());
        assert_eq!(sim.phase_of("never"), None);
        let keys: std::collections::BTreeSet<_> =
            sim.cluster.requests.iter().map(|(_, key, _)| key).collect();
        assert_eq!(keys.len(), 1);
        if ended == Phase::Cancelled {
            assert_eq!(sim.phase_of("book"), Some(StepPhase::Succeeded));
            assert_eq!(sim.cluster.requests.len(), 6);
        }
    }
}

#[test]
fn a_paused_run_is_not_cancelled_before_its_request_is_settled() {
    let steps = vec![http("book", "POST", "http://h/b").retries(None, 2)];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.cluster.replies.insert("book".into(), vec![cut()]);
    while sim.cluster.requests.is_empty() {
        sim.turn();
    }
    sim.paused = true;
    let message = "by a person".into();
    sim.directive = Directive::Settle(Ending { phase: Phase::Cancelled, reason: "Cancelled", message });
    for _ in 0..5 {
        sim.turn();
    }
    assert_eq!((sim.status().phase, sim.cluster.requests.len()), (Phase::Running, 1));
    sim.paused = false;
    sim.finish();
    assert_eq!((sim.phase_of("book"), sim.cluster.requests.len()), (Some(StepPhase::Succeeded), 2));
}

#[test]
fn a_rollout_ends_with_what_no_step_has_applied() {
    let plans =
        vec![plan("upgrade", vec![apply("network", &["a"])]), plan("resize", vec![apply("network", &["b"])])];
    let mut sim = Sim::rollout(plans);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.status().applied.len(), 5);
    let paths: Vec<_> = sim.status().steps.iter().map(|step| step.path.as_str()).collect();
    assert_eq!(paths, ["upgrade/network", "resize/network", REMAINING]);
}

#[test]
fn a_plan_of_another_instance_is_one_planrun() {
    let call = crate::package::plan::Call {
        plan: "restore".into(),
        of: Some(crate::package::plan::Of { gvk: crate::api::Gvk::new("e/v1", "Etcd"), name: text("other") }),
        params: None,
    };
    let mut sim =
        Sim::new(vec![plan("deploy", vec![step("restore", crate::package::plan::Action::Plan(call))])]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.runs.len(), 1);
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
fn a_secret_output_does_not_stand_in_the_status() {
    let mut made = http("make", "POST", "http://h/").output("token", "body.id");
    made.outputs[0].secret = true;
    let mut sim =
        Sim::new(vec![plan("deploy", vec![made, http("use", "POST", "http://h/{{ outputs.make.token }}")])]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert!(!sim.status().to_json().to_string().contains("b-1"));
    assert_eq!(sim.cluster.requests.len(), 2);
}

#[test]
fn a_failure_that_does_not_count_hides_no_other() {
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

#[test]
fn a_requester_who_is_not_known_cannot_be_told_from_others() {
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Delete?", 1)])]);
    sim.run.spec.requested_by = None;
    assert_eq!(sim.finish().reason, "RequesterUnknown");
}

#[test]
fn a_cancelled_run_deletes_its_job_and_stays_cancelled() {
    let ending =
        Ending { phase: Phase::Cancelled, reason: "Cancelled", message: "the run was cancelled".into() };
    for directive in [Directive::Settle(ending.clone()), Directive::Abandon(ending)] {
        let mut sim = Sim::new(vec![plan("deploy", vec![job("slow"), apply("never", &["a"])])]);
        sim.cluster.job_results.insert("slow".into(), vec![JobResult::Reading]);
        sim.settle();
        assert_eq!(sim.cluster.jobs.len(), 1);
        sim.directive = directive;
        sim.settle();
        assert_eq!((sim.status().phase, sim.cluster.jobs.len()), (Phase::Cancelled, 0));
        assert!(sim.decide().status.is_none() && sim.cluster.writes.is_empty());
    }
}

#[test]
fn a_retried_run_continues_at_its_failed_step() {
    let steps = vec![
        job("add").output("id", "message.id"),
        http("book", "POST", "http://h/{{ outputs.add.id }}"),
        apply("end", &["a"]),
    ];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.cluster.replies.insert("book".into(), vec![status(422, json!(null))]);
    assert_eq!(sim.finish().phase, Phase::Failed);
    let now = "2026-01-01T01:00:00Z".parse().unwrap();
    let retry = retried(&sim.run, now);
    sim.run = PlanRun { name: "x-2".into(), uid: "second".into(), status: Some(retry), ..sim.run.clone() };
    sim.restart();
    sim.cluster.by_key.clear();
    sim.history.clear();
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.created_jobs.len(), 1, "a step that has succeeded does not run again");
    assert_eq!(sim.cluster.requests[0].1, sim.cluster.requests[1].1, "the key is that of the first run");
    assert_eq!(sim.status().step("book").unwrap().attempt, 2);
}

/// What the target is follows from the record, so a step after it sees the target of the next decision.
#[test]
fn an_apply_after_a_fact_waits_until_the_fact_is_stored() {
    let steps = vec![note("beside", "generation", "1"), apply("volume", &["members[0]"])];
    let mut sim = Sim::new(vec![plan("restore", steps)]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert!(sim.history[0].record.contains_key("generation") && sim.history[0].applied.is_empty());
    assert_eq!(sim.cluster.writes, [member(0)]);
}

/// An observation that was made before an effect says nothing about what follows.
#[test]
fn what_follows_an_effect_is_decided_by_observations_made_after_it() {
    let remove = exec("remove", "members[0]").idempotent();
    let steps = vec![remove, note("again", "seen", "true").when("spec.size == 3")];
    for observes in [false, true] {
        let mut sim = Sim::new(vec![plan("resize", steps.clone())]);
        let state = MemberState { exists: true, current: true, ready: true, ..MemberState::default() };
        sim.cluster.members.insert(member(0), state);
        sim.observes = observes;
        assert_eq!(sim.finish().phase, Phase::Succeeded);
        let is_done = |status: &&RunStatus| status.steps[0].phase == StepPhase::Succeeded;
        let first = sim.history.iter().find(is_done).unwrap();
        assert_eq!(
            first.steps.len(),
            if observes { 1 } else { 2 },
            "the next step is in a decision of its own"
        );
    }
}

#[test]
fn a_timeout_says_how_long_and_what_was_last() {
    let saying = |step: Step, words: &str| Step { message: Some(text(words)), ..step };
    // Attempts: their last reason stands beside the words of the step.
    let exec = saying(exec("run", "a").idempotent().retries(None, 1).timeout("1h30m"), "it is added");
    let mut sim = Sim::new(vec![plan("deploy", vec![exec])]);
    sim.cluster.replies.insert("run".into(), vec![exit(1, ""); 100]);
    let progress = sim.settle();
    assert_eq!(progress.waiting[0].message, "it is added");
    assert_eq!(sim.finish().message, "step `run`: timed out after 1h30m: it is added; a does not exist");
    sim = Sim::new(sim.plans);
    sim.cluster
        .members
        .insert(Member::new("a", None), MemberState { exists: true, ..MemberState::default() });
    sim.cluster.replies.insert("run".into(), vec![exit(1, ""); 100]);
    assert_eq!(
        sim.finish().message,
        "step `run`: timed out after 1h30m: it is added; last attempt: the command ended with exit code 1: no"
    );

    // A Job that is deleted because the time is over.
    let mut sim = Sim::new(vec![plan("deploy", vec![job("add").timeout("1m")])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Reading]);
    sim.settle();
    let (name, job) = sim.cluster.jobs.iter_mut().next().unwrap();
    job.message = Some("container a: ErrImagePull".into());
    let expected = format!(
        "step `add`: timed out after 1m; last attempt: Job {name} was not done: container a: ErrImagePull"
    );
    assert_eq!(sim.finish().message, expected);

    // A phase: what its steps wait for.
    let inner = vec![wait("gate", "spec.size == 4"), apply("late", &["members"])];
    let mut sim = Sim::new(vec![plan("deploy", vec![phase("all", inner).timeout("5m")])]);
    assert_eq!(
        sim.finish().message,
        "step `all`: timed out after 5m; step `all/gate`: `spec.size == 4` is not true yet"
    );

    // An unknown value: the words of the step do not say it.
    let wait = saying(wait("quorum", "refs.api.ok").timeout("5m"), "too few members");
    let mut sim = Sim::new(vec![plan("deploy", vec![wait])]);
    sim.cluster.refs.insert("api".into(), Var::Unknown("it is not reached".into()));
    let message = sim.finish().message.clone();
    assert!(message.starts_with("step `quorum`: timed out after 5m: too few members; "), "{message}");
    assert!(message.contains("it is not reached"), "{message}");
}
