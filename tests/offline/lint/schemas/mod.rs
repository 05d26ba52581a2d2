//! Templates and expressions checked against the schemas of Kubernetes, of the package's CRDs and of the
//! instance's own CRD. Each line of carets marks one planted mistake.

mod expressions;
mod fields;

use std::path::Path;

use operetta::package;

use super::{check_with, lint};

const CRD: &str = "
//- crd
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

fn check(text: &str) {
    check_with(&format!("{CRD}{}", text.trim_start()), lint);
}

/// Findings that the packages of tests have on purpose, because their tests need the mistake.
const ON_PURPOSE: [&str; 28] = [
    "edits package::shared-name",
    "frozen package::immutable",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "frozen package::shared-name",
    "motley package::deletion-policy",
    "neighbours package::immutable",
    "neighbours package::immutable",
    "places package::namespace-unknown",
    "plan-commands package::unused-field",
    "plans-calls package::container",
    "plans-rules package::unused-field",
    "refs package::exposes-secret-data",
    "refs package::unused-field",
    "routes package::deletion-policy",
    "routes package::deletion-policy",
    "stones package::immutable",
    "stones package::immutable",
    "takeover package::yields",
    "tally package::unused-field",
    "trial package::immutable",
];

/// All shipped packages, examples and packages of tests have no other findings.
#[test]
fn working_packages_have_no_findings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut packages, mut loaded) = (Vec::new(), Vec::new());
    for folder in ["operators", "examples/packages", "tests/fixtures/packages"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.join("operator.yaml").exists() && !name.starts_with("broken-") {
                let (package, mut warnings) = package::load(&path).unwrap();
                // Instances of tests have short names.
                warnings.retain(|warning| {
                    folder != "tests/fixtures/packages" || warning.code != "package::name-length"
                });
                loaded.extend(warnings.iter().map(|warning| format!("{name} {}", warning.code)));
                packages.push(package);
            }
        }
    }
    assert!(packages.len() > 15, "{}", packages.len());
    loaded.sort();
    assert_eq!(loaded, ON_PURPOSE);
    let alone = packages.iter().flat_map(|package| package::check(&[package]));
    let together = package::check(&packages.iter().collect::<Vec<_>>());
    let found: Vec<String> = alone.chain(together).map(|(_, found)| found.to_string()).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Valid ways of writing for each filter and operator that type inference knows.
#[test]
fn valid_idioms_have_no_findings() {
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
    metadata: {labels: {{ spec.settings | combine(let.labels) }}}
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

/// Analysis of macros, lets and partials that call each other many times ends, and reports nothing false.
#[test]
fn analysis_of_exponential_templates_ends() {
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
fn readable_parts_of_a_broken_package_are_checked() {
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
