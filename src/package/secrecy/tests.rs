#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::test_crd::open_crd;
use crate::{Files, compile};

/// A resource with a ref `tls` to a Secret, refs `all` and `each` to several, a child `secret`, a child `members` of
/// Secrets, and a child `config` with the given `data`.
struct Case<'a> {
    /// Further keys of the resource.
    more: &'a str,
    /// Further keys of the child `config`.
    child: &'a str,
    config: &'a str,
    secret: &'a str,
    files: &'a [(&'a str, &'a str)],
}

const CASE: Case<'static> = Case { more: "", child: "", config: "{a: b}", secret: "a: b", files: &[] };

/// The diagnostics about secret data: severity, end of the code, and text at the position.
fn found(case: &Case<'_>) -> Vec<String> {
    let Case { more, child, config, secret, files } = case;
    let operator = format!(
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {{name: web}}
spec:
  version: 0.1.0
  resources:
    - crd: crds/web.yaml
      refs:
        - {{id: tls, apiVersion: v1, kind: Secret, name: \"{{{{ spec.tls }}}}\"}}
        - {{id: all, apiVersion: v1, kind: Secret, selector: {{matchLabels: {{a: b}}}}}}
        - {{id: each, apiVersion: v1, kind: Secret, forEach: {{in: spec.names, as: one}}, name: \"{{{{ one }}}}\"}}
        - {{id: plain, apiVersion: v1, kind: ConfigMap, name: plain}}
{more}
      children:
        - {{id: secret, template: templates/secret.yaml, onLoss: Recreate}}
        - {{id: members, template: templates/member.yaml, forEach: {{in: range(3), as: i}}}}
        - {{id: config, template: templates/config.yaml{child}}}
"
    );
    let crd = open_crd("example.com", "webs", "Web");
    let secret = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n{secret}\n");
    let config = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {config}\n");
    let member = "apiVersion: v1\nkind: Secret\nmetadata: {name: \"m-{{ i }}\"}\n";
    let own = [
        ("operator.yaml", operator.as_str()),
        ("crds/web.yaml", crd.as_str()),
        ("templates/secret.yaml", &secret),
        ("templates/config.yaml", &config),
        ("templates/member.yaml", member),
    ];
    let all = own.into_iter().filter(|(path, _)| !files.iter().any(|(other, _)| other == path));
    let result = compile(&Files::from_texts("p", all.chain(files.iter().copied())));
    let diagnostics = match result {
        Ok((_, warnings)) => warnings,
        Err(errors) => errors,
    };
    let ours = |code: &str| code.ends_with("secret-data");
    let other = diagnostics.iter().find(|d| !ours(d.code) && d.is_error());
    assert!(other.is_none(), "{}\n{config}\n{secret}", other.unwrap());
    diagnostics.iter().filter(|d| ours(d.code)).map(ToString::to_string).collect()
}

#[test]
fn secret_data_in_other_kinds_is_an_error() {
    for text in [
        "{a: '{{ refs.tls.data.a }}'}",
        "{a: '{{ refs.tls.data[\"a\"] | b64decode }}'}",
        "{a: '{{ refs.tls.data[spec.key] }}'}",
        "{a: '{{ refs.tls.data }}'}",
        "{a: '{{ refs.tls | to_json }}'}",
        "{a: '{{ refs.tls.metadata.annotations }}'}",
        "{a: '{{ children.secret.data.a }}'}",
        "{a: '{{ children.secret }}'}",
        "{a: '{{ retained.secret.data.a }}'}",
        "{a: '{{ retained.members[0].data.a }}'}",
        "{a: '{{ children.members[0].data.a }}'}",
        "{a: '{{ children.members | values | map(attribute=\"data.a\") | join }}'}",
        "{a: '{{ refs.all[0].data.a }}'}",
        "{a: '{{ (refs.all | first).data.a }}'}",
        "{a: '{{ refs.each[\"x\"].data.a }}'}",
        "{a: '{{ refs.each.values() | list | to_json }}'}",
        "{a: '{{ {\"x\": refs.tls.data.a}.x }}'}",
        "{a: '{{ [1, refs.tls.data.a][1] }}'}",
        "{a: '{{ dict(x=refs.tls.data.a).x }}'}",
        "{a: '{{ (refs.tls.data | items | first)[1] }}'}",
        "{a: '{{ refs.tls.data.values() | join }}'}",
        "{a: '{{ refs.tls.data.get(\"a\") }}'}",
        "{a: '{{ refs.tls | attr(\"data\") | attr(\"a\") }}'}",
        "{a: '{{ \"x\" ~ refs.tls.data.a }}'}",
        "{a: '{{ refs.tls.data.a[1:3] }}'}",
        "{a: '{{ refs.tls.data.a | length }}'}",
        "{a: '{{ refs.tls.data.a | default(\"x\") }}'}",
        "{a: '{{ spec.a or refs.tls.data.a }}'}",
        "{a: '{{ spec.a and refs.tls.data.a }}'}",
        "{a: '{{ refs.tls.data.a if spec.a else 1 }}'}",
        // Results of comparisons.
        "{a: '{{ 1 if refs.tls.data.a == spec.a else 2 }}'}",
        "{a: '{{ refs.tls.data.a < \"m\" }}'}",
        "{a: '{{ refs.tls.data.a is startingwith(spec.a) }}'}",
        "{a: '{{ refs.tls.data.a in spec.list }}'}",
        "{a: '{{ (refs.tls.data.a == spec.a) | string | sha256 }}'}",
        "{a: '{{ [1, 2] | select(\"==\", refs.tls.data.a) | length }}'}",
        "{a: '{{ refs.all | sort(attribute=\"data.a\") | map(attribute=\"metadata.name\") | first }}'}",
        "{a: '{{ spec.map[refs.tls.data.a] }}'}",
        "{a: '{{ spec.list | join(refs.tls.data.a) }}'}",
        // Statements.
        "\n  {% set x = refs.tls.data %}\n  a: '{{ x.a }}'",
        "\n  {% set x, y = [refs.tls.data.a, 1] %}\n  a: '{{ x }}'",
        "\n  {% set x %}v{{ refs.tls.data.a }}{% endset %}\n  a: '{{ x }}'",
        "\n  {% set x | upper %}v{{ refs.tls.data.a }}{% endset %}\n  a: '{{ x }}'",
        "\n  {% filter upper %}a: {{ refs.tls.data.a }}{% endfilter %}\n",
        "\n  {% with x = refs.tls %}a: '{{ x.data.a }}'{% endwith %}",
        "\n  {% for v in refs.all %}\n  {{ v.metadata.name }}: '{{ v.data.a }}'\n  {% endfor %}",
        "\n  {% for k, v in refs.tls.data | items %}\n  {{ k }}: '{{ v }}'\n  {% endfor %}",
        "\n  {% for c in refs.tls.data.a %}\n  a{{ loop.index }}: x\n  {% endfor %}",
        "\n  {% for v in refs.all %}\n  {{ v.metadata.name }}: '{{ loop.previtem.data.a }}'\n  {% endfor %}",
        "\n  {% if refs.tls.data.a > spec.a %}\n  a: x\n  {% endif %}",
        "\n  {% set x = 1 %}{% if refs.tls.data.a == spec.a %}{% set x = 2 %}{% endif %}\n  a: '{{ x }}'",
        "\n  {% set ns = namespace(x=1) %}{% for v in refs.all %}{% set ns.x = v.data.a %}{% endfor %}\n  a: '{{ ns.x }}'",
        "\n  {% set ns = namespace(x=1, y=1) %}{% for v in refs.all %}{% set ns.y = ns.x %}{% set ns.x = v.data.a %}{% endfor %}\n  a: '{{ ns.y }}'",
        // A branch that is not taken leaves a variable as it was.
        "\n  a: '{{ partial(\"kept.yaml\", x=refs.tls.data.a) }}'",
        "\n  {% set x = refs.tls.data.a %}{% for v in spec.l %}{% else %}{% set x = 1 %}{% endfor %}\n  a: '{{ x }}'",
        // The fields of a namespace.
        "\n  {% set ns = namespace(x=refs.tls.data.a) %}\n  a: '{{ ns | attr(\"x\") }}'",
        "\n  a: '{{ partial(\"part.yaml\") }}'",
        "\n  a: '{{ partial(\"given.yaml\", x=refs.tls.data.a) }}'",
        "\n  a: '{{ let.direct }}'",
        "\n  a: '{{ let.far }}'",
        "\n  a: '{{ let[\"far\"] }}'",
        "\n  {{ refs.tls.data.a }}: x",
    ] {
        let more = "      let: {direct: \"{{ refs.tls.data.a }}\", far: \"x{{ let.direct }}\"}";
        let files = [
            ("templates/part.yaml", "x: {{ refs.tls.data.a }}\n"),
            ("templates/given.yaml", "{{ x }}\n"),
            ("templates/kept.yaml", "{% if spec.a %}{% else %}{% set x = 1 %}{% endif %}{{ x }}\n"),
        ];
        let errors = found(&Case { config: text, more, files: &files, ..CASE });
        assert!(
            errors.iter().any(|error| error.contains("must not be in a ConfigMap")),
            "{text}: {errors:?}"
        );
        assert!(errors.iter().all(|error| error.contains("templates/config.yaml:")), "{text}: {errors:?}");
    }
}

#[test]
fn non_secret_data_is_allowed_anywhere() {
    for text in [
        "{a: '{{ refs.tls.metadata.name }}'}",
        "{a: '{{ refs.tls.metadata.resourceVersion }}'}",
        "{a: '{{ refs.tls.type }}'}",
        "{a: '{{ refs.tls.data.a | sha256 }}'}",
        "{a: '{{ refs.tls.data | to_json | sha256 }}'}",
        "{a: '{{ refs.tls | to_json | sha256 }}'}",
        "{a: '{{ (refs.tls.data.a ~ refs.tls.data.b) | sha256 }}'}",
        "{a: '{{ refs.tls.data.a is defined }}'}",
        "{a: '{{ refs.tls.data.a is string }}'}",
        "{a: '{{ 1 if refs.tls.data.a else 2 }}'}",
        "{a: '{{ 1 if refs.tls.data.a and not refs.tls.data.b else 2 }}'}",
        "{a: '{{ refs.tls.data.a | b64decode == \"on\" }}'}",
        "{a: '{{ refs.tls.data.a in [\"a\", \"b\"] }}'}",
        "{a: '{{ refs.tls.data.keys() | join }}'}",
        "{a: '{{ refs.tls.data | length }}'}",
        "{a: '{{ \"a\" in refs.tls.data }}'}",
        "{a: '{{ refs.all | map(attribute=\"metadata.name\") | sort | join }}'}",
        "{a: '{{ refs.all | sort(attribute=\"metadata.name\") | map(attribute=\"metadata.name\") | join }}'}",
        "{a: '{{ refs.all | selectattr(\"data.a\", \"defined\") | map(attribute=\"metadata.name\") | first }}'}",
        "{a: '{{ refs.each | known | map(attribute=\"metadata.name\") | join }}'}",
        "{a: '{{ children.members | values | select(\"ready\") | list | length }}'}",
        "{a: '{{ children.secret is ready }}'}",
        "{a: '{{ children.secret.metadata.name }}'}",
        "{a: '{{ refs.plain.data.a }}'}",
        "{a: '{{ {\"x\": refs.tls.data.a, \"y\": 1}.y }}'}",
        "\n  {% for k, v in refs.tls.data | items %}\n  {{ k }}: x\n  {% endfor %}",
        "\n  {% for k in refs.tls.data %}\n  {{ k }}: x\n  {% endfor %}",
        "\n  {% for s in refs.all %}\n  {{ s.metadata.name }}: '{{ loop.index }}'\n  {% endfor %}",
        "\n  {% set x = refs.tls %}\n  a: '{{ x.metadata.name }}'",
        "\n  {% if refs.tls.data.a %}\n  a: x\n  {% endif %}",
        "\n  # {{ refs.tls.data.a }}\n  a: b",
        "\n  a: '{{ let.digest }}'",
        "\n  a: '{{ partial(\"part.yaml\").y }}'",
    ] {
        let more =
            "      let: {digest: \"{{ refs.tls.data.a | sha256 }}\", secret: \"{{ refs.tls.data.a }}\"}";
        let files = [("templates/part.yaml", "x: {{ refs.tls.data.a }}\ny: 1\n")];
        let errors = found(&Case { config: text, more, files: &files, ..CASE });
        assert_eq!(errors, Vec::<String>::new(), "{text}");
    }
}

#[test]
fn secret_data_is_allowed_only_in_the_data_of_secrets() {
    for text in [
        "data: {a: '{{ refs.tls.data.a }}'}",
        "data: {{ refs.tls.data }}",
        "stringData:\n  url: 'http://{{ refs.tls.data.user | b64decode }}:{{ refs.tls.data.password | b64decode }}@x'",
        "stringData:\n  {% for k, v in refs.tls.data | items %}\n  p-{{ k }}: '{{ v }}'\n  {% endfor %}",
        "stringData:\n  <<: {{ partial(\"part.yaml\").stringData }}\n  b: c",
        "{% if refs.tls.data.a == spec.a %}\ndata: {a: b}\n{% else %}\ndata: {b: '{{ refs.tls.data.a }}'}\n{% endif %}",
        "stringData: {a: '{{ password(20) }}'}".replace('\'', "").leak(),
        "stringData: {{ tls_self_signed([name]) }}",
        "stringData:\n  conf: |\n    {{ refs.tls.data.a }}: {{ self.data.b }}",
    ] {
        let files = [("templates/part.yaml", "stringData: {x: \"{{ refs.tls.data.a }}\"}\n")];
        assert_eq!(found(&Case { secret: text, files: &files, ..CASE }), Vec::<String>::new(), "{text}");
    }
    for (text, wanted) in [
        ("data: {\"{{ refs.tls.data.a }}\": x}", "must not be a key"),
        ("stringData:\n  x-{{ refs.tls.data.a }}-y: x", "must not be a key"),
        ("type: '{{ refs.tls.data.a }}'", "must not be outside the data"),
        ("{{ partial(\"part.yaml\") }}: x", "must not be a key"),
        ("stringData:\n  a: '{{ partial(\"keys.yaml\") }}'", "must not be a key"),
        ("metadata: {name: '{{ self.data.a }}'}", "must not be outside the data"),
        (
            "metadata: {name: s, labels: {a: '{{ refs.tls.data.a | b64decode }}'}}",
            "must not be outside the data",
        ),
        ("metadata: {{ refs.tls.metadata }}", "must not be outside the data"),
    ] {
        let files = [
            ("templates/part.yaml", "{{ refs.tls.data.a }}\n"),
            ("templates/keys.yaml", "\"{{ refs.tls.data.a }}\": 1\n"),
            ("templates/secret.yaml", &*format!("apiVersion: v1\nkind: Secret\n{text}\n").leak()),
        ];
        let errors = found(&Case { secret: text, files: &files, ..CASE });
        assert!(errors.iter().any(|error| error.contains(wanted)), "{text}: {errors:?}");
    }
}

#[test]
fn secret_data_in_status_conditions_and_decisions_is_an_error() {
    for (more, wanted) in [
        ("      status: {a: refs.tls.data.a}", "must not be shown in the status"),
        ("      status: {a: {b: \"refs.tls.data.a == spec.a\"}}", "must not be shown in the status"),
        ("      status: {a: {jsonPath: '.refs.tls.data.a'}}", "must not be shown in the status"),
        (
            "      status: {a: {jsonPath: '.refs.all[?(@.data.a)].metadata.name'}}",
            "must not be shown in the status",
        ),
        ("      status: {a: children.secret}", "must not be shown in the status"),
        (
            "      conditions: [{type: A, when: spec.a, reason: A, message: \"{{ refs.tls.data.a }}\"}]",
            "must not be shown in a condition",
        ),
        (
            "      conditions: [{type: A, when: refs.tls.data.a == spec.a, reason: A}]",
            "must not decide a condition",
        ),
        ("      readyWhen: refs.tls.data.a == spec.a", "must not decide whether the instance is ready"),
        ("      paused: refs.tls.data.a | length > 3", "must not decide whether the instance is paused"),
    ] {
        let errors = found(&Case { more, ..CASE });
        assert!(errors.len() == 1 && errors[0].contains(wanted), "{more}: {errors:?}");
        assert!(errors[0].starts_with("p/operator.yaml:") && errors[0].contains("; "), "{errors:?}");
    }
    for more in [
        "      status: {a: refs.tls.metadata.name, b: refs.tls.data.a is defined, c: refs.tls.data | to_json | sha256}",
        "      status: {a: {jsonPath: '.refs.tls.metadata.name'}}",
        "      conditions: [{type: A, when: refs.tls.data.a, reason: A, message: \"{{ refs.tls.metadata.name }}\"}]",
        "      readyWhen: refs.tls.data.a is defined",
    ] {
        assert_eq!(found(&Case { more, ..CASE }), Vec::<String>::new(), "{more}");
    }
    for (child, wanted) in [
        (", when: refs.tls.data.a == spec.a", "must not decide whether a child exists"),
        (", forEach: {in: refs.tls.data.a | lines, as: x}", "must not be the list of a forEach"),
        (", forEach: {in: refs.tls.data | values, as: x}", "must not be the list of a forEach"),
        (", forEach: {in: refs.all, as: x, key: x.data.a}", "must not be a key of a forEach"),
        (", readyWhen: refs.tls.data.a == spec.a", "must not decide whether a child is ready"),
        (", yields: [\"{{ refs.tls.data.a }}\"]", "must not be a path of yields"),
    ] {
        let config = "{a: '{{ x | default(1) }}'}";
        let config = if child.contains("forEach") { config } else { "{a: b}" };
        let errors = found(&Case { child, config, ..CASE });
        assert!(errors.iter().any(|error| error.contains(wanted)), "{child}: {errors:?}");
    }
    for child in [
        ", when: refs.tls.data.a is defined",
        ", forEach: {in: refs.tls.data, as: x}",
        ", forEach: {in: refs.all, as: x, key: x.metadata.name}",
    ] {
        let config = "{a: '{{ x.metadata.name | default(1) }}'}";
        let config = if child.contains("forEach") { config } else { "{a: b}" };
        assert_eq!(found(&Case { child, config, ..CASE }), Vec::<String>::new(), "{child}");
    }
}

#[test]
fn secret_data_in_names_and_selectors_of_refs_is_an_error() {
    for (more, wanted) in [
        (
            "{id: x, apiVersion: v1, kind: ConfigMap, name: \"{{ refs.tls.data.a | b64decode }}\"}",
            "must not name an object",
        ),
        (
            "{id: x, apiVersion: v1, kind: ConfigMap, selector: {matchLabels: {a: \"{{ refs.tls.data.a }}\"}}}",
            "must not select objects",
        ),
        (
            "{id: x, apiVersion: v1, kind: ConfigMap, name: a, when: refs.tls.data.a == spec.a}",
            "must not decide whether a ref is read",
        ),
        (
            "{id: x, apiVersion: v1, kind: ConfigMap, name: \"{{ k }}\", forEach: {in: refs.tls.data | values, as: k}}",
            "must not be the list",
        ),
    ] {
        let errors = found(&Case { more: &format!("        - {more}"), ..CASE });
        assert!(errors.iter().any(|error| error.contains(wanted)), "{more}: {errors:?}");
    }
}

#[test]
fn exposed_secret_data_is_allowed_and_reported() {
    let child = ", exposesSecretData: true";
    let told =
        found(&Case { child, config: "{\"{{ refs.tls.data.b }}\": \"{{ refs.tls.data.a }}\"}", ..CASE });
    assert!(told.len() == 1 && told[0].contains("`config` exposes `refs.tls.data`"), "{told:?}");
    let told = found(&Case { child, ..CASE });
    assert!(told.len() == 1 && told[0].contains("contains no secret data"), "{told:?}");
    // The content of the exposing child is still secret elsewhere.
    let told = found(&Case {
        child,
        config: "{a: \"{{ refs.tls.data.a }}\"}",
        more: "      status: {a: children.config.data.a, b: children.config.metadata.name}",
        ..CASE
    });
    assert!(
        told.len() == 2 && told.iter().any(|told| told.contains("must not be shown in the status")),
        "{told:?}"
    );
    // Names are not allowed even with exposesSecretData, because they appear in logs.
    let files = [(
        "templates/config.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ refs.tls.data.a }}\"}\n",
    )];
    let told = found(&Case { child, files: &files, ..CASE });
    assert!(told.iter().any(|told| told.contains("must not be a name or a label")), "{told:?}");
    for more in [
        "      status: {a: {value: refs.tls.data.a, exposesSecretData: true}}",
        "      status: {a: {b: {jsonPath: .refs.tls.data.a, exposesSecretData: true}}}",
        "      conditions: [{type: A, when: refs.tls.data.a == spec.a, reason: A, message: \"{{ refs.tls.data.a }}\", exposesSecretData: true}]",
    ] {
        let told = found(&Case { more, ..CASE });
        assert!(told.len() == 1 && told[0].contains("exposes `refs.tls.data`"), "{more}: {told:?}");
    }
}

#[test]
fn secrets_are_tracked_through_macros_and_recursion() {
    let files = [(
        "templates/config.yaml",
        "{% macro show(x) %}v{{ x }}{% endmacro %}\n{% macro round(x, n) %}{{ round(x, n - 1) if n > 0 else x }}{% endmacro %}\n\
         apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: '{{ show(1) }}'\n  b: '{{ show(refs.tls.data.a) }}'\n  c: '{{ round(refs.tls.data.a, 3) }}'\n",
    )];
    let errors = found(&Case { files: &files, ..CASE });
    let lines: Vec<&str> = errors.iter().map(|error| error.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["8", "9"], "{errors:?}");
}

#[test]
fn analysis_of_exponential_partials_ends() {
    // Each partial is inserted twice into the next one, which makes 2^20 paths.
    let mut files = vec![("templates/p0.yaml".to_owned(), "{{ refs.tls.data.a }}\n".to_owned())];
    for i in 1..20 {
        let text = format!(
            "a: '{{{{ partial(\"p{}.yaml\") }}}}'\nb: '{{{{ partial(\"p{}.yaml\") }}}}'\n",
            i - 1,
            i - 1
        );
        files.push((format!("templates/p{i}.yaml"), text));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let errors = found(&Case { config: "{a: '{{ partial(\"p19.yaml\") }}'}", files: &files, ..CASE });
    assert!(!errors.is_empty());
}
