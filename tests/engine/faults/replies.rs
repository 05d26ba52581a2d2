//! Requests that fail, and requests whose result is unknown.

use std::time::Duration;

use serde_json::json;

use super::{first, reference, second};
use crate::support::faults::case::{Case, PROCEDURES};
use crate::support::faults::{Answer, Entry, Fault, Rule, Verb, WRITES, story};
use crate::support::plans::{CONTROLLER_REVISION, INSTANCE_STATE};
use crate::support::{CONFIG_MAP, LONG, SECRET, condition, eventually};

/// Fault 7: the result of a write is unknown, so it is read, and nothing is created or deleted twice.
#[tokio::test]
async fn lost_reply_creates_no_second_object() {
    let expected = reference();
    let case = Case::seeded(7).await;
    let process = case.start().await;
    let break_some = || {
        for fault in [Fault::Cut, Fault::Refused] {
            let rule = Rule::on(WRITES, fault).namespace(case.scene.namespace());
            case.wire.rule(rule.chance(0.4).times(6));
        }
    };
    let mark = case.wire.mark();
    break_some();
    case.apply_ready("i-cut", &first()).await;
    case.same("i-cut", &expected.deployed.state).await;
    assert_eq!(case.counts(mark, "i-cut"), expected.deployed.counts);
    let cut = case.wire.since(mark).iter().filter(|e| matches!(e.fault, Some(Fault::Cut))).count();
    assert!(cut > 0, "no reply was lost:\n{}", story(&case.wire.writes(mark)));

    let mark = case.wire.mark();
    break_some();
    case.apply_ready("i-cut", &second()).await;
    case.same("i-cut", &expected.edited.state).await;
    assert_eq!(case.counts(mark, "i-cut"), expected.edited.counts);
    let process = case.stays(process, &["i-cut"]).await;

    let mark = case.wire.mark();
    break_some();
    case.remove("i-cut").await;
    case.same("i-cut", &expected.deleted.state).await;
    assert_eq!(case.counts(mark, "i-cut"), expected.deleted.counts);
    case.finish(process).await;
}

/// Fault 8: after a conflict the object is read and decided about again, not forced, and not in a tight loop.
#[tokio::test]
async fn a_storm_of_conflicts_is_bounded() {
    let expected = reference();
    let (case, process) = Case::started().await;
    let mark = case.wire.mark();
    let conflict = Answer::status(409, "Conflict");
    let rule = Rule::on(WRITES, Fault::Answer(conflict)).namespace(case.scene.namespace()).name("i-stormy*");
    case.wire.rule(rule);
    case.apply("i-stormy", &first()).await;
    case.apply_ready("i-calm", &first()).await;
    // Count until the pauses, each of which is twice as long as the one before, have reached two seconds.
    let stormy = eventually("a pause of two seconds", LONG, async || {
        let mut asked: Vec<Entry> = case.wire.since(mark);
        asked.retain(|e| e.is_asking() && e.call.name.starts_with("i-stormy"));
        let has_paused = asked.windows(2).any(|two| two[1].at - two[0].at >= 2.0);
        if has_paused { Ok(asked) } else { Err(format!("{} requests", asked.len())) }
    })
    .await;
    assert!(stormy.len() < 200, "{} requests:\n{}", stormy.len(), story(&stormy[stormy.len() - 60..]));
    case.remove("i-calm").await;
    case.scene.kubectl(&["delete", "configmap", "i-calm-kept"]).await;
    case.wire.heal();
    case.ready("i-stormy").await;
    case.same("i-stormy", &expected.deployed.state).await;
    case.stays_and_finishes(process, &["i-stormy"]).await;
}

