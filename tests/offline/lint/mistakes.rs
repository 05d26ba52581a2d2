//! Planted mistakes that can be found without the schemas of Kubernetes: each is one change of a valid
//! package.

use super::{Mistake, all_are_found, check, findings, load, parse, planted, shown, write};

/// A valid package in which the mistakes are planted.
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
      additionalPrinterColumns:
        - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
        - {name: Url, type: string, jsonPath: .status.url}
        - {name: Size, type: integer, jsonPath: .spec.size}
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              required: [image]
              properties:
                image: {type: string, minLength: 1}
                size: {type: integer, default: 1, minimum: 1, maximum: 9}
                mode: {type: string, enum: [dev, prod], default: dev}
                host: {type: string}
                envs: {type: array, items: {type: object, properties: {name: {type: string}, value: {type: string}}}}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
//- operator.yaml
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: shop}
spec:
  version: 0.1.0
  defaults: {tag: latest}
  let: {image: "{{ spec.image }}:{{ defaults.tag }}"}
  resources:
    - crd: crds/shop.yaml
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: "{{ name }}-tls", optional: true}
      let:
        replicas: "{{ 3 if spec.mode == 'prod' else spec.size }}"
      children:
        - {id: web, template: templates/web.yaml}
        - {id: service, template: templates/service.yaml}
        - {id: config, template: templates/config.yaml, dependsOn: [web]}
        - {id: ingress, template: templates/ingress.yaml, when: spec.host is defined and refs.tls is defined}
        - {id: members, template: templates/member.yaml, forEach: {in: "spec.envs | default([])", as: env, key: env.name}}
        - {id: login, template: templates/login.yaml, onLoss: Recreate}
      status:
        url: "'https://' ~ spec.host if spec.host else none"
      conditions:
        - {type: Large, when: spec.size > 5, reason: Size, message: "{{ spec.size }} are many"}
//- templates/labels.yaml
app: shop
instance: "{{ name }}"
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}"}
spec:
  replicas: {{ let.replicas }}
  selector: {matchLabels: {{ partial("labels.yaml") }}}
  template:
    metadata:
      labels:
        <<: {{ partial("labels.yaml") }}
        tier: web
    spec:
      containers:
        - name: web
          image: {{ let.image }}
          command: [serve, "{{ spec.mode }}"]
          env:
            - {name: MODE, value: "{{ spec.mode }}"}
            - {name: HOST, value: "{{ spec.host | default('') }}"}
          ports: [{name: http, containerPort: 8080}]
          volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, emptyDir: {}}]
//- templates/service.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}"}
spec:
  selector: {app: shop, instance: "{{ name }}"}
  ports: [{name: http, port: 80, targetPort: http}]
//- templates/config.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
data:
  mode: "{{ spec.mode }}"
  old: "{{ self.data.mode | default('') }}"
{% if spec.host %}
  host: "{{ spec.host }}"
{% else %}
  host: localhost
{% endif %}
//- templates/ingress.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-ingress", annotations: {host: "{{ spec.host | default(omit) }}"}}
data: {host: "{{ spec.host }}"}
//- templates/member.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ env.name }}"}
data: {value: "{{ env.value | default('') }}"}
//- templates/login.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-login"}
stringData: {password: {{ password(20) }}}
"#;

