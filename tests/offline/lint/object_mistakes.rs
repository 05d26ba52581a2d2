//! Planted mistakes between the parts of a package: objects that refer to each other, steps that need
//! objects, fields of the spec, rules of the CRD. Each is one change of a valid package.

use super::{Mistake, all_are_found, findings, has_place_and_help, no_findings, parse, shown, whole_lint};

const SOUND: &str = r#"
//- crds/store.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: stores.example.com}
spec:
  group: example.com
  names: {kind: Store, plural: stores, singular: store, listKind: StoreList}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            metadata: {type: object, properties: {name: {type: string, maxLength: 40}}}
            spec:
              type: object
              required: [image, storage]
              x-kubernetes-validations:
                - {rule: "self.size >= 1 && self.size <= 9", message: from 1 to 9}
                - {rule: "!has(self.host) || self.host.matches('^[a-z.]+$')", message: a host name}
              properties:
                image: {type: string, minLength: 1}
                size: {type: integer, default: 3}
                mode: {type: string, enum: [dev, prod], default: dev}
                host: {type: string}
                cache: {type: string}
                storage:
                  type: object
                  required: [class]
                  properties:
                    class: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: immutable}]}
                    size: {type: string, default: 1Gi}
                topics: {type: array, default: [], maxItems: 20, items: {type: object, required: [name], properties: {name: {type: string, maxLength: 15}}}}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
//- operator.yaml
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: store}
spec:
  version: 0.1.0
  defaults: {port: 5432, metrics: 9100}
  resources:
    - crd: crds/store.yaml
      let: {config: "{{ name }}-config"}
      refs:
        - {id: lag, exec: {child: db, ordinal: "0", container: metrics, command: [lag]}, onlyInRuns: true}
      children:
        - {id: config, template: templates/config.yaml}
        - {id: login, template: templates/login.yaml, onLoss: Recreate}
        - {id: account, template: templates/account.yaml}
        - {id: data, template: templates/data.yaml, deletionPolicy: Delete, readyWhen: "true"}
        - {id: db, template: templates/db.yaml}
        - {id: service, template: templates/service.yaml}
        - {id: worker, template: templates/worker.yaml, when: spec.host is defined}
        - {id: cache, template: templates/cache.yaml, forEach: {in: range(spec.size), as: i, key: i}}
        - {id: topics, template: templates/topic.yaml, forEach: {in: spec.topics, as: topic, key: topic.name}}
        - {id: budget, template: templates/budget.yaml}
        - {id: nightly, template: templates/nightly.yaml}
      status:
        first: "children.cache[0].metadata.uid | default(none)"
      plans:
        deploy:
          steps:
            - {name: base, apply: [config, login, account, data]}
            - {name: fill, job: {template: templates/fill.yaml}, outputs: {rows: message.rows}, record: {rows: outputs.rows}}
            - {name: run, apply: [service, db]}
            - {name: check, exec: {child: db, ordinal: "0", container: server, command: [check]}, expect: exitCode == 0, idempotent: true, outputs: {lag: stdout | int}}
            - {name: slow, when: outputs.check.lag > 10, fail: {message: "{{ outputs.check.lag }} s behind"}}
            - name: large
              when: spec.size > 3
              steps:
                - {name: first, apply: ["cache[{{ 0 }}]"]}
            - {name: rest, apply: [worker, cache, topics, budget, nightly]}
        watch:
          trigger: {condition: "refs.lag.stdout != ''", for: 5m}
          exclusive: false
          steps: [{name: note, record: {lag: refs.lag.stdout}}]
//- templates/config.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ let.config }}"}
data:
  mode: "{{ spec.mode }}"
{% if spec.host %}
  host: "{{ spec.host }}"
{% endif %}
  store.conf: "size = {{ spec.size }}, filled = {{ record.rows | default(0) }}, lag = {{ record.lag | default(0) }}"
//- templates/login.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-login"}
stringData: {user: store, password: {{ password(20) }}}
//- templates/account.yaml
apiVersion: v1
kind: ServiceAccount
metadata: {name: "{{ name }}"}
//- templates/data.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "{{ name }}-data"}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: "{{ spec.storage.class }}"
  resources: {requests: {storage: "{{ spec.storage.size }}"}}
