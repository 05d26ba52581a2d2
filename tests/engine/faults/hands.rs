//! What people and other controllers do to children, instances and namespaces.

use std::time::Duration;

use serde_json::{Value, json};

use super::{first, reference, second};
use crate::support::eventually;
use crate::support::ext::{
    CONFIG_MAP, EVENT, JOB, LONG, NAMESPACE, POD, SECRET, SERVICE, condition, find_in, name_of, uid_of,
};
use crate::support::faults::case::{Case, Subject};
use crate::support::faults::{Answer, Entry, Fault, Life, Rule, Verb, story};

/// Waits until an instance has a condition whose message contains all these words.
async fn says(case: &Case, name: &str, kind: &str, words: &[&str]) -> Value {
    eventually(&format!("{name}: {kind} with {words:?}"), LONG, async || {
        let object = case.scene.find(case.kind, name).await.unwrap_or_default();
        let found = condition(&object, kind).clone();
        let text = found.to_string();
        let holds = words.iter().all(|word| text.contains(word));
        if holds { Ok(found) } else { Err(format!("{:#}", object["status"])) }
    })
    .await
}

/// Fault 24: children are deleted by hand.
#[tokio::test]
async fn manually_deleted_children_come_back_and_a_job_runs_once() {
    let (case, process) = Case::started().await;
    case.apply_ready("hand", &json!({"job": true})).await;
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

/// Fault 25: children are edited by hand.
#[tokio::test]
async fn manually_edited_children_are_restored() {
    let (case, process) = Case::started().await;
    case.apply_ready("hand", &first()).await;
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
    case.stays_and_finishes(process, &["hand"]).await;
}

/// Fault 26: the message names the object and the finalizer that holds it; other instances are not affected.
#[tokio::test]
async fn stuck_terminating_child_is_named() {
    let (case, process) = Case::started().await;
    for name in ["stuck", "free"] {
        case.apply_ready(name, &first()).await;
    }
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    case.scene.patch(CONFIG_MAP, "stuck-first", "merge", &hold).await;
    case.scene.kubectl(&["delete", "configmap", "stuck-first", "--wait=false"]).await;
    says(&case, "stuck", "Ready", &["False", "stuck-first", "example.org/hold"]).await;
    case.apply_ready("free", &second()).await;
    case.quiet().await;
    // It is also named when the instance is deleted.
    case.delete("stuck").await;
    says(&case, "stuck", "Ready", &["False", "stuck-first", "example.org/hold"]).await;
    case.quiet().await;
    let free = json!({"metadata": {"finalizers": null}});
    case.scene.patch(CONFIG_MAP, "stuck-first", "merge", &free).await;
    case.gone("stuck").await;
    case.stays_and_finishes(process, &["free"]).await;
}

/// Fault 27: nothing is created, finalizers are removed, and there is no storm of requests.
#[tokio::test]
async fn a_terminating_namespace_is_left_to_end() {
    let (case, process) = Case::started().await;
    case.apply_ready("end", &first()).await;
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    case.scene.patch(CONFIG_MAP, "end-second", "merge", &hold).await;
    // One instance is held, so that its children are deleted while it stays.
    case.apply_ready("held", &first()).await;
    case.scene.patch(CONFIG_MAP, "held-first", "merge", &hold).await;
    let mark = case.wire.mark();
    let namespace = case.scene.namespace().to_owned();
    case.scene.kubectl(&["delete", "namespace", &namespace, "--wait=false"]).await;
    let is_going = |o: &Value| !o["metadata"]["deletionTimestamp"].is_null();
    for name in ["end-second", "held-first"] {
        case.scene.until("being deleted", CONFIG_MAP, name, is_going).await;
    }
    case.quiet().await;
    let asked: Vec<Entry> = case.wire.since(mark).into_iter().filter(Entry::is_asking).collect();
    assert!(asked.len() < 120, "{} requests:\n{}", asked.len(), story(&asked[asked.len() - 60..]));
    let free = json!({"metadata": {"finalizers": null}});
    case.scene.patch(CONFIG_MAP, "end-second", "merge", &free).await;
    case.scene.patch(CONFIG_MAP, "held-first", "merge", &free).await;
    eventually("the namespace to be gone", LONG, async || {
        find_in(case.scene.plane(), NAMESPACE, None, &namespace).await.map_or(Ok(()), Err)
    })
    .await;
    let created = case.counts(mark, "end").values().map(|(created, _)| created).sum::<usize>();
    assert_eq!(created, 0, "{}", story(&case.wire.writes(mark)));
    process.stop().await;
}

/// Fault 28: the message names field and manager, and the other children are maintained.
#[tokio::test]
async fn conflicting_field_and_manager_are_named() {
    let (case, process) = Case::started().await;
    case.apply_ready("share", &json!({"shared": true})).await;
    case.quiet().await;
    let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "share-shared"},
        "data": {"stage": "theirs"}});
    let args = ["apply", "--server-side", "--force-conflicts", "--field-manager=other-team", "-f", "-"];
    case.scene.kubectl_input(&args, &theirs.to_string()).await.unwrap();
    says(&case, "share", "Stalled", &["True", "ApplyConflict", "shared", "data.stage", "other-team"]).await;
    // The other children follow the spec.
    case.apply("share", &json!({"shared": true, "stage": "two"})).await;
    case.scene.until("changed", CONFIG_MAP, "share-b", |o| o["data"]["stage"] == "two").await;
    assert_eq!(case.scene.get(CONFIG_MAP, "share-shared").await["data"]["stage"], "theirs");
    let mark = case.wire.mark();
    // The apply is retried with pauses.
    let tried = eventually("more attempts", LONG, async || {
        let mut tried = case.wire.writes(mark);
        tried.retain(|e| e.call.plural == "configmaps" && e.call.name == "share-shared");
        if tried.len() >= 5 { Ok(tried) } else { Err(story(&tried)) }
    })
    .await;
    // The retries of the change and of the accepted state have separate pauses.
    let pauses = tried.windows(2).map(|two| two[1].at - two[0].at);
    assert!(pauses.fold(0.0, f64::max) > 0.5, "attempts without a pause:\n{}", story(&tried));
    // Once the other manager releases the field, it is ours again.
    let without = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "share-shared"}});
    case.scene.kubectl_input(&args, &without.to_string()).await.unwrap();
    case.ready("share").await;
    assert_eq!(case.scene.get(CONFIG_MAP, "share-shared").await["data"]["stage"], "two");
    case.stays_and_finishes(process, &["share"]).await;
}