/// Fault 9: `Retry-After` delays one object, and others go on.
#[tokio::test]
async fn retry_after_delays_only_its_object() {
    const WAIT: u32 = 4;
    let (case, process) = Case::started().await;
    let here = case.scene.namespace().to_owned();
    let apply: &[Verb] = &[Verb::Apply];
    let busy = Answer::text(429);
    let down = Answer::status(503, "ServiceUnavailable");
    let limit = |wait: u32, names: [&str; 2]| {
        let secret = Rule::on(apply, Fault::Answer(busy.clone().retry_after(wait))).plural("secrets");
        case.wire.rule(secret.namespace(&here).name(names[0]).times(1));
        let look = Rule::on(&[Verb::Get], Fault::Answer(down.clone().retry_after(wait))).plural("wholes");
        case.wire.rule(look.namespace(&here).name(names[1]).times(1));
    };
    limit(WAIT, ["slow", "slower"]);
    let mark = case.wire.mark();
    case.apply("slow", &first()).await;
    // The end of a dry run of the same signature would wake the other instance.
    case.scene.until("there", CONFIG_MAP, "slow-b", |_| true).await;
    case.apply("slower", &first()).await;
    for name in ["slow", "slower"] {
        case.ready(name).await;
    }
    let log = case.wire.since(mark);
    let times = |verb: Verb, plural: &str, name: &str| -> Vec<f64> {
        let found =
            log.iter().filter(|e| e.call.verb == verb && e.call.plural == plural && e.call.name == name);
        found.map(|e| e.at).collect()
    };
    for at in [times(Verb::Apply, "secrets", "slow"), times(Verb::Get, "wholes", "slower")] {
        assert!(at[1] - at[0] >= f64::from(WAIT), "too early: {at:?}");
    }
    // Children and instances without a delay go on: they are there while the Secret is not.
    limit(300, ["late", "later"]);
    for name in ["late", "later", "quick"] {
        case.apply(name, &first()).await;
    }
    case.ready("quick").await;
    case.scene.until("there", CONFIG_MAP, "late-b", |o| o["data"]["stage"] == "one").await;
    assert!(case.scene.find(SECRET, "late").await.is_none());
    // A restarted manager does not know the delays.
    process.stop().await;
    let process = case.start().await;
    case.stays_and_finishes(process, &["slow", "slower", "late", "later", "quick"]).await;
}

/// Fault 9: a dry run that gets no answer is reported in the status, not only in the log.
#[tokio::test]
async fn failed_dry_run_is_reported_in_the_status() {
    let (case, process) = Case::started().await;
    let here = case.scene.namespace().to_owned();
    let down = Answer::status(503, "ServiceUnavailable").saying("the webhook is away");
    case.wire.rule(Rule::on(&[Verb::DryRun], Fault::Answer(down)).namespace(&here));
    case.apply("mute", &first()).await;
    let told = |o: &serde_json::Value| {
        let condition = condition(o, "Reconciling");
        condition["reason"] == "ApplyRetrying"
            && condition["message"].as_str().is_some_and(|message| message.contains("the webhook is away"))
            && o["status"]["observedGeneration"] == o["metadata"]["generation"]
    };
    case.scene.until("ApplyRetrying", case.kind, "mute", told).await;
    case.wire.heal();
    case.ready("mute").await;
    case.stays_and_finishes(process, &["mute"]).await;
}

/// Fault 10: a permanent error gives a condition and is retried slowly.
#[tokio::test]
async fn too_large_object_gives_a_condition_and_no_loop() {
    let (case, process) = Case::started().await;
    let apply: &[Verb] = &[Verb::Apply];
    let store = Answer::status(500, "InternalError").saying("etcdserver: request is too large");
    let server =
        Answer::status(413, "RequestEntityTooLarge").saying("Request entity too large: limit is 3145728");
    let big = case.wire.rule(Rule::on(apply, Fault::Answer(store)).plural("secrets").name("big"));
    let bigger = case.wire.rule(Rule::on(apply, Fault::Answer(server)).plural("secrets").name("bigger"));
    let mark = case.wire.mark();
    for name in ["big", "bigger", "fits"] {
        case.apply(name, &first()).await;
    }
    case.ready("fits").await;
    for name in ["big", "bigger"] {
        let stalled = case
            .scene
            .until("Stalled", case.kind, name, |o| condition(o, "Stalled")["status"] == "True")
            .await;
        let message = condition(&stalled, "Stalled")["message"].to_string();
        assert!(message.contains("secret") && message.contains("too large"), "{message}");
    }
    for (rule, name) in [(big, "big"), (bigger, "bigger")] {
        let tried = eventually("a second attempt", LONG, async || {
            let mut tried = case.wire.writes(mark);
            tried.retain(|e| e.call.plural == "secrets" && e.call.name == name);
            if tried.len() >= 2 { Ok(tried) } else { Err(story(&tried)) }
        })
        .await;
        assert!(case.wire.struck(rule) > 0, "{name} was not tried");
        let soon = tried.iter().filter(|e| e.at < tried[0].at + 10.0).count();
        assert!((1..=4).contains(&soon), "tried {soon} times within ten seconds:\n{}", story(&tried));
    }
    case.stays_and_finishes(process, &["big", "bigger", "fits"]).await;
}

