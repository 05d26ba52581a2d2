//! Requests that fail, and those of which nobody knows.

use std::time::Duration;

use serde_json::json;

use crate::faults::case::Case;
use crate::faults::{Answer, Entry, Fault, Rule, Verb, WRITES, story};
use crate::support::eventually;
use crate::support::ext::{CONFIG_MAP, LONG, condition};
use crate::{first, reference, second};

/// 7: what was written is not known; it is looked at, and nothing is made or taken twice.
pub(crate) async fn a_lost_reply_is_no_second_object() {
    let expected = reference().await;
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
    case.apply("i-cut", &first()).await;
    case.ready("i-cut").await;
    case.same("i-cut", &expected.deployed.state).await;
    assert_eq!(case.counts(mark, "i-cut"), expected.deployed.counts);
    let cut = case.wire.since(mark).iter().filter(|e| matches!(e.fault, Some(Fault::Cut))).count();
    assert!(cut > 0, "no reply was lost:\n{}", story(&case.wire.writes(mark)));

    let mark = case.wire.mark();
    break_some();
    case.apply("i-cut", &second()).await;
    case.ready("i-cut").await;
    case.same("i-cut", &expected.edited.state).await;
    assert_eq!(case.counts(mark, "i-cut"), expected.edited.counts);
    let process = case.stays(process, &["i-cut"]).await;

    let mark = case.wire.mark();
    break_some();
    case.delete("i-cut").await;
    case.gone("i-cut").await;
    case.same("i-cut", &expected.deleted.state).await;
    assert_eq!(case.counts(mark, "i-cut"), expected.deleted.counts);
    case.finish(process).await;
}

/// 8: read again and decided anew, not forced, and not at full speed.
pub(crate) async fn a_storm_of_conflicts_is_bounded() {
    let expected = reference().await;
    let case = Case::new().await;
    let process = case.start().await;
    let mark = case.wire.mark();
    let conflict = Answer::status(409, "Conflict");
    let rule = Rule::on(WRITES, Fault::Answer(conflict)).namespace(case.scene.namespace()).name("i-stormy*");
    case.wire.rule(rule);
    case.apply("i-stormy", &first()).await;
    case.apply("i-calm", &first()).await;
    case.ready("i-calm").await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let asked: Vec<Entry> = case.wire.since(mark);
    let stormy = asked.iter().filter(|e| e.is_asking() && e.call.name.starts_with("i-stormy")).count();
    assert!(stormy < 200, "{stormy} requests:\n{}", story(&asked[asked.len() - 60..]));
    case.delete("i-calm").await;
    case.gone("i-calm").await;
    case.scene.kubectl(&["delete", "configmap", "i-calm-kept"]).await;
    case.wire.heal();
    case.ready("i-stormy").await;
    case.same("i-stormy", &expected.deployed.state).await;
    let process = case.stays(process, &["i-stormy"]).await;
    case.finish(process).await;
}

/// 9: for that key; the others go on.
pub(crate) async fn retry_after_is_honoured_and_the_others_go_on() {
    const WAIT: u32 = 4;
    let case = Case::new().await;
    let process = case.start().await;
    let here = case.scene.namespace().to_owned();
    let apply: &[Verb] = &[Verb::Apply];
    let busy = Fault::Answer(Answer::text(429).retry_after(WAIT));
    case.wire.rule(Rule::on(apply, busy).plural("secrets").namespace(&here).name("slow").times(1));
    let down = Fault::Answer(Answer::status(503, "ServiceUnavailable").retry_after(WAIT));
    case.wire.rule(Rule::on(&[Verb::Get], down).plural("wholes").namespace(&here).name("slower").times(1));
    let mark = case.wire.mark();
    for name in ["slow", "slower", "quick"] {
        case.apply(name, &first()).await;
    }
    for name in ["slow", "slower", "quick"] {
        case.ready(name).await;
    }
    let log = case.wire.since(mark);
    let times = |verb: Verb, plural: &str, name: &str| -> Vec<f64> {
        let found =
            log.iter().filter(|e| e.call.verb == verb && e.call.plural == plural && e.call.name == name);
        found.map(|e| e.at).collect()
    };
    let secret = times(Verb::Apply, "secrets", "slow");
    assert!(secret[1] - secret[0] >= f64::from(WAIT), "too early: {secret:?}");
    let looked = times(Verb::Get, "wholes", "slower");
    assert!(looked[1] - looked[0] >= f64::from(WAIT), "too early: {looked:?}");
    // What does not concern the one that waits goes on: the rest of `slow` too.
    let quick = times(Verb::Patch, "wholes", "quick");
    assert!(*quick.last().unwrap() < looked[1], "it waits for others: {quick:?}");
    let rest = times(Verb::Apply, "configmaps", "slow-b");
    assert!(rest[0] < secret[1], "its other children wait: {rest:?}");
    let process = case.stays(process, &["slow", "slower", "quick"]).await;
    case.finish(process).await;
}

