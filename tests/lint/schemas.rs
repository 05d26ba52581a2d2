//! Templates and expressions held against the schemas of Kubernetes, of the packages' CRDs and of the instance's
//! own. Each line of carets is one planted mistake.

use std::path::Path;

use operetta::diag::Diagnostic;
use operetta::package::{self, Package};

use super::check_with;

const CRD: &str = "
//- crds/web.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: webs.example.com}
spec:
  group: example.com
  names: {kind: Web, plural: webs, singular: web, listKind: WebList}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              required: [image]
              properties:
                image: {type: string}
                size: {type: integer, default: 1}
                host: {type: string}
                tls:
                  type: object
                  required: [secret]
                  properties: {secret: {type: string}, mode: {type: string, enum: [Auto, Manual], default: Auto}}
                mode: {type: string, enum: [Small, Large], default: Small}
                envs: {type: array, default: [], items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}}
                ports: {type: array, default: [], items: {type: integer}}
                words: {type: array, items: {type: string}}
                settings: {type: object, default: {}, additionalProperties: {type: string}}
                memory: {x-kubernetes-int-or-string: true, default: 1Gi}
                debug: {type: boolean, default: false}
                resources: {type: object, default: {}, properties: {limits: {type: object, additionalProperties: {x-kubernetes-int-or-string: true}}}}
                free: {type: object, default: {}, x-kubernetes-preserve-unknown-fields: true}
            status:
              type: object
              properties:
                ready: {type: integer}
                url: {type: string}
                names: {type: array, items: {type: string}}
                phase: {type: string, enum: [Up, Down]}
";

/// Reads a package and holds it against the schemas, as `lint` does.
fn lint(folder: &Path) -> (Option<Package>, Vec<Diagnostic>) {
    let (package, mut found) = package::inspect(folder);
    // The fixtures share a template that not all of them use.
    found.retain(|diagnostic| diagnostic.code != "package::unused-file");
    for (_, diagnostic) in package.iter().flat_map(|package| package::check(&[package])) {
        if package::is_news(&found, &diagnostic) {
            found.push(diagnostic);
        }
    }
    (package, found)
}

fn check(text: &str) {
    check_with(&format!("{CRD}{}", text.trim_start()), lint);
}

/// Nothing is found in what ships, in the examples and in the packages that the tests run.
#[test]
fn packages_that_work_have_no_findings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut packages = Vec::new();
    for folder in ["operators", "examples/packages", "tests/fixtures/packages"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.join("operator.yaml").exists() && !name.starts_with("broken-") {
                packages.push(package::load(&path).unwrap().0);
            }
        }
    }
    assert!(packages.len() > 15, "{}", packages.len());
    let alone = packages.iter().flat_map(|package| package::check(&[package]));
    let together = package::check(&packages.iter().collect::<Vec<_>>());
    let found: Vec<String> = alone.chain(together).map(|(_, found)| found.to_string()).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Ways of writing that are right, of each filter and operator that the inference knows.
#[test]
fn idioms_have_no_findings() {
    check(
        r#"
//- operator.yaml
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: web}
spec:
  version: 0.1.0
  defaults: {image: nginx, ports: {http: 80}, none: null}
  resources:
    - crd: crds/web.yaml
      let:
        labels: "{{ {'app': name, 'v': operator.version} }}"
        quorum: "{{ spec.size // 2 + 1 }}"
        tls: "{{ spec.tls | default(none) }}"
      children:
        - {id: web, template: templates/web.yaml}
        - {id: cm, template: templates/cm.yaml}
        - {id: pair, template: templates/pair.yaml, forEach: {in: spec.settings | dictsort, as: pair, key: "pair[0]"}}
        - {id: each, template: templates/each.yaml, forEach: {in: "spec.envs | rejectattr('name', 'eq', 'x') | list", as: env, key: env.name}, when: env.port is defined}
      status:
        ready: children.web.status.readyReplicas | default(0)
        url: "'http://' ~ spec.host if spec.host else none"
        names: spec.envs | map(attribute='name') | list
        phase: "'Up' if children.web is ready else 'Down'"
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ name }}
  labels: {<<: {{ let.labels }}, x: "1"}
  annotations:
    a: "{{ spec.settings | to_json | sha256 }}"
    b: {{ spec.host | default(omit) }}