/// Fault 11: every call has a deadline, whether or not the server has carried it out.
#[tokio::test]
async fn calls_without_an_answer_end_at_their_deadline() {
    let expected = reference();
    let case = Case::seeded(11).await.with_deadline(Duration::from_secs(1));
    let process = case.start().await;
    let here = case.scene.namespace().to_owned();
    let hang = || {
        for fault in [Fault::Never, Fault::Lost] {
            case.wire.rule(Rule::on(WRITES, fault).namespace(&here).chance(0.4).times(2));
        }
        case.wire.rule(Rule::on(&[Verb::Get, Verb::DryRun], Fault::Never).namespace(&here).times(2));
    };
    let mark = case.wire.mark();
    hang();
    case.apply_ready("i-hung", &first()).await;
    case.same("i-hung", &expected.deployed.state).await;
    assert_eq!(case.counts(mark, "i-hung"), expected.deployed.counts);
    hang();
    case.apply_ready("i-hung", &second()).await;
    case.same("i-hung", &expected.edited.state).await;
    let process = case.stays(process, &["i-hung"]).await;
    hang();
    case.remove("i-hung").await;
    case.same("i-hung", &expected.deleted.state).await;
    case.finish(process).await;
}

/// Fault 11: the list at the beginning of a watch has a deadline as well.
#[tokio::test]
async fn list_without_an_answer_is_requested_again() {
    let case = Case::new().await.with_deadline(Duration::from_secs(1));
    let process = case.start().await;
    case.apply_ready("deaf", &first()).await;
    case.quiet().await;
    let hung = case.wire.rule(Rule::on(&[Verb::List], Fault::Never).plural("configmaps").times(2));
    case.wire.fail_watches(Some("configmaps"), 410);
    case.struck("a list that hangs", &[hung]).await;
    case.scene.kubectl(&["delete", "configmap", "deaf-first"]).await;
    case.scene.until("there again", CONFIG_MAP, "deaf-first", |o| o["data"]["stage"] == "one").await;
    assert_eq!(case.wire.struck(hung), 2);

    // Let the list hang from a manager's start on.
    process.stop().await;
    case.wire.heal();
    let hung = case.wire.rule(Rule::on(&[Verb::List], Fault::Never).plural("wholes").times(1));
    let process = case.start().await;
    case.apply_ready("deaf", &json!({"stage": "two"})).await;
    assert_eq!(case.wire.struck(hung), 1);
    case.finish(process).await;
}

/// An instance whose calls all hang delays no other instance.
#[tokio::test]
async fn instance_with_hanging_calls_delays_no_other() {
    // Calls must hang for longer than this test takes.
    let mut case = Case::new().await.with_deadline(Duration::from_secs(3_600));
    let process = case.start().await;
    let here = case.scene.namespace().to_owned();
    let hangs = case.wire.rule(Rule::on(&[Verb::Apply], Fault::Never).namespace(&here).name("hangs*"));
    // More children than a manager may have concurrent calls.
    let members: Vec<String> = (0..100).map(|i| format!("m{i}")).collect();
    // Let the children pass on which the members depend, or which precede them.
    for name in ["hangs", "hangs-first", "hangs-second", "hangs-kept"] {
        let passes = Rule::on(&[Verb::Apply], Fault::Delay(Duration::ZERO)).namespace(&here).name(name);
        case.wire.rule_first(passes);
    }
    case.apply("hangs", &json!({"members": members})).await;
    // As many calls as one instance may have at a time.
    eventually("calls that hang", LONG, async || match case.wire.struck(hangs) {
        few @ 0..8 => Err(format!("{few} hang")),
        _ => Ok(()),
    })
    .await;
    for name in ["a", "b", "c"] {
        case.apply(&format!("free-{name}"), &first()).await;
    }
    for name in ["a", "b", "c"] {
        case.ready(&format!("free-{name}")).await;
    }
    // A new manager finds a working connection.
    process.kill();
    case.wire.heal();
    case = case.with_deadline(Duration::from_secs(30));
    let process = case.start().await;
    case.ready("hangs").await;
    case.stays_and_finishes(process, &["hangs", "free-a", "free-b", "free-c"]).await;
}

