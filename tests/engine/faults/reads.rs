//! Watches and lists that miss events, deliver them late, or show an old state.

use std::time::Duration;

use serde_json::{Value, json};

use super::{first, reference, second};
use crate::support::faults::case::Case;
use crate::support::faults::{Answer, Entry, Fault, Life, Rule, Verb, story};
use crate::support::{CONFIG_MAP, JOB, LONG, SECRET, condition, eventually, uid_of};

/// Fault 13: a watch is dropped, expired, or asks for a future resourceVersion: missed changes, including
/// deletions, are found.
#[tokio::test]
async fn changes_missed_by_a_dropped_watch_are_found() {
    let expected = reference();
    let (case, process) = Case::started().await;
    case.apply_ready("i-deaf", &first()).await;
    for (n, code) in [Some(410), None, Some(504), Some(500)].into_iter().enumerate() {
        case.wire.freeze("configmaps");
        let name = ["i-deaf-first", "i-deaf-a", "i-deaf-b", "i-deaf-second"][n];
        let before = case.scene.get(CONFIG_MAP, name).await;
        case.scene.kubectl(&["delete", "configmap", name]).await;
        // End the watch before it can report the changes.
        match code {
            Some(code) => {
                case.wire.fail_watches(Some("configmaps"), code);
                if code != 410 {
                    case.wire.end_watches(Some("configmaps"));
                }
            }
            None => case.wire.end_watches(Some("configmaps")),
        }
        case.scene.until("made anew", CONFIG_MAP, name, |o| uid_of(o) != uid_of(&before)).await;
        case.wire.thaw();
    }
    case.same("i-deaf", &expected.deployed.state).await;
    // Do the same to the watch of the instances.
    case.wire.freeze("wholes");
    case.apply("i-deaf", &second()).await;
    case.wire.fail_watches(Some("wholes"), 410);
    case.ready("i-deaf").await;
    case.same("i-deaf", &expected.edited.state).await;
    case.stays_and_finishes(process, &["i-deaf"]).await;
}

/// Fault 13: a server may refuse to begin a watch at an old resourceVersion; the manager then lists again.
#[tokio::test]
async fn watch_refused_at_an_old_version_lists_again() {
    let (case, process) = Case::started().await;
    case.apply_ready("old", &first()).await;
    let expired = Answer::status(410, "Expired").saying("too old resource version: 1 (2)");
    let refused =
        case.wire.rule(Rule::on(&[Verb::Watch], Fault::Answer(expired)).plural("configmaps").times(1));
    let mark = case.wire.mark();
    case.wire.end_watches(Some("configmaps"));
    eventually("a list", LONG, async || {
        let lists = |e: &&Entry| e.call.verb.lists() && e.call.plural == "configmaps";
        match case.wire.since(mark).iter().find(lists) {
            Some(_) if case.wire.struck(refused) == 1 => Ok(()),
            _ => Err(story(&case.wire.since(mark))),
        }
    })
    .await;
    case.stays_and_finishes(process, &["old"]).await;
}

/// Fault 13: a list is a stream of the newest state; when the server closes it, the watch continues where it
/// was.
#[tokio::test]
async fn streaming_lists_continue_as_watches() {
    let (case, process) = Case::started().await;
    case.apply("flows", &first()).await;
    // The first process may find the kinds too recently registered.
    let process = case.stays(process, &["flows"]).await;
    process.stop().await;
    let mark = case.wire.mark();
    let process = case.start().await;
    case.decided(&["flows"]).await;
    case.quiet().await;
    let log = case.wire.since(mark);
    let mut paged = log.clone();
    // The registrar of CRDs lists them once in addition to its watch.
    paged.retain(|e| e.call.verb == Verb::List && !e.call.plural.ends_with("definitions"));
    assert!(paged.is_empty(), "{}", story(&paged));
    for plural in ["configmaps", "secrets", "services", "jobs", "wholes", "customresourcedefinitions"] {
        let streams: Vec<&Entry> =
            log.iter().filter(|e| e.call.verb == Verb::Stream && e.call.plural == plural).collect();
        assert_eq!(streams.len(), 1, "{plural}: {}", story(&log));
        let uri = &streams[0].call.uri;
        assert!(uri.ends_with("&resourceVersionMatch=NotOlderThan&resourceVersion="), "{uri}");
    }
    let mark = case.wire.mark();
    case.wire.end_watches(None);
    case.scene.kubectl(&["delete", "configmap", "flows-a"]).await;
    case.scene.until("there again", CONFIG_MAP, "flows-a", |o| o["data"]["stage"] == "one").await;
    case.quiet().await;
    let log = case.wire.since(mark);
    let again: Vec<Entry> = log.iter().filter(|e| e.call.verb.lists()).cloned().collect();
    assert!(again.is_empty(), "{}", story(&again));
    let on = log.iter().filter(|e| e.call.verb == Verb::Watch && e.call.plural == "configmaps").count();
    assert_eq!(on, 1, "{}", story(&log));
    case.stays_and_finishes(process, &["flows"]).await;
}