spec:
  replicas: {{ [spec.size, 3] | max }}
  minReadySeconds: {{ (spec.size * 1.5) | round }}
  revisionHistoryLimit: {{ spec.free.history | default(3) }}
  selector: {matchLabels: {{ let.labels }}}
  template:
    metadata: {labels: {{ let.labels | combine(spec.settings) }}}
    spec:
      {% if spec.tls and spec.tls.secret %}
      volumes: [{name: tls, secret: {secretName: "{{ spec.tls.secret }}", defaultMode: 0440}}]
      {% endif %}
      containers:
        - name: web
          image: {{ spec.image or defaults.image }}:{{ operator.appVersion }}
          command: {{ ['sh', '-c', spec.image ~ ' x'] }}
          args: {{ ['a'] + (spec.words | default([])) }}
          env:
            {% for k, v in spec.settings | items %}
            - {name: "{{ k }}", value: "{{ v }}"}
            {% endfor %}
            {% for env in spec.envs %}
            - {name: "{{ env.name | upper }}", value: "{{ env.port | default(80) }}"}
            {% endfor %}
            - {name: Q, value: "{{ let.quorum }}"}
            - {name: T, value: "{{ let.tls.secret if let.tls else '' }}"}
            - {name: R, value: "{{ (spec.tls or {}).secret | default('x') }}"}
            - {name: S, value: {{ spec.size | string }}}
            - {name: M, value: "{{ spec.tls.mode if spec.tls else 'Auto' }}"}
            - {name: G, value: "{{ spec.settings.get('x', 'y') }}"}
            - {name: F, value: "{{ (spec.envs | first).name | default('') }}"}
            - {name: I, value: "{{ spec.envs[0].name | default('') }}"}
            - {name: L, value: "{{ (spec.image | split(':'))[0] }}"}
            - {name: O, value: "{{ range(spec.size) | map('string') | join(',') }}"}
            - {name: P, value: "{{ spec.envs | selectattr('port', 'defined') | map(attribute='port') | sum }}"}
            - {name: H, value: "{{ instance.spec.host | default('') }}{{ labels['a'] | default('') }}"}
          ports:
            - {containerPort: {{ defaults.ports.http }}}
            {% for p in spec.ports %}
            - containerPort: {{ p }}
            {% endfor %}
          resources:
            requests: {memory: {{ spec.memory | quantity * 2 }}, cpu: {{ spec.size / 2 }}}
            limits: {{ spec.resources.limits | default({}) }}
          livenessProbe: {httpGet: {path: /, port: {{ defaults.ports.http if spec.debug else 'http' }}}}
//- templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-c"}
data:
  {% set ns = namespace(total=0) %}
  {% for p in spec.ports %}{% set ns.total = ns.total + p %}{% endfor %}
  total: "{{ ns.total }}"
  {% if spec.debug %}
  x: a
  {% elif spec.host %}
  x: "{{ spec.host }}"
  {% endif %}
  ready: "{{ children.web.status.readyReplicas | default(0) > 0 }}"
  {% if spec.host is defined and spec.tls is defined %}
  url: "https://{{ spec.host }}/{{ spec.tls.secret }}"
  {% endif %}
  list: {{ spec.envs | map(attribute='name') | sort | join(',') }}
  json: {{ spec.free | to_json }}
  mode: {{ 'a' if spec.mode == 'Small' else 'b' }}
  block: |
    {{ spec.size }}
    {% for e in spec.envs %}{{ e.name }}{% if not loop.last %}, {% endif %}{% endfor %}
  words: {{ (spec.words or []) | join(' ') }}
  neg: "{{ -spec.size }}"
  isin: "{{ 'a' in spec.settings and 'b' in (spec.words | default([])) }}"
//- templates/pair.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ pair[0] }}"}
data: {v: "{{ pair[1] }}"}
//- templates/each.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}-{{ env.name }}"}
spec:
  selector: {{ let.labels }}
  ports: [{port: {{ env.port }}, targetPort: "http"}]
"#,
    );
}

/// Macros, lets and partials that call each other many times come to an end, and nothing is made up.
#[test]
fn a_bomb_comes_to_an_end() {
    let sum = |name: &str| vec![name; 60].join(" + ");
    let lets: Vec<_> = (0..20)
        .map(|i| format!("        l{i}: \"{{{{ {} }}}}\"\n", sum(&format!("let.l{}", i + 1))))
        .collect();
    let calls = |i: usize| format!("{{{{ m{}() }}}}", i + 1).repeat(10);
    let macros: Vec<_> = (0..12)
        .map(|i| {
            format!("{{% macro m{i}() %}}{}{{% endmacro %}}", if i < 11 { calls(i) } else { String::new() })
        })
        .collect();
    let branches: Vec<_> = (0..100)
        .map(|i| {
            format!("  {{% if spec.size == {i} %}}\n  k{i}: a\n  {{% else %}}\n  k{i}: b\n  {{% endif %}}\n")
        })
        .collect();
    let (lets, macros, branches) = (lets.concat(), macros.concat(), branches.concat());
    check(&format!(
        "//- resource\n    - crd: crds/web.yaml\n      let:\n{lets}        l20: \"{{{{ spec.size }}}}\"\n      children: [{{id: a, template: templates/a.yaml}}]\n\
         //- templates/a.yaml\n{macros}apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n  a: \"{{{{ let.l0 }}}}{{{{ m0() }}}}\"\n{branches}"
    ));
}

