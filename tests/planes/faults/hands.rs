//! What other people and controllers do to children, instances and namespaces.

use std::time::Duration;

use serde_json::{Value, json};

use super::{first, reference, second};
use crate::support::ext::{CONFIG_MAP, EVENT, JOB, LONG, POD, SECRET, SERVICE, condition, name_of, uid_of};
use crate::support::faults::case::{Case, Subject};
use crate::support::faults::{Answer, Fault};
use crate::support::faults::{Entry, Rule, Verb, story};
use crate::support::{eventually, kubectl};

/// Waits for a condition of an instance whose message holds all these words.
async fn says(case: &Case, name: &str, kind: &str, words: &[&str]) -> Value {
    eventually(&format!("{name}: {kind} with {words:?}"), LONG, async || {
        let object = case.scene.find(case.kind, name).await.unwrap_or_default();
        let found = condition(&object, kind).clone();
        let text = found.to_string();
        if words.iter().all(|word| text.contains(word)) {
            Ok(found)
        } else {
            Err(format!("{:#}", object["status"]))
        }
    })
    .await
}

/// 24
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_by_hand_it_comes_back_and_a_job_runs_once() {
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("hand", &json!({"job": true})).await;
    case.ready("hand").await;
    let job =
        case.scene.until("finished", JOB, "hand", |o| condition(o, "Complete")["status"] == "True").await;
    for (kind, name) in
        [(CONFIG_MAP, "hand-first"), (SECRET, "hand"), (SERVICE, "hand"), (CONFIG_MAP, "hand-a")]
    {
        let before = case.scene.get(kind, name).await;
        case.scene.kubectl(&["delete", kind.plural, name]).await;
        case.scene.until("made anew", kind, name, |o| uid_of(o) != uid_of(&before)).await;
    }
    let process = case.stays(process, &["hand"]).await;
    let after = case.scene.get(JOB, "hand").await;
    assert_eq!((uid_of(&after), &after["status"]["succeeded"]), (uid_of(&job), &json!(1)), "it ran again");
    case.finish(process).await;
}

/// 25
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edited_by_hand_it_is_restored() {
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("hand", &first()).await;
    case.ready("hand").await;
    let edit =
        json!({"data": {"stage": "mine", "more": "theirs"}, "metadata": {"labels": {"theirs": "too"}}});
    case.scene.patch(CONFIG_MAP, "hand-first", "merge", &edit).await;
    let restored =
        case.scene.until("restored", CONFIG_MAP, "hand-first", |o| o["data"]["stage"] == "one").await;
    assert_eq!(restored["data"]["more"], "theirs");
    assert_eq!(restored["metadata"]["labels"]["theirs"], "too");
    case.scene.patch(SECRET, "hand", "merge", &json!({"data": null})).await;
    case.scene.until("restored", SECRET, "hand", |o| o["data"]["token"].is_string()).await;
    let port = json!([{"op": "replace", "path": "/spec/ports/0/port", "value": 81}]);
    case.scene.patch(SERVICE, "hand", "json", &port).await;
    let ports = |o: &Value| o["spec"]["ports"].as_array().is_some_and(|p| p.len() == 1 && p[0]["port"] == 80);
    case.scene.until("restored", SERVICE, "hand", ports).await;
    let process = case.stays(process, &["hand"]).await;
    case.finish(process).await;
}

/// 26: named with the finalizer that holds it; the others are as well as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stuck_terminating_is_named() {
    let case = Case::new().await;
    let process = case.start().await;
    for name in ["stuck", "free"] {
        case.apply(name, &first()).await;
        case.ready(name).await;
    }
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    case.scene.patch(CONFIG_MAP, "stuck-first", "merge", &hold).await;
    case.scene.kubectl(&["delete", "configmap", "stuck-first", "--wait=false"]).await;
    says(&case, "stuck", "Ready", &["False", "stuck-first", "example.org/hold"]).await;
    case.apply("free", &second()).await;
    case.ready("free").await;
    case.quiet().await;
    // The same when the instance goes.
    case.delete("stuck").await;
    says(&case, "stuck", "Ready", &["False", "stuck-first", "example.org/hold"]).await;
    case.quiet().await;
    let free = json!({"metadata": {"finalizers": null}});
    case.scene.patch(CONFIG_MAP, "stuck-first", "merge", &free).await;
    case.gone("stuck").await;
    let process = case.stays(process, &["free"]).await;
    case.finish(process).await;
}

