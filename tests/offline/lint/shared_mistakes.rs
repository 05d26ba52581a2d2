//! Planted mistakes with names, labels and selectors that instances, users, tools and kinds share: names that collide or
//! change, labels that users or tools choose, names that are too long, bindings, hosts, booleans of YAML 1.1. Each is one
//! change of a valid package.

use super::{Mistake, all_are_found, check, findings, has_place_and_help, no_findings, parse, whole_lint};

const SOUND: &str = r#"
//- crds/shop.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shops.example.com}
spec:
  group: example.com
  names: {kind: Shop, plural: shops, singular: shop, listKind: ShopList}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources:
        status: {}
        scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size, labelSelectorPath: .status.selector}
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          x-kubernetes-validations:
            - {rule: self.metadata.name.size() <= 40, message: the name has at most 40 characters}
          properties:
            spec:
              type: object
              required: [image]
              properties:
                image: {type: string, minLength: 1}
                size: {type: integer, default: 1}
                tenant: {type: string, default: main}
                labels: {type: object, default: {}, additionalProperties: {type: string}}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
//- operator.yaml
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: shop}
spec:
  version: 0.1.0
  defaults: {verbose: true}
  resources:
    - crd: crds/shop.yaml
      refs:
        - {id: pods, apiVersion: v1, kind: Pod, selector: {app: shop, shop: "{{ name }}"}}
      children:
        - {id: account, template: templates/account.yaml}
        - {id: role, template: templates/role.yaml}
        - {id: binding, template: templates/binding.yaml}
        - {id: class, template: templates/class.yaml}
        - {id: keys, template: templates/keys.yaml, forEach: {in: range(spec.size), as: i, key: i}, onLoss: Recreate}
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i, key: i}}
        - {id: db, template: templates/db.yaml}
        - {id: web, template: templates/web.yaml}
        - {id: worker, template: templates/worker.yaml}
        - {id: service, template: templates/service.yaml}
        - {id: budget, template: templates/budget.yaml}
        - {id: nightly, template: templates/nightly.yaml}
        - {id: gauge, template: templates/gauge.yaml}
        - {id: scaler, template: templates/scaler.yaml}
      status:
        size: refs.pods | length
        selector: "'app=shop,shop=' ~ name"
      plans:
        notify:
          steps: [{name: call, http: {url: "https://{{ spec.tenant }}.example.com/x", hosts: ["*.example.com"]}}]
//- templates/labels.yaml
app: shop
shop: "{{ name }}"
//- templates/account.yaml
apiVersion: v1
kind: ServiceAccount
metadata: {name: "{{ name }}", labels: {team: "{{ labels.team | default(omit) }}"}}
//- templates/role.yaml
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: "{{ name }}"}
rules: [{apiGroups: [""], resources: [serviceaccounts], verbs: [get]}]
//- templates/binding.yaml
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: "{{ name }}"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: "{{ name }}"}
subjects: [{kind: ServiceAccount, name: "{{ name }}", namespace: "{{ namespace }}"}]
//- templates/class.yaml
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: "{{ namespace }}.{{ name }}"}
spec: {controller: example.com/shop}
//- templates/keys.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-keys-{{ i }}"}
stringData: {password: {{ password(20) }}}
//- templates/member.yaml
apiVersion: v1
kind: Pod
metadata:
  name: "{{ name }}-{{ i }}"
  labels: {{ partial("labels.yaml") }}
spec:
  containers:
    - name: member
      image: "{{ spec.image }}"
      env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: "{{ name }}-keys-{{ i }}", key: password}}}]
      volumeMounts: [{name: keys, mountPath: /keys}]
  volumes: [{name: keys, secret: {secretName: "{{ name }}-keys-{{ i }}", items: [{key: password, path: password}]}}]
//- templates/db.yaml
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: "{{ name }}"}
spec:
  serviceName: "{{ name }}"
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  selector: {matchLabels: {app: db, shop: "{{ name }}"}}
  template:
    metadata: {labels: {app: db, shop: "{{ name }}"}}
    spec: {containers: [{name: db, image: "{{ spec.image }}", volumeMounts: [{name: data, mountPath: /data}]}]}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}-web"}
