//! Steps and observations that make HTTP requests or run commands in pods.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{CALLER, Stage, api};
use crate::support::oracles::CANARY;
use crate::support::plans::{Commands, LOOPBACK, PLAN_RUN, Reaction, is_over, phase, story_of, with_api};
use crate::support::{
    CONFIG_MAP, EVENT, Kind, LONG, POD, Scene, condition, copy_package, eventually, fixture, is_ready, kind,
    plane_of_tests, run_flags, uid_of,
};

const KIND: (&str, Kind) = ("Caller", CALLER);

async fn caller(spec: Value) -> (Stage, Commands) {
    let (stage, commands) = (Stage::new().await, Commands::new());
    let mut spec = spec;
    spec["script"] = commands.script().into();
    stage.ready_with(KIND, "c", spec).await;
    (stage, commands)
}

/// Requests a run of a plan and waits until it ends in a phase.
async fn run(stage: &Stage, plan: &str, ends: &str) -> Value {
    let run = stage.request(KIND, "c", plan, &Value::Null).await;
    stage.run_is(&run, ends).await
}

#[tokio::test]
async fn a_post_is_sent_once_and_its_answer_recorded() {
    let (stage, _) = caller(json!({})).await;
    run(&stage, "post", "Succeeded").await;
    let calls = api().calls("POST", &stage.items("c"));
    assert_eq!(calls.len(), 1, "{calls:#?}");
    assert_eq!(calls[0].body, json!({"text": "hello", "size": 3, "tags": ["a", "c"]}));
    assert!(calls[0].headers["content-type"].starts_with("application/json"), "{calls:#?}");
    assert!(!calls[0].key.is_empty(), "{calls:#?}");
    let id = api().items(&stage.items("c"))[0].path.rsplit('/').next().unwrap().to_owned();
    let holds = |o: &Value| o["status"]["itemId"] == id.as_str() && o["status"]["note"] == id.as_str();
    stage.until("the id", CALLER, "c", holds).await;
}

/// Which failures are retried and which are not. All attempts have the same key and together one effect.
#[tokio::test]
async fn failed_requests_are_retried_with_one_effect() {
    let cases: [(&str, Vec<Reaction>, &str, usize); 6] = [
        (
            "500 and 503",
            vec![Reaction::Is(500, Value::Null), Reaction::Is(503, json!({"why": "busy"}))],
            "Succeeded",
            3,
        ),
        ("429", vec![Reaction::Is(429, Value::Null)], "Succeeded", 2),
        ("cut before", vec![Reaction::Cut], "Succeeded", 2),
        ("cut after", vec![Reaction::DoneAndCut, Reaction::DoneAndCut], "Succeeded", 3),
        ("400", vec![Reaction::Is(400, json!({"why": "no seats"}))], "Failed", 1),
        ("always 500", vec![Reaction::Is(500, Value::Null); 9], "Failed", 5),
    ];
    for (what, answers, ends, count) in cases {
        let (stage, _) = caller(json!({})).await;
        let items = stage.items("c");
        api().next("POST", &items, answers);
        let run = run(&stage, "post", ends).await;
        let calls = api().calls("POST", &items);
        assert_eq!(calls.len(), count, "{what}: {}", story_of(&run));
        let keys: BTreeSet<&str> = calls.iter().map(|call| call.key.as_str()).collect();
        assert_eq!(keys.len(), 1, "{what}: {keys:?}");
        assert_eq!(api().items(&items).len(), usize::from(ends == "Succeeded"), "{what}");
        if ends == "Failed" {
            let story = story_of(&run);
            assert!(
                story.contains("make") && (story.contains("400") || story.contains("500")),
                "{what}: {story}"
            );
        }
    }
}

#[tokio::test]
async fn without_retries_there_is_one_attempt() {
    let (stage, _) = caller(json!({})).await;
    api().next("POST", &stage.items("c"), [Reaction::Is(503, Value::Null)]);
    run(&stage, "once", "Failed").await;
    assert_eq!(api().calls("POST", &stage.items("c")).len(), 1);
}