//- templates/db.yaml
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: "{{ name }}-db"}
spec:
  replicas: {{ spec.size }}
  serviceName: "{{ name }}-db"
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: store, store: "{{ name }}", tier: db}}
  template:
    metadata: {labels: {app: store, store: "{{ name }}", tier: db}}
    spec:
      serviceAccountName: "{{ name }}"
      containers:
        - name: server
          image: "{{ spec.image }}"
          env:
            - {name: MODE, valueFrom: {configMapKeyRef: {name: "{{ name }}-config", key: mode}}}
            - {name: PASSWORD, valueFrom: {secretKeyRef: {name: "{{ name }}-login", key: password}}}
{% if spec.host %}
            - {name: HOST, valueFrom: {configMapKeyRef: {name: "{{ name }}-config", key: host}}}
{% endif %}
          envFrom: [{secretRef: {name: "{{ name }}-login"}}]
          ports: [{name: sql, containerPort: {{ defaults.port }}}]
          readinessProbe: {tcpSocket: {port: sql}}
          volumeMounts: [{name: conf, mountPath: /etc/store}, {name: keys, mountPath: /etc/keys}]
        - name: metrics
          image: "{{ spec.image }}"
          ports: [{name: metrics, containerPort: {{ defaults.metrics }}}]
      volumes:
        - {name: conf, configMap: {name: "{{ name }}-config", items: [{key: store.conf, path: store.conf}]}}
        - {name: keys, secret: {secretName: "{{ name }}-login"}}
//- templates/service.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}-db"}
spec:
  clusterIP: None
  selector: {app: store, store: "{{ name }}", tier: db}
  ports:
    - {name: sql, port: 5432, targetPort: {{ defaults.port }}}
    - {name: metrics, port: 80, targetPort: metrics}
//- templates/worker.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}-worker"}
spec:
  selector: {matchLabels: {worker: "{{ name }}"}}
  template:
    metadata: {labels: {worker: "{{ name }}"}}
    spec:
      containers:
        - name: worker
          image: "{{ spec.cache | default('busybox') }}"
          envFrom: [{configMapRef: {name: "{{ name }}-config"}}]
          volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: "{{ name }}-data"}}]
//- templates/cache.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-cache-{{ i }}"}
//- templates/topic.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}-topic-{{ topic.name }}"}
spec: {selector: {app: store, store: "{{ name }}"}, ports: [{port: 5432}]}
//- templates/budget.yaml
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: "{{ name }}-db"}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: store, store: "{{ name }}"}}}
//- templates/nightly.yaml
apiVersion: batch/v1
kind: CronJob
metadata: {name: "{{ name }}-nightly"}
spec:
  schedule: 0 3 * * *
  jobTemplate:
    spec: {template: {spec: {restartPolicy: Never, containers: [{name: dump, image: dump}]}}}
//- templates/fill.yaml
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: fill
          image: "{{ spec.image }}"
          env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: "{{ name }}-login", key: password}}}]
          volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: "{{ name }}-data"}}]
"#;

