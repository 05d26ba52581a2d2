//! Rules, captures, state and faults.

use std::time::Duration;

use serde_json::json;

use super::*;

#[test]
fn the_first_rule_that_holds_answers() {
    let mut play = Play::of(
        "pods:\n\
         - {when: pod.metadata.labels.slow, readyAfter: 1m, message: slow}\n\
         - {when: pod.metadata.labels.job, endsAfter: '{{ 2 }}s', exitCode: '{{ 1 + 1 }}', message: '{{ {\"a\": 1} }}'}\n\
         - {when: pod.metadata.labels.never, readyAfter: never}\n",
    );
    let labelled = |name: &str| {
        let mut pod = pod(name);
        pod["metadata"]["labels"] = json!({name: "x"});
        pod
    };
    let second = |seconds| Some(Duration::from_secs(seconds));
    let course = play.start(&labelled("slow"));
    assert_eq!(course, Course { ready_after: second(60), message: "slow".into(), ..Course::default() });
    let course = play.start(&labelled("job"));
    assert_eq!(
        course,
        Course {
            ready_after: second(0),
            ends_after: second(2),
            exit_code: 2,
            message: "{\"a\":1}".into(),
            ..Course::default()
        }
    );
    assert_eq!(play.start(&labelled("never")).ready_after, None);
    // Without a rule, as without a world.
    assert_eq!(play.start(&pod("other")).ready_after, second(1));
    assert!(play.world.faults().is_empty());
}

#[test]
fn a_service_has_the_address_of_the_first_rule_that_holds() {
    let mut play = Play::of(
        "state: {next: 5}\n\
         loadBalancers:\n\
         - {when: \"service.metadata.name == 'none'\", address: ''}\n\
         - {when: service.metadata.labels.host, address: '{{ service.metadata.labels.host }}.{{ owner.metadata.name }}'}\n\
         - {address: '203.0.113.{{ state.next }}'}\n",
    );
    let mut address = |name: &str, labels: Value| {
        let metadata = json!({"name": name, "namespace": "n", "uid": name, "labels": labels});
        let now = play.now();
        play.world.address(
            &json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata}),
            &play.objects,
            now,
        )
    };
    assert_eq!(address("none", json!({})), None);
    assert_eq!(address("a", json!({"host": "x"})).as_deref(), Some("x.a"));
    assert_eq!(address("a", json!({})).as_deref(), Some("203.0.113.5"));
    assert!(play.world.faults().is_empty());
    let mut empty = Play::of("pods: []\n");
    let now = empty.now();
    assert_eq!(empty.world.address(&pod("a"), &empty.objects, now), None);
}

#[test]
fn commands_are_taken_apart() {
    let mut play = Play::of(
        "exec:\n\
         - {command: [get, {id: '[0-9]+'}], stdout: 'number {{ id }}'}\n\
         - {command: [get, {id}], container: other, stdout: other}\n\
         - {command: [get, '{a}={b}'], stdout: '{{ b }} {{ a }}'}\n\
         - {command: [get, ..., '--last={x}'], stdout: '{{ command | length }} {{ x }}', takes: 3s}\n\
         - {command: [fail], stdout: out, stderr: err, exitCode: 3}\n",
    );
    play.start(&pod("a"));
    assert_eq!(play.prints("a", "get 17"), "number 17");
    assert_eq!(play.prints("a", "get x=y"), "y x");
    assert_eq!(play.prints("a", "get 1 2 --last=9"), "4 9");
    assert_eq!(play.exec("a", "get --last=9").takes, Duration::ZERO, "the rule before fits");
    let failed = play.exec("a", "fail");
    assert_eq!((&*failed.stdout, &*failed.stderr, failed.exit_code), ("out", "err", 3));
    let unknown = play.exec("a", "get x");
    assert_eq!(
        (unknown.exit_code, &*unknown.stderr),
        (127, "no rule says what `get x` does in container c: w.yaml\n")
    );
    assert!(play.world.faults().is_empty());
}