/// The answer comes after the attempt's timeout: the retry has the same key, so the effect happens once.
#[tokio::test]
async fn timed_out_request_is_retried_with_the_same_key() {
    let (stage, _) = caller(json!({})).await;
    let items = stage.items("c");
    api().always("POST", &items, Reaction::DoneAndSilent);
    let run = stage.request(KIND, "c", "post-patient", &Value::Null).await;
    eventually("two attempts", LONG, async || match api().calls("POST", &items).len() {
        2.. => Ok(()),
        count => Err(count),
    })
    .await;
    api().lift(&items);
    stage.run_is(&run, "Succeeded").await;
    let keys: BTreeSet<String> = api().calls("POST", &items).into_iter().map(|call| call.key).collect();
    assert_eq!((keys.len(), api().items(&items).len()), (1, 1));
}

#[tokio::test]
async fn requests_are_sent_as_the_package_declares() {
    let (stage, _) = caller(json!({"text": "a b/ü&c=%?"})).await;
    let items = stage.items("c");
    run(&stage, "forms", "Succeeded").await;
    let posts = api().calls("POST", &items);
    let [form, raw] = posts.as_slice() else { panic!("{posts:#?}") };
    assert_eq!(form.headers["content-type"], "application/x-www-form-urlencoded");
    assert_eq!(form.body, "text=a+b%2F%C3%BC%26c%3D%25%3F&plus=1%2B1");
    assert_eq!(form.path, format!("{items}?a=a%20b%2F%C3%BC%26c%3D%25%3F"));
    // A path segment stays one segment.
    assert_eq!(raw.path, format!("{items}/a%20b%2F%C3%BC%26c%3D%25%3F"));
    assert_eq!(raw.body, "text: a b/ü&c=%?");
    assert_eq!(raw.headers["x-more"], "c");
    let uid = stage.get(CALLER, "c").await["metadata"]["uid"].clone();
    assert_eq!(raw.key, uid.as_str().unwrap());
    let gets = api().calls("GET", &items);
    let given: Vec<&str> = gets.iter().map(|call| call.headers["authorization"].as_str()).collect();
    let basic = STANDARD.encode(format!("ann:{CANARY}"));
    assert_eq!(given, [format!("Bearer {CANARY}"), format!("Basic {basic}")]);
    for object in [stage.get(CALLER, "c").await, stage.runs("c").await.into()] {
        assert!(!object.to_string().contains(CANARY), "{object:#}");
    }
}

#[tokio::test]
async fn unreachable_and_forbidden_addresses_are_reported() {
    let (stage, _) = caller(json!({})).await;
    for (plan, says) in [("closed", "127.0.0.1:9"), ("link-local", "169.254.169.254")] {
        let run = run(&stage, plan, "Failed").await;
        let story = story_of(&run);
        assert!(story.contains("call") && story.contains(says), "{plan}: {story}");
        let tells = |o: &Value| {
            let told = condition(o, "RunFailed")["message"].as_str().unwrap_or_default().to_owned();
            is_ready(o) && told.contains(plan) && told.contains("call")
        };
        stage.until("the failure of this plan", CALLER, "c", tells).await;
    }
}

#[tokio::test]
async fn redirects_large_answers_and_missing_outputs_fail() {
    let (stage, _) = caller(json!({})).await;
    let items = stage.items("c");
    api().next("GET", &items, [Reaction::Is(302, Value::Null)]);
    let story = story_of(&run(&stage, "redirect", "Failed").await);
    assert!(story.contains("302"), "{story}");
    api().next("GET", &items, [Reaction::Is(200, json!("x".repeat(2000)))]);
    let story = story_of(&run(&stage, "bounded", "Failed").await);
    assert!(story.contains("1000"), "{story}");
    // The item was created, so it is not created again.
    let story = story_of(&run(&stage, "missing", "Failed").await);
    assert!(story.contains("none"), "{story}");
    assert_eq!(api().items(&items).len(), 1);
}