const OPERATOR: &str = "operator.yaml";
const CRD: &str = "crds/store.yaml";
const DB: &str = "templates/db.yaml";
const SERVICE: &str = "templates/service.yaml";
const WORKER: &str = "templates/worker.yaml";
const FILL: &str = "templates/fill.yaml";

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    // Containers of exec.
    (OPERATOR, "container: server, command: [check]", "container: sever, command: [check]", "the pods of `db` have no container `sever`; did you mean `server`?"),
    (OPERATOR, "container: metrics, command: [lag]", "container: metric, command: [lag]", "the pods of `db` have no container `metric`"),
    (OPERATOR, "container: server, command: [check]", "command: [check]", "the pods of `db` have several containers"),
    // Names and keys of ConfigMaps, Secrets, volumes, claims, ServiceAccounts, Services.
    (DB, "configMapKeyRef: {name: \"{{ name }}-config\", key: mode", "configMapKeyRef: {name: \"{{ name }}-conf\", key: mode", "no child is a ConfigMap `{{ name }}-conf`"),
    (DB, "key: mode", "key: mod", "the ConfigMap of `config` has no key `mod`; did you mean `mode`?"),
    (DB, "secretKeyRef: {name: \"{{ name }}-login\"", "secretKeyRef: {name: \"{{ name }}\"", "no child is a Secret `{{ name }}`"),
    (DB, "key: password", "key: pasword", "the Secret of `login` has no key `pasword`"),
    (DB, "key: host", "key: hosts", "the ConfigMap of `config` has no key `hosts`"),
    (DB, "secretRef: {name: \"{{ name }}-login\"}", "secretRef: {name: \"{{ name }}-logins\"}", "no child is a Secret `{{ name }}-logins`"),
    (DB, "configMap: {name: \"{{ name }}-config\"", "configMap: {name: \"{{ name }}-store\"", "no child is a ConfigMap `{{ name }}-store`"),
    (DB, "{key: store.conf,", "{key: store.cnf,", "the ConfigMap of `config` has no key `store.cnf`"),
    (DB, "secretName: \"{{ name }}-login\"", "secretName: \"{{ name }}-keys\"", "no child is a Secret `{{ name }}-keys`"),
    (DB, "serviceAccountName: \"{{ name }}\"", "serviceAccountName: \"{{ name }}-db\"", "no child is a ServiceAccount `{{ name }}-db`"),
    (DB, "serviceName: \"{{ name }}-db\"", "serviceName: \"{{ name }}\"", "no child is a Service `{{ name }}`"),
    (WORKER, "claimName: \"{{ name }}-data\"", "claimName: \"{{ name }}-date\"", "no child is a PersistentVolumeClaim `{{ name }}-date`"),
    (FILL, "claimName: \"{{ name }}-data\"", "claimName: data", "no child is a PersistentVolumeClaim `data`"),
    (FILL, "key: password", "key: pass", "the Secret of `login` has no key `pass`"),
    // Selectors and ports of rendered text.
    (SERVICE, "store: \"{{ name }}\"", "store: \"{{ name }}-db\"", "the Service selects no pods of this package"),
    (SERVICE, "targetPort: {{ defaults.port }}", "targetPort: {{ defaults.port + 1 }}", "no container of the selected pods has the port 5433"),
    (DB, "matchLabels: {app: store, store: \"{{ name }}\"", "matchLabels: {app: store, store: \"{{ name }}-db\"", "does not match the labels of the workload's own pods: `store`"),
    (DB, "tcpSocket: {port: sql}", "tcpSocket: {port: sqll}", "the container has no port `sqll`"),
    // A number that an autoscaler sets, and a new object needs.
    (WORKER, "  selector: {matchLabels: {worker", "  replicas: {{ omit if spec.size > 1 else 2 }}\n  selector: {matchLabels: {worker", "where `replicas` is omitted, a new object has 1"),
    // Outputs, answers and keys.
    (OPERATOR, "when: outputs.check.lag > 10", "when: outputs.check.lag.seconds > 10", "has no fields: `seconds`"),
    (OPERATOR, "outputs: {lag: stdout | int}", "outputs: {lag: stdout.lag}", "a string has no fields: `lag`"),
    (OPERATOR, "expect: exitCode == 0", "expect: exitCode == '0'", "are never equal"),
    (OPERATOR, "children.cache[0]", "children.cache['0']", "the keys of `children.cache` are integers"),
    // Steps that need an object that no earlier step has applied.
    (OPERATOR, "apply: [config, login, account, data]", "apply: [config, login, account]", "needs `data`, which no earlier step applies"),
    (OPERATOR, "apply: [service, db]", "apply: [service]", "needs `db`, which no earlier step applies"),
    // Fields of the spec that nothing reads.
    (CRD, "mode: {type: string", "replicas: {type: integer}\n                mode: {type: string", "nothing reads spec.replicas"),
    // Names that can be too long.
    (CRD, "maxLength: 15", "maxLength: 30", "may have 77 characters"),
    ("templates/nightly.yaml", "{{ name }}-nightly", "{{ name }}-nightly-backup", "may have 55 characters"),
    (CRD, "            metadata: {type: object, properties: {name: {type: string, maxLength: 40}}}\n", "", "may have 253 characters"),
    // Conditions that contradict themselves.
    (OPERATOR, "when: spec.host is defined}", "when: spec.host is defined and spec.host is not defined}", "is never true"),
    (OPERATOR, "{name: first, apply:", "{name: first, when: spec.size < 2, apply:", "is never true"),
    // CEL rules.
    (CRD, "self.size >= 1 &&", "self.size => 1 &&", "the CEL rule does not compile"),
    // An immutable field that depends on a mutable one.
    (CRD, ", x-kubernetes-validations: [{rule: self == oldSelf, message: immutable}]}", "}", "spec.storageClassName of a PersistentVolumeClaim cannot be changed"),
];

#[test]
fn valid_package_with_plans_has_no_findings() {
    assert_eq!(findings(&parse(SOUND).files, whole_lint), Vec::<String>::new());
}

#[test]
fn planted_mistakes_are_found_with_place_and_help() {
    all_are_found(SOUND, MISTAKES, whole_lint, has_place_and_help);
}