spec:
  selector: {matchLabels: {{ partial("labels.yaml") }}}
  template:
    metadata:
      labels:
        <<: [{{ partial("labels.yaml") }}, {{ spec.labels }}]
        tier: web
    spec: {containers: [{name: web, image: "{{ spec.image }}", args: ["{{ defaults.verbose }}"]}]}
//- templates/worker.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}-worker"}
spec:
  selector: {matchLabels: {worker: "{{ name }}"}}
  template:
    metadata: {labels: {<<: {{ spec.labels }}, worker: "{{ name }}"}}
    spec: {containers: [{name: worker, image: "{{ spec.image }}"}]}
//- templates/service.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}"}
spec:
  selector: {app: shop, shop: "{{ name }}", tier: web}
  ports: [{port: 80}]
//- templates/budget.yaml
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: "{{ name }}"}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: shop, shop: "{{ name }}", tier: web}}}
//- templates/nightly.yaml
apiVersion: batch/v1
kind: CronJob
metadata: {name: "{{ name }}-nightly"}
spec:
  schedule: 0 3 * * *
  jobTemplate:
    spec: {template: {spec: {restartPolicy: Never, containers: [{name: dump, image: dump}]}}}
//- templates/gauge.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-gauge"}
data: {mode: "on"}
//- templates/scaler.yaml
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: "{{ name }}"}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: "{{ name }}-web"}}
"#;

const CRD: &str = "crds/shop.yaml";
const OPERATOR: &str = "operator.yaml";
const ACCOUNT: &str = "templates/account.yaml";
const BINDING: &str = "templates/binding.yaml";
const CLASS: &str = "templates/class.yaml";
const DB: &str = "templates/db.yaml";
const GAUGE: &str = "templates/gauge.yaml";
const MEMBER: &str = "templates/member.yaml";
const SCALER: &str = "templates/scaler.yaml";
const WEB: &str = "templates/web.yaml";
const WORKER: &str = "templates/worker.yaml";