/// The text of an answer reaches a status, an Event or the log only through declared outputs: neither its
/// status code nor a failing expression that reads it shows it.
#[tokio::test]
async fn answers_are_shown_only_by_declared_outputs() {
    let (stage, _) = caller(json!({})).await;
    let items = stage.items("c");
    let text = format!("{CANARY}-{}", "x".repeat(5000));
    let body = json!({"count": text, "why": text, "message": text});
    for (plan, status, ends, says) in [
        ("silent", 200, "Succeeded", ""),
        ("silent", 400, "Failed", "the server answered 400"),
        ("silent", 503, "Failed", "the server answered 503"),
        ("redirect", 302, "Failed", "the server answered 302"),
        ("wrong-expect", 200, "Failed", "expect"),
        ("wrong-output", 200, "Failed", "output `count`"),
        ("wrong-path", 200, "Failed", "output `count`"),
        ("wrong-record", 200, "Failed", "record `note`"),
    ] {
        api().next("GET", &items, [Reaction::Is(status, body.clone())]);
        let story = story_of(&run(&stage, plan, ends).await);
        assert!(story.contains(says), "{plan}, {status}: {story}");
        assert!(!story.contains(CANARY), "{plan}, {status}: {story}");
        // Answer with a body that is not JSON.
        api().next("GET", &items, [Reaction::Is(status, text.clone().into())]);
        let run = stage.request(KIND, "c", plan, &Value::Null).await;
        let story = story_of(&stage.until("its end", PLAN_RUN, &run, is_over).await);
        assert!(!story.contains(CANARY), "{plan}, {status}: {story}");
    }
    let told = |o: &Value| condition(o, "RunFailed")["message"].to_string().contains("wrong-record");
    let instance = stage.until("the failures", CALLER, "c", told).await;
    // The request failed, but the instance is as its spec says.
    assert!(is_ready(&instance) && condition(&instance, "Stalled").is_null(), "{:#}", instance["status"]);
    for shown in [instance.to_string(), Value::from(stage.list(EVENT).await).to_string(), stage.log()] {
        assert!(!shown.contains(CANARY), "{shown}");
    }
}

#[tokio::test]
async fn commands_run_in_pods_of_children() {
    let (stage, commands) = caller(json!({})).await;
    commands.prints("say", "hello from the pod\n");
    commands.prints("json", "{\"ok\": true, \"id\": \"j-1\"}");
    run(&stage, "exec", "Succeeded").await;
    stage.until("its output", CALLER, "c", |o| o["status"]["note"] == "hello from the pod").await;
    assert_eq!(commands.calls("say"), ["say hello"]);
    run(&stage, "exec-json", "Succeeded").await;
    stage.until("its output", CALLER, "c", |o| o["status"]["note"] == "j-1").await;
    commands.prints("json", "{\"ok\": false}");
    let story = story_of(&run(&stage, "exec-json", "Failed").await);
    assert!(story.contains("run"), "{story}");
    let story = story_of(&run(&stage, "exec-other", "Failed").await);
    assert!(story.contains("none"), "{story}");
}

#[tokio::test]
async fn failed_command_is_retried() {
    let (stage, commands) = caller(json!({})).await;
    commands.fails("flaky", Some("not in sync"));
    let name = stage.request(KIND, "c", "exec-retried", &Value::Null).await;
    eventually("two attempts", LONG, async || match commands.calls("flaky").len() {
        2.. => Ok(()),
        count => Err(count),
    })
    .await;
    stage.until("its error", PLAN_RUN, &name, |run| story_of(run).contains("exit")).await;
    commands.fails("flaky", None);
    stage.run_is(&name, "Succeeded").await;
}

/// A step whose `unless` is true does not run its command again.
#[tokio::test]
async fn command_does_not_run_if_unless_is_true() {
    let (stage, commands) = caller(json!({})).await;
    commands.prints("peers", "[\"old\"]");
    stage.edit(CALLER, "c", json!({"watch": true})).await;
    stage.until("its peers", CALLER, "c", |o| o["status"]["peers"] == json!(["old"])).await;
    let run_ = stage.request(KIND, "c", "exec-unless", &Value::Null).await;
    eventually(
        "the command",
        LONG,
        async || if commands.calls("add").is_empty() { Err("none") } else { Ok(()) },
    )
    .await;
    commands.prints("peers", "[\"old\", \"new\"]");
    stage.run_is(&run_, "Succeeded").await;
    run(&stage, "exec-unless", "Succeeded").await;
    assert_eq!(commands.calls("add").len(), 1);
}