#[test]
fn changes_see_what_the_changes_before_have_made() {
    let mut play = Play::of(
        "state: {list: [], map: {}, count: 0}\n\
         shared: {calls: 0}\n\
         exec:\n\
         - command: [add, {name}]\n\
        \x20 do:\n\
        \x20 - set: {state.count: '{{ state.count + 1 }}', state.map.last.name: '{{ name }}', shared.calls: '{{ shared.calls + 1 }}'}\n\
        \x20 - {add: state.list, item: {name: '{{ name }}', number: '{{ state.count }}'}}\n\
        \x20 stdout: '{{ state }}'\n\
         - command: [change, {name}]\n\
        \x20 do: [{change: state.list, where: item.name == name, set: {number: '{{ item.number * 10 }}', more.deep: true}}]\n\
        \x20 stdout: '{{ state.list }}'\n\
         - command: [remove, {name}]\n\
        \x20 do:\n\
        \x20 - {remove: state.list, where: item.name == name}\n\
        \x20 - {remove: state.map, where: key == 'last'}\n\
        \x20 - {when: name == 'b', set: {state.count: '{{ omit }}'}}\n\
        \x20 stdout: '{{ state | to_json }} {{ shared.calls }}'\n\
         - command: [all]\n\
        \x20 do: [{forEach: {in: range(3), as: i}, add: state.list, item: '{{ i + state.list | length }}'}]\n\
        \x20 stdout: '{{ state.list }}'\n",
    );
    play.start(&pod("a"));
    let first = r#"{"count":1,"list":[{"name":"a","number":1}],"map":{"last":{"name":"a"}}}"#;
    assert_eq!(play.prints("a", "add a"), first);
    play.prints("a", "add b");
    let changed = r#"[{"name":"a","number":1},{"more":{"deep":true},"name":"b","number":20}]"#;
    assert_eq!(play.prints("a", "change b"), changed);
    let removed = r#"{"list":[{"name":"a","number":1}],"map":{}} 2"#;
    assert_eq!(play.prints("a", "remove b"), removed);
    assert_eq!(play.prints("a", "all"), r#"[{"name":"a","number":1},1,3,5]"#);
}

#[test]
fn instances_have_states_of_their_own() {
    let mut play = Play::of(
        "state: {num: 0}\nshared: {num: 0}\n\
         exec: [{command: [up], do: [{set: {state.num: '{{ state.num + 1 }}', shared.num: '{{ shared.num + 1 }}'}}], \
         stdout: '{{ state.num }} {{ shared.num }} {{ pods | map(attribute=\"metadata.name\") | join(\",\") }}'}]\n",
    );
    let definition = json!({"kind": "CustomResourceDefinition", "metadata": {"name": "dbs.x.org"}, "spec": {
        "group": "x.org", "names": {"kind": "Db"}, "versions": [{"name": "v1", "storage": true}]}});
    play.objects.put(definition);
    for name in ["one", "two"] {
        play.objects.put(json!({"kind": "Db", "metadata": {"name": name, "namespace": "n", "uid": name}}));
        play.objects.put(
            json!({"kind": "Job", "metadata": {"name": name, "namespace": "n", "uid": format!("j-{name}"),
            "labels": {"operetta.dev/kind": "Db.x.org", "operetta.dev/instance": name}}}),
        );
        let mut direct = pod(&format!("{name}-0"));
        direct["metadata"]["labels"] =
            json!({"operetta.dev/kind": "Db.x.org", "operetta.dev/instance": name});
        play.start(&direct);
        let mut of_job = pod(&format!("{name}-1"));
        of_job["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": format!("j-{name}"), "controller": true}]);
        play.start(&of_job);
    }
    assert_eq!(play.prints("one-0", "up"), "1 1 one-0,one-1");
    assert_eq!(play.prints("one-1", "up"), "2 2 one-0,one-1");
    assert_eq!(play.prints("two-1", "up"), "1 3 two-0,two-1");
    play.stop("n", "two-1");
    assert_eq!(play.prints("two-0", "up"), "2 4 two-0");
}