/// Fault 13: the objects that arrived before a streaming list was interrupted do not count as all objects.
#[tokio::test]
async fn interrupted_streaming_list_does_not_count_as_complete() {
    let expected = reference();
    let case = Case::new().await.with_deadline(Duration::from_secs(1));
    let mut process = case.start().await;
    case.apply_ready("i-torn", &first()).await;
    for (fault, deleted) in [(Fault::Cut, "i-torn-b"), (Fault::Lost, "i-torn-second")] {
        case.quiet().await;
        let mark = case.wire.mark();
        let torn = case.wire.rule(Rule::on(&[Verb::List], fault.clone()).plural("configmaps").times(1));
        case.wire.freeze("configmaps");
        case.scene.kubectl(&["delete", "configmap", deleted]).await;
        case.wire.fail_watches(Some("configmaps"), 410);
        case.scene.until("there again", CONFIG_MAP, deleted, |o| o["data"]["stage"] == "one").await;
        case.quiet().await;
        assert_eq!(case.wire.struck(torn), 1);
        let only = [(format!("configmaps {}", deleted.replace("i-torn", "<name>")), (1, 0))];
        assert_eq!(case.counts(mark, "i-torn"), only.into(), "{}", story(&case.wire.writes(mark)));
        // Interrupt the lists of a manager from its start on.
        process.stop().await;
        case.wire.heal();
        let mark = case.wire.mark();
        let torn = ["configmaps", "wholes"]
            .map(|plural| case.wire.rule(Rule::on(&[Verb::List], fault.clone()).plural(plural).times(1)));
        process = case.start().await;
        case.decided(&["i-torn"]).await;
        case.quiet().await;
        assert_eq!(torn.map(|rule| case.wire.struck(rule)), [1, 1]);
        let mut writes = case.wire.writes(mark);
        // The instance may report that a kind is not known yet.
        writes.retain(|e| e.call.plural != "wholes");
        assert!(writes.is_empty(), "all was right, and yet it wrote:\n{}", story(&writes));
    }
    case.same("i-torn", &expected.deployed.state).await;
    case.stays_and_finishes(process, &["i-torn"]).await;
}

/// Fault 13: a server without streaming lists, or with the feature disabled.
#[tokio::test]
async fn lists_are_paged_if_the_server_has_no_streams() {
    let expected = reference();
    let case = Case::new().await;
    let words = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is \
                 forbidden for watch unless the WatchList feature gate is enabled";
    let refusal = Fault::Answer(Answer::status(422, "Invalid").saying(words));
    let refused = case.wire.rule(Rule::on(&[Verb::Stream], refusal));
    let process = case.start().await;
    case.apply_ready("i-paged", &first()).await;
    case.quiet().await;
    let asked = case.wire.struck(refused);
    assert!((1..=6).contains(&asked), "{}", story(&case.wire.since(0)));
    let mark = case.wire.mark();
    case.wire.freeze("configmaps");
    case.scene.kubectl(&["delete", "configmap", "i-paged-a"]).await;
    case.wire.fail_watches(Some("configmaps"), 410);
    case.scene.until("there again", CONFIG_MAP, "i-paged-a", |o| o["data"]["stage"] == "one").await;
    let log = case.wire.since(mark);
    assert_eq!(case.wire.struck(refused), asked, "it is remembered:\n{}", story(&log));
    assert!(log.iter().any(|e| e.call.verb == Verb::List && e.call.plural == "configmaps"));
    case.same("i-paged", &expected.deployed.state).await;
    case.stays_and_finishes(process, &["i-paged"]).await;
}

