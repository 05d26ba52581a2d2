use crate::test_crd::open_crd;
use crate::{Files, compile};

/// The diagnostics (code and message) of a package with this ref and this status field.
fn found(reference: &str, status: &str) -> Vec<String> {
    let operator = format!(
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {{name: web}}
spec:
  version: 0.1.0
  defaults: {{api: 'http://api.example.com'}}
  resources:
    - crd: crds/web.yaml
      refs:
        - {{id: token, apiVersion: v1, kind: Secret, name: t}}
        - {{id: seen, {reference}}}
      children: [{{id: pod, template: templates/pod.yaml}}]
      status: {{a: '{status}', b: refs.token.metadata.name}}
"
    );
    let crd = open_crd("example.com", "webs", "Web");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n";
    let files =
        [("operator.yaml", operator.as_str()), ("crds/web.yaml", crd.as_str()), ("templates/pod.yaml", pod)];
    let compiled = compile(&Files::from_texts("p", files));
    let diagnostics = compiled.map_or_else(|errors| errors, |(_, warnings)| warnings);
    let wanted = diagnostics.iter().filter(|found| found.code.starts_with("package::"));
    wanted.map(|found| format!("{} {}", found.code, found.message)).collect()
}

const TOKEN: &str = "{{ refs.token.data.token | b64decode }}";

#[test]
fn invalid_observations_are_errors() {
    for (reference, status) in [
        ("http: {url: '{{ defaults.api }}/a'}", "refs.seen.body.a"),
        ("http: {url: '{{ defaults.api }}/a'}, every: 5s, expect: [200, 404]", "refs.seen.headers.etag"),
        ("http: {url: '{{ defaults.api }}/a'}, expect: body.a == 1 and status < 300", "refs.seen.status"),
        ("exec: {child: pod, command: [a]}, expect: exitCode < 2", "refs.seen.json.a"),
        ("exec: {child: pod, command: [a]}, onlyInRuns: true", "refs.seen.json.a"),
        (
            "exec: {child: pod, command: [a, '{{ i }}']}, forEach: {in: 'spec.a', as: i}, when: i > 1",
            "refs.seen | length",
        ),
    ] {
        assert_eq!(found(reference, status), Vec::<String>::new(), "{reference}");
    }
    for (reference, status, expected) in [
        (
            "exec: {child: pod, command: [a]}, http: {url: 'http://a/'}",
            "name",
            "package::value an observation has",
        ),
        (
            "http: {url: 'http://a/'}, name: x",
            "refs.seen.body",
            "package::value an observation has no `name`",
        ),
        (
            "http: {url: 'http://a/'}, every: 1s",
            "refs.seen.body",
            "package::value an observation is made every 5s",
        ),
        ("exec: {child: pod, command: [a]}, expect: [200]", "name", "package::type a command has no status"),
        ("exec: {child: pods, command: [a]}", "name", "package::unknown-child there is no child `pods`"),
        ("http: {url: 'http://a/'}, expect: exitCode == 0", "refs.seen.body", "package::unknown-variable"),
        (
            "http: {url: 'http://a/'}",
            "refs.seen.json",
            "package::unknown-path an observation by http has no field json",
        ),
        (
            "apiVersion: v1, kind: ConfigMap, name: x, every: 1m",
            "refs.seen.data",
            "package::value only an observation",
        ),
        ("name: x", "name", "package::missing the ref `seen` needs apiVersion and kind"),
    ] {
        let found = found(reference, status);
        assert!(found.iter().any(|found| found.starts_with(expected)), "{reference}: {found:?}");
    }
}

#[test]
fn secret_data_in_public_parts_of_requests_is_an_error() {
    for reference in [
        format!("http: {{url: '{{{{ defaults.api }}}}/a', auth: {{bearer: '{TOKEN}'}}}}"),
        format!(
            "http: {{url: '{{{{ defaults.api }}}}/a', headers: {{X-Key: '{TOKEN}'}}, tls: {{ca: '{TOKEN}'}}}}"
        ),
        format!("http: {{url: '{{{{ defaults.api }}}}/a', method: POST, json: {{a: ['{TOKEN}']}}}}"),
        format!("exec: {{child: pod, command: [a], stdin: '{TOKEN}'}}"),
    ] {
        assert_eq!(found(&reference, "refs.seen is known"), Vec::<String>::new(), "{reference}");
    }
    for reference in [
        format!("http: {{url: '{{{{ defaults.api }}}}/{TOKEN}'}}"),
        format!("exec: {{child: pod, command: [a, '{TOKEN}']}}"),
        format!("exec: {{child: pod, command: [a], container: '{TOKEN}'}}"),
    ] {
        let found = found(&reference, "refs.seen is known");
        assert!(
            found.iter().any(|found| found.starts_with("package::secret-data")),
            "{reference}: {found:?}"
        );
    }
}