#[test]
fn the_environment_is_resolved() {
    let mut play =
        Play::of("exec: [{command: [env], stdout: '{{ env }}'}, {command: [disks], stdout: '{{ disks }}'}]");
    play.objects.put(json!({"kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n"}, "data": {"k": "v", "l": "w"}}));
    play.objects.put(
        json!({"kind": "Secret", "metadata": {"name": "s", "namespace": "n"}, "data": {"p": "aHVudGVy"}}),
    );
    play.objects.put(
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "d", "namespace": "n", "uid": "claim"}}),
    );
    let mut pod = pod("a");
    pod["metadata"]["labels"] = json!({"a/b": "label"});
    pod["spec"]["containers"][0] = json!({"name": "c", "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "M_"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "p"}}},
            {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
            {"name": "E", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "p"}}}]});
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}, {"name": "tmp", "emptyDir": {}}]);
    play.start(&pod);
    let env = r#"{"A":"1","B":"v","C":"hunter","D":"label","E":null,"M_k":"v","M_l":"w"}"#;
    assert_eq!(play.prints("a", "env"), env);
    assert_eq!(play.prints("a", "disks"), r#"{"/data":"claim","/tmp":"uid-a"}"#);
}

#[test]
fn http_rules_answer_requests() {
    let mut play = Play::of(
        "state: {num: 0}\n\
         http:\n\
         - {method: POST, url: 'http://{host}/x/{id}', when: query.fail, do: [{set: {state.num: 9}}], fails: connection reset}\n\
         - {method: POST, url: 'http://{host}/x/{id}', do: [{set: {state.num: '{{ state.num + 1 }}'}}], status: 201, takes: 1s,\n\
        \x20  headers: {X-Id: '{{ id }}'}, json: {num: '{{ state.num }}', got: '{{ body.a }}', q: '{{ query.q }}', key: '{{ headers[\"idempotency-key\"] }}'}}\n\
         - {url: 'http://{host}/x/{id}', body: 'n is {{ state.num }}'}\n",
    );
    let reply = play.call("POST", "http://h:1/x/a%20b?q=1", "k", &json!({"a": 2})).unwrap();
    assert_eq!(reply.status, 201);
    assert_eq!(reply.takes, Duration::from_secs(1));
    assert_eq!(String::from_utf8(reply.body).unwrap(), r#"{"got":2,"key":"k","num":1,"q":"1"}"#);
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(reply.headers, [header("content-type", "application/json"), header("x-id", "a b")]);
    // Another origin is another server.
    assert_eq!(play.answer("GET", "http://other/x/1", &Value::Null), (200, json!("n is 0")));
    assert_eq!(play.answer("GET", "http://h:1/x/1", &Value::Null), (200, json!("n is 1")));
    // The answer is lost, and the change is made.
    assert_eq!(
        play.call("POST", "http://h:1/x/1?fail=1", "", &Value::Null),
        Err("connection reset".to_owned())
    );
    assert_eq!(play.answer("GET", "http://h:1/x/1", &Value::Null), (200, json!("n is 9")));
    let unknown = play.call("GET", "http://h:1/y", "", &Value::Null);
    assert_eq!(unknown, Err("no rule says what GET http://h:1/y answers: w.yaml".to_owned()));
}

#[test]
fn faults_name_the_line_and_change_nothing() {
    let mut play = Play::of(
        "state: {num: 0}\n\
         exec:\n\
         - {command: [num], stdout: '{{ state.num }}'}\n\
         - {command: [bad], do: [{set: {state.num: 7}}], stdout: '{{ pod.spec.nothing.at.all }}'}\n\
         - {command: [code], exitCode: '{{ 999 }}'}\n\
         - {command: [time], takes: '{{ 3 }}'}\n\
         - {command: [list], do: [{add: state.num, item: 1}]}\n\
         - {command: [when], when: pod < 1}\n\
         http:\n\
         - {url: 'http://a/', json: '{{ query.x }}'}\n\
         logs: [{text: '{{ 1 // 0 }}'}]\n\
         pods: [{when: \"pod.metadata.name == 'x'\", readyAfter: '{{ pod.spec.none }}'}, {readyWhen: '1 // 0 == 1'}]\n",
    );
    play.start(&pod("a"));
    let result = play.exec("a", "bad");
    assert_eq!(result.exit_code, 126);
    assert!(
        result.stderr.starts_with("w.yaml:6:") && result.stderr.contains("exec[1].stdout"),
        "{}",
        result.stderr
    );
    assert_eq!(result.stderr.trim_end(), play.fault());
    assert_eq!(play.prints("a", "num"), "0", "the change is not kept");
    for (command, at) in
        [("code", "w.yaml:7:"), ("time", "w.yaml:8:"), ("list", "w.yaml:9:"), ("when", "w.yaml:10:")]
    {
        let result = play.exec("a", command);
        assert!(result.exit_code == 126 && result.stderr.starts_with(at), "{command}: {}", result.stderr);
    }
    let (status, text) = play.answer("GET", "http://a/", &Value::Null);
    assert!(status == 500 && text.as_str().unwrap().starts_with("w.yaml:12:"), "{text}");
    let log = play.world.log(&pod("a"), "c", &play.objects);
    assert!(log.starts_with("w.yaml:13:"), "{log}");
    assert!(!play.ready("a"));
    let course = play.start(&pod("x"));
    assert!(course.ready_after.is_none() && course.message.starts_with("w.yaml:14:"), "{course:?}");
    assert_eq!(play.world.faults().len(), 9);
}

#[test]
fn expressions_and_states_are_bounded() {
    let mut play = Play::of(
        "state: {list: [], text: ''}\n\
         exec:\n\
         - {command: [spin], stdout: '{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}'}\n\
         - {command: [grow], do: [{forEach: {in: range(20), as: i}, add: state.list, item: '{{ \"x\" * 900000 }}'}]}\n\
         - {command: [steps], do: [{forEach: {in: range(100), as: i}, when: 'range(300000) | sum > 0', set: {state.text: long}}]}\n",
    );
    play.start(&pod("a"));
    for (command, message) in [
        ("spin", "of this evaluation exceed the limit of"),
        ("grow", "the state exceeds 4 MiB"),
        ("steps", "exceeds the limit of"),
    ] {
        let result = play.exec("a", command);
        assert!(result.exit_code == 126 && result.stderr.contains(message), "{command}: {}", result.stderr);
    }
    for _ in 0..200 {
        play.exec("a", "grow");
    }
    assert_eq!(play.world.faults().len(), 100);
}

#[test]
fn a_pod_without_a_key_is_not_of_the_world() {
    let mut play = Play::of("per: '{{ pod.metadata.labels.app }}'\nexec: [{command: [x], stdout: out}]");
    play.start(&pod("a"));
    assert_eq!(play.exec("a", "x").exit_code, 127);
    let mut labelled = pod("b");
    labelled["metadata"]["labels"] = json!({"app": "b"});
    play.start(&labelled);
    assert_eq!(play.prints("b", "x"), "out");
    assert!(play.world.faults().is_empty());
}

#[test]
fn readiness_follows_the_state() {
    let mut play = Play::of("pods: [{readyWhen: 'pods | length > 1'}]");
    let mut shared = |name: &str| {
        let mut pod = pod(name);
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x"}]);
        play.start(&pod)
    };
    shared("a");
    assert!(!play.ready("a"));
    let mut other = pod("b");
    other["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x"}]);
    play.start(&other);
    assert!(play.ready("a") && play.ready("b"));
}