/// The patch of a step is retried until its timeout, as an apply is, and not before the time that the server
/// asks for.
#[tokio::test]
async fn failed_patch_of_a_step_is_retried() {
    let case = Case::of(&PROCEDURES, 12).await;
    let process = case.start().await;
    case.apply_ready("i-patch", &json!({})).await;
    let faults = [
        Fault::Answer(Answer::status(429, "TooManyRequests").retry_after(3)),
        Fault::Answer(Answer::status(503, "ServiceUnavailable")),
        Fault::Answer(Answer::status(409, "Conflict")),
        Fault::Refused,
        Fault::Cut,
    ];
    for (index, fault) in faults.into_iter().enumerate() {
        let target = format!("target-{index}");
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": target}});
        case.scene.apply(&map.to_string()).await;
        let mark = case.wire.mark();
        case.wire.rule(Rule::on(&[Verb::Patch], fault).plural("configmaps").name(&target).times(2));
        let params = json!({"target": target});
        case.scene.requested(("Procedure", case.kind), "i-patch", "patch", &params, "Succeeded").await;
        assert_eq!(case.scene.get(CONFIG_MAP, &target).await["data"]["marked"], "i-patch");
        let mut tried = case.wire.writes(mark);
        tried.retain(|entry| entry.call.name == target);
        assert_eq!(tried.len(), 3, "{}", story(&tried));
        if index == 0 {
            assert!(tried.windows(2).all(|two| two[1].at - two[0].at >= 3.0), "{}", story(&tried));
        }
    }
    case.finish(process).await;
}

/// The creation of an object may conflict with another one, such as a quota. The next step does not run
/// without the object.
#[tokio::test]
async fn conflict_about_another_object_does_not_mean_it_exists() {
    let case = Case::of(&PROCEDURES, 13).await;
    let process = case.start().await;
    let mark = case.wire.mark();
    for plural in ["planruns", "instancestates", "controllerrevisions"] {
        let conflict = Fault::Answer(Answer::status(409, "Conflict"));
        let rule = Rule::on(&[Verb::Create], conflict).namespace(case.scene.namespace()).plural(plural);
        case.wire.rule(rule.times(2));
    }
    case.apply_ready("i-quota", &json!({})).await;
    let writes = case.wire.writes(mark);
    for plural in ["planruns", "instancestates", "controllerrevisions"] {
        let tried = writes.iter().filter(|e| e.call.verb == Verb::Create && e.call.plural == plural).count();
        assert_eq!(tried, 3, "{plural}:\n{}", story(&writes));
    }
    assert_eq!(case.scene.list(CONTROLLER_REVISION).await.len(), 1);
    case.finish(process).await;
}

/// Another client, such as a tool for backups, has just written the memory of an instance that ends.
#[tokio::test]
async fn conflicts_about_the_memory_of_an_instance_that_ends_leave_nothing() {
    let case = Case::of(&PROCEDURES, 14).await;
    let process = case.start().await;
    case.apply_ready("i-end", &json!({})).await;
    assert_eq!(case.scene.list(INSTANCE_STATE).await.len(), 1);
    let conflict = || Fault::Answer(Answer::status(409, "Conflict"));
    let rule = |verbs| Rule::on(verbs, conflict()).namespace(case.scene.namespace()).plural("instancestates");
    let rules =
        [case.wire.rule(rule(&[Verb::Patch]).times(3)), case.wire.rule(rule(&[Verb::Delete]).times(1))];
    case.remove("i-end").await;
    eventually("the memory to be gone", LONG, async || {
        let left = case.scene.list(INSTANCE_STATE).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    })
    .await;
    assert_eq!(rules.map(|rule| case.wire.struck(rule)), [3, 1]);
    case.finish(process).await;
}