/// Valid changes of the package: conditions that depend on values are unknown, and objects of others may be
/// declared.
#[rustfmt::skip]
const RIGHT: &[&[(&str, &str, &str)]] = &[
    &[(DB, "name: \"{{ name }}-config\", key: mode", "name: \"{{ spec.host | default('x') }}\", key: mod")],
    &[(DB, "name: \"{{ name }}-config\", key: mode", "name: shared-settings, key: mod")],
    &[(DB, "name: \"{{ name }}-config\", key: mode", "name: \"{{ name }}-conf\", key: mod, optional: true")],
    &[(DB, "key: mode", "key: \"{{ spec.mode }}\"")],
    &[(DB, "key: mode", "key: mod, optional: true")],
    &[(DB, "serviceAccountName: \"{{ name }}\"", "serviceAccountName: default")],
    &[(DB, "secretName: \"{{ name }}-login\"", "secretName: \"{{ name }}-tls\""), (OPERATOR, "      refs:\n", "      refs:\n        - {id: tls, apiVersion: v1, kind: Secret, name: \"{{ name }}-tls\"}\n"), (OPERATOR, "uid | default(none)", "uid | default(refs.tls.metadata.uid)")],
    &[
        (DB, "  serviceName:", "  volumeClaimTemplates: [{metadata: {name: wal}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]\n  serviceName:"),
        (WORKER, "claimName: \"{{ name }}-data\"", "claimName: \"wal-{{ name }}-db-0\""),
    ],
    &[(WORKER, "  selector: {matchLabels: {worker", "  replicas: {{ omit if spec.size > 1 else 2 }}\n  selector: {matchLabels: {worker"), (OPERATOR, "when: spec.host is defined}", "when: spec.host is defined, yields: [spec.replicas]}")],
    &[(WORKER, "claimName: \"{{ name }}-data\"", "claimName: \"{{ let.config | replace('config', 'date') }}\"")],
    &[(OPERATOR, "container: server", "container: \"{{ 'server' if spec.size > 1 else 'metrics' }}\"")],
    &[(DB, "        - name: metrics\n", "{% if spec.host %}\n        - name: metrics\n"), (DB, "metrics }}}]\n", "metrics }}}]\n{% endif %}\n"), (OPERATOR, "container: server, command", "command")],
    &[(SERVICE, "targetPort: {{ defaults.port }}", "targetPort: {{ spec.size }}")],
    &[(SERVICE, "store: \"{{ name }}\"", "store: \"{{ instance.metadata.name }}\"")],
    &[(DB, "tier: db}}\n    spec:", "tier: \"{{ spec.mode }}\"}}\n    spec:")],
    &[(OPERATOR, "children.cache[0]", "children.cache[spec.size - 1]")],
    &[(OPERATOR, "children.cache[0]", "children.topics['a']")],
    &[(OPERATOR, "expect: exitCode == 0", "expect: \"exitCode in [0, 1] and stdout != ''\"")],
    &[(OPERATOR, "when: spec.host is defined}", "when: spec.host is defined and spec.host and spec.size > 1 and spec.size < 3}")],
    &[(OPERATOR, "{name: first, apply:", "{name: first, when: spec.size > 5 and children.cache is defined, apply:")],
    &[(OPERATOR, "apply: [config, login, account, data]", "apply: [config, login, account]"), (OPERATOR, "{name: fill, job", "{name: fill, when: record.rows is undefined, job"), (OPERATOR, "apply: [service, db]", "apply: [service, db, data]")],
    &[(CRD, "mode: {type: string", "replicas: {type: integer, description: Deprecated}\n                mode: {type: string")],
    &[(CRD, "mode: {type: string", "generation: {type: integer}\n                mode: {type: string"), (OPERATOR, "        watch:\n", "        again: {trigger: {changed: [spec.generation]}, steps: [{name: all, apply: [db]}]}\n        watch:\n")],
    &[("templates/nightly.yaml", "\"{{ name }}-nightly\"", "\"{{ (name ~ '-nightly-backup') | dns_label(52) }}\"")],
    &[(CRD, "rule: self == oldSelf, message: immutable", "rule: self != ''"), (CRD, "rule: \"self.size >= 1 && self.size <= 9\"", "rule: self.storage.class == oldSelf.storage.class")],
    &[(CRD, "rule: self == oldSelf, message: immutable", "rule: self != ''"), ("templates/data.yaml", "\"{{ spec.storage.class }}\"", "\"{{ self.spec.storageClassName | default(spec.storage.class) }}\"")],
    &[(DB, "podManagementPolicy: Parallel", "podManagementPolicy: \"{{ 'Parallel' if spec.mode == 'dev' else 'OrderedReady' }}\""), (OPERATOR, "{id: db, template: templates/db.yaml}", "{id: db, template: templates/db.yaml, onImmutableChange: Recreate}")],
];

#[test]
fn unknown_values_and_objects_of_others_are_not_reported() {
    no_findings(SOUND, RIGHT);
}

/// A manager leaves CEL rules to its API server, so the package loads.
#[test]
fn rules_that_do_not_compile_are_found_by_lint() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/packages/broken-crd-cel");
    assert_eq!(super::load(&folder).1, []);
    let found: Vec<String> = whole_lint(&folder).1.iter().map(|found| shown(&folder, found)).collect();
    let wanted = "crds/broken.yaml:25:47: error: the CEL rule does not compile: `>` does not compare a string with a number; compare values of one type; `int(x)` and `string(x)` convert";
    assert_eq!(found, [wanted]);
}