#[test]
fn worlds_of_several_packages_play_together() {
    let header = "apiVersion: operetta.dev/v1alpha1\nkind: World\nper: '{{ pod.metadata.labels.app }}'\n";
    let world = |name: &str, rules: &str| Source::new(name, format!("{header}{rules}"));
    let count = "stdout: '{{ pods | length }}'";
    let first =
        world("a.yaml", &format!("exec: [{{command: [a], {count}}}, {{command: [both], stdout: a}}]"));
    let second =
        world("b.yaml", &format!("exec: [{{command: [b], {count}}}, {{command: [both], stdout: b}}]"));
    let world = World::parse(&[first.clone(), second]).unwrap();
    let mut play = Play { world, objects: Fake::default(), seconds: 0 };
    let mut labelled = pod("a");
    labelled["metadata"]["labels"] = json!({"app": "x"});
    play.start(&labelled);
    assert_eq!(["a", "b", "both"].map(|command| play.prints("a", command)), ["1", "1", "a"]);
    assert!(play.exec("a", "none").stderr.ends_with("in container c: a.yaml, b.yaml\n"));
    let wrong = [Source::new("c.yaml", "x: 1"), first, Source::new("d.yaml", "")];
    let errors = World::parse(&wrong).unwrap_err();
    let files: Vec<_> = errors.iter().filter_map(|error| error.location.as_ref()).collect();
    assert!(
        ["c.yaml", "d.yaml"].iter().all(|name| files.iter().any(|at| at.source.name == *name)),
        "{errors:?}"
    );
}