/// 10: permanent, with a condition; tried again slowly.
pub(crate) async fn what_is_too_large_is_a_condition_and_no_loop() {
    let case = Case::new().await;
    let process = case.start().await;
    let apply: &[Verb] = &[Verb::Apply];
    let store = Answer::status(500, "InternalError").saying("etcdserver: request is too large");
    let server =
        Answer::status(413, "RequestEntityTooLarge").saying("Request entity too large: limit is 3145728");
    let big = case.wire.rule(Rule::on(apply, Fault::Answer(store)).plural("secrets").name("big"));
    let bigger = case.wire.rule(Rule::on(apply, Fault::Answer(server)).plural("secrets").name("bigger"));
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
    tokio::time::sleep(Duration::from_secs(5)).await;
    for rule in [big, bigger] {
        let tried = case.wire.struck(rule);
        assert!((1..=4).contains(&tried), "tried {tried} times within seconds");
    }
    let process = case.stays(process, &["big", "bigger", "fits"]).await;
    case.finish(process).await;
}

/// 11: every call has a deadline, whether the server has done what was asked or not.
pub(crate) async fn a_server_that_never_answers_is_given_up() {
    let expected = reference().await;
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
    case.apply("i-hung", &first()).await;
    case.ready("i-hung").await;
    case.same("i-hung", &expected.deployed.state).await;
    assert_eq!(case.counts(mark, "i-hung"), expected.deployed.counts);
    hang();
    case.apply("i-hung", &second()).await;
    case.ready("i-hung").await;
    case.same("i-hung", &expected.edited.state).await;
    let process = case.stays(process, &["i-hung"]).await;
    hang();
    case.delete("i-hung").await;
    case.gone("i-hung").await;
    case.same("i-hung", &expected.deleted.state).await;
    case.finish(process).await;
}

/// 11: so has a list that a watch begins with.
pub(crate) async fn a_list_that_never_comes_is_asked_for_again() {
    let case = Case::new().await.with_deadline(Duration::from_secs(1));
    let process = case.start().await;
    case.apply("deaf", &first()).await;
    case.ready("deaf").await;
    case.quiet().await;
    let hung = case.wire.rule(Rule::on(&[Verb::List], Fault::Never).plural("configmaps").times(2));
    case.wire.fail_watches(Some("configmaps"), 410);
    eventually("a list that hangs", LONG, async || {
        if case.wire.struck(hung) > 0 { Ok(()) } else { Err("none was asked for") }
    })
    .await;
    case.scene.kubectl(&["delete", "configmap", "deaf-first"]).await;
    case.scene.until("there again", CONFIG_MAP, "deaf-first", |o| o["data"]["stage"] == "one").await;
    assert_eq!(case.wire.struck(hung), 2);

    // From the start on.
    process.stop().await;
    case.wire.heal();
    let hung = case.wire.rule(Rule::on(&[Verb::List], Fault::Never).plural("wholes").times(1));
    let process = case.start().await;
    case.apply("deaf", &json!({"stage": "two"})).await;
    case.ready("deaf").await;
    assert_eq!(case.wire.struck(hung), 1);
    case.finish(process).await;
}

/// 8th oracle: an instance whose calls all hang takes no other's.
pub(crate) async fn one_that_hangs_holds_up_no_other() {
    let case = Case::new().await.with_deadline(Duration::from_secs(5));
    let process = case.start().await;
    let here = case.scene.namespace().to_owned();
    let hangs = case.wire.rule(Rule::on(&[Verb::Apply], Fault::Never).namespace(&here).name("hangs*"));
    // More children than a manager has calls at once.
    let members: Vec<String> = (0..100).map(|i| format!("m{i}")).collect();
    // Past the first two, which its members wait for.
    for name in ["hangs-first", "hangs-second"] {
        let passes = Rule::on(&[Verb::Apply], Fault::Delay(Duration::ZERO)).namespace(&here).name(name);
        case.wire.rule_first(passes);
    }
    case.apply("hangs", &json!({"members": members})).await;
    eventually("calls that hang", LONG, async || match case.wire.struck(hangs) {
        few @ 0..10 => Err(format!("{few} hang")),
        _ => Ok(()),
    })
    .await;
    let before = case.wire.mark();
    for name in ["a", "b", "c"] {
        case.apply(&format!("free-{name}"), &first()).await;
    }
    for name in ["a", "b", "c"] {
        case.ready(&format!("free-{name}")).await;
    }
    // Had they waited for a call that hangs, each of their steps would have taken a deadline.
    let log = case.wire.since(before);
    let free: Vec<f64> = log.iter().filter(|e| e.call.name.starts_with("free-")).map(|e| e.at).collect();
    let longest = free.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max);
    assert!(longest < 3.0, "the others waited {longest:.1} s:\n{}", story(&log));
    case.wire.heal();
    case.ready("hangs").await;
    case.finish(process).await;
}