/// Observations are polled at their interval; the status shows them, and children follow.
#[tokio::test]
async fn polled_observations_change_children() {
    let (stage, commands) = caller(json!({})).await;
    commands.prints("peers", "[\"a\"]");
    api().put(&format!("/{}/c/watched", stage.namespace()), json!({"n": 1}));
    stage.edit(CALLER, "c", json!({"watch": true})).await;
    let holds = |o: &Value| o["status"]["watched"] == "made" && o["status"]["peers"] == json!(["a"]);
    stage.until("what they say", CALLER, "c", holds).await;
    let holds = |o: &Value| o["data"]["peers"] == "a" && o["data"]["item"] == "made";
    stage.until("a child", CONFIG_MAP, "c-seen", holds).await;
    commands.prints("peers", "[\"a\", \"b\"]");
    stage.until("the change", CONFIG_MAP, "c-seen", |o| o["data"]["peers"] == "a,b").await;
    // The manager does not poll more often than the package says.
    let (begun, before) = (Instant::now(), commands.calls("peers").len());
    eventually("three polls", LONG, async || match commands.calls("peers").len() - before {
        polls if polls >= 3 => Ok(()),
        polls => Err(polls),
    })
    .await;
    // Between three polls there are two intervals, each of which may be a fifth shorter.
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(7), "three polls in {took:?}, one in 5 s was asked for");
}

/// Every observation is refused for a while: nothing is deleted or decided, and all of it is reported; then
/// the manager continues.
#[tokio::test]
async fn failed_observations_are_unknown_and_not_empty() {
    let (stage, commands) = caller(json!({})).await;
    let watched = format!("/{}/c/watched", stage.namespace());
    commands.prints("peers", "[\"a\"]");
    api().put(&watched, json!({"n": 1}));
    stage.edit(CALLER, "c", json!({"watch": true})).await;
    let seen = stage.until("a child", CONFIG_MAP, "c-seen", |o| o["data"]["item"] == "made").await;
    stage.ready(CALLER, "c").await;

    commands.fails("peers", Some("refused"));
    api().always("GET", &watched, Reaction::Is(503, Value::Null));
    let said = |o: &Value| {
        let told = o["status"]["conditions"].to_string();
        !is_ready(o) && told.contains("peers") && told.contains("item")
    };
    let live = stage.until("both are said", CALLER, "c", said).await;
    assert_eq!((&live["status"]["watched"], &live["status"]["peers"]), (&json!("made"), &json!(["a"])));
    let run = stage.requested(KIND, "c", "decide-patient", &Value::Null, "Running").await;
    let polls = || (commands.calls("peers").len(), api().calls("GET", &watched).len());
    let before = polls();
    eventually("another poll of each", LONG, async || match polls() {
        now if now.0 > before.0 && now.1 > before.1 => Ok(()),
        now => Err(format!("{now:?}")),
    })
    .await;
    assert_eq!(phase(&stage.get(PLAN_RUN, &run).await), "Running");
    assert_eq!(
        stage.get(CONFIG_MAP, "c-seen").await["metadata"]["resourceVersion"],
        seen["metadata"]["resourceVersion"]
    );

    commands.fails("peers", None);
    api().lift(&watched);
    stage.run_is(&run, "Succeeded").await;
    let fine = stage.ready(CALLER, "c").await;
    assert!(condition(&fine, "Stalled").is_null(), "{:#}", fine["status"]);
}

/// Observations are refused for longer than the timeout of the step that waits: the step fails, and nothing
/// else happens.
#[tokio::test]
async fn step_that_reads_an_unknown_waits_until_its_timeout() {
    let (stage, _) = caller(json!({})).await;
    let watched = format!("/{}/c/watched", stage.namespace());
    api().always("GET", &watched, Reaction::Cut);
    stage.edit(CALLER, "c", json!({"watch": true})).await;
    let run = stage.request(KIND, "c", "decide", &Value::Null).await;
    let run = stage.run_is(&run, "Failed").await;
    let story = story_of(&run);
    assert!(story.contains("item") && story.contains("timed out"), "{story}");
    assert!(stage.get(CALLER, "c").await["status"]["note"].is_null());
}