/// 27: nothing is created, finalizers go, and nobody storms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminating_namespace_is_left_to_end() {
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("end", &first()).await;
    case.ready("end").await;
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    case.scene.patch(CONFIG_MAP, "end-second", "merge", &hold).await;
    // One that is held, so that its children go while it stays.
    case.apply("held", &first()).await;
    case.ready("held").await;
    case.scene.patch(CONFIG_MAP, "held-first", "merge", &hold).await;
    let mark = case.wire.mark();
    let namespace = case.scene.namespace().to_owned();
    kubectl(&["delete", "namespace", &namespace, "--wait=false"]).await.ok();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let asked: Vec<Entry> = case.wire.since(mark).into_iter().filter(Entry::is_asking).collect();
    assert!(asked.len() < 120, "{} requests:\n{}", asked.len(), story(&asked[asked.len() - 60..]));
    let free = json!({"metadata": {"finalizers": null}});
    case.scene.patch(CONFIG_MAP, "end-second", "merge", &free).await;
    case.scene.patch(CONFIG_MAP, "held-first", "merge", &free).await;
    eventually("the namespace to be gone", LONG, async || {
        let found = kubectl(&["get", "namespace", &namespace, "-o", "yaml"]).await;
        if found.stderr.contains("NotFound") { Ok(()) } else { Err(found.stdout) }
    })
    .await;
    let created = case.counts(mark, "end").values().map(|(created, _)| created).sum::<usize>();
    assert_eq!(created, 0, "{}", story(&case.wire.writes(mark)));
    process.stop().await;
}

/// 28: field and manager are named, and the rest goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_of_another_manager_is_named() {
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("share", &json!({"shared": true})).await;
    case.ready("share").await;
    case.quiet().await;
    let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "share-shared"},
        "data": {"stage": "theirs"}});
    let args = ["apply", "--server-side", "--force-conflicts", "--field-manager=other-team", "-f", "-"];
    case.scene.kubectl_input(&args, &theirs.to_string()).await.unwrap();
    says(&case, "share", "Stalled", &["True", "ApplyConflict", "shared", "data.stage", "other-team"]).await;
    // The rest follows its spec.
    case.apply("share", &json!({"shared": true, "stage": "two"})).await;
    case.scene.until("changed", CONFIG_MAP, "share-b", |o| o["data"]["stage"] == "two").await;
    assert_eq!(case.scene.get(CONFIG_MAP, "share-shared").await["data"]["stage"], "theirs");
    let mark = case.wire.mark();
    // It is tried again, with pauses.
    let tried = eventually("more attempts", LONG, async || {
        let mut tried = case.wire.writes(mark);
        tried.retain(|e| e.call.plural == "configmaps" && e.call.name == "share-shared");
        if tried.len() >= 5 { Ok(tried) } else { Err(story(&tried)) }
    })
    .await;
    // The change and what was last accepted have pauses of their own.
    let pauses = tried.windows(2).map(|two| two[1].at - two[0].at);
    assert!(pauses.fold(0.0, f64::max) > 0.5, "attempts without a pause:\n{}", story(&tried));
    // Once they let go it is ours again.
    let without = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "share-shared"}});
    case.scene.kubectl_input(&args, &without.to_string()).await.unwrap();
    case.ready("share").await;
    assert_eq!(case.scene.get(CONFIG_MAP, "share-shared").await["data"]["stage"], "two");
    let process = case.stays(process, &["share"]).await;
    case.finish(process).await;
}

/// 30
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_object_is_neither_taken_nor_deleted() {
    let case = Case::new().await;
    let process = case.start().await;
    case.scene.kubectl(&["create", "configmap", "mine-first", "--from-literal=whose=theirs"]).await;
    let before = case.scene.get(CONFIG_MAP, "mine-first").await;
    case.apply("mine", &first()).await;
    case.apply("free", &first()).await;
    case.ready("free").await;
    says(&case, "mine", "Stalled", &["True", "AlreadyExists", "mine-first"]).await;
    case.quiet().await;
    assert_eq!(case.scene.get(CONFIG_MAP, "mine-first").await, before);
    case.delete("mine").await;
    case.gone("mine").await;
    assert_eq!(case.scene.get(CONFIG_MAP, "mine-first").await, before);
    let process = case.stays(process, &["free"]).await;
    case.finish(process).await;
}