/// A mistake in one file hides none in another.
#[test]
fn what_can_be_read_of_a_broken_package_is_checked() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: a, template: templates/a.yaml}, {id: b, template: templates/b.yaml, when: spec.hots}]
#                                                                                               ^^^^^^^^^ error: the CRD's schema has no spec.hots; did you mean `spec.host`?
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
dat: {}
^^^ error: a ConfigMap has no field `dat`; did you mean `data`?
//- templates/b.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: b}
data: {a: "{{ spec.host | uper }}"}
#                         ^^^^ error: there is no filter `uper`; did you mean `upper`?
"#,
    );
}

#[test]
fn unknown_fields_are_found_with_the_right_name_or_place() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: web, template: templates/web.yaml}, {id: svc, template: templates/svc.yaml}, {id: sts, template: templates/sts.yaml}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}", label: {app: x}}
#                              ^^^^^ error: a Deployment has no field `metadata.label`; did you mean `labels`?
spec:
  replica: {{ spec.size }}
# ^^^^^^^ error: a Deployment has no field `spec.replica`; did you mean `replicas`?
  serviceName: web
# ^^^^^^^^^^^ error: a Deployment has no field `spec.serviceName`; there is minReadySeconds, paused, progressDeadlineSeconds, replicas, revisionHistoryLimit, selector, strategy, template
  containers: []
# ^^^^^^^^^^ error: a Deployment has no field `spec.containers`; it is a field of `spec.template.spec`
  selector: {matchLabels: {app: "{{ name }}"}}
  template:
    metadata: {labels: {app: "{{ name }}"}}
    spec:
      container:
#     ^^^^^^^^^ error: a Deployment has no field `spec.template.spec.container`; did you mean `containers`?
        - {name: a, image: b}
      containers:
        - name: web
          image: "{{ spec.image }}"
          imagePulPolicy: Always
#         ^^^^^^^^^^^^^^ error: a Deployment has no field `spec.template.spec.containers[0].imagePulPolicy`; did you mean `imagePullPolicy`?
          ports: [{containerport: 80, containerPort: 80}]
#                  ^^^^^^^^^^^^^ error: a Deployment has no field `spec.template.spec.containers[0].ports[0].containerport`; did you mean `containerPort`?
          {% if spec.debug %}
          livenesProbe: {tcpSocket: {port: 80}}
#         ^^^^^^^^^^^^ error: a Deployment has no field `spec.template.spec.containers[0].livenesProbe`; did you mean `livenessProbe`?
          {% elif spec.host is defined %}
          readinessProbe: {httpget: {port: 80}}
#                          ^^^^^^^ error: a Deployment has no field `spec.template.spec.containers[0].readinessProbe.httpget`; did you mean `httpGet`?
          {% else %}
          env: [{nam: A, name: B, value: c}]
#                ^^^ error: a Deployment has no field `spec.template.spec.containers[0].env[0].nam`; did you mean `name`?
          {% endif %}
//- templates/svc.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}"}
spec:
  selector: {app: "{{ name }}"}
  ports:
    {% for env in spec.envs %}
    - {name: "{{ env.name }}", port: 80, targetport: 8080}
#                                        ^^^^^^^^^^ error: a Service has no field `spec.ports[0].targetport`; did you mean `targetPort`?
    {% endfor %}
    - {{ partial("port.yaml", number=81) }}
//- templates/port.yaml
name: http
port: {{ number }}
protocoll: TCP
^^^^^^^^^ error: a Service has no field `spec.ports[1].protocoll`; did you mean `protocol`?
//- templates/sts.yaml
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ name }}
spec:
  <<: {'replicaz': 3}
#      ^^^^^^^^^^ error: a StatefulSet has no field `spec.replicaz`; did you mean `replicas`?
  serviceName: a
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b, resource: {}}]}}
#                                                                                ^^^^^^^^ error: a StatefulSet has no field `spec.template.spec.containers[0].resource`; did you mean `resources`?
"#,
    );
}

#[test]
fn types_of_values_are_held_against_the_place_they_stand_in() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {count: "{{ spec.size + 1 }}", label: "{{ name }}-x"}
#                                         ^^^^^ warning: nothing reads let.label; read it, or remove it
      children: [{id: web, template: templates/web.yaml}, {id: cm, template: templates/cm.yaml}, {id: ing, template: templates/ing.yaml, when: spec.host is defined}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ name }}
  labels: {{ spec.words | default([]) }}
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `metadata.labels` of a Deployment takes a map, not a list
spec:
  replicas: "{{ spec.size }}"
#           ^^^^^^^^^^^^^^^^^ error: `spec.replicas` of a Deployment takes a whole number, not a string; leave out the quotes: they make a string of it
  minReadySeconds: {{ spec.image }}