/// Fault 30: an object of another author has the name of a child.
#[tokio::test]
async fn foreign_object_is_neither_adopted_nor_deleted() {
    let (case, process) = Case::started().await;
    case.scene.kubectl(&["create", "configmap", "mine-first", "--from-literal=whose=theirs"]).await;
    let before = case.scene.get(CONFIG_MAP, "mine-first").await;
    case.apply("mine", &first()).await;
    case.apply_ready("free", &first()).await;
    says(&case, "mine", "Stalled", &["True", "AlreadyExists", "mine-first"]).await;
    case.quiet().await;
    assert_eq!(case.scene.get(CONFIG_MAP, "mine-first").await, before);
    case.remove("mine").await;
    assert_eq!(case.scene.get(CONFIG_MAP, "mine-first").await, before);
    case.stays_and_finishes(process, &["free"]).await;
}

/// Fault 31: undesired children are pruned. Children are found by their labels, so deletion works even if no
/// template renders.
#[tokio::test]
async fn children_are_deleted_if_the_package_no_longer_renders() {
    let (case, process) = Case::started().await;
    case.apply_ready("less", &json!({"members": ["a", "b", "c"], "number": "21"})).await;
    assert_eq!(case.scene.get(CONFIG_MAP, "less-number").await["data"]["twice"], "42");
    // Remove a member and an optional parameter.
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
    // From now on the template does not render.
    let broken = case.changed(|text| {
        text.replace("{stage: \"{{ spec.stage }}\"", "{stage: \"{{ (spec.stage ~ 'x') | int }}\"")
    });
    let process = case.start_with(broken).await;
    case.apply("less", &json!({"stage": "two", "members": ["b"]})).await;
    says(&case, "less", "Stalled", &["True", "RenderFailed"]).await;
    assert!(case.scene.find(CONFIG_MAP, "less-b").await.is_some(), "what cannot be rendered is not pruned");
    case.remove("less").await;
    for name in ["less-b", "less-first", "less-second"] {
        assert!(case.scene.find(CONFIG_MAP, name).await.is_none(), "{name}");
    }
    case.finish(process).await;
}

/// The times at which requests of a verb for an object were refused, once there are four.
async fn four_refusals(case: &Case, mark: usize, verb: Verb, name: &str) -> Vec<f64> {
    eventually(&format!("four refusals of {name}"), LONG, async || {
        let log = case.wire.since(mark);
        let refused = log.iter().filter(|e| e.call.verb == verb && e.call.name == name && e.fault.is_some());
        let times: Vec<f64> = refused.map(|e| e.at).collect();
        if times.len() < 4 { Err(format!("{times:?}")) } else { Ok(times) }
    })
    .await
}