/// 31: undesired children are pruned. Children are found by their labels, so deletion works also when no template renders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_are_deleted_though_the_package_no_longer_renders() {
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("less", &json!({"members": ["a", "b", "c"], "number": "21"})).await;
    case.ready("less").await;
    assert_eq!(case.scene.get(CONFIG_MAP, "less-number").await["data"]["twice"], "42");
    // A member fewer, and a parameter that is not given any more.
    let api_version = case.kind.api_version();
    let instance = json!({"apiVersion": api_version, "kind": "Whole", "metadata": {"name": "less"},
        "spec": {"members": ["b"]}});
    case.scene.apply(&instance.to_string()).await;
    case.ready("less").await;
    for name in ["less-a", "less-c", "less-number"] {
        case.scene.gone(CONFIG_MAP, name).await;
    }
    let process = case.stays(process, &["less"]).await;
    process.stop().await;
    // From now on no template of it renders.
    let broken = case.changed(|text| {
        text.replace("{stage: \"{{ spec.stage }}\"", "{stage: \"{{ (spec.stage ~ 'x') | int }}\"")
    });
    let process = case.start_with(broken).await;
    case.apply("less", &json!({"stage": "two", "members": ["b"]})).await;
    says(&case, "less", "Stalled", &["True", "RenderFailed"]).await;
    assert!(case.scene.find(CONFIG_MAP, "less-b").await.is_some(), "what cannot be rendered is not pruned");
    case.delete("less").await;
    case.gone("less").await;
    for name in ["less-b", "less-first", "less-second"] {
        assert!(case.scene.find(CONFIG_MAP, name).await.is_none(), "{name}");
    }
    case.finish(process).await;
}

/// When a rule struck requests of a verb for an object, once it has four times.
async fn four_refusals(case: &Case, mark: usize, verb: Verb, name: &str) -> Vec<f64> {
    eventually(&format!("four refusals of {name}"), LONG, async || {
        let log = case.wire.since(mark);
        let refused = log.iter().filter(|e| e.call.verb == verb && e.call.name == name && e.fault.is_some());
        let times: Vec<f64> = refused.map(|e| e.at).collect();
        if times.len() < 4 { Err(format!("{times:?}")) } else { Ok(times) }
    })
    .await
}

/// After 2 s, 4 s, 8 s, a fifth less at most. A slow machine makes the pauses longer, never shorter.
fn backs_off(times: &[f64]) {
    for (pause, least) in times.windows(2).zip([1.6, 3.2, 6.4]) {
        assert!(pause[1] - pause[0] >= least, "too early: {times:?}");
    }
}

/// 31: what a former instance of that name has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_deletions_of_former_children_back_off() {
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("left", &json!({"members": ["a", "b"]})).await;
    case.ready("left").await;
    process.stop().await;
    // While nobody looks, somebody forces it, and makes another of that name.
    case.scene.patch(case.kind, "left", "merge", &json!({"metadata": {"finalizers": null}})).await;
    case.delete("left").await;
    case.gone("left").await;
    case.apply("left", &json!({"members": ["b"]})).await;
    let refusal = Fault::Answer(Answer::status(403, "Forbidden"));
    let rule = Rule::on(&[Verb::Delete], refusal).plural("configmaps").name("left-a");
    case.wire.rule(rule.namespace(case.scene.namespace()));
    let mark = case.wire.mark();
    let process = case.start().await;
    backs_off(&four_refusals(&case, mark, Verb::Delete, "left-a").await);
    says(&case, "left", "Stalled", &["True", "DeletionRefused", "left-a"]).await;
    case.wire.heal();
    case.scene.gone(CONFIG_MAP, "left-a").await;
    case.ready("left").await;
    case.finish(process).await;
}