/// What is merged into the labels of the pods of [`WEB`].
const MERGED: &str = "[{{ partial(\"labels.yaml\") }}, {{ spec.labels }}]";

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    // Keys of Secrets, also of members.
    (MEMBER, "key: password}}}]", "key: pasword}}}]", "the Secret of `keys` has no key `pasword`"),
    (MEMBER, "items: [{key: password,", "items: [{key: pass,", "the Secret of `keys` has no key `pass`"),
    // Selectors, where users add labels.
    ("templates/service.yaml", "tier: web", "tier: front", "the Service selects no pods of this package"),
    ("templates/budget.yaml", "tier: web", "layer: web", "the PodDisruptionBudget selects no pods of this package"),
    (OPERATOR, "selector: {app: shop, shop:", "selector: {app: shop, store:", "the ref `pods` selects no pods of this package: none has the label `store`"),
    (OPERATOR, "selector: {app: shop, shop: \"{{ name }}\"}", "selector: {matchLabels: {store: \"{{ name }}\"}}", "the ref `pods` selects no pods of this package: none has the label `store`"),
    (WEB, MERGED, "[{{ spec.labels }}, {{ partial(\"labels.yaml\") }}]", "`spec.labels` may replace the label `app`, which the selector needs"),
    (WORKER, "{<<: {{ spec.labels }}, worker: \"{{ name }}\"}", "{{ {'worker': name} | combine(spec.labels) }}", "`spec.labels` may replace a label that the selector needs"),
    (WORKER, "{<<: {{ spec.labels }}, worker: \"{{ name }}\"}", "{{ {'worker': name} | merge(spec.labels) }}", "`spec.labels` may replace a label that the selector needs"),
    (WORKER, "selector: {matchLabels: {worker: \"{{ name }}\"}}", "selector:\n    matchLabels:\n      worker: \"{{ name }}\"\n{% for key, value in spec.labels | items %}\n      {{ key }}: \"{{ value }}\"\n{% endfor %}", "spec.selector of a Deployment cannot be changed, and `spec.labels"),
    (DB, "  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]", "  volumeClaimTemplates:\n  - metadata:\n     name: data\n     labels:\n{% for key, value in spec.labels | items %}\n      {{ key }}: \"{{ value }}\"\n{% endfor %}\n    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}", "spec.volumeClaimTemplates of a StatefulSet cannot be changed, and `spec.labels"),
    (DB, "accessModes: [ReadWriteOnce]", "accessModes: [\"{{ spec.tenant }}\"]", "spec.volumeClaimTemplates of a StatefulSet cannot be changed, and `spec.tenant`"),
    (GAUGE, "kind: ConfigMap\nmetadata: {name: \"{{ name }}-gauge\"}\ndata: {mode: \"on\"}", "kind: PersistentVolumeClaim\nmetadata: {name: \"{{ name }}-gauge\"}\nspec:\n  resources: {requests: {storage: 1Gi}}\n  accessModes:\n{% for key, mode in spec.labels | items %}\n  - {{ mode }}\n{% endfor %}", "spec.accessModes of a PersistentVolumeClaim cannot be changed, and `spec.labels"),
    // Labels and annotations of tools.
    (ACCOUNT, "{team: \"{{ labels.team | default(omit) }}\"}", "{{ labels }}", "all labels of the instance are copied"),
    (ACCOUNT, "{team: \"{{ labels.team | default(omit) }}\"}", "{<<: {{ instance.metadata.labels | default({}) }}, a: b}", "all labels of the instance are copied"),
    (GAUGE, "-gauge\"}", "-gauge\", annotations: {{ instance.metadata.annotations | default({}) }}}", "all annotations of the instance are copied"),
    // Names that two instances share, or that change.
    (CLASS, "{{ namespace }}.{{ name }}", "{{ name }}", "the name of the IngressClass does not contain the namespace"),
    (CLASS, "{{ namespace }}.{{ name }}", "{{ name | dns_label }}-class", "the name of the IngressClass does not contain the namespace"),
    (CLASS, "{{ namespace }}.{{ name }}", "shop", "the name of the IngressClass does not contain the namespace"),
    (GAUGE, "{{ name }}-gauge", "{{ name }}-{{ instance.metadata.generation }}", "`instance.metadata.generation` changes with every change of a spec"),
    (GAUGE, "{{ name }}-gauge", "{{ name }}-{{ children.account.metadata.resourceVersion }}", "`children.account.metadata.resourceVersion` changes with every write"),
    (GAUGE, "{{ name }}-gauge", "{{ name }}-{{ instance.status.observedGeneration }}", "`instance.status.observedGeneration` changes with every change of a spec"),
    // Bindings.
    (BINDING, "kind: Role, name: \"{{ name }}\"", "kind: Role, name: \"{{ name }}-reader\"", "no child is a Role `{{ name }}-reader`"),
    (BINDING, "kind: Role, name", "kind: ClusterRole, name", "no child is a ClusterRole `{{ name }}`"),
    (BINDING, "kind: RoleBinding", "kind: ClusterRoleBinding", "`roleRef.kind` of"),
    (BINDING, "kind: ServiceAccount, name: \"{{ name }}\"", "kind: ServiceAccount, name: \"{{ name }}-robot\"", "no child is a ServiceAccount `{{ name }}-robot`"),
    // Names that are too long.
    (CRD, "self.metadata.name.size() <= 40", "self.spec.image.size() <= 40", "the value of the label `shop` may have 253 characters"),
    (CRD, "self.metadata.name.size() <= 40", "self.spec.image.size() <= 40", "the name of the Service may have 253 characters"),
    (CRD, "<= 40", "<= 60", "the name of the CronJob may have 68 characters"),
    // Autoscalers, volumes, hosts.
    (SCALER, "name: \"{{ name }}-web\"", "name: \"{{ name }}\"", "no child is a Deployment `{{ name }}`"),
    (SCALER, "kind: Deployment", "kind: ReplicaSet", "no child is a ReplicaSet `{{ name }}-web`"),
    (WEB, "spec:\n  selector", "spec:\n  {% if spec.size %}\n  replicas: 1\n  {% endif %}\n  selector", "where `replicas` is omitted"),
    (CRD, ", labelSelectorPath: .status.selector", "", "`scale` has no labelSelectorPath"),
    (DB, "whenDeleted: Retain", "whenDeleted: Delete", "the volumes of `db` are deleted with it"),
    (OPERATOR, "hosts: [\"*.example.com\"]", "hosts: [\"*.example.org\"]", "is none of `hosts`"),
    (OPERATOR, "hosts: [\"*.example.com\"]", "hosts: [\"*.example.com\", api.example.net]", "can never be api.example.net"),
    // Words that YAML 1.1 reads as booleans.
    (OPERATOR, "verbose: true", "verbose: yes", "`yes` is read as true"),
    (GAUGE, "name: \"{{ name }}-gauge\"", "name: n", "takes a string"),
    (GAUGE, "mode: \"on\"", "mode: on", "`on` is read as true"),
];