/// Checks pauses of 2 s, 4 s, 8 s, each at most a fifth shorter. A slow machine makes them longer, never
/// shorter.
fn backs_off(times: &[f64]) {
    for (pause, least) in times.windows(2).zip([1.6, 3.2, 6.4]) {
        assert!(pause[1] - pause[0] >= least, "too early: {times:?}");
    }
}

/// Fault 31: children that an earlier instance of that name has left.
#[tokio::test]
async fn refused_deletions_of_former_children_back_off() {
    let (case, process) = Case::started().await;
    case.apply_ready("left", &json!({"members": ["a", "b"]})).await;
    process.stop().await;
    // While no manager runs, the finalizer is removed by force, and a new instance of that name is created.
    case.scene.patch(case.kind, "left", "merge", &json!({"metadata": {"finalizers": null}})).await;
    case.remove("left").await;
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

/// Fault 31: the instance is deleted with `--cascade=orphan`.
#[tokio::test]
async fn a_refused_orphaning_backs_off() {
    let (case, process) = Case::started().await;
    case.apply_ready("loose", &json!({"members": ["a"]})).await;
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

/// Fault 32: an instance is deleted, and another of its name is created, before the manager's watch shows it.
#[tokio::test]
async fn a_deleted_instance_is_never_set_as_owner() {
    let expected = reference();
    let name = "i-reborn";
    let (case, process) = Case::started().await;
    lives_twice(&case, name).await;
    case.same(name, &expected.deployed.state).await;
    let created: Vec<Entry> = case.wire.writes(0).into_iter().filter(|e| e.code == Some(201)).collect();
    let secrets = created.iter().filter(|e| e.call.plural == "secrets" && e.call.name == name).count();
    assert_eq!(secrets, 2, "one for each life:\n{}", story(&created));
    case.stays_and_finishes(process, &[name]).await;
}

/// Deletes an instance and creates it again while the manager's watch shows the former one.
async fn lives_twice(case: &Case, name: &str) {
    let former = case.apply_ready(name, &first()).await;
    // The garbage collector deletes the former instance's children, which a manager that believes its cache
    // would create again. It must not delete them before the new instance exists.
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
    case.wire.freeze("wholes");
    // What the manager reads meanwhile is answered when the new one exists: it never learns that there was none.
    let gate = Life::new();
    let look = Rule::on(&[Verb::Get], Fault::Held(gate.clone())).plural(case.kind.plural).name(name);
    case.wire.rule(look);
    case.delete(name).await;
    case.scene.patch(case.kind, name, "merge", &free).await;
    case.gone(name).await;
    case.apply(name, &first()).await;
    gate.end();
    let current = case.scene.get(case.kind, name).await;
    assert_ne!(uid_of(&current), uid_of(&former));
    let owned_by_the_living = |o: &Value| o["metadata"]["ownerReferences"][0]["uid"] == uid_of(&current);
    for (kind, name) in held {
        let seen = |o: &Value| !o["metadata"]["deletionTimestamp"].is_null() || owned_by_the_living(o);
        case.scene.until("going, or taken over", kind, &name, seen).await;
        case.scene.patch(kind, &name, "merge", &free).await;
    }
    case.scene.until("the new one's", SECRET, name, owned_by_the_living).await;
    case.wire.thaw();
    case.ready(name).await;
}

/// A package whose children are all light and have an ownerReference.
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

/// Five applies, one status and one Event; no dry runs, because another instance has shown that they pass.
#[tokio::test]
async fn a_new_instance_costs_seven_requests() {
    let case = Case::of(&LIGHT, 7).await;
    let process = case.start().await;
    case.apply_ready("i-first", &json!({})).await;
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
    case.apply_ready("i-second", &json!({})).await;
    case.quiet().await;
    let asked = eventually("the Event of the second", LONG, async || {
        let all = case.wire.since(mark);
        // The manager also reads CRDs that other tests create meanwhile.
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

/// Fault 32: an instance is deleted between the decision and the creation of its first children, before which
/// there is no live read. The garbage collector deletes children that are created too late, and a new
/// instance of that name is not affected.
#[tokio::test]
async fn children_created_for_a_deleted_owner_are_garbage_collected() {
    // Calls may be held for longer than the manager's own deadline.
    let case = Case::of(&LIGHT, 32).await.with_deadline(Duration::from_secs(3_600));
    let process = case.start().await;
    // All signatures pass their dry run here.
    case.apply_ready("i-first", &json!({})).await;
    case.quiet().await;
    for is_reborn in [false, true] {
        let name = if is_reborn { "i-reborn" } else { "i-late" };
        let mark = case.wire.mark();
        let gate = Life::new();
        let rules = [CONFIG_MAP, SECRET, SERVICE].map(|kind| {
            let held = Fault::Held(gate.clone());
            let rule = Rule::on(&[Verb::Apply], held).plural(kind.plural).name(name);
            case.wire.rule(rule.times(1))
        });
        case.apply(name, &json!({})).await;
        let uid = uid_of(&case.scene.get(case.kind, name).await).to_owned();
        let is_under_way = || rules.iter().all(|rule| case.wire.struck(*rule) == 1);
        eventually("the children to be on their way", LONG, async || {
            if is_under_way() { Ok(()) } else { Err(story(&case.wire.since(mark))) }
        })
        .await;
        case.remove(name).await;
        if is_reborn {
            case.apply(name, &json!({})).await;
        }
        gate.end();
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
    case.stays_and_finishes(process, &["i-first", "i-reborn"]).await;
}

/// The kinds whose creation is delayed.
fn delayed() -> [&'static str; 3] {
    [CONFIG_MAP, SECRET, SERVICE].map(|kind| kind.plural)
}

/// Fault 33: the deletion request sets the propagation policy for what the object owns.
#[tokio::test]
async fn pods_of_a_job_are_deleted_with_it() {
    let (case, process) = Case::started().await;
    case.apply_ready("work", &json!({"job": true})).await;
    eventually("a pod", LONG, async || match case.scene.list(POD).await.len() {
        0 => Err("none"),
        _ => Ok(()),
    })
    .await;
    case.apply_ready("work", &json!({"job": false})).await;
    case.scene.gone(JOB, "work").await;
    eventually("no pod", LONG, async || {
        let pods = case.scene.list(POD).await;
        if pods.is_empty() { Ok(()) } else { Err(pods.iter().map(name_of).collect::<Vec<_>>().join(" ")) }
    })
    .await;
    case.stays_and_finishes(process, &["work"]).await;
}

/// Fault 34: the instance reports what is wrong, and others are not affected.
#[tokio::test]
async fn malformed_instance_or_annotation_affects_no_other() {
    let expected = reference();
    let (case, process) = Case::started().await;
    case.apply("odd", &json!({"number": "many"})).await;
    says(&case, "odd", "Stalled", &["True", "number"]).await;
    case.apply_ready("i-well", &first()).await;
    // Set nonsensical values in our annotations and labels.
    let nonsense = json!({"metadata": {
        "annotations": {"operetta.dev/order": "-1", "operetta.dev/key": "\u{2028}", "operetta.dev/applied-hash": "",
            "operetta.dev/retained": "perhaps"},
        "labels": {"operetta.dev/child": "nobody", "operetta.dev/operator": ""}}});
    for name in ["i-well-a", "i-well-first"] {
        case.scene.patch(CONFIG_MAP, name, "merge", &nonsense).await;
        let restored = |o: &Value| o["metadata"]["labels"]["operetta.dev/operator"] == *case.package.name;
        case.scene.until("restored", CONFIG_MAP, name, restored).await;
    }
    // Foreign keys stay until their author removes them.
    let theirs = json!({"operetta.dev/retained": null, "operetta.dev/key": null});
    for name in ["i-well-a", "i-well-first"] {
        case.scene.patch(CONFIG_MAP, name, "merge", &json!({"metadata": {"annotations": theirs}})).await;
    }
    case.ready("i-well").await;
    case.remove("odd").await;
    case.scene.kubectl(&["delete", "configmap", "odd-kept"]).await;
    case.same("i-well", &expected.deployed.state).await;
    case.stays_and_finishes(process, &["i-well"]).await;
}

/// Fault 39: the Secret's value is in no log, Event or status, whatever the server's messages contain. Every
/// other case checks this as well.
#[tokio::test]
async fn no_secret_is_ever_shown() {
    let (case, process) = Case::started().await;
    let word = "canary-3f9c-hidden";
    let apply: &[Verb] = &[Verb::Apply];
    // Messages that quote what was sent, as the server's do.
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
    // A real error: a value that is not a number where the template needs one.
    case.apply("real", &json!({"token": word, "number": word})).await;
    says(&case, "real", "Stalled", &["True", "number"]).await;
    eventually("Events about them", LONG, async || match case.scene.list(EVENT).await.len() {
        0..3 => Err("too few"),
        _ => Ok(()),
    })
    .await;
    case.finish(process).await;
}
