//! Every command and every HTTP request is refused for ten minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::faults::case::{Case, Subject};
use crate::support::faults::{Fault, Rule, Verb};
use crate::support::plans::{Api, Commands, PLAN_RUN, Reaction, phase, story_of};
use crate::support::{CONFIG_MAP, LONG, POD, condition, eventually, is_ready, name_of, uid_of};

const OUTAGE: Subject = Subject {
    folder: "tests/fixtures/packages/plans-outage",
    name: "plans-outage",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Beacon",
    plural: "beacons",
    inner: None,
    children: &[CONFIG_MAP, POD],
    elsewhere: &[],
};

const MINUTE: Duration = Duration::from_secs(60);
/// One instance has no run; the runs of the others reach a command and a request.
const NAMES: [&str; 3] = ["peace", "exec", "post"];

/// The uids of all children, by name.
async fn children(case: &Case) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for kind in [CONFIG_MAP, POD] {
        for object in case.scene.list(kind).await {
            if object["metadata"]["labels"]["operetta.dev/instance"].is_string() {
                found.insert(name_of(&object).to_owned(), uid_of(&object).to_owned());
            }
        }
    }
    found
}

/// The plans and phases of all runs, by instance.
async fn runs(case: &Case) -> BTreeSet<String> {
    let runs = case.scene.list(PLAN_RUN).await;
    let told = |run: &Value| {
        format!("{} {} {}", run["spec"]["of"]["name"], run["spec"]["plan"], phase(run)).replace('"', "")
    };
    runs.iter().map(told).collect()
}

#[tokio::test]
async fn all_commands_and_requests_are_refused_for_ten_minutes() {
    let (api, commands) = (Api::shared(), Commands::new());
    commands.prints("peers", "[\"a\", \"b\"]");
    commands.prints("say", "ahoy");
    let url = api.url();
    let case = Case::of(&OUTAGE, 0).await.with_change(|text| text.replace("http://api.invalid", &url));
    let scene = &case.scene;
    let process = case.start().await;
    let spec = |stage: &str| json!({"stage": stage, "script": commands.script()});
    for name in NAMES {
        api.put(&format!("/{}/{name}/watched", scene.namespace()), json!({}));
        case.apply(name, &spec("one")).await;
    }
    for name in NAMES {
        case.ready(name).await;
    }
    let all = format!("/{}/", scene.namespace());
    let (before, said) = (children(&case).await, commands.calls("say").len());
    assert_eq!(before.len(), 12, "{before:?}");
    assert_eq!((said, api.items(&all).iter().filter(|item| item.effects == 1).count()), (3, 3));

    case.wire.rule(Rule::on(&[Verb::Get, Verb::Create], Fault::Refused).commands(&[]));
    api.always("GET", &all, Reaction::Cut);
    api.always("POST", &all, Reaction::Is(503, Value::Null));
    case.apply("exec", &spec("two")).await;
    case.apply("post", &spec("post")).await;
    for name in ["exec", "post"] {
        scene.run_of(name, "deploy", |run| phase(run) == "Running").await;
    }
    let during = BTreeSet::from([
        "peace deploy Succeeded".to_owned(),
        "exec deploy Succeeded".to_owned(),
        "exec deploy Running".to_owned(),
        "post deploy Succeeded".to_owned(),
        "post deploy Running".to_owned(),
    ]);
    for passed in 1..=10 {
        tokio::time::sleep(MINUTE).await;
        assert_eq!(children(&case).await, before, "after {passed} minutes");
        assert_eq!(runs(&case).await, during, "after {passed} minutes");
        for (name, words) in [
            ("peace", &["refs.peers", "refs.item"][..]),
            ("exec", &["say", "attempt"]),
            ("post", &["post", "503"]),
        ] {
            // Look between two attempts: during one its failure is not known yet.
            let object =
                eventually(&format!("{name} to say why, after {passed} minutes"), LONG, async || {
                    let object = scene.get(case.kind, name).await;
                    let told = condition(&object, "Ready")["message"].to_string();
                    let is_told = !is_ready(&object) && words.iter().all(|word| told.contains(word));
                    if is_told { Ok(object) } else { Err(told) }
                })
                .await;
            let status = &object["status"];
            assert_eq!(
                (&status["watched"], &status["peers"]),
                (&json!("made"), &json!(["a", "b"])),
                "{name}"
            );
            assert!(status["alarm"].is_null(), "{status:#}");
        }
    }
    assert_eq!(commands.calls("say").len(), said);

    // Everything continues by itself.
    case.wire.heal();
    api.lift(&all);
    tokio::time::sleep(MINUTE * 2).await;
    for (name, commands_of_run) in [("exec", true), ("post", false)] {
        case.ready(name).await;
        let run = scene.run_of(name, "deploy", |run| phase(run) == "Succeeded").await;
        let used = Duration::from_millis(run["status"]["usedMilliseconds"].as_u64().unwrap_or_default());
        assert!(used >= MINUTE * 10, "it ran for {used:?}: {}", story_of(&run));
        let items = api.items(&format!("/{}/{name}/items", scene.namespace()));
        assert_eq!(items.iter().map(|item| item.effects).collect::<Vec<_>>(), [1, 1], "{items:#?}");
        assert_eq!(items[1].body["stage"], if commands_of_run { "two" } else { "post" });
    }
    case.ready("peace").await;
    assert_eq!(commands.calls("say").len(), said + 1);
    assert_eq!(children(&case).await, before);
    let after = runs(&case).await;
    assert!(after.iter().all(|run| run.ends_with("deploy Succeeded")), "{after:?}");
    case.finish(process).await;
}