#                     ^^^^^^^^^^ error: `spec.minReadySeconds` of a Deployment takes a whole number, not a string; use `| int`, or a field that is a number
  revisionHistoryLimit: "3"
#                       ^^^ error: `spec.revisionHistoryLimit` of a Deployment takes a whole number, not a string; leave out the quotes
  paused: "true"
#         ^^^^^^ error: `spec.paused` of a Deployment takes a boolean, not a string; leave out the quotes
  progressDeadlineSeconds: {{ spec.size if spec.debug else 'never' }}
#                             ^^^^^^^^^ error: `spec.progressDeadlineSeconds` of a Deployment takes a whole number, not a string
  selector: {matchLabels: {app: {{ spec.size }}}}
#                                  ^^^^^^^^^ error: `spec.selector.matchLabels.app` of a Deployment takes a string, not a whole number; put the expression in quotes, they make a string of it
  template:
    metadata: {labels: {app: x}}
    spec:
      hostNetwork: {{ spec.size }}
#                     ^^^^^^^^^ error: `spec.template.spec.hostNetwork` of a Deployment takes a boolean, not a whole number
      containers:
        - name: web
          image: {{ spec.image }}
          args: {{ spec.image }}
#                  ^^^^^^^^^^ error: `spec.template.spec.containers[0].args` of a Deployment takes a list, not a string
          command: [sh, -c, {{ let.count }}]
#                              ^^^^^^^^^ error: `spec.template.spec.containers[0].command[2]` of a Deployment takes a string, not a whole number; put the expression in quotes, they make a string of it
          env:
            - {name: A, value: 5}
#                              ^ error: `spec.template.spec.containers[0].env[0].value` of a Deployment takes a string, not a whole number; put it in quotes
            - {name: N, value: a}
#                    ^ error: `spec.template.spec.containers[0].env[1].name` of a Deployment takes a string, not a boolean; `N` is a boolean in YAML: put it in quotes
            - {name: B, value: {{ spec.debug }}}
#                                 ^^^^^^^^^^ error: `spec.template.spec.containers[0].env[2].value` of a Deployment takes a string, not a boolean; put the expression in quotes, they make a string of it
            - {name: C, valueFrom: [secretKeyRef]}
#                       ^^^^^^^^^ error: `spec.template.spec.containers[0].env[3].valueFrom` of a Deployment takes a map, not a list
          ports:
#         ^^^^^ error: `spec.template.spec.containers[0].ports` of a Deployment takes a list, not a map; begin each item with `- `
            containerPort: 80
            name: http
          resources:
            limits: {memory: "{{ spec.memory }}", cpu: true}
#                                                      ^^^^ error: `spec.template.spec.containers[0].resources.limits.cpu` of a Deployment takes a number or a string, not a boolean
//- templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
data:
  count: 3
#        ^ error: `data.count` of a ConfigMap takes a string, not a whole number; put it in quotes
  debug: {{ spec.debug }}
#           ^^^^^^^^^^ error: `data.debug` of a ConfigMap takes a string, not a boolean; put the expression in quotes, they make a string of it
  words: {{ spec.envs | map(attribute='name') | list }}
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `data.words` of a ConfigMap takes a string, not a list; use `| to_json`, or name one of its fields
  envs: "{{ spec.envs }}"
#           ^^^^^^^^^ error: a list in quotes cannot be made a string; leave out the quotes to insert it as it is
  text: size={{ spec.ports }}
#               ^^^^^^^^^^ error: a list cannot stand in text; use `| join(',')` or `| to_json`
  all: {{ spec.settings ~ 'x' }}
#         ^^^^^^^^^^^^^ error: a map cannot stand in text; name one of its fields, or use `| to_json`
//- templates/ing.yaml
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: "{{ name }}"}
spec:
  rules:
    - host: {{ spec.host }}
      http:
        paths:
          - {path: /, pathType: Prefix, backend: {service: {name: "{{ name }}", port: 80}}}
#                                                                                     ^^ error: `spec.rules[0].http.paths[0].backend.service.port` of an Ingress takes a map, not a whole number
"#,
    );
}

#[test]
fn values_ranges_and_duplicates() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: web, template: templates/web.yaml}, {id: svc, template: templates/svc.yaml}, {id: job, template: templates/job.yaml}, {id: secret, template: templates/secret.yaml}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}"}
spec:
  replicas: -1
#           ^^ error: `spec.replicas` of a Deployment takes numbers from 0 to 2147483647, not -1
  strategy: {type: Recreated}
#                  ^^^^^^^^^ error: `spec.strategy.type` of a Deployment does not take `Recreated`; did you mean `Recreate`?
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec:
      restartPolicy: OnFailure
#                    ^^^^^^^^^ error: `spec.template.spec.restartPolicy` of a Deployment does not take `OnFailure`; it takes `Always`
      volumes: [{name: v, configMap: {name: x, defaultMode: 644}}]