/// 31: deleted with `--cascade=orphan`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_orphaning_backs_off() {
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("loose", &json!({"members": ["a"]})).await;
    case.ready("loose").await;
    let refusal = Fault::Answer(Answer::status(403, "Forbidden"));
    let rule = Rule::on(&[Verb::Patch], refusal).plural("configmaps").name("loose-a");
    case.wire.rule(rule.namespace(case.scene.namespace()));
    let mark = case.wire.mark();
    case.scene.kubectl(&["delete", &case.resource(), "loose", "--wait=false", "--cascade=orphan"]).await;
    backs_off(&four_refusals(&case, mark, Verb::Patch, "loose-a").await);
    let instance = case.scene.get(case.kind, "loose").await;
    assert!(instance["status"].to_string().contains("cannot be orphaned"), "{:#}", instance["status"]);
    case.wire.heal();
    case.gone("loose").await;
    let left = case.scene.get(CONFIG_MAP, "loose-a").await;
    assert!(left["metadata"]["labels"]["operetta.dev/operator"].is_null(), "{left:#}");
    case.finish(process).await;
}

/// 32: an instance is deleted, and another one of its name is created, before the manager's watch shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_instance_is_never_set_as_owner() {
    let expected = reference().await;
    let case = Case::new().await;
    let process = case.start().await;
    let mut names = Vec::new();
    let name = loop {
        let name = format!("i-reborn-{}", names.len());
        names.push(name.clone());
        if lives_twice(&case, &name).await {
            break name;
        }
    };
    case.same(&name, &expected.deployed.state).await;
    let created: Vec<Entry> = case.wire.writes(0).into_iter().filter(|e| e.code == Some(201)).collect();
    let secrets = created.iter().filter(|e| e.call.plural == "secrets" && e.call.name == name).count();
    assert_eq!(secrets, 2, "one for each life:\n{}", story(&created));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let process = case.stays(process, &names).await;
    case.finish(process).await;
}

/// Deletes an instance and creates it again while the manager's watch shows the former one. False if the manager has
/// read, for another reason, that there was none in between: then it waits for its watch.
async fn lives_twice(case: &Case, name: &str) -> bool {
    case.apply(name, &first()).await;
    let former = case.ready(name).await;
    // The garbage collector takes what the former one owned: reason enough to make it again, for those who
    // believe the cache. Not before the new one is there.
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    let free = json!({"metadata": {"finalizers": null}});
    let mut held = Vec::new();
    for kind in [SECRET, SERVICE, CONFIG_MAP] {
        for object in case.scene.list(kind).await {
            if object["metadata"]["ownerReferences"][0]["uid"] == uid_of(&former) {
                case.scene.patch(kind, name_of(&object), "merge", &hold).await;
                held.push((kind, name_of(&object).to_owned()));
            }
        }
    }
    case.quiet().await;
    let mark = case.wire.mark();
    case.wire.freeze("wholes");
    case.delete(name).await;
    case.scene.patch(case.kind, name, "merge", &free).await;
    case.gone(name).await;
    case.apply(name, &first()).await;
    let current = case.scene.get(case.kind, name).await;
    assert_ne!(uid_of(&current), uid_of(&former));
    let owned_by_the_living = |o: &Value| o["metadata"]["ownerReferences"][0]["uid"] == uid_of(&current);
    for (kind, name) in held {
        let seen = |o: &Value| !o["metadata"]["deletionTimestamp"].is_null() || owned_by_the_living(o);
        case.scene.until("going, or taken over", kind, &name, seen).await;
        case.scene.patch(kind, &name, "merge", &free).await;
    }
    let is_look =
        |e: &Entry| e.call.verb == Verb::Get && e.call.plural == case.kind.plural && e.call.name == name;
    let has_looked = case.wire.since(mark).iter().any(|e| is_look(e) && e.code == Some(404));
    if !has_looked {
        case.scene.until("the new one's", SECRET, name, owned_by_the_living).await;
    }
    case.wire.thaw();
    case.ready(name).await;
    !has_looked
}

/// All children are light and carry an ownerReference.
const LIGHT: Subject = Subject {
    folder: "tests/fixtures/packages/light",
    name: "light",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Light",
    plural: "lights",
    inner: None,
    children: &[CONFIG_MAP, SECRET, SERVICE],
    elsewhere: &[],
};

