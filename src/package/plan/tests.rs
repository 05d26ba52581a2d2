use serde_json::json;

use super::*;
use crate::template::Var;
use crate::test_crd::crd_to_properties;
use crate::{Files, Package, compile};

/// The properties of the CRD's schema.
const PROPERTIES: &str = "            spec:
              type: object
              properties:
                size: {type: integer}
                host: {type: string}
                pod: {type: object, properties: {resources: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
";

/// A package with these plans and the children `config` and `members`.
fn package(plans: &str) -> Package {
    compiled(plans).unwrap_or_else(|errors| panic!("{}", crate::diag::render(&errors, false)))
}

fn compiled(plans: &str) -> Result<Package, Vec<crate::diag::Diagnostic>> {
    let operator = format!(
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {{name: web}}
spec:
  version: 0.1.0
  defaults: {{api: http://api}}
  resources:
    - crd: crds/web.yaml
      children:
        - {{id: config, template: templates/config.yaml, onLoss: repair, lostWhen: self.data.a == 'x'}}
        - {{id: members, template: templates/member.yaml, forEach: {{in: range(3), as: i}}}}
        - {{id: other, template: templates/other.yaml, onLoss: \"{{{{ 'repair' if spec.size > 1 else 'Recreate' }}}}\"}}
      plans:
        repair: {{steps: [{{name: all, apply: [config]}}]}}
{plans}
"
    );
    let config = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{name}\"}}\n");
    let job = "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: []}}}\n";
    let files = [
        ("operator.yaml", operator.as_str()),
        ("crds/web.yaml", &(crd_to_properties("example.com", "webs", "Web") + PROPERTIES)),
        ("templates/config.yaml", &config("c")),
        ("templates/member.yaml", &config("m-{{ i }}")),
        ("templates/other.yaml", &config("o")),
        ("templates/job.yaml", job),
    ];
    compile(&Files::from_texts("p", files)).map(|(package, _)| package)
}

fn plan(package: &Package, name: &str) -> Plan {
    package.resources[0].plan(name).unwrap().clone()
}

#[test]
fn triggers_may_be_words_maps_or_lists() {
    let package = package(
        "
        deploy: {steps: [{name: a, apply: [config]}]}
        update: {steps: [{name: a, apply: [config]}]}
        upgrade: {steps: [{name: a, apply: [config]}]}
        cleanup: {onFailure: Skip, steps: [{name: a, delete: [config]}]}
        asked: {steps: [{name: a, apply: [config]}]}
        mixed:
          trigger:
            - {changed: [spec.size, spec.pod, metadata.annotations.example.com/at]}
            - {condition: children.config is not ready, for: 1m30s, cooldown: 5m, during: always, when: spec.size > 1}
            - {schedule: '@every 6h', timeZone: Europe/Rome, startingDeadline: 1h, suspend: spec.size == 0}
          steps: [{name: a, apply: [config]}]",
    );
    let events = |name: &str| {
        plan(&package, name).triggers.into_iter().map(|trigger| trigger.event).collect::<Vec<_>>()
    };
    assert!(matches!(events("deploy").as_slice(), [Event::Created]));
    assert!(matches!(events("update").as_slice(), [Event::Changed(paths)] if paths.is_empty()));
    assert!(matches!(events("upgrade").as_slice(), [Event::Upgraded]));
    assert!(matches!(events("cleanup").as_slice(), [Event::Deleted]));
    assert!(events("asked").is_empty());
    assert_eq!(plan(&package, "cleanup").on_cleanup_failure, Some(CleanupFailure::Skip));
    let mixed = plan(&package, "mixed");
    let [changed, condition, schedule] = mixed.triggers.as_slice() else { panic!("three triggers") };
    let annotation = ChangedPath::Metadata { field: "annotations", key: "example.com/at".into() };
    let path = |path: &[&str]| ChangedPath::Spec(path.iter().map(ToString::to_string).collect());
    assert!(
        matches!(&changed.event, Event::Changed(paths) if *paths == [path(&["spec", "size"]), path(&["spec", "pod"]), annotation])
    );
    let Event::Condition { hold, cooldown, always, .. } = &condition.event else { panic!("a condition") };
    let literal = |text: &Option<Text>| text.as_ref().and_then(|text| text.as_literal().cloned());
    assert_eq!(
        (literal(hold), literal(cooldown), *always, condition.when.is_some()),
        (Some(json!("1m30s")), Some(json!("5m")), true, true)
    );
    let Event::Schedule { time_zone, starting_deadline, suspend, .. } = &schedule.event else {
        panic!("a schedule")
    };
    assert_eq!(starting_deadline.map(|deadline| deadline.as_secs()), Some(3600));
    assert!(time_zone.is_some() && suspend.is_some());
}

#[test]
fn steps_have_one_action_and_modifiers() {
    let package = package(
        r#"
        deploy:
          params: {type: object, properties: {to: {type: string}}}
          concurrency: Queue
          interruptible: false
          steps:
            - {name: only, record: {first: true, count: 3}}
            - name: phase
              strategy: parallel
              forEach: {in: range(spec.size), as: m, maxParallel: 2}
              steps:
                - {name: one, apply: ["members[0]", "members[{{ m }}]", "members['0']"], until: 'children.members[m] is ready'}
                - {name: two, delete: [config], onFailure: Continue, timeout: "{{ spec.size }}m"}
            - name: call
              http: {method: POST, url: "{{ defaults.api }}/x/{{ spec.host }}", json: {a: [1, "{{ spec.size }}"]}, headers: {x-a: b}}
              expect: [200, 201]
              retries: {limit: 3}
              outputs: {id: body.id, all: {jsonPath: ".body.items[?(@.a=='b')].id"}, token: {value: body.token, secret: true}}
              record: {booking: outputs.id}
            - {name: ask, http: {url: "{{ defaults.api }}/x"}, expect: body.ready}
            - {name: run, exec: {child: "members[1]", ordinal: 0, container: c, command: [ls, "{{ omit }}", -l], stdin: x}, idempotent: true}
            - {name: computed, unless: outputs.call.id, exec: {child: config, command: "{{ ['a'] + [name] }}"}}
            - {name: job, job: {template: templates/job.yaml}, outputs: {m: message}, onFailure: repair}
            - {name: path, wait: {jsonPath: .children.config.data.a, value: b}}
            - {name: sleep, wait: {duration: 10s}, message: "sleeping"}
            - {name: mark, patch: {apiVersion: v1, kind: Node, name: x1, merge: {metadata: {labels: {a: b}}}}}
            - {name: again, plan: repair}
            - {name: other, plan: {name: go, of: {apiVersion: example.com/v1, kind: Web, name: b}, params: {to: x}}}
            - {name: sure, approve: {message: "ok?", count: 2, notRequester: true}}
            - {name: stop, when: spec.size > 9, fail: {message: "too many: {{ run.params.to }}"}}"#,
    );
    let deploy = plan(&package, "deploy");
    assert_eq!(
        (deploy.concurrency, deploy.exclusive, deploy.interruptible),
        (Concurrency::Queue, true, false)
    );
    let step = |name: &str| deploy.steps.iter().find(|step| step.name == name).unwrap();
    let engine = &package.engine;
    let scope = Scope::new()
        .with("m", Var::Json(json!(2)))
        .with("name", Var::Json(json!("w")))
        .with("children", Var::Json(json!({"config": {"data": {"a": "b"}}})));
    assert!(matches!(step("only").action, Action::Record));
    assert_eq!(step("only").record.len(), 2);
    let phase = step("phase");
    let Action::Steps(Strategy::Parallel, inner) = &phase.action else { panic!("a phase") };
    let each = phase.for_each.as_ref().expect("a loop");
    assert_eq!(each.as_, "m");
    assert_eq!(each.max_parallel.as_ref().and_then(|most| most.as_literal()), Some(&2.into()));
    let Action::Apply(members) = &inner[0].action else { panic!("apply") };
    let keys: Vec<_> = members
        .iter()
        .map(|member| engine.eval_text(member.key.as_ref().unwrap(), &scope).unwrap().unwrap())
        .collect();
    assert_eq!(keys, [json!(0), json!(2), json!("0")]);
    assert_eq!(inner[1].on_failure, OnFailure::Continue);
    let call = step("call");
    assert!(matches!(&call.expect, Some(Expect::Statuses(statuses)) if *statuses == [200, 201]));
    assert_eq!(
        call.retries,
        Some(Retries {
            limit: Some(3),
            backoff: Duration::from_secs(5),
            max_backoff: Duration::from_secs(300)
        })
    );
    let shown: Vec<_> = call
        .outputs
        .iter()
        .map(|output| (output.name.as_str(), output.search.is_some(), output.secret))
        .collect();
    assert_eq!(shown, [("id", false, false), ("all", true, false), ("token", false, true)]);
    let Action::Http(http) = &call.action else { panic!("http") };
    assert_eq!(
        (http.method.as_str(), http.redirects, http.max_bytes, http.attempt_timeout.as_secs()),
        ("POST", 0, 1 << 20, 30)
    );
    assert!(matches!(&step("ask").expect, Some(Expect::Holds(_))));
    let Action::Exec(exec) = &step("run").action else { panic!("exec") };
    assert_eq!(exec.command.eval(engine, &scope), Ok(Some(json!(["ls", "-l"]))));
    let Action::Exec(exec) = &step("computed").action else { panic!("exec") };
    assert_eq!(exec.command.eval(engine, &scope), Ok(Some(json!(["a", "w"]))));
    assert!(matches!(&step("job").action, Action::Job { template } if template == "templates/job.yaml"));
    assert_eq!(step("job").on_failure, OnFailure::Plan("repair".to_owned()));
    let Action::Wait(until) = &step("path").action else { panic!("wait") };
    assert_eq!(until.holds(engine, &scope), Ok(true));
    assert!(matches!(&step("sleep").action, Action::Pause(_)));
    assert!(
        matches!(&step("other").action, Action::Plan(call) if call.of.is_some() && call.params.is_some())
    );
    assert!(matches!(&step("sure").action, Action::Approve { count: 2, not_requester: true, .. }));
    assert!(matches!(&step("stop").action, Action::Fail(_)));
}

#[test]
fn on_loss_of_children_is_compiled() {
    let package = package("        deploy: {steps: [{name: all, apply: [config]}]}");
    let loss = |id: &str| &package.resources[0].child(id).unwrap().on_loss;
    assert!(matches!(loss("config"), OnLoss::Plan(plan) if plan == "repair"));
    assert!(package.resources[0].child("config").unwrap().lost_when.is_some());
    assert!(matches!(loss("members"), OnLoss::Recreate));
    assert!(matches!(loss("other"), OnLoss::Computed(_)));
}

#[test]
fn errors_name_the_plan_and_the_step() {
    let found = compiled(
        r#"
        deploy:
          trigger: [created, {schedule: "* *"}]
          steps:
            - {name: a, record: {first: true}}
            - name: b
              steps:
                - {name: c, when: spec.sise, fail: {message: "x"}}
                - {name: d, http: {url: "http://{{ spec.host }}/"}}
                - {name: e, exec: {child: config, command: [a]}}"#,
    );
    let mut paths: Vec<_> = found.unwrap_err().into_iter().filter_map(|error| error.path).collect();
    paths.sort();
    assert_eq!(
        paths,
        [
            "plans.deploy.steps[1].steps[0]",
            "plans.deploy.steps[1].steps[1]",
            "plans.deploy.steps[1].steps[2]", // it needs `config`, which no step has applied
            "plans.deploy.trigger[1].schedule",
            "spec.resources[0].plans.deploy.steps[1].steps[2].exec",
        ]
    );
}