#                                                           ^^^ error: `spec.template.spec.volumes[0].configMap.defaultMode` of a Deployment takes numbers from 0 to 511, not 644; write it in octal, with a zero before it: 0644
      containers:
        - name: web
          image: a
          imagePullPolicy: {{ 'Always' if spec.debug else 'IfNotpresent' }}
#                             ^^^^^^^^ error: `spec.template.spec.containers[0].imagePullPolicy` of a Deployment does not take `IfNotpresent`; did you mean `IfNotPresent`?
          ports: [{containerPort: 80800}, {name: a, containerPort: 81}, {name: b, containerPort: 81}]
#                                 ^^^^^ error: `spec.template.spec.containers[0].ports[0].containerPort` of a Deployment takes numbers from 1 to 65535, not 80800
#                                                                       ^ error: two items of `spec.template.spec.containers[0].ports` of a Deployment have the same containerPort and protocol; `81` stands there twice; rename one of them
          resources: {limits: {memory: 512MB}}
#                                      ^^^^^ error: `spec.template.spec.containers[0].resources.limits.memory` of a Deployment takes a quantity, and `512MB` is none; write for instance 500m, 2 or 1.5Gi
        - {name: web, image: b}
#         ^ error: two items of `spec.template.spec.containers` of a Deployment have the same name; `web` stands there twice; rename one of them
//- templates/svc.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}"}
spec:
  type: Loadbalancer
#       ^^^^^^^^^^^^ error: `spec.type` of a Service does not take `Loadbalancer`; did you mean `LoadBalancer`?
  sessionAffinity: {{ spec.mode }}
#                     ^^^^^^^^^ error: `spec.sessionAffinity` of a Service takes none of the values that the CRD's schema allows; it takes `ClientIP`, `None`, the CRD allows `Small`, `Large`
  ports: [{port: 0, protocol: tcp}]
#                ^ error: `spec.ports[0].port` of a Service takes numbers from 1 to 65535, not 0
#                             ^^^ error: `spec.ports[0].protocol` of a Service does not take `tcp`; did you mean `TCP`?
//- templates/job.yaml
apiVersion: batch/v1
kind: Job
metadata: {name: "{{ name }}"}
spec:
  backoffLimit: 99999999999
#               ^^^^^^^^^^^ error: `spec.backoffLimit` of a Job takes numbers from 0 to 2147483647, not 99999999999
  template: {spec: {restartPolicy: Always, containers: [{name: a, image: b}]}}
#                                  ^^^^^^ error: `spec.template.spec.restartPolicy` of a Job does not take `Always`; it takes `Never`, `OnFailure`
//- templates/secret.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}"}
data: {password: not-in-base64!}
#                ^^^^^^^^^^^^^^ error: `data.password` of a Secret takes base64, and this is none; write it in `stringData`, or `{{ 'text' | b64encode }}`
"#,
    );
}

#[test]
fn what_is_missing_in_every_branch() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: web, template: templates/web.yaml}, {id: job, template: templates/job.yaml}, {id: pvc, template: templates/pvc.yaml, deletionPolicy: Delete}, {id: fine, template: templates/fine.yaml}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}"}
spec:
^^^^ error: `spec.selector` of a Deployment is missing
  template:
    metadata: {labels: {app: x}}
    spec:
      containers:
        {% if spec.debug %}
        - {image: b}
#         ^ error: `spec.template.spec.containers[0].name` of a Deployment is missing
        {% else %}
        - name: a
#         ^ error: `spec.template.spec.containers[0].image` of a Deployment is missing
          ports: [{name: x}]
#                 ^ error: `spec.template.spec.containers[0].ports[0].containerPort` of a Deployment is missing
        {% endif %}
//- templates/job.yaml
apiVersion: batch/v1
kind: Job
metadata: {name: "{{ name }}"}
spec:
  template: {spec: {containers: [{name: a, image: b}]}}
#            ^^^^ error: `spec.template.spec.restartPolicy` of a Job is missing
//- templates/pvc.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "{{ name }}"}
spec: {resources: {requests: {storage: 1Gi}}}
^^^^ error: `spec.accessModes` of a PersistentVolumeClaim is missing
//- templates/fine.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}-2"}
spec:
  {% if spec.debug %}
  selector: {matchLabels: {app: x}}
  {% else %}
  selector: {matchLabels: {app: z}}
  {% endif %}
  template:
    <<: {{ spec.free }}
    spec: {{ spec.free }}
"#,
    );
}