/// Five applies, one status, one Event; no dry run of what another instance has shown to pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_instance_costs_seven_requests() {
    let case = Case::of(&LIGHT, 7).await;
    let process = case.start().await;
    case.apply("i-first", &json!({})).await;
    case.ready("i-first").await;
    case.quiet().await;
    let event = eventually("the Event", LONG, async || {
        let events = case.scene.list(EVENT).await;
        let text = |e: &Value| format!("{} {}", e["reason"], e["message"]);
        let found = events.iter().map(text).find(|text| text.contains("Ready"));
        found.ok_or_else(|| format!("{events:#?}"))
    })
    .await;
    assert!(event.contains("created ConfigMap i-first, Role i-first"), "{event}");
    assert!(event.contains("; all 5 children are applied and ready"), "{event}");
    let mark = case.wire.mark();
    case.apply("i-second", &json!({})).await;
    case.ready("i-second").await;
    case.quiet().await;
    let asked = eventually("the Event of the second", LONG, async || {
        let all = case.wire.since(mark);
        // It reads the CRDs that other tests make meanwhile.
        let own = format!("{}.{}", LIGHT.plural, case.kind.group());
        let is_other = |e: &Entry| e.call.plural == "customresourcedefinitions" && e.call.name != own;
        let asked = all.into_iter().filter(|e| e.call.verb != Verb::Watch && !is_other(e));
        let asked: Vec<Entry> = asked.collect();
        let has_event = asked.iter().any(|e| e.call.plural == "events" && e.code.is_some());
        if has_event { Ok(asked) } else { Err(story(&asked)) }
    })
    .await;
    assert_eq!(asked.len(), 7, "{}", story(&asked));
    case.finish(process).await;
}

/// 32: an instance is deleted between the decision and the creation of its first children, which is not preceded by a
/// live read. The garbage collector deletes what comes too late, and a new instance of that name is not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_created_for_a_deleted_owner_are_garbage_collected() {
    const LATE: Duration = Duration::from_secs(4);
    let case = Case::of(&LIGHT, 32).await;
    let process = case.start().await;
    // All dry runs pass here.
    case.apply("i-first", &json!({})).await;
    case.ready("i-first").await;
    case.quiet().await;
    for is_reborn in [false, true] {
        let name = if is_reborn { "i-reborn" } else { "i-late" };
        let mark = case.wire.mark();
        let rules = [CONFIG_MAP, SECRET, SERVICE].map(|kind| {
            let rule = Rule::on(&[Verb::Apply], Fault::Delay(LATE)).plural(kind.plural).name(name);
            case.wire.rule(rule.times(1))
        });
        case.apply(name, &json!({})).await;
        let uid = uid_of(&case.scene.get(case.kind, name).await).to_owned();
        let is_under_way = || rules.iter().all(|rule| case.wire.struck(*rule) == 1);
        eventually("the children to be on their way", LONG, async || {
            if is_under_way() { Ok(()) } else { Err(story(&case.wire.since(mark))) }
        })
        .await;
        case.delete(name).await;
        case.gone(name).await;
        if is_reborn {
            case.apply(name, &json!({})).await;
        }
        let created = |kind: &str| {
            let all = case.wire.since(mark);
            all.iter().filter(|e| e.call.plural == kind && e.call.name == name && e.code == Some(201)).count()
        };
        eventually("all to be created", LONG, async || {
            let missing: Vec<_> = delayed().into_iter().filter(|kind| created(kind) == 0).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
        })
        .await;
        let looks = case.wire.since(mark);
        let first = looks.iter().position(|e| e.call.plural == "configmaps").unwrap_or_default();
        let is_look = |e: &Entry| e.call.verb == Verb::Get && e.call.plural == case.kind.plural;
        assert!(!looks[..first].iter().any(is_look), "the instance was read:\n{}", story(&looks));
        eventually("nothing of the dead owner to be left", LONG, async || {
            for kind in [CONFIG_MAP, SECRET, SERVICE] {
                let object = case.scene.find(kind, name).await;
                let owner = object.as_ref().map(|o| o["metadata"]["ownerReferences"][0]["uid"] == *uid);
                if owner == Some(true) {
                    return Err(format!("{} is still there", kind.plural));
                }
            }
            Ok(())
        })
        .await;
        if is_reborn {
            case.ready(name).await;
        } else {
            case.quiet().await;
            let counts: Vec<_> = delayed().into_iter().map(created).collect();
            assert_eq!(counts, [1, 1, 1], "each was created once:\n{}", story(&case.wire.since(mark)));
        }
    }
    let process = case.stays(process, &["i-first", "i-reborn"]).await;
    case.finish(process).await;
}

