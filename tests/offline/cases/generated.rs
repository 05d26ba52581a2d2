//! Packages with generated values: one password in several keys and in texts, and exploration, which compares what plays have generated.

use std::fs;

use tempfile::TempDir;

use super::{run, says};
use crate::crd::crd;

/// The version of the CRD.
const VERSION: &str = "
subresources: {status: {}}
schema:
  openAPIV3Schema:
    type: object
    properties:
      spec: {type: object, properties: {user: {type: string, default: app}}}
      status: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

const FILES: &[(&str, &str)] = &[
    (
        "operator.yaml",
        r"apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: broker}
spec:
  version: 0.1.0
  resources:
  - crd: crds/broker.yaml
    children:
    - {id: login, template: templates/login.yaml, onLoss: Recreate}
    - {id: tls, template: templates/tls.yaml, onLoss: Recreate}
    # Shows what was generated: if it differed from play to play, so would the ends.
    - {id: shown, template: templates/shown.yaml, exposesSecretData: true}
",
    ),
    (
        "templates/login.yaml",
        r#"apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-login"}
{% set p = password(32) %}
stringData:
  username: "{{ spec.user }}"
  password: {{ p }}
  connection: "amqp://{{ spec.user }}:{{ p }}@{{ name }}"
  default_user.conf: |
    default_user = {{ spec.user }}
    default_pass = {{ p }}
"#,
    ),
    (
        "templates/tls.yaml",
        r#"apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: "{{ name }}-tls"}
{% set c = tls_self_signed([name]) %}
stringData:
  <<: {{ c }}
  all.pem: "{{ c['tls.crt'] }}{{ c['tls.key'] }}"
"#,
    ),
    (
        "templates/shown.yaml",
        r#"apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-shown"}
data:
  url: "{{ children.login.data.connection | b64decode }}"
  key: "{{ children.tls.data['tls.key'] }}"
"#,
    ),
    (
        "tests/cases.yaml",
        r#"apiVersion: operetta.dev/v1alpha1
kind: PackageTest
cases:
- name: one password is in three keys, and follows a rotation
  steps:
  - &create {apply: {apiVersion: fixtures.operetta.dev/v1, kind: Broker, metadata: {name: a}, spec: {user: app}}}
  - expect: &same
      instance: {conditions: {Ready: "True"}}
      that:
      - "(children.login.data.connection | b64decode) == ('amqp://app:' ~ (children.login.data.password | b64decode) ~ '@a')"
      - "(children.login.data['default_user.conf'] | b64decode) == ('default_user = app\ndefault_pass = ' ~ (children.login.data.password | b64decode) ~ '\n')"
      - "(children.login.data.password | b64decode | length) == 32"
      - "(children.tls.data['all.pem'] | b64decode) == ((children.tls.data['tls.crt'] | b64decode) ~ (children.tls.data['tls.key'] | b64decode))"
      - "children.shown.data.url == (children.login.data.connection | b64decode)"
  - {restart: manager}
  - {wait: 2m}
  - expect: *same
  - {patch: Secret/a-login, with: {stringData: {password: rotated}}}
  - expect: &rotated {children: {shown: {data: {url: "amqp://app:rotated@a"}}}}
  - {patch: Secret/a-login, with: {stringData: {connection: wrong}}}
  - {wait: 2m}
  - expect: *rotated
- name: another user keeps the password
  steps:
  - *create
  - expect: *same
  - {patch: Broker/a, with: {spec: {user: other}}}
  - expect:
      that:
      - "children.shown.data.url == ('amqp://other:' ~ (children.login.data.password | b64decode) ~ '@a')"
- name: a Secret that is lost has another password
  steps:
  - *create
  - expect: *same
  - {patch: Secret/a-login, with: {stringData: {password: rotated}}}
  - expect: *rotated
  - {delete: Secret/a-login}
  - expect: *same
"#,
    ),
];

fn broker() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (name, text) in FILES {
        write(name, text);
    }
    write("crds/broker.yaml", &crd("fixtures.operetta.dev", "brokers", "Broker", VERSION));
    folder
}

#[test]
fn one_password_is_in_several_keys() {
    says(run(broker().path(), &[]), 0, &["3 passed; 0 failed"]);
}

#[test]
fn exploration_compares_what_was_generated() {
    says(run(broker().path(), &["--explore", "--schedules", "60"]), 0, &["exploration: ok. 60 schedules"]);
}
