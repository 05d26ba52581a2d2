//! What one instance may use, all its children together.

use super::*;

/// A thousand members, each of a template.
fn thousand(template: &str) -> Arc<Package> {
    let resource = "let: {big: \"{{ spec.text | default('') }}\"}
children:
  - {id: first, template: templates/first.yaml}
  - id: m
    template: templates/m.yaml
    forEach: {in: range(spec.size), as: i, key: i}
status: {size: spec.text}
";
    package(resource, &[("first", config("{{ name }}-first")), ("m", template.to_owned())])
}

fn stalled(decision: &Decision) -> &str {
    assert!(decision.actions.is_empty() && decision.checks.is_empty(), "{:?}", decision.actions.len());
    match &decision.verdict {
        Verdict::Stalled { reason, message } if reason == "LimitExceeded" => message,
        other => panic!("{other:?}"),
    }
}

/// A template as people write it, with all that a Deployment usually has.
const ORDINARY: &str = "apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ name }}-{{ i }}
  labels: {app.kubernetes.io/name: web, app.kubernetes.io/instance: \"{{ name }}\", app.kubernetes.io/component: \"m-{{ i }}\"}
  annotations: {example.org/owner: \"{{ namespace }}/{{ name }}\"}
spec:
  replicas: 1
  revisionHistoryLimit: 3
  selector: {matchLabels: {app.kubernetes.io/name: web, app.kubernetes.io/component: \"m-{{ i }}\"}}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: web, app.kubernetes.io/component: \"m-{{ i }}\"}
    spec:
      serviceAccountName: {{ name }}
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
      topologySpreadConstraints:
        - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app.kubernetes.io/name: web}}}
      containers:
{% for container in ['web', 'proxy', 'metrics'] %}
        - name: {{ container }}
          image: registry.example.org/{{ container }}:v1.2.3
          ports: [{name: http, containerPort: 8080}, {name: metrics, containerPort: 9090}]
          env:
{% for number in range(8) %}
            - {name: \"SETTING_{{ number }}\", value: \"the value of {{ number }} of {{ container }}\"}
{% endfor %}
          livenessProbe: {httpGet: {path: /healthz, port: http}, initialDelaySeconds: 5, periodSeconds: 10}
          readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 5}
          resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 256Mi}}
          volumeMounts: [{name: config, mountPath: /etc/web, readOnly: true}, {name: cache, mountPath: /var/cache}]
{% endfor %}
      volumes:
        - {name: config, configMap: {name: \"{{ name }}-config\"}}
        - {name: cache, emptyDir: {}}
";

#[test]
fn a_thousand_ordinary_children_are_within_the_budget() {
    let world = World::new(thousand(ORDINARY), &json!({"size": 999}));
    let decision = world.decide();
    let used = decision.evaluation.used;
    assert!(decision.evaluation.exceeded.is_none(), "{:?}", decision.verdict);
    assert!(used.fuel * 5 < Totals::FULL.fuel, "{used:?}");
    assert!(used.memory * 5 < Totals::FULL.memory, "{used:?}");
    assert!(used.output * 5 < Totals::FULL.output, "{used:?}");
    // The children are written in portions.
    assert!(decision.evaluation.is_partial && decision.actions.len() > 100, "{}", decision.actions.len());
    let mut world = World::new(thousand(&config("{{ name }}-{{ i }}")), &json!({"size": 999}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1_000 });
    let used = world.decide().evaluation.used;
    assert!(used.fuel < Totals::SMALL.fuel && used.output < Totals::SMALL.output, "{used:?}");
    assert_eq!(used.bodies, 0, "there is nothing to write");
}

#[test]
fn loops_in_loops_end_at_the_limit_of_the_instance() {
    let bomb = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-{{ i }}\"}\ndata: {text: \"{% for a in range(200) %}{% for b in range(200) %}{% endfor %}{% endfor %}\"}\n";
    let world = World::new(thousand(bomb), &json!({"size": 999}));
    let decision = world.decide();
    let message = stalled(&decision);
    assert!(message.starts_with("m[") && message.contains("steps for all its templates"), "{message}");
    assert!(decision.evaluation.used.fuel <= Totals::FULL.fuel);
    let exceeded = decision.evaluation.exceeded.as_ref().unwrap();
    assert!(exceeded.is_total, "{exceeded:?}");
    // A smaller budget ends the evaluation in the same way, and sooner.
    let mut small = World::new(thousand(bomb), &json!({"size": 999}));
    small.totals = Totals::SMALL;
    let decision = small.decide();
    assert!(decision.evaluation.used.fuel <= Totals::SMALL.fuel);
    assert!(decision.needs.full_budget, "the small budget is not enough");
    assert!(!world.decide().needs.full_budget, "there is no larger one");
    small = World::new(
        package("children: [{id: a, template: templates/a.yaml}]", &[("a", config("{{ name }}"))]),
        &json!({}),
    );
    small.totals = Totals::SMALL;
    assert!(!small.decide().needs.full_budget);
}

#[test]
fn large_values_in_many_children_end_at_the_limit_of_the_instance() {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-{{ i }}\"}\ndata: {text: \"{{ spec.text }}\"}\n";
    let mut world = World::new(thousand(template), &json!({"size": 999, "text": "x".repeat(900 << 10)}));
    let paused = json!({"operetta.dev/paused": "true"});
    for annotations in [Value::Null, paused] {
        world.instance["metadata"]["annotations"] = annotations;
        let decision = world.decide();
        let message = stalled(&decision);
        assert!(message.starts_with("m[") && message.contains("MiB"), "{message}");
    }
}

#[test]
fn one_evaluation_over_its_limit_stops_the_instance() {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-{{ i }}\"}\ndata: {text: \"{{ 'x' * (10 ** 9 if i == 3 else 1) }}\"}\n";
    let mut world = World::new(thousand(template), &json!({"size": 3}));
    assert_eq!(world.settle(), Verdict::Ready { children: 4 });
    world.edit(json!({"size": 10}));
    let decision = world.decide();
    assert!(stalled(&decision).starts_with("m[3]: "), "{:?}", decision.verdict);
    assert!(!decision.evaluation.exceeded.unwrap().is_total);
    world.settle();
    assert_eq!(world.objects.len(), 4, "what is there stays");
    // The rest of its status stays as it is.
    let status = json!({"size": "before", "conditions": [{"type": "Own", "status": "True"}]});
    let patch = status_patch(&status, &world.decide().status.unwrap(), "t").unwrap();
    assert!(patch.get("size").is_none(), "{patch}");
    assert!(patch["conditions"].as_array().unwrap().iter().any(|c| c["type"] == "Own"));
    world.edit(json!({"size": 2}));
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
}

#[test]
fn status_over_a_limit_is_reported() {
    let resource = "children: [{id: first, template: templates/first.yaml}]\nstatus: {size: \"range(spec.size) | map('string') | join(',')\"}\n";
    let world = World::new(package(resource, &[("first", config("a"))]), &json!({"size": 1_000_000_000}));
    let decision = world.decide();
    assert!(stalled(&decision).starts_with("status.size: "), "{:?}", decision.verdict);
}

#[test]
fn instance_with_too_many_values_is_not_evaluated() {
    let many = Value::Array(vec![json!({"a": 1}); 200_000]);
    let world = World::new(thousand(ORDINARY), &json!({"size": 3, "list": many}));
    assert!(stalled(&world.decide()).starts_with("the instance: "));
}

#[test]
fn only_bodies_to_be_written_are_kept() {
    let template = config("{{ name }}-{{ i }}");
    let mut world = World::new(thousand(&template), &json!({"size": 10, "text": "x"}));
    let bytes = |world: &World| -> usize {
        let items = world.with(|_, target| target.items);
        items.iter().map(|item| item.desired.as_ref().unwrap().body.to_string().len()).sum()
    };
    let new = bytes(&world);
    assert_eq!(world.settle(), Verdict::Ready { children: 11 });
    assert!(bytes(&world) * 2 < new, "{} of {new}", bytes(&world));
    world.edit(json!({"size": 10, "text": "y"}));
    assert!(bytes(&world) * 5 > new * 4);
    world.instance["metadata"]["annotations"] = json!({"operetta.dev/paused": "true"});
    assert!(bytes(&world) * 2 < new);
}