#[test]
fn kinds_that_are_not_there() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: crt, apiVersion: v1, kind: Secrets, name: x}
#              ^^^ error: Kubernetes 1.36 has no kind Secrets in v1; did you mean `Secret`?
        - {id: other, apiVersion: cert-manager.io/v1, kind: Certificate, name: x}
      children:
        - {id: a, template: templates/a.yaml}
        - {id: b, template: templates/b.yaml}
        - {id: c, template: templates/c.yaml}
        - {id: d, template: templates/d.yaml}
        - {id: e, template: templates/e.yaml}
        - {id: f, template: templates/f.yaml}
        - {id: g, template: templates/g.yaml}
        - {id: h, template: templates/h.yaml}
        - {id: i, template: templates/i.yaml}
        - {id: j, template: templates/j.yaml}
        - {id: k, template: templates/k.yaml}
        - {id: l, template: templates/l.yaml}
      status: {a: "refs.crt is known and refs.other is known"}
//- templates/a.yaml
apiVersion: extensions/v1beta1
#           ^^^^^^^^^^^^^^^^^^ error: Kubernetes 1.22 removed Ingress from extensions/v1beta1; write apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: a}
//- templates/b.yaml
apiVersion: policy/v1beta1
#           ^^^^^^^^^^^^^^ error: Kubernetes 1.25 removed PodDisruptionBudget from policy/v1beta1; write apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: a}
//- templates/c.yaml
apiVersion: batch/v1beta1
#           ^^^^^^^^^^^^^ error: Kubernetes 1.25 removed CronJob from batch/v1beta1; write apiVersion: batch/v1
kind: CronJob
metadata: {name: a}
//- templates/d.yaml
apiVersion: autoscaling/v2beta2
#           ^^^^^^^^^^^^^^^^^^^ error: Kubernetes 1.26 removed HorizontalPodAutoscaler from autoscaling/v2beta2; write apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: a}
//- templates/e.yaml
apiVersion: apps/v1
kind: Deploymnet
#     ^^^^^^^^^^ error: Kubernetes 1.36 has no kind Deploymnet in apps/v1; did you mean `Deployment`?
metadata: {name: a}
//- templates/f.yaml
apiVersion: v1
#           ^^ error: Kubernetes 1.36 has no kind Deployment in v1; Deployment is in apps/v1
kind: Deployment
metadata: {name: b}
//- templates/g.yaml
apiVersion: app/v1
#           ^^^^^^ error: there is no StatefulSet in app/v1; write apiVersion: apps/v1
kind: StatefulSet
metadata: {name: a}
//- templates/h.yaml
apiVersion: rbac.authorization.k8.io/v1
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no Role in rbac.authorization.k8.io/v1; write apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: a}
//- templates/i.yaml
apiVersion: networking.k8s.io/v2
#           ^^^^^^^^^^^^^^^^^^^^ error: Kubernetes 1.36 serves no NetworkPolicy as networking.k8s.io/v2; write apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a}
//- templates/j.yaml
apiVersion: example.com/v1
kind: Wbe
#     ^^^ error: the package has no kind Wbe in example.com/v1; did you mean `Web`?
metadata: {name: a}
//- templates/k.yaml
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: a}
spec: {whatever: {{ spec.words }}}
#                   ^^^^^^^^^^ warning: `spec.words` may be absent, and then this fails; ask `is defined` before, use `| default(...)`, or make it required in the CRD
//- templates/l.yaml
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: a, namespace: b}
#                   ^^^^^^^^^ warning: a ClusterRole is in no namespace; remove `namespace`: the kind is cluster-scoped
"#,
    );
}

#[test]
fn children_of_the_packages_own_kinds() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: web, template: templates/web.yaml, deletionPolicy: Delete}]
//- templates/web.yaml
apiVersion: example.com/v1
kind: Web
metadata: {name: "{{ name }}-2"}
spec:
^^^^ error: `spec.image` of a Web is missing
  sice: 3
# ^^^^ error: a Web has no field `spec.sice`; did you mean `size`?
  size: "{{ spec.size }}"
#       ^^^^^^^^^^^^^^^^^ error: `spec.size` of a Web takes a whole number, not a string; leave out the quotes: they make a string of it
  mode: small
#       ^^^^^ error: `spec.mode` of a Web does not take `small`; did you mean `Small`?
"#,
    );
}

#[test]
fn paths_into_live_objects() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: x, optional: true}
        - {id: node, apiVersion: v1, kind: Node, name: x}
        - {id: pods, apiVersion: v1, kind: Pod, selector: {app: x}}
      children:
        - {id: web, template: templates/web.yaml, readyWhen: self.status.readyReplica == 1}
#                                                            ^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `self.status.readyReplica`; did you mean `self.status.readyReplicas`?
        - {id: each, template: templates/each.yaml, forEach: {in: spec.envs, as: env, key: env.nmae}}
#                                                                                          ^^^^^^^^ error: there is no `spec.envs[].nmae`; did you mean `spec.envs[].name`?
      status:
        a: children.web.status.readyReplcas
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `children.web.status.readyReplcas`; did you mean `children.web.status.readyReplicas`?
        b: children.web.spec.template.spec.container[0].image
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `children.web.spec.template.spec.container`; did you mean `children.web.spec.template.spec.containers`?
        c: refs.tls.datta