const OPERATOR: &str = "operator.yaml";
const CRD: &str = "crds/shop.yaml";
const WEB: &str = "templates/web.yaml";
const SERVICE: &str = "templates/service.yaml";
const CONFIG: &str = "templates/config.yaml";
const MEMBER: &str = "templates/member.yaml";
const LOGIN: &str = "templates/login.yaml";

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    // Conditions that are always or never true.
    (OPERATOR, "when: spec.host is defined and refs.tls is defined", "when: 1 == 1 and refs.tls is undefined or true", "is always true"),
    (OPERATOR, "when: spec.host is defined and", "when: spec.size is defined and false and", "is never true"),
    (OPERATOR, "when: spec.host is defined and refs.tls is defined", "when: spec.size is defined and spec.image is defined or refs.tls is undefined and not name", "is always true"),
    (OPERATOR, "when: spec.host is defined and", "when: spec.mode == 'production' and", "the CRD allows dev, prod"),
    (OPERATOR, "when: spec.host is defined and refs.tls is defined", "when: \"spec.mode in ['stage', 'dev'] and refs.tls is defined\"", "the field never has this value"),
    (OPERATOR, "when: spec.host is defined and", "when: spec.mode == 'dev' and spec.mode == 'prod' and", "is never true"),
    (OPERATOR, "when: spec.host is defined and refs.tls is defined", "when: spec.mode != 'dev' or spec.mode != 'prod' or refs.tls is defined", "is always true"),
    (OPERATOR, "when: spec.host is defined and", "when: spec.size > 9 and", "is never true"),
    (OPERATOR, "when: spec.size > 5, reason", "when: spec.size >= 1, reason", "the `when` of the condition is always true"),
    (OPERATOR, "when: spec.size > 5, reason", "when: spec.size, reason", "is always true"),
    (OPERATOR, "optional: true}", "when: spec.image is undefined, optional: true}", "the `when` of the ref is never true"),
    (OPERATOR, "3 if spec.mode == 'prod' else spec.size", "spec.size if spec.mode == 'prod' else spec.size", "both branches are the same"),
    (CONFIG, "  host: localhost", "  host: \"{{ spec.host }}\"", "both branches are the same"),
    (CONFIG, "{% if spec.host %}", "{% if spec.mode is defined %}", "this condition is always true"),
    (OPERATOR, "spec.mode == 'prod' else", "spec.mode == 'Prod' else", "the field never has this value"),
    // Lets and refs that nothing reads.
    (WEB, "{{ let.image }}", "{{ spec.image }}", "nothing reads let.image"),
    (WEB, "{{ let.replicas }}", "{{ spec.size }}", "nothing reads let.replicas"),
    (OPERATOR, " and refs.tls is defined", "", "nothing reads the ref `tls`"),
    // Selectors, ports, names in lists.
    (WEB, "matchLabels: {{ partial(\"labels.yaml\") }}", "matchLabels: {app: store}", "does not match the labels of the workload's own pods: `app`"),
    (WEB, "matchLabels: {{ partial(\"labels.yaml\") }}", "matchLabels: {app: shop, role: web}", "does not match the labels of the workload's own pods: `role`"),
    (SERVICE, "{app: shop, instance", "{app: shops, instance", "selects no pods of this package"),
    (SERVICE, "{app: shop, instance", "{name: shop, instance", "none has the label `name`"),
    (SERVICE, "targetPort: http", "targetPort: web", "no container of the selected pods has the port web"),
    (SERVICE, "targetPort: http", "targetPort: 8081", "no container of the selected pods has the port 8081"),
    (SERVICE, "port: 80, targetPort: http", "port: 80", "no container of the selected pods has the port 80"),
    (WEB, "volumeMounts: [{name: data,", "volumeMounts: [{name: date,", "the pod has no volume `date`"),
    (SERVICE, "[{name: http, port: 80, targetPort: http}]", "[{name: http, port: 80, targetPort: http}, {name: http, port: 81, targetPort: http}]", "two items of this list are the port http"),
    // Columns that stay empty.
    (CRD, "jsonPath: .status.url", "jsonPath: .status.uri", "nothing sets status.uri"),
    (CRD, "jsonPath: .spec.size", "jsonPath: .spec.sise", "the schema has no spec.sise"),
    (CRD, "{name: Size, type: integer", "{name: Url, type: integer", "two columns have the name Url"),
    (CRD, "subresources: {status: {}}", "subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.replicas}}", "nothing sets status.replicas"),
    // `omit` and `default` without effect.
    (CONFIG, "mode: \"{{ spec.mode }}\"", "mode: \"{{ spec.mode | default(omit) }}\"", "there is nothing to omit: the field always has a value"),
    (CONFIG, "mode: \"{{ spec.mode }}\"", "mode: \"{{ spec.mode | default('x') }}\"", "this `default` is never used"),
    (CONFIG, "mode: \"{{ spec.mode }}\"", "mode: \"{{ name }}-{{ spec.host | default(omit) }}\"", "`omit` has no effect here"),
    (OPERATOR, "when: spec.host is defined and", "when: spec.host | default(omit) and", "`omit` has no effect here"),
    (OPERATOR, "\"{{ spec.size }} are many\"", "\"{{ spec.host | default(omit) }} is large\"", "`omit` has no effect here"),
    // The child's own fields, members with one name, dependencies.
    (CONFIG, "self.data.mode", "children.config.data.mode", "the child `config` reads itself"),
    (OPERATOR, "when: spec.host is defined and", "when: children.ingress is defined and", "the child `ingress` reads itself"),
    (CONFIG, "self.data.mode", "retained.config.data.mode", "`retained.config` is undefined as soon as the instance has adopted the object"),
    (CONFIG, "self.data.mode", "retained.config.data.mode", "read `self`"),
    (OPERATOR, "when: spec.host is defined and", "when: retained.web is undefined and", "read `children.web`"),
    (CONFIG, "self.data.mode", "retained.confg.data.mode", "did you mean `retained.config`?"),
    (OPERATOR, "spec.size > 5, reason", "retained.web.spec.replicas > 5 and retained.wep is undefined, reason", "`retained.wep` does not exist"),
    (MEMBER, "\"{{ name }}-{{ env.name }}\"", "\"{{ name }}-env\"", "the name of `members` does not contain `env`"),
    (OPERATOR, "key: env.name", "key: name", "the key of `members` does not read `env`"),
    (OPERATOR, "key: env.name", "key: \"''\"", "the key of forEach is the empty string"),
    (OPERATOR, "in: \"spec.envs | default([])\", as: env, key: env.name", "in: \"['a', '']\", as: env", "its key is the empty string"),
    (OPERATOR, "in: \"spec.envs | default([])\", as: env, key: env.name", "in: \"['a', 'a']\", as: env", "item 1 of forEach is a duplicate"),
    (OPERATOR, "dependsOn: [web]", "dependsOn: [web, web]", "`web` twice"),
    (LOGIN, "{{ password(20) }}", "p-{{ password(20) }}", "a generated password in a text must be the whole value of another key"),
    (LOGIN, "stringData: {password: {{ password(20) }}}", "{% set p = password(20) %}\nstringData: {password: \"p-{{ p }}\"}", "must be the whole value of another key"),
    (LOGIN, "stringData: {password: {{ password(20) }}}", "{% set p = password(20) %}\nstringData: {password: {{ p }}, hash: \"{{ p | sha256 }}\"}", "nothing can be computed with it"),
    (LOGIN, "stringData: {password: {{ password(20) }}}", "{% set p = password(20) %}\nstringData: {password: {{ p }}, url: {{ \"u:\" ~ p }}}", "nothing can be computed with it"),
    (LOGIN, "{{ password(20) }}", "\"{{ tls_ca('a') }}\"", "a certificate is inserted as the whole"),
    // Words that YAML reads as booleans.
    (CONFIG, "  old:", "  y: a\n  old:", "the key `y` is read as \"true\""),
    (CONFIG, "  old:", "  debug: yes\n  old:", "`yes` is read as true"),
    (WEB, "value: \"{{ spec.mode }}\"}", "value: on}", "`on` is read as true"),
    (WEB, "tier: web", "tier: no", "`no` is read as false"),
    (WEB, "[serve,", "[off,", "`off` is read as false"),
    (CRD, "host: {type: string}", "y: {type: string}", "the key `y` is read as \"true\""),
    (CRD, "enum: [dev, prod], default: dev", "enum: [dev, prod, off], default: dev", "`off` is read as false"),
    (OPERATOR, "version: 0.1.0\n", "version: yes\n", "`yes`, which is true in YAML 1.1"),
    // Syntax of other tools.
    (CONFIG, "\"{{ spec.mode }}\"", "\"{{ .Values.mode }}\"", "a field of the instance is `spec.x`"),
    (CONFIG, "\"{{ spec.mode }}\"", "\"{{ .Release.Name }}\"", "is `name`"),
    (CONFIG, "\"{{ spec.mode }}\"", "\"{{ .Params.MODE }}\"", "KUDO"),
    (CONFIG, "\"{{ spec.mode }}\"", "{{ spec.mode | quote }}", "inserts a value of any type"),
    (CONFIG, "\"{{ spec.mode }}\"", "{{ spec.envs | toYaml | nindent 4 }}", "inserts a value of any type"),
    (CONFIG, "\"{{ spec.mode }}\"", "{{ include \"mode\" . }}", "partial"),
    (CONFIG, "\"{{ spec.mode }}\"", "\"{{ $mode }}\"", "{% set"),
    (CONFIG, "{% if spec.host %}", "{{ if spec.host }}", "{% if"),
    (CONFIG, "{% endif %}", "{{ end }}", "endif"),
    (CONFIG, "\"{{ spec.mode }}\"", "\"${schema.spec.mode}\"", "this is literal text"),
    (CONFIG, "\"{{ spec.mode }}\"", "\"$(params.mode)\"", "this is literal text"),
    (CONFIG, "\"{{ spec.mode }}\"", "\"{{ Values.mode }}\"", "a field of the instance is `spec.x`"),
    (OPERATOR, "when: spec.host is defined and", "when: has(spec.host) and", "write `x is defined`"),
    (OPERATOR, "spec.host is defined and refs.tls is defined", "spec.host is defined && refs.tls is defined", "write `and`"),
    (OPERATOR, "when: spec.host is defined and refs.tls is defined", "when: \"!spec.host or refs.tls is defined\"", "`not`"),
    (OPERATOR, "url: \"'https://' ~ spec.host if spec.host else none\"", "url: .children.web.status.x", "a path starts without a dot"),
    (OPERATOR, "dependsOn: [web]", "dependsOn: [web], patches: []", "a template reads the fields directly"),
    (OPERATOR, "dependsOn: [web]", "includeWhen: [spec.host]", "write `when`"),
];