#[test]
fn valid_package_with_shared_names_has_no_findings() {
    assert_eq!(findings(&parse(SOUND).files, whole_lint), Vec::<String>::new());
}

#[test]
fn mistakes_with_what_is_shared_are_found_with_place_and_help() {
    all_are_found(SOUND, MISTAKES, whole_lint, has_place_and_help);
}

#[test]
fn labels_of_a_let_are_known() {
    for (own, wanted) in [
        ("spec.labels | combine({'worker': name})", None),
        (
            "{'worker': name} | combine(spec.labels)",
            Some("`spec.labels` may replace a label that the selector needs"),
        ),
        ("labels | combine({'worker': name})", Some("all labels of the instance are copied")),
    ] {
        let mut files = parse(SOUND).files;
        let operator = files.get_mut(OPERATOR).unwrap();
        *operator = operator
            .replace("      refs:\n", &format!("      let: {{own: \"{{{{ {own} }}}}\"}}\n      refs:\n"));
        let worker = files.get_mut(WORKER).unwrap();
        *worker = worker.replace("{<<: {{ spec.labels }}, worker: \"{{ name }}\"}", "{{ let.own }}");
        let found = findings(&files, whole_lint);
        let is_right = match wanted {
            Some(wanted) => found.iter().any(|line| line.contains(wanted)),
            None => found.is_empty(),
        };
        assert!(is_right, "{own}: {found:#?}");
    }
}

/// The labels of its pods are not known.
#[test]
fn template_with_an_error_has_no_findings_about_selectors() {
    let mut files = parse(SOUND).files;
    let web = files.get_mut(WEB).unwrap();
    *web = web.replace("{{ spec.image }}", "{{ spec.image | no_such_filter }}");
    let found = findings(&files, whole_lint);
    assert!(found.iter().any(|line| line.contains("there is no filter")), "{found:#?}");
    assert!(found.iter().all(|line| !line.contains("selects no pods")), "{found:#?}");
}