#          ^^^^^^^^^^^^^^ error: a Secret has no field datta; did you mean `refs.tls.data`?
        d: refs.node.status.addreses | length
#          ^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `refs.node.status.addreses`; did you mean `refs.node.status.addresses`?
        e: refs.pods | map(attribute='status.podIp') | join(',')
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `refs.pods[].status.podIp`; did you mean `refs.pods[].status.podIP`?
        f: children.each.a.metadata.nam
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `children.each.a.metadata.nam`; did you mean `children.each.a.metadata.name`?
        g: children.web.status.readyReplicas.x
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: a whole number has no fields: `x`
        h: instance.metadata.labls.a
#          ^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `instance.metadata.labls`; did you mean `instance.metadata.labels`?
        i: refs.pods[0].status.phase == 'Runing'
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `refs.pods[].status.phase` is never `Runing`; did you mean `Running`?
        j: "children.web.metadata.annotations['a.b/c'] | default('')"
        k: refs.tls.error | default('')
        l: children.each.values() | map(attribute='data.a') | list
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}", annotations: {old: "{{ self.status.replicaz | default(0) }}"}}
#                                                     ^^^^^^^^^^^^^^^^^^^^ error: there is no `self.status.replicaz`; did you mean `self.status.replicas`?
spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}
//- templates/each.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ env.name }}"}
data: {a: "{{ env.prt }}"}
#             ^^^^^^^ error: there is no `spec.envs[].prt`; did you mean `spec.envs[].port`?
"#,
    );
}

#[test]
fn types_of_expressions() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {bad: "{{ spec.image * 2.5 }}"}
#                    ^^^^^^^^^^^^^^^^ error: `*` does not take a string and a number; use `| int`, or `| quantity` for 512Mi and its like
      paused: spec.debug == 'true'
#             ^^^^^^^^^^^^^^^^^^^^ error: a boolean and a string are never equal; a boolean is asked as it is: `spec.x`, `not spec.x`
      readyWhen: children.a.data.n > 3
#                ^^^^^^^^^^^^^^^^^^^^^ error: a string and a whole number have no order; leave out the quotes of the number, or use `| int` on the string
      children:
        - {id: a, template: templates/a.yaml, when: spec.size > '3'}
#                                                   ^^^^^^^^^^^^^^^ error: a whole number and a string have no order; leave out the quotes of the number, or use `| int` on the string
        - {id: b, template: templates/b.yaml, forEach: {in: spec.size, as: i}}
#                                                           ^^^^^^^^^ error: a whole number is no list; to count, loop over `range(x)`
        - {id: c, template: templates/c.yaml, forEach: {in: range(spec.ports), as: i}}
#                                                           ^^^^^^^^^^^^^^^^^ error: `range` takes whole numbers, not a list; loop over the list itself, or over `range(x | length)`
        - {id: d, template: templates/d.yaml, when: spec.mode == 'small'}
#                                                   ^^^^^^^^^^^^^^^^^^^^ warning: the `when` of the child is never true; no instance fulfils it; mend the condition, or remove what it belongs to
#                                                   ^^^^^^^^^^^^^^^^^^^^ warning: the field never has this value; the CRD allows Small, Large
#                                                   ^^^^^^^^^^^^^^^^^^^^ error: `spec.mode` is never `small`; did you mean `Small`?
        - {id: e, template: templates/e.yaml, when: "spec.size in ['1', '2']"}
#                                                    ^^^^^^^^^^^^^^^^^^^^^^^ error: a whole number is never in a list of which each item is a string
      status:
        x: spec.size + spec.image
#          ^^^^^^^^^^^^^^^^^^^^^^ error: `+` does not take a whole number and a string; texts are joined with `~`; to count, use `| int`
        y: spec.size | length
#       ^ warning: the key `y` is read as "true": it is a boolean in YAML 1.1; quote it: "y"
#          ^^^^^^^^^^^^^^^^^^ error: `length` does not take a whole number
        z: spec.image | join(',')
#          ^^^^^^^^^^^^^^^^^^^^^^ error: `join` does not take a string; it takes a list
        v: spec.ports | upper
#          ^^^^^^^^^^^^^^^^^^ error: `upper` does not take a list
        w: -spec.image
#          ^^^^^^^^^^^ error: a string cannot be negated
        u: spec.image - 1
#          ^^^^^^^^^^^^^^ error: `-` does not take a string and a whole number; use `| int`, or `| quantity` for 512Mi and its like
        t: spec.ports['a']
#          ^^^^^^^^^^^^^^^ error: the CRD's schema has no spec.ports.a
        s: "'x' in spec.size"