#[test]
fn valid_package_has_no_findings() {
    assert_eq!(findings(&parse(SOUND).files, load), Vec::<String>::new());
}

#[test]
fn planted_mistakes_are_found_in_their_file() {
    // A mistake in operator.yaml may be reported where its effect shows.
    all_are_found(SOUND, MISTAKES, load, |(file, ..), line| line.starts_with(file) || *file != CRD);
}

/// A mistake in one file hides no mistake in another, whatever it breaks.
#[test]
fn mistake_in_one_file_hides_none_in_another() {
    let breaks: [Mistake; 6] = [
        (OPERATOR, "metadata: {name: shop}", "metadata: {name: shop", "closing `}`"),
        (OPERATOR, "version: 0.1.0", "version: [", "version"),
        (OPERATOR, "conditions:", "condition:", "unknown key `condition`"),
        (CRD, "plural: shops, ", "plural: shops2, ", "names"),
        (CRD, "scope: Namespaced", "scope: [", ""),
        (WEB, "kind: Deployment", "kind: {% if %}", "template"),
    ];
    for one in breaks {
        for (file, place, by, wanted) in [
            (
                CRD,
                "{name: Url, type: string, jsonPath: .status.url}",
                "{name: Url, type: strng, jsonPath: .status.url}",
                "must be one of",
            ),
            (CONFIG, "\"{{ spec.mode }}\"", "\"{{ .Values.mode }}\"", "a field of the instance is `spec.x`"),
            (SERVICE, "kind: Service", "kind: Service\nstatus: {}", "`status` must not be"),
            (
                MEMBER,
                "{{ env.value | default('') }}",
                "{{ env.value | defalt('') }}",
                "there is no filter `defalt`",
            ),
            (LOGIN, "metadata:", "metadata: {", "templates/login.yaml"),
        ] {
            if file == one.0 {
                continue;
            }
            let mut files = planted(SOUND, &one).expect("a place");
            let text = files.get_mut(file).unwrap();
            assert!(text.contains(place), "{place}");
            *text = text.replacen(place, by, 1);
            let found = findings(&files, load);
            let has = |file: &str, wanted: &str| {
                found.iter().any(|line| line.starts_with(file) && line.contains(wanted))
            };
            assert!(has(file, wanted), "{} hides {by}: {found:#?}", one.2);
            assert!(has(one.0, ""), "{} is hidden by {by}: {found:#?}", one.2);
        }
    }
}