/// Fault 14: the manager knows its own writes from their replies, and after a restart from the server, before
/// it creates anything.
#[tokio::test]
async fn own_writes_not_seen_by_watches_are_not_repeated() {
    let expected = reference();
    let (case, process) = Case::started().await;
    // The first lists, which are empty, are those that stale reads return.
    case.quiet().await;
    for plural in ["configmaps", "secrets", "services"] {
        case.wire.freeze(plural);
    }
    let mark = case.wire.mark();
    case.apply_ready("i-blind", &first()).await;
    assert_eq!(case.counts(mark, "i-blind"), expected.deployed.counts);
    assert_eq!(case.wire.writes(mark).iter().filter(|e| e.code == Some(409)).count(), 0);
    case.quiet().await;
    // A new process gets lists from before the first write: nothing is created or deleted.
    process.kill();
    case.wire.heal();
    let mark = case.wire.mark();
    let stale = case.wire.rule(Rule::on(&[Verb::List], Fault::Stale).plural("configmaps"));
    let process = case.start().await;
    case.struck("a stale list", &[stale]).await;
    case.decided(&["i-blind"]).await;
    case.quiet().await;
    assert!(case.counts(mark, "i-blind").is_empty(), "{}", story(&case.wire.writes(mark)));
    case.same("i-blind", &expected.deployed.state).await;
    case.stays_and_finishes(process, &["i-blind"]).await;
}

/// Fault 15: the spec is changed and changed back before the manager's watch shows it.
#[tokio::test]
async fn an_unobserved_intermediate_state_has_no_effect() {
    let expected = reference();
    let (case, process) = Case::started().await;
    case.apply_ready("i-back", &first()).await;
    case.quiet().await;
    let mark = case.wire.mark();
    case.wire.freeze("wholes");
    case.apply("i-back", &second()).await;
    case.apply("i-back", &json!({"stage": "three", "members": []})).await;
    case.apply("i-back", &json!({"stage": "one", "members": ["a", "b"], "keep": true, "port": 80})).await;
    case.wire.fail_watches(Some("wholes"), 410);
    case.ready("i-back").await;
    case.quiet().await;
    let touched = case.counts(mark, "i-back");
    assert!(touched.is_empty(), "{touched:?}");
    let mut found = case.state("i-back").await;
    // Here the spec sets values that otherwise are defaults.
    let instance = found.keys().find(|k| k.ends_with("<name>") && k.starts_with("wholes")).unwrap().clone();
    let mut calm = expected.deployed.state.clone();
    found.remove(&instance);
    calm.remove(&instance);
    assert_eq!(crate::support::oracles::differences(&calm, &found), "");
    case.stays_and_finishes(process, &["i-back"]).await;
}

/// Fault 16: lists older than the manager's state change nothing.
#[tokio::test]
async fn stale_lists_have_no_effect() {
    let expected = reference();
    let (case, process) = Case::started().await;
    case.apply_ready("i-lag", &first()).await;
    case.quiet().await;
    // Let the wire keep lists that show the first state.
    let lists: &[Verb] = &[Verb::List];
    for plural in ["configmaps", "secrets", "wholes"] {
        case.wire.forget_answers(plural);
        case.wire.fail_watches(Some(plural), 410);
    }
    case.quiet().await;
    case.apply_ready("i-lag", &second()).await;
    case.quiet().await;
    let mark = case.wire.mark();
    let stale: Vec<usize> = ["configmaps", "secrets", "wholes"]
        .map(|plural| case.wire.rule(Rule::on(lists, Fault::Stale).plural(plural)))
        .to_vec();
    for plural in ["configmaps", "secrets", "wholes"] {
        case.wire.fail_watches(Some(plural), 410);
    }
    case.struck("stale lists", &stale).await;
    case.quiet().await;
    let touched = case.counts(mark, "i-lag");
    assert!(touched.is_empty(), "{touched:?}\n{}", story(&case.wire.writes(mark)));
    let mut writes = case.wire.writes(mark);
    writes.retain(|e| e.call.plural != "wholes" && e.code == Some(200));
    assert!(writes.is_empty(), "{}", story(&writes));
    case.same("i-lag", &expected.edited.state).await;
    case.stays_and_finishes(process, &["i-lag"]).await;
}

/// Fault 16, of CRDs: a list from before the CRD of the package was created, after which the watch shows it again.
#[tokio::test]
async fn crd_that_a_stale_list_lacks_is_served_on() {
    let expected = reference();
    let (case, process) = Case::started().await;
    case.apply_ready("i-kind", &first()).await;
    case.quiet().await;
    let mark = case.wire.mark();
    for _ in 0..3 {
        let crds = "customresourcedefinitions";
        let stale = case.wire.rule(Rule::on(&[Verb::List], Fault::Stale).plural(crds).times(1));
        case.wire.fail_watches(Some(crds), 410);
        case.struck("a stale list", &[stale]).await;
        case.quiet().await;
    }
    let touched = case.counts(mark, "i-kind");
    assert!(touched.is_empty(), "{touched:?}\n{}", story(&case.wire.writes(mark)));
    case.apply_ready("i-kind", &second()).await;
    case.same("i-kind", &expected.edited.state).await;
    case.finish(process).await;
}

