//! Secret outputs, and the pods of workloads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::children::model::Call;
use crate::plan::{Reply, SecretOutputs, request::HttpReply};

fn package_of(steps: &str) -> Arc<Package> {
    let resource = format!(
        "children:\n  - {{id: sts, template: templates/sts.yaml}}\nplans:\n  deploy:\n    steps:\n      \
         - {{name: all, apply: [sts]}}\n  ask:\n    steps:\n{steps}"
    );
    let sts = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: \"{{ name }}\"}\n\
               spec: {selector: {matchLabels: {app: x}}, serviceName: s, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}}\n";
    package(&resource, &[("sts", sts.into())])
}

fn deployed(steps: &str) -> World {
    let mut world = World::with_runs(package_of(steps), &json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    world
}

/// Decides and acts as often as a reconcile may.
fn advance(world: &mut World) {
    for _ in 0..20 {
        let decision = world.decide();
        let is_call =
            |action: &Action| matches!(action, Action::Run(run) if matches!(**run, RunAction::Call(..)));
        let is_sent = decision.actions.iter().any(is_call);
        world.carry_out(decision.actions, Vec::new());
        if is_sent {
            return;
        }
    }
}

#[test]
fn secret_outputs_are_stored_once_and_read_back_after_a_restart() {
    let steps = "      - {name: login, http: {method: POST, url: 'http://a.example'}, outputs: {token: {value: body.token, secret: true}}}\n      \
                 - {name: use, http: {method: POST, url: 'http://a.example', auth: {bearer: '{{ outputs.login.token }}'}}}\n";
    let mut world = deployed(steps);
    request(&mut world, "mine", "ask");
    advance(&mut world);
    let reply =
        HttpReply { status: 200, headers: Vec::new(), body: json!({"token": "s3cret"}), retry_after: None };
    let key = CallKey { run: "uid-mine".into(), step: "login".into(), attempt: 1 };
    let answer = Arc::new(Call::Answered(Reply::Http(reply)));
    world.store().calls.requests.insert(key, answer);
    world.store().log.clear();
    for _ in 0..10 {
        let decision = world.decide();
        world.carry_out(decision.actions, Vec::new());
    }
    let log = world.store().log.clone();
    let stores: Vec<_> = log.iter().filter(|line| line.starts_with("store")).collect();
    assert_eq!(stores.len(), 1, "{log:?}");
    assert!(log.last().unwrap().contains("Bearer s3cret"), "{log:?}");
    let run = world.store().runs["mine"].clone();
    assert!(!run.to_string().contains("s3cret"), "{run}");

    // Another process: the values are in the Secret alone.
    world.restart();
    world.store().calls = Calls::default();
    world.store().log.clear();
    let decision = world.decide();
    assert!(
        decision
            .findings
            .iter()
            .any(|finding| finding.to_string().contains("does not hold the secret outputs")),
        "{:?}",
        decision.findings
    );
    let want = decision
        .needs
        .watches
        .iter()
        .find(|want| &*want.gvk.kind == "Secret")
        .expect("the Secret is watched")
        .clone();
    let Select::Name(name) = &want.select else { panic!("{want}") };
    let (stored, key) = (world.store().secret["data"].clone(), names::short_hash("login", 10));
    let secret = |entry: &str| {
        referred(json!({"metadata": {"name": name}, "data": {&*key: STANDARD.encode(entry)}}), true)
    };
    let ours = String::from_utf8(STANDARD.decode(stored[&*key].as_str().unwrap()).unwrap()).unwrap();
    let values = json!({"token": "other"}).to_string();
    let next = |world: &mut World, entry: &str| {
        world.foreign = vec![secret(entry)];
        let decision = world.decide();
        world.carry_out(decision.actions, Vec::new());
        world.store().log.join("\n")
    };
    // What somebody else has written there is not what the run has stored.
    for planted in [values.clone(), format!("{}\n{values}", "0".repeat(16)), ours.replace("s3cret", "other")]
    {
        let log = next(&mut world, &planted);
        assert!(!log.contains("Bearer"), "{planted}: {log}");
    }
    let log = next(&mut world, &ours);
    assert!(log.contains("Bearer s3cret"), "{log}");
}

/// A step with `store` is done once its answer is in the Secret of the run: somebody who has written one there makes no step pass.
#[test]
fn a_planted_answer_does_not_replace_a_request() {
    let steps = "      - {name: login, http: {method: POST, url: 'http://a.example'}, store: {child: keys, data: {token: body.token}}}\n";
    let resource = format!(
        "children:\n  - {{id: keys, template: templates/keys.yaml, deletionPolicy: Retain}}\nplans:\n  deploy:\n    steps:\n      \
         - {{name: all, apply: [keys]}}\n  ask:\n    steps:\n{steps}"
    );
    let keys = "apiVersion: v1\nkind: Secret\nmetadata: {name: \"{{ name }}\"}\n";
    let mut world = World::with_runs(package(&resource, &[("keys", keys.into())]), &json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    let answer = json!({"(answer)": {"status": 200, "headers": {}, "body": {"token": "planted"}}});
    let name = format!("a-outputs-{}", names::short_hash("uid-mine", 10));
    let data = json!({names::short_hash("login", 10): STANDARD.encode(answer.to_string())});
    let uid = world.objects["Secret/a"].uid.to_string();
    for (name, uid, data) in [(&*name, "b", data), ("a", &*uid, json!({}))] {
        let value = json!({"metadata": {"name": name, "uid": uid}, "data": data});
        world.foreign.push(referred(value, true));
    }
    request(&mut world, "mine", "ask");
    advance(&mut world);
    let log = world.store().log.clone();
    assert!(log.iter().any(|line| line.starts_with("login: ")), "{log:?}");
}

/// The outputs of a failed run stay for a retry. The outputs of other runs are dropped when the run has
/// ended.
#[test]
fn secret_outputs_are_dropped_once_no_run_can_read_them() {
    let steps = "      - {name: login, http: {method: POST, url: 'http://a.example'}, outputs: {token: {value: body.token, secret: true}}}\n      \
                 - {name: use, http: {method: POST, url: 'http://a.example', auth: {bearer: '{{ outputs.login.token }}'}}}\n";
    let answer = |world: &mut World, run: &str, step: &str, status: u16| {
        let body = json!({"token": "s3cret"});
        let reply = HttpReply { status, headers: Vec::new(), body, retry_after: None };
        let answered = Call::Answered(Reply::Http(reply));
        let is_it = |key: &&CallKey| &*key.run == run && &*key.step == step;
        let last =
            world.store().calls.requests.keys().filter(is_it).map(|key| key.attempt).max().unwrap_or(0);
        let key = CallKey { run: run.into(), step: step.into(), attempt: last + 1 };
        world.store().calls.requests.insert(key, Arc::new(answered));
        world.store().log.clear();
        advance(world);
        world.store().log.iter().filter(|line| line.starts_with("empty")).count()
    };
    for (status, ends, emptied) in [(200, "Succeeded", 1), (400, "Failed", 0)] {
        let mut world = deployed(steps);
        request(&mut world, "mine", "ask");
        advance(&mut world);
        assert_eq!(answer(&mut world, "uid-mine", "login", 200), 0);
        assert_eq!(answer(&mut world, "uid-mine", "use", status), emptied);
        let run = &world.store().runs["mine"]["status"];
        assert_eq!(run["phase"], ends, "{run:#}");
        assert_eq!(run.to_string().contains("not kept"), emptied > 0, "{run:#}");
        // The outputs are dropped only once.
        world.store().log.clear();
        advance(&mut world);
        assert!(world.store().log.is_empty(), "{:?}", world.store().log);
    }
}

#[test]
fn a_command_runs_in_the_pod_that_its_controller_owns() {
    let steps = "      - {name: run, exec: {child: sts, ordinal: 0, command: [echo]}, idempotent: true}\n";
    let mut world = deployed(steps);
    let uid = world.objects["StatefulSet/a"].uid.to_string();
    let pod = |owner: &str| {
        let owners = json!([{"controller": true, "uid": owner}]);
        referred(json!({"metadata": {"name": "a-0", "uid": "pod", "ownerReferences": owners}}), true)
    };
    world.foreign.push(pod("another"));
    request(&mut world, "mine", "ask");
    world.settle();
    assert!(world.store().log.is_empty());
    world.foreign[0] = pod(&uid);
    advance(&mut world);
    advance(&mut world);
    let log = world.store().log.clone();
    assert!(log.last().is_some_and(|line| line.contains("a-0") && line.contains("echo")), "{log:?}");
}

#[test]
fn debug_output_of_actions_hides_secret_outputs() {
    let values = SecretOutputs(serde_json::Map::from_iter([("a".to_owned(), json!("s3cret"))]));
    assert!(!format!("{values:?}").contains("s3cret"));
}