#                  ^^^^^^^^^ error: a whole number holds nothing that `in` could find
        r: spec.memory | quantity > '1Gi'
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: a quantity and a string have no order
        ready: spec.image
#              ^^^^^^^^^^ error: status.ready must be an integer, this gives a string; so says the CRD's schema of the status; the field would be left out
        url: spec.size
#            ^^^^^^^^^ error: status.url must be a string, this gives an integer; so says the CRD's schema of the status; the field would be left out
        names: spec.envs | map(attribute='port') | list
#              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `status.names[*]` of a Web takes a string, not a whole number; put the expression in quotes, they make a string of it
        phase: "'Running' if spec.debug else 'Down'"
#               ^^^^^^^^^ error: status.phase must be one of: Up, Down; so says the CRD's schema of the status; the field would be left out
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-a"}
data:
  n: "{{ let.bad }}"
# ^ warning: the key `n` is read as "false": it is a boolean in YAML 1.1; quote it: "n"
  {% for p in spec.size %}
#             ^^^^^^^^^ error: a whole number is no list; to count, loop over `range(x)`
  x: a
  {% endfor %}
//- templates/b.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-b-{{ i }}"}
//- templates/c.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-c-{{ i }}"}
//- templates/d.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-d"}
//- templates/e.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-e"}
"#,
    );
}

#[test]
fn what_may_be_absent_is_guarded() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {secret: "{{ spec.tls.secret }}", has_tls: "{{ spec.tls is defined }}", url: "https://{{ spec.host }}"}
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: "{{ spec.tls.secret }}"}
#                                                           ^^^^^^^^^^^^^^^ warning: `spec.tls.secret` may be absent, and then this fails; ask `is defined` before, use `| default(...)`, or make it required in the CRD
        - {id: tls2, apiVersion: v1, kind: ConfigMap, name: "{{ spec.tls.secret }}", when: spec.tls is defined}
      children:
        - {id: a, template: templates/a.yaml}
        - {id: b, template: templates/b.yaml, when: spec.tls is defined and spec.host}
        - {id: c, template: templates/c.yaml, forEach: {in: spec.words, as: word}}
#                                                           ^^^^^^^^^^ warning: `spec.words` may be absent, and then this fails; ask `is defined` before, use `| default(...)`, or make it required in the CRD
        - {id: d, template: templates/d.yaml, forEach: {in: "spec.words | default([])", as: word}}
      status: {a: spec.host, b: "refs.tls is known", c: "refs.tls2 is known"}
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-a"}
data:
  one: "{{ spec.host }}"
#          ^^^^^^^^^ warning: `spec.host` may be absent, and then this fails; ask `is defined` before, use `| default(...)`, or make it required in the CRD
  two: "{{ spec.host | upper }}"
#          ^^^^^^^^^ warning: `spec.host` may be absent, and then this fails; ask `is defined` before, use `| default(...)`, or make it required in the CRD
  three: "{{ let.secret }}"
#            ^^^^^^^^^^ warning: `spec.tls.secret` may be absent, and then this fails; ask `is defined` before, use `| default(...)`, or make it required in the CRD
  four: "{{ spec.host | default('none') }}"
  five: "{{ spec.host if spec.host else '' }}"
  six: "{{ 'https://' ~ spec.host if spec.host is defined else '' }}"
  {% if spec.host %}
  seven: "{{ spec.host }} {{ let.url }}"
  {% endif %}
  {% if spec.tls is not defined %}
  eight: none
  {% else %}
  eight: "{{ spec.tls.secret }}"
  {% endif %}
  {% if let.has_tls %}
  nine: "{{ let.secret }}"
  {% endif %}
  {% set tls = spec.tls %}
  {% if tls %}
  ten: "{{ tls.secret }} {{ tls.mode }}"
  {% endif %}
  {% if spec.words and spec.words | length > 1 %}
  eleven: "{{ spec.words | join(',') }}"
  {% endif %}
  {% for env in spec.envs if env.port is defined %}
  x-{{ env.name }}: "{{ env.port }}"
  {% endfor %}
  {% for env in spec.envs %}
  y-{{ env.name }}: "{{ env.port }}"
#                       ^^^^^^^^ warning: `spec.envs[].port` may be absent, and then this fails; ask `is defined` before, use `| default(...)`, or make it required in the CRD
  {% endfor %}
  twelve: "{{ (spec.tls | default({})).secret | default('') }}"
  thirteen: {{ spec.host | default(omit) }}
  fourteen: "{{ spec.settings.colour }}"
  fifteen: "{% if spec.host == 'a' %}{{ spec.host }}{% endif %}"
//- templates/b.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-b"}
data: {a: "{{ spec.tls.secret }}", b: "{{ spec.host }}", c: "{{ refs.tls2.data.a }}"}
//- templates/c.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-c-{{ word }}"}
//- templates/d.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-d-{{ word }}"}
"#,
    );
}