#[test]
fn a_rule_can_keep_containers_waiting() {
    let mut play = Play::of("pods:\n- {waiting: ErrImagePull, message: 'no {{ pod.metadata.name }}'}\n");
    let course = play.start(&pod("a"));
    assert_eq!((&*course.waiting, &*course.message), ("ErrImagePull", "no a"));
}

#[test]
fn a_changed_world_keeps_states_that_begin_as_before() {
    let text = |count: u8, size: u8| {
        format!(
            "state: {{count: {count}, size: {size}}}\nshared: {{all: 0}}\n\
             exec:\n- command: [add]\n  do: [{{set: {{state.count: '{{{{ state.count + 1 }}}}', state.size: 9, shared.all: 7}}}}]\n\
             - {{command: [get], stdout: '{{{{ state.count }}}} {{{{ state.size }}}} {{{{ shared.all }}}} {{{{ pods | length }}}}'}}\n\
             pods:\n- {{readyWhen: state.count == 1}}\n"
        )
    };
    let mut play = Play::of(&text(0, 3));
    play.start(&pod("a"));
    play.exec("a", "add");
    assert_eq!(play.prints("a", "get"), "1 9 7 1");
    let mut changed = Play::of(&text(0, 5));
    changed.objects = std::mem::take(&mut play.objects);
    changed.world.resume(&play.world.memory(), &[pod("a")], &changed.objects, Timestamp::UNIX_EPOCH);
    assert_eq!(changed.prints("a", "get"), "1 5 7 1");
    assert!(changed.ready("a"));
}

#[test]
fn pods_answer_requests_in_their_own_state() {
    let mut play = Play::of(
        "state: {num: 0}\n\
         http:\n\
         - {url: 'http://a/x/{id}', body: outside}\n\
         - {port: 80, path: '/x/{id}', body: '{{ pod.metadata.name }} {{ id }} {{ query.q }} {{ state.num }}'}\n\
         - {path: /count, do: [{set: {state.num: '{{ state.num + 1 }}'}}], body: '{{ state.num }}'}\n",
    );
    play.start(&pod("a"));
    assert_eq!(play.asks("a", "http://a:8080/count"), Ok("1".into()));
    assert_eq!(play.asks("a", "https://s.example:80/x/b%20c?q=1"), Ok("a b c 1 1".into()));
    assert!(play.asks("a", "http://a:81/x/b").is_err(), "another port");
    assert_eq!(play.answer("GET", "http://a/x/1", &Value::Null), (200, json!("outside")));
    assert!(play.world.faults().is_empty());
}