/// Valid changes of the package: what users or others choose is unknown.
#[rustfmt::skip]
const RIGHT: &[&[(&str, &str, &str)]] = &[
    &[(CLASS, "{{ namespace }}.{{ name }}", "{{ spec.tenant }}")],
    &[(CLASS, "{{ namespace }}.{{ name }}", "{{ instance.metadata.uid }}")],
    &[(CLASS, "{{ namespace }}.{{ name }}", "{{ city }}"), (OPERATOR, "template: templates/class.yaml", "template: templates/class.yaml, forEach: {in: spec.cities, as: city}"), (CRD, "tenant:", "cities: {type: array, default: [], items: {type: string}}\n                tenant:")],
    &[(ACCOUNT, "{team: \"{{ labels.team | default(omit) }}\"}", "{{ spec.labels }}")],
    &[(WORKER, "{<<: {{ spec.labels }}, worker: \"{{ name }}\"}", "{{ spec.labels | combine({'worker': name}) }}")],
    &[(WORKER, "selector: {matchLabels: {worker: \"{{ name }}\"}}", "selector:\n    matchLabels:\n      worker: \"{{ name }}\"\n{% for key, value in spec.labels | items %}\n      {{ key }}: \"{{ value }}\"\n{% endfor %}"), (CRD, "additionalProperties: {type: string}}", "additionalProperties: {type: string}, x-kubernetes-validations: [{rule: self == oldSelf, message: immutable}]}")],
    &[(WORKER, "selector: {matchLabels: {worker: \"{{ name }}\"}}", "selector:\n    matchLabels:\n{% for key in ['worker'] %}\n      {{ key }}: \"{{ name }}\"\n{% endfor %}")],
    &[(WEB, MERGED, "[{\"{{ spec.tenant }}\": x}, {{ spec.labels }}, {{ partial(\"labels.yaml\") }}]")],
    &[(WEB, MERGED, "[{{ spec.labels }}, {{ partial(\"labels.yaml\") }}]\n        \"{{ spec.tenant }}\": x")],
    &[(SCALER, "name: \"{{ name }}-web\"", "name: \"{{ spec.tenant }}\"")],
    &[(SCALER, "apiVersion: apps/v1, kind: Deployment", "apiVersion: apps.kruise.io/v1beta1, kind: StatefulSet")],
    &[(SCALER, "apiVersion: apps/v1, kind: Deployment, name: \"{{ name }}-web\"", "apiVersion: example.com/v1, kind: Shop, name: \"{{ name }}\"")],
    &[(DB, "whenDeleted: Retain", "whenDeleted: \"{{ 'Delete' if spec.size > 1 else 'Retain' }}\"")],
    &[(DB, "whenDeleted: Retain", "whenDeleted: Delete"), (OPERATOR, "{id: db, template: templates/db.yaml}", "{id: db, template: templates/db.yaml, deletionPolicy: Delete}")],
    &[(BINDING, "kind: Role, name: \"{{ name }}\"", "kind: ClusterRole, name: view")],
    &[(BINDING, "kind: ServiceAccount, name: \"{{ name }}\"", "kind: ServiceAccount, name: default")],
    &[(BINDING, "name: \"{{ name }}\", namespace: \"{{ namespace }}\"", "name: \"{{ name }}-robot\", namespace: robots")],
    &[(OPERATOR, "selector: {app: shop, shop: \"{{ name }}\"}", "selector: {app: another}")],
    &[(CRD, "self.metadata.name.size() <= 40", "\"self.metadata.name.matches('^[a-z]+$')\"")],
    &[(OPERATOR, "https://{{ spec.tenant }}.example.com/x\", hosts: [\"*.example.com\"]", "https://{{ spec.tenant }}/x\", hosts: [\"*.example.com\", api.example.net]")],
    &[(OPERATOR, "hosts: [\"*.example.com\"]", "redirects: 2, hosts: [\"*.example.com\", cdn.example.net]")],
    &[(OPERATOR, "verbose: true", "verbose: \"yes\"")],
];

#[test]
fn values_of_users_and_of_other_packages_are_not_reported() {
    no_findings(SOUND, RIGHT);
}

/// Nothing says what a field of a custom kind takes.
#[test]
fn boolean_words_in_custom_kinds_are_reported() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: thing, template: templates/thing.yaml}]
//- templates/thing.yaml
apiVersion: example.org/v1
kind: Thing
metadata: {name: "{{ name }}"}
spec: {mode: on, plain: true, quoted: "on", list: [n]}
#            ^^ warning: `on` is read as true: it is a boolean in YAML 1.1, and a string in YAML 1.2; write true, or quote it: "on"
#                                                  ^ warning: `n` is read as false: it is a boolean in YAML 1.1, and a string in YAML 1.2; write false, or quote it: "n"
//- templates/cm.yaml
apiVersion: v1
^^^^^ warning: nothing in the package uses this file; remove it
kind: ConfigMap
metadata: {name: a}
"#,
    )
    .expect("warnings only");
}