/// The answer to discovery while the server of the group `batch` does not respond, or when the group does not
/// exist.
async fn without_batch(case: &Case, is_known: bool) -> String {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let request = http::Request::get("/apis").header("accept", accept).body(Vec::new()).unwrap();
    let mut groups: Value = case.scene.client().request(request).await.unwrap();
    let all = groups["items"].as_array_mut().unwrap();
    let batch = all.iter().position(|group| group["metadata"]["name"] == "batch").unwrap();
    if is_known {
        for version in all[batch]["versions"].as_array_mut().unwrap() {
            version["freshness"] = json!("Stale");
            version["resources"] = json!([]);
        }
    } else {
        all.remove(batch);
    }
    groups.to_string()
}

/// Fault 17: a kind that cannot be discovered is unknown, not removed.
#[tokio::test]
async fn objects_of_undiscovered_kinds_are_not_pruned() {
    let (case, process) = Case::started().await;
    case.apply_ready("part", &json!({"stage": "one", "job": true})).await;
    case.quiet().await;
    let job = case.scene.get(JOB, "part").await;
    process.stop().await;
    for code in [503, 404] {
        let groups = without_batch(&case, code == 503).await;
        let down = Answer::text(200).saying(&groups);
        let asked = case.wire.rule(Rule::on(&[Verb::Discover], Fault::Answer(down)).group("*"));
        let mark = case.wire.mark();
        let process = case.start().await;
        // Other children are maintained, and the Job is not deleted although nothing is known of it.
        let stage = format!("after {code}");
        case.apply("part", &json!({"stage": stage, "job": code == 503})).await;
        case.scene.until("changed", CONFIG_MAP, "part-b", |o| o["data"]["stage"] == *stage).await;
        assert!(case.wire.struck(asked) > 0);
        case.quiet_but(&[Verb::Discover]).await;
        let deleted = case.wire.writes(mark).into_iter().filter(|e| e.call.verb == Verb::Delete).count();
        assert_eq!(deleted, 0, "{}", story(&case.wire.writes(mark)));
        assert_eq!(uid_of(&case.scene.get(JOB, "part").await), uid_of(&job));
        if code == 503 {
            let instance = case.scene.get(case.kind, "part").await;
            let ready = condition(&instance, "Ready");
            assert!(ready["status"] != "True" && ready["message"].to_string().contains("Job"), "{ready:#}");
        }
        case.wire.heal();
        if code == 503 {
            case.ready("part").await;
        } else {
            // The Job is known again, and not desired.
            case.scene.gone(JOB, "part").await;
        }
        process.stop().await;
    }
    let process = case.start().await;
    let process = case.stays(process, &["part"]).await;
    case.remove("part").await;
    case.scene.gone(SECRET, "part").await;
    case.finish(process).await;
}

/// A kind that the package no longer uses is removed from the record and from the index during a reconcile.
#[tokio::test]
async fn a_kind_removed_from_the_record_blocks_no_instance() {
    // A call may be held for longer than the manager's own deadline.
    let case = Case::new().await.with_deadline(Duration::from_secs(3_600));
    case.start().await.stop().await;
    let job = "        - id: job\n          template: templates/job.yaml\n          when: spec.job\n";
    let process = case
        .start_with(case.changed(|text| {
            assert!(!text.contains("id: job") || text.contains(job));
            text.replace(job, "")
        }))
        .await;
    // The manager takes some seconds to find that no object of the kind is left; this apply ends later.
    let gate = Life::new();
    let late = Rule::on(&[Verb::Apply], Fault::Held(gate.clone())).plural("configmaps");
    case.wire.rule(late.namespace(case.scene.namespace()).name("i-late-first").times(1));
    case.apply("i-late", &first()).await;
    let crd = case.resource();
    eventually("jobs to leave the record", LONG, async || {
        let record = r"jsonpath={.metadata.annotations.operetta\.dev/child-kinds}";
        let record = case.scene.kubectl(&["get", "crd", &crd, "-o", record]).await;
        if record.contains("Job") { Err(record) } else { Ok(()) }
    })
    .await;
    gate.end();
    case.ready("i-late").await;
    case.finish(process).await;
}