/// Every request and every command is refused for a while during a run: nothing is deleted, and the run waits
/// and reports why. Then it continues by itself, and each effect happens once.
#[tokio::test]
async fn refused_requests_in_mid_run_are_retried_until_accepted() {
    let (stage, commands) = caller(json!({})).await;
    let items = stage.items("c");
    let pods = async || -> BTreeSet<String> {
        stage.list(POD).await.iter().map(|pod| uid_of(pod).to_owned()).collect()
    };
    let before = pods().await;
    // A case gives how calls are refused, or that the command fails, and reasons of which one is reported.
    let cases: [(&str, Option<Reaction>, &[&str]); 3] = [
        ("post-patient", Some(Reaction::Is(503, Value::Null)), &["503"]),
        ("post-patient", Some(Reaction::Cut), &["connection", "no complete answer"]),
        ("exec-retried", None, &["exit"]),
    ];
    for (plan, refusal, reasons) in cases {
        let is_call = refusal.is_some();
        match refusal {
            Some(reaction) => api().always("POST", &items, reaction),
            None => commands.fails("flaky", Some("refused")),
        }
        let attempts = || api().calls("POST", &items).len() + commands.calls("flaky").len();
        let first = attempts();
        let run = stage.request(KIND, "c", plan, &Value::Null).await;
        eventually("four attempts", LONG, async || match attempts() - first {
            4.. => Ok(()),
            count => Err(count),
        })
        .await;
        let holds = |o: &Value| {
            let told = o["status"]["conditions"].to_string();
            !is_ready(o) && reasons.iter().any(|reason| told.contains(reason))
        };
        stage.until("the reason", CALLER, "c", holds).await;
        assert_eq!(phase(&stage.get(PLAN_RUN, &run).await), "Running");
        if is_call {
            api().lift(&items);
        } else {
            commands.fails("flaky", None);
        }
        stage.run_is(&run, "Succeeded").await;
        stage.ready(CALLER, "c").await;
    }
    assert_eq!(pods().await, before);
    let made = api().items(&items);
    assert_eq!(made.iter().map(|item| item.effects).collect::<Vec<_>>(), [1, 1], "{made:#?}");
}

/// 90 calls of one namespace hang, which is more than it may have at a time. A call of another namespace is
/// made at once, and so is a call of a cleanup in the same namespace.
#[tokio::test]
async fn hanging_calls_of_one_tenant_delay_no_other() {
    const HANGING_ROOM: Kind = kind("hang.operetta.dev/v1", "rooms");
    // No hanging call may end before the other call is made.
    let change =
        |text: String| text.replace("timeout: 3s", "timeout: 20m").replace("timeout: 1m", "timeout: 1h");
    let copy = copy_package(&fixture("plans-cleanup"), "fixtures.operetta.dev", "hang.operetta.dev", change);
    let folder = with_api(copy.path(), api());
    let flags = ["--leader-elect=false", "--leader-elect-resource-name=hang", LOOPBACK];
    let plane = plane_of_tests().await;
    let _manager = run_flags(&plane, &flags, &[folder.path().to_str().unwrap()]).watching(2).await;
    let (hostile, other) = (Scene::unmanaged().await, Scene::unmanaged().await);
    let of_hostile = format!("/{}/", hostile.namespace());
    hostile.apply(&super::instance(("Room", HANGING_ROOM), "booked", json!({})).to_string()).await;
    hostile.ready(HANGING_ROOM, "booked").await;
    api().always("POST", &of_hostile, Reaction::DoneAndSilent);
    let rooms: Vec<Value> = (0..90)
        .map(|number| super::instance(("Room", HANGING_ROOM), &format!("r-{number}"), json!({})))
        .collect();
    hostile.apply(&json!({"apiVersion": "v1", "kind": "List", "items": rooms}).to_string()).await;
    eventually("as many calls as one namespace may have under way", LONG, async || {
        match api().calls("POST", &of_hostile).len() {
            69.. => Ok(()),
            count => Err(count),
        }
    })
    .await;
    other.apply(&super::instance(("Room", HANGING_ROOM), "r", json!({})).to_string()).await;
    other.ready(HANGING_ROOM, "r").await;
    hostile.kubectl(&["delete", "rooms.hang.operetta.dev", "booked"]).await;
    assert_eq!(api().calls("DELETE", &of_hostile).len(), 1);
    assert_eq!(api().calls("POST", &of_hostile).len(), 1 + 64 + 4);
    api().lift(&of_hostile);
    for name in ["r-0", "r-89"] {
        hostile.ready(HANGING_ROOM, name).await;
    }
}