/// The kinds whose creation is delayed.
fn delayed() -> [&'static str; 3] {
    [CONFIG_MAP, SECRET, SERVICE].map(|kind| kind.plural)
}

/// 33: the deletion says what is to become of what the object owns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pods_of_a_job_go_with_it() {
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("work", &json!({"job": true})).await;
    case.ready("work").await;
    eventually("a pod", LONG, async || match case.scene.list(POD).await.len() {
        0 => Err("none"),
        _ => Ok(()),
    })
    .await;
    case.apply("work", &json!({"job": false})).await;
    case.ready("work").await;
    case.scene.gone(JOB, "work").await;
    eventually("no pod", LONG, async || {
        let pods = case.scene.list(POD).await;
        if pods.is_empty() { Ok(()) } else { Err(pods.iter().map(name_of).collect::<Vec<_>>().join(" ")) }
    })
    .await;
    let process = case.stays(process, &["work"]).await;
    case.finish(process).await;
}

/// 34: the others are as well as ever, and it is told what is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_malformed_instance_or_annotation_degrades_alone() {
    let expected = reference().await;
    let case = Case::new().await;
    let process = case.start().await;
    case.apply("odd", &json!({"number": "many"})).await;
    says(&case, "odd", "Stalled", &["True", "number"]).await;
    case.apply("i-well", &first()).await;
    case.ready("i-well").await;
    // Annotations and labels of ours that make no sense.
    let nonsense = json!({"metadata": {
        "annotations": {"operetta.dev/order": "-1", "operetta.dev/key": "\u{2028}", "operetta.dev/applied-hash": "",
            "operetta.dev/retained": "perhaps"},
        "labels": {"operetta.dev/child": "nobody", "operetta.dev/operator": ""}}});
    for name in ["i-well-a", "i-well-first"] {
        case.scene.patch(CONFIG_MAP, name, "merge", &nonsense).await;
        let restored = |o: &Value| o["metadata"]["labels"]["operetta.dev/operator"] == *case.package.name;
        case.scene.until("restored", CONFIG_MAP, name, restored).await;
    }
    // What nobody has asked for stays, until who put it there takes it away.
    let theirs = json!({"operetta.dev/retained": null, "operetta.dev/key": null});
    for name in ["i-well-a", "i-well-first"] {
        case.scene.patch(CONFIG_MAP, name, "merge", &json!({"metadata": {"annotations": theirs}})).await;
    }
    case.ready("i-well").await;
    case.delete("odd").await;
    case.gone("odd").await;
    case.scene.kubectl(&["delete", "configmap", "odd-kept"]).await;
    case.same("i-well", &expected.deployed.state).await;
    let process = case.stays(process, &["i-well"]).await;
    case.finish(process).await;
}

/// 39: not in a log, an Event or a status, whatever the server says about it. Every other case looks too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_ever_shown() {
    let case = Case::new().await;
    let process = case.start().await;
    let word = "canary-3f9c-hidden";
    let apply: &[Verb] = &[Verb::Apply];
    // Answers that quote what was sent, as the server's do.
    let quotes = [
        Answer::status(422, "Invalid")
            .saying(&format!("Secret \"x\" is invalid: data[token]: Invalid value: \"{word}\": no")),
        Answer::status(500, "InternalError").saying(&format!(
            "failed to create typed patch object: .data.token: expected map, got &{{{word}}}"
        )),
    ];
    for (i, answer) in quotes.into_iter().enumerate() {
        let name = format!("quoted-{i}");
        case.wire.rule(Rule::on(apply, Fault::Answer(answer)).plural("secrets").name(&name));
        case.apply(&name, &json!({"token": word})).await;
        says(&case, &name, "Stalled", &["True", "secret"]).await;
    }
    // Real ones: a value that is not a number, where the template wants one.
    case.apply("real", &json!({"token": word, "number": word})).await;
    says(&case, "real", "Stalled", &["True", "number"]).await;
    eventually("Events about them", LONG, async || match case.scene.list(EVENT).await.len() {
        0..3 => Err("too few"),
        _ => Ok(()),
    })
    .await;
    case.finish(process).await;
}