#[test]
fn unreadable_file_hides_no_other_mistake() {
    let mut files = parse(SOUND).files;
    let text = files.get_mut(CONFIG).unwrap();
    *text = text.replacen("spec.mode", "spec.moed", 1);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &files);
    std::fs::write(folder.path().join(WEB), b"\xff\xfe").unwrap();
    let (_, diagnostics) = load(folder.path());
    let found: Vec<_> = diagnostics.iter().map(|diagnostic| shown(folder.path(), diagnostic)).collect();
    let has =
        |file: &str, wanted: &str| found.iter().any(|line| line.starts_with(file) && line.contains(wanted));
    assert!(has(WEB, "is not UTF-8"), "{found:#?}");
    assert!(has(CONFIG, "spec.moed"), "{found:#?}");
    assert!(!found.iter().any(|line| line.contains("holds no file")), "{found:#?}");
}

#[test]
fn absent_differs_from_everything() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: cm, template: templates/cm.yaml}]
      refs:
        - {id: a, apiVersion: v1, kind: ConfigMap, name: x, when: spec.size > 1}
        - {id: b, apiVersion: v1, kind: ConfigMap, name: other}
      conditions:
        - {type: A, when: refs.a.data.x != 'y', reason: Differs, message: m}
#                         ^^^^^^^^^^^^^^^^^^^^ warning: this is true, too, while what it reads is absent; a ref or child with a `when` is absent while its `when` is false, and what is absent differs from everything: compare `... | default('')`, or test it with `is defined`
        - {type: B, when: refs.a is defined and refs.a.data.x != 'y', reason: Differs, message: m}
        - {type: C, when: spec.size > 1 and refs.a.data.x != 'y', reason: Differs, message: m}
        - {type: D, when: "refs.a.data.x | default('y') != 'y'", reason: Differs, message: m}
        - {type: E, when: "refs.a.data.y == 'z' and (spec.size == 2 or refs.a.data.x != 'y')", reason: Differs, message: m}
        - {type: F, when: "spec.size == 2 or refs.a.data.x not in ['y', 'z']", reason: Differs, message: m}
#                                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ warning: this is true, too, while what it reads is absent; a ref or child with a `when` is absent while its `when` is false, and what is absent differs from everything: compare `... | default('')`, or test it with `is defined`
        - {type: G, when: refs.b.data.x != 'y', reason: Differs, message: m}
        - {type: H, when: not refs.a.data.x != 'y', reason: Differs, message: m}
        - {type: I, when: not refs.a.data.x == 'y', reason: Differs, message: m}
#                         ^^^^^^^^^^^^^^^^^^^^^^^^ warning: this is true, too, while what it reads is absent; a ref or child with a `when` is absent while its `when` is false, and what is absent differs from everything: compare `... | default('')`, or test it with `is defined`
"#,
    );
}
